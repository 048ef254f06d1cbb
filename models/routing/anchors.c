/* SPDX-License-Identifier: Apache-2.0
 *
 * Anchors as added losses (arXiv:2609.08115, section 3.3 and eq. 5). Of one layer, with n tokens counted in
 * the update, pi the prior of a token's span and z0 the frozen base's logits of the same token:
 *
 *   Router-L2   ||W - W0||^2 over all E D entries
 *   KL          1/n sum_t KL(pi || softmax z_t)
 *   KL-token    1/n sum_t KL(softmax z0_t || softmax z_t)
 *   Logit-L2    1/n sum_t ||center(z_t) - center(log max(pi, 1e-8))||^2
 *
 * KL and Logit-L2 pull every token to its span's mean; KL-token alone is 0 at the base.
 */
#include "models/routing/router.h"

#include "core/args.h"

#define PRIOR_FLOOR 1e-8

kedge_value kedge__router_router_l2(const kedge_router_site *site, const kedge_intervention *it,
                                    const kedge_router_feed *feed, kedge_router_values *values) {
  (void)it;
  (void)values;
  kedge_graph *g = site->graph;
  kedge_value base_ED = kedge_part(g, feed->table, site->moe_layer);
  kedge_value moved_ED = kedge_add(g, site->weight_ED, kedge_scale(g, base_ED, -1));
  return kedge_mul(g, kedge_sum(g, kedge_mul(g, moved_ED, moved_ED)), feed->weights);
}

kedge_value kedge__router_kl(const kedge_router_site *site, const kedge_intervention *it,
                             const kedge_router_feed *feed, kedge_router_values *values) {
  kedge_value z_TE = kedge__router_loss_logits(site, it, values);
  kedge_value pi_SE = kedge_part(site->graph, feed->table, site->moe_layer);
  return kedge__router_weighted(site, feed, kedge_anchor_kl(site->graph, z_TE, pi_SE, feed->index_T));
}

kedge_value kedge__router_kl_token(const kedge_router_site *site, const kedge_intervention *it,
                                   const kedge_router_feed *feed, kedge_router_values *values) {
  kedge_value z_TE = kedge__router_loss_logits(site, it, values);
  kedge_value z0_TE = kedge_part(site->graph, feed->table, site->moe_layer);
  kedge_value p0_TE = kedge_scores(site->graph, z0_TE, KEDGE_SCORE_SOFTMAX);
  return kedge__router_weighted(site, feed, kedge_anchor_kl(site->graph, z_TE, p0_TE, feed->index_T));
}

kedge_value kedge__router_logit_l2(const kedge_router_site *site, const kedge_intervention *it,
                                   const kedge_router_feed *feed, kedge_router_values *values) {
  kedge_value z_TE = kedge__router_loss_logits(site, it, values);
  kedge_value pi_SE = kedge_part(site->graph, feed->table, site->moe_layer);
  return kedge__router_weighted(site, feed,
                                kedge_anchor_l2(site->graph, z_TE, pi_SE, feed->index_T, PRIOR_FLOOR));
}
