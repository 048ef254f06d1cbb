/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Scores of two partitions: closed forms, conventions, and what they must not depend on. The adjusted scores
 * are also taken over all permutations of small partitions, where their mean is 0 by definition.
 */
#include "models/retention/partition.h"
#include "models/text/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static void near(const char *what, double got, double want, double limit) {
  if (!(fabs(got - want) <= limit)) fail_msg("%s: got %.17g, want %.17g", what, got, want);
}

static kedge_partition_scores scores(const uint32_t *a, const uint32_t *b, uint32_t n) {
  kedge_partition_scores s, back;
  double nmi;
  ok(kedge_partition_compare(a, n, b, n, NULL, &s));
  ok(kedge_partition_compare(b, n, a, n, NULL, &back));
  ok(kedge_partition_nmi(a, n, b, n, &nmi));
  assert_int_equal(s.nodes, n);
  assert_true(nmi == s.nmi);
  near("symmetric nmi", s.nmi, back.nmi, 1e-15);
  near("symmetric ami", s.ami, back.ami, 1e-13);
  near("symmetric ari", s.ari, back.ari, 1e-15);
  assert_true(s.nmi >= 0 && s.nmi <= 1 && s.ami <= 1 && s.ari <= 1);
  return s;
}

static void test_closed_forms(void **state) {
  (void)state;
  const uint32_t three[6] = {0, 0, 1, 1, 2, 2}, two[6] = {0, 0, 1, 1, 1, 1}, each[6] = {0, 1, 2, 3, 4, 5};
  kedge_partition_scores s = scores(three, two, 6);
  near("nmi", s.nmi, 0.7336804, 5e-8);
  near("ari", s.ari, 12.0 / 27, 1e-15);
  s = scores(each, three, 6);
  near("nmi of singletons", s.nmi, 2 * log(3) / (log(6) + log(3)), 1e-15);
  near("nmi of singletons", s.nmi, 0.760, 5e-4);
  assert_true(s.ami == 0 && s.ari == 0);
  s = scores(each, two, 6);
  assert_true(s.ami == 0 && s.ari == 0);
  /* Independent: no information at all. */
  s = scores((uint32_t[]){0, 0, 1, 1}, (uint32_t[]){0, 1, 0, 1}, 4);
  assert_true(s.nmi == 0);
  near("ari of independent", s.ari, -0.5, 1e-15);
  near("ami of independent", s.ami, -0.5, 1e-12);
}

static void test_conventions(void **state) {
  (void)state;
  const uint32_t one[4] = {7, 7, 7, 7}, two[4] = {0, 0, 1, 1}, named[4] = {4000000000u, 4000000000u, 3, 3},
                 each[4] = {3, 2, 1, 0};
  kedge_partition_scores s = scores(one, one, 4);
  assert_true(s.nmi == 1 && s.ami == 1 && s.ari == 1);
  s = scores(one, two, 4);
  assert_true(s.nmi == 0 && s.ami == 0 && s.ari == 0);
  s = scores(two, named, 4);
  assert_true(s.nmi == 1 && s.ami == 1 && s.ari == 1);
  s = scores(each, (uint32_t[]){0, 1, 2, 3}, 4);
  assert_true(s.nmi == 1 && s.ami == 1 && s.ari == 1);
  s = scores((uint32_t[]){5}, (uint32_t[]){0}, 1);
  assert_true(s.nmi == 1 && s.ami == 1 && s.ari == 1);
  s = scores(one, each, 4);
  assert_true(s.nmi == 0 && s.ami == 0 && s.ari == 0);
  ok(kedge_partition_compare(one, 0, two, 0, NULL, &s));
  assert_true(s.nodes == 0 && isnan(s.nmi) && isnan(s.ami) && isnan(s.ari));
  /* Only some of the nodes. */
  ok(kedge_partition_compare((uint32_t[]){0, 9, 1, 1}, 4, (uint32_t[]){5, 5, 6, 6}, 4,
                             (uint8_t[]){1, 0, 1, 1}, &s));
  assert_true(s.nodes == 3 && s.nmi == 1 && s.ami == 1 && s.ari == 1);
  ok(kedge_partition_compare(one, 4, two, 4, (uint8_t[4]){0}, &s));
  assert_true(s.nodes == 0 && isnan(s.nmi));
  double nmi;
  assert_int_equal(kedge_partition_nmi(one, 4, two, 3, &nmi), KEDGE_ERR_MISMATCH);
  assert_non_null(strstr(kedge_message(), "one of 4 nodes and one of 3"));
  assert_int_equal(kedge_partition_compare(one, 3, two, 4, NULL, &s), KEDGE_ERR_MISMATCH);
  assert_non_null(strstr(kedge_message(), "one of 3 nodes and one of 4"));
}

/* Neither names of blocks nor the order of nodes matter. */
static void test_invariance(void **state) {
  (void)state;
  kedge_random random = kedge_random_start(3, 1);
  for (int round = 0; round < 200; round++) {
    enum { N = 24 };
    uint32_t a[N], b[N], c[N], d[N], order[N], names[N];
    const uint64_t blocks = 1 + kedge_random_below(&random, 9);
    for (uint32_t i = 0; i < N; i++) {
      a[i] = (uint32_t)kedge_random_below(&random, blocks), b[i] = (uint32_t)kedge_random_below(&random, 5);
      order[i] = names[i] = i;
    }
    kedge_random_shuffle(&random, order, N);
    kedge_random_shuffle(&random, names, N);
    for (uint32_t i = 0; i < N; i++) c[i] = names[a[order[i]]] * 1000003u, d[i] = b[order[i]];
    const kedge_partition_scores s = scores(a, b, N), t = scores(c, d, N);
    near("nmi", s.nmi, t.nmi, 1e-14);
    near("ami", s.ami, t.ami, 1e-12);
    near("ari", s.ari, t.ari, 1e-14);
  }
}

static double mean_ami, mean_ari;
static uint32_t permutations;

static void each_permutation(const uint32_t *a, uint32_t *b, uint32_t n, uint32_t at) {
  if (at == n) {
    kedge_partition_scores s;
    ok(kedge_partition_compare(a, n, b, n, NULL, &s));
    mean_ami += s.ami, mean_ari += s.ari, permutations++;
    return;
  }
  for (uint32_t i = at; i < n; i++) {
    const uint32_t x = b[at], y = b[i];
    b[at] = y, b[i] = x;
    each_permutation(a, b, n, at + 1);
    b[at] = x, b[i] = y;
  }
}

/* Over all permutations of the labels the adjusted scores are 0 on average: their expected values are exact.
 */
static void test_chance(void **state) {
  (void)state;
  const uint32_t pairs[3][2][7] = {{{0, 0, 0, 1, 1, 2, 2}, {0, 0, 1, 1, 1, 2, 3}},
                                   {{0, 0, 0, 0, 0, 1, 1}, {0, 0, 0, 1, 1, 1, 1}},
                                   {{0, 1, 2, 3, 3, 3, 3}, {0, 0, 1, 1, 2, 2, 2}}};
  for (int i = 0; i < 3; i++) {
    uint32_t b[7];
    memcpy(b, pairs[i][1], sizeof b);
    mean_ami = mean_ari = permutations = 0;
    each_permutation(pairs[i][0], b, 7, 0);
    assert_int_equal(permutations, 5040);
    near("mean ami", mean_ami / permutations, 0, 1e-12);
    near("mean ari", mean_ari / permutations, 0, 1e-12);
  }
}

/* Many nodes in many blocks stay quick: sizes, not blocks, are summed over. */
static void test_large(void **state) {
  (void)state;
  enum { N = 60000 };
  uint32_t *a = malloc(N * sizeof *a), *b = malloc(N * sizeof *b);
  for (uint32_t i = 0; i < N; i++) a[i] = i, b[i] = i / 2;
  kedge_partition_scores s;
  ok(kedge_partition_compare(a, N, b, N, NULL, &s));
  near("nmi", s.nmi, 2 * log(N / 2.0) / (log(N) + log(N / 2.0)), 1e-11);
  assert_true(s.ami == 0 && s.ari == 0);
  free(a), free(b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_closed_forms), cmocka_unit_test(test_conventions),
      cmocka_unit_test(test_invariance),   cmocka_unit_test(test_chance),
      cmocka_unit_test(test_large),
  };
  return cmocka_run_group_tests_name("partition", tests, NULL, NULL);
}
