/* SPDX-License-Identifier: Apache-2.0
 * Launches of row movements, rotary positions, sums and the gradient of embeddings (shaders/rows.comp,
 * rope.comp, reduce.comp). */
#include "backends/vulkan/kernels/launch.h"

#define ELEMENTS(op, count)                                                                                  \
  static void run_##op(vk_launch *launch) {                                                                  \
    VK_ARGS(op);                                                                                             \
    vk_elements(launch, VK_SHADER_##op, count, 16);                                                          \
  }                                                                                                          \
  VK_KERNEL(op, run_##op, NULL)

ELEMENTS(gather_rows, (uint64_t)a->rows * a->cols);
ELEMENTS(combine_rows, (uint64_t)a->tokens * a->cols);
ELEMENTS(embed, (uint64_t)a->tokens * a->cols);
ELEMENTS(scatter_rows, (uint64_t)a->rows * a->cols);
ELEMENTS(slice, (uint64_t)a->rows * a->cols);
ELEMENTS(place, (uint64_t)a->rows * a->total);
ELEMENTS(concat, (uint64_t)a->rows *((uint64_t)a->cols_a + a->cols_b));
ELEMENTS(row_bias, (uint64_t)a->tokens * a->experts);
ELEMENTS(repeat, (uint64_t)a->rows * a->cols * a->times);
ELEMENTS(fold, (uint64_t)a->rows * a->cols);
ELEMENTS(choose_rows, (uint64_t)a->tokens * a->k);

static void run_rope(vk_launch *launch) {
  VK_ARGS(rope);
  vk_elements(launch, VK_SHADER_rope, (uint64_t)a->tokens * (a->dim / 2), 60 + 12 * (uint64_t)a->heads);
}
VK_KERNEL(rope, run_rope, NULL);

/* A sum: groups of `each` elements, then the groups' sums; two floats a group. */
enum { MOST_GROUPS = 2048, LEAST = 8192 };

static uint64_t each_of(uint32_t n) {
  uint64_t each = vk_ceil(n, MOST_GROUPS);
  return each < LEAST ? LEAST : vk_ceil(each, LEAST) * LEAST;
}

static uint64_t sum_scratch(const vk_state *state, const kedge_call *call) {
  const kedge_args_sum *a = call->args;
  (void)state;
  return 8 * vk_ceil(a->n, each_of(a->n));
}

static void total(vk_launch *launch, vk_shader part, vk_shader whole) {
  const kedge_args_sum *a = launch->args;
  const uint64_t each = each_of(a->n), groups = vk_ceil(a->n, each);
  kedge__vk_pass(launch, &(vk_pass){.shader = part,
                                    .groups = groups,
                                    .work = 4 * each,
                                    .number = {(uint32_t)each},
                                    .special = {1, vk_is_bf16(&launch->call->in[0])}});
  kedge__vk_pass_barrier(launch);
  kedge__vk_pass(launch, &(vk_pass){.shader = whole, .groups = 1, .number = {(uint32_t)groups}});
}

static void run_sum(vk_launch *launch) {
  total(launch, VK_SHADER_sum_part, VK_SHADER_sum);
}
VK_KERNEL(sum, run_sum, sum_scratch);

static void run_sum_squares(vk_launch *launch) {
  total(launch, VK_SHADER_sum_squares_part, VK_SHADER_sum_squares);
}
VK_KERNEL(sum_squares, run_sum_squares, sum_scratch);

static void run_clip_scale(vk_launch *launch) {
  vk_rows(launch, VK_SHADER_clip_scale, 1, 1);
}
VK_KERNEL(clip_scale, run_clip_scale, NULL);

static void run_embed_grad(vk_launch *launch) {
  VK_ARGS(embed_grad);
  vk_rows(launch, VK_SHADER_embed_clear, a->vocab, a->cols);
  kedge__vk_pass_barrier(launch);
  vk_rows(launch, VK_SHADER_embed_grad, a->tokens, 2 * (uint64_t)a->tokens + 2 * (uint64_t)a->cols);
}
VK_KERNEL(embed_grad, run_embed_grad, NULL);
