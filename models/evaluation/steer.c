/* SPDX-License-Identifier: Apache-2.0
 * What decides about experts in a steered evaluation (steer.h): choices of models that run beside, in caches
 * of their own, and priors of a window's items. */
#include "models/evaluation/steer.h"

#include "models/decoder/cache.h"
#include "models/prior/prior.h"
#include "models/routing/replace.h"
#include "models/text/packing.h"

#include <math.h>
#include <string.h>

enum { PRIOR_TOKENS = 2048 }; /* of a pass that makes priors, unless a single sequence is longer */

/* A model that runs beside the steered one, for its choices. */
typedef struct companion {
  const kedge_model *model;
  kedge_cache *cache;
  uint32_t cache_rows;
  kedge_passes passes;
  bool open;
} companion;

struct kedge__steering {
  kedge_eval_steer how;
  const kedge_model *model;
  kedge_decoding_steer decoding;
  kedge_workspace *workspace;
  uint32_t L, E, K;
  companion base, own; /* `own`: the model itself, unsteered, where one rank alone is replaced */
  /* of a pass */
  uint32_t capacity;
  int32_t *index;    /* [capacity] */
  int32_t *ids_LTK;  /* [L, capacity, K] */
  int32_t *other_TK; /* [capacity, K] */
  void *table_LS;    /* [L, S, E] f32 or [L, S, K] i32 */
  /* of a window */
  kedge_passes prior_passes;
  bool prior_open;
  uint32_t items;
  float *pi_ISLE;      /* [items, 2, L, E], 0 for an empty span */
  uint32_t *counts_IS; /* [items, 2] */
  float *logits_TE;
  double *sum_SE, *row_E;
  const uint32_t *job_items, *job_prompts;
};

/* ---- Choices
 * ----------------------------------------------------------------------------------------------------- */

static void close_companion(companion *c) {
  if (c->open) kedge_passes_destroy(&c->passes);
  kedge_cache_free(c->cache);
  *c = (companion){.model = c->model};
}

static kedge_status open_companion(companion *c, kedge_workspace *workspace, uint32_t cache_rows) {
  if (c->open && c->cache_rows == cache_rows) return KEDGE_OK;
  close_companion(c);
  KEDGE_TRY(kedge_cache_new(c->model, cache_rows, &c->cache));
  const kedge_decoder_spec spec = {.taps = true, .cache = c->cache};
  kedge_passes_init(&c->passes, c->model, &spec, workspace, NULL, NULL);
  c->cache_rows = cache_rows;
  c->open = true;
  return KEDGE_OK;
}

/* Runs a pass through the companion; *ran is where its choices can be read. */
static kedge_status run_companion(kedge__steering *s, companion *c, const kedge_decoding_pass *p,
                                  kedge_pass **ran) {
  const uint64_t bytes = (uint64_t)p->size * sizeof(int32_t);
  const kedge_tokens tokens = {.ids = p->ids, .positions = p->positions, .segments = p->segments};
  kedge_pass *pass;
  KEDGE_TRY(open_companion(c, s->workspace, p->cache_rows));
  KEDGE_TRY(kedge_passes_get(&c->passes, p->size, 0, &pass));
  KEDGE_TRY(kedge_exec_write(pass->exec, pass->decoder.rows_T, p->rows, bytes));
  KEDGE_TRY(kedge_exec_write(pass->exec, pass->decoder.base_T, p->base, bytes));
  KEDGE_TRY(kedge_exec_write(pass->exec, pass->decoder.length_T, p->length, bytes));
  KEDGE_TRY(kedge_pass_run(pass, &tokens));
  for (uint32_t l = 0; l < s->L; l++) {
    int32_t bad = 0;
    if (pass->decoder.bad_1[l])
      KEDGE_TRY(kedge_exec_read(pass->exec, pass->decoder.bad_1[l], &bad, sizeof bad));
    if (bad)
      return kedge_fail(KEDGE_ERR_NUMERIC, "%s: router logits of layer %u are not finite",
                        c == &s->base ? "the base" : "the model without steering",
                        kedge_params_moe_layer(&s->model->params, l));
  }
  *ran = pass;
  return KEDGE_OK;
}

static kedge_status read_ids(const kedge__steering *s, const kedge_pass *pass, uint32_t layer, int32_t *ids) {
  return kedge_exec_read(pass->exec, pass->decoder.ids_TK[layer], ids,
                         (uint64_t)pass->tokens * s->K * sizeof *ids);
}

static kedge_status reserve_pass(kedge__steering *s, uint32_t size) {
  if (size <= s->capacity) return KEDGE_OK;
  int32_t *index = kedge_realloc(s->index, size, sizeof *index);
  if (index) s->index = index;
  int32_t *ids = kedge_realloc(s->ids_LTK, (size_t)size * s->L, s->K * sizeof *ids);
  if (ids) s->ids_LTK = ids;
  int32_t *other = kedge_realloc(s->other_TK, size, s->K * sizeof *other);
  if (other) s->other_TK = other;
  if (!index || !ids || !other) return KEDGE_ERR_MEMORY;
  s->capacity = size;
  return KEDGE_OK;
}

static kedge_status feed_experts(kedge__steering *s, const kedge_decoding_pass *p) {
  const size_t layer = (size_t)p->size * s->K;
  kedge_pass *ran;
  /* Where one rank alone is replaced, the own choices are the table, and the base's come into it. */
  KEDGE_TRY(run_companion(s, s->how.rank ? &s->own : &s->base, p, &ran));
  for (uint32_t l = 0; l < s->L; l++) KEDGE_TRY(read_ids(s, ran, l, s->ids_LTK + l * layer));
  if (s->how.rank) {
    KEDGE_TRY(run_companion(s, &s->base, p, &ran));
    for (uint32_t l = 0; l < s->L; l++) {
      KEDGE_TRY(read_ids(s, ran, l, s->other_TK));
      for (uint32_t t = 0; t < p->tokens; t++)
        kedge_rank_replace(s->ids_LTK + l * layer + (size_t)t * s->K, s->other_TK + (size_t)t * s->K, s->K,
                           s->how.rank);
    }
  }
  for (uint32_t t = 0; t < p->size; t++) s->index[t] = t < p->tokens ? (int32_t)t : -1;
  return KEDGE_OK;
}

/* ---- Priors
 * ------------------------------------------------------------------------------------------------------ */

/* The mean probabilities of a layer over the spans of items [first, end), whose tokens make up a pass. */
static kedge_status add_layer(kedge__steering *s, const kedge_prompt *prompts, uint32_t first, uint32_t end,
                              uint32_t l) {
  const float *z = s->logits_TE;
  for (uint32_t i = first; i < end; i++) {
    memset(s->sum_SE, 0, 2 * (size_t)s->E * sizeof *s->sum_SE);
    for (uint32_t t = 0; t < prompts[i].count; t++, z += s->E) {
      double most = -INFINITY, sum = 0, *to = s->sum_SE + (t >= prompts[i].prompt_count ? s->E : 0);
      for (uint32_t e = 0; e < s->E; e++) most = fmax(most, (double)z[e]);
      for (uint32_t e = 0; e < s->E; e++) sum += s->row_E[e] = exp((double)z[e] - most);
      if (!isfinite(sum) || !isfinite(most))
        return kedge_fail(KEDGE_ERR_NUMERIC, "the base: router logits of layer %u are not finite",
                          kedge_params_moe_layer(&s->model->params, l));
      for (uint32_t e = 0; e < s->E; e++) to[e] += s->row_E[e] / sum;
    }
    for (uint32_t span = 0; span < 2; span++) {
      const uint32_t count = s->counts_IS[2 * i + span];
      float *pi = s->pi_ISLE + ((2 * (size_t)i + span) * s->L + l) * s->E;
      for (uint32_t e = 0; e < s->E; e++) pi[e] = count ? (float)(s->sum_SE[span * s->E + e] / count) : 0;
    }
  }
  return KEDGE_OK;
}

/* Both spans' priors become their mean weighted by tokens. */
static void join_spans(kedge__steering *s, uint32_t i) {
  const double q = s->counts_IS[2 * i], a = s->counts_IS[2 * i + 1];
  float *left = s->pi_ISLE + 2 * (size_t)i * s->L * s->E, *right = left + (size_t)s->L * s->E;
  for (size_t at = 0; at < (size_t)s->L * s->E; at++)
    left[at] = right[at] = (float)((q * (double)left[at] + a * (double)right[at]) / (q + a));
}

static kedge_status run_priors(kedge__steering *s, const kedge_prompt *prompts, uint32_t first, uint32_t end,
                               uint32_t tokens, int32_t *rows_4T) {
  const uint32_t size = kedge_bucket(tokens);
  int32_t *ids = rows_4T, *positions = ids + size, *segments = positions + size;
  uint32_t at = 0;
  for (uint32_t i = first; i < end; i++) {
    const uint32_t start = at;
    for (uint32_t t = 0; t < prompts[i].count; t++, at++) {
      ids[at] = prompts[i].ids[t];
      positions[at] = (int32_t)t;
      segments[at] = (int32_t)start;
    }
  }
  for (; at < size; at++) ids[at] = positions[at] = 0, segments[at] = -1;
  const kedge_tokens inputs = {.ids = ids, .positions = positions, .segments = segments};
  kedge_pass *pass;
  KEDGE_TRY(kedge_passes_get(&s->prior_passes, size, 0, &pass));
  KEDGE_TRY(kedge_pass_run(pass, &inputs));
  float *logits = kedge_realloc(s->logits_TE, size, s->E * sizeof *logits);
  if (!logits) return KEDGE_ERR_MEMORY;
  s->logits_TE = logits;
  for (uint32_t l = 0; l < s->L; l++) {
    KEDGE_TRY(kedge_exec_read(pass->exec, pass->decoder.router_TE[l], logits,
                              (uint64_t)size * s->E * sizeof *logits));
    KEDGE_TRY(add_layer(s, prompts, first, end, l));
  }
  for (uint32_t i = first; i < end && s->how.intervention.whole_sample; i++) join_spans(s, i);
  return KEDGE_OK;
}

static kedge_status reserve_items(kedge__steering *s, uint32_t count) {
  if (count <= s->items) return KEDGE_OK;
  float *pi = kedge_realloc(s->pi_ISLE, 2 * (size_t)count * s->L, s->E * sizeof *pi);
  if (pi) s->pi_ISLE = pi;
  uint32_t *counts = kedge_realloc(s->counts_IS, 2 * (size_t)count, sizeof *counts);
  if (counts) s->counts_IS = counts;
  if (!pi || !counts) return KEDGE_ERR_MEMORY;
  s->items = count;
  return KEDGE_OK;
}

kedge_status kedge__steering_prepare(kedge__steering *s, const kedge_prompt *prompts, uint32_t count) {
  KEDGE_TRY(reserve_items(s, count));
  for (uint32_t first = 0, end; first < count; first = end) {
    uint32_t tokens = 0;
    for (end = first; end < count && (end == first || tokens + prompts[end].count <= PRIOR_TOKENS); end++) {
      tokens += prompts[end].count;
      s->counts_IS[2 * end] = prompts[end].prompt_count;
      s->counts_IS[2 * end + 1] = prompts[end].count - prompts[end].prompt_count;
    }
    int32_t *rows = kedge_alloc(3 * (size_t)kedge_bucket(tokens), sizeof *rows);
    kedge_status status = rows ? run_priors(s, prompts, first, end, tokens, rows) : KEDGE_ERR_MEMORY;
    kedge_free(rows);
    KEDGE_TRY(status);
  }
  return KEDGE_OK;
}

void kedge__steering_jobs(kedge__steering *s, const uint32_t *items, const uint32_t *prompt_counts) {
  s->job_items = items;
  s->job_prompts = prompt_counts;
}

/* Row `row` of the pass's table, of a span of an item, in all layers. */
static void fill_row(kedge__steering *s, uint32_t item, uint32_t span, uint32_t row) {
  const kedge_intervention *it = &s->how.intervention;
  const uint32_t S = s->decoding.prior_rows;
  if (!s->counts_IS[2 * item + span]) return;
  for (uint32_t l = 0; l < s->L; l++) {
    const float *pi = s->pi_ISLE + ((2 * (size_t)item + span) * s->L + l) * s->E;
    const size_t at = (size_t)l * S + row;
    if (it->id == KEDGE_ROUTER_rpb)
      kedge_prior_bias(pi, s->E, it->eps, it->clip, (float *)s->table_LS + at * s->E);
    else
      kedge_prior_top(pi, s->E, it->eps, it->clip, s->K, (int32_t *)s->table_LS + at * s->K);
  }
}

static void feed_priors(kedge__steering *s, const kedge_decoding_pass *p) {
  const size_t rows = (size_t)s->L * s->decoding.prior_rows;
  if (s->how.intervention.id == KEDGE_ROUTER_rpb)
    memset(s->table_LS, 0, rows * s->E * sizeof(float));
  else
    memset(s->table_LS, 0xff, rows * s->K * sizeof(int32_t)); /* -1: chooses as ever */
  uint32_t place = 0;
  for (uint32_t t = 0; t < p->tokens; t++) {
    const uint32_t job = p->jobs[t], item = s->job_items[job];
    if (t && job != p->jobs[t - 1]) place++;
    if (!t || job != p->jobs[t - 1])
      for (uint32_t span = 0; span < 2; span++) fill_row(s, item, span, 2 * place + span);
    const uint32_t span = (uint32_t)p->positions[t] >= s->job_prompts[job];
    s->index[t] = s->counts_IS[2 * item + span] ? (int32_t)(2 * place + span) : -1;
  }
  for (uint32_t t = p->tokens; t < p->size; t++) s->index[t] = -1;
}

/* ---- Whole
 * ------------------------------------------------------------------------------------------------------- */

static kedge_status feed(void *context, const kedge_decoding_pass *pass, kedge_feed_data *data) {
  kedge__steering *s = context;
  KEDGE_TRY(reserve_pass(s, pass->size));
  const bool priors = kedge__steering_reads_priors(s);
  if (priors)
    feed_priors(s, pass);
  else
    KEDGE_TRY(feed_experts(s, pass));
  *data = (kedge_feed_data){.table = priors ? s->table_LS : s->ids_LTK, .index = s->index};
  return KEDGE_OK;
}

static kedge_status check(const kedge_eval_steer *how, const kedge_model *model) {
  const kedge_hf_config *a = &how->base->config, *b = &model->config;
  const kedge_router_id id = how->intervention.id;
  if (id != KEDGE_ROUTER_replay && id != KEDGE_ROUTER_rpb && id != KEDGE_ROUTER_rpb_hard)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "an evaluation is not steered by %s", kedge_router_name(id));
  if (how->base->device != model->device)
    return kedge_fail(KEDGE_ERR_MISMATCH, "the base is on another device than the model");
  if (how->base->params.moe_layers != model->params.moe_layers || a->num_experts != b->num_experts ||
      a->num_experts_per_tok != b->num_experts_per_tok || a->vocab_size != b->vocab_size)
    return kedge_fail(KEDGE_ERR_MISMATCH,
                      "the base has %u MoE layers, top %u of %u experts, %u ids; the model %u, top %u of %u, "
                      "%u ids",
                      how->base->params.moe_layers, a->num_experts_per_tok, a->num_experts, a->vocab_size,
                      model->params.moe_layers, b->num_experts_per_tok, b->num_experts, b->vocab_size);
  if (!model->params.moe_layers)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "the model has no mixture-of-experts layer to steer");
  if (how->rank > a->num_experts_per_tok)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "rank %u: a token has %u experts", how->rank,
                      a->num_experts_per_tok);
  return KEDGE_OK;
}

static kedge_status open_priors(kedge__steering *s, uint32_t sequences) {
  static const kedge_decoder_spec spec = {.taps = true};
  const bool bias = s->how.intervention.id == KEDGE_ROUTER_rpb;
  uint32_t rows = 2;
  while (rows < 2 * sequences) rows *= 2;
  s->decoding.prior_rows = rows;
  s->table_LS = kedge_alloc((size_t)s->L * rows, bias ? s->E * sizeof(float) : s->K * sizeof(int32_t));
  s->sum_SE = kedge_alloc(2 * (size_t)s->E, sizeof *s->sum_SE);
  s->row_E = kedge_alloc(s->E, sizeof *s->row_E);
  if (!s->table_LS || !s->sum_SE || !s->row_E) return KEDGE_ERR_MEMORY;
  kedge_passes_init(&s->prior_passes, s->how.base, &spec, s->workspace, NULL, NULL);
  s->prior_open = true;
  return KEDGE_OK;
}

kedge_status kedge__steering_new(const kedge_eval_steer *how, const kedge_model *model, uint32_t sequences,
                                 kedge__steering **out) {
  *out = NULL;
  KEDGE_TRY(check(how, model));
  kedge__steering *s = kedge_alloc(1, sizeof *s);
  if (!s) return KEDGE_ERR_MEMORY;
  s->how = *how;
  s->model = s->own.model = model;
  s->base.model = how->base;
  s->L = model->params.moe_layers, s->E = model->config.num_experts;
  s->K = model->config.num_experts_per_tok;
  s->decoding = (kedge_decoding_steer){.intervention = &s->how.intervention, .feed = feed, .context = s};
  kedge_status status = kedge_workspace_new(model->device, &s->workspace);
  if (status == KEDGE_OK && kedge__steering_reads_priors(s)) status = open_priors(s, sequences);
  if (status == KEDGE_OK)
    *out = s;
  else
    kedge__steering_free(s);
  return status;
}

void kedge__steering_free(kedge__steering *s) {
  if (!s) return;
  close_companion(&s->base);
  close_companion(&s->own);
  if (s->prior_open) kedge_passes_destroy(&s->prior_passes);
  kedge_workspace_free(s->workspace);
  kedge_free(s->index);
  kedge_free(s->ids_LTK);
  kedge_free(s->other_TK);
  kedge_free(s->table_LS);
  kedge_free(s->pi_ISLE);
  kedge_free(s->counts_IS);
  kedge_free(s->logits_TE);
  kedge_free(s->sum_SE);
  kedge_free(s->row_E);
  kedge_free(s);
}

const kedge_decoding_steer *kedge__steering_decoding(const kedge__steering *s) {
  return &s->decoding;
}

bool kedge__steering_reads_priors(const kedge__steering *s) {
  return s->how.intervention.id != KEDGE_ROUTER_replay;
}
