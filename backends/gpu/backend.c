/* SPDX-License-Identifier: Apache-2.0
 *
 * The backends `cuda`, `hip` and `sim`: one contract (core/device.h) over three runtimes with one set of
 * names (gpu.h). One stream; host data go through pinned staging memory; a run of steps that comes again is
 * captured as a graph where the runtime has graphs (replay.c). settings.c reads what may follow a device's
 * name.
 */
#include "backends/gpu/state.h"
#include "core/module.h"

#include <stdio.h>
#include <string.h>

enum { STAGING = 8 << 20 };

#define KEDGE_KERNELS_ONLY
#define KEDGE_OP(name, ...)                                                                                  \
  void kedge_gpu_f32_##name(const gpu_step *step);                                                           \
  void kedge_gpu_bf16_##name(const gpu_step *step);
#include "core/ops.def"
#undef KEDGE_OP
static const gpu_launcher launchers[KEDGE_OP_COUNT][2] = {
#define KEDGE_OP(name, ...) [KEDGE_OP_##name] = {kedge_gpu_f32_##name, kedge_gpu_bf16_##name},
#include "core/ops.def"
#undef KEDGE_OP
#undef KEDGE_KERNELS_ONLY
};

#define GPU_SCRATCH(op) uint64_t kedge_gpu_##op##_scratch(const gpu_step *step);
#include "backends/gpu/scratch.def"
#undef GPU_SCRATCH
static uint64_t (*const scratches[KEDGE_OP_COUNT])(const gpu_step *step) = {
#define GPU_SCRATCH(op) [KEDGE_OP_##op] = kedge_gpu_##op##_scratch,
#include "backends/gpu/scratch.def"
#undef GPU_SCRATCH
};

kedge_status gpu__check(const kedge_device *device, gpu_error error, const char *what) {
  if (error == GPU(Success)) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_DEVICE, "%s: %s: %s", device->description, what, GPU(GetErrorString)(error));
}

/* ---- Opening */

static void gpu_close(kedge_device *device) {
  gpu_state *g = device->state;
  if (!g) return;
  gpu__links_close(device);
  gpu__replay_drop(g);
  gpu__blas_close(g->blas);
  if (g->staging) GPU_PINNED_FREE(g->staging);
  if (g->start) GPU(EventDestroy)(g->start);
  if (g->end) GPU(EventDestroy)(g->end);
  gpu__stream_close(g);
  kedge_free(g);
  device->state = NULL;
}

static kedge_status open_parts(kedge_device *device, gpu_state *g) {
  KEDGE_TRY(gpu__stream_open(device, g));
  void *staging = NULL;
  KEDGE_TRY(gpu__check(device, GPU_PINNED_NEW(&staging, STAGING, 0), "pinned memory"));
  g->staging = staging;
  KEDGE_TRY(gpu__check(device, GPU(EventCreate)(&g->start), "an event"));
  KEDGE_TRY(gpu__check(device, GPU(EventCreate)(&g->end), "an event"));
  KEDGE_TRY(gpu__groups_open(device, g));
  return g->settings.blas ? gpu__blas_open(device, &g->settings, &g->blas) : KEDGE_OK;
}

static kedge_status gpu_open(const kedge_open_options *options, kedge_device *device) {
  gpu_state *g = kedge_alloc(1, sizeof *g);
  if (!g) return KEDGE_ERR_MEMORY;
  snprintf(device->description, sizeof device->description, GPU_NAME);
  device->state = g;
  kedge_status status = gpu__settings_read(options->settings, &g->settings);
  g->ordinal = options->ordinal;
  if (options->rowwise) g->settings.blas = false; /* its choice of kernel depends on the number of rows */
  if (status == KEDGE_OK) status = open_parts(device, g);
  if (status != KEDGE_OK) gpu_close(device);
  return status;
}

static void gpu_limits(const kedge_device *device, kedge_limits *limits) {
  const gpu_state *g = device->state;
  *limits = (kedge_limits){.max_buffer = g->memory,
                           .alignment = 256,
                           .threads = 1,
                           .host_memory = GPU_HOST_MEMORY,
                           .computes = true};
}

/* ---- Buffers */

static kedge_status gpu_buffer_new(kedge_device *device, uint64_t bytes, kedge_buffer *buffer) {
  gpu_state *g = device->state;
  void *memory = NULL;
  gpu_error error = GPU(Malloc)(&memory, bytes ? bytes : 1);
  if (error != GPU(Success)) {
    (void)GPU(GetLastError)();
    return kedge_fail(KEDGE_ERR_MEMORY, "%s: no memory for a buffer of %llu bytes", device->description,
                      (unsigned long long)bytes);
  }
  buffer->handle = memory;
  buffer->address = (uintptr_t)memory;
  kedge_status status =
      gpu__check(device, GPU(MemsetAsync)(memory, 0, bytes, g->stream), "clearing a buffer");
  if (status != KEDGE_OK) GPU(Free)(memory);
  return status;
}

static kedge_status gpu_write(kedge_buffer *buffer, uint64_t offset, const void *data, uint64_t bytes) {
  gpu_state *g = buffer->device->state;
  const char *from = data;
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t part = bytes - done < STAGING ? bytes - done : STAGING;
    KEDGE_TRY(gpu__check(buffer->device, GPU(StreamSynchronize)(g->stream), "a copy to the card"));
    memcpy(g->staging, from + done, part);
    void *to = (void *)(uintptr_t)(buffer->address + offset + done);
    KEDGE_TRY(gpu__check(buffer->device,
                         GPU(MemcpyAsync)(to, g->staging, part, GPU(MemcpyHostToDevice), g->stream),
                         "a copy to the card"));
    done += part;
  }
  return KEDGE_OK;
}

static kedge_status gpu_read(const kedge_buffer *buffer, uint64_t offset, void *data, uint64_t bytes) {
  gpu_state *g = buffer->device->state;
  char *to = data;
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t part = bytes - done < STAGING ? bytes - done : STAGING;
    const void *from = (const void *)(uintptr_t)(buffer->address + offset + done);
    KEDGE_TRY(gpu__check(buffer->device,
                         GPU(MemcpyAsync)(g->staging, from, part, GPU(MemcpyDeviceToHost), g->stream),
                         "a copy from the card"));
    KEDGE_TRY(gpu__check(buffer->device, GPU(StreamSynchronize)(g->stream), "a copy from the card"));
    memcpy(to + done, g->staging, part);
    done += part;
  }
  return KEDGE_OK;
}

static void gpu_buffer_free(kedge_buffer *buffer) {
  gpu_state *g = buffer->device->state;
  GPU(StreamSynchronize)(g->stream);
  GPU(Free)(buffer->handle);
}

/* A card does not read a mapped file: what is borrowed becomes a copy. */
static kedge_status gpu_buffer_wrap(kedge_device *device, const void *memory, uint64_t bytes,
                                    kedge_buffer *buffer) {
  KEDGE_TRY(gpu_buffer_new(device, bytes, buffer));
  kedge_status status = gpu_write(buffer, 0, memory, bytes);
  if (status != KEDGE_OK) gpu_buffer_free(buffer);
  return status;
}

static kedge_status gpu_fill(kedge_buffer *buffer, uint64_t offset, uint64_t bytes, uint8_t byte) {
  gpu_state *g = buffer->device->state;
  void *at = (void *)(uintptr_t)(buffer->address + offset);
  return gpu__check(buffer->device, GPU(MemsetAsync)(at, byte, bytes, g->stream), "filling a buffer");
}

/* ---- Running */

static gpu_step step_of(const gpu_state *g, const kedge_step *step) {
  return (gpu_step){&step->call, g->stream, g->processors, g->blas, g->groups};
}

static uint64_t gpu_scratch(const kedge_device *device, const kedge_step *step) {
  const gpu_step s = step_of(device->state, step);
  return scratches[step->op] ? scratches[step->op](&s) : 0;
}

kedge_status gpu__launch(kedge_device *device, const kedge_step *steps, uint32_t count) {
  gpu_state *g = device->state;
  for (uint32_t i = 0; i < count; i++) {
    const gpu_step s = step_of(g, &steps[i]);
    launchers[steps[i].op][steps[i].variant == KEDGE_VARIANT_BF16](&s);
    KEDGE_TRY(gpu__check(device, GPU(GetLastError)(), kedge_op_get(steps[i].op)->name));
  }
  return KEDGE_OK;
}

static kedge_status gpu_run(kedge_device *device, const kedge_step *steps, uint32_t count) {
  gpu_state *g = device->state;
  if (!g->timing) KEDGE_TRY(gpu__check(device, GPU(EventRecord)(g->start, g->stream), "an event"));
  g->timing = true;
  KEDGE_TRY(gpu__replay(device, steps, count));
  return gpu__check(device, GPU(EventRecord)(g->end, g->stream), "an event");
}

static kedge_status gpu_sync(kedge_device *device) {
  gpu_state *g = device->state;
  KEDGE_TRY(gpu__check(device, GPU(StreamSynchronize)(g->stream), "waiting for the card"));
  if (!g->timing) return KEDGE_OK;
  float milliseconds = 0;
  g->timing = false;
  KEDGE_TRY(gpu__check(device, GPU(EventElapsedTime)(&milliseconds, g->start, g->end), "an event"));
  g->seconds += 1e-3 * (double)milliseconds;
  return KEDGE_OK;
}

/* The seconds that the card has spent on runs, so that differences say what the steps between took. */
static double gpu_time(kedge_device *device) {
  return ((const gpu_state *)device->state)->seconds;
}

static const kedge_backend backend = {.name = GPU_NAME,
                                      .settings = GPU_SETTINGS,
                                      .open = gpu_open,
                                      .close = gpu_close,
                                      .limits = gpu_limits,
                                      .buffer_new = gpu_buffer_new,
                                      .buffer_wrap = gpu_buffer_wrap,
                                      .buffer_free = gpu_buffer_free,
                                      .write = gpu_write,
                                      .read = gpu_read,
                                      .fill = gpu_fill,
                                      .scratch = gpu_scratch,
                                      .run = gpu_run,
                                      .sync = gpu_sync,
                                      .time = gpu_time,
                                      .carrier = &gpu__carrier};

extern const kedge_module kedge_backend_module;
const kedge_module kedge_backend_module = {KEDGE_MODULE_CONTRACT(KEDGE_MODULE_ARGS), KEDGE_OP_COUNT,
                                           sizeof(kedge_step), &backend};
