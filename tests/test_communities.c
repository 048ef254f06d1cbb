/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Detection of communities, modularity, and their file: small graphs worked out by hand, graphs without
 * edges, the real routing log's labels and modularities of golden/esft_metrics.json, hostile files.
 */
#include "models/retention/communities.h"
#include "models/retention/partition.h"
#include "models/retention/retention.h"
#include "tests/support/files.h"
#include "tests/support/routing_log.h"

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

static void near(const char *what, double got, double want, double limit) {
  if (!(fabs(got - want) <= limit)) fail_msg("%s: got %.17g, want %.17g", what, got, want);
}

static void fails(kedge_status got, kedge_status want, const char *text) {
  if (got != want) fail_msg("expected %s, got %s", kedge_status_name(want), kedge_status_name(got));
  if (!strstr(kedge_message(), text)) fail_msg("expected \"%s\" in: %s", text, kedge_message());
}

static void same_labels(const uint32_t *got, const uint32_t *want, uint32_t count) {
  for (uint32_t i = 0; i < count; i++)
    if (got[i] != want[i]) fail_msg("label of node %u: got %u, want %u", i, got[i], want[i]);
}

/* ---- Small graphs
 * ------------------------------------------------------------------------------------------------- */

/* Two triangles joined by one edge. */
static uint32_t triangle_ends[14] = {0, 1, 0, 2, 1, 2, 2, 3, 3, 4, 3, 5, 4, 5};

static void test_two_triangles(void **state) {
  (void)state;
  const uint32_t want[6] = {0, 0, 0, 1, 1, 1};
  double weights[7] = {2, 2, 2, 1, 2, 2, 2}, ones[7] = {1, 1, 1, 1, 1, 1, 1}, q;
  kedge_weighted_graph g = {.nodes = 6, .edges = 7, .ends = triangle_ends, .weights = weights};
  for (kedge_detector d = KEDGE_LOUVAIN; d <= KEDGE_LEIDEN; d++)
    for (uint64_t seed = 0; seed < 20; seed++) {
      uint32_t labels[6];
      g.weights = weights;
      ok(kedge_communities_detect(&g, d, 1, seed, labels, &q));
      same_labels(labels, want, 6);
      near("weighted Q", q, 0.4230769, 5e-8);
      near("weighted Q", q, 2 * (6.0 / 13 - 0.25), 1e-15);
      g.weights = ones;
      ok(kedge_communities_detect(&g, d, 1, seed, labels, &q));
      near("unweighted Q", q, 0.3571429, 5e-8);
    }
  uint32_t one[6] = {0};
  ok(kedge_communities_modularity(&g, 1, one, &q));
  near("one block", q, 0, 1e-15);
  ok(kedge_communities_modularity(&g, 2, want, &q));
  near("resolution 2", q, 6.0 / 7 - 2 * 0.5, 1e-15);
  fails(kedge_communities_modularity(&g, 1, (uint32_t[]){0, 0, 0, 0, 0, 6}, &q), KEDGE_ERR_ARGUMENT,
        "node 5");
}

/* Resolution decides: near 0 all that hangs together is one block, far above 1 every node is its own. */
static void test_resolution(void **state) {
  (void)state;
  double ones[7] = {1, 1, 1, 1, 1, 1, 1};
  uint32_t labels[6];
  const kedge_weighted_graph g = {.nodes = 6, .edges = 7, .ends = triangle_ends, .weights = ones};
  for (kedge_detector d = KEDGE_LOUVAIN; d <= KEDGE_LEIDEN; d++) {
    ok(kedge_communities_detect(&g, d, 1e-6, 0, labels, NULL));
    same_labels(labels, (uint32_t[6]){0}, 6);
    ok(kedge_communities_detect(&g, d, 100, 0, labels, NULL));
    same_labels(labels, (uint32_t[]){0, 1, 2, 3, 4, 5}, 6);
  }
}

/* No edges: singletons, no modularity. Nodes without an edge are blocks of their own. */
static void test_no_edges(void **state) {
  (void)state;
  uint32_t labels[6], ends[4] = {1, 4, 3, 5};
  double weights[2] = {3, 1}, q = 0;
  kedge_weighted_graph g = {.nodes = 6, .ends = ends, .weights = weights};
  for (kedge_detector d = KEDGE_LOUVAIN; d <= KEDGE_LEIDEN; d++) {
    g.edges = 0;
    ok(kedge_communities_detect(&g, d, 1, 0, labels, &q));
    same_labels(labels, (uint32_t[]){0, 1, 2, 3, 4, 5}, 6);
    assert_true(isnan(q));
    g.edges = 2;
    ok(kedge_communities_detect(&g, d, 1, 0, labels, &q));
    same_labels(labels, (uint32_t[]){0, 1, 2, 3, 1, 3}, 6);
    near("Q of two pairs", q, 1 - 9.0 / 16 - 1.0 / 16, 1e-15);
    uint32_t communities, singletons;
    kedge_labels_count(labels, 6, &communities, &singletons);
    assert_true(communities == 4 && singletons == 2);
  }
  g.nodes = 1, g.edges = 0;
  ok(kedge_communities_detect(&g, KEDGE_LOUVAIN, 1, 0, labels, &q));
  assert_true(labels[0] == 0 && isnan(q));
}

static void test_bad_graphs(void **state) {
  (void)state;
  uint32_t labels[3], ends[4] = {0, 1, 1, 2};
  double weights[2] = {1, -2};
  kedge_weighted_graph g = {.nodes = 3, .edges = 2, .ends = ends, .weights = weights};
  fails(kedge_communities_detect(&g, KEDGE_LOUVAIN, 1, 0, labels, NULL), KEDGE_ERR_ARGUMENT,
        "edge 1, from 1 to 2");
  weights[1] = NAN;
  fails(kedge_communities_detect(&g, KEDGE_LEIDEN, 1, 0, labels, NULL), KEDGE_ERR_ARGUMENT, "nan");
  weights[1] = 1, ends[3] = 3;
  fails(kedge_communities_detect(&g, KEDGE_LEIDEN, 1, 0, labels, NULL), KEDGE_ERR_ARGUMENT, "below 3");
  ends[3] = 1;
  fails(kedge_communities_detect(&g, KEDGE_LOUVAIN, 1, 0, labels, NULL), KEDGE_ERR_ARGUMENT, "edge 1");
  ends[3] = 2;
  fails(kedge_communities_detect(&g, KEDGE_LOUVAIN, 0, 0, labels, NULL), KEDGE_ERR_ARGUMENT, "resolution");
  fails(kedge_communities_detect(&g, KEDGE_LOUVAIN, INFINITY, 0, labels, NULL), KEDGE_ERR_ARGUMENT, "inf");
}

static void test_labels(void **state) {
  (void)state;
  uint32_t far[6] = {4294967295u, 7, 4294967295u, 0, 7, 6}, low[4] = {3, 3, 0, 1};
  ok(kedge_labels_canonical(far, 6));
  same_labels(far, (uint32_t[]){0, 1, 0, 2, 1, 3}, 6);
  ok(kedge_labels_canonical(low, 4));
  same_labels(low, (uint32_t[]){0, 0, 1, 2}, 4);
  ok(kedge_labels_canonical(low, 0));
  kedge_detector d = KEDGE_LOUVAIN;
  assert_true(kedge_detector_parse("leiden", &d) && d == KEDGE_LEIDEN);
  assert_true(kedge_detector_parse("louvain", &d) && d == KEDGE_LOUVAIN);
  assert_false(kedge_detector_parse("Louvain", &d));
  assert_int_equal(strncmp(kedge_detector_library(), "igraph 0.", 9), 0);
}

/* ---- The real log
 * ------------------------------------------------------------------------------------------------- */

static json_t *golden_load(void) {
  const char *path = test_shared("golden/esft_metrics.json");
  json_error_t error;
  if (!path) skip();
  json_t *golden = json_load_file(path, 0, &error);
  if (!golden) fail_msg("%s: %s", path, error.text);
  return golden;
}

static const json_t *golden_layer(const json_t *golden, const char *domain, uint32_t layer) {
  char key[32];
  snprintf(key, sizeof key, "%s/%u", domain, layer + 1);
  return json_object_get(json_object_get(golden, "layers"), key);
}

static void golden_labels(const json_t *layer, uint32_t *labels) {
  const json_t *list = json_object_get(layer, "louvain_labels");
  assert_int_equal(json_array_size(list), TEST_LOG_EXPERTS);
  for (uint32_t e = 0; e < TEST_LOG_EXPERTS; e++)
    labels[e] = (uint32_t)json_integer_value(json_array_get(list, e));
}

static void check_domain(const json_t *golden, const char *domain) {
  kedge_trace t;
  if (!test_routing_log(domain, &t)) skip();
  kedge_weighted_graph g = {0};
  double behind = 0;
  for (uint32_t l = 0; l < t.layers; l++) {
    const json_t *layer = golden_layer(golden, domain, l);
    uint32_t labels[TEST_LOG_EXPERTS], again[TEST_LOG_EXPERTS];
    double q, best = json_real_value(json_object_get(layer, "best_Q_of_4_seeds"));
    kedge_coactivation c;
    ok(kedge_coactivation_count(&t, l, KEDGE_RETENTION_ALL, NULL, 0, &c));
    ok(kedge_pairs_threshold(c.pairs, c.experts, 0.1, &g, NULL));
    golden_labels(layer, labels);
    ok(kedge_communities_modularity(&g, 1, labels, &q));
    near("Q of the golden's labels", q, json_real_value(json_object_get(layer, "louvain_Q")), 1e-9);
    for (kedge_detector d = KEDGE_LOUVAIN; d <= KEDGE_LEIDEN; d++)
      for (uint64_t seed = 0; seed < 4; seed++) {
        double repeated;
        ok(kedge_communities_detect(&g, d, 1, seed, labels, &q));
        ok(kedge_communities_detect(&g, d, 1, seed, again, &repeated));
        assert_memory_equal(labels, again, sizeof labels);
        assert_true(q == repeated);
        if (!(q >= best - 0.03))
          fail_msg("%s/%u: %s with seed %u has Q %.6f, the golden %.6f", domain, l + 1,
                   kedge_detector_name(d), (unsigned)seed, q, best);
        behind = fmax(behind, best - q);
      }
    kedge_coactivation_destroy(&c);
  }
  printf("%s: at most %.4f below the best of the golden's 4 seeds\n", domain, behind);
  kedge_weighted_graph_destroy(&g);
  kedge_trace_destroy(&t);
}

static void test_real_log(void **state) {
  (void)state;
  json_t *golden = golden_load();
  check_domain(golden, "intent");
  check_domain(golden, "summary");
  json_decref(golden);
}

/* NMI of the labels that are given, layer by layer. */
static void test_real_nmi(void **state) {
  (void)state;
  json_t *golden = golden_load();
  const json_t *pair = json_object_get(json_object_get(golden, "pairs"), "intent|summary");
  double mean = 0;
  for (uint32_t l = 0; l < TEST_LOG_LAYERS; l++) {
    uint32_t a[TEST_LOG_EXPERTS], b[TEST_LOG_EXPERTS];
    double nmi;
    golden_labels(golden_layer(golden, "intent", l), a);
    golden_labels(golden_layer(golden, "summary", l), b);
    ok(kedge_partition_nmi(a, TEST_LOG_EXPERTS, b, TEST_LOG_EXPERTS, &nmi));
    if (!l) near("layer 1", nmi, json_real_value(json_object_get(pair, "nmi_layer1")), 1e-9);
    mean += nmi / TEST_LOG_LAYERS;
  }
  near("mean", mean, json_real_value(json_object_get(pair, "nmi_layer_mean")), 1e-9);
  json_decref(golden);
}

/* ---- The file
 * ----------------------------------------------------------------------------------------------------- */

static void test_file(void **state) {
  (void)state;
  const char *path = test_path(test_folder(), "communities.json");
  uint32_t labels[8] = {0, 1, 0, 2, 0, 0, 0, 0};
  int32_t numbers[2] = {1, 5};
  kedge_communities c = {.layers = 2, .experts = 4, .labels = labels, .layer_numbers = numbers}, read;
  json_t *about = json_pack("{s:s, s:f, s:i}", "detector", "louvain", "rho", 0.1, "layers", 3);
  ok(kedge_communities_save(&c, about, path));
  json_decref(about);
  size_t bytes;
  char *text = test_read(path, &bytes);
  assert_string_equal(text, "{\"layers\":[[0,1,0,2],[0,0,0,0]],\"layer_numbers\":[1,5],"
                            "\"detector\":\"louvain\",\"rho\":0.10000000000000001}\n");
  free(text);
  ok(kedge_communities_load(path, &read));
  assert_true(read.layers == 2 && read.experts == 4);
  same_labels(read.labels, labels, 8);
  assert_memory_equal(read.layer_numbers, numbers, sizeof numbers);
  kedge_communities_destroy(&read);
  c.layer_numbers = NULL;
  ok(kedge_communities_save(&c, NULL, path));
  ok(kedge_communities_load(path, &read));
  assert_null(read.layer_numbers);
  kedge_communities_destroy(&read);
  /* Any labels, other keys, any names. */
  test_write_text(path, "{\"x\": [1], \"layers\": [[9, 2147483647, 9]]}");
  ok(kedge_communities_load(path, &read));
  same_labels(read.labels, (uint32_t[]){0, 1, 0}, 3);
  kedge_communities_destroy(&read);
}

static void test_bad_files(void **state) {
  (void)state;
  static const struct {
    const char *text, *message;
  } rows[] = {
      {"", "line 1"},
      {"{\"layers\": [[0, 1]", "communities.json"},
      {"[[0, 1]]", "a list \"layers\", got"},
      {"{\"layer\": [[0, 1]]}", "got nothing"},
      {"{\"layers\": []}", "got 0"},
      {"{\"layers\": [[]]}", "the first of 0"},
      {"{\"layers\": [3]}", "the first of 0"},
      {"{\"layers\": [[0, 1], [0, 1, 2]]}", "layers[1]: expected 2 labels as in layers[0], got"},
      {"{\"layers\": [[0, 1], {\"a\": 1}]}", "layers[1]"},
      {"{\"layers\": [[0, -1]]}", "layers[0][1]: expected 0 to 2147483647, got -1"},
      {"{\"layers\": [[0, 2147483648]]}", "got 2147483648"},
      {"{\"layers\": [[0, 1.0]]}", "layers[0][1]: expected a whole number"},
      {"{\"layers\": [[0, null]]}", "layers[0][1]"},
      {"{\"layers\": [[0, 1]], \"layers\": [[0, 1]]}", "communities.json"},
      {"{\"layers\": [[0, 1]], \"layer_numbers\": [1, 2]}", "layer_numbers"},
      {"{\"layers\": [[0, 1]], \"layer_numbers\": [-1]}", "layer_numbers[0]"},
  };
  const char *path = test_path(test_folder(), "communities.json");
  kedge_communities c;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    test_write_text(path, rows[i].text);
    fails(kedge_communities_load(path, &c), KEDGE_ERR_FORMAT, rows[i].message);
    assert_null(c.labels);
    assert_null(strchr(kedge_message(), '\n'));
  }
  fails(kedge_communities_load(test_path(test_folder(), "absent.json"), &c), KEDGE_ERR_IO, "absent.json");
}

/* Every allocation that fails is told, and nothing is left behind. */
static void test_memory(void **state) {
  (void)state;
  const char *path = test_path(test_folder(), "memory.json");
  double ones[7] = {1, 1, 1, 1, 1, 1, 1}, q;
  const kedge_weighted_graph g = {.nodes = 6, .edges = 7, .ends = triangle_ends, .weights = ones};
  uint32_t labels[6];
  test_write_text(path, "{\"layers\": [[0, 1], [1, 1]], \"layer_numbers\": [0, 1]}");
  for (uint64_t n = 1;; n++) {
    kedge_communities c;
    kedge_alloc_fail_nth(n);
    const kedge_status status = kedge_communities_load(path, &c);
    const uint64_t used = kedge_alloc_fail_nth(0);
    if (status == KEDGE_OK) kedge_communities_destroy(&c);
    if (used < n) break;
    assert_int_not_equal(status, KEDGE_OK);
    assert_null(c.labels);
  }
  for (uint64_t n = 1;; n++) {
    kedge_alloc_fail_nth(n);
    const kedge_status status = kedge_communities_detect(&g, KEDGE_LOUVAIN, 1, 0, labels, &q);
    if (kedge_alloc_fail_nth(0) < n) break;
    assert_int_equal(status, KEDGE_ERR_MEMORY);
  }
  ok(kedge_communities_detect(&g, KEDGE_LOUVAIN, 1, 0, labels, &q));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_two_triangles), cmocka_unit_test(test_resolution),
      cmocka_unit_test(test_no_edges),      cmocka_unit_test(test_bad_graphs),
      cmocka_unit_test(test_labels),        cmocka_unit_test(test_real_log),
      cmocka_unit_test(test_real_nmi),      cmocka_unit_test(test_file),
      cmocka_unit_test(test_bad_files),     cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests_name("communities", tests, NULL, NULL);
}
