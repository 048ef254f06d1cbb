/* SPDX-License-Identifier: Apache-2.0
 *
 * Retention metrics: how much of the base model's routing a post-trained model kept, from two routing traces
 * of the same tokens (trace.h). Plain functions on the host. With S_t the experts chosen for token t of a
 * layer, N tokens and K experts a token:
 *
 *   u_e     = #{t : e in S_t} / (N K)                                   utilisation
 *   TVD     = 1/2 sum_e |u_e - w_e|
 *   JSD     = 1/2 sum_e u_e log(2 u_e / (u_e + w_e)) + w_e log(2 w_e / (u_e + w_e))
 *   overlap = mean_t |S_t^base n S_t^post| / K
 *   top-1   = share of tokens whose best expert is the same
 *   tolerant = overlap where, among equal scores at the cut, either model had chosen what the other chose
 *   gates   = mean_t sum_e min(g_te^base, g_te^post), the gates of a token brought to sum 1
 *   load    = max_e / mean_e of the counts
 *
 * Sums over tokens are integers, so that results do not depend on the order of the tokens. What one model
 * alone does is in retention_use.h.
 */
#ifndef KEDGE_MODELS_ROUTING_RETENTION_H
#define KEDGE_MODELS_ROUTING_RETENTION_H

#include "models/trace/trace.h"

/* Divergences of two vectors of counts or shares, which are brought to sum 1 first: values in [0, 1] and
 * [0, log 2], exactly 0 for equal vectors. ERR_ARGUMENT for a negative or infinite entry, NaN, or a sum of 0.
 */
kedge_status kedge_retention_tvd(const double *p, const double *q, uint32_t count, double *tvd);
kedge_status kedge_retention_jsd(const double *p, const double *q, uint32_t count, double *nats);

/* Which tokens are compared: those of one span, or all that were routed. */
enum { KEDGE_RETENTION_ALL = -2, KEDGE_RETENTION_Q = KEDGE_SPAN_Q, KEDGE_RETENTION_A = KEDGE_SPAN_A };

/* How often each expert of a layer was chosen: counts [experts]. Returns the number of tokens; padding is not
 * counted. */
uint64_t kedge_trace_counts(const kedge_trace *trace, uint32_t layer, int span, uint64_t *counts);

typedef struct kedge_retention_layer {
  int32_t layer;   /* its number in the model; -1 for the mean */
  uint64_t tokens; /* compared: routed in both traces */
  double overlap, top1, tvd, jsd_nats, jsd_bits;
  double tolerant; /* NaN unless both traces tell of ties, and of the tied experts where there are ties */
  double gates;    /* NaN unless both traces have weights; a token whose weights are all 0 counts as 0 */
  double load_base, load_post; /* largest count over mean count */
  double dead_base, dead_post; /* experts that no token chose */
  uint64_t ties;               /* tokens whose choice hung on the rule of ties, in either trace */
} kedge_retention_layer;

typedef struct kedge_retention {
  uint32_t count;                /* layers */
  kedge_retention_layer *layers; /* [count] */
  /* Unweighted means over the layers with tokens; tokens and ties are sums, dead experts too. All reals are
   * NaN where no layer has any. */
  kedge_retention_layer mean;
  uint32_t skipped; /* layers without a token to compare */
  uint64_t tokens;  /* tokens compared in at least one layer */
  uint64_t padding; /* rows (token, layer) that one of the traces marks as padding, in this span */
  bool ties_known;  /* both traces tell */
} kedge_retention;

/* Compares two traces over the tokens of a span. ERR_MISMATCH naming what differs unless tokens, layers,
 * experts, top-k, samples, spans and the hashes of tokenizer and data (where both are known) are the same.
 * The result is the caller's to destroy. */
kedge_status kedge_retention_compare(const kedge_trace *base, const kedge_trace *post, int span,
                                     kedge_retention *retention);
void kedge_retention_destroy(kedge_retention *retention);

#endif
