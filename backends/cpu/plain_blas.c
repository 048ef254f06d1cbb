/* SPDX-License-Identifier: Apache-2.0
 *
 * Plain loops with the two OpenBLAS symbols that the tuned kernels call (kernels/panel.h, kernels/matmul.c,
 * cpu.c). Part of builds without OpenBLAS (-DKEDGE_OPENBLAS=OFF), which exist for the thread sanitizer: it
 * sees every access of these loops, and none of a library built without it. */
#include <cblas.h>
#include <stddef.h>

void openblas_set_num_threads(int count) {
  (void)count;
}

/* C [m,n] = alpha op(A) op(B) + beta C, row-major, which is the only order that Kedge uses. With beta 0, C is
 * not read. */
void cblas_sgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE trans_a, CBLAS_TRANSPOSE trans_b, blasint m, blasint n,
                 blasint k, float alpha, const float *a, blasint lda, const float *b, blasint ldb, float beta,
                 float *c, blasint ldc) {
  (void)order;
  size_t a_row = trans_a == CblasNoTrans ? (size_t)lda : 1, a_col = trans_a == CblasNoTrans ? 1 : (size_t)lda;
  size_t b_row = trans_b == CblasNoTrans ? (size_t)ldb : 1, b_col = trans_b == CblasNoTrans ? 1 : (size_t)ldb;
  for (size_t i = 0; i < (size_t)m; i++)
    for (size_t j = 0; j < (size_t)n; j++) {
      float sum = 0;
      for (size_t l = 0; l < (size_t)k; l++) sum += a[i * a_row + l * a_col] * b[l * b_row + j * b_col];
      float *out = &c[i * (size_t)ldc + j];
      *out = beta == 0.0f ? alpha * sum : alpha * sum + beta * *out;
    }
}
