/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums over the lanes of eight vectors at once, for dot.h and attention_cached.c. */
#ifndef KEDGE_CPU_LANES_H
#define KEDGE_CPU_LANES_H

#include <string.h>

typedef float kedge_eight __attribute__((vector_size(32)));

#define KEDGE_MIX_8(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)

/* to[i] = the sum of the lanes of s[i], as a tree: lanes four apart first. */
static inline __attribute__((always_inline)) void kedge__sum_eight(kedge_eight s[8], float *to) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++)
    s[i] = KEDGE_MIX_8(s[i], s[i + 4], 0, 1, 2, 3, 8, 9, 10, 11) +
           KEDGE_MIX_8(s[i], s[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++)
    s[i] = KEDGE_MIX_8(s[i], s[i + 2], 0, 1, 8, 9, 4, 5, 12, 13) +
           KEDGE_MIX_8(s[i], s[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
  s[0] =
      KEDGE_MIX_8(s[0], s[1], 0, 8, 2, 10, 4, 12, 6, 14) + KEDGE_MIX_8(s[0], s[1], 1, 9, 3, 11, 5, 13, 7, 15);
  memcpy(to, &s[0], sizeof s[0]);
}

#endif
