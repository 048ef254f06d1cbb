/* SPDX-License-Identifier: Apache-2.0
 *
 * Between evaluate.c and window.c: a window of items, their sequences, and the rows that come of them
 * (internal). */
#ifndef KEDGE_MODELS_EVALUATION_WINDOW_H
#define KEDGE_MODELS_EVALUATION_WINDOW_H

#include "models/decoder/decoding.h"
#include "models/evaluation/evaluate.h"
#include "models/evaluation/rows.h"
#include "models/evaluation/steer.h"
#include "models/evaluation/verdict.h"

enum { WINDOW = 64 }; /* items */

/* A sequence: which item and repeat it belongs to, and what of it. */
typedef struct sequence {
  uint32_t item, repeat;
  bool generates; /* else it scores options [first_option, first_option + option_count) */
  uint32_t first_option, option_count;
  kedge_prompt prompt;
  int32_t endings[KEDGE_MAX_CHOICES];
} sequence;

typedef struct window {
  kedge_item items[WINDOW];
  uint32_t files[WINDOW];
  uint32_t count;
  uint64_t first_row;
  sequence *sequences;
  kedge_decoding_job *jobs;
  kedge_decoding_result *results;
  uint32_t job_count, capacity;
  double options[WINDOW][KEDGE_MAX_CHOICES]; /* log-likelihoods */
  uint32_t option_tokens[WINDOW];            /* of the right one */
  kedge_prompt questions[WINDOW];            /* with their references, where priors are made of them */
  uint32_t *job_items, *job_prompts;         /* [job_count] the same */
} window;

typedef struct evaluation {
  const kedge_model *model;
  const kedge_tokenizer *tokenizer;
  const kedge_eval_options *options;
  kedge_eval_summary *summary;
  uint32_t repeats, max_new;
  kedge_suite suite;
  kedge_prompts prompts;
  kedge__steering *steering; /* NULL: none */
  kedge_decoding *decoding;
  kedge_eval_record record;
  uint64_t record_start;
  window *window;
  kedge_status asked;             /* what went wrong while decoding asked whether to go on */
  kedge_comm *comm;               /* ranks that share the items; NULL: one */
  uint64_t read;                  /* items of the suite that were read so far */
  uint64_t round_row, round_rows; /* the rows that all ranks work on: the first, their number */
  kedge__rows rows;               /* of this rank's window, for rank 0 */
} evaluation;

/* Whether answers have think blocks, which are no part of what is judged. */
bool kedge__thinks(const evaluation *e);
/* Decodes and judges; the rows of a window that the file has not are counted and written, or, where ranks
 * share the items, added to the evaluation's rows. */
kedge_status kedge__window_run(evaluation *e, window *w);
void kedge__window_clear(window *w);
bool kedge__window_go_on(evaluation *e, uint32_t job, const int32_t *ids, uint32_t count);

#endif
