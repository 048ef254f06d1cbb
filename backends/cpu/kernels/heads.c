/* SPDX-License-Identifier: Apache-2.0
 *
 * Tuned kernels of what all heads share; their meaning is core/ops/heads.c.
 */
#include "backends/cpu/kernels/blocks.h"
#include "backends/cpu/kernels/kernel.h"

KEDGE_KERNEL(repeat) {
  KEDGE_CALL_ARGS(repeat);
  size_t cols = a->cols, total = cols * a->times, chunk = kedge__block_rows(total);
  KEDGE_EACH (r, a->rows, chunk)
    for (size_t n = 0; n < a->times; n++)
      memcpy(KEDGE_OUT_X(0) + r * total + n * cols, KEDGE_IN_X(0) + r * call->in[0].pitch,
             cols * sizeof(kedge_x));
}

enum { COLS = 256 }; /* columns whose sums are held at a time */

KEDGE_KERNEL(fold) {
  KEDGE_CALL_ARGS(fold);
  size_t cols = a->cols, chunk = kedge__block_rows(cols * a->times);
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(a->rows, chunk))
  for (size_t block = 0; block < a->rows; block += chunk)
    for (size_t r = block; r < kedge__min(block + chunk, a->rows); r++)
      for (size_t first = 0; first < cols; first += COLS) {
        const kedge_x *x = KEDGE_IN_X(0) + r * call->in[0].pitch + first;
        kedge_x *y = KEDGE_OUT_X(0) + r * cols + first;
        size_t n = kedge__min(COLS, cols - first);
        float sum[COLS] = {0};
        for (size_t k = 0; k < a->times; k++) {
          KEDGE_SIMD
          for (size_t j = 0; j < n; j++) sum[j] += kedge_load(x[k * cols + j]);
        }
        KEDGE_SIMD
        for (size_t j = 0; j < n; j++) y[j] = kedge_store(sum[j]);
      }
}
