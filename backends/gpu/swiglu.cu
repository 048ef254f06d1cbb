/* SPDX-License-Identifier: Apache-2.0
 * SwiGLU on graphics cards; the meaning is core/ops/swiglu.c. */
#include "backends/gpu/kernel.h"

GPU_OP(swiglu) {
  const X *gate = gpu_in<X>(s, 0), *up = gpu_in<X>(s, 1);
  X *y = gpu_out<X>(s, 0);
  gpu_each(
      s, a->n,
      GPU_LAMBDA(uint64_t i) { y[i] = gpu_store<X>(kedge_silu(gpu_load(gate[i])) * gpu_load(up[i])); });
}

GPU_OP(swiglu_grad) {
  const X *gate = gpu_in<X>(s, 0), *up = gpu_in<X>(s, 1), *dy = gpu_in<X>(s, 2);
  X *dgate = gpu_out<X>(s, 0), *dup = gpu_out<X>(s, 1);
  gpu_each(
      s, a->n, GPU_LAMBDA(uint64_t i) {
        const float g = gpu_load(gate[i]), u = gpu_load(up[i]), d = gpu_load(dy[i]);
        dgate[i] = gpu_store<X>(d * u * kedge_silu_slope(g));
        dup[i] = gpu_store<X>(d * kedge_silu(g));
      });
}

/* A block for slot and row of the same number: the slot's row is computed, a row past the plan is cleared. */
GPU_OP(swiglu_gated) {
  const X *gate = gpu_in<X>(s, 0), *up = gpu_in<X>(s, 1);
  const float *weights = gpu_in<float>(s, 2);
  const int32_t *rows = gpu_in<int32_t>(s, 3), *valid = gpu_in<int32_t>(s, 4) + a->experts;
  X *y = gpu_out<X>(s, 0);
  const size_t cols = a->cols;
  gpu_rows(
      s, a->rows, GPU_LAMBDA(uint32_t r) {
        if (r >= (uint32_t)valid[0])
          for (size_t j = gpu_thread(); j < cols; j += gpu_threads()) y[r * cols + j] = gpu_store<X>(0);
        if (rows[r] < 0) return;
        const size_t first = (size_t)rows[r] * cols;
        const float weight = weights[r];
        for (size_t i = first + gpu_thread(); i < first + cols; i += gpu_threads())
          y[i] = gpu_store<X>(kedge_silu(gpu_load(gate[i])) * gpu_load(up[i]) * weight);
      });
}

GPU_OP(swiglu_gated_grad) {
  const X *gate = gpu_in<X>(s, 0), *up = gpu_in<X>(s, 1), *dy = gpu_in<X>(s, 5);
  const float *weights = gpu_in<float>(s, 2);
  const int32_t *rows = gpu_in<int32_t>(s, 3), *valid = gpu_in<int32_t>(s, 4) + a->experts;
  X *dgate = gpu_out<X>(s, 0), *dup = gpu_out<X>(s, 1);
  float *dweights = gpu_out<float>(s, 2);
  const size_t cols = a->cols;
  gpu_rows(
      s, a->rows, GPU_LAMBDA(uint32_t r) {
        if (r >= (uint32_t)valid[0])
          for (size_t j = gpu_thread(); j < cols; j += gpu_threads())
            dgate[r * cols + j] = dup[r * cols + j] = gpu_store<X>(0);
        const size_t first = rows[r] < 0 ? 0 : (size_t)rows[r] * cols, end = rows[r] < 0 ? 0 : first + cols;
        const float weight = weights[r];
        float sum = 0;
        for (size_t i = first + gpu_thread(); i < end; i += gpu_threads()) {
          const float g = gpu_load(gate[i]), u = gpu_load(up[i]), d = gpu_load(dy[i]);
          sum += d * u * kedge_silu(g);
          dgate[i] = gpu_store<X>(d * weight * u * kedge_silu_slope(g));
          dup[i] = gpu_store<X>(d * weight * kedge_silu(g));
        }
        sum = gpu_block_fold<gpu_sum>(sum);
        if (gpu_thread() == 0) dweights[r] = sum;
      });
}
