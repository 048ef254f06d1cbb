/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks of matrix products on packed panels, for every instruction set and storage type. A panel is made of
 * 32-bit words: a float (bf16 is widened while packing), or, where the machine multiplies pairs, two bf16
 * that follow each other along the inner dimension. So one layout serves fused multiply-add, vdpbf16ps and
 * AMX:
 *
 *   A  slivers of MR rows; a sliver is [MR][words of the panel], or [words][MR] where the rows are columns in
 *      memory (AMX: [MR][KC] always)
 *   B  slivers of NR columns; a sliver is [words of the panel][NR] words
 *
 * Rows, columns and words past the end are zeros, so that no kernel reads past an operand. Operands with
 * short rows whose elements are words already are not packed where the kernels can do without
 * (kedge__source_a). Packing is in gemm_pack.h, the kernels are in gemm_vector.h and gemm_amx.h.
 */
#ifndef KEDGE_CPU_GEMM_H
#define KEDGE_CPU_GEMM_H

#include "backends/cpu/kernels/blocks.h"
#include "backends/cpu/kernels/kernel.h"

#if defined(KEDGE_STORAGE_BF16) && (defined(KEDGE_AMX) || defined(__AVX512BF16__))
#define KEDGE_PAIRS 1
enum { KEDGE_UNIT = 2 }; /* elements of a word */
#else
enum { KEDGE_UNIT = 1 };
#endif

/* A panel's inner dimension in words; the largest block of the result. The panel of B stays in a cache of a
 * MiB, of A a sliver at a time stays in the first one. */
enum { KEDGE_KC = 256, KEDGE_MC = 512, KEDGE_NC = 512 };

#if defined(KEDGE_AMX)
#include "backends/cpu/kernels/gemm_amx.h"
#else
#include "backends/cpu/kernels/gemm_vector.h"
#endif

#include "backends/cpu/kernels/gemm_pack.h"

/* Scratch of a thread in words: both panels and a block of the result. */
enum {
  KEDGE_A_WORDS = (KEDGE_MC + KEDGE_MR) * KEDGE_KC,
  KEDGE_B_WORDS = KEDGE_KC * (KEDGE_NC + KEDGE_NR),
  KEDGE_GEMM_WORDS = KEDGE_A_WORDS + KEDGE_B_WORDS + KEDGE_MC * KEDGE_NC
};

/* ---- Blocks
 * ------------------------------------------------------------------------------------------------------ */

/* Where a block of the result goes: f32 `c`; with `y`, bf16 there, and c holds sums until the last panel. */
typedef struct kedge_target {
  float *c;
  uint16_t *y;
  size_t c_pitch, y_pitch;
} kedge_target;

/* What a panel is read from: packed slivers, or the operand where it lies. */
typedef struct kedge_source {
  const char *data;
  size_t step;   /* A: bytes from a row to the next or, transposed, from a word to the next; B: from a word */
  size_t sliver; /* bytes from a row (A) or column (B) to the next one; 0: the slivers are packed */
} kedge_source;

/* Rows of up to this many bytes can be read where they lie; those of a sliver have no room in the first cache
 * side by side where rows are long. */
enum { KEDGE_SHORT_ROW = 1024 };

/* Whether an operand need not be packed: its elements are words already, its rows short. */
static inline bool kedge__reads_in_place(const kedge_operand *m, size_t k, bool across) {
  return KEDGE_READS_IN_PLACE && sizeof(kedge_x) * KEDGE_UNIT == 4 && !m->slots &&
         m->pitch * sizeof(kedge_x) <= KEDGE_SHORT_ROW && (KEDGE_UNIT == 1 || (!across && k % 2 == 0));
}

/* Rows [i0, i0 + m) of op(A), elements [q, q + k) of each, packed into `room` where they must be. */
static inline kedge_source kedge__source_a(const kedge_product *p, size_t i0, size_t m, size_t q, size_t k,
                                           uint32_t *room) {
  const size_t pitch = p->a.pitch * sizeof(kedge_x);
  if (kedge__reads_in_place(&p->a, p->k, p->trans_a))
    return p->trans_a
               ? (kedge_source){(const char *)(p->a.data + q * p->a.pitch + i0), pitch, sizeof(kedge_x)}
               : (kedge_source){(const char *)(p->a.data + i0 * p->a.pitch + q), pitch, pitch};
  kedge__pack_a(p, i0, m, q, k, room);
  return (kedge_source){(const char *)room,
                        (p->trans_a ? KEDGE_MR : KEDGE_A_ROW(kedge__words(k))) * sizeof *room, 0};
}

/* Columns [j0, j0 + n) of op(B); in place only in whole slivers, because kernels read all of one. */
static inline kedge_source kedge__source_b(const kedge_product *p, size_t j0, size_t n, size_t q, size_t k,
                                           uint32_t *room) {
  if (!p->trans_b && n % KEDGE_NR == 0 && kedge__reads_in_place(&p->b, p->k, true))
    return (kedge_source){(const char *)(p->b.data + q * p->b.pitch + j0), p->b.pitch * sizeof(kedge_x),
                          sizeof(kedge_x)};
  kedge__pack_b(p, j0, n, q, k, room);
  return (kedge_source){(const char *)room, KEDGE_NR * sizeof *room, 0};
}

/* A tile of sums [rows, cols] becomes bf16. */
static inline void kedge__narrow_tile(const float *from, size_t rows, size_t cols, uint16_t *y,
                                      size_t pitch) {
  for (size_t r = 0; r < rows; r++, from += KEDGE_NR, y += pitch)
    if (cols == KEDGE_NR)
      kedge__narrow_row(from, y);
    else
      for (size_t x = 0; x < cols; x++) y[x] = kedge__bf16_round(from[x]);
}

/* Rows [row, row + rows) and columns [j, j + cols) of a block by one sliver of A and one of B. */
static inline void kedge__multiply_tile(const kedge_target *t, size_t row, size_t rows, size_t j, size_t cols,
                                        size_t words, bool trans_a, const char *left, size_t a_step,
                                        const char *right, size_t b_step, bool add, bool narrow) {
  float edge[KEDGE_MR * KEDGE_NR];
  float *c = t->c + row * t->c_pitch + j;
  if (!narrow && cols == KEDGE_NR) {
    kedge__micro(rows, words, left, a_step, trans_a, right, b_step, add ? c : NULL, t->c_pitch, c,
                 t->c_pitch);
    return;
  }
  if (add && cols == KEDGE_NR) {
    kedge__micro(rows, words, left, a_step, trans_a, right, b_step, c, t->c_pitch, edge, KEDGE_NR);
  } else {
    kedge__micro(rows, words, left, a_step, trans_a, right, b_step, NULL, 0, edge, KEDGE_NR);
    for (size_t r = 0; add && r < rows; r++)
      for (size_t x = 0; x < cols; x++) edge[r * KEDGE_NR + x] += c[r * t->c_pitch + x];
  }
  if (narrow)
    kedge__narrow_tile(edge, rows, cols, t->y + row * t->y_pitch + j, t->y_pitch);
  else
    for (size_t r = 0; r < rows; r++) memcpy(c + r * t->c_pitch, edge + r * KEDGE_NR, cols * sizeof *edge);
}

/* The block of the result [m,n] += A panel times B panel; without `add` it starts at 0. */
static inline void kedge__multiply_panels(const kedge_target *t, size_t m, size_t n, size_t words,
                                          bool trans_a, const kedge_source *a, const kedge_source *b,
                                          bool add, bool last) {
  const kedge_slivers s = kedge__slivers(m);
  for (size_t i = 0, row = 0; i < s.count; i++) {
    const size_t rows = s.height + (i < s.higher);
    const char *left = a->data + (a->sliver ? row * a->sliver : i * KEDGE_A_SLIVER(words) * sizeof(uint32_t));
    for (size_t j = 0; j < n; j += KEDGE_NR) {
      const char *right = b->data + j * (b->sliver ? b->sliver : KEDGE_PADDED(words) * sizeof(uint32_t));
      kedge__multiply_tile(t, row, rows, j, kedge__min(KEDGE_NR, n - j), words, trans_a, left, a->step, right,
                           b->step, add, t->y && last);
    }
    row += rows;
  }
}

/* The block [i0, i0 + m) x [j0, j0 + n) of a product, m <= KEDGE_MC, n <= KEDGE_NC, stored, or with `add`
 * (f32 alone) added to what is there. `scratch`: KEDGE_A_WORDS + KEDGE_B_WORDS words, 64-byte aligned. */
static inline void kedge__gemm_block(const kedge_product *p, size_t i0, size_t m, size_t j0, size_t n,
                                     const kedge_target *t, bool add, uint32_t *scratch) {
  uint32_t *a = scratch, *b = scratch + KEDGE_A_WORDS;
  const size_t panel = KEDGE_KC * KEDGE_UNIT;
  kedge__micro_begin();
  for (size_t q = 0; q < p->k; q += panel) {
    const size_t k = kedge__min(panel, p->k - q);
    const kedge_source left = kedge__source_a(p, i0, m, q, k, a), right = kedge__source_b(p, j0, n, q, k, b);
    kedge__multiply_panels(t, m, n, kedge__words(k), p->trans_a, &left, &right, add || q > 0, q + k == p->k);
  }
  kedge__micro_end();
}

#endif
