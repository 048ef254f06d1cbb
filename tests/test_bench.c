/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * The command `bench`: every line is there, its figures belong together, and mistakes are told. */
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static double number(const json_t *object, const char *key) {
  return json_number_value(json_object_get(object, key));
}
static bool is(const json_t *object, const char *key, const char *text) {
  const char *value = json_string_value(json_object_get(object, key));
  return value && !strcmp(value, text);
}

static void check_figures(const json_t *line, double peak) {
  const double seconds = number(line, "seconds"), best = number(line, "best_seconds");
  assert_true(seconds > 0 && best > 0 && best <= seconds);
  assert_true(number(line, "runs") >= 3);
  assert_true(json_is_number(json_object_get(line, "load")) && number(line, "load") >= 0);
  if (json_object_get(line, "gflops")) {
    const double share = number(line, "gflops") / peak;
    assert_true(share > 0 && share < 20);
    assert_true(number(line, "peak_share") > 0.999 * share && number(line, "peak_share") < 1.001 * share);
  } else {
    assert_true(number(line, "bytes_per_second") > 0);
  }
  double sum = 0;
  const char *op;
  json_t *share;
  json_object_foreach(json_object_get(line, "op_shares"), op, share) sum += json_number_value(share);
  if (json_object_get(line, "op_shares")) assert_true(sum > 0.999 && sum < 1.001);
}

static void test_json(void **state) {
  (void)state;
  json_t *root = test_kedge_json("bench --json --threads 1 --seconds 0");
  const json_t *results = json_object_get(root, "results"), *line;
  uint32_t ops[2] = {0}, layers = 0, steps = 0, generations = 0;
  size_t i;
  assert_true(number(root, "threads") > 0.5 && number(root, "threads") < 1.5);
  json_array_foreach(results, i, line) {
    const bool bf16 = is(line, "dtype", "bf16");
    check_figures(line, number(json_object_get(root, "peak_gflops"), bf16 ? "bf16" : "f32"));
    assert_true(is(line, "shape", "laptop"));
    ops[bf16] += is(line, "bench", "ops");
    layers += is(line, "bench", "layer") && json_object_get(line, "op_shares");
    steps += is(line, "bench", "step") && number(line, "tokens_per_second") > 0;
    generations += is(line, "bench", "generate") && number(line, "tokens_per_second") > 0;
  }
  assert_true(ops[0] >= 12 && ops[0] == ops[1]);
  assert_int_equal(layers, 2);
  assert_int_equal(steps, 2);
  assert_int_equal(generations, 2);
  json_decref(root);
}

static void test_choice(void **state) {
  (void)state;
  json_t *root = test_kedge_json("bench layer --json --isa base --dtype f32 --threads 2 --seconds 0");
  assert_true(is(root, "isa", "base"));
  assert_int_equal(json_array_size(json_object_get(root, "results")), 1);
  json_decref(root);
  root = test_kedge_json("bench products --json --dtype f32 --tokens 32 --seconds 0");
  const json_t *first = json_array_get(json_object_get(root, "results"), 0);
  const double flops = 1e9 * number(first, "gflops") * number(first, "seconds");
  assert_true(flops > 0.999 * 2 * 32 * 256 * 256 && flops < 1.001 * 2 * 32 * 256 * 256);
  json_decref(root);
}

static void test_mistakes(void **state) {
  (void)state;
  test_kedge_expect("bench opss", 2, "benchmark \"opss\"");
  test_kedge_expect("bench ops --shape huge", 2, "--shape \"huge\"");
  test_kedge_expect("bench ops --dtype f16", 2, "expected f32 or bf16");
  test_kedge_expect("bench ops --isa sse9", 2, "sse9");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_json), cmocka_unit_test(test_choice),
                                     cmocka_unit_test(test_mistakes)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
