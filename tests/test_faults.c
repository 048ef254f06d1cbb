/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Every allocation fails once: building, differentiating, planning and running a small graph must then report
 * that memory is out, once per allocation, and leave nothing behind (the sanitizers count what is left).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/random_graph.h"

#define DIMS(...) (sizeof((uint32_t[]){__VA_ARGS__}) / 4), ((uint32_t[]){__VA_ARGS__})

/* Everything a training step does to core, at small size. */
typedef struct job {
  const char *backend;
  kedge_device *device;
  kedge_graph *graph;
  kedge_buffer *weight, *experts[3], *sum;
  kedge_workspace *workspace;
  kedge_exec *exec;
  float loss;
} job;

static void sink(void *context, kedge_graph *g, kedge_value wrt, kedge_value gradient) {
  job *j = context;
  if (kedge_value_rank(g, wrt) != 2) return;
  kedge_value into = kedge_parameter(g, "sum", KEDGE_F32, DIMS(5, 5), j->sum, 0);
  kedge_accumulate(g, into, gradient);
}

static kedge_value build(job *j, kedge_value *x, kedge_value *ids) {
  kedge_graph *g = j->graph;
  kedge_value w = kedge_parameter(g, "w", KEDGE_F32, DIMS(5, 5), j->weight, 0), d[2];
  kedge_value up =
      kedge_parameter_parts(g, "up", KEDGE_F32, DIMS(3, 4, 5), j->experts, (uint64_t[]){0, 0, 0});
  *x = kedge_input(g, "x", KEDGE_F32, DIMS(4, 5));
  *ids = kedge_input(g, "ids", KEDGE_I32, DIMS(4, 2));
  kedge_region_begin(g, "layer");
  kedge_value h = kedge_add(g, kedge_linear(g, *x, w), *x);
  kedge_routes routes = kedge_dispatch(g, *ids, 3);
  kedge_value y = kedge_grouped_matmul(g, kedge_gather_rows(g, h, &routes), up, &routes, true);
  y = kedge_swiglu(g, kedge_window(g, y, 0, 2), kedge_window(g, y, 2, 2));
  kedge_region_end(g);
  kedge_value loss = kedge_sum(g, kedge_combine_rows(g, y, &routes)), wrt[] = {w, up};
  kedge_gradient(g, loss, wrt, 2, d, sink, j);
  kedge_output(g, loss, "loss");
  if (d[1]) kedge_output(g, d[1], "dup");
  return loss;
}

static kedge_status run_job(job *j) {
  kedge_value x, ids;
  float data[60];
  for (int i = 0; i < 60; i++) data[i] = (float)(i % 7) - 2.5f;
  KEDGE_TRY(kedge_device_open(j->backend, &(kedge_open_options){.threads = 2}, &j->device));
  KEDGE_TRY(kedge_buffer_new(j->device, 100, &j->weight));
  KEDGE_TRY(kedge_buffer_new(j->device, 100, &j->sum));
  for (int i = 0; i < 3; i++) {
    KEDGE_TRY(kedge_buffer_new(j->device, 80, &j->experts[i]));
    KEDGE_TRY(kedge_buffer_write(j->experts[i], 0, data + i, 80));
  }
  KEDGE_TRY(kedge_buffer_write(j->weight, 0, data, 100));
  j->graph = kedge_graph_new(false);
  if (!j->graph) return KEDGE_ERR_MEMORY;
  kedge_value loss = build(j, &x, &ids);
  KEDGE_TRY(kedge_graph_status(j->graph));
  KEDGE_TRY(kedge_workspace_new(j->device, &j->workspace));
  KEDGE_TRY(kedge_exec_new(j->device, j->graph, j->workspace, &j->exec));
  KEDGE_TRY(kedge_exec_write(j->exec, x, data, 80));
  KEDGE_TRY(kedge_exec_write(j->exec, ids, (int32_t[]){0, 1, 2, 1, -1, -1, 0, 2}, 32));
  KEDGE_TRY(kedge_exec_run(j->exec, 0, UINT32_MAX));
  return kedge_exec_read(j->exec, loss, &j->loss, sizeof j->loss);
}

static void end_job(job *j) {
  kedge_exec_free(j->exec);
  kedge_workspace_free(j->workspace);
  kedge_graph_free(j->graph);
  kedge_buffer_free(j->weight);
  kedge_buffer_free(j->sum);
  for (int i = 0; i < 3; i++) kedge_buffer_free(j->experts[i]);
  kedge_device_close(j->device);
}

static void fail_each(const char *backend) {
  job whole = {.backend = backend};
  kedge_alloc_fail_nth(0);
  assert_int_equal(run_job(&whole), KEDGE_OK);
  end_job(&whole);
  uint64_t made = kedge_alloc_fail_nth(0), failed = 0;
  assert_true(made > 30);
  for (uint64_t n = 1; n <= made; n++) {
    job j = {.backend = backend};
    kedge_fail(KEDGE_ERR_IO, "an older message");
    kedge_alloc_fail_nth(n);
    kedge_status status = run_job(&j);
    if (status != KEDGE_ERR_MEMORY)
      fail_msg("%s: allocation %u gives %s: %s", backend, (unsigned)n, kedge_status_name(status),
               kedge_message());
    if (!strstr(kedge_message(), "memory"))
      fail_msg("%s: allocation %u: the message is \"%s\"", backend, (unsigned)n, kedge_message());
    kedge_alloc_fail_nth(0);
    end_job(&j);
    failed++;
  }
  job again = {.backend = backend};
  assert_int_equal(run_job(&again), KEDGE_OK);
  assert_true(again.loss == whole.loss);
  assert_true(whole.loss != 0);
  end_job(&again);
  printf("%s: each of %u allocations failed once\n", backend, (unsigned)failed);
}

static void test_backends(void **state) {
  (void)state;
  fail_each("ref");
  fail_each("cpu");
}

/* A failed run leaves the execution usable: the next run gets its workspace. */
static void test_run_again(void **state) {
  (void)state;
  kedge_device *device = NULL;
  kedge_graph *g = kedge_graph_new(false);
  kedge_exec *exec = NULL;
  float data[] = {1, 2, 3}, got[3];
  assert_int_equal(kedge_device_open("ref", NULL, &device), KEDGE_OK);
  kedge_value x = kedge_input(g, "x", KEDGE_F32, DIMS(3)), y = kedge_scale(g, x, 2);
  kedge_output(g, y, "y");
  assert_int_equal(kedge_exec_new(device, g, NULL, &exec), KEDGE_OK);
  assert_int_equal(kedge_exec_write(exec, x, data, sizeof data), KEDGE_OK);
  kedge_alloc_fail_nth(1);
  assert_int_equal(kedge_exec_run(exec, 0, UINT32_MAX), KEDGE_ERR_MEMORY);
  kedge_alloc_fail_nth(0);
  assert_int_equal(kedge_exec_run(exec, 0, UINT32_MAX), KEDGE_OK);
  assert_int_equal(kedge_exec_read(exec, y, got, sizeof got), KEDGE_OK);
  for (int i = 0; i < 3; i++) assert_true(got[i] == 2 * data[i]);
  kedge_exec_free(exec);
  kedge_graph_free(g);
  kedge_device_close(device);
}

/* Random graphs: more ops and more shapes than the job above has. */
static void test_random_graphs(void **state) {
  (void)state;
  kedge_device *device = NULL;
  uint32_t failed = 0;
  assert_int_equal(kedge_device_open("ref", NULL, &device), KEDGE_OK);
  for (uint32_t seed = 0; seed < 12; seed++)
    for (uint64_t n = 1;; n++) {
      kedge_random_graph r;
      kedge_exec *exec = NULL;
      kedge_alloc_fail_nth(n);
      kedge_status status = kedge_random_graph_init(&r, device, seed, false);
      if (status == KEDGE_OK) status = kedge_exec_new(device, r.graph, NULL, &exec);
      if (status == KEDGE_OK) status = kedge_random_graph_fill(&r, exec);
      if (status == KEDGE_OK) status = kedge_exec_run(exec, 0, UINT32_MAX);
      uint64_t made = kedge_alloc_fail_nth(0);
      kedge_exec_free(exec);
      kedge_random_graph_destroy(&r);
      if (made < n) {
        assert_int_equal(status, KEDGE_OK);
        break;
      }
      if (status != KEDGE_ERR_MEMORY)
        fail_msg("graph %u: allocation %u gives %s: %s", seed, (unsigned)n, kedge_status_name(status),
                 kedge_message());
      failed++;
    }
  printf("random graphs: %u allocations failed\n", failed);
  assert_true(failed > 100);
  kedge_device_close(device);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_backends), cmocka_unit_test(test_run_again),
                                     cmocka_unit_test(test_random_graphs)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
