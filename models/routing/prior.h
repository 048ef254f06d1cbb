/* SPDX-License-Identifier: Apache-2.0
 *
 * The prior: the frozen base router's mean softmax probabilities over each sample's question and answer span,
 * a row for every (sample, span, MoE layer) (arXiv:2609.08115, eq. 2), and the bias that Router Prior Bias
 * makes of it (eq. 3).
 *
 * File: safetensors with prior_qa f32 [N,2,L,E], counts i32 [N,2] (tokens of the span; 0: no such span),
 * sample_ids i64 [N] (ascending places in the data files), layers i32 [L] (layer numbers); metadata with the
 * hashes of base model, tokenizer and data. A prior whose hashes are not those of a run is refused.
 */
#ifndef KEDGE_MODELS_ROUTING_PRIOR_H
#define KEDGE_MODELS_ROUTING_PRIOR_H

#include "models/decoder/model.h"
#include "models/routing/router.h"
#include "models/text/samples.h"

/* What a prior belongs to. */
typedef struct kedge_prior_identity {
  char base[33], tokenizer[33], data[33]; /* content hashes */
  uint32_t max_length;                    /* only to explain a mismatch of the data */
} kedge_prior_identity;

typedef struct kedge_prior_options {
  uint32_t batch_size; /* samples a forward pass; 0: 8 */
  /* Called after each pass; false stops with ERR_INTERRUPTED. May be NULL. */
  bool (*progress)(void *context, uint64_t samples, uint64_t samples_total, uint64_t tokens);
  void *context;
} kedge_prior_options;

/* One forward pass of `model` (the frozen base, no intervention) over the dataset; sums in double; writes
 * `path` atomically. */
kedge_status kedge_prior_compute(const kedge_model *model, const kedge_dataset *dataset,
                                 const kedge_prior_identity *identity, const kedge_prior_options *options,
                                 const char *path);

typedef struct kedge_prior kedge_prior;

/* Maps a prior file. Errors: ERR_IO, ERR_FORMAT. Owned by the caller. */
kedge_status kedge_prior_open(const char *path, kedge_prior **prior);
void kedge_prior_free(kedge_prior *prior);
uint32_t kedge_prior_samples(const kedge_prior *prior);
uint32_t kedge_prior_layers(const kedge_prior *prior);
uint32_t kedge_prior_experts(const kedge_prior *prior);
kedge_prior_identity kedge_prior_get_identity(const kedge_prior *prior);

/* ERR_MISMATCH with what differs, unless the prior belongs to this base, tokenizer, data and router geometry,
 * with the samples and span lengths of `dataset`; ERR_FORMAT if a row that will be read holds no
 * probabilities. Reads the whole file, so that a run does not stop at it hours later. */
kedge_status kedge_prior_check(const kedge_prior *prior, const kedge_prior_identity *identity,
                               const kedge_params *params, const kedge_dataset *dataset);

/* b [E] of pi [E]: c = clip(pi, eps/E, clip/E), b = log c - mean log c, in double, rounded to f32. E = 1
 * gives 0. */
void kedge_prior_bias(const float *pi, uint32_t experts, double eps, double clip, float *bias);

/* The topk best experts of pi [E], best first: larger clipped probability, then larger raw one, then lower
 * index. topk is at most E. */
void kedge_prior_top(const float *pi, uint32_t experts, double eps, double clip, uint32_t topk, int32_t *ids);

/* False for a file of f16: good for a bias, whose clip lies far above what f16 loses, but not for what reads
 * small probabilities (kl, logit_l2). */
bool kedge_prior_is_exact(const kedge_prior *prior);

/* ---- Tables of a micro-batch: [L, rows, ...], row 2i + span for local sample i, whose stable ids are
 * sample_ids[0..count). A row of an empty span and rows past the samples are 0 (-1 for ids). whole_sample:
 * both rows of a sample are made of the mean of its spans, weighted by tokens. All give ERR_MISMATCH for a
 * sample without a prior, and ERR_FORMAT for a row that is not finite or does not sum to 1 within 1e-3. */

/* Cells that a clip held at a limit: pi <= eps/E, pi >= clip/E. */
typedef struct kedge_prior_clipped {
  uint64_t cells, low, high;
} kedge_prior_clipped;

/* b, f32 [L, rows, E]. The counts of its cells are added to *clipped, which may be NULL. */
kedge_status kedge_prior_fill_bias(const kedge_prior *prior, double eps, double clip, bool whole_sample,
                                   const uint64_t *sample_ids, uint32_t count, uint32_t rows, float *bias_LSE,
                                   kedge_prior_clipped *clipped);
/* pi, unclipped, f32 [L, rows, E]. ERR_MISMATCH if the file is not exact. */
kedge_status kedge_prior_fill_pi(const kedge_prior *prior, bool whole_sample, const uint64_t *sample_ids,
                                 uint32_t count, uint32_t rows, float *pi_LSE);
/* The best experts by kedge_prior_top, i32 [L, rows, topk]. ERR_ARGUMENT unless 1 <= topk <= E. */
kedge_status kedge_prior_fill_ids(const kedge_prior *prior, double eps, double clip, bool whole_sample,
                                  const uint64_t *sample_ids, uint32_t count, uint32_t rows, uint32_t topk,
                                  int32_t *ids_LSK);

/* The bias table of an intervention. */
kedge_status kedge_prior_fill(const kedge_prior *prior, const kedge_intervention *intervention,
                              const uint64_t *sample_ids, uint32_t count, uint32_t rows, float *bias_LSE);

#endif
