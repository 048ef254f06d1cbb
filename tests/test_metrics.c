/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * metrics.jsonl and trainer_state.json: form, resuming after any cut, replacing at once. */
#include "models/training/metrics.h"
#include "tests/support/files.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char path[512];

static char *read_text(const char *name) {
  size_t bytes;
  return test_read(name, &bytes);
}

static int set_up(void **state) {
  (void)state;
  snprintf(path, sizeof path, "%s", test_path(test_folder(), "metrics.jsonl"));
  test_remove(path);
  return 0;
}

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s", kedge_message());
}

static void expect_file(const char *want) {
  char *got = read_text(path);
  assert_non_null(got);
  assert_string_equal(got, want);
  free(got);
}

/* Opens, writes steps first..last, closes. */
static void write_steps(uint64_t resume, uint64_t first, uint64_t last) {
  kedge_metrics *metrics;
  ok(kedge_metrics_open(path, resume, &metrics));
  for (uint64_t step = first; step <= last; step++) {
    const kedge_metric items[] = {{"train/loss", 1.0 / (double)step}};
    ok(kedge_metrics_write(metrics, step, (double)step / 4, items, 1));
  }
  ok(kedge_metrics_close(metrics));
}

static void test_line(void **state) {
  (void)state;
  kedge_metrics *metrics;
  ok(kedge_metrics_open(path, 0, &metrics));
  const kedge_metric items[] = {{"train/loss", 0.1},     {"train/learning_rate", 2e-5},
                                {"train/tokens", 8192},  {"router/lb_loss", (double)NAN},
                                {"a", (double)INFINITY}, {"b", -0.0}};
  ok(kedge_metrics_write(metrics, 3, 0.5, items, 6));
  expect_file("{\"step\": 3, \"epoch\": 0.5, \"train/loss\": 0.1, \"train/learning_rate\": 2e-05, "
              "\"train/tokens\": 8192, \"router/lb_loss\": null, \"a\": null, \"b\": 0}\n"); /* flushed before
                                                                                                the end */
  ok(kedge_metrics_close(metrics));
}

static void test_resume(void **state) {
  (void)state;
  write_steps(0, 1, 10);
  char *whole = read_text(path);
  write_steps(5, 6, 10); /* steps 6..10 are written again, not twice */
  expect_file(whole);
  /* Cut anywhere after step 5's line, the resumed file is the same. */
  size_t length = strlen(whole), after_5 = 0;
  for (int lines = 0; lines < 5; after_5++) lines += whole[after_5] == '\n';
  for (size_t cut = after_5; cut <= length; cut++) {
    test_write(path, whole, cut);
    write_steps(5, 6, 10);
    expect_file(whole);
  }
  write_steps(0, 1, 2); /* a new run begins a new file */
  assert_true(strlen(whole) > 100);
  char *two = read_text(path);
  assert_memory_equal(two, whole, strlen(two));
  assert_int_equal(two[strlen(two) - 1], '\n');
  free(two);
  free(whole);
}

static void test_resume_odd(void **state) {
  (void)state;
  kedge_metrics *metrics;
  ok(kedge_metrics_open(path, 7, &metrics)); /* no file yet */
  ok(kedge_metrics_close(metrics));
  static const char odd[] = "{\"note\": 1}\n\n{\"step\": 9}\n{\"step\": 2}\n\0\0\0\n";
  test_write(path, odd, sizeof odd - 1); /* zeros where the disk lost the last line */
  ok(kedge_metrics_open(path, 7, &metrics));
  ok(kedge_metrics_close(metrics));
  expect_file("{\"note\": 1}\n{\"step\": 2}\n");
  static const char bad[] = "{\"step\": 1}\n[1]\n{\"step\": 2}\n";
  test_write(path, bad, sizeof bad - 1);
  assert_int_equal(kedge_metrics_open(path, 7, &metrics), KEDGE_ERR_FORMAT);
  assert_non_null(strstr(kedge_message(), "metrics.jsonl:2: "));
  assert_null(metrics);
  expect_file(bad); /* untouched */
  const char *missing = test_path(test_folder(), "no/metrics.jsonl");
  assert_int_equal(kedge_metrics_open(missing, 0, &metrics), KEDGE_ERR_IO);
  assert_non_null(strstr(kedge_message(), missing));
}

static void test_full_disk(void **state) {
  (void)state;
  if (access("/dev/full", W_OK)) {
    print_message("1 skipped: no /dev/full here\n");
    skip();
  }
  kedge_metrics *metrics;
  ok(kedge_metrics_open("/dev/full", 0, &metrics));
  const kedge_metric item = {"train/loss", 1};
  assert_int_equal(kedge_metrics_write(metrics, 1, 0, &item, 1), KEDGE_ERR_IO);
  kedge_metrics_close(metrics);
}

static void test_state(void **state) {
  (void)state;
  kedge_trainer_state *made, *read;
  const char *file = test_path(test_folder(), "trainer_state.json");
  ok(kedge_trainer_state_new(&made));
  ok(kedge_trainer_state_set(made, "global_step", 20));
  ok(kedge_trainer_state_set(made, "epoch", 0.1));
  ok(kedge_trainer_state_set(made, "max_steps", 782));
  ok(kedge_trainer_state_set(made, "best_metric", 1.25));
  ok(kedge_trainer_state_set_best(made, "out/checkpoint-\"20\""));
  const kedge_metric log[] = {{"loss", 2.5}, {"grad_norm", (double)NAN}, {"learning_rate", 2e-5}};
  ok(kedge_trainer_state_log(made, 10, 0.05, log, 3));
  ok(kedge_trainer_state_log(made, 20, 0.1, &(kedge_metric){"eval_loss", 1.25}, 1));
  ok(kedge_trainer_state_log(made, 30, 0.15, log, 3)); /* beyond global_step: dropped when read */
  ok(kedge_trainer_state_save(made, file));
  kedge_trainer_state_free(made);
  char *text = read_text(file);
  assert_non_null(strstr(text, "\"learning_rate\": 2e-05"));
  json_t *json = json_loads(text, 0, NULL);
  free(text);
  assert_non_null(json);
  static const char *const keys[] = {"best_global_step",
                                     "best_metric",
                                     "best_model_checkpoint",
                                     "epoch",
                                     "eval_steps",
                                     "global_step",
                                     "log_history",
                                     "is_hyper_param_search",
                                     "logging_steps",
                                     "max_steps",
                                     "num_input_tokens_seen",
                                     "num_train_epochs",
                                     "save_steps",
                                     "total_flos",
                                     "train_batch_size",
                                     "is_local_process_zero",
                                     "trial_name",
                                     "is_world_process_zero",
                                     "stateful_callbacks",
                                     "trial_params"};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (!json_object_get(json, keys[i])) fail_msg("no key %s", keys[i]);
  assert_int_equal(json_object_size(json), sizeof keys / sizeof *keys);
  assert_string_equal(json_string_value(json_object_get(json, "best_model_checkpoint")),
                      "out/checkpoint-\"20\"");
  assert_true(
      json_is_null(json_object_get(json_array_get(json_object_get(json, "log_history"), 0), "grad_norm")));
  json_decref(json);
  ok(kedge_trainer_state_load(file, &read));
  assert_int_equal(kedge_trainer_state_logs(read), 2);
  double value;
  ok(kedge_trainer_state_get(read, "epoch", &value));
  assert_true(value == 0.1);
  assert_int_equal(kedge_trainer_state_get(read, "trial_name", &value), KEDGE_ERR_FORMAT);
  kedge_trainer_state_free(read);
}

/* The keys of the run itself, as transformers resolves them. */
static void test_state_run(void **state) {
  (void)state;
  static const struct {
    const char *text;
    int log, save, eval, epochs, updates; /* 0: null */
  } runs[] = {{"logging_steps: 0.5\nsave_steps: 7\nnum_train_epochs: 1.5\neval_split: 1\neval_steps: 3\n", 10,
               7, 3, 2, 19},
              {"max_steps: 30\nsave_strategy: epoch\nlogging_steps: 0\n", 0, 0, 0, 3, 30},
              {"saves_per_epoch: 2\n", 10, 0, 0, 3, 38}};
  static const char *const keys[] = {"logging_steps", "save_steps", "eval_steps"};
  for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
    kedge_config config;
    kedge_schedule schedule;
    kedge_trainer_state *made;
    double value;
    ok(kedge_config_parse(&config, "run", runs[i].text, strlen(runs[i].text), NULL, 0));
    ok(kedge_schedule_init(&schedule, &config, 100, 1));
    ok(kedge_trainer_state_new(&made));
    ok(kedge_trainer_state_set_run(made, &config, &schedule));
    const int wanted[] = {runs[i].log, runs[i].save, runs[i].eval};
    for (size_t j = 0; j < 3; j++) {
      kedge_status status = kedge_trainer_state_get(made, keys[j], &value);
      assert_int_equal(status, wanted[j] ? KEDGE_OK : KEDGE_ERR_FORMAT);
      if (wanted[j]) assert_int_equal((int)value, wanted[j]);
    }
    ok(kedge_trainer_state_get(made, "num_train_epochs", &value));
    assert_int_equal((int)value, runs[i].epochs);
    ok(kedge_trainer_state_get(made, "max_steps", &value));
    assert_int_equal((int)value, runs[i].updates);
    ok(kedge_trainer_state_get(made, "train_batch_size", &value));
    assert_int_equal((int)value, 8);
    kedge_trainer_state_free(made);
    kedge_config_destroy(&config);
  }
}

static void test_state_refused(void **state) {
  (void)state;
  static const char *const bad[] = {"",
                                    "[]",
                                    "{\"global_step\": 1",
                                    "{\"global_step\": 1}",
                                    "{\"global_step\": -1, \"log_history\": []}",
                                    "{\"global_step\": 1.5, \"log_history\": []}",
                                    "{\"global_step\": 1, \"log_history\": [{}]}",
                                    "{\"global_step\": 1, \"log_history\": [1]}",
                                    "{\"global_step\": 1, \"global_step\": 2, \"log_history\": []}"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    kedge_trainer_state *read;
    test_write(path, bad[i], strlen(bad[i]));
    if (kedge_trainer_state_load(path, &read) != KEDGE_ERR_FORMAT) fail_msg("accepted: %s", bad[i]);
    assert_null(read);
  }
}

/* Every allocation of ours fails once: an error, no leak, no half file. */
static void test_memory(void **state) {
  (void)state;
  write_steps(0, 1, 3);
  char *before = read_text(path);
  for (uint64_t nth = 1;; nth++) {
    kedge_metrics *metrics;
    kedge_alloc_fail_nth(nth);
    kedge_status status = kedge_metrics_open(path, 3, &metrics);
    kedge_alloc_fail_nth(0);
    ok(kedge_metrics_close(metrics));
    expect_file(before);
    if (status == KEDGE_OK) break;
    assert_int_equal(status, KEDGE_ERR_MEMORY);
  }
  free(before);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup(f, set_up)
  const struct CMUnitTest tests[] = {TEST(test_line),          TEST(test_resume), TEST(test_resume_odd),
                                     TEST(test_full_disk),     TEST(test_state),  TEST(test_state_run),
                                     TEST(test_state_refused), TEST(test_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
