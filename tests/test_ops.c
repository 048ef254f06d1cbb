/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Every op's cases, in f32 and bf16, on every device: the reference kernels against the all-double ones (the
 * meaning), other backends against the reference. Each case runs twice over an arena filled with different
 * bytes, which must not change a bit; so do other numbers of threads. Guard bytes: suite.h. KEDGE_VERBOSE=1
 * prints the worst errors. The siblings test_gradients and test_table use the same cases.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/suite.h"

static const kedge_dtype dtypes[] = {KEDGE_F32, KEDGE_BF16};
static kedge_test_devices devices;
static uint32_t failures, rejected, compared, cases_run, ops_run;
static double worst_ref[2], worst_other[2]; /* of the op that runs, by dtype */
static bool verbose;

static void complain(kedge_op op, const kedge_case_row *row, kedge_dtype dtype, kedge_device *device,
                     const char *text) {
  failures++;
  print_error("%s, \"%s\", %s, %s: %s\n", kedge_op_get(op)->name, row->name, kedge_dtype_name(dtype),
              device ? kedge_device_description(device) : "building", text);
}

static double tolerance(const kedge_case_row *row, kedge_dtype dtype) {
  if (dtype == KEDGE_BF16) return row->bf16 > 0 ? row->bf16 : 0x1p-7;
  return row->f32 > 0 ? row->f32 : 2e-6;
}

static void check_rejected(kedge_op op, const kedge_case_row *row) {
  kedge_case c;
  kedge_status status = kedge_case_init(&c, row, devices.at[0], KEDGE_F32, false);
  rejected++;
  if (status == KEDGE_OK)
    complain(op, row, KEDGE_F32, NULL, "was accepted");
  else if (status == KEDGE_ERR_MEMORY || !strstr(kedge_message(), row->rejects))
    complain(op, row, KEDGE_F32, NULL, kedge_message());
  kedge_case_destroy(&c);
}

/* Two runs over differently filled memory; their bits must agree. False after a complaint. */
static bool run_twice(kedge_op op, const kedge_case_row *row, kedge_dtype dtype, kedge_device *device,
                      kedge_result *result) {
  kedge_result again = {0};
  bool good = false;
  kedge_status status = kedge_case_run(row, device, dtype, false, 0xff, result);
  if (status == KEDGE_OK) status = kedge_case_run(row, device, dtype, false, 0x7f, &again);
  if (status != KEDGE_OK)
    complain(op, row, dtype, device, kedge_message());
  else if (!kedge_result_same_bits(result, &again))
    complain(op, row, dtype, device, "a second run gave other bits");
  else
    good = true;
  kedge_result_destroy(&again);
  return good;
}

static void check_error(kedge_op op, const kedge_case_row *row, kedge_dtype dtype, kedge_device *device,
                        const kedge_result *got, const kedge_result *want, double *worst) {
  char text[200];
  const char *where;
  double error = kedge_result_error(got, want, &where), limit = tolerance(row, dtype);
  compared++;
  if (error > *worst) *worst = error;
  if (error <= limit) return;
  snprintf(text, sizeof text, "error %.3g of %s is over %.3g", error, where, limit);
  complain(op, row, dtype, device, text);
}

static void check_case(kedge_op op, const kedge_case_row *row, uint32_t d) {
  kedge_dtype dtype = dtypes[d];
  kedge_result meaning = {0}, ref = {0}, other = {0}, previous = {0};
  if (kedge_case_run(row, devices.at[0], dtype, true, 0xff, &meaning) != KEDGE_OK) {
    complain(op, row, KEDGE_F64, devices.at[0], kedge_message());
    goto done;
  }
  if (!run_twice(op, row, dtype, devices.at[0], &ref)) goto done;
  check_error(op, row, dtype, devices.at[0], &ref, &meaning, &worst_ref[d]);
  for (uint32_t i = 1; i < devices.count; i++) {
    if (!run_twice(op, row, dtype, devices.at[i], &other)) goto done;
    check_error(op, row, dtype, devices.at[i], &other, &ref, &worst_other[d]);
    if (devices.same_bits_as_previous[i] && !kedge_result_same_bits(&other, &previous))
      complain(op, row, dtype, devices.at[i], "other bits than with another number of threads");
    kedge_result_destroy(&previous);
    previous = other;
    other = (kedge_result){0};
  }
done:
  kedge_result_destroy(&meaning);
  kedge_result_destroy(&ref);
  kedge_result_destroy(&other);
  kedge_result_destroy(&previous);
}

static void test_op(void **state) {
  kedge_op op = *(const kedge_op *)*state;
  failures = 0;
  memset(worst_ref, 0, sizeof worst_ref);
  memset(worst_other, 0, sizeof worst_other);
  for (const kedge_case_row *row = kedge_cases_of(op); row->name; row++) {
    if (row->rejects) {
      check_rejected(op, row);
      continue;
    }
    cases_run++;
    for (uint32_t d = 0; d < 2; d++) check_case(op, row, d);
  }
  ops_run++;
  if (verbose)
    printf("%-18s f32: ref %8.2g, others %8.2g   bf16: ref %8.2g, others %8.2g\n", kedge_op_get(op)->name,
           worst_ref[0], worst_other[0], worst_ref[1], worst_other[1]);
  assert_int_equal(failures, 0);
}

/* The comparison itself: NaN, a wrong integer and a missing tensor are errors. */
static void test_comparison(void **state) {
  (void)state;
  double nan_value = strtod("nan", NULL), want[] = {1, -4}, bad[] = {1, nan_value}, near[] = {1.004, -4};
  assert_false(kedge_relative_error(KEDGE_F32, bad, want, 2) <= 1e9);
  assert_false(kedge_relative_error(KEDGE_F32, want, bad, 2) <= 1e9);
  assert_false(kedge_relative_error(KEDGE_I32, near, want, 2) <= 1e9);
  assert_true(kedge_relative_error(KEDGE_F32, near, want, 2) <= 1.1e-3);
  assert_false(kedge_relative_error(KEDGE_F32, near, want, 2) <= 0.9e-3);
  kedge_result one = {.count = 1}, none = {0};
  assert_false(kedge_result_error(&none, &one, NULL) <= 1e9);
  assert_false(kedge_result_same_bits(&none, &one));
}

static int open_devices(void **state) {
  (void)state;
  verbose = getenv("KEDGE_VERBOSE") != NULL;
  return kedge_test_devices_open(&devices) == KEDGE_OK ? 0 : -1;
}

static int close_devices(void **state) {
  (void)state;
  printf("%u ops, %u cases in 2 dtypes on %u devices: %u comparisons, %u rejecting cases\n", ops_run,
         cases_run, devices.count, compared, rejected);
  kedge_test_devices_close(&devices);
  return 0;
}

int main(void) {
  static kedge_op ops[KEDGE_OP_COUNT];
  static struct CMUnitTest tests[KEDGE_OP_COUNT + 1];
  for (uint32_t i = 0; i < KEDGE_OP_COUNT; i++) {
    ops[i] = (kedge_op)i;
    tests[i] = (struct CMUnitTest){kedge_op_get(ops[i])->name, test_op, NULL, NULL, &ops[i]};
  }
  tests[KEDGE_OP_COUNT] = (struct CMUnitTest)cmocka_unit_test(test_comparison);
  return cmocka_run_group_tests(tests, open_devices, close_devices);
}
