/* SPDX-License-Identifier: Apache-2.0
 *
 * The decoder as a graph: embedding, layers (blocks.c), final norm, head or loss. One graph serves one number
 * of tokens (a bucket). Packed sequences are one flat stream of T tokens; nothing is ever padded into a
 * sequence.
 *
 * Legend: T tokens of the bucket, D hidden, V vocabulary, L MoE layers, E experts, K experts a token, S rows
 * of the prior.
 */
#ifndef KEDGE_MODELS_DECODER_DECODER_H
#define KEDGE_MODELS_DECODER_DECODER_H

#include "models/decoder/model.h"
#include "models/routing/router.h"

/* Key/value cache of a generation: per layer two buffers of `rows` rows, storage dtype
 * (models/decoder/cache.h). */
typedef struct kedge_cache kedge_cache;

/* What a graph should compute. Zero-initialise, then set. */
typedef struct kedge_decoder_spec {
  uint32_t tokens;     /* T > 0 */
  uint32_t prior_rows; /* S > 0 where an intervention reads the prior */
  uint32_t
      expert_rows; /* where ranks share experts: rows that there is room for; 0: kedge_decoder_expert_rows */
  bool loss;       /* nll_T and loss_1 from labels_T and weights_T */
  bool logits;     /* logits_TV */
  bool hidden;     /* hidden_TD; head.h makes logits of some of its rows */
  bool all_double; /* gradient checks; weights must then be f64 (kedge gradcheck) */
  bool recompute;  /* layers are recompute regions */
  bool taps;       /* logits, scores, ids and weights of every MoE router are outputs */
  bool loads;      /* how many tokens each expert got, of every MoE layer, is an output */
  bool counts;     /* what the load-balancing loss counted, likewise */
  const kedge_intervention *interventions; /* training only; NULL: none */
  uint32_t intervention_count;
  const kedge_cache *cache; /* decoding: keys and values go through it */
} kedge_decoder_spec;

/* Values of the graph that a caller writes or reads. KEDGE_NONE where the spec did not ask for it. */
typedef struct kedge_decoder {
  kedge_graph *graph;
  /* inputs, i32 unless said */
  kedge_value ids_T;                    /* token ids; 0 for tokens outside any sequence */
  kedge_value positions_T;              /* position in the sequence, from 0 */
  kedge_value segments_T;               /* index of the sequence's first token, -1 outside any sequence */
  kedge_value labels_T;                 /* id to predict at this token, -1: none */
  kedge_value weights_T;                /* f32, weight of the token's loss */
  kedge_value rows_T, base_T, length_T; /* cache: row to write, first row and number of rows to attend to */
  kedge_router_feed *feeds;             /* one an intervention */
  /* parameters: params[i] stands for the model's parameter i */
  kedge_value *params;
  /* outputs */
  kedge_value nll_T, loss_1, logits_TV; /* f32 */
  kedge_value hidden_TD;                /* storage, after the final norm and scale: what the head reads */
  kedge_value aux_1;                    /* f32, sum of the interventions' losses (already part of loss_1) */
  kedge_value *terms_1; /* f32, one an intervention: its loss over all layers, without coefficient */
  kedge_value *router_TE, *scores_TE, *ids_TK, *gates_TK,
      *bad_1;              /* one an MoE layer; bad_1 always, the others with taps */
  kedge_value *offsets_E1; /* i32, one an MoE layer, with loads: the differences are the experts' tokens */
  kedge_value *counts_GE;  /* f32, one an MoE layer, with counts */
  /* training: which gradients are complete before which nodes, in the order of the nodes */
  struct kedge_complete {
    uint32_t node, param;
  } * complete;
  uint32_t complete_count;
} kedge_decoder;

/* Room for rows of shared experts in a graph of so many tokens: a quarter more than there would be if all
 * ranks had as many tokens and experts as many rows. */
uint32_t kedge_decoder_expert_rows(const kedge_model *model, uint32_t tokens);

/* Builds a graph. On success the decoder is the caller's to destroy. Errors are the graph's. */
kedge_status kedge_decoder_build(const kedge_model *model, const kedge_decoder_spec *spec,
                                 kedge_decoder *decoder);
void kedge_decoder_destroy(kedge_decoder *decoder);

/* While a graph is built: what the blocks share (blocks.c). */
typedef struct kedge_build {
  const kedge_model *model;
  const kedge_decoder_spec *spec;
  kedge_decoder *d;
  kedge_graph *g;
  kedge_value inv_freq;
} kedge_build;

/* The parameter of a role in a layer as a graph value; KEDGE_NONE if the model has none. */
kedge_value kedge__weight(const kedge_build *b, kedge_role role, uint32_t layer);
/* multiplier * x in families with multipliers; else x itself. */
kedge_value kedge__multiplied(const kedge_build *b, kedge_value x, double multiplier);
/* One pre-norm layer: x [T,D] storage -> [T,D]. */
kedge_value kedge__layer(kedge_build *b, uint32_t layer, kedge_value x_TD);

#endif
