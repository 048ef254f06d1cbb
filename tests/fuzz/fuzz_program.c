/* SPDX-License-Identifier: Apache-2.0
 *
 * A program of the tiny language: it ends, is refused, fails or is stopped, within its bounds, and twice
 * alike. */
#include "models/text/program.h"
#include "tests/fuzz/fuzz.h"

enum { STEPS = 20000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static kedge_program_result first, second;
  FUZZ_CHECK(kedge_program_run((const char *)data, size, STEPS, NULL, NULL, &first) == KEDGE_OK);
  FUZZ_CHECK(first.steps <= STEPS && first.length <= KEDGE_PROGRAM_MAX_OUTPUT && !first.output[first.length]);
  FUZZ_CHECK((first.end == KEDGE_PROGRAM_ENDED) == !first.line && !first.line == !*first.why);
  FUZZ_CHECK(first.end != KEDGE_PROGRAM_REFUSED || (!first.steps && !first.length));
  FUZZ_CHECK(kedge_program_run((const char *)data, size, STEPS, NULL, NULL, &second) == KEDGE_OK);
  FUZZ_CHECK(first.end == second.end && first.steps == second.steps && !strcmp(first.output, second.output));
  return 0;
}
