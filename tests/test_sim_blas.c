/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Dense products by the vendors' libraries, without a card: the simulated card calls a library with their
 * names on the host (blas_double.c), so that order of arguments, transposes, pitches and alignments run here.
 * Every case of the ops that make dense products against the reference; what the library refuses is made by
 * the kernels; a library that is not there, or lacks a function, is told in one line.
 */
#include "core/device.h"
#include "tests/support/suite.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct vendor {
  const char *device, *name, *prefix, *file;
} vendor;
static const vendor vendors[] = {{"sim:blas=cublaslt", "cuBLASLt", "cublasLt", KEDGE_TEST_CUBLASLT},
                                 {"sim:blas=hipblaslt", "hipBLASLt", "hipblasLt", KEDGE_TEST_HIPBLASLT}};
static const kedge_op ops[] = {KEDGE_OP_matmul, KEDGE_OP_head_loss, KEDGE_OP_head_loss_grad};

/* A number that a test library keeps. */
static int number_of(const vendor *v, const char *what) {
  char name[60];
  int (*function)(void);
  snprintf(name, sizeof name, "%sTest%s", v->prefix, what);
  void *library = dlopen(v->file, RTLD_NOW | RTLD_LOCAL);
  assert_non_null(library);
  *(void **)(void *)&function = dlsym(library, name);
  assert_non_null(function);
  const int number = function();
  dlclose(library);
  return number;
}

static uint32_t check_case(const kedge_case_row *row, kedge_dtype dtype, kedge_device *ref,
                           kedge_device *device) {
  kedge_result want = {0}, got = {0};
  const char *where = "";
  const double limit = dtype == KEDGE_BF16 ? (row->bf16 > 0 ? row->bf16 : 0x1p-7)
                       : row->f32 > 0      ? row->f32
                                           : 2e-6;
  if (row->rejects) return 0;
  assert_int_equal(kedge_case_run(row, ref, dtype, false, 0xff, &want), KEDGE_OK);
  if (kedge_case_run(row, device, dtype, false, 0x7f, &got) != KEDGE_OK)
    fail_msg("%s, %s: %s", row->name, kedge_dtype_name(dtype), kedge_message());
  const double error = kedge_result_error(&got, &want, &where);
  if (!(error <= limit))
    fail_msg("%s, %s: error %.3g of %s is over %.3g", row->name, kedge_dtype_name(dtype), error, where,
             limit);
  kedge_result_destroy(&want);
  kedge_result_destroy(&got);
  return 1;
}

/* All cases; how many, and by how many calls of the library. */
static uint32_t check_all(const vendor *v, int *calls) {
  kedge_device *ref, *device;
  uint32_t cases = 0;
  assert_int_equal(kedge_device_open("ref", NULL, &ref), KEDGE_OK);
  if (kedge_device_open(v->device, NULL, &device) != KEDGE_OK) fail_msg("%s", kedge_message());
  if (!strstr(kedge_device_description(device), v->name))
    fail_msg("\"%s\" does not name %s", kedge_device_description(device), v->name);
  const int before = number_of(v, "Calls");
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
    for (const kedge_case_row *row = kedge_cases_of(ops[i]); row->name; row++)
      cases += check_case(row, KEDGE_F32, ref, device) + check_case(row, KEDGE_BF16, ref, device);
  *calls = number_of(v, "Calls") - before;
  kedge_device_close(device);
  kedge_device_close(ref);
  return cases;
}

static void test_products(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof vendors / sizeof *vendors; i++) {
    const vendor *v = &vendors[i];
    /* Held open, so that its numbers outlive the device. */
    void *held = dlopen(v->file, RTLD_NOW | RTLD_LOCAL);
    int calls;
    setenv("KEDGE_GPU_BLAS", v->file, 1);
    const uint32_t cases = check_all(v, &calls);
    printf("%s: %u cases, %d calls of the library\n", v->name, cases, calls);
    assert_true(cases >= 20 && calls >= 20);
    assert_int_equal(number_of(v, "Alive"), 0);
    /* It refuses every product, in each way that it has: the kernels make them. */
    static const char *const ways[] = {"status", "state", "count"};
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
      setenv("KEDGE_TEST_BLAS_REFUSES", ways[k], 1);
      assert_int_equal(check_all(v, &calls), cases);
      assert_int_equal(calls, 0);
      assert_int_equal(number_of(v, "Alive"), 0);
    }
    unsetenv("KEDGE_TEST_BLAS_REFUSES");
    dlclose(held);
  }
}

static void refused(const char *device, const char *file, const char *text) {
  kedge_device *out = NULL;
  if (file)
    setenv("KEDGE_GPU_BLAS", file, 1);
  else
    unsetenv("KEDGE_GPU_BLAS");
  assert_int_not_equal(kedge_device_open(device, NULL, &out), KEDGE_OK);
  assert_null(out);
  if (!strstr(kedge_message(), text)) fail_msg("got \"%s\", want \"%s\"", kedge_message(), text);
  printf("%s\n", kedge_message());
}

static void test_absent(void **state) {
  (void)state;
  kedge_device *device;
  refused("sim:blas=cublaslt", NULL, "expected KEDGE_GPU_BLAS");
  refused("sim:blas=cublaslt", "", "expected KEDGE_GPU_BLAS");
  refused("sim:blas=cublaslt", "/nowhere/libblas.so", "KEDGE_GPU_BLAS: /nowhere/libblas.so: ");
  refused("sim:blas=cublaslt", vendors[1].file, "it has no cublasLtCreate");
  refused("sim:blas=rocblas", NULL, "expected wave=32|64");
  setenv("KEDGE_TEST_BLAS_DEAD", "1", 1);
  refused("sim:blas=hipblaslt", vendors[1].file, "it does not start");
  unsetenv("KEDGE_TEST_BLAS_DEAD");
  assert_int_equal(kedge_device_open("sim:blas=0", NULL, &device), KEDGE_OK);
  assert_null(strstr(kedge_device_description(device), "BLASLt"));
  kedge_device_close(device);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_products), cmocka_unit_test(test_absent)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
