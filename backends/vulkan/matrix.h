/* SPDX-License-Identifier: Apache-2.0
 *
 * Which of a device's matrix shapes products of bf16 take (matrix.c asks the driver, kernels/matmul.c
 * launches). It knows nothing of Vulkan's headers, so that a test can give it the lists of devices.
 */
#ifndef KEDGE_BACKEND_VULKAN_MATRIX_H
#define KEDGE_BACKEND_VULKAN_MATRIX_H

#include <stdbool.h>
#include <stdint.h>

/* C, of m x n, += A B over k. All 0: none. */
typedef struct vk_matrix {
  uint32_t m, n, k;
} vk_matrix;

/* An entry of the driver's list. */
typedef struct vk_matrix_entry {
  vk_matrix shape;
  bool f16_in, f32_sums, subgroup; /* A and B; C and the result; a subgroup multiplies together */
} vk_matrix_entry;

/* How subgroups and their matrices make a workgroup's tile. */
typedef struct vk_matrix_tile {
  uint32_t down, across;       /* matrices of a subgroup */
  uint32_t subgroups, side;    /* of a workgroup; how many of them lie side by side */
  uint32_t step;               /* of k that is in shared memory at a time */
  uint32_t high, wide, shared; /* rows, columns, bytes of shared memory */
} vk_matrix_tile;

/* The list's best: most products a turn, of those the squarest, of those the first. Sides are powers of two
 * from 8 to 32, which the tiles are made for. */
static inline vk_matrix vk_matrix_choose(const vk_matrix_entry *list, uint32_t count) {
  vk_matrix best = {0, 0, 0};
  uint32_t best_work = 0, best_sum = 0;
  for (uint32_t i = 0; i < count; i++) {
    const vk_matrix s = list[i].shape;
    const uint32_t sides[] = {s.m, s.n, s.k};
    bool fits = list[i].f16_in && list[i].f32_sums && list[i].subgroup;
    for (int j = 0; j < 3; j++) fits &= sides[j] == 8 || sides[j] == 16 || sides[j] == 32;
    if (!fits) continue;
    const uint32_t work = s.m * s.n * s.k, sum = s.m + s.n + s.k;
    if (work < best_work || (work == best_work && sum >= best_sum)) continue;
    best = s;
    best_work = work;
    best_sum = sum;
  }
  return best;
}

/* The tile for `rows` rows of C on a device with `lanes` lanes a subgroup: up to 128 x 128. */
static inline vk_matrix_tile vk_matrix_tile_for(vk_matrix s, uint32_t lanes, uint64_t rows) {
  vk_matrix_tile t = {.subgroups = lanes > 32 ? 4 : 8, .side = lanes > 32 ? 2 : 4, .step = 32};
  const uint32_t stacked = t.subgroups / t.side;
  t.down = 64 / s.m;
  t.across = 128 / (s.n * t.side);
  if (!t.across) t.across = 1;
  if (t.down > 4) t.down = 4;
  if (t.across > 4) t.across = 4;
  while (t.down > 1 && (uint64_t)t.down / 2 * s.m * stacked >= rows) t.down /= 2;
  t.high = t.down * s.m * stacked;
  t.wide = t.across * s.n * t.side;
  /* Either operand in the layout that takes more, lines and scales, a matrix of sums of each subgroup. */
  const uint32_t a =
      t.high * (t.step + 8) > t.step * (t.high + 8) ? t.high * (t.step + 8) : t.step * (t.high + 8);
  const uint32_t b =
      t.wide * (t.step + 8) > t.step * (t.wide + 8) ? t.wide * (t.step + 8) : t.step * (t.wide + 8);
  const uint32_t lines = (t.high > t.step ? t.high : t.step) + (t.wide > t.step ? t.wide : t.step);
  t.shared = 2 * (a + b) + 4 * (lines + t.high + t.wide + t.subgroups * s.m * s.n);
  return t;
}

#endif
