/* SPDX-License-Identifier: Apache-2.0
 *
 * Losses on the router's own logits: load balancing and the z-loss. With n tokens counted in a layer:
 *
 *   f_e = #{choices of e} / (n K),   P_e = 1/n sum_t q_te,   LBL = E sum_e f_e P_e
 *
 * q = softmax(z), or for sigmoid scores s_e / sum_j s_j. f carries no gradient. It is 1 when balanced and E/K
 * when all tokens use the same K experts with all the mass; in the convention of transformers K times that.
 * The z-loss is 1/n sum_t (logsumexp z_t)^2 (ST-MoE). n runs over the whole update: a micro-batch weighs by
 * its tokens.
 */
#include "models/routing/router.h"

#include "core/args.h"
#include "core/comm.h"

/* The choices that f counts: those in use, or the best K by score alone, without selection bias, groups or
 * any intervention. */
static kedge_value counted_ids(const kedge_router_site *site, const kedge_intervention *it,
                               const kedge_router_values *values) {
  const bool same = !site->correction_E && site->choice.groups <= 1 &&
                    values->choice_TE == values->logits_TE && !values->forced_RK;
  if (it->balance_dispatched || same) return values->ids_TK;
  const kedge_topk_options plain = {.k = site->choice.k};
  return kedge_topk(site->graph, values->logits_TE, KEDGE_NONE, site->segments_T, &plain, NULL);
}

kedge_value kedge__router_lbl(const kedge_router_site *site, const kedge_intervention *it,
                              const kedge_router_feed *feed, kedge_router_values *values) {
  kedge_graph *g = site->graph;
  const uint32_t groups = it->scope == KEDGE_BALANCE_SEQUENCE ? site->groups : 1;
  kedge_value counts_GE =
      kedge_expert_counts(g, counted_ids(site, it, values), feed->index_T, groups, site->experts);
  if (site->ranks > 1 && kedge_intervention_shares_counts(it))
    counts_GE = kedge_all_reduce(g, counts_GE, KEDGE_RANKS_ALL);
  values->counts_GE = counts_GE;
  if (it->scope == KEDGE_BALANCE_GLOBAL) counts_GE = kedge_part(g, feed->table, site->moe_layer);
  if (it->scope == KEDGE_BALANCE_GLOBAL_RUNNING)
    counts_GE = kedge_add(g, kedge_part(g, feed->table, site->moe_layer), counts_GE);
  kedge_value z_TE = kedge__router_loss_logits(site, it, values);
  kedge_value loss_1 =
      kedge__router_weighted(site, feed, kedge_balance(g, z_TE, counts_GE, feed->index_T, site->score_kind));
  return it->balance_hf ? kedge_scale(g, loss_1, site->choice.k) : loss_1;
}

kedge_value kedge__router_z_loss(const kedge_router_site *site, const kedge_intervention *it,
                                 const kedge_router_feed *feed, kedge_router_values *values) {
  kedge_value lse_T = kedge_logsumexp(site->graph, kedge__router_loss_logits(site, it, values));
  return kedge__router_weighted(site, feed, kedge_mul(site->graph, lse_T, lse_T));
}
