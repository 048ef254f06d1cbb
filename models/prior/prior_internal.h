/* SPDX-License-Identifier: Apache-2.0
 * What the files of the prior share: an open file and its rows (prior.c), the header of a new one
 * (prior_header.c). */
#ifndef KEDGE_MODELS_ROUTING_PRIOR_INTERNAL_H
#define KEDGE_MODELS_ROUTING_PRIOR_INTERNAL_H

#include "models/checkpoint/writer.h"
#include "models/prior/prior.h"

struct kedge_prior {
  kedge_st_file *file;
  const kedge_st_tensor *prior, *counts, *ids, *layers;
  uint32_t samples, moe_layers, experts, version, top_k;
  kedge_prior_identity identity;
  char *shuffled;  /* text about the file's shuffle */
  uint32_t *sigma; /* [L,E] of kedge_prior_set_shuffle; NULL: none */
};

/* Row of a stable sample id; UINT32_MAX if there is none. */
uint32_t kedge__prior_row_of(const kedge_prior *prior, uint64_t id);
/* Tokens of the two spans of a row. */
void kedge__prior_counts(const kedge_prior *prior, uint32_t row, int32_t counts[2]);
/* pi [E] of one row as f32, shuffled if a shuffle is set. ERR_FORMAT, with row, span and layer, unless these
 * are probabilities that sum to 1 within 1e-3. */
kedge_status kedge__prior_read_row(const kedge_prior *prior, uint32_t row, uint32_t span, uint32_t layer,
                                   float *pi);

/* The tensors of a prior file in their order, and what its metadata say. */
enum { KEDGE__PRIOR_IDS, KEDGE__PRIOR_COUNTS, KEDGE__PRIOR_LAYERS, KEDGE__PRIOR_ROWS, KEDGE__PRIOR_TENSORS };
enum { KEDGE__PRIOR_PAIRS = 20 };
typedef struct kedge__prior_header {
  kedge_st_spec specs[KEDGE__PRIOR_TENSORS];
  kedge_st_pair pairs[KEDGE__PRIOR_PAIRS];
  uint32_t pair_count;
  char max_length[16], top_k[16], seed[24];
} kedge__prior_header;

/* Borrows `identity` and `shuffle` (NULL: none), and points into *header itself. top_k 0: not told. */
void kedge__prior_header_init(kedge__prior_header *header, uint32_t samples, uint32_t layers,
                              uint32_t experts, bool half, const kedge_prior_identity *identity,
                              uint32_t top_k, const kedge_shuffle *shuffle);

#endif
