/* SPDX-License-Identifier: Apache-2.0
 * Counting and replacing choices on graphics cards; the meaning is core/ops/choice.c. Counts are made as
 * integers, whose sums have no order, in the memory of the output. */
#include "backends/gpu/kernel.h"

GPU_DEVICE void count_one(int32_t *counter) {
#if defined(KEDGE_GPU_SIM)
  __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
#else
  atomicAdd(counter, 1);
#endif
}

GPU_OP_PLAIN(expert_counts) {
  const int32_t *ids = gpu_in<int32_t>(s, 0), *index = gpu_in<int32_t>(s, 1);
  int32_t *counters = gpu_out<int32_t>(s, 0);
  float *counts = gpu_out<float>(s, 0);
  const uint32_t k = a->k, experts = a->experts;
  const uint64_t cells = (uint64_t)a->groups * a->experts;
  gpu_each(
      s, cells, GPU_LAMBDA(uint64_t i) { counters[i] = 0; });
  gpu_each(
      s, (uint64_t)a->tokens * k, GPU_LAMBDA(uint64_t i) {
        const int32_t row = index[(uint32_t)i / k];
        if (row >= 0 && ids[i] >= 0) count_one(counters + (size_t)row * experts + (uint32_t)ids[i]);
      });
  gpu_each(
      s, cells, GPU_LAMBDA(uint64_t i) { counts[i] = (float)counters[i]; });
}

GPU_OP_PLAIN(choose_rows) {
  const int32_t *ids = gpu_in<int32_t>(s, 0), *table = gpu_in<int32_t>(s, 1), *index = gpu_in<int32_t>(s, 2);
  int32_t *y = gpu_out<int32_t>(s, 0);
  const uint32_t k = a->k;
  gpu_each(
      s, (uint64_t)a->tokens * k, GPU_LAMBDA(uint64_t i) {
        const int32_t row = index[(uint32_t)i / k];
        y[i] = row < 0 ? ids[i] : table[(size_t)row * k + (uint32_t)i % k];
      });
}
