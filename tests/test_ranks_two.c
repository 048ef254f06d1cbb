/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Two ranks, briefly, so that the sanitizers see all that ranks do whenever the quick suites run: training
 * with whole and with shared experts, a checkpoint that goes on elsewhere, priors, traces, probes and
 * evaluations against one rank's, and refusals. The suites `ranks` look closer. */
#include "tests/support/explain.h"
#include "tests/support/files.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 3 };

static int prepare(void **state) {
  (void)state;
  training_prepare(10);
  return 0;
}

static void train(const char *out, int ranks, const char *more) {
  ranks_expect(
      ranks, 0, "trained model",
      "train run.yaml output_dir=%s max_steps=%d gradient_accumulation_steps=2 threads=1 save_steps=1 "
      "per_device_train_batch_size=%d %s",
      out, STEPS, 4 / ranks, more);
}

static void test_training(void **state) {
  (void)state;
  explain_report report;
  train("one", 1, "");
  train("two", 2, "");
  train("shared", 2, "expert_parallel=2");
  explain_runs("one", "two", STEPS, 1e-5, 1e-5, &report);
  assert_true(explain_holds("2 ranks", &report, 1e-5));
  explain_runs("one", "shared", STEPS, 1e-5, 1e-5, &report);
  assert_true(explain_holds("2 ranks that share experts", &report, 1e-5));
  /* Two stop after the second update, one goes on. */
  test_remove(test_path(test_folder(), "shared/checkpoint-3"));
  train("shared", 1, "resume_from_checkpoint=true");
  assert_true(fabs(training_metric("shared", 3, "train/loss") - training_metric("one", 3, "train/loss")) <=
              1e-5);
}

static void test_measures(void **state) {
  (void)state;
  for (int ranks = 1; ranks <= 2; ranks++) {
    ranks_expect(ranks, 0, "", "prior --model base --data train.jsonl --out p%d --batch-size 3 --threads 1",
                 ranks);
    ranks_expect(
        ranks, 0, "",
        "probe --base base --post one --data train.jsonl --batch-size 3 --threads 1 --no-communities "
        "--selection --json b%d --trace-out t%d",
        ranks, ranks);
    ranks_expect(
        ranks, 0, "",
        "eval --model one --suite train.jsonl --max-new-tokens 4 --threads 1 --out e%d --router-bias base",
        ranks);
  }
  assert_true(training_same("p1", "p2"));
  assert_true(training_same("b1", "b2"));
  assert_true(training_same("t1/base.safetensors", "t2/base.safetensors"));
  assert_true(training_same("e1/items.jsonl", "e2/items.jsonl"));
  assert_true(training_same("e1/summary.json", "e2/summary.json"));
}

/* The second rank's output_dir is on a disk of its own. */
static void test_own_disks(void **state) {
  (void)state;
  char command[5000];
  const char *program = getenv("KEDGE_BIN");
  snprintf(
      command, sizeof command,
      "cd '%s' && mkdir own && cp -r base train.jsonl run.yaml own && timeout 100 mpirun --allow-run-as-root "
      "--oversubscribe --bind-to none -n 1 '%s' train run.yaml output_dir=mine : -n 1 -wdir '%s/own' '%s' "
      "train "
      "run.yaml output_dir=mine",
      test_folder(), program, test_folder(), program);
  test_run run = test_run_shell(command);
  if (run.exit_code == 0 ||
      !strstr(run.err, "kedge train: rank 1: output_dir mine: is not the folder that rank 0 has"))
    fail_msg("exit %d, said \"%s\"", run.exit_code, run.err);
  test_run_free(&run);
  assert_int_equal(test_entries(test_path(test_folder(), "mine")), 0);
}

static void test_refusals(void **state) {
  (void)state;
  ranks_expect(2, 2, "kedge train: nowhere", "train run.yaml model_name_or_path=nowhere output_dir=no");
  ranks_expect(2, 2, "kedge eval: nowhere", "eval --model nowhere --suite train.jsonl");
  ranks_expect(2, 2, "this command is for one", "generate --model base --prompt a");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_training),
      cmocka_unit_test(test_measures),
      cmocka_unit_test(test_own_disks),
      cmocka_unit_test(test_refusals),
  };
  if (!ranks_possible()) return 77;
  return cmocka_run_group_tests_name("ranks: two", tests, prepare, NULL);
}
