/* SPDX-License-Identifier: Apache-2.0
 * From raw router logits to chosen experts and gate weights, with the interventions of routers.def in
 * between. */
#include "models/routing/router.h"

#include "core/args.h"

#include <string.h>

typedef void (*builder)(const kedge_router_site *site, const kedge_intervention *intervention,
                        kedge_router_values *values);

static const struct {
  const char *name;
  kedge_router_kind kind;
  bool needs_prior;
  const char *doc;
  builder build;
} rows[] = {
#define KEDGE_ROUTER(name, kind, needs_prior, doc)                                                           \
  {#name, KEDGE_ROUTER_##kind, needs_prior, doc, kedge__router_##name},
#include "models/routing/routers.def"
#undef KEDGE_ROUTER
};

const char *kedge_router_name(kedge_router_id id) {
  return rows[id].name;
}
bool kedge_router_needs_prior(kedge_router_id id) {
  return rows[id].needs_prior;
}
const char *kedge_router_doc(kedge_router_id id) {
  return rows[id].doc;
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

static void apply(const kedge_router_site *site, kedge_router_kind kind, kedge_router_values *values) {
  for (uint32_t i = 0; i < site->intervention_count; i++) {
    const kedge_intervention *it = &site->interventions[i];
    if (rows[it->id].kind == kind && kedge_intervention_covers(it, site->layer))
      rows[it->id].build(site, it, values);
  }
}

kedge_router_values kedge_router_build(const kedge_router_site *site, kedge_value logits_TE) {
  kedge_graph *g = site->graph;
  kedge_router_values v = {.logits_TE = logits_TE, .choice_TE = logits_TE, .gate_TE = logits_TE};
  apply(site, KEDGE_ROUTER_SELECTION, &v);
  /* Softmax keeps the order of the logits, so they are compared themselves: no two differ only by rounding of
   * an exponential. */
  kedge_value scores_TE =
      site->score_kind == KEDGE_SCORE_SOFTMAX ? v.choice_TE : kedge_scores(g, v.choice_TE, site->score_kind);
  if (!v.ids_TK)
    v.ids_TK = kedge_topk(g, scores_TE, site->correction_E, site->segments_T, &site->choice, &v.bad_1);
  v.weights_TK = kedge_gates(g, v.gate_TE, v.ids_TK, &site->gate);
  apply(site, KEDGE_ROUTER_LOSS, &v);
  return v;
}
