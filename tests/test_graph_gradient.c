/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Gradients as parts of a graph: what gets one and what refuses, when sinks are called, recompute regions,
 * and weights in parts. The rules of the single ops are test_gradients' matter, errors of builders
 * test_graph's.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/exec.h"
#include "tests/support/suite.h"

#define DIMS(...) (sizeof((uint32_t[]){__VA_ARGS__}) / 4), ((uint32_t[]){__VA_ARGS__})

static kedge_device *ref;

static kedge_graph *graph_new(void) {
  kedge_graph *g = kedge_graph_new(false);
  assert_non_null(g);
  return g;
}

static uint32_t count_ops(const kedge_graph *g, kedge_op op) {
  uint32_t count = 0;
  for (uint32_t n = 0; n < g->node_count; n++) count += g->nodes[n].op == op;
  return count;
}

/* ---- What gets a gradient */

static void test_dependence(void **state) {
  (void)state;
  kedge_graph *g = graph_new();
  kedge_value x = kedge_input(g, "x", KEDGE_F32, DIMS(3)),
              unused = kedge_input(g, "unused", KEDGE_F32, DIMS(3));
  kedge_value side = kedge_input(g, "side", KEDGE_F32, DIMS(3)), y = kedge_mul(g, x, x);
  kedge_scale(g, side, 2); /* is read, but the loss does not depend on it */
  kedge_value loss = kedge_sum(g, y), wrt[] = {x, unused, side, x, y, loss}, d[6];
  kedge_gradient(g, loss, wrt, 6, d, NULL, NULL);
  assert_int_equal(kedge_graph_status(g), KEDGE_OK);
  assert_int_equal(d[1], KEDGE_NONE);
  assert_int_equal(d[2], KEDGE_NONE);
  float data[] = {1, -2, 3}, got[3];
  static const float want[][3] = {{2, -4, 6}, {0}, {0}, {2, -4, 6}, {1, 1, 1}, {1}};
  for (int i = 0; i < 6; i++)
    if (d[i]) kedge_output(g, d[i], "d");
  kedge_exec *exec = NULL;
  assert_int_equal(kedge_exec_new(ref, g, NULL, &exec), KEDGE_OK);
  assert_int_equal(kedge_exec_write(exec, x, data, sizeof data), KEDGE_OK);
  assert_int_equal(kedge_exec_run(exec, 0, UINT32_MAX), KEDGE_OK);
  for (int i = 0; i < 6; i++) {
    if (!d[i]) continue;
    uint64_t bytes = kedge_value_bytes(g, d[i]);
    assert_int_equal(bytes, kedge_value_bytes(g, wrt[i]));
    assert_int_equal(kedge_exec_read(exec, d[i], got, bytes), KEDGE_OK);
    assert_memory_equal(got, want[i], bytes);
  }
  kedge_exec_free(exec);
  kedge_graph_free(g);
}

static void expect_refusal(kedge_graph *g, kedge_value loss, kedge_value wrt, kedge_status status,
                           const char *text) {
  kedge_value d;
  kedge_gradient(g, loss, &wrt, 1, &d, NULL, NULL);
  assert_int_equal(kedge_graph_status(g), status);
  if (!strstr(kedge_message(), text)) fail_msg("expected \"%s\" in \"%s\"", text, kedge_message());
  assert_int_equal(d, KEDGE_NONE);
  kedge_graph_free(g);
}

static void test_refusals(void **state) {
  (void)state;
  kedge_graph *g = graph_new();
  kedge_value x = kedge_input(g, "x", KEDGE_F32, DIMS(2, 3));
  expect_refusal(g, kedge_sum_squares(g, x), x, KEDGE_ERR_UNSUPPORTED, "sum_squares has no gradient");
  g = graph_new();
  x = kedge_input(g, "x", KEDGE_F32, DIMS(2, 3));
  expect_refusal(g, kedge_add(g, x, x), x, KEDGE_ERR_SHAPE, "one float");
  g = graph_new();
  x = kedge_input(g, "x", KEDGE_F32, DIMS(2, 3));
  expect_refusal(g, kedge_sum(g, x), kedge_reshape(g, x, DIMS(6)), KEDGE_ERR_ARGUMENT, "view");
  g = graph_new();
  x = kedge_input(g, "x", KEDGE_F32, DIMS(2, 3));
  expect_refusal(g, KEDGE_NONE, x, KEDGE_ERR_SHAPE, "one float");
  /* An op without a gradient beside the path is no reason to refuse. */
  g = graph_new();
  x = kedge_input(g, "x", KEDGE_F32, DIMS(2, 4));
  kedge_value segments = kedge_input(g, "segments", KEDGE_I32, DIMS(2)), d;
  kedge_value ids = kedge_topk(g, kedge_scores(g, x, KEDGE_SCORE_SOFTMAX), KEDGE_NONE, segments,
                               &(kedge_topk_options){.k = 2}, NULL);
  kedge_output(g, kedge_sum_squares(g, x), "norm");
  kedge_gate_options options = {KEDGE_SCORE_SOFTMAX, true, 1, 0};
  kedge_gradient(g, kedge_sum(g, kedge_gates(g, x, ids, &options)), &x, 1, &d, NULL, NULL);
  assert_int_equal(kedge_graph_status(g), KEDGE_OK);
  assert_int_not_equal(d, KEDGE_NONE);
  kedge_graph_free(g);
}

/* detach passes a value on and its gradient back to nobody: neither where it is one path of two, nor where it
 * is the only one; what reads its output sees a constant, ops without a gradient included. */
static void test_detach(void **state) {
  (void)state;
  kedge_graph *g = graph_new();
  kedge_value x = kedge_input(g, "x", KEDGE_F32, DIMS(3)), w = kedge_input(g, "w", KEDGE_F32, DIMS(3));
  kedge_value y = kedge_detach(g, w),
              loss = kedge_sum(g, kedge_mul(g, kedge_mul(g, x, kedge_detach(g, x)), y));
  loss = kedge_add(g, loss, kedge_sum_squares(g, y));
  kedge_value wrt[] = {x, w, y}, d[3];
  kedge_gradient(g, loss, wrt, 2, d, NULL, NULL);
  assert_int_equal(kedge_graph_status(g), KEDGE_OK);
  assert_int_equal(d[1], KEDGE_NONE);
  kedge_output(g, d[0], "dx");
  kedge_exec *exec = NULL;
  assert_int_equal(kedge_exec_new(ref, g, NULL, &exec), KEDGE_OK);
  float at[] = {1, -2, 3}, factor[] = {2, 5, -1}, got[3];
  assert_int_equal(kedge_exec_write(exec, x, at, sizeof at), KEDGE_OK);
  assert_int_equal(kedge_exec_write(exec, w, factor, sizeof factor), KEDGE_OK);
  assert_int_equal(kedge_exec_run(exec, 0, UINT32_MAX), KEDGE_OK);
  assert_int_equal(kedge_exec_read(exec, d[0], got, sizeof got), KEDGE_OK);
  assert_memory_equal(got, ((float[]){2, -10, -3}), sizeof got);
  kedge_exec_free(exec);
  /* The loss itself detached; and a gradient for the detached value, which is as good as any. */
  kedge_gradient(g, kedge_detach(g, kedge_sum(g, x)), wrt, 2, d, NULL, NULL);
  assert_int_equal(kedge_graph_status(g), KEDGE_OK);
  assert_int_equal(d[0], KEDGE_NONE);
  kedge_gradient(g, kedge_sum(g, kedge_mul(g, x, y)), wrt, 3, d, NULL, NULL);
  assert_int_equal(kedge_graph_status(g), KEDGE_OK);
  assert_int_equal(d[1], KEDGE_NONE);
  assert_int_not_equal(d[2], KEDGE_NONE);
  kedge_graph_free(g);
}

/* A row loss against a table that depends on a weight is refused, and accepted once the table is detached. */
static void test_constant_tables(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    kedge_graph *g = graph_new();
    kedge_value z = kedge_input(g, "z", KEDGE_F32, DIMS(2, 3)), table = kedge_scale(g, z, 2), d;
    kedge_value index = kedge_input(g, "index", KEDGE_I32, DIMS(2));
    if (n >= 3) table = kedge_detach(g, table);
    kedge_value loss = n % 3 == 0   ? kedge_anchor_kl(g, z, table, index)
                       : n % 3 == 1 ? kedge_anchor_l2(g, z, table, index, 1e-8)
                                    : kedge_balance(g, z, table, index, KEDGE_SCORE_SOFTMAX);
    if (n < 3) {
      expect_refusal(g, kedge_sum(g, loss), z, KEDGE_ERR_UNSUPPORTED, "has no gradient for its");
      continue;
    }
    kedge_gradient(g, kedge_sum(g, loss), &z, 1, &d, NULL, NULL);
    assert_int_equal(kedge_graph_status(g), KEDGE_OK);
    assert_int_not_equal(d, KEDGE_NONE);
    kedge_graph_free(g);
  }
}

/* ---- Sinks */

enum { LAYERS = 4, WIDTH = 24, ROWS = 8 };

typedef struct chain {
  kedge_graph *g;
  kedge_value x, loss, weights[LAYERS], gradients[LAYERS], accumulators[LAYERS];
  kedge_buffer *buffers[LAYERS], *sums[LAYERS];
  uint32_t calls, order[LAYERS], nodes_at[LAYERS];
} chain;

static void chain_sink(void *context, kedge_graph *g, kedge_value wrt, kedge_value gradient) {
  chain *c = context;
  for (uint32_t i = 0; i < LAYERS; i++) {
    if (c->weights[i] != wrt) continue;
    assert_true(c->calls < LAYERS);
    c->nodes_at[c->calls] = kedge_graph_nodes(g);
    c->order[c->calls++] = i;
    kedge_accumulate(g, c->accumulators[i], gradient);
  }
}

/* Layers y = swiglu(linear(x), x) + x, each in a region if asked; the gradient of a loss for all weights. */
static void chain_init(chain *c, bool regions, bool sink) {
  *c = (chain){.g = graph_new()};
  kedge_graph *g = c->g;
  kedge_value y = c->x = kedge_input(g, "x", KEDGE_F32, DIMS(ROWS, WIDTH));
  for (uint32_t i = 0; i < LAYERS; i++) {
    assert_int_equal(kedge_buffer_new(ref, 4 * WIDTH * WIDTH, &c->buffers[i]), KEDGE_OK);
    assert_int_equal(kedge_buffer_new(ref, 4 * WIDTH * WIDTH, &c->sums[i]), KEDGE_OK);
    c->weights[i] = kedge_parameter(g, "w", KEDGE_F32, DIMS(WIDTH, WIDTH), c->buffers[i], 0);
    c->accumulators[i] = kedge_parameter(g, "sum", KEDGE_F32, DIMS(WIDTH, WIDTH), c->sums[i], 0);
    if (regions) kedge_region_begin(g, "layer");
    kedge_value a = kedge_swiglu(g, kedge_linear(g, y, c->weights[i]), y);
    for (int k = 0; k < 3; k++) a = kedge_swiglu(g, a, y);
    /* The first weight is tied: its gradient is not complete before the first layer's part is there. */
    if (i == LAYERS - 1) a = kedge_swiglu(g, kedge_linear(g, a, c->weights[0]), a);
    y = kedge_add(g, a, y);
    if (regions) kedge_region_end(g);
  }
  c->loss = kedge_sum(g, y);
  kedge_gradient(g, c->loss, c->weights, LAYERS, c->gradients, sink ? chain_sink : NULL, c);
  if (!sink)
    for (uint32_t i = 0; i < LAYERS; i++) kedge_output(g, c->gradients[i], "d");
  kedge_output(g, c->loss, "loss");
  assert_int_equal(kedge_graph_status(g), KEDGE_OK);
}

/* Runs; results[i] are layer i's gradients, from outputs or accumulators. Returns the arena's bytes. */
static uint64_t chain_run(chain *c, bool sink, float results[LAYERS][WIDTH * WIDTH]) {
  kedge_random random = {3};
  float x[ROWS * WIDTH], w[WIDTH * WIDTH];
  kedge_exec *exec = NULL;
  assert_int_equal(kedge_exec_new(ref, c->g, NULL, &exec), KEDGE_OK);
  /* Small: each layer multiplies by x five times, and what overflowed would compare as nothing. */
  for (int k = 0; k < ROWS * WIDTH; k++) x[k] = 0.5f * (float)kedge_random_normal(&random);
  assert_int_equal(kedge_exec_write(exec, c->x, x, sizeof x), KEDGE_OK);
  for (uint32_t i = 0; i < LAYERS; i++) {
    for (int k = 0; k < WIDTH * WIDTH; k++) w[k] = 0.2f * (float)kedge_random_normal(&random);
    assert_int_equal(kedge_exec_write(exec, c->weights[i], w, sizeof w), KEDGE_OK);
  }
  assert_int_equal(kedge_exec_fill_arena(exec, 0xff), KEDGE_OK);
  assert_int_equal(kedge_exec_run(exec, 0, UINT32_MAX), KEDGE_OK);
  for (uint32_t i = 0; i < LAYERS; i++)
    assert_int_equal(kedge_exec_read(exec, sink ? c->accumulators[i] : c->gradients[i], results[i], sizeof w),
                     KEDGE_OK);
  for (uint32_t i = 0; i < LAYERS; i++)
    for (int k = 0; k < WIDTH * WIDTH; k++) assert_true(isfinite(results[i][k]));
  uint64_t arena = kedge_exec_plan(exec).arena;
  kedge_exec_free(exec);
  return arena;
}

static void chain_destroy(chain *c) {
  kedge_graph_free(c->g);
  for (uint32_t i = 0; i < LAYERS; i++) {
    kedge_buffer_free(c->buffers[i]);
    kedge_buffer_free(c->sums[i]);
  }
}

static void test_sinks(void **state) {
  (void)state;
  static float plain[LAYERS][WIDTH * WIDTH], sunk[LAYERS][WIDTH * WIDTH];
  chain a, b;
  chain_init(&a, false, false);
  chain_init(&b, false, true);
  assert_int_equal(b.calls, LAYERS);
  for (uint32_t i = 0; i < LAYERS; i++) {
    assert_int_equal(b.order[i], LAYERS - 1 - i);          /* the last layer first */
    if (i) assert_true(b.nodes_at[i] > b.nodes_at[i - 1]); /* while the pass goes on */
    assert_true(b.nodes_at[i] < kedge_graph_nodes(b.g));   /* consumed in between */
  }
  uint64_t kept = chain_run(&a, false, plain), consumed = chain_run(&b, true, sunk);
  assert_memory_equal(plain, sunk, sizeof plain);
  assert_true(consumed <= kept);
  chain_destroy(&a);
  chain_destroy(&b);
}

/* ---- Regions */

static void test_regions(void **state) {
  (void)state;
  static float plain[LAYERS][WIDTH * WIDTH], recomputed[LAYERS][WIDTH * WIDTH];
  chain a, b;
  chain_init(&a, false, true);
  chain_init(&b, true, true);
  assert_true(count_ops(b.g, KEDGE_OP_swiglu) >= 2 * count_ops(a.g, KEDGE_OP_swiglu));
  uint64_t whole = chain_run(&a, true, plain), less = chain_run(&b, true, recomputed);
  assert_memory_equal(plain, recomputed, sizeof plain);
  printf("arena of %d layers: %llu bytes, %llu with recompute\n", LAYERS, (unsigned long long)whole,
         (unsigned long long)less);
  assert_true(less < whole);
  chain_destroy(&a);
  chain_destroy(&b);
}

/* A small expert layer: rows of x to 2 of 4 experts. */
static kedge_value experts(kedge_graph *g, kedge_value x, kedge_value router, kedge_value segments,
                           kedge_value up, kedge_value down) {
  kedge_value logits = kedge_matmul(g, x, router, false, true, KEDGE_F32);
  kedge_value ids = kedge_topk(g, kedge_scores(g, logits, KEDGE_SCORE_SOFTMAX), KEDGE_NONE, segments,
                               &(kedge_topk_options){.k = 2}, NULL);
  kedge_routes routes = kedge_dispatch(g, ids, 4);
  kedge_gate_options options = {KEDGE_SCORE_SOFTMAX, true, 1, 0};
  kedge_value weights = kedge_gates(g, logits, ids, &options);
  kedge_value h = kedge_grouped_matmul(g, kedge_gather_rows(g, x, &routes), up, &routes, true);
  kedge_value a = kedge_swiglu_gated(g, h, h, weights, &routes);
  return kedge_combine_rows(g, kedge_grouped_matmul(g, a, down, &routes, true), &routes);
}

static kedge_dtype expert_dtype;
static bool expert_parts, expert_region;
static void build_experts(kedge_case *c) {
  kedge_graph *g = c->graph;
  kedge_value x = kedge_case_x(c, "x", DIMS(6, 5)), router = kedge_case_x(c, "router", DIMS(4, 5));
  kedge_value segments = kedge_case_i(c, "segments", DIMS(6), (int32_t[]){0, 0, 0, 0, -1, 0});
  kedge_value up =
      expert_parts ? kedge_case_parts(c, "up", DIMS(4, 7, 5)) : kedge_case_x(c, "up", DIMS(4, 7, 5));
  kedge_value down =
      expert_parts ? kedge_case_parts(c, "down", DIMS(4, 5, 7)) : kedge_case_x(c, "down", DIMS(4, 5, 7));
  if (expert_region) kedge_region_begin(g, "experts");
  kedge_value y = experts(g, x, router, segments, up, down);
  if (expert_region) kedge_region_end(g);
  kedge_case_output(c, y);
  kedge_value loss = kedge_sum(g, kedge_mul(g, y, y)), wrt[] = {x, router, up, down}, d[4];
  kedge_gradient(g, loss, wrt, 4, d, NULL, NULL);
  for (int i = 0; i < 4; i++) kedge_case_output(c, d[i]);
}

static const kedge_case_row expert_row = {.name = "experts", .build = build_experts};

static void run_experts(kedge_device *device, bool parts, bool region, kedge_result *result) {
  expert_parts = parts;
  expert_region = region;
  if (kedge_case_run(&expert_row, device, expert_dtype, false, 0xff, result) != KEDGE_OK)
    fail_msg("%s: %s", kedge_device_description(device), kedge_message());
}

/* The same numbers whether the experts lie in one tensor or in parts, recomputed or kept, on every device. */
static void test_experts(void **state) {
  (void)state;
  kedge_test_devices devices;
  assert_int_equal(kedge_test_devices_open(&devices), KEDGE_OK);
  for (int d = 0; d < 2; d++) {
    expert_dtype = d ? KEDGE_BF16 : KEDGE_F32;
    for (uint32_t i = 0; i < devices.count; i++) {
      kedge_result whole, parts, region;
      run_experts(devices.at[i], false, false, &whole);
      run_experts(devices.at[i], true, false, &parts);
      run_experts(devices.at[i], true, true, &region);
      assert_int_equal(whole.count, 5);
      assert_true(kedge_result_same_bits(&whole, &parts));
      assert_true(kedge_result_same_bits(&whole, &region));
      double largest = 0;
      for (uint64_t k = 0; k < whole.tensors[3].count; k++)
        if (whole.tensors[3].numbers[k] > largest) largest = whole.tensors[3].numbers[k];
      assert_true(largest > 1e-3);
      kedge_result_destroy(&whole);
      kedge_result_destroy(&parts);
      kedge_result_destroy(&region);
    }
  }
  kedge_test_devices_close(&devices);
  kedge_case c;
  expert_parts = expert_region = true;
  assert_int_equal(kedge_case_init(&c, &expert_row, NULL, KEDGE_F32, false), KEDGE_OK);
  assert_int_equal(count_ops(c.graph, KEDGE_OP_topk), 1); /* experts are never chosen twice */
  assert_int_equal(count_ops(c.graph, KEDGE_OP_dispatch), 1);
  assert_true(count_ops(c.graph, KEDGE_OP_swiglu_gated) == 2);
  kedge_case_destroy(&c);
}

static void test_parts_refused(void **state) {
  (void)state;
  for (int i = 0; i < 4; i++) {
    kedge_graph *g = graph_new();
    kedge_buffer *buffers[2] = {NULL, NULL};
    kedge_value w = kedge_parameter_parts(g, "experts", KEDGE_F32, DIMS(2, 3), buffers, (uint64_t[]){0, 0});
    assert_int_not_equal(w, KEDGE_NONE);
    kedge_value y = i == 0   ? kedge_linear(g, kedge_input(g, "x", KEDGE_F32, DIMS(4, 3)), w)
                    : i == 1 ? kedge_reshape(g, w, DIMS(6))
                    : i == 2 ? kedge_window(g, w, 0, 1)
                             : kedge_part(g, w, 1);
    assert_int_equal(y, KEDGE_NONE);
    assert_int_not_equal(kedge_graph_status(g), KEDGE_OK);
    kedge_graph_free(g);
  }
}

static int open_devices(void **state) {
  (void)state;
  return kedge_device_open("ref", NULL, &ref) ? -1 : 0;
}

static int close_devices(void **state) {
  (void)state;
  kedge_device_close(ref);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_dependence), cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_detach),     cmocka_unit_test(test_constant_tables),
      cmocka_unit_test(test_sinks),      cmocka_unit_test(test_regions),
      cmocka_unit_test(test_experts),    cmocka_unit_test(test_parts_refused)};
  return cmocka_run_group_tests(tests, open_devices, close_devices);
}
