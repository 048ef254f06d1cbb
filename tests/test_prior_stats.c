/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Measures of priors (models/prior/prior_stats.c) against plain computations over all elements; identities
 * of the bias and of shuffled priors; degenerate priors.
 */
#include "models/prior/prior_internal.h"
#include "models/prior/prior_stats.h"
#include "tests/support/files.h"
#include "tests/support/priors.h"

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

static void fails(kedge_status got, kedge_status want, const char *text) {
  if (got != want) fail_msg("expected %s, got %s", kedge_status_name(want), kedge_status_name(got));
  if (!strstr(kedge_message(), text)) fail_msg("expected \"%s\" in: %s", text, kedge_message());
}

static void near(const char *what, double got, double want, double tolerance) {
  if (!(fabs(got - want) <= tolerance)) fail_msg("%s: got %.17g, want %.17g", what, got, want);
}

static const char *in(const char *name) {
  return test_path(test_folder(), name);
}

static kedge_prior *write_and_open(const test_prior *p, const char *name) {
  kedge_prior *prior;
  test_prior_write(p, in(name), KEDGE_ST_F32);
  ok(kedge_prior_open(in(name), &prior));
  return prior;
}

static int compare_floats(const void *left, const void *right) {
  const float a = *(const float *)left, b = *(const float *)right;
  return (a > b) - (a < b);
}

/* ---- Against a plain computation
 * ------------------------------------------------------------------------------- */

typedef struct plain {
  uint64_t rows, undefined, low, high, common;
  double sd, sd_min, sd_max, range, range_max, entropy, effective, db;
  float *all;
  size_t elements;
} plain;

static void plain_row(plain *r, const float *pi, const float *pi2, uint32_t E, uint32_t K, double beta) {
  float b[512], b2[512];
  int32_t top[512], top2[512];
  double square = 0, least = INFINITY, most = -INFINITY, sum = 0, entropy = 0;
  kedge_prior_bias(pi, E, 0.05, 5, b);
  kedge_prior_bias(pi2, E, 0.05, 5, b2);
  for (uint32_t e = 0; e < E; e++) {
    sum += (double)b[e];
    square += (double)b[e] * (double)b[e];
    least = fmin(least, (double)b[e]), most = fmax(most, (double)b[e]);
    if (pi[e] > 0) entropy -= (double)pi[e] * log((double)pi[e]);
    r->low += (double)pi[e] <= 0.05 / E, r->high += (double)pi[e] >= 5.0 / E;
    r->all[r->elements++] = (float)(beta * fabs((double)b2[e] - (double)b[e]));
    r->db += beta * fabs((double)b2[e] - (double)b[e]);
  }
  near("sum of b", sum, 0, 1e-5);
  assert_true(most - least <= log(100) + 1e-6);
  const double sd = sqrt(square / E);
  r->sd_min = r->rows ? fmin(r->sd_min, sd) : sd;
  r->sd_max = fmax(r->sd_max, sd), r->range_max = fmax(r->range_max, most - least);
  r->rows++;
  r->sd += sd, r->range += most - least, r->entropy += entropy, r->effective += exp(entropy) / E;
  kedge_prior_top(pi, E, 0.05, 5, K, top);
  kedge_prior_top(pi2, E, 0.05, 5, K, top2);
  for (uint32_t i = 0; i < K; i++)
    for (uint32_t j = 0; j < K; j++) r->common += top[i] == top2[j];
}

static void check_group(plain *r, const kedge_prior_stats *s, uint32_t E, uint32_t K) {
  assert_int_equal(s->rows, r->rows);
  assert_int_equal(s->undefined, r->undefined);
  const double rows = (double)r->rows, cells = rows * E;
  near("sd", s->sd, r->sd / rows, 1e-12), near("sd_min", s->sd_min, r->sd_min, 1e-12);
  near("sd_max", s->sd_max, r->sd_max, 1e-12), near("range", s->range, r->range / rows, 1e-12);
  near("range_max", s->range_max, r->range_max, 1e-12), near("entropy", s->entropy, r->entropy / rows, 1e-12);
  near("effective", s->effective, r->effective / rows, 1e-12);
  near("low", s->low, (double)r->low / cells, 1e-15), near("high", s->high, (double)r->high / cells, 1e-15);
  near("overlap", s->overlap, (double)r->common / (rows * K), 1e-15);
  near("change", s->change, 1 - s->overlap, 0);
  near("db_mean", s->db_mean, r->db / cells, 1e-12);
  qsort(r->all, r->elements, sizeof *r->all, compare_floats);
  const double place = 0.9 * (double)(r->elements - 1);
  const size_t at = (size_t)floor(place);
  const double a = (double)r->all[at], b = (double)r->all[at + 1 < r->elements ? at + 1 : at];
  near("db_p90", s->db_p90, a + (place - floor(place)) * (b - a), 1e-15);
}

static void check_report(const test_prior *p, const test_prior *q, const kedge_prior_report *r, double beta,
                         uint32_t K) {
  for (uint32_t g = 0; g < 3 + p->layers; g++) {
    plain sums = {.all = malloc((size_t)p->samples * 2 * p->layers * p->experts * sizeof(float))};
    assert_non_null(sums.all);
    for (uint32_t i = 0; i < p->samples; i++)
      for (uint32_t s = 0; s < 2; s++)
        for (uint32_t l = 0; l < p->layers; l++) {
          if ((g == 1 && s) || (g == 2 && !s) || (g > 2 && l != g - 3)) continue;
          if (p->counts[2 * i + s])
            plain_row(&sums, test_prior_row(p, i, s, l), test_prior_row(q, i, s, l), p->experts, K, beta);
          else
            sums.undefined++;
        }
    check_group(&sums, g == 0 ? &r->all : g < 3 ? &r->span[g - 1] : &r->layer[g - 3], p->experts, K);
    free(sums.all);
  }
}

static void test_measures(void **state) {
  (void)state;
  for (uint32_t round = 0; round < 3; round++) {
    const uint32_t samples = round ? 70 : 1, experts = round == 2 ? 64 : 7;
    const double beta = round ? 0.75 : 1;
    test_prior p, q;
    kedge_prior_report r;
    test_prior_init(&p, samples, 3, experts, 10 + round);
    test_prior_init(&q, samples, 3, experts, 20 + round);
    memcpy(q.counts, p.counts, 2 * samples * sizeof *p.counts);
    kedge_prior *a = write_and_open(&p, "a.st"), *b = write_and_open(&q, "b.st");
    const kedge_prior_stats_options options = {.eps = 0.05, .clip = 5, .beta = beta, .topk = 3};
    ok(kedge_prior_measure(a, b, &options, &r));
    assert_true(r.compared && r.layers == 3 && r.topk == 3);
    check_report(&p, &q, &r, beta, 3);
    kedge_prior_report_destroy(&r);
    ok(kedge_prior_measure(a, NULL, &options, &r));
    assert_true(!r.compared && isnan(r.all.overlap) && isnan(r.all.db_p90) && r.all.sd > 0);
    kedge_prior_report_destroy(&r);
    kedge_prior_free(a), kedge_prior_free(b);
    test_prior_destroy(&p), test_prior_destroy(&q);
  }
}

/* ---- Shuffled priors
 * ----------------------------------------------------------------------------------------- */

/* Over many permutations the overlap of a global shuffle tends to K/E; clips hold as many cells; sd, range
 * and entropy of a row are as they were; against itself nothing has changed. */
static void test_global(void **state) {
  (void)state;
  enum { SAMPLES = 20, LAYERS = 40, EXPERTS = 64, K = 6, SEEDS = 5 };
  const kedge_prior_stats_options options = {.eps = 0.05, .clip = 5, .beta = 1, .topk = K};
  test_prior p;
  kedge_prior_report own, r;
  double overlap = 0;
  test_prior_init(&p, SAMPLES, LAYERS, EXPERTS, 5);
  kedge_prior *a = write_and_open(&p, "a.st");
  ok(kedge_prior_measure(a, a, &options, &own));
  near("overlap with itself", own.all.overlap, 1, 0);
  near("change from itself", own.all.change, 0, 0);
  near("|db| to itself", own.all.db_p90, 0, 0);
  assert_true(own.all.low > 0 && own.all.high > 0);
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    kedge_shuffle s;
    kedge_prior *b;
    ok(kedge_prior_open(in("a.st"), &b));
    ok(kedge_prior_draw_shuffle(b, KEDGE_SHUFFLE_GLOBAL, seed, NULL, &s));
    ok(kedge_prior_set_shuffle(b, &s));
    ok(kedge_prior_measure(a, b, &options, &r));
    overlap += r.all.overlap / SEEDS;
    near("change", r.all.change, 1 - r.all.overlap, 0);
    assert_true(r.all.db_p90 > 1);
    kedge_prior_report_destroy(&r);
    ok(kedge_prior_measure(b, NULL, &options, &r));
    for (uint32_t l = 0; l < LAYERS; l++) {
      near("low", r.layer[l].low, own.layer[l].low, 0), near("high", r.layer[l].high, own.layer[l].high, 0);
      near("sd", r.layer[l].sd, own.layer[l].sd, 1e-6);
      near("range", r.layer[l].range, own.layer[l].range, 1e-6);
      near("entropy", r.layer[l].entropy, own.layer[l].entropy, 1e-12);
    }
    kedge_prior_report_destroy(&r);
    kedge_shuffle_destroy(&s);
    kedge_prior_free(b);
  }
  /* 200 permutations of 40 rows each: the mean overlap has a standard error of about 0.0035 or less. */
  near("overlap", overlap, (double)K / EXPERTS, 0.012);
  kedge_prior_report_destroy(&own);
  kedge_prior_free(a);
  test_prior_destroy(&p);
}

/* ---- Degenerate priors
 * --------------------------------------------------------------------------------------- */

static void test_degenerate(void **state) {
  (void)state;
  const kedge_prior_stats_options options = {.eps = 0.05, .clip = 5, .beta = 1, .topk = 1};
  kedge_prior_report r;
  test_prior p;
  /* One expert: b = 0, and it is always the best. */
  test_prior_init(&p, 4, 2, 1, 1);
  kedge_prior *a = write_and_open(&p, "a.st");
  ok(kedge_prior_measure(a, a, &options, &r));
  near("sd", r.all.sd, 0, 0), near("range", r.all.range_max, 0, 0), near("overlap", r.all.overlap, 1, 0);
  near("effective", r.all.effective, 1, 0);
  kedge_prior_report_destroy(&r);
  kedge_prior_free(a);
  test_prior_destroy(&p);
  /* Uniform: b = 0, entropy log E. One expert has all: range of the clips. */
  test_prior_init(&p, 2, 1, 8, 1);
  for (uint32_t e = 0; e < 8; e++) {
    for (uint32_t s = 0; s < 2; s++)
      test_prior_row(&p, 0, s, 0)[e] = 0.125f, test_prior_row(&p, 1, s, 0)[e] = e == 3;
  }
  a = write_and_open(&p, "a.st");
  ok(kedge_prior_measure(a, NULL, &options, &r));
  near("least sd", r.all.sd_min, 0, 0), near("most range", r.all.range_max, log(100), 1e-6);
  near("entropy", r.all.entropy, log(8) / 2, 1e-12),
      near("effective", r.all.effective, (1 + 0.125) / 2, 1e-12);
  near("low", r.all.low, 7.0 / 16, 0), near("high", r.all.high, 1.0 / 16, 0);
  kedge_prior_report_destroy(&r);
  kedge_prior_free(a);
  /* No prompt anywhere: a group without rows is no number. */
  for (uint32_t i = 0; i < 2; i++) p.counts[2 * i] = 0;
  a = write_and_open(&p, "a.st");
  ok(kedge_prior_measure(a, a, &options, &r));
  assert_true(r.span[0].rows == 0 && r.span[0].undefined == 2 && isnan(r.span[0].sd) &&
              isnan(r.span[0].low) && isnan(r.span[0].overlap) && isnan(r.span[0].db_p90));
  assert_true(r.all.rows == 2 && r.all.undefined == 2);
  kedge_prior_report_destroy(&r);
  kedge_prior_free(a);
  test_prior_destroy(&p);
}

static bool stop(void *context, uint64_t samples, uint64_t total) {
  (void)context, (void)samples, (void)total;
  return false;
}

static void test_refusals(void **state) {
  (void)state;
  kedge_prior_stats_options options = {.eps = 0.05, .clip = 5, .beta = 1};
  kedge_prior_report r;
  test_prior p, q, spans;
  test_prior_init(&p, 5, 2, 8, 1), test_prior_init(&q, 5, 2, 9, 1), test_prior_init(&spans, 5, 2, 8, 1);
  spans.counts[3]++;
  kedge_prior *a = write_and_open(&p, "a.st"), *b = write_and_open(&q, "b.st"),
              *c = write_and_open(&spans, "c.st");
  fails(kedge_prior_measure(a, a, &options, &r), KEDGE_ERR_ARGUMENT, "overlap of the top 0 of 8");
  options.topk = 9;
  fails(kedge_prior_measure(a, a, &options, &r), KEDGE_ERR_ARGUMENT, "overlap of the top 9 of 8");
  options.topk = 2;
  fails(kedge_prior_measure(a, b, &options, &r), KEDGE_ERR_MISMATCH, "5 samples, 2 MoE layers, 9 experts");
  fails(kedge_prior_measure(a, c, &options, &r), KEDGE_ERR_MISMATCH, "row 1 is of another sample or span");
  options.progress = stop;
  fails(kedge_prior_measure(a, NULL, &options, &r), KEDGE_ERR_INTERRUPTED, "stopped after 5 of 5");
  options.progress = NULL;
  test_prior_row(&p, 2, 1, 1)[0] = -1;
  kedge_prior_free(a);
  a = write_and_open(&p, "a.st");
  fails(kedge_prior_measure(a, NULL, &options, &r), KEDGE_ERR_FORMAT, "row (sample 2, span 1, layer 1)");
  assert_null(r.layer);
  kedge_prior_free(a), kedge_prior_free(b), kedge_prior_free(c);
  test_prior_destroy(&p), test_prior_destroy(&q), test_prior_destroy(&spans);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_measures),
      cmocka_unit_test(test_global),
      cmocka_unit_test(test_degenerate),
      cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests_name("prior_stats", tests, NULL, NULL);
}
