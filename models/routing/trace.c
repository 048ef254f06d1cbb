/* SPDX-License-Identifier: Apache-2.0
 * Routing traces in memory: made by running a model, and checked. Files are in trace_file.c. */
#include "models/routing/trace.h"

#include "core/args.h"
#include "models/decoder/pass.h"
#include "models/training/batches.h"

#include <math.h>
#include <string.h>

enum { LIMIT = 65536 };

kedge_status kedge_trace_init(kedge_trace *t, uint32_t tokens, uint32_t layers, uint32_t experts,
                              uint32_t topk) {
  *t = (kedge_trace){.tokens = tokens, .layers = layers, .experts = experts, .topk = topk};
  if (!tokens || tokens > INT32_MAX || !layers || layers > LIMIT || !experts || experts > LIMIT || !topk ||
      topk > experts)
    return kedge_fail(KEDGE_ERR_ARGUMENT,
                      "a routing trace has tokens, layers, experts and 1 to all experts a token; got %u "
                      "tokens, %u layers, top %u of %u experts",
                      tokens, layers, topk, experts);
  const size_t rows = (size_t)tokens * layers;
  t->ids = kedge_alloc(rows, topk * sizeof *t->ids);
  t->samples = kedge_alloc(tokens, sizeof *t->samples);
  t->spans = kedge_alloc(tokens, sizeof *t->spans);
  t->layer_numbers = kedge_alloc(layers, sizeof *t->layer_numbers);
  if (!t->ids || !t->samples || !t->spans || !t->layer_numbers) {
    kedge_trace_destroy(t);
    return KEDGE_ERR_MEMORY;
  }
  for (size_t i = 0; i < rows * topk; i++) t->ids[i] = -1;
  for (uint32_t i = 0; i < tokens; i++) t->spans[i] = KEDGE_SPAN_NONE;
  for (uint32_t l = 0; l < layers; l++) t->layer_numbers[l] = (int32_t)l;
  return KEDGE_OK;
}

void kedge_trace_destroy(kedge_trace *t) {
  kedge_free(t->ids);
  kedge_free(t->weights);
  kedge_free(t->logits);
  kedge_free(t->ties);
  kedge_free(t->samples);
  kedge_free(t->spans);
  kedge_free(t->layer_numbers);
  *t = (kedge_trace){0};
}

bool kedge_trace_is_routed(const kedge_trace *t, uint32_t token, uint32_t layer) {
  return t->ids[((size_t)token * t->layers + layer) * t->topk] >= 0;
}

/* ---- Checking
 * ----------------------------------------------------------------------------------------------------- */

/* A row of k ids: all -1, or distinct and in range. `seen` [experts] holds the mark of the last row that
 * chose the expert. */
static bool check_row(const int32_t *ids, uint32_t k, uint32_t experts, size_t *seen, size_t mark) {
  bool padding = ids[0] == -1;
  for (uint32_t i = 0; i < k; i++) {
    if (padding) {
      if (ids[i] != -1) return false;
      continue;
    }
    if (ids[i] < 0 || (uint32_t)ids[i] >= experts || seen[ids[i]] == mark) return false;
    seen[ids[i]] = mark;
  }
  return true;
}

static kedge_status check_ids(const kedge_trace *t, const char *name) {
  size_t *seen = kedge_alloc(t->experts, sizeof *seen);
  if (!seen) return KEDGE_ERR_MEMORY;
  kedge_status status = KEDGE_OK;
  for (size_t row = 0; row < (size_t)t->tokens * t->layers && status == KEDGE_OK; row++)
    if (!check_row(t->ids + row * t->topk, t->topk, t->experts, seen, row + 1))
      status = kedge_fail(KEDGE_ERR_FORMAT,
                          "%s: ids of token %zu, layer %zu: expected %u distinct experts below %u, or -1 in "
                          "every place",
                          name, row / t->layers, row % t->layers, t->topk, t->experts);
  kedge_free(seen);
  return status;
}

static kedge_status check_finite(const kedge_trace *t, const char *name, const char *what,
                                 const float *values, uint32_t width) {
  for (size_t i = 0; values && i < (size_t)t->tokens * t->layers * width; i++)
    if (!isfinite(values[i]))
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: %s of token %zu, layer %zu: expected finite numbers, got %g",
                        name, what, i / width / t->layers, i / width % t->layers, (double)values[i]);
  return KEDGE_OK;
}

kedge_status kedge_trace_check(const kedge_trace *t, const char *name) {
  KEDGE_TRY(check_ids(t, name));
  KEDGE_TRY(check_finite(t, name, "weights", t->weights, t->topk));
  KEDGE_TRY(check_finite(t, name, "logits", t->logits, t->experts));
  for (uint32_t i = 0; i < t->tokens; i++) {
    if (t->spans[i] < KEDGE_SPAN_NONE || t->spans[i] > KEDGE_SPAN_A)
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: span of token %u: expected -1, 0 or 1, got %d", name, i,
                        t->spans[i]);
    int32_t before = i ? t->samples[i - 1] : 0;
    if (t->samples[i] < before)
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: sample of token %u: expected %d or more, got %d", name, i,
                        before, t->samples[i]);
  }
  for (uint32_t l = 0; l < t->layers; l++) {
    int32_t least = l ? t->layer_numbers[l - 1] + 1 : 0;
    if (t->layer_numbers[l] < least || t->layer_numbers[l] >= LIMIT)
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: layers[%u]: expected ascending numbers from %d on, got %d",
                        name, l, least, t->layer_numbers[l]);
  }
  return KEDGE_OK;
}

/* ---- Collecting
 * --------------------------------------------------------------------------------------------------- */

typedef struct collector {
  const kedge_model *model;
  kedge_trace *trace;
  const kedge_trace_options *options;
  uint32_t used; /* tokens collected so far */
  int32_t *ids;  /* [T, K] of one layer of a pass */
  float *gates;  /* [T, K] */
  float *logits; /* [T, E] */
} collector;

/* True if the k-th and the next largest of z [experts] are equal: which of the two is chosen is the rule of
 * ties, not the router. The chosen ids tell the k-th: their smallest logit. */
static bool is_tie(const float *z, uint32_t experts, const int32_t *ids, uint32_t k) {
  float least = INFINITY;
  uint32_t at_least = 0;
  for (uint32_t i = 0; i < k; i++) least = fminf(least, z[ids[i]]);
  for (uint32_t e = 0; e < experts; e++) at_least += z[e] >= least;
  return at_least > k;
}

/* One layer of a pass into the trace. */
static kedge_status take_layer(collector *c, kedge_pass *pass, uint32_t layer, uint32_t tokens) {
  kedge_trace *t = c->trace;
  const kedge_decoder *d = &pass->decoder;
  const uint32_t K = t->topk, E = t->experts;
  int32_t bad = 0;
  if (d->bad_1[layer]) KEDGE_TRY(kedge_exec_read(pass->exec, d->bad_1[layer], &bad, sizeof bad));
  if (bad)
    return kedge_fail(KEDGE_ERR_NUMERIC, "router of layer %d: the scores of %d tokens are not finite",
                      t->layer_numbers[layer], bad);
  KEDGE_TRY(kedge_exec_read(pass->exec, d->ids_TK[layer], c->ids, 4ull * pass->tokens * K));
  if (t->weights)
    KEDGE_TRY(kedge_exec_read(pass->exec, d->gates_TK[layer], c->gates, 4ull * pass->tokens * K));
  if (c->logits)
    KEDGE_TRY(kedge_exec_read(pass->exec, d->router_TE[layer], c->logits, 4ull * pass->tokens * E));
  for (uint32_t i = 0; i < tokens; i++) {
    size_t row = (size_t)(c->used + i) * t->layers + layer;
    memcpy(t->ids + row * K, c->ids + (size_t)i * K, K * sizeof *t->ids);
    if (t->weights) memcpy(t->weights + row * K, c->gates + (size_t)i * K, K * sizeof *t->weights);
    if (t->logits) memcpy(t->logits + row * E, c->logits + (size_t)i * E, E * sizeof *t->logits);
    if (t->ties) t->ties[row] = is_tie(c->logits + (size_t)i * E, E, c->ids + (size_t)i * K, K);
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

static kedge_status run_all(collector *c, kedge_batches *batches, kedge_workspace *workspace) {
  const kedge_trace_options *o = c->options;
  const kedge_decoder_spec spec = {.taps = true};
  kedge_passes passes;
  kedge_status status = KEDGE_OK;
  kedge_passes_init(&passes, c->model, &spec, workspace, NULL, NULL);
  while (status == KEDGE_OK && c->used < c->trace->tokens) {
    kedge_update update;
    kedge_micro_batch mb;
    KEDGE_GOTO(kedge_batches_next(batches, &update), status, done);
    KEDGE_GOTO(kedge_batches_micro(batches, 0, &mb), status, done);
    KEDGE_GOTO(take_micro(c, &passes, &mb), status, done);
    if (o->progress && !o->progress(o->context, c->used, c->trace->tokens))
      status = kedge_fail(KEDGE_ERR_INTERRUPTED, "routing trace: stopped after %u of %u tokens", c->used,
                          c->trace->tokens);
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
  /* With softmax scores the logits themselves are compared; other scores, and groups of experts, have other
   * ties. */
  const kedge_family_options *family = &m->params.options;
  const bool ties = family->score_kind == KEDGE_SCORE_SOFTMAX && family->groups <= 1;
  if (o->with_weights) t->weights = kedge_alloc(rows, t->topk * sizeof *t->weights);
  if (o->with_logits) t->logits = kedge_alloc(rows, t->experts * sizeof *t->logits);
  if (ties) t->ties = kedge_alloc(rows, sizeof *t->ties);
  c->ids = kedge_alloc(max_size, t->topk * sizeof *c->ids);
  c->gates = kedge_alloc(max_size, t->topk * sizeof *c->gates);
  if (ties || o->with_logits) c->logits = kedge_alloc(max_size, t->experts * sizeof *c->logits);
  if ((o->with_weights && !t->weights) || (o->with_logits && !t->logits) || (ties && !t->ties) || !c->ids ||
      !c->gates || ((ties || o->with_logits) && !c->logits))
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
  uint32_t batch = c.options->batch_size ? c.options->batch_size : 8;
  KEDGE_GOTO(kedge_batches_new_eval(dataset, batch, &batches), status, done);
  KEDGE_GOTO(kedge_workspace_new(model->device, &workspace), status, done);
  KEDGE_GOTO(prepare(&c, dataset, kedge_batches_max_size(batches)), status, done);
  status = run_all(&c, batches, workspace);
done:
  kedge_workspace_free(workspace);
  kedge_batches_free(batches);
  kedge_free(c.ids);
  kedge_free(c.gates);
  kedge_free(c.logits);
  if (status != KEDGE_OK) kedge_trace_destroy(trace);
  return status;
}
