/* SPDX-License-Identifier: Apache-2.0
 * Launches of norms, of losses by rows of router logits, and of routed swiglu (shaders/norm.comp,
 * anchor.comp, swiglu.comp). */
#include "backends/vulkan/kernels/launch.h"

enum { BLOCK = 128 }; /* rows that are summed together for the gradient of the weight */

static void run_rms_norm(vk_launch *launch) {
  VK_ARGS(rms_norm);
  vk_rows(launch, VK_SHADER_rms_norm, a->rows, 8 * (uint64_t)a->cols);
}
VK_KERNEL(rms_norm, run_rms_norm, NULL);

static uint64_t norm_scratch(const vk_state *state, const kedge_call *call) {
  const kedge_args_rms_norm_grad *a = call->args;
  (void)state;
  return 4 * vk_ceil(a->rows, BLOCK) * a->cols;
}

static void run_rms_norm_grad(vk_launch *launch) {
  VK_ARGS(rms_norm_grad);
  const uint64_t wide = vk_ceil(a->cols, launch->state->facts.subgroup);
  vk_rows(launch, VK_SHADER_rms_norm_grad, a->rows, 16 * (uint64_t)a->cols);
  kedge__vk_pass(launch, &(vk_pass){.shader = VK_SHADER_norm_weight_part,
                                    .groups = vk_ceil(a->rows, BLOCK) * wide,
                                    .work = 256 * BLOCK,
                                    .special = {BLOCK}});
  kedge__vk_pass_barrier(launch);
  kedge__vk_pass(launch, &(vk_pass){.shader = VK_SHADER_norm_weight,
                                    .groups = wide,
                                    .work = 2 * (uint64_t)a->rows,
                                    .special = {BLOCK}});
}
VK_KERNEL(rms_norm_grad, run_rms_norm_grad, norm_scratch);

#define ROWS(op, rows, cols)                                                                                 \
  static void run_##op(vk_launch *launch) {                                                                  \
    VK_ARGS(op);                                                                                             \
    vk_rows(launch, VK_SHADER_##op, rows, 64 * (uint64_t)(cols));                                            \
  }                                                                                                          \
  VK_KERNEL(op, run_##op, NULL)

ROWS(swiglu_gated, a->rows, a->cols);
ROWS(swiglu_gated_grad, a->rows, a->cols);
ROWS(anchor_kl, a->tokens, a->experts);
ROWS(anchor_kl_grad, a->tokens, a->experts);
ROWS(anchor_l2, a->tokens, a->experts);
ROWS(anchor_l2_grad, a->tokens, a->experts);
ROWS(logsumexp, a->rows, a->cols);
ROWS(logsumexp_grad, a->rows, a->cols);
ROWS(balance, a->tokens, a->experts);
ROWS(balance_grad, a->tokens, a->experts);
