/* SPDX-License-Identifier: Apache-2.0
 * Ops on rows on graphics cards; the meaning is core/ops/rows.c. Tensors have fewer than 2^31 elements, so
 * that elements are told apart by 32-bit division; addresses are computed in 64 bits. */
#include "backends/gpu/kernel.h"

GPU_OP(gather_rows) {
  const X *x = gpu_in<X>(s, 0);
  const int32_t *slots = gpu_in<int32_t>(s, 1), *valid = gpu_in<int32_t>(s, 2) + a->experts;
  X *y = gpu_out<X>(s, 0);
  const uint32_t cols = a->cols, topk = a->topk;
  const size_t pitch = gpu_pitch(s, 0);
  gpu_each(
      s, (uint64_t)a->rows * cols, GPU_LAMBDA(uint64_t i) {
        const uint32_t r = (uint32_t)i / cols, j = (uint32_t)i % cols;
        y[i] = r < (uint32_t)valid[0] ? x[(uint32_t)slots[r] / topk * pitch + j] : gpu_store<X>(0);
      });
}

GPU_OP(combine_rows) {
  const X *x = gpu_in<X>(s, 0);
  const int32_t *rows = gpu_in<int32_t>(s, 1);
  X *y = gpu_out<X>(s, 0);
  const uint32_t cols = a->cols, topk = a->topk;
  gpu_each(
      s, (uint64_t)a->tokens * cols, GPU_LAMBDA(uint64_t i) {
        const uint32_t t = (uint32_t)i / cols, j = (uint32_t)i % cols;
        float sum = 0;
        for (size_t k = (size_t)t * topk; k < ((size_t)t + 1) * topk; k++)
          if (rows[k] >= 0) sum += gpu_load(x[(size_t)rows[k] * cols + j]);
        y[i] = gpu_store<X>(sum);
      });
}

GPU_OP(embed) {
  const X *w = gpu_in<X>(s, 0);
  const int32_t *ids = gpu_in<int32_t>(s, 1);
  X *y = gpu_out<X>(s, 0);
  const uint32_t cols = a->cols;
  gpu_each(
      s, (uint64_t)a->tokens * cols,
      GPU_LAMBDA(uint64_t i) { y[i] = w[(size_t)ids[(uint32_t)i / cols] * cols + (uint32_t)i % cols]; });
}

/* Whether a token before t has this id; all threads of the block come. */
GPU_DEVICE bool seen_before(const int32_t *ids, uint32_t t, int32_t id) {
  uint32_t found = 0;
  for (uint32_t i = gpu_thread(); i < t; i += gpu_threads())
    if (ids[i] == id) found = 1;
  return gpu_block_fold<gpu_max>(found) > 0;
}

/* The block of the first token with an id adds up all of them, in order. */
template <class X>
GPU_KERNEL embed_grad_kernel(const int32_t *ids, const X *dy, float *dw, uint32_t tokens, uint32_t cols) {
  GPU_SHARED(uint32_t, match, GPU_THREADS);
  const uint32_t t = gpu_block();
  const int32_t id = ids[t];
  if (seen_before(ids, t, id)) return;
  float *row = dw + (size_t)id * cols;
  for (uint32_t first = t; first < tokens; first += gpu_threads()) {
    const uint32_t own = first + gpu_thread();
    const bool same = own < tokens && ids[own] == id;
    const bool any = gpu_block_fold<gpu_max>(same ? 1u : 0u) > 0;
    if (!any) continue;
    match[gpu_thread()] = same;
    GPU_BARRIER();
    for (uint32_t i = 0; i < gpu_threads(); i++)
      for (uint32_t j = gpu_thread(); match[i] && j < cols; j += gpu_threads())
        row[j] += gpu_load(dy[(size_t)(first + i) * cols + j]);
  }
}

GPU_OP(embed_grad) {
  float *dw = gpu_out<float>(s, 0);
  gpu_each(
      s, (uint64_t)a->vocab * a->cols, GPU_LAMBDA(uint64_t i) { dw[i] = 0; });
  if (a->tokens)
    GPU_LAUNCH(embed_grad_kernel<X>, a->tokens, GPU_THREADS, s, gpu_in<int32_t>(s, 0), gpu_in<X>(s, 1), dw,
               a->tokens, a->cols);
}

GPU_OP(scatter_rows) {
  X *dst = gpu_updated<X>(s, 0);
  const X *x = gpu_in<X>(s, 1);
  const int32_t *index = gpu_in<int32_t>(s, 2);
  const uint32_t cols = a->cols;
  const size_t pitch = gpu_pitch(s, 1);
  gpu_each(
      s, (uint64_t)a->rows * cols, GPU_LAMBDA(uint64_t i) {
        const uint32_t t = (uint32_t)i / cols, j = (uint32_t)i % cols;
        if (index[t] >= 0) dst[(size_t)index[t] * cols + j] = x[t * pitch + j];
      });
}

GPU_OP(slice) {
  const X *x = gpu_in<X>(s, 0);
  X *y = gpu_out<X>(s, 0);
  const uint32_t cols = a->cols, offset = a->offset;
  const size_t pitch = gpu_pitch(s, 0);
  gpu_each(
      s, (uint64_t)a->rows * cols,
      GPU_LAMBDA(uint64_t i) { y[i] = x[(uint32_t)i / cols * pitch + offset + (uint32_t)i % cols]; });
}

GPU_OP(place) {
  const X *x = gpu_in<X>(s, 0);
  X *y = gpu_out<X>(s, 0);
  const uint32_t cols = a->cols, offset = a->offset, total = a->total;
  const size_t pitch = gpu_pitch(s, 0);
  gpu_each(
      s, (uint64_t)a->rows * total, GPU_LAMBDA(uint64_t i) {
        const uint32_t r = (uint32_t)i / total, j = (uint32_t)i % total;
        y[i] = j >= offset && j - offset < cols ? x[r * pitch + j - offset] : gpu_store<X>(0);
      });
}

GPU_OP(concat) {
  const X *x = gpu_in<X>(s, 0), *z = gpu_in<X>(s, 1);
  X *y = gpu_out<X>(s, 0);
  const uint32_t left = a->cols_a, wide = a->cols_a + a->cols_b;
  const size_t pitch_x = gpu_pitch(s, 0), pitch_z = gpu_pitch(s, 1);
  gpu_each(
      s, (uint64_t)a->rows * wide, GPU_LAMBDA(uint64_t i) {
        const uint32_t r = (uint32_t)i / wide, j = (uint32_t)i % wide;
        y[i] = j < left ? x[r * pitch_x + j] : z[r * pitch_z + j - left];
      });
}

GPU_OP_PLAIN(row_bias) {
  const float *x = gpu_in<float>(s, 0), *table = gpu_in<float>(s, 1);
  const int32_t *spans = gpu_in<int32_t>(s, 2);
  float *y = gpu_out<float>(s, 0);
  const uint32_t experts = a->experts;
  const float factor = a->factor;
  gpu_each(
      s, (uint64_t)a->tokens * experts, GPU_LAMBDA(uint64_t i) {
        const int32_t span = spans[(uint32_t)i / experts];
        y[i] = span < 0 ? x[i] : x[i] + factor * table[(size_t)span * experts + (uint32_t)i % experts];
      });
}

/* Long sums: chunks in f32, the chunks in double, so that 2^31 elements lose no digits. */
enum { CHUNK = 16384 };

GPU_KERNEL sum_chunks(gpu_w x, uint64_t n, bool squares, double *parts) {
  const uint64_t first = (uint64_t)gpu_block() * CHUNK, end = first + CHUNK < n ? first + CHUNK : n;
  float sum = 0;
  for (uint64_t i = first + gpu_thread(); i < end; i += gpu_threads()) {
    const float v = gpu_load_w(x, i);
    sum += squares ? v * v : v;
  }
  sum = gpu_block_fold<gpu_sum>(sum);
  if (gpu_thread() == 0) parts[gpu_block()] = sum;
}

GPU_KERNEL sum_parts(const double *parts, uint32_t count, float *y) {
  GPU_SHARED(double, own, GPU_THREADS);
  double sum = 0;
  for (uint32_t i = gpu_thread(); i < count; i += gpu_threads()) sum += parts[i];
  own[gpu_thread()] = sum;
  GPU_BARRIER();
  if (gpu_thread()) return;
  sum = 0;
  for (uint32_t i = 0; i < gpu_threads(); i++) sum += own[i];
  y[0] = (float)sum;
}

static void sum_all(const gpu_step *s, uint64_t n, bool squares) {
  const uint32_t chunks = gpu_groups(n, CHUNK);
  double *parts = (double *)s->call->scratch;
  const gpu_w x = gpu_as_w(&s->call->in[0]);
  if (chunks) GPU_LAUNCH(sum_chunks, chunks, GPU_THREADS, s, x, n, squares, parts);
  GPU_LAUNCH(sum_parts, 1, GPU_THREADS, s, parts, chunks, gpu_out<float>(s, 0));
}

GPU_SCRATCH(sum) {
  return gpu_groups(((const kedge_args_sum *)s->call->args)->n, CHUNK) * sizeof(double);
}
GPU_OP_PLAIN(sum) {
  sum_all(s, a->n, false);
}
GPU_SCRATCH(sum_squares) {
  return gpu_groups(((const kedge_args_sum_squares *)s->call->args)->n, CHUNK) * sizeof(double);
}
GPU_OP_PLAIN(sum_squares) {
  sum_all(s, a->n, true);
}
