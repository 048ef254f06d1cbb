/* SPDX-License-Identifier: Apache-2.0
 *
 * The generated corpora: rows depend on domain, split, seed and number alone, test questions are in no
 * training split, and what is taught is right. Siblings: test_corpus_command.c, test_program.c. ctest: quick
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
#include "models/text/program.h"
#include "models/text/samples.h"
#include "tests/support/files.h"

#define assert_ok(expr)                                                                                      \
  do {                                                                                                       \
    kedge_status status_ = (expr);                                                                           \
    if (status_ != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status_), kedge_message());                \
  } while (0)

enum { ROWS = 1500 };

static char *generate(uint32_t domain, kedge_corpus_split split, uint64_t seed, uint64_t count,
                      size_t *length) {
  char *text = NULL;
  FILE *file = open_memstream(&text, length);
  assert_non_null(file);
  assert_ok(kedge_corpus_generate(domain, split, seed, count, file));
  assert_int_equal(fclose(file), 0);
  return text;
}

/* Rows of a split, each a JSON object; freed by drop(). */
static void read_rows(uint32_t domain, kedge_corpus_split split, uint64_t seed, json_t *rows[ROWS]) {
  size_t length;
  char *text = generate(domain, split, seed, ROWS, &length);
  kedge_jsonl *reader;
  assert_ok(kedge_jsonl_open_memory("rows", text, length, false, NULL, NULL, &reader));
  for (int i = 0; i < ROWS; i++) {
    uint64_t line;
    assert_ok(kedge_jsonl_next(reader, &rows[i], &line));
    assert_non_null(rows[i]);
  }
  kedge_jsonl_close(reader);
  free(text);
}

static void drop(json_t *rows[ROWS]) {
  for (int i = 0; i < ROWS; i++) json_decref(rows[i]);
}

static const char *field(const json_t *row, const char *name) {
  const char *text = json_string_value(json_object_get(row, name));
  assert_non_null(text);
  return text;
}

static void rows_depend_on_their_place_alone(void **state) {
  (void)state;
  for (uint32_t d = 0; d < KEDGE_CORPUS_DOMAINS; d++) {
    for (int s = 0; s < KEDGE_CORPUS_SPLITS; s++) {
      kedge_corpus_split split = (kedge_corpus_split)s;
      size_t length, shorter, differing;
      char *text = generate(d, split, 1, 200, &length), *half = generate(d, split, 1, 100, &shorter);
      char *other = generate(d, split, 2, 200, &differing);
      assert_true(shorter < length && !memcmp(text, half, shorter));
      assert_true(differing != length || memcmp(text, other, length));
      for (size_t i = 0; i < length; i++) assert_true(text[i] == '\n' || (text[i] >= 32 && text[i] < 127));
      free(text), free(half), free(other);
    }
  }
}

/* What follows the last mark of an answer. */
static const char *extracted(const char *completion, bool letters) {
  const char *mark = letters ? "Answer: " : "#### ", *found = NULL;
  for (const char *at = completion; (at = strstr(at, mark)); at++) found = at + strlen(mark);
  assert_non_null(found);
  return found;
}

static void completions_end_in_their_answers(void **state) {
  (void)state;
  for (uint32_t d = 0; d < KEDGE_CORPUS_DOMAINS; d++) {
    for (int s = 0; s < KEDGE_CORPUS_SPLITS; s++) {
      json_t *rows[ROWS];
      read_rows(d, (kedge_corpus_split)s, 3, rows);
      for (int i = 0; i < ROWS; i++) {
        const char *prompt = field(rows[i], "prompt"), *completion = field(rows[i], "completion");
        const char *answer = field(rows[i], "answer");
        const json_t *choices = json_object_get(rows[i], "choices");
        assert_true(strlen(prompt) > 10 && strlen(prompt) < 500 && strlen(completion) < 200);
        assert_string_equal(extracted(completion, choices), answer);
        assert_string_equal(field(rows[i], "domain"), kedge_corpus_domain_at(d)->name);
        assert_string_equal(field(rows[i], "split"), kedge_corpus_split_name((kedge_corpus_split)s));
        if (!choices) continue;
        size_t count = json_array_size(choices);
        assert_int_equal(count, s < KEDGE_CORPUS_SHIFT_TRAIN ? 4 : 5);
        assert_true(!answer[1] && answer[0] >= 'A' && answer[0] < 'A' + (int)count);
        for (size_t k = 0; k < count; k++)
          for (size_t o = 0; o < k; o++)
            assert_false(json_equal(json_array_get(choices, k), json_array_get(choices, o)));
      }
      drop(rows);
    }
  }
}

static int compare_text(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* By prompt: no test row is a training row of either form, with the same seed or another, and few are twice
 * in one split. */
static void tests_share_no_row_with_training(void **state) {
  (void)state;
  enum { SETS = 4 };
  static const struct {
    kedge_corpus_split split;
    uint64_t seed;
  } sets[SETS] = {{KEDGE_CORPUS_TRAIN, 1},
                  {KEDGE_CORPUS_TRAIN, 7},
                  {KEDGE_CORPUS_SHIFT_TRAIN, 1},
                  {KEDGE_CORPUS_SHIFT_TRAIN, 7}};
  for (uint32_t d = 0; d < KEDGE_CORPUS_DOMAINS; d++) {
    static json_t *rows[SETS][ROWS];
    const char *prompts[SETS * ROWS];
    for (int k = 0; k < SETS; k++) {
      read_rows(d, sets[k].split, sets[k].seed, rows[k]);
      for (int i = 0; i < ROWS; i++) prompts[k * ROWS + i] = field(rows[k][i], "prompt");
    }
    qsort(prompts, SETS * ROWS, sizeof *prompts, compare_text);
    for (int s = KEDGE_CORPUS_TEST; s <= KEDGE_CORPUS_SHIFT_TEST; s += 2) {
      json_t *test[ROWS];
      const char *own[ROWS];
      int distinct = 1;
      read_rows(d, (kedge_corpus_split)s, 1, test);
      for (int i = 0; i < ROWS; i++) {
        own[i] = field(test[i], "prompt");
        if (bsearch(&own[i], prompts, SETS * ROWS, sizeof *prompts, compare_text))
          fail_msg("%s: \"%s\" is in a training split", kedge_corpus_domain_at(d)->name, own[i]);
      }
      qsort(own, ROWS, sizeof *own, compare_text);
      for (int i = 1; i < ROWS; i++) distinct += strcmp(own[i - 1], own[i]) != 0;
      if (distinct < 800)
        fail_msg("%s: %d different test questions", kedge_corpus_domain_at(d)->name, distinct);
      drop(test);
    }
    for (int k = 0; k < SETS; k++) drop(rows[k]);
  }
}

/* In the shifted form of facts not even the chain of facts is in both, in whatever words: no two rows of
 * training and test have the same person, and the same facts in a row. */
static void chains_of_facts_are_not_in_both(void **state) {
  (void)state;
  json_t *train[ROWS], *test[ROWS];
  const char *chains[ROWS];
  uint32_t facts;
  assert_ok(kedge_corpus_domain_find("facts", &facts));
  read_rows(facts, KEDGE_CORPUS_SHIFT_TRAIN, 1, train);
  read_rows(facts, KEDGE_CORPUS_SHIFT_TEST, 1, test);
  for (int i = 0; i < ROWS; i++) chains[i] = field(train[i], "completion");
  qsort(chains, ROWS, sizeof *chains, compare_text);
  for (int i = 0; i < ROWS; i++) {
    const char *chain = field(test[i], "completion");
    assert_null(bsearch(&chain, chains, ROWS, sizeof *chains, compare_text));
  }
  drop(train);
  drop(test);
}

static void chance_is_what_the_table_says(void **state) {
  (void)state;
  for (uint32_t d = 0; d < KEDGE_CORPUS_DOMAINS; d++) {
    for (int shifted = 0; shifted < 2; shifted++) {
      const kedge_corpus_domain *domain = kedge_corpus_domain_at(d);
      double chance = shifted ? domain->shifted_chance : domain->chance;
      json_t *rows[ROWS];
      const char *answers[ROWS];
      int most = 0, run = 0;
      read_rows(d, shifted ? KEDGE_CORPUS_SHIFT_TEST : KEDGE_CORPUS_TEST, 1, rows);
      for (int i = 0; i < ROWS; i++) answers[i] = field(rows[i], "answer");
      qsort(answers, ROWS, sizeof *answers, compare_text);
      for (int i = 0; i < ROWS; i++) {
        run = i && !strcmp(answers[i], answers[i - 1]) ? run + 1 : 1;
        if (run > most) most = run;
      }
      if (!(most <= (chance * 1.2 + 0.01) * ROWS) || !(most >= (chance * 0.8 - 0.01) * ROWS))
        fail_msg("%s: the most common answer has a share of %.3f, the table says %.3f",
                 shifted ? domain->shifted : domain->name, (double)most / ROWS, chance);
      drop(rows);
    }
  }
}

/* Every "x op y = z" of a completion holds, and there are as many as there should be. */
static void sums_are_right(void **state) {
  (void)state;
  uint32_t arithmetic;
  assert_ok(kedge_corpus_domain_find("arithmetic", &arithmetic));
  for (int shifted = 0; shifted < 2; shifted++) {
    size_t length;
    char *text =
        generate(arithmetic, shifted ? KEDGE_CORPUS_SHIFT_TRAIN : KEDGE_CORPUS_TRAIN, 5, 2000, &length);
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
    /* Two a row; of the shifted rows 30 % of three kinds in four have a third. */
    assert_true(shifted ? checked > 4350 && checked < 4550 : checked == 4000);
    free(text);
  }
}

static void programs_print_their_answers(void **state) {
  (void)state;
  uint32_t programs;
  assert_ok(kedge_corpus_domain_find("programs", &programs));
  for (int s = 0; s < KEDGE_CORPUS_SPLITS; s++) {
    json_t *rows[ROWS];
    read_rows(programs, (kedge_corpus_split)s, 2, rows);
    for (int i = 0; i < ROWS; i++) {
      kedge_program_result result;
      const char *source = strchr(field(rows[i], "prompt"), '\n') + 1;
      assert_ok(kedge_program_run(source, strlen(source), 1000, NULL, NULL, &result));
      assert_int_equal(result.end, KEDGE_PROGRAM_ENDED);
      result.output[result.length - 1] = 0;
      assert_string_equal(result.output, field(rows[i], "answer"));
    }
    drop(rows);
  }
}

/* Lines and numbers are solved anew from what the prompt says. */
static const char *solve(const char *prompt, const json_t *choices, char found[16]) {
  char a[2][16], of[16];
  const char *line = strstr(prompt, "In line:"), *after = strstr(prompt, ". Right after "),
             *before = strstr(prompt, ". Right before ");
  if (strstr(prompt, "The largest is") || strstr(prompt, "The smallest is")) {
    const bool most = strstr(prompt, "largest") != NULL;
    int best = 0;
    for (size_t k = 0; k < json_array_size(choices); k++) {
      const int n = atoi(json_string_value(json_array_get(choices, k)));
      if (!k || (most ? n > best : n < best)) best = n;
    }
    snprintf(found, 16, "%d", best);
    return found;
  }
  if (!line) return NULL;
  assert_int_equal(sscanf(after ? after + 14 : before + 15, "%15s", of), 1);
  for (const char *at = line + 8; sscanf(at, "%15s %15[^. ]", a[0], a[1]) == 2; at = strchr(at + 1, ' ')) {
    if (strcmp(a[after ? 0 : 1], of)) continue;
    strcpy(found, a[after ? 1 : 0]);
    return found;
  }
  fail_msg("no place in \"%s\"", prompt);
  return NULL;
}

static void the_right_choice_is_right(void **state) {
  (void)state;
  json_t *rows[ROWS];
  uint32_t logic;
  int checked = 0;
  assert_ok(kedge_corpus_domain_find("logic", &logic));
  read_rows(logic, KEDGE_CORPUS_TEST, 4, rows);
  for (int i = 0; i < ROWS; i++) {
    char found[16];
    const json_t *choices = json_object_get(rows[i], "choices");
    if (!solve(field(rows[i], "prompt"), choices, found)) continue;
    assert_string_equal(
        json_string_value(json_array_get(choices, (size_t)(field(rows[i], "answer")[0] - 'A'))), found);
    checked++;
  }
  assert_true(checked > ROWS / 4);
  drop(rows);
}

static void mixes_all_domains(void **state) {
  (void)state;
  uint64_t counts[KEDGE_CORPUS_DOMAINS][KEDGE_CORPUS_SPLITS];
  char *text = NULL, *half = NULL;
  size_t length, shorter;
  FILE *file = open_memstream(&text, &length);
  assert_ok(kedge_corpus_mixture(1, 2000, file, counts));
  fclose(file);
  for (int d = 0; d < KEDGE_CORPUS_DOMAINS; d++) {
    assert_int_equal(counts[d][KEDGE_CORPUS_TRAIN], 396);
    assert_int_equal(counts[d][KEDGE_CORPUS_SHIFT_TRAIN], 4);
    assert_int_equal(counts[d][KEDGE_CORPUS_TEST] + counts[d][KEDGE_CORPUS_SHIFT_TEST], 0);
  }
  file = open_memstream(&half, &shorter);
  assert_ok(kedge_corpus_mixture(1, 777, file, NULL));
  fclose(file);
  assert_true(shorter < length && !memcmp(text, half, shorter));
  free(text), free(half);
}

/* Training reads the rows, whatever else is in them. */
static void rows_are_training_data(void **state) {
  (void)state;
  kedge_tokenizer *tokenizer;
  kedge_dataset *dataset;
  assert_ok(kedge_tokenizer_open(test_golden("tokenizer_train"), NULL, &tokenizer));
  for (uint32_t d = 0; d < KEDGE_CORPUS_DOMAINS; d++) {
    size_t length;
    char *text = generate(d, KEDGE_CORPUS_SHIFT_TRAIN, 1, 50, &length);
    const kedge_dataset_options options = {.tokenizer = tokenizer, .eos = 0};
    assert_ok(kedge_dataset_read_memory("rows", text, length, NULL, &options, &dataset));
    assert_int_equal(dataset->count, 50);
    kedge_dataset_free(dataset);
    free(text);
  }
  kedge_tokenizer_free(tokenizer);
}

static void refuses(void **state) {
  (void)state;
  uint32_t domain;
  kedge_corpus_split split;
  assert_null(kedge_corpus_domain_at(KEDGE_CORPUS_DOMAINS));
  assert_int_equal(kedge_corpus_domain_find("poems", &domain), KEDGE_ERR_ARGUMENT);
  assert_non_null(strstr(kedge_message(), "poems"));
  assert_int_equal(kedge_corpus_split_find("dev", &split), KEDGE_ERR_ARGUMENT);
  assert_non_null(strstr(kedge_message(), "shift-test"));
  assert_int_equal(kedge_corpus_generate(9, KEDGE_CORPUS_TEST, 1, 1, stderr), KEDGE_ERR_ARGUMENT);
  kedge_alloc_fail_nth(1);
  char *text = NULL;
  size_t length;
  FILE *file = open_memstream(&text, &length);
  assert_ok(kedge_corpus_domain_find("programs", &domain));
  assert_int_equal(kedge_corpus_generate(domain, KEDGE_CORPUS_TEST, 1, 1, file), KEDGE_ERR_MEMORY);
  kedge_alloc_fail_nth(0);
  fclose(file);
  free(text);
  FILE *full = fopen("/dev/full", "w");
  if (!full) return;
  assert_int_equal(kedge_corpus_generate(0, KEDGE_CORPUS_TRAIN, 1, 1000, full), KEDGE_ERR_IO);
  fclose(full);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(rows_depend_on_their_place_alone),
                                     cmocka_unit_test(completions_end_in_their_answers),
                                     cmocka_unit_test(tests_share_no_row_with_training),
                                     cmocka_unit_test(chains_of_facts_are_not_in_both),
                                     cmocka_unit_test(chance_is_what_the_table_says),
                                     cmocka_unit_test(sums_are_right),
                                     cmocka_unit_test(programs_print_their_answers),
                                     cmocka_unit_test(the_right_choice_is_right),
                                     cmocka_unit_test(mixes_all_domains),
                                     cmocka_unit_test(rows_are_training_data),
                                     cmocka_unit_test(refuses)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
