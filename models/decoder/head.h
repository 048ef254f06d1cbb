/* SPDX-License-Identifier: Apache-2.0
 *
 * The head by itself: logits of a few hidden rows, so that logits of a whole batch [T,V] need never exist.
 * The rows come from a graph with spec.hidden (decoder.h). Users: score.h, generate.h.
 */
#ifndef KEDGE_MODELS_DECODER_HEAD_H
#define KEDGE_MODELS_DECODER_HEAD_H

#include "models/decoder/decoder.h"

typedef struct kedge_head kedge_head;

/* Plans the head for `rows` rows at a time. Model and workspace are borrowed. Owned by the caller. */
kedge_status kedge_head_new(const kedge_model *model, uint32_t rows, kedge_workspace *workspace,
                            kedge_head **head);
void kedge_head_free(kedge_head *head);

/* hidden [rows, D] in the model's dtype, in host memory -> logits f32 [rows, V], and log sum_v exp(logits_v)
 * f32 [rows] where log_sums is not NULL: a token's log-probability is its logit less that. */
kedge_status kedge_head_run(kedge_head *head, const void *hidden, float *logits, float *log_sums);

#endif
