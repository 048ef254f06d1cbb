/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary positions and attention on graphics cards; the meaning is core/ops/attention.c, attention_grad.cu
 * has the backward. A block has 64 queries of a head and walks over their keys, 64 at a time, with a running
 * maximum and sum; columns of values beyond 128 are another walk.
 */
#include "backends/gpu/attention.h"

GPU_OP(rope) {
  const X *x = gpu_in<X>(s, 0);
  const float *inv_freq = gpu_in<float>(s, 1);
  const int32_t *positions = gpu_in<int32_t>(s, 2);
  X *y = gpu_out<X>(s, 0);
  const size_t pitch = gpu_pitch(s, 0);
  const uint32_t half = a->dim / 2, dim = a->dim, heads = a->heads, step = a->interleaved ? 1 : half;
  const float factor = a->factor, sign = a->inverse ? -1.0f : 1.0f;
  gpu_each(
      s, (uint64_t)a->tokens * heads * half, GPU_LAMBDA(uint64_t n) {
        const uint32_t i = (uint32_t)n % half, h = (uint32_t)n / half % heads, t = (uint32_t)n / half / heads;
        const float angle = (float)positions[t] * inv_freq[i], c = cosf(angle) * factor,
                    w = sign * sinf(angle) * factor;
        const uint32_t at = h * dim + (step == 1 ? 2 * i : i);
        const float first = gpu_load(x[t * pitch + at]), second = gpu_load(x[t * pitch + at + step]);
        X *to = y + (size_t)t * heads * dim + at;
        to[0] = gpu_store<X>(first * c - second * w);
        to[step] = gpu_store<X>(second * c + first * w);
      });
}

/* ---- Causal attention inside segments */

template <class X> struct attention_tensors {
  const X *q, *k, *v;
  size_t pitch_q, pitch_k, pitch_v;
  const int32_t *segments;
  X *o;
  float *lse;
};

struct row_state {
  float max, sum;
  int32_t first; /* key of the row's sequence; beyond all keys if it has none */
};

template <class X>
GPU_DEVICE void attend_span(const attention_tensors<X> &x, const kedge_args_attention &p, uint32_t q0,
                            uint32_t h, uint32_t d0, unsigned char *stage, unsigned char *weights) {
  const uint32_t end = q0 + 64 < p.tokens ? q0 + 64 : p.tokens, kv = h / (p.heads / p.kv_heads);
  const gpu_operand<X> queries = gpu_head_of(x.q, x.pitch_q, h, p.dim_qk, p.tokens),
                       keys = gpu_head_of(x.k, x.pitch_k, kv, p.dim_qk, end),
                       values = gpu_head_of(x.v, x.pitch_v, kv, p.dim_v, end);
  float out[gpu_heads::SUMS];
  row_state rows[GPU_ATTENTION_ROWS];
  uint32_t first = end;
  for (uint32_t t = q0; t < end; t++)
    if (x.segments[t] >= 0 && (uint32_t)x.segments[t] < first) first = (uint32_t)x.segments[t];
  GPU_UNROLL
  for (uint32_t i = 0; i < gpu_score_rows(); i++) {
    const uint32_t t = q0 + gpu_score_row(i);
    rows[i].max = -gpu_infinity();
    rows[i].sum = 0;
    rows[i].first = t < p.tokens && x.segments[t] >= 0 ? x.segments[t] : 0x7fffffff;
  }
  gpu_clear<gpu_heads>(out);
  for (uint32_t j0 = first; j0 < end; j0 += 64) {
    float sums[gpu_scores::SUMS], max[GPU_ATTENTION_ROWS], sum[GPU_ATTENTION_ROWS],
        shrink[GPU_ATTENTION_ROWS];
    gpu_clear<gpu_scores>(sums);
    gpu_product<gpu_scores, X, false, false>(sums, queries, q0, keys, j0, p.dim_qk, stage);
    GPU_UNROLL
    for (uint32_t i = 0; i < gpu_score_rows(); i++) max[i] = -gpu_infinity();
    gpu_each_score([&](uint32_t row, uint32_t col, uint32_t own, uint32_t at) {
      const bool seen = (int32_t)(j0 + col) >= rows[own].first && j0 + col <= q0 + row;
      sums[at] = seen ? sums[at] * p.scale : -gpu_infinity();
      max[own] = gpu_max::of(max[own], sums[at]);
    });
    GPU_UNROLL
    for (uint32_t i = 0; i < gpu_score_rows(); i++) {
      const float largest = gpu_max::of(rows[i].max, gpu_row_fold<gpu_max>(max[i]));
      shrink[i] = rows[i].max == -gpu_infinity() ? 0 : expf(rows[i].max - largest);
      rows[i].max = largest;
      sum[i] = 0;
    }
    gpu_each_score([&](uint32_t row, uint32_t col, uint32_t own, uint32_t at) {
      const float weight = sums[at] == -gpu_infinity() ? 0 : expf(sums[at] - rows[own].max);
      sum[own] += weight;
      gpu_weights<X>::template put<false>(weights, row, col, weight);
    });
    GPU_UNROLL
    for (uint32_t i = 0; i < gpu_score_rows(); i++)
      rows[i].sum = rows[i].sum * shrink[i] + gpu_row_fold<gpu_sum>(sum[i]);
    GPU_UNROLL
    for (uint32_t i = 0; i < gpu_heads::SUMS; i++) {
      const uint32_t per = gpu_heads::tiles_n() * gpu_tile_sums(), within = i % gpu_tile_sums();
      out[i] *= shrink[i / per * gpu_tile_rows() + (gpu_wave_width() == 32 ? within / 2 % 2 : within)];
    }
    GPU_BARRIER();
    gpu_weights<X>::template times<false>(out, weights, values, d0, j0, stage);
  }
  GPU_UNROLL
  for (uint32_t i = 0; i < gpu_heads::tiles_m(); i++) GPU_UNROLL
  for (uint32_t r = 0; r < gpu_tile_rows(); r++) {
    const row_state row = rows[i * gpu_tile_rows() + r];
    const uint32_t t = q0 + gpu_score_row(i * gpu_tile_rows() + r);
    const float scale = row.sum > 0 ? 1 / row.sum : 0;
    if (t < p.tokens && d0 == 0 && gpu_lane() % gpu_tile_row_lanes() == 0)
      x.lse[(size_t)t * p.heads + h] = row.sum > 0 ? row.max + logf(row.sum) : 0;
    GPU_UNROLL
    for (uint32_t j = 0; j < gpu_heads::tiles_n(); j++) GPU_UNROLL
    for (uint32_t c = 0; c < gpu_tile_cols(); c++) {
      const uint32_t d = d0 + j * 16 + gpu_tile_col(c);
      if (t < p.tokens && d < p.dim_v)
        x.o[((size_t)t * p.heads + h) * p.dim_v + d] =
            gpu_store<X>(scale * out[(i * gpu_heads::tiles_n() + j) * gpu_tile_sums() + gpu_tile_sum(r, c)]);
    }
  }
}

/* The last queries, which have the most keys, come first. */
template <class X>
GPU_KERNEL GPU_BOUNDS(128) attention_kernel(attention_tensors<X> x, kedge_args_attention p) {
  GPU_SHARED(unsigned char, stage, GPU_ATTENTION_STAGE);
  GPU_SHARED(unsigned char, weights, GPU_ATTENTION_WEIGHTS);
  const uint32_t blocks = (p.tokens + 63) / 64, q0 = (blocks - 1 - gpu_block() / p.heads) * 64;
  for (uint32_t d0 = 0; d0 < p.dim_v; d0 += gpu_heads::N)
    attend_span(x, p, q0, gpu_block() % p.heads, d0, stage, weights);
}

GPU_OP(attention) {
  attention_tensors<X> x;
  x.q = gpu_in<X>(s, 0);
  x.k = gpu_in<X>(s, 1);
  x.v = gpu_in<X>(s, 2);
  x.pitch_q = gpu_pitch(s, 0);
  x.pitch_k = gpu_pitch(s, 1);
  x.pitch_v = gpu_pitch(s, 2);
  x.segments = gpu_in<int32_t>(s, 3);
  x.o = gpu_out<X>(s, 0);
  x.lse = gpu_out<float>(s, 1);
  if (a->tokens) GPU_LAUNCH((attention_kernel<X>), gpu_groups(a->tokens, 64) * a->heads, 128, s, x, *a);
}

/* ---- One query over a range of a cache: a block a query and head. 128 keys at a time; a wave makes a key's
 * score, a thread has columns of values. */

enum : uint32_t { KEYS = 128, OWN = 4 };

template <class X> struct cached_tensors {
  const X *q, *k, *v;
  size_t pitch_q;
  const int32_t *base, *length;
  X *o;
};

template <class X>
GPU_DEVICE void attend_cached(const cached_tensors<X> &x, const kedge_args_attention_cached &p, uint32_t i,
                              uint32_t h, uint32_t d0, float *scores) {
  const uint32_t kv = h / (p.heads / p.kv_heads), first = (uint32_t)x.base[i], count = (uint32_t)x.length[i];
  const X *q = x.q + i * x.pitch_q + (size_t)h * p.dim_qk;
  float out[OWN] = {0, 0, 0, 0}, max = -gpu_infinity(), sum = 0;
  for (uint32_t j0 = 0; j0 < count; j0 += KEYS) {
    const uint32_t n = count - j0 < KEYS ? count - j0 : KEYS;
    GPU_BARRIER();
    for (uint32_t j = gpu_wave(); j < n; j += gpu_waves()) {
      const X *k = x.k + ((size_t)(first + j0 + j) * p.kv_heads + kv) * p.dim_qk;
      float dot = 0;
      for (uint32_t d = gpu_lane(); d < p.dim_qk; d += gpu_wave_width())
        dot += gpu_load(q[d]) * gpu_load(k[d]);
      dot = gpu_wave_fold<gpu_sum>(dot);
      if (gpu_lane() == 0) scores[j] = dot * p.scale;
    }
    GPU_BARRIER();
    float largest = max;
    for (uint32_t j = 0; j < n; j++) largest = gpu_max::of(largest, scores[j]);
    const float shrink = max == -gpu_infinity() ? 0 : expf(max - largest);
    max = largest;
    sum *= shrink;
    GPU_UNROLL
    for (uint32_t c = 0; c < OWN; c++) out[c] *= shrink;
    for (uint32_t j = 0; j < n; j++) {
      const float weight = expf(scores[j] - max);
      const X *v = x.v + ((size_t)(first + j0 + j) * p.kv_heads + kv) * p.dim_v + d0;
      sum += weight;
      GPU_UNROLL
      for (uint32_t c = 0; c < OWN; c++) {
        const uint32_t d = c * KEYS + gpu_thread();
        if (d0 + d < p.dim_v) out[c] += weight * gpu_load(v[d]);
      }
    }
  }
  GPU_UNROLL
  for (uint32_t c = 0; c < OWN; c++) {
    const uint32_t d = d0 + c * KEYS + gpu_thread();
    if (d < p.dim_v) x.o[((size_t)i * p.heads + h) * p.dim_v + d] = gpu_store<X>(sum > 0 ? out[c] / sum : 0);
  }
}

template <class X>
GPU_KERNEL GPU_BOUNDS(128) cached_kernel(cached_tensors<X> x, kedge_args_attention_cached p) {
  GPU_SHARED(float, scores, KEYS);
  for (uint32_t d0 = 0; d0 < p.dim_v; d0 += KEYS * OWN)
    attend_cached(x, p, gpu_block() / p.heads, gpu_block() % p.heads, d0, scores);
}

GPU_OP(attention_cached) {
  cached_tensors<X> x;
  x.q = gpu_in<X>(s, 0);
  x.k = gpu_in<X>(s, 1);
  x.v = gpu_in<X>(s, 2);
  x.pitch_q = gpu_pitch(s, 0);
  x.base = gpu_in<int32_t>(s, 3);
  x.length = gpu_in<int32_t>(s, 4);
  x.o = gpu_out<X>(s, 0);
  if (a->queries) GPU_LAUNCH((cached_kernel<X>), a->queries * a->heads, KEYS, s, x, *a);
}
