/* SPDX-License-Identifier: Apache-2.0
 *
 * Formats of records: which fields a JSON object has, and how they become question and answer. One table;
 * siblings: template.c renders prompts and turns, samples_read.c encodes what is rendered here.
 */
#include <string.h>

#include "models/text/samples_internal.h"

typedef kedge_status (*render_function)(const json_t *record, kedge__render_context *context,
                                        kedge_rendering *rendering);

struct kedge__format {
  const char *name, *aliases, *fields;
  const char *required[2]; /* fields that mark the format */
  bool foreign;
  render_function render;
};

static const char *type_name(const json_t *value) {
  static const char *const names[] = {"an object", "an array", "a string", "a number",
                                      "a number",  "true",     "false",    "null"};
  return value ? names[json_typeof(value)] : "nothing";
}

static kedge_status get_text(const json_t *object, const char *field, const char **text, size_t *length) {
  const json_t *value = json_object_get(object, field);
  *text = "";
  *length = 0;
  if (!json_is_string(value))
    return kedge_fail(KEDGE_ERR_FORMAT, "\"%s\": expected a string, got %s", field, type_name(value));
  *text = json_string_value(value);
  *length = json_string_length(value);
  return KEDGE_OK;
}

/* An optional string: absent and null are empty. */
static kedge_status get_optional(const json_t *object, const char *field, const char **text, size_t *length) {
  const json_t *value = json_object_get(object, field);
  *text = "";
  *length = 0;
  return !value || json_is_null(value) ? KEDGE_OK : get_text(object, field, text, length);
}

/* Refuses a field that would change the meaning of the sample if it were passed over. */
static kedge_status refuse(const json_t *object, const char *field) {
  const json_t *value = json_object_get(object, field);
  bool empty = !value || json_is_null(value) || (json_is_array(value) && !json_array_size(value)) ||
               (json_is_string(value) && !json_string_length(value));
  return empty ? KEDGE_OK
               : kedge_fail(KEDGE_ERR_FORMAT,
                            "\"%s\" has no place in this format; write the record as messages", field);
}

static kedge_status render_completion(const json_t *record, const char *field, kedge_rendering *rendering) {
  const char *text;
  size_t length;
  KEDGE_TRY(get_text(record, field, &text, &length));
  rendering->eos = true;
  return kedge_rendering_add(rendering, text, length, KEDGE_SPAN_A, true);
}

static kedge_status render_pair(const json_t *record, const char *prompt_field, const char *completion_field,
                                const kedge__render_context *context, kedge_rendering *rendering) {
  const char *prompt;
  size_t length;
  KEDGE_TRY(get_text(record, prompt_field, &prompt, &length));
  KEDGE_TRY(kedge_prompt_render(rendering, context->options->prompt_template, prompt, length));
  return render_completion(record, completion_field, rendering);
}

static kedge_status render_text(const json_t *record, kedge__render_context *context,
                                kedge_rendering *rendering) {
  (void)context;
  return render_completion(record, "text", rendering);
}

/* ---- Turns
 * ------------------------------------------------------------------------------------------------------- */

static kedge_status need_chat(kedge__render_context *context) {
  const kedge_dataset_options *o = context->options;
  if (context->chat) return KEDGE_OK;
  if (o->prompt_template)
    return kedge_fail(KEDGE_ERR_ARGUMENT,
                      "prompt_template is for prompts that are strings; chat turns have a chat template");
  KEDGE_TRY(kedge_chat_template_choose(o->chat_template, o->tokenizer, &context->chat));
  if (!o->notice) return KEDGE_OK;
  char *line = kedge_format("chat turns are rendered by the built-in template %s",
                            kedge_chat_template_name(context->chat));
  if (!line) return KEDGE_ERR_MEMORY;
  o->notice(o->context, line);
  kedge_free(line);
  return KEDGE_OK;
}

/* The names that ShareGPT files use for a speaker, as roles. */
static const char *role_of(const char *speaker) {
  static const char *const pairs[][2] = {{"human", "user"},
                                         {"gpt", "assistant"},
                                         {"model", "assistant"},
                                         {"chatgpt", "assistant"},
                                         {"bot", "assistant"}};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
    if (!strcmp(speaker, pairs[i][0])) return pairs[i][1];
  return speaker;
}

/* Turns of a field; those of assistants are answers if `answers`. */
typedef struct turn_list {
  const json_t *list;
  const char *field;
  bool answers;
} turn_list;

static kedge_status read_turn(const json_t *turn, bool answers, kedge_chat_turn *out) {
  if (!json_is_object(turn))
    return kedge_fail(KEDGE_ERR_FORMAT, "expected an object, got %s", type_name(turn));
  bool shared = !json_object_get(turn, "role") && json_object_get(turn, "from");
  const json_t *reasoning = json_object_get(turn, "reasoning_content");
  size_t role_length;
  *out = (kedge_chat_turn){.answer = answers};
  KEDGE_TRY(get_text(turn, shared ? "from" : "role", &out->role, &role_length));
  KEDGE_TRY(get_text(turn, shared ? "value" : "content", &out->content, &out->length));
  KEDGE_TRY(refuse(turn, "tool_calls"));
  out->role = role_of(out->role);
  if (!reasoning || json_is_null(reasoning)) return KEDGE_OK;
  return get_text(turn, "reasoning_content", &out->reasoning, &out->reasoning_length);
}

static kedge_status read_turns(const turn_list *from, kedge__render_context *context) {
  const size_t count = json_array_size(from->list);
  if (!count)
    return kedge_fail(KEDGE_ERR_FORMAT, "\"%s\": expected a list of turns, got %s", from->field,
                      json_is_array(from->list) ? "an empty one" : type_name(from->list));
  KEDGE_TRY(need_chat(context));
  if (count > context->turn_capacity - context->turn_count) {
    size_t capacity = (context->turn_count + count) * 2;
    kedge_chat_turn *turns = kedge_realloc(context->turns, capacity, sizeof *turns);
    if (!turns) return KEDGE_ERR_MEMORY;
    context->turns = turns;
    context->turn_capacity = capacity;
  }
  for (size_t i = 0; i < count; i++) {
    kedge_status status =
        read_turn(json_array_get(from->list, i), from->answers, &context->turns[context->turn_count++]);
    if (status != KEDGE_OK) return kedge_fail_in(status, "\"%s\"[%zu]", from->field, i);
  }
  return KEDGE_OK;
}

/* Renders the turns of one or two fields, which are one conversation. */
static kedge_status render_turns(const turn_list *lists, size_t count, kedge__render_context *context,
                                 kedge_rendering *rendering) {
  context->turn_count = 0;
  for (size_t i = 0; i < count; i++) KEDGE_TRY(read_turns(&lists[i], context));
  kedge_status status = kedge_chat_render(rendering, context->chat, context->turns, context->turn_count);
  if (status == KEDGE_OK) return KEDGE_OK;
  size_t at = rendering->turns, first = json_array_size(lists[0].list);
  const turn_list *list = at < first ? lists : lists + 1;
  return kedge_fail_in(status, "\"%s\"[%zu]", list->field, at < first ? at : at - first);
}

static kedge_status render_messages(const json_t *record, kedge__render_context *context,
                                    kedge_rendering *rendering) {
  const turn_list list = {json_object_get(record, "messages"), "messages", true};
  KEDGE_TRY(refuse(record, "tools"));
  return render_turns(&list, 1, context, rendering);
}

static kedge_status render_sharegpt(const json_t *record, kedge__render_context *context,
                                    kedge_rendering *rendering) {
  const turn_list list = {json_object_get(record, "conversations"), "conversations", true};
  KEDGE_TRY(refuse(record, "tools"));
  KEDGE_TRY(refuse(record, "system"));
  return render_turns(&list, 1, context, rendering);
}

static kedge_status render_prompt_completion(const json_t *record, kedge__render_context *context,
                                             kedge_rendering *rendering) {
  const turn_list lists[] = {{json_object_get(record, "prompt"), "prompt", false},
                             {json_object_get(record, "completion"), "completion", true}};
  if (!json_is_array(lists[0].list) && !json_is_array(lists[1].list))
    return render_pair(record, "prompt", "completion", context, rendering);
  return render_turns(lists, 2, context, rendering);
}

static kedge_status render_query(const json_t *record, kedge__render_context *context,
                                 kedge_rendering *rendering) {
  KEDGE_TRY(refuse(record, "system"));
  KEDGE_TRY(refuse(record, "history"));
  return render_pair(record, "query", "response", context, rendering);
}

static kedge_status render_question(const json_t *record, kedge__render_context *context,
                                    kedge_rendering *rendering) {
  return render_pair(record, "question", "answer", context, rendering);
}

/* The prompt is the instruction, and on the next line the input where there is one. */
static kedge_status render_alpaca(const json_t *record, kedge__render_context *context,
                                  kedge_rendering *rendering) {
  const char *instruction, *input;
  size_t instruction_length, input_length;
  KEDGE_TRY(refuse(record, "system"));
  KEDGE_TRY(refuse(record, "history"));
  KEDGE_TRY(get_text(record, "instruction", &instruction, &instruction_length));
  KEDGE_TRY(get_optional(record, "input", &input, &input_length));
  char *joined = kedge_alloc(instruction_length + input_length + 1, 1);
  if (!joined) return KEDGE_ERR_MEMORY;
  size_t length = instruction_length;
  memcpy(joined, instruction, length);
  if (input_length) {
    joined[length++] = '\n';
    memcpy(joined + length, input, input_length);
    length += input_length;
  }
  kedge_status status = kedge_prompt_render(rendering, context->options->prompt_template, joined, length);
  kedge_free(joined);
  return status == KEDGE_OK ? render_completion(record, "output", rendering) : status;
}

/* ---- Table
 * ------------------------------------------------------------------------------------------------------- */

/* In the order of detection: a record that fits two rows is the earlier one. */
static const kedge__format formats[] = {
    {"messages", "chat_template chat", "messages", {"messages"}, false, render_messages},
    {"prompt_completion",
     "",
     "prompt, completion",
     {"prompt", "completion"},
     false,
     render_prompt_completion},
    {"alpaca", "", "instruction, input, output", {"instruction", "output"}, true, render_alpaca},
    {"sharegpt", "", "conversations", {"conversations"}, true, render_sharegpt},
    {"query_response", "", "query, response", {"query", "response"}, true, render_query},
    {"question_answer", "", "question, answer", {"question", "answer"}, true, render_question},
    {"text", "completion pretrain", "text", {"text"}, false, render_text},
};
enum { FORMATS = sizeof formats / sizeof *formats };

static bool has_word(const char *words, const char *word) {
  size_t length = strlen(word);
  for (const char *at = words; length && (at = strstr(at, word)); at += length)
    if ((at == words || at[-1] == ' ') && (at[length] == ' ' || !at[length])) return true;
  return false;
}

kedge_status kedge__format_find(const char *name, const kedge__format **format) {
  for (int i = 0; i < FORMATS; i++) {
    if (strcmp(name, formats[i].name) && !has_word(formats[i].aliases, name)) continue;
    *format = &formats[i];
    return KEDGE_OK;
  }
  return kedge_fail(KEDGE_ERR_ARGUMENT,
                    "dataset type \"%s\": expected auto, text, prompt_completion, messages, alpaca, "
                    "sharegpt, query_response or "
                    "question_answer",
                    name);
}

kedge_status kedge__format_detect(json_t *record, const kedge__format **format) {
  for (int i = 0; i < FORMATS; i++) {
    const char *const *required = formats[i].required;
    if (!json_object_get(record, required[0]) || (required[1] && !json_object_get(record, required[1])))
      continue;
    *format = &formats[i];
    return KEDGE_OK;
  }
  char found[256] = "";
  for (void *at = json_object_iter(record); at; at = json_object_iter_next(record, at)) {
    size_t used = strlen(found), rest = sizeof found - used, length = json_object_iter_key_len(at);
    if (length + 3 > rest) break;
    memcpy(found + used, ", ", 2);
    memcpy(found + used + 2, json_object_iter_key(at), length + 1);
  }
  return kedge_fail(
      KEDGE_ERR_FORMAT,
      "expected text, prompt and completion, messages, or the fields of another known format; found %s",
      found[0] ? found + 2 : "no fields");
}

const char *kedge__format_name(const kedge__format *format) {
  return format->name;
}
const char *kedge__format_fields(const kedge__format *format) {
  return format->fields;
}
bool kedge__format_foreign(const kedge__format *format) {
  return format->foreign;
}

kedge_status kedge__format_render(const kedge__format *format, const json_t *record,
                                  kedge__render_context *context, kedge_rendering *rendering) {
  kedge_rendering_reset(rendering);
  return format->render(record, context, rendering);
}
