/* SPDX-License-Identifier: Apache-2.0
 * Whole dense products that other families launch; matmul.cu has the kernels. */
#ifndef KEDGE_GPU_PRODUCTS_H
#define KEDGE_GPU_PRODUCTS_H

#include "backends/gpu/kernel.h"

/* C [m, n] (or C += ..) = A B over k. a_along_k: A is stored [k, m], else [m, k]; b_along_k: B is stored
 * [k, n], else [n, k]; pitches in elements; C is dense. */
struct gpu_dense {
  const void *a, *b;
  size_t pitch_a, pitch_b;
  bool a_along_k, b_along_k, accumulate;
  uint32_t m, n, k;
  gpu_w c;
};
template <class X> void gpu_dense_product(const gpu_step *s, const gpu_dense &p);
extern template void gpu_dense_product<float>(const gpu_step *s, const gpu_dense &p);
extern template void gpu_dense_product<gpu_bf16>(const gpu_step *s, const gpu_dense &p);

#endif
