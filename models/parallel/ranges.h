/* SPDX-License-Identifier: Apache-2.0
 *
 * Who keeps which part of a parameter's masters and moments, for any number of ranks and any sharing of
 * experts. A checkpoint is read by these ranges, so that it fits every other number of ranks. Sibling:
 * weights.h reads them across ranks. */
#ifndef KEDGE_MODELS_PARALLEL_RANGES_H
#define KEDGE_MODELS_PARALLEL_RANGES_H

#include "core/comm.h"
#include "models/decoder/model.h"

/* How a run lies on ranks: all ranks, and those that share the experts of one copy of the model. */
typedef struct kedge_layout {
  uint32_t ranks, experts;
} kedge_layout;

/* This run's. */
kedge_layout kedge_layout_of(const kedge_comm *comm);
/* Elements of a parameter with all its experts. */
uint64_t kedge_range_total(const kedge_model *model, uint32_t item);
/* The elements, numbered over all experts, whose states a rank keeps. */
kedge_share kedge_range_kept(const kedge_model *model, uint32_t item, kedge_layout layout, uint32_t rank);
/* What two ranges have in common; count 0: nothing. */
kedge_share kedge_range_common(kedge_share a, kedge_share b);

#endif
