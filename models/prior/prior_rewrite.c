/* SPDX-License-Identifier: Apache-2.0
 * A permuted copy of a prior file (prior.h). */
#include "models/prior/prior_internal.h"

#include "models/checkpoint/convert.h"

#include <string.h>

typedef struct source {
  const kedge_prior *prior;
  float *pi;       /* [E] */
  uint8_t *stored; /* [E] as in the file */
} source;

/* One row as it is stored: permuted by the prior, zeros where it has no tokens. */
static kedge_status load_row(const source *s, uint64_t row) {
  const kedge_prior *p = s->prior;
  const uint32_t layer = (uint32_t)(row % p->moe_layers), span = (uint32_t)(row / p->moe_layers % 2),
                 sample = (uint32_t)(row / p->moe_layers / 2);
  int32_t counts[2];
  kedge__prior_counts(p, sample, counts);
  memset(s->stored, 0, (size_t)p->experts * kedge_st_dtype_size(p->prior->dtype));
  if (counts[span] <= 0) return KEDGE_OK;
  KEDGE_TRY(kedge__prior_read_row(p, sample, span, layer, s->pi));
  return kedge_convert_floats(s->stored, p->prior->dtype, s->pi, KEDGE_ST_F32, p->experts);
}

static kedge_status fill(void *context, uint32_t index, uint64_t offset, void *buffer, uint64_t bytes) {
  const source *s = context;
  const kedge_prior *p = s->prior;
  const kedge_st_tensor *const tensors[] = {p->ids, p->counts, p->layers};
  if (index != KEDGE__PRIOR_ROWS) {
    memcpy(buffer, tensors[index]->data + offset, bytes);
    return KEDGE_OK;
  }
  const uint64_t size = (uint64_t)p->experts * kedge_st_dtype_size(p->prior->dtype);
  for (uint64_t at = 0; at < bytes;) { /* a piece may begin and end inside a row */
    const uint64_t inside = (offset + at) % size, left = bytes - at,
                   part = size - inside < left ? size - inside : left;
    KEDGE_TRY(load_row(s, (offset + at) / size));
    memcpy((uint8_t *)buffer + at, s->stored + inside, part);
    at += part;
  }
  kedge_st_drop(p->prior);
  return KEDGE_OK;
}

kedge_status kedge_prior_save_shuffled(kedge_prior *prior, const kedge_shuffle *shuffle, const char *path) {
  KEDGE_TRY(kedge_prior_set_shuffle(prior, shuffle));
  kedge__prior_header header;
  source s = {.prior = prior,
              .pi = kedge_alloc(prior->experts, sizeof *s.pi),
              .stored = kedge_alloc(prior->experts, sizeof *s.pi)};
  kedge_status status = s.pi && s.stored ? KEDGE_OK : KEDGE_ERR_MEMORY;
  kedge__prior_header_init(&header, prior->samples, prior->moe_layers, prior->experts,
                           prior->prior->dtype == KEDGE_ST_F16, &prior->identity, prior->top_k, shuffle);
  if (status == KEDGE_OK)
    status =
        kedge_st_write(path, header.specs, KEDGE__PRIOR_TENSORS, header.pairs, header.pair_count, fill, &s);
  kedge_free(s.pi);
  kedge_free(s.stored);
  return status;
}
