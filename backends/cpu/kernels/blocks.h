/* SPDX-License-Identifier: Apache-2.0
 *
 * How loops of tuned kernels are cut: blocks fixed by shape, so that results never depend on the number of
 * threads.
 */
#ifndef KEDGE_CPU_BLOCKS_H
#define KEDGE_CPU_BLOCKS_H

#include <stddef.h>

enum {
  KEDGE_BLOCK = 16384
}; /* elements: long enough to pay for handing it out, short enough for the cache */

/* As KEDGE_PARALLEL_FOR, for a loop of `count` turns; a single turn wakes no threads. */
#define KEDGE_PARALLEL_BLOCKS(count)                                                                         \
  KEDGE_PRAGMA_(omp parallel for num_threads((int)call->threads) schedule(dynamic) if ((count) > 1))

/* The same for `work` multiply-adds in all: fewer are done before another thread is awake. */
enum { KEDGE_WAKE = 1 << 21 };
#define KEDGE_PARALLEL_WORK(count, work)                                                                     \
  KEDGE_PRAGMA_(omp parallel for num_threads((int)call->threads) schedule(dynamic) if ((count) > 1 && (work) >= KEDGE_WAKE))

/* for (i = 0; i < count; i++), handed out in blocks of so many turns. */
#define KEDGE_EACH(i, count, block)                                                                          \
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(count, block))                                                         \
  for (size_t first_ = 0; first_ < (count); first_ += (block))                                               \
    for (size_t i = first_; i < kedge__min(first_ + (block), count); i++)

/* A loop without dependences between iterations; the sum of a reduction is by vector lanes, fixed in each
 * build. */
#define KEDGE_SIMD          KEDGE_PRAGMA_(omp simd)
#define KEDGE_SIMD_SUM(sum) KEDGE_PRAGMA_(omp simd reduction(+ : sum))

static inline size_t kedge__min(size_t a, size_t b) {
  return a < b ? a : b;
}
static inline size_t kedge__blocks(size_t n, size_t block) {
  return (n + block - 1) / block;
}
/* Rows of so many columns in a block. */
static inline size_t kedge__block_rows(size_t cols) {
  return cols < KEDGE_BLOCK ? KEDGE_BLOCK / cols : 1;
}

#endif
