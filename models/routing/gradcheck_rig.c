/* SPDX-License-Identifier: Apache-2.0
 * The tiny decoder of gradient checks (gradcheck_rig.h). */
#include "models/routing/gradcheck_rig.h"

#include "models/routing/prior.h"
#include "models/text/random.h"

#include <math.h>
#include <string.h>

enum {
  T = KEDGE_RIG_TOKENS,
  S = KEDGE_RIG_ROWS,
  K = KEDGE_RIG_TOPK,
  L = KEDGE_RIG_LAYERS,
  E = KEDGE_RIG_EXPERTS
};

static const char config_text[] =
    "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 10, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 3, \"num_key_value_heads\": 1, \"head_dim\": 6, \"vocab_size\": 37,"
    " \"max_position_embeddings\": 64, \"intermediate_size\": 11, \"moe_intermediate_size\": 7,"
    " \"num_experts\": 8, \"num_experts_per_tok\": 3, \"norm_topk_prob\": true, \"rms_norm_eps\": 1e-6,"
    " \"hidden_act\": \"silu\", \"tie_word_embeddings\": false, \"rope_theta\": 10000.0}";

static kedge_status parse(kedge_hf_config *config) {
  return kedge_hf_config_parse(config_text, sizeof config_text - 1, "gradient check", config);
}

/* ---- The problem
 * -------------------------------------------------------------------------------------------------- */

static double uniform(kedge_random *r) {
  return ((double)(kedge_random_next(r) >> 11) + 0.5) * 0x1p-53;
}

/* Standard normal, by Box and Muller. */
static double normal(kedge_random *r) {
  double radius = sqrt(-2 * log(uniform(r)));
  return radius * cos(2 * 3.14159265358979323846 * uniform(r));
}

/* Weights of a size at which no activation saturates and the logits of experts spread over a few units. */
static void draw_weights(const kedge_param *p, kedge_random *r, double *weights) {
  const uint64_t count = kedge_param_count(p);
  const double inputs = p->dims[p->rank - 1];
  double mean = 0, sd = 1 / sqrt(inputs);
  if (p->rank == 1) mean = 1, sd = 0.2; /* a norm */
  if (p->role == KEDGE_ROLE_EMBED) sd = 1;
  if (kedge_param_is_router(p)) sd *= 1.5;
  for (uint64_t i = 0; i < count; i++) weights[i] = (double)(float)(mean + sd * normal(r));
}

/* Two sequences of 7 and 5 tokens, questions of 3 and 2; then tokens that stand outside any sequence. */
static void draw_batch(kedge_rig_problem *p, kedge_random *r) {
  for (int t = 0; t < T; t++) {
    int start = t < 7 ? 0 : 7, question = t < 7 ? 3 : 2, end = t < 7 ? 7 : 12;
    p->ids[t] = (int32_t)kedge_random_below(r, p->config.vocab_size);
    int32_t label = (int32_t)kedge_random_below(r, p->config.vocab_size);
    double weight = normal(r) / 10;
    bool inside = t < 12, labelled = inside && t + 1 < end;
    p->positions[t] = inside ? t - start : 0;
    p->segments[t] = inside ? start : -1;
    p->spans[t] = inside ? 2 * (start > 0) + (t - start >= question) : -1;
    p->labels[t] = labelled ? label : -1;
    p->loss_weights[t] = labelled ? (double)(float)weight : 0;
  }
}

/* Rows that are peaked enough for both clips to act on some entries. */
static void draw_prior(kedge_rig_problem *p, kedge_random *r) {
  for (int l = 0; l < L; l++)
    for (int s = 0; s < S; s++) {
      double row[E], sum = 0;
      for (int e = 0; e < E; e++) sum += row[e] = exp(1.8 * normal(r));
      for (int e = 0; e < E; e++) p->prior[l][s][e] = (float)(row[e] / sum);
    }
}

/* What the frozen base would give: logits, the choice that they make, and choices of other micro-batches. */
static void draw_base(kedge_rig_problem *p, kedge_random *r) {
  for (int l = 0; l < L; l++) {
    for (int t = 0; t < T; t++) {
      float softmax[E];
      for (int e = 0; e < E; e++) {
        p->base_logits[l][t][e] = (double)(float)(1.5 * normal(r));
        softmax[e] = (float)exp(p->base_logits[l][t][e]);
      }
      kedge_prior_top(softmax, E, 1e-9, 1e9, K, p->base_ids[l][t]);
      for (int k = 0; p->segments[t] < 0 && k < K; k++) p->base_ids[l][t][k] = -1;
    }
    for (int e = 0; e < E; e++) p->counts[l][e] = (double)(1 + kedge_random_below(r, 20));
  }
}

void kedge__rig_problem_bias(kedge_rig_problem *p, double eps, double clip) {
  for (int l = 0; l < L; l++)
    for (int s = 0; s < S; s++) {
      float bias[E];
      kedge_prior_bias(p->prior[l][s], E, eps, clip, bias);
      for (int e = 0; e < E; e++) p->bias[l][s][e] = (double)bias[e];
      kedge_prior_top(p->prior[l][s], E, eps, clip, K, p->prior_ids[l][s]);
    }
}

kedge_status kedge__rig_problem_init(kedge_rig_problem *p, uint64_t seed) {
  *p = (kedge_rig_problem){0};
  KEDGE_TRY(parse(&p->config));
  kedge_status status = kedge_params_init(&p->params, &p->config);
  if (status == KEDGE_OK) {
    p->weights = kedge_alloc(p->params.count, sizeof *p->weights);
    status = p->weights ? KEDGE_OK : KEDGE_ERR_MEMORY;
  }
  for (uint32_t i = 0; status == KEDGE_OK && i < p->params.count; i++) {
    kedge_random r = kedge_random_start(seed, i);
    p->weights[i] = kedge_alloc(kedge_param_count(&p->params.items[i]), sizeof **p->weights);
    if (p->weights[i])
      draw_weights(&p->params.items[i], &r, p->weights[i]);
    else
      status = KEDGE_ERR_MEMORY;
  }
  if (status != KEDGE_OK) {
    kedge__rig_problem_destroy(p);
    return status;
  }
  kedge_random r = kedge_random_start(seed, UINT64_MAX);
  draw_batch(p, &r);
  draw_prior(p, &r);
  draw_base(p, &r);
  kedge__rig_problem_bias(p, 0.05, 5.0);
  return KEDGE_OK;
}

void kedge__rig_problem_destroy(kedge_rig_problem *p) {
  for (uint32_t i = 0; p->weights && i < p->params.count; i++) kedge_free(p->weights[i]);
  kedge_free(p->weights);
  kedge_params_destroy(&p->params);
  kedge_hf_config_destroy(&p->config);
  *p = (kedge_rig_problem){0};
}

/* ---- The rig
 * ------------------------------------------------------------------------------------------------------ */

/* Doubles as bytes of a dtype, in new memory. */
static void *encode(kedge_dtype dtype, const double *numbers, uint64_t count) {
  void *bytes = kedge_alloc(count, kedge_dtype_size(dtype));
  for (uint64_t i = 0; bytes && i < count; i++)
    if (dtype == KEDGE_F64)
      ((double *)bytes)[i] = numbers[i];
    else
      ((float *)bytes)[i] = (float)numbers[i];
  return bytes;
}

kedge_status kedge__rig_write(kedge_rig *rig, uint32_t param, uint64_t first, const double *values,
                              uint64_t count) {
  const kedge_dtype dtype = rig->model->dtype;
  const uint64_t size = kedge_dtype_size(dtype);
  void *bytes = encode(dtype, values, count);
  if (!bytes) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge_buffer_write(rig->model->weights[param], first * size, bytes, count * size);
  kedge_free(bytes);
  return status;
}

static kedge_status write_reals(kedge_rig *rig, kedge_value value, const double *numbers) {
  if (!value) return KEDGE_OK;
  const kedge_graph *g = rig->decoder.graph;
  void *bytes = encode(kedge_value_dtype(g, value), numbers, kedge_value_count(g, value));
  if (!bytes) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge_exec_write(rig->exec, value, bytes, kedge_value_bytes(g, value));
  kedge_free(bytes);
  return status;
}

static kedge_status write_ints(kedge_rig *rig, kedge_value value, const int32_t *numbers) {
  return value ? kedge_exec_write(rig->exec, value, numbers, T * sizeof *numbers) : KEDGE_OK;
}

/* Weights and rows of the tokens for one intervention, as feed.c gives them to a batch of two micro-batches
 * of the same size. */
static kedge_status write_tokens(kedge_rig *rig, uint32_t i) {
  const kedge_rig_problem *p = rig->problem;
  const kedge_intervention *it = &rig->interventions[i];
  const kedge_router_table table = kedge_intervention_table(it);
  const bool prior = kedge_router_needs_prior(it->id);
  const bool base = table == KEDGE_TABLE_BASE_LOGITS || table == KEDGE_TABLE_BASE_IDS;
  int32_t index[T];
  double weights[T] = {0};
  for (int t = 0; t < T; t++) {
    const bool in = p->segments[t] >= 0 && (!it->completion || p->spans[t] % 2 == 1);
    const int32_t group = it->scope == KEDGE_BALANCE_SEQUENCE ? p->spans[t] / 2 : 0;
    index[t] = !in ? -1 : prior ? p->spans[t] : base ? t : group;
    weights[t] = in ? 1.0 / 24 : 0;
  }
  if (it->id == KEDGE_ROUTER_router_l2) weights[0] = 0.5;
  KEDGE_TRY(write_ints(rig, rig->decoder.feeds[i].index_T, index));
  return write_reals(rig, rig->decoder.feeds[i].weights, weights);
}

static kedge_status write_feed(kedge_rig *rig, uint32_t i) {
  const kedge_rig_problem *p = rig->problem;
  const kedge_value table = rig->decoder.feeds[i].table;
  double prior[L][S][E];
  for (int l = 0; l < L; l++)
    for (int s = 0; s < S; s++)
      for (int e = 0; e < E; e++) prior[l][s][e] = (double)p->prior[l][s][e];
  KEDGE_TRY(write_tokens(rig, i));
  switch (kedge_intervention_table(&rig->interventions[i])) {
  case KEDGE_TABLE_BIAS:
    return write_reals(rig, table, &p->bias[0][0][0]);
  case KEDGE_TABLE_PRIOR:
    return write_reals(rig, table, &prior[0][0][0]);
  case KEDGE_TABLE_BASE_LOGITS:
    return write_reals(rig, table, &p->base_logits[0][0][0]);
  case KEDGE_TABLE_COUNTS:
    return write_reals(rig, table, &p->counts[0][0]);
  case KEDGE_TABLE_PRIOR_IDS:
    return kedge_exec_write(rig->exec, table, p->prior_ids, sizeof p->prior_ids);
  case KEDGE_TABLE_BASE_IDS:
    return kedge_exec_write(rig->exec, table, p->base_ids, sizeof p->base_ids);
  case KEDGE_TABLE_BASE_WEIGHTS:
  case KEDGE_TABLE_NONE:
    break;
  }
  return KEDGE_OK;
}

/* Base weights near the routers' own; renaming the experts of the one renames those of the other. */
static kedge_status make_base(kedge_rig *rig) {
  const kedge_rig_problem *p = rig->problem;
  const kedge_dtype dtype = rig->model->dtype;
  const uint64_t count = (uint64_t)E * p->config.hidden_size, size = count * kedge_dtype_size(dtype);
  double *weights = kedge_alloc(count, sizeof *weights);
  kedge_status status = weights ? kedge_buffer_new(rig->device, L * size, &rig->base) : KEDGE_ERR_MEMORY;
  for (uint32_t l = 0; l < L && status == KEDGE_OK; l++) {
    const double *own = p->weights[kedge_params_find(&p->params, KEDGE_ROLE_ROUTER, l)];
    for (uint64_t i = 0; i < count; i++) weights[i] = (double)(float)(0.9 * own[i] + 0.02);
    void *bytes = encode(dtype, weights, count);
    status = bytes ? kedge_buffer_write(rig->base, l * size, bytes, size) : KEDGE_ERR_MEMORY;
    kedge_free(bytes);
  }
  kedge_free(weights);
  return status;
}

static kedge_status write_inputs(kedge_rig *rig) {
  const kedge_rig_problem *p = rig->problem;
  const kedge_decoder *d = &rig->decoder;
  for (uint32_t i = 0; i < p->params.count; i++)
    KEDGE_TRY(kedge__rig_write(rig, i, 0, p->weights[i], kedge_param_count(&p->params.items[i])));
  KEDGE_TRY(write_ints(rig, d->ids_T, p->ids));
  KEDGE_TRY(write_ints(rig, d->positions_T, p->positions));
  KEDGE_TRY(write_ints(rig, d->segments_T, p->segments));
  KEDGE_TRY(write_ints(rig, d->labels_T, p->labels));
  for (uint32_t i = 0; i < rig->intervention_count; i++) KEDGE_TRY(write_feed(rig, i));
  return write_reals(rig, d->weights_T, p->loss_weights);
}

static kedge_status build(kedge_rig *rig, bool all_double) {
  const kedge_decoder_spec spec = {.tokens = T,
                                   .prior_rows = S,
                                   .loss = true,
                                   .logits = true,
                                   .taps = true,
                                   .all_double = all_double,
                                   .interventions = rig->interventions,
                                   .intervention_count = rig->intervention_count};
  const uint32_t params = rig->model->params.count;
  KEDGE_TRY(kedge_decoder_build(rig->model, &spec, &rig->decoder));
  kedge_graph *g = rig->decoder.graph;
  rig->forward_nodes = kedge_graph_nodes(g);
  rig->gradients = kedge_alloc(params, sizeof *rig->gradients);
  if (!rig->gradients) return KEDGE_ERR_MEMORY;
  kedge_gradient(g, rig->decoder.loss_1, rig->decoder.params, params, rig->gradients, NULL, NULL);
  for (uint32_t i = 0; i < params; i++)
    if (rig->gradients[i]) kedge_output(g, rig->gradients[i], "gradient");
  return kedge_exec_new(rig->device, g, NULL, &rig->exec);
}

kedge_status kedge__rig_open(kedge_rig *rig, const kedge_rig_problem *problem, kedge_device *device,
                             bool all_double, const kedge_intervention *interventions, uint32_t count) {
  kedge_hf_config config;
  *rig = (kedge_rig){.problem = problem, .device = device};
  KEDGE_TRY(parse(&config));
  KEDGE_TRY(kedge_model_describe(device, &config, all_double ? KEDGE_F64 : KEDGE_F32, &rig->model));
  KEDGE_TRY(make_base(rig));
  for (uint32_t i = 0; i < count; i++) {
    rig->interventions[i] = interventions[i];
    rig->interventions[i].base = rig->base;
  }
  rig->intervention_count = count;
  KEDGE_TRY(build(rig, all_double));
  KEDGE_TRY(write_inputs(rig));
  return kedge_exec_run(rig->exec, 0, UINT32_MAX);
}

void kedge__rig_close(kedge_rig *rig) {
  kedge_exec_free(rig->exec);
  kedge_decoder_destroy(&rig->decoder);
  kedge_buffer_free(rig->base);
  kedge_free(rig->gradients);
  kedge_model_free(rig->model);
  *rig = (kedge_rig){0};
}

kedge_status kedge__rig_read(kedge_rig *rig, kedge_value value, double *numbers, uint64_t count) {
  const kedge_graph *g = rig->decoder.graph;
  const kedge_dtype dtype = kedge_value_dtype(g, value);
  if (kedge_value_count(g, value) != count || (dtype != KEDGE_F32 && dtype != KEDGE_F64))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: expected %llu floats", kedge_value_name(g, value),
                      (unsigned long long)count);
  void *bytes = kedge_alloc(count, kedge_dtype_size(dtype));
  if (!bytes) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge_exec_read(rig->exec, value, bytes, kedge_value_bytes(g, value));
  for (uint64_t i = 0; status == KEDGE_OK && i < count; i++)
    numbers[i] = dtype == KEDGE_F64 ? ((const double *)bytes)[i] : (double)((const float *)bytes)[i];
  kedge_free(bytes);
  return status;
}

kedge_status kedge__rig_forward(kedge_rig *rig, double *loss) {
  KEDGE_TRY(kedge_exec_run(rig->exec, 0, rig->forward_nodes));
  return kedge__rig_read(rig, rig->decoder.loss_1, loss, 1);
}

kedge_status kedge__rig_ids(kedge_rig *rig, int32_t ids[L][T][KEDGE_RIG_TOPK]) {
  for (int l = 0; l < L; l++)
    KEDGE_TRY(kedge_exec_read(rig->exec, rig->decoder.ids_TK[l], ids[l], sizeof ids[l]));
  return KEDGE_OK;
}
