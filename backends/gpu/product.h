/* SPDX-License-Identifier: Apache-2.0
 *
 * Products by a block: sums of an M x N tile over any k, both operands streamed through shared memory in
 * panels of 64 bytes of k, several in flight. Rows may be gathered, widths and bases need no alignment
 * (chunks that have it are copied whole). Whose tiles they are is told by a gpu_geometry; what is done with
 * the sums by its user (matmul.cu, softmax.cu, attention.cu). tile.h has the unit of 16 x 16 x 16.
 */
#ifndef KEDGE_GPU_PRODUCT_H
#define KEDGE_GPU_PRODUCT_H

#include "backends/gpu/group.h"

/* A matrix in global memory: lines of `width` elements, `pitch` apart, gathered where slots is not NULL. */
template <class X> struct gpu_operand {
  const X *base;
  size_t pitch;
  const int32_t *slots;
  uint32_t topk, lines, width;
  GPU_MEMBER const X *line(uint32_t i) const {
    return base + (size_t)(slots ? (uint32_t)slots[i] / topk : i) * pitch;
  }
};
template <class X>
GPU_DEVICE gpu_operand<X> gpu_matrix(const X *base, size_t pitch, uint32_t lines, uint32_t width) {
  gpu_operand<X> o;
  o.base = base;
  o.pitch = pitch;
  o.slots = NULL;
  o.topk = 1;
  o.lines = lines;
  o.width = width;
  return o;
}

/* A block of T threads for M x N sums with S panels in flight. BY_ROWS: a wave has whole rows. BY_GROUPS:
 * products of bf16 are made by groups of waves (group.h), which have whole rows. */
template <uint32_t M_, uint32_t N_, uint32_t T_, uint32_t S_, bool BY_ROWS_, bool BY_GROUPS_ = false>
struct gpu_geometry {
  enum : uint32_t { M = M_, N = N_, T = T_, S = S_, SUMS = M_ * N_ / T_, PANEL = 64 * (M_ > N_ ? M_ : N_) };
  enum : bool { BY_GROUPS = BY_GROUPS_ };
  static GPU_MEMBER uint32_t wave_m() { return BY_ROWS_ ? M * gpu_wave_width() / T : gpu_wave_width(); }
  static GPU_MEMBER uint32_t wave_n() { return N / (T / gpu_wave_width() / (M / wave_m())); }
  static GPU_MEMBER uint32_t tiles_m() { return wave_m() / 16; }
  static GPU_MEMBER uint32_t tiles_n() { return wave_n() / 16; }
  static GPU_MEMBER uint32_t first_m() { return gpu_wave() % (M / wave_m()) * wave_m(); }
  static GPU_MEMBER uint32_t first_n() { return gpu_wave() / (M / wave_m()) * wave_n(); }
};

/* ---- Panels */

/* Up to a chunk of elements of a line, zeros past its end, without alignment. */
template <class X> GPU_DEVICE void gpu_copy_piece(unsigned char *to, const X *from, uint32_t count) {
  gpu_chunk chunk;
  chunk.word[0] = chunk.word[1] = chunk.word[2] = chunk.word[3] = 0;
  GPU_UNROLL
  for (uint32_t i = 0; i < 16 / sizeof(X); i++) {
    if (i >= count) continue;
    if (sizeof(X) == 4)
      chunk.word[i] = *(const uint32_t *)(const void *)(from + i);
    else
      chunk.word[i / 2] |= (uint32_t) * (const uint16_t *)(const void *)(from + i) << (i % 2 * 16);
  }
  *(gpu_chunk *)(void *)to = chunk;
}

/* The chunk of a panel that begins at `line` (or column of a line along k) and k. */
template <class X, bool ALONG_K, uint32_t EXTENT>
GPU_DEVICE void gpu_load_chunk(unsigned char *panel, const gpu_operand<X> &o, uint32_t first, uint32_t k0,
                               uint32_t index) {
  const uint32_t each = 16 / sizeof(X), per = ALONG_K ? EXTENT / each : 4;
  const uint32_t outer = index / per, inner = index % per * each;
  const uint32_t line = ALONG_K ? k0 + outer : first + outer, at = ALONG_K ? first + inner : k0 + inner;
  unsigned char *to =
      panel + (ALONG_K ? gpu_panel_at<X, true>(inner, outer) : gpu_panel_at<X, false>(outer, inner));
  if (line >= o.lines || at >= o.width) {
    gpu_chunk zero;
    zero.word[0] = zero.word[1] = zero.word[2] = zero.word[3] = 0;
    *(gpu_chunk *)(void *)to = zero;
    return;
  }
  const X *from = o.line(line) + at;
  if (o.width - at >= each && ((uintptr_t)from & 15) == 0)
    gpu_copy_chunk(to, from);
  else
    gpu_copy_piece(to, from, o.width - at < each ? o.width - at : each);
}

/* All threads: the panel of `EXTENT` lines from `first` and the k from k0. */
template <class X, bool ALONG_K, uint32_t EXTENT, uint32_t T>
GPU_DEVICE void gpu_load_panel(unsigned char *panel, const gpu_operand<X> &o, uint32_t first, uint32_t k0) {
  GPU_UNROLL_LOADS
  for (uint32_t i = 0; i < EXTENT * 4 / T; i++)
    gpu_load_chunk<X, ALONG_K, EXTENT>(panel, o, first, k0, i * T + gpu_thread());
}

/* ---- One panel of k */

template <class X, bool ALONG_K, uint32_t EXTENT>
GPU_DEVICE float gpu_panel_value(const unsigned char *panel, uint32_t line, uint32_t k) {
  return gpu_load(*(const X *)(const void *)(panel + gpu_panel_at<X, ALONG_K>(line, k)));
}

enum : uint32_t { GPU_MOST_LINES = 16, GPU_MOST_TILES = 8 }; /* that a lane, a wave has along m or n */

template <class G, class X, bool A_K, bool B_K>
GPU_DEVICE void gpu_multiply_plain(float *sums, const unsigned char *a, const unsigned char *b) {
  const uint32_t m0 = G::first_m(), n0 = G::first_n(), rows = gpu_tile_rows(), cols = gpu_tile_cols();
  GPU_UNROLL_TWO
  for (uint32_t k = 0; k < gpu_panel_depth<X>(); k++) {
    float right[32];
    GPU_UNROLL
    for (uint32_t j = 0; j < G::tiles_n(); j++) GPU_UNROLL
    for (uint32_t c = 0; c < cols; c++)
      right[j * cols + c] = gpu_panel_value<X, B_K, G::N>(b, n0 + j * 16 + gpu_tile_col(c), k);
    GPU_UNROLL
    for (uint32_t i = 0; i < G::tiles_m(); i++) GPU_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
      const float left = gpu_panel_value<X, A_K, G::M>(a, m0 + i * 16 + gpu_tile_row(r), k);
      GPU_UNROLL
      for (uint32_t j = 0; j < G::tiles_n(); j++) GPU_UNROLL
      for (uint32_t c = 0; c < cols; c++)
        sums[(i * G::tiles_n() + j) * gpu_tile_sums() + gpu_tile_sum(r, c)] += left * right[j * cols + c];
    }
  }
}

template <class G, bool A_K, bool B_K>
GPU_DEVICE void gpu_multiply_tiles(float *sums, const unsigned char *a, const unsigned char *b) {
  const uint32_t m0 = G::first_m(), n0 = G::first_n();
  GPU_UNROLL
  for (uint32_t k = 0; k < gpu_panel_depth<gpu_bf16>(); k += 16) {
    gpu_fragment left[4];
    GPU_UNROLL
    for (uint32_t i = 0; i < G::tiles_m(); i++)
      left[i] = gpu_load_fragment<A_K, G::M, true>(a, m0 + i * 16, k);
    GPU_UNROLL
    for (uint32_t j = 0; j < G::tiles_n(); j++) {
      const gpu_fragment right = gpu_load_fragment<B_K, G::N, false>(b, n0 + j * 16, k);
      GPU_UNROLL
      for (uint32_t i = 0; i < G::tiles_m(); i++)
        gpu_tile_add(sums + (i * G::tiles_n() + j) * gpu_tile_sums(), left[i], right);
    }
  }
}

template <class X> struct gpu_multiply;
template <> struct gpu_multiply<float> {
  template <class G, bool A_K, bool B_K>
  static GPU_MEMBER void panel(float *sums, const unsigned char *a, const unsigned char *b) {
    gpu_multiply_plain<G, float, A_K, B_K>(sums, a, b);
  }
};
template <> struct gpu_multiply<gpu_bf16> {
  template <class G, bool A_K, bool B_K>
  static GPU_MEMBER void panel(float *sums, const unsigned char *a, const unsigned char *b) {
    if (gpu_has_tiles<gpu_bf16>())
      gpu_multiply_tiles<G, A_K, B_K>(sums, a, b);
    else
      gpu_multiply_plain<G, gpu_bf16, A_K, B_K>(sums, a, b);
  }
};

/* ---- The whole sum */

/* Panel `number` of both operands, A's in front of B's. */
template <class G, class X, bool A_K, bool B_K>
GPU_DEVICE void gpu_load_panels(unsigned char *to, const gpu_operand<X> &a, uint32_t m0,
                                const gpu_operand<X> &b, uint32_t n0, uint32_t number) {
  gpu_load_panel<X, A_K, G::M, G::T>(to, a, m0, number * gpu_panel_depth<X>());
  gpu_load_panel<X, B_K, G::N, G::T>(to + G::M * 64, b, n0, number * gpu_panel_depth<X>());
}

/* sums += A[m0.., :] B[:, n0..] over k. stage: G::S * (M + N) * 64 bytes of shared memory, free when the
 * function is entered by all threads, free again when they leave. A and B are told by where their lines run:
 * A_K: A is stored [k, m], else [m, k]; B_K: B is stored [k, n], else [n, k]. A wave, or a group of them,
 * without sums to make helps to load. */
template <class G, class X, bool A_K, bool B_K>
GPU_DEVICE void gpu_product(float *sums, const gpu_operand<X> &a, uint32_t m0, const gpu_operand<X> &b,
                            uint32_t n0, uint32_t k, unsigned char *stage) {
  const uint32_t depth = gpu_panel_depth<X>(), panels = (k + depth - 1) / depth, bytes = (G::M + G::N) * 64;
  const uint32_t m_end = A_K ? a.width : a.lines, n_end = B_K ? b.width : b.lines;
  GPU_UNROLL
  for (uint32_t p = 0; p + 1 < G::S; p++) {
    if (p < panels) gpu_load_panels<G, X, A_K, B_K>(stage + p * bytes, a, m0, b, n0, p);
    gpu_copy_group();
  }
  uint32_t now = 0, later = G::S - 1;
  for (uint32_t p = 0; p < panels; p++) {
    const bool more = p + G::S - 1 < panels;
    unsigned char *const own = stage + now * bytes, *const next = stage + later * bytes;
    gpu_copy_wait<G::S - 2>();
#if GPU_HAS_GROUPS
    if constexpr (G::BY_GROUPS) {
      const bool busy = m0 + gpu_group() * GPU_GROUP_M < m_end && n0 < n_end;
      gpu_group_publish();
      GPU_BARRIER();
      /* In one branch, so that no sum is touched while its product is being made. */
      if (busy) {
        gpu_multiply_group<G, A_K, B_K>(sums, own, own + G::M * 64);
        if (more) gpu_load_panels<G, X, A_K, B_K>(next, a, m0, b, n0, p + G::S - 1);
        gpu_copy_group();
        gpu_group_wait(sums);
      } else {
        if (more) gpu_load_panels<G, X, A_K, B_K>(next, a, m0, b, n0, p + G::S - 1);
        gpu_copy_group();
      }
    }
#endif
    if constexpr (!G::BY_GROUPS) {
      const bool busy = m0 + G::first_m() < m_end && n0 + G::first_n() < n_end;
      GPU_BARRIER();
      if (more) gpu_load_panels<G, X, A_K, B_K>(next, a, m0, b, n0, p + G::S - 1);
      gpu_copy_group();
      if (busy) gpu_multiply<X>::template panel<G, A_K, B_K>(sums, own, own + G::M * 64);
    }
    now = now + 1 == G::S ? 0 : now + 1;
    later = later + 1 == G::S ? 0 : later + 1;
  }
  GPU_BARRIER();
}

/* The same where A's panels lie in shared memory already: `panels` of them, one behind the other, whole. The
 * stage needs G::S * N * 64 bytes. */
template <class G, class X, bool A_K, bool B_K>
GPU_DEVICE void gpu_product_resident(float *sums, const unsigned char *a, uint32_t panels,
                                     const gpu_operand<X> &b, uint32_t n0, uint32_t k0,
                                     unsigned char *stage) {
  const uint32_t depth = gpu_panel_depth<X>(), bytes = G::N * 64;
  GPU_UNROLL
  for (uint32_t p = 0; p + 1 < G::S; p++) {
    if (p < panels) gpu_load_panel<X, B_K, G::N, G::T>(stage + p * bytes, b, n0, k0 + p * depth);
    gpu_copy_group();
  }
  uint32_t now = 0, later = G::S - 1;
  for (uint32_t p = 0; p < panels; p++) {
    gpu_copy_wait<G::S - 2>();
    GPU_BARRIER();
    if (p + G::S - 1 < panels)
      gpu_load_panel<X, B_K, G::N, G::T>(stage + later * bytes, b, n0, k0 + (p + G::S - 1) * depth);
    gpu_copy_group();
    gpu_multiply<X>::template panel<G, A_K, B_K>(sums, a + p * G::M * 64, stage + now * bytes);
    now = now + 1 == G::S ? 0 : now + 1;
    later = later + 1 == G::S ? 0 : later + 1;
  }
  GPU_BARRIER();
}

template <class G> GPU_DEVICE void gpu_clear(float *sums) {
  GPU_UNROLL
  for (uint32_t i = 0; i < G::SUMS; i++) sums[i] = 0;
}

/* f(row, col, sum) for the lane's sums; row and col within the block's tile. */
template <class G, class F> GPU_DEVICE void gpu_each_sum(float *sums, const F &f) {
  const uint32_t m0 = G::first_m(), n0 = G::first_n();
  GPU_UNROLL
  for (uint32_t i = 0; i < G::tiles_m(); i++) GPU_UNROLL
  for (uint32_t r = 0; r < gpu_tile_rows(); r++) GPU_UNROLL
  for (uint32_t j = 0; j < G::tiles_n(); j++) GPU_UNROLL
  for (uint32_t c = 0; c < gpu_tile_cols(); c++)
    f(m0 + i * 16 + gpu_tile_row(r), n0 + j * 16 + gpu_tile_col(c),
      sums[(i * G::tiles_n() + j) * gpu_tile_sums() + gpu_tile_sum(r, c)]);
}

#endif
