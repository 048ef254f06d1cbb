/* SPDX-License-Identifier: Apache-2.0
 * RMS norm on graphics cards; the meaning is core/ops/norm.c. A block a row; the weight's gradient in two
 * steps, over chunks of rows and then over the chunks. */
#include "backends/gpu/kernel.h"

GPU_OP(rms_norm) {
  const X *x = gpu_in<X>(s, 0), *weight = gpu_in<X>(s, 1);
  X *y = gpu_out<X>(s, 0);
  float *scales = gpu_out<float>(s, 1);
  const size_t cols = a->cols;
  const float eps = a->eps;
  gpu_rows(
      s, a->rows, GPU_LAMBDA(uint32_t r) {
        const X *row = x + r * cols;
        float sum = 0;
        for (size_t j = gpu_thread(); j < cols; j += gpu_threads())
          sum += gpu_load(row[j]) * gpu_load(row[j]);
        const float scale = 1 / sqrtf(gpu_block_fold<gpu_sum>(sum) / (float)cols + eps);
        if (gpu_thread() == 0) scales[r] = scale;
        for (size_t j = gpu_thread(); j < cols; j += gpu_threads())
          y[r * cols + j] = gpu_store<X>(gpu_load(weight[j]) * gpu_load(row[j]) * scale);
      });
}

enum : uint32_t { MOST_CHUNKS = 64, LEAST_ROWS = 16 };

static uint32_t chunk_rows(uint32_t rows) {
  const uint32_t each = gpu_groups(rows, MOST_CHUNKS);
  return each < LEAST_ROWS ? LEAST_ROWS : each;
}

GPU_SCRATCH(rms_norm_grad) {
  const kedge_args_rms_norm_grad *a = (const kedge_args_rms_norm_grad *)s->call->args;
  return (uint64_t)gpu_groups(a->rows, chunk_rows(a->rows)) * a->cols * sizeof(float);
}

GPU_OP(rms_norm_grad) {
  const X *x = gpu_in<X>(s, 0), *weight = gpu_in<X>(s, 1), *dy = gpu_in<X>(s, 3);
  const float *scales = gpu_in<float>(s, 2);
  X *dx = gpu_out<X>(s, 0);
  float *dw = gpu_out<float>(s, 1), *parts = (float *)s->call->scratch;
  const size_t cols = a->cols;
  const uint32_t rows = a->rows, each = chunk_rows(rows), chunks = gpu_groups(rows, each);
  gpu_rows(
      s, rows, GPU_LAMBDA(uint32_t r) {
        const size_t first = r * cols;
        float sum = 0;
        for (size_t j = gpu_thread(); j < cols; j += gpu_threads())
          sum += gpu_load(weight[j]) * gpu_load(dy[first + j]) * gpu_load(x[first + j]);
        const float scale = scales[r], pull = gpu_block_fold<gpu_sum>(sum) / (float)cols * scale * scale;
        for (size_t j = gpu_thread(); j < cols; j += gpu_threads())
          dx[first + j] = gpu_store<X>(
              scale * (gpu_load(weight[j]) * gpu_load(dy[first + j]) - gpu_load(x[first + j]) * pull));
      });
  gpu_each(
      s, (uint64_t)chunks * cols, GPU_LAMBDA(uint64_t i) {
        const size_t j = i % cols, begin = i / cols * each, end = begin + each < rows ? begin + each : rows;
        float sum = 0;
        for (size_t r = begin; r < end; r++)
          sum += gpu_load(dy[r * cols + j]) * gpu_load(x[r * cols + j]) * scales[r];
        parts[i] = sum;
      });
  gpu_each(
      s, cols, GPU_LAMBDA(uint64_t j) {
        float sum = 0;
        for (uint32_t c = 0; c < chunks; c++) sum += parts[c * cols + j];
        dw[j] = sum;
      });
}
