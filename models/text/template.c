/* SPDX-License-Identifier: Apache-2.0
 *
 * Rendering of prompts and chat turns into parts. The built-in chat templates are a table; siblings:
 * samples_format.c picks the turns out of a record, samples_read.c encodes the parts.
 */
#include "models/text/template.h"

#include <string.h>

/* Text around the content of a turn. Assistant turns are split: header | before content end | after. */
struct kedge_chat_template {
  const char *name, *alias;
  const char *needs[3]; /* tokens that the tokenizer must have */
  /* For "auto", where the tokens do not tell the template: parts of the tokenizer's Jinja template, and a
   * token that only tokenizers of other templates have (NULL: none). */
  const char *marks[2], *lacks;
  const char *begin; /* opens every conversation; NULL: nothing */
  const char
      *default_system; /* content of the system turn where a conversation has none; NULL: no such turn */
  const char *system[2], *user[2];
  const char *header, *before, *end, *after;
  const char *between; /* after an assistant turn, if another turn follows; NULL: nothing */
  bool alternates; /* user and assistant in turn; a system turn stands at the start of the user turn after it
                    */
  bool thinks;     /* reasoning is told from content, and stands in a block before it */
  const char *opens[2]; /* what generation adds to the header without and with thinking; NULL: nothing */
};

#define DEEPSEEK_BOS                                                                                         \
  "<\xef\xbd\x9c"                                                                                            \
  "begin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"
#define DEEPSEEK_EOS                                                                                         \
  "<\xef\xbd\x9c"                                                                                            \
  "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"

#define CHATML                                                                                               \
  .needs = {"<|im_start|>", "<|im_end|>"}, .system = {"<|im_start|>system\n", "<|im_end|>\n"},               \
  .user = {"<|im_start|>user\n", "<|im_end|>\n"}, .header = "<|im_start|>assistant\n", .before = "",         \
  .end = "<|im_end|>", .after = "\n"
#define DEFAULT_SYSTEM(text) .default_system = (text), .marks = {text "<|im_end|>"}

#define THINK      "<think>"
#define THOUGHT    "</think>"
#define NO_THOUGHT THINK "\n\n" THOUGHT "\n\n"

/* Qwen's ChatML as of Qwen 2.5, 2 and 1.5, which open with a system turn of their own; as of Qwen 3, with
 * think blocks, and of its models that always think, whose generation begins inside the block; plain, as of
 * Qwen 3's models that never do; Moonlight's; DeepSeek-V2's; Granite 3.0's; that of Mixtral and the first
 * Mistral models; that of Tulu 2 and OLMoE. */
static const kedge_chat_template templates[] = {
    {.name = "qwen2.5",
     CHATML,
     DEFAULT_SYSTEM("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.")},
    {.name = "qwen2", CHATML, DEFAULT_SYSTEM("You are a helpful assistant.")},
    {.name = "qwen1.5", CHATML, DEFAULT_SYSTEM("You are a helpful assistant")},
    {.name = "qwen3-thinking",
     CHATML,
     .marks = {"last_query_index", "<|im_start|>assistant\\n" THINK "\\n'"},
     .thinks = true,
     .opens = {THINK "\n", THINK "\n"}},
    {.name = "qwen3",
     CHATML,
     .marks = {"last_query_index", "reasoning_content"},
     .thinks = true,
     .opens = {NO_THOUGHT, NULL}},
    {.name = "chatml", .alias = "qwen", CHATML},
    {.name = "moonlight",
     .needs = {"<|im_assistant|>", "<|im_middle|>", "<|im_end|>"},
     .default_system = "You are a helpful assistant",
     .system = {"<|im_system|>system<|im_middle|>", "<|im_end|>"},
     .user = {"<|im_user|>user<|im_middle|>", "<|im_end|>"},
     .header = "<|im_assistant|>assistant<|im_middle|>",
     .before = "",
     .end = "<|im_end|>",
     .after = ""},
    {.name = "deepseek",
     .needs = {DEEPSEEK_BOS, DEEPSEEK_EOS},
     .begin = DEEPSEEK_BOS,
     .system = {"", "\n\n"},
     .user = {"User: ", "\n\n"},
     .header = "Assistant:",
     .before = " ",
     .end = DEEPSEEK_EOS,
     .after = ""},
    {.name = "granite",
     .needs = {"<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"},
     .system = {"<|start_of_role|>system<|end_of_role|>", "<|end_of_text|>\n"},
     .user = {"<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>\n"},
     .header = "<|start_of_role|>assistant<|end_of_role|>",
     .before = "",
     .end = "<|end_of_text|>",
     .after = "\n"},
    {.name = "mistral",
     .alias = "mixtral",
     .needs = {"<s>", "</s>"},
     .marks = {" [INST] "},
     .lacks = "[INST]",
     .begin = "<s>",
     .system = {" [INST] ", "\n\n"},
     .user = {" [INST] ", " [/INST]"},
     .header = "",
     .before = " ",
     .end = "</s>",
     .after = "",
     .alternates = true},
    {.name = "tulu",
     .alias = "olmoe",
     .needs = {"<|endoftext|>"},
     .marks = {"<|user|>"},
     .lacks = "<|user|>",
     .begin = "<|endoftext|>",
     .system = {"<|system|>\n", "\n"},
     .user = {"<|user|>\n", "\n"},
     .header = "<|assistant|>\n",
     .before = "",
     .end = "<|endoftext|>",
     .after = "",
     .between = "\n"},
};
enum { TEMPLATES = sizeof templates / sizeof *templates };

static const char slot[] = "{prompt}";

void kedge_rendering_reset(kedge_rendering *rendering) {
  rendering->length = rendering->part_count = rendering->turns = 0;
  rendering->eos = false;
}

void kedge_rendering_destroy(kedge_rendering *rendering) {
  kedge_free(rendering->text);
  kedge_free(rendering->parts);
  *rendering = (kedge_rendering){0};
}

static kedge_status open_part(kedge_rendering *r, int8_t span, bool trained) {
  if (r->part_count == r->part_capacity) {
    size_t capacity = r->part_capacity ? r->part_capacity * 2 : 8;
    kedge_text_part *parts = kedge_realloc(r->parts, capacity, sizeof *parts);
    if (!parts) return KEDGE_ERR_MEMORY;
    r->parts = parts;
    r->part_capacity = capacity;
  }
  r->parts[r->part_count++] = (kedge_text_part){.start = r->length, .span = span, .trained = trained};
  return KEDGE_OK;
}

kedge_status kedge_rendering_add(kedge_rendering *r, const char *text, size_t length, int8_t span,
                                 bool trained) {
  const kedge_text_part *last = r->part_count ? &r->parts[r->part_count - 1] : NULL;
  if (!last || last->span != span || last->trained != trained) KEDGE_TRY(open_part(r, span, trained));
  if (length > r->capacity - r->length) {
    size_t needed, capacity;
    if (__builtin_add_overflow(r->length, length, &needed) || __builtin_mul_overflow(needed, 2, &capacity))
      return kedge_fail(KEDGE_ERR_MEMORY, "a sample's text is too long");
    char *grown = kedge_realloc(r->text, capacity, 1);
    if (!grown) return KEDGE_ERR_MEMORY;
    r->text = grown;
    r->capacity = capacity;
  }
  if (length) memcpy(r->text + r->length, text, length);
  r->length += length;
  r->parts[r->part_count - 1].length += length;
  return KEDGE_OK;
}

kedge_status kedge_prompt_template_check(const char *prompt_template) {
  if (!prompt_template) return KEDGE_OK;
  const char *at = strstr(prompt_template, slot);
  if (!at)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "prompt_template: expected %s in \"%s\"", slot, prompt_template);
  if (strstr(at + 1, slot))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "prompt_template: %s stands twice in \"%s\"", slot,
                      prompt_template);
  return KEDGE_OK;
}

kedge_status kedge_prompt_render(kedge_rendering *r, const char *prompt_template, const char *prompt,
                                 size_t length) {
  const char *at = prompt_template ? strstr(prompt_template, slot) : NULL;
  if (!at) return kedge_rendering_add(r, prompt, length, KEDGE_SPAN_Q, false);
  const char *rest = at + sizeof slot - 1;
  KEDGE_TRY(kedge_rendering_add(r, prompt_template, (size_t)(at - prompt_template), KEDGE_SPAN_Q, false));
  KEDGE_TRY(kedge_rendering_add(r, prompt, length, KEDGE_SPAN_Q, false));
  return kedge_rendering_add(r, rest, strlen(rest), KEDGE_SPAN_Q, false);
}

static bool has_tokens(const kedge_chat_template *chat, const kedge_tokenizer *tokenizer) {
  for (int i = 0; i < 3 && chat->needs[i]; i++)
    if (kedge_tokenizer_id(tokenizer, chat->needs[i]) < 0) return false;
  return true;
}

static bool is_automatic(const char *name) {
  return !name || !strcmp(name, "auto");
}

static bool is_named(const kedge_chat_template *chat, const char *name) {
  return !strcmp(name, chat->name) || (chat->alias && !strcmp(name, chat->alias));
}

/* True where nothing speaks against the template but a user's word. */
static bool fits(const kedge_chat_template *chat, const kedge_tokenizer *tokenizer) {
  const char *jinja = kedge_tokenizer_chat_template(tokenizer);
  if (!has_tokens(chat, tokenizer)) return false;
  for (int i = 0; i < 2 && chat->marks[i]; i++)
    if (!jinja || !strstr(jinja, chat->marks[i])) return false;
  return !chat->lacks || kedge_tokenizer_id(tokenizer, chat->lacks) < 0;
}

kedge_status kedge_chat_template_check(const char *name) {
  bool known = is_automatic(name);
  for (int i = 0; i < TEMPLATES; i++) known |= name && is_named(&templates[i], name);
  if (known) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_ARGUMENT,
                    "chat template \"%.40s\": expected auto, chatml, qwen1.5, qwen2, qwen2.5, qwen3, "
                    "qwen3-thinking, moonlight, deepseek, granite, mistral or tulu",
                    name);
}

kedge_status kedge_chat_template_choose(const char *name, const kedge_tokenizer *tokenizer,
                                        const kedge_chat_template **chosen) {
  bool automatic = is_automatic(name);
  KEDGE_TRY(kedge_chat_template_check(name));
  for (int i = 0; i < TEMPLATES; i++) {
    const kedge_chat_template *chat = &templates[i];
    if (automatic ? !fits(chat, tokenizer) : !is_named(chat, name) || !has_tokens(chat, tokenizer)) continue;
    *chosen = chat;
    return KEDGE_OK;
  }
  return kedge_fail(KEDGE_ERR_UNSUPPORTED,
                    "chat turns need a template, and %s has not the control tokens of %s",
                    kedge_tokenizer_description(tokenizer), automatic ? "any built-in one" : name);
}

const char *kedge_chat_template_name(const kedge_chat_template *chat) {
  return chat->name;
}

bool kedge_chat_template_thinks(const kedge_chat_template *chat) {
  return chat->thinks;
}

/* ---- Reasoning
 * ---------------------------------------------------------------------------------------------------- */

typedef struct slice {
  const char *text;
  size_t length;
} slice;

static slice skip_newlines(slice s) {
  while (s.length && *s.text == '\n') s.text++, s.length--;
  return s;
}

static slice drop_newlines(slice s) {
  while (s.length && s.text[s.length - 1] == '\n') s.length--;
  return s;
}

/* What follows the last `mark` in s, all of s if there is none. */
static slice behind_last(slice s, const char *mark) {
  const size_t length = strlen(mark);
  for (const char *at; (at = memmem(s.text, s.length, mark, length));) {
    s.length -= (size_t)(at - s.text) + length;
    s.text = at + length;
  }
  return s;
}

/* Takes the reasoning, which may lack its opening mark, out of a content that has the closing one. */
static slice take_thought(slice *content) {
  const char *end = memmem(content->text, content->length, THOUGHT, strlen(THOUGHT));
  if (!end) return (slice){"", 0};
  const slice before = {content->text, (size_t)(end - content->text)};
  *content = skip_newlines(behind_last(*content, THOUGHT));
  return skip_newlines(behind_last(before, THINK));
}

/* A user's turn that is a tool's answer goes on with the question before it. */
static bool is_query(const kedge_chat_turn *turn) {
  static const char open[] = "<tool_response>", close[] = "</tool_response>";
  const size_t o = sizeof open - 1, c = sizeof close - 1;
  if (strcmp(turn->role, "user")) return false;
  return turn->length < o + c || memcmp(turn->content, open, o) ||
         memcmp(turn->content + turn->length - c, close, c);
}

/* Turns up to and with the last query; all of them where there is none. */
static size_t count_past(const kedge_chat_turn *turns, size_t count) {
  for (size_t i = count; i > 0; i--)
    if (is_query(&turns[i - 1])) return i;
  return count;
}

/* ---- Turns
 * -------------------------------------------------------------------------------------------------------- */

static kedge_status question(kedge_rendering *r, const char *text) {
  return kedge_rendering_add(r, text, strlen(text), KEDGE_SPAN_Q, false);
}

static kedge_status plain_turn(kedge_rendering *r, const char *before, const char *content, size_t length,
                               const char *after) {
  KEDGE_TRY(question(r, before));
  KEDGE_TRY(kedge_rendering_add(r, content, length, KEDGE_SPAN_Q, false));
  return question(r, after);
}

/* `past`: a later query has made the reasoning superfluous. */
static kedge_status render_answer(kedge_rendering *r, const kedge_chat_template *chat,
                                  const kedge_chat_turn *turn, bool past, bool last) {
  slice content = {turn->content, turn->length}, thought = {turn->reasoning, turn->reasoning_length};
  bool block = false;
  if (chat->thinks) {
    if (!turn->reasoning) thought = take_thought(&content);
    block = !past && (last || thought.length);
  }
  if (block) content = skip_newlines(content);
  thought = block ? drop_newlines(skip_newlines(thought)) : (slice){"", 0};
  const slice parts[] = {{chat->before, strlen(chat->before)},
                         {THINK "\n", block ? strlen(THINK "\n") : 0},
                         thought,
                         {"\n" THOUGHT "\n\n", block ? strlen("\n" THOUGHT "\n\n") : 0},
                         content,
                         {chat->end, strlen(chat->end)}};
  KEDGE_TRY(question(r, chat->header));
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    KEDGE_TRY(kedge_rendering_add(r, parts[i].text, parts[i].length,
                                  turn->answer ? KEDGE_SPAN_A : KEDGE_SPAN_Q, turn->answer));
  if (chat->after[0]) KEDGE_TRY(question(r, chat->after));
  return !last && chat->between ? question(r, chat->between) : KEDGE_OK;
}

/* ERR_FORMAT unless turn `i` may stand where it does. */
static kedge_status check_turn(const kedge_chat_template *chat, const kedge_chat_turn *turns, size_t count,
                               size_t i) {
  const char *role = turns[i].role;
  const bool system = !strcmp(role, "system");
  if (!system && strcmp(role, "user") && strcmp(role, "assistant"))
    return kedge_fail(KEDGE_ERR_FORMAT,
                      "role \"%.40s\": the built-in template %s knows system, user and assistant", role,
                      chat->name);
  if (!chat->alternates) return KEDGE_OK;
  if (system && !i) {
    if (count > 1) return KEDGE_OK;
    return kedge_fail(KEDGE_ERR_FORMAT,
                      "role \"system\" alone: in the built-in template %s a user turn must follow",
                      chat->name);
  }
  const char *due = (i - !strcmp(turns[0].role, "system")) % 2 ? "assistant" : "user";
  if (!strcmp(role, due)) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_FORMAT,
                    "role \"%s\", expected \"%s\": in the built-in template %s user and assistant turns "
                    "alternate, after at most one system turn",
                    role, due, chat->name);
}

kedge_status kedge_chat_render(kedge_rendering *r, const kedge_chat_template *chat,
                               const kedge_chat_turn *turns, size_t count) {
  r->turns = 0;
  if (!count) return kedge_fail(KEDGE_ERR_ARGUMENT, "a conversation without turns");
  const size_t past = chat->thinks ? count_past(turns, count) : 0;
  if (chat->begin) KEDGE_TRY(question(r, chat->begin));
  if (chat->default_system && strcmp(turns[0].role, "system"))
    KEDGE_TRY(
        plain_turn(r, chat->system[0], chat->default_system, strlen(chat->default_system), chat->system[1]));
  for (size_t i = 0; i < count; i++) {
    const kedge_chat_turn *turn = &turns[i];
    r->turns = i;
    KEDGE_TRY(check_turn(chat, turns, count, i));
    if (!strcmp(turn->role, "assistant")) {
      KEDGE_TRY(render_answer(r, chat, turn, i < past, i + 1 == count));
      continue;
    }
    const char *const *around = !strcmp(turn->role, "system") ? chat->system : chat->user;
    const bool opened = chat->alternates && i && !strcmp(turns[i - 1].role, "system");
    KEDGE_TRY(plain_turn(r, opened ? "" : around[0], turn->content, turn->length, around[1]));
  }
  r->turns = count;
  return KEDGE_OK;
}

kedge_status kedge_chat_render_header(kedge_rendering *r, const kedge_chat_template *chat, bool thinking) {
  KEDGE_TRY(question(r, chat->header));
  return chat->opens[thinking] ? question(r, chat->opens[thinking]) : KEDGE_OK;
}
