/* SPDX-License-Identifier: Apache-2.0
 * Full-size tokenizers from the shared data folder against the Python libraries: the golden vectors, the
 * texts of tests/golden/tokenizer/synthetic.jsonl, and 2,072 rows of real text. Without the folder everything
 * is skipped. ctest: quick */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "models/text/tokenizer.h"
#include "tests/support/files.h"
#include "tests/support/real_rows.h"

/* The full-size tokenizers, opened once. `bare` is the ranks file alone, `qwen` the model's tokenizer from
 * the same file, `saved` the tokenizer.json that it was saved as. */
static struct { kedge_tokenizer *qwen_bare, *gpt2_bare, *qwen, *neox, *saved, *saved_gpt2; } all;

static kedge_tokenizer *open_shared(const char *name, const char *kind) {
  char relative[128];
  kedge_tokenizer *t;
  snprintf(relative, sizeof relative, "data/tokenizers/%s", name);
  const char *path = test_shared(relative);
  if (!path) return NULL;
  if (kedge_tokenizer_open(path, kind, &t) != KEDGE_OK) fail_msg("%s: %s", path, kedge_message());
  return t;
}

static kedge_tokenizer *save_and_open(const kedge_tokenizer *t, const char *name) {
  kedge_tokenizer *saved;
  char *folder = strdup(test_path(test_folder(), name));
  test_make_folder(folder);
  if (kedge_tokenizer_save(t, folder) != KEDGE_OK || kedge_tokenizer_open(folder, NULL, &saved) != KEDGE_OK)
    fail_msg("%s", kedge_message());
  free(folder);
  return saved;
}

static int open_all(void **state) {
  (void)state;
  all.qwen_bare = open_shared("qwen.tiktoken", NULL);
  all.gpt2_bare = open_shared("gpt2.tiktoken", NULL);
  all.qwen = open_shared("qwen.tiktoken", "qwen");
  all.neox = open_shared("gpt_neox_20B_tokenizer.json", NULL);
  if (all.qwen_bare) all.saved = save_and_open(all.qwen_bare, "qwen");
  if (all.gpt2_bare) all.saved_gpt2 = save_and_open(all.gpt2_bare, "gpt2");
  return 0;
}

static int close_all(void **state) {
  (void)state;
  kedge_tokenizer *list[] = {all.qwen_bare, all.gpt2_bare, all.qwen, all.neox, all.saved, all.saved_gpt2};
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) kedge_tokenizer_free(list[i]);
  return 0;
}

static uint64_t hash_of(const int32_t *ids, size_t count) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (size_t i = 0; i < count; i++)
    for (int shift = 0; shift < 32; shift += 8)
      hash = (hash ^ ((uint32_t)ids[i] >> shift & 0xFF)) * 0x100000001B3u;
  return hash;
}

/* Compares the hash of the text's ids with the 16 digits at `want`; where `round_trip`, the ids must decode
 * to the text. */
static void check(const kedge_tokenizer *t, const char *what, const char *text, size_t length, unsigned flags,
                  const char *want, bool round_trip) {
  int32_t *ids;
  size_t count, decoded_length;
  char hash[24], *decoded;
  if (kedge_tokenizer_encode(t, text, length, flags, &ids, &count) != KEDGE_OK)
    fail_msg("%s '%s': %s", what, text, kedge_message());
  snprintf(hash, sizeof hash, "%016llx", (unsigned long long)hash_of(ids, count));
  if (strncmp(hash, want, 16)) fail_msg("%s: '%s' has other ids than the reference", what, text);
  assert_int_equal(kedge_tokenizer_decode(t, ids, count, false, &decoded, &decoded_length), KEDGE_OK);
  if (round_trip && (decoded_length != length || memcmp(decoded, text, length)))
    fail_msg("%s: '%s' decodes to '%s'", what, text, decoded);
  kedge_free(decoded);
  kedge_free(ids);
}

static void sizes(void **state) {
  (void)state;
  if (!all.qwen) skip();
  assert_int_equal(kedge_tokenizer_size(all.qwen), 151669);
  assert_int_equal(kedge_tokenizer_size(all.saved), 151669);
  assert_int_equal(kedge_tokenizer_size(all.gpt2_bare), 50257);
  assert_int_equal(kedge_tokenizer_size(all.neox), 50277);
  assert_int_equal(kedge_tokenizer_id(all.qwen, "<|im_start|>"), 151644);
  assert_int_equal(kedge_tokenizer_id(all.qwen, "</think>"), 151668);
  assert_int_equal(kedge_tokenizer_id(all.saved, "</think>"), 151668);
  assert_string_equal(kedge_tokenizer_description(all.qwen_bare), "tiktoken qwen");
  assert_int_equal(kedge_tokenizer_eos(all.saved), 151643);
  assert_non_null(kedge_tokenizer_chat_template(all.saved));
  assert_int_equal(kedge_tokenizer_eos(all.saved_gpt2), 50256);
}

/* Published ids of ordinary text by the bare encodings. */
static void golden_vectors(void **state) {
  (void)state;
  const char *path = test_shared("golden/tokenizer_vectors.json");
  if (!path || !all.qwen_bare) skip();
  json_t *root = json_load_file(path, 0, NULL), *cases = json_object_get(root, "cases"), *item, *id;
  assert_int_equal(json_array_size(cases), 70);
  size_t i, j;
  json_array_foreach(cases, i, item) {
    const kedge_tokenizer *const list[] = {all.qwen_bare, all.gpt2_bare};
    static const char *const names[] = {"qwen", "gpt2"};
    const json_t *text = json_object_get(item, "text");
    for (int n = 0; n < 2; n++) {
      int32_t want[8192];
      char hash[24];
      const json_t *ids = json_object_get(item, names[n]);
      assert_true(json_array_size(ids) <= 8192);
      json_array_foreach(ids, j, id) {
        want[j] = (int32_t)json_integer_value(id);
      }
      snprintf(hash, sizeof hash, "%016llx", (unsigned long long)hash_of(want, json_array_size(ids)));
      check(list[n], names[n], json_string_value(text), json_string_length(text), 0, hash, true);
    }
  }
  json_decref(root);
}

static void texts_of_our_own(void **state) {
  (void)state;
  if (!all.qwen) skip();
  size_t bytes;
  char *file = test_read(test_golden("tokenizer/synthetic.jsonl"), &bytes), *line = file;
  unsigned rows = 0;
  const struct {
    const char *column;
    const kedge_tokenizer *tokenizer;
    unsigned flags;
    bool round_trip;
  } list[] = {{"qwen_bare_plain", all.qwen_bare, 0, true},
              {"qwen_bare", all.qwen_bare, KEDGE_ENCODE_SPECIAL, true},
              {"gpt2_bare_plain", all.gpt2_bare, 0, true},
              {"gpt2_bare", all.gpt2_bare, KEDGE_ENCODE_SPECIAL, true},
              {"gpt2_bare_plain", all.saved_gpt2, 0, true},
              {"gpt2_bare", all.saved_gpt2, KEDGE_ENCODE_SPECIAL, true},
              {"qwen", all.qwen, KEDGE_ENCODE_SPECIAL, false},
              {"qwen_plain", all.qwen, 0, false},
              {"qwen", all.saved, KEDGE_ENCODE_SPECIAL, false},
              {"qwen_plain", all.saved, 0, false},
              {"neox", all.neox, KEDGE_ENCODE_SPECIAL, false},
              {"neox_plain", all.neox, 0, false}};
  for (char *end; (end = strchr(line, '\n')); line = end + 1, rows++) {
    json_t *row = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, NULL);
    const json_t *text = json_object_get(row, "text");
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
      check(list[i].tokenizer, list[i].column, json_string_value(text), json_string_length(text),
            list[i].flags, json_string_value(json_object_get(row, list[i].column)), list[i].round_trip);
    json_decref(row);
  }
  free(file);
  assert_int_equal(rows, 180);
}

/* ---- Real text: the rows that tests/golden/make_tokenizer.py chooses
 * ------------------------------------------------------- */

static void check_row(const char *text, size_t length, void *context) {
  char **golden = context;
  check(all.qwen_bare, "qwen ranks", text, length, 0, *golden, true);
  check(all.gpt2_bare, "gpt2 ranks", text, length, 0, *golden + 17, true);
  check(all.qwen, "qwen", text, length, KEDGE_ENCODE_SPECIAL, *golden + 34, false);
  check(all.saved, "qwen saved", text, length, KEDGE_ENCODE_SPECIAL, *golden + 34, false);
  check(all.neox, "neox", text, length, KEDGE_ENCODE_SPECIAL, *golden + 51, false);
  *golden = strchr(*golden, '\n') + 1;
}

static void real_rows(void **state) {
  (void)state;
  if (!all.qwen) skip();
  size_t bytes;
  char *file = test_read(test_golden("tokenizer/real.tsv"), &bytes), *golden = strchr(file, '\n') + 1;
  size_t rows = test_real_rows(check_row, &golden);
  if (!rows) {
    free(file);
    skip();
  }
  assert_int_equal(rows, 2072);
  assert_int_equal(*golden, 0);
  free(file);
}

/* NFC is the model's, not the bare encoding's; the saved tokenizer.json is the model's. */
static void normalisation(void **state) {
  (void)state;
  if (!all.qwen) skip();
  static const char text[] = "cafe\xCC\x81", composed[] = "caf\xC3\xA9";
  const kedge_tokenizer *const list[] = {all.qwen_bare, all.qwen, all.saved};
  for (int i = 0; i < 3; i++) {
    int32_t *a, *b;
    size_t m, n;
    assert_int_equal(kedge_tokenizer_encode(list[i], text, strlen(text), 0, &a, &m), KEDGE_OK);
    assert_int_equal(kedge_tokenizer_encode(list[i], composed, strlen(composed), 0, &b, &n), KEDGE_OK);
    bool same = m == n && !memcmp(a, b, m * sizeof *a);
    assert_int_equal(same, i > 0);
    kedge_free(a);
    kedge_free(b);
  }
}

/* The vocabulary and merges of GPT-2 under their old names are the same encoding. */
static void gpt2_pair(void **state) {
  (void)state;
  const char *vocab = test_shared("data/tokenizers/gpt2_encoder.json"),
             *merges = test_shared("data/tokenizers/gpt2_vocab.bpe");
  if (!vocab || !merges || !all.gpt2_bare) skip();
  char *folder = strdup(test_path(test_folder(), "pair"));
  test_make_folder(folder);
  size_t bytes;
  char *data = test_read(vocab, &bytes);
  test_write(test_path(folder, "encoder.json"), data, bytes);
  free(data);
  data = test_read(merges, &bytes);
  test_write(test_path(folder, "vocab.bpe"), data, bytes);
  kedge_tokenizer *t;
  if (kedge_tokenizer_open(folder, NULL, &t) != KEDGE_OK) fail_msg("%s", kedge_message());
  int32_t *a, *b;
  size_t m, n;
  size_t length = bytes < 60000 ? bytes : 60000;
  while ((data[length] & 0xC0) == 0x80) length--;
  assert_int_equal(kedge_tokenizer_encode(t, data, length, 0, &a, &m), KEDGE_OK);
  assert_int_equal(kedge_tokenizer_encode(all.gpt2_bare, data, length, 0, &b, &n), KEDGE_OK);
  assert_int_equal(m, n);
  assert_memory_equal(a, b, m * sizeof *a);
  kedge_free(a);
  kedge_free(b);
  free(data);
  free(folder);
  kedge_tokenizer_free(t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sizes),     cmocka_unit_test(golden_vectors), cmocka_unit_test(texts_of_our_own),
      cmocka_unit_test(real_rows), cmocka_unit_test(normalisation),  cmocka_unit_test(gpt2_pair),
  };
  return cmocka_run_group_tests(tests, open_all, close_all);
}
