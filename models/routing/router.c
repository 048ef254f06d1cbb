/* SPDX-License-Identifier: Apache-2.0
 * From a router's input to chosen experts and gate weights, with the interventions of routers.def in between.
 */
#include "models/routing/router.h"

#include "core/args.h"

#include <string.h>

enum { SUM, MEAN }; /* how a row joins its layers */

static const struct {
  const char *name;
  kedge_router_kind kind;
  kedge_router_table table;
  double coef;
  int layers;
  const char *keys;
  kedge__router_builder *build;
  const char *doc;
} rows[] = {
#define KEDGE_ROUTER(name, kind, table, coef, layers, keys, build, doc)                                      \
  {#name, KEDGE_ROUTER_##kind, KEDGE_TABLE_##table, coef, layers, keys, build, doc},
#include "models/routing/routers.def"
#undef KEDGE_ROUTER
};

const char *kedge_router_name(kedge_router_id id) {
  return rows[id].name;
}
kedge_router_kind kedge_router_get_kind(kedge_router_id id) {
  return rows[id].kind;
}
double kedge_router_coefficient(kedge_router_id id) {
  return rows[id].coef;
}
bool kedge_router_layer_mean(kedge_router_id id) {
  return rows[id].layers == MEAN;
}
const char *kedge_router_keys(kedge_router_id id) {
  return rows[id].keys;
}
const char *kedge_router_doc(kedge_router_id id) {
  return rows[id].doc;
}

bool kedge_router_needs_prior(kedge_router_id id) {
  const kedge_router_table table = rows[id].table;
  return table == KEDGE_TABLE_BIAS || table == KEDGE_TABLE_PRIOR || table == KEDGE_TABLE_PRIOR_IDS;
}

kedge_router_id kedge_router_find(const char *name) {
  for (uint32_t i = 0; i < KEDGE_ROUTER_COUNT; i++)
    if (!strcmp(rows[i].name, name)) return (kedge_router_id)i;
  return KEDGE_ROUTER_COUNT;
}

bool kedge_intervention_covers(const kedge_intervention *intervention, uint32_t layer) {
  if (!intervention->layers) return true;
  for (uint32_t i = 0; i < intervention->layer_count; i++)
    if (intervention->layers[i] == layer) return true;
  return false;
}

bool kedge_intervention_shares_counts(const kedge_intervention *it) {
  return it->id == KEDGE_ROUTER_lbl && kedge_intervention_builds(it) &&
         (it->scope == KEDGE_BALANCE_MICRO || it->scope == KEDGE_BALANCE_GLOBAL_RUNNING);
}

bool kedge_intervention_builds(const kedge_intervention *it) {
  if (!rows[it->id].build) return false;
  if (rows[it->id].kind == KEDGE_ROUTER_LOSS) return it->coef != 0;
  return it->id != KEDGE_ROUTER_rpb || it->beta != 0;
}

kedge_router_table kedge_intervention_table(const kedge_intervention *it) {
  if (!kedge_intervention_builds(it)) return KEDGE_TABLE_NONE;
  if (it->id == KEDGE_ROUTER_lbl && it->scope < KEDGE_BALANCE_GLOBAL) return KEDGE_TABLE_NONE;
  return rows[it->id].table;
}

static void apply(const kedge_router_site *site, kedge_router_kind kind, kedge_router_values *values) {
  for (uint32_t i = 0; i < site->intervention_count; i++) {
    const kedge_intervention *it = &site->interventions[i];
    if (rows[it->id].kind != kind || !kedge_intervention_builds(it)) continue;
    if (!kedge_intervention_covers(it, site->layer)) continue;
    values->terms[i] = rows[it->id].build(site, it, &site->feeds[i], values);
  }
}

kedge_router_values kedge_router_build(const kedge_router_site *site) {
  kedge_graph *g = site->graph;
  kedge_value logits_TE = kedge_linear(g, site->x_TD, site->weight_ED);
  kedge_router_values v = {.logits_TE = logits_TE, .choice_TE = logits_TE, .gate_TE = logits_TE};
  apply(site, KEDGE_ROUTER_SELECTION, &v);
  /* Softmax keeps the order of the logits, so they are compared themselves: no two differ only by rounding of
   * an exponential. */
  v.scores_TE =
      site->score_kind == KEDGE_SCORE_SOFTMAX ? v.choice_TE : kedge_scores(g, v.choice_TE, site->score_kind);
  v.ids_TK = kedge_topk(g, v.scores_TE, site->correction_E, site->segments_T, &site->choice, &v.bad_1);
  if (v.forced_RK) v.ids_TK = kedge_choose_rows(g, v.ids_TK, v.forced_RK, v.forced_T);
  v.weights_TK = kedge_gates(g, v.gate_TE, v.ids_TK, &site->gate);
  apply(site, KEDGE_ROUTER_LOSS, &v);
  return v;
}

kedge_value kedge__router_loss_logits(const kedge_router_site *site, const kedge_intervention *it,
                                      const kedge_router_values *values) {
  if (!it->detach_hidden) return values->logits_TE;
  return kedge_linear(site->graph, kedge_detach(site->graph, site->x_TD), site->weight_ED);
}

kedge_value kedge__router_weighted(const kedge_router_site *site, const kedge_router_feed *feed,
                                   kedge_value row_T) {
  return kedge_sum(site->graph, kedge_mul(site->graph, row_T, feed->weights));
}
