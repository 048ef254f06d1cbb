/* SPDX-License-Identifier: Apache-2.0
 *
 * Near ties: a token whose last chosen expert and best one left out have scored nearly the same in a layer.
 * There rounding decides, so that the same model on another number of ranks, or on another kind of device,
 * may choose another expert, and what comes after differs by more than rounding. Told of traces that have
 * gaps (trace.h). */
#ifndef KEDGE_MODELS_TRACE_NEAR_TIES_H
#define KEDGE_MODELS_TRACE_NEAR_TIES_H

#include "models/trace/trace.h"

/* How many rows have a gap below `tolerance`; counts [layers] by layer, NULL: not wanted. A trace without
 * gaps has none. */
uint64_t kedge_near_ties_count(const kedge_trace *trace, double tolerance, uint64_t *counts);

/* Writes them as CSV, by tokens, then layers: token (its number in the trace), sample, layer (its number in
 * the model), chosen, left_out (experts), gap. Only the head where there are none. ERR_IO, ERR_MEMORY. */
kedge_status kedge_near_ties_save(const kedge_trace *trace, double tolerance, const char *path);

/* Two traces of the same tokens, choice by choice. */
typedef struct kedge_flips {
  uint64_t rows;         /* compared */
  uint64_t flipped;      /* that have other experts, in whatever order */
  uint64_t unexplained;  /* of these, no near tie of the first trace, nor is an earlier layer's choice of the
                            same  sample flipped, which changes all that follows it */
  uint32_t token, layer; /* the first unexplained one */
} kedge_flips;

/* ERR_MISMATCH unless both are of the same samples, layers and experts; ERR_ARGUMENT without gaps in `a`. */
kedge_status kedge_flips_find(const kedge_trace *a, const kedge_trace *b, double tolerance,
                              kedge_flips *flips);

#endif
