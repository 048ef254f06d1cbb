/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Jobs in child processes: results independent of their number, failures and crashes told in one line, stops
 * on request, no child left behind.
 */
#include "models/retention/workers.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { JOBS = 23 };

static kedge_status square(void *context, uint32_t index, void *result) {
  uint64_t *out = result;
  out[0] = (uint64_t)index * index + *(const uint64_t *)context;
  return KEDGE_OK;
}

static kedge_status fail_some(void *context, uint32_t index, void *result) {
  (void)context, (void)result;
  if (index == 5) return kedge_fail(KEDGE_ERR_NUMERIC, "number five is not finite");
  return KEDGE_OK;
}

static kedge_status crash(void *context, uint32_t index, void *result) {
  (void)result;
  struct rlimit none = {0, 0};
  if (index != 3) return KEDGE_OK;
  setrlimit(RLIMIT_CORE, &none);
  if (*(const int *)context == SIGKILL) raise(SIGKILL);
  if (*(const int *)context == 0) _exit(9);
  signal(SIGABRT, SIG_DFL);
  raise(SIGABRT);
  return KEDGE_OK;
}

static kedge_status sleep_long(void *context, uint32_t index, void *result) {
  (void)context, (void)index, (void)result;
  sleep(100);
  return KEDGE_OK;
}

static void no_children(void) {
  assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
  assert_int_equal(errno, ECHILD);
}

static bool count_up(void *context, uint32_t done, uint32_t count) {
  uint32_t *last = context;
  assert_true(done >= *last && done <= count);
  *last = done;
  return true;
}

static void test_results(void **state) {
  (void)state;
  const uint32_t workers[] = {0, 1, 2, 3, 100};
  for (size_t w = 0; w < sizeof workers / sizeof *workers; w++) {
    uint64_t results[JOBS], add = 7;
    uint32_t done = 0;
    memset(results, 255, sizeof results);
    assert_int_equal(kedge__jobs_run(&(kedge__jobs){.name = "square",
                                                    .count = JOBS,
                                                    .result_bytes = sizeof *results,
                                                    .job = square,
                                                    .context = &add,
                                                    .workers = workers[w],
                                                    .progress = count_up,
                                                    .progress_context = &done},
                                     results),
                     KEDGE_OK);
    for (uint64_t i = 0; i < JOBS; i++) assert_int_equal(results[i], i * i + 7);
    assert_int_equal(done, JOBS);
    no_children();
  }
}

static kedge_status run(kedge__job job, void *context, uint32_t workers) {
  uint64_t results[JOBS];
  const kedge_status status = kedge__jobs_run(&(kedge__jobs){.name = "job",
                                                             .count = JOBS,
                                                             .result_bytes = 8,
                                                             .job = job,
                                                             .context = context,
                                                             .workers = workers},
                                              results);
  no_children();
  return status;
}

static void test_failures(void **state) {
  (void)state;
  for (uint32_t workers = 1; workers < 4; workers++) {
    assert_int_equal(run(fail_some, NULL, workers), KEDGE_ERR_NUMERIC);
    assert_string_equal(kedge_message(), "number five is not finite");
  }
  for (uint32_t workers = 2; workers < 4; workers++) {
    int how = SIGKILL;
    assert_int_equal(run(crash, &how, workers), KEDGE_ERR_IO);
    assert_string_equal(kedge_message(), "job 3 of 23: its process was ended by signal 9 (Killed)");
    how = SIGABRT;
    assert_int_equal(run(crash, &how, workers), KEDGE_ERR_IO);
    assert_non_null(strstr(kedge_message(), "job 3 of 23: its process was ended by signal 6"));
    how = 0;
    assert_int_equal(run(crash, &how, workers), KEDGE_ERR_IO);
    assert_string_equal(kedge_message(), "job 3 of 23: its process ended with status 9");
  }
}

static bool stop(void *context, uint32_t done, uint32_t count) {
  (void)done, (void)count;
  return (*(uint32_t *)context)++ < 2;
}

static void test_stop(void **state) {
  (void)state;
  for (uint32_t workers = 2; workers < 4; workers++) {
    uint64_t results[JOBS];
    uint32_t calls = 0;
    const time_t start = time(NULL);
    assert_int_equal(kedge__jobs_run(&(kedge__jobs){.name = "job",
                                                    .count = JOBS,
                                                    .result_bytes = 8,
                                                    .job = sleep_long,
                                                    .workers = workers,
                                                    .progress = stop,
                                                    .progress_context = &calls},
                                     results),
                     KEDGE_ERR_INTERRUPTED);
    assert_true(time(NULL) - start < 20);
    no_children();
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_results),
      cmocka_unit_test(test_failures),
      cmocka_unit_test(test_stop),
  };
  return cmocka_run_group_tests_name("workers", tests, NULL, NULL);
}
