/* SPDX-License-Identifier: Apache-2.0
 * Rows repeated for all heads and folded again, on graphics cards; the meaning is core/ops/heads.c. */
#include "backends/gpu/kernel.h"

GPU_OP(repeat) {
  const X *x = gpu_in<X>(s, 0);
  X *y = gpu_out<X>(s, 0);
  const uint32_t cols = a->cols, wide = a->cols * a->times;
  const size_t pitch = gpu_pitch(s, 0);
  gpu_each(
      s, (uint64_t)a->rows * wide, GPU_LAMBDA(uint64_t i) {
        const uint32_t at = (uint32_t)i;
        y[i] = x[at / wide * pitch + at % cols];
      });
}

GPU_OP(fold) {
  const X *x = gpu_in<X>(s, 0);
  X *y = gpu_out<X>(s, 0);
  const uint32_t cols = a->cols, times = a->times;
  const size_t pitch = gpu_pitch(s, 0);
  gpu_each(
      s, (uint64_t)a->rows * cols, GPU_LAMBDA(uint64_t i) {
        const X *from = x + (uint32_t)i / cols * pitch + (uint32_t)i % cols;
        float sum = 0;
        for (size_t n = 0; n < times; n++) sum += gpu_load(from[n * cols]);
        y[i] = gpu_store<X>(sum);
      });
}
