/* SPDX-License-Identifier: Apache-2.0
 * Finds the card and opens its stream (state.h). On the simulated card the stream is its settings. */
#include "backends/gpu/state.h"

#include <stdio.h>

kedge_status gpu__choose(kedge_device *device, gpu_state *g, uint32_t count) {
  if (g->settings.device == GPU_DEVICE_ANY) g->settings.device = g->ordinal % count;
  if (g->settings.device >= count)
    return kedge_fail(KEDGE_ERR_DEVICE, GPU_NAME ": device %u: there %s %u, counted from 0",
                      g->settings.device, count == 1 ? "is" : "are", count);
  device->index = (int32_t)g->settings.device;
  return KEDGE_OK;
}

#if defined(KEDGE_GPU_SIM)

kedge_status gpu__stream_open(kedge_device *device, gpu_state *g) {
  static const char *const orders[] = {"forward", "reverse", "random"};
  const sim_settings *s = &g->settings.sim;
  g->stream = &g->settings.sim;
  g->processors = s->processors;
  g->memory = UINT64_MAX / 4;
  g->has_groups = s->groups;
  if (s->groups && s->wave != 32)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "sim: products=groups: expected wave=32");
  if (g->settings.cards) KEDGE_TRY(gpu__choose(device, g, g->settings.cards));
  snprintf(device->description, sizeof device->description, "sim (waves of %u, %s order, %s products)",
           s->wave, orders[s->order],
           s->plain    ? "plain"
           : s->groups ? "groups'"
                       : "tiled");
  return KEDGE_OK;
}

void gpu__stream_close(gpu_state *g) {
  g->stream = NULL;
}

#else

#if defined(KEDGE_GPU_CUDA)
typedef struct cudaDeviceProp properties;
#else
typedef hipDeviceProp_t properties;
#endif

kedge_status gpu__stream_open(kedge_device *device, gpu_state *g) {
  int count = 0;
  properties p;
  gpu_error error = GPU(GetDeviceCount)(&count);
  if (error != GPU(Success) || count == 0)
    return kedge_fail(KEDGE_ERR_DEVICE, GPU_NAME ": no card here: %s",
                      error == GPU(Success) ? "the driver lists none" : GPU(GetErrorString)(error));
  KEDGE_TRY(gpu__choose(device, g, (uint32_t)count));
  KEDGE_TRY(gpu__check(device, GPU(SetDevice)((int)g->settings.device), "choosing the device"));
  KEDGE_TRY(gpu__check(device, GPU(GetDeviceProperties)(&p, (int)g->settings.device), "its properties"));
  snprintf(device->description, sizeof device->description, GPU_NAME " (%.60s, %d multiprocessors)", p.name,
           p.multiProcessorCount);
  g->processors = (uint32_t)p.multiProcessorCount;
  g->memory = p.totalGlobalMem;
#if defined(KEDGE_GPU_CUDA)
  if (p.major < 8)
    return kedge_fail(KEDGE_ERR_DEVICE, "%s: compute capability %d.%d; expected 8.0 or above",
                      device->description, p.major, p.minor);
#if defined(KEDGE_GPU_GROUPS)
  g->has_groups = p.major == 9 && p.minor == 0;
#endif
#endif
  return gpu__check(device, GPU(StreamCreate)(&g->stream), "a stream");
}

void gpu__stream_close(gpu_state *g) {
  if (g->stream) GPU(StreamDestroy)(g->stream);
  g->stream = NULL;
}

#endif
