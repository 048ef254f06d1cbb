/* SPDX-License-Identifier: Apache-2.0
 *
 * The softmax of a row of scores that comes in pieces, for attention.c and attention_cached.c. */
#ifndef KEDGE_CPU_SOFTEN_H
#define KEDGE_CPU_SOFTEN_H

#include "backends/cpu/kernels/blocks.h"
#include "backends/cpu/kernels/kernel.h"
#include "backends/cpu/kernels/vexp.h"

/* The sum of all lanes as a tree, lanes far apart first. */
static inline float kedge__sum_lanes(float *lanes) {
  for (size_t n = KEDGE_LANES / 2; n; n /= 2)
    for (size_t l = 0; l < n; l++) lanes[l] += lanes[l + n];
  return lanes[0];
}

/* Scores become probabilities relative to the largest score so far. What is behind the `count` scores, up to
 * a whole number of KEDGE_LANES, is overwritten. Returns by how much what was summed before shrinks. */
static inline float kedge__soften(float *row, size_t count, float scale, float *max, float *total) {
  float tops[KEDGE_LANES], sums[KEDGE_LANES] = {0};
  const size_t padded = kedge__blocks(count, KEDGE_LANES) * KEDGE_LANES;
  for (size_t j = count; j < padded; j++) row[j] = -INFINITY;
  for (size_t l = 0; l < KEDGE_LANES; l++) tops[l] = *max;
  for (size_t j = 0; j < padded; j += KEDGE_LANES) {
    KEDGE_SIMD
    for (size_t l = 0; l < KEDGE_LANES; l++) {
      row[j + l] *= scale;
      tops[l] = row[j + l] > tops[l] ? row[j + l] : tops[l];
    }
  }
  for (size_t n = KEDGE_LANES / 2; n; n /= 2)
    for (size_t l = 0; l < n; l++) tops[l] = tops[l + n] > tops[l] ? tops[l + n] : tops[l];
  const float top = tops[0];
  for (size_t j = 0; j < padded; j += KEDGE_LANES) {
    KEDGE_SIMD
    for (size_t l = 0; l < KEDGE_LANES; l++) {
      row[j + l] = kedge__vexp(row[j + l] - top);
      sums[l] += j + l < count ? row[j + l] : 0;
    }
  }
  const float shrink = kedge__vexp(*max - top);
  *total = *total * shrink + kedge__sum_lanes(sums);
  *max = top;
  return shrink;
}

#endif
