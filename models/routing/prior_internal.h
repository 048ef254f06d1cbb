/* SPDX-License-Identifier: Apache-2.0
 * What the files of the prior share: an open file and its rows (prior.c). */
#ifndef KEDGE_MODELS_ROUTING_PRIOR_INTERNAL_H
#define KEDGE_MODELS_ROUTING_PRIOR_INTERNAL_H

#include "models/checkpoint/safetensors.h"
#include "models/routing/prior.h"

struct kedge_prior {
  kedge_st_file *file;
  const kedge_st_tensor *prior, *counts, *ids, *layers;
  uint32_t samples, moe_layers, experts;
  kedge_prior_identity identity;
};

/* Row of a stable sample id; UINT32_MAX if there is none. */
uint32_t kedge__prior_row_of(const kedge_prior *prior, uint64_t id);
/* Tokens of the two spans of a row. */
void kedge__prior_counts(const kedge_prior *prior, uint32_t row, int32_t counts[2]);
/* pi [E] of one row as f32. ERR_FORMAT, with row, span and layer, unless these are probabilities that sum to
 * 1 within 1e-3. */
kedge_status kedge__prior_read_row(const kedge_prior *prior, uint32_t row, uint32_t span, uint32_t layer,
                                   float *pi);

#endif
