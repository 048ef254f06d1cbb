/* SPDX-License-Identifier: Apache-2.0
 *
 * The few types and values of NCCL that nccl.def needs, under NCCL's names: Kedge is built without nccl.h,
 * and the library is loaded where it is wanted. */
#ifndef KEDGE_GPU_NCCL_TYPES_H
#define KEDGE_GPU_NCCL_TYPES_H

#include <stddef.h>

typedef struct ncclComm *ncclComm_t;
typedef struct {
  char internal[128];
} ncclUniqueId;
typedef enum {
  ncclSuccess = 0,
  ncclSystemError = 2,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5
} ncclResult_t;
typedef enum { ncclInt8 = 0 } ncclDataType_t;

#endif
