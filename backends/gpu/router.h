/* SPDX-License-Identifier: Apache-2.0
 * Softmax of a router's row by a wave, for route.cu, anchor.cu and balance.cu. */
#ifndef KEDGE_GPU_ROUTER_H
#define KEDGE_GPU_ROUTER_H

#include "backends/gpu/kernel.h"

/* Sum, or maximum, of f(e) over e in [0, n): every lane gets it. */
template <class F> GPU_DEVICE float gpu_row_sum(uint32_t n, const F &f) {
  float sum = 0;
  for (uint32_t e = gpu_lane(); e < n; e += gpu_wave_width()) sum += f(e);
  return gpu_wave_fold<gpu_sum>(sum);
}
template <class F> GPU_DEVICE float gpu_row_max(uint32_t n, const F &f) {
  float max = -gpu_infinity();
  for (uint32_t e = gpu_lane(); e < n; e += gpu_wave_width()) max = gpu_max::of(max, f(e));
  return gpu_wave_fold<gpu_max>(max);
}

/* softmax(z)_e = exp(z_e - max) / sum. */
struct gpu_softmax {
  float max, sum;
};
GPU_DEVICE gpu_softmax gpu_softmax_of(const float *z, uint32_t n) {
  gpu_softmax s;
  const float max = gpu_row_max(n, [=](uint32_t e) { return z[e]; });
  s.max = max;
  s.sum = gpu_row_sum(n, [=](uint32_t e) { return expf(z[e] - max); });
  return s;
}

#endif
