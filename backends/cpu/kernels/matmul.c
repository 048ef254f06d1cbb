/* SPDX-License-Identifier: Apache-2.0
 *
 * Tuned dense and grouped products; their meaning is core/ops/matmul.c.
 *
 * A result is cut into blocks fixed by shape, each made by one thread. A block is a sum of products of packed
 * panels (gemm.h), which gathers rows while packing. In the plainest build f32 goes to OpenBLAS, which knows
 * more of the machine; it runs with one thread, so that its order of summation is fixed.
 */
#include "backends/cpu/kernels/dot.h"
#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/panel.h"

/* Up to so many rows a product is a few dot products instead. */
enum { FEW = 8 };

#if defined(KEDGE_STORAGE_F32) && !defined(__AVX2__)
#define KEDGE_BY_OPENBLAS 1
#endif

/* How many rows a block may have. Packed panels sum every element in the same order whatever a block holds,
 * so blocks can be as large as the panels, which packs the other operand less often, or, where there are many
 * threads, as small as it takes for each to find some. OpenBLAS gets blocks fixed by shape. `others`: blocks
 * beside each block of rows. */
static size_t block_rows(const kedge_call *call, size_t rows, size_t others) {
#if defined(KEDGE_BY_OPENBLAS)
  (void)call, (void)rows, (void)others;
  return 256;
#else
  enum { LEAST = 64, EACH = 4 }; /* rows; blocks a thread */
  if (call->threads == 1) return KEDGE_MC;
  const size_t share = rows * others / (EACH * (size_t)call->threads);
  return share < LEAST ? LEAST : kedge__min(share, KEDGE_MC);
#endif
}

/* Rows of each block but the last, of `rows` cut into as few as `most` allows, about equal, whole slivers. */
static size_t even_rows(size_t rows, size_t most) {
  const size_t each = kedge__blocks(rows, kedge__blocks(rows, most));
  return kedge__min(kedge__blocks(each, KEDGE_MR) * KEDGE_MR, most);
}

/* The operand from its row `row` on. */
static kedge_operand from_row(kedge_operand m, size_t row) {
  if (m.slots)
    m.slots += row;
  else
    m.data += row * m.pitch;
  return m;
}

/* Few rows of op(a) = a against rows of b: dot products, without a copy of b. */
static void dot_block(const kedge_product *p, size_t i0, size_t m, size_t j0, size_t n, float *c,
                      size_t pitch) {
  size_t j = 0;
  for (; j + KEDGE_DOTS <= n; j += KEDGE_DOTS)
    for (size_t i = 0; i < m; i++)
      kedge__dots(kedge__operand_row(&p->a, i0 + i), kedge__operand_row(&p->b, j0 + j), p->b.pitch, p->k,
                  c + i * pitch + j);
  for (; j < n; j++)
    for (size_t i = 0; i < m; i++)
      c[i * pitch + j] =
          kedge__dot(kedge__operand_row(&p->a, i0 + i), kedge__operand_row(&p->b, j0 + j), p->k);
}

/* The block [i0, i0 + m) x [j0, j0 + n) of a product of `rows` rows into an f32 or bf16 result y. Few rows
 * are summed in another order than many, unless `rowwise`. */
static void block_into(const kedge_product *p, size_t rows, size_t i0, size_t m, size_t j0, size_t n, void *y,
                       bool bf16, size_t pitch, bool rowwise, uint32_t *scratch) {
  kedge_target t = {(float *)y + i0 * pitch + j0, NULL, pitch, pitch};
  if (bf16)
    t = (kedge_target){(float *)(void *)(scratch + KEDGE_A_WORDS + KEDGE_B_WORDS),
                       (uint16_t *)y + i0 * pitch + j0, KEDGE_NC, pitch};
#if defined(KEDGE_BY_OPENBLAS)
  if (!rowwise && !p->a.slots && !p->b.slots) {
    const kedge_x *a = p->a.data + i0 * (p->trans_a ? 1 : p->a.pitch),
                  *b = p->b.data + j0 * (p->trans_b ? p->b.pitch : 1);
    kedge__gemm(p->trans_a, p->trans_b, m, n, p->k, (kedge_panel){a, p->a.pitch},
                (kedge_panel){b, p->b.pitch}, 0, t.c, t.c_pitch);
    return;
  }
#endif
  if (rows > FEW || rowwise || p->trans_a || !p->trans_b) {
    kedge__gemm_block(p, i0, m, j0, n, &t, false, scratch);
    return;
  }
  dot_block(p, i0, m, j0, n, t.c, t.c_pitch);
  for (size_t i = 0; bf16 && i < m; i++)
    for (size_t j = 0; j < n; j++) t.y[i * pitch + j] = kedge__bf16_round(t.c[i * KEDGE_NC + j]);
}

static uint32_t *thread_scratch(const kedge_call *call) {
  return (uint32_t *)call->scratch + (size_t)omp_get_thread_num() * KEDGE_GEMM_WORDS;
}

KEDGE_SCRATCH(matmul) {
  return (uint64_t)call->threads * KEDGE_GEMM_WORDS * sizeof(uint32_t);
}
KEDGE_SCRATCH(grouped_matmul) {
  return (uint64_t)call->threads * KEDGE_GEMM_WORDS * sizeof(uint32_t);
}
KEDGE_SCRATCH(grouped_wgrad) {
  return (uint64_t)call->threads * KEDGE_GEMM_WORDS * sizeof(uint32_t);
}

KEDGE_KERNEL(matmul) {
  KEDGE_CALL_ARGS(matmul);
  const kedge_product p = {{KEDGE_IN_X(0), call->in[0].pitch, NULL, 1},
                           {KEDGE_IN_X(1), call->in[1].pitch, NULL, 1},
                           a->trans_a,
                           a->trans_b,
                           a->k};
  const size_t columns = kedge__blocks(a->n, KEDGE_NC);
  const size_t each = a->m ? even_rows(a->m, block_rows(call, a->m, columns)) : 1;
  const size_t tiles = kedge__blocks(a->m, each) * columns;
  bool bf16 = call->out[0].dtype == KEDGE_BF16;
  KEDGE_PARALLEL_WORK(tiles, (size_t)a->m * a->n * a->k)
  for (size_t t = 0; t < tiles; t++) {
    size_t i0 = t / columns * each, j0 = t % columns * KEDGE_NC;
    block_into(&p, a->m, i0, kedge__min(each, a->m - i0), j0, kedge__min(KEDGE_NC, a->n - j0),
               call->out[0].data, bf16, a->n, call->rowwise, thread_scratch(call));
  }
}

/* Blocks of an expert's rows, up to `most` each. */
static size_t expert_blocks(const int32_t *offsets, size_t e, size_t most) {
  const size_t rows = (size_t)(offsets[e + 1] - offsets[e]);
  return rows ? kedge__blocks(rows, even_rows(rows, most)) : 0;
}

/* Row block `index` of all the experts' row blocks: its expert, and which of the expert's blocks it is. */
static size_t find_block(const int32_t *offsets, size_t index, size_t most, size_t *block) {
  for (size_t e = 0;; e++) {
    const size_t blocks = expert_blocks(offsets, e, most);
    *block = index;
    if (index < blocks) return e;
    index -= blocks;
  }
}

KEDGE_KERNEL(grouped_matmul) {
  KEDGE_CALL_ARGS(grouped_matmul);
  const int32_t *slots = KEDGE_IN_I(2), *offsets = KEDGE_IN_I(3);
  const kedge_operand x = {KEDGE_IN_X(0), call->in[0].pitch, a->gather ? slots : NULL, a->topk};
  size_t columns = kedge__blocks(a->n, KEDGE_NC), blocks = 0, valid = (size_t)offsets[a->experts];
  const size_t most = block_rows(call, valid, columns);
  for (size_t e = 0; e < a->experts; e++) blocks += expert_blocks(offsets, e, most);
  kedge_x *y = KEDGE_OUT_X(0);
  KEDGE_PARALLEL_WORK(blocks * columns, valid * a->n * a->k)
  for (size_t t = 0; t < blocks * columns; t++) {
    size_t block, j0 = t % columns * KEDGE_NC, e = find_block(offsets, t / columns, most, &block);
    size_t first = (size_t)offsets[e], rows = (size_t)offsets[e + 1] - first, each = even_rows(rows, most),
           i0 = block * each;
    const kedge_x *w = call->in[1].parts ? call->in[1].parts[e] : KEDGE_IN_X(1) + e * a->n * a->k;
    const kedge_product p = {
        from_row(x, first), {w, a->trans_w ? a->k : a->n, NULL, 1}, false, a->trans_w, a->k};
    block_into(&p, rows, i0, kedge__min(each, rows - i0), j0, kedge__min(KEDGE_NC, a->n - j0),
               y + first * a->n, sizeof(kedge_x) == 2, a->n, call->rowwise, thread_scratch(call));
  }
  memset(y + valid * a->n, 0, (a->rows - valid) * a->n * sizeof *y);
}

KEDGE_KERNEL(grouped_wgrad) {
  KEDGE_CALL_ARGS(grouped_wgrad);
  const int32_t *slots = KEDGE_IN_I(2), *offsets = KEDGE_IN_I(3);
  const kedge_operand dy = {KEDGE_IN_X(0), call->in[0].pitch, a->gather_dy ? slots : NULL, a->topk};
  const kedge_operand x = {KEDGE_IN_X(1), call->in[1].pitch, a->gather_x ? slots : NULL, a->topk};
  const size_t columns = kedge__blocks(a->k, KEDGE_NC),
               each = even_rows(a->n, block_rows(call, a->n, a->experts * columns)),
               tiles = kedge__blocks(a->n, each) * columns;
  KEDGE_PARALLEL_WORK(a->experts * tiles, (size_t)a->rows * a->n * a->k)
  for (size_t t = 0; t < a->experts * tiles; t++) {
    size_t e = t / tiles, i0 = t % tiles / columns * each, j0 = t % columns * KEDGE_NC;
    size_t m = kedge__min(each, a->n - i0), n = kedge__min(KEDGE_NC, a->k - j0);
    float *dw = KEDGE_OUT_F(0) + e * a->n * a->k;
    size_t first = (size_t)offsets[e], rows = (size_t)offsets[e + 1] - first;
    const kedge_product p = {from_row(dy, first), from_row(x, first), true, false, rows};
    if (rows)
      block_into(&p, a->n, i0, m, j0, n, dw, false, a->k, false, thread_scratch(call));
    else
      for (size_t i = i0; i < i0 + m; i++) memset(dw + i * a->k + j0, 0, n * sizeof *dw);
  }
}
