/* SPDX-License-Identifier: Apache-2.0
 *
 * Dense and grouped products on graphics cards; the meaning is core/ops/matmul.c. Grouped products are
 * persistent: as many blocks as the card runs at once walk over all tiles of all experts, whose numbers of
 * rows they read on the card. blas.c has the vendor's dense products.
 */
#include "backends/gpu/blas.h"
#include "backends/gpu/groups.h"
#include "backends/gpu/product.h"
#include "backends/gpu/products.h"

typedef gpu_geometry<128, 128, 256, 3, false> square;
typedef gpu_geometry<128, 128, 256, 3, true, true> by_groups; /* the same, by groups of waves */
enum : uint32_t { STAGE = square::S * (square::M + square::N) * 64 };

/* Calls f with the geometry of products of X here. */
template <class X, class F> static void by_geometry(const gpu_step *s, const F &f) {
#if GPU_HAS_GROUPS
  if constexpr (sizeof(X) == 2) {
    if (s->groups) {
      f(by_groups());
      return;
    }
  }
#endif
  (void)s;
  f(square());
}

/* ---- Dense */

/* Tile t of a grid, in columns of 8 tiles of m, so that what runs at one time shares operands. */
GPU_DEVICE void place_tile(uint32_t t, uint32_t tiles_m, uint32_t tiles_n, uint32_t *m, uint32_t *n) {
  const uint32_t band = t / (8 * tiles_n), first = band * 8,
                 height = tiles_m - first < 8 ? tiles_m - first : 8;
  const uint32_t within = t - band * 8 * tiles_n;
  *m = (first + within % height) * square::M;
  *n = within / height * square::N;
}

template <class G, class X, bool A_K, bool B_K>
GPU_KERNEL GPU_BOUNDS(256) dense_kernel(gpu_operand<X> a, gpu_operand<X> b, gpu_w c, uint32_t m, uint32_t n,
                                        uint32_t k, bool accumulate) {
  GPU_SHARED_PANELS(stage, STAGE);
  float sums[G::SUMS];
  uint32_t m0, n0;
  place_tile(gpu_block(), (m + square::M - 1) / square::M, (n + square::N - 1) / square::N, &m0, &n0);
  gpu_clear<G>(sums);
  gpu_product<G, X, A_K, B_K>(sums, a, m0, b, n0, k, stage);
  gpu_each_sum<G>(sums, [=](uint32_t row, uint32_t col, float &sum) {
    const size_t i = (size_t)(m0 + row) * n + n0 + col;
    if (m0 + row < m && n0 + col < n) gpu_store_w(c, i, accumulate ? gpu_load_w(c, i) + sum : sum);
  });
}

template <class X>
static gpu_operand<X> operand_of(const void *base, size_t pitch, uint32_t lines, uint32_t width) {
  gpu_operand<X> o;
  o.base = (const X *)base;
  o.pitch = pitch;
  o.slots = NULL;
  o.topk = 1;
  o.lines = lines;
  o.width = width;
  return o;
}

static bool by_library(const gpu_step *s, const gpu_dense &p, bool bf16) {
  gpu_blas_call c;
  c.a = p.a;
  c.b = p.b;
  c.c = p.c.data;
  c.pitch_a = p.pitch_a;
  c.pitch_b = p.pitch_b;
  c.a_along_k = p.a_along_k;
  c.b_along_k = p.b_along_k;
  c.accumulate = p.accumulate;
  c.bf16 = bf16;
  c.c_bf16 = p.c.bf16;
  c.m = p.m;
  c.n = p.n;
  c.k = p.k;
  return s->blas && gpu__blas_multiply(s, &c);
}

template <class G, class X>
static void launch_dense(const gpu_step *s, const gpu_dense &p, uint32_t blocks, const gpu_operand<X> &a,
                         const gpu_operand<X> &b) {
  if (p.a_along_k && p.b_along_k)
    GPU_LAUNCH((dense_kernel<G, X, true, true>), blocks, G::T, s, a, b, p.c, p.m, p.n, p.k, p.accumulate);
  else if (p.a_along_k)
    GPU_LAUNCH((dense_kernel<G, X, true, false>), blocks, G::T, s, a, b, p.c, p.m, p.n, p.k, p.accumulate);
  else if (p.b_along_k)
    GPU_LAUNCH((dense_kernel<G, X, false, true>), blocks, G::T, s, a, b, p.c, p.m, p.n, p.k, p.accumulate);
  else
    GPU_LAUNCH((dense_kernel<G, X, false, false>), blocks, G::T, s, a, b, p.c, p.m, p.n, p.k, p.accumulate);
}

template <class X> void gpu_dense_product(const gpu_step *s, const gpu_dense &p) {
  const uint32_t blocks = gpu_groups(p.m, square::M) * gpu_groups(p.n, square::N);
  const gpu_operand<X> a = operand_of<X>(p.a, p.pitch_a, p.a_along_k ? p.k : p.m, p.a_along_k ? p.m : p.k),
                       b = operand_of<X>(p.b, p.pitch_b, p.b_along_k ? p.k : p.n, p.b_along_k ? p.n : p.k);
  if (!blocks || by_library(s, p, sizeof(X) == 2)) return;
  by_geometry<X>(s, [&](auto g) { launch_dense<decltype(g), X>(s, p, blocks, a, b); });
}
template void gpu_dense_product<float>(const gpu_step *s, const gpu_dense &p);
template void gpu_dense_product<gpu_bf16>(const gpu_step *s, const gpu_dense &p);

void kedge_gpu_groups_try(const gpu_step *s, const void *a, const void *b, float *c, uint32_t layout) {
  gpu_dense p;
  p.a = a;
  p.b = b;
  p.pitch_a = p.pitch_b = GPU_TRY_PITCH;
  p.a_along_k = layout & 1;
  p.b_along_k = layout & 2;
  p.accumulate = false;
  p.m = GPU_TRY_M;
  p.n = GPU_TRY_N;
  p.k = GPU_TRY_K;
  p.c.data = c;
  p.c.bf16 = false;
  gpu_dense_product<gpu_bf16>(s, p);
}

GPU_OP(matmul) {
  gpu_dense p;
  p.a = gpu_in<X>(s, 0);
  p.b = gpu_in<X>(s, 1);
  p.pitch_a = gpu_pitch(s, 0);
  p.pitch_b = gpu_pitch(s, 1);
  p.a_along_k = a->trans_a;
  p.b_along_k = !a->trans_b;
  p.accumulate = false;
  p.m = a->m;
  p.n = a->n;
  p.k = a->k;
  p.c = gpu_as_w(&s->call->out[0]);
  gpu_dense_product<X>(s, p);
}

/* ---- Grouped */

/* Blocks that a card runs at once: two a multiprocessor, by their shared memory and registers. */
static uint32_t persistent(const gpu_step *s) {
  return s->processors * 2;
}

template <class G, class X, bool B_K>
GPU_KERNEL GPU_BOUNDS(256) grouped_kernel(gpu_operand<X> x, const X *weights, const uint64_t *parts,
                                          const int32_t *offsets, kedge_args_grouped_matmul p, X *y) {
  GPU_SHARED_PANELS(stage, STAGE);
  const uint32_t tiles_n = (p.n + square::N - 1) / square::N, valid = (uint32_t)offsets[p.experts];
  uint32_t expert = 0, before = 0; /* before: tiles of the experts up to it */
  for (uint32_t t = gpu_block();; t += gpu_blocks()) {
    uint32_t first = 0, count = 0, tiles_m = 0;
    for (; expert < p.experts; expert++) {
      first = gpu_uniform((uint32_t)offsets[expert]);
      count = gpu_uniform((uint32_t)offsets[expert + 1]) - first;
      tiles_m = (count + square::M - 1) / square::M;
      if (t - before < tiles_m * tiles_n) break;
      before += tiles_m * tiles_n;
    }
    if (expert == p.experts) break;
    const uint32_t m0 = (t - before) % tiles_m * square::M, n0 = (t - before) / tiles_m * square::N;
    gpu_operand<X> a = x;
    a.lines = count;
    if (p.gather)
      a.slots = x.slots + first;
    else
      a.base = x.base + first * x.pitch;
    const X *w = parts ? (const X *)(uintptr_t)parts[expert] : weights + (size_t)expert * p.n * p.k;
    const gpu_operand<X> b = B_K ? gpu_matrix(w, p.n, p.k, p.n) : gpu_matrix(w, p.k, p.n, p.k);
    float sums[G::SUMS];
    gpu_clear<G>(sums);
    gpu_product<G, X, false, B_K>(sums, a, m0, b, n0, p.k, stage);
    gpu_each_sum<G>(sums, [=](uint32_t row, uint32_t col, float &sum) {
      if (m0 + row < count && n0 + col < p.n)
        y[(size_t)(first + m0 + row) * p.n + n0 + col] = gpu_store<X>(sum);
    });
  }
  const size_t end = (size_t)p.rows * p.n;
  for (size_t i = (size_t)valid * p.n + (size_t)gpu_block() * gpu_threads() + gpu_thread(); i < end;
       i += (size_t)gpu_blocks() * gpu_threads())
    y[i] = gpu_store<X>(0);
}

GPU_OP(grouped_matmul) {
  gpu_operand<X> x = operand_of<X>(gpu_in<X>(s, 0), gpu_pitch(s, 0), a->rows, a->k);
  x.topk = a->topk;
  if (a->gather) x.slots = gpu_in<int32_t>(s, 2);
  const X *w = gpu_in<X>(s, 1);
  const uint64_t *parts =
      s->call->in[1].parts ? (const uint64_t *)(uintptr_t)s->call->in[1].parts_address : NULL;
  const int32_t *offsets = gpu_in<int32_t>(s, 3);
  const kedge_args_grouped_matmul p = *a;
  X *y = gpu_out<X>(s, 0);
  by_geometry<X>(s, [&](auto g) {
    typedef decltype(g) G;
    if (p.trans_w)
      GPU_LAUNCH((grouped_kernel<G, X, false>), persistent(s), G::T, s, x, w, parts, offsets, p, y);
    else
      GPU_LAUNCH((grouped_kernel<G, X, true>), persistent(s), G::T, s, x, w, parts, offsets, p, y);
  });
}

/* dW_e [n, k]: the sum runs over the rows of e. An expert without rows gets zeros: a sum of nothing. */
template <class G, class X>
GPU_KERNEL GPU_BOUNDS(256) wgrad_kernel(gpu_operand<X> dy, gpu_operand<X> x, const int32_t *offsets,
                                        kedge_args_grouped_wgrad p, float *dw) {
  GPU_SHARED_PANELS(stage, STAGE);
  const uint32_t tiles_m = (p.n + square::M - 1) / square::M, tiles_n = (p.k + square::N - 1) / square::N;
  for (uint32_t t = gpu_block(); t < p.experts * tiles_m * tiles_n; t += gpu_blocks()) {
    const uint32_t expert = t / (tiles_m * tiles_n), within = t % (tiles_m * tiles_n);
    const uint32_t m0 = within % tiles_m * square::M, n0 = within / tiles_m * square::N;
    const uint32_t first = gpu_uniform((uint32_t)offsets[expert]),
                   count = gpu_uniform((uint32_t)offsets[expert + 1]) - first;
    gpu_operand<X> a = dy, b = x;
    a.lines = b.lines = count;
    if (p.gather_dy)
      a.slots = dy.slots + first;
    else
      a.base = dy.base + first * dy.pitch;
    if (p.gather_x)
      b.slots = x.slots + first;
    else
      b.base = x.base + first * x.pitch;
    float sums[G::SUMS];
    gpu_clear<G>(sums);
    gpu_product<G, X, true, true>(sums, a, m0, b, n0, count, stage);
    gpu_each_sum<G>(sums, [=](uint32_t row, uint32_t col, float &sum) {
      if (m0 + row < p.n && n0 + col < p.k) dw[((size_t)expert * p.n + m0 + row) * p.k + n0 + col] = sum;
    });
  }
}

GPU_OP(grouped_wgrad) {
  gpu_operand<X> dy = operand_of<X>(gpu_in<X>(s, 0), gpu_pitch(s, 0), a->rows, a->n),
                 x = operand_of<X>(gpu_in<X>(s, 1), gpu_pitch(s, 1), a->rows, a->k);
  dy.topk = x.topk = a->topk;
  if (a->gather_dy) dy.slots = gpu_in<int32_t>(s, 2);
  if (a->gather_x) x.slots = gpu_in<int32_t>(s, 2);
  const kedge_args_grouped_wgrad p = *a;
  const int32_t *offsets = gpu_in<int32_t>(s, 3);
  float *dw = gpu_out<float>(s, 0);
  by_geometry<X>(s, [&](auto g) {
    GPU_LAUNCH((wgrad_kernel<decltype(g), X>), persistent(s), square::T, s, dy, x, offsets, p, dw);
  });
}
