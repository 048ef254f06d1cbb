/* SPDX-License-Identifier: Apache-2.0
 * The tiny decoder of gradient checks on a device (gradcheck_rig.h); its data are in gradcheck_data.c, its
 * choices on the host in gradcheck_gap.c. */
#include "models/gradcheck/gradcheck_rig.h"

#include <string.h>

enum { T = KEDGE_RIG_TOKENS, S = KEDGE_RIG_ROWS };

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

/* How many tokens of the token's sequence an intervention counts. */
static uint32_t counted_beside(const kedge_rig_problem *p, const kedge_intervention *it, int t) {
  uint32_t count = 0;
  for (int o = 0; o < T; o++)
    count +=
        p->spans[o] >= 0 && p->spans[o] / 2 == p->spans[t] / 2 && (!it->completion || p->spans[o] % 2 == 1);
  return count;
}

/* Weights and rows of the tokens for one intervention, as feed.c gives them to the first of two
 * micro-batches: of an update of 24 tokens and 4 sequences. */
static kedge_status write_tokens(kedge_rig *rig, uint32_t i) {
  const kedge_rig_problem *p = rig->problem;
  const kedge_intervention *it = &rig->interventions[i];
  const kedge_router_table table = kedge_intervention_table(it);
  const bool prior = kedge_router_needs_prior(it->id);
  const bool base = table == KEDGE_TABLE_BASE_LOGITS || table == KEDGE_TABLE_BASE_IDS;
  const bool sequence = it->id == KEDGE_ROUTER_lbl && it->scope == KEDGE_BALANCE_SEQUENCE;
  int32_t index[T];
  double weights[T] = {0};
  for (int t = 0; t < T; t++) {
    const bool in = p->segments[t] >= 0 && (!it->completion || p->spans[t] % 2 == 1);
    index[t] = !in ? -1 : prior ? p->spans[t] : base ? t : sequence ? p->spans[t] / 2 : 0;
    if (in) weights[t] = sequence ? 1.0 / (4 * counted_beside(p, it, t)) : 1.0 / 24;
  }
  if (it->id == KEDGE_ROUTER_router_l2) weights[0] = 0.5;
  KEDGE_TRY(write_ints(rig, rig->decoder.feeds[i].index_T, index));
  return write_reals(rig, rig->decoder.feeds[i].weights, weights);
}

static kedge_status write_table_ids(kedge_rig *rig, kedge_value table, const int32_t *ids) {
  return kedge_exec_write(rig->exec, table, ids, kedge_value_bytes(rig->decoder.graph, table));
}

static kedge_status write_feed(kedge_rig *rig, uint32_t i) {
  const kedge_rig_problem *p = rig->problem;
  const kedge_intervention *it = &rig->interventions[i];
  const kedge_value table = rig->decoder.feeds[i].table;
  const kedge_rig_prior *prior = &p->priors[it->whole_sample];
  double pi[KEDGE_RIG_LAYERS * S * KEDGE_RIG_EXPERTS];
  for (uint32_t j = 0; j < p->layers * S * p->experts; j++) pi[j] = (double)prior->pi_LSE[j];
  KEDGE_TRY(write_tokens(rig, i));
  switch (kedge_intervention_table(it)) {
  case KEDGE_TABLE_BIAS:
    return write_reals(rig, table, prior->bias_LSE);
  case KEDGE_TABLE_PRIOR:
    return write_reals(rig, table, pi);
  case KEDGE_TABLE_BASE_LOGITS:
    return write_reals(rig, table, p->base_logits_LTE);
  case KEDGE_TABLE_COUNTS:
    return write_reals(rig, table, p->counts_LE);
  case KEDGE_TABLE_PRIOR_IDS:
    return write_table_ids(rig, table, prior->ids_LSK);
  case KEDGE_TABLE_BASE_IDS:
    return write_table_ids(rig, table, p->base_ids_LTK);
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
  const uint64_t count = (uint64_t)p->experts * p->config.hidden_size, size = count * kedge_dtype_size(dtype);
  double *weights = kedge_alloc(count, sizeof *weights);
  kedge_status status =
      weights ? kedge_buffer_new(rig->device, p->layers * size, &rig->base) : KEDGE_ERR_MEMORY;
  for (uint32_t l = 0; l < p->layers && status == KEDGE_OK; l++) {
    const double *own =
        p->weights[kedge_params_find(&p->params, KEDGE_ROLE_ROUTER, kedge_params_moe_layer(&p->params, l))];
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
  const kedge_params *params = &rig->model->params;
  KEDGE_TRY(kedge_decoder_build(rig->model, &spec, &rig->decoder));
  kedge_graph *g = rig->decoder.graph;
  rig->forward_nodes = kedge_graph_nodes(g);
  kedge_value *wrt = kedge_alloc(params->count, sizeof *wrt), *got = kedge_alloc(params->count, sizeof *got);
  rig->gradients = kedge_alloc(params->count, sizeof *rig->gradients);
  uint32_t trained = 0;
  for (uint32_t i = 0; wrt && i < params->count; i++)
    if (!params->items[i].fixed) wrt[trained++] = rig->decoder.params[i];
  const bool memory = wrt && got && rig->gradients;
  if (memory) kedge_gradient(g, rig->decoder.loss_1, wrt, trained, got, NULL, NULL);
  trained = 0;
  for (uint32_t i = 0; memory && i < params->count; i++)
    if (!params->items[i].fixed && (rig->gradients[i] = got[trained++]))
      kedge_output(g, rig->gradients[i], "gradient");
  kedge_free(wrt);
  kedge_free(got);
  if (!memory) return KEDGE_ERR_MEMORY;
  return kedge_exec_new(rig->device, g, NULL, &rig->exec);
}

kedge_status kedge__rig_open(kedge_rig *rig, const kedge_rig_problem *problem, kedge_device *device,
                             bool all_double, const kedge_intervention *interventions, uint32_t count) {
  kedge_hf_config config;
  *rig = (kedge_rig){.problem = problem, .device = device};
  KEDGE_TRY(kedge_hf_config_parse(problem->source->config, strlen(problem->source->config),
                                  problem->source->name, &config));
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

kedge_status kedge__rig_ids(kedge_rig *rig, int32_t *ids_LTK) {
  const uint32_t each = T * rig->problem->topk;
  for (uint32_t l = 0; l < rig->problem->layers; l++)
    KEDGE_TRY(kedge_exec_read(rig->exec, rig->decoder.ids_TK[l], ids_LTK + l * each, each * sizeof *ids_LTK));
  return KEDGE_OK;
}
