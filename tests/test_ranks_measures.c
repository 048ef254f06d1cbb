/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * What is measured on 2 and 4 ranks has the bits of one rank: tables, JSON and files of `eval`, `probe` and
 * `audit`, also with more ranks than questions or samples and where another number of ranks goes on. What
 * ranks cannot share, and a rank that does not fit, is told in one line.
 */
#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SAMPLES = 23, QUESTIONS = 13, WAYS = 3 };

static const int ways[WAYS] = {1, 2, 4};

static const char *at(const char *name) {
  return test_path(test_folder(), name);
}

/* Questions that are answered by text, by a number and by a letter. */
static void write_suite(void) {
  char *text = calloc(QUESTIONS, 512);
  size_t used = 0;
  assert_non_null(text);
  for (int i = 0; i < QUESTIONS; i++) {
    const char *format =
        i % 3 == 0 ? "{\"prompt\": \"Ann has %d apples and gets %d more. How many?\", \"completion\": \" "
                     "%d\", \"domain\": "
                     "\"say\", \"split\": \"test\"}\n"
        : i % 3 == 1
            ? "{\"prompt\": \"Sum %d and %d?\", \"completion\": \" it is\\n#### %d\", \"answer\": \"7\", "
              "\"domain\": "
              "\"sum\", \"split\": \"test\"}\n"
            : "{\"prompt\": \"Pick %d of %d\\nA. u\\nB. vv\\nC. www\\n\", \"completion\": \"Answer: A\", "
              "\"answer\": "
              "\"A\", \"choices\": [\"u\", \"vv\", \"www\"], \"domain\": \"pick\", \"split\": \"test%d\"}\n";
    used += (size_t)sprintf(text + used, format, i, i + 3, i % 2);
  }
  test_write(at("suite.jsonl"), text, used);
  free(text);
}

static int prepare(void **state) {
  (void)state;
  training_prepare(SAMPLES);
  write_suite();
  ranks_expect(
      1, 0, "",
      "train run.yaml output_dir=post num_train_epochs=3 learning_rate=1e-2 threads=1 logging_steps=1000");
  return 0;
}

/* Standard output of the program on so many ranks, with %d of the arguments as the number of ranks. */
static char *out_of(int ranks, const char *format) {
  test_run run = ranks_kedge(ranks, format, ranks, ranks, ranks, ranks);
  if (run.exit_code) fail_msg("kedge %s on %d ranks: exit %d: %s", format, ranks, run.exit_code, run.err);
  char *out = strdup(run.out);
  test_run_free(&run);
  return out;
}

/* The same file of several runs: the name has the number of ranks in the place of %d. */
static void expect_same(const char *file) {
  char first[256], other[256];
  snprintf(first, sizeof first, file, ways[0]);
  for (int w = 1; w < WAYS; w++) {
    snprintf(other, sizeof other, file, ways[w]);
    if (!training_same(first, other)) fail_msg("%s and %s differ", first, other);
  }
}

/* ---- Evaluation
 * -------------------------------------------------------------------------------------------------- */

static void expect_same_evaluation(const char *how) {
  char arguments[512], *table = NULL;
  for (int w = 0; w < WAYS; w++) {
    char old[16];
    snprintf(old, sizeof old, "e%d", ways[w]);
    test_remove(at(old));
    snprintf(arguments, sizeof arguments,
             "eval --model post --suite suite.jsonl --max-new-tokens 8 --threads 1 --out e%%d --json j%%d %s",
             how);
    char *out = out_of(ways[w], arguments);
    if (table && strcmp(table, out))
      fail_msg("eval %s: %d ranks print\n%sone prints\n%s", how, ways[w], out, table);
    if (table)
      free(out);
    else
      table = out;
  }
  free(table);
  expect_same("e%d/items.jsonl");
  expect_same("e%d/summary.json");
  expect_same("j%d");
}

static void test_evaluation(void **state) {
  (void)state;
  expect_same_evaluation("--choice both");
  expect_same_evaluation("--choice letter --temperature 0.8 --repeats 3 --seed 42 --batch-size 5");
  expect_same_evaluation("--experts-of base --experts-rank 1");
  expect_same_evaluation("--router-bias base --batch-size 3");
  expect_same_evaluation("--limit 1");
  expect_same_evaluation("--limit 3");
}

/* Rows that one rank has written, up to the middle of a question's samples, are gone on from by four. */
static void test_going_on(void **state) {
  (void)state;
  static const char how[] =
      "eval --model post --suite suite.jsonl --max-new-tokens 8 --threads 1 --temperature 0.8 "
      "--repeats 2 --out o%d";
  size_t bytes;
  free(out_of(1, how));
  char *text = test_read(at("o1/items.jsonl"), &bytes), *end = text;
  for (int line = 0; line < 10; line++) end = strchr(end, '\n') + 1;
  test_make_folder(at("o4"));
  test_write(at("o4/items.jsonl"), text, (size_t)(end - text) + 20);
  free(text);
  test_run run = ranks_kedge(4, how, 4);
  if (run.exit_code || !strstr(run.err, "9 of 26 samples were there")) fail_msg("said \"%s\"", run.err);
  test_run_free(&run);
  assert_true(training_same("o1/items.jsonl", "o4/items.jsonl"));
  assert_true(training_same("o1/summary.json", "o4/summary.json"));
}

static void test_code(void **state) {
  (void)state;
  char *text = calloc(5, 256);
  size_t used = 0;
  if (system("python3 -c 'pass' 2>/dev/null")) skip();
  for (int i = 0; i < 5; i++)
    used += (size_t)sprintf(
        text + used,
        "{\"task_id\": \"t/%d\", \"prompt\": \"def f():\\n\", \"canonical_solution\": \"  return "
        "%d\\n\", \"test\": \"def check(f):\\n  assert f() == %d\\n\", \"entry_point\": \"f\"}\n",
        i, i, i);
  test_write(at("code.jsonl"), text, used);
  free(text);
  for (int w = 0; w < WAYS; w++)
    free(out_of(ways[w],
                "eval --model post --suite code.jsonl --allow-code-execution --max-new-tokens 4 --threads 1 "
                "--out c%d"));
  expect_same("c%d/items.jsonl");
}

/* ---- Probe, audit
 * ------------------------------------------------------------------------------------------------ */

static void test_probe(void **state) {
  (void)state;
  char *table = NULL;
  for (int w = 0; w < WAYS; w++) {
    char *out = out_of(
        ways[w], "probe --base base --post post --data train.jsonl --batch-size 3 --threads 1 --nulls 5 "
                 "--selection --max-tokens 500 --json p%d.json --csv pc%d --trace-out pt%d "
                 "--communities pm%d.json");
    if (table) assert_string_equal(table, out);
    if (table)
      free(out);
    else
      table = out;
  }
  free(table);
  expect_same("p%d.json");
  expect_same("pm%d.json");
  expect_same("pt%d/base.safetensors");
  expect_same("pt%d/post.safetensors");
  assert_int_equal(test_entries(at("pc1")), test_entries(at("pc4")));
}

/* Two samples for four ranks, in two domains. */
static void test_few_samples(void **state) {
  (void)state;
  size_t bytes;
  char *text = test_read(at("train.jsonl"), &bytes), *end = strchr(strchr(text, '\n') + 1, '\n') + 1;
  test_write(at("two.jsonl"), text, (size_t)(end - text));
  free(text);
  for (int w = 0; w < WAYS; w++)
    free(out_of(ways[w],
                "probe --base base --post post --data a=two.jsonl --data b=train.jsonl --batch-size 1 "
                "--threads 1 --no-communities --selection --json f%d.json"));
  expect_same("f%d.json");
}

static void test_audit(void **state) {
  (void)state;
  for (int w = 0; w < WAYS; w++)
    free(
        out_of(ways[w],
               "audit --model base --data train.jsonl --batch-size 2 --threads 1 --nulls 5 --json a%d.json"));
  expect_same("a%d.json");
}

/* ---- Refusals
 * ---------------------------------------------------------------------------------------------------- */

/* One line of ours on standard error, with this in it. */
static void expect_line(int ranks, const char *want, const char *arguments) {
  test_run run = ranks_kedge(ranks, "%s", arguments);
  const char *line = strstr(run.err, "kedge ");
  if (run.exit_code != 2 || !line || strstr(line + 1, "\nkedge ") || !strstr(line, want))
    fail_msg("kedge %s on %d ranks: exit %d, said \"%s\", want \"%s\"", arguments, ranks, run.exit_code,
             run.err, want);
  test_run_free(&run);
}

static void test_refusals(void **state) {
  (void)state;
  ranks_expect(1, 0, "", "trace --model base --data train.jsonl --out t.safetensors");
  expect_line(2, "kedge eval: nowhere", "eval --model nowhere --suite suite.jsonl");
  expect_line(2, "kedge eval: nosuite", "eval --model post --suite nosuite");
  expect_line(2, "kedge eval: 2 repeats", "eval --model post --suite suite.jsonl --repeats 2");
  expect_line(2, "kedge eval: nobase", "eval --model post --suite suite.jsonl --experts-of nobase");
  expect_line(2, "kedge probe: --data is needed", "probe --base base --post post");
  expect_line(2, "kedge probe: 2 processes were launched, but traces", "probe --trace t.safetensors");
  expect_line(2, "kedge audit: 2 processes were launched, but traces", "audit --trace t.safetensors");
  expect_line(2, "kedge trace: nodata", "trace --model base --data nodata --out no");
  assert_false(test_exists(at("no")));
}

/* Ranks of one launch that were not given the same, or do not see the same. */
static void test_ranks_that_differ(void **state) {
  (void)state;
  static const struct {
    const char *first, *second, *err;
  } cases[] = {
      {"eval --model post --suite suite.jsonl --limit 2", "eval --model post --suite suite.jsonl --limit 3",
       "argument 6 is 3 on rank 1, 2 on rank 0"},
      {"probe --base base --data train.jsonl", "probe --base base --data train.jsonl --nulls 3",
       "the number of arguments is 6 on rank 1, 4 on rank 0"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char command[4096];
    const char *program = getenv("KEDGE_BIN");
    snprintf(command, sizeof command,
             "cd '%s' && timeout 100 mpirun --allow-run-as-root --oversubscribe --bind-to none -n 1 '%s' %s "
             ": -n 1 '%s' "
             "%s",
             test_folder(), program, cases[i].first, program, cases[i].second);
    test_run run = test_run_shell(command);
    const char *line = strstr(run.err, "kedge ");
    if (run.exit_code == 0 || !line || strstr(line + 1, "\nkedge ") || !strstr(run.err, cases[i].err))
      fail_msg("%s: exit %d, said \"%s\"", cases[i].second, run.exit_code, run.err);
    test_run_free(&run);
  }
}

/* The second rank's folder has another model, other data, or none. */
static void test_folders_that_differ(void **state) {
  (void)state;
  static const struct {
    const char *make, *arguments, *err;
  } cases[] = {
      {"true", "eval --model base --suite suite.jsonl", "rank 1: base"},
      {"cp -r ../post base && cp ../suite.jsonl .", "eval --model base --suite suite.jsonl",
       "the hash of settings, model and suites"},
      {"rm suite.jsonl && head -5 ../suite.jsonl >suite.jsonl && rm -r base && cp -r ../base .",
       "eval --model base --suite suite.jsonl", "the hash of settings, model and suites"},
      {"head -5 ../train.jsonl >train.jsonl", "probe --base base --data train.jsonl",
       "the hash of the samples"},
      {"rm -r base && cp -r ../post base && cp ../train.jsonl .", "probe --base base --data train.jsonl",
       "the hash of the model"},
      {"rm train.jsonl", "audit --model base --data train.jsonl", "rank 1: train.jsonl"},
  };
  test_make_folder(at("other"));
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char command[4096];
    const char *program = getenv("KEDGE_BIN");
    snprintf(command, sizeof command,
             "cd '%s/other' && %s && cd .. && timeout 100 mpirun --allow-run-as-root --oversubscribe "
             "--bind-to none -n "
             "1 '%s' %s : -n 1 -wdir '%s/other' '%s' %s",
             test_folder(), cases[i].make, program, cases[i].arguments, test_folder(), program,
             cases[i].arguments);
    test_run run = test_run_shell(command);
    const char *line = strstr(run.err, "kedge ");
    if (run.exit_code == 0 || !line || strstr(line + 1, "\nkedge ") || !strstr(run.err, cases[i].err))
      fail_msg("%s: exit %d, said \"%s\", want \"%s\"", cases[i].make, run.exit_code, run.err, cases[i].err);
    test_run_free(&run);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_evaluation),
      cmocka_unit_test(test_going_on),
      cmocka_unit_test(test_code),
      cmocka_unit_test(test_probe),
      cmocka_unit_test(test_few_samples),
      cmocka_unit_test(test_audit),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_ranks_that_differ),
      cmocka_unit_test(test_folders_that_differ),
  };
  if (!ranks_possible()) return 77;
  return cmocka_run_group_tests_name("ranks: measures", tests, prepare, NULL);
}
