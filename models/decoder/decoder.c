/* SPDX-License-Identifier: Apache-2.0
 * The decoder graph from embedding to loss; its layers are in blocks.c. */
#include "models/decoder/decoder.h"

#include "models/decoder/rope.h"
#include "models/text/packing.h"

kedge_value kedge__weight(const kedge_build *b, kedge_role role, uint32_t layer) {
  uint32_t item = kedge_params_find(&b->model->params, role, layer);
  return item == UINT32_MAX ? KEDGE_NONE : b->d->params[item];
}

kedge_value kedge__multiplied(const kedge_build *b, kedge_value x, double multiplier) {
  const bool other = multiplier < 1 || multiplier > 1;
  return b->model->params.options.multipliers && other ? kedge_scale(b->g, x, multiplier) : x;
}

static kedge_value token_input(kedge_build *b, const char *name, kedge_dtype dtype) {
  return kedge_input(b->g, name, dtype, 1, (uint32_t[]){b->spec->tokens});
}

/* The table of an intervention as an input, or as the run's own buffer. */
static kedge_value table_input(kedge_build *b, const kedge_intervention *it) {
  const kedge_hf_config *c = &b->model->config;
  const uint32_t L = b->model->params.moe_layers, S = b->spec->prior_rows, T = b->spec->tokens;
  const uint32_t E = c->num_experts, K = c->num_experts_per_tok;
  switch (kedge_intervention_table(it)) {
  case KEDGE_TABLE_BIAS:
    return kedge_input(b->g, "prior.bias", KEDGE_F32, 3, (uint32_t[]){L, S, E});
  case KEDGE_TABLE_PRIOR:
    return kedge_input(b->g, "prior", KEDGE_F32, 3, (uint32_t[]){L, S, E});
  case KEDGE_TABLE_PRIOR_IDS:
    return kedge_input(b->g, "prior.ids", KEDGE_I32, 3, (uint32_t[]){L, S, K});
  case KEDGE_TABLE_BASE_LOGITS:
    return kedge_input(b->g, "base.logits", KEDGE_F32, 3, (uint32_t[]){L, T, E});
  case KEDGE_TABLE_BASE_IDS:
    return kedge_input(b->g, "base.ids", KEDGE_I32, 3, (uint32_t[]){L, T, K});
  case KEDGE_TABLE_COUNTS:
    return kedge_input(b->g, "counts", KEDGE_F32, 3, (uint32_t[]){L, 1, E});
  case KEDGE_TABLE_BASE_WEIGHTS:
    return kedge_parameter(b->g, "base.router", KEDGE_F32, 3, (uint32_t[]){L, E, c->hidden_size}, it->base,
                           0);
  case KEDGE_TABLE_NONE:
    break;
  }
  return KEDGE_NONE;
}

/* The inputs of an intervention. What reads the base's weights has no tokens. */
static void make_feed(kedge_build *b, const kedge_intervention *it, kedge_router_feed *feed) {
  if (!kedge_intervention_builds(it)) return;
  const bool whole = kedge_intervention_table(it) == KEDGE_TABLE_BASE_WEIGHTS;
  feed->table = table_input(b, it);
  if (!whole) feed->index_T = token_input(b, "router.index", KEDGE_I32);
  if (kedge_router_get_kind(it->id) == KEDGE_ROUTER_LOSS)
    feed->weights =
        kedge_input(b->g, "router.weights", KEDGE_F32, 1, (uint32_t[]){whole ? 1 : b->spec->tokens});
}

static void make_inputs(kedge_build *b) {
  kedge_decoder *d = b->d;
  const kedge_model *m = b->model;
  d->ids_T = token_input(b, "ids", KEDGE_I32);
  d->positions_T = token_input(b, "positions", KEDGE_I32);
  d->segments_T = token_input(b, "segments", KEDGE_I32);
  if (b->spec->loss) {
    d->labels_T = token_input(b, "labels", KEDGE_I32);
    d->weights_T = token_input(b, "weights", KEDGE_F32);
  }
  for (uint32_t i = 0; i < b->spec->intervention_count; i++)
    make_feed(b, &b->spec->interventions[i], &d->feeds[i]);
  if (b->spec->cache) {
    d->rows_T = token_input(b, "cache.rows", KEDGE_I32);
    d->base_T = token_input(b, "cache.base", KEDGE_I32);
    d->length_T = token_input(b, "cache.length", KEDGE_I32);
  }
  for (uint32_t i = 0; i < m->params.count; i++) {
    const kedge_param *p = &m->params.items[i];
    char name[KEDGE_NAME_SIZE];
    const kedge_dtype dtype = kedge_param_dtype(p, m->dtype);
    kedge_param_name(p, p->parts, name);
    d->params[i] = m->parts[i] ? kedge_parameter_parts(b->g, name, dtype, p->rank, p->dims, m->parts[i], NULL)
                               : kedge_parameter(b->g, name, dtype, p->rank, p->dims, m->weights[i], 0);
  }
  b->inv_freq = kedge_parameter(b->g, "rope.inv_freq", KEDGE_F32, 1,
                                (uint32_t[]){kedge_rope_width(&m->config) / 2}, m->inv_freq, 0);
}

/* MoE layers that an intervention acts on. */
static uint32_t covered(const kedge_build *b, const kedge_intervention *it) {
  uint32_t count = 0;
  for (uint32_t l = 0; l < b->model->params.moe_layers; l++)
    count += kedge_intervention_covers(it, kedge_params_moe_layer(&b->model->params, l));
  return count;
}

/* Joins each intervention's losses of the layers (already summed) and adds them up. */
static void join_terms(kedge_build *b) {
  kedge_decoder *d = b->d;
  for (uint32_t i = 0; i < b->spec->intervention_count; i++) {
    const kedge_intervention *it = &b->spec->interventions[i];
    if (!d->terms_1[i]) continue;
    if (it->layer_mean) d->terms_1[i] = kedge_scale(b->g, d->terms_1[i], 1.0 / covered(b, it));
    kedge_output(b->g, d->terms_1[i], kedge_router_name(it->id));
    kedge_value part_1 = kedge_scale(b->g, d->terms_1[i], it->coef);
    d->aux_1 = d->aux_1 ? kedge_add(b->g, d->aux_1, part_1) : part_1;
  }
}

static void make_outputs(kedge_build *b, kedge_value h_TD) {
  kedge_decoder *d = b->d;
  kedge_value head = kedge__weight(b, KEDGE_ROLE_HEAD, 0);
  if (!head) head = kedge__weight(b, KEDGE_ROLE_EMBED, 0);
  h_TD =
      kedge_rms_norm(b->g, h_TD, kedge__weight(b, KEDGE_ROLE_FINAL_NORM, 0), b->model->config.rms_norm_eps);
  /* A scale of the logits is applied here, so that every reader of the hidden rows has it. */
  h_TD = kedge__multiplied(b, h_TD, 1.0 / b->model->config.logits_scaling);
  if (b->spec->hidden) kedge_output(b->g, d->hidden_TD = h_TD, "hidden");
  if (b->spec->logits)
    kedge_output(b->g, d->logits_TV = kedge_matmul(b->g, h_TD, head, false, true, KEDGE_F32), "logits");
  if (!b->spec->loss) return;
  join_terms(b);
  d->nll_T = kedge_head_loss(b->g, h_TD, head, d->labels_T, NULL);
  d->loss_1 = kedge_sum(b->g, kedge_mul(b->g, d->nll_T, d->weights_T));
  if (d->aux_1) d->loss_1 = kedge_add(b->g, d->loss_1, d->aux_1);
  kedge_output(b->g, d->nll_T, "nll");
  kedge_output(b->g, d->loss_1, "loss");
  if (d->aux_1) kedge_output(b->g, d->aux_1, "aux");
}

static bool allocate(kedge_decoder *d, const kedge_model *m, const kedge_decoder_spec *spec) {
  const uint32_t layers = m->params.moe_layers, interventions = spec->intervention_count;
  d->graph = kedge_graph_new(spec->all_double);
  d->feeds = kedge_alloc(interventions, sizeof *d->feeds);
  d->terms_1 = kedge_alloc(interventions, sizeof *d->terms_1);
  d->offsets_E1 = kedge_alloc(layers, sizeof *d->offsets_E1);
  d->counts_GE = kedge_alloc(layers, sizeof *d->counts_GE);
  d->params = kedge_alloc(m->params.count, sizeof *d->params);
  d->router_TE = kedge_alloc(layers, sizeof *d->router_TE);
  d->scores_TE = kedge_alloc(layers, sizeof *d->scores_TE);
  d->ids_TK = kedge_alloc(layers, sizeof *d->ids_TK);
  d->gates_TK = kedge_alloc(layers, sizeof *d->gates_TK);
  d->bad_1 = kedge_alloc(layers, sizeof *d->bad_1);
  return d->graph && d->feeds && d->terms_1 && d->offsets_E1 && d->counts_GE && d->params && d->router_TE &&
         d->scores_TE && d->ids_TK && d->gates_TK && d->bad_1;
}

uint32_t kedge_decoder_expert_rows(const kedge_model *model, uint32_t tokens) {
  const uint64_t rows = (uint64_t)tokens * model->config.num_experts_per_tok;
  return kedge_bucket((uint32_t)(rows + rows / 4));
}

kedge_status kedge_decoder_build(const kedge_model *model, const kedge_decoder_spec *spec, kedge_decoder *d) {
  *d = (kedge_decoder){0};
  if (spec->intervention_count > KEDGE_MAX_INTERVENTIONS)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "%u interventions, at most %d", spec->intervention_count,
                      KEDGE_MAX_INTERVENTIONS);
  if (!allocate(d, model, spec)) {
    kedge_decoder_destroy(d);
    return KEDGE_ERR_MEMORY;
  }
  kedge_build b = {model, spec, d, d->graph, KEDGE_NONE};
  make_inputs(&b);
  kedge_value h_TD = kedge_embed(d->graph, kedge__weight(&b, KEDGE_ROLE_EMBED, 0), d->ids_T);
  h_TD = kedge__multiplied(&b, h_TD, model->config.embedding_multiplier);
  for (uint32_t l = 0; l < model->config.num_hidden_layers; l++) h_TD = kedge__layer(&b, l, h_TD);
  make_outputs(&b, h_TD);
  kedge_status status = kedge_graph_status(d->graph);
  if (status != KEDGE_OK) kedge_decoder_destroy(d);
  return status;
}

void kedge_decoder_destroy(kedge_decoder *d) {
  kedge_graph_free(d->graph);
  kedge_free(d->feeds);
  kedge_free(d->complete);
  kedge_free(d->terms_1);
  kedge_free(d->offsets_E1);
  kedge_free(d->counts_GE);
  kedge_free(d->params);
  kedge_free(d->router_TE);
  kedge_free(d->scores_TE);
  kedge_free(d->ids_TK);
  kedge_free(d->gates_TK);
  kedge_free(d->bad_1);
  *d = (kedge_decoder){0};
}
