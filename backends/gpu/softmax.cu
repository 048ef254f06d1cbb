/* SPDX-License-Identifier: Apache-2.0
 *
 * Head and loss in one on graphics cards; the meaning is core/ops/softmax.c. Logits exist a tile at a time:
 * forward, blocks share the vocabulary out and keep a running maximum and sum a row, which a second kernel
 * puts together; backward, the gradient of the logits of a chunk of tokens lies in scratch, and two dense
 * products take it to the hidden rows and the weight.
 */
#include "backends/gpu/product.h"
#include "backends/gpu/products.h"

typedef gpu_geometry<128, 128, 256, 3, false> square;
enum : uint32_t { STAGE = square::S * (square::M + square::N) * 64, WAVES_N = 2, MOST_ROWS = 16 };

struct head {
  uint32_t tokens, dim, vocab;
};

/* ---- Forward */

struct running {
  float max, sum; /* the sum counts relative to the maximum */
};

GPU_DEVICE running merge(const running &a, const running &b) {
  running m;
  m.max = gpu_max::of(a.max, b.max);
  m.sum = m.max == -gpu_infinity() ? 0 : a.sum * expf(a.max - m.max) + b.sum * expf(b.max - m.max);
  return m;
}

/* parts [splits * WAVES_N, tokens], chosen [tokens]. A block has the tiles of vocabulary of one split. */
template <class X>
GPU_KERNEL GPU_BOUNDS(256) head_kernel(const X *h, const X *w, const int32_t *labels, head p, uint32_t splits,
                                       running *parts, float *chosen) {
  GPU_SHARED(unsigned char, stage, STAGE);
  const uint32_t tiles_m = (p.tokens + square::M - 1) / square::M,
                 tiles_n = (p.vocab + square::N - 1) / square::N;
  const uint32_t m0 = gpu_block() % tiles_m * square::M, split = gpu_block() / tiles_m;
  const uint32_t each = (tiles_n + splits - 1) / splits,
                 end = (split + 1) * each < tiles_n ? (split + 1) * each : tiles_n;
  const gpu_operand<X> a = gpu_matrix(h, p.dim, p.tokens, p.dim), b = gpu_matrix(w, p.dim, p.vocab, p.dim);
  running own[MOST_ROWS];
  GPU_UNROLL
  for (uint32_t i = 0; i < MOST_ROWS; i++) {
    own[i].max = -gpu_infinity();
    own[i].sum = 0;
  }
  for (uint32_t tile = split * each; tile < end; tile++) {
    const uint32_t n0 = tile * square::N;
    float sums[square::SUMS];
    gpu_clear<square>(sums);
    gpu_product<square, X, false, false>(sums, a, m0, b, n0, p.dim, stage);
    GPU_UNROLL
    for (uint32_t i = 0; i < square::tiles_m(); i++) GPU_UNROLL
    for (uint32_t r = 0; r < gpu_tile_rows(); r++) {
      running &row = own[i * gpu_tile_rows() + r];
      const uint32_t t = m0 + square::first_m() + i * 16 + gpu_tile_row(r);
      const int32_t label = t < p.tokens ? labels[t] : -1;
      float max = row.max;
      GPU_UNROLL
      for (uint32_t j = 0; j < square::tiles_n(); j++) GPU_UNROLL
      for (uint32_t c = 0; c < gpu_tile_cols(); c++) {
        const uint32_t v = n0 + square::first_n() + j * 16 + gpu_tile_col(c);
        const float z = sums[(i * square::tiles_n() + j) * gpu_tile_sums() + gpu_tile_sum(r, c)];
        if (v < p.vocab) max = gpu_max::of(max, z);
        if (label >= 0 && v == (uint32_t)label) chosen[t] = z;
      }
      float sum = row.max == -gpu_infinity() ? 0 : row.sum * expf(row.max - max);
      GPU_UNROLL
      for (uint32_t j = 0; j < square::tiles_n(); j++) GPU_UNROLL
      for (uint32_t c = 0; c < gpu_tile_cols(); c++) {
        const uint32_t v = n0 + square::first_n() + j * 16 + gpu_tile_col(c);
        const float z = sums[(i * square::tiles_n() + j) * gpu_tile_sums() + gpu_tile_sum(r, c)];
        if (v < p.vocab) sum += expf(z - max);
      }
      row.max = max;
      row.sum = sum;
    }
  }
  GPU_UNROLL
  for (uint32_t i = 0; i < square::tiles_m(); i++) GPU_UNROLL
  for (uint32_t r = 0; r < gpu_tile_rows(); r++) {
    running row = own[i * gpu_tile_rows() + r];
    for (uint32_t mask = 1; mask < gpu_tile_row_lanes(); mask *= 2) {
      running other;
      other.max = gpu_shuffle_xor(row.max, mask);
      other.sum = gpu_shuffle_xor(row.sum, mask);
      row = merge(row, other);
    }
    const uint32_t t = m0 + square::first_m() + i * 16 + gpu_tile_row(r);
    if (t < p.tokens && gpu_lane() % gpu_tile_row_lanes() == 0)
      parts[(size_t)(split * WAVES_N + square::first_n() / square::wave_n()) * p.tokens + t] = row;
  }
}

/* By shape alone, so that the order of the sum is the same on every card: some 256 blocks in all. */
static uint32_t splits_of(uint32_t tokens, uint32_t vocab) {
  const uint32_t tiles_m = gpu_groups(tokens, square::M), tiles_n = gpu_groups(vocab, square::N);
  const uint32_t wanted = gpu_groups(256, tiles_m ? tiles_m : 1);
  return wanted < 1 ? 1 : wanted > tiles_n ? tiles_n : wanted;
}

GPU_SCRATCH(head_loss) {
  const kedge_args_head_loss *a = (const kedge_args_head_loss *)s->call->args;
  const uint64_t parts = (uint64_t)splits_of(a->tokens, a->vocab) * WAVES_N * sizeof(running);
  return (parts + sizeof(float)) * a->tokens;
}

GPU_OP(head_loss) {
  head p;
  p.tokens = a->tokens;
  p.dim = a->dim;
  p.vocab = a->vocab;
  const uint32_t splits = splits_of(a->tokens, a->vocab), tokens = a->tokens;
  const int32_t *labels = gpu_in<int32_t>(s, 2);
  running *parts = (running *)s->call->scratch;
  float *chosen = (float *)(parts + (size_t)splits * WAVES_N * tokens), *nll = gpu_out<float>(s, 0),
        *lse = gpu_out<float>(s, 1);
  if (!tokens) return;
  GPU_LAUNCH((head_kernel<X>), gpu_groups(tokens, square::M) * splits, square::T, s, gpu_in<X>(s, 0),
             gpu_in<X>(s, 1), labels, p, splits, parts, chosen);
  gpu_each(
      s, tokens, GPU_LAMBDA(uint64_t t) {
        running all = parts[t];
        for (uint32_t i = 1; i < splits * WAVES_N; i++) all = merge(all, parts[(size_t)i * tokens + t]);
        const float total = labels[t] < 0 ? 0 : all.max + logf(all.sum);
        lse[t] = total;
        nll[t] = labels[t] < 0 ? 0 : total - chosen[t];
      });
}

/* ---- Backward */

/* g [tokens, vocab]: dL/dlogit of a chunk of tokens. */
template <class X>
GPU_KERNEL GPU_BOUNDS(256) logit_gradients(const X *h, const X *w, const int32_t *labels, const float *lse,
                                           const float *dnll, head p, X *g) {
  GPU_SHARED(unsigned char, stage, STAGE);
  const uint32_t tiles_m = (p.tokens + square::M - 1) / square::M;
  const uint32_t m0 = gpu_block() % tiles_m * square::M, n0 = gpu_block() / tiles_m * square::N;
  const gpu_operand<X> a = gpu_matrix(h, p.dim, p.tokens, p.dim), b = gpu_matrix(w, p.dim, p.vocab, p.dim);
  float sums[square::SUMS];
  gpu_clear<square>(sums);
  gpu_product<square, X, false, false>(sums, a, m0, b, n0, p.dim, stage);
  gpu_each_sum<square>(sums, [=](uint32_t row, uint32_t col, float &z) {
    const uint32_t t = m0 + row, v = n0 + col;
    if (t >= p.tokens || v >= p.vocab) return;
    const float d = labels[t] < 0 ? 0 : dnll[t] * (expf(z - lse[t]) - (v == (uint32_t)labels[t] ? 1 : 0));
    g[(size_t)t * p.vocab + v] = gpu_store<X>(d);
  });
}

/* Tokens of a chunk: as many as keep the gradients of their logits within 2^26 numbers on a card. */
static uint32_t chunk_tokens(const kedge_args_head_loss_grad *a) {
#if defined(KEDGE_GPU_SIM)
  const uint64_t most = 1 << 14;
#else
  const uint64_t most = 1 << 26;
#endif
  const uint64_t tokens = most / (a->vocab ? a->vocab : 1) / square::M * square::M;
  return tokens < square::M ? square::M : tokens > a->tokens ? a->tokens : (uint32_t)tokens;
}

GPU_SCRATCH(head_loss_grad) {
  const kedge_args_head_loss_grad *a = (const kedge_args_head_loss_grad *)s->call->args;
  const uint32_t tokens = chunk_tokens(a) < a->tokens ? chunk_tokens(a) : a->tokens;
  return (uint64_t)tokens * a->vocab * sizeof(float);
}

GPU_OP(head_loss_grad) {
  const X *h = gpu_in<X>(s, 0), *w = gpu_in<X>(s, 1);
  const int32_t *labels = gpu_in<int32_t>(s, 2);
  const float *lse = gpu_in<float>(s, 3), *dnll = gpu_in<float>(s, 4);
  X *dh = gpu_out<X>(s, 0), *g = (X *)s->call->scratch;
  const uint32_t each = chunk_tokens(a);
  for (uint32_t first = 0; first < a->tokens; first += each) {
    head p;
    p.tokens = a->tokens - first < each ? a->tokens - first : each;
    p.dim = a->dim;
    p.vocab = a->vocab;
    const X *rows = h + (size_t)first * a->dim;
    GPU_LAUNCH((logit_gradients<X>), gpu_groups(p.tokens, square::M) * gpu_groups(p.vocab, square::N),
               square::T, s, rows, w, labels + first, lse + first, dnll + first, p, g);
    gpu_dense d;
    d.a = g;
    d.pitch_a = a->vocab;
    d.b = w;
    d.pitch_b = d.n = a->dim;
    d.a_along_k = d.accumulate = false;
    d.b_along_k = true;
    d.m = p.tokens;
    d.k = a->vocab;
    d.c.data = dh + (size_t)first * a->dim;
    d.c.bf16 = sizeof(X) == 2;
    gpu_dense_product<X>(s, d);
    d.b = rows;
    d.a_along_k = true;
    d.accumulate = first > 0;
    d.m = a->vocab;
    d.k = p.tokens;
    d.c = gpu_as_w(&s->call->out[1]);
    gpu_dense_product<X>(s, d);
  }
  const gpu_w dw = gpu_as_w(&s->call->out[1]);
  if (!a->tokens)
    gpu_each(
        s, (uint64_t)a->vocab * a->dim, GPU_LAMBDA(uint64_t i) { gpu_store_w(dw, i, 0); });
}
