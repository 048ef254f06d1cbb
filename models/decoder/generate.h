/* SPDX-License-Identifier: Apache-2.0
 *
 * Generation: continues a prompt token by token with a key/value cache. Siblings: cache.h holds keys and
 * values, head.h makes the logits of the last token.
 */
#ifndef KEDGE_MODELS_DECODER_GENERATE_H
#define KEDGE_MODELS_DECODER_GENERATE_H

#include "models/decoder/model.h"

/* How a token is chosen from logits. Zero-initialised: greedily. */
typedef struct kedge_sampling {
  double temperature; /* 0: the most likely token, the lowest id of equal ones */
  double top_p; /* the fewest most likely tokens whose probabilities reach this; 1: all; 0: only the first */
  uint32_t top_k; /* the k most likely tokens; 0: all */
  uint64_t seed;
} kedge_sampling;

/* Chooses the id of step `step` from logits [vocabulary]. Temperature is applied first, then top_k, then
 * top_p. The same seed, step and logits give the same id. Errors: ERR_NUMERIC (a logit that is NaN or
 * +infinite, or all are -infinite), ERR_ARGUMENT (temperature below 0, top_p outside [0,1]), ERR_MEMORY. */
kedge_status kedge_sample(const float *logits, uint32_t vocabulary, const kedge_sampling *sampling,
                          uint64_t step, int32_t *id);

typedef struct kedge_generate_options {
  uint32_t max_new_tokens;
  kedge_sampling sampling;
  const int32_t *stops; /* [stop_count] ids that end the text; they are reported, too */
  uint32_t stop_count;
  /* Called with each new token; false stops with ERR_INTERRUPTED. May be NULL. `logits` [V] are what it was
   * chosen from. */
  bool (*token)(void *context, int32_t id, const float *logits);
  void *context;
} kedge_generate_options;

typedef struct kedge_generate_result {
  uint32_t tokens;       /* new ones, the stop included */
  bool stopped;          /* by one of `stops` */
  double prompt_seconds; /* pass over the prompt, planning included */
  double decode_seconds; /* all passes after it */
  uint64_t cache_bytes;
} kedge_generate_result;

/* Continues prompt[0..count). The prompt runs in one pass, every new token in a pass of its own. Errors:
 * ERR_ARGUMENT (an empty prompt, an id outside the vocabulary), ERR_NUMERIC (logits or router logits that are
 * not finite), those of kedge_sample, ERR_MEMORY, ERR_INTERRUPTED. */
kedge_status kedge_generate(const kedge_model *model, const int32_t *prompt, uint32_t count,
                            const kedge_generate_options *options, kedge_generate_result *result);

#endif
