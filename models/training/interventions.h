/* SPDX-License-Identifier: Apache-2.0
 *
 * From the `router` key of a configuration to the interventions of a run and everything that they read:
 * priors, a routing trace, the base's router weights. Used by setup.h.
 */
#ifndef KEDGE_MODELS_TRAINING_INTERVENTIONS_H
#define KEDGE_MODELS_TRAINING_INTERVENTIONS_H

#include "models/routing/feed.h"
#include "models/training/config.h"

typedef struct kedge_interventions {
  kedge_intervention items[KEDGE_MAX_INTERVENTIONS]; /* an entry that changes nothing is kept */
  kedge_source sources[KEDGE_MAX_INTERVENTIONS];
  uint32_t count;
  kedge_prior *priors[KEDGE_MAX_INTERVENTIONS]; /* NULL: reads none */
  kedge_trace trace;                            /* of replay; empty: none */
  kedge_buffer *base;                           /* Router-L2's copy of the router weights */
  bool *trained;                                /* one a parameter; NULL: all are */
} kedge_interventions;

struct kedge_setup; /* setup.h */

/* Reads config, model, tokenizer and data of the setup, whose weights are still the base's. Errors:
 * ERR_ARGUMENT naming the key, ERR_UNSUPPORTED for what this model cannot do, those of kedge_prior_open,
 * kedge_prior_check and kedge_trace_load. On failure nothing is left open. */
kedge_status kedge_interventions_open(kedge_interventions *interventions, const struct kedge_setup *setup);
void kedge_interventions_close(kedge_interventions *interventions);

/* A hash of what their files hold, priors as they are read and the trace; "" where they read none. */
kedge_status kedge_interventions_hash(const kedge_interventions *interventions, char hash[33]);

/* A line that says what intervention i of the setup does, with its coefficient and conventions; `freeze`
 * names the tensors that it keeps. New memory, owned by the caller; NULL: no memory. */
char *kedge_interventions_describe(const struct kedge_setup *setup, uint32_t i);

/* The entry of this kind, NULL if the run has none. */
const kedge_intervention *kedge_interventions_find(const kedge_interventions *interventions,
                                                   kedge_router_id id);

#endif
