/* SPDX-License-Identifier: Apache-2.0
 * Masters and moments between files and ranks (run_states.h). */
#include "models/training/run_states.h"

#include "models/checkpoint/atomic.h"
#include "models/checkpoint/convert.h"
#include "models/checkpoint/writer.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

enum { STATES = 3, PIECE = 1 << 20, STATE_NAME = KEDGE_NAME_SIZE + 32 };
static const char *const state_names[STATES] = {"master", "m", "v"};

/* ---- Names
 * -------------------------------------------------------------------------------------------------------- */

/* The file of a rank; new memory. */
static char *file_of(const char *folder, uint32_t ranks, uint32_t rank) {
  if (ranks == 1) return kedge_path_join(folder, "optimizer.safetensors");
  return kedge_format("%s/optimizer-%05u-of-%05u.safetensors", folder, rank, ranks);
}

static void name_of(const kedge_param *param, uint32_t s, uint32_t ranks, uint64_t start,
                    char name[STATE_NAME]) {
  char base[KEDGE_NAME_SIZE];
  kedge_param_name(param, param->parts, base);
  const int n = snprintf(name, STATE_NAME, "%s.%s", state_names[s], base);
  if (ranks > 1) snprintf(name + n, (size_t)(STATE_NAME - n), "@%" PRIu64, start);
}

/* Where state s of parameter i lives on the device, and the element of the buffer where this rank's share
 * begins. */
static kedge_buffer *buffer_of(const kedge_optimizer *o, uint32_t i, uint32_t s, uint64_t *first) {
  *first = s == 0 && !o->master[i] ? o->shares[i].start : 0;
  if (s == 0) return o->master[i] ? o->master[i] : o->model->weights[i];
  return s == 1 ? o->m[i] : o->v[i];
}

static kedge_share kept(const kedge_optimizer *o, uint32_t i) {
  return kedge_range_kept(o->model, i, kedge_layout_of(o->comm), kedge_comm_rank(o->comm, KEDGE_RANKS_ALL));
}

uint64_t kedge_states_bytes(const kedge_optimizer *o) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < o->model->params.count; i++)
    if (o->trained[i]) bytes += STATES * sizeof(float) * o->shares[i].count;
  return bytes;
}

/* ---- Save
 * ---------------------------------------------------------------------------------------------------------
 */

typedef struct state_list {
  const kedge_optimizer *optimizer;
  kedge_st_spec *specs;
  char (*names)[STATE_NAME];
  uint32_t *items, *states, count;
} state_list;

static void state_list_destroy(state_list *l) {
  kedge_free(l->specs);
  kedge_free(l->names);
  kedge_free(l->items);
  kedge_free(l->states);
}

static void add_state(state_list *l, uint32_t i, uint32_t s, uint32_t ranks) {
  const kedge_param *p = &l->optimizer->model->params.items[i];
  const kedge_share share = kept(l->optimizer, i);
  const uint32_t at = l->count++;
  name_of(p, s, ranks, share.start, l->names[at]);
  l->specs[at] =
      (kedge_st_spec){.name = l->names[at], .dtype = KEDGE_ST_F32, .rank = ranks > 1 ? 1 : p->rank};
  for (uint32_t d = 0; d < p->rank && ranks == 1; d++) l->specs[at].shape[d] = p->dims[d];
  if (ranks > 1) l->specs[at].shape[0] = share.count;
  l->items[at] = i;
  l->states[at] = s;
}

static kedge_status state_list_init(state_list *l, const kedge_optimizer *o) {
  const kedge_params *params = &o->model->params;
  const size_t most = (size_t)params->count * STATES;
  const uint32_t ranks = kedge_comm_size(o->comm, KEDGE_RANKS_ALL);
  *l = (state_list){.optimizer = o};
  l->specs = kedge_alloc(most, sizeof *l->specs);
  l->names = kedge_alloc(most, sizeof *l->names);
  l->items = kedge_alloc(most, sizeof *l->items);
  l->states = kedge_alloc(most, sizeof *l->states);
  if (!l->specs || !l->names || !l->items || !l->states) return KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; i < params->count; i++)
    for (uint32_t s = 0; s < STATES && o->trained[i] && o->shares[i].count; s++) add_state(l, i, s, ranks);
  return KEDGE_OK;
}

static kedge_status fill_state(void *context, uint32_t index, uint64_t offset, void *buffer, uint64_t bytes) {
  const state_list *l = context;
  uint64_t first;
  const kedge_buffer *from = buffer_of(l->optimizer, l->items[index], l->states[index], &first);
  return kedge_buffer_read(from, first * sizeof(float) + offset, buffer, bytes);
}

kedge_status kedge_states_save(const kedge_optimizer *o, const char *folder) {
  state_list list;
  const uint32_t ranks = kedge_comm_size(o->comm, KEDGE_RANKS_ALL),
                 rank = kedge_comm_rank(o->comm, KEDGE_RANKS_ALL);
  char *path = file_of(folder, ranks, rank);
  kedge_status status = state_list_init(&list, o);
  char steps[24];
  snprintf(steps, sizeof steps, "%" PRIu64, o->steps);
  const kedge_st_pair extra[] = {{"kedge_optimizer", "adamw"}, {"steps", steps}};
  if (status == KEDGE_OK && !path) status = KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = kedge_st_write(path, list.specs, list.count, extra, 2, fill_state, &list);
  state_list_destroy(&list);
  kedge_free(path);
  return status;
}

/* ---- Load
 * ---------------------------------------------------------------------------------------------------------
 */

kedge_status kedge_states_check(const char *checkpoint, kedge_layout layout) {
  for (uint32_t rank = 0; rank < layout.ranks; rank++) {
    struct stat info;
    char *path = file_of(checkpoint, layout.ranks, rank);
    kedge_st_file *file = NULL;
    kedge_status status = path ? KEDGE_OK : KEDGE_ERR_MEMORY;
    if (path && (stat(path, &info) || !S_ISREG(info.st_mode) || !info.st_size))
      status = kedge_fail(KEDGE_ERR_FORMAT, "%s is missing or empty", path);
    if (status == KEDGE_OK) status = kedge_st_open(path, &file);
    kedge_st_close(file);
    kedge_free(path);
    KEDGE_TRY(status);
  }
  return KEDGE_OK;
}

typedef struct loading {
  kedge_optimizer *optimizer;
  const char *checkpoint;
  kedge_layout layout; /* of the run that wrote it */
  kedge_st_file **files;
  void *piece;
} loading;

static kedge_status open_file(loading *l, uint32_t rank) {
  if (l->files[rank]) return KEDGE_OK;
  char *path = file_of(l->checkpoint, l->layout.ranks, rank);
  kedge_status status = path ? kedge_st_open(path, &l->files[rank]) : KEDGE_ERR_MEMORY;
  kedge_free(path);
  return status;
}

/* Takes elements `part`, over all experts, of a state from the bytes of the file tensor where they begin.
 * Weights are made of all masters that this rank's part of the model needs, the share or not. */
static kedge_status take(loading *l, uint32_t i, uint32_t s, kedge_share part, const uint8_t *data) {
  kedge_optimizer *o = l->optimizer;
  uint64_t first;
  kedge_buffer *to = buffer_of(o, i, s, &first);
  const kedge_share own = kept(o, i), mine = kedge_range_common(part, own);
  const uint8_t *from = data + (mine.start - part.start) * sizeof(float);
  const bool apart = s > 0 || o->master[i];
  if (apart && mine.count)
    KEDGE_TRY(kedge_buffer_write(to, (mine.start - own.start + first) * sizeof(float), from,
                                 mine.count * sizeof(float)));
  if (s > 0) return KEDGE_OK;
  const kedge_dtype dtype = kedge_param_dtype(&o->model->params.items[i], o->model->dtype);
  const uint64_t base = own.start - o->shares[i].start, size = kedge_dtype_size(dtype);
  for (uint64_t at = 0; at < part.count; at += PIECE) {
    const uint64_t n = part.count - at < PIECE ? part.count - at : PIECE;
    KEDGE_TRY(kedge_convert_floats(l->piece, dtype == KEDGE_BF16 ? KEDGE_ST_BF16 : KEDGE_ST_F32,
                                   data + at * sizeof(float), KEDGE_ST_F32, n));
    KEDGE_TRY(kedge_buffer_write(o->model->weights[i], (part.start - base + at) * size, l->piece, n * size));
  }
  return KEDGE_OK;
}

/* What one file has of a state that this rank wants. */
static kedge_status load_from(loading *l, uint32_t i, uint32_t s, kedge_share wanted, uint32_t rank) {
  const kedge_optimizer *o = l->optimizer;
  const kedge_share there = kedge_range_kept(o->model, i, l->layout, rank),
                    part = kedge_range_common(wanted, there);
  char name[STATE_NAME];
  if (!part.count) return KEDGE_OK;
  KEDGE_TRY(open_file(l, rank));
  name_of(&o->model->params.items[i], s, l->layout.ranks, there.start, name);
  const kedge_st_tensor *t = kedge_st_find(l->files[rank], name);
  if (!t || t->dtype != KEDGE_ST_F32 || t->bytes != sizeof(float) * there.count)
    return kedge_fail(KEDGE_ERR_MISMATCH, "%s: tensor %s: expected F32 with %" PRIu64 " elements, got %s",
                      kedge_st_path(l->files[rank]), name, there.count,
                      t ? "another size or dtype" : "nothing");
  return take(l, i, s, part, t->data + (part.start - there.start) * sizeof(float));
}

/* Moments of the share; of masters all that the rank's weights are made of. */
static kedge_status load_state(loading *l, uint32_t i, uint32_t s) {
  const kedge_optimizer *o = l->optimizer;
  kedge_share wanted = kept(o, i);
  if (s == 0) {
    wanted.start -= o->shares[i].start;
    wanted.count = kedge_param_count(&o->model->params.items[i]);
  }
  for (uint32_t rank = 0; rank < l->layout.ranks; rank++) KEDGE_TRY(load_from(l, i, s, wanted, rank));
  return KEDGE_OK;
}

kedge_status kedge_states_load(kedge_optimizer *o, const char *checkpoint, kedge_layout layout) {
  loading l = {.optimizer = o, .checkpoint = checkpoint, .layout = layout};
  l.files = kedge_alloc(layout.ranks, sizeof *l.files);
  l.piece = kedge_alloc(PIECE, sizeof(float));
  kedge_status status = l.files && l.piece ? KEDGE_OK : KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; status == KEDGE_OK && i < o->model->params.count; i++)
    for (uint32_t s = 0; status == KEDGE_OK && s < STATES && o->trained[i]; s++)
      status = load_state(&l, i, s);
  for (uint32_t rank = 0; l.files && rank < layout.ranks; rank++) kedge_st_close(l.files[rank]);
  kedge_free(l.files);
  kedge_free(l.piece);
  return status;
}
