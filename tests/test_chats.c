/* SPDX-License-Identifier: Apache-2.0
 *
 * Chat templates: conversations, chosen and random ones, against their Jinja templates
 * (tests/golden/make_chats.py), which template a tokenizer gets, and what becomes of records. Siblings:
 * test_data_text.c for records in general, test_tokenizer_families.c for the tokenizers. ctest: quick */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <jansson.h>

#include "models/evaluation/prompt.h"
#include "models/text/samples.h"
#include "models/text/template.h"
#include "models/text/unicode.h"
#include "tests/support/families.h"
#include "tests/support/files.h"

static kedge_tokenizer *families[TEST_FAMILIES], *tiny; /* tiny has the control tokens of ChatML */

static int open_all(void **state) {
  (void)state;
  for (int i = 0; i < TEST_FAMILIES; i++) families[i] = test_family_open(i);
  return kedge_tokenizer_open(test_golden("tokenizer/tiny"), NULL, &tiny) == KEDGE_OK ? 0 : -1;
}

static int close_all(void **state) {
  (void)state;
  for (int i = 0; i < TEST_FAMILIES; i++) kedge_tokenizer_free(families[i]);
  kedge_tokenizer_free(tiny);
  return 0;
}

enum { TURNS = 8, CONVERSATIONS = 112 };

static size_t turns_of(const json_t *row, kedge_chat_turn *out) {
  const json_t *turns = json_object_get(row, "turns"), *turn;
  size_t i;
  assert_in_range(json_array_size(turns), 1, TURNS);
  json_array_foreach(turns, i, turn) {
    const json_t *content = json_array_get(turn, 1), *reasoning = json_array_get(turn, 2);
    out[i] = (kedge_chat_turn){.role = json_string_value(json_array_get(turn, 0)),
                               .content = json_string_value(content),
                               .length = json_string_length(content),
                               .reasoning = json_string_value(reasoning),
                               .reasoning_length = json_string_length(reasoning),
                               .answer = true};
  }
  return i;
}

/* False where the golden says that the conversation is refused, and it was. */
static bool render(kedge_rendering *rendering, const kedge_chat_template *chat, const json_t *row) {
  kedge_chat_turn turns[TURNS];
  const json_t *header = json_object_get(row, "header"), *refused = json_object_get(row, "refused");
  kedge_status status = kedge_chat_render(rendering, chat, turns, turns_of(row, turns));
  if (refused) {
    char role[64];
    const size_t at = (size_t)json_integer_value(refused);
    assert_int_equal(status, KEDGE_ERR_FORMAT);
    assert_int_equal(rendering->turns, at);
    snprintf(role, sizeof role, "role \"%s\"", turns[at].role);
    assert_non_null(strstr(kedge_message(), role));
    return false;
  }
  if (status != KEDGE_OK) fail_msg("%s", kedge_message());
  if (header) assert_int_equal(kedge_chat_render_header(rendering, chat, json_is_true(header)), KEDGE_OK);
  return true;
}

/* The answers of a rendering are the golden's stretches, in order. */
static void check_answers(const kedge_rendering *r, const json_t *text, const json_t *spans) {
  size_t found = 0;
  for (size_t i = 0; i < r->part_count; i++) {
    const kedge_text_part *part = &r->parts[i];
    assert_int_equal(part->trained, part->span == KEDGE_SPAN_A);
    if (part->span != KEDGE_SPAN_A) continue;
    const json_t *span = json_array_get(spans, found++);
    size_t start = 0, stop = 0, at = 0;
    /* Character indices of the golden become bytes. */
    const char *bytes = json_string_value(text);
    for (json_int_t character = 0; at <= json_string_length(text); character++) {
      uint32_t code;
      if (character == json_integer_value(json_array_get(span, 0))) start = at;
      if (character == json_integer_value(json_array_get(span, 1))) stop = at;
      at += at < json_string_length(text) ? kedge__utf8_decode(bytes + at, &code) : 1;
    }
    assert_int_equal(part->start, start);
    assert_int_equal(part->start + part->length, stop);
  }
  assert_int_equal(found, json_array_size(spans));
}

static void check_chat_ids(const kedge_tokenizer *tokenizer, const kedge_rendering *rendering,
                           const json_t *want) {
  kedge_dataset_options o = {.tokenizer = tokenizer, .eos = -1};
  int32_t *ids;
  size_t count;
  assert_int_equal(kedge_dataset_encode(&o, rendering, &ids, &count), KEDGE_OK);
  bool same = count == json_array_size(want);
  for (size_t i = 0; same && i < count; i++) same = ids[i] == json_integer_value(json_array_get(want, i));
  if (!same) {
    for (size_t i = 0; i < count; i++) print_error("%d ", ids[i]);
    char *dump = json_dumps(want, 0);
    fail_msg("'%.*s': want %s", (int)rendering->length, rendering->text, dump);
  }
  kedge_free(ids);
}

static void check_chat(const json_t *row) {
  const char *name = json_string_value(json_object_get(row, "template")),
             *family = json_string_value(json_object_get(row, "family"));
  const json_t *text = json_object_get(row, "text"), *want = json_object_get(row, "ids");
  const kedge_tokenizer *tokenizer = tiny;
  for (int i = 0; i < TEST_FAMILIES; i++)
    if (!strcmp(family, test_family_names[i])) tokenizer = families[i];
  const kedge_chat_template *chat;
  kedge_rendering rendering = {0};
  if (kedge_chat_template_choose(name, tokenizer, &chat) != KEDGE_OK) fail_msg("%s", kedge_message());
  if (render(&rendering, chat, row)) {
    if (rendering.length != json_string_length(text) ||
        memcmp(rendering.text, json_string_value(text), rendering.length)) {
      char *dump = json_dumps(json_object_get(row, "turns"), 0);
      fail_msg("%s %s: '%.*s', want '%s'", name, dump, (int)rendering.length, rendering.text,
               json_string_value(text));
    }
    check_answers(&rendering, text, json_object_get(row, "answers"));
    if (want) check_chat_ids(tokenizer, &rendering, want);
  }
  kedge_rendering_destroy(&rendering);
}

static void conversations(void **state) {
  (void)state;
  size_t i;
  json_t *rows = json_load_file(test_golden("tokenizer/families/chats.json"), 0, NULL), *row;
  assert_int_equal(json_array_size(rows), CONVERSATIONS);
  json_array_foreach(rows, i, row) {
    check_chat(row);
  }
  json_decref(rows);
}

/* Which template is taken without a name. */
static void choosing(void **state) {
  (void)state;
  static const char *const chosen[TEST_FAMILIES] = {"deepseek", "moonlight", NULL, "granite", NULL};
  const kedge_chat_template *chat;
  for (int i = 0; i < TEST_FAMILIES; i++) {
    kedge_status status = kedge_chat_template_choose("auto", families[i], &chat);
    if (chosen[i]) assert_string_equal(kedge_chat_template_name(chat), chosen[i]);
    assert_int_equal(status, chosen[i] ? KEDGE_OK : KEDGE_ERR_UNSUPPORTED);
  }
  /* Turns that ordinary text marks, and system turns that a template adds: the Jinja template tells. */
#define THOUGHTS     "{% set ns.last_query_index = 1 %}{{ m.reasoning_content }}"
#define SYSTEM(text) "{{ '<|im_start|>system\\n" text "<|im_end|>\\n' }}"
  static const char *const jinja[][3] = {
      {"families/llama", "{{ ' [INST] ' + m.content }}", "mistral"},
      {"families/olmoe", "{{ '<|user|>\n' + m.content }}", "tulu"},
      {"families/llama", "{{ '[INST]' }}", NULL},
      {"tiny", SYSTEM("' + m.content + '"), "chatml"},
      {"tiny", SYSTEM("You are a helpful assistant"), "qwen1.5"},
      {"tiny", SYSTEM("You are a helpful assistant."), "qwen2"},
      {"tiny", SYSTEM("You are Qwen, created by Alibaba Cloud. You are a helpful assistant."), "qwen2.5"},
      {"tiny", THOUGHTS "{{ '<|im_start|>assistant\\n' }}{{ '<think>\\n\\n</think>\\n\\n' }}", "qwen3"},
      {"tiny", THOUGHTS "{{ '<|im_start|>assistant\\n<think>\\n' }}", "qwen3-thinking"},
      {"tiny", "{{ m.reasoning_content }}{{ '<|im_start|>assistant\\n<think>\\n' }}", "chatml"},
      {"families/llama", THOUGHTS, NULL}};
  for (size_t i = 0; i < sizeof jinja / sizeof *jinja; i++) {
    char relative[64], *folder = strdup(test_path(test_folder(), "jinja"));
    size_t bytes;
    kedge_tokenizer *t;
    snprintf(relative, sizeof relative, "tokenizer/%s/tokenizer.json", jinja[i][0]);
    char *file = test_read(test_golden(relative), &bytes);
    test_make_folder(folder);
    test_write(test_path(folder, "tokenizer.json"), file, bytes);
    test_write_text(test_path(folder, "chat_template.jinja"), jinja[i][1]);
    assert_int_equal(kedge_tokenizer_open(folder, NULL, &t), KEDGE_OK);
    kedge_status status = kedge_chat_template_choose(NULL, t, &chat);
    assert_int_equal(status, jinja[i][2] ? KEDGE_OK : KEDGE_ERR_UNSUPPORTED);
    if (jinja[i][2]) assert_string_equal(kedge_chat_template_name(chat), jinja[i][2]);
    kedge_tokenizer_free(t);
    test_remove(folder);
    free(folder);
    free(file);
  }
  const kedge_chat_turn talk = {.role = "user", .content = "u", .length = 1};
  kedge_rendering r = {0};
  assert_int_equal(kedge_chat_template_choose("qwen2", tiny, &chat), KEDGE_OK);
  assert_int_equal(kedge_chat_render(&r, chat, &talk, 1), KEDGE_OK);
  assert_int_equal(kedge_rendering_add(&r, "", 1, KEDGE_SPAN_Q, false), KEDGE_OK);
  assert_string_equal(r.text, "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
                              "<|im_start|>user\nu<|im_end|>\n");
  assert_int_equal(kedge_chat_render(&r, chat, &talk, 0), KEDGE_ERR_ARGUMENT);
  kedge_rendering_destroy(&r);
}

/* ---- Records */

/* A record as text, a { before an answer and a } behind it. */
static void check_record(const char *name, const char *record, const char *expected) {
  kedge_dataset_options o = {.tokenizer = tiny, .eos = -1, .chat_template = name};
  kedge_dataset *d;
  if (kedge_dataset_read_memory("f", record, strlen(record), NULL, &o, &d) != KEDGE_OK)
    fail_msg("%s", kedge_message());
  char shown[512] = "";
  for (uint64_t t = 0; t < d->offsets[1]; t++) {
    char *text;
    size_t length;
    assert_int_equal(kedge_tokenizer_decode(tiny, d->ids + t, 1, false, &text, &length), KEDGE_OK);
    if (t && d->spans[t] != d->spans[t - 1]) strcat(shown, d->spans[t] ? "{" : "}");
    strcat(shown, text);
    assert_int_equal(d->trained[t], d->spans[t]);
    kedge_free(text);
  }
  assert_string_equal(shown, expected);
  kedge_dataset_free(d);
}

static void check_refuses(const char *text, const kedge_dataset_options *options, const char *message) {
  kedge_dataset *d;
  assert_int_equal(kedge_dataset_read_memory("f", text, strlen(text), NULL, options, &d), KEDGE_ERR_FORMAT);
  assert_null(d);
  if (!strstr(kedge_message(), message)) fail_msg("'%s' lacks '%s'", kedge_message(), message);
}

/* The whole turn is the answer, the think block included, and the conversation goes through both fields. */
static void think_blocks(void **state) {
  (void)state;
  check_record(
      "qwen3",
      "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},"
      "{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":\"d\"}]}",
      "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n{b<|im_end|>}\n"
      "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
      "{<think>\n\n</think>\n\nd<|im_end|>}\n");
  check_record("qwen3",
               "{\"prompt\":[{\"role\":\"user\",\"content\":\"a\"},"
               "{\"role\":\"assistant\",\"content\":\"<think>\\nx\\n</think>\\n\\nb\"},"
               "{\"role\":\"user\",\"content\":\"c\"}],"
               "\"completion\":[{\"role\":\"assistant\",\"content\":\"d\",\"reasoning_content\":\"y\"}]}",
               "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
               "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
               "{<think>\ny\n</think>\n\nd<|im_end|>}\n");
  /* Plain ChatML leaves the content as it is and has no place for the field. */
  check_record("chatml",
               "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
               "\"content\":\"<think>x</think>b\",\"reasoning_content\":\"y\"}]}",
               "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n{<think>x</think>b<|im_end|>}\n");
  kedge_dataset_options o = {.tokenizer = tiny, .eos = -1, .chat_template = "qwen3"};
  check_refuses("{\"messages\":[{\"role\":\"assistant\",\"content\":\"b\",\"reasoning_content\":3}]}", &o,
                "f:1: \"messages\"[0]: \"reasoning_content\": expected a string, got a number");
}

/* Mistral's turns alternate; the message has the place. */
static void turns_in_order(void **state) {
  (void)state;
  kedge_dataset_options o = {.tokenizer = families[TEST_LLAMA], .eos = -1, .chat_template = "mistral"};
  check_refuses("{\"messages\":[{\"role\":\"system\",\"content\":\"s\"}]}", &o,
                "f:1: \"messages\"[0]: role \"system\" alone: in the built-in template mistral");
  check_refuses(
      "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"}]}", &o,
      "f:1: \"messages\"[1]: role \"user\", expected \"assistant\"");
  check_refuses(
      "{\"prompt\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}],"
      "\"completion\":[{\"role\":\"assistant\",\"content\":\"d\"}]}",
      &o, "f:1: \"completion\"[0]: role \"assistant\", expected \"user\"");
}

/* ---- Evaluation */

/* A prompt is the opening of its answered form, which ends at the token that stops generation. */
static void check_prompt(const kedge_tokenizer *tokenizer, const char *name, const char *end) {
  char question[] = "q";
  const kedge_item item = {.prompt = question, .own = true};
  const kedge_hf_config config = {.vocab_size = 1};
  kedge_prompts prompts;
  kedge_prompt open, closed;
  if (kedge_prompts_init(&prompts, tokenizer, &config, KEDGE_TEMPLATE_MATH, name, 0) != KEDGE_OK ||
      kedge_prompts_encode(&prompts, &item, NULL, false, &open) != KEDGE_OK ||
      kedge_prompts_encode(&prompts, &item, "4", true, &closed) != KEDGE_OK)
    fail_msg("%s: %s", name, kedge_message());
  assert_int_equal(open.count, closed.prompt_count);
  assert_true(closed.count > closed.prompt_count + 1);
  assert_int_equal(closed.ids[closed.count - 1], kedge_tokenizer_id(tokenizer, end));
  assert_memory_equal(open.ids, closed.ids, open.count * sizeof *open.ids);
  kedge_free(open.ids);
  kedge_free(closed.ids);
}

static void prompts_of_items(void **state) {
  (void)state;
  check_prompt(tiny, "chatml", "<|im_end|>");
  check_prompt(tiny, "qwen3", "<|im_end|>");
  check_prompt(families[TEST_LLAMA], "mistral", "</s>");
  check_prompt(families[TEST_OLMOE], "tulu", "<|endoftext|>");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(conversations),  cmocka_unit_test(choosing),         cmocka_unit_test(think_blocks),
      cmocka_unit_test(turns_in_order), cmocka_unit_test(prompts_of_items),
  };
  return cmocka_run_group_tests(tests, open_all, close_all);
}
