/* SPDX-License-Identifier: Apache-2.0
 * Tables, rows and weights of the interventions for a micro-batch (feed.h). */
#include "models/routing/feed.h"

#include <string.h>

void kedge_feeds_init(kedge_feeds *f, const kedge_params *params, const kedge_intervention *interventions,
                      const kedge_source *sources, uint32_t count) {
  *f = (kedge_feeds){.params = params, .interventions = interventions, .sources = sources, .count = count};
}

void kedge_feeds_destroy(kedge_feeds *f) {
  for (uint32_t i = 0; i < KEDGE_MAX_INTERVENTIONS; i++) {
    kedge_free(f->tables[i]);
    kedge_free(f->index[i]);
    kedge_free(f->weights[i]);
  }
  kedge_free(f->sample_ids);
  *f = (kedge_feeds){0};
}

void *kedge_feeds_table(kedge_feeds *f, uint32_t i) {
  return f->tables[i];
}

bool kedge_feeds_needs_base(const kedge_feeds *f, uint32_t i) {
  const kedge_router_table table = kedge_intervention_table(&f->interventions[i]);
  return table == KEDGE_TABLE_BASE_LOGITS || (table == KEDGE_TABLE_BASE_IDS && !f->sources[i].trace);
}

static bool by_sequence(const kedge_intervention *it) {
  return it->id == KEDGE_ROUTER_lbl && it->scope == KEDGE_BALANCE_SEQUENCE && kedge_intervention_builds(it);
}

static bool of_prior(kedge_router_table table) {
  return table == KEDGE_TABLE_BIAS || table == KEDGE_TABLE_PRIOR || table == KEDGE_TABLE_PRIOR_IDS;
}

uint32_t kedge_feeds_rows(const kedge_feeds *f, uint32_t samples) {
  bool any = false;
  uint32_t rows = 2;
  for (uint32_t i = 0; i < f->count; i++)
    any |= of_prior(kedge_intervention_table(&f->interventions[i])) || by_sequence(&f->interventions[i]);
  while (rows < 2 * samples) rows *= 2;
  return any ? rows : 0;
}

/* ---- Memory
 * ------------------------------------------------------------------------------------------------------- */

/* Bytes of a table for a micro-batch; 0 for those that live on the device. */
static uint64_t table_size(const kedge_feeds *f, uint32_t i, const kedge_micro_batch *mb) {
  const uint64_t L = f->params->moe_layers, E = f->params->config.num_experts,
                 K = f->params->config.num_experts_per_tok, S = kedge_feeds_rows(f, mb->samples);
  switch (kedge_intervention_table(&f->interventions[i])) {
  case KEDGE_TABLE_BIAS:
  case KEDGE_TABLE_PRIOR:
    return L * S * E * sizeof(float);
  case KEDGE_TABLE_PRIOR_IDS:
    return L * S * K * sizeof(int32_t);
  case KEDGE_TABLE_BASE_LOGITS:
    return L * mb->size * E * sizeof(float);
  case KEDGE_TABLE_BASE_IDS:
    return L * mb->size * K * sizeof(int32_t);
  case KEDGE_TABLE_COUNTS:
    return L * E * sizeof(float);
  case KEDGE_TABLE_BASE_WEIGHTS:
  case KEDGE_TABLE_NONE:
    break;
  }
  return 0;
}

static kedge_status reserve(kedge_feeds *f, uint32_t i, const kedge_micro_batch *mb) {
  const uint64_t bytes = table_size(f, i, mb);
  if (bytes > f->table_bytes[i]) {
    void *table = kedge_realloc(f->tables[i], bytes, 1);
    if (!table) return KEDGE_ERR_MEMORY;
    f->tables[i] = table;
    f->table_bytes[i] = bytes;
  }
  if (mb->size <= f->tokens[i]) return KEDGE_OK;
  int32_t *index = kedge_realloc(f->index[i], mb->size, sizeof *index);
  if (index) f->index[i] = index;
  float *weights = kedge_realloc(f->weights[i], mb->size, sizeof *weights);
  if (weights) f->weights[i] = weights;
  if (!index || !weights) return KEDGE_ERR_MEMORY;
  f->tokens[i] = mb->size;
  return KEDGE_OK;
}

static kedge_status load_sample_ids(kedge_feeds *f, const kedge_dataset *data, const kedge_micro_batch *mb) {
  if (mb->samples > f->sample_capacity) {
    uint64_t *grown = kedge_realloc(f->sample_ids, mb->samples, sizeof *grown);
    if (!grown) return KEDGE_ERR_MEMORY;
    f->sample_ids = grown;
    f->sample_capacity = mb->samples;
  }
  for (uint32_t i = 0; i < mb->samples; i++) f->sample_ids[i] = data->sample_ids[mb->samples_S[i]];
  return KEDGE_OK;
}

/* ---- Tables
 * ------------------------------------------------------------------------------------------------------- */

/* Place of a sample in the traced dataset; UINT32_MAX if it is not there. */
static uint32_t traced_sample(const kedge_dataset *d, uint64_t id) {
  uint32_t low = 0, high = d->count;
  while (low < high) {
    const uint32_t mid = low + (high - low) / 2;
    if (d->sample_ids[mid] == id) return mid;
    if (d->sample_ids[mid] < id)
      low = mid + 1;
    else
      high = mid;
  }
  return UINT32_MAX;
}

/* The trace's choices of the micro-batch's tokens; -1 in padding. */
static kedge_status fill_trace(kedge_feeds *f, uint32_t i, const kedge_micro_batch *mb) {
  const kedge_source *s = &f->sources[i];
  const kedge_trace *t = s->trace;
  int32_t *ids_LTK = f->tables[i];
  for (uint32_t at = 0; at < mb->size; at++) {
    const int32_t *row = NULL;
    if (mb->segments_T[at] >= 0) {
      const uint64_t id = f->sample_ids[mb->spans_T[at] / 2];
      const uint32_t sample = traced_sample(s->traced, id);
      if (sample == UINT32_MAX)
        return kedge_fail(KEDGE_ERR_MISMATCH, "routing trace: no tokens of sample %llu",
                          (unsigned long long)id);
      const uint64_t token = s->traced->offsets[sample] + (uint64_t)mb->positions_T[at];
      row = t->ids + token * t->layers * t->topk;
    }
    for (uint32_t l = 0; l < t->layers; l++)
      for (uint32_t k = 0; k < t->topk; k++)
        ids_LTK[((uint64_t)l * mb->size + at) * t->topk + k] = row ? row[l * t->topk + k] : -1;
  }
  return KEDGE_OK;
}

static kedge_status fill_table(kedge_feeds *f, uint32_t i, const kedge_micro_batch *mb) {
  const kedge_intervention *it = &f->interventions[i];
  const kedge_prior *prior = f->sources[i].prior;
  const uint32_t rows = kedge_feeds_rows(f, mb->samples);
  switch (kedge_intervention_table(it)) {
  case KEDGE_TABLE_BIAS:
    return kedge_prior_fill_bias(prior, it->eps, it->clip, it->whole_sample, f->sample_ids, mb->samples, rows,
                                 f->tables[i], &f->clipped);
  case KEDGE_TABLE_PRIOR:
    return kedge_prior_fill_pi(prior, it->whole_sample, f->sample_ids, mb->samples, rows, f->tables[i]);
  case KEDGE_TABLE_PRIOR_IDS:
    return kedge_prior_fill_ids(prior, it->eps, it->clip, it->whole_sample, f->sample_ids, mb->samples, rows,
                                f->params->config.num_experts_per_tok, f->tables[i]);
  case KEDGE_TABLE_BASE_IDS:
    return f->sources[i].trace ? fill_trace(f, i, mb) : KEDGE_OK;
  case KEDGE_TABLE_BASE_LOGITS:
  case KEDGE_TABLE_COUNTS:
  case KEDGE_TABLE_BASE_WEIGHTS:
  case KEDGE_TABLE_NONE:
    break;
  }
  return KEDGE_OK;
}

/* ---- Rows and weights
 * ---------------------------------------------------------------------------------------------- */

/* Whether an added loss counts a token. */
static bool counts(const kedge_intervention *it, const kedge_micro_batch *mb, uint32_t t) {
  return mb->segments_T[t] >= 0 && (!it->completion || mb->spans_T[t] % 2 == 1);
}

/* The table's row of a token: its span, itself, its sequence, or the only one. */
static int32_t row_of(const kedge_intervention *it, const kedge_micro_batch *mb, uint32_t t) {
  switch (kedge_intervention_table(it)) {
  case KEDGE_TABLE_BIAS:
  case KEDGE_TABLE_PRIOR:
  case KEDGE_TABLE_PRIOR_IDS:
    return mb->spans_T[t];
  case KEDGE_TABLE_BASE_LOGITS:
  case KEDGE_TABLE_BASE_IDS:
    return (int32_t)t;
  case KEDGE_TABLE_COUNTS:
  case KEDGE_TABLE_BASE_WEIGHTS:
  case KEDGE_TABLE_NONE:
    break;
  }
  return by_sequence(it) ? mb->spans_T[t] / 2 : 0;
}

/* Weights of a loss by sequence: the mean over the update's sequences of the means over their tokens. */
static void weigh_sequences(kedge_feeds *f, uint32_t i, const kedge_update *update,
                            const kedge_micro_batch *mb) {
  const kedge_intervention *it = &f->interventions[i];
  const uint64_t sequences = it->completion ? update->answered : update->samples;
  for (uint32_t first = 0, end; first < mb->tokens; first = end) {
    uint32_t counted = 0;
    for (end = first; end < mb->tokens && mb->spans_T[end] / 2 == mb->spans_T[first] / 2; end++)
      counted += counts(it, mb, end);
    for (uint32_t t = first; t < end; t++)
      if (counts(it, mb, t)) f->weights[i][t] = (float)(1.0 / ((double)counted * (double)sequences));
  }
}

static void fill_tokens(kedge_feeds *f, uint32_t i, const kedge_update *update, const kedge_micro_batch *mb) {
  const kedge_intervention *it = &f->interventions[i];
  const bool adds = kedge_router_get_kind(it->id) == KEDGE_ROUTER_LOSS;
  const uint64_t tokens = it->completion ? update->answer : update->tokens;
  for (uint32_t t = 0; t < mb->size; t++) {
    const bool in = adds ? counts(it, mb, t) : mb->segments_T[t] >= 0;
    f->index[i][t] = in ? row_of(it, mb, t) : -1;
    f->weights[i][t] = in && tokens ? (float)(1.0 / (double)tokens) : 0;
  }
  if (by_sequence(it)) weigh_sequences(f, i, update, mb);
  if (kedge_intervention_table(it) == KEDGE_TABLE_BASE_WEIGHTS)
    f->weights[i][0] = (float)(1.0 / ((double)update->micro_batches * (update->ranks ? update->ranks : 1)));
}

kedge_status kedge_feeds_fill(kedge_feeds *f, const kedge_dataset *dataset, const kedge_update *update,
                              const kedge_micro_batch *mb) {
  if (f->count) KEDGE_TRY(load_sample_ids(f, dataset, mb));
  for (uint32_t i = 0; i < f->count; i++) {
    f->data[i] = (kedge_feed_data){0};
    if (!kedge_intervention_builds(&f->interventions[i])) continue;
    KEDGE_TRY(reserve(f, i, mb));
    KEDGE_TRY(fill_table(f, i, mb));
    fill_tokens(f, i, update, mb);
    const bool on_device = kedge_intervention_table(&f->interventions[i]) == KEDGE_TABLE_BASE_WEIGHTS;
    f->data[i] = (kedge_feed_data){on_device ? NULL : f->tables[i], f->index[i], f->weights[i]};
  }
  return KEDGE_OK;
}
