/* SPDX-License-Identifier: Apache-2.0
 * Launches of attention (shaders/attention.comp). */
#include "backends/vulkan/kernels/launch.h"

/* Rows of a subgroup: `queries` of them, fewer where wide heads would not fit in registers. */
static vk_pass heads(const vk_launch *launch, vk_shader shader, uint32_t most, uint32_t dim_qk,
                     uint32_t dim_v) {
  const uint32_t lanes = launch->state->facts.subgroup;
  const uint32_t nk = (uint32_t)vk_ceil(dim_qk, lanes), nv = (uint32_t)vk_ceil(dim_v, lanes);
  uint32_t rows = most;
  while (rows > 1 && rows * (nk + nv) > 128) rows /= 2;
  return (vk_pass){.shader = shader, .special = {rows, nk, nv}};
}

static void run_attention(vk_launch *launch) {
  VK_ARGS(attention);
  vk_pass pass = heads(launch, VK_SHADER_attention, 4, a->dim_qk, a->dim_v);
  pass.groups = vk_ceil(a->tokens, pass.special[0]) * a->heads;
  pass.work = 2 * (uint64_t)a->tokens * pass.special[0] * (a->dim_qk + (uint64_t)a->dim_v);
  kedge__vk_pass(launch, &pass);
}
VK_KERNEL(attention, run_attention, NULL);

static void run_attention_cached(vk_launch *launch) {
  VK_ARGS(attention_cached);
  vk_pass pass = heads(launch, VK_SHADER_attention_cached, 1, a->dim_qk, a->dim_v);
  pass.groups = (uint64_t)a->queries * a->heads;
  pass.work = 2 * (uint64_t)a->capacity * (a->dim_qk + (uint64_t)a->dim_v);
  kedge__vk_pass(launch, &pass);
}
VK_KERNEL(attention_cached, run_attention_cached, NULL);

static uint64_t attention_scratch(const vk_state *state, const kedge_call *call) {
  const kedge_args_attention_grad *a = call->args;
  (void)state;
  return 4 * (uint64_t)a->tokens * a->heads;
}

static void run_attention_grad(vk_launch *launch) {
  VK_ARGS(attention_grad);
  const uint64_t cost = 5 * (uint64_t)a->tokens * (a->dim_qk + (uint64_t)a->dim_v);
  vk_pass delta = heads(launch, VK_SHADER_attention_delta, 1, a->dim_qk, a->dim_v);
  vk_pass q = heads(launch, VK_SHADER_attention_grad_q, 4, 2 * a->dim_qk, a->dim_v);
  vk_pass kv = heads(launch, VK_SHADER_attention_grad_kv, 4, 2 * a->dim_qk, 2 * a->dim_v);
  q.special[1] = kv.special[1] = delta.special[1];
  kv.special[2] = delta.special[2];
  delta.groups = (uint64_t)a->tokens * a->heads;
  q.groups = vk_ceil(a->tokens, q.special[0]) * a->heads;
  q.work = cost * q.special[0];
  kv.groups = vk_ceil(a->tokens, kv.special[0]) * a->kv_heads;
  kv.work = cost * kv.special[0] * (a->heads / a->kv_heads);
  kedge__vk_pass(launch, &delta);
  kedge__vk_pass_barrier(launch);
  kedge__vk_pass(launch, &q);
  kedge__vk_pass(launch, &kv);
}
VK_KERNEL(attention_grad, run_attention_grad, attention_scratch);
