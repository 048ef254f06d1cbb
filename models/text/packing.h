/* SPDX-License-Identifier: Apache-2.0
 *
 * Packing: which samples share a row of max_length tokens, and the sizes that token streams are rounded up
 * to.
 */
#ifndef KEDGE_MODELS_TEXT_PACKING_H
#define KEDGE_MODELS_TEXT_PACKING_H

#include "core/kedge.h"

/* Bins of whole samples. Bin b holds samples[offsets[b] .. offsets[b+1]). Start from {0}. */
typedef struct kedge_bins {
  uint32_t count;
  uint32_t *offsets; /* [count+1] */
  uint32_t *samples; /* [samples] each sample once */
} kedge_bins;

/* Best-fit decreasing: samples from the longest to the shortest (equal ones in order), each into the bin with
 * the least room that still holds it (of equal ones the last used), else into a new one. lengths [count] in
 * tokens, 1..capacity, else ERR_ARGUMENT. Deterministic. */
kedge_status kedge_bins_init(kedge_bins *bins, const uint32_t *lengths, uint32_t count, uint32_t capacity);
/* One sample a bin, in order: no packing. */
kedge_status kedge_bins_init_single(kedge_bins *bins, uint32_t count);
void kedge_bins_destroy(kedge_bins *bins);

/* The size that a stream of `tokens` (up to 2^31) is padded to, so that few graph plans serve all: the next
 * of 16, 18, 20, .. 32, 36, .. 64, 72, ..: eight sizes an octave, at most 12.5 % more than asked, never
 * below 16. */
uint32_t kedge_bucket(uint32_t tokens);

#endif
