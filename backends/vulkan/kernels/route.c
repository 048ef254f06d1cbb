/* SPDX-License-Identifier: Apache-2.0
 * Launches of routing (shaders/route.comp). */
#include "backends/vulkan/kernels/launch.h"

enum { BLOCK = 1024 }; /* elements of a group that clears, counts or converts */

static void run_scores(vk_launch *launch) {
  VK_ARGS(scores);
  vk_rows(launch, VK_SHADER_scores, a->tokens, 64 * (uint64_t)a->experts);
}
VK_KERNEL(scores, run_scores, NULL);

static void run_scores_grad(vk_launch *launch) {
  VK_ARGS(scores_grad);
  vk_rows(launch, VK_SHADER_scores_grad, a->tokens, 8 * (uint64_t)a->experts);
}
VK_KERNEL(scores_grad, run_scores_grad, NULL);

static uint64_t topk_scratch(const vk_state *state, const kedge_call *call) {
  const kedge_args_topk *a = call->args;
  (void)state;
  return 4 * (uint64_t)a->tokens * (1 + (a->topk_groups < a->groups ? a->groups : 0));
}

static void run_topk(vk_launch *launch) {
  VK_ARGS(topk);
  if (a->topk_groups < a->groups) {
    vk_rows(launch, VK_SHADER_topk_groups, a->tokens, 8 * (uint64_t)a->experts * a->groups);
    kedge__vk_pass_barrier(launch);
  }
  vk_rows(launch, VK_SHADER_topk, a->tokens, 8 * (uint64_t)a->experts * (1 + (uint64_t)a->k));
  kedge__vk_pass_barrier(launch);
  vk_rows(launch, VK_SHADER_topk_bad, 1, a->tokens);
}
VK_KERNEL(topk, run_topk, topk_scratch);

static uint64_t dispatch_scratch(const vk_state *state, const kedge_call *call) {
  const kedge_args_dispatch *a = call->args;
  (void)state;
  return 4 * (uint64_t)a->experts;
}

static void run_dispatch(vk_launch *launch) {
  VK_ARGS(dispatch);
  const uint64_t slots = (uint64_t)a->tokens * a->k;
  vk_rows(launch, VK_SHADER_dispatch_clear, vk_ceil(slots, BLOCK), BLOCK);
  vk_rows(launch, VK_SHADER_dispatch_count, a->experts, 4 * slots);
  kedge__vk_pass_barrier(launch);
  vk_rows(launch, VK_SHADER_dispatch, a->experts, 8 * slots);
}
VK_KERNEL(dispatch, run_dispatch, dispatch_scratch);

static void run_gates(vk_launch *launch) {
  VK_ARGS(gates);
  vk_rows(launch, VK_SHADER_gates, a->tokens, 64 * ((uint64_t)a->experts + a->k));
}
VK_KERNEL(gates, run_gates, NULL);

static void run_gates_grad(vk_launch *launch) {
  VK_ARGS(gates_grad);
  vk_rows(launch, VK_SHADER_gates_grad, a->tokens, 64 * (uint64_t)a->experts * (1 + (uint64_t)a->k));
}
VK_KERNEL(gates_grad, run_gates_grad, NULL);

static uint64_t counts_scratch(const vk_state *state, const kedge_call *call) {
  const kedge_args_expert_counts *a = call->args;
  (void)state;
  return 4 * (uint64_t)a->groups * a->experts;
}

static void run_expert_counts(vk_launch *launch) {
  VK_ARGS(expert_counts);
  const uint64_t counts = vk_ceil((uint64_t)a->groups * a->experts, BLOCK);
  vk_rows(launch, VK_SHADER_counts_clear, counts, BLOCK);
  kedge__vk_pass_barrier(launch);
  vk_rows(launch, VK_SHADER_counts_add, vk_ceil((uint64_t)a->tokens * a->k, BLOCK), 4 * BLOCK);
  kedge__vk_pass_barrier(launch);
  vk_rows(launch, VK_SHADER_expert_counts, counts, BLOCK);
}
VK_KERNEL(expert_counts, run_expert_counts, counts_scratch);
