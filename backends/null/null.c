/* SPDX-License-Identifier: Apache-2.0
 * Backend `null`: plans everything, allocates and computes nothing. Buffers have a size and no memory; reads
 * give zeros. */
#include "core/device.h"

#include <stdio.h>
#include <string.h>

static kedge_status null_open(const kedge_open_options *options, kedge_device *device) {
  (void)options;
  snprintf(device->description, sizeof device->description, "null (plans, computes nothing)");
  return KEDGE_OK;
}

static void null_close(kedge_device *device) {
  (void)device;
}

static void null_limits(const kedge_device *device, kedge_limits *limits) {
  (void)device;
  *limits = (kedge_limits){.max_buffer = UINT64_MAX / 2, .alignment = 64, .threads = 1, .f64 = true};
}

static kedge_status null_buffer_new(kedge_device *device, uint64_t bytes, kedge_buffer *buffer) {
  (void)device;
  (void)bytes;
  (void)buffer;
  return KEDGE_OK;
}

static kedge_status null_buffer_wrap(kedge_device *device, const void *memory, uint64_t bytes,
                                     kedge_buffer *buffer) {
  (void)memory;
  return null_buffer_new(device, bytes, buffer);
}

static void null_buffer_free(kedge_buffer *buffer) {
  (void)buffer;
}

static kedge_status null_write(kedge_buffer *buffer, uint64_t offset, const void *data, uint64_t bytes) {
  (void)buffer;
  (void)offset;
  (void)data;
  (void)bytes;
  return KEDGE_OK;
}

static kedge_status null_read(const kedge_buffer *buffer, uint64_t offset, void *data, uint64_t bytes) {
  (void)buffer;
  (void)offset;
  memset(data, 0, bytes);
  return KEDGE_OK;
}

static kedge_status null_fill(kedge_buffer *buffer, uint64_t offset, uint64_t bytes, uint8_t byte) {
  (void)buffer;
  (void)offset;
  (void)bytes;
  (void)byte;
  return KEDGE_OK;
}

static uint64_t null_scratch(const kedge_device *device, const kedge_step *step) {
  (void)device;
  (void)step;
  return 0;
}

static kedge_status null_run(kedge_device *device, const kedge_step *steps, uint32_t count) {
  (void)device;
  (void)steps;
  (void)count;
  return KEDGE_OK;
}

static kedge_status null_sync(kedge_device *device) {
  (void)device;
  return KEDGE_OK;
}

static double null_time(kedge_device *device) {
  return kedge__host_time(device);
}

const kedge_backend kedge__backend_null = {.name = "null",
                                           .open = null_open,
                                           .close = null_close,
                                           .limits = null_limits,
                                           .buffer_new = null_buffer_new,
                                           .buffer_wrap = null_buffer_wrap,
                                           .buffer_free = null_buffer_free,
                                           .write = null_write,
                                           .read = null_read,
                                           .fill = null_fill,
                                           .scratch = null_scratch,
                                           .run = null_run,
                                           .sync = null_sync,
                                           .time = null_time};
