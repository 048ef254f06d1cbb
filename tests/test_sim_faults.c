/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * What the simulated card finds: kernels with a planted mistake (sim_faults.cu) give other numbers in some
 * order of threads or with the other width of wave, or none, or end with block, thread and source line;
 * without the mistake they agree everywhere. Under the address sanitizer it is the one that must find what is
 * read or written outside of arrays. */
#include "tests/sim_faults.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { N = 128, WIDTHS = 2, ORDERS = 3 };
static const char *const names[] = {"missing barrier", "missing second barrier", "32 lanes",
                                    "race of blocks",  "missing wait",           "missing wait of a group"};

static sim_settings settings(int width, int order) {
  return (sim_settings){.wave = width ? 64 : 32, .seed = 3, .processors = 2, .order = (sim_order)order};
}

static bool run_order(sim_order_kernel which, int width, int order, bool good, float *y) {
  sim_settings s = settings(width, order);
  float *in = sim_buffer_new(N * sizeof *in), *out = sim_buffer_new(2 * N * sizeof *out);
  assert_true(in && out);
  for (int i = 0; i < N; i++) in[i] = (float)(i * 7 % 31) - 9;
  sim_order_fault(which, &s, in, out, good);
  memcpy(y, out, 2 * N * sizeof *y);
  sim_buffer_free(in);
  sim_buffer_free(out);
  const char *error = sim_error();
  if (error) print_message("%s: %s\n", names[which], error);
  return error == NULL;
}

/* In how many of the six ways to run it a kernel ends otherwise than in the first, or with what is no number.
 */
static int count_found(sim_order_kernel which, bool good) {
  float first[2 * N], got[2 * N];
  int found = 0;
  (void)run_order(which, 0, SIM_FORWARD, good, first);
  for (int width = 0; width < WIDTHS; width++)
    for (int order = 0; order < ORDERS; order++) {
      bool right = run_order(which, width, order, good, got) && !memcmp(got, first, sizeof got);
      for (int i = 0; i < N; i++) right &= !isnan(got[i]);
      found += !right;
    }
  return found;
}

static void test_orders(void **state) {
  (void)state;
  for (int which = 0; which < SIM_ORDER_KERNELS; which++) {
    const int good = count_found((sim_order_kernel)which, true),
              bad = count_found((sim_order_kernel)which, false);
    printf("%s: found in %d of %d ways to run it, mended in %d\n", names[which], bad, WIDTHS * ORDERS, good);
    assert_int_equal(good, 0);
    assert_true(bad > 0);
  }
}

/* The error of a kernel; "" if there was none. Afterwards the card still works. */
static const char *error_of(sim_error_kernel which, int width, int order, int64_t at) {
  static char text[400];
  sim_settings s = settings(width, order);
  float y[2 * N], *out = sim_buffer_new(N * sizeof *out);
  assert_non_null(out);
  sim_error_fault(which, &s, out, at);
  sim_buffers_check();
  const char *error = sim_error();
  snprintf(text, sizeof text, "%s", error ? error : "");
  sim_buffer_free(out);
  (void)sim_error();
  assert_true(run_order(SIM_MISSING_BARRIER, width, order, true, y));
  return text;
}

static void want_error_of(int widths, sim_error_kernel which, int64_t at, const char *first,
                          const char *second) {
  for (int width = 0; width < widths; width++)
    for (int order = 0; order < ORDERS; order++) {
      const char *text = error_of(which, width, order, at);
      if (!strstr(text, first) || !strstr(text, second))
        fail_msg("got \"%s\", want \"%s\" and \"%s\"", text, first, second);
      if (width == 0 && order == 0) printf("%s\n", text);
    }
}

static void want_error(sim_error_kernel which, int64_t at, const char *first, const char *second) {
  want_error_of(WIDTHS, which, at, first, second);
}

static void test_groups(void **state) {
  (void)state;
  want_error_of(1, SIM_GROUP_UNPUBLISHED, 0, "block 0, thread ", "were not published");
  want_error_of(1, SIM_GROUP_APART, 0, "block 0, thread ", "another product than its group's");
  want_error_of(1, SIM_GROUP_LEAVING, 0, "thread 77 issued 1 products of its group's 2", "group_kernel");
}

static void test_divergence(void **state) {
  (void)state;
  want_error(SIM_DIVERGING, 0, "waits at ", "sim_faults.cu:");
  want_error(SIM_LEAVING, 0, "waits at ", "thread 5 has ended");
  want_error(SIM_HALF_WAVE, 0, "half_wave_kernel, block 0: thread ", "has ended");
  want_error(SIM_SHARED_TOO_LARGE, 0, "shared array own of 65536 bytes", "49152 bytes");
}

#if defined(__SANITIZE_ADDRESS__)
enum { CHECKED_ELSEWHERE = 1 };
#else
enum { CHECKED_ELSEWHERE = 0 };
#endif

/* The sanitizer ends the program, so the kernel runs in another. */
static void want_report(sim_error_kernel which, int64_t at) {
  char text[4096];
  size_t length = 0;
  int ends[2], status;
  fflush(stdout);
  assert_int_equal(pipe(ends), 0);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    (void)error_of(which, 0, 0, at);
    _exit(0);
  }
  close(ends[1]);
  /* The report's head is kept, the rest is read so that the child can end. */
  char rest[512];
  for (ssize_t got = 1; got > 0;) {
    const bool room = length < sizeof text - 1;
    got = room ? read(ends[0], text + length, sizeof text - 1 - length) : read(ends[0], rest, sizeof rest);
    if (room && got > 0) length += (size_t)got;
  }
  text[length] = 0;
  close(ends[0]);
  assert_int_equal(waitpid(child, &status, 0), child);
  const char *found = strstr(text, "AddressSanitizer: use-after-poison");
  if (!found || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
    fail_msg("at %lld: \"%s\"", (long long)at, text);
  printf("at %lld: %.34s\n", (long long)at, found);
}

static void test_outside(void **state) {
  (void)state;
  if (CHECKED_ELSEWHERE) {
    want_report(SIM_SHARED_OVERRUN, N);
    want_report(SIM_SHARED_OVERRUN, N + 3);
    want_report(SIM_OUTSIDE, N);
    want_report(SIM_OUTSIDE, -1);
    return;
  }
  want_error(SIM_SHARED_OVERRUN, N, "overrun_kernel, block 0", "shared array own was overrun");
  want_error(SIM_SHARED_OVERRUN, N + 3, "overrun_kernel, block 0", "shared array own was overrun");
  want_error(SIM_OUTSIDE, N, "wrote behind a buffer of 512 bytes", "");
  want_error(SIM_OUTSIDE, -1, "wrote before a buffer of 512 bytes", "");
}

/* Without memory for stacks, the first thread's or a later one's, a kernel ends with a line; with memory the
 * card works. The first test, because stacks are kept. */
static void test_no_stacks(void **state) {
  (void)state;
  float y[2 * N];
  struct rlimit old, none;
  if (CHECKED_ELSEWHERE) return; /* the sanitizer needs memory of its own */
  for (rlim_t stacks = 0; stacks < 3; stacks++) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_true(file && fscanf(file, "%ld", &pages) == 1);
    fclose(file);
    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
    none = old;
    none.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + stacks * (132 << 10);
    assert_int_equal(setrlimit(RLIMIT_AS, &none), 0);
    sim_settings s = settings(0, SIM_FORWARD);
    float in[N] = {0};
    sim_order_fault(SIM_MISSING_BARRIER, &s, in, y, true);
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    const char *error = sim_error();
    if (!error || !strstr(error, "no memory for a stack")) fail_msg("%s", error ? error : "no error");
  }
  assert_true(run_order(SIM_MISSING_BARRIER, 0, SIM_FORWARD, true, y));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_stacks), cmocka_unit_test(test_orders),
                                     cmocka_unit_test(test_divergence), cmocka_unit_test(test_groups),
                                     cmocka_unit_test(test_outside)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
