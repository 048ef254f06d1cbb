/* SPDX-License-Identifier: Apache-2.0
 * Prompts of items (prompt.h). */
#include "models/evaluation/prompt.h"

#include "models/text/unicode.h"

#include <string.h>

static const struct {
  const char *name, *instruction;
} templates[] = {
    {"auto", ""},
    {"bare", ""},
    {"math", "Solve the problem step by step, and put the final answer in \\boxed{}."},
    {"choice", "Think briefly, then end with a line \"Answer: X\", X being the letter of the right option."},
    {"code", "Write the Python code that is asked for, all of it in one block between ```python and ```."},
};
enum { TEMPLATES = sizeof templates / sizeof *templates };

kedge_status kedge_eval_template_find(const char *name, kedge_eval_template *found) {
  for (int i = 0; i < TEMPLATES; i++)
    if (!strcmp(name, templates[i].name)) {
      *found = (kedge_eval_template)i;
      return KEDGE_OK;
    }
  return kedge_fail(KEDGE_ERR_ARGUMENT, "template \"%.40s\": expected auto, bare, math, choice or code",
                    name);
}

kedge_eval_template kedge_prompts_template(const kedge_prompts *p, const kedge_item *item) {
  if (p->template_of != KEDGE_TEMPLATE_AUTO) return p->template_of;
  if (item->own) return KEDGE_TEMPLATE_BARE;
  if (item->kind == KEDGE_ANSWER_PYTHON) return KEDGE_TEMPLATE_CODE;
  return item->kind == KEDGE_ANSWER_LETTER ? KEDGE_TEMPLATE_CHOICE : KEDGE_TEMPLATE_MATH;
}

/* ---- Text
 * -------------------------------------------------------------------------------------------------------- */

/* The question with what belongs to it: options that it does not list, the fence around the head of code. */
static kedge_status add_question(const kedge_item *item, kedge_eval_template how, kedge__bytes *out) {
  const bool head = item->kind == KEDGE_ANSWER_PYTHON && item->listed && how == KEDGE_TEMPLATE_CODE;
  if (head) KEDGE_TRY(kedge__bytes_text(out, "Complete this:\n```python\n"));
  KEDGE_TRY(kedge__bytes_text(out, item->prompt));
  if (head) return kedge__bytes_text(out, "```");
  for (uint32_t i = 0; i < item->choice_count && !item->listed; i++) {
    const char letter[] = {'\n', (char)('A' + i), '.', ' '};
    KEDGE_TRY(kedge__bytes_append(out, letter, sizeof letter));
    KEDGE_TRY(kedge__bytes_text(out, item->choices[i]));
  }
  return KEDGE_OK;
}

static kedge_status add_plain(const kedge_prompts *p, const kedge_item *item, kedge__bytes *out) {
  const kedge_eval_template how = kedge_prompts_template(p, item);
  const char *instruction = templates[how].instruction;
  if (how == KEDGE_TEMPLATE_BARE) {
    KEDGE_TRY(add_question(item, how, out));
    return item->choice_count && !item->listed ? kedge__bytes_text(out, "\n") : KEDGE_OK;
  }
  KEDGE_TRY(kedge__bytes_text(out, instruction));
  KEDGE_TRY(kedge__bytes_text(out, "\n\n"));
  KEDGE_TRY(add_question(item, how, out));
  return kedge__bytes_text(out, how == KEDGE_TEMPLATE_CHOICE ? "\n" : "\n\n");
}

kedge_status kedge_prompts_text(const kedge_prompts *p, const kedge_item *item, char **text) {
  kedge__bytes bytes = {0};
  *text = NULL;
  kedge_status status = add_plain(p, item, &bytes);
  if (status == KEDGE_OK) status = kedge__bytes_text(&bytes, "");
  if (status == KEDGE_OK) {
    *text = kedge_strdup(bytes.data ? bytes.data : "");
    if (!*text) status = KEDGE_ERR_MEMORY;
  }
  kedge__bytes_free(&bytes);
  return status;
}

/* ---- Ids
 * ---------------------------------------------------------------------------------------------------------
 */

/* The turns of an item, then the closed answer, or (NULL) the header of the one to come. */
static kedge_status render_turns(const kedge_prompts *p, const kedge_item *item, const char *answer,
                                 kedge_rendering *r) {
  const kedge_eval_template how = kedge_prompts_template(p, item);
  const char *instruction = templates[how].instruction;
  kedge__bytes question = {0};
  kedge_chat_turn turns[3];
  size_t count = 0;
  kedge_status status = add_question(item, how, &question);
  if (*instruction)
    turns[count++] =
        (kedge_chat_turn){.role = "system", .content = instruction, .length = strlen(instruction)};
  turns[count++] = (kedge_chat_turn){
      .role = "user", .content = question.data ? question.data : "", .length = question.length};
  if (answer)
    turns[count++] =
        (kedge_chat_turn){.role = "assistant", .content = answer, .length = strlen(answer), .answer = true};
  if (status == KEDGE_OK) status = kedge_chat_render(r, p->chat, turns, count);
  if (status == KEDGE_OK && !answer) status = kedge_chat_render_header(r, p->chat, !p->no_thinking);
  kedge__bytes_free(&question);
  return status;
}

static kedge_status render(const kedge_prompts *p, const kedge_item *item, const char *answer, bool closed,
                           kedge_rendering *r) {
  if (p->chat) {
    KEDGE_TRY(render_turns(p, item, closed ? answer : NULL, r));
    if (answer && closed) return KEDGE_OK;
  } else {
    kedge__bytes text = {0};
    kedge_status status = add_plain(p, item, &text);
    if (status == KEDGE_OK) status = kedge_prompt_render(r, NULL, text.data ? text.data : "", text.length);
    kedge__bytes_free(&text);
    KEDGE_TRY(status);
  }
  r->eos = closed;
  return answer ? kedge_rendering_add(r, answer, strlen(answer), KEDGE_SPAN_A, true) : KEDGE_OK;
}

static kedge_status encode(const kedge_prompts *p, const kedge_item *item, const char *answer, bool closed,
                           int32_t **ids, size_t *count) {
  const kedge_dataset_options options = {.tokenizer = p->tokenizer, .eos = -1};
  kedge_rendering r = {0};
  kedge_status status = render(p, item, answer, closed, &r);
  if (status == KEDGE_OK) status = kedge_dataset_encode(&options, &r, ids, count);
  kedge_rendering_destroy(&r);
  return status;
}

/* The same with the answer's text encoded apart from that of the prompt. */
static kedge_status encode_apart(const kedge_prompts *p, const kedge_item *item, const char *answer,
                                 bool closed, int32_t **ids, size_t *count) {
  const kedge_dataset_options options = {.tokenizer = p->tokenizer, .eos = -1};
  kedge_rendering whole = {0}, parts = {0};
  kedge_status status = render(p, item, answer, closed, &whole);
  if (status == KEDGE_OK) status = render(p, item, NULL, false, &parts);
  if (status == KEDGE_OK && (whole.length < parts.length || memcmp(whole.text, parts.text, parts.length)))
    status = kedge_fail(KEDGE_ERR_UNSUPPORTED,
                        "the chat template %s begins an answer in another way than generation does",
                        p->chat ? kedge_chat_template_name(p->chat) : "none");
  if (status == KEDGE_OK)
    status = kedge_rendering_add(&parts, whole.text + parts.length, whole.length - parts.length, KEDGE_SPAN_A,
                                 true);
  parts.eos = whole.eos;
  if (status == KEDGE_OK) status = kedge_dataset_encode(&options, &parts, ids, count);
  kedge_rendering_destroy(&whole);
  kedge_rendering_destroy(&parts);
  return status;
}

static bool follows(const int32_t *ids, size_t count, const int32_t *all, size_t all_count) {
  return all_count >= count && !memcmp(ids, all, count * sizeof *ids);
}

static bool is_stop(const kedge_prompts *p, int32_t id) {
  for (uint32_t i = 0; i < p->stop_count; i++)
    if (p->stops[i] == id) return true;
  return false;
}

/* Up to the first stop past the prompt. */
static size_t end_of_answer(const kedge_prompts *p, const int32_t *ids, size_t from, size_t count) {
  for (size_t i = from; i < count; i++)
    if (is_stop(p, ids[i])) return i + 1;
  return count;
}

kedge_status kedge_prompts_encode(const kedge_prompts *p, const kedge_item *item, const char *answer,
                                  bool closed, kedge_prompt *prompt) {
  int32_t *ids = NULL, *all = NULL;
  size_t count = 0, all_count = 0;
  *prompt = (kedge_prompt){0};
  KEDGE_TRY(encode(p, item, NULL, false, &ids, &count));
  kedge_status status = answer ? encode(p, item, answer, closed, &all, &all_count) : KEDGE_OK;
  if (status == KEDGE_OK && answer && !follows(ids, count, all, all_count)) {
    kedge_free(all);
    all = NULL;
    status = encode_apart(p, item, answer, closed, &all, &all_count);
  }
  if (status == KEDGE_OK && answer && !follows(ids, count, all, all_count))
    status = kedge_fail(KEDGE_ERR_UNSUPPORTED,
                        "%s writes the end of a prompt in another way when an answer follows",
                        kedge_tokenizer_description(p->tokenizer));
  if (status == KEDGE_OK && (count > INT32_MAX / 4 || all_count > INT32_MAX / 4))
    status = kedge_fail(KEDGE_ERR_ARGUMENT, "a prompt of %zu tokens is too long", count);
  if (status != KEDGE_OK || !answer) {
    kedge_free(all);
    all = ids;
    all_count = count;
  } else {
    kedge_free(ids);
    if (closed) all_count = end_of_answer(p, all, count, all_count);
  }
  if (status != KEDGE_OK) {
    kedge_free(all);
    return status;
  }
  const size_t answered = all_count - count;
  const char *domain = item->domain ? item->domain : "", *split = item->split ? item->split : "";
  size_t most = p->longest ? p->longest : SIZE_MAX;
  if (!count) {
    kedge_free(all);
    return kedge_fail(
        KEDGE_ERR_ARGUMENT,
        "item %.80s%s%.80s%s%.80s: its prompt has no token, and the model has none to begin with", item->id,
        *domain ? " of " : "", domain, *split ? ", " : "", split);
  }
  if (p->positions && answered >= p->positions) {
    kedge_free(all);
    return kedge_fail(KEDGE_ERR_ARGUMENT,
                      "item %.80s%s%.80s%s%.80s: its reference has %zu tokens, and the model's context is %u",
                      item->id, *domain ? " of " : "", domain, *split ? ", " : "", split, answered,
                      p->positions);
  }
  if (p->positions && p->positions - answered < most) most = p->positions - answered;
  if (count > most) {
    const size_t over = count - most;
    memmove(all, all + over, (all_count - over) * sizeof *all);
    count -= over;
    all_count -= over;
    prompt->cut = true;
  }
  prompt->ids = all;
  prompt->count = (uint32_t)all_count;
  prompt->prompt_count = (uint32_t)count;
  return KEDGE_OK;
}

/* ---- Stops
 * ------------------------------------------------------------------------------------------------------- */

static void add_stop(kedge_prompts *p, int32_t id) {
  if (id >= 0 && !is_stop(p, id) && p->stop_count < KEDGE_MAX_STOPS) p->stops[p->stop_count++] = id;
}

/* The token that ends an answer in a chat: the last one of an empty answer's text. */
static kedge_status add_end_of_turn(kedge_prompts *p) {
  const kedge_chat_turn talk[] = {{.role = "user", .content = ""},
                                  {.role = "assistant", .content = "", .answer = true}};
  kedge_rendering turn = {0};
  int32_t *ids = NULL;
  size_t count = 0;
  kedge_status status = kedge_chat_render(&turn, p->chat, talk, 2);
  for (size_t i = 0; status == KEDGE_OK && i < turn.part_count; i++) {
    if (!turn.parts[i].trained) continue;
    status = kedge_tokenizer_encode(p->tokenizer, turn.text + turn.parts[i].start, turn.parts[i].length,
                                    KEDGE_ENCODE_SPECIAL, &ids, &count);
    if (status == KEDGE_OK && count && kedge_tokenizer_is_special(p->tokenizer, ids[count - 1]))
      add_stop(p, ids[count - 1]);
    kedge_free(ids);
    ids = NULL;
  }
  kedge_rendering_destroy(&turn);
  return status;
}

kedge_status kedge_prompts_init(kedge_prompts *p, const kedge_tokenizer *tokenizer,
                                const kedge_hf_config *config, kedge_eval_template template_of,
                                const char *chat, uint32_t longest) {
  *p = (kedge_prompts){.tokenizer = tokenizer, .template_of = template_of, .longest = longest};
  p->positions = config->max_position_embeddings;
  const kedge_id_list *list = config->generation_eos.count ? &config->generation_eos : &config->eos;
  for (uint32_t i = 0; i < list->count; i++) add_stop(p, list->ids[i]);
  add_stop(p, kedge_tokenizer_eos(tokenizer));
  if (!chat) return KEDGE_OK;
  KEDGE_TRY(kedge_chat_template_choose(chat, tokenizer, &p->chat));
  return add_end_of_turn(p);
}
