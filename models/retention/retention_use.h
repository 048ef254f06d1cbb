/* SPDX-License-Identifier: Apache-2.0
 *
 * How a model uses its experts, from one routing trace: utilisation, its entropy and sharpness, load, dead
 * experts; and how far the use of two sets of tokens (domains of one model) lies apart. With u_le the share
 * of layer l's choices that fell on expert e:
 *
 *   entropy      = -sum_e u_le log u_le, of a layer
 *   effective    = exp(entropy) / E
 *   L1           = sum_e |u_le - 1/E|, of a layer (sharpness)
 *   layer-averaged: the same of ubar_e = mean_l u_le, in which expert e of all layers is one
 */
#ifndef KEDGE_MODELS_ROUTING_RETENTION_USE_H
#define KEDGE_MODELS_ROUTING_RETENTION_USE_H

#include "models/retention/retention.h"

typedef struct kedge_use_layer {
  int32_t layer;   /* its number in the model; -1 for the mean */
  uint64_t tokens; /* routed; 0: every real is NaN */
  double entropy_nats, effective, l1;
  double effective_sample; /* mean over samples of the effective fraction of a sample's own utilisation */
  double load;             /* largest count over mean count */
  double dead;             /* experts that no token chose */
  uint64_t ties;           /* choices that hung on the rule of ties */
} kedge_use_layer;

typedef struct kedge_use {
  uint32_t layers, experts, topk;
  kedge_use_layer *at;  /* [layers] */
  kedge_use_layer mean; /* over layers with tokens; tokens, ties and dead are sums */
  uint64_t *counts;     /* [layers, experts] */
  double *share;        /* [layers, experts] utilisation; zeros for a layer without tokens */
  double *layer_mean;   /* [experts] ubar; zeros without tokens */
  double l1_layer_mean, effective_layer_mean; /* of ubar */
  uint32_t skipped;                           /* layers without tokens */
  uint32_t samples;                           /* with a routed token */
  uint64_t tokens;                            /* routed in some layer */
  uint64_t padding;                           /* rows (token, layer) marked as padding, in this span */
  bool ties_known;
} kedge_use;

/* Measures the tokens of a span (KEDGE_RETENTION_*). The result is the caller's to destroy. ERR_MEMORY. */
kedge_status kedge_use_measure(const kedge_trace *trace, int span, kedge_use *use);
void kedge_use_destroy(kedge_use *use);

/* Two domains: means over the layers where both have tokens, and the layer-averaged measures. NaN where there
 * is no such layer. ERR_MISMATCH for other numbers of layers or experts. */
typedef struct kedge_use_pair {
  double tvd, jsd_nats, jsd_bits;
  double l1, cosine;                       /* means of the layers' own */
  double l1_layer_mean, cosine_layer_mean; /* of ubar: the divergence of the paper */
  double cosine_all;                       /* of the vectors [layers * experts] */
  uint32_t skipped;
} kedge_use_pair;
kedge_status kedge_use_compare(const kedge_use *a, const kedge_use *b, kedge_use_pair *pair);

#endif
