/* SPDX-License-Identifier: Apache-2.0
 *
 * Selection apart from weights: how likely the answers of a dataset are, and how many a model says word for
 * word, when each of two models uses the other's experts. With S0_t and S_t the experts that base and post
 * choose for token t of a layer, each in its own pass:
 *
 *   base, post   each with its own choice
 *   forced       post on S0_t: what of the difference is due to selection goes away, the rest stays
 *   converse     base on S_t
 *   rank r       post on S_t with the r-th best expert replaced by that of S0_t (models/routing/replace.h)
 *
 * Gate weights are always those of the running model's own logits on the experts it is given. Answers are
 * given, not generated: token by token after the reference. Sibling: models/evaluation/steer.h generates.
 */
#ifndef KEDGE_MODELS_RETENTION_SELECTION_H
#define KEDGE_MODELS_RETENTION_SELECTION_H

#include "models/decoder/model.h"
#include "models/text/samples.h"

typedef struct kedge_selection_numbers {
  double nll; /* -log p of answer tokens in nats, summed */
  uint64_t
      right; /* samples each of whose answer tokens is the most likely one, the lowest id of equal ones */
} kedge_selection_numbers;

typedef struct kedge_selection {
  uint64_t tokens, samples; /* answer tokens; samples that have some */
  kedge_selection_numbers base, post, forced, converse;
  uint32_t topk;
  kedge_selection_numbers *ranks; /* [topk] */
} kedge_selection;

typedef struct kedge_selection_options {
  uint32_t batch_size; /* samples a forward pass; 0: 32 */
  uint64_t max_tokens; /* no further batch begins once so many tokens have run; 0: all */
  /* Called after each pass of all variants; false stops with ERR_INTERRUPTED. May be NULL. */
  bool (*progress)(void *context, uint64_t tokens, uint64_t tokens_total);
  void *context;
} kedge_selection_options;

/* Runs both models over the dataset, 4 + top-k passes a batch. Both are on one device and of one geometry
 * (kedge_probe_check). `options` may be NULL. The result is the caller's to destroy. Errors: ERR_MISMATCH,
 * ERR_UNSUPPORTED (no MoE layer), ERR_NUMERIC (logits that are not finite), ERR_MEMORY, ERR_INTERRUPTED.
 * Ranks of the comm that the device has joined share the batches and call this together; all get the numbers,
 * with the bits of one rank's. */
kedge_status kedge_selection_measure(const kedge_model *base, const kedge_model *post,
                                     const kedge_dataset *dataset, const kedge_selection_options *options,
                                     kedge_selection *selection);
void kedge_selection_destroy(kedge_selection *selection);

#endif
