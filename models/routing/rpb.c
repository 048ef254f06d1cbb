/* SPDX-License-Identifier: Apache-2.0
 *
 * Router Prior Bias (arXiv:2609.08115, eq. 3 and 4):
 *
 *   z'[t] = z[t] + beta b[x(t), s(t), l],      b = log c - mean_e log c,   c = clip(pi, eps/E, C/E)
 *
 * pi is the frozen base router's mean softmax over the sample's span (models/prior/prior.c computes pi and
 * b). The bias is a constant: dL/dz = dL/dz'. Only in training; scoring and probing build the router without
 * it. Choices that are forced, those of RPB-hard (section 3.1) and of replay, are here too.
 */
#include "models/routing/router.h"

kedge_value kedge__router_rpb(const kedge_router_site *site, const kedge_intervention *it,
                              const kedge_router_feed *feed, kedge_router_values *values) {
  kedge_value bias_SE = kedge_part(site->graph, feed->table, site->moe_layer);
  values->choice_TE = kedge_row_bias(site->graph, values->logits_TE, bias_SE, feed->index_T, it->beta);
  if (!it->gate_raw) values->gate_TE = values->choice_TE;
  return KEDGE_NONE;
}

/* S_t = row index_t of the table: the top-k of the span's prior, or the base's own choice. Tokens without a
 * row choose as ever; gate weights are those of the raw logits on S_t. The choice carries no gradient. */
kedge_value kedge__router_forced(const kedge_router_site *site, const kedge_intervention *it,
                                 const kedge_router_feed *feed, kedge_router_values *values) {
  (void)it;
  values->forced_RK = kedge_part(site->graph, feed->table, site->moe_layer);
  values->forced_T = feed->index_T;
  return KEDGE_NONE;
}
