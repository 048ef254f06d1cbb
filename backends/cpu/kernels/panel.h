/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows between storage and floats, pieces of scratch, and OpenBLAS's product, on one thread and called from
 * our own parallel loops, so that its bits depend on shapes alone.
 */
#ifndef KEDGE_CPU_PANEL_H
#define KEDGE_CPU_PANEL_H

#include "backends/cpu/kernels/blocks.h"
#include "backends/cpu/kernels/kernel.h"

#include <cblas.h>
#include <omp.h>

/* Rows of floats, `pitch` apart. */
typedef struct kedge_panel {
  const float *data;
  size_t pitch;
} kedge_panel;

static inline void kedge__widen(float *to, const kedge_x *from, size_t n) {
  for (size_t i = 0; i < n; i++) to[i] = kedge_load(from[i]);
}

static inline void kedge__narrow(kedge_x *to, const float *from, size_t n) {
  for (size_t i = 0; i < n; i++) to[i] = kedge_store(from[i]);
}

/* C [m,n] = alpha op(A) op(B) + beta C; C is not read where beta is 0. */
static inline void kedge__gemm(bool trans_a, bool trans_b, size_t m, size_t n, size_t k, kedge_panel a,
                               kedge_panel b, float beta, float *c, size_t pitch) {
  cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans, trans_b ? CblasTrans : CblasNoTrans,
              (blasint)m, (blasint)n, (blasint)k, 1.0f, a.data, (blasint)a.pitch, b.data, (blasint)b.pitch,
              beta, c, (blasint)pitch);
}

/* Scratch is handed out in pieces of 64 bytes. */
static inline size_t kedge__pad(size_t floats) {
  return (floats + 15) / 16 * 16;
}
static inline float *kedge__take(float **scratch, size_t floats) {
  float *piece = *scratch;
  *scratch += kedge__pad(floats);
  return piece;
}

#endif
