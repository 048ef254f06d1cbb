/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated card's runtime under the names that CUDA's has, as far as backend.c uses them: everything
 * happens at once, a stream is the device's settings. runtime.c implements it.
 */
#ifndef KEDGE_GPU_SIM_RUNTIME_H
#define KEDGE_GPU_SIM_RUNTIME_H

#include "backends/gpu/sim/sim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef sim_settings *simStream_t;
typedef double *simEvent_t;
typedef int simError_t;
enum { simSuccess = 0, simErrorMemory = 1, simErrorKernel = 2 };
typedef enum { simMemcpyHostToDevice, simMemcpyDeviceToHost, simMemcpyDeviceToDevice } simMemcpyKind;

const char *simGetErrorString(simError_t error);
simError_t simGetLastError(void);
simError_t simMalloc(void **memory, size_t bytes);
simError_t simFree(void *memory);
simError_t simHostAlloc(void **memory, size_t bytes, unsigned flags);
simError_t simFreeHost(void *memory);
simError_t simMemcpyAsync(void *to, const void *from, size_t bytes, simMemcpyKind kind, simStream_t stream);
simError_t simMemsetAsync(void *to, int byte, size_t bytes, simStream_t stream);
simError_t simStreamSynchronize(simStream_t stream);
simError_t simEventCreate(simEvent_t *event);
simError_t simEventDestroy(simEvent_t event);
simError_t simEventRecord(simEvent_t event, simStream_t stream);
simError_t simEventSynchronize(simEvent_t event);
simError_t simEventElapsedTime(float *milliseconds, simEvent_t from, simEvent_t to);

#ifdef __cplusplus
}
#endif
#endif
