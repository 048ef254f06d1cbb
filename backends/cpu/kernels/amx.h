/* SPDX-License-Identifier: Apache-2.0
 *
 * The tile instructions of AMX-bf16, as own assembly: the compiler's builtins promise too little about the
 * memory that they read and write. There are eight tiles of 16 rows of 64 bytes; their configuration belongs
 * to a thread, so a kernel begins and ends it in each of its blocks.
 *
 * Tile c += a b: c [16,16] floats; a [16 rows, 16 pairs of bf16]; b [16 pairs, 16 columns], each pair
 * together.
 *
 * With KEDGE_AMX_EMULATED the same functions are plain C (tests/test_cpu_products.c), so that packing, tile
 * indices and tails run on machines without the instructions.
 */
#ifndef KEDGE_CPU_AMX_H
#define KEDGE_CPU_AMX_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { KEDGE_AMX_ROWS = 16, KEDGE_AMX_WORDS = 16 }; /* of a tile, and 32-bit words of its rows */

/* What ldtilecfg reads. */
typedef struct kedge_amx_config {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} kedge_amx_config;

#if defined(KEDGE_AMX_EMULATED)

static _Thread_local uint32_t kedge__amx_tiles[8][KEDGE_AMX_ROWS][KEDGE_AMX_WORDS];

static inline void kedge__amx_begin(void) {
  memset(kedge__amx_tiles, 0, sizeof kedge__amx_tiles);
}
static inline void kedge__amx_end(void) {
  memset(kedge__amx_tiles, 0xff, sizeof kedge__amx_tiles); /* what was not loaded again is not a number */
}
static inline float kedge__amx_float(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}
#define kedge__amx_zero(tile) memset(kedge__amx_tiles[tile], 0, sizeof kedge__amx_tiles[tile])
#define kedge__amx_load(tile, base, pitch)                                                                   \
  for (size_t kedge_r = 0; kedge_r < KEDGE_AMX_ROWS; kedge_r++)                                              \
  memcpy(kedge__amx_tiles[tile][kedge_r], (const char *)(base) + kedge_r * (pitch), 64)
#define kedge__amx_store(tile, base, pitch)                                                                  \
  for (size_t kedge_r = 0; kedge_r < KEDGE_AMX_ROWS; kedge_r++)                                              \
  memcpy((char *)(base) + kedge_r * (pitch), kedge__amx_tiles[tile][kedge_r], 64)
static inline void kedge__amx_multiply(int c, int a, int b) {
  for (int i = 0; i < KEDGE_AMX_ROWS; i++)
    for (int p = 0; p < KEDGE_AMX_WORDS; p++)
      for (int j = 0; j < KEDGE_AMX_WORDS; j++) {
        const uint32_t x = kedge__amx_tiles[a][i][p], y = kedge__amx_tiles[b][p][j];
        float sum = kedge__amx_float(kedge__amx_tiles[c][i][j]);
        sum += kedge__amx_float(x << 16) * kedge__amx_float(y << 16);
        sum += kedge__amx_float(x & 0xffff0000u) * kedge__amx_float(y & 0xffff0000u);
        memcpy(&kedge__amx_tiles[c][i][j], &sum, sizeof sum);
      }
}

#else

static inline void kedge__amx_begin(void) {
  kedge_amx_config config = {.palette = 1};
  for (int t = 0; t < 8; t++) {
    config.row_bytes[t] = 4 * KEDGE_AMX_WORDS;
    config.rows[t] = KEDGE_AMX_ROWS;
  }
  __asm__ volatile("ldtilecfg %0" : : "m"(config) : "memory");
}
static inline void kedge__amx_end(void) {
  __asm__ volatile("tilerelease" : : : "memory");
}
/* The number of a tile is part of an instruction: a constant, here as the text of its name. */
#define KEDGE_AMX_TEXT(tile)  #tile
#define kedge__amx_zero(tile) __asm__ volatile("tilezero %%tmm" KEDGE_AMX_TEXT(tile) : : :)
#define kedge__amx_load(tile, base, pitch)                                                                   \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" KEDGE_AMX_TEXT(tile)                                         \
                   :                                                                                         \
                   : "r"((const void *)(base)), "r"((ptrdiff_t)(pitch))                                      \
                   : "memory")
#define kedge__amx_store(tile, base, pitch)                                                                  \
  __asm__ volatile("tilestored %%tmm" KEDGE_AMX_TEXT(tile) ", (%0,%1,1)"                                     \
                   :                                                                                         \
                   : "r"((void *)(base)), "r"((ptrdiff_t)(pitch))                                            \
                   : "memory")
#define kedge__amx_multiply(c, a, b)                                                                         \
  __asm__ volatile(                                                                                          \
      "tdpbf16ps %%tmm" KEDGE_AMX_TEXT(b) ", %%tmm" KEDGE_AMX_TEXT(a) ", %%tmm" KEDGE_AMX_TEXT(c)            \
      :                                                                                                      \
      :                                                                                                      \
      :)

#endif
#endif
