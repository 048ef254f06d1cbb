/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * The tables that interventions make of a prior (models/prior/prior_fill.c): each value against a plain
 * computation, empty spans, both spans as one, counts of clipped cells, the rule of ties, f16, bad rows.
 */
#include "tests/support/files.h"
#include "tests/support/priors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 11, L = 3, E = 16, ROWS = 12, K = 5 };

static const uint64_t batch[] = {15, 1, 7, 21, 1}; /* samples 7, 0, 3 (no prompt), 10, 0 */
enum { COUNT = sizeof batch / sizeof *batch };

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static void fails(kedge_status got, kedge_status want, const char *text) {
  if (got != want) fail_msg("expected %s, got %s", kedge_status_name(want), kedge_status_name(got));
  if (!strstr(kedge_message(), text)) fail_msg("expected \"%s\" in: %s", text, kedge_message());
}

static kedge_prior *open_as(const test_prior *p, const char *name, kedge_st_dtype dtype) {
  kedge_prior *prior;
  const char *path = test_path(test_folder(), name);
  test_prior_write(p, path, dtype);
  ok(kedge_prior_open(path, &prior));
  return prior;
}

/* What a row of the table is made of: false for rows of nothing. */
static bool expected_pi(const test_prior *p, bool whole, uint32_t row, uint32_t layer, double pi[E]) {
  if (row / 2 >= COUNT) return false;
  const uint32_t sample = (uint32_t)(batch[row / 2] / 2), span = row % 2;
  const int32_t *counts = p->counts + 2 * sample;
  if (!counts[span]) return false;
  const float *q = test_prior_row(p, sample, 0, layer), *a = test_prior_row(p, sample, 1, layer);
  for (int e = 0; e < E; e++)
    pi[e] = whole ? (counts[0] * (double)q[e] + counts[1] * (double)a[e]) / (counts[0] + counts[1])
                  : (double)(span ? a : q)[e];
  return true;
}

static void test_tables(void **state) {
  (void)state;
  test_prior p;
  test_prior_init(&p, N, L, E, 1);
  kedge_prior *prior = open_as(&p, "p.st", KEDGE_ST_F32);
  assert_true(kedge_prior_is_exact(prior));
  for (int whole = 0; whole < 2; whole++) {
    static float bias[L * ROWS * E], pi[L * ROWS * E];
    static int32_t ids[L * ROWS * K];
    kedge_prior_clipped clipped = {.cells = 1000}, want = {.cells = 1000};
    memset(bias, 255, sizeof bias), memset(pi, 255, sizeof pi), memset(ids, 1, sizeof ids);
    ok(kedge_prior_fill_bias(prior, 0.05, 5, whole, batch, COUNT, ROWS, bias, &clipped));
    ok(kedge_prior_fill_pi(prior, whole, batch, COUNT, ROWS, pi));
    ok(kedge_prior_fill_ids(prior, 0.05, 5, whole, batch, COUNT, ROWS, K, ids));
    for (uint32_t l = 0; l < L; l++)
      for (uint32_t row = 0; row < ROWS; row++) {
        double expect[E], mean = 0;
        const uint32_t at = l * ROWS + row;
        if (!expected_pi(&p, whole, row, l, expect)) {
          for (uint32_t e = 0; e < E; e++) assert_true(bias[at * E + e] == 0 && pi[at * E + e] == 0);
          for (uint32_t k = 0; k < K; k++) assert_int_equal(ids[at * K + k], -1);
          continue;
        }
        for (uint32_t e = 0; e < E; e++) mean += log(fmin(fmax(expect[e], 0.05 / E), 5.0 / E)) / E;
        for (uint32_t e = 0; e < E; e++) {
          const double b = log(fmin(fmax(expect[e], 0.05 / E), 5.0 / E)) - mean;
          assert_true(fabs((double)pi[at * E + e] - expect[e]) <= 1e-7);
          assert_true(fabs((double)bias[at * E + e] - b) <= 1e-5);
          want.low += expect[e] <= 0.05 / E, want.high += expect[e] >= 5.0 / E;
        }
        want.cells += E;
        for (uint32_t k = 0; k < K; k++) {
          uint32_t better = 0;
          const uint32_t id = (uint32_t)ids[at * K + k];
          assert_in_range(id, 0, E - 1);
          for (uint32_t e = 0; e < E; e++)
            better += pi[at * E + e] > pi[at * E + id] || (pi[at * E + e] >= pi[at * E + id] && e < id);
          assert_int_equal(better, k);
        }
      }
    assert_true(clipped.cells == want.cells && clipped.low == want.low && clipped.high == want.high);
    assert_true(want.low && want.high);
  }
  kedge_prior_free(prior);
  test_prior_destroy(&p);
}

/* Saturated experts tie in the clipped prior: the larger raw one is better, then the lower index. */
static void test_ties(void **state) {
  (void)state;
  int32_t ids[4];
  kedge_prior_top((const float[]){.45f, .01f, .01f, .53f}, 4, 0.05, 1.5, 4, ids);
  assert_memory_equal(ids, ((const int32_t[]){3, 0, 1, 2}), sizeof ids);
  kedge_prior_top((const float[]){0, .005f, .5f, .495f}, 4, 0.5, 1, 3, ids);
  assert_memory_equal(ids, ((const int32_t[]){2, 3, 1}), 3 * sizeof *ids);
  kedge_prior_top((const float[]){.25f, .25f, .25f, .25f}, 4, 0.05, 5, 4, ids);
  assert_memory_equal(ids, ((const int32_t[]){0, 1, 2, 3}), sizeof ids);
  const float one = 1;
  kedge_prior_top(&one, 1, 0.05, 5, 1, ids);
  assert_int_equal(ids[0], 0);
}

/* f16 gives nearly the same bias and is refused where small probabilities matter. */
static void test_half(void **state) {
  (void)state;
  static float bias[L * ROWS * E], half[L * ROWS * E];
  test_prior p;
  test_prior_init(&p, N, L, E, 2);
  kedge_prior *exact = open_as(&p, "p.st", KEDGE_ST_F32), *prior = open_as(&p, "h.st", KEDGE_ST_F16);
  assert_false(kedge_prior_is_exact(prior));
  ok(kedge_prior_fill_bias(exact, 0.05, 5, false, batch, COUNT, ROWS, bias, NULL));
  ok(kedge_prior_fill_bias(prior, 0.05, 5, false, batch, COUNT, ROWS, half, NULL));
  double most = 0;
  for (int i = 0; i < L * ROWS * E; i++) most = fmax(most, fabs((double)bias[i] - (double)half[i]));
  assert_true(most > 0 && most < 2 * 0x1p-11);
  fails(kedge_prior_fill_pi(prior, false, batch, COUNT, ROWS, half), KEDGE_ERR_MISMATCH, "h.st: holds f16");
  kedge_prior_free(exact);
  kedge_prior_free(prior);
  test_prior_destroy(&p);
}

static void test_refusals(void **state) {
  (void)state;
  static float table[L * ROWS * E];
  static int32_t ids[L * ROWS * E];
  static const float numbers[] = {NAN, INFINITY, -0.1f, 0.5f};
  static const uint64_t absent[] = {1, 2};
  test_prior p;
  test_prior_init(&p, N, L, E, 3);
  kedge_prior *prior = open_as(&p, "p.st", KEDGE_ST_F32);
  fails(kedge_prior_fill_bias(prior, 0.05, 5, false, absent, 2, ROWS, table, NULL), KEDGE_ERR_MISMATCH,
        "no prior for sample 2");
  fails(kedge_prior_fill_ids(prior, 0.05, 5, false, batch, COUNT, ROWS, E + 1, ids), KEDGE_ERR_ARGUMENT,
        "top 17 of a prior with 16 experts");
  fails(kedge_prior_fill_ids(prior, 0.05, 5, false, batch, COUNT, ROWS, 0, ids), KEDGE_ERR_ARGUMENT, "top 0");
  kedge_prior_free(prior);
  for (int i = 0; i < 4; i++) {
    float *cell = test_prior_row(&p, 10, 1, 2) + 4, kept = *cell;
    *cell += numbers[i];
    prior = open_as(&p, "p.st", KEDGE_ST_F32);
    for (int whole = 0; whole < 2; whole++)
      fails(kedge_prior_fill_bias(prior, 0.05, 5, whole, batch, COUNT, ROWS, table, NULL), KEDGE_ERR_FORMAT,
            "p.st: prior_qa row (sample 10, span 1, layer 2): expected probabilities that sum to 1");
    kedge_prior_free(prior);
    *cell = kept;
  }
  test_prior_destroy(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_tables),
      cmocka_unit_test(test_ties),
      cmocka_unit_test(test_half),
      cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests_name("prior_fill", tests, NULL, NULL);
}
