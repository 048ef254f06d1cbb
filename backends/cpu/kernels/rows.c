/* SPDX-License-Identifier: Apache-2.0
 *
 * Tuned kernels that move, combine and sum rows; their meaning is core/ops/rows.c.
 */
#include "backends/cpu/kernels/blocks.h"
#include "backends/cpu/kernels/kernel.h"

KEDGE_KERNEL(gather_rows) {
  KEDGE_CALL_ARGS(gather_rows);
  const kedge_x *x = KEDGE_IN_X(0);
  const int32_t *slots = KEDGE_IN_I(1);
  kedge_x *y = KEDGE_OUT_X(0);
  size_t valid = (size_t)KEDGE_IN_I(2)[a->experts], chunk = kedge__block_rows(a->cols),
         bytes = a->cols * sizeof *y;
  KEDGE_EACH (r, a->rows, chunk) {
    if (r < valid)
      memcpy(y + r * a->cols, x + (size_t)slots[r] / a->topk * call->in[0].pitch, bytes);
    else
      memset(y + r * a->cols, 0, bytes);
  }
}

enum { COLS = 256 }; /* columns whose sums are held at a time */

KEDGE_KERNEL(combine_rows) {
  KEDGE_CALL_ARGS(combine_rows);
  const kedge_x *x = KEDGE_IN_X(0);
  const int32_t *rows = KEDGE_IN_I(1);
  kedge_x *y = KEDGE_OUT_X(0);
  size_t cols = a->cols, chunk = kedge__block_rows(cols * a->topk);
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(a->tokens, chunk))
  for (size_t block = 0; block < a->tokens; block += chunk)
    for (size_t t = block; t < kedge__min(block + chunk, a->tokens); t++)
      for (size_t first = 0; first < cols; first += COLS) {
        size_t n = kedge__min(COLS, cols - first);
        float sum[COLS] = {0};
        for (size_t s = t * a->topk; s < (t + 1) * a->topk; s++) {
          if (rows[s] < 0) continue;
          const kedge_x *row = x + (size_t)rows[s] * cols + first;
          KEDGE_SIMD
          for (size_t j = 0; j < n; j++) sum[j] += kedge_load(row[j]);
        }
        KEDGE_SIMD
        for (size_t j = 0; j < n; j++) y[t * cols + first + j] = kedge_store(sum[j]);
      }
}

KEDGE_KERNEL(embed) {
  KEDGE_CALL_ARGS(embed);
  const kedge_x *weight = KEDGE_IN_X(0);
  const int32_t *ids = KEDGE_IN_I(1);
  size_t chunk = kedge__block_rows(a->cols);
  KEDGE_EACH (t, a->tokens, chunk) {
    assert(ids[t] >= 0 && (uint32_t)ids[t] < a->vocab);
    memcpy(KEDGE_OUT_X(0) + t * a->cols, weight + (size_t)ids[t] * a->cols, a->cols * sizeof *weight);
  }
}

/* Each block of columns goes through the tokens in order, so that rows of one id add up in that order. */
KEDGE_KERNEL(embed_grad) {
  KEDGE_CALL_ARGS(embed_grad);
  const int32_t *ids = KEDGE_IN_I(0);
  float *dw = KEDGE_OUT_F(0);
  size_t cols = a->cols, n = (size_t)a->vocab * cols;
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(n, KEDGE_BLOCK))
  for (size_t first = 0; first < n; first += KEDGE_BLOCK)
    memset(dw + first, 0, kedge__min(KEDGE_BLOCK, n - first) * sizeof *dw);
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(cols, COLS))
  for (size_t first = 0; first < cols; first += COLS) {
    size_t width = kedge__min(COLS, cols - first);
    for (size_t t = 0; t < a->tokens; t++) {
      assert(ids[t] >= 0 && (uint32_t)ids[t] < a->vocab);
      const kedge_x *dy = KEDGE_IN_X(1) + t * cols + first;
      float *row = dw + (size_t)ids[t] * cols + first;
      KEDGE_SIMD
      for (size_t j = 0; j < width; j++) row[j] += kedge_load(dy[j]);
    }
  }
}

/* No index comes twice, so that rows may be written in any order. */
KEDGE_KERNEL(scatter_rows) {
  KEDGE_CALL_ARGS(scatter_rows);
  kedge_x *dst = call->in[0].data;
  const int32_t *index = KEDGE_IN_I(2);
  size_t chunk = kedge__block_rows(a->cols);
  KEDGE_EACH (t, a->rows, chunk) {
    if (index[t] < 0) continue;
    assert((uint32_t)index[t] < a->capacity);
    memcpy(dst + (size_t)index[t] * a->cols, KEDGE_IN_X(1) + t * call->in[1].pitch, a->cols * sizeof *dst);
  }
}

KEDGE_KERNEL(slice) {
  KEDGE_CALL_ARGS(slice);
  const kedge_x *x = KEDGE_IN_X(0) + a->offset;
  kedge_x *y = KEDGE_OUT_X(0);
  size_t chunk = kedge__block_rows(a->cols);
  KEDGE_EACH (i, a->rows, chunk) memcpy(y + i * a->cols, x + i * call->in[0].pitch, a->cols * sizeof *y);
}

KEDGE_KERNEL(place) {
  KEDGE_CALL_ARGS(place);
  const kedge_x *x = KEDGE_IN_X(0);
  size_t chunk = kedge__block_rows(a->total), end = (size_t)a->offset + a->cols;
  KEDGE_EACH (i, a->rows, chunk) {
    kedge_x *y = KEDGE_OUT_X(0) + i * a->total;
    memset(y, 0, a->offset * sizeof *y);
    memcpy(y + a->offset, x + i * call->in[0].pitch, a->cols * sizeof *y);
    memset(y + end, 0, (a->total - end) * sizeof *y);
  }
}

KEDGE_KERNEL(concat) {
  KEDGE_CALL_ARGS(concat);
  size_t total = (size_t)a->cols_a + a->cols_b, chunk = kedge__block_rows(total);
  KEDGE_EACH (i, a->rows, chunk) {
    kedge_x *y = KEDGE_OUT_X(0) + i * total;
    memcpy(y, KEDGE_IN_X(0) + i * call->in[0].pitch, a->cols_a * sizeof *y);
    memcpy(y + a->cols_a, KEDGE_IN_X(1) + i * call->in[1].pitch, a->cols_b * sizeof *y);
  }
}

KEDGE_KERNEL(row_bias) {
  KEDGE_CALL_ARGS(row_bias);
  const int32_t *spans = KEDGE_IN_I(2);
  const float factor = a->factor;
  size_t cols = a->experts, chunk = kedge__block_rows(cols);
  KEDGE_EACH (t, a->tokens, chunk) {
    const float *x = KEDGE_IN_F(0) + t * cols;
    float *y = KEDGE_OUT_F(0) + t * cols;
    assert(spans[t] < (int32_t)a->spans);
    if (spans[t] < 0) {
      memmove(y, x, cols * sizeof *y); /* which may be one and the same */
      continue;
    }
    const float *bias = KEDGE_IN_F(1) + (size_t)spans[t] * cols;
    KEDGE_SIMD
    for (size_t e = 0; e < cols; e++) y[e] = x[e] + factor * bias[e];
  }
}

/* Sums go by runs of 1024 elements in f32; the runs of a block, and the blocks, add up in double. */
enum { RUN = 1024 };

static double sum_of(const kedge_tensor *x, size_t first, size_t last, bool squares) {
  double total = 0;
  for (; first < last; first += RUN) {
    size_t end = kedge__min(first + RUN, last);
    float sum = 0;
    if (x->dtype == KEDGE_BF16) {
      const uint16_t *data = x->data;
      KEDGE_SIMD_SUM(sum)
      for (size_t i = first; i < end; i++) {
        union {
          uint32_t u;
          float f;
        } v = {(uint32_t)data[i] << 16};
        sum += squares ? v.f * v.f : v.f;
      }
    } else {
      const float *data = x->data;
      KEDGE_SIMD_SUM(sum)
      for (size_t i = first; i < end; i++) sum += squares ? data[i] * data[i] : data[i];
    }
    total += (double)sum;
  }
  return total;
}

static float sum_all(const kedge_call *call, size_t n, bool squares) {
  double *partial = call->scratch, total = 0;
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(n, KEDGE_BLOCK))
  for (size_t first = 0; first < n; first += KEDGE_BLOCK)
    partial[first / KEDGE_BLOCK] = sum_of(&call->in[0], first, kedge__min(first + KEDGE_BLOCK, n), squares);
  for (size_t b = 0; b < kedge__blocks(n, KEDGE_BLOCK); b++) total += partial[b];
  return (float)total;
}

KEDGE_SCRATCH(sum) {
  KEDGE_CALL_ARGS(sum);
  return kedge__blocks(a->n, KEDGE_BLOCK) * sizeof(double);
}
KEDGE_SCRATCH(sum_squares) {
  KEDGE_CALL_ARGS(sum_squares);
  return kedge__blocks(a->n, KEDGE_BLOCK) * sizeof(double);
}

KEDGE_KERNEL(sum) {
  KEDGE_CALL_ARGS(sum);
  KEDGE_OUT_F(0)[0] = sum_all(call, a->n, false);
}

KEDGE_KERNEL(sum_squares) {
  KEDGE_CALL_ARGS(sum_squares);
  KEDGE_OUT_F(0)[0] = sum_all(call, a->n, true);
}
