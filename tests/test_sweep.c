/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * The command `sweep`: its runs are those of `kedge train`, its table holds their means and deviations; it
 * goes on after being stopped, killed, or after a failed run, and refuses mistakes before anything starts.
 * `train --dry-run` tells what would happen and writes nothing. */
#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/training.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SAMPLES = 36, STEPS = 6 }; /* 12 samples an update, 2 epochs */

static const char *at(const char *name) {
  return test_path(test_folder(), name);
}

static int prepare(void **state) {
  (void)state;
  training_prepare(SAMPLES);
  training_expect(0, "", "prior --config run.yaml --out prior.safetensors");
  return 0;
}

/* Runs the program; checks the exit status and returns what it printed. */
static test_run sweep(int code, const char *err, const char *arguments) {
  test_run run = training_kedge("sweep %s", arguments);
  if (run.exit_code != code)
    fail_msg("sweep %s: exit %d, want %d: %s", arguments, run.exit_code, code, run.err);
  if (!strstr(run.err, err)) fail_msg("sweep %s: want \"%s\" in \"%s\"", arguments, err, run.err);
  return run;
}

static void sweep_expect(int code, const char *err, const char *arguments) {
  test_run run = sweep(code, err, arguments);
  test_run_free(&run);
}

static json_t *json_file(const char *name) {
  size_t bytes;
  char *text = test_read(at(name), &bytes);
  json_t *o = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
  free(text);
  assert_non_null(o);
  return o;
}

static bool holds(const char *file, const char *part) {
  size_t bytes;
  char *text = test_read(at(file), &bytes);
  bool found = strstr(text, part) != NULL;
  free(text);
  return found;
}

static void near(double got, double want) {
  if (!(fabs(got - want) <= 1e-12 * fabs(want))) fail_msg("got %.17g, want %.17g", got, want);
}

/* ---- The whole thing
 * ------------------------------------------------------------------------------------------------ */

#define BETA_GRID                                                                                            \
  "run.yaml router.intervention=rpb router.prior=prior.safetensors --grid router.beta=0,1 --seeds 1,2,3 "    \
  "eval_split=6 --out beta"

static void check_statistics(const char *metric) {
  static const char *const folders[2][3] = {
      {"beta/router.beta-0_seed-1", "beta/router.beta-0_seed-2", "beta/router.beta-0_seed-3"},
      {"beta/router.beta-1_seed-1", "beta/router.beta-1_seed-2", "beta/router.beta-1_seed-3"}};
  json_t *o = json_file("beta/sweep.json");
  for (size_t row = 0; row < 2; row++) {
    double x[3], squares = 0;
    for (int i = 0; i < 3; i++) x[i] = training_metric(folders[row][i], 5, metric);
    const double mean = (x[0] + x[1] + x[2]) / 3;
    for (int i = 0; i < 3; i++) squares += (x[i] - mean) * (x[i] - mean);
    json_t *r = json_array_get(json_object_get(o, "rows"), row);
    json_t *m = json_object_get(json_object_get(r, "metrics"), metric);
    near(json_number_value(json_object_get(m, "mean")), mean);
    near(json_number_value(json_object_get(m, "sd")), sqrt(squares / 2));
    assert_int_equal(json_integer_value(json_object_get(m, "n")), 3);
    assert_true(squares > 0);
    assert_string_equal(json_string_value(json_object_get(json_object_get(r, "point"), "router.beta")),
                        row ? "1" : "0");
  }
  json_decref(o);
}

static void test_whole(void **state) {
  (void)state;
  test_run run = sweep(0, "0 finished before", BETA_GRID " --jobs 2");
  assert_non_null(strstr(run.out, "router.beta  runs  "));
  assert_non_null(strstr(run.out, "eval/loss"));
  assert_non_null(strstr(run.out, " +- "));
  assert_null(strstr(run.out, "router/anchor"));
  assert_true(holds("beta/sweep.csv", ",router/anchor,router/anchor sd,router/anchor n"));
  check_statistics("train/loss");
  check_statistics("eval/loss");
  check_statistics("router/grad_norm");
  assert_true(holds("beta/sweep.csv", "router.beta,runs,train/loss,train/loss sd,train/loss n,"));
  assert_true(holds("beta/sweep.csv", "\n0,3,"));
  /* A run is what `kedge train` makes of the same settings. */
  training_expect(0, "",
                  "train run.yaml router.intervention=rpb router.prior=prior.safetensors router.beta=1 "
                  "seed=2 eval_split=6 output_dir=alone");
  training_same_run("beta/router.beta-1_seed-2", "alone", 5);
  assert_false(training_same("beta/router.beta-0_seed-2/model.safetensors", "alone/model.safetensors"));

  /* Again: nothing runs, the table is the same. */
  test_run again = sweep(0, "6 finished before", BETA_GRID);
  assert_null(strstr(again.err, "starts"));
  assert_string_equal(again.out, run.out);
  test_run_free(&again);
  /* Threads and saving change no number; another decay does, and so does more data. */
  sweep_expect(0, "6 finished before", BETA_GRID " threads=1 save_total_limit=1");
  sweep_expect(2, "holds a run of other settings (weight_decay was 0.1, is 0)", BETA_GRID " weight_decay=0");
  test_run_free(&run);
}

static void test_table(void **state) {
  (void)state;
  test_run run = sweep(0, "", BETA_GRID " --table --metric train/loss --metric 'train/g*'");
  assert_non_null(strstr(run.out, "train/grad_norm"));
  assert_null(strstr(run.out, "eval/loss"));
  assert_false(holds("beta/sweep.csv", "eval/loss"));
  test_run_free(&run);
  sweep_expect(0, "no finished run has a metric train/los", BETA_GRID " --table --metric train/los");
  /* A line that is no metrics is told of; a folder that is not there is not made. */
  size_t bytes;
  char *metrics = test_read(at("beta/router.beta-1_seed-2/metrics.jsonl"), &bytes);
  metrics[0] = 'x';
  test_write(at("beta/router.beta-1_seed-2/metrics.jsonl"), metrics, bytes);
  sweep_expect(0, "note: beta/router.beta-1_seed-2/metrics.jsonl:1: not a line of metrics, left out",
               BETA_GRID " --table");
  metrics[0] = '{';
  test_write(at("beta/router.beta-1_seed-2/metrics.jsonl"), metrics, bytes);
  free(metrics);
  sweep_expect(2, "nowhere: No such file or directory", "run.yaml --out nowhere --table");
  assert_false(test_exists(at("nowhere")));
  /* Another value of the grid: its row is empty, and the others stay. */
  run = sweep(0, "",
              "run.yaml router.intervention=rpb router.prior=prior.safetensors --grid router.beta=1,2 "
              "--seeds 1,2,3 eval_split=6 --out beta --table");
  assert_non_null(strstr(run.out, "3/3"));
  assert_non_null(strstr(run.out, "0/3"));
  test_run_free(&run);
  /* One seed has a mean and no deviation. */
  run = sweep(0, "",
              "run.yaml router.intervention=rpb router.prior=prior.safetensors --grid router.beta=0,1 "
              "--seeds 2 eval_split=6 --out beta --table");
  assert_non_null(strstr(run.out, "1/1"));
  assert_null(strstr(run.out, "+-"));
  json_t *o = json_file("beta/sweep.json");
  json_t *m = json_object_get(json_object_get(json_array_get(json_object_get(o, "rows"), 1), "metrics"),
                              "train/loss");
  assert_true(json_is_null(json_object_get(m, "sd")));
  near(json_number_value(json_object_get(m, "mean")),
       training_metric("beta/router.beta-1_seed-2", 5, "train/loss"));
  json_decref(o);
  test_run_free(&run);
}

/* ---- Stopped, killed, failed
 * ---------------------------------------------------------------------------------------- */

/* Far longer than a test may take: whoever waits for its end fails. */
#define ENDLESS "run.yaml max_steps=100000 --grid weight_decay=0,0.1 --seeds 7 --jobs 2 --out endless"
#define SHORT   "run.yaml max_steps=60 --grid weight_decay=0,0.1 --seeds 7 --jobs 2 --out short"

/* Starts a sweep and sends a signal to `target` ("$p": it alone; "-$p": its process group, as a terminal
 * does) when both runs have begun to train for the `nth` time; waits until the sweep has ended. */
static void interrupt(const char *arguments, const char *out, unsigned nth, const char *number,
                      const char *target, int code) {
  char command[2048];
  const char *program = getenv("KEDGE_BIN");
  snprintf(command, sizeof command,
           "cd '%s'; setsid '%s' sweep %s 2>said & p=$!; i=0; "
           "begun() { [ \"$(grep -c ^updates: %s/weight_decay-$1_seed-7/log.txt 2>none)\" = %u ]; }; "
           "until begun 0 && begun 0.1 || [ $i = 400 ]; do sleep 0.05; i=$((i + 1)); done; "
           "kill -%s %s; wait $p; echo $?",
           test_folder(), program ? program : "kedge", arguments, out, nth, number, target);
  test_run run = test_run_shell(command);
  if (atoi(run.out) != code) fail_msg("exit %s, want %d: %s", run.out, code, run.err);
  test_run_free(&run);
}

/* How often a text stands in a run's log. */
static unsigned in_log(const char *decay, const char *part) {
  char log[256];
  unsigned count = 0;
  size_t bytes;
  snprintf(log, sizeof log, "endless/weight_decay-%s_seed-7/log.txt", decay);
  char *text = test_read(at(log), &bytes);
  for (const char *place = text; (place = strstr(place, part)); place++) count++;
  free(text);
  return count;
}

static void test_stopped(void **state) {
  (void)state;
  static const char *const decays[] = {"0", "0.1"};
  interrupt(ENDLESS, "endless", 1, "TERM", "-$p", 130);
  assert_true(holds("said", "each run saves a checkpoint first"));
  assert_true(holds("said", "_seed-7: stopped, its checkpoint is saved"));
  assert_true(holds("said", "stopped with 0 of 2 runs finished; the same command goes on"));
  assert_true(holds("endless/weight_decay-0_seed-7/kedge_sweep.json", "\"finished\": false"));
  /* Killed, it cannot tell its runs any more; they save all the same. */
  interrupt(ENDLESS, "endless", 2, "KILL", "$p", 137);
  assert_true(holds("said", "0 finished before, 2 begun before"));
  assert_true(holds("said", "weight_decay-0_seed-7: goes on"));
  /* Their folders are waited for. */
  interrupt(ENDLESS, "endless", 3, "TERM", "$p", 130);
  assert_true(holds("said", "weight_decay-0.1_seed-7: goes on"));
  for (int i = 0; i < 2; i++) {
    assert_int_equal(in_log(decays[i], "is saved, go on with"), 3);
    assert_int_equal(in_log(decays[i], "updates: 100000 of 100000 to do"), 1);
    assert_int_equal(in_log(decays[i], "failed"), 0);
  }
}

/* A run may have come to its end before it was told to stop; its numbers are the same in any case. */
static void test_ends(void **state) {
  (void)state;
  training_expect(0, "", "train run.yaml max_steps=60 seed=7 output_dir=straight");
  interrupt(SHORT, "short", 1, "TERM", "$p", 130);
  test_run run = sweep(0, "", SHORT);
  assert_non_null(strstr(run.out, "1/1"));
  test_run_free(&run);
  training_same_run("short/weight_decay-0.1_seed-7", "straight", 60);
}

static void test_failed(void **state) {
  (void)state;
  test_run run = sweep(1, "absent.jsonl: No such file",
                       "run.yaml --grid 'dataset=[absent.jsonl],[train.jsonl]' --seeds 4 --out failed");
  assert_non_null(strstr(run.err, "failed: kedge train: "));
  assert_non_null(strstr(run.err, "1 runs are not finished"));
  assert_non_null(strstr(run.err, ": finished in"));
  assert_non_null(strstr(run.out, "0/1"));
  assert_non_null(strstr(run.out, "1/1"));
  test_run_free(&run);
  size_t bytes;
  char *text = test_read(at("train.jsonl"), &bytes);
  test_write(at("absent.jsonl"), text, bytes);
  free(text);
  run = sweep(0, "1 finished before, 1 begun before",
              "run.yaml --grid 'dataset=[absent.jsonl],[train.jsonl]' --seeds 4 --out failed");
  assert_non_null(strstr(run.err, "starts anew"));
  test_run_free(&run);
  /* Settings differ, the samples do not. */
  json_t *o = json_file("failed/sweep.json"), *rows = json_object_get(o, "rows");
  assert_true(json_equal(json_object_get(json_array_get(rows, 0), "metrics"),
                         json_object_get(json_array_get(rows, 1), "metrics")));
  json_decref(o);
}

/* ---- Mistakes, names
 * ------------------------------------------------------------------------------------------------ */

static void refused(const char *err, const char *arguments) {
  test_run run = sweep(2, err, arguments);
  if (strchr(run.err, '\n') != run.err + strlen(run.err) - 1) fail_msg("more than a line: %s", run.err);
  if (test_exists(at("no"))) fail_msg("sweep %s: made a folder", arguments);
  test_run_free(&run);
}

static void test_mistakes(void **state) {
  (void)state;
  refused("missing argument", "");
  refused("key \"router[0].bet\": unknown",
          "run.yaml router.intervention=rpb --grid router.bet=0,1 --out no");
  refused("expected a number, came \"much\"", "run.yaml --grid learning_rate=1e-3,much --out no");
  refused("router.beta=-1", "run.yaml router.intervention=rpb --grid router.beta=0,-1 --out no");
  refused("\"rbp\" is not one of none", "run.yaml --grid router.intervention=none,rbp --out no");
  refused("expected KEY=VALUE", "run.yaml --grid learning_rate --out no");
  refused("a value is empty", "run.yaml --grid learning_rate=1e-3,,1e-2 --out no");
  refused("given twice", "run.yaml --grid learning_rate=1e-3,1e-3 --out no");
  refused("given twice", "run.yaml --grid learning_rate=1e-3 --grid learning_rate=1e-2 --out no");
  refused("given twice", "run.yaml learning_rate=1 --grid learning_rate=1e-3 --out no");
  refused("given twice", "run.yaml seed=3 --seeds 1,2 --out no");
  refused("given twice", "run.yaml --seeds 1,1 --out no");
  refused("expected whole numbers", "run.yaml --seeds 1,x --out no");
  refused("--jobs", "run.yaml --jobs 0 --out no");
  refused("take it out of the grid", "run.yaml --grid output_dir=a,b --out no");
  refused("report_to", "run.yaml report_to=none --out no");
  refused("resume_from_checkpoint", "run.yaml resume_from_checkpoint=x --out no");
  refused("more than 4096 runs", "run.yaml --grid per_device_train_batch_size=1,2,3,4,5,6,7,8 --grid "
                                 "max_steps=1,2,3,4,5,6,7,8 --grid max_length=11,12,13,14,15,16,17,18 --grid "
                                 "gradient_accumulation_steps=1,2,3,4,5,6,7,8 --seeds 1,2 --out no");
  refused("absent.yaml: No such file", "absent.yaml --out no");
  /* A folder of something else is left alone. */
  test_make_folder(at("mine"));
  test_make_folder(at("mine/seed-1"));
  test_write_text(at("mine/seed-1/notes"), "mine");
  sweep_expect(1, "holds files that no sweep wrote", "run.yaml --seeds 1 --out mine");
  assert_int_equal(test_entries(at("mine/seed-1")), 1);
}

static void test_names(void **state) {
  (void)state;
  test_run run = sweep(0, "",
                       "run.yaml --grid 'dataset=[train.jsonl],[train.jsonl, train.jsonl]' --grid "
                       "'adam_beta2=0.9,0.95' --seeds 3,4 --out no --dry-run");
  char *line = strtok(run.out, "\n");
  assert_non_null(strstr(line, "no/adam_beta2-0.9_dataset--train.jsonl-_"));
  assert_non_null(strstr(line, "_seed-3: to do"));
  char *names[8] = {line};
  for (int i = 1; i < 8; i++) {
    names[i] = strtok(NULL, "\n");
    assert_non_null(names[i]);
    for (int j = 0; j < i; j++) assert_string_not_equal(names[i], names[j]);
    assert_int_equal(strspn(names[i] + 3, "abcdefghijklmnopqrstuvwxyz0123456789._-"),
                     strlen(names[i]) - 3 - strlen(": to do"));
  }
  assert_null(strtok(NULL, "\n"));
  test_run_free(&run);
  /* The order of the options is none of the name's business. */
  run = sweep(0, "", "run.yaml --grid weight_decay=0 --grid adam_beta2=0.9 --seeds 3 --out no --dry-run");
  test_run other =
      sweep(0, "", "run.yaml --grid adam_beta2=0.9 --grid weight_decay=0 --seeds 3 --out no --dry-run");
  assert_string_equal(run.out, "no/adam_beta2-0.9_weight_decay-0_seed-3: to do\n");
  assert_string_equal(other.out, run.out);
  test_run_free(&run);
  test_run_free(&other);
  /* Entries of a list of interventions; without --seeds and --out the configuration's. */
  run = sweep(0, "",
              "run.yaml 'router=[{intervention: kl, prior: p}, {intervention: z_loss}]' --grid "
              "'router[1].coef=1e-3' --dry-run");
  assert_string_equal(run.out, "out/router1.coef-1e-3_seed-42: to do\n");
  test_run_free(&run);
  assert_false(test_exists(at("no")));
}

/* ---- train --dry-run
 * ------------------------------------------------------------------------------------------------ */

static void test_dry_run(void **state) {
  (void)state;
  test_remove(at("dry"));
  const unsigned before = test_entries(test_folder());
  test_run run = training_kedge("train run.yaml output_dir=dry router.intervention=rpb router.beta=0.5 "
                                "router.prior=prior.safetensors --dry-run");
  assert_int_equal(run.exit_code, 0);
  assert_non_null(strstr(run.out, "output_dir: dry\n"));
  assert_non_null(strstr(run.err, "router: rpb with beta 0.5, "));
  assert_non_null(strstr(run.err, "updates: 6 of 12 rows, 18 micro-batches, "));
  assert_non_null(strstr(run.err, "memory: about "));
  assert_non_null(strstr(run.err, "the router's 512 among them"));
  assert_non_null(strstr(run.err, "nothing was written"));
  test_run_free(&run);
  assert_false(test_exists(at("dry")));
  assert_int_equal(test_entries(test_folder()), before);
  /* What a run would refuse is refused. */
  test_make_folder(at("taken"));
  test_write_text(at("taken/metrics.jsonl"), "{}\n");
  training_expect(2, "output_dir taken holds another run", "train run.yaml output_dir=taken --dry-run");
  training_expect(0, "nothing was written",
                  "train run.yaml output_dir=taken overwrite_output_dir=true --dry-run");
  training_expect(0, "warm-up 9 (all there are)", "train run.yaml output_dir=dry warmup_steps=9 --dry-run");
  training_expect(2, "No such file", "train run.yaml output_dir=dry dataset=[nothing.jsonl] --dry-run");
  training_expect(2, "",
                  "train run.yaml output_dir=dry max_length=30 router.intervention=rpb "
                  "router.prior=prior.safetensors --dry-run");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_whole), cmocka_unit_test(test_table),   cmocka_unit_test(test_stopped),
      cmocka_unit_test(test_ends),  cmocka_unit_test(test_failed),  cmocka_unit_test(test_mistakes),
      cmocka_unit_test(test_names), cmocka_unit_test(test_dry_run),
  };
  return cmocka_run_group_tests_name("sweep", tests, prepare, NULL);
}
