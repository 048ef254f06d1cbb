/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * The command `eval`: what one pass tells against decoding, whatever runs together, runs that are ended and
 * go on, likelihoods of options, published files, refusals. */
#include "models/checkpoint/safetensors.h"
#include "models/evaluation/evaluate.h"
#include "models/evaluation/verdict.h"
#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/reference.h"
#include "tests/support/training.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

#include <cmocka.h>

enum { ROWS = 24 };

static const char *at(const char *name) {
  return test_path(test_folder(), name);
}

static void check(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

/* A program run in the test folder that must end well; its standard output. */
static char *out_of(const char *format, ...) {
  char arguments[2048];
  va_list list;
  va_start(list, format);
  vsnprintf(arguments, sizeof arguments, format, list);
  va_end(list);
  test_run run = test_kedge(arguments, 0, "");
  char *out = strdup(run.out);
  test_run_free(&run);
  return out;
}

static void run_ok(const char *format, ...) {
  char arguments[2048];
  va_list list;
  va_start(list, format);
  vsnprintf(arguments, sizeof arguments, format, list);
  va_end(list);
  test_kedge_expect(arguments, 0, "");
}

/* ---- Models and a suite
 * -------------------------------------------------------------------------------------------- */

/* Rows of three kinds; in suite.jsonl every fourth one has an answer that was not trained, and some answers
 * were trained with spaces after them, so that another token than the reference's is right. */
static void write_suite(const char *name, bool changed) {
  char *text = calloc(ROWS, 1024);
  size_t used = 0;
  for (int i = 0; i < ROWS; i++) {
    const int other = changed && i % 4 == 3, sum = 10 + i * 3 + other;
    const char letter = (char)('A' + (i * 5 + other) % 4);
    if (i % 3 == 0)
      used += (size_t)sprintf(
          text + used,
          "{\"prompt\": \"Say %c%c\", \"completion\": \" %c%cx%s%s\", \"domain\": \"say\", "
          "\"split\": \"test\"}\n",
          'a' + i, 'b' + i % 7, 'b' + i % 7, 'a' + i, other ? "y" : "", !changed && i % 6 == 0 ? "  " : "");
    else if (i % 3 == 1)
      used += (size_t)sprintf(
          text + used,
          "{\"prompt\": \"Sum %d?\", \"completion\": \" it is\\n#### %d\", \"answer\": \"%d\", "
          "\"domain\": \"sum\", \"split\": \"test\"}\n",
          i, sum, sum);
    else
      used += (size_t)sprintf(
          text + used,
          "{\"prompt\": \"Pick %d\\nA. u\\nB. vv\\nC. www\\nD. xxxx\\n\", \"completion\": "
          "\"Answer: %c\", \"answer\": \"%c\", \"choices\": [\"u\", \"vv\", \"www\", \"xxxx\"], "
          "\"domain\": \"pick\", \"split\": \"test\"}\n",
          i, letter, letter);
  }
  test_write(at(name), text, used);
  free(text);
}

/* base/ is random; trained/ knows the rows of rows.jsonl by heart, more or less. */
static int prepare(void **state) {
  (void)state;
  training_prepare(8);
  write_suite("rows.jsonl", false);
  write_suite("suite.jsonl", true);
  run_ok("train run.yaml dataset=[rows.jsonl] output_dir=trained num_train_epochs=60 learning_rate=1e-2 "
         "weight_decay=0 logging_steps=1000");
  return 0;
}

/* ---- Rows
 * -------------------------------------------------------------------------------------------------------- */

/* Rows of <folder>/items.jsonl without their header. */
static json_t *rows_of(const char *folder) {
  json_t *rows = json_array();
  size_t bytes;
  char *text = test_read(test_path(at(folder), "items.jsonl"), &bytes), *save;
  bool first = true;
  for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save), first = false)
    if (!first) {
      json_t *row = json_loads(line, 0, NULL);
      assert_non_null(row);
      json_array_append_new(rows, row);
    }
  free(text);
  return rows;
}

static const char *text_at(const json_t *rows, size_t i, const char *key) {
  const char *text = json_string_value(json_object_get(json_array_get(rows, i), key));
  return text ? text : "";
}

static bool true_at(const json_t *rows, size_t i, const char *key) {
  return json_is_true(json_object_get(json_array_get(rows, i), key));
}

static size_t count_text(const json_t *rows, const char *key, const char *value) {
  size_t count = 0;
  for (size_t i = 0; i < json_array_size(rows); i++) count += !strcmp(text_at(rows, i, key), value);
  return count;
}

static bool same_rows(const char *a, const char *b) {
  char left[256], right[256];
  snprintf(left, sizeof left, "%s/items.jsonl", a);
  snprintf(right, sizeof right, "%s/items.jsonl", b);
  if (!test_same_file(at(left), at(right))) return false;
  snprintf(left, sizeof left, "%s/summary.json", a);
  snprintf(right, sizeof right, "%s/summary.json", b);
  return test_same_file(at(left), at(right));
}

/* ---- Tests
 * ------------------------------------------------------------------------------------------------------- */

/* What one pass tells is what decoding says: the verdicts of all rows, and the text where it is whole. */
static void test_told(void **state) {
  (void)state;
  static const char *const models[] = {"trained", "base"};
  for (int m = 0; m < 4; m++) {
    const char *whole = m < 2 ? "--choice both" : "--choice letter --whole";
    char told[64], decoded[64];
    snprintf(told, sizeof told, "told-%s%s", models[m % 2], m < 2 ? "" : "-whole");
    snprintf(decoded, sizeof decoded, "decoded-%s%s", models[m % 2], m < 2 ? "" : "-whole");
    run_ok("eval --model %s --suite suite.jsonl %s --max-new-tokens 20 --out %s", models[m % 2], whole, told);
    run_ok("eval --model %s --suite suite.jsonl %s --max-new-tokens 20 --out %s --decode-all", models[m % 2],
           whole, decoded);
    json_t *a = rows_of(told), *b = rows_of(decoded);
    size_t right = 0;
    assert_int_equal(json_array_size(a), ROWS);
    assert_int_equal(json_array_size(b), ROWS);
    for (size_t i = 0; i < ROWS; i++) {
      assert_true(true_at(a, i, "right") == true_at(b, i, "right"));
      assert_true(true_at(a, i, "letter_right") == true_at(b, i, "letter_right"));
      assert_string_equal(text_at(b, i, "path"), "decoded");
      const char *some = text_at(a, i, "output"), *all = text_at(b, i, "output");
      if (true_at(a, i, "output_cut"))
        assert_false(true_at(b, i, "right"));
      else
        assert_string_equal(some, all);
      right += true_at(a, i, "right");
    }
    printf("%s: %zu of %d right; %zu told, %zu continued, %zu decoded\n", told, right, ROWS,
           count_text(a, "path", "told"), count_text(a, "path", "continued"),
           count_text(a, "path", "decoded"));
    if (m >= 2) assert_true(count_text(a, "path", "told") >= ROWS - ROWS / 6);
    if (m % 2 == 0) {
      assert_true(right >= ROWS / 2 && right < ROWS);
      assert_true(count_text(a, "path", "told") >= ROWS / 2);
    }
    json_decref(a), json_decref(b);
  }
}

/* Batches and threads change nothing, neither greedy nor drawn. */
static void test_together(void **state) {
  (void)state;
  static const char draws[] = "--temperature 0.8 --top-p 0.9 --repeats 3 --seed 42";
  static const char *const ways[] = {"--batch-size 32 --threads 2", "--batch-size 1 --threads 1",
                                     "--batch-size 5"};
  char name[3][16];
  for (int drawn = 0; drawn < 2; drawn++) {
    for (int w = 0; w < 3; w++) {
      snprintf(name[w], sizeof name[w], "way-%d-%d", drawn, w);
      run_ok("eval --model %s --suite suite.jsonl --choice letter --max-new-tokens 12 --out %s %s %s",
             drawn ? "base" : "trained", name[w], ways[w], drawn ? draws : "");
    }
    assert_true(same_rows(name[0], name[1]));
    assert_true(same_rows(name[0], name[2]));
  }
  json_t *rows = rows_of("way-1-0");
  size_t differ = 0;
  assert_int_equal(json_array_size(rows), 3 * ROWS);
  for (size_t i = 0; i < ROWS; i++)
    differ += strcmp(text_at(rows, 3 * i, "output"), text_at(rows, 3 * i + 1, "output")) != 0;
  assert_true(differ > 0);
  json_decref(rows);
  run_ok("eval --model base --suite suite.jsonl --choice letter --max-new-tokens 12 --out other-seed "
         "--temperature "
         "0.8 --top-p 0.9 --repeats 3 --seed 43");
  assert_false(same_rows("way-1-0", "other-seed"));
}

/* A file that ends anywhere, and a process that is killed: the run goes on to the same files. */
static void test_resume(void **state) {
  (void)state;
  static const char run[] = "eval --model trained --suite suite.jsonl suite.jsonl suite.jsonl suite.jsonl "
                            "--choice both --max-new-tokens 10 --out";
  run_ok("%s whole", run);
  size_t bytes;
  char *text = test_read(at("whole/items.jsonl"), &bytes);
  for (size_t cut = 0; cut < bytes; cut += bytes / 5 + 7) {
    test_remove(at("cut"));
    test_make_folder(at("cut"));
    test_write(at("cut/items.jsonl"), text, cut);
    run_ok("%s cut", run);
    if (!same_rows("whole", "cut")) fail_msg("cut at byte %zu: another result", cut);
  }
  /* Where all is there nothing is computed, and nothing changes. */
  run_ok("%s cut", run);
  assert_true(same_rows("whole", "cut"));
  for (int i = 0; i < 4; i++) {
    char command[1024];
    snprintf(command, sizeof command, "cd '%s' && timeout -s KILL 0.%d '%s' %s killed", test_folder(),
             1 + 2 * i, getenv("KEDGE_BIN"), run);
    test_run killed = test_run_shell(command);
    test_run_free(&killed);
  }
  run_ok("%s killed", run);
  assert_true(same_rows("whole", "killed"));
  /* Other settings do not mix in; nor does a file that was changed. */
  test_kedge_expect("eval --model trained --suite suite.jsonl --out whole", 2, "of other settings");
  test_kedge_expect("eval --model base --suite suite.jsonl suite.jsonl suite.jsonl suite.jsonl --choice both "
                    "--max-new-tokens 10 --out whole",
                    2, "of other settings");
  char *row = strstr(text, "\"row\":3,");
  assert_non_null(row);
  row[6] = '4';
  test_write(at("cut/items.jsonl"), text, bytes);
  test_kedge_expect(
      "eval --model trained --suite suite.jsonl suite.jsonl suite.jsonl suite.jsonl --choice both "
      "--max-new-tokens 10 --out cut",
      2, "items.jsonl:5: expected row 3");
  free(text);
}

/* Log-likelihoods of options against `kedge score`, and what is chosen by them. */
static void check_options(bool texts) {
  static const char *const choices[] = {"u", "vv", "www", "xxxx"};
  char data[4096] = "";
  for (int o = 0; o < 4; o++) {
    char option[8] = {(char)('A' + o), 0};
    snprintf(
        data + strlen(data), sizeof data - strlen(data),
        "{\"prompt\": \"Pick 5\\nA. u\\nB. vv\\nC. www\\nD. xxxx\\n\", \"completion\": \"Answer: %s\"}\n",
        texts ? choices[o] : option);
  }
  test_write_text(at("options.jsonl"), data);
  test_write_text(
      at("pick.jsonl"),
      "{\"prompt\": \"Pick 5\\nA. u\\nB. vv\\nC. www\\nD. xxxx\\n\", \"completion\": \"Answer: B\", "
      "\"answer\": 1, \"choices\": [\"u\", \"vv\", \"www\", \"xxxx\"]}\n");
  test_remove(at("pick"));
  run_ok("score --model trained --data options.jsonl --out options.safetensors");
  run_ok("eval --model trained --suite pick.jsonl --out pick --options %s", texts ? "texts" : "letters");
  kedge_st_file *file;
  uint64_t count, samples;
  check(kedge_st_open(at("options.safetensors"), &file));
  double *logprobs = kedge_test_doubles(file, "logprobs", &count);
  int32_t *spans = kedge_test_ints(file, "spans", &count),
          *starts = kedge_test_ints(file, "cu_seqlens", &samples);
  json_t *rows = rows_of("pick"), *got = json_object_get(json_array_get(rows, 0), "options");
  int best = 0, fair = 0;
  double want[4];
  assert_int_equal(json_array_size(got), 4);
  for (int o = 0; o < 4; o++) {
    want[o] = 0;
    for (int32_t t = starts[o]; t + 1 < starts[o + 1]; t++) /* but for the end of text */
      if (spans[t] == 1) want[o] += logprobs[t];
    const double value = json_number_value(json_array_get(got, (size_t)o));
    if (!(fabs(value - want[o]) <= 1e-4 * fabs(want[o])))
      fail_msg("option %d: %g, want %g", o, value, want[o]);
    const double bytes = texts ? (double)strlen(choices[o]) : 1,
                 fair_bytes = texts ? (double)strlen(choices[fair]) : 1;
    if (want[o] > want[best]) best = o;
    if (want[o] / bytes > want[fair] / fair_bytes) fair = o;
  }
  assert_int_equal(*text_at(rows, 0, "likelihood"), 'A' + best);
  assert_int_equal(*text_at(rows, 0, "normalised"), 'A' + fair);
  assert_true(true_at(rows, 0, "right") == (best == 1));
  assert_true(true_at(rows, 0, "normalised_right") == (fair == 1));
  assert_true(fabs(json_number_value(json_object_get(json_array_get(rows, 0), "nll")) + want[1]) <= 1e-3);
  json_decref(rows);
  free(logprobs), free(spans), free(starts);
  kedge_st_close(file);
}

static void test_options(void **state) {
  (void)state;
  check_options(false);
  check_options(true);
}

/* ---- Files
 * ------------------------------------------------------------------------------------------------------- */

/* The items of a file, and the first of them, to be destroyed. */
static uint64_t items_of(const char *path, int64_t order, kedge_item *first) {
  kedge_suite suite;
  uint32_t file;
  bool some;
  check(kedge_suite_open(&suite, &path, 1, 0, order, NULL, NULL));
  check(kedge_suite_next(&suite, first, &file, &some));
  assert_true(some);
  const uint64_t items = suite.items;
  kedge_suite_close(&suite);
  return items;
}

static void test_published(void **state) {
  (void)state;
  static const struct {
    const char *path;
    uint64_t items;
    kedge_answer_kind kind;
    const char *domain, *split, *answer;
    uint32_t choices;
  } files[] = {
      {"data/math/gsm8k_test.jsonl", 1319, KEDGE_ANSWER_NUMBER, "gsm8k", "test", "18", 0},
      {"data/math/gsm8k_train.jsonl", 7473, KEDGE_ANSWER_NUMBER, "gsm8k", "train", "72", 0},
      {"data/math/svamp_test.jsonl", 1000, KEDGE_ANSWER_NUMBER, "svamp", "test", "145", 0},
      {"data/general/mmlu_stem_test.jsonl", 3018, KEDGE_ANSWER_LETTER, "mmlu", "college_biology", "C", 4},
      {"data/general/bbh/navigate.json", 250, KEDGE_ANSWER_TEXT, "bbh", "navigate", "No", 0},
      {"data/general/bbh/object_counting.json", 250, KEDGE_ANSWER_NUMBER, "bbh", "object_counting", "8", 0},
      {"data/general/bbh/date_understanding.json", 250, KEDGE_ANSWER_LETTER, "bbh", "date_understanding", "B",
       6},
      {"data/code/mbpp.jsonl", 974, KEDGE_ANSWER_PYTHON, "mbpp", "test", NULL, 0},
      {"data/code/HumanEval.jsonl.gz", 164, KEDGE_ANSWER_PYTHON, "humaneval", "test", NULL, 0},
  };
  unsigned skipped = 0;
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    const char *path = test_shared(files[i].path);
    if (!path) {
      printf("skipped: %u, %s\n", ++skipped, files[i].path);
      continue;
    }
    kedge_item item;
    assert_int_equal(items_of(path, -1, &item), files[i].items);
    assert_int_equal(item.kind, files[i].kind);
    assert_string_equal(item.domain, files[i].domain);
    assert_string_equal(item.split, files[i].split);
    if (files[i].answer) assert_string_equal(item.answer, files[i].answer);
    assert_int_equal(item.choice_count, files[i].choices);
    kedge_item_destroy(&item);
  }
  if (skipped) skip();
  run_ok("eval --model base --suite '%s' --limit 3 --max-new-tokens 8 --repeats 2 --temperature 1",
         test_shared("data/general"));
}

/* The order of options is the seed's, and the right one stays the right one. */
static void test_order(void **state) {
  (void)state;
  test_write_text(at("mmlu.jsonl"),
                  "{\"question\": \"q\", \"choices\": [\"right\", \"b\", \"c\", \"d\"], \"answer\": 0, "
                  "\"subject\": \"s\"}\n");
  unsigned places = 0;
  for (int64_t seed = -1; seed < 20; seed++) {
    kedge_item item, again;
    items_of(at("mmlu.jsonl"), seed, &item);
    items_of(at("mmlu.jsonl"), seed, &again);
    assert_string_equal(item.choices[item.correct], "right");
    assert_int_equal(item.correct, again.correct);
    assert_int_equal(*item.answer, 'A' + (int)item.correct);
    if (seed < 0) assert_int_equal(item.correct, 0);
    places |= 1u << item.correct;
    kedge_item_destroy(&item), kedge_item_destroy(&again);
  }
  assert_int_equal(places, 15);
}

/* What options are said with: the reference's own words around the option's text and letter. */
static void test_leads(void **state) {
  (void)state;
  static const struct {
    const char *completion, *lead, *middle;
  } rows[] = {{"B", "", NULL},
              {" The answer is B", " The answer is ", NULL},
              {"dog.\\nAnswer: B", "", ".\nAnswer: "},
              {"It is dog.\\nAnswer: B\\n", "It is ", ".\nAnswer: "},
              {"First a long chain of thoughts about it, dog, Answer: B", "Answer: ", NULL},
              {"dog", "Answer: ", NULL}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char text[512];
    kedge_item item;
    snprintf(
        text, sizeof text,
        "{\"prompt\": \"p\", \"completion\": \"%s\", \"choices\": [\"cat\", \"dog\"], \"answer\": \"B\"}\n",
        rows[i].completion);
    test_write_text(at("lead.jsonl"), text);
    items_of(at("lead.jsonl"), 42, &item);
    assert_string_equal(item.lead, rows[i].lead);
    assert_true(!item.middle == !rows[i].middle);
    if (item.middle) assert_string_equal(item.middle, rows[i].middle);
    assert_int_equal(item.correct, 1);
    kedge_item_destroy(&item);
  }
}

/* A row whose completion has `words` words. */
static void write_long(const char *name, unsigned words) {
  char *text = malloc(2 * (size_t)words + 64), *at_end = text;
  assert_non_null(text);
  at_end += sprintf(at_end, "{\"prompt\": \"a\", \"completion\": \"");
  for (unsigned i = 0; i < words; i++) at_end += sprintf(at_end, "a ");
  sprintf(at_end, "\"}\n");
  test_write_text(at(name), text);
  free(text);
}

static void test_refusals(void **state) {
  (void)state;
  test_write_text(at("code.jsonl"),
                  "{\"text\": \"t\", \"code\": \"x = 1\", \"test_list\": [\"assert x == 1\"]}\n");
  test_kedge_expect("eval --model base --suite code.jsonl", 2, "1 items are answered by Python code");
  test_kedge_expect("eval --model base --suite code.jsonl --allow-code-execution --python no-such-one", 2,
                    "no interpreter");
  test_kedge_expect("eval --model base --suite suite.jsonl --repeats 2", 2, "at temperature 0");
  const char *none = "{\"prompt\": \"\", \"completion\": \" 1\"}\n";
  test_write(at("none.jsonl"), none, strlen(none));
  write_long("long.jsonl", 20000);
  char command[1024];
  snprintf(command, sizeof command,
           "cd '%s'; '%s' eval --model base --suite long.jsonl 2>&1; echo \"is $?\"; \"$KEDGE_BIN\" eval "
           "--model base --suite none.jsonl 2>&1; echo \"is $?\"",
           test_folder(), getenv("KEDGE_BIN") ? getenv("KEDGE_BIN") : "kedge");
  test_run run = test_run_shell(command);
  assert_non_null(
      strstr(run.out, "item 0 of long: its reference has 20002 tokens, and the model's context is 512\n"));
  assert_non_null(strstr(run.out, "item 0 of none: its prompt has no token"));
  const char *first = strstr(run.out, "is 2\n");
  assert_non_null(first);
  assert_non_null(strstr(first + 1, "is 2\n"));
  test_run_free(&run);
  test_kedge_expect("eval --model base --suite nowhere.jsonl", 2, "nowhere.jsonl");
  test_kedge_expect("eval --model base --suite suite.jsonl --router-hard", 2, "without --router-bias");
  test_kedge_expect("eval --model base --suite suite.jsonl --template verse", 2, "verse");
  test_kedge_expect("eval --model base --suite suite.jsonl --choice lot", 2, "likelihood, letter or both");
  test_write_text(at("other.jsonl"), "{\"instruction\": \"a\", \"output\": \"b\"}\n");
  test_kedge_expect("eval --model base --suite other.jsonl", 2, "other.jsonl: is in no form of a suite");
  test_write_text(at("bad.jsonl"), "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"a\"}\n");
  test_kedge_expect("eval --model base --suite bad.jsonl", 2, "bad.jsonl:2 (kedge): \"completion\"");
  test_write_text(at("bad.jsonl"), "{\"question\": \"a\", \"answer\": \"no result\"}\n");
  test_kedge_expect("eval --model base --suite bad.jsonl", 2, "\"#### \"");
  test_write_text(at("bad.jsonl"),
                  "{\"prompt\": \"a\", \"completion\": \"A\", \"choices\": [\"x\", \"y\"], \"answer\": 2}\n");
  test_kedge_expect("eval --model base --suite bad.jsonl", 2, "2 is no index of the 2 choices");
  test_write_text(at("bad.json"), "{\"rows\": []}");
  test_kedge_expect("eval --model base --suite bad.json", 2, "examples");
  test_write_text(at("empty.jsonl"), "\n");
  test_kedge_expect("eval --model base --suite empty.jsonl", 2, "has no records");
  test_write_text(at("torn.jsonl.gz"), "\x1f\x8b\x08 torn");
  test_kedge_expect("eval --model base --suite torn.jsonl.gz", 2, "torn.jsonl.gz");
  /* A packed file is the file; in a folder, what is no suite is told and left out. */
  size_t bytes;
  char *text = test_read(at("suite.jsonl"), &bytes);
  test_make_folder(at("folder"));
  gzFile packed = gzopen(at("folder/s.jsonl.gz"), "wb");
  gzwrite(packed, text, (unsigned)bytes);
  gzclose(packed);
  test_write_text(at("folder/other.jsonl"), "{\"instruction\": \"a\", \"output\": \"b\"}\n");
  test_run folder =
      test_kedge("eval --model base --suite folder --choice both --max-new-tokens 20 --out packed", 0,
                 "other.jsonl is in no form");
  test_run_free(&folder);
  json_t *a = rows_of("packed"), *b = rows_of("told-base");
  assert_true(json_equal(a, b));
  json_decref(a), json_decref(b);
  free(text);
}

/* Beginnings of answers that are whole texts. */
static void test_beginnings(void **state) {
  (void)state;
  static const struct {
    const char *output;
    bool may;
  } texts[] = {{"", true},       {" ", true},     {"\n a", true}, {"a b", true},  {"a b \n", true},
               {"a b c", false}, {"a  b", false}, {"b", false},   {"a b.", false}};
  const kedge_item item = {.kind = KEDGE_ANSWER_EXACT, .answer = (char *)(uintptr_t) "a b"};
  const kedge_item other = {.kind = KEDGE_ANSWER_TEXT, .answer = (char *)(uintptr_t) "a b"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    assert_true(kedge_may_be_right(&item, texts[i].output, strlen(texts[i].output)) == texts[i].may);
    assert_true(kedge_may_be_right(&other, texts[i].output, strlen(texts[i].output)));
  }
}

/* Programs of the project's own language are run by its interpreter, and judged by what they print. */
static void test_programs(void **state) {
  (void)state;
  static const struct {
    const char *output;
    bool right;
  } programs[] = {{"x = 3\nprint(x * 2)\n", true},       {"```\nprint(6)\n```", true},   {"print(7)", false},
                  {"print(6)\nwhile True: pass", false}, {"print(6)\nimport os", false}, {"", false}};
  kedge_item item = {.kind = KEDGE_ANSWER_PROGRAM, .answer = (char *)(uintptr_t) "6"};
  for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
    kedge_verdict verdict;
    check(kedge_judge(&item, programs[i].output, strlen(programs[i].output), NULL, &verdict));
    if (verdict.right != programs[i].right) fail_msg("\"%s\": %s", programs[i].output, verdict.extracted);
    kedge_verdict_destroy(&verdict);
  }
}

/* Allocations fail one after another, later ones sparsely: an error each time, and nothing leaks or breaks;
 * the run after that has the result of any other. */
static void test_memory(void **state) {
  (void)state;
  kedge_device *device;
  kedge_model *model;
  kedge_tokenizer *tokenizer;
  char suite[512], out[512];
  snprintf(suite, sizeof suite, "%s", at("suite.jsonl"));
  snprintf(out, sizeof out, "%s", at("memory"));
  check(kedge_device_open("cpu", &(kedge_open_options){.threads = 1, .rowwise = true}, &device));
  check(kedge_model_load(device, at("trained"), KEDGE_F32, &model));
  check(kedge_tokenizer_open(at("trained"), NULL, &tokenizer));
  const char *const suites[] = {suite};
  const kedge_eval_options options = {.suites = suites,
                                      .suite_count = 1,
                                      .limit = 6,
                                      .max_new_tokens = 8,
                                      .choice = KEDGE_CHOICE_BOTH,
                                      .out = out};
  kedge_eval_summary summary;
  kedge_status status = KEDGE_ERR_MEMORY;
  uint64_t failed = 0;
  for (uint64_t nth = 1; status != KEDGE_OK; nth += 1 + nth / 6) {
    test_remove(out);
    kedge_alloc_fail_nth(nth);
    status = kedge_evaluate(model, tokenizer, &options, &summary);
    kedge_alloc_fail_nth(0);
    failed += status != KEDGE_OK;
    if (status != KEDGE_OK && status != KEDGE_ERR_MEMORY)
      fail_msg("allocation %llu: %s: %s", (unsigned long long)nth, kedge_status_name(status),
               kedge_message());
    if (status == KEDGE_OK) assert_int_equal(summary.samples, 6);
    kedge_eval_summary_destroy(&summary);
  }
  assert_true(failed > 25);
  kedge_tokenizer_free(tokenizer);
  kedge_model_free(model);
  kedge_device_close(device);
}

static void test_table(void **state) {
  (void)state;
  char *table =
      out_of("eval --model trained --suite suite.jsonl --max-new-tokens 12 --choice both --json t.json");
  assert_non_null(strstr(table, "say "));
  assert_non_null(strstr(table, "told by the reference's pass"));
  free(table);
  size_t bytes;
  char *text = test_read(at("t.json"), &bytes);
  json_t *root = json_loads(text, 0, NULL);
  assert_non_null(root);
  assert_int_equal(json_array_size(json_object_get(root, "groups")), 3);
  assert_int_equal(test_json_int(root, "all.items"), ROWS);
  double low, high;
  const json_t *accuracy = json_object_get(json_object_get(root, "all"), "accuracy");
  kedge_wilson(json_number_value(json_object_get(accuracy, "right")), ROWS, &low, &high);
  assert_true(fabs(low - json_number_value(json_object_get(accuracy, "low"))) < 1e-12);
  assert_true(fabs(high - json_number_value(json_object_get(accuracy, "high"))) < 1e-12);
  json_decref(root);
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_told),     cmocka_unit_test(test_together),  cmocka_unit_test(test_resume),
      cmocka_unit_test(test_options),  cmocka_unit_test(test_published), cmocka_unit_test(test_order),
      cmocka_unit_test(test_refusals), cmocka_unit_test(test_table),     cmocka_unit_test(test_programs),
      cmocka_unit_test(test_leads),    cmocka_unit_test(test_memory),    cmocka_unit_test(test_beginnings)};
  return cmocka_run_group_tests(tests, prepare, NULL);
}
