/* SPDX-License-Identifier: Apache-2.0
 * Executions by bucket. */
#include "models/decoder/pass.h"

#include "core/comm.h"
#include "models/text/packing.h"

void kedge_passes_init(kedge_passes *b, const kedge_model *model, const kedge_decoder_spec *spec,
                       kedge_workspace *workspace, kedge_pass_extend extend, void *context) {
  *b = (kedge_passes){
      .model = model, .spec = *spec, .extend = extend, .context = context, .workspace = workspace};
}

static void pass_free(kedge_pass *pass) {
  kedge_exec_free(pass->exec);
  kedge_decoder_destroy(&pass->decoder);
  kedge_free(pass);
}

void kedge_passes_destroy(kedge_passes *b) {
  for (uint32_t i = 0; i < b->count; i++) pass_free(b->items[i]);
  kedge_free(b->items);
  kedge_free(b->idle);
  kedge_free(b->idle_feeds);
  *b = (kedge_passes){0};
}

static kedge_status pass_build(kedge_passes *b, kedge_pass *pass) {
  kedge_decoder_spec spec = b->spec;
  spec.tokens = pass->tokens;
  spec.prior_rows = pass->prior_rows;
  spec.expert_rows = pass->expert_rows;
  if (pass->part) spec.interventions = b->part_interventions;
  KEDGE_TRY(kedge_decoder_build(b->model, &spec, &pass->decoder));
  if (b->extend) KEDGE_TRY(b->extend(b->context, &pass->decoder));
  KEDGE_TRY(kedge_exec_new(b->model->device, pass->decoder.graph, b->workspace, &pass->exec));
  if (b->profile) kedge_exec_profile(pass->exec, true);
  return KEDGE_OK;
}

/* `longest`: tokens that the room for shared experts is made for. */
static kedge_status get(kedge_passes *b, uint32_t tokens, uint32_t prior_rows, uint32_t longest, bool part,
                        kedge_pass **out) {
  const bool shared = b->model->params.members > 1;
  const uint32_t expert_rows = shared ? kedge_decoder_expert_rows(b->model, longest) : 0;
  for (uint32_t i = 0; i < b->count; i++)
    if (b->items[i]->tokens == tokens && b->items[i]->prior_rows == prior_rows &&
        b->items[i]->expert_rows == expert_rows && b->items[i]->part == part) {
      *out = b->items[i];
      return KEDGE_OK;
    }
  kedge_pass **grown = kedge_realloc(b->items, b->count + 1, sizeof *grown);
  if (!grown) return KEDGE_ERR_MEMORY;
  b->items = grown;
  kedge_pass *pass = kedge_alloc(1, sizeof *pass);
  if (!pass) return KEDGE_ERR_MEMORY;
  pass->tokens = tokens;
  pass->prior_rows = prior_rows;
  pass->expert_rows = expert_rows;
  pass->part = part;
  pass->interventions = b->spec.intervention_count;
  kedge_status status = pass_build(b, pass);
  if (status != KEDGE_OK) {
    pass_free(pass);
    return status;
  }
  *out = b->items[b->count++] = pass;
  return KEDGE_OK;
}

kedge_status kedge_passes_get(kedge_passes *b, uint32_t tokens, uint32_t prior_rows, kedge_pass **out) {
  return get(b, tokens, prior_rows, tokens, false, out);
}

static kedge_status write(kedge_pass *b, kedge_value value, const void *data) {
  return value ? kedge_exec_write(b->exec, value, data, kedge_value_bytes(b->decoder.graph, value))
               : KEDGE_OK;
}

static kedge_status write_inputs(kedge_pass *b, const kedge_tokens *t) {
  const kedge_decoder *d = &b->decoder;
  KEDGE_TRY(write(b, d->ids_T, t->ids));
  KEDGE_TRY(write(b, d->positions_T, t->positions));
  KEDGE_TRY(write(b, d->segments_T, t->segments));
  KEDGE_TRY(write(b, d->labels_T, t->labels));
  KEDGE_TRY(write(b, d->weights_T, t->weights));
  for (uint32_t i = 0; t->feeds && i < b->interventions; i++) {
    if (t->feeds[i].table) KEDGE_TRY(write(b, d->feeds[i].table, t->feeds[i].table));
    if (t->feeds[i].index) KEDGE_TRY(write(b, d->feeds[i].index_T, t->feeds[i].index));
    if (t->feeds[i].weights) KEDGE_TRY(write(b, d->feeds[i].weights, t->feeds[i].weights));
  }
  return KEDGE_OK;
}

kedge_status kedge_pass_run(kedge_pass *b, const kedge_tokens *t) {
  KEDGE_TRY(write_inputs(b, t));
  return kedge_exec_run(b->exec, 0, UINT32_MAX);
}

/* Runs a pass and tells of every gradient when it is complete. */
static kedge_status run_telling(kedge_passes *b, kedge_pass *pass, const kedge_tokens *t) {
  const kedge_decoder *d = &pass->decoder;
  uint32_t from = 0;
  KEDGE_TRY(write_inputs(pass, t));
  for (uint32_t i = 0; i < d->complete_count; i++) {
    const uint32_t node = d->complete[i].node;
    if (node > from) KEDGE_TRY(kedge_exec_run(pass->exec, from, node));
    from = node;
    b->complete(b->complete_context, d->complete[i].param);
  }
  return kedge_exec_run(pass->exec, from, UINT32_MAX);
}

/* ---- Ranks that share experts */

/* Tokens that are run together: this rank's, and how the others are to be met. */
typedef struct turn {
  kedge_passes *passes;
  uint32_t tokens, prior_rows, longest;
  const kedge_tokens *data;
  kedge_tokens idle;
  kedge_pass_read read;
  void *context;
} turn;

/* The longest stream of all ranks. */
static kedge_status find_longest(kedge_comm *comm, uint32_t tokens, uint32_t *longest) {
  const uint32_t ranks = kedge_comm_size(comm, KEDGE_RANKS_ALL);
  uint32_t *all = kedge_alloc(ranks, sizeof *all);
  kedge_status status = all ? kedge_comm_gather(comm, &tokens, sizeof tokens, all) : KEDGE_ERR_MEMORY;
  *longest = tokens;
  for (uint32_t r = 0; status == KEDGE_OK && r < ranks; r++)
    if (all[r] > *longest) *longest = all[r];
  kedge_free(all);
  return status;
}

/* Padding in the place of this rank's tokens, in the same bucket. */
static kedge_status make_idle(turn *t) {
  kedge_passes *b = t->passes;
  const uint32_t T = t->tokens, interventions = b->spec.intervention_count;
  if (T > b->idle_tokens) {
    int32_t *grown = kedge_realloc(b->idle, 2ull * T, sizeof *grown);
    if (!grown) return KEDGE_ERR_MEMORY;
    b->idle = grown;
    b->idle_tokens = T;
    for (uint32_t i = 0; i < T; i++) {
      grown[i] = -1;
      grown[T + i] = 0;
    }
  }
  if (!b->idle_feeds && !(b->idle_feeds = kedge_alloc(interventions + 1ull, sizeof *b->idle_feeds)))
    return KEDGE_ERR_MEMORY;
  const int32_t *none = b->idle, *zeros = b->idle + b->idle_tokens;
  const float *weights = (const void *)zeros; /* a zero has no bits set in either */
  for (uint32_t i = 0; t->data->feeds && i < interventions; i++)
    b->idle_feeds[i] = (kedge_feed_data){.table = t->data->feeds[i].table,
                                         .index = t->data->feeds[i].index ? none : NULL,
                                         .weights = t->data->feeds[i].weights ? weights : NULL};
  t->idle = (kedge_tokens){.ids = zeros,
                           .positions = zeros,
                           .segments = none,
                           .labels = none,
                           .weights = weights,
                           .feeds = t->data->feeds ? b->idle_feeds : NULL};
  return KEDGE_OK;
}

/* Runs the tokens of the members [first, last) of every group, by halves where they do not fit. */
static kedge_status run_members(turn *t, uint32_t first, uint32_t last) {
  kedge_passes *b = t->passes;
  kedge_comm *comm = kedge_device_comm(b->model->device);
  const uint32_t members = b->model->params.members > 1 ? b->model->params.members : 1,
                 own = members > 1 ? kedge_comm_rank(comm, KEDGE_RANKS_EXPERTS) : 0,
                 half = first + (last - first) / 2;
  const bool mine = first <= own && own < last, whole = last - first == members;
  kedge_pass *pass;
  KEDGE_TRY(get(b, t->tokens, t->prior_rows, t->longest, !whole && b->part_interventions, &pass));
  const kedge_status status =
      whole && b->complete ? run_telling(b, pass, t->data) : kedge_pass_run(pass, mine ? t->data : &t->idle);
  if (status == KEDGE_OK && mine) t->read(t->context, pass);
  if (status == KEDGE_OK || !comm || !comm->overflow || half == first) return status;
  comm->overflow = 0;
  if (whole) {
    b->splits++;
    if (b->split) KEDGE_TRY(b->split(b->split_context));
    KEDGE_TRY(make_idle(t));
  }
  KEDGE_TRY(run_members(t, first, half));
  return run_members(t, half, last);
}

kedge_status kedge_passes_run(kedge_passes *b, uint32_t tokens, uint32_t prior_rows, const kedge_tokens *data,
                              kedge_pass_read read, void *context) {
  kedge_comm *comm = kedge_device_comm(b->model->device);
  turn t = {.passes = b,
            .tokens = tokens,
            .prior_rows = prior_rows,
            .longest = tokens,
            .data = data,
            .read = read,
            .context = context};
  const bool shared = b->model->params.members > 1;
  if (shared) KEDGE_TRY(find_longest(comm, tokens, &t.longest));
  return run_members(&t, 0, shared ? b->model->params.members : 1);
}
