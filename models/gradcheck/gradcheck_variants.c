/* SPDX-License-Identifier: Apache-2.0
 *
 * What gradient checks run (gradcheck.h): every row of routers.def, with each setting that changes what is
 * computed, and lists of several. Strengths are neither 0 nor 1, and such that no term drowns the others. */
#include "models/gradcheck/gradcheck.h"

#include <string.h>

/* One intervention; further fields may follow. */
#define ONE(name, strength)                                                                                  \
  .id = KEDGE_ROUTER_##name, .coef = strength, .beta = 0.75, .eps = 0.05, .clip = 5.0
#define LBL       ONE(lbl, 0.3)
#define Z_LOSS    ONE(z_loss, 0.3)
#define KL        ONE(kl, 0.3)
#define KL_TOKEN  ONE(kl_token, 0.3)
#define LOGIT_L2  ONE(logit_l2, 0.01)
#define ROUTER_L2 ONE(router_l2, 0.05)

/* clang-format off */
const kedge_gradcheck_variant kedge_gradcheck_variants[] = {
    {"none", 1, {{ONE(none, 0)}}, false},
    {"lbl", 1, {{LBL}}, false},
    {"lbl, sequence", 1, {{LBL, .scope = KEDGE_BALANCE_SEQUENCE}}, false},
    {"lbl, global", 1, {{LBL, .scope = KEDGE_BALANCE_GLOBAL}}, false},
    {"lbl, global_running", 1, {{LBL, .scope = KEDGE_BALANCE_GLOBAL_RUNNING}}, false},
    {"lbl, hf", 1, {{LBL, .balance_hf = true}}, false},
    {"lbl, dispatched", 1, {{LBL, .balance_dispatched = true}}, false},
    {"lbl, mean of layers", 1, {{LBL, .layer_mean = true}}, false},
    {"lbl, completion", 1, {{LBL, .completion = true}}, false},
    {"lbl, detached", 1, {{LBL, .detach_hidden = true}}, false},
    {"lbl, sequence, completion, last layer", 1, {{LBL, .scope = KEDGE_BALANCE_SEQUENCE, .completion = true}}, true},
    {"z_loss", 1, {{Z_LOSS}}, false},
    {"z_loss, completion", 1, {{Z_LOSS, .completion = true}}, false},
    {"z_loss, detached", 1, {{Z_LOSS, .detach_hidden = true}}, false},
    {"freeze", 1, {{ONE(freeze, 0)}}, false},
    {"rpb", 1, {{ONE(rpb, 0)}}, false},
    {"rpb, raw gates", 1, {{ONE(rpb, 0), .gate_raw = true}}, false},
    {"rpb, whole sample", 1, {{ONE(rpb, 0), .whole_sample = true}}, false},
    {"rpb, last layer", 1, {{ONE(rpb, 0)}}, true},
    {"rpb_hard", 1, {{ONE(rpb_hard, 0)}}, false},
    {"rpb_hard, whole sample", 1, {{ONE(rpb_hard, 0), .whole_sample = true}}, false},
    {"replay", 1, {{ONE(replay, 0)}}, false},
    {"router_l2", 1, {{ROUTER_L2}}, false},
    {"kl", 1, {{KL}}, false},
    {"kl, completion", 1, {{KL, .completion = true}}, false},
    {"kl, whole sample", 1, {{KL, .whole_sample = true}}, false},
    {"kl, detached", 1, {{KL, .detach_hidden = true}}, false},
    {"kl, last layer", 1, {{KL}}, true},
    {"kl_token", 1, {{KL_TOKEN}}, false},
    {"kl_token, completion", 1, {{KL_TOKEN, .completion = true}}, false},
    {"kl_token, detached", 1, {{KL_TOKEN, .detach_hidden = true}}, false},
    {"logit_l2", 1, {{LOGIT_L2}}, false},
    {"logit_l2, completion", 1, {{LOGIT_L2, .completion = true}}, false},
    {"logit_l2, detached", 1, {{LOGIT_L2, .detach_hidden = true}}, false},
    {"loss_free", 1, {{ONE(loss_free, 0)}}, false},
    {"rpb + lbl + z_loss + router_l2 + kl", 5, {{ONE(rpb, 0)}, {LBL}, {Z_LOSS}, {ROUTER_L2}, {KL}}, false},
    {"rpb_hard + kl_token, detached + logit_l2", 3,
     {{ONE(rpb_hard, 0)}, {KL_TOKEN, .detach_hidden = true}, {LOGIT_L2}}, false},
};
/* clang-format on */

const uint32_t kedge_gradcheck_variant_count =
    sizeof kedge_gradcheck_variants / sizeof *kedge_gradcheck_variants;

const kedge_gradcheck_variant *kedge_gradcheck_find_variant(const char *name) {
  for (uint32_t i = 0; i < kedge_gradcheck_variant_count; i++)
    if (!strcmp(kedge_gradcheck_variants[i].name, name)) return &kedge_gradcheck_variants[i];
  return NULL;
}
