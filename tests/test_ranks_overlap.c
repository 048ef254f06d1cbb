/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * Gradients that are summed over ranks while the backward pass still runs: buckets are handed over before the
 * last gradient is complete, and a run has the bits that it has without, also where experts are shared and a
 * micro-batch is run in parts.
 */
#include "tests/support/files.h"
#include "tests/support/ranks.h"
#include "tests/support/runs.h"
#include "tests/support/training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Worker */

static void ok(kedge_status status) {
  if (status == KEDGE_OK) return;
  fprintf(stderr, "%s: %s\n", kedge_status_name(status), kedge_message());
  exit(3);
}

/* Whether the first buckets went ahead of the last gradients, in two updates of two micro-batches each. */
static int worker(char **argv) {
  kedge_comm *comm;
  runs_session s;
  kedge_step_result step;
  ok(kedge_comm_open(&comm));
  runs_open_on(&s, comm, "base", &runs_conditions[0],
               "per_device_train_batch_size=1 gradient_accumulation_steps=2 max_steps=2 %s", argv[2]);
  const bool off = strstr(argv[2], "false") != NULL;
  for (int i = 0; i < 2; i++)
    if (!runs_update(&s, 1e-3, &step)) exit(4);
  if (off != !s.stepper.optimizer.overlap) exit(5);
  if (!off) {
    const kedge_overlap_times t = kedge_overlap_measure(s.stepper.optimizer.overlap);
    if (t.updates != 2 || !t.early || t.early >= t.buckets) exit(6);
    if (t.buckets < 6) exit(7);
  }
  runs_close(&s);
  kedge_comm_close(comm);
  return 0;
}

/* ---- Tests */

static void test_ahead(void **state) {
  (void)state;
  runs_prepare(8);
  ranks_worker(2, "overlap_grad_reduce=true");
  ranks_worker(2, "overlap_grad_reduce=false");
}

static void train(int ranks, int experts, bool overlap, const char *out) {
  ranks_expect(
      ranks, 0, "trained model",
      "train run.yaml output_dir=%s max_steps=3 gradient_accumulation_steps=2 threads=1 save_steps=3 "
      "per_device_train_batch_size=%d expert_parallel=%d overlap_grad_reduce=%s "
      "overwrite_output_dir=true",
      out, 4 / ranks, experts, overlap ? "true" : "false");
}

static void test_same_bits(void **state) {
  static const int ways[][2] = {{2, 1}, {4, 2}, {4, 4}};
  (void)state;
  training_prepare(20);
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    train(ways[i][0], ways[i][1], true, "on");
    train(ways[i][0], ways[i][1], false, "off");
    assert_true(training_same("on/model.safetensors", "off/model.safetensors"));
    assert_true(training_same("on/metrics.jsonl", "off/metrics.jsonl"));
    for (int rank = 0; rank < ways[i][0]; rank++) {
      char a[96], b[96];
      snprintf(a, sizeof a, "on/checkpoint-3/optimizer-%05d-of-%05d.safetensors", rank, ways[i][0]);
      snprintf(b, sizeof b, "off/checkpoint-3/optimizer-%05d-of-%05d.safetensors", rank, ways[i][0]);
      assert_true(training_same(a, b));
    }
    test_remove(test_path(test_folder(), "on"));
    test_remove(test_path(test_folder(), "off"));
  }
}

/* With `profile` the times of both are told. */
static void test_profile(void **state) {
  (void)state;
  training_prepare(20);
  ranks_expect(2, 0, "sums beside backward",
               "train run.yaml output_dir=profiled max_steps=1 threads=1 save_steps=0 profile=true");
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_ahead), cmocka_unit_test(test_same_bits),
                                     cmocka_unit_test(test_profile)};
  if (argc > 2 && !strcmp(argv[1], "worker")) return worker(argv);
  if (!ranks_possible()) return 77;
  return cmocka_run_group_tests_name("overlap", tests, NULL, NULL);
}
