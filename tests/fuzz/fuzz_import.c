/* SPDX-License-Identifier: Apache-2.0
 *
 * Routing traces of other tools: JSON Lines, NumPy, told apart by their bytes. One that is read holds what
 * kedge_trace_check asks for, and can be measured. */
#include "models/retention/retention_use.h"
#include "models/trace/trace_import.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const kedge_trace_import_options options = {.experts = size % 2 ? 8 : 0};
  kedge_trace trace;
  kedge_use use;
  kedge_status status = kedge_trace_read(fuzz_file(data, size), &options, &trace);
  if (status != KEDGE_OK) {
    FUZZ_REFUSED(status);
    FUZZ_CHECK(!trace.ids);
    return 0;
  }
  FUZZ_CHECK(kedge_trace_check(&trace, "trace") == KEDGE_OK);
  if ((uint64_t)trace.layers * trace.experts < 1u << 20) {
    FUZZ_CHECK(kedge_use_measure(&trace, KEDGE_RETENTION_ALL, &use) == KEDGE_OK);
    kedge_use_destroy(&use);
  }
  kedge_trace_destroy(&trace);
  return 0;
}
