/* SPDX-License-Identifier: Apache-2.0
 *
 * The innermost product of gemm.h in vector registers: a sliver of A times a sliver of B. Each step loads the
 * words of NR columns and multiplies them by a word of each row. The sums and what a step needs fill the
 * register file. */
#ifndef KEDGE_CPU_GEMM_VECTOR_H
#define KEDGE_CPU_GEMM_VECTOR_H

#if defined(KEDGE_PAIRS)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { KEDGE_MR = 14, KEDGE_NR = 32, KEDGE_VECTOR = 64 };
#elif defined(__AVX2__)
enum { KEDGE_MR = 6, KEDGE_NR = 16, KEDGE_VECTOR = 32 };
#elif defined(__aarch64__)
enum { KEDGE_MR = 6, KEDGE_NR = 16, KEDGE_VECTOR = 16 };
#else
enum { KEDGE_MR = 2, KEDGE_NR = 16, KEDGE_VECTOR = 16 };
#endif
enum { KEDGE_VECTORS = KEDGE_NR * 4 / KEDGE_VECTOR }; /* of a row */
enum { KEDGE_READS_IN_PLACE = 1 };                    /* operands need not be packed */

typedef float kedge_vector __attribute__((vector_size(KEDGE_VECTOR)));
typedef float kedge_stored __attribute__((vector_size(KEDGE_VECTOR), aligned(4), may_alias)); /* in memory */

#define KEDGE_PADDED(words)   (words) /* steps are single words */
#define KEDGE_A_ROW(words)    (words) /* words from a packed row to the next: rows stand close, for the */
#define KEDGE_A_SLIVER(words) ((words)*KEDGE_MR) /* first cache's sake */

/* Around the products of a block: nothing to prepare. */
static inline void kedge__micro_begin(void) {}
static inline void kedge__micro_end(void) {}

/* A transposed sliver stays as it was packed; nobody reads rows that are not there. */
static inline void kedge__turn_sliver(uint32_t *sliver, size_t words) {
  (void)sliver, (void)words;
}
static inline void kedge__fill_sliver(uint32_t *sliver, size_t rows, size_t words) {
  (void)sliver, (void)rows, (void)words;
}

/* A row of sums [NR] as bf16, to the nearest one. */
static inline void kedge__narrow_row(const float *from, uint16_t *y) {
#if defined(KEDGE_PAIRS)
  const __m512bh narrow = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + 16), _mm512_loadu_ps(from));
  memcpy(y, &narrow, sizeof narrow);
#else
  for (size_t x = 0; x < KEDGE_NR; x++) y[x] = kedge__bf16_round(from[x]);
#endif
}

/* sum + x b, x the same word in all lanes. */
static inline kedge_vector kedge__step(kedge_vector sum, uint32_t word, kedge_vector b) {
#if defined(KEDGE_PAIRS)
  return (kedge_vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)word), (__m512bh)b);
#else
  float x;
  memcpy(&x, &word, sizeof x);
  return sum + x * b;
#endif
}

/* Row r of a sliver whose rows are `step` bytes apart, from pointers to every fifth row: addresses of the
 * form base + {0, 1, 2, 4} step cost no registers. */
#define KEDGE_ROW(r) (base[(r) / 5] + ((r) % 5 == 3 ? step3 : (size_t)((r) % 5) * step))

static inline __attribute__((always_inline)) void
kedge__micro_rows(const size_t rows, size_t words, const char *a, const size_t step, const bool trans,
                  const char *b, size_t b_step, const float *from, size_t from_pitch, float *to,
                  size_t to_pitch) {
  kedge_vector sum[KEDGE_MR][KEDGE_VECTORS];
  const char *base[3] = {a, a + 5 * step, a + 10 * step};
  const size_t step3 = 3 * step;
  for (size_t r = 0; r < rows; r++)
    for (size_t v = 0; v < KEDGE_VECTORS; v++) sum[r][v] = (kedge_vector){0};
  for (size_t w = 0; w < words; w++, b += b_step) {
    kedge_vector x[KEDGE_VECTORS];
    for (size_t v = 0; v < KEDGE_VECTORS; v++)
      x[v] = *(const kedge_stored *)(const void *)(b + v * KEDGE_VECTOR);
#pragma GCC unroll 16
    for (size_t r = 0; r < rows; r++) {
      uint32_t word;
      memcpy(&word, trans ? a + r * sizeof word : KEDGE_ROW(r), sizeof word);
#pragma GCC unroll 4
      for (size_t v = 0; v < KEDGE_VECTORS; v++) sum[r][v] = kedge__step(sum[r][v], word, x[v]);
    }
    if (trans) a += step;
    for (size_t i = 0; i < 3; i++) base[i] += sizeof(uint32_t);
  }
  if (from) {
#pragma GCC unroll 16
    for (size_t r = 0; r < rows; r++)
      for (size_t v = 0; v < KEDGE_VECTORS; v++)
        *(kedge_stored *)(to + r * to_pitch + v * (KEDGE_VECTOR / 4)) =
            *(const kedge_stored *)(from + r * from_pitch + v * (KEDGE_VECTOR / 4)) + sum[r][v];
    return;
  }
#pragma GCC unroll 16
  for (size_t r = 0; r < rows; r++)
    for (size_t v = 0; v < KEDGE_VECTORS; v++)
      *(kedge_stored *)(to + r * to_pitch + v * (KEDGE_VECTOR / 4)) = sum[r][v];
}

/* to [rows, NR] = from (NULL: 0) + sliver of A [rows, words] times sliver of B [words, NR]. A's rows are
 * `step` bytes apart or, transposed, its words; B's words b_step. */
static inline void kedge__micro(size_t rows, size_t words, const char *a, size_t step, bool trans,
                                const char *b, size_t b_step, const float *from, size_t from_pitch, float *to,
                                size_t to_pitch) {
#define KEDGE_ROWS(n)                                                                                        \
  case n:                                                                                                    \
    if (trans)                                                                                               \
      kedge__micro_rows(n, words, a, step, true, b, b_step, from, from_pitch, to, to_pitch);                 \
    else                                                                                                     \
      kedge__micro_rows(n, words, a, step, false, b, b_step, from, from_pitch, to, to_pitch);                \
    return;
  switch (rows) {
    KEDGE_ROWS(1)
    KEDGE_ROWS(2)
#if defined(__AVX2__) || defined(__aarch64__)
    KEDGE_ROWS(3)
    KEDGE_ROWS(4)
    KEDGE_ROWS(5)
    KEDGE_ROWS(6)
#endif
#if defined(__AVX512F__)
    KEDGE_ROWS(7)
    KEDGE_ROWS(8)
    KEDGE_ROWS(9)
    KEDGE_ROWS(10)
    KEDGE_ROWS(11)
    KEDGE_ROWS(12)
    KEDGE_ROWS(13)
    KEDGE_ROWS(14)
#endif
  }
#undef KEDGE_ROWS
}

#endif
