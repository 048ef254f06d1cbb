/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * Every op's cases on the Vulkan backend, in f32 and bf16, against the reference: twice over an arena filled
 * with different bytes, which must give the same bits, with guard bytes around all buffers, under the
 * validation layers with synchronisation validation. KEDGE_VERBOSE=1 prints the worst errors. test_ops.c does
 * the same for the built-in backends.
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
#include "tests/support/vulkan.h"

static const kedge_dtype dtypes[] = {KEDGE_F32, KEDGE_BF16};
static kedge_device *ref, *vulkan;
static uint32_t failures, compared;
static bool verbose;

static void complain(kedge_op op, const kedge_case_row *row, kedge_dtype dtype, const char *text) {
  failures++;
  print_error("%s, \"%s\", %s: %s\n", kedge_op_get(op)->name, row->name, kedge_dtype_name(dtype), text);
}

static void check_case(kedge_op op, const kedge_case_row *row, kedge_dtype dtype, double *worst) {
  kedge_result want = {0}, got = {0}, again = {0};
  char text[200];
  const char *where = "";
  double limit =
      dtype == KEDGE_BF16 ? (row->bf16 > 0 ? row->bf16 : 0x1p-7) : (row->f32 > 0 ? row->f32 : 2e-6);
  kedge_status status = kedge_case_run(row, ref, dtype, false, 0xff, &want);
  if (status == KEDGE_OK) status = kedge_case_run(row, vulkan, dtype, false, 0xff, &got);
  if (status == KEDGE_OK) status = kedge_case_run(row, vulkan, dtype, false, 0x7f, &again);
  if (status != KEDGE_OK) {
    complain(op, row, dtype, kedge_message());
  } else {
    double error = kedge_result_error(&got, &want, &where);
    compared++;
    if (error > *worst) *worst = error;
    snprintf(text, sizeof text, "error %.3g of %s is over %.3g", error, where, limit);
    if (!(error <= limit)) complain(op, row, dtype, text);
    if (!kedge_result_same_bits(&got, &again)) complain(op, row, dtype, "a second run gave other bits");
  }
  kedge_result_destroy(&want);
  kedge_result_destroy(&got);
  kedge_result_destroy(&again);
}

static void test_op(void **state) {
  kedge_op op = *(const kedge_op *)*state;
  double worst[2] = {0, 0};
  failures = 0;
  for (const kedge_case_row *row = kedge_cases_of(op); row->name; row++)
    for (uint32_t d = 0; d < 2 && !row->rejects; d++) check_case(op, row, dtypes[d], &worst[d]);
  if (verbose) printf("%-18s f32 %8.2g   bf16 %8.2g\n", kedge_op_get(op)->name, worst[0], worst[1]);
  assert_int_equal(failures, 0);
}

static int open_devices(void **state) {
  (void)state;
  verbose = getenv("KEDGE_VERBOSE") != NULL;
  return kedge_device_open("ref", NULL, &ref) == KEDGE_OK ? 0 : -1;
}

static int close_devices(void **state) {
  (void)state;
  printf("%u comparisons on %s\n", compared, kedge_device_description(vulkan));
  kedge_device_close(ref);
  kedge_device_close(vulkan);
  return 0;
}

int main(void) {
  static kedge_op ops[KEDGE_OP_COUNT];
  static struct CMUnitTest tests[KEDGE_OP_COUNT];
  if (!kedge_test_vulkan(&vulkan)) return 77;
  const char *only = getenv("KEDGE_TEST_OP");
  uint32_t count = 0;
  for (uint32_t i = 0; i < KEDGE_OP_COUNT; i++) {
    ops[i] = (kedge_op)i;
    if (kedge_op_get(ops[i])->kind == KEDGE_KIND_COLLECTIVE) continue; /* no backend's */
    if (only && strcmp(only, kedge_op_get(ops[i])->name) != 0) continue;
    tests[count++] = (struct CMUnitTest){kedge_op_get(ops[i])->name, test_op, NULL, NULL, &ops[i]};
  }
  return _cmocka_run_group_tests("vulkan_ops", tests, count, open_devices, close_devices);
}
