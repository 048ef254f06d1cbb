/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of attention on graphics cards; the meaning is core/ops/attention.c, attention.cu has the
 * forward. Probabilities are made again, 64 queries by 64 keys at a time. Three kernels of one shape: for
 * queries a block walks over its keys; for keys, and for values, over the later queries of all heads that
 * share them.
 */
#include "backends/gpu/attention.h"

template <class X> struct grad_tensors {
  const X *q, *k, *v, *o, *dy;
  size_t pitch_q, pitch_k, pitch_v, pitch_dy;
  const float *lse;
  const int32_t *segments;
  X *dq, *dk, *dv;
  float *delta; /* [T, H]: <dy, o> of each head */
};

enum grad_mode { OF_QUERIES, OF_KEYS, OF_VALUES };

/* The block's weights of 64 queries and keys: probabilities, or gradients of scores. */
template <class X, grad_mode MODE>
GPU_DEVICE void make_weights(const grad_tensors<X> &x, const kedge_args_attention_grad &p, uint32_t q0,
                             uint32_t j0, uint32_t h, unsigned char *stage, unsigned char *weights) {
  const uint32_t kv = h / (p.heads / p.kv_heads);
  float scores[gpu_scores::SUMS], slopes[gpu_scores::SUMS], lse[GPU_ATTENTION_ROWS],
      delta[GPU_ATTENTION_ROWS];
  int32_t first[GPU_ATTENTION_ROWS];
  GPU_UNROLL
  for (uint32_t i = 0; i < gpu_score_rows(); i++) {
    const uint32_t t = q0 + gpu_score_row(i);
    first[i] = t < p.tokens && x.segments[t] >= 0 ? x.segments[t] : 0x7fffffff;
    lse[i] = t < p.tokens ? x.lse[(size_t)t * p.heads + h] : 0;
    delta[i] = t < p.tokens ? x.delta[(size_t)t * p.heads + h] : 0;
  }
  gpu_clear<gpu_scores>(scores);
  gpu_product<gpu_scores, X, false, false>(scores, gpu_head_of(x.q, x.pitch_q, h, p.dim_qk, p.tokens), q0,
                                           gpu_head_of(x.k, x.pitch_k, kv, p.dim_qk, p.tokens), j0, p.dim_qk,
                                           stage);
  if (MODE != OF_VALUES) {
    gpu_clear<gpu_scores>(slopes);
    gpu_product<gpu_scores, X, false, false>(slopes, gpu_head_of(x.dy, x.pitch_dy, h, p.dim_v, p.tokens), q0,
                                             gpu_head_of(x.v, x.pitch_v, kv, p.dim_v, p.tokens), j0, p.dim_v,
                                             stage);
  }
  gpu_each_score([&](uint32_t row, uint32_t col, uint32_t own, uint32_t at) {
    const bool seen = (int32_t)(j0 + col) >= first[own] && j0 + col <= q0 + row;
    float weight = seen ? expf(p.scale * scores[at] - lse[own]) : 0;
    if (MODE != OF_VALUES) weight = seen ? weight * (slopes[at] - delta[own]) * p.scale : 0;
    gpu_weights<X>::template put<MODE != OF_QUERIES>(weights, row, col, weight);
  });
  GPU_BARRIER();
}

/* out [64, 128] to columns d0.. of rows first.. of a head of y. */
template <class X>
GPU_DEVICE void store_gradient(float *out, X *y, uint32_t first, uint32_t rows, uint32_t head, uint32_t heads,
                               uint32_t d0, uint32_t dim) {
  gpu_each_sum<gpu_heads>(out, [=](uint32_t row, uint32_t col, float &sum) {
    if (first + row < rows && d0 + col < dim)
      y[((size_t)(first + row) * heads + head) * dim + d0 + col] = gpu_store<X>(sum);
  });
}

template <class X>
GPU_DEVICE void query_gradient(const grad_tensors<X> &x, const kedge_args_attention_grad &p, uint32_t block,
                               unsigned char *stage, unsigned char *weights) {
  const uint32_t q0 = block / p.heads * 64, h = block % p.heads, kv = h / (p.heads / p.kv_heads);
  const uint32_t end = q0 + 64 < p.tokens ? q0 + 64 : p.tokens;
  uint32_t first = end;
  for (uint32_t t = q0; t < end; t++)
    if (x.segments[t] >= 0 && (uint32_t)x.segments[t] < first) first = (uint32_t)x.segments[t];
  for (uint32_t d0 = 0; d0 < p.dim_qk; d0 += gpu_heads::N) {
    float out[gpu_heads::SUMS];
    gpu_clear<gpu_heads>(out);
    for (uint32_t j0 = first; j0 < end; j0 += 64) {
      make_weights<X, OF_QUERIES>(x, p, q0, j0, h, stage, weights);
      gpu_weights<X>::template times<false>(out, weights, gpu_head_of(x.k, x.pitch_k, kv, p.dim_qk, end), d0,
                                            j0, stage);
    }
    store_gradient(out, x.dq, q0, p.tokens, h, p.heads, d0, p.dim_qk);
  }
}

/* One behind the last query that sees a key before `end`: later ones begin their sequence behind it. */
template <class X>
GPU_DEVICE uint32_t last_query(const grad_tensors<X> &x, uint32_t tokens, uint32_t first, uint32_t end) {
  uint32_t last = first;
  for (uint32_t t = first + gpu_thread(); t < tokens; t += gpu_threads())
    if (x.segments[t] >= 0 && (uint32_t)x.segments[t] < end) last = t + 1;
  return gpu_block_fold<gpu_max>(last);
}

template <class X, grad_mode MODE>
GPU_DEVICE void key_gradient(const grad_tensors<X> &x, const kedge_args_attention_grad &p, uint32_t block,
                             unsigned char *stage, unsigned char *weights) {
  const uint32_t j0 = block / p.kv_heads * 64, kv = block % p.kv_heads, group = p.heads / p.kv_heads;
  const uint32_t dim = MODE == OF_KEYS ? p.dim_qk : p.dim_v, last = last_query(x, p.tokens, j0, j0 + 64);
  for (uint32_t d0 = 0; d0 < dim; d0 += gpu_heads::N) {
    float out[gpu_heads::SUMS];
    gpu_clear<gpu_heads>(out);
    for (uint32_t h = kv * group; h < (kv + 1) * group; h++)
      for (uint32_t q0 = j0; q0 < last; q0 += 64) {
        make_weights<X, MODE>(x, p, q0, j0, h, stage, weights);
        gpu_weights<X>::template times<true>(out, weights,
                                             MODE == OF_KEYS ? gpu_head_of(x.q, x.pitch_q, h, dim, last)
                                                             : gpu_head_of(x.dy, x.pitch_dy, h, dim, last),
                                             d0, q0, stage);
      }
    store_gradient(out, MODE == OF_KEYS ? x.dk : x.dv, j0, p.tokens, kv, p.kv_heads, d0, dim);
  }
}

template <class X, grad_mode MODE>
GPU_KERNEL GPU_BOUNDS(128) gradient_kernel(grad_tensors<X> x, kedge_args_attention_grad p) {
  GPU_SHARED(unsigned char, stage, GPU_ATTENTION_STAGE);
  GPU_SHARED(unsigned char, weights, GPU_ATTENTION_WEIGHTS);
  if constexpr (MODE == OF_QUERIES)
    query_gradient(x, p, gpu_block(), stage, weights);
  else
    key_gradient<X, MODE>(x, p, gpu_block(), stage, weights);
}

GPU_SCRATCH(attention_grad) {
  const kedge_args_attention_grad *a = (const kedge_args_attention_grad *)s->call->args;
  return (uint64_t)a->tokens * a->heads * sizeof(float);
}

GPU_OP(attention_grad) {
  grad_tensors<X> x;
  x.q = gpu_in<X>(s, 0);
  x.k = gpu_in<X>(s, 1);
  x.v = gpu_in<X>(s, 2);
  x.o = gpu_in<X>(s, 3);
  x.lse = gpu_in<float>(s, 4);
  x.dy = gpu_in<X>(s, 5);
  x.segments = gpu_in<int32_t>(s, 6);
  x.pitch_q = gpu_pitch(s, 0);
  x.pitch_k = gpu_pitch(s, 1);
  x.pitch_v = gpu_pitch(s, 2);
  x.pitch_dy = gpu_pitch(s, 5);
  x.dq = gpu_out<X>(s, 0);
  x.dk = gpu_out<X>(s, 1);
  x.dv = gpu_out<X>(s, 2);
  x.delta = (float *)s->call->scratch;
  const uint32_t heads = a->heads, dim = a->dim_v, blocks = gpu_groups(a->tokens, 64);
  if (!a->tokens) return;
  gpu_wave_rows(
      s, a->tokens * heads, GPU_LAMBDA(uint32_t i) {
        const X *o = x.o + (size_t)i * dim, *dy = x.dy + i / heads * x.pitch_dy + (size_t)(i % heads) * dim;
        float sum = 0;
        for (uint32_t d = gpu_lane(); d < dim; d += gpu_wave_width()) sum += gpu_load(o[d]) * gpu_load(dy[d]);
        sum = gpu_wave_fold<gpu_sum>(sum);
        if (gpu_lane() == 0) x.delta[i] = sum;
      });
  GPU_LAUNCH((gradient_kernel<X, OF_QUERIES>), blocks * heads, 128, s, x, *a);
  GPU_LAUNCH((gradient_kernel<X, OF_KEYS>), blocks * a->kv_heads, 128, s, x, *a);
  GPU_LAUNCH((gradient_kernel<X, OF_VALUES>), blocks * a->kv_heads, 128, s, x, *a);
}
