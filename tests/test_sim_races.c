/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * Races of the kernels of graphics cards: every op's cases on the simulated card in a build for the thread
 * sanitizer, which sees each thread of a block as a thread with barriers as the only order, and blocks
 * without any. So a race is found whatever the order in which threads ran, also one that changes no result.
 * Planted races (sim_faults.cu) must be found, the same kernels without them must not. KEDGE_SIM names other
 * devices.
 */
#include "core/device.h"
#include "tests/sim_faults.h"
#include "tests/support/suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static unsigned reports;

/* The sanitizer calls these. A race is counted, not fatal, so that all are listed. */
void __tsan_on_report(void *report);
void __tsan_on_report(void *report) {
  (void)report;
  reports++;
}
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) {
  return "exitcode=0 halt_on_error=0 report_thread_leaks=0 history_size=2";
}

/* The reports of one run of a kernel, in a process of its own: the sanitizer tells the same places once. */
static int planted(sim_order_kernel which, sim_order order, bool good) {
  enum { N = 128 };
  int status;
  fflush(stdout);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    sim_settings s = {.wave = 32, .seed = 3, .processors = 2, .order = order};
    float *in = sim_buffer_new(N * sizeof *in), *out = sim_buffer_new(2 * N * sizeof *out);
    if (!freopen("/dev/null", "w", stderr) || !in || !out) _exit(99);
    for (int i = 0; i < N; i++) in[i] = (float)i;
    sim_order_fault(which, &s, in, out, good);
    sim_buffer_free(in);
    sim_buffer_free(out);
    _exit(sim_error() ? 98 : reports < 90 ? (int)reports : 90);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) <= 90);
  return WEXITSTATUS(status);
}

/* Each in every order of threads. */
static void test_planted(void **state) {
  (void)state;
  static const struct {
    sim_order_kernel which;
    const char *name;
  } faults[] = {{SIM_BLOCK_RACE, "race of blocks"},
                {SIM_MISSING_BARRIER, "missing barrier"},
                {SIM_MISSING_SECOND_BARRIER, "missing second barrier"}};
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
    for (int order = 0; order < 3; order++) {
      assert_int_equal(planted(faults[i].which, (sim_order)order, true), 0);
      const int found = planted(faults[i].which, (sim_order)order, false);
      printf("%s, order %d: %d reports\n", faults[i].name, order, found);
      assert_true(found > 0);
    }
}

static void check_case(kedge_op op, const kedge_case_row *row, kedge_device *device, kedge_dtype dtype) {
  kedge_result result = {0};
  const unsigned before = reports;
  if (kedge_case_run(row, device, dtype, false, 0xff, &result) != KEDGE_OK)
    fail_msg("%s, \"%s\": %s", kedge_op_get(op)->name, row->name, kedge_message());
  if (reports != before)
    print_error("%s, \"%s\", %s on %s: %u races\n", kedge_op_get(op)->name, row->name,
                kedge_dtype_name(dtype), kedge_device_description(device), reports - before);
  kedge_result_destroy(&result);
}

static uint32_t case_count(kedge_op op) {
  uint32_t count = 0;
  for (const kedge_case_row *row = kedge_cases_of(op); row->name; row++) count += !row->rejects;
  return count;
}

/* Cases take turns on waves of 32 and of 64; in both dtypes where an op has few. Products also by groups of
 * waves, whose operands are read when a product is issued, and when it is waited for. */
static void test_ops(void **state) {
  (void)state;
  static const char *const names[] = {"sim:wave=32,order=random,processors=2", "sim:wave=64,processors=2",
                                      "sim:products=groups,order=reverse,processors=2",
                                      "sim:products=groups,processors=2"};
  kedge_device *devices[4];
  unsigned cases = 0;
  for (int i = 0; i < 4; i++)
    if (kedge_device_open(names[i], NULL, &devices[i]) != KEDGE_OK)
      fail_msg("%s: %s", names[i], kedge_message());
  for (uint32_t op = 0; op < KEDGE_OP_COUNT; op++) {
    const clock_t from = clock();
    const bool many = case_count((kedge_op)op) > 4;
    for (const kedge_case_row *row = kedge_cases_of((kedge_op)op); row->name; row++) {
      if (row->rejects) continue;
      const uint32_t turn = (uint32_t)(row - kedge_cases_of((kedge_op)op));
      for (uint32_t half = 0; half < 2; half++) {
        if (many && half != turn % 2) continue;
        check_case((kedge_op)op, row, devices[(turn / 2 + half) % 2], half ? KEDGE_BF16 : KEDGE_F32);
        cases++;
      }
      const char *name = kedge_op_get((kedge_op)op)->name;
      for (int groups = 2; groups < 4 && (strstr(name, "matmul") || strstr(name, "wgrad")); groups++) {
        check_case((kedge_op)op, row, devices[groups], KEDGE_BF16);
        cases++;
      }
    }
    if (getenv("KEDGE_VERBOSE"))
      print_message("%-18s %.2f s\n", kedge_op_get((kedge_op)op)->name,
                    (double)(clock() - from) / (double)CLOCKS_PER_SEC);
  }
  for (int i = 0; i < 4; i++) kedge_device_close(devices[i]);
  printf("%u cases: %u races\n", cases, reports);
  assert_int_equal(reports, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_planted), cmocka_unit_test(test_ops)};
  setenv("KEDGE_MODULES", KEDGE_RACES_MODULES, 1);
  if (getenv("KEDGE_TEST")) cmocka_set_test_filter(getenv("KEDGE_TEST"));
  return cmocka_run_group_tests(tests, NULL, NULL);
}
