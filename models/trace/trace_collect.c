/* SPDX-License-Identifier: Apache-2.0
 * Routing traces made by running a model over a dataset (trace.h). */
#include "models/trace/trace.h"

#include "core/args.h"
#include "core/comm.h"
#include "models/decoder/finite.h"
#include "models/training/batches.h"

#include <math.h>
#include <string.h>

typedef struct collector {
  const kedge_model *model;
  kedge_trace *trace;
  const kedge_trace_options *options;
  const kedge_dataset *dataset;
  uint32_t batch;   /* samples of a batch */
  kedge_comm *comm; /* of ranks that share the batches; NULL: one */
  kedge_parcel *to, *from;
  uint32_t used;   /* tokens collected so far */
  int32_t *ids;    /* [T, K] of one layer of a pass */
  float *gates;    /* [T, K] */
  float *logits;   /* [T, E] */
  float *scores;   /* [T, E], what the router ranks */
  float *bias;     /* [E], the model's selection bias in a layer; all 0 without one */
  uint8_t *chosen; /* [E] of a row, 0 between rows */
  bool any_tie;
} collector;

/* What a group of experts is ranked by, as top-k does it. */
static float group_value(const float *value, uint32_t each, uint32_t kind) {
  float first = -INFINITY, second = -INFINITY;
  for (uint32_t e = 0; e < each; e++) {
    if (value[e] > first) {
      second = first;
      first = value[e];
    } else if (value[e] > second) {
      second = value[e];
    }
  }
  return kind == KEDGE_GROUP_TWO ? first + second : first;
}

/* Experts outside the best groups of a token cannot be chosen: -inf. */
static void close_groups(const kedge_family_options *o, uint32_t experts, float *value) {
  const uint32_t each = o->groups > 1 ? experts / o->groups : experts;
  float ranks[256];
  if (o->groups <= 1 || o->groups > 256) return;
  for (uint32_t g = 0; g < o->groups; g++) ranks[g] = group_value(value + g * each, each, o->group_kind);
  for (uint32_t g = 0; g < o->groups; g++) {
    uint32_t before = 0;
    for (uint32_t other = 0; other < o->groups; other++)
      before += ranks[other] > ranks[g] || (!(ranks[other] < ranks[g]) && other < g);
    for (uint32_t e = 0; before >= o->topk_groups && e < each; e++) value[g * each + e] = -INFINITY;
  }
}

/* What a layer's router ranked, into scores: score and selection bias, in the arithmetic of top-k. A tie of
 * two groups is none of experts and is not told. */
static kedge_status read_scores(collector *c, const kedge_pass *pass, uint32_t layer, uint32_t tokens) {
  const kedge_model *m = c->model;
  const uint32_t E = c->trace->experts, number = kedge_params_moe_layer(&m->params, layer);
  const uint32_t item = kedge_params_find(&m->params, KEDGE_ROLE_ROUTER_CORRECTION, number);
  KEDGE_TRY(kedge_exec_read(pass->exec, pass->decoder.scores_TE[layer], c->scores, 4ull * pass->tokens * E));
  if (item == UINT32_MAX && m->params.options.groups <= 1) return KEDGE_OK;
  if (item != UINT32_MAX) KEDGE_TRY(kedge_buffer_read(m->weights[item], 0, c->bias, E * sizeof *c->bias));
  for (uint32_t t = 0; t < tokens; t++) {
    float *value = c->scores + (size_t)t * E;
    for (uint32_t e = 0; item != UINT32_MAX && e < E; e++) value[e] += c->bias[e];
    close_groups(&m->params.options, E, value);
  }
  return KEDGE_OK;
}

/* How near a row came to another choice: the worst score of its experts against the best of all others. */
static void measure_gap(collector *c, const float *scores, const int32_t *ids, size_t row) {
  kedge_trace *t = c->trace;
  float least = INFINITY, most = -INFINITY;
  int32_t next = -1;
  for (uint32_t k = 0; k < t->topk; k++) {
    least = fminf(least, scores[ids[k]]);
    c->chosen[ids[k]] = 1;
  }
  for (uint32_t e = 0; e < t->experts; e++)
    if (!c->chosen[e] && scores[e] > most) most = scores[e], next = (int32_t)e;
  for (uint32_t k = 0; k < t->topk; k++) c->chosen[ids[k]] = 0;
  t->nexts[row] = next;
  t->gaps[row] = next < 0 ? KEDGE_TRACE_GAP_MOST : fminf(fmaxf(least - most, 0), KEDGE_TRACE_GAP_MOST);
}

/* One layer of a pass into the trace. */
static kedge_status take_layer(collector *c, kedge_pass *pass, uint32_t layer, uint32_t tokens) {
  kedge_trace *t = c->trace;
  const kedge_decoder *d = &pass->decoder;
  const uint32_t K = t->topk, E = t->experts;
  KEDGE_TRY(kedge_pass_check_router(pass, c->model, layer));
  KEDGE_TRY(kedge_exec_read(pass->exec, d->ids_TK[layer], c->ids, 4ull * pass->tokens * K));
  if (t->weights)
    KEDGE_TRY(kedge_exec_read(pass->exec, d->gates_TK[layer], c->gates, 4ull * pass->tokens * K));
  if (c->logits)
    KEDGE_TRY(kedge_exec_read(pass->exec, d->router_TE[layer], c->logits, 4ull * pass->tokens * E));
  KEDGE_TRY(read_scores(c, pass, layer, tokens));
  for (uint32_t i = 0; i < tokens; i++) {
    size_t row = (size_t)(c->used + i) * t->layers + layer;
    memcpy(t->ids + row * K, c->ids + (size_t)i * K, K * sizeof *t->ids);
    if (t->weights) memcpy(t->weights + row * K, c->gates + (size_t)i * K, K * sizeof *t->weights);
    if (t->logits) memcpy(t->logits + row * E, c->logits + (size_t)i * E, E * sizeof *t->logits);
    t->ties[row] = kedge_trace_mark_ties(c->scores + (size_t)i * E, E, c->ids + (size_t)i * K, K,
                                         t->tied + row * ((E + 7) / 8));
    c->any_tie = c->any_tie || t->ties[row];
    if (t->gaps) measure_gap(c, c->scores + (size_t)i * E, c->ids + (size_t)i * K, row);
  }
  return KEDGE_OK;
}

static kedge_status take_micro(collector *c, kedge_passes *passes, const kedge_micro_batch *mb) {
  kedge_trace *t = c->trace;
  kedge_pass *pass;
  uint32_t left = t->tokens - c->used, tokens = mb->tokens < left ? mb->tokens : left;
  KEDGE_TRY(kedge_passes_get(passes, mb->size, 0, &pass));
  const kedge_tokens inputs = {.ids = mb->ids_T, .positions = mb->positions_T, .segments = mb->segments_T};
  KEDGE_TRY(kedge_pass_run(pass, &inputs));
  for (uint32_t l = 0; l < t->layers; l++) KEDGE_TRY(take_layer(c, pass, l, tokens));
  for (uint32_t i = 0; i < tokens; i++) {
    t->samples[c->used + i] = (int32_t)mb->samples_S[mb->spans_T[i] / 2];
    t->spans[c->used + i] = mb->spans_T[i] % 2;
  }
  c->used += tokens;
  return KEDGE_OK;
}

/* Batch `index` into its place in the trace. */
static kedge_status run_batch(collector *c, kedge_batches *batches, kedge_passes *passes, uint64_t index) {
  kedge_update update;
  kedge_micro_batch mb;
  KEDGE_TRY(kedge_batches_seek(batches, index));
  KEDGE_TRY(kedge_batches_next(batches, &update));
  KEDGE_TRY(kedge_batches_micro(batches, 0, &mb));
  return take_micro(c, passes, &mb);
}

/* First token of a batch in the trace; all of them past the end. */
static uint32_t tokens_before(const collector *c, uint64_t batch) {
  const uint64_t sample = batch * c->batch, count = c->dataset->count,
                 token = c->dataset->offsets[sample < count ? sample : count];
  return token < c->trace->tokens ? (uint32_t)token : c->trace->tokens;
}

/* One array of a trace, `bytes` a token: the tokens of each rank's batch of a round come to all. */
static kedge_status share_array(collector *c, uint64_t first, void *array, uint64_t bytes) {
  const uint32_t ranks = kedge_comm_size(c->comm, KEDGE_RANKS_ALL),
                 own = kedge_comm_rank(c->comm, KEDGE_RANKS_ALL);
  unsigned char *at = array;
  if (!array) return KEDGE_OK;
  const uint64_t start = tokens_before(c, first + own), end = tokens_before(c, first + own + 1);
  for (uint32_t r = 0; r < ranks; r++) {
    const uint64_t from = tokens_before(c, first + r), to = tokens_before(c, first + r + 1);
    c->to[r] = (kedge_parcel){at + start * bytes, r == own ? 0 : (end - start) * bytes};
    c->from[r] = (kedge_parcel){at + from * bytes, r == own ? 0 : (to - from) * bytes};
  }
  return kedge__comm_exchange(c->comm, KEDGE_RANKS_ALL, c->to, c->from);
}

static kedge_status share_round(collector *c, uint64_t first) {
  kedge_trace *t = c->trace;
  const uint64_t L = t->layers, K = t->topk, E = t->experts;
  if (kedge_comm_size(c->comm, KEDGE_RANKS_ALL) == 1) return KEDGE_OK;
  KEDGE_TRY(share_array(c, first, t->ids, L * K * sizeof *t->ids));
  KEDGE_TRY(share_array(c, first, t->weights, L * K * sizeof *t->weights));
  KEDGE_TRY(share_array(c, first, t->logits, L * E * sizeof *t->logits));
  KEDGE_TRY(share_array(c, first, t->ties, L * sizeof *t->ties));
  KEDGE_TRY(share_array(c, first, t->tied, L * ((E + 7) / 8)));
  KEDGE_TRY(share_array(c, first, t->gaps, L * sizeof *t->gaps));
  KEDGE_TRY(share_array(c, first, t->nexts, L * sizeof *t->nexts));
  KEDGE_TRY(share_array(c, first, t->samples, sizeof *t->samples));
  KEDGE_TRY(share_array(c, first, t->spans, sizeof *t->spans));
  return kedge_comm_any(c->comm, &c->any_tie);
}

/* Rounds of one batch a rank, each with the bits that it has with one rank. */
static kedge_status run_all(collector *c, kedge_batches *batches, kedge_workspace *workspace) {
  const kedge_trace_options *o = c->options;
  const kedge_decoder_spec spec = {.taps = true};
  const uint32_t ranks = kedge_comm_size(c->comm, KEDGE_RANKS_ALL),
                 own = kedge_comm_rank(c->comm, KEDGE_RANKS_ALL);
  kedge_passes passes;
  kedge_status status = KEDGE_OK;
  kedge_passes_init(&passes, c->model, &spec, workspace, NULL, NULL);
  for (uint64_t first = 0; status == KEDGE_OK && tokens_before(c, first) < c->trace->tokens; first += ranks) {
    const uint32_t done = tokens_before(c, first + ranks);
    c->used = tokens_before(c, first + own);
    if (c->used < c->trace->tokens) status = run_batch(c, batches, &passes, first + own);
    KEDGE_GOTO(kedge_comm_agree(c->comm, status), status, done);
    KEDGE_GOTO(share_round(c, first), status, done);
    bool stop = o->progress && !o->progress(o->context, done, c->trace->tokens);
    KEDGE_GOTO(kedge_comm_any(c->comm, &stop), status, done);
    if (stop)
      status = kedge_comm_agree(c->comm, kedge_fail(KEDGE_ERR_INTERRUPTED,
                                                    "routing trace: stopped after %u of %u tokens", done,
                                                    c->trace->tokens));
  }
done:
  kedge_passes_destroy(&passes);
  return status;
}

static kedge_status prepare(collector *c, const kedge_dataset *dataset, uint32_t max_size) {
  const kedge_model *m = c->model;
  const kedge_trace_options *o = c->options;
  kedge_trace *t = c->trace;
  uint64_t tokens = dataset->offsets[dataset->count];
  if (o->max_tokens && o->max_tokens < tokens) tokens = o->max_tokens;
  if (tokens > INT32_MAX)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "a routing trace has at most 2147483647 tokens, the data has %llu",
                      (unsigned long long)tokens);
  KEDGE_TRY(kedge_dataset_check_ids(dataset, m->config.vocab_size));
  if (!m->params.moe_layers)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "the model has no mixture-of-experts layer to trace");
  KEDGE_TRY(kedge_trace_init(t, (uint32_t)tokens, m->params.moe_layers, m->config.num_experts,
                             m->config.num_experts_per_tok));
  const size_t rows = (size_t)t->tokens * t->layers;
  if (o->with_weights) t->weights = kedge_alloc(rows, t->topk * sizeof *t->weights);
  if (o->with_logits) t->logits = kedge_alloc(rows, t->experts * sizeof *t->logits);
  if (o->with_gaps) t->gaps = kedge_alloc(rows, sizeof *t->gaps);
  if (o->with_gaps) t->nexts = kedge_alloc(rows, sizeof *t->nexts);
  t->ties = kedge_alloc(rows, sizeof *t->ties);
  t->tied = kedge_alloc(rows, (t->experts + 7u) / 8);
  c->ids = kedge_alloc(max_size, t->topk * sizeof *c->ids);
  c->gates = kedge_alloc(max_size, t->topk * sizeof *c->gates);
  c->scores = kedge_alloc(max_size, t->experts * sizeof *c->scores);
  c->bias = kedge_alloc(t->experts, sizeof *c->bias);
  c->chosen = kedge_alloc(t->experts, sizeof *c->chosen);
  c->to = kedge_alloc(kedge_comm_size(c->comm, KEDGE_RANKS_ALL), sizeof *c->to);
  c->from = kedge_alloc(kedge_comm_size(c->comm, KEDGE_RANKS_ALL), sizeof *c->from);
  if (o->with_logits) c->logits = kedge_alloc(max_size, t->experts * sizeof *c->logits);
  if ((o->with_weights && !t->weights) || (o->with_logits && !t->logits) || !t->ties || !t->tied || !c->ids ||
      !c->gates || !c->scores || !c->bias || !c->chosen || (o->with_gaps && (!t->gaps || !t->nexts)) ||
      !c->to || !c->from || (o->with_logits && !c->logits))
    return KEDGE_ERR_MEMORY;
  for (uint32_t l = 0; l < t->layers; l++)
    t->layer_numbers[l] = (int32_t)kedge_params_moe_layer(&m->params, l);
  memcpy(t->data, dataset->hash, sizeof t->data);
  return m->source ? kedge_model_hash(m, t->model) : KEDGE_OK;
}

kedge_status kedge_trace_collect(const kedge_model *model, const kedge_dataset *dataset,
                                 const kedge_trace_options *options, kedge_trace *trace) {
  static const kedge_trace_options defaults;
  collector c = {.model = model, .trace = trace, .options = options ? options : &defaults};
  kedge_batches *batches = NULL;
  kedge_workspace *workspace = NULL;
  kedge_status status;
  *trace = (kedge_trace){0};
  c.dataset = dataset;
  c.comm = kedge_device_comm(model->device);
  c.batch = c.options->batch_size ? c.options->batch_size : 8;
  status = kedge_batches_new_eval(dataset, c.batch, &batches);
  if (status == KEDGE_OK) status = kedge_workspace_new(model->device, &workspace);
  if (status == KEDGE_OK) status = prepare(&c, dataset, kedge_batches_max_size(batches));
  KEDGE_GOTO(kedge_comm_agree(c.comm, status), status, done);
  status = run_all(&c, batches, workspace);
  if (!c.any_tie) {
    kedge_free(trace->tied);
    trace->tied = NULL;
  }
done:
  kedge_workspace_free(workspace);
  kedge_batches_free(batches);
  kedge_free(c.ids);
  kedge_free(c.gates);
  kedge_free(c.logits);
  kedge_free(c.scores);
  kedge_free(c.bias);
  kedge_free(c.chosen);
  kedge_free(c.to);
  kedge_free(c.from);
  if (status != KEDGE_OK) kedge_trace_destroy(trace);
  return status;
}
