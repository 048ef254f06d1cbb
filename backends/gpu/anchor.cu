/* SPDX-License-Identifier: Apache-2.0
 * Anchoring losses on graphics cards, a wave a token; the meaning is core/ops/anchor.c. */
#include "backends/gpu/router.h"

GPU_DEVICE float kl_row(const float *z, const float *pi, uint32_t n) {
  const gpu_softmax s = gpu_softmax_of(z, n);
  const float log_sum = logf(s.sum), max = s.max;
  return gpu_row_sum(
      n, [=](uint32_t e) { return pi[e] > 0 ? pi[e] * (logf(pi[e]) - (z[e] - max - log_sum)) : 0.0f; });
}

GPU_OP_PLAIN(anchor_kl) {
  const float *z = gpu_in<float>(s, 0), *table = gpu_in<float>(s, 1);
  const int32_t *index = gpu_in<int32_t>(s, 2);
  float *y = gpu_out<float>(s, 0);
  const uint32_t n = a->experts;
  gpu_wave_rows(
      s, a->tokens, GPU_LAMBDA(uint32_t t) {
        const float loss = index[t] < 0 ? 0 : kl_row(z + (size_t)t * n, table + (size_t)index[t] * n, n);
        if (gpu_lane() == 0) y[t] = loss;
      });
}

GPU_OP_PLAIN(anchor_kl_grad) {
  const float *z = gpu_in<float>(s, 0), *table = gpu_in<float>(s, 1), *dy = gpu_in<float>(s, 3);
  const int32_t *index = gpu_in<int32_t>(s, 2);
  float *dz = gpu_out<float>(s, 0);
  const uint32_t n = a->experts;
  gpu_wave_rows(
      s, a->tokens, GPU_LAMBDA(uint32_t t) {
        const float *row = z + (size_t)t * n, *pi = table + (size_t)(index[t] < 0 ? 0 : index[t]) * n;
        const gpu_softmax soft = gpu_softmax_of(row, n);
        const bool on = index[t] >= 0;
        const float total = on ? gpu_row_sum(n, [=](uint32_t e) { return pi[e]; }) : 0;
        for (uint32_t e = gpu_lane(); e < n; e += gpu_wave_width())
          dz[(size_t)t * n + e] = on ? dy[t] * (expf(row[e] - soft.max) / soft.sum * total - pi[e]) : 0;
      });
}

GPU_DEVICE float floored_log(float pi, float floor) {
  return logf(pi > floor ? pi : floor);
}

/* mean(z) - mean(log max(pi, floor)). */
GPU_DEVICE float l2_shift(const float *z, const float *pi, uint32_t n, float floor) {
  return gpu_row_sum(n, [=](uint32_t e) { return z[e] - floored_log(pi[e], floor); }) / (float)n;
}

GPU_OP_PLAIN(anchor_l2) {
  const float *z = gpu_in<float>(s, 0), *table = gpu_in<float>(s, 1);
  const int32_t *index = gpu_in<int32_t>(s, 2);
  float *y = gpu_out<float>(s, 0);
  const uint32_t n = a->experts;
  const float floor = a->floor;
  gpu_wave_rows(
      s, a->tokens, GPU_LAMBDA(uint32_t t) {
        float loss = 0;
        if (index[t] >= 0) {
          const float *row = z + (size_t)t * n, *pi = table + (size_t)index[t] * n;
          const float shift = l2_shift(row, pi, n, floor);
          loss = gpu_row_sum(n, [=](uint32_t e) {
            const float delta = row[e] - floored_log(pi[e], floor) - shift;
            return delta * delta;
          });
        }
        if (gpu_lane() == 0) y[t] = loss;
      });
}

GPU_OP_PLAIN(anchor_l2_grad) {
  const float *z = gpu_in<float>(s, 0), *table = gpu_in<float>(s, 1), *dy = gpu_in<float>(s, 3);
  const int32_t *index = gpu_in<int32_t>(s, 2);
  float *dz = gpu_out<float>(s, 0);
  const uint32_t n = a->experts;
  const float floor = a->floor;
  gpu_wave_rows(
      s, a->tokens, GPU_LAMBDA(uint32_t t) {
        const bool on = index[t] >= 0;
        const float *row = z + (size_t)t * n, *pi = table + (size_t)(on ? index[t] : 0) * n;
        const float shift = on ? l2_shift(row, pi, n, floor) : 0;
        for (uint32_t e = gpu_lane(); e < n; e += gpu_wave_width())
          dz[(size_t)t * n + e] = on ? 2 * dy[t] * (row[e] - floored_log(pi[e], floor) - shift) : 0;
      });
}

/* A row of nothing but -inf has the logsumexp -inf, and no softmax. */
GPU_OP_PLAIN(logsumexp) {
  const float *x = gpu_in<float>(s, 0);
  float *y = gpu_out<float>(s, 0);
  const uint32_t n = a->cols;
  gpu_wave_rows(
      s, a->rows, GPU_LAMBDA(uint32_t r) {
        const gpu_softmax soft = gpu_softmax_of(x + (size_t)r * n, n);
        if (gpu_lane() == 0) y[r] = soft.max == -gpu_infinity() ? soft.max : soft.max + logf(soft.sum);
      });
}

GPU_OP_PLAIN(logsumexp_grad) {
  const float *x = gpu_in<float>(s, 0), *dy = gpu_in<float>(s, 1);
  float *dx = gpu_out<float>(s, 0);
  const uint32_t n = a->cols;
  gpu_wave_rows(
      s, a->rows, GPU_LAMBDA(uint32_t r) {
        const float *row = x + (size_t)r * n;
        const gpu_softmax soft = gpu_softmax_of(row, n);
        for (uint32_t e = gpu_lane(); e < n; e += gpu_wave_width())
          dx[(size_t)r * n + e] =
              soft.max == -gpu_infinity() ? 0 : dy[r] * (expf(row[e] - soft.max) / soft.sum);
      });
}
