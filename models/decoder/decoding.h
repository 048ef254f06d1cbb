/* SPDX-License-Identifier: Apache-2.0
 *
 * Batched decoding: many prompts of different lengths through one key/value cache. A sequence that ends makes
 * room for the next one at once. Siblings: generate.h continues a single prompt, cache.h holds the rows,
 * head.h makes logits of the places that are asked for.
 *
 * A reference answer may come with a prompt. It runs in the prompt's own pass, which tells its likelihood,
 * and how many of its tokens are the ones that greedy decoding chooses: as far as they are, decoding need not
 * make them, and where all are, it need not run at all. The cache and the kernels are those of decoding, so
 * that on a device opened `rowwise` (kedge_open_options) every logit has the bits that it has in decoding:
 * the verdict of one pass is the verdict of decoding, equal logits included, and nothing depends on how many
 * sequences run together.
 */
#ifndef KEDGE_MODELS_DECODER_DECODING_H
#define KEDGE_MODELS_DECODER_DECODING_H

#include "models/decoder/generate.h"
#include "models/decoder/pass.h"

/* One sequence. Ids are borrowed until the run is over. */
typedef struct kedge_decoding_job {
  const int32_t *prompt; /* [prompt_count], not empty */
  uint32_t prompt_count;
  const int32_t *reference; /* [reference_count] a continuation to score; may be absent */
  uint32_t reference_count;
  const int32_t *endings; /* [ending_count] other ids in the place of the reference's last, to be scored */
  uint32_t ending_count;
  uint32_t max_new; /* new tokens at most; 0: the reference is scored, nothing is decoded */
  bool same_prompt; /* the prompt is that of the job before: it runs after that one, and not over the prompt
                       again */
  bool from_prompt; /* decode every token, even those that the reference's pass tells */
  kedge_sampling sampling;
} kedge_decoding_job;

typedef struct kedge_decoding_result {
  int32_t *ids; /* [count] new tokens, the stop included; new memory of the run */
  uint32_t count;
  bool stopped;     /* by a stop */
  bool cut;         /* `go_on` ended it */
  uint32_t told;    /* of the tokens, so many were told by the reference's pass */
  uint32_t matched; /* leading tokens of the reference that are each the most likely one */
  double nll;       /* -log p of the reference in nats, summed over its tokens */
  double *endings;  /* [ending_count] log p of the reference with that ending, in nats */
} kedge_decoding_result;

/* A pass as it is laid out: `size` entries, of which those from `tokens` on are padding (segments -1). */
typedef struct kedge_decoding_pass {
  uint32_t tokens, size;
  const int32_t *ids, *positions, *segments; /* [size] */
  const int32_t *rows, *base, *length;       /* [size] of the cache (decoder.h) */
  const uint32_t *jobs;                      /* [tokens] job of each token; a job's tokens stand together */
  uint32_t cache_rows;                       /* rows of the whole cache */
} kedge_decoding_pass;

/* An intervention that acts in every pass, and what it reads. */
typedef struct kedge_decoding_steer {
  const kedge_intervention *intervention;
  uint32_t prior_rows; /* S of its table, where it reads a prior; else 0 */
  /* Fills what the intervention reads (router.h), for `size` tokens. Called before each pass. */
  kedge_status (*feed)(void *context, const kedge_decoding_pass *pass, kedge_feed_data *data);
  void *context;
} kedge_decoding_steer;

typedef struct kedge_decoding_options {
  uint32_t sequences;   /* that run together at most; 0: 32 */
  uint64_t cache_bytes; /* the cache is made no larger unless a single sequence needs it; 0: 1 GiB */
  const int32_t *stops; /* [stop_count] ids that end a text */
  uint32_t stop_count;
  const kedge_decoding_steer *steer; /* NULL: the model's own choice of experts; borrowed */
  /* Asked after each new token that the reference did not tell; false ends the sequence (`cut`). May be NULL.
   */
  bool (*go_on)(void *context, uint32_t job, const int32_t *ids, uint32_t count);
  /* Called after each pass; false ends the run with ERR_INTERRUPTED. May be NULL. */
  bool (*progress)(void *context, uint32_t done, uint64_t tokens);
  void *context;
} kedge_decoding_options;

typedef struct kedge_decoding kedge_decoding;

/* Plans of passes are kept from run to run. Model and stops are borrowed. Owned by the caller. */
kedge_status kedge_decoding_new(const kedge_model *model, const kedge_decoding_options *options,
                                kedge_decoding **decoding);
void kedge_decoding_free(kedge_decoding *decoding);

/* Runs jobs[0..count). results[i] belongs to jobs[i]; destroy all of them, also after a failure. Errors:
 * ERR_ARGUMENT (an empty prompt, an id outside the vocabulary, too many tokens), ERR_NUMERIC (logits that are
 * not finite), those of kedge_sample, ERR_MEMORY, ERR_INTERRUPTED. */
kedge_status kedge_decoding_run(kedge_decoding *decoding, const kedge_decoding_job *jobs, uint32_t count,
                                kedge_decoding_result *results);
void kedge_decoding_result_destroy(kedge_decoding_result *result);

/* What the passes of all runs saw. */
typedef struct kedge_decoding_counts {
  uint64_t passes, tokens; /* tokens that ran through the model, without padding */
  uint64_t cache_bytes;    /* largest cache */
  uint32_t most;           /* sequences that ran together at most */
} kedge_decoding_counts;
kedge_decoding_counts kedge_decoding_count(const kedge_decoding *decoding);

#endif
