/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * The kernels of graphics cards on the simulated card: every op's cases in f32 and bf16 against the
 * reference, with waves of 32 and 64, threads between barriers and blocks forward, backward and at random,
 * products through the layouts of matrix units, by groups of waves and plain. Orders must not change a bit.
 * KEDGE_SIM names devices instead ("sim:wave=64 sim:order=random", "cuda cuda"), KEDGE_OPS ops. The siblings
 * are test_sim_faults.c, test_sim_races.c, test_sim_blas.c and test_sim_models.c.
 */
#include "core/device.h"
#include "tests/support/suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { MOST = 16 };
static const char *const usual[] = {"sim:wave=32",
                                    "sim:wave=32,order=reverse,processors=1",
                                    "sim:wave=32,order=random",
                                    "sim:wave=64",
                                    "sim:wave=64,order=reverse,processors=1",
                                    "sim:wave=64,order=random,seed=7",
                                    "sim:wave=32,products=plain",
                                    "sim:wave=64,products=plain,order=random",
                                    "sim:products=groups",
                                    "sim:products=groups,order=reverse,processors=1",
                                    "sim:products=groups,order=random"};
static struct {
  kedge_device *device;
  char name[80];
} sims[MOST];
static uint32_t sim_count, failures, compared;
static kedge_device *ref;

static void add(const char *name, size_t length) {
  assert_true(sim_count < MOST && length < sizeof sims->name);
  memcpy(sims[sim_count].name, name, length);
  if (kedge_device_open(sims[sim_count].name, NULL, &sims[sim_count].device) != KEDGE_OK)
    fail_msg("%s: %s", sims[sim_count].name, kedge_message());
  sim_count++;
}

static int open_devices(void **state) {
  (void)state;
  const char *wanted = getenv("KEDGE_SIM");
  assert_int_equal(kedge_device_open("ref", NULL, &ref), KEDGE_OK);
  for (; wanted && *wanted; wanted += strspn(wanted, " ")) {
    size_t length = strcspn(wanted, " ");
    add(wanted, length);
    wanted += length;
  }
  if (sim_count) return 0;
  for (size_t k = 0; k < sizeof usual / sizeof *usual; k++) add(usual[k], strlen(usual[k]));
  return 0;
}

static int close_devices(void **state) {
  (void)state;
  for (uint32_t i = 0; i < sim_count; i++) kedge_device_close(sims[i].device);
  kedge_device_close(ref);
  printf("%u comparisons on %u simulated cards\n", compared, sim_count);
  return 0;
}

static void complain(kedge_op op, const kedge_case_row *row, kedge_dtype dtype, const char *device,
                     const char *text) {
  failures++;
  print_error("%s, \"%s\", %s, %s: %s\n", kedge_op_get(op)->name, row->name, kedge_dtype_name(dtype), device,
              text);
}

/* The same width of wave and the same products give the same bits, whatever the order; a real card is alike
 * to itself alone. */
static bool alike(const char *a, const char *b) {
  if (strncmp(a, "sim", 3) != 0 || strncmp(b, "sim", 3) != 0) return !strcmp(a, b);
  return !strstr(a, "wave=64") == !strstr(b, "wave=64") && !strstr(a, "plain") == !strstr(b, "plain") &&
         !strstr(a, "groups") == !strstr(b, "groups");
}

/* Groups of waves are there for dense and grouped products alone. */
static bool concerns(kedge_op op, const char *device) {
  const char *name = kedge_op_get(op)->name;
  return getenv("KEDGE_SIM") || !strstr(device, "groups") || strstr(name, "matmul") ||
         strstr(name, "wgrad") || strstr(name, "head_loss");
}

static void check_case(kedge_op op, const kedge_case_row *row, kedge_dtype dtype) {
  kedge_result want = {0}, got[MOST] = {0};
  const double limit = dtype == KEDGE_BF16 ? (row->bf16 > 0 ? row->bf16 : 0x1p-7)
                       : row->f32 > 0      ? row->f32
                                           : 2e-6;
  if (kedge_case_run(row, ref, dtype, false, 0xff, &want) != KEDGE_OK) {
    complain(op, row, dtype, "ref", kedge_message());
    goto done;
  }
  for (uint32_t i = 0; i < sim_count; i++) {
    const char *where = "";
    if (!concerns(op, sims[i].name)) continue;
    if (kedge_case_run(row, sims[i].device, dtype, false, i % 2 ? 0xff : 0x7f, &got[i]) != KEDGE_OK) {
      complain(op, row, dtype, sims[i].name, kedge_message());
      continue;
    }
    const double error = kedge_result_error(&got[i], &want, &where);
    compared++;
    if (!(error <= limit)) {
      char text[160];
      snprintf(text, sizeof text, "error %.3g of %s is over %.3g", error, where, limit);
      complain(op, row, dtype, sims[i].name, text);
    }
    for (uint32_t k = 0; k < i; k++)
      if (got[k].count && alike(sims[k].name, sims[i].name) && !kedge_result_same_bits(&got[k], &got[i]))
        complain(op, row, dtype, sims[i].name, "other bits than in another order");
  }
done:
  kedge_result_destroy(&want);
  for (uint32_t i = 0; i < sim_count; i++) kedge_result_destroy(&got[i]);
}

static bool wanted_op(const char *name) {
  const char *list = getenv("KEDGE_OPS");
  if (!list || !*list) return true;
  const size_t length = strlen(name);
  for (const char *at = list; (at = strstr(at, name)); at += length)
    if ((at == list || at[-1] == ' ') && (at[length] == ' ' || !at[length])) return true;
  return false;
}

static void test_op(void **state) {
  const kedge_op op = *(const kedge_op *)*state;
  struct timespec from, to;
  failures = 0;
  clock_gettime(CLOCK_MONOTONIC, &from);
  for (const kedge_case_row *row = kedge_cases_of(op); row->name && wanted_op(kedge_op_get(op)->name);
       row++) {
    if (row->rejects) continue;
    check_case(op, row, KEDGE_F32);
    check_case(op, row, KEDGE_BF16);
  }
  clock_gettime(CLOCK_MONOTONIC, &to);
  if (getenv("KEDGE_VERBOSE"))
    printf("%-18s %.2f s\n", kedge_op_get(op)->name,
           (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec));
  assert_int_equal(failures, 0);
}

int main(void) {
  static kedge_op ops[KEDGE_OP_COUNT];
  static struct CMUnitTest tests[KEDGE_OP_COUNT];
  for (uint32_t i = 0; i < KEDGE_OP_COUNT; i++) {
    ops[i] = (kedge_op)i;
    tests[i] = (struct CMUnitTest){kedge_op_get(ops[i])->name, test_op, NULL, NULL, &ops[i]};
  }
  return cmocka_run_group_tests(tests, open_devices, close_devices);
}
