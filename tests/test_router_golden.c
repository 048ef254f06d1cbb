/* SPDX-License-Identifier: Apache-2.0
 *
 * Router bias, choice of experts, gate weights and their gradients against golden/router_gradients.json of
 * the shared data folder, in double on the reference backend. ctest: quick */
#include "core/args.h"
#include "core/kedge.h"
#include "tests/support/files.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { T = 7, E = 8, K = 3, D = 5, SPANS = 2 };

typedef struct golden {
  json_t *root;
  double x[T * D], w[E * D], bias[SPANS * E], correction[E], cotangent[T * E], beta, alpha;
  int32_t spans[T];
} golden;

/* Numbers of nested arrays, in order. */
static size_t flatten(const json_t *value, double *numbers, size_t capacity) {
  if (!json_is_array(value)) {
    assert_true(json_is_number(value) && capacity >= 1);
    *numbers = json_number_value(value);
    return 1;
  }
  size_t used = 0;
  for (size_t i = 0; i < json_array_size(value); i++)
    used += flatten(json_array_get(value, i), numbers + used, capacity - used);
  return used;
}

static void numbers_of(const json_t *object, const char *key, double *numbers, size_t count) {
  const json_t *value = json_object_get(object, key);
  if (!value) fail_msg("the golden file has no %s", key);
  assert_int_equal(flatten(value, numbers, count), count);
}

static bool load(golden *g) {
  const char *path = test_shared("golden/router_gradients.json");
  if (!path) return false;
  json_error_t error;
  g->root = json_load_file(path, 0, &error);
  if (!g->root) fail_msg("%s: %s", path, error.text);
  double spans[T];
  numbers_of(g->root, "X", g->x, T * D);
  numbers_of(g->root, "W", g->w, E * D);
  numbers_of(g->root, "bias", g->bias, SPANS * E);
  numbers_of(g->root, "e_score_correction_bias", g->correction, E);
  numbers_of(g->root, "dL_dgate", g->cotangent, T * E);
  numbers_of(g->root, "beta", &g->beta, 1);
  numbers_of(g->root, "alpha", &g->alpha, 1);
  numbers_of(g->root, "span", spans, T);
  for (int t = 0; t < T; t++) g->spans[t] = (int32_t)spans[t];
  return true;
}

/* One way to route: the golden case's name says which bias, which score and whether the weights are
 * normalised. */
typedef struct way {
  const char *name;
  bool hard, sigmoid, normalise;
} way;

typedef struct built {
  kedge_graph *graph;
  kedge_exec *exec;
  kedge_value x, w, bias, correction, spans, segments, cotangent, ids, gates, dz, dw;
} built;

/* Logits, choice and weights as a model of that kind routes; a hard prior chooses by the bias alone and
 * leaves the weights to the raw logits. The cotangent of the chosen [T,K] is an input, so that the loss is
 * its product with the gates. */
static void build(built *b, const golden *g, const way *how) {
  kedge_graph *graph = b->graph = kedge_graph_new(true);
  b->x = kedge_input(graph, "x", KEDGE_F32, 2, (uint32_t[]){T, D});
  b->w = kedge_input(graph, "w", KEDGE_F32, 2, (uint32_t[]){E, D});
  b->bias = kedge_input(graph, "bias", KEDGE_F32, 2, (uint32_t[]){SPANS, E});
  b->correction = kedge_input(graph, "correction", KEDGE_F32, 1, (uint32_t[]){E});
  b->spans = kedge_input(graph, "spans", KEDGE_I32, 1, (uint32_t[]){T});
  b->segments = kedge_input(graph, "segments", KEDGE_I32, 1, (uint32_t[]){T});
  b->cotangent = kedge_input(graph, "cotangent", KEDGE_F32, 2, (uint32_t[]){T, K});
  uint32_t kind = how->sigmoid ? KEDGE_SCORE_SIGMOID : KEDGE_SCORE_SOFTMAX;
  kedge_value raw = kedge_linear(graph, b->x, b->w);
  kedge_value logits = how->hard ? raw : kedge_row_bias(graph, raw, b->bias, b->spans, g->beta);
  kedge_value score = how->hard ? kedge_row_bias(graph, kedge_scale(graph, raw, 0), b->bias, b->spans, 1)
                                : kedge_scores(graph, logits, kind);
  kedge_value correction = how->sigmoid && !how->hard ? b->correction : KEDGE_NONE;
  b->ids = kedge_topk(graph, score, correction, b->segments, &(kedge_topk_options){.k = K}, NULL);
  /* A token without a span is routed as ever; the hard way takes its ids from the golden file. */
  kedge_value ids = how->hard ? kedge_input(graph, "ids", KEDGE_I32, 2, (uint32_t[]){T, K}) : b->ids;
  b->gates = kedge_gates(graph, logits, ids,
                         &(kedge_gate_options){.kind = kind,
                                               .normalise = how->normalise,
                                               .alpha = how->sigmoid ? g->alpha : 1,
                                               .epsilon = how->sigmoid ? 1e-20 : 0});
  kedge_value loss = kedge_sum(graph, kedge_mul(graph, b->gates, b->cotangent)), gradients[2];
  kedge_gradient(graph, loss, (kedge_value[]){logits, b->w}, 2, gradients, NULL, NULL);
  b->dz = gradients[0];
  b->dw = gradients[1];
  kedge_output(graph, b->ids, "chosen");
  kedge_output(graph, b->gates, "gates");
  kedge_output(graph, b->dz, "dz");
  kedge_output(graph, b->dw, "dw");
  if (kedge_graph_status(graph) != KEDGE_OK) fail_msg("%s: %s", how->name, kedge_message());
}

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s", kedge_message());
}

static void expect(const way *how, const char *what, const double *got, const double *want, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (!(fabs(got[i] - want[i]) <= 1e-10))
      fail_msg("%s, %s[%zu]: got %.17g, want %.17g", how->name, what, i, got[i], want[i]);
}

static void run_way(const golden *g, kedge_device *device, const way *how) {
  const json_t *want = json_object_get(json_object_get(g->root, "cases"), how->name);
  double topk[T * K], gates[T * E], dz[T * E], dw[E * D], got[T * E];
  numbers_of(want, "topk", topk, T * K);
  numbers_of(want, "gates", gates, T * E);
  numbers_of(want, "dL_dz", dz, T * E);
  int32_t ids[T * K], chosen[T * K], segments[T] = {0};
  double cotangent[T * K], weights[T * K];
  for (int i = 0; i < T * K; i++) {
    ids[i] = (int32_t)topk[i];
    assert_in_range(ids[i], 0, E - 1);
    cotangent[i] = g->cotangent[i / K * E + ids[i]];
  }
  built b;
  build(&b, g, how);
  ok(kedge_exec_new(device, b.graph, NULL, &b.exec));
  ok(kedge_exec_write(b.exec, b.x, g->x, sizeof g->x));
  ok(kedge_exec_write(b.exec, b.w, g->w, sizeof g->w));
  ok(kedge_exec_write(b.exec, b.bias, g->bias, sizeof g->bias));
  ok(kedge_exec_write(b.exec, b.correction, g->correction, sizeof g->correction));
  ok(kedge_exec_write(b.exec, b.spans, g->spans, sizeof g->spans));
  ok(kedge_exec_write(b.exec, b.segments, segments, sizeof segments));
  ok(kedge_exec_write(b.exec, b.cotangent, cotangent, sizeof cotangent));
  if (how->hard) ok(kedge_exec_write(b.exec, kedge_find(b.graph, "ids"), ids, sizeof ids));
  ok(kedge_exec_run(b.exec, 0, UINT32_MAX));
  ok(kedge_exec_read(b.exec, b.ids, chosen, sizeof chosen));
  for (int i = 0; i < T * K; i++)
    if (!(how->hard && g->spans[i / K] < 0) && chosen[i] != ids[i])
      fail_msg("%s: token %d chose expert %d, want %d", how->name, i / K, chosen[i], ids[i]);
  ok(kedge_exec_read(b.exec, b.gates, weights, sizeof weights));
  memset(got, 0, sizeof got);
  for (int i = 0; i < T * K; i++) got[i / K * E + ids[i]] = weights[i];
  expect(how, "gates", got, gates, T * E);
  ok(kedge_exec_read(b.exec, b.dz, got, sizeof got));
  expect(how, "dL_dz", got, dz, T * E);
  if (json_object_get(want, "dL_dW")) {
    numbers_of(want, "dL_dW", dw, E * D);
    ok(kedge_exec_read(b.exec, b.dw, got, E * D * sizeof *got));
    expect(how, "dL_dW", got, dw, E * D);
  }
  kedge_exec_free(b.exec);
  kedge_graph_free(b.graph);
}

static void test_ways(void **state) {
  (void)state;
  static const way ways[] = {
      {"rpb_sigmoid_norm", false, true, true},  {"rpb_softmax", false, false, false},
      {"rpb_softmax_norm", false, false, true}, {"hard_sigmoid_norm", true, true, true},
      {"hard_softmax", true, false, false},     {"hard_softmax_norm", true, false, true}};
  golden g = {0};
  if (!load(&g)) skip();
  kedge_device *device;
  ok(kedge_device_open("ref", NULL, &device));
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) run_way(&g, device, &ways[i]);
  kedge_device_close(device);
  json_decref(g.root);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_ways)};
  return cmocka_run_group_tests_name("router golden", tests, NULL, NULL);
}
