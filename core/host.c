/* SPDX-License-Identifier: Apache-2.0
 * Buffers in host memory, for the backends that compute there (ref, cpu). Addresses are 64-byte aligned. */
#include "core/device.h"

#include <string.h>
#include <time.h>

enum { ALIGNMENT = 64 };

kedge_status kedge__host_buffer_new(kedge_device *device, uint64_t bytes, kedge_buffer *buffer) {
  (void)device;
  char *memory = kedge_alloc(bytes + ALIGNMENT, 1);
  if (!memory) return KEDGE_ERR_MEMORY;
  buffer->handle = memory;
  buffer->address = ((uintptr_t)memory + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return KEDGE_OK;
}

kedge_status kedge__host_buffer_wrap(kedge_device *device, const void *memory, uint64_t bytes,
                                     kedge_buffer *buffer) {
  (void)device;
  (void)bytes;
  buffer->address = (uintptr_t)memory;
  return KEDGE_OK;
}

void kedge__host_buffer_free(kedge_buffer *buffer) {
  if (!buffer->borrowed) kedge_free(buffer->handle);
}

kedge_status kedge__host_write(kedge_buffer *buffer, uint64_t offset, const void *data, uint64_t bytes) {
  memcpy((void *)(uintptr_t)(buffer->address + offset), data, bytes);
  return KEDGE_OK;
}

kedge_status kedge__host_read(const kedge_buffer *buffer, uint64_t offset, void *data, uint64_t bytes) {
  memcpy(data, (const void *)(uintptr_t)(buffer->address + offset), bytes);
  return KEDGE_OK;
}

kedge_status kedge__host_fill(kedge_buffer *buffer, uint64_t offset, uint64_t bytes, uint8_t byte) {
  memset((void *)(uintptr_t)(buffer->address + offset), byte, bytes);
  return KEDGE_OK;
}

kedge_status kedge__host_sync(kedge_device *device) {
  (void)device;
  return KEDGE_OK;
}

double kedge__host_time(kedge_device *device) {
  (void)device;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
