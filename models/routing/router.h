/* SPDX-License-Identifier: Apache-2.0
 *
 * The router of one MoE layer as values, and the interventions that may touch them. Interventions are rows of
 * routers.def; each has one builder in models/routing/. blocks.c calls kedge_router_build() and uses what it
 * returns. What an intervention reads from outside comes in through its feed, filled on the host by feed.h.
 *
 * Legend: T tokens, D width, E experts, K experts a token, L MoE layers, S rows of the prior (sample and
 * span) in this micro-batch.
 */
#ifndef KEDGE_MODELS_ROUTING_ROUTER_H
#define KEDGE_MODELS_ROUTING_ROUTER_H

#include "core/kedge.h"

typedef enum kedge_router_id {
#define KEDGE_ROUTER(name, kind, table, coef, layers, keys, build, doc) KEDGE_ROUTER_##name,
#include "models/routing/routers.def"
#undef KEDGE_ROUTER
  KEDGE_ROUTER_COUNT
} kedge_router_id;

typedef enum kedge_router_kind {
  KEDGE_ROUTER_NOTHING,
  KEDGE_ROUTER_SELECTION, /* changes the choice of experts or their weights; at most one in a run */
  KEDGE_ROUTER_LOSS,      /* an added loss */
  KEDGE_ROUTER_UPDATE     /* acts when parameters are updated; the graph is untouched */
} kedge_router_kind;

/* What an intervention reads from outside, for all MoE layers. Tokens find their row by the feed's index. */
typedef enum kedge_router_table {
  KEDGE_TABLE_NONE,
  KEDGE_TABLE_BIAS,        /* f32 [L,S,E] centred log-prior b */
  KEDGE_TABLE_PRIOR,       /* f32 [L,S,E] prior pi */
  KEDGE_TABLE_PRIOR_IDS,   /* i32 [L,S,K] top-k of the prior */
  KEDGE_TABLE_BASE_LOGITS, /* f32 [L,T,E] the frozen base's router logits of the same tokens */
  KEDGE_TABLE_BASE_IDS,    /* i32 [L,T,K] the experts that it chooses */
  KEDGE_TABLE_COUNTS,      /* f32 [L,1,E] choices counted outside this micro-batch */
  KEDGE_TABLE_BASE_WEIGHTS /* f32 [L,E,D] the base's router weights, a buffer that the run keeps */
} kedge_router_table;

/* Tokens over which the load-balancing loss takes its frequencies f. */
typedef enum kedge_balance_scope {
  KEDGE_BALANCE_MICRO, /* of the micro-batch, of all ranks */
  KEDGE_BALANCE_SEQUENCE,
  KEDGE_BALANCE_GLOBAL,        /* of the whole update, counted beforehand */
  KEDGE_BALANCE_GLOBAL_RUNNING /* of the update's micro-batches so far */
} kedge_balance_scope;

/* One intervention of a run, with its settings (docs/mathematics.md). */
typedef struct kedge_intervention {
  kedge_router_id id;
  double beta;        /* strength of a bias; 0 is exactly `none` */
  double coef;        /* of an added loss; step of loss_free */
  double eps, clip;   /* the prior is clipped to [eps/E, clip/E] */
  bool gate_raw;      /* gate weights from the raw logits (gate_source: raw) */
  bool whole_sample;  /* one prior a sample instead of one a span */
  bool completion;    /* an added loss counts answer tokens alone (mask: completion) */
  bool detach_hidden; /* an added loss sends no gradient into the layers below */
  bool layer_mean;    /* losses of the layers joined by their mean, else by their sum */
  kedge_balance_scope scope;
  bool balance_hf;         /* the loss in the convention of transformers: K times ours */
  bool balance_dispatched; /* f counts the experts that are used, else the best scores without any bias */
  bool mean_removal;       /* loss_free: the bias keeps its mean */
  const uint32_t *layers;  /* layers it acts on, by number in the model; NULL: all */
  uint32_t layer_count;
  kedge_buffer *base; /* f32 [L,E,D] (f64 in an f64 model) of KEDGE_TABLE_BASE_WEIGHTS; borrowed */
} kedge_intervention;

/* An intervention's inputs in the graph; KEDGE_NONE where it reads none. */
typedef struct kedge_router_feed {
  kedge_value table; /* by kedge_router_table */
  kedge_value
      index_T; /* i32, the table's row of each token; of a loss by sequence its group; -1: not counted */
  kedge_value weights; /* f32 [T], weight of each token in an added loss; [1] for KEDGE_TABLE_BASE_WEIGHTS */
} kedge_router_feed;

/* What the router of one layer sees. */
typedef struct kedge_router_site {
  kedge_graph *graph;
  uint32_t layer;     /* number in the model */
  uint32_t moe_layer; /* index among the MoE layers */
  uint32_t experts;
  uint32_t groups;           /* sequences that a loss by sequence tells apart, at most */
  uint32_t ranks;            /* that share a micro-batch */
  uint32_t score_kind;       /* KEDGE_SCORE_* */
  kedge_topk_options choice; /* how many experts, and from which groups */
  kedge_gate_options gate;
  kedge_value x_TD, weight_ED; /* f32, input and weight of the router */
  kedge_value segments_T;      /* i32, -1: a token that is not routed */
  kedge_value correction_E;    /* f32, selection bias of the model; KEDGE_NONE where the family has none */
  const kedge_intervention *interventions;
  const kedge_router_feed *feeds; /* one an intervention */
  uint32_t intervention_count;
} kedge_router_site;

enum { KEDGE_MAX_INTERVENTIONS = 16 };

/* What the router of one layer gives. Builders of interventions change these. */
typedef struct kedge_router_values {
  kedge_value logits_TE;           /* f32, raw z = x W^T */
  kedge_value choice_TE;           /* f32, what selection reads: z, or z' of an intervention */
  kedge_value gate_TE;             /* f32, what gate weights read */
  kedge_value scores_TE;           /* f32, what is ranked, before the model adds its selection bias */
  kedge_value forced_RK, forced_T; /* i32, choices that replace the router's, and each token's row of them */
  kedge_value ids_TK;              /* i32, chosen experts, best first, -1 for tokens that are not routed */
  kedge_value weights_TK;          /* f32 */
  kedge_value bad_1;               /* i32, rows whose scores were not finite */
  kedge_value counts_GE;           /* f32, choices that the load-balancing loss counted here; or KEDGE_NONE */
  kedge_value terms[KEDGE_MAX_INTERVENTIONS]; /* f32 [1], this layer's loss of each, without coefficient; or
                                                 KEDGE_NONE */
} kedge_router_values;

/* Everything from the site. Failures are the graph's. */
kedge_router_values kedge_router_build(const kedge_router_site *site);

/* Columns of a row of routers.def. */
const char *kedge_router_name(kedge_router_id id);
kedge_router_kind kedge_router_get_kind(kedge_router_id id);
double kedge_router_coefficient(kedge_router_id id);
bool kedge_router_layer_mean(kedge_router_id id);
const char *kedge_router_keys(kedge_router_id id);
const char *kedge_router_doc(kedge_router_id id);
/* True if its table comes from a prior file. */
bool kedge_router_needs_prior(kedge_router_id id);
/* Id by name, KEDGE_ROUTER_COUNT if there is none. */
kedge_router_id kedge_router_find(const char *name);

/* True if the intervention acts on this layer of the model. */
bool kedge_intervention_covers(const kedge_intervention *intervention, uint32_t layer);
/* The table that it reads with its settings: none for a bias of strength 0 and for losses that count within
 * the micro-batch. */
kedge_router_table kedge_intervention_table(const kedge_intervention *intervention);
/* False if it changes nothing in the graph: no builder, a bias of strength 0, a loss of weight 0. */
bool kedge_intervention_builds(const kedge_intervention *intervention);

/* True for a load-balancing loss that counts within a graph what all ranks have. */
bool kedge_intervention_shares_counts(const kedge_intervention *intervention);

/* ---- For builders ---- */

/* Changes the values, or returns its loss [1] of this layer. */
typedef kedge_value kedge__router_builder(const kedge_router_site *site,
                                          const kedge_intervention *intervention,
                                          const kedge_router_feed *feed, kedge_router_values *values);

kedge__router_builder kedge__router_lbl, kedge__router_z_loss, kedge__router_rpb, kedge__router_forced,
    kedge__router_router_l2, kedge__router_kl, kedge__router_kl_token, kedge__router_logit_l2;

/* The logits that an added loss reads: raw z, without a way back into x where it is detached. */
kedge_value kedge__router_loss_logits(const kedge_router_site *site, const kedge_intervention *intervention,
                                      const kedge_router_values *values);
/* sum_t weights_t row_t [1]. */
kedge_value kedge__router_weighted(const kedge_router_site *site, const kedge_router_feed *feed,
                                   kedge_value row_T);

#endif
