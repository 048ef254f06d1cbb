/* SPDX-License-Identifier: Apache-2.0
 *
 * Templates: how a prompt, or a list of chat turns, becomes text that is cut into question and answer by
 * construction. The text is rendered here, encoded in samples_read.c.
 */
#ifndef KEDGE_MODELS_TEXT_TEMPLATE_H
#define KEDGE_MODELS_TEXT_TEMPLATE_H

#include "models/text/tokenizer.h"

/* Span of a token: question, answer, or outside any sample. */
enum { KEDGE_SPAN_NONE = -1, KEDGE_SPAN_Q = 0, KEDGE_SPAN_A = 1 };

/* A stretch of rendered text that is encoded on its own; `trained` means that its tokens are targets of the
 * loss. */
typedef struct kedge_text_part {
  size_t start, length; /* bytes of kedge_rendering.text */
  int8_t span;
  bool trained;
} kedge_text_part;

/* Text of one sample in parts. Start from {0}; reset to use the memory again. */
typedef struct kedge_rendering {
  char *text;
  size_t length, capacity;
  kedge_text_part *parts;
  size_t part_count, part_capacity;
  bool eos;     /* the end-of-sequence token follows the last part, unless that part ends with it already */
  size_t turns; /* turns of a conversation that were rendered: after an error the index of the one at fault */
} kedge_rendering;

void kedge_rendering_reset(kedge_rendering *rendering);
void kedge_rendering_destroy(kedge_rendering *rendering);
/* Appends text to the last part if that is of the same kind, else as a new part. */
kedge_status kedge_rendering_add(kedge_rendering *rendering, const char *text, size_t length, int8_t span,
                                 bool trained);

/* ERR_ARGUMENT unless `prompt_template` (NULL: none) holds "{prompt}" exactly once. Every other character
 * stands for itself. */
kedge_status kedge_prompt_template_check(const char *prompt_template);
/* Appends `prompt` inside the template as question. An empty result still makes a (empty) part, so that a
 * leading BOS belongs to the question. */
kedge_status kedge_prompt_render(kedge_rendering *rendering, const char *prompt_template, const char *prompt,
                                 size_t length);

typedef struct kedge_chat_template kedge_chat_template;

/* ERR_ARGUMENT unless `name` is NULL, "auto" or a built-in chat template. */
kedge_status kedge_chat_template_check(const char *name);
/* The built-in chat template of that name (chatml or qwen, qwen1.5, qwen2, qwen2.5, qwen3, qwen3-thinking,
 * moonlight, deepseek, granite, mistral or mixtral, tulu or olmoe); NULL or "auto": the one whose control
 * tokens the tokenizer has, or, where these do not tell, whose marks its Jinja template has. Errors:
 * ERR_ARGUMENT for an unknown name, ERR_UNSUPPORTED where the tokenizer lacks the tokens. */
kedge_status kedge_chat_template_choose(const char *name, const kedge_tokenizer *tokenizer,
                                        const kedge_chat_template **chosen);
const char *kedge_chat_template_name(const kedge_chat_template *chat);
/* True for a template with think blocks: an answer is what follows the block. */
bool kedge_chat_template_thinks(const kedge_chat_template *chat);

/* One turn of a conversation. The text is borrowed. */
typedef struct kedge_chat_turn {
  const char *role, *content;
  size_t length; /* bytes of content */
  const char
      *reasoning; /* an assistant's, beside the content; NULL: any stands in it as <think>...</think> */
  size_t reasoning_length;
  bool answer; /* an assistant's turn is answer, and trained; else question */
} kedge_chat_turn;

/* Appends a whole conversation of at least one turn, with the template's default system turn where it opens
 * with another one. Of an assistant's turn all that follows its header is the answer: the think block where
 * the template writes one (qwen3), content and end-of-turn token. Templates without think blocks leave
 * `reasoning` out and the content as it is. ERR_FORMAT for a role other than system, user and assistant; and
 * (mistral) for user and assistant turns that do not alternate and a system turn without the user turn that
 * it is part of: rendering->turns is then the index of the turn. ERR_ARGUMENT for no turn at all. */
kedge_status kedge_chat_render(kedge_rendering *rendering, const kedge_chat_template *chat,
                               const kedge_chat_turn *turns, size_t count);
/* Appends the header of an assistant turn, for generation; where the template has think blocks, with what
 * opens an answer with reasoning or (thinking false) without. */
kedge_status kedge_chat_render_header(kedge_rendering *rendering, const kedge_chat_template *chat,
                                      bool thinking);

#endif
