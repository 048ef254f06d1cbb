/* SPDX-License-Identifier: Apache-2.0
 * Rows of an evaluation from all ranks (rows.h). */
#include "models/evaluation/rows.h"

#include <stdlib.h>
#include <string.h>

void kedge__rows_free(kedge__rows *r) {
  kedge_free(r->text);
  *r = (kedge__rows){0};
}

kedge_status kedge__rows_add(kedge__rows *r, const json_t *row) {
  char *line = json_dumps(row, JSON_COMPACT | JSON_REAL_PRECISION(17));
  const uint64_t length = line ? strlen(line) + 1 : 0;
  if (!line) return kedge_fail(KEDGE_ERR_MEMORY, "out of memory for a row");
  if (r->capacity - r->bytes < length) {
    const uint64_t capacity = 2 * r->capacity + length;
    char *text = kedge_realloc(r->text, capacity, 1);
    if (!text) {
      free(line);
      return KEDGE_ERR_MEMORY;
    }
    r->text = text;
    r->capacity = capacity;
  }
  memcpy(r->text + r->bytes, line, length);
  r->text[r->bytes + length - 1] = '\n';
  r->bytes += length;
  free(line);
  return KEDGE_OK;
}

/* Numbers have as many digits as it takes to come back with the same bits. */
static kedge_status take(const char *text, uint64_t bytes, kedge_eval_record *record,
                         kedge_eval_summary *summary) {
  for (uint64_t at = 0; at < bytes;) {
    const char *end = memchr(text + at, '\n', bytes - at);
    const size_t length = end ? (size_t)(end - (text + at)) : bytes - at;
    json_t *row = json_loadb(text + at, length, 0, NULL);
    kedge_status status = row ? kedge_eval_count(summary, row) : KEDGE_ERR_MEMORY;
    if (status == KEDGE_OK) status = kedge_eval_record_add(record, row);
    json_decref(row);
    KEDGE_TRY(status);
    at += length + 1;
  }
  return KEDGE_OK;
}

/* What goes to rank 0, and there the room for what comes from every rank. */
typedef struct mail {
  uint64_t *sizes;
  kedge_parcel *to, *from;
  char *text; /* of the other ranks, one after another */
} mail;

static kedge_status make_room(mail *m, const kedge__rows *own, uint32_t ranks, uint32_t rank) {
  uint64_t all = 0, at = 0;
  for (uint32_t r = 1; r < ranks; r++) all += m->sizes[r];
  if (rank == 0 && !(m->text = kedge_alloc(all + 1, 1))) return KEDGE_ERR_MEMORY;
  for (uint32_t r = 0; r < ranks; r++) {
    const bool comes = rank == 0 && r != 0;
    m->to[r] = (kedge_parcel){own->text, r == 0 && rank != 0 ? own->bytes : 0};
    m->from[r] = (kedge_parcel){comes ? m->text + at : NULL, comes ? m->sizes[r] : 0};
    at += comes ? m->sizes[r] : 0;
  }
  return KEDGE_OK;
}

static kedge_status take_all(const mail *m, const kedge__rows *own, uint32_t ranks, kedge_eval_record *record,
                             kedge_eval_summary *summary) {
  uint64_t others = 0;
  for (uint32_t r = 1; r < ranks; r++) others += m->sizes[r];
  KEDGE_TRY(take(own->text, own->bytes, record, summary));
  return take(m->text, others, record, summary);
}

kedge_status kedge__rows_collect(kedge__rows *rows, kedge_comm *comm, kedge_eval_record *record,
                                 kedge_eval_summary *summary) {
  const uint32_t ranks = kedge_comm_size(comm, KEDGE_RANKS_ALL),
                 rank = kedge_comm_rank(comm, KEDGE_RANKS_ALL);
  mail m = {.sizes = kedge_alloc(ranks, sizeof *m.sizes),
            .to = kedge_alloc(ranks, sizeof *m.to),
            .from = kedge_alloc(ranks, sizeof *m.from)};
  kedge_status status = m.sizes && m.to && m.from ? KEDGE_OK : KEDGE_ERR_MEMORY;
  KEDGE_GOTO(kedge_comm_agree(comm, status), status, done);
  KEDGE_GOTO(kedge_comm_gather(comm, &rows->bytes, sizeof rows->bytes, m.sizes), status, done);
  KEDGE_GOTO(kedge_comm_agree(comm, make_room(&m, rows, ranks, rank)), status, done);
  KEDGE_GOTO(kedge__comm_exchange(comm, KEDGE_RANKS_ALL, m.to, m.from), status, done);
  status = kedge_comm_agree(comm, rank ? KEDGE_OK : take_all(&m, rows, ranks, record, summary));
done:
  kedge_free(m.sizes);
  kedge_free(m.to);
  kedge_free(m.from);
  kedge_free(m.text);
  rows->bytes = 0;
  return status;
}
