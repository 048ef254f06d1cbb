/* SPDX-License-Identifier: Apache-2.0
 * ctest: long
 *
 * How fast the Vulkan backend's products, norms and softmax are, in time on the device and in processor time
 * (on a software device both cores of it), and how long an op's first use takes. It fails where a result
 * misses the reference by more than 1e-6 of its rows' norms.
 */
#include "core/graph.h"
#include "core/ops.h"
#include "tests/support/suite.h"
#include "tests/support/vulkan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static kedge_device *vulkan;
static int runs = 4;

static double seconds(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s", kedge_message());
}

typedef struct speed_case {
  const char *name, *op;
  double flops; /* 0: print the time alone */
  kedge_value (*build)(kedge_graph *g);
  int product; /* whose result is checked: 1 A B, 2 A B^T, 3 A^T B; 0: not checked */
} speed_case;

static kedge_value input(kedge_graph *g, const char *name, uint32_t rows, uint32_t cols) {
  return kedge_input(g, name, KEDGE_F32, 2, (uint32_t[]){rows, cols});
}

enum { SIDE = 1024, E = 64, K = 1024, M = 352, T = 512, TOP = 6 };

static kedge_value product(kedge_graph *g, bool ta, bool tb) {
  kedge_value a = input(g, "a", SIDE, SIDE), b = input(g, "b", SIDE, SIDE);
  return kedge_matmul(g, a, b, ta, tb, KEDGE_F32);
}
static kedge_value forward(kedge_graph *g) {
  return product(g, false, false);
}
static kedge_value linear(kedge_graph *g) {
  return product(g, false, true);
}
static kedge_value weight_gradient(kedge_graph *g) {
  return product(g, true, false);
}
static kedge_value norm(kedge_graph *g) {
  kedge_value w = kedge_input(g, "w", KEDGE_F32, 1, (uint32_t[]){512});
  return kedge_rms_norm(g, input(g, "x", 2048, 512), w, 1e-6);
}
static kedge_value softmax(kedge_graph *g) {
  return kedge_scores(g, input(g, "x", 4096, 4096), KEDGE_SCORE_SOFTMAX);
}
static kedge_value grouped(kedge_graph *g) {
  kedge_value ids = kedge_input(g, "ids", KEDGE_I32, 2, (uint32_t[]){T, TOP});
  kedge_routes routes = kedge_dispatch(g, ids, E);
  kedge_value w = kedge_input(g, "w", KEDGE_F32, 3, (uint32_t[]){E, M, K});
  return kedge_grouped_matmul(g, kedge_gather_rows(g, input(g, "x", T, K), &routes), w, &routes, true);
}
static kedge_value grouped_weights(kedge_graph *g) {
  kedge_value ids = kedge_input(g, "ids", KEDGE_I32, 2, (uint32_t[]){T, TOP});
  kedge_routes routes = kedge_dispatch(g, ids, E);
  return kedge_grouped_wgrad(g, input(g, "dy", T * TOP, M),
                             kedge_gather_rows(g, input(g, "x", T, K), &routes), &routes);
}

static const speed_case cases[] = {
    {"matmul 1024^3", "matmul", 2.0 * SIDE *SIDE *SIDE, forward, 1},
    {"matmul 1024^3, B transposed", "matmul", 2.0 * SIDE *SIDE *SIDE, linear, 2},
    {"matmul 1024^3, A transposed", "matmul", 2.0 * SIDE *SIDE *SIDE, weight_gradient, 3},
    {"grouped E 64, K 1024, M 352", "grouped_matmul", 2.0 * T *TOP *K *M, grouped, 0},
    {"grouped weight gradient", "grouped_wgrad", 2.0 * T *TOP *K *M, grouped_weights, 0},
    {"rms_norm 2048 x 512", "rms_norm", 0, norm, 0},
    {"softmax 4096 x 4096", "scores", 0, softmax, 0},
};

/* Random numbers, or expert numbers without a repetition in a token. */
static void write_inputs(kedge_exec *exec, const kedge_graph *g, float **kept) {
  kedge_random random = {7};
  int count = 0;
  for (kedge_value v = 1; v < g->value_count; v++) {
    if (g->values[v].storage != KEDGE_STORE_INPUT) continue;
    uint64_t n = kedge_value_count(g, v);
    float *data = malloc(n * 4);
    int32_t *ids = (int32_t *)data;
    bool whole = g->values[v].shape.dtype == KEDGE_I32;
    for (uint64_t i = 0; i < n; i++)
      if (whole)
        ids[i] = (int32_t)((i / TOP * 37 + i % TOP * 11) % E);
      else
        data[i] = (float)(kedge_random_unit(&random) - 0.5);
    ok(kedge_exec_write(exec, v, data, n * 4));
    if (count < 2)
      kept[count++] = data;
    else
      free(data);
  }
}

/* The largest error of some rows of a product, relative to the row's norm. */
static double product_error(const float *a, const float *b, const float *c, int kind) {
  double most = 0;
  for (size_t i = 0; i < SIDE; i += 37) {
    double error = 0, norm2 = 0;
    for (size_t j = 0; j < SIDE; j++) {
      double sum = 0;
      for (size_t k = 0; k < SIDE; k++)
        sum += (double)a[kind == 3 ? k * SIDE + i : i * SIDE + k] *
               (double)b[kind == 2 ? j * SIDE + k : k * SIDE + j];
      error = fmax(error, fabs(sum - (double)c[i * SIDE + j]));
      norm2 += sum * sum;
    }
    most = fmax(most, error / sqrt(norm2));
  }
  return most;
}

static double run(kedge_exec *exec, const char *op, double *processor) {
  kedge_op_time times[KEDGE_OP_COUNT];
  double start = seconds(CLOCK_PROCESS_CPUTIME_ID), found = 0;
  kedge_exec_profile(exec, true);
  ok(kedge_exec_run(exec, 0, UINT32_MAX));
  *processor = seconds(CLOCK_PROCESS_CPUTIME_ID) - start;
  uint32_t count = kedge_exec_times(exec, times, KEDGE_OP_COUNT);
  for (uint32_t i = 0; i < count; i++)
    if (!strcmp(times[i].op, op)) found = times[i].seconds;
  return found;
}

static void test_case(void **state) {
  const speed_case *c = *state;
  kedge_graph *g = kedge_graph_new(false);
  kedge_exec *exec;
  float *kept[2] = {NULL, NULL};
  double processor, first_processor, first, best = INFINITY, least = INFINITY, error = 0;
  kedge_value out = c->build(g);
  kedge_output(g, out, "out");
  ok(kedge_exec_new(vulkan, g, NULL, &exec));
  write_inputs(exec, g, kept);
  double start = seconds(CLOCK_MONOTONIC);
  run(exec, c->op, &processor);
  first = seconds(CLOCK_MONOTONIC) - start;
  first_processor = processor;
  for (int i = 0; i < runs; i++) {
    best = fmin(best, run(exec, c->op, &processor));
    least = fmin(least, processor);
  }
  if (c->product) {
    float *got = malloc(kedge_value_bytes(g, out));
    ok(kedge_exec_read(exec, out, got, kedge_value_bytes(g, out)));
    error = product_error(kept[0], kept[1], got, c->product);
    free(got);
  }
  printf("%-30s first %6.3f s (%6.3f s), then %8.2f ms (%8.2f ms)", c->name, first, first_processor,
         1e3 * best, 1e3 * least);
  if (c->flops > 0)
    printf("   %6.1f GFLOP/s, by processor time %6.1f a core", 1e-9 * c->flops / best,
           1e-9 * c->flops / least);
  if (c->product) printf("   error %.2g", error);
  printf("\n");
  free(kept[0]);
  free(kept[1]);
  kedge_exec_free(exec);
  kedge_graph_free(g);
  assert_true(error < 1e-6);
}

int main(void) {
  static struct CMUnitTest tests[sizeof cases / sizeof *cases];
  setenv("KEDGE_VULKAN_VALIDATE", "0", 0);
  if (!kedge_test_vulkan(&vulkan)) return 77;
  if (getenv("KEDGE_TEST_RUNS")) runs = atoi(getenv("KEDGE_TEST_RUNS"));
  const char *only = getenv("KEDGE_TEST_OP");
  uint32_t count = 0;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    if (!only || strstr(cases[i].name, only)) {
      speed_case *own = malloc(sizeof *own);
      *own = cases[i];
      tests[count++] = (struct CMUnitTest){cases[i].name, test_case, NULL, NULL, own};
    }
  int failed = _cmocka_run_group_tests("vulkan_speed", tests, count, NULL, NULL);
  for (uint32_t i = 0; i < count; i++) free(tests[i].initial_state);
  kedge_device_close(vulkan);
  return failed;
}
