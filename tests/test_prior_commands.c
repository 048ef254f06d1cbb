/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * `kedge prior`, `prior-shuffle` and `prior-info` as programs: killed and continued, smaller files, controls
 * as a file and on the fly, what they print and what they refuse.
 */
#include "tests/support/files.h"
#include "tests/support/training.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SAMPLES = 24 };

static const char *in(const char *path) {
  return test_path(test_folder(), path);
}

static int prepare(void **state) {
  (void)state;
  training_prepare(SAMPLES);
  training_expect(0, "", "prior --config run.yaml --out prior.st");
  test_write_text(
      in("communities.json"),
      "{\"layers\": [[0, 0, 0, 1, 1, 1, 2, 2], [0, 1, 0, 1, 0, 1, 2, 3]], \"layer_numbers\": [0, 1]}");
  return 0;
}

/* A shell line in the test folder; its exit status. */
static int shell(const char *line) {
  char command[2048];
  snprintf(command, sizeof command, "cd '%s' && (%s)", test_folder(), line);
  test_run run = test_run_shell(command);
  int code = run.exit_code;
  test_run_free(&run);
  return code;
}

static void expect_out(const char *want, const char *format, const char *argument) {
  char line[512];
  snprintf(line, sizeof line, format, argument);
  test_run run = training_kedge("%s", line);
  if (run.exit_code || !strstr(run.out, want))
    fail_msg("%s: expected \"%s\" in: %s%s", line, want, run.out, run.err);
  test_run_free(&run);
}

/* The program dies in the middle of a longer file; the same command goes on. */
static void test_killed_run(void **state) {
  (void)state;
  assert_int_equal(shell("for i in $(seq 200); do cat train.jsonl; done > long.jsonl; "
                         "\"$KEDGE_BIN\" prior --model base --threads 1 --batch-size 1 --data long.jsonl "
                         "--out long.st 2> err"),
                   0);
  static const char *const signals[] = {"KILL", "TERM"};
  static const int codes[] = {137, 130};
  for (int i = 0; i < 2; i++) {
    char line[1024];
    snprintf(line, sizeof line,
             "rm -f cut.st*; \"$KEDGE_BIN\" prior --model base --threads 1 --batch-size 1 --data long.jsonl "
             "--out cut.st 2> err & p=$!; "
             "while ! [ -e cut.st.partial ]; do kill -0 $p || exit 9; sleep 0.01; done; sleep 0.05; "
             "kill -%s $p; wait $p; [ $? = %d ] && [ -e cut.st.partial ] && ! [ -e cut.st ]",
             signals[i], codes[i]);
    assert_int_equal(shell(line), 0);
    training_expect(2, "cut.st.partial: begun with ",
                    "prior --model base --threads 1 --batch-size 1 --data train.jsonl --out cut.st");
    training_expect(0, "note: resuming at sample ",
                    "prior --model base --threads 1 --batch-size 1 --data long.jsonl --out cut.st");
    assert_true(training_same("cut.st", "long.st"));
    assert_false(test_exists(in("cut.st.partial")));
  }
  assert_int_equal(shell("grep -q 'the same command goes on from there' err"), 0);
}

static void test_store(void **state) {
  (void)state;
  training_expect(0, "", "prior --config run.yaml --store f16 --out half.st");
  training_expect(0, "",
                  "train run.yaml max_steps=2 output_dir=h1 router.intervention=rpb router.prior=half.st");
  training_expect(2, "half.st: holds f16",
                  "train run.yaml max_steps=2 output_dir=h2 router.intervention=kl router.prior=half.st");
  training_expect(2, "--store: expected f32 or f16, got \"f8\"",
                  "prior --config run.yaml --store f8 --out x.st");
  training_expect(2, "--store f16", "prior --config run.yaml --dtype f16 --out x.st");
  assert_false(test_exists(in("x.st")) || test_exists(in("h2"))); /* found before the run */
}

/* Training with a shuffled file and with the shuffle of the configuration: the same run, and not the plain
 * one. */
static void test_shuffles(void **state) {
  (void)state;
  training_expect(0, "",
                  "prior-shuffle --prior prior.st --mode within --seed 3 --communities communities.json "
                  "--out within.st");
  training_expect(0, "", "prior-shuffle --prior prior.st --mode global --seed 3 --out global.st");
  static const struct {
    const char *file, *flight;
  } runs[] = {{"within", "router.shuffle=within router.communities=communities.json router.shuffle_seed=3"},
              {"global", "router.shuffle=global router.shuffle_seed=3"}};
  static const char *const kinds[] = {"rpb", "rpb_hard"};
  training_expect(
      0, "", "train run.yaml max_steps=2 output_dir=plain router.intervention=rpb router.prior=prior.st");
  for (int i = 0; i < 2; i++)
    for (int k = 0; k < 2; k++) {
      training_expect(
          0,
          i ? "permuted in its file: global, seed 3\n" : "permuted in its file: within, seed 3, communities ",
          "train run.yaml max_steps=2 overwrite_output_dir=true output_dir=file router.intervention=%s "
          "router.prior=%s.st",
          kinds[k], runs[i].file);
      training_expect(0, "",
                      "train run.yaml max_steps=2 overwrite_output_dir=true output_dir=flight "
                      "router.intervention=%s router.prior=prior.st %s",
                      kinds[k], runs[i].flight);
      assert_true(training_same("file/model.safetensors", "flight/model.safetensors"));
      assert_false(training_same("file/model.safetensors", "plain/model.safetensors"));
    }
  const char *rpb = "train run.yaml output_dir=no router.intervention=rpb";
  training_expect(2, "within.st: is shuffled already (within, seed 3, communities ",
                  "%s router.prior=within.st router.shuffle=global", rpb);
  training_expect(2, "key \"router.communities\"", "%s router.prior=prior.st router.shuffle=within", rpb);
  training_expect(2, "is shuffled already", "prior-shuffle --prior global.st --mode global --out again.st");
  training_expect(2, "--mode: expected within or global, got \"all\"",
                  "prior-shuffle --prior prior.st --mode all --out again.st");
  training_expect(2, "--communities FILE", "prior-shuffle --prior prior.st --mode within --out again.st");
  training_expect(
      2, "no part in --mode global",
      "prior-shuffle --prior prior.st --mode global --communities communities.json --out again.st");
  training_expect(2, "would replace the data", "prior-shuffle --prior prior.st --mode global --out prior.st");
  test_write_text(in("few.json"), "{\"layers\": [[0, 0, 0, 1, 1, 1, 2, 2]]}");
  training_expect(2, "few.json: communities of 1 layers with 8 experts, the prior has 2 with 8",
                  "prior-shuffle --prior prior.st --mode within --communities few.json --out again.st");
  assert_false(test_exists(in("again.st")));
}

static double number(const json_t *root, const char *group, const char *key) {
  const json_t *value = json_object_get(json_object_get(root, group), key);
  if (!json_is_number(value)) fail_msg("no number %s.%s", group, key);
  return json_number_value(value);
}

static void test_info(void **state) {
  (void)state;
  json_error_t error;
  expect_out("24 samples, 2 MoE layers, 8 experts, f32", "prior-info %s", "prior.st");
  expect_out("shuffle: global, seed 3", "prior-info %s", "global.st");
  expect_out("overlap of the top 2; |db| with beta 0.5",
             "prior-info prior.st --against global.st --beta 0.5 --json %s", "info.json");
  json_t *root = json_load_file(in("info.json"), 0, &error);
  if (!root) fail_msg("info.json: %s", error.text);
  assert_int_equal(number(root, "all", "rows"), 2 * 2 * SAMPLES);
  assert_int_equal(number(root, "all", "undefined"), 0);
  assert_true(fabs(number(root, "all", "overlap") + number(root, "all", "change") - 1) < 1e-15);
  assert_true(number(root, "prompt", "sd") > 0 && number(root, "answer", "db_p90") > 0);
  assert_string_equal(json_string_value(json_object_get(json_object_get(root, "against"), "shuffle")),
                      "global, seed 3");
  assert_int_equal(json_array_size(json_object_get(root, "layers")), 2);
  const double wide = number(root, "all", "db_p90");
  json_decref(root);
  expect_out("|db| with beta 1", "prior-info prior.st --against global.st --json %s", "info.json");
  root = json_load_file(in("info.json"), 0, &error);
  assert_true(fabs(number(root, "all", "db_p90") - 2 * wide) < 1e-6);
  json_decref(root);
  training_expect(2, "base/model.safetensors: no tensor", "prior-info base/model.safetensors");
  training_expect(2, "overlap of the top 9 of 8", "prior-info prior.st --against prior.st --top-k 9");
  training_expect(2, "would replace the data", "prior-info prior.st --json prior.st");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_killed_run),
      cmocka_unit_test(test_store),
      cmocka_unit_test(test_shuffles),
      cmocka_unit_test(test_info),
  };
  return cmocka_run_group_tests_name("prior_commands", tests, prepare, NULL);
}
