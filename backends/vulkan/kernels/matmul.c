/* SPDX-License-Identifier: Apache-2.0
 * Launches of products, dense and grouped, and of the head's loss, whose logits exist for a chunk of tokens
 * at a time (shaders/matmul.comp, tile.glsl, head.comp). */
#include "backends/vulkan/kernels/launch.h"

enum {
  A_BF16 = 1,
  B_BF16 = 2,
  C_BF16 = 4,
  TRANS_A = 8,
  TRANS_B = 16,
  ADD = 32,
  NARROW = 64,
  FOUR_A = 128,
  FOUR_B = 256,
  FOUR_K = 512,
  EXACT = 1024
};

/* Rows of a tile by subgroups, columns by lanes (special constants of tile.glsl). */
typedef struct tile {
  uint32_t rows, cols, subgroups, step, lanes;
} tile;

/* For `m` rows and lines of at least `line` elements. A device with a CPU's narrow vectors has one subgroup a
 * tile and no shared memory, and smaller tiles where it reads elements one by one, which makes long code;
 * many lanes have fewer columns each. */
static tile tile_for(const vk_state *s, uint64_t m, uint64_t line) {
  const uint32_t lanes = s->facts.subgroup;
  tile t = {.rows = 16, .cols = 4, .subgroups = 4, .step = 16, .lanes = lanes};
  if (s->narrow) {
    t.subgroups = 1;
    t.rows = m > 8 && line >= 4 ? 16 : 8;
    t.cols = line >= 4 ? 8 : 4;
    return t;
  }
  if (lanes > 32) t.cols = 2;
  if (lanes > 16) t.rows = 8, t.subgroups = 8;
  while (t.subgroups > 1 && (uint64_t)t.rows * (t.subgroups / 2) >= m) t.subgroups /= 2;
  return t;
}

static uint64_t least(uint64_t a, uint64_t b, uint64_t c) {
  const uint64_t ab = a < b ? a : b;
  return ab < c ? ab : c;
}

static uint64_t tiles_down(const tile *t, uint64_t m) {
  return vk_ceil(m, (uint64_t)t->rows * t->subgroups);
}
static uint64_t tiles_across(const tile *t, uint64_t n) {
  return vk_ceil(n, (uint64_t)t->cols * t->lanes);
}

/* A product's work: its tiles, its k, what its operands are, how many elements their lines have along m (A)
 * and n (B), and the head's chunk. */
typedef struct work {
  uint64_t groups, k, line_a, line_b, line_k;
  uint32_t flags, first, count;
} work;

static void product(vk_launch *launch, vk_shader shader, const tile *t, const work *w) {
  uint32_t flags = w->flags;
  if (launch->state->narrow) flags |= NARROW;
  if (w->line_a >= 4) flags |= FOUR_A;
  if (w->line_b >= 4) flags |= FOUR_B;
  if (w->line_k >= 4) flags |= FOUR_K;
  if (w->line_k && w->line_k % 4 == 0) flags |= EXACT;
  kedge__vk_pass(launch, &(vk_pass){.shader = shader,
                                    .groups = w->groups,
                                    .work = 2 * w->k * t->rows * t->subgroups * t->cols * t->lanes,
                                    .local = t->subgroups * t->lanes,
                                    .number = {w->first, w->count},
                                    .special = {t->rows, t->cols, t->subgroups, t->step, flags, t->lanes}});
}

static uint64_t tiles(const tile *t, uint64_t m, uint64_t n) {
  return tiles_down(t, m) * tiles_across(t, n);
}

/* ---- By matrix units (shaders/matrix.glsl): products of bf16 alone; sums of f32 operands stay f32's own.
 * ------------------------------------------------------------------------------------------------------ */

static bool by_matrices(const vk_state *s, const kedge_call *c, uint64_t rows) {
  return rows >= s->matrix_rows && vk_is_bf16(&c->in[0]) && vk_is_bf16(&c->in[1]);
}

/* Lines of an operand whose scales a pass finds, `lines` of them in each of `parts` parts. */
typedef struct operand {
  uint64_t parts, lines;
  bool along_k;
} operand;

enum { SCALE_SUBGROUPS = 8 };

static void matrix_product(vk_launch *launch, vk_shader scales, vk_shader shader, const operand *a,
                           const operand *b, uint64_t rows, const work *w) {
  const vk_state *s = launch->state;
  const uint32_t lanes = s->facts.subgroup;
  const vk_matrix shape = s->facts.matrix;
  const vk_matrix_tile t = vk_matrix_tile_for(shape, lanes, rows);
  const uint32_t each[] = {a->along_k ? SCALE_SUBGROUPS : lanes, b->along_k ? SCALE_SUBGROUPS : lanes};
  const uint32_t most = each[0] > each[1] ? each[0] : each[1];
  kedge__vk_pass(launch, &(vk_pass){.shader = scales,
                                    .groups = a->parts * vk_ceil(a->lines, each[0]) +
                                              b->parts * vk_ceil(b->lines, each[1]),
                                    .work = w->k * most,
                                    .local = SCALE_SUBGROUPS * lanes,
                                    .special = {1, 1, SCALE_SUBGROUPS, 1, w->flags, lanes}});
  kedge__vk_pass_barrier(launch);
  kedge__vk_pass(launch, &(vk_pass){.shader = shader,
                                    .full = true,
                                    .groups = w->groups,
                                    .work = 2 * w->k * t.high * t.wide,
                                    .local = t.subgroups * lanes,
                                    .special = {t.down, t.across, t.subgroups, t.step, w->flags, lanes,
                                                shape.m | shape.n << 8 | shape.k << 16, t.side}});
}

static uint64_t matrix_tiles(const vk_state *s, uint64_t rows, uint64_t m, uint64_t n, uint64_t more) {
  const vk_matrix_tile t = vk_matrix_tile_for(s->facts.matrix, s->facts.subgroup, rows);
  return (vk_ceil(m, t.high) + more) * vk_ceil(n, t.wide);
}

/* ---- Dense
 * ------------------------------------------------------------------------------------------------------ */

static uint64_t matmul_scratch(const vk_state *s, const kedge_call *c) {
  const kedge_args_matmul *a = c->args;
  return by_matrices(s, c, a->m) ? 4 * ((uint64_t)a->m + a->n) : 0;
}

static void run_matmul(vk_launch *launch) {
  VK_ARGS(matmul);
  const kedge_call *c = launch->call;
  const tile t = tile_for(launch->state, a->m, least(a->m, a->n, a->k));
  const uint32_t flags = vk_is_bf16(&c->in[0]) * A_BF16 | vk_is_bf16(&c->in[1]) * B_BF16 |
                         vk_is_bf16(&c->out[0]) * C_BF16 | (a->trans_a ? TRANS_A : 0u) |
                         (a->trans_b ? TRANS_B : 0u);
  work w = {tiles(&t, a->m, a->n), a->k, a->m, a->n, a->k, flags, 0, 0};
  if (!by_matrices(launch->state, c, a->m)) {
    product(launch, VK_SHADER_matmul, &t, &w);
    return;
  }
  w.groups = matrix_tiles(launch->state, a->m, a->m, a->n, 0);
  matrix_product(launch, VK_SHADER_matmul_scales, VK_SHADER_matmul_matrix, &(operand){1, a->m, !a->trans_a},
                 &(operand){1, a->n, a->trans_b != 0}, a->m, &w);
}
VK_KERNEL(matmul, run_matmul, matmul_scratch);

/* ---- Grouped
 * ------------------------------------------------------------------------------------------------------ */

static uint64_t grouped_rows(const kedge_args_grouped_matmul *a) {
  return vk_ceil(a->rows, a->experts);
}

static uint64_t grouped_scratch(const vk_state *s, const kedge_call *c) {
  const kedge_args_grouped_matmul *a = c->args;
  return by_matrices(s, c, grouped_rows(a)) ? 4 * (a->rows + (uint64_t)a->experts * a->n) : 0;
}

static void run_grouped_matmul(vk_launch *launch) {
  VK_ARGS(grouped_matmul);
  const uint64_t rows = grouped_rows(a);
  const tile t = tile_for(launch->state, rows, least(4, a->n, a->k));
  const bool bf16 = launch->step->variant == KEDGE_VARIANT_BF16;
  const uint32_t flags = (bf16 ? A_BF16 | B_BF16 | C_BF16 : 0u) | (a->trans_w ? TRANS_B : 0u);
  work w = {
      (tiles_down(&t, a->rows) + a->experts) * tiles_across(&t, a->n), a->k, 4, a->n, a->k, flags, 0, 0};
  vk_rows(launch, VK_SHADER_grouped_clear, a->rows, a->n);
  if (!by_matrices(launch->state, launch->call, rows)) {
    product(launch, VK_SHADER_grouped_matmul, &t, &w);
    return;
  }
  w.groups = matrix_tiles(launch->state, rows, a->rows, a->n, a->experts);
  matrix_product(launch, VK_SHADER_grouped_matmul_scales, VK_SHADER_grouped_matmul_matrix,
                 &(operand){1, a->rows, true}, &(operand){a->experts, a->n, a->trans_w != 0}, rows, &w);
}
VK_KERNEL(grouped_matmul, run_grouped_matmul, grouped_scratch);

static uint64_t wgrad_scratch(const vk_state *s, const kedge_call *c) {
  const kedge_args_grouped_wgrad *a = c->args;
  return by_matrices(s, c, a->n) ? 4 * (uint64_t)a->experts * (a->n + (uint64_t)a->k) : 0;
}

static void run_grouped_wgrad(vk_launch *launch) {
  VK_ARGS(grouped_wgrad);
  const vk_state *s = launch->state;
  const tile t = tile_for(s, a->n, least(a->n, a->k, 4));
  const bool bf16 = launch->step->variant == KEDGE_VARIANT_BF16;
  work w = {a->experts * tiles(&t, a->n, a->k), a->rows, a->n, a->k, 0, bf16 ? A_BF16 | B_BF16 : 0u, 0, 0};
  if (!by_matrices(s, launch->call, a->n)) {
    product(launch, VK_SHADER_grouped_wgrad, &t, &w);
    return;
  }
  w.groups = a->experts * matrix_tiles(s, a->n, a->n, a->k, 0);
  matrix_product(launch, VK_SHADER_grouped_wgrad_scales, VK_SHADER_grouped_wgrad_matrix,
                 &(operand){a->experts, a->n, false}, &(operand){a->experts, a->k, false}, a->n, &w);
}
VK_KERNEL(grouped_wgrad, run_grouped_wgrad, wgrad_scratch);

/* ---- The head
 * ------------------------------------------------------------------------------------------------------ */

enum { CHUNK_BYTES = 1 << 25 };

/* Tokens whose logits exist together. */
static uint32_t chunk_of(uint32_t tokens, uint32_t vocab) {
  uint64_t chunk = CHUNK_BYTES / (4 * (uint64_t)vocab) / 16 * 16;
  if (chunk < 16) chunk = 16;
  return chunk < tokens ? (uint32_t)chunk : tokens;
}

static uint64_t head_scratch(const vk_state *state, const kedge_call *call) {
  const kedge_args_head_loss *a = call->args; /* head_loss_grad begins alike */
  (void)state;
  return 4 * (uint64_t)chunk_of(a->tokens, a->vocab) * a->vocab;
}

static void head_rows(vk_launch *launch, vk_shader shader, uint32_t first, uint32_t count, uint32_t vocab) {
  kedge__vk_pass(
      launch,
      &(vk_pass){.shader = shader, .groups = count, .work = 64 * (uint64_t)vocab, .number = {first, count}});
}

static void run_head_loss(vk_launch *launch) {
  VK_ARGS(head_loss);
  const uint32_t chunk = chunk_of(a->tokens, a->vocab);
  const uint32_t flags = launch->step->variant == KEDGE_VARIANT_BF16 ? A_BF16 | B_BF16 : 0u;
  for (uint32_t first = 0; first < a->tokens; first += chunk) {
    const uint32_t count = a->tokens - first < chunk ? a->tokens - first : chunk;
    const tile t = tile_for(launch->state, count, least(a->dim, a->vocab, 4));
    if (first) kedge__vk_pass_barrier(launch);
    product(launch, VK_SHADER_head_logits, &t,
            &(work){tiles(&t, count, a->vocab), a->dim, 4, a->vocab, a->dim, flags, first, count});
    kedge__vk_pass_barrier(launch);
    head_rows(launch, VK_SHADER_head_loss, first, count, a->vocab);
  }
}
VK_KERNEL(head_loss, run_head_loss, head_scratch);

static void run_head_loss_grad(vk_launch *launch) {
  VK_ARGS(head_loss_grad);
  const uint32_t chunk = chunk_of(a->tokens, a->vocab);
  const bool bf16 = launch->step->variant == KEDGE_VARIANT_BF16;
  for (uint32_t first = 0; first < a->tokens; first += chunk) {
    const uint32_t count = a->tokens - first < chunk ? a->tokens - first : chunk;
    const tile t = tile_for(launch->state, count, least(a->dim, a->vocab, 4)),
               w = tile_for(launch->state, a->vocab, least(a->dim, a->vocab, 4));
    if (first) kedge__vk_pass_barrier(launch);
    product(launch, VK_SHADER_head_grad_logits, &t,
            &(work){tiles(&t, count, a->vocab), a->dim, 4, a->vocab, a->dim, bf16 ? A_BF16 | B_BF16 : 0u,
                    first, count});
    kedge__vk_pass_barrier(launch);
    head_rows(launch, VK_SHADER_head_loss_grad, first, count, a->vocab);
    kedge__vk_pass_barrier(launch);
    product(launch, VK_SHADER_head_grad_h, &t,
            &(work){tiles(&t, count, a->dim), a->vocab, 4, a->dim, a->vocab, bf16 ? B_BF16 | C_BF16 : 0u,
                    first, count});
    product(launch, VK_SHADER_head_grad_w, &w,
            &(work){tiles(&w, a->vocab, a->dim), count, a->vocab, a->dim, 0,
                    (bf16 ? B_BF16 : 0u) | (first ? ADD : 0u), first, count});
  }
}
VK_KERNEL(head_loss_grad, run_head_loss_grad, head_scratch);
