/* SPDX-License-Identifier: Apache-2.0
 * Dense products by the vendor's library (blas.c), for matmul.cu. */
#ifndef KEDGE_GPU_BLAS_H
#define KEDGE_GPU_BLAS_H

#include "backends/gpu/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* C [m, n] = A B or C += A B as in products.h; C is dense, f32 or bf16, the operands are of one type. */
typedef struct gpu_blas_call {
  const void *a, *b;
  void *c;
  size_t pitch_a, pitch_b;
  bool a_along_k, b_along_k, accumulate, bf16, c_bf16;
  uint32_t m, n, k;
} gpu_blas_call;
/* False: there is no library, or it does not take this product. */
bool gpu__blas_multiply(const gpu_step *s, const gpu_blas_call *call);

#ifdef __cplusplus
}
#endif
#endif
