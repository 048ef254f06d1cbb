/* SPDX-License-Identifier: Apache-2.0
 *
 * Panels of gemm.h, packed: words along and across the inner dimension, turned where they must be. Sizes and
 * kernels are known from gemm.h, which includes this file and says what a panel looks like. */
#ifndef KEDGE_CPU_GEMM_PACK_H
#define KEDGE_CPU_GEMM_PACK_H

/* A matrix as it is stored; with slots, its row r is row slots[r] / topk of data. */
typedef struct kedge_operand {
  const kedge_x *data;
  size_t pitch;
  const int32_t *slots;
  uint32_t topk;
} kedge_operand;

static inline const kedge_x *kedge__operand_row(const kedge_operand *m, size_t row) {
  return m->data + (m->slots ? (size_t)m->slots[row] / m->topk : row) * m->pitch;
}

/* ---- Words
 * ------------------------------------------------------------------------------------------------------- */

static inline uint32_t kedge__word_of(float f) {
  uint32_t word;
  memcpy(&word, &f, sizeof word);
  return word;
}

/* `words` words of a row along the inner dimension, of which `n` elements are there. */
static inline void kedge__words_along(uint32_t *to, const kedge_x *from, size_t n, size_t words) {
#if defined(KEDGE_PAIRS)
  memcpy(to, from, n * sizeof *from);
  memset((uint16_t *)to + n, 0, (words * 2 - n) * sizeof *from);
#else
  for (size_t i = 0; i < n; i++) to[i] = kedge__word_of(kedge_load(from[i]));
  memset(to + n, 0, (words - n) * sizeof *to);
#endif
}

/* A word of each of `n` columns, from a row and, in pairs, the next one (NULL: zeros). */
static inline void kedge__words_across(uint32_t *restrict to, const kedge_x *first, const kedge_x *next,
                                       size_t n) {
#if defined(KEDGE_PAIRS)
  if (next)
    for (size_t i = 0; i < n; i++) to[i] = (uint32_t)first[i] | (uint32_t)next[i] << 16;
  else
    for (size_t i = 0; i < n; i++) to[i] = first[i];
#else
  (void)next;
  for (size_t i = 0; i < n; i++) to[i] = kedge__word_of(kedge_load(first[i]));
#endif
}

/* to[j][i] = from[i][j] for 16 x 16 words; rows of `from` follow each other by from_bytes. */
static inline void kedge__transpose_16(uint32_t *restrict to, size_t to_pitch, const void *restrict from,
                                       size_t from_bytes) {
#if defined(__AVX512F__)
  typedef uint32_t v __attribute__((vector_size(64)));
  v x[16], y[16];
  for (int i = 0; i < 16; i++) memcpy(&x[i], (const char *)from + (size_t)i * from_bytes, 64);
#define KEDGE_MIX(o, a, b, ...) o = __builtin_shufflevector(a, b, __VA_ARGS__)
  for (int i = 0; i < 8; i++) {
    KEDGE_MIX(y[i], x[2 * i], x[2 * i + 1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
    KEDGE_MIX(y[i + 8], x[2 * i], x[2 * i + 1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  } /* y[i] columns 0, 2, ..; y[i + 8] columns 1, 3, .. of rows 2i, 2i + 1 */
  for (int h = 0; h < 16; h += 8)
    for (int i = 0; i < 4; i++) {
      KEDGE_MIX(x[h + i], y[h + 2 * i], y[h + 2 * i + 1], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13,
                28, 29);
      KEDGE_MIX(x[h + i + 4], y[h + 2 * i], y[h + 2 * i + 1], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14,
                15, 30, 31);
    } /* groups of four rows; x[h + i]: columns c = 4q + h / 8; x[h + i + 4]: two more */
  for (int h = 0; h < 16; h += 4)
    for (int i = 0; i < 2; i++) {
      KEDGE_MIX(y[h + i], x[h + 2 * i], x[h + 2 * i + 1], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25,
                26, 27);
      KEDGE_MIX(y[h + i + 2], x[h + 2 * i], x[h + 2 * i + 1], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28,
                29, 30, 31);
    }
  static const int columns[4] = {0, 2, 1, 3}; /* of h / 4 */
  for (int h = 0; h < 16; h += 4)
    for (int i = 0; i < 2; i++) {
      const int column = columns[h / 4] + 4 * i;
      v low, high;
      KEDGE_MIX(low, y[h + 2 * i], y[h + 2 * i + 1], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
      KEDGE_MIX(high, y[h + 2 * i], y[h + 2 * i + 1], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29,
                30, 31);
      memcpy(to + (size_t)column * to_pitch, &low, 64);
      memcpy(to + (size_t)(column + 8) * to_pitch, &high, 64);
    }
#undef KEDGE_MIX
#else
  for (size_t i = 0; i < 16; i++)
    for (size_t j = 0; j < 16; j++)
      memcpy(&to[j * to_pitch + i], (const char *)from + i * from_bytes + 4 * j, sizeof *to);
#endif
}

/* ---- Panels
 * ------------------------------------------------------------------------------------------------------ */

/* op(a) op(b) with the inner dimension k. Row 0 of each operand is where this product starts. */
typedef struct kedge_product {
  kedge_operand a, b;
  bool trans_a, trans_b;
  size_t k;
} kedge_product;

static inline size_t kedge__words(size_t elements) {
  return (elements + KEDGE_UNIT - 1) / KEDGE_UNIT;
}

/* Where the rows [q, q + k) of an operand lie: found once a panel. */
static inline void kedge__rows_of(const kedge_operand *m, size_t q, size_t k, const kedge_x **rows) {
  for (size_t i = 0; i < k; i++) rows[i] = kedge__operand_row(m, q + i);
}

/* Word w of the columns [col, col + n) of k rows. With `wide`, which says that the rows have 16 columns from
 * there on, 16 words are written, which is faster. */
static inline void kedge__across(uint32_t *to, const kedge_x *const *rows, size_t w, size_t k, size_t col,
                                 size_t n, bool wide) {
  const size_t i = w * KEDGE_UNIT;
  const kedge_x *first = rows[i] + col, *next = KEDGE_UNIT == 2 && i + 1 < k ? rows[i + 1] + col : NULL;
  if (wide && (next || KEDGE_UNIT == 1))
    kedge__words_across(to, first, next, 16);
  else
    kedge__words_across(to, first, next, n);
}

/* Slivers of A: as many as it takes, of equal heights but for one. */
typedef struct kedge_slivers {
  size_t count, height, higher; /* the first `higher` ones have one row more */
} kedge_slivers;

static inline kedge_slivers kedge__slivers(size_t rows) {
  const size_t count = kedge__blocks(rows, KEDGE_MR);
  return (kedge_slivers){count, rows / count, rows % count};
}

/* Rows [i0, i0 + m) of op(A), elements [q, q + k) of each. */
static inline void kedge__pack_a(const kedge_product *p, size_t i0, size_t m, size_t q, size_t k,
                                 uint32_t *to) {
  const kedge_slivers s = kedge__slivers(m);
  const size_t words = kedge__words(k);
  const kedge_x *rows_k[KEDGE_KC * KEDGE_UNIT];
  if (p->trans_a) kedge__rows_of(&p->a, q, k, rows_k);
  for (size_t i = 0, row = i0; i < s.count; i++, to += KEDGE_A_SLIVER(words)) {
    const size_t rows = s.height + (i < s.higher);
    if (!p->trans_a) {
      for (size_t r = 0; r < rows; r++)
        kedge__words_along(to + r * KEDGE_A_ROW(words), kedge__operand_row(&p->a, row + r) + q, k,
                           KEDGE_PADDED(words));
    } else {
      for (size_t w = 0; w < words; w++)
        kedge__across(to + w * KEDGE_MR, rows_k, w, k, row, rows, KEDGE_MR <= 16 && row + 16 <= i0 + m);
      kedge__turn_sliver(to, words);
    }
    kedge__fill_sliver(to, rows, words);
    row += rows;
  }
}

/* 16 columns of op(B) whose elements follow each other in memory. Where those are words already, and all are
 * there, they are turned from where they lie. */
static inline void kedge__turn_columns(const kedge_product *p, size_t j, size_t n, size_t q, size_t k,
                                       uint32_t *to) {
  uint32_t block[16 * 16];
  const bool words = sizeof(kedge_x) * KEDGE_UNIT == sizeof *to && n == 16 && !p->b.slots;
  if (n < 16) memset(block, 0, sizeof block);
  for (size_t e = 0; e < k; e += 16 * KEDGE_UNIT, to += 16 * KEDGE_NR) {
    const size_t some = kedge__min(16 * KEDGE_UNIT, k - e);
    if (words && some == 16 * KEDGE_UNIT) {
      kedge__transpose_16(to, KEDGE_NR, p->b.data + j * p->b.pitch + q + e, p->b.pitch * sizeof(kedge_x));
      continue;
    }
    for (size_t i = 0; i < n; i++)
      if (some == 16 * KEDGE_UNIT)
        kedge__words_along(block + i * 16, kedge__operand_row(&p->b, j + i) + q + e, 16 * KEDGE_UNIT, 16);
      else
        kedge__words_along(block + i * 16, kedge__operand_row(&p->b, j + i) + q + e, some, 16);
    kedge__transpose_16(to, KEDGE_NR, block, 16 * sizeof *block);
  }
}

/* Of op(B) whose elements stand below each other: the columns [h, n) after column j, words from `word` on,
 * with zeros where there is nothing. */
static inline void kedge__pack_edge(const kedge_x *const *rows_k, size_t j, size_t h, size_t n, size_t k,
                                    size_t word, uint32_t *to) {
  const size_t words = kedge__words(k), sliver = KEDGE_PADDED(words) * KEDGE_NR;
  for (; h < kedge__blocks(n, KEDGE_NR) * KEDGE_NR; h += 16)
    for (size_t w = word; w < KEDGE_PADDED(words); w++) {
      const size_t cols = h < n ? kedge__min(16, n - h) : 0;
      uint32_t *at = to + h / KEDGE_NR * sliver + w * KEDGE_NR + h % KEDGE_NR;
      if (cols < 16 || w >= words) memset(at, 0, 16 * sizeof *at);
      if (cols && w < words) kedge__across(at, rows_k, w, k, j + h, cols, cols == 16);
    }
}

/* The columns [j, j + n), up to a few slivers, which share the reading of a row. */
static inline void kedge__pack_across(const kedge_x *const *rows_k, size_t j, size_t n, size_t k,
                                      uint32_t *to) {
  const size_t slivers = n / KEDGE_NR, words = k / KEDGE_UNIT,
               sliver = KEDGE_PADDED(kedge__words(k)) * KEDGE_NR;
  for (size_t w = 0; w < words; w++) {
    const kedge_x *first = rows_k[w * KEDGE_UNIT] + j, *next = rows_k[w * KEDGE_UNIT + KEDGE_UNIT - 1] + j;
    for (size_t i = 0; i < slivers; i++)
      kedge__words_across(to + i * sliver + w * KEDGE_NR, first + i * KEDGE_NR, next + i * KEDGE_NR,
                          KEDGE_NR);
  }
  if (words < KEDGE_PADDED(kedge__words(k))) kedge__pack_edge(rows_k, j, 0, slivers * KEDGE_NR, k, words, to);
  if (slivers * KEDGE_NR < n) kedge__pack_edge(rows_k, j, slivers * KEDGE_NR, n, k, 0, to);
}

/* Columns [j0, j0 + n) of op(B), elements [q, q + k) of each. */
static inline void kedge__pack_b(const kedge_product *p, size_t j0, size_t n, size_t q, size_t k,
                                 uint32_t *to) {
  enum { TOGETHER = 4 }; /* slivers that share the reading of a row */
  const size_t sliver = KEDGE_PADDED(kedge__words(k)) * KEDGE_NR;
  if (p->trans_b) {
    for (size_t j = 0; j < n; j += KEDGE_NR, to += sliver)
      for (size_t h = 0; h < KEDGE_NR; h += 16)
        kedge__turn_columns(p, j0 + j + h, j + h < n ? kedge__min(16, n - j - h) : 0, q, k, to + h);
    return;
  }
  const kedge_x *rows_k[KEDGE_KC * KEDGE_UNIT];
  kedge__rows_of(&p->b, q, k, rows_k);
  for (size_t j = 0; j < n; j += TOGETHER * KEDGE_NR, to += TOGETHER * sliver)
    kedge__pack_across(rows_k, j0 + j, kedge__min(TOGETHER * KEDGE_NR, n - j), k, to);
}

#endif
