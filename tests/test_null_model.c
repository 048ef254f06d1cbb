/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * The null of co-activation: binomial draws against their exact probabilities, sums and means of drawn
 * counts, margins and ranks, and the halves of a trace.
 */
#include "models/retention/null_model.h"
#include "models/retention/retention.h"

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

/* ---- Binomial draws
 * ------------------------------------------------------------------------------------------------ */

static double probability(uint64_t n, double p, uint64_t k) {
  const double all = (double)n, x = (double)k;
  return exp(lgamma(all + 1) - lgamma(x + 1) - lgamma(all - x + 1) + x * log(p) + (all - x) * log1p(-p));
}

/* Chi-square over bins of at least 50 expected draws each; the limit is 5 standard deviations above its mean.
 */
static void check_binomial(uint64_t n, double p) {
  enum { DRAWS = 400000, SPAN = 4096 };
  static uint32_t seen[SPAN];
  const double mean = (double)n * p, sd = sqrt(mean * (1 - p));
  const uint64_t low = mean > 1000 ? (uint64_t)(mean - 10 * sd) : 0;
  kedge_random random = kedge_random_start(n, (uint64_t)(p * 1e9));
  memset(seen, 0, sizeof seen);
  double sum = 0;
  for (int i = 0; i < DRAWS; i++) {
    const uint64_t k = kedge_random_binomial(&random, n, p);
    if (k > n || k < low || k - low >= SPAN) fail_msg("binomial(%zu, %g): drew %zu", (size_t)n, p, (size_t)k);
    seen[k - low]++;
    sum += (double)k;
  }
  near("mean", sum / DRAWS, mean, 5 * sd / sqrt(DRAWS));
  double square = 0, expected = 0, got = 0;
  uint32_t bins = 0;
  for (uint64_t k = low; k <= n && k - low < SPAN; k++) {
    expected += DRAWS * probability(n, p, k), got += seen[k - low];
    if (expected < 50 || (double)k > mean + 4 * sd) continue;
    square += (got - expected) * (got - expected) / expected;
    bins++;
    expected = got = 0;
  }
  if (!(square < bins + 5 * sqrt(2.0 * bins) + 5))
    fail_msg("binomial(%zu, %g): chi-square %.1f over %u bins", (size_t)n, p, square, bins);
}

static void test_binomial(void **state) {
  (void)state;
  kedge_random random = kedge_random_start(0, 0);
  assert_int_equal(kedge_random_binomial(&random, 0, 0.5), 0);
  assert_int_equal(kedge_random_binomial(&random, 9, 0), 0);
  assert_int_equal(kedge_random_binomial(&random, 9, 1), 9);
  check_binomial(1, 0.3);
  check_binomial(7, 0.5);
  check_binomial(20, 0.9);
  check_binomial(123330, 0.00002);
  check_binomial(123330, 0.00007);
  check_binomial(123330, 0.0005);
  check_binomial(100, 0.101);
  check_binomial(40, 0.5);
  check_binomial(5000, 0.7);
  check_binomial(1u << 31, 1e-7);
}

/* ---- Null graphs
 * -------------------------------------------------------------------------------------------------- */

static void test_margins_kept(void **state) {
  (void)state;
  enum { DRAWS = 4000, EXPERTS = 5, PAIRS = 10 };
  const uint64_t counts[EXPERTS] = {40, 0, 10, 30, 20};
  kedge_coactivation c;
  ok(kedge_coactivation_init(&c, EXPERTS, 2));
  memcpy(c.counts, counts, sizeof counts);
  c.total = 50;
  kedge_null_model model;
  ok(kedge_null_model_init(&model, &c));
  double sums[PAIRS] = {0}, all = 0;
  for (uint32_t d = 0; d < DRAWS; d++) {
    uint32_t pairs[PAIRS], again[PAIRS], total = 0;
    kedge_random random = kedge_random_start(1, d), same = random;
    kedge_null_model_draw(&model, &random, pairs);
    kedge_null_model_draw(&model, &same, again);
    assert_memory_equal(pairs, again, sizeof pairs);
    for (uint32_t p = 0; p < PAIRS; p++) total += pairs[p], sums[p] += pairs[p];
    assert_int_equal(total, 50);
  }
  for (uint32_t i = 0; i < EXPERTS; i++)
    for (uint32_t j = i + 1; j < EXPERTS; j++) all += (double)counts[i] * (double)counts[j];
  for (uint32_t i = 0, p = 0; i < EXPERTS; i++)
    for (uint32_t j = i + 1; j < EXPERTS; j++, p++) {
      const double q = (double)counts[i] * (double)counts[j] / all;
      if (q == 0) assert_true(sums[p] == 0);
      near("mean of a pair", sums[p] / DRAWS, 50 * q, 5 * sqrt(50 * q * (1 - q) / DRAWS));
    }
  kedge_null_model_destroy(&model);
  /* Nothing counted, or one expert alone: nothing is drawn. */
  memset(c.counts, 0, EXPERTS * sizeof *c.counts);
  c.total = 0;
  uint32_t pairs[PAIRS];
  ok(kedge_null_model_init(&model, &c));
  kedge_random random = kedge_random_start(1, 0);
  kedge_null_model_draw(&model, &random, pairs);
  for (uint32_t p = 0; p < PAIRS; p++) assert_int_equal(pairs[p], 0);
  kedge_null_model_destroy(&model);
  kedge_coactivation_destroy(&c);
}

static void test_compare(void **state) {
  (void)state;
  kedge_null_result r = kedge_null_compare(3, (double[]){1, 2, NAN, 3, 4}, 5);
  assert_true(r.draws == 4 && r.mean == 2.5 && r.margin == 0.5 && r.low == 1 && r.high == 4);
  near("sd", r.sd, sqrt(5.0 / 3), 1e-15);
  near("p", r.rank_p, 3.0 / 5, 1e-15);
  double draws[100] = {0};
  r = kedge_null_compare(1, draws, 100);
  near("least p", r.rank_p, 1.0 / 101, 1e-15);
  r = kedge_null_compare(-1, draws, 100);
  assert_true(r.rank_p == 1 && r.margin == -1);
  r = kedge_null_compare(NAN, draws, 100);
  assert_true(isnan(r.mean) && isnan(r.rank_p) && isnan(r.margin));
  r = kedge_null_compare(1, NULL, 0);
  assert_true(r.draws == 0 && isnan(r.mean) && isnan(r.rank_p));
}

/* ---- Halves
 * ------------------------------------------------------------------------------------------------------- */

enum { SAMPLES = 5, LAYERS = 2 };
static const uint32_t lengths[SAMPLES] = {3, 1, 1, 4, 1};

/* A trace of small samples in the given order, each with routing and spans of its own. */
static void make_trace(kedge_trace *t, const uint32_t *order) {
  uint32_t tokens = 0, at = 0;
  for (uint32_t s = 0; s < SAMPLES; s++) tokens += lengths[s];
  ok(kedge_trace_init(t, tokens, LAYERS, 8, 1));
  for (uint32_t s = 0; s < SAMPLES; s++)
    for (uint32_t i = 0; i < lengths[order[s]]; i++, at++) {
      t->samples[at] = (int32_t)s;
      t->spans[at] = i ? KEDGE_SPAN_A : KEDGE_SPAN_Q;
      for (uint32_t l = 0; l < LAYERS; l++) t->ids[at * LAYERS + l] = (int32_t)((order[s] * 3 + i + l) % 8);
    }
}

/* What a half holds: how often each expert of layer 1 is in it. */
static void tally(const kedge_trace *t, const uint8_t *half, uint32_t *counts, uint32_t *sizes) {
  memset(counts, 0, 3 * 8 * sizeof *counts);
  memset(sizes, 0, 3 * sizeof *sizes);
  for (uint32_t i = 0; i < t->tokens; i++) {
    sizes[half[i]]++;
    counts[half[i] * 8 + (uint32_t)t->ids[i * LAYERS + 1]]++;
  }
}

/* The halves hold the same tokens whatever the order of samples, and are equal in size. */
static void test_halves(void **state) {
  (void)state;
  kedge_trace t;
  uint8_t half[10];
  uint32_t order[SAMPLES] = {0, 1, 2, 3, 4}, first[3 * 8], counts[3 * 8], sizes[3];
  for (kedge_split split = KEDGE_SPLIT_TOKENS; split <= KEDGE_SPLIT_SAMPLES; split++)
    for (int span = KEDGE_RETENTION_ALL; span <= KEDGE_SPAN_A; span++) {
      if (span == KEDGE_SPAN_NONE) continue;
      kedge_random random = kedge_random_start(9, 0);
      for (int round = 0; round < 30; round++) {
        make_trace(&t, order);
        ok(kedge_trace_halve(&t, 1, span, split, half));
        tally(&t, half, round ? counts : first, sizes);
        if (round) assert_memory_equal(first, counts, sizeof counts);
        assert_int_equal(sizes[2], span == KEDGE_RETENTION_ALL ? 0 : span == KEDGE_SPAN_Q ? 5 : 5);
        if (split == KEDGE_SPLIT_TOKENS) assert_true(sizes[0] - sizes[1] <= 1);
        assert_true(sizes[0] > 0 && sizes[1] > 0);
        for (uint32_t i = 1; i < t.tokens && split == KEDGE_SPLIT_SAMPLES; i++)
          if (t.samples[i] == t.samples[i - 1] && half[i] < 2 && half[i - 1] < 2)
            assert_int_equal(half[i], half[i - 1]);
        kedge_trace_destroy(&t);
        kedge_random_shuffle(&random, order, SAMPLES);
      }
    }
  /* Padding is in neither half. */
  make_trace(&t, order);
  t.ids[4 * LAYERS + 1] = -1;
  ok(kedge_trace_halve(&t, 1, KEDGE_RETENTION_ALL, KEDGE_SPLIT_TOKENS, half));
  assert_int_equal(half[4], 2);
  kedge_trace_destroy(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_binomial),
      cmocka_unit_test(test_margins_kept),
      cmocka_unit_test(test_compare),
      cmocka_unit_test(test_halves),
  };
  return cmocka_run_group_tests_name("null_model", tests, NULL, NULL);
}
