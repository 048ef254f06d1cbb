/* SPDX-License-Identifier: Apache-2.0
 *
 * Router Prior Bias (arXiv:2609.08115, eq. 3 and 4):
 *
 *   z'[t] = z[t] + beta b[x(t), s(t), l],      b = log c - mean_e log c,   c = clip(pi, eps/E, C/E)
 *
 * pi is the frozen base router's mean softmax over the sample's span (models/routing/prior.c computes pi and
 * b). The bias is a constant: dL/dz = dL/dz'. Only in training; scoring and probing build the router without
 * it.
 */
#include "models/routing/router.h"

void kedge__router_none(const kedge_router_site *site, const kedge_intervention *intervention,
                        kedge_router_values *values) {
  (void)site;
  (void)intervention;
  (void)values;
}

void kedge__router_rpb(const kedge_router_site *site, const kedge_intervention *intervention,
                       kedge_router_values *values) {
  if (intervention->beta == 0) return; /* bit-identical to none */
  kedge_value bias_SE = kedge_part(site->graph, site->bias_LSE, site->moe_layer);
  values->choice_TE =
      kedge_row_bias(site->graph, values->logits_TE, bias_SE, site->spans_T, intervention->beta);
  if (!intervention->gate_raw) values->gate_TE = values->choice_TE;
}
