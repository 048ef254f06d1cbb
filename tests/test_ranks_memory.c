/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * The memory of a rank is what `kedge plan` says of it, and falls with the ranks. Measured are the bytes of
 * the device's buffers at their peak, which is all that a run takes but for its samples and files, and what
 * sums beside the backward pass take; both are exact numbers of the library's own.
 */
#include "core/device.h"
#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"
#include "tests/support/runs.h"
#include "tests/support/training.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 8, MOST_RANKS = 4 };

/* ---- Worker */

static void ok(kedge_status status) {
  if (status == KEDGE_OK) return;
  fprintf(stderr, "%s: %s\n", kedge_status_name(status), kedge_message());
  exit(3);
}

/* An update of one row a rank: every rank's bytes at their peak, and the tokens of a row. */
static int worker(char **argv) {
  kedge_comm *comm;
  runs_session s;
  kedge_step_result step;
  uint64_t all[MOST_RANKS] = {0};
  ok(kedge_comm_open(&comm));
  runs_open_on(&s, comm, "base", &runs_conditions[0],
               "per_device_train_batch_size=1 gradient_accumulation_steps=1 max_steps=1 %s", argv[3]);
  if (!runs_update(&s, 0, &step)) exit(4);
  uint64_t bytes = s.setup.device->peak_bytes;
  if (s.stepper.optimizer.overlap) bytes += kedge_overlap_measure(s.stepper.optimizer.overlap).bytes;
  ok(kedge_comm_gather(comm, &bytes, sizeof bytes, all));
  if (kedge_comm_rank(comm, KEDGE_RANKS_ALL) == 0) {
    FILE *out = fopen(argv[2], "w");
    for (uint32_t r = 0; r < kedge_comm_size(comm, KEDGE_RANKS_ALL); r++)
      fprintf(out, "%llu ", (unsigned long long)all[r]);
    fprintf(out, "\n%u\n", s.stepper.train.items[0]->tokens);
    fclose(out);
  }
  runs_close(&s);
  kedge_comm_close(comm);
  return 0;
}

/* ---- Tests */

/* Rows of one length, so that every rank's stream is as long as the others'. */
static int prepare(void **state) {
  char text[4096] = "";
  (void)state;
  runs_prepare(ROWS);
  for (int i = 0; i < ROWS; i++)
    strcat(text, "{\"prompt\": \"Ann has 12 apples and gets 30 more. How many?\", \"completion\": \" 12 + 30 "
                 "= 42\"}\n");
  test_write_text("train.jsonl", text);
  return 0;
}

/* The bytes of each rank; returns the tokens of its stream. */
static unsigned measure(int ranks, int experts, const char *more, double *bytes) {
  size_t size;
  char *end;
  ranks_worker(ranks, "m 'expert_parallel=%d %s'", experts, more);
  char *text = test_read("m", &size), *at = text;
  for (int r = 0; r < ranks; r++, at = end) bytes[r] = strtod(at, &end);
  const unsigned tokens = (unsigned)strtoul(at, NULL, 10);
  free(text);
  return tokens;
}

static double plan(int ranks, int experts, unsigned tokens, const char *more) {
  char options[200];
  snprintf(options, sizeof options, "plan --model base --world %d --ep %d --tokens %u %s --json", ranks,
           experts, tokens, more);
  setenv("OMP_NUM_THREADS", "1", 1); /* the kernels' scratch grows with the threads */
  json_t *p = test_kedge_json(options);
  unsetenv("OMP_NUM_THREADS");
  const double total = (double)test_json_int(p, "bytes.total");
  json_decref(p);
  return total;
}

static void check(const char *dtype, double peaks[6]) {
  static const int ways[6][2] = {{1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 4}};
  char config[64], option[64];
  snprintf(config, sizeof config, "dtype=%s", dtype);
  snprintf(option, sizeof option, "--dtype %s", dtype);
  for (int i = 0; i < 6; i++) {
    double bytes[MOST_RANKS];
    const unsigned tokens = measure(ways[i][0], ways[i][1], config, bytes);
    const double planned = plan(ways[i][0], ways[i][1], tokens, option);
    peaks[i] = 0;
    for (int r = 0; r < ways[i][0]; r++) {
      peaks[i] = fmax(peaks[i], bytes[r]);
      if (fabs(bytes[r] - planned) > 0.02 * planned)
        fail_msg("%s, %d ranks, experts shared by %d: rank %d took %.0f bytes, planned %.0f", dtype,
                 ways[i][0], ways[i][1], r, bytes[r], planned);
    }
    print_message("%s, %d ranks, experts shared by %d: peak %.1f KiB, planned %.1f KiB (%+.2f %%)\n", dtype,
                  ways[i][0], ways[i][1], peaks[i] / 1024, planned / 1024, 100 * (peaks[i] / planned - 1));
  }
}

static void test_as_planned(void **state) {
  double f32[6], bf16[6];
  (void)state;
  check("f32", f32);
  check("bf16", bf16);
  /* ZeRO-1: states fall with the ranks. Shared experts: weights and gradients too. */
  for (int i = 0; i < 2; i++) {
    const double *p = i ? bf16 : f32;
    assert_true(p[1] < p[0] && p[3] < p[1]);
    assert_true(p[2] < p[1] && p[4] < p[3] && p[5] < p[4]);
  }
}

/* The comparison can fail: another number of ranks is another plan. */
static void test_another_plan(void **state) {
  double bytes[MOST_RANKS];
  (void)state;
  const unsigned tokens = measure(2, 1, "dtype=f32", bytes);
  const double other = plan(4, 1, tokens, "--dtype f32");
  assert_true(fabs(bytes[0] - other) > 0.02 * other);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_as_planned), cmocka_unit_test(test_another_plan)};
  if (argc > 3 && !strcmp(argv[1], "worker")) return worker(argv);
  if (!ranks_possible()) return 77;
  return cmocka_run_group_tests_name("memory", tests, prepare, NULL);
}
