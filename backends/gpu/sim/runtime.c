/* SPDX-License-Identifier: Apache-2.0
 * The simulated card's runtime (runtime.h). */
#include "backends/gpu/sim/runtime.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static char last_error[300];

/* Takes over what the scheduler found. */
static simError_t found(void) {
  const char *text = sim_error();
  if (!text) return simSuccess;
  strncpy(last_error, text, sizeof last_error - 1);
  return simErrorKernel;
}

const char *simGetErrorString(simError_t error) {
  return error == simSuccess ? "no error" : error == simErrorMemory ? "out of memory" : last_error;
}

simError_t simGetLastError(void) {
  return found();
}

simError_t simMalloc(void **memory, size_t bytes) {
  *memory = sim_buffer_new(bytes);
  return *memory ? simSuccess : simErrorMemory;
}

simError_t simFree(void *memory) {
  sim_buffer_free(memory);
  return found();
}

simError_t simHostAlloc(void **memory, size_t bytes, unsigned flags) {
  (void)flags;
  *memory = malloc(bytes);
  return *memory ? simSuccess : simErrorMemory;
}

simError_t simFreeHost(void *memory) {
  free(memory);
  return simSuccess;
}

simError_t simMemcpyAsync(void *to, const void *from, size_t bytes, simMemcpyKind kind, simStream_t stream) {
  (void)kind;
  (void)stream;
  memcpy(to, from, bytes);
  return simSuccess;
}

simError_t simMemsetAsync(void *to, int byte, size_t bytes, simStream_t stream) {
  (void)stream;
  memset(to, byte, bytes);
  return simSuccess;
}

simError_t simStreamSynchronize(simStream_t stream) {
  (void)stream;
  sim_buffers_check();
  return found();
}

simError_t simEventCreate(simEvent_t *event) {
  *event = calloc(1, sizeof **event);
  return *event ? simSuccess : simErrorMemory;
}

simError_t simEventDestroy(simEvent_t event) {
  free(event);
  return simSuccess;
}

simError_t simEventRecord(simEvent_t event, simStream_t stream) {
  struct timespec now;
  (void)stream;
  clock_gettime(CLOCK_MONOTONIC, &now);
  *event = 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
  return simSuccess;
}

simError_t simEventSynchronize(simEvent_t event) {
  (void)event;
  return simSuccess;
}

simError_t simEventElapsedTime(float *milliseconds, simEvent_t from, simEvent_t to) {
  *milliseconds = (float)(*to - *from);
  return simSuccess;
}
