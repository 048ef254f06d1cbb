/* SPDX-License-Identifier: Apache-2.0
 *
 * The innermost product of gemm.h in AMX tiles: 2 x 2 tiles of sums, the whole panel of the inner dimension
 * in one go. Slivers are padded with zeros to whole tiles. */
#ifndef KEDGE_CPU_GEMM_AMX_H
#define KEDGE_CPU_GEMM_AMX_H

#include "backends/cpu/kernels/amx.h"

enum { KEDGE_MR = 32, KEDGE_NR = 32 };
enum { KEDGE_READS_IN_PLACE = 0 }; /* slivers are padded while packing */

#define KEDGE_PADDED(words) (((words) + KEDGE_AMX_WORDS - 1) / KEDGE_AMX_WORDS * KEDGE_AMX_WORDS)

#define KEDGE_A_ROW(words)    KEDGE_KC
#define KEDGE_A_SLIVER(words) (KEDGE_MR * KEDGE_KC)

/* A row of sums [NR] as bf16. */
static inline void kedge__narrow_row(const float *from, uint16_t *y) {
  for (size_t x = 0; x < KEDGE_NR; x++) y[x] = kedge__bf16_round(from[x]);
}

/* Around the products of a block: the configuration of this thread's tiles. */
static inline void kedge__micro_begin(void) {
  kedge__amx_begin();
}
static inline void kedge__micro_end(void) {
  kedge__amx_end();
}

static inline void kedge__transpose_16(uint32_t *restrict to, size_t to_pitch, const void *restrict from,
                                       size_t from_bytes);

/* A sliver that was packed as [words][MR] becomes [MR][KC]. Both fill the same room, so it goes by way of a
 * copy. */
static inline void kedge__turn_sliver(uint32_t *sliver, size_t words) {
  uint32_t copy[KEDGE_MR * KEDGE_KC];
  memcpy(copy, sliver, words * KEDGE_MR * sizeof *copy);
  memset(copy + words * KEDGE_MR, 0, (KEDGE_PADDED(words) - words) * KEDGE_MR * sizeof *copy);
  for (size_t w = 0; w < KEDGE_PADDED(words); w += 16)
    for (size_t h = 0; h < KEDGE_MR; h += 16)
      kedge__transpose_16(sliver + h * KEDGE_KC + w, KEDGE_KC, copy + w * KEDGE_MR + h,
                          KEDGE_MR * sizeof *copy);
}

/* Rows that are not there. */
static inline void kedge__fill_sliver(uint32_t *sliver, size_t rows, size_t words) {
  for (size_t r = rows; r < KEDGE_MR; r++)
    memset(sliver + r * KEDGE_KC, 0, KEDGE_PADDED(words) * sizeof *sliver);
}

/* to [rows, NR] = from (NULL: 0) + sliver of A [rows, words] times sliver of B [words, NR]. */
static inline void kedge__micro(size_t rows, size_t words, const char *a, size_t step, bool trans,
                                const char *b, size_t b_step, const float *from, size_t from_pitch, float *to,
                                size_t to_pitch) {
  float sums[KEDGE_MR * KEDGE_NR];
  const size_t pitch_a = KEDGE_KC * sizeof(uint32_t), pitch_b = b_step, pitch = KEDGE_NR * sizeof *sums;
  (void)step, (void)trans; /* kedge__turn_sliver has turned it */
  kedge__amx_zero(0);
  kedge__amx_zero(1);
  kedge__amx_zero(2);
  kedge__amx_zero(3);
  for (size_t w = 0; w < words; w += KEDGE_AMX_WORDS) {
    const char *x = a + w * sizeof(uint32_t), *y = b + w * b_step;
    kedge__amx_load(4, x, pitch_a);
    kedge__amx_load(6, y, pitch_b);
    kedge__amx_multiply(0, 4, 6);
    kedge__amx_load(7, y + 16 * sizeof(uint32_t), pitch_b);
    kedge__amx_multiply(1, 4, 7);
    kedge__amx_load(5, x + 16 * pitch_a, pitch_a);
    kedge__amx_multiply(2, 5, 6);
    kedge__amx_multiply(3, 5, 7);
  }
  kedge__amx_store(0, sums, pitch);
  kedge__amx_store(1, sums + 16, pitch);
  kedge__amx_store(2, sums + 16 * KEDGE_NR, pitch);
  kedge__amx_store(3, sums + 16 * KEDGE_NR + 16, pitch);
  for (size_t r = 0; r < rows; r++)
    for (size_t j = 0; j < KEDGE_NR; j++)
      to[r * to_pitch + j] = (from ? from[r * from_pitch + j] : 0) + sums[r * KEDGE_NR + j];
}

#endif
