/* SPDX-License-Identifier: Apache-2.0
 * Tokenizers that need no other files: every stage against the reference library's ids, ranks files and pairs
 * made from the tiny tokenizer, companions, saving. Hostile files are in test_tokenizer_hostile.c, full-size
 * tokenizers in test_tokenizer_real.c. ctest: quick */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "models/text/tokenizer.h"
#include "models/text/unicode.h"
#include "tests/support/files.h"

static kedge_tokenizer *open_ok(const char *path, const char *kind) {
  kedge_tokenizer *t;
  if (kedge_tokenizer_open(path, kind, &t) != KEDGE_OK) fail_msg("%s: %s", path, kedge_message());
  return t;
}

/* A folder whose path outlives the ring of test_path. The caller frees it. */
static char *new_folder(const char *name) {
  char *folder = strdup(test_path(test_folder(), name));
  test_make_folder(folder);
  return folder;
}

static json_t *load(const char *path) {
  json_error_t error;
  json_t *root = json_load_file(path, 0, &error);
  if (!root) fail_msg("%s: %s", path, error.text);
  return root;
}

static void same_ids(const kedge_tokenizer *t, const char *what, const char *text, unsigned flags,
                     const json_t *want) {
  int32_t *ids;
  size_t count;
  if (kedge_tokenizer_encode(t, text, strlen(text), flags, &ids, &count) != KEDGE_OK)
    fail_msg("%s '%s': %s", what, text, kedge_message());
  bool same = count == json_array_size(want);
  for (size_t i = 0; same && i < count; i++) same = ids[i] == json_integer_value(json_array_get(want, i));
  if (!same) {
    for (size_t i = 0; i < count; i++) print_error("%d ", ids[i]);
    char *dump = json_dumps(want, 0);
    fail_msg("%s '%s' (flags %u): want %s", what, text, flags, dump);
  }
  kedge_free(ids);
}

/* Invalid UTF-8 becomes U+FFFD in the reference library's strings and stays as bytes in Kedge's. */
static void same_decoded(const kedge_tokenizer *t, const char *what, const json_t *ids, const char *want) {
  int32_t list[4096];
  size_t count = json_array_size(ids), length;
  assert_true(count <= 4096);
  for (size_t i = 0; i < count; i++) list[i] = (int32_t)json_integer_value(json_array_get(ids, i));
  char *text;
  if (kedge_tokenizer_decode(t, list, count, false, &text, &length) != KEDGE_OK)
    fail_msg("%s: %s", what, kedge_message());
  assert_int_equal(text[length], 0);
  if (kedge__utf8_valid(text, length) == length && strcmp(text, want))
    fail_msg("%s: decoded '%s', want '%s'", what, text, want);
  kedge_free(text);
}

/* ---- Stages
 * -------------------------------------------------------------------------------------------------------------
 */

/* The base model with the patch's members in place of its own; `model` is patched member by member. */
static const char *write_patched(const json_t *base, const json_t *patch) {
  json_t *root = json_deep_copy(base);
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)patch, key, value) {
    if (!strcmp(key, "model"))
      json_object_update(json_object_get(root, "model"), value);
    else
      json_object_set(root, key, value);
  }
  const char *path = test_path(test_folder(), "patched.json");
  assert_int_equal(json_dump_file(root, path, JSON_COMPACT), 0);
  json_decref(root);
  return path;
}

static void stages_give_the_reference_ids(void **state) {
  (void)state;
  json_t *tiny = load(test_golden("tokenizer/tiny/tokenizer.json")),
         *golden = load(test_golden("tokenizer/stages.json"));
  json_t *cases = json_object_get(golden, "cases"), *item, *row;
  assert_true(json_array_size(cases) > 50);
  size_t i, j;
  json_array_foreach(cases, i, item) {
    const char *name = json_string_value(json_object_get(item, "name"));
    const char *base_name = json_string_value(json_object_get(item, "base"));
    json_t *other = json_object_get(json_object_get(golden, "bases"), base_name);
    kedge_tokenizer *t = open_ok(write_patched(other ? other : tiny, json_object_get(item, "patch")), NULL);
    json_array_foreach(json_object_get(item, "rows"), j, row) {
      const char *text = json_string_value(json_object_get(row, "text"));
      const json_t *ids = json_object_get(row, "ids");
      same_ids(t, name, text, KEDGE_ENCODE_SPECIAL | KEDGE_ENCODE_TEMPLATE, ids);
      same_ids(t, name, text, KEDGE_ENCODE_PLAIN, json_object_get(row, "plain"));
      same_decoded(t, name, ids, json_string_value(json_object_get(row, "decoded")));
    }
    kedge_tokenizer_free(t);
  }
  json_decref(golden);
  json_decref(tiny);
}

/* ---- The tiny tokenizer and what is made from it
 * --------------------------------------------------------------------------- */

static uint64_t hash_ids(const kedge_tokenizer *t, const char *text, unsigned flags) {
  int32_t *ids;
  size_t count;
  if (kedge_tokenizer_encode(t, text, strlen(text), flags, &ids, &count) != KEDGE_OK)
    fail_msg("'%s': %s", text, kedge_message());
  uint64_t hash = 0xCBF29CE484222325u;
  for (size_t i = 0; i < count; i++)
    for (int shift = 0; shift < 32; shift += 8)
      hash = (hash ^ ((uint32_t)ids[i] >> shift & 0xFF)) * 0x100000001B3u;
  kedge_free(ids);
  return hash;
}

/* Calls `check` for every text of synthetic.jsonl that has no NUL in it. */
static unsigned each_text(void (*check)(void *context, const char *text, const json_t *row), void *context) {
  size_t bytes;
  char *file = test_read(test_golden("tokenizer/synthetic.jsonl"), &bytes), *line = file;
  unsigned rows = 0;
  for (char *end; (end = strchr(line, '\n')); line = end + 1) {
    json_t *row = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, NULL);
    json_t *text = json_object_get(row, "text");
    if (strlen(json_string_value(text)) == json_string_length(text)) {
      check(context, json_string_value(text), row);
      rows++;
    }
    json_decref(row);
  }
  free(file);
  return rows;
}

static void check_tiny(void *context, const char *text, const json_t *row) {
  char hash[24];
  snprintf(hash, sizeof hash, "%016llx", (unsigned long long)hash_ids(context, text, KEDGE_ENCODE_SPECIAL));
  if (strcmp(hash, json_string_value(json_object_get(row, "tiny"))))
    fail_msg("'%s' has other ids than the reference", text);
}

static void tiny_tokenizer(void **state) {
  (void)state;
  kedge_tokenizer *t = open_ok(test_golden("tokenizer/tiny"), NULL);
  assert_int_equal(kedge_tokenizer_size(t), 512);
  assert_int_equal(kedge_tokenizer_eos(t), 507);
  assert_int_equal(kedge_tokenizer_pad(t), 507);
  assert_int_equal(kedge_tokenizer_bos(t), -1);
  assert_false(kedge_tokenizer_adds_bos(t));
  assert_null(kedge_tokenizer_chat_template(t));
  assert_string_equal(kedge_tokenizer_description(t), "tokenizer.json");
  assert_int_equal(strlen(kedge_tokenizer_hash(t)), 32);
  assert_int_equal(kedge_tokenizer_id(t, "<|im_end|>"), 509);
  assert_int_equal(kedge_tokenizer_id(t, "no such token"), -1);
  assert_string_equal(kedge_tokenizer_content(t, 509), "<|im_end|>");
  assert_null(kedge_tokenizer_content(t, 512));
  assert_null(kedge_tokenizer_content(t, -1));
  assert_true(kedge_tokenizer_is_special(t, 509));
  assert_false(kedge_tokenizer_is_special(t, 510));
  assert_true(each_text(check_tiny, t) > 150);
  kedge_tokenizer_free(t);
}

static void decoding(void **state) {
  (void)state;
  kedge_tokenizer *t = open_ok(test_golden("tokenizer/tiny"), NULL);
  char *text;
  size_t length, count;
  int32_t *ids, bad[] = {1, 600};
  static const char with_nul[] = "a\0b<|im_end|> \xF0\x9F\x98\x80";
  assert_int_equal(
      kedge_tokenizer_encode(t, with_nul, sizeof with_nul - 1, KEDGE_ENCODE_SPECIAL, &ids, &count), KEDGE_OK);
  assert_int_equal(kedge_tokenizer_decode(t, ids, count, false, &text, &length), KEDGE_OK);
  assert_int_equal(length, sizeof with_nul - 1);
  assert_memory_equal(text, with_nul, length + 1);
  kedge_free(text);
  assert_int_equal(kedge_tokenizer_decode(t, ids, count, true, &text, &length), KEDGE_OK);
  assert_int_equal(length, sizeof with_nul - 1 - strlen("<|im_end|>"));
  kedge_free(text);
  /* The last id is the last byte of the emoji. */
  assert_int_equal(kedge_tokenizer_decode(t, ids + count - 1, 1, false, &text, &length), KEDGE_OK);
  assert_int_equal(length, 1);
  assert_int_equal((uint8_t)text[0], 0x80);
  kedge_free(text);
  kedge_free(ids);
  assert_int_equal(kedge_tokenizer_decode(t, NULL, 0, false, &text, &length), KEDGE_OK);
  assert_int_equal(length, 0);
  assert_string_equal(text, "");
  kedge_free(text);
  assert_int_equal(kedge_tokenizer_decode(t, bad, 2, false, &text, &length), KEDGE_ERR_ARGUMENT);
  assert_non_null(strstr(kedge_message(), "600"));
  bad[1] = -1;
  assert_int_equal(kedge_tokenizer_decode(t, bad, 2, false, &text, &length), KEDGE_ERR_ARGUMENT);
  assert_int_equal(kedge_tokenizer_encode(t, "", 0, 0, &ids, &count), KEDGE_OK);
  assert_int_equal(count, 0);
  assert_non_null(ids);
  kedge_free(ids);
  kedge_tokenizer_free(t);
}

static void invalid_text(void **state) {
  (void)state;
  kedge_tokenizer *t = open_ok(test_golden("tokenizer/tiny"), NULL);
  static const char *const bad[] = {"abc\xFF",
                                    "abc\xC3",
                                    "abc\xC0\x80",
                                    "abc\xE0\x80\x80",
                                    "abc\xED\xA0\x80",
                                    "abc\xF4\x90\x80\x80",
                                    "abc\xF0\x8F\xBF\xBF",
                                    "abc\xE4\xB8 123456789",
                                    "abc\x80"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    int32_t *ids;
    size_t count;
    assert_int_equal(kedge_tokenizer_encode(t, bad[i], strlen(bad[i]), 0, &ids, &count), KEDGE_ERR_FORMAT);
    assert_null(ids);
    assert_non_null(strstr(kedge_message(), "byte 3"));
  }
  kedge_tokenizer_free(t);
}

/* Writes the tiny vocabulary as a ranks file: its ids are in the order of its merges. */
static const char *write_ranks(void) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  kedge_tokenizer *t = open_ok(test_golden("tokenizer/tiny"), NULL);
  const char *path = test_path(test_folder(), "tiny.tiktoken");
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  for (int32_t id = 0; id < 507; id++) {
    char *bytes;
    size_t length;
    assert_int_equal(kedge_tokenizer_decode(t, &id, 1, false, &bytes, &length), KEDGE_OK);
    for (size_t i = 0; i < length; i += 3) {
      uint32_t bits = 0;
      for (size_t j = 0; j < 3; j++) bits = bits << 8 | (i + j < length ? (uint8_t)bytes[i + j] : 0);
      for (size_t j = 0; j < 4; j++) fputc(i + j > length ? '=' : digits[bits >> (18 - 6 * j) & 63], file);
    }
    fprintf(file, " %d\n", id);
    kedge_free(bytes);
  }
  fclose(file);
  kedge_tokenizer_free(t);
  return path;
}

typedef struct pair {
  const kedge_tokenizer *a, *b;
  unsigned differ;
} pair;

static void compare_special(void *context, const char *text, const json_t *row) {
  (void)row;
  pair *p = context;
  for (unsigned flags = 0; flags < 2; flags++)
    p->differ += hash_ids(p->a, text, flags) != hash_ids(p->b, text, flags);
}

static unsigned differences(const kedge_tokenizer *a, const kedge_tokenizer *b) {
  pair p = {a, b, 0};
  each_text(compare_special, &p);
  return p.differ;
}

static void ranks_become_the_same_tokenizer_json(void **state) {
  (void)state;
  char *path = strdup(write_ranks());
  static const char *const kinds[] = {"qwen", "gpt2", "kimi"};
  static const uint32_t sizes[] = {507 + 26, 507 + 1, 507 + 258};
  for (int i = 0; i < 3; i++) {
    kedge_tokenizer *t = open_ok(path, kinds[i]);
    assert_int_equal(kedge_tokenizer_size(t), sizes[i]);
    char *folder = new_folder(kinds[i]), *again = new_folder("again");
    assert_int_equal(kedge_tokenizer_save(t, folder), KEDGE_OK);
    kedge_tokenizer *saved = open_ok(folder, NULL);
    assert_int_equal(kedge_tokenizer_size(saved), sizes[i]);
    assert_int_equal(kedge_tokenizer_eos(saved), kedge_tokenizer_eos(t));
    assert_int_equal(kedge_tokenizer_bos(saved), kedge_tokenizer_bos(t));
    assert_int_equal(kedge_tokenizer_pad(saved), kedge_tokenizer_pad(t));
    assert_int_equal(!kedge_tokenizer_chat_template(saved), !kedge_tokenizer_chat_template(t));
    assert_int_equal(differences(t, saved), 0);
    /* Saving what came from a tokenizer.json copies it. */
    assert_int_equal(kedge_tokenizer_save(saved, again), KEDGE_OK);
    assert_true(test_same_file(test_path(folder, "tokenizer.json"), test_path(again, "tokenizer.json")));
    assert_true(test_same_file(test_path(folder, "tokenizer_config.json"),
                               test_path(again, "tokenizer_config.json")));
    kedge_tokenizer *copied = open_ok(again, NULL);
    assert_string_equal(kedge_tokenizer_hash(copied), kedge_tokenizer_hash(saved));
    kedge_tokenizer_free(copied);
    kedge_tokenizer_free(saved);
    kedge_tokenizer_free(t);
    test_remove(again);
    free(folder);
    free(again);
  }
  free(path);
}

static void ranks_of_qwen_are_the_tiny_tokenizer(void **state) {
  (void)state;
  kedge_tokenizer *tiny = open_ok(test_golden("tokenizer/tiny"), NULL),
                  *qwen = open_ok(write_ranks(), "qwen");
  /* The same pattern, normaliser and merges; the added tokens differ, so that text without any is compared.
   */
  static const char *const texts[] = {"The ships in the bay, 36 of them.", "cafe\xCC\x81 \n\n x",
                                      "def count(ships):\n    return 1"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    assert_true(hash_ids(tiny, texts[i], 0) == hash_ids(qwen, texts[i], 0));
  assert_string_not_equal(kedge_tokenizer_hash(tiny), kedge_tokenizer_hash(qwen));
  kedge_tokenizer_free(tiny);
  kedge_tokenizer_free(qwen);
}

static void kinds_of_ranks(void **state) {
  (void)state;
  kedge_tokenizer *t;
  assert_int_equal(kedge_tokenizer_open(write_ranks(), NULL, &t), KEDGE_ERR_UNSUPPORTED);
  assert_null(t);
  assert_non_null(strstr(kedge_message(), "507 ranks"));
  assert_int_equal(kedge_tokenizer_open(write_ranks(), "llama", &t), KEDGE_ERR_ARGUMENT);
  assert_non_null(strstr(kedge_message(), "llama"));
  t = open_ok(write_ranks(), "qwen");
  /* <think> is an added token that is not special: text too may hold it. */
  const char *text = "<think><|im_end|>";
  int32_t *ids;
  size_t count;
  assert_int_equal(kedge_tokenizer_encode(t, text, strlen(text), 0, &ids, &count), KEDGE_OK);
  assert_int_equal(ids[0], 507 + 24);
  assert_true(count > 2);
  kedge_free(ids);
  assert_int_equal(kedge_tokenizer_encode(t, text, strlen(text), KEDGE_ENCODE_SPECIAL, &ids, &count),
                   KEDGE_OK);
  assert_int_equal(count, 2);
  assert_int_equal(ids[1], 509);
  kedge_free(ids);
  kedge_tokenizer_free(t);
}

/* The kimi tokenizer cuts long runs: the two halves are encoded apart. */
static void kimi_cuts_long_runs(void **state) {
  (void)state;
  kedge_tokenizer *t = open_ok(write_ranks(), "kimi");
  enum { RUN = 25000 };
  char *text = malloc(RUN + 8);
  memset(text, '=', RUN + 7);
  memcpy(text + RUN - 1, "th", 2);
  text[RUN + 7] = 0;
  /* With the cut between t and h, "th" is not one token. */
  int32_t *ids, th = kedge_tokenizer_id(t, "th");
  size_t count;
  assert_true(th >= 0);
  for (int shift = 0; shift < 2; shift++) {
    assert_int_equal(kedge_tokenizer_encode(t, text + shift, RUN + 7 - (size_t)shift, 0, &ids, &count),
                     KEDGE_OK);
    bool found = false;
    for (size_t i = 0; i < count; i++) found |= ids[i] == th;
    assert_int_equal(found, shift);
    kedge_free(ids);
  }
  free(text);
  kedge_tokenizer_free(t);
}

/* ---- Directories
 * -----------------------------------------------------------------------------------------------------------
 */

static void vocabulary_and_merges(void **state) {
  (void)state;
  json_t *tiny = load(test_golden("tokenizer/tiny/tokenizer.json")), *model = json_object_get(tiny, "model"),
         *merge;
  char *folder = new_folder("pair"), *saved = new_folder("pair_saved");
  assert_int_equal(json_dump_file(json_object_get(model, "vocab"), test_path(folder, "vocab.json"), 0), 0);
  FILE *file = fopen(test_path(folder, "merges.txt"), "w");
  fprintf(file, "#version: 0.2\n");
  size_t i;
  json_array_foreach(json_object_get(model, "merges"), i, merge) {
    fprintf(file, "%s %s\n", json_string_value(json_array_get(merge, 0)),
            json_string_value(json_array_get(merge, 1)));
  }
  fclose(file);
  test_write_text(test_path(folder, "tokenizer_config.json"), "{\"tokenizer_class\": \"Qwen2Tokenizer\"}");
  kedge_tokenizer *t = open_ok(folder, NULL), *ranks = open_ok(write_ranks(), "qwen");
  assert_string_equal(kedge_tokenizer_description(t), "vocabulary and merges qwen");
  assert_int_equal(differences(t, ranks), 0);
  kedge_tokenizer_free(t);
  test_remove(test_path(folder, "tokenizer_config.json"));
  t = open_ok(folder, NULL);
  assert_string_equal(kedge_tokenizer_description(t), "vocabulary and merges gpt2");
  assert_int_equal(kedge_tokenizer_save(t, saved), KEDGE_OK);
  kedge_tokenizer *again = open_ok(saved, NULL);
  assert_int_equal(differences(t, again), 0);
  kedge_tokenizer_free(again);
  kedge_tokenizer_free(t);
  kedge_tokenizer_free(ranks);
  json_decref(tiny);
  free(folder);
  free(saved);
}

static void companions(void **state) {
  (void)state;
  char *folder = new_folder("companions"), *saved = new_folder("companions_saved");
  size_t bytes;
  char *json = test_read(test_golden("tokenizer/tiny/tokenizer.json"), &bytes);
  test_write(test_path(folder, "tokenizer.json"), json, bytes);
  free(json);
  test_write_text(
      test_path(folder, "tokenizer_config.json"),
      "{\"bos_token\": {\"content\": \"<|im_start|>\"}, \"add_bos_token\": true, \"add_eos_token\": true,"
      "\"additional_special_tokens\": [\"<more>\"], \"added_tokens_decoder\": {\"513\": {\"content\": "
      "\"<b>\"},"
      "\"512\": {\"content\": \"<a>\", \"special\": true}, \"510\": {\"content\": \"<think>\", \"special\": "
      "true}},"
      "\"chat_template\": [{\"name\": \"x\", \"template\": \"no\"}, {\"name\": \"default\", \"template\": "
      "\"yes\"}]}");
  test_write_text(test_path(folder, "special_tokens_map.json"),
                  "{\"eos_token\": \"<|im_end|>\", \"bos_token\": \"<b>\"}");
  test_write_text(test_path(folder, "config.json"),
                  "{\"eos_token_id\": 3, \"pad_token_id\": [7, 8], \"bos_token_id\": 9}");
  kedge_tokenizer *t = open_ok(folder, NULL);
  assert_int_equal(kedge_tokenizer_size(t), 515);
  assert_int_equal(kedge_tokenizer_id(t, "<a>"), 512);
  assert_int_equal(kedge_tokenizer_id(t, "<more>"), 514);
  assert_int_equal(kedge_tokenizer_bos(t), 508);
  assert_int_equal(kedge_tokenizer_eos(t), 509);
  assert_int_equal(kedge_tokenizer_pad(t), 7);
  assert_true(kedge_tokenizer_adds_bos(t));
  assert_true(kedge_tokenizer_is_special(t, 510));
  assert_string_equal(kedge_tokenizer_chat_template(t), "yes");
  kedge_tokenizer_free(t);
  test_write_text(test_path(folder, "chat_template.jinja"), "file");
  t = open_ok(test_path(folder, "tokenizer.json"), NULL);
  assert_string_equal(kedge_tokenizer_chat_template(t), "file");
  assert_int_equal(kedge_tokenizer_save(t, saved), KEDGE_OK);
  static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                      "chat_template.jinja"};
  for (int i = 0; i < 4; i++)
    assert_true(test_same_file(test_path(folder, names[i]), test_path(saved, names[i])));
  kedge_tokenizer_free(t);
  /* An id that the order of the tokens does not give is an error, not a shift. */
  test_write_text(test_path(folder, "tokenizer_config.json"),
                  "{\"added_tokens_decoder\": {\"600\": {\"content\": \"<far>\"}}}");
  assert_int_equal(kedge_tokenizer_open(folder, NULL, &t), KEDGE_ERR_FORMAT);
  assert_non_null(strstr(kedge_message(), "600"));
  assert_int_equal(kedge_tokenizer_open(test_folder(), NULL, &t),
                   KEDGE_ERR_UNSUPPORTED); /* the tiny ranks file */
  test_remove(test_path(test_folder(), "tiny.tiktoken"));
  assert_int_equal(kedge_tokenizer_open(test_folder(), NULL, &t), KEDGE_ERR_IO);
  free(folder);
  free(saved);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(stages_give_the_reference_ids),
      cmocka_unit_test(tiny_tokenizer),
      cmocka_unit_test(decoding),
      cmocka_unit_test(invalid_text),
      cmocka_unit_test(ranks_become_the_same_tokenizer_json),
      cmocka_unit_test(ranks_of_qwen_are_the_tiny_tokenizer),
      cmocka_unit_test(kinds_of_ranks),
      cmocka_unit_test(kimi_cuts_long_runs),
      cmocka_unit_test(vocabulary_and_merges),
      cmocka_unit_test(companions),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
