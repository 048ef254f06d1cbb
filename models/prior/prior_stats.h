/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures of a prior and of the bias made of it, and how far another prior (a shuffled one) is from it
 * (docs/mathematics.md). The files are streamed: memory does not grow with the number of samples.
 */
#ifndef KEDGE_MODELS_ROUTING_PRIOR_STATS_H
#define KEDGE_MODELS_ROUTING_PRIOR_STATS_H

#include "models/prior/prior.h"

typedef struct kedge_prior_stats_options {
  double eps, clip; /* of the bias */
  double beta;      /* scales |db| alone */
  uint32_t topk;    /* of the overlap; 0: that of the base, as the file tells */
  /* Called now and then, in each of the passes (1, or 2 with another prior); false stops with
   * ERR_INTERRUPTED. May be NULL. */
  bool (*progress)(void *context, uint64_t samples, uint64_t samples_total);
  void *context;
} kedge_prior_stats_options;

/* Over a group of rows. Undefined rows, those of empty spans, are counted and take no part. NaN where no row
 * is defined. */
typedef struct kedge_prior_stats {
  uint64_t rows, undefined;
  double sd, sd_min, sd_max; /* of b in a row (over E, not E-1): mean, least, most */
  double range, range_max;   /* max b - min b: mean, most */
  double low, high;          /* share of cells with pi <= eps/E, with pi >= clip/E */
  double entropy;            /* of pi, nats: mean */
  double effective;          /* exp(entropy) / E: mean */
  /* Against the other prior. */
  double overlap;         /* mean of |topK(pi) n topK(pi')| / K */
  double change;          /* 1 - overlap */
  double db_mean, db_p90; /* over all elements: beta |b' - b|, its mean and 90th percentile (between the two
                            nearest ranks, linear) */
} kedge_prior_stats;

typedef struct kedge_prior_report {
  bool compared;
  uint32_t layers, topk;
  kedge_prior_stats all, span[2];
  kedge_prior_stats *layer; /* [L] */
} kedge_prior_report;

/* `other` may be NULL. ERR_MISMATCH unless it has the same samples, spans, layers and experts; ERR_ARGUMENT
 * for a topk that is neither given nor told; ERR_FORMAT for a row that holds no probabilities. Destroyed by
 * the caller. */
kedge_status kedge_prior_measure(const kedge_prior *prior, const kedge_prior *other,
                                 const kedge_prior_stats_options *options, kedge_prior_report *report);
void kedge_prior_report_destroy(kedge_prior_report *report);

#endif
