/* SPDX-License-Identifier: Apache-2.0
 *
 * What attention's kernels share (attention.cu forward, attention_grad.cu backward): blocks of 64 queries by
 * 64 keys whose scores stay with the lanes that made them. Every wave has whole rows, so that a row's maximum
 * and sum are folds over a few lanes next to each other. Probabilities of bf16 are kept as two numbers, the
 * rounded one and what rounding leaves.
 */
#ifndef KEDGE_GPU_ATTENTION_H
#define KEDGE_GPU_ATTENTION_H

#include "backends/gpu/product.h"

typedef gpu_geometry<64, 64, 128, 2, true> gpu_scores;
typedef gpu_geometry<64, 128, 128, 2, true> gpu_heads; /* 128 columns of a head at a time */
enum : uint32_t {
  GPU_ATTENTION_STAGE = 2 * 128 * 64,
  GPU_ATTENTION_WEIGHTS = 64 * 64 * 4, /* f32, or bf16 twice */
  GPU_ATTENTION_ROWS = 8
};

/* Columns [head * dim, + dim) of rows of a tensor. */
template <class X>
GPU_DEVICE gpu_operand<X> gpu_head_of(const X *base, size_t pitch, uint32_t head, uint32_t dim,
                                      uint32_t rows) {
  return gpu_matrix(base + (size_t)head * dim, pitch, rows, dim);
}

/* f(row, column, number of the lane's row, which of its sums) for the scores of a lane. */
template <class F> GPU_DEVICE void gpu_each_score(const F &f) {
  GPU_UNROLL
  for (uint32_t i = 0; i < gpu_scores::tiles_m(); i++) GPU_UNROLL
  for (uint32_t r = 0; r < gpu_tile_rows(); r++) GPU_UNROLL
  for (uint32_t j = 0; j < gpu_scores::tiles_n(); j++) GPU_UNROLL
  for (uint32_t c = 0; c < gpu_tile_cols(); c++)
    f(gpu_scores::first_m() + i * 16 + gpu_tile_row(r), j * 16 + gpu_tile_col(c), i * gpu_tile_rows() + r,
      (i * gpu_scores::tiles_n() + j) * gpu_tile_sums() + gpu_tile_sum(r, c));
}

/* The row of the block that a lane's row is. */
GPU_DEVICE uint32_t gpu_score_row(uint32_t own) {
  return gpu_scores::first_m() + own / gpu_tile_rows() * 16 + gpu_tile_row(own % gpu_tile_rows());
}
GPU_DEVICE uint32_t gpu_score_rows() {
  return gpu_scores::tiles_m() * gpu_tile_rows();
}
template <class Fold> GPU_DEVICE float gpu_row_fold(float v) {
  for (uint32_t mask = 1; mask < gpu_tile_row_lanes(); mask *= 2) v = Fold::of(v, gpu_shuffle_xor(v, mask));
  return v;
}

/* Where a number of [64 queries, 64 keys] lies in panels: TRANSPOSED, keys are the lines and queries the k.
 */
template <class X, bool TRANSPOSED> GPU_DEVICE uint32_t gpu_weight_at(uint32_t query, uint32_t key) {
  const uint32_t depth = gpu_panel_depth<X>();
  return TRANSPOSED ? query / depth * 64 * 64 + gpu_panel_at<X, true>(key, query % depth)
                    : key / depth * 64 * 64 + gpu_panel_at<X, false>(query, key % depth);
}

template <class X> struct gpu_weights;
template <> struct gpu_weights<float> {
  template <bool TRANSPOSED>
  static GPU_MEMBER void put(unsigned char *w, uint32_t query, uint32_t key, float v) {
    *(float *)(void *)(w + gpu_weight_at<float, TRANSPOSED>(query, key)) = v;
  }
  /* out += W B, or W^T B, over 64 of k from k0. */
  template <bool TRANSPOSED>
  static GPU_MEMBER void times(float *out, const unsigned char *w, const gpu_operand<float> &b, uint32_t n0,
                               uint32_t k0, unsigned char *stage) {
    gpu_product_resident<gpu_heads, float, TRANSPOSED, true>(out, w, 4, b, n0, k0, stage);
  }
};
template <> struct gpu_weights<gpu_bf16> {
  template <bool TRANSPOSED>
  static GPU_MEMBER void put(unsigned char *w, uint32_t query, uint32_t key, float v) {
    gpu_bf16 *at = (gpu_bf16 *)(void *)(w + gpu_weight_at<gpu_bf16, TRANSPOSED>(query, key));
    at[0] = gpu_store<gpu_bf16>(v);
    at[GPU_ATTENTION_WEIGHTS / 4] = gpu_store<gpu_bf16>(v - gpu_load(at[0]));
  }
  template <bool TRANSPOSED>
  static GPU_MEMBER void times(float *out, const unsigned char *w, const gpu_operand<gpu_bf16> &b,
                               uint32_t n0, uint32_t k0, unsigned char *stage) {
    for (uint32_t half = 0; half < 2; half++)
      gpu_product_resident<gpu_heads, gpu_bf16, TRANSPOSED, true>(out, w + half * GPU_ATTENTION_WEIGHTS / 2,
                                                                  2, b, n0, k0, stage);
  }
};

#endif
