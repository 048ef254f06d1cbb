/* SPDX-License-Identifier: Apache-2.0
 * How clear the choices of the tiny decoder of gradient checks are (gradcheck_rig.h): routing once more, on
 * the host, from the router's logits. */
#include "models/gradcheck/gradcheck_rig.h"

#include "core/args.h"

#include <math.h>

enum { T = KEDGE_RIG_TOKENS, S = KEDGE_RIG_ROWS };

/* Marks the k best of n scores; the distance of the last of them to the first left out, infinite where there
 * is none. */
static double choose(const double *scores, uint32_t n, uint32_t k, bool *in) {
  double least = INFINITY, rest = -INFINITY;
  for (uint32_t e = 0; e < n; e++) {
    uint32_t better = 0;
    for (uint32_t o = 0; o < n; o++) better += scores[o] > scores[e] || (scores[o] == scores[e] && o < e);
    in[e] = better < k;
    if (in[e])
      least = fmin(least, scores[e]);
    else
      rest = fmax(rest, scores[e]);
  }
  return least - rest;
}

/* The group's worth: its best score or the sum of its two best. */
static double worth(const double *scores, uint32_t n, uint32_t kind) {
  double best = -INFINITY, second = -INFINITY;
  for (uint32_t e = 0; e < n; e++) {
    if (scores[e] > best)
      second = best, best = scores[e];
    else
      second = fmax(second, scores[e]);
  }
  return kind == KEDGE_GROUP_MAX ? best : best + second;
}

/* Chooses as the family does; scores are changed. */
static double route(const kedge_family_options *o, double *scores, uint32_t experts, uint32_t topk,
                    bool *in) {
  double gap = INFINITY;
  if (o->groups > 1) {
    const uint32_t each = experts / o->groups;
    double groups[KEDGE_RIG_EXPERTS];
    bool kept[KEDGE_RIG_EXPERTS];
    for (uint32_t i = 0; i < o->groups; i++) groups[i] = worth(scores + i * each, each, o->group_kind);
    gap = choose(groups, o->groups, o->topk_groups, kept) / (o->group_kind == KEDGE_GROUP_TWO ? 2 : 1);
    for (uint32_t e = 0; e < experts; e++)
      if (!kept[e / each]) scores[e] = -INFINITY;
  }
  gap = fmin(gap, choose(scores, experts, topk, in));
  return o->score_kind == KEDGE_SCORE_SIGMOID ? 4 * gap : gap; /* a sigmoid's slope is 1/4 at most */
}

/* Logits that the choice of a token reads. False where the choice is forced. */
static bool choice_logits(const kedge_rig *rig, uint32_t l, uint32_t t, double *z) {
  const kedge_rig_problem *p = rig->problem;
  for (uint32_t i = 0; i < rig->intervention_count; i++) {
    const kedge_intervention *it = &rig->interventions[i];
    if (!kedge_intervention_covers(it, kedge_params_moe_layer(&p->params, l)) || p->spans[t] < 0) continue;
    if (it->id == KEDGE_ROUTER_rpb_hard || it->id == KEDGE_ROUTER_replay) return false;
    if (it->id != KEDGE_ROUTER_rpb) continue;
    const double *bias = p->priors[it->whole_sample].bias_LSE + (l * S + (uint32_t)p->spans[t]) * p->experts;
    for (uint32_t e = 0; e < p->experts; e++) z[e] += it->beta * bias[e];
  }
  return true;
}

/* Whether some loss counts the best experts by plain score. */
static bool counts_scores(const kedge_rig *rig) {
  for (uint32_t i = 0; i < rig->intervention_count; i++)
    if (rig->interventions[i].id == KEDGE_ROUTER_lbl && !rig->interventions[i].balance_dispatched)
      return true;
  return false;
}

static kedge_status check_token(const kedge_rig *rig, uint32_t l, uint32_t t, double *z, const int32_t *ids,
                                double *gap) {
  const kedge_rig_problem *p = rig->problem;
  const uint32_t E = p->experts, K = p->topk,
                 at = kedge_params_find(&p->params, KEDGE_ROLE_ROUTER_CORRECTION,
                                        kedge_params_moe_layer(&p->params, l));
  bool in[KEDGE_RIG_EXPERTS];
  if (counts_scores(rig)) *gap = fmin(*gap, choose(z, E, K, in));
  if (!choice_logits(rig, l, t, z)) return KEDGE_OK;
  for (uint32_t e = 0; e < E; e++) {
    if (p->params.options.score_kind == KEDGE_SCORE_SIGMOID) z[e] = 1 / (1 + exp(-z[e]));
    if (at != UINT32_MAX) z[e] += p->weights[at][e];
  }
  *gap = fmin(*gap, route(&p->params.options, z, E, K, in));
  for (uint32_t k = 0; k < K; k++)
    if (ids[k] < 0 || (uint32_t)ids[k] >= E || !in[ids[k]])
      return kedge_fail(
          KEDGE_ERR_MISMATCH,
          "gradient check, %s: token %u of layer %u has expert %d, which its scores don't choose",
          p->source->name, t, l, ids[k]);
  return KEDGE_OK;
}

kedge_status kedge__rig_gap(kedge_rig *rig, double *gap) {
  const kedge_rig_problem *p = rig->problem;
  int32_t ids[KEDGE_RIG_IDS];
  double logits[T * KEDGE_RIG_EXPERTS];
  *gap = INFINITY;
  KEDGE_TRY(kedge__rig_ids(rig, ids));
  for (uint32_t l = 0; l < p->layers; l++) {
    KEDGE_TRY(kedge__rig_read(rig, rig->decoder.router_TE[l], logits, T * p->experts));
    for (uint32_t t = 0; t < T; t++)
      if (p->segments[t] >= 0)
        KEDGE_TRY(check_token(rig, l, t, logits + t * p->experts, ids + (l * T + t) * p->topk, gap));
  }
  return KEDGE_OK;
}
