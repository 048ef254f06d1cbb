/* SPDX-License-Identifier: Apache-2.0
 *
 * The router of one MoE layer as values, and the interventions that may touch them. Interventions are rows of
 * routers.def; each has one builder in models/routing/. blocks.c calls kedge_router_build() and uses what it
 * returns.
 *
 * Legend: T tokens, E experts, K experts a token, L MoE layers, S rows of the prior (sample and span) in this
 * micro-batch.
 */
#ifndef KEDGE_MODELS_ROUTING_ROUTER_H
#define KEDGE_MODELS_ROUTING_ROUTER_H

#include "core/kedge.h"

/* Where an intervention acts: on the logits before the choice of experts, or as an added loss after it. */
typedef enum kedge_router_kind { KEDGE_ROUTER_SELECTION, KEDGE_ROUTER_LOSS } kedge_router_kind;

typedef enum kedge_router_id {
#define KEDGE_ROUTER(name, kind, needs_prior, doc) KEDGE_ROUTER_##name,
#include "models/routing/routers.def"
#undef KEDGE_ROUTER
  KEDGE_ROUTER_COUNT
} kedge_router_id;

/* One intervention of a run, with its settings (docs/mathematics.md). */
typedef struct kedge_intervention {
  kedge_router_id id;
  double beta;            /* strength of a bias; 0 is exactly `none` */
  double eps, clip;       /* the prior is clipped to [eps/E, clip/E] */
  bool gate_raw;          /* gate weights from the raw logits (rpb_gate_source: raw) */
  bool whole_sample;      /* one prior a sample instead of one a span */
  const uint32_t *layers; /* layers it acts on, by number in the model; NULL: all */
  uint32_t layer_count;
} kedge_intervention;

/* What the router of one layer sees. */
typedef struct kedge_router_site {
  kedge_graph *graph;
  uint32_t layer;     /* number in the model */
  uint32_t moe_layer; /* index among the MoE layers */
  uint32_t experts;
  uint32_t score_kind;       /* KEDGE_SCORE_* */
  kedge_topk_options choice; /* how many experts, and from which groups */
  kedge_gate_options gate;
  kedge_value segments_T;   /* i32, -1: a token that is not routed */
  kedge_value spans_T;      /* i32 rows of the prior, -1: none; KEDGE_NONE when no intervention needs it */
  kedge_value bias_LSE;     /* f32, the centred log-prior b; KEDGE_NONE likewise */
  kedge_value correction_E; /* f32, selection bias of the model; KEDGE_NONE where the family has none */
  const kedge_intervention *interventions;
  uint32_t intervention_count;
} kedge_router_site;

/* What the router of one layer gives. Builders of interventions change these. */
typedef struct kedge_router_values {
  kedge_value logits_TE;  /* f32, raw z = h W^T */
  kedge_value choice_TE;  /* f32, what selection reads: z, or z' of an intervention */
  kedge_value gate_TE;    /* f32, what gate weights read */
  kedge_value ids_TK;     /* i32, chosen experts, best first, -1 for tokens that are not routed */
  kedge_value weights_TK; /* f32 */
  kedge_value bad_1;      /* i32, rows whose scores were not finite */
  kedge_value loss_1;     /* f32, this layer's added loss; KEDGE_NONE: none */
} kedge_router_values;

/* logits_TE -> everything else. Failures are the graph's. */
kedge_router_values kedge_router_build(const kedge_router_site *site, kedge_value logits_TE);

/* Name ("rpb"), whether it reads a prior, and meaning of a row; id by name, KEDGE_ROUTER_COUNT if there is
 * none. */
const char *kedge_router_name(kedge_router_id id);
bool kedge_router_needs_prior(kedge_router_id id);
const char *kedge_router_doc(kedge_router_id id);
kedge_router_id kedge_router_find(const char *name);

/* True if the intervention acts on this layer of the model. */
bool kedge_intervention_covers(const kedge_intervention *intervention, uint32_t layer);

/* One builder a row of routers.def. */
#define KEDGE_ROUTER(name, kind, needs_prior, doc)                                                           \
  void kedge__router_##name(const kedge_router_site *site, const kedge_intervention *intervention,           \
                            kedge_router_values *values);
#include "models/routing/routers.def"
#undef KEDGE_ROUTER

#endif
