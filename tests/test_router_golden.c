/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Router vectors of other programs: golden/router_gradients.json of the shared data folder and
 * tests/golden/router_vectors.json in full, numbers changed in each quantity, wrong ways to route, and files
 * that are not what they should be. */
#include "core/args.h"
#include "models/gradcheck/gradcheck_vectors.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static const struct {
  const char *backend;
  bool all_double;
} ways[] = {{"ref", true}, {"ref", false}, {"cpu", false}};
enum { WAYS = 3 };

static kedge_vectors_report check(const kedge_vectors *v, int way) {
  kedge_device *device;
  kedge_vectors_report report;
  ok(kedge_device_open(ways[way].backend, NULL, &device));
  ok(kedge_vectors_check(v, device, ways[way].all_double, &report));
  kedge_device_close(device);
  return report;
}

/* The vectors that come with the tests (make_router_vectors.py). */
static const char *generated(void) {
  return test_golden("router_vectors.json");
}

static void check_file(const char *path, uint32_t comparisons) {
  kedge_vectors *v;
  ok(kedge_vectors_load(path, &v));
  for (int w = 0; w < WAYS; w++) {
    const kedge_vectors_report r = check(v, w);
    char *text = kedge_vectors_describe(v, &r);
    if (r.failed || text) fail_msg("%s, %s: %s", path, ways[w].backend, text);
    assert_int_equal(r.compared, comparisons);
  }
  kedge_vectors_free(v);
}

static void test_generated(void **state) {
  (void)state;
  check_file(generated(), 50);
}

static void test_shared_golden(void **state) {
  (void)state;
  const char *path = test_shared("golden/router_gradients.json");
  if (!path) skip();
  check_file(path, 47);
}

/* ---- Planted errors
 * ----------------------------------------------------------------------------------------------- */

/* One entry of one quantity is off by a little; the check names it. */
static void plant(kedge_vectors *v, int way, uint32_t c, uint32_t q) {
  double *numbers = v->expected[c][q], largest = 0;
  const uint64_t count = kedge_vectors_count(v, (kedge_vector_quantity)q);
  for (uint64_t i = 0; i < count; i++) largest = fmax(largest, fabs(numbers[i]));
  const uint64_t at = count * 2 / 3;
  const double kept = numbers[at], far = ways[way].all_double ? 3e-10 : 3e-5;
  numbers[at] += far * fmax(largest, q == KEDGE_VECTOR_LOSS || q == KEDGE_VECTOR_DZ || q == KEDGE_VECTOR_DW);
  const kedge_vectors_report r = check(v, way);
  char *text = kedge_vectors_describe(v, &r);
  if (r.failed != 1 || !text)
    fail_msg("case %s, %s: a number off by %g passes on %s", kedge_vector_cases[c].name,
             kedge_vector_cases[c].names[q], far, ways[way].backend);
  assert_true(strstr(text, kedge_vector_cases[c].name) && strstr(text, kedge_vector_cases[c].names[q]));
  assert_int_equal(r.results[c][q].at, at);
  kedge_free(text);
  numbers[at] = kept;
}

static void test_planted(void **state) {
  (void)state;
  kedge_vectors *v;
  uint32_t planted = 0;
  ok(kedge_vectors_load(generated(), &v));
  for (int w = 0; w < WAYS; w++)
    for (uint32_t c = 0; c < KEDGE_VECTOR_CASES; c++)
      for (uint32_t q = 0; q < KEDGE_VECTOR_QUANTITIES; q++)
        if (v->expected[c][q] && q != KEDGE_VECTOR_TOPK) plant(v, w, c, q), planted++;
  print_message("%u planted errors, each three times its limit, were named\n", planted);
  kedge_vectors_free(v);
}

/* What has a part in a case is read: each input that is changed fails each case that it is in. */
static void test_inputs_matter(void **state) {
  (void)state;
  kedge_vectors *v;
  ok(kedge_vectors_load(generated(), &v));
  const uint32_t SIGMOID = 1 << 0 | 1 << 3 | 1 << 7, RPB = 7, HARD = 7 << 3, ALL = 0xfff;
  const struct {
    const char *name;
    double *number, factor;
    uint32_t cases; /* a bit a case */
  } inputs[] = {{"X", &v->x_TD[3], 1.3, ALL & ~(1u << 11)},
                {"W", &v->w_ED[7], 1.3, ALL},
                {"W0", &v->base_w_ED[7], 1.3, 1u << 11},
                {"alpha", &v->alpha, 1.01, SIGMOID & (RPB | HARD)},
                {"beta", &v->beta, 1.01, RPB},
                {"bias", &v->bias_SE[2], 1.3, RPB},
                {"pi", &v->pi_SE[2], 1.3, 3u << 9},
                {"log_floor", &v->log_floor, 1e4, 1u << 10}};
  for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
    const double kept = *inputs[i].number;
    *inputs[i].number *= inputs[i].factor;
    const kedge_vectors_report r = check(v, 0);
    for (uint32_t c = 0; c < KEDGE_VECTOR_CASES; c++) {
      bool failed = false;
      for (uint32_t q = 0; q < KEDGE_VECTOR_QUANTITIES; q++)
        failed |= r.results[c][q].compared && !(r.results[c][q].error <= r.results[c][q].limit);
      if (failed != !!(inputs[i].cases >> c & 1))
        fail_msg("%s changed: case %s %s", inputs[i].name, kedge_vector_cases[c].name,
                 failed ? "fails" : "passes");
    }
    *inputs[i].number = kept;
  }
  kedge_vectors_free(v);
}

/* ---- Wrong ways to route
 * ------------------------------------------------------------------------------------------ */

/* Gates and their gradient for a choice by one set of logits and weights by another. */
static double wrong_way(const kedge_vectors *v, uint32_t at, bool bias_choice, bool bias_gates) {
  const kedge_vector_case *c = &kedge_vector_cases[at];
  const bool sigmoid = c->score_kind == KEDGE_SCORE_SIGMOID;
  const uint64_t count = (uint64_t)v->T * v->E;
  kedge_device *device;
  kedge_exec *exec;
  kedge_graph *g = kedge_graph_new(true);
  kedge_value x = kedge_input(g, "x", KEDGE_F32, 2, (uint32_t[]){v->T, v->D}),
              w = kedge_input(g, "w", KEDGE_F32, 2, (uint32_t[]){v->E, v->D}),
              b = kedge_input(g, "b", KEDGE_F32, 2, (uint32_t[]){v->S, v->E}),
              a = kedge_input(g, "a", KEDGE_F32, 1, (uint32_t[]){v->E}),
              span = kedge_input(g, "span", KEDGE_I32, 1, (uint32_t[]){v->T}),
              segments = kedge_input(g, "segments", KEDGE_I32, 1, (uint32_t[]){v->T}),
              cotangent = kedge_input(g, "cotangent", KEDGE_F32, 2, (uint32_t[]){v->T, v->K});
  kedge_value z = kedge_linear(g, x, w), biased = kedge_row_bias(g, z, b, span, v->beta), gradient;
  kedge_value scores = kedge_scores(g, bias_choice ? biased : z, c->score_kind);
  kedge_value ids =
      kedge_topk(g, scores, sigmoid ? a : KEDGE_NONE, segments, &(kedge_topk_options){.k = v->K}, NULL);
  const kedge_gate_options gate = {c->score_kind, c->normalise, sigmoid ? v->alpha : 1, sigmoid ? 1e-20 : 0};
  kedge_value gates = kedge_gates(g, bias_gates ? biased : z, ids, &gate);
  kedge_gradient(g, kedge_sum(g, kedge_mul(g, gates, cotangent)), &z, 1, &gradient, NULL, NULL);
  kedge_output(g, ids, "ids");
  kedge_output(g, gradient, "dz");
  ok(kedge_graph_status(g));
  ok(kedge_device_open("ref", NULL, &device));
  ok(kedge_exec_new(device, g, NULL, &exec));
  int32_t *chosen = calloc((size_t)v->T * v->K, sizeof *chosen);
  double *taken = calloc((size_t)v->T * v->K, sizeof *taken), *dz = calloc(count, sizeof *dz), error = 0;
  ok(kedge_exec_write(exec, x, v->x_TD, (uint64_t)v->T * v->D * sizeof *dz));
  ok(kedge_exec_write(exec, w, v->w_ED, (uint64_t)v->E * v->D * sizeof *dz));
  ok(kedge_exec_write(exec, b, v->bias_SE, (uint64_t)v->S * v->E * sizeof *dz));
  ok(kedge_exec_write(exec, a, v->correction_E, v->E * sizeof *dz));
  ok(kedge_exec_write(exec, span, v->span_T, v->T * sizeof *v->span_T));
  ok(kedge_exec_write(exec, segments, chosen, v->T * sizeof *chosen));
  for (int pass = 0; pass < 2; pass++) { /* the cotangent of what is chosen is known after the first */
    ok(kedge_exec_write(exec, cotangent, taken, (uint64_t)v->T * v->K * sizeof *taken));
    ok(kedge_exec_run(exec, 0, UINT32_MAX));
    ok(kedge_exec_read(exec, ids, chosen, (uint64_t)v->T * v->K * sizeof *chosen));
    for (uint32_t i = 0; i < v->T * v->K; i++)
      taken[i] = v->cotangent_TE[i / v->K * v->E + (uint32_t)chosen[i]];
  }
  ok(kedge_exec_read(exec, gradient, dz, count * sizeof *dz));
  for (uint64_t i = 0; i < count; i++) error = fmax(error, fabs(dz[i] - v->expected[at][KEDGE_VECTOR_DZ][i]));
  free(chosen), free(taken), free(dz);
  kedge_exec_free(exec);
  kedge_graph_free(g);
  kedge_device_close(device);
  return error;
}

static void test_wrong_ways(void **state) {
  (void)state;
  kedge_vectors *v;
  ok(kedge_vectors_load(generated(), &v));
  for (uint32_t c = 0; c < 3; c++) {
    assert_true(wrong_way(v, c, true, true) < 1e-10);
    const double gates = wrong_way(v, c, false, true), choice = wrong_way(v, c, true, false),
                 plain = wrong_way(v, c, false, false);
    print_message("rejected: %s with the bias in the gates alone (off by %.2g), in the choice alone (%.2g), "
                  "nowhere (%.2g)\n",
                  kedge_vector_cases[c].name, gates, choice, plain);
    assert_true(gates > 1e-3 && choice > 1e-3 && plain > 1e-3);
  }
  kedge_vectors_free(v);
}

/* ---- Files
 * -------------------------------------------------------------------------------------------------------- */

/* A file in the test folder; the folder's own paths are reused after a few calls. */
static const char *scratch(void) {
  static char path[512];
  snprintf(path, sizeof path, "%s", test_path(test_folder(), "changed.json"));
  return path;
}

/* The generated file with the value at a path of keys ("dims.T", "cases.kl.dz") replaced by a JSON text, or
 * left out where it is NULL. */
static void write_changed(const char *to, const char *path, const char *value) {
  char keys[100], *rest = keys, *last;
  json_t *root = json_load_file(generated(), 0, NULL), *parent = root;
  assert_non_null(root);
  snprintf(keys, sizeof keys, "%s", path);
  assert_string_not_equal(to, generated());
  for (char *dot; (dot = strchr(rest, '.')); rest = dot + 1) {
    *dot = 0;
    parent = json_object_get(parent, rest);
  }
  last = rest;
  if (value) {
    json_t *json = json_loads(value, JSON_DECODE_ANY, NULL);
    assert_non_null(json);
    json_object_set_new(parent, last, json);
  } else {
    json_object_del(parent, last);
  }
  char *text = json_dumps(root, JSON_REAL_PRECISION(17));
  test_write_text(to, text);
  free(text);
  json_decref(root);
}

/* A case that is absent is said, and so is a quantity. */
static void test_absent(void **state) {
  (void)state;
  const char *path = scratch();
  write_changed(path, "cases.kl", NULL);
  test_run run = test_kedge("gradcheck --vectors changed.json", 0, "");
  assert_non_null(strstr(run.out, "kl                                       not in the file"));
  assert_non_null(strstr(run.out, "141 comparisons"));
  test_run_free(&run);
  write_changed(path, "cases.zloss.dW", NULL);
  test_kedge_expect("gradcheck --vectors changed.json", 0, "");
}

static void test_mismatch(void **state) {
  (void)state;
  const char *path = scratch();
  write_changed(path, "cases.zloss.loss", "7.5");
  test_kedge_expect(
      "gradcheck --vectors changed.json", 1,
      "changed.json: 3 of 150 comparisons failed; ref f64: case zloss, loss: expected 7.5, got ");
  write_changed(path, "cases.lbl_softmax.f", "[0,0,0,0,0,0,0,0,0,0,0,1]");
  test_kedge_expect("gradcheck --vectors changed.json", 1, "case lbl_softmax, f[11]: expected 1, got ");
  write_changed(path, "beta", "0");
  test_kedge_expect("gradcheck --vectors changed.json", 1, "case rpb_sigmoid_norm, biased_logits[");
  write_changed(path, "e_score_correction_bias", "[9,-9,0,0,0,0,0,0,0,0,0,0]");
  test_kedge_expect("gradcheck --vectors changed.json", 1, "case rpb_sigmoid_norm, topk[");
}

static void test_hostile(void **state) {
  static const struct {
    const char *path, *value, *message;
  } list[] = {
      {"dims", "7", "dims: expected an object"},
      {"cases", "{}", "cases: expected at least one case, came none"},
      {"dims.T", "0", "dims.T: expected 1 to 1048576, came 0"},
      {"dims.T", "1e3", "dims.T: expected a whole number"},
      {"dims.T", "12", "X: expected 12 entries, came 11"},
      {"dims.E", "4294967297", "dims.E: expected 1 to 1048576, came 4294967297"},
      {"dims.K", "13", "dims.K: expected at most the 12 experts"},
      {"dims.d", NULL, "dims.d: expected a whole number, came nothing"},
      {"X", "[[1],[2]]", "X: expected 11 entries, came 2"},
      {"W", "{}", "W: expected an array"},
      {"W0", "[[],[],[],[],[],[],[],[],[],[],[],[]]", "W0: expected 6 entries, came 0"},
      {"e_score_correction_bias", "[1,2,3,4,5,6,7,8,9,10,11,null]", "expected a number"},
      {"span", "[0,1,2,3,0,0,0,0,0,0,0]", "span: expected -1 to 2, came 3"},
      {"span", "[0,1,2,-2,0,0,0,0,0,0,0]", "span: expected -1 to 2, came -2"},
      {"span", "[0,1,2,0.5,0,0,0,0,0,0,0]", "span: expected a whole number"},
      {"pi", "[]", "pi: expected an array of rows"},
      {"pi", "[[1,0,0,0,0,0,0,0,0,0,0,0],[1,0,0,0,0,0,0,0,0,0,0,0],[1,0,0,0,0,0,0,0,0,0,0,0.01]]",
       "pi, row 2: expected probabilities"},
      {"pi", "[[1,0,0,0,0,0,0,0,0,0,0,0],[2,-1,0,0,0,0,0,0,0,0,0,0],[1,0,0,0,0,0,0,0,0,0,0,0]]",
       "pi, row 1: expected probabilities"},
      {"eps", "-1", "eps: expected 1e-30 to 1e30, came -1"},
      {"eps", "5", "eps: expected at most C = 4, came 5"},
      {"beta", "\"1\"", "beta: expected a number"},
      {"log_floor", "1e-9", "log_floor: 1e-09 is below the floor"},
      {"cases", "[]", "cases: expected an object"},
      {"cases.rpb", "{}", "no case is named \"rpb\""},
      {"cases.kl", "{}", "case kl: nothing to compare"},
      {"cases.kl.dx", "[]", "case kl: unknown key \"dx\""},
      {"cases.kl.dz", "[1]", "kl.dz: expected 11 entries, came 1"},
      {"cases.kl.loss", "[1]", "kl.loss: expected a number"},
      {"cases.hard_softmax.topk", NULL, "hard_softmax.topk: expected an array, came nothing"},
      {"cases.hard_softmax.topk",
       "[[0,0,1,2],[0,0,1,2],[0,0,1,2],[0,0,1,2],[0,0,1,2],[0,0,1,2],[0,0,1,2],"
       "[0,0,1,2],[0,0,1,2],[0,0,1,2],[0,0,1,2]]",
       "hard_softmax.topk, token 0: expected 4 different experts of 12, came 0"},
  };
  (void)state;
  const char *path = scratch();
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    kedge_vectors *v;
    write_changed(path, list[i].path, list[i].value);
    if (kedge_vectors_load(path, &v) == KEDGE_OK) fail_msg("%s: loads", list[i].message);
    assert_null(v);
    if (!strstr(kedge_message(), list[i].message))
      fail_msg("expected \"%s\", came \"%s\"", list[i].message, kedge_message());
  }
  test_kedge_expect("gradcheck --vectors changed.json", 2, "different experts");
  test_write_text(path, "{\"dims\": {\"T\": 7");
  test_kedge_expect("gradcheck --vectors changed.json", 2, "changed.json");
  test_write_text(path, "[1, 2]");
  test_kedge_expect("gradcheck --vectors changed.json", 2, "expected an object");
  test_kedge_expect("gradcheck --vectors nowhere.json", 2, "nowhere.json");
  test_kedge_expect("gradcheck --vectors changed.json --all", 2, "--vectors stands alone");
}

/* Any allocation may fail: an error then, and nothing is left behind (the leak checker's part). */
static void test_memory(void **state) {
  (void)state;
  uint64_t loads = 0, checks = 0;
  kedge_vectors *v;
  kedge_device *device;
  kedge_vectors_report report;
  for (kedge_status status = KEDGE_ERR_MEMORY; status != KEDGE_OK; loads++) {
    kedge_alloc_fail_nth(loads + 1);
    status = kedge_vectors_load(generated(), &v);
    kedge_alloc_fail_nth(0);
    if (status == KEDGE_OK) break; /* all went well, or a string was shortened */
    assert_null(v);
    loads += loads / 20;
  }
  ok(kedge_device_open("cpu", NULL, &device));
  for (kedge_status status = KEDGE_ERR_MEMORY; status != KEDGE_OK; checks += 1 + checks / 10) {
    kedge_alloc_fail_nth(checks + 1);
    status = kedge_vectors_check(v, device, false, &report);
    kedge_alloc_fail_nth(0);
    if (status != KEDGE_OK) assert_int_equal(status, KEDGE_ERR_MEMORY);
  }
  assert_int_equal(report.failed, 0);
  assert_true(loads > 20 && checks > 100);
  kedge_device_close(device);
  kedge_vectors_free(v);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_generated),  cmocka_unit_test(test_shared_golden),
      cmocka_unit_test(test_planted),    cmocka_unit_test(test_inputs_matter),
      cmocka_unit_test(test_wrong_ways), cmocka_unit_test(test_absent),
      cmocka_unit_test(test_mismatch),   cmocka_unit_test(test_hostile),
      cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests_name("router golden", tests, NULL, NULL);
}
