/* SPDX-License-Identifier: Apache-2.0
 * Saving a model whose weights lie on several ranks (weights.h). */
#include "models/parallel/weights.h"

#include "models/checkpoint/writer.h"

#include <assert.h>

/* What rank 0 asks for: elements of a parameter; count 0 ends the asking. */
typedef struct request {
  uint64_t item, start, count;
} request;

typedef struct reader {
  const kedge_optimizer *optimizer;
  kedge_layout layout;
  kedge_parcel *to, *from;
  float *values; /* [MOST] what this rank answers */
} reader;

enum { MOST = KEDGE_ST_PIECE / 2 }; /* elements of a request: files have at least two bytes for each */

static kedge_status reader_init(reader *r, const kedge_optimizer *o) {
  *r = (reader){.optimizer = o, .layout = kedge_layout_of(o->comm)};
  r->to = kedge_alloc(r->layout.ranks, sizeof *r->to);
  r->from = kedge_alloc(r->layout.ranks, sizeof *r->from);
  r->values = kedge_alloc(MOST, sizeof *r->values);
  return r->to && r->from && r->values ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

static void reader_destroy(reader *r) {
  kedge_free(r->to);
  kedge_free(r->from);
  kedge_free(r->values);
}

/* The master, or the weights themselves, of the rank's own share: elements from `start` on, over all experts.
 */
static kedge_status read_own(const kedge_optimizer *o, uint32_t item, kedge_share kept, kedge_share wanted,
                             float *values) {
  const uint64_t at = wanted.start - kept.start, bytes = wanted.count * sizeof *values;
  if (o->master[item]) return kedge_buffer_read(o->master[item], at * sizeof *values, values, bytes);
  const uint64_t start = o->shares[item].start + at;
  return kedge_buffer_read(o->model->weights[item], start * sizeof *values, values, bytes);
}

/* Every rank's part of what was asked for, sent to rank 0, which has `out`. A failure is told by a later
 * agreement: the bytes are sent all the same. */
static kedge_status answer(reader *r, const request *q, float *out) {
  const kedge_optimizer *o = r->optimizer;
  const uint32_t item = (uint32_t)q->item, own = kedge_comm_rank(o->comm, KEDGE_RANKS_ALL);
  const kedge_share asked = {q->start, q->count}, kept = kedge_range_kept(o->model, item, r->layout, own),
                    mine = kedge_range_common(asked, kept);
  kedge_status status = KEDGE_OK;
  assert(q->count <= MOST);
  if (mine.count) status = read_own(o, item, kept, mine, r->values);
  for (uint32_t rank = 0; rank < r->layout.ranks; rank++) {
    const kedge_share theirs = kedge_range_common(asked, kedge_range_kept(o->model, item, r->layout, rank));
    r->to[rank] = (kedge_parcel){r->values, rank ? 0 : mine.count * sizeof *r->values};
    r->from[rank] =
        (kedge_parcel){out ? out + (theirs.start - asked.start) : NULL, out ? theirs.count * sizeof *out : 0};
  }
  kedge_status sent = kedge__comm_exchange(o->comm, KEDGE_RANKS_ALL, r->to, r->from);
  return sent == KEDGE_OK ? status : sent;
}

/* A trained parameter's elements; the others lie whole on every rank. */
static kedge_status ask(void *context, uint32_t item, uint64_t start, uint64_t count, float *values,
                        bool *own) {
  reader *r = context;
  request q = {item, start, count};
  *own = !r->optimizer->trained[item] && kedge_range_total(r->optimizer->model, item) ==
                                             kedge_param_count(&r->optimizer->model->params.items[item]);
  if (*own) return KEDGE_OK;
  KEDGE_TRY(kedge_comm_broadcast(r->optimizer->comm, 0, &q, sizeof q));
  return answer(r, &q, values);
}

static kedge_status serve(reader *r) {
  kedge_status status = KEDGE_OK;
  for (;;) {
    request q = {0};
    KEDGE_TRY(kedge_comm_broadcast(r->optimizer->comm, 0, &q, sizeof q));
    if (!q.count) return status;
    kedge_status one = answer(r, &q, NULL);
    if (status == KEDGE_OK) status = one;
  }
}

kedge_status kedge_weights_save(const kedge_optimizer *o, const char *folder, kedge_notes *notes) {
  if (kedge_comm_size(o->comm, KEDGE_RANKS_ALL) == 1)
    return kedge_model_save(o->model, o->master, folder, notes);
  reader r;
  kedge_status status = kedge_comm_agree(o->comm, reader_init(&r, o));
  if (status == KEDGE_OK && kedge_comm_rank(o->comm, KEDGE_RANKS_ALL)) {
    status = serve(&r);
  } else if (status == KEDGE_OK) {
    request end = {0};
    status = kedge_model_save_from(o->model, ask, &r, folder, notes);
    kedge_status told = kedge_comm_broadcast(o->comm, 0, &end, sizeof end);
    if (status == KEDGE_OK) status = told;
  }
  reader_destroy(&r);
  return status;
}
