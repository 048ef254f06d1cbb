/* SPDX-License-Identifier: Apache-2.0
 * Interventions of a run from its configuration (interventions.h). */
#include "models/training/interventions.h"

#include "models/training/setup.h"

#include <stdio.h>
#include <string.h>

typedef struct opening {
  kedge_interventions *to;
  const kedge_setup *setup;
} opening;

const kedge_intervention *kedge_interventions_find(const kedge_interventions *list, kedge_router_id id) {
  for (uint32_t i = 0; i < list->count; i++)
    if (list->items[i].id == id) return &list->items[i];
  return NULL;
}

/* ---- Settings
 * ----------------------------------------------------------------------------------------------------- */

static kedge_status check_layers(const opening *o, const kedge_intervention *it) {
  const kedge_model *m = o->setup->model;
  for (uint32_t i = 0; i < it->layer_count; i++)
    if (it->layers[i] >= m->config.num_hidden_layers || !kedge_params_is_moe(&m->params, it->layers[i]))
      return kedge_fail(KEDGE_ERR_ARGUMENT,
                        "key \"router.layers\": layer %u is not an MoE layer of this model", it->layers[i]);
  return KEDGE_OK;
}

/* One entry of the config's router list. */
static kedge_status translate(const opening *o, const kedge_config_router *r, kedge_intervention *it) {
  const kedge_config *c = o->setup->config;
  const kedge_router_id id = (kedge_router_id)r->intervention;
  static const kedge_balance_scope scopes[] = {
      [KEDGE_CONFIG_LB_MICRO] = KEDGE_BALANCE_MICRO,
      [KEDGE_CONFIG_LB_SEQUENCE] = KEDGE_BALANCE_SEQUENCE,
      [KEDGE_CONFIG_LB_GLOBAL] = KEDGE_BALANCE_GLOBAL,
      [KEDGE_CONFIG_LB_GLOBAL_RUNNING] = KEDGE_BALANCE_GLOBAL_RUNNING,
  };
  *it = (kedge_intervention){
      .id = id,
      .beta = r->beta,
      .coef = r->coef,
      .eps = r->eps,
      .clip = r->clip,
      .gate_raw = r->gate_source == KEDGE_CONFIG_GATE_RAW,
      .whole_sample = r->span == KEDGE_CONFIG_SPAN_SAMPLE,
      .completion = r->mask == KEDGE_CONFIG_MASK_COMPLETION,
      .detach_hidden = c->aux_detach_hidden,
      .layer_mean =
          id == KEDGE_ROUTER_lbl ? c->lb_layers == KEDGE_CONFIG_LB_MEAN : kedge_router_layer_mean(id),
      .scope = scopes[c->router_lb_scope],
      .balance_hf = c->lb_convention == KEDGE_CONFIG_LB_HF,
      .balance_dispatched = c->lb_counts == KEDGE_CONFIG_LB_DISPATCHED,
      .mean_removal = r->bias_mean_removal == KEDGE_CONFIG_SWITCH_ON,
      .layers = r->layers.count ? r->layers.items : NULL,
      .layer_count = (uint32_t)r->layers.count,
  };
  return check_layers(o, it);
}

/* ---- What it reads
 * ------------------------------------------------------------------------------------------------ */

/* The control of a permuted prior: drawn here, applied to each row as it is read. */
static kedge_status shuffle_prior(kedge_prior *prior, const kedge_config_router *r) {
  const bool within = r->shuffle == KEDGE_CONFIG_SHUFFLE_WITHIN;
  kedge_shuffle shuffle;
  if (r->shuffle == KEDGE_CONFIG_SHUFFLE_NONE) return KEDGE_OK;
  if (within && !r->communities)
    return kedge_fail(KEDGE_ERR_ARGUMENT,
                      "key \"router.communities\": shuffle within needs the file that `kedge probe "
                      "--communities` wrote of the base");
  KEDGE_TRY(kedge_prior_draw_shuffle(prior, within ? KEDGE_SHUFFLE_WITHIN : KEDGE_SHUFFLE_GLOBAL,
                                     (uint64_t)r->shuffle_seed, within ? r->communities : NULL, &shuffle));
  kedge_status status = kedge_prior_set_shuffle(prior, &shuffle);
  kedge_shuffle_destroy(&shuffle);
  return status;
}

static kedge_status open_prior(opening *o, uint32_t i, const kedge_config_router *r) {
  const kedge_setup *s = o->setup;
  kedge_prior_identity identity;
  const char *name = kedge_router_name(o->to->items[i].id);
  if (!r->prior)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "key \"router.prior\": %s needs the file that `kedge prior` wrote",
                      name);
  KEDGE_TRY(kedge_prior_open(r->prior, &o->to->priors[i]));
  if (kedge_intervention_table(&o->to->items[i]) == KEDGE_TABLE_PRIOR)
    KEDGE_TRY(kedge_prior_require_exact(o->to->priors[i]));
  KEDGE_TRY(kedge_prior_identify(s->model, s->tokenizer, s->data, (uint32_t)s->config->max_length,
                                 s->config->prompt_template, s->config->chat_template, &identity));
  KEDGE_TRY(kedge_prior_check(o->to->priors[i], &identity, &s->model->params, s->data));
  o->to->sources[i].prior = o->to->priors[i];
  return shuffle_prior(o->to->priors[i], r);
}

/* Each layer is the model's, and each token has experts in it: one without would choose as it does in
 * training without replay. */
static kedge_status check_trace(const char *path, const kedge_trace *t, const kedge_params *p) {
  for (uint32_t l = 0; l < t->layers; l++)
    if ((uint32_t)t->layer_numbers[l] != kedge_params_moe_layer(p, l))
      return kedge_fail(KEDGE_ERR_MISMATCH, "%s: layers[%u] is %d, MoE layer %u of the model is layer %u",
                        path, l, t->layer_numbers[l], l, kedge_params_moe_layer(p, l));
  for (size_t row = 0; row < (size_t)t->tokens * t->layers; row++)
    if (t->ids[row * t->topk] < 0)
      return kedge_fail(KEDGE_ERR_MISMATCH,
                        "%s: token %zu is not routed in layer %d; replay needs its experts", path,
                        row / t->layers, t->layer_numbers[row % t->layers]);
  return KEDGE_OK;
}

/* The trace must be of this base, on these samples, whole. */
static kedge_status open_trace(opening *o, uint32_t i, const kedge_config_router *r) {
  const kedge_setup *s = o->setup;
  const kedge_params *p = &s->model->params;
  kedge_trace *t = &o->to->trace;
  char base[33];
  if (!r->trace) return KEDGE_OK;
  KEDGE_TRY(kedge_trace_load(r->trace, t));
  KEDGE_TRY(kedge_model_hash(s->model, base));
  if (t->layers != p->moe_layers || t->experts != p->config.num_experts ||
      t->topk != p->config.num_experts_per_tok)
    return kedge_fail(KEDGE_ERR_MISMATCH,
                      "%s: trace of %u MoE layers, %u experts, top-%u; the model has %u, %u, %u", r->trace,
                      t->layers, t->experts, t->topk, p->moe_layers, p->config.num_experts,
                      p->config.num_experts_per_tok);
  if (strcmp(t->model, base))
    return kedge_fail(KEDGE_ERR_MISMATCH, "%s: trace of another model (hash %s, this base has %s)", r->trace,
                      *t->model ? t->model : "unknown", base);
  if (strcmp(t->data, s->data->hash) || t->tokens != s->data->offsets[s->data->count])
    return kedge_fail(KEDGE_ERR_MISMATCH,
                      "%s: trace of other data (hash %s, %u tokens; this run's samples have %s, %llu)",
                      r->trace, *t->data ? t->data : "unknown", t->tokens, s->data->hash,
                      (unsigned long long)s->data->offsets[s->data->count]);
  KEDGE_TRY(check_trace(r->trace, t, p));
  o->to->sources[i].trace = t;
  o->to->sources[i].traced = s->data;
  return KEDGE_OK;
}

kedge_status kedge_interventions_hash(const kedge_interventions *list, char text[33]) {
  const kedge_trace *t = &list->trace;
  kedge_hash *hash = kedge_hash_new();
  kedge_status status = hash ? KEDGE_OK : KEDGE_ERR_MEMORY;
  bool any = false;
  for (uint32_t i = 0; i < list->count && status == KEDGE_OK; i++) {
    if (!list->priors[i]) continue;
    any = true;
    kedge_hash_add_text(hash, kedge_router_name(list->items[i].id));
    status = kedge_prior_hash(list->priors[i], hash);
  }
  if (t->tokens && status == KEDGE_OK) {
    any = true;
    kedge_hash_add(hash, t->ids, (uint64_t)t->tokens * t->layers * t->topk * sizeof *t->ids);
  }
  *text = 0;
  if (any && status == KEDGE_OK) kedge_hash_text(hash, text);
  kedge_hash_free(hash);
  return status;
}

/* A copy of all router weights, as they are before the first update. */
static kedge_status copy_base(opening *o) {
  const kedge_model *m = o->setup->model;
  const uint64_t bytes = (uint64_t)m->config.num_experts * m->config.hidden_size * sizeof(float);
  KEDGE_TRY(kedge_buffer_new(m->device, m->params.moe_layers * bytes, &o->to->base));
  void *piece = kedge_alloc(bytes, 1);
  if (!piece) return KEDGE_ERR_MEMORY;
  kedge_status status = KEDGE_OK;
  for (uint32_t l = 0; l < m->params.moe_layers && status == KEDGE_OK; l++) {
    const uint32_t item =
        kedge_params_find(&m->params, KEDGE_ROLE_ROUTER, kedge_params_moe_layer(&m->params, l));
    status = kedge_buffer_read(m->weights[item], 0, piece, bytes);
    if (status == KEDGE_OK) status = kedge_buffer_write(o->to->base, l * bytes, piece, bytes);
  }
  kedge_free(piece);
  return status;
}

/* ---- What updates leave alone, or move
 * ---------------------------------------------------------------------------- */

/* Router weights and biases of the layers are left out of the optimizer. */
static kedge_status freeze(opening *o, const kedge_intervention *it) {
  const kedge_params *p = &o->setup->model->params;
  o->to->trained = kedge_alloc(p->count, sizeof *o->to->trained);
  if (!o->to->trained) return KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; i < p->count; i++) {
    const kedge_role role = p->items[i].role;
    const bool router = role == KEDGE_ROLE_ROUTER || role == KEDGE_ROLE_ROUTER_CORRECTION;
    o->to->trained[i] = !(router && kedge_intervention_covers(it, p->items[i].layer));
  }
  return KEDGE_OK;
}

static kedge_status check_bias(const opening *o, const kedge_intervention *it) {
  const kedge_params *p = &o->setup->model->params;
  for (uint32_t l = 0; l < p->moe_layers; l++) {
    const uint32_t layer = kedge_params_moe_layer(p, l);
    if (!kedge_intervention_covers(it, layer)) continue;
    if (kedge_params_find(p, KEDGE_ROLE_ROUTER_CORRECTION, layer) == UINT32_MAX)
      return kedge_fail(KEDGE_ERR_UNSUPPORTED,
                        "key \"router\": loss_free moves a selection bias, and %s routers have none",
                        p->config.model_type);
  }
  return KEDGE_OK;
}

/* ---- All
 * ----------------------------------------------------------------------------------------------------------
 */

static const char *scope_name(const kedge_config *c) {
  return kedge_config_value_name("router_lb_scope", c->router_lb_scope);
}

enum { FROZEN_NAMED = 8 }; /* so many tensors are told one by one */

/* The tensors that are frozen, by name: all of a few, the first and the last of many. */
static char *describe_freeze(const kedge_setup *s) {
  const kedge_params *p = &s->model->params;
  uint32_t frozen = 0, told = 0;
  for (uint32_t i = 0; i < p->count; i++) frozen += !s->router.trained[i];
  char *line = frozen <= FROZEN_NAMED ? kedge_strdup("freeze keeps the bits of")
                                      : kedge_format("freeze keeps the bits of %u tensors:", frozen);
  for (uint32_t i = 0; i < p->count && line; i++) {
    char name[KEDGE_NAME_SIZE];
    if (s->router.trained[i]) continue;
    told++;
    if (frozen > FROZEN_NAMED && told > 1 && told < frozen) continue;
    kedge_param_name(&p->items[i], 0, name);
    const char *before = told == 1 ? "" : frozen > FROZEN_NAMED ? " to" : ",";
    char *longer = kedge_format("%s%s %s", line, before, name);
    kedge_free(line);
    line = longer;
  }
  return line;
}

/* What an intervention is, with the settings of its own. */
static char *describe_row(const kedge_setup *s, uint32_t i) {
  const kedge_intervention *it = &s->router.items[i];
  const kedge_config *c = s->config;
  if (it->id == KEDGE_ROUTER_freeze) return describe_freeze(s);
  if (it->id == KEDGE_ROUTER_lbl)
    return kedge_format("lbl with coef %g, scope %s, convention %s (%g when balanced), counting %s", it->coef,
                        scope_name(c), kedge_config_value_name("lb_convention", c->lb_convention),
                        it->balance_hf ? (double)s->model->config.num_experts_per_tok : 1.0,
                        kedge_config_value_name("lb_counts", c->lb_counts));
  if (it->id == KEDGE_ROUTER_rpb)
    return kedge_format("rpb with beta %g, prior clipped to [%g/E, %g/E], gate weights from %s logits",
                        it->beta, it->eps, it->clip, it->gate_raw ? "raw" : "biased");
  if (it->id == KEDGE_ROUTER_rpb_hard)
    return kedge_format("rpb_hard, prior clipped to [%g/E, %g/E], gate weights from raw logits", it->eps,
                        it->clip);
  if (it->id == KEDGE_ROUTER_replay)
    return kedge_format("replay of %s", s->router.sources[i].trace ? "the trace" : "the base's own choices");
  if (it->id == KEDGE_ROUTER_loss_free)
    return kedge_format("loss_free moves the selection bias by %g an update%s", it->coef,
                        it->mean_removal ? " and removes the mean of the change" : "");
  return kedge_format("%s with coef %g", kedge_router_name(it->id), it->coef);
}

/* What settings that several interventions have add to that. */
char *kedge_interventions_describe(const kedge_setup *s, uint32_t i) {
  const kedge_intervention *it = &s->router.items[i];
  const kedge_config_router *r = &s->config->router.items[i];
  const bool adds = kedge_router_get_kind(it->id) == KEDGE_ROUTER_LOSS;
  const kedge_prior *prior = s->router.priors[i];
  const bool shuffled = prior && r->shuffle != KEDGE_CONFIG_SHUFFLE_NONE;
  char shuffle[160] = "", layers[40] = "", *row = describe_row(s, i);
  if (shuffled)
    snprintf(shuffle, sizeof shuffle, ", the prior's experts permuted %s, seed %lld",
             kedge_config_value_name("router.shuffle", r->shuffle), (long long)r->shuffle_seed);
  else if (prior && *kedge_prior_shuffled(prior))
    snprintf(shuffle, sizeof shuffle, ", the prior's experts permuted in its file: %s",
             kedge_prior_shuffled(prior));
  if (it->layers && it->id != KEDGE_ROUTER_freeze)
    snprintf(layers, sizeof layers, ", %u of %u MoE layers", it->layer_count, s->model->params.moe_layers);
  char *line = row ? kedge_format("%s%s%s%s%s%s", row, shuffle,
                                  !adds            ? ""
                                  : it->layer_mean ? ", mean over layers"
                                                   : ", sum over layers",
                                  layers, adds && it->completion ? ", answer tokens alone" : "",
                                  adds && it->detach_hidden ? ", the layers below untouched" : "")
                   : NULL;
  kedge_free(row);
  return line;
}

static kedge_status open_one(opening *o, uint32_t i, const kedge_config_router *r) {
  kedge_intervention *it = &o->to->items[i];
  KEDGE_TRY(translate(o, r, it));
  if (kedge_router_needs_prior(it->id)) KEDGE_TRY(open_prior(o, i, r));
  if (it->id == KEDGE_ROUTER_replay) KEDGE_TRY(open_trace(o, i, r));
  if (it->id == KEDGE_ROUTER_freeze) KEDGE_TRY(freeze(o, it));
  if (it->id == KEDGE_ROUTER_loss_free) KEDGE_TRY(check_bias(o, it));
  if (kedge_intervention_table(it) == KEDGE_TABLE_BASE_WEIGHTS) {
    KEDGE_TRY(copy_base(o));
    it->base = o->to->base;
  }
  return KEDGE_OK;
}

kedge_status kedge_interventions_open(kedge_interventions *to, const kedge_setup *setup) {
  const kedge_config_routers *routers = &setup->config->router;
  opening o = {to, setup};
  *to = (kedge_interventions){0};
  kedge_status status = KEDGE_OK;
  for (size_t i = 0; i < routers->count && status == KEDGE_OK; i++)
    status = open_one(&o, to->count++, &routers->items[i]);
  if (status != KEDGE_OK) kedge_interventions_close(to);
  return status;
}

void kedge_interventions_close(kedge_interventions *to) {
  for (uint32_t i = 0; i < KEDGE_MAX_INTERVENTIONS; i++) kedge_prior_free(to->priors[i]);
  kedge_trace_destroy(&to->trace);
  kedge_buffer_free(to->base);
  kedge_free(to->trained);
  *to = (kedge_interventions){0};
}
