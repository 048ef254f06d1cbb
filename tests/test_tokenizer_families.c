/* SPDX-License-Identifier: Apache-2.0
 * The pipelines of the model families (tests/golden/make_tokenizer_families.py): small vocabularies against
 * the Python libraries on texts of our own and on 2,072 rows of real text. Siblings: test_tokenizer_codes.c
 * for code points, test_chats.c for conversations. ctest: quick */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <jansson.h>

#include "models/text/unicode.h"
#include "tests/support/families.h"
#include "tests/support/files.h"
#include "tests/support/real_rows.h"

static kedge_tokenizer *families[TEST_FAMILIES];

static int open_all(void **state) {
  (void)state;
  for (int i = 0; i < TEST_FAMILIES; i++) families[i] = test_family_open(i);
  return 0;
}

static int close_all(void **state) {
  (void)state;
  for (int i = 0; i < TEST_FAMILIES; i++) kedge_tokenizer_free(families[i]);
  return 0;
}

/* The ids of a text, BOS in front where the family has it; they must decode to the text where `round_trip`.
 */
static int32_t *encode(int family, const char *text, size_t length, bool round_trip, size_t *count) {
  const kedge_tokenizer *t = families[family];
  int32_t *ids;
  if (kedge_tokenizer_encode(t, text, length, KEDGE_ENCODE_SPECIAL | KEDGE_ENCODE_TEMPLATE, &ids, count) !=
      KEDGE_OK)
    fail_msg("%s '%s': %s", test_family_names[family], text, kedge_message());
  if (!round_trip) return ids;
  size_t bos = kedge_tokenizer_adds_bos(t), decoded_length;
  char *decoded;
  assert_int_equal(kedge_tokenizer_decode(t, ids + bos, *count - bos, false, &decoded, &decoded_length),
                   KEDGE_OK);
  if (decoded_length != length || memcmp(decoded, text, length))
    fail_msg("%s: '%s' decodes to '%s'", test_family_names[family], text, decoded);
  kedge_free(decoded);
  return ids;
}

static void check_ids(int family, const char *text, size_t length, const json_t *want, bool round_trip) {
  size_t count;
  int32_t *ids = encode(family, text, length, round_trip, &count);
  bool same = count == json_array_size(want);
  for (size_t i = 0; same && i < count; i++) same = ids[i] == json_integer_value(json_array_get(want, i));
  if (!same) {
    for (size_t i = 0; i < count; i++) print_error("%d ", ids[i]);
    char *dump = json_dumps(want, 0);
    fail_msg("%s '%s': want %s", test_family_names[family], text, dump);
  }
  kedge_free(ids);
}

/* Crosses the cuts of kimi's encoder; the script builds the same. */
static char *long_text(size_t *length) {
  enum { ROOM = 500000 };
  char *text = malloc(ROOM), *at = text;
  memset(at, 'a', 60000);
  memset(at += 60000, ' ', 30000);
  at += 30000;
  for (int i = 0; i < 26000; i++, at += 3) memcpy(at, "\xE6\xBC\xA2", 3);
  *at++ = '\n';
  for (int i = 0; i < 60000; i++, at += 5) memcpy(at, "tide ", 5);
  memset(at, 'x', 10);
  *length = (size_t)(at + 10 - text);
  assert_true(*length < ROOM);
  text[*length] = 0;
  return text;
}

static void texts(void **state) {
  (void)state;
  size_t bytes, length;
  char *file = test_read(test_golden("tokenizer/families/texts.jsonl"), &bytes), *line = file;
  unsigned rows = 0;
  for (char *end; (end = strchr(line, '\n')); line = end + 1, rows++) {
    json_t *row = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, NULL);
    const json_t *text = json_object_get(row, "text");
    for (int i = 0; i < TEST_FAMILIES; i++) {
      const json_t *want = json_object_get(row, test_family_names[i]);
      /* NFC is not undone, and the first space of a text and U+2581 have no spelling of their own. */
      bool exact = i != TEST_LLAMA && i != TEST_OLMOE;
      if (json_is_string(text)) {
        check_ids(i, json_string_value(text), json_string_length(text), want, exact);
        continue;
      }
      char *long_one = long_text(&length);
      size_t count;
      int32_t *ids = encode(i, long_one, length, exact, &count);
      char hash[24];
      snprintf(hash, sizeof hash, "%016llx", (unsigned long long)test_hash_ids(TEST_HASH_START, ids, count));
      assert_string_equal(hash, json_string_value(want));
      kedge_free(ids);
      free(long_one);
    }
    json_decref(row);
  }
  free(file);
  assert_true(rows > 60);
}

static void check_row(const char *text, size_t length, void *context) {
  char **golden = context, hash[24];
  for (int i = 0; i < TEST_FAMILIES; i++) {
    size_t count;
    /* NFC is not undone. */
    int32_t *ids = encode(i, text, length, i != TEST_OLMOE, &count);
    snprintf(hash, sizeof hash, "%08llx",
             (unsigned long long)(test_hash_ids(TEST_HASH_START, ids, count) >> 32));
    if (strncmp(*golden, hash, 8))
      fail_msg("%s: '%s' has other ids than the reference", test_family_names[i], text);
    *golden += 9;
    kedge_free(ids);
  }
}

static void real_rows(void **state) {
  (void)state;
  size_t bytes;
  char *file = test_read(test_golden("tokenizer/families/real.tsv"), &bytes),
       *golden = strchr(file, '\n') + 1;
  size_t rows = test_real_rows(check_row, &golden);
  if (!rows) {
    free(file);
    skip();
  }
  assert_int_equal(rows, 2072);
  assert_int_equal(*golden, 0);
  free(file);
}

/* ---- Normal forms */

static void normalized(kedge__form form, const char *text, const char *want) {
  kedge__bytes out = {0};
  assert_int_equal(kedge__normalize(form, text, strlen(text), &out), KEDGE_OK);
  assert_string_equal(out.data, want);
  kedge__bytes_free(&out);
}

/* A million marks in the worst order take linear time (where it was quadratic, hours), and a long run is
 * ordered like a short one. */
static void many_marks(void **state) {
  (void)state;
  enum { MARKS = 300000 };
  /* Classes 240, 230, 220, 202 and 1 of the marks U+0345, U+0301, U+0323, U+0327 and U+0334. */
  static const char marks[][3] = {"\xCD\x85", "\xCC\x81", "\xCC\xA3", "\xCC\xA7", "\xCC\xB4"};
  char *text = malloc(MARKS * 10 + 2), *want = malloc(MARKS * 10 + 2);
  text[0] = want[0] = 'x';
  for (int m = 0; m < 5; m++)
    for (int i = 0; i < MARKS; i++) {
      memcpy(text + 1 + 2 * (m * MARKS + i), marks[m], 2);
      memcpy(want + 1 + 2 * (m * MARKS + i), marks[4 - m], 2);
    }
  text[MARKS * 10 + 1] = want[MARKS * 10 + 1] = 0;
  normalized(KEDGE__NFC, text, want);
  normalized(KEDGE__NFKD, text, want);
  free(text);
  free(want);
  normalized(KEDGE__NFC, "a\xCC\xA7\xCC\x81", "\xC3\xA1\xCC\xA7");
  /* A syllable, then U+11A7, which composes with nothing and must stay. */
  normalized(KEDGE__NFC, "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA7", "\xEA\xB0\x80\xE1\x86\xA7");
  normalized(KEDGE__NFC, "\xE1\x86\xA7\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xE1\x86\xA7\xEA\xB0\x81");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(texts),
      cmocka_unit_test(real_rows),
      cmocka_unit_test(many_marks),
  };
  return cmocka_run_group_tests(tests, open_all, close_all);
}
