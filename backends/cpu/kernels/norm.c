/* SPDX-License-Identifier: Apache-2.0
 *
 * Tuned RMS norm; its meaning is core/ops/norm.c.
 */
#include "backends/cpu/kernels/blocks.h"
#include "backends/cpu/kernels/kernel.h"

KEDGE_KERNEL(rms_norm) {
  KEDGE_CALL_ARGS(rms_norm);
  const kedge_x *weight = KEDGE_IN_X(1);
  size_t chunk = kedge__block_rows(a->cols), cols = a->cols;
  KEDGE_EACH (i, a->rows, chunk) {
    const kedge_x *x = KEDGE_IN_X(0) + i * cols;
    kedge_x *y = KEDGE_OUT_X(0) + i * cols;
    float sum = 0;
    KEDGE_SIMD_SUM(sum)
    for (size_t j = 0; j < cols; j++) sum += kedge_load(x[j]) * kedge_load(x[j]);
    float scale = 1 / sqrtf(sum / (float)cols + a->eps);
    KEDGE_OUT_F(1)[i] = scale;
    KEDGE_SIMD
    for (size_t j = 0; j < cols; j++) y[j] = kedge_store(kedge_load(weight[j]) * kedge_load(x[j]) * scale);
  }
}

/* The weight's gradient is summed over blocks of rows, then over the blocks, a few columns at a time. */
enum { ROWS = 64, COLS = 64 };

KEDGE_SCRATCH(rms_norm_grad) {
  KEDGE_CALL_ARGS(rms_norm_grad);
  return (uint64_t)kedge__blocks(a->rows, ROWS) * a->cols * sizeof(float);
}

KEDGE_KERNEL(rms_norm_grad) {
  KEDGE_CALL_ARGS(rms_norm_grad);
  const kedge_x *weight = KEDGE_IN_X(1);
  size_t cols = a->cols, blocks = kedge__blocks(a->rows, ROWS);
  float *partial = call->scratch;
  KEDGE_PARALLEL_BLOCKS(blocks)
  for (size_t b = 0; b < blocks; b++) {
    float *dw = partial + b * cols;
    memset(dw, 0, cols * sizeof *dw);
    for (size_t i = b * ROWS; i < kedge__min((b + 1) * ROWS, a->rows); i++) {
      const kedge_x *x = KEDGE_IN_X(0) + i * cols, *dy = KEDGE_IN_X(3) + i * cols;
      kedge_x *dx = KEDGE_OUT_X(0) + i * cols;
      float s = KEDGE_IN_F(2)[i], sum = 0;
      KEDGE_SIMD_SUM(sum)
      for (size_t j = 0; j < cols; j++) sum += kedge_load(weight[j]) * kedge_load(dy[j]) * kedge_load(x[j]);
      float pull = sum / (float)cols * s * s;
      KEDGE_SIMD
      for (size_t j = 0; j < cols; j++) {
        float xj = kedge_load(x[j]), dj = kedge_load(dy[j]);
        dw[j] += dj * xj * s;
        dx[j] = kedge_store(s * (kedge_load(weight[j]) * dj - xj * pull));
      }
    }
  }
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(cols, COLS))
  for (size_t first = 0; first < cols; first += COLS) {
    double total[COLS] = {0};
    size_t n = kedge__min(COLS, cols - first);
    for (size_t b = 0; b < blocks; b++)
      for (size_t j = 0; j < n; j++) total[j] += (double)partial[b * cols + first + j];
    for (size_t j = 0; j < n; j++) KEDGE_OUT_F(1)[first + j] = (float)total[j];
  }
}
