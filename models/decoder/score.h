/* SPDX-License-Identifier: Apache-2.0
 *
 * Scores: the log-probability of every token given the tokens before it in its own sample, and the logits, as
 * a file. Siblings: generate.h continues a prompt, pass.h runs what is used here.
 */
#ifndef KEDGE_MODELS_DECODER_SCORE_H
#define KEDGE_MODELS_DECODER_SCORE_H

#include "models/decoder/model.h"

/* Sample i is tokens [offsets[i], offsets[i+1]) of ids, never empty; offsets[0] is 0. Borrowed. */
typedef struct kedge_score_samples {
  uint32_t count;
  const uint64_t *offsets; /* [count+1] */
  const int32_t *ids;      /* [tokens] */
  const int8_t *spans;     /* [tokens] 0 question, 1 answer; NULL: not known */
} kedge_score_samples;

typedef struct kedge_score_options {
  bool logits;
  uint32_t batch_size; /* samples a forward pass; 0: 8 */
  /* Called after each pass; false stops with ERR_INTERRUPTED. May be NULL. */
  bool (*progress)(void *context, uint32_t samples, uint32_t total, uint64_t tokens);
  void *context;
} kedge_score_options;

/* Sums of -log p in nats over the tokens that have a log-probability (all but the first of each sample), and
 * over those of answer spans. */
typedef struct kedge_score_result {
  uint64_t tokens, scored, answer;
  double nll, answer_nll;
} kedge_score_result;

/* Writes `path`, a safetensors file, atomically:
 *   logprobs   f32 [tokens]     log p(token | the tokens before it in its sample), 0 where mask is 0
 *   mask       u8 [tokens]      0 for the first token of a sample, else 1
 *   tokens     i32 [tokens]     the ids
 *   cu_seqlens i32 [samples+1]  sample i is tokens [cu_seqlens[i], cu_seqlens[i+1])
 *   spans      i32 [tokens]     where samples->spans is given
 *   logits     f32 [tokens, V]  where options->logits: of the token that follows
 * Logits are streamed to the file in pieces; the free space is checked first. Errors: ERR_ARGUMENT (an id
 * outside the vocabulary, no tokens, too many), ERR_NUMERIC (a log-probability or a router logit that is not
 * finite), ERR_IO, ERR_MEMORY, ERR_INTERRUPTED. */
kedge_status kedge_score(const kedge_model *model, const kedge_score_samples *samples,
                         const kedge_score_options *options, const char *path, kedge_score_result *result);

#endif
