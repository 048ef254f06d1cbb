/* SPDX-License-Identifier: Apache-2.0
 * Launches of elementwise ops (shaders/elementwise.comp). */
#include "backends/vulkan/kernels/launch.h"

/* S1: dtype of the output or of the second input; S2: dtype of the first input. */
static void elements(vk_launch *launch, vk_shader shader, uint64_t n, uint32_t s1, uint32_t s2) {
  enum { LOCAL = 128, EACH = 8 };
  kedge__vk_pass(launch, &(vk_pass){.shader = shader,
                                    .groups = vk_ceil(n, LOCAL * EACH),
                                    .local = LOCAL,
                                    .work = 32 * LOCAL * EACH,
                                    .special = {EACH, s1, s2}});
}

#define ELEMENTS(op)                                                                                         \
  static void run_##op(vk_launch *launch) {                                                                  \
    VK_ARGS(op);                                                                                             \
    elements(launch, VK_SHADER_##op, a->n, 0, 0);                                                            \
  }                                                                                                          \
  VK_KERNEL(op, run_##op, NULL);

ELEMENTS(spread)
ELEMENTS(add)
ELEMENTS(mul)
ELEMENTS(scale)
ELEMENTS(clamp)
ELEMENTS(clamp_grad)
ELEMENTS(detach)
ELEMENTS(swiglu)
ELEMENTS(swiglu_grad)

static void run_copy(vk_launch *launch) {
  VK_ARGS(copy);
  elements(launch, VK_SHADER_copy, (uint64_t)a->rows * a->cols, vk_is_bf16(&launch->call->out[0]),
           vk_is_bf16(&launch->call->in[0]));
}
VK_KERNEL(copy, run_copy, NULL);

static void run_fill(vk_launch *launch) {
  VK_ARGS(fill);
  elements(launch, VK_SHADER_fill, a->n, vk_is_bf16(&launch->call->out[0]), 0);
}
VK_KERNEL(fill, run_fill, NULL);

static void run_adamw(vk_launch *launch) {
  VK_ARGS(adamw);
  elements(launch, VK_SHADER_adamw, a->n, launch->call->in[3].rank != 0, 0);
}
VK_KERNEL(adamw, run_adamw, NULL);

static void run_accumulate(vk_launch *launch) {
  VK_ARGS(accumulate);
  elements(launch, VK_SHADER_accumulate, a->n, vk_is_bf16(&launch->call->in[1]), 0);
}
VK_KERNEL(accumulate, run_accumulate, NULL);
