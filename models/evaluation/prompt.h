/* SPDX-License-Identifier: Apache-2.0
 *
 * Prompts: an item as the ids that a model continues, and texts that may follow it. Siblings: suite.h has the
 * items, models/text/template.h the chat templates.
 */
#ifndef KEDGE_MODELS_EVALUATION_PROMPT_H
#define KEDGE_MODELS_EVALUATION_PROMPT_H

#include "models/checkpoint/hf_config.h"
#include "models/evaluation/suite.h"
#include "models/text/samples.h"

/* What is said around a question. */
typedef enum kedge_eval_template {
  KEDGE_TEMPLATE_AUTO,   /* by item: own rows bare, choices and code as such, the others as mathematics */
  KEDGE_TEMPLATE_BARE,   /* the question alone, as an own row was trained */
  KEDGE_TEMPLATE_MATH,   /* step by step, the answer in \boxed{} */
  KEDGE_TEMPLATE_CHOICE, /* the options, brief reasoning, then "Answer: X" */
  KEDGE_TEMPLATE_CODE    /* one fenced block of Python */
} kedge_eval_template;
/* "auto", "bare", ...; ERR_ARGUMENT for another name. */
kedge_status kedge_eval_template_find(const char *name, kedge_eval_template *found);

enum { KEDGE_MAX_STOPS = 2 * KEDGE_HF_MAX_IDS + 2 };

typedef struct kedge_prompts {
  const kedge_tokenizer *tokenizer;
  kedge_eval_template template_of;
  const kedge_chat_template *chat; /* NULL: plain text */
  bool no_thinking;                /* answers open with an empty think block, where the template has them */
  uint32_t longest;                /* tokens of a prompt; what is over is cut off at its beginning */
  uint32_t positions;              /* of the model, for a prompt and its reference; 0: any number */
  int32_t stops[KEDGE_MAX_STOPS];
  uint32_t stop_count;
} kedge_prompts;

/* `chat` NULL: plain text, "auto" or a name: chat turns (kedge_chat_template_choose). Stops are what
 * generation_config.json lists, else config.json, the tokenizer's end of text, and in chats the end of a
 * turn. Config and tokenizer are borrowed. Errors: those of the chat template, ERR_MEMORY. */
kedge_status kedge_prompts_init(kedge_prompts *prompts, const kedge_tokenizer *tokenizer,
                                const kedge_hf_config *config, kedge_eval_template template_of,
                                const char *chat, uint32_t longest);

/* The template that an item gets. */
kedge_eval_template kedge_prompts_template(const kedge_prompts *prompts, const kedge_item *item);

/* A prompt and what may follow it, [count] ids of which the first prompt_count are the prompt. */
typedef struct kedge_prompt {
  int32_t *ids;
  uint32_t count, prompt_count;
  bool cut; /* at its beginning */
} kedge_prompt;

/* Encodes an item, followed by `answer` (NULL: nothing), which with `closed` ends as an answer in training
 * does. Where the tokenizer would join the end of the prompt and the beginning of the answer, they are cut
 * apart: what is generated begins with a token, too. `prompt` is the caller's to free (ids). Errors:
 * ERR_UNSUPPORTED for a chat template whose answers do not begin as its header for generation says;
 * ERR_MEMORY. */
kedge_status kedge_prompts_encode(const kedge_prompts *prompts, const kedge_item *item, const char *answer,
                                  bool closed, kedge_prompt *prompt);

/* The text of a prompt without turns, for hashes and tests; new memory. */
kedge_status kedge_prompts_text(const kedge_prompts *prompts, const kedge_item *item, char **text);

#endif
