/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Co-activation counts and the graph of the heaviest pairs: worked out by hand, against the plainest of ways
 * on random counts, and the real routing log's whole numbers and hashes of golden/esft_metrics.json.
 */
#include "models/retention/coactivation.h"
#include "models/retention/retention.h"
#include "tests/support/files.h"
#include "tests/support/routing_log.h"

#include "models/text/random.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static void fails(kedge_status got, kedge_status want, const char *text) {
  if (got != want) fail_msg("expected %s, got %s", kedge_status_name(want), kedge_status_name(got));
  if (!strstr(kedge_message(), text)) fail_msg("expected \"%s\" in: %s", text, kedge_message());
}

/* ---- By hand
 * ------------------------------------------------------------------------------------------------------ */

/* Four tokens, top-3 of 5, the third is padding; the last is an answer. */
static void test_small(void **state) {
  (void)state;
  kedge_trace t;
  ok(kedge_trace_init(&t, 4, 1, 5, 3));
  memcpy(t.ids, (int32_t[]){4, 0, 2, 2, 1, 0, -1, -1, -1, 2, 4, 0}, 12 * sizeof *t.ids);
  t.spans[3] = KEDGE_SPAN_A;
  kedge_coactivation c;
  ok(kedge_coactivation_count(&t, 0, KEDGE_RETENTION_ALL, NULL, 0, &c));
  /* 01 02 03 04 12 13 14 23 24 34 */
  const uint32_t want[10] = {1, 3, 0, 2, 1, 0, 0, 0, 2, 0};
  const uint64_t counts[5] = {3, 1, 3, 0, 2};
  assert_memory_equal(c.pairs, want, sizeof want);
  assert_memory_equal(c.counts, counts, sizeof counts);
  assert_true(c.tokens == 3 && c.total == 9 && kedge_coactivation_nonzero(&c) == 5);
  kedge_coactivation_destroy(&c);
  ok(kedge_coactivation_count(&t, 0, KEDGE_SPAN_A, NULL, 0, &c));
  assert_true(c.tokens == 1 && c.total == 3 && c.pairs[1] == 1 && c.pairs[3] == 1 && c.pairs[8] == 1);
  kedge_coactivation_destroy(&c);
  const uint8_t part[4] = {1, 0, 1, 2};
  ok(kedge_coactivation_count(&t, 0, KEDGE_RETENTION_ALL, part, 1, &c));
  assert_true(c.tokens == 1 && c.pairs[1] == 1 && c.pairs[4] == 0);
  kedge_coactivation_destroy(&c);
  ok(kedge_coactivation_count(&t, 0, KEDGE_SPAN_Q, NULL, 0, &c));
  assert_true(c.tokens == 0 && c.total == 0 && kedge_coactivation_nonzero(&c) == 0);
  kedge_coactivation_destroy(&c);
  kedge_trace_destroy(&t);
}

static void test_rule(void **state) {
  (void)state;
  assert_int_equal(kedge_edge_limit(64, 0.05), 101);
  assert_int_equal(kedge_edge_limit(64, 0.10), 202);
  assert_int_equal(kedge_edge_limit(64, 0.15), 302);
  assert_int_equal(kedge_edge_limit(64, 0.20), 403);
  assert_int_equal(kedge_edge_limit(64, 1), 2016);
  assert_int_equal(kedge_edge_limit(4, 0.01), 1);
  for (uint32_t i = 0, p = 0; i < 7; i++)
    for (uint32_t j = i + 1; j < 7; j++) assert_int_equal(kedge_pair_index(7, i, j), p++);
  kedge_weighted_graph g = {0};
  uint32_t least;
  /* Ties at the least count: the pairs that come first stay. */
  const uint32_t pairs[6] = {2, 5, 2, 0, 2, 9}; /* 01 02 03 12 13 23 */
  ok(kedge_pairs_threshold(pairs, 4, 0.5, &g, &least));
  const uint32_t three[6] = {0, 1, 0, 2, 2, 3};
  assert_true(g.nodes == 4 && g.edges == 3 && least == 2);
  assert_memory_equal(g.ends, three, sizeof three);
  assert_true(g.weights[0] == 2 && g.weights[1] == 5 && g.weights[2] == 9);
  /* Fewer than asked for: pairs of count 0 are never kept. */
  ok(kedge_pairs_threshold(pairs, 4, 1, &g, &least));
  assert_true(g.edges == 5 && least == 2);
  ok(kedge_pairs_threshold((uint32_t[6]){0}, 4, 1, &g, &least));
  assert_true(g.nodes == 4 && g.edges == 0 && least == 0);
  ok(kedge_pairs_threshold((uint32_t[1]){0}, 1, 0.1, &g, NULL));
  assert_true(g.nodes == 1 && g.edges == 0);
  fails(kedge_pairs_threshold(pairs, 4, 0, &g, NULL), KEDGE_ERR_ARGUMENT, "got 0");
  fails(kedge_pairs_threshold(pairs, 4, 1.5, &g, NULL), KEDGE_ERR_ARGUMENT, "1.5");
  fails(kedge_pairs_threshold(pairs, 4, 0.0 / 0.0, &g, NULL), KEDGE_ERR_ARGUMENT, "nan");
  kedge_weighted_graph_destroy(&g);
  kedge_coactivation c;
  fails(kedge_coactivation_init(&c, 5000, 8), KEDGE_ERR_UNSUPPORTED, "got 5000");
  fails(kedge_coactivation_init(&c, 0, 0), KEDGE_ERR_ARGUMENT, "got 0");
}

/* ---- Against sorting
 * ---------------------------------------------------------------------------------------------- */

typedef struct ranked {
  uint32_t count, place;
} ranked;

static int heavier_first(const void *a, const void *b) {
  const ranked *x = a, *y = b;
  if (x->count != y->count) return x->count > y->count ? -1 : 1;
  return x->place < y->place ? -1 : 1;
}

/* Random counts of few different values, so that ties abound: the kept pairs are the first of those sorted.
 */
static void test_against_sorting(void **state) {
  (void)state;
  kedge_random random = kedge_random_start(5, 0);
  kedge_weighted_graph g = {0};
  for (int round = 0; round < 500; round++) {
    const uint32_t experts = 2 + (uint32_t)kedge_random_below(&random, 11);
    const uint32_t all = (uint32_t)kedge_pair_count(experts);
    const uint64_t values = 1 + kedge_random_below(&random, round % 2 ? 4 : 1000000);
    uint32_t pairs[66], kept[66], least;
    ranked order[66];
    for (uint32_t p = 0; p < all; p++) {
      pairs[p] = (uint32_t)kedge_random_below(&random, values);
      order[p] = (ranked){pairs[p], p};
    }
    const double rho = (double)(1 + kedge_random_below(&random, 100)) / 100;
    qsort(order, all, sizeof *order, heavier_first);
    uint32_t count = 0, at = 0;
    memset(kept, 0, sizeof kept);
    for (; count < kedge_edge_limit(experts, rho) && order[count].count; count++)
      kept[order[count].place] = 1;
    ok(kedge_pairs_threshold(pairs, experts, rho, &g, &least));
    assert_int_equal(g.edges, count);
    assert_int_equal(least, count ? order[count - 1].count : 0);
    for (uint32_t i = 0, p = 0; i < experts; i++)
      for (uint32_t j = i + 1; j < experts; j++, p++) {
        if (!kept[p]) continue;
        assert_true(g.ends[2 * at] == i && g.ends[2 * at + 1] == j && g.weights[at] == (double)pairs[p]);
        at++;
      }
    assert_int_equal(at, count);
  }
  kedge_weighted_graph_destroy(&g);
}

/* ---- The real log
 * ------------------------------------------------------------------------------------------------- */

static uint64_t whole(const json_t *layer, const char *key) {
  const json_t *value = json_object_get(layer, key);
  if (!json_is_integer(value)) fail_msg("golden: no %s", key);
  return (uint64_t)json_integer_value(value);
}

/* The hashes of all layers' pairs, one a line, as the system's own program gives them. */
static char *hashes_of(uint32_t files) {
  char command[600];
  size_t bytes;
  const char *list = test_path(test_folder(), "hashes");
  snprintf(command, sizeof command, "cd '%s' && for i in $(seq -w 0 %u); do sha256sum pairs$i; done > '%s'",
           test_folder(), files - 1, list);
  assert_int_equal(system(command), 0);
  return test_read(list, &bytes);
}

static void check_domain(const char *domain, const json_t *layers) {
  kedge_trace t;
  if (!test_routing_log(domain, &t)) skip();
  kedge_weighted_graph g = {0};
  for (uint32_t l = 0; l < t.layers; l++) {
    char key[32], name[32];
    uint32_t least;
    snprintf(key, sizeof key, "%s/%u", domain, l + 1);
    snprintf(name, sizeof name, "pairs%02u", l);
    const json_t *golden = json_object_get(layers, key);
    kedge_coactivation c;
    ok(kedge_coactivation_count(&t, l, KEDGE_RETENTION_ALL, NULL, 0, &c));
    ok(kedge_pairs_threshold(c.pairs, c.experts, 0.1, &g, &least));
    assert_int_equal(c.tokens, whole(golden, "tokens"));
    assert_int_equal(c.total, whole(golden, "pair_total"));
    uint64_t sum = 0;
    for (uint64_t p = 0; p < kedge_pair_count(c.experts); p++) sum += c.pairs[p];
    assert_int_equal(sum, c.total);
    assert_int_equal(kedge_coactivation_nonzero(&c), whole(golden, "nonzero_pairs"));
    assert_int_equal(g.edges, whole(golden, "kept_edges"));
    assert_int_equal(least, whole(golden, "min_kept_count"));
    for (uint32_t e = 0; e < c.experts; e++)
      assert_int_equal(c.counts[e],
                       (uint64_t)json_integer_value(json_array_get(json_object_get(golden, "count"), e)));
    test_write(test_path(test_folder(), name), c.pairs, kedge_pair_count(c.experts) * sizeof *c.pairs);
    kedge_coactivation_destroy(&c);
  }
  char *hashes = hashes_of(t.layers), *line = hashes;
  for (uint32_t l = 0; l < t.layers; l++) {
    char key[32];
    snprintf(key, sizeof key, "%s/%u", domain, l + 1);
    const char *want = json_string_value(json_object_get(json_object_get(layers, key), "W_u32_upper_sha256"));
    assert_non_null(want);
    if (strncmp(line, want, 64) != 0) fail_msg("%s: sha256 %.64s, expected %s", key, line, want);
    line = strchr(line, '\n') + 1;
  }
  free(hashes);
  kedge_weighted_graph_destroy(&g);
  kedge_trace_destroy(&t);
}

static void test_real_log(void **state) {
  (void)state;
  const char *path = test_shared("golden/esft_metrics.json");
  json_error_t error;
  if (!path) skip();
  json_t *golden = json_load_file(path, 0, &error);
  if (!golden) fail_msg("%s: %s", path, error.text);
  check_domain("intent", json_object_get(golden, "layers"));
  check_domain("summary", json_object_get(golden, "layers"));
  json_decref(golden);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_small),
      cmocka_unit_test(test_rule),
      cmocka_unit_test(test_against_sorting),
      cmocka_unit_test(test_real_log),
  };
  return cmocka_run_group_tests_name("coactivation", tests, NULL, NULL);
}
