/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * Runs that are hurt: killed at any moment, interrupted, out of disk, given a damaged checkpoint or model.
 * What was saved stays usable, and going on gives the bits of the run that was left alone.
 */
#include "tests/support/files.h"
#include "tests/support/training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SAMPLES = 66, STEPS = 11 };

static int prepare(void **state) {
  (void)state;
  training_prepare(SAMPLES);
  training_expect(0, "", "train run.yaml output_dir=whole");
  return 0;
}

static const char *in(const char *path) {
  return test_path(test_folder(), path);
}

/* A shell line in the test folder. */
static int shell(const char *format, ...) {
  char line[2048], command[4096];
  va_list list;
  va_start(list, format);
  vsnprintf(line, sizeof line, format, list);
  va_end(list);
  snprintf(command, sizeof command, "cd '%s' && %s", test_folder(), line);
  test_run run = test_run_shell(command);
  int code = run.exit_code;
  test_run_free(&run);
  return code;
}

/* Killed at moments that move through start, updates and saves, saving at every step; each time it goes on.
 */
static void test_kill(void **state) {
  (void)state;
  int killed = 0;
  for (int i = 0; i < 20; i++)
    killed += shell("timeout -s KILL 0.%03d \"$KEDGE_BIN\" train run.yaml output_dir=killed save_steps=1 "
                    "resume_from_checkpoint=true overwrite_output_dir=true 2> /dev/null",
                    20 + 6 * i) == 137;
  assert_true(killed >= 3);
  training_expect(
      0, "",
      "train run.yaml output_dir=killed save_steps=1 resume_from_checkpoint=true overwrite_output_dir=true");
  training_same_run("killed", "whole", STEPS);
  assert_int_equal(shell("! ls -a killed | grep -q partial"), 0);
}

/* SIGTERM saves and ends with status 130; resuming gives the same run. */
static void test_terminate(void **state) {
  (void)state;
  int code = shell(
      "(\"$KEDGE_BIN\" train run.yaml output_dir=term num_train_epochs=400 & p=$!; "
      "while ! grep -q step term/metrics.jsonl 2>/dev/null; do sleep 0.01; done; kill -TERM $p; wait $p)");
  assert_int_equal(code, 130);
  assert_int_equal(shell("ls term | grep -c '^checkpoint-' | grep -qx 1"), 0);
}

/* A limit on file sizes stands for a full disk: the error names the file, the older checkpoint stays whole.
 */
static void test_full_disk(void **state) {
  (void)state;
  training_expect(0, "", "train run.yaml output_dir=full save_steps=4 max_steps=4");
  assert_int_equal(shell("cp -r full/checkpoint-4 keep"), 0);
  assert_int_equal(
      shell("(ulimit -f 64; \"$KEDGE_BIN\" train run.yaml output_dir=full2 save_steps=4 2> err)"), 2);
  assert_int_equal(shell("grep -q 'was not written' err && ! ls full2 | grep -q checkpoint-"), 0);
  assert_int_equal(shell("diff -r keep full/checkpoint-4"), 0);
}

/* A disk that cannot hold what a run saves is told of before the first update, not after the last. Needs a
 * file system of its own. */
static void test_small_disk(void **state) {
  (void)state;
  if (shell("unshare -rm true 2> /dev/null")) {
    puts("1 test skipped: no user namespaces here");
    skip();
  }
  static const char *const saves[] = {"save_steps=0", "save_strategy=no"};
  for (int i = 0; i < 2; i++) {
    assert_int_equal(shell("mkdir -p small && unshare -rm sh -c 'mount -t tmpfs -o size=1m none small && "
                           "\"$KEDGE_BIN\" train run.yaml output_dir=small/run %s 2> err; code=$?; "
                           "ls -A small/run > files; exit $code'",
                           saves[i]),
                     2);
    assert_int_equal(shell("grep -q 'small/run: [0-9]* bytes are needed, [0-9]* are free' err && "
                           "! grep -q '^step ' err && test ! -s files"),
                     0);
  }
}

/* Checkpoints that are not whole are passed over; a damaged one that is named is an error. */
static void test_damaged_checkpoint(void **state) {
  (void)state;
  training_expect(0, "", "train run.yaml output_dir=bad save_steps=5");
  assert_int_equal(shell("rm -r bad/checkpoint-11 bad/config.json && rm bad/checkpoint-10/kedge_run.json"),
                   0);
  training_expect(0, "checkpoint-10 is not a whole checkpoint",
                  "train run.yaml output_dir=bad resume_from_checkpoint=true");
  training_same_run("bad", "whole", STEPS);
  static const char *const harm[] = {"rm %s/optimizer.safetensors",
                                     "truncate -s -10 %s/optimizer.safetensors", "rm %s/trainer_state.json",
                                     "rm %s/model.safetensors", "rm %s/config.json"};
  for (size_t i = 0; i < sizeof harm / sizeof *harm; i++) {
    assert_int_equal(shell("rm -rf harmed && mkdir harmed && cp -r bad/checkpoint-5 harmed/ && cp -r "
                           "whole/checkpoint-11 whole/metrics.jsonl harmed/"),
                     0);
    assert_int_equal(shell(harm[i], "harmed/checkpoint-11"), 0);
    training_expect(0, "checkpoint-11 is not a whole checkpoint",
                    "train run.yaml output_dir=harmed resume_from_checkpoint=true");
    training_same_run("harmed", "whole", STEPS);
  }
  assert_int_equal(shell("truncate -s 1000 bad/checkpoint-5/optimizer.safetensors"), 0);
  training_expect(2, "optimizer.safetensors",
                  "train run.yaml output_dir=b2 resume_from_checkpoint=bad/checkpoint-5");
  test_write_text(in("bad/checkpoint-5/kedge_run.json"), "{\"step\": -1}");
  training_expect(2, "kedge_run.json",
                  "train run.yaml output_dir=b3 resume_from_checkpoint=bad/checkpoint-5");
}

/* Models that are not what their config says. */
static void test_bad_models(void **state) {
  (void)state;
  assert_int_equal(shell("cp -r base m && sed -i 's/\"num_experts\": 8/\"num_experts\": 9/' m/config.json"),
                   0);
  training_expect(2, "mlp.gate.weight: expected shape [9,32]",
                  "train run.yaml output_dir=x model_name_or_path=m");
  assert_int_equal(shell("sed -i 's/\"num_experts\": 9/\"num_experts\": 7/' m/config.json"), 0);
  training_expect(2, "experts.7", "train run.yaml output_dir=x model_name_or_path=m");
  assert_int_equal(
      shell("cp base/config.json m/ && sed -i 's/experts.3.up_proj/experts.3.uP_proj/' m/model.safetensors"),
      0);
  training_expect(2, "experts.3.uP_proj", "train run.yaml output_dir=x model_name_or_path=m");
  assert_int_equal(shell("cp base/* m/ && sed -i 's/qwen3_moe/qwen9_moe/' m/config.json"), 0);
  training_expect(2, "qwen9_moe", "train run.yaml output_dir=x model_name_or_path=m");
  training_expect(2, "missing", "train run.yaml output_dir=x model_name_or_path=missing");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_kill),
                                     cmocka_unit_test(test_terminate),
                                     cmocka_unit_test(test_full_disk),
                                     cmocka_unit_test(test_small_disk),
                                     cmocka_unit_test(test_damaged_checkpoint),
                                     cmocka_unit_test(test_bad_models)};
  return cmocka_run_group_tests(tests, prepare, NULL);
}
