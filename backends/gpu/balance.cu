/* SPDX-License-Identifier: Apache-2.0
 * Load balancing losses on graphics cards, a wave a token; the meaning is core/ops/balance.c. */
#include "backends/gpu/router.h"

/* q of a row is weight(z_e) by the sum of the weights (core/ops/balance.c says why a sigmoid's looks so). */
GPU_DEVICE float weight_of(bool sigmoid, float z, float max) {
  if (!sigmoid) return expf(z - max);
  return expf((z < 0 ? z : 0) - max) / (1 + expf(z < 0 ? z : -z));
}

struct shares {
  float max, sum, total, mean; /* of the weights; of the counts; sum of f q */
};

/* Where all counts are 0 the total is 0, and the rest is not used. */
GPU_DEVICE shares shares_of(bool sigmoid, const float *z, const float *counts, uint32_t n) {
  shares s;
  const float largest = gpu_row_max(n, [=](uint32_t e) { return z[e]; });
  const float max = sigmoid && largest > 0 ? 0 : largest;
  const float sum = gpu_row_sum(n, [=](uint32_t e) { return weight_of(sigmoid, z[e], max); });
  const float total = gpu_row_sum(n, [=](uint32_t e) { return counts[e]; });
  s.mean =
      gpu_row_sum(n, [=](uint32_t e) { return counts[e] / total * (weight_of(sigmoid, z[e], max) / sum); });
  s.max = max;
  s.sum = sum;
  s.total = total;
  return s;
}

GPU_OP_PLAIN(balance) {
  const float *z = gpu_in<float>(s, 0), *table = gpu_in<float>(s, 1);
  const int32_t *index = gpu_in<int32_t>(s, 2);
  float *y = gpu_out<float>(s, 0);
  const uint32_t n = a->experts;
  const bool sigmoid = a->kind == KEDGE_SCORE_SIGMOID;
  gpu_wave_rows(
      s, a->tokens, GPU_LAMBDA(uint32_t t) {
        float loss = 0;
        if (index[t] >= 0) {
          const shares q = shares_of(sigmoid, z + (size_t)t * n, table + (size_t)index[t] * n, n);
          if (q.total > 0) loss = (float)n * q.mean;
        }
        if (gpu_lane() == 0) y[t] = loss;
      });
}

GPU_OP_PLAIN(balance_grad) {
  const float *z = gpu_in<float>(s, 0), *table = gpu_in<float>(s, 1), *dy = gpu_in<float>(s, 3);
  const int32_t *index = gpu_in<int32_t>(s, 2);
  float *dz = gpu_out<float>(s, 0);
  const uint32_t n = a->experts;
  const bool sigmoid = a->kind == KEDGE_SCORE_SIGMOID;
  gpu_wave_rows(
      s, a->tokens, GPU_LAMBDA(uint32_t t) {
        const bool on = index[t] >= 0;
        const float *row = z + (size_t)t * n, *counts = table + (size_t)(on ? index[t] : 0) * n;
        shares q;
        q.max = q.total = q.mean = 0;
        q.sum = 1;
        if (on) q = shares_of(sigmoid, row, counts, n);
        for (uint32_t e = gpu_lane(); e < n; e += gpu_wave_width())
          dz[(size_t)t * n + e] =
              q.total > 0 ? (float)n * dy[t] * (weight_of(sigmoid, row[e], q.max) / q.sum) *
                                (counts[e] / q.total - q.mean) * (sigmoid ? kedge_sigmoid(-row[e]) : 1)
                          : 0;
      });
}
