/* SPDX-License-Identifier: Apache-2.0
 *
 * A model's answers to suites: decoding in batches, verdicts, likelihoods, and a file of every sample that a
 * later run goes on with. Siblings: record.h keeps the samples and their sums, suite.h has the items.
 */
#ifndef KEDGE_MODELS_EVALUATION_EVALUATE_H
#define KEDGE_MODELS_EVALUATION_EVALUATE_H

#include "models/decoder/generate.h"
#include "models/evaluation/prompt.h"
#include "models/evaluation/record.h"
#include "models/evaluation/sandbox.h"
#include "models/evaluation/steer.h"

/* How choices are judged. */
typedef enum kedge_choice_by {
  KEDGE_CHOICE_LIKELIHOOD, /* by the likelihood of each option as the answer */
  KEDGE_CHOICE_LETTER,     /* by the letter in what is generated */
  KEDGE_CHOICE_BOTH        /* both; the verdict is the likelihood's */
} kedge_choice_by;

/* Zero-initialise, then set. */
typedef struct kedge_eval_options {
  const char *const *suites; /* [suite_count] files and folders */
  size_t suite_count;
  uint64_t limit;          /* items of a file at most; 0: all */
  uint32_t repeats;        /* samples of an item; 0: 1. More need a temperature */
  kedge_sampling sampling; /* sample r of an item draws from its own stream of seed + r */
  uint32_t max_new_tokens; /* 0: 256 */
  uint32_t sequences;      /* that are decoded together; changes no result; 0: 32 */
  kedge_eval_template template_of;
  const char *chat; /* NULL: plain text; "auto" or the name of a chat template */
  bool no_thinking; /* answers of a chat open with an empty think block, where the template has them */
  kedge_choice_by choice;
  bool option_texts;    /* options are scored by their texts instead of their letters */
  int64_t choice_order; /* seed of the order of options that prompts do not list; below 0: as published */
  bool whole; /* own rows are right only where all of the completion is said; one pass tells nearly all of
               * them. Choices that are judged by likelihood stay as they are */
  bool decode_all;               /* makes every token by decoding, also where the reference's pass tells it */
  const kedge_sandbox *sandbox;  /* NULL: suites that need code to run are refused */
  const kedge_eval_steer *steer; /* what else decides about experts; NULL: nothing */
  const char *out;               /* folder for items.jsonl and summary.json; NULL: none */
  kedge_notice notice;           /* may be NULL */
  bool (*progress)(void *context, uint64_t samples, uint64_t total, uint64_t tokens); /* false: interrupted */
  void *context; /* of notice and progress */
} kedge_eval_options;

/* Evaluates. The device of the model should be `rowwise` (kedge_open_options): then no result depends on what
 * runs together, or on where an earlier run of the same settings was ended. Ranks of the comm that the device
 * has joined share the items and call this together; rank 0 has the summary and the files, with the bits of
 * one rank's, the others a summary without samples. Errors: ERR_ARGUMENT (nothing to evaluate, code without a
 * sandbox, a folder of other settings), those of suites, prompts and decoding, ERR_INTERRUPTED. The summary
 * is the caller's to destroy, also after a failure. */
kedge_status kedge_evaluate(const kedge_model *model, const kedge_tokenizer *tokenizer,
                            const kedge_eval_options *options, kedge_eval_summary *summary);

#endif
