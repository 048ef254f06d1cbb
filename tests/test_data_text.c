/* SPDX-License-Identifier: Apache-2.0
 *
 * Records to ids and spans, with small tokenizers written here. Siblings: test_data.c, test_batches.c. ctest:
 * quick
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "models/text/random.h"
#include "models/text/samples.h"
#include "tests/support/files.h"

#define assert_ok(expr)                                                                                      \
  do {                                                                                                       \
    kedge_status status_ = (expr);                                                                           \
    if (status_ != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status_), kedge_message());                \
  } while (0)
#define assert_message(text)                                                                                 \
  do {                                                                                                       \
    if (!strstr(kedge_message(), text)) fail_msg("message \"%s\" lacks \"%s\"", kedge_message(), text);      \
  } while (0)

/* ---- Tokenizers
 * ----------------------------------------------------------------------------------------------------
 * Byte-level BPE: bytes are ids 0..255, then the merged tokens below, then the added ones. */

enum { NO = 256, KNO, SPACE_NO, BOS, EOS, IM_START, IM_END };
enum { WITH_BOS = 1, WITHOUT_CHAT = 2, WITHOUT_EOS = 4, MOONLIGHT = 8, DEEPSEEK = 16 };
#define DEEPSEEK_BOS                                                                                         \
  "<\xef\xbd\x9c"                                                                                            \
  "begin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"
#define DEEPSEEK_EOS                                                                                         \
  "<\xef\xbd\x9c"                                                                                            \
  "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"

/* The character that stands for a byte in a byte-level vocabulary. */
static void byte_character(int byte, char *out) {
  int code = byte, shifted = 0;
  for (int b = 0; b <= byte; b++) {
    bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    if (!printable) code = b == byte ? 256 + shifted : code;
    shifted += !printable;
  }
  if (code < 128) {
    out[0] = (char)code;
    out[1] = 0;
  } else {
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 63));
    out[2] = 0;
  }
}

static void write_file(const char *name, json_t *value) {
  assert_int_equal(json_dump_file(value, test_path(test_folder(), name), 0), 0);
  json_decref(value);
}

static json_t *make_vocabulary(void) {
  json_t *vocabulary = json_object();
  char character[4];
  for (int b = 0; b < 256; b++) {
    byte_character(b, character);
    json_object_set_new(vocabulary, character, json_integer(b));
  }
  json_object_set_new(vocabulary, "no", json_integer(NO));
  json_object_set_new(vocabulary, "kno", json_integer(KNO));
  json_object_set_new(vocabulary, "\xc4\xa0no", json_integer(SPACE_NO));
  return vocabulary;
}

static kedge_tokenizer *make_tokenizer(int flags) {
  static const char *const chatml[] = {"<s>", "</s>", "<|im_start|>", "<|im_end|>", NULL};
  static const char *const moonlight[] = {
      "<s>", "</s>", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", NULL};
  static const char *const deepseek[] = {DEEPSEEK_BOS, DEEPSEEK_EOS, NULL};
  const char *const *names = flags & MOONLIGHT ? moonlight : flags & DEEPSEEK ? deepseek : chatml;
  json_t *added = json_array();
  for (int i = 0; names[i] && !(i >= 2 && flags & WITHOUT_CHAT); i++)
    json_array_append_new(added, json_pack("{s:i,s:s,s:b,s:b,s:b,s:b,s:b}", "id", BOS + i, "content",
                                           names[i], "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized",
                                           0, "special", 1));
  json_t *post = json_null();
  if (flags & WITH_BOS)
    post = json_pack("{s:s,s:[{s:{s:s,s:i}},{s:{s:s,s:i}}],s:[{s:{s:s,s:i}},{s:{s:s,s:i}},{s:{s:s,s:i}}],s:{"
                     "s:{s:s,s:[i],s:[s]}}}",
                     "type", "TemplateProcessing", "single", "SpecialToken", "id", names[0], "type_id", 0,
                     "Sequence", "id", "A", "type_id", 0, "pair", "SpecialToken", "id", names[0], "type_id",
                     0, "Sequence", "id", "A", "type_id", 0, "Sequence", "id", "B", "type_id", 1,
                     "special_tokens", names[0], "id", names[0], "ids", BOS, "tokens", names[0]);
  json_t *model =
      json_pack("{s:s,s:n,s:n,s:n,s:n,s:b,s:b,s:b,s:o,s:[s,s,s]}", "type", "BPE", "dropout", "unk_token",
                "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
                "ignore_merges", 0, "vocab", make_vocabulary(), "merges", "n o", "k no", "\xc4\xa0 no");
  json_t *stage = json_pack("{s:s,s:b,s:b,s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets",
                            1, "use_regex", 1);
  json_t *file = json_pack("{s:s,s:n,s:n,s:o,s:n,s:O,s:o,s:o,s:o}", "version", "1.0", "truncation", "padding",
                           "added_tokens", added, "normalizer", "pre_tokenizer", stage, "post_processor",
                           post, "decoder", stage, "model", model);
  assert_non_null(file);
  write_file("tokenizer.json", file);
  json_t *config = json_pack("{s:s,s:b}", "bos_token", names[0], "add_bos_token", (flags & WITH_BOS) != 0);
  if (!(flags & WITHOUT_EOS)) json_object_set_new(config, "eos_token", json_string(names[1]));
  write_file("tokenizer_config.json", config);
  kedge_tokenizer *tokenizer;
  assert_ok(kedge_tokenizer_open(test_folder(), NULL, &tokenizer));
  return tokenizer;
}

/* ---- Helpers
 * ------------------------------------------------------------------------------------------------------ */

typedef struct notices {
  int count;
  char all[8192];
} notices;

static void on_notice(void *context, const char *line) {
  notices *n = context;
  size_t used = strlen(n->all);
  n->count++;
  snprintf(n->all + used, sizeof n->all - used, "%s\n", line);
}

static kedge_dataset *read_text(const char *text, const kedge_dataset_options *options) {
  kedge_dataset *d;
  assert_ok(kedge_dataset_read_memory("f", text, strlen(text), NULL, options, &d));
  return d;
}

/* A sample as text: each token's bytes, with ' behind a target of the loss and | at a change of span. BOS is
 * ^, EOS is $, the turn marks are < and >. */
static void show(const kedge_dataset *d, uint32_t sample, char *out, size_t size) {
  size_t n = 0;
  for (uint64_t t = d->offsets[sample]; t < d->offsets[sample + 1]; t++) {
    char token[8] = "";
    int32_t id = d->ids[t];
    if (t > d->offsets[sample] && d->spans[t] != d->spans[t - 1])
      n += (size_t)snprintf(out + n, size - n, "|");
    if (id < 256)
      snprintf(token, sizeof token, "%c", (char)id);
    else
      snprintf(token, sizeof token, "%s",
               (const char *[]){"[no]", "[kno]", "[ no]", "^", "$", "<", ">"}[id - 256]);
    n += (size_t)snprintf(out + n, size - n, "%s%s", token, d->trained[t] ? "'" : "");
    assert_true(n < size);
  }
}

static void check_show(const kedge_dataset *d, uint32_t sample, const char *expected) {
  char out[1024];
  show(d, sample, out, sizeof out);
  assert_string_equal(out, expected);
}

static void check_options(const char *text, const kedge_dataset_options *options, const char *expected) {
  kedge_dataset *d = read_text(text, options);
  assert_int_equal(d->count, 1);
  check_show(d, 0, expected);
  kedge_dataset_free(d);
}

static void check_refuses(const char *text, const kedge_dataset_options *options, kedge_status status,
                          const char *message) {
  kedge_dataset *d;
  assert_int_equal(kedge_dataset_read_memory("f", text, strlen(text), NULL, options, &d), status);
  assert_null(d);
  assert_message(message);
}

/* ---- Tests
 * -------------------------------------------------------------------------------------------------------- */

static void formats(void **state) {
  kedge_dataset_options o = {.tokenizer = *state, .eos = -1};
  check_options("{\"text\":\"ab\"}", &o, "ab'$'");
  check_options("{\"prompt\":\"ab\",\"completion\":\"cd\"}", &o, "ab|c'd'$'");
  check_options("{\"completion\":\"cd\",\"prompt\":\"ab\",\"text\":\"zz\",\"id\":7}", &o, "ab|c'd'$'");
  check_options("{\"question\":\"ab\",\"answer\":\"cd\"}", &o, "ab|c'd'$'");
  check_options("{\"query\":\"ab\",\"response\":\"cd\",\"history\":[],\"system\":\"\"}", &o, "ab|c'd'$'");
  check_options("{\"instruction\":\"ab\",\"input\":\"\",\"output\":\"cd\"}", &o, "ab|c'd'$'");
  check_options("{\"instruction\":\"ab\",\"input\":\"x\",\"output\":\"cd\",\"system\":null}", &o,
                "ab\nx|c'd'$'");
  check_options("{\"instruction\":\"ab\",\"output\":\"cd\"}", &o, "ab|c'd'$'");
  check_options("[{\"prompt\":\"ab\",\n\"completion\":\"cd\"}]", &o, "ab|c'd'$'");
  const char *chat = "<user\na>\n<assistant\n|b'>'|\n";
  check_options(
      "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}", &o,
      chat);
  check_options(
      "{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},{\"from\":\"gpt\",\"value\":\"b\"}]}", &o,
      chat);
  check_options("{\"conversations\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
                "\"content\":\"b\"}]}",
                &o, chat);
  check_options("{\"prompt\":[{\"role\":\"user\",\"content\":\"a\"}],\"completion\":[{\"role\":\"assistant\","
                "\"content\":\"b\"}]}",
                &o, chat);
  notices n = {0};
  o.notice = on_notice;
  o.context = &n;
  check_options("{\"question\":\"ab\",\"answer\":\"cd\"}", &o, "ab|c'd'$'");
  assert_string_equal(n.all, "f: read as question_answer (fields question, answer)\n");
}

static void chat_turns(void **state) {
  kedge_dataset_options o = {.tokenizer = *state, .eos = -1};
  check_options(
      "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\"},"
      "{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"},"
      "{\"role\":\"assistant\",\"content\":\"\"}]}",
      &o, "<system\ns>\n<user\na>\n<assistant\n|b'>'|\n<user\nc>\n<assistant\n|>'|\n");
  /* An assistant turn of the prompt is a question like the rest of it. */
  check_options(
      "{\"prompt\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},"
      "{\"role\":\"user\",\"content\":\"c\"}],\"completion\":[{\"role\":\"assistant\",\"content\":\"d\"}]}",
      &o, "<user\na>\n<assistant\nb>\n<user\nc>\n<assistant\n|d'>'|\n");
  check_refuses("{\"messages\":[{\"role\":\"tool\",\"content\":\"s\"}]}", &o, KEDGE_ERR_FORMAT,
                "f:1: \"messages\"[0]: role \"tool\"");
  check_refuses("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", &o, KEDGE_ERR_FORMAT,
                "not one of 1 samples");
  check_refuses("{\"messages\":[]}", &o, KEDGE_ERR_FORMAT, "f:1: \"messages\": expected a list of turns");
  check_refuses("{\"messages\":[3]}", &o, KEDGE_ERR_FORMAT,
                "f:1: \"messages\"[0]: expected an object, got a number");
  check_refuses("{\"messages\":[{\"role\":\"user\",\"content\":null}]}", &o, KEDGE_ERR_FORMAT,
                "f:1: \"messages\"[0]: \"content\": expected a string, got null");
  check_refuses("{\"prompt\":\"a\",\"completion\":[{\"role\":\"assistant\",\"content\":\"b\"}]}", &o,
                KEDGE_ERR_FORMAT, "f:1: \"prompt\": expected a list of turns, got a string");
  o.prompt_template = "Q: {prompt}";
  check_refuses("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", &o, KEDGE_ERR_ARGUMENT,
                "prompt_template");
  kedge_tokenizer *plain = make_tokenizer(WITHOUT_CHAT);
  o = (kedge_dataset_options){.tokenizer = plain, .eos = -1};
  check_refuses("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", &o, KEDGE_ERR_UNSUPPORTED,
                "template");
  o.chat_template = "jinja";
  check_refuses("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", &o, KEDGE_ERR_ARGUMENT, "jinja");
  kedge_tokenizer_free(plain);
}

/* A conversation as text, a { before an answer and a } behind it. */
static void check_conversation(int flags, const char *name, const char *expected) {
  kedge_tokenizer *tokenizer = make_tokenizer(flags);
  kedge_dataset_options o = {.tokenizer = tokenizer, .eos = -1, .chat_template = name};
  kedge_dataset *d = read_text(
      "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},"
      "{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":\"d\"}]}",
      &o);
  char shown[512] = "";
  for (uint64_t t = 0; t < d->offsets[1]; t++) {
    char *text;
    size_t length;
    assert_ok(kedge_tokenizer_decode(tokenizer, d->ids + t, 1, false, &text, &length));
    if (d->spans[t] && !d->spans[t - 1]) strcat(shown, "{");
    if (t && !d->spans[t] && d->spans[t - 1]) strcat(shown, "}");
    strcat(shown, text);
    assert_int_equal(d->trained[t], d->spans[t]);
    kedge_free(text);
  }
  assert_string_equal(shown, expected);
  kedge_dataset_free(d);
  kedge_tokenizer_free(tokenizer);
}

static void chat_templates(void **state) {
  check_conversation(0, "chatml",
                     "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n{b<|im_end|>}\n"
                     "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n{d<|im_end|>}\n");
  check_conversation(
      MOONLIGHT, NULL,
      "<|im_system|>system<|im_middle|>You are a helpful assistant<|im_end|>"
      "<|im_user|>user<|im_middle|>a<|im_end|><|im_assistant|>assistant<|im_middle|>{b<|im_end|>}"
      "<|im_user|>user<|im_middle|>c<|im_end|><|im_assistant|>assistant<|im_middle|>{d<|im_end|>");
  check_conversation(DEEPSEEK | WITH_BOS, "auto",
                     DEEPSEEK_BOS "User: a\n\nAssistant:{ b" DEEPSEEK_EOS
                                  "}User: c\n\nAssistant:{ d" DEEPSEEK_EOS);
  /* The opening of a training sample, for generation. */
  kedge_dataset_options o = {.tokenizer = *state, .eos = -1};
  const kedge_chat_template *chat;
  kedge_rendering rendering = {0};
  int32_t *ids;
  size_t count;
  assert_ok(kedge_chat_template_choose(NULL, *state, &chat));
  assert_ok(kedge_chat_render(&rendering, chat, &(kedge_chat_turn){"user", "a", 1, NULL, 0, false}, 1));
  assert_ok(kedge_chat_render_header(&rendering, chat, true));
  assert_ok(kedge_dataset_encode(&o, &rendering, &ids, &count));
  kedge_dataset *d = read_text("{\"prompt\":[{\"role\":\"user\",\"content\":\"a\"}],"
                               "\"completion\":[{\"role\":\"assistant\",\"content\":\"b\"}]}",
                               &o);
  assert_true(count < d->offsets[1] && d->spans[count] == KEDGE_SPAN_A &&
              d->spans[count - 1] == KEDGE_SPAN_Q);
  assert_memory_equal(ids, d->ids, count * sizeof *ids);
  kedge_free(ids);
  kedge_rendering_destroy(&rendering);
  kedge_dataset_free(d);
}

/* Several files, each of its own format; samples keep file and line. */
static void several_files(void **state) {
  kedge_dataset_options o = {.tokenizer = *state, .eos = -1};
  const char *paths[2] = {test_path(test_folder(), "a.jsonl"), test_path(test_folder(), "b.json")};
  test_write_text(paths[0], "{\"text\":\"ab\"}\n\n{\"text\":\"c\"}");
  test_write_text(paths[1], "[\n{\"instruction\":\"q\",\"output\":\"a\"}]");
  kedge_dataset *d;
  assert_ok(kedge_dataset_read(paths, NULL, 2, &o, &d));
  assert_int_equal(d->count, 3);
  assert_int_equal(d->file_count, 2);
  check_show(d, 1, "c$'");
  check_show(d, 2, "q|a'$'");
  assert_int_equal(d->lines[1], 3);
  assert_int_equal(d->lines[2], 2);
  assert_int_equal(d->files[1], 0);
  assert_int_equal(d->files[2], 1);
  assert_string_equal(d->file_names[1], paths[1]);
  assert_int_equal(d->sample_ids[2], 2);
  kedge_dataset_free(d);
  assert_int_equal(kedge_dataset_read(paths, (const char *[]){"text", "text"}, 2, &o, &d), KEDGE_ERR_FORMAT);
  assert_message("b.json:2: \"text\": expected a string, got nothing");
  assert_ok(kedge_dataset_read(paths, (const char *[]){"completion", "alpaca"}, 2, &o, &d));
  kedge_dataset_free(d);
  assert_int_equal(kedge_dataset_read((const char *[]){"absent.jsonl"}, NULL, 1, &o, &d), KEDGE_ERR_IO);
}

/* Spans come from where a token was encoded, also where the answer's text stands in the question, or across
 * the boundary. */
static void spans_by_construction(void **state) {
  kedge_dataset_options o = {.tokenizer = *state, .eos = -1};
  check_options("{\"prompt\":\"yes or no?\",\"completion\":\"no\"}", &o, "yes or[ no]?|[no]'$'");
  check_options("{\"prompt\":\"do you know?\",\"completion\":\"no\"}", &o, "do you [kno]w?|[no]'$'");
  check_options("{\"prompt\":\"n\",\"completion\":\"o\"}", &o, "n|o'$'"); /* joined text would be one token */
  check_options("{\"prompt\":\"no\",\"completion\":\"no\"}", &o, "[no]|[no]'$'");
}

static void empty_parts(void **state) {
  kedge_dataset_options o = {.tokenizer = *state, .eos = -1};
  check_options("{\"prompt\":\"ab\",\"completion\":\"\"}", &o, "ab|$'");
  check_options("{\"prompt\":\"\",\"completion\":\"cd\"}", &o, "cd'$'");
  check_options("{\"prompt\":\"ab\",\"completion\":\"cd</s>\"}", &o, "ab|c'd'$'"); /* not closed twice */
  check_options("{\"prompt\":\"ab</s>\",\"completion\":\"c\"}", &o, "ab$|c'$'");
  check_refuses("{\"text\":\"\"}", &o, KEDGE_ERR_FORMAT, "not one of 1 samples");
  o.eos = IM_END; /* a generation config's */
  check_options("{\"prompt\":\"ab\",\"completion\":\"c\"}", &o, "ab|c'>'");
  kedge_tokenizer *open_ended = make_tokenizer(WITHOUT_EOS);
  o = (kedge_dataset_options){.tokenizer = open_ended, .eos = -1};
  check_options("{\"prompt\":\"ab\",\"completion\":\"c\"}", &o, "ab|c'");
  check_refuses("{\"prompt\":\"ab\",\"completion\":\"\"}", &o, KEDGE_ERR_FORMAT, "not one of 1 samples");
  kedge_tokenizer_free(open_ended);
}

/* Exactly one BOS, at the start, whoever writes it. */
static void bos_once(void **state) {
  (void)state;
  kedge_tokenizer *tokenizer = make_tokenizer(WITH_BOS);
  kedge_dataset_options o = {.tokenizer = tokenizer, .eos = -1};
  check_options("{\"text\":\"ab\"}", &o, "^a'b'$'");
  check_options("{\"prompt\":\"a\",\"completion\":\"b\"}", &o, "^a|b'$'");
  check_options("{\"prompt\":\"<s>a\",\"completion\":\"b\"}", &o, "^a|b'$'");
  check_options("{\"prompt\":\"<s><s>a\",\"completion\":\"<s>b\"}", &o, "^a|b'$'");
  check_options("{\"prompt\":\"\",\"completion\":\"b\"}", &o, "^|b'$'");
  check_options("{\"prompt\":\"\",\"completion\":\"<s>b\"}", &o, "^|b'$'");
  check_options(
      "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}", &o,
      "^<user\na>\n<assistant\n|b'>'|\n");
  o.prompt_template = "<s>Q: {prompt}\nA: ";
  check_options("{\"prompt\":\"a\",\"completion\":\"b\"}", &o, "^Q: a\nA: |b'$'");
  int32_t *ids;
  size_t count;
  assert_ok(kedge_dataset_encode_prompt(&o, "a", 1, &ids, &count));
  assert_int_equal(count, 9);
  assert_int_equal(ids[0], BOS);
  assert_int_equal(ids[1], 'Q');
  kedge_free(ids);
  o.prompt_template = NULL;
  assert_ok(kedge_dataset_encode_prompt(&o, "", 0, &ids, &count));
  assert_int_equal(count, 1);
  kedge_free(ids);
  kedge_tokenizer_free(tokenizer);
}

static void prompt_templates(void **state) {
  kedge_dataset_options o = {.tokenizer = *state, .eos = -1, .prompt_template = "{Q} {prompt}}\n"};
  check_options("{\"prompt\":\"{prompt}\",\"completion\":\"b\"}", &o, "{Q} {prompt}}\n|b'$'");
  check_options("{\"text\":\"ab\"}", &o, "ab'$'");
  o.prompt_template = "Question:";
  check_refuses("{\"text\":\"ab\"}", &o, KEDGE_ERR_ARGUMENT, "expected {prompt}");
  o.prompt_template = "{prompt} {prompt}";
  check_refuses("{\"text\":\"ab\"}", &o, KEDGE_ERR_ARGUMENT, "twice");
}

static void loss_on_all(void **state) {
  kedge_dataset_options o = {.tokenizer = *state, .eos = -1, .loss_on_all = true};
  check_options("{\"prompt\":\"ab\",\"completion\":\"c\"}", &o, "ab'|c'$'");
}

/* At every length the spans are those of the cut sequence, and a sample without an answer is left out. */
static void truncation(void **state) {
  const char *row = "{\"prompt\":\"abc\",\"completion\":\"de\"}\n";
  const char *expected[] = {"", "", "", "abc|d'", "abc|d'e'", "abc|d'e'$'", "abc|d'e'$'"};
  for (uint32_t max = 1; max <= 7; max++) {
    kedge_dataset_options o = {.tokenizer = *state, .eos = -1, .max_length = max};
    if (expected[max - 1][0])
      check_options(row, &o, expected[max - 1]);
    else
      check_refuses(row, &o, KEDGE_ERR_FORMAT,
                    "f: not one of 1 samples has a supervised token (1 were cut at max_length");
  }
  notices n = {0};
  kedge_dataset_options o = {
      .tokenizer = *state, .eos = -1, .max_length = 4, .notice = on_notice, .context = &n};
  kedge_dataset *d =
      read_text("{\"prompt\":\"abc\",\"completion\":\"d\"}\n\n{\"prompt\":\"abcdef\",\"completion\":\"g\"}\n"
                "{\"prompt\":\"x\",\"completion\":\"y\"}",
                &o);
  assert_string_equal(n.all, "f:3: sample 1 is left out: no supervised token in its first 4 of 8 tokens\n");
  assert_int_equal(d->count, 2);
  assert_int_equal(d->stats.records, 3);
  assert_int_equal(d->stats.excluded, 1);
  assert_int_equal(d->stats.truncated, 2);
  assert_int_equal(d->sample_ids[1], 2);
  assert_int_equal(d->lines[1], 4);
  kedge_dataset_free(d);
}

static void bad_records(void **state) {
  notices n = {0};
  kedge_dataset_options o = {.tokenizer = *state, .eos = -1, .notice = on_notice, .context = &n};
  const char *text = "{\"prompt\":\"a\",\"completion\":\"b\"}\n{\"prompt\":\"a\",\"completion\":3}\n{"
                     "\"prompt\":\"a\"}\nbad\n"
                     "{\"prompt\":\"c\",\"completion\":\"d\"}\n";
  check_refuses(text, &o, KEDGE_ERR_FORMAT, "f:2: \"completion\": expected a string, got a number");
  o.skip_bad_lines = true;
  kedge_dataset *d = read_text(text, &o);
  assert_int_equal(d->count, 2);
  assert_int_equal(d->stats.skipped, 3);
  assert_int_equal(d->stats.records, 2);
  assert_int_equal(n.count, 3);
  assert_non_null(strstr(n.all, "skipped: f:3: \"completion\": expected a string, got nothing\n"));
  kedge_dataset_free(d);
  /* The format comes from the first record that can be read. */
  d = read_text("{\"foo\":1}\n{\"text\":\"ab\"}\n", &o);
  assert_int_equal(d->stats.skipped, 1);
  kedge_dataset_free(d);
  check_refuses("bad\n", &o, KEDGE_ERR_FORMAT, "every line was bad and skipped");
  o.skip_bad_lines = false;
  check_refuses("\n\n", &o, KEDGE_ERR_FORMAT, "f: no samples");
  check_refuses("{\"foo\":1,\"bar\":\"x\"}\n", &o, KEDGE_ERR_FORMAT,
                "f:1: expected text, prompt and completion");
  assert_message("foo, bar");
  check_refuses("{\"query\":\"a\",\"response\":\"b\",\"history\":[[\"x\",\"y\"]]}", &o, KEDGE_ERR_FORMAT,
                "f:1: \"history\"");
  kedge_dataset *none;
  assert_int_equal(kedge_dataset_read_memory("f", "{}", 2, "cvs", &o, &none), KEDGE_ERR_ARGUMENT);
  assert_message("\"cvs\"");
  const char *mixed = "{\"text\":\"a\",\"prompt\":\"x\",\"completion\":\"y\"}";
  assert_ok(kedge_dataset_read_memory("f", mixed, strlen(mixed), "text", &o, &d));
  check_show(d, 0, "a$'");
  kedge_dataset_free(d);
}

static bool stop(void *context, const char *file, uint64_t bytes, uint64_t total, uint64_t samples) {
  (void)file;
  assert_true(bytes <= total && samples <= 3);
  ++*(int *)context;
  return false;
}

static void progress(void **state) {
  int calls = 0;
  kedge_dataset_options o = {.tokenizer = *state, .eos = -1, .progress = stop, .context = &calls};
  check_refuses("{\"text\":\"ab\"}\n", &o, KEDGE_ERR_INTERRUPTED, "stopped");
  assert_int_equal(calls, 1);
}

static const char fuzz_seed[] =
    "{\"prompt\":\"ab\",\"completion\":\"cd\"}\n{\"prompt\":\"e\\n\xc3\xa9\",\"completion\":\"\"}\n"
    "{\"prompt\":[{\"role\":\"user\",\"content\":\"a\"}],\"completion\":[{\"role\":\"assistant\",\"content\":"
    "\"b<s>\"}]}\n";

static void survives_mutations(void **state) {
  kedge_random random = kedge_random_start(11, 0);
  int kept = 0;
  for (int i = 0; i < 3000; i++) {
    char text[512];
    size_t length = sizeof fuzz_seed - 1;
    memcpy(text, fuzz_seed, length);
    for (uint64_t edits = 1 + kedge_random_below(&random, 3); edits; edits--) {
      size_t at = kedge_random_below(&random, length);
      if (kedge_random_below(&random, 3))
        text[at] = (char)(kedge_random_below(&random, 2) ? kedge_random_below(&random, 256)
                                                         : (uint64_t) "{}[]\":,\n"[i % 8]);
      else
        length = at + 1;
    }
    kedge_dataset_options o = {
        .tokenizer = *state, .eos = -1, .max_length = 1 + (uint32_t)i % 30, .skip_bad_lines = i % 2};
    kedge_dataset *d;
    kedge_status status = kedge_dataset_read_memory("f", text, length, NULL, &o, &d);
    assert_true(status == KEDGE_OK || status == KEDGE_ERR_FORMAT);
    kept += status == KEDGE_OK;
    kedge_dataset_free(d);
  }
  assert_true(kept > 200 && kept < 2900);
}

static void survives_failed_allocations(void **state) {
  kedge_dataset_options o = {.tokenizer = *state, .eos = -1, .prompt_template = NULL, .max_length = 8};
  notices n = {0};
  o.notice = on_notice;
  o.context = &n;
  int failures = 0;
  for (uint64_t nth = 1;; nth++) {
    kedge_dataset *d;
    kedge_alloc_fail_nth(nth);
    kedge_status status = kedge_dataset_read_memory("f", fuzz_seed, sizeof fuzz_seed - 1, NULL, &o, &d);
    kedge_alloc_fail_nth(0);
    kedge_dataset_free(d);
    if (status == KEDGE_OK) break;
    assert_int_equal(status, KEDGE_ERR_MEMORY);
    failures++;
  }
  assert_true(failures > 30);
}

/* Files as they are published, where the data folder is there. */
static void published_files(void **state) {
  (void)state;
  static const char *const names[] = {"data/math/gsm8k_test.jsonl", "data/code/new_codealpaca.json",
                                      "data/code/mbpp.jsonl"};
  static const uint64_t records[] = {1319, 0, 974};
  const char *ranks = test_shared("data/tokenizers/qwen.tiktoken");
  if (!ranks) skip();
  kedge_tokenizer *tokenizer;
  assert_ok(kedge_tokenizer_open(ranks, NULL, &tokenizer));
  for (int i = 0; i < 3; i++) {
    const char *path = test_shared(names[i]);
    if (!path) continue;
    notices n = {0};
    kedge_dataset_options o = {
        .tokenizer = tokenizer, .eos = -1, .max_length = 1024, .notice = on_notice, .context = &n};
    kedge_dataset *d;
    assert_ok(kedge_dataset_read(&path, NULL, 1, &o, &d));
    if (records[i]) assert_int_equal(d->stats.records, records[i]);
    assert_true(d->count > 500 && d->stats.supervised > 10000);
    print_message("%s: %u samples, %llu tokens, %llu supervised\n", names[i], d->count,
                  (unsigned long long)d->offsets[d->count], (unsigned long long)d->stats.supervised);
    if (!i) {
      char *text;
      size_t length;
      assert_ok(kedge_tokenizer_decode(tokenizer, d->ids, (size_t)d->offsets[1], false, &text, &length));
      assert_non_null(strstr(text, "farmers' market?Janet sells 16 - 3 - 4"));
      kedge_free(text);
    }
    kedge_dataset_free(d);
  }
  kedge_tokenizer_free(tokenizer);
}

static int setup(void **state) {
  *state = make_tokenizer(0);
  return 0;
}

static int teardown(void **state) {
  kedge_tokenizer_free(*state);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(formats),
      cmocka_unit_test(chat_turns),
      cmocka_unit_test(chat_templates),
      cmocka_unit_test(several_files),
      cmocka_unit_test(spans_by_construction),
      cmocka_unit_test(empty_parts),
      cmocka_unit_test(bos_once),
      cmocka_unit_test(prompt_templates),
      cmocka_unit_test(loss_on_all),
      cmocka_unit_test(truncation),
      cmocka_unit_test(bad_records),
      cmocka_unit_test(progress),
      cmocka_unit_test(survives_mutations),
      cmocka_unit_test(survives_failed_allocations),
      cmocka_unit_test(published_files),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
