/* SPDX-License-Identifier: Apache-2.0
 *
 * A routing trace. One that is read holds what kedge_trace_check asks for. */
#include "models/trace/trace.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  kedge_trace trace;
  kedge_status status = kedge_trace_load(fuzz_file(data, size), &trace);
  if (status != KEDGE_OK) {
    FUZZ_REFUSED(status);
    return 0;
  }
  FUZZ_CHECK(kedge_trace_check(&trace, "trace") == KEDGE_OK);
  kedge_trace_destroy(&trace);
  return 0;
}
