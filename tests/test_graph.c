/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * The graph: sticky errors and their messages, limits, dtype rules, views and outputs. Gradients and
 * recompute regions as parts of a graph are in test_graph_gradient.c.
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

#define DIMS(...) (sizeof((uint32_t[]){__VA_ARGS__}) / 4), ((uint32_t[]){__VA_ARGS__})

static kedge_device *ref, *null_device;

static kedge_graph *graph_new(void) {
  kedge_graph *g = kedge_graph_new(false);
  assert_non_null(g);
  return g;
}

/* The graph failed, and its message has all of these texts. Frees it. */
static void expect_failure(kedge_graph *g, kedge_status status, const char *a, const char *b) {
  assert_int_equal(kedge_graph_status(g), status);
  if (!strstr(kedge_message(), a) || !strstr(kedge_message(), b))
    fail_msg("expected \"%s\" and \"%s\" in \"%s\"", a, b, kedge_message());
  kedge_graph_free(g);
}

static void test_sticky(void **state) {
  (void)state;
  kedge_graph *g = graph_new();
  kedge_value x = kedge_input(g, "hidden", KEDGE_F32, DIMS(2, 3));
  kedge_value w = kedge_parameter(g, "down", KEDGE_F32, DIMS(5, 4), NULL, 0);
  assert_int_equal(kedge_linear(g, x, w), KEDGE_NONE);
  uint32_t nodes = kedge_graph_nodes(g);
  assert_int_equal(kedge_add(g, x, x), KEDGE_NONE);
  assert_int_equal(kedge_input(g, "late", KEDGE_F32, DIMS(2)), KEDGE_NONE);
  assert_int_equal(kedge_reshape(g, x, DIMS(7)), KEDGE_NONE);
  assert_int_equal(kedge_window(g, x, 9, 9), KEDGE_NONE);
  kedge_output(g, x, "hidden");
  kedge_value gradient = 7;
  kedge_gradient(g, x, &x, 1, &gradient, NULL, NULL);
  assert_int_equal(gradient, KEDGE_NONE);
  assert_int_equal(kedge_graph_nodes(g), nodes);
  kedge_exec *exec = NULL;
  assert_int_equal(kedge_exec_new(null_device, g, NULL, &exec), KEDGE_ERR_SHAPE);
  assert_null(exec);
  kedge_fail(KEDGE_ERR_IO, "something else");
  assert_int_equal(kedge_graph_status(g), KEDGE_ERR_SHAPE);
  assert_non_null(strstr(kedge_message(), "matmul"));
  expect_failure(g, KEDGE_ERR_SHAPE, "hidden f32[2,3]", "down f32[5,4]");
}

static void test_limits(void **state) {
  (void)state;
  kedge_graph *g = graph_new();
  assert_int_not_equal(kedge_input(g, "most", KEDGE_F32, DIMS(2147483647)), KEDGE_NONE);
  assert_int_equal(kedge_graph_status(g), KEDGE_OK);
  kedge_input(g, "more", KEDGE_F32, DIMS(65536, 32768));
  expect_failure(g, KEDGE_ERR_SHAPE, "more", "2147483647");
  g = graph_new();
  kedge_input(g, "wrap", KEDGE_BF16, DIMS(65536, 65536, 65536, 65536));
  expect_failure(g, KEDGE_ERR_SHAPE, "wrap", "2147483647");
  g = graph_new();
  kedge_input(g, "empty", KEDGE_F32, DIMS(3, 0));
  expect_failure(g, KEDGE_ERR_SHAPE, "empty", "dimension 1 is 0");
  g = graph_new();
  kedge_input(g, "deep", KEDGE_F32, DIMS(1, 1, 1, 1, 1));
  expect_failure(g, KEDGE_ERR_SHAPE, "deep", "got 5");
  g = graph_new();
  kedge_value a = kedge_input(g, "a", KEDGE_F32, DIMS(65536, 1)),
              b = kedge_input(g, "b", KEDGE_F32, DIMS(1, 32768));
  kedge_matmul(g, a, b, false, false, KEDGE_F32);
  expect_failure(g, KEDGE_ERR_SHAPE, "matmul", "2147483647");
  g = graph_new();
  a = kedge_input(g, "a", KEDGE_F32, DIMS(4, 3));
  kedge_reshape(g, a, DIMS(65536, 65536, 3, 4)); /* 12 modulo 2^32 is not 12 */
  expect_failure(g, KEDGE_ERR_SHAPE, "reshape(a)", "expected 12 elements");
  g = graph_new();
  a = kedge_input(g, "a", KEDGE_F32, DIMS(4, 3));
  kedge_window(g, a, UINT32_MAX, 2);
  expect_failure(g, KEDGE_ERR_SHAPE, "window(a)", "of 3");
  g = graph_new();
  a = kedge_input(g, "a", KEDGE_F32, DIMS(4, 3));
  kedge_part(g, a, 4);
  expect_failure(g, KEDGE_ERR_SHAPE, "part(a)", "4 of 4");
}

static void test_dtypes(void **state) {
  (void)state;
  static const struct {
    kedge_dtype a, b;
    bool good;
  } pairs[] = {{KEDGE_F32, KEDGE_F32, true},   {KEDGE_BF16, KEDGE_BF16, true}, {KEDGE_F32, KEDGE_BF16, false},
               {KEDGE_BF16, KEDGE_F32, false}, {KEDGE_I32, KEDGE_I32, false},  {KEDGE_F32, KEDGE_I32, false}};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
    kedge_graph *g = graph_new();
    kedge_value a = kedge_input(g, "a", pairs[i].a, DIMS(3)), b = kedge_input(g, "b", pairs[i].b, DIMS(3));
    kedge_value y = kedge_add(g, a, b);
    assert_int_equal(y != KEDGE_NONE, pairs[i].good);
    if (!pairs[i].good) {
      expect_failure(g, KEDGE_ERR_SHAPE, "add: input", "expected");
      continue;
    }
    assert_int_equal(kedge_value_dtype(g, y), pairs[i].a);
    assert_int_equal(kedge_value_dtype(g, kedge_sum(g, y)), KEDGE_F32);
    assert_int_equal(kedge_value_dtype(g, kedge_copy(g, y, KEDGE_BF16)), KEDGE_BF16);
    assert_int_equal(kedge_cast(g, y, pairs[i].a), y);
    kedge_graph_free(g);
  }
  kedge_graph *g = graph_new();
  kedge_scores(g, kedge_input(g, "logits", KEDGE_BF16, DIMS(3, 4)), KEDGE_SCORE_SOFTMAX);
  expect_failure(g, KEDGE_ERR_SHAPE, "scores: input 0 has dtype bf16", "expected f32");
  g = graph_new();
  kedge_add(g, kedge_input(g, "a", KEDGE_F32, DIMS(3)), KEDGE_NONE);
  expect_failure(g, KEDGE_ERR_ARGUMENT, "add", "input 1 is missing");
  g = kedge_graph_new(true);
  kedge_value x = kedge_input(g, "x", KEDGE_BF16, DIMS(3)), ids = kedge_input(g, "ids", KEDGE_I32, DIMS(3));
  assert_int_equal(kedge_value_dtype(g, x), KEDGE_F64);
  assert_int_equal(kedge_value_dtype(g, ids), KEDGE_I32);
  assert_int_equal(kedge_value_dtype(g, kedge_copy(g, x, KEDGE_BF16)), KEDGE_F64);
  kedge_output(g, kedge_scale(g, x, 2), "y");
  kedge_device *cpu = NULL;
  kedge_exec *exec = NULL;
  assert_int_equal(kedge_device_open("cpu", NULL, &cpu), KEDGE_OK);
  assert_int_equal(kedge_exec_new(cpu, g, NULL, &exec), KEDGE_ERR_UNSUPPORTED);
  kedge_device_close(cpu);
  kedge_graph_free(g);
}

/* ---- Views: x holds 0, 1, 2, ..., so a result says which elements it took. */

typedef kedge_value (*view_builder)(kedge_graph *g, kedge_value x);

static kedge_value view_window(kedge_graph *g, kedge_value x) {
  return kedge_window(g, x, 2, 3);
}
static kedge_value view_nested(kedge_graph *g, kedge_value x) {
  return kedge_window(g, kedge_window(g, x, 1, 4), 1, 2);
}
static kedge_value view_reshape(kedge_graph *g, kedge_value x) {
  return kedge_reshape(g, x, DIMS(8, 3));
}
static kedge_value view_part(kedge_graph *g, kedge_value x) {
  return kedge_reshape(g, kedge_part(g, x, 2), DIMS(1, 6));
}
static kedge_value view_window_of_part(kedge_graph *g, kedge_value x) {
  return kedge_window(g, kedge_part(g, kedge_reshape(g, x, DIMS(2, 2, 6)), 1), 1, 4);
}
static kedge_value view_late_window(kedge_graph *g,
                                    kedge_value x) { /* rows that do not start at the base's */
  kedge_value flat = kedge_window(g, kedge_reshape(g, x, DIMS(1, 24)), 9, 15);
  return kedge_window(g, kedge_reshape(g, flat, DIMS(3, 5)), 3, 2);
}
static kedge_value view_reshaped_window(kedge_graph *g, kedge_value x) {
  return kedge_reshape(g, kedge_window(g, x, 3, 2), DIMS(2, 4));
}
static kedge_value view_one_column(kedge_graph *g, kedge_value x) {
  return kedge_window(g, x, 5, 1);
}

static const struct {
  const char *name;
  view_builder build;
  uint32_t rows, cols;
  int32_t want[24];
} views[] = {
    {"window", view_window, 4, 3, {2, 3, 4, 8, 9, 10, 14, 15, 16, 20, 21, 22}},
    {"window of a window", view_nested, 4, 2, {2, 3, 8, 9, 14, 15, 20, 21}},
    {"reshape", view_reshape, 8, 3, {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                     12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23}},
    {"part", view_part, 1, 6, {12, 13, 14, 15, 16, 17}},
    {"window of a part", view_window_of_part, 2, 4, {13, 14, 15, 16, 19, 20, 21, 22}},
    {"window of late rows", view_late_window, 3, 2, {12, 13, 17, 18, 22, 23}},
    {"reshape of a window", view_reshaped_window, 2, 4, {3, 4, 9, 10, 15, 16, 21, 22}},
    {"one column", view_one_column, 4, 1, {5, 11, 17, 23}},
};

/* Builds loss = sum(view(x) * c) + sum(x), runs it and checks the view and the gradient c + 1, where x was
 * read. */
static void check_view(size_t i, bool through_node) {
  enum { COUNT = 24 };
  kedge_graph *g = graph_new();
  float data[COUNT], got[COUNT], gradient[COUNT], want[COUNT];
  for (int k = 0; k < COUNT; k++) data[k] = (float)k, want[k] = 1;
  kedge_value x = kedge_input(g, "x", KEDGE_F32, DIMS(4, 6)), base = through_node ? kedge_scale(g, x, 1) : x;
  kedge_value view = views[i].build(g, base);
  uint32_t dims[] = {views[i].rows, views[i].cols}, count = dims[0] * dims[1];
  kedge_value c = kedge_input(g, "c", KEDGE_F32, 2, dims);
  kedge_value copy = kedge_copy(g, view, KEDGE_F32);
  kedge_output(g, copy, "copy");
  kedge_value loss = kedge_add(g, kedge_sum(g, kedge_mul(g, view, c)), kedge_sum(g, base)), dx;
  kedge_gradient(g, loss, &x, 1, &dx, NULL, NULL);
  kedge_output(g, dx, "dx");
  assert_int_equal(kedge_value_rank(g, dx), 2);
  float cotangent[COUNT];
  for (uint32_t k = 0; k < count; k++) {
    cotangent[k] = (float)(k * k) + 0.5f;
    want[views[i].want[k]] += cotangent[k];
  }
  kedge_exec *exec = NULL;
  assert_int_equal(kedge_exec_new(ref, g, NULL, &exec), KEDGE_OK);
  assert_int_equal(kedge_exec_fill_arena(exec, 0xff), KEDGE_OK);
  assert_int_equal(kedge_exec_write(exec, x, data, sizeof data), KEDGE_OK);
  assert_int_equal(kedge_exec_write(exec, c, cotangent, 4 * count), KEDGE_OK);
  assert_int_equal(kedge_exec_run(exec, 0, UINT32_MAX), KEDGE_OK);
  assert_int_equal(kedge_exec_read(exec, copy, got, 4 * count), KEDGE_OK);
  assert_int_equal(kedge_exec_read(exec, dx, gradient, sizeof gradient), KEDGE_OK);
  for (uint32_t k = 0; k < count; k++)
    if (got[k] != (float)views[i].want[k]) fail_msg("%s: element %u is %g", views[i].name, k, (double)got[k]);
  for (int k = 0; k < COUNT; k++)
    if (gradient[k] != want[k])
      fail_msg("%s: gradient %d is %g, expected %g", views[i].name, k, (double)gradient[k], (double)want[k]);
  kedge_exec_free(exec);
  kedge_graph_free(g);
}

static void test_views(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
    check_view(i, false);
    check_view(i, true);
  }
}

static void test_outputs(void **state) {
  (void)state;
  kedge_graph *g = graph_new();
  float data[] = {1, 2, 3, 4}, got[4];
  kedge_value x = kedge_input(g, "x", KEDGE_F32, DIMS(2, 2)), y = kedge_scale(g, x, 2),
              z = kedge_add(g, y, x);
  kedge_output(g, z, "z");
  assert_int_equal(kedge_find(g, "z"), z);
  assert_int_equal(kedge_find(g, "x"), x);
  assert_int_equal(kedge_find(g, "no such"), KEDGE_NONE);
  kedge_exec *exec = NULL;
  assert_int_equal(kedge_exec_new(ref, g, NULL, &exec), KEDGE_OK);
  assert_int_equal(kedge_exec_read(exec, z, got, sizeof got), KEDGE_ERR_ARGUMENT); /* nothing ran yet */
  assert_int_equal(kedge_exec_write(exec, x, data, sizeof data), KEDGE_OK);
  assert_int_equal(kedge_exec_run(exec, 0, UINT32_MAX), KEDGE_OK);
  assert_int_equal(kedge_exec_read(exec, y, got, sizeof got), KEDGE_ERR_ARGUMENT);
  assert_int_equal(kedge_exec_read(exec, z, got, sizeof got - 4), KEDGE_ERR_SHAPE);
  assert_int_equal(kedge_exec_read(exec, 999, got, sizeof got), KEDGE_ERR_ARGUMENT);
  assert_int_equal(kedge_exec_read(exec, z, got, sizeof got), KEDGE_OK);
  for (int i = 0; i < 4; i++) assert_true(got[i] == 3 * data[i]);
  kedge_exec_free(exec);
  kedge_output(g, kedge_window(g, z, 0, 1), "narrow");
  expect_failure(g, KEDGE_ERR_ARGUMENT, "narrow", "window");
}

static void test_parameters(void **state) {
  (void)state;
  kedge_buffer *buffer = NULL;
  assert_int_equal(kedge_buffer_new(ref, 40, &buffer), KEDGE_OK);
  kedge_graph *g = graph_new();
  assert_int_not_equal(kedge_parameter(g, "fits", KEDGE_F32, DIMS(2, 4), buffer, 8), KEDGE_NONE);
  kedge_parameter(g, "weight", KEDGE_F32, DIMS(2, 4), buffer, 12);
  expect_failure(g, KEDGE_ERR_SHAPE, "weight", "40 bytes");
  g = graph_new();
  kedge_parameter(g, "weight", KEDGE_F32, DIMS(1), buffer, UINT64_MAX - 1);
  expect_failure(g, KEDGE_ERR_SHAPE, "weight", "40 bytes");
  g = graph_new();
  kedge_parameter_parts(g, "experts", KEDGE_F32, DIMS(2, 4), (kedge_buffer *[]){buffer, buffer},
                        (uint64_t[]){0, 28});
  expect_failure(g, KEDGE_ERR_SHAPE, "experts", "part 1");
  g = graph_new();
  kedge_value x = kedge_input(g, "x", KEDGE_F32, DIMS(4));
  kedge_accumulate(g, x, x);
  expect_failure(g, KEDGE_ERR_ARGUMENT, "accumulate", "must be a parameter");
  /* A parameter without a buffer can be planned, but not run. */
  g = graph_new();
  kedge_output(g, kedge_scale(g, kedge_parameter(g, "unbound", KEDGE_F32, DIMS(4), NULL, 0), 2), "y");
  kedge_exec *exec = NULL;
  assert_int_equal(kedge_exec_new(ref, g, NULL, &exec), KEDGE_OK);
  assert_int_equal(kedge_exec_run(exec, 0, UINT32_MAX), KEDGE_ERR_ARGUMENT);
  assert_non_null(strstr(kedge_message(), "unbound"));
  kedge_exec_free(exec);
  assert_int_equal(kedge_exec_new(null_device, g, NULL, &exec), KEDGE_OK);
  assert_int_equal(kedge_exec_run(exec, 0, UINT32_MAX), KEDGE_OK);
  kedge_exec_free(exec);
  kedge_graph_free(g);
  kedge_buffer_free(buffer);
}

static int open_devices(void **state) {
  (void)state;
  return kedge_device_open("ref", NULL, &ref) || kedge_device_open("null", NULL, &null_device) ? -1 : 0;
}

static int close_devices(void **state) {
  (void)state;
  kedge_device_close(ref);
  kedge_device_close(null_device);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_sticky),  cmocka_unit_test(test_limits),
                                     cmocka_unit_test(test_dtypes),  cmocka_unit_test(test_views),
                                     cmocka_unit_test(test_outputs), cmocka_unit_test(test_parameters)};
  return cmocka_run_group_tests(tests, open_devices, close_devices);
}
