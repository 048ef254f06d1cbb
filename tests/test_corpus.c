/* SPDX-License-Identifier: Apache-2.0
 *
 * The generated corpora. Siblings: test_data.c, test_data_text.c. ctest: quick
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "models/text/corpus.h"
#include "models/text/jsonl.h"

#define assert_ok(expr)                                                                                      \
  do {                                                                                                       \
    kedge_status status_ = (expr);                                                                           \
    if (status_ != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status_), kedge_message());                \
  } while (0)
#define assert_message(text)                                                                                 \
  do {                                                                                                       \
    if (!strstr(kedge_message(), text)) fail_msg("message \"%s\" lacks \"%s\"", kedge_message(), text);      \
  } while (0)

static char *generate(const char *domain, uint64_t seed, uint64_t count, size_t *length) {
  char *text = NULL;
  FILE *file = open_memstream(&text, length);
  assert_non_null(file);
  assert_ok(kedge_corpus_generate(domain, seed, count, file));
  assert_int_equal(fclose(file), 0);
  return text;
}

static int compare_text(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

static void generates_corpora(void **state) {
  (void)state;
  enum { ROWS = 1000 };
  const char *domain, *about;
  uint32_t domains = 0;
  for (; (domain = kedge_corpus_domain(domains, &about)); domains++) {
    size_t length, shorter, differing;
    char *text = generate(domain, 1, ROWS, &length), *half = generate(domain, 1, ROWS / 2, &shorter);
    char *other = generate(domain, 2, ROWS, &differing);
    assert_true(about[0] && shorter < length && !memcmp(text, half, shorter));
    assert_true(differing != length || memcmp(text, other, length));
    for (size_t i = 0; i < length; i++) assert_true(text[i] == '\n' || (text[i] >= 32 && text[i] < 127));
    kedge_jsonl *reader;
    assert_ok(kedge_jsonl_open_memory(domain, text, length, false, NULL, NULL, &reader));
    char *rows[ROWS];
    for (int i = 0; i < ROWS; i++) {
      json_t *record;
      uint64_t line;
      assert_ok(kedge_jsonl_next(reader, &record, &line));
      assert_int_equal(json_object_size(record), 2);
      const char *prompt = json_string_value(json_object_get(record, "prompt"));
      const char *completion = json_string_value(json_object_get(record, "completion"));
      assert_true(prompt && completion && strlen(prompt) > 10 && completion[0] && strlen(prompt) < 400 &&
                  strlen(completion) < 300);
      rows[i] = strdup(prompt);
      json_decref(record);
    }
    qsort(rows, ROWS, sizeof *rows, compare_text);
    int distinct = 0;
    for (int i = 0; i < ROWS; i++) distinct += !i || strcmp(rows[i - 1], rows[i]);
    assert_true(distinct > ROWS / 2);
    for (int i = 0; i < ROWS; i++) free(rows[i]);
    kedge_jsonl_close(reader);
    free(text);
    free(half);
    free(other);
  }
  assert_true(domains >= 3);
  assert_int_equal(kedge_corpus_generate("poems", 1, 1, stderr), KEDGE_ERR_ARGUMENT);
  assert_message("poems");
  FILE *full = fopen("/dev/full", "w");
  if (full) {
    assert_int_equal(kedge_corpus_generate("logic", 1, 1000, full), KEDGE_ERR_IO);
    fclose(full);
  }
}

/* The arithmetic that the corpus teaches is right: every "x op y = z" of a completion holds. */
static void corpus_sums_are_right(void **state) {
  (void)state;
  size_t length;
  char *text = generate("arithmetic", 5, 2000, &length);
  int checked = 0;
  for (char *at = text; (at = strstr(at, " = ")); at += 3) {
    char *left = at;
    while (left > text && strchr("0123456789+-*/ ", left[-1])) left--;
    int x, y, z;
    char op;
    assert_int_equal(sscanf(left, "%d %c %d = %d", &x, &op, &y, &z), 4);
    assert_true(op != '/' || x % y == 0);
    assert_int_equal(z, op == '+' ? x + y : op == '-' ? x - y : op == '*' ? x * y : x / y);
    assert_true(z >= 0);
    checked++;
  }
  assert_int_equal(checked, 4000);
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(generates_corpora),
      cmocka_unit_test(corpus_sums_are_right),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
