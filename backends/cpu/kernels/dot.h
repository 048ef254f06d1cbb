/* SPDX-License-Identifier: Apache-2.0
 *
 * Dot products of a row with several others, read where they lie: matrix products of so few rows that packing
 * would cost more than it saves (matmul.c). Each sum is by lanes, then over the lanes as a tree, then what is
 * left of the rows one after the other: in one order, whatever stands beside it. */
#ifndef KEDGE_CPU_DOT_H
#define KEDGE_CPU_DOT_H

#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/lanes.h"

/* Bytes of a sum's lanes. */
#if defined(__AVX512F__)
enum { KEDGE_VECTOR_BYTES = 64 };
#else
enum { KEDGE_VECTOR_BYTES = 32 };
#endif

/* Rows whose sums are folded together. */
enum { KEDGE_DOTS = 8, KEDGE_DOT_LANES = KEDGE_VECTOR_BYTES / 4 };

typedef float kedge_lanes __attribute__((vector_size(KEDGE_VECTOR_BYTES)));
typedef kedge_lanes kedge_lanes_stored __attribute__((aligned(4), may_alias));

/* sum += a b over the elements of a step. Vectors are passed by address: the plainest build has none that
 * wide. */
#if defined(KEDGE_STORAGE_BF16) && defined(__AVX512BF16__)

enum { KEDGE_DOT_STEP = 2 * KEDGE_DOT_LANES };
static inline void kedge__dot_step(kedge_lanes *sum, const kedge_x *a, const kedge_x *b) {
  *sum = (kedge_lanes)_mm512_dpbf16_ps((__m512)*sum, (__m512bh)_mm512_loadu_si512(a),
                                       (__m512bh)_mm512_loadu_si512(b));
}

#elif defined(KEDGE_STORAGE_BF16)

enum { KEDGE_DOT_STEP = KEDGE_DOT_LANES };
typedef uint16_t kedge_dot_half __attribute__((vector_size(KEDGE_VECTOR_BYTES / 2), aligned(2), may_alias));
typedef uint32_t kedge_dot_words __attribute__((vector_size(KEDGE_VECTOR_BYTES)));
#define KEDGE_WIDE(from)                                                                                     \
  ((kedge_lanes)(__builtin_convertvector(*(const kedge_dot_half *)(from), kedge_dot_words) << 16))
static inline void kedge__dot_step(kedge_lanes *sum, const kedge_x *a, const kedge_x *b) {
  *sum += KEDGE_WIDE(a) * KEDGE_WIDE(b);
}

#else

enum { KEDGE_DOT_STEP = KEDGE_DOT_LANES };
static inline void kedge__dot_step(kedge_lanes *sum, const kedge_x *a, const kedge_x *b) {
  *sum += *(const kedge_lanes_stored *)a * *(const kedge_lanes_stored *)b;
}

#endif

/* Lanes far apart are added first. */
static inline __attribute__((always_inline)) void kedge__fold(const kedge_lanes *s, kedge_eight *to) {
#if defined(__AVX512F__)
  *to = KEDGE_MIX_8(*s, *s, 0, 1, 2, 3, 4, 5, 6, 7) + KEDGE_MIX_8(*s, *s, 8, 9, 10, 11, 12, 13, 14, 15);
#else
  *to = *s;
#endif
}

/* Sums by lanes of a row times another, and how many elements they hold. Four chains hide a multiply-add's
 * latency, and a row is read to its end before the next one, as the machine's prefetching likes it. */
static inline __attribute__((always_inline)) size_t kedge__dot_row(const kedge_x *a, const kedge_x *b,
                                                                   size_t k, kedge_lanes *sum) {
  enum { CHAINS = 4 };
  kedge_lanes part[CHAINS] = {{0}};
  size_t q = 0;
  for (; q + CHAINS * KEDGE_DOT_STEP <= k; q += CHAINS * KEDGE_DOT_STEP)
#pragma GCC unroll 4
    for (size_t i = 0; i < CHAINS; i++)
      kedge__dot_step(&part[i], a + q + i * KEDGE_DOT_STEP, b + q + i * KEDGE_DOT_STEP);
  for (; q + KEDGE_DOT_STEP <= k; q += KEDGE_DOT_STEP) kedge__dot_step(&part[0], a + q, b + q);
  *sum = (part[0] + part[1]) + (part[2] + part[3]);
  return q;
}

/* Products of a row of k elements with KEDGE_DOTS rows, `pitch` apart. */
static inline void kedge__dots(const kedge_x *a, const kedge_x *b, size_t pitch, size_t k, float *to) {
  kedge_eight folded[KEDGE_DOTS];
  size_t q = 0;
#pragma GCC unroll 8
  for (size_t i = 0; i < KEDGE_DOTS; i++) {
    kedge_lanes sum;
    q = kedge__dot_row(a, b + i * pitch, k, &sum);
    kedge__fold(&sum, &folded[i]);
  }
  kedge__sum_eight(folded, to);
  for (; q < k; q++)
    for (size_t i = 0; i < KEDGE_DOTS; i++) to[i] += kedge_load(a[q]) * kedge_load(b[i * pitch + q]);
}

/* The same with one row, whose sum has the same order. */
static inline float kedge__dot(const kedge_x *a, const kedge_x *b, size_t k) {
  float sums[KEDGE_DOTS];
  kedge__dots(a, b, 0, k, sums);
  return sums[0];
}

#endif
