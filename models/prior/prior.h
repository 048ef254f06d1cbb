/* SPDX-License-Identifier: Apache-2.0
 *
 * The prior: the frozen base router's mean softmax probabilities over each sample's question and answer span,
 * a row for every (sample, span, MoE layer) (arXiv:2609.08115, eq. 2), and what interventions make of it.
 *
 * File: safetensors with prior_qa f32 or f16 [N,2,L,E], counts i32 [N,2] (tokens of the span; 0: no such
 * span), sample_ids i64 [N] (ascending places in the data files), layers i32 [L] (layer numbers); metadata
 * with the identity below. A prior of something else than a run's is refused. Siblings: shuffle.h permutes
 * experts, prior_stats.h measures priors.
 */
#ifndef KEDGE_MODELS_ROUTING_PRIOR_H
#define KEDGE_MODELS_ROUTING_PRIOR_H

#include "models/checkpoint/hash.h"
#include "models/decoder/model.h"
#include "models/prior/shuffle.h"
#include "models/routing/router.h"
#include "models/text/samples.h"

enum { KEDGE_PRIOR_TEMPLATE = 96 };

/* What a prior belongs to. Hashes are 32 hex digits; "" where a file of version 1 does not tell. */
typedef struct kedge_prior_identity {
  char base[33];    /* the base's weights: names, dtypes, shapes, bytes */
  char config[33];  /* its config.json, whatever the order of the keys, without those of bookkeeping */
  char tensors[33]; /* names, dtypes and shapes alone */
  char router[33];  /* the router weights alone */
  char tokenizer[33];
  char data[33]; /* ids, spans and order of the samples: decides about what the next two explain */
  uint32_t max_length;
  char templates[KEDGE_PRIOR_TEMPLATE]; /* "prompt <hash of the text or none>, chat <name or none>" */
} kedge_prior_identity;

/* The identity of a base loaded from files with tokenizer and samples, and the options that the samples were
 * read with (NULL: none). Reads every weight once. */
kedge_status kedge_prior_identify(const kedge_model *model, const kedge_tokenizer *tokenizer,
                                  const kedge_dataset *dataset, uint32_t max_length,
                                  const char *prompt_template, const char *chat_template,
                                  kedge_prior_identity *identity);

typedef struct kedge_prior_options {
  uint32_t batch_size; /* samples a forward pass; 0: 8 */
  bool half;           /* store f16 in place of f32: half the size, see kedge_prior_is_exact */
  bool restart;        /* throw away what a stopped run has left */
  uint32_t keep_every; /* a killed run loses at most so many samples; 0: what it did in 2 seconds */
  /* Called after each pass; false stops with ERR_INTERRUPTED. May be NULL. */
  bool (*progress)(void *context, uint64_t samples, uint64_t samples_total, uint64_t tokens);
  void (*note)(void *context, const char *line); /* "resuming at sample 640 of 20000"; may be NULL */
  void *context;                                 /* of progress and note */
} kedge_prior_options;

/* One forward pass of `model` (the frozen base, no intervention) over the dataset; sums in double. Rows go to
 * `<path>.partial` as they are computed, which becomes `path` when it is whole. Memory does not grow with the
 * number of samples. A run that was stopped, by whatever, goes on where it was with the same bits; what is
 * left of a run of another base, data or options is refused (ERR_MISMATCH) unless `restart`. Ranks of the
 * comm that the model's device has joined share the batches and call this together; rank 0 writes, and the
 * file has the bits of one rank's. */
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
int32_t kedge_prior_layer(const kedge_prior *prior,
                          uint32_t index); /* number in the model of MoE layer `index` */
kedge_prior_identity kedge_prior_get_identity(const kedge_prior *prior);

/* The version of the file, 1 or 2, and top_k of the base; 0: not told. */
uint32_t kedge_prior_version(const kedge_prior *prior);
uint32_t kedge_prior_top_k(const kedge_prior *prior);
/* What the file says about its shuffle: "" for none, else "within, seed 1, communities <hash>". */
const char *kedge_prior_shuffled(const kedge_prior *prior);

/* Makes every row that is read from now on permuted. The permutations are copied. ERR_MISMATCH unless layers
 * and experts are the prior's, ERR_ARGUMENT if the file itself is shuffled. */
kedge_status kedge_prior_set_shuffle(kedge_prior *prior, const kedge_shuffle *shuffle);

/* Makes the prior permuted as above and writes all of it to a new file, atomically. Its identity and its
 * dtype stay; mode, seed and the hash of the communities are told. */
kedge_status kedge_prior_save_shuffled(kedge_prior *prior, const kedge_shuffle *shuffle, const char *path);

/* Draws a shuffle for this prior; within reads the communities of its layers from a file, global reads none
 * (communities NULL). Also the errors of kedge_communities_load and kedge_shuffle_init; ERR_MISMATCH if the
 * file tells of other layers. Destroyed by the caller. */
kedge_status kedge_prior_draw_shuffle(const kedge_prior *prior, kedge_shuffle_mode mode, uint64_t seed,
                                      const char *communities, kedge_shuffle *shuffle);

/* ERR_MISMATCH with the part that differs and both values, unless the prior belongs to this base, tokenizer,
 * data and router geometry, with the samples and span lengths of `dataset`; ERR_FORMAT if one of 1000 rows
 * spread over the file holds no probabilities. All other rows are checked as they are used: the cost does not
 * grow with the file. */
kedge_status kedge_prior_check(const kedge_prior *prior, const kedge_prior_identity *identity,
                               const kedge_params *params, const kedge_dataset *dataset);

/* Adds what tells this prior from another of the same base and data: dtype, shuffle, and the rows that
 * kedge_prior_check looks at, as they are read, permutations of kedge_prior_set_shuffle included. */
kedge_status kedge_prior_hash(const kedge_prior *prior, kedge_hash *hash);

/* b [E] of pi [E]: c = clip(pi, eps/E, clip/E), b = log c - mean log c, in double, rounded to f32. E = 1
 * gives 0. */
void kedge_prior_bias(const float *pi, uint32_t experts, double eps, double clip, float *bias);

/* The topk best experts of pi [E], best first: larger clipped probability, then larger raw one, then lower
 * index. topk is at most E. */
void kedge_prior_top(const float *pi, uint32_t experts, double eps, double clip, uint32_t topk, int32_t *ids);

/* False for a file of f16: good for a bias, whose clip lies far above what f16 loses, but not for what reads
 * small probabilities (kl, logit_l2). */
bool kedge_prior_is_exact(const kedge_prior *prior);
/* ERR_MISMATCH unless it is exact. */
kedge_status kedge_prior_require_exact(const kedge_prior *prior);

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

#endif
