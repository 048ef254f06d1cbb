/* SPDX-License-Identifier: Apache-2.0
 * Backend `ref`: the reference kernels of core/ops on one thread, in f32, bf16 or all-double. It is the
 * meaning of every op. */
#include "core/device.h"

#include <stdio.h>

#define KEDGE_KERNELS_ONLY
#define KEDGE_OP(name, ...)                                                                                  \
  void kedge_ref_f32_##name(const kedge_call *call);                                                         \
  void kedge_ref_bf16_##name(const kedge_call *call);                                                        \
  void kedge_ref_f64_##name(const kedge_call *call);
#include "core/ops.def"
#undef KEDGE_OP

static const kedge_kernel kernels[KEDGE_OP_COUNT][KEDGE_VARIANT_COUNT] = {
#define KEDGE_OP(name, ...) {kedge_ref_f32_##name, kedge_ref_bf16_##name, kedge_ref_f64_##name},
#include "core/ops.def"
#undef KEDGE_OP
#undef KEDGE_KERNELS_ONLY
};

kedge_kernel kedge__reference(kedge_op op, kedge_variant variant) {
  return kernels[op][variant];
}

static kedge_status ref_open(const kedge_open_options *options, kedge_device *device) {
  (void)options;
  snprintf(device->description, sizeof device->description, "ref (reference kernels, 1 thread)");
  return KEDGE_OK;
}

static void ref_close(kedge_device *device) {
  (void)device;
}

static void ref_limits(const kedge_device *device, kedge_limits *limits) {
  (void)device;
  *limits = (kedge_limits){.max_buffer = UINT64_MAX / 2,
                           .alignment = 64,
                           .threads = 1,
                           .host_memory = true,
                           .computes = true,
                           .f64 = true};
}

static uint64_t ref_scratch(const kedge_device *device, const kedge_step *step) {
  (void)device;
  (void)step;
  return 0;
}

static kedge_status ref_run(kedge_device *device, const kedge_step *steps, uint32_t count) {
  (void)device;
  for (uint32_t i = 0; i < count; i++) kernels[steps[i].op][steps[i].variant](&steps[i].call);
  return KEDGE_OK;
}

const kedge_backend kedge__backend_ref = {.name = "ref",
                                          .open = ref_open,
                                          .close = ref_close,
                                          .limits = ref_limits,
                                          .buffer_new = kedge__host_buffer_new,
                                          .buffer_wrap = kedge__host_buffer_wrap,
                                          .buffer_free = kedge__host_buffer_free,
                                          .write = kedge__host_write,
                                          .read = kedge__host_read,
                                          .fill = kedge__host_fill,
                                          .scratch = ref_scratch,
                                          .run = ref_run,
                                          .sync = kedge__host_sync,
                                          .time = kedge__host_time};
