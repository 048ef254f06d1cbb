/* SPDX-License-Identifier: Apache-2.0
 *
 * Tuned dense and grouped products; their meaning is core/ops/matmul.c.
 *
 * A result is cut into tiles fixed by shape; each tile is a sum of OpenBLAS products over panels of the inner
 * dimension, made by one thread (OpenBLAS itself runs with one, so that its order of summation is fixed).
 * Operands are read in place where they are dense f32; rows that are gathered and bf16 are first copied as
 * f32 into the thread's scratch, a panel at a time.
 */
#include "backends/cpu/kernels/blocks.h"
#include "backends/cpu/kernels/kernel.h"

#include <cblas.h>
#include <omp.h>

/* A tile of the result; the inner dimension of a panel; up to so many rows the product is a few dot products
 * instead. */
enum { TILE_M = 256, TILE_N = 512, PANEL = 512, FEW = 8 };
enum { FLOATS = TILE_M * PANEL + PANEL * TILE_N + TILE_M * TILE_N }; /* scratch of a thread */

/* A matrix as it is stored; with slots, its row r is row slots[r] / topk of data. */
typedef struct operand {
  const kedge_x *data;
  size_t pitch;
  const int32_t *slots;
  uint32_t topk;
} operand;

/* op(a) op(b) with the inner dimension k. Row 0 of each operand is where this product starts. */
typedef struct product {
  operand a, b;
  bool trans_a, trans_b;
  size_t k;
} product;

static const kedge_x *row_of(const operand *m, size_t row) {
  return m->data + (m->slots ? (size_t)m->slots[row] / m->topk : row) * m->pitch;
}

/* The operand from its row `row` on. */
static operand from_row(operand m, size_t row) {
  if (m.slots)
    m.slots += row;
  else
    m.data += row * m.pitch;
  return m;
}

/* A block of a stored matrix as f32: in place, or copied to `scratch`. */
static const float *panel(const operand *m, size_t row, size_t rows, size_t col, size_t cols, float *scratch,
                          int *pitch) {
#if defined(KEDGE_STORAGE_F32)
  if (!m->slots) {
    *pitch = (int)m->pitch;
    return m->data + row * m->pitch + col;
  }
#endif
  for (size_t r = 0; r < rows; r++) {
    const kedge_x *x = row_of(m, row + r) + col;
    float *y = scratch + r * cols;
    KEDGE_SIMD
    for (size_t c = 0; c < cols; c++) y[c] = kedge_load(x[c]);
  }
  *pitch = (int)cols;
  return scratch;
}

/* Few rows of op(a) = a against rows of b: dot products, four rows at a time, without a copy of b. */
static void dot_tile(const product *p, size_t i0, size_t m, size_t j0, size_t n, float *c, size_t pitch) {
  for (size_t j = 0; j < n; j++) {
    const kedge_x *b = row_of(&p->b, j0 + j);
    size_t i = 0;
    for (; i + 4 <= m; i += 4) {
      const kedge_x *a0 = row_of(&p->a, i0 + i), *a1 = row_of(&p->a, i0 + i + 1);
      const kedge_x *a2 = row_of(&p->a, i0 + i + 2), *a3 = row_of(&p->a, i0 + i + 3);
      float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
      KEDGE_PRAGMA_(omp simd reduction(+ : s0, s1, s2, s3))
      for (size_t q = 0; q < p->k; q++) {
        float bq = kedge_load(b[q]);
        s0 += kedge_load(a0[q]) * bq;
        s1 += kedge_load(a1[q]) * bq;
        s2 += kedge_load(a2[q]) * bq;
        s3 += kedge_load(a3[q]) * bq;
      }
      c[i * pitch + j] = s0;
      c[(i + 1) * pitch + j] = s1;
      c[(i + 2) * pitch + j] = s2;
      c[(i + 3) * pitch + j] = s3;
    }
    for (; i < m; i++) {
      const kedge_x *a = row_of(&p->a, i0 + i);
      float sum = 0;
      KEDGE_SIMD_SUM(sum)
      for (size_t q = 0; q < p->k; q++) sum += kedge_load(a[q]) * kedge_load(b[q]);
      c[i * pitch + j] = sum;
    }
  }
}

/* c = the tile [i0, i0+m) x [j0, j0+n) of a product. */
static void tile(const product *p, size_t i0, size_t m, size_t j0, size_t n, float *c, size_t pitch,
                 float *scratch) {
  if (m <= FEW && !p->trans_a && p->trans_b) {
    dot_tile(p, i0, m, j0, n, c, pitch);
    return;
  }
  float *scratch_b = scratch + TILE_M * PANEL;
  for (size_t q = 0; q < p->k; q += PANEL) {
    size_t k = kedge__min(PANEL, p->k - q);
    int pitch_a, pitch_b;
    const float *a = p->trans_a ? panel(&p->a, q, k, i0, m, scratch, &pitch_a)
                                : panel(&p->a, i0, m, q, k, scratch, &pitch_a);
    const float *b = p->trans_b ? panel(&p->b, j0, n, q, k, scratch_b, &pitch_b)
                                : panel(&p->b, q, k, j0, n, scratch_b, &pitch_b);
    cblas_sgemm(CblasRowMajor, p->trans_a ? CblasTrans : CblasNoTrans, p->trans_b ? CblasTrans : CblasNoTrans,
                (int)m, (int)n, (int)k, 1, a, pitch_a, b, pitch_b, q ? 1 : 0, c, (int)pitch);
  }
}

/* A tile into an f32 or bf16 result of n columns. */
static void tile_into(const product *p, size_t i0, size_t m, size_t j0, size_t n, void *y, bool bf16,
                      size_t pitch, float *scratch) {
  if (!bf16) {
    tile(p, i0, m, j0, n, (float *)y + i0 * pitch + j0, pitch, scratch);
    return;
  }
  float *c = scratch + TILE_M * PANEL + PANEL * TILE_N;
  tile(p, i0, m, j0, n, c, n, scratch);
  for (size_t i = 0; i < m; i++) {
    uint16_t *row = (uint16_t *)y + (i0 + i) * pitch + j0;
    KEDGE_SIMD
    for (size_t j = 0; j < n; j++) row[j] = kedge__bf16_round(c[i * n + j]);
  }
}

static float *thread_scratch(const kedge_call *call) {
  return (float *)call->scratch + (size_t)omp_get_thread_num() * FLOATS;
}

KEDGE_SCRATCH(matmul) {
  return (uint64_t)call->threads * FLOATS * sizeof(float);
}
KEDGE_SCRATCH(grouped_matmul) {
  return (uint64_t)call->threads * FLOATS * sizeof(float);
}
KEDGE_SCRATCH(grouped_wgrad) {
  return (uint64_t)call->threads * FLOATS * sizeof(float);
}

KEDGE_KERNEL(matmul) {
  KEDGE_CALL_ARGS(matmul);
  const product p = {{KEDGE_IN_X(0), call->in[0].pitch, NULL, 1},
                     {KEDGE_IN_X(1), call->in[1].pitch, NULL, 1},
                     a->trans_a,
                     a->trans_b,
                     a->k};
  size_t columns = kedge__blocks(a->n, TILE_N), tiles = kedge__blocks(a->m, TILE_M) * columns;
  bool bf16 = call->out[0].dtype == KEDGE_BF16;
  KEDGE_PARALLEL_BLOCKS(tiles)
  for (size_t t = 0; t < tiles; t++) {
    size_t i0 = t / columns * TILE_M, j0 = t % columns * TILE_N;
    tile_into(&p, i0, kedge__min(TILE_M, a->m - i0), j0, kedge__min(TILE_N, a->n - j0), call->out[0].data,
              bf16, a->n, thread_scratch(call));
  }
}

/* Row block `index` of all the experts' row blocks: its expert, which holds it from its row *first on. */
static size_t find_block(const int32_t *offsets, size_t index, size_t *first) {
  size_t e = 0;
  for (;; e++) {
    size_t blocks = kedge__blocks((size_t)(offsets[e + 1] - offsets[e]), TILE_M);
    if (index < blocks) break;
    index -= blocks;
  }
  *first = index * TILE_M;
  return e;
}

KEDGE_KERNEL(grouped_matmul) {
  KEDGE_CALL_ARGS(grouped_matmul);
  const int32_t *slots = KEDGE_IN_I(2), *offsets = KEDGE_IN_I(3);
  const operand x = {KEDGE_IN_X(0), call->in[0].pitch, a->gather ? slots : NULL, a->topk};
  size_t columns = kedge__blocks(a->n, TILE_N), blocks = 0, valid = (size_t)offsets[a->experts];
  for (size_t e = 0; e < a->experts; e++)
    blocks += kedge__blocks((size_t)(offsets[e + 1] - offsets[e]), TILE_M);
  kedge_x *y = KEDGE_OUT_X(0);
  KEDGE_PARALLEL_BLOCKS(blocks * columns)
  for (size_t t = 0; t < blocks * columns; t++) {
    size_t i0, j0 = t % columns * TILE_N, e = find_block(offsets, t / columns, &i0);
    size_t first = (size_t)offsets[e], rows = (size_t)offsets[e + 1] - first;
    const kedge_x *w = call->in[1].parts ? call->in[1].parts[e] : KEDGE_IN_X(1) + e * a->n * a->k;
    const product p = {from_row(x, first), {w, a->trans_w ? a->k : a->n, NULL, 1}, false, a->trans_w, a->k};
    tile_into(&p, i0, kedge__min(TILE_M, rows - i0), j0, kedge__min(TILE_N, a->n - j0), y + first * a->n,
              sizeof(kedge_x) == 2, a->n, thread_scratch(call));
  }
  memset(y + valid * a->n, 0, (a->rows - valid) * a->n * sizeof *y);
}

KEDGE_KERNEL(grouped_wgrad) {
  KEDGE_CALL_ARGS(grouped_wgrad);
  const int32_t *slots = KEDGE_IN_I(2), *offsets = KEDGE_IN_I(3);
  const operand dy = {KEDGE_IN_X(0), call->in[0].pitch, a->gather_dy ? slots : NULL, a->topk};
  const operand x = {KEDGE_IN_X(1), call->in[1].pitch, a->gather_x ? slots : NULL, a->topk};
  size_t columns = kedge__blocks(a->k, TILE_N), tiles = kedge__blocks(a->n, TILE_M) * columns;
  KEDGE_PARALLEL_BLOCKS(a->experts * tiles)
  for (size_t t = 0; t < a->experts * tiles; t++) {
    size_t e = t / tiles, i0 = t % tiles / columns * TILE_M, j0 = t % columns * TILE_N;
    size_t m = kedge__min(TILE_M, a->n - i0), n = kedge__min(TILE_N, a->k - j0);
    float *dw = KEDGE_OUT_F(0) + e * a->n * a->k;
    size_t first = (size_t)offsets[e], rows = (size_t)offsets[e + 1] - first;
    const product p = {from_row(dy, first), from_row(x, first), true, false, rows};
    if (rows)
      tile_into(&p, i0, m, j0, n, dw, false, a->k, thread_scratch(call));
    else
      for (size_t i = i0; i < i0 + m; i++) memset(dw + i * a->k + j0, 0, n * sizeof *dw);
  }
}
