/* SPDX-License-Identifier: Apache-2.0
 *
 * Tuned swiglu kernels; their meaning is core/ops/swiglu.c.
 */
#include "backends/cpu/kernels/blocks.h"
#include "backends/cpu/kernels/kernel.h"
#include "backends/cpu/kernels/vexp.h"

KEDGE_KERNEL(swiglu) {
  KEDGE_CALL_ARGS(swiglu);
  const kedge_x *gate = KEDGE_IN_X(0), *up = KEDGE_IN_X(1);
  kedge_x *y = KEDGE_OUT_X(0);
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(a->n, KEDGE_BLOCK))
  for (size_t first = 0; first < a->n; first += KEDGE_BLOCK) {
    size_t last = kedge__min(first + KEDGE_BLOCK, a->n);
    KEDGE_SIMD
    for (size_t i = first; i < last; i++) {
      float g = kedge_load(gate[i]);
      y[i] = kedge_store(g * kedge__vsigmoid(g) * kedge_load(up[i]));
    }
  }
}

KEDGE_KERNEL(swiglu_grad) {
  KEDGE_CALL_ARGS(swiglu_grad);
  const kedge_x *gate = KEDGE_IN_X(0), *up = KEDGE_IN_X(1), *dy = KEDGE_IN_X(2);
  kedge_x *dgate = KEDGE_OUT_X(0), *dup = KEDGE_OUT_X(1);
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(a->n, KEDGE_BLOCK))
  for (size_t first = 0; first < a->n; first += KEDGE_BLOCK) {
    size_t last = kedge__min(first + KEDGE_BLOCK, a->n);
    KEDGE_SIMD
    for (size_t i = first; i < last; i++) {
      float g = kedge_load(gate[i]), d = kedge_load(dy[i]), s = kedge__vsigmoid(g);
      dgate[i] = kedge_store(d * kedge_load(up[i]) * (s * (1 + g * (1 - s))));
      dup[i] = kedge_store(d * (g * s));
    }
  }
}

/* Rows [valid, rows) of a tensor become 0. */
static void clear_rows(kedge_x *y, size_t valid, size_t rows, size_t cols) {
  memset(y + valid * cols, 0, (rows - valid) * cols * sizeof *y);
}

KEDGE_KERNEL(swiglu_gated) {
  KEDGE_CALL_ARGS(swiglu_gated);
  const kedge_x *gate = KEDGE_IN_X(0), *up = KEDGE_IN_X(1);
  const kedge_real *weights = KEDGE_IN_F(2);
  const int32_t *rows = KEDGE_IN_I(3);
  kedge_x *y = KEDGE_OUT_X(0);
  size_t chunk = kedge__block_rows(a->cols);
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(a->rows, chunk))
  for (size_t block = 0; block < a->rows; block += chunk)
    for (size_t s = block; s < kedge__min(block + chunk, a->rows); s++) {
      if (rows[s] < 0) continue;
      size_t first = (size_t)rows[s] * a->cols, last = first + a->cols;
      float w = weights[s];
      KEDGE_SIMD
      for (size_t i = first; i < last; i++) {
        float g = kedge_load(gate[i]);
        y[i] = kedge_store(g * kedge__vsigmoid(g) * kedge_load(up[i]) * w);
      }
    }
  clear_rows(y, (size_t)KEDGE_IN_I(4)[a->experts], a->rows, a->cols);
}

KEDGE_KERNEL(swiglu_gated_grad) {
  KEDGE_CALL_ARGS(swiglu_gated_grad);
  const kedge_x *gate = KEDGE_IN_X(0), *up = KEDGE_IN_X(1), *dy = KEDGE_IN_X(5);
  const kedge_real *weights = KEDGE_IN_F(2);
  const int32_t *rows = KEDGE_IN_I(3);
  kedge_x *dgate = KEDGE_OUT_X(0), *dup = KEDGE_OUT_X(1);
  size_t chunk = kedge__block_rows(a->cols), valid = (size_t)KEDGE_IN_I(4)[a->experts];
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(a->rows, chunk))
  for (size_t block = 0; block < a->rows; block += chunk)
    for (size_t s = block; s < kedge__min(block + chunk, a->rows); s++) {
      size_t first = rows[s] < 0 ? 0 : (size_t)rows[s] * a->cols, last = rows[s] < 0 ? 0 : first + a->cols;
      float w = weights[s], sum = 0;
      KEDGE_SIMD_SUM(sum)
      for (size_t i = first; i < last; i++) {
        float g = kedge_load(gate[i]), u = kedge_load(up[i]), d = kedge_load(dy[i]),
              sigmoid = kedge__vsigmoid(g);
        sum += d * u * (g * sigmoid);
        dgate[i] = kedge_store(d * w * u * (sigmoid * (1 + g * (1 - sigmoid))));
        dup[i] = kedge_store(d * w * (g * sigmoid));
      }
      KEDGE_OUT_F(2)[s] = sum;
    }
  clear_rows(dgate, valid, a->rows, a->cols);
  clear_rows(dup, valid, a->rows, a->cols);
}
