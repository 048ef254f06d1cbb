/* SPDX-License-Identifier: Apache-2.0
 *
 * What chance alone gives (null_model.c): co-activation counts that keep each expert's use and nothing else,
 * partitions with permuted labels, and halves of a trace.
 *
 *   counts ~ Multinomial(R, q),  R = sum_{i<j} C_ij,  q_ij = m_i m_j / sum_{i<j} m_i m_j,  m_i = sum_j C_ij
 *
 * A draw takes a conditional binomial for each pair: its time does not grow with the tokens.
 */
#ifndef KEDGE_MODELS_ROUTING_NULL_MODEL_H
#define KEDGE_MODELS_ROUTING_NULL_MODEL_H

#include "models/retention/coactivation.h"
#include "models/text/random.h"

/* An exact Binomial(n, p) draw, 0 <= p <= 1. */
uint64_t kedge_random_binomial(kedge_random *random, uint64_t n, double p);

typedef struct kedge_null_model {
  uint32_t experts;
  uint64_t total; /* R */
  double *share;  /* [pairs] q_ij over the sum of q from (i, j) on, in the order of kedge_coactivation */
} kedge_null_model;

/* The null of these counts; without any count every draw is zero. ERR_MEMORY. The model is the caller's to
 * destroy. */
kedge_status kedge_null_model_init(kedge_null_model *model, const kedge_coactivation *c);
void kedge_null_model_destroy(kedge_null_model *model);
/* Counts pairs [experts (experts - 1) / 2]; they sum to R. */
void kedge_null_model_draw(const kedge_null_model *model, kedge_random *random, uint32_t *pairs);

/* Margin of an observed value over draws of the null, and the share of draws, the observed one counted as one
 * of them, that are at least as high: (1 + #{draw >= observed}) / (draws + 1). Draws that are NaN are left
 * out; all is NaN where the observed value or every draw is. */
typedef struct kedge_null_result {
  uint64_t draws; /* that were defined */
  double mean, sd, low, high;
  double margin; /* observed - mean */
  double rank_p;
} kedge_null_result;
kedge_null_result kedge_null_compare(double observed, const double *draws, uint32_t count);

/* Which unit the halves of a trace are made of: tokens in turn, or whole samples in turn. */
typedef enum kedge_split { KEDGE_SPLIT_TOKENS, KEDGE_SPLIT_SAMPLES } kedge_split;
/* Halves the tokens of a span that the layer routed: half [tokens] is 0, 1, or 2 for a token outside. Samples
 * are first put in an order of their own (by length, then by a hash of their routing in this layer), so that
 * the halves hold the same tokens wherever the samples stand in the trace. ERR_MEMORY. */
kedge_status kedge_trace_halve(const kedge_trace *trace, uint32_t layer, int span, kedge_split split,
                               uint8_t *half);

#endif
