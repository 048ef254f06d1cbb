/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Shuffles of priors (models/prior/shuffle.c): the permutations, what they keep and what they take away,
 * the file and the shuffle on the fly bit for bit, refusals. Whole runs are in test_prior_commands.c.
 */
#include "models/prior/prior_internal.h"
#include "models/text/random.h"
#include "tests/support/files.h"
#include "tests/support/priors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 9, L = 4, E = 12 };

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static void fails(kedge_status got, kedge_status want, const char *text) {
  if (got != want) fail_msg("expected %s, got %s", kedge_status_name(want), kedge_status_name(got));
  if (!strstr(kedge_message(), text)) fail_msg("expected \"%s\" in: %s", text, kedge_message());
}

static const char *in(const char *name) {
  return test_path(test_folder(), name);
}

static const uint32_t canonical[L][E] = {{0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1}, /* two of six */
                                         {0, 0, 0, 1, 2, 2, 2, 2, 3, 4, 4, 5}, /* singletons among them */
                                         {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
                                         {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}};

static kedge_communities communities(void) {
  return (kedge_communities){
      .layers = L, .experts = E, .labels = (uint32_t *)(uintptr_t)canonical /* read alone */};
}

static void check_permutation(const uint32_t *sigma, uint32_t experts) {
  bool seen[512] = {false};
  for (uint32_t e = 0; e < experts; e++) {
    assert_in_range(sigma[e], 0, experts - 1);
    assert_false(seen[sigma[e]]);
    seen[sigma[e]] = true;
  }
}

static void test_permutations(void **state) {
  (void)state;
  const kedge_communities c = communities();
  kedge_shuffle a, b, other;
  ok(kedge_shuffle_init(&a, KEDGE_SHUFFLE_WITHIN, 7, &c, L, E));
  ok(kedge_shuffle_init(&b, KEDGE_SHUFFLE_WITHIN, 7, &c, L, E));
  ok(kedge_shuffle_init(&other, KEDGE_SHUFFLE_WITHIN, 8, &c, L, E));
  assert_memory_equal(a.sigma, b.sigma, sizeof(uint32_t) * L * E);
  assert_memory_not_equal(a.sigma, other.sigma, sizeof(uint32_t) * L * E);
  assert_string_equal(a.communities, other.communities);
  for (uint32_t l = 0; l < L; l++) {
    const uint32_t *sigma = a.sigma + l * E;
    check_permutation(sigma, E);
    for (uint32_t e = 0; e < E; e++) assert_int_equal(canonical[l][sigma[e]], canonical[l][e]);
  }
  for (uint32_t e = 0; e < E; e++) assert_int_equal(a.sigma[2 * E + e], e); /* singletons stay */
  assert_int_equal(a.sigma[E + 3], 3);
  assert_int_equal(a.sigma[E + 11], 11);
  kedge_shuffle_destroy(&b), kedge_shuffle_destroy(&other);
  /* One community is the global shuffle, and layers do not hang on one another. */
  ok(kedge_shuffle_init(&b, KEDGE_SHUFFLE_GLOBAL, 7, NULL, L, E));
  ok(kedge_shuffle_init(&other, KEDGE_SHUFFLE_GLOBAL, 7, NULL, L + 1, E));
  assert_memory_equal(a.sigma + 3 * E, b.sigma + 3 * E, sizeof(uint32_t) * E);
  assert_memory_equal(b.sigma, other.sigma, sizeof(uint32_t) * L * E);
  assert_memory_not_equal(b.sigma, b.sigma + E, sizeof(uint32_t) * E);
  assert_string_equal(b.communities, "");
  kedge_shuffle_destroy(&a), kedge_shuffle_destroy(&b), kedge_shuffle_destroy(&other);
}

/* The documented order of draws, written out: Fisher-Yates from the end, one stream a layer. */
static void test_order_of_draws(void **state) {
  (void)state;
  const kedge_communities c = communities();
  kedge_shuffle s;
  ok(kedge_shuffle_init(&s, KEDGE_SHUFFLE_WITHIN, 42, &c, L, E));
  for (uint32_t l = 0; l < L; l++) {
    kedge_random random = kedge_random_start(42, l);
    for (uint32_t label = 0; label < E; label++) {
      uint32_t members[E], order[E], count = 0;
      for (uint32_t e = 0; e < E; e++)
        if (canonical[l][e] == label) members[count] = order[count] = e, count++;
      for (uint32_t i = count; i > 1; i--) {
        const uint32_t j = (uint32_t)kedge_random_below(&random, i), kept = order[i - 1];
        order[i - 1] = order[j], order[j] = kept;
      }
      for (uint32_t i = 0; i < count; i++) assert_int_equal(s.sigma[l * E + members[i]], order[i]);
    }
  }
  kedge_shuffle_destroy(&s);
}

/* Every permutation of three is as likely as the others. */
static void test_uniform(void **state) {
  (void)state;
  unsigned counts[27] = {0};
  for (uint64_t seed = 0; seed < 6000; seed++) {
    kedge_shuffle s;
    ok(kedge_shuffle_init(&s, KEDGE_SHUFFLE_GLOBAL, seed, NULL, 1, 3));
    counts[9 * s.sigma[0] + 3 * s.sigma[1] + s.sigma[2]]++;
    kedge_shuffle_destroy(&s);
  }
  unsigned kinds = 0;
  double chi = 0;
  for (int i = 0; i < 27; i++) {
    if (!counts[i]) continue;
    kinds++;
    chi += ((double)counts[i] - 1000) * ((double)counts[i] - 1000) / 1000;
  }
  assert_int_equal(kinds, 6);
  assert_true(chi < 20.5); /* 5 degrees of freedom: 0.001 */
}

/* The hash sees the partition and not its labels; the file may number as it likes. */
static void test_labels(void **state) {
  (void)state;
  test_prior p;
  kedge_prior *prior;
  kedge_shuffle a, b, c;
  test_prior_init(&p, N, 2, 4, 1);
  test_prior_write(&p, in("p.st"), KEDGE_ST_F32);
  ok(kedge_prior_open(in("p.st"), &prior));
  test_write_text(in("a.json"), "{\"layers\": [[0, 1, 0, 1], [0, 0, 0, 1]], \"rho\": 0.1}");
  test_write_text(in("b.json"), "{\"layers\": [[9, 2, 9, 2], [5, 5, 5, 4]], \"layer_numbers\": [0, 1]}");
  test_write_text(in("c.json"), "{\"layers\": [[0, 1, 0, 1], [0, 0, 1, 1]]}");
  ok(kedge_prior_draw_shuffle(prior, KEDGE_SHUFFLE_WITHIN, 3, in("a.json"), &a));
  ok(kedge_prior_draw_shuffle(prior, KEDGE_SHUFFLE_WITHIN, 3, in("b.json"), &b));
  ok(kedge_prior_draw_shuffle(prior, KEDGE_SHUFFLE_WITHIN, 3, in("c.json"), &c));
  assert_string_equal(a.communities, b.communities);
  assert_memory_equal(a.sigma, b.sigma, 8 * sizeof *a.sigma);
  assert_string_not_equal(a.communities, c.communities);
  kedge_shuffle_destroy(&a), kedge_shuffle_destroy(&b), kedge_shuffle_destroy(&c);
  static const struct {
    const char *text, *want;
    kedge_status status;
  } bad[] = {
      {"{\"layers\": [[0, 1, 0, 1]]}", "communities of 1 layers with 4 experts, the prior has 2 with 4",
       KEDGE_ERR_MISMATCH},
      {"{\"layers\": [[0, 1, 0], [0, 0, 1]]}", "communities of 2 layers with 3 experts", KEDGE_ERR_MISMATCH},
      {"{\"layers\": [[0,1,0,1],[0,0,1,1]], \"layer_numbers\": [0, 2]}",
       "layer_numbers[1] is 2, MoE layer 1 of the prior is layer 1", KEDGE_ERR_MISMATCH},
      {"{\"layers\": [[0, 1, 0, 1], [0, 0, 1.5, 1]]}", "layers[1][2]", KEDGE_ERR_FORMAT},
      {"{\"layers\": [[0, 1, 0, 1], [0, 0, 1]]}", "layers[1]", KEDGE_ERR_FORMAT},
      {"{\"layers\": 3}", "layers", KEDGE_ERR_FORMAT},
      {"[]", "bad.json", KEDGE_ERR_FORMAT},
      {"{\"layers\": [[", "bad.json", KEDGE_ERR_FORMAT},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    test_write_text(in("bad.json"), bad[i].text);
    fails(kedge_prior_draw_shuffle(prior, KEDGE_SHUFFLE_WITHIN, 3, in("bad.json"), &a), bad[i].status,
          bad[i].want);
    assert_non_null(strstr(kedge_message(), "bad.json"));
    assert_null(a.sigma);
  }
  fails(kedge_prior_draw_shuffle(prior, KEDGE_SHUFFLE_WITHIN, 3, NULL, &a), KEDGE_ERR_ARGUMENT,
        "needs the communities");
  fails(kedge_prior_draw_shuffle(prior, KEDGE_SHUFFLE_GLOBAL, 3, in("a.json"), &a), KEDGE_ERR_ARGUMENT,
        "no part");
  kedge_prior_free(prior);
  test_prior_destroy(&p);
}

/* ---- Priors that are shuffled
 * ------------------------------------------------------------------------------------ */

typedef struct tables {
  float bias[L * 2 * N * E], pi[L * 2 * N * E];
  int32_t ids[L * 2 * N * 3];
  kedge_prior_clipped clipped;
} tables;

static tables *fill(const kedge_prior *prior, bool whole) {
  uint64_t ids[N];
  tables *t = calloc(1, sizeof *t);
  assert_non_null(t);
  for (uint64_t i = 0; i < N; i++) ids[i] = 2 * i + 1;
  ok(kedge_prior_fill_bias(prior, 0.05, 5, whole, ids, N, 2 * N, t->bias, &t->clipped));
  if (kedge_prior_is_exact(prior)) ok(kedge_prior_fill_pi(prior, whole, ids, N, 2 * N, t->pi));
  ok(kedge_prior_fill_ids(prior, 0.05, 5, whole, ids, N, 2 * N, 3, t->ids));
  return t;
}

static kedge_prior *reopen(const char *name) {
  kedge_prior *prior;
  ok(kedge_prior_open(in(name), &prior));
  return prior;
}

/* The file and the shuffle on the fly: the same bits, in every table, dtype and mode. Each row is the
 * permuted row; communities keep their mass; clips hold as many cells as before. */
static void test_file_and_flight(void **state) {
  (void)state;
  const kedge_communities c = communities();
  test_prior p;
  test_prior_init(&p, N, L, E, 3);
  for (int i = 0; i < 8; i++) {
    const bool half = i & 1, within = i & 2, whole = i & 4;
    kedge_shuffle s;
    test_prior_write(&p, in("p.st"), half ? KEDGE_ST_F16 : KEDGE_ST_F32);
    kedge_prior *plain = reopen("p.st"), *flight = reopen("p.st"), *rewritten = reopen("p.st");
    ok(kedge_shuffle_init(&s, within ? KEDGE_SHUFFLE_WITHIN : KEDGE_SHUFFLE_GLOBAL, 5, within ? &c : NULL, L,
                          E));
    ok(kedge_prior_set_shuffle(flight, &s));
    ok(kedge_prior_save_shuffled(rewritten, &s, in("s.st")));
    kedge_prior *file = reopen("s.st");
    tables *a = fill(plain, whole), *b = fill(flight, whole), *d = fill(file, whole);
    assert_memory_equal(b, d, sizeof *b);
    assert_memory_not_equal(a->bias, b->bias, sizeof a->bias);
    assert_memory_equal(&a->clipped, &b->clipped, sizeof a->clipped);
    assert_true(a->clipped.low && a->clipped.high);
    for (uint32_t l = 0; !half && l < L; l++)
      for (uint32_t row = 0; row < 2 * N; row++) {
        const float *before = a->pi + (l * 2 * N + row) * E, *after = b->pi + (l * 2 * N + row) * E;
        double mass[E] = {0};
        for (uint32_t e = 0; e < E; e++) {
          assert_memory_equal(&after[e], &before[s.sigma[l * E + e]], sizeof *after);
          mass[canonical[l][e]] += (double)after[e] - (double)before[e];
        }
        for (uint32_t e = 0; within && e < E; e++) assert_true(fabs(mass[e]) < 1e-12);
      }
    char text[120];
    snprintf(text, sizeof text, within ? "within, seed 5, communities %s" : "global, seed 5%s",
             within ? s.communities : "");
    assert_string_equal(kedge_prior_shuffled(file), text);
    assert_string_equal(kedge_prior_shuffled(plain), "");
    fails(kedge_prior_set_shuffle(file, &s), KEDGE_ERR_ARGUMENT, "is shuffled already (");
    kedge_prior_identity x = kedge_prior_get_identity(plain), y = kedge_prior_get_identity(file);
    assert_memory_equal(&x, &y, sizeof x);
    kedge_prior_free(plain), kedge_prior_free(flight), kedge_prior_free(rewritten), kedge_prior_free(file);
    kedge_shuffle_destroy(&s);
    free(a), free(b), free(d);
  }
  kedge_shuffle s;
  kedge_prior *prior = reopen("p.st");
  ok(kedge_shuffle_init(&s, KEDGE_SHUFFLE_GLOBAL, 5, NULL, L, E + 1));
  fails(kedge_prior_set_shuffle(prior, &s), KEDGE_ERR_MISMATCH,
        "prior of 4 MoE layers with 12 experts, the shuffle has 4 with 13");
  kedge_shuffle_destroy(&s);
  kedge_prior_free(prior);
  test_prior_destroy(&p);
}

/* A row of no probabilities is an error in the copy too, and then there is no copy. */
static void test_bad_rows(void **state) {
  (void)state;
  test_prior p;
  kedge_shuffle s;
  test_prior_init(&p, N, L, E, 4);
  test_prior_row(&p, 5, 1, 2)[3] = NAN;
  test_prior_write(&p, in("p.st"), KEDGE_ST_F32);
  kedge_prior *prior = reopen("p.st");
  ok(kedge_shuffle_init(&s, KEDGE_SHUFFLE_GLOBAL, 5, NULL, L, E));
  fails(kedge_prior_save_shuffled(prior, &s, in("none.st")), KEDGE_ERR_FORMAT,
        "row (sample 5, span 1, layer 2)");
  assert_false(test_exists(in("none.st")));
  kedge_shuffle_destroy(&s);
  kedge_prior_free(prior);
  test_prior_destroy(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_permutations),    cmocka_unit_test(test_order_of_draws),
      cmocka_unit_test(test_uniform),         cmocka_unit_test(test_labels),
      cmocka_unit_test(test_file_and_flight), cmocka_unit_test(test_bad_rows),
  };
  return cmocka_run_group_tests_name("shuffle", tests, NULL, NULL);
}
