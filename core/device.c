/* SPDX-License-Identifier: Apache-2.0
 * Devices and buffers: the public face of the contract in device.h. */
#include "core/device.h"

#include <stdio.h>
#include <string.h>

static const kedge_backend *const backends[] = {&kedge__backend_ref, &kedge__backend_cpu,
                                                &kedge__backend_null};
enum { BACKEND_COUNT = sizeof backends / sizeof *backends };

const char *kedge_backend_name(uint32_t index) {
  return index < BACKEND_COUNT ? backends[index]->name : kedge__module_name(index - BACKEND_COUNT);
}

kedge_status kedge_device_open(const char *name, const kedge_open_options *options, kedge_device **out) {
  const kedge_backend *backend = NULL;
  char plain[16];
  *out = NULL;
  kedge_open_options own = options ? *options : (kedge_open_options){0};
  const size_t length = strcspn(name, ":");
  snprintf(plain, sizeof plain, "%.*s", (int)(length < sizeof plain ? length : sizeof plain), name);
  if (name[length] == ':') own.settings = name + length + 1;
  for (uint32_t i = 0; i < BACKEND_COUNT; i++)
    if (!strcmp(backends[i]->name, plain)) backend = backends[i];
  if (!backend) KEDGE_TRY(kedge__module_load(plain, &backend));
  if (!backend)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "backend \"%s\": expected ref, cpu, null, vulkan, cuda, hip or sim",
                      name);
  if (own.settings && !strcmp(own.settings, "")) own.settings = NULL;
  if (own.settings && !backend->settings)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "backend \"%s\": %s has no settings", name, plain);
  kedge_device *device = kedge_alloc(1, sizeof *device);
  if (!device) return KEDGE_ERR_MEMORY;
  device->backend = backend;
  device->index = -1;
  kedge_status status = backend->open(&own, device);
  if (status != KEDGE_OK) {
    kedge_free(device);
    return status;
  }
  backend->limits(device, &device->limits);
  device->limits.rowwise = options && options->rowwise;
  *out = device;
  return KEDGE_OK;
}

void kedge_device_close(kedge_device *device) {
  if (!device) return;
  device->backend->close(device);
  kedge_free(device);
}

const char *kedge_device_backend(const kedge_device *device) {
  return device->backend->name;
}
const char *kedge_device_description(const kedge_device *device) {
  return device->description;
}

const char *kedge_device_note(const kedge_device *device) {
  return device->note[0] ? device->note : NULL;
}

static kedge_status buffer_make(kedge_device *device, const void *memory, uint64_t bytes,
                                kedge_buffer **out) {
  *out = NULL;
  if (bytes > device->limits.max_buffer)
    return kedge_fail(KEDGE_ERR_MEMORY, "%s: a buffer of %llu bytes is over the device's limit of %llu",
                      device->description, (unsigned long long)bytes,
                      (unsigned long long)device->limits.max_buffer);
  kedge_buffer *buffer = kedge_alloc(1, sizeof *buffer);
  if (!buffer) return KEDGE_ERR_MEMORY;
  *buffer = (kedge_buffer){.device = device, .bytes = bytes, .borrowed = memory != NULL};
  kedge_status status = memory ? device->backend->buffer_wrap(device, memory, bytes, buffer)
                               : device->backend->buffer_new(device, bytes, buffer);
  if (status != KEDGE_OK) {
    kedge_free(buffer);
    return status;
  }
  if (!memory) device->bytes += bytes;
  if (device->bytes > device->peak_bytes) device->peak_bytes = device->bytes;
  *out = buffer;
  return KEDGE_OK;
}

kedge_status kedge_buffer_new(kedge_device *device, uint64_t bytes, kedge_buffer **buffer) {
  return buffer_make(device, NULL, bytes, buffer);
}

kedge_status kedge_buffer_wrap(kedge_device *device, const void *memory, uint64_t bytes,
                               kedge_buffer **buffer) {
  return buffer_make(device, memory, bytes, buffer);
}

void kedge_buffer_free(kedge_buffer *buffer) {
  if (!buffer) return;
  if (!buffer->borrowed) buffer->device->bytes -= buffer->bytes;
  buffer->device->backend->buffer_free(buffer);
  kedge_free(buffer);
}

uint64_t kedge_buffer_size(const kedge_buffer *buffer) {
  return buffer->bytes;
}

static kedge_status check_range(const kedge_buffer *buffer, uint64_t offset, uint64_t bytes) {
  if (offset <= buffer->bytes && bytes <= buffer->bytes - offset) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_ARGUMENT, "bytes [%llu, +%llu) of a buffer of %llu", (unsigned long long)offset,
                    (unsigned long long)bytes, (unsigned long long)buffer->bytes);
}

kedge_status kedge_buffer_write(kedge_buffer *buffer, uint64_t offset, const void *data, uint64_t bytes) {
  KEDGE_TRY(check_range(buffer, offset, bytes));
  if (buffer->borrowed) return kedge_fail(KEDGE_ERR_ARGUMENT, "borrowed memory is read only");
  return buffer->device->backend->write(buffer, offset, data, bytes);
}

kedge_status kedge_buffer_read(const kedge_buffer *buffer, uint64_t offset, void *data, uint64_t bytes) {
  KEDGE_TRY(check_range(buffer, offset, bytes));
  return buffer->device->backend->read(buffer, offset, data, bytes);
}

kedge_status kedge_buffer_zero(kedge_buffer *buffer) {
  if (buffer->borrowed) return kedge_fail(KEDGE_ERR_ARGUMENT, "borrowed memory is read only");
  return buffer->device->backend->fill(buffer, 0, buffer->bytes, 0);
}
