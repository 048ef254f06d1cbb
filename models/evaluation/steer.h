/* SPDX-License-Identifier: Apache-2.0
 *
 * Steered evaluation: the model answers while something else decides about its experts. Either another
 * model's choices replace its own, to see how much of a difference is due to selection alone, or a training
 * condition's bias stays on, to see what taking it away at evaluation does. Siblings: evaluate.h,
 * models/routing/router.h for the interventions.
 *
 * With S0_t the experts that the other model (the base) chooses for token t of a layer in its own pass over
 * the same tokens, S_t those of the model in its own unsteered pass, both best first:
 *
 *   forced        the model's token t uses S0_t; its gate weights are those of its own logits on them
 *   rank r        it uses S_t with its r-th best expert replaced by the r-th best of S0_t (replace.h)
 *
 * models/retention/selection.h measures the likelihood of answers under all of these at once.
 */
#ifndef KEDGE_MODELS_EVALUATION_STEER_H
#define KEDGE_MODELS_EVALUATION_STEER_H

#include "models/decoder/decoding.h"
#include "models/evaluation/prompt.h"

/* How an evaluation is steered. Zero-initialise, then set. */
typedef struct kedge_eval_steer {
  const kedge_model *base; /* the other model, of the same geometry, on the same device; borrowed */
  /* replay: the base's experts. rpb, rpb_hard: the bias or the choice of the prior that the base has of each
   * question and its reference answer, with the settings of the intervention (router.h). */
  kedge_intervention intervention;
  uint32_t rank; /* of replay: only the rank-th best expert is the base's, from 1; 0: all of them */
} kedge_eval_steer;

/* ---- Between evaluate.c, window.c and steer.c */

typedef struct kedge__steering kedge__steering;

/* `sequences` run together at most. Errors: ERR_ARGUMENT (a rank beyond the experts of a token, another
 * intervention), ERR_MISMATCH (another geometry or device), ERR_MEMORY. */
kedge_status kedge__steering_new(const kedge_eval_steer *how, const kedge_model *model, uint32_t sequences,
                                 kedge__steering **steering);
void kedge__steering_free(kedge__steering *steering);
/* For kedge_decoding_options; borrowed from the steering. */
const kedge_decoding_steer *kedge__steering_decoding(const kedge__steering *steering);

/* True if it reads priors: then each window is prepared with its items' questions and references. */
bool kedge__steering_reads_priors(const kedge__steering *steering);
/* Makes the priors of prompts[0..count), question and reference; sequence j of the next run is of prompt
 * items[j] and has prompt_counts[j] tokens of question. The two lists are borrowed until the next call. */
kedge_status kedge__steering_prepare(kedge__steering *steering, const kedge_prompt *prompts, uint32_t count);
void kedge__steering_jobs(kedge__steering *steering, const uint32_t *items, const uint32_t *prompt_counts);

#endif
