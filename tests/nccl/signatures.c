/* SPDX-License-Identifier: Apache-2.0
 * Compares nccl.def and nccl_types.h with NCCL's own header, where that is installed (KEDGE_NCCL_HEADER): a
 * difference does not compile. For the suite `nccl`. */
#include "tests/nccl/signatures.h"

#if defined(KEDGE_NCCL_HEADER)
#include <nccl.h>

#define NCCL_STREAM cudaStream_t
#define NCCL_FUNCTION(result, name, parameters)                                                              \
  _Static_assert(__builtin_types_compatible_p(__typeof__(nccl##name), result parameters), "nccl" #name);
#include "backends/gpu/nccl.def"
_Static_assert(ncclSuccess == 0 && ncclSystemError == 2 && ncclInvalidArgument == 4 && ncclInvalidUsage == 5,
               "results");
_Static_assert(ncclInt8 == 0 && sizeof(ncclResult_t) == 4 && sizeof(ncclDataType_t) == 4, "types");
_Static_assert(sizeof(ncclUniqueId) == 128, "an id");

unsigned nccl_compared(void) {
  return NCCL_VERSION_CODE;
}
#else
unsigned nccl_compared(void) {
  return 0;
}
#endif
