/* SPDX-License-Identifier: Apache-2.0
 * Hierarchical bootstrap, Student's distribution, Holm's adjustment (statistics.h). */
#include "models/report/statistics.h"

#include "models/text/random.h"

#include <math.h>
#include <stdlib.h>

/* ---- Student
 * ---------------------------------------------------------------------------------------------------- */

/* The continued fraction of the incomplete beta function, by Lentz's method. */
static double beta_fraction(double a, double b, double x) {
  const double tiny = 1e-300;
  double c = 1, d = 1 - (a + b) * x / (a + 1), value;
  if (fabs(d) < tiny) d = tiny;
  d = 1 / d, value = d;
  for (int m = 1; m <= 500; m++) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    for (int half = 0; half < 2; half++) {
      const double term = half ? odd : even;
      d = 1 + term * d, c = 1 + term / c;
      if (fabs(d) < tiny) d = tiny;
      if (fabs(c) < tiny) c = tiny;
      d = 1 / d, value *= d * c;
    }
    if (fabs(d * c - 1) < 1e-15) break;
  }
  return value;
}

/* lgamma() writes the global signgam, so not for threads; its sign is not needed for positive arguments. */
static double log_gamma(double x) {
  int sign;
  return lgamma_r(x, &sign);
}

static double incomplete_beta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double front = exp(log_gamma(a + b) - log_gamma(a) - log_gamma(b) + a * log(x) + b * log1p(-x));
  if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
  return 1 - front * beta_fraction(b, a, 1 - x) / b;
}

double kedge_student_p(double t, double degrees) {
  if (isnan(t)) return NAN;
  if (isinf(t)) return 0;
  return incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t));
}

double kedge_student_t(double p, double degrees) {
  double low = 0, high = 1;
  while (kedge_student_p(high, degrees) > p && high < 1e12) high *= 2;
  for (int i = 0; i < 200; i++) {
    const double middle = (low + high) / 2;
    if (kedge_student_p(middle, degrees) > p)
      low = middle;
    else
      high = middle;
  }
  return (low + high) / 2;
}

/* ---- The mean over bases
 * ---------------------------------------------------------------------------------------- */

static double mean_of(const double *values, uint32_t count) {
  double sum = 0;
  for (uint32_t i = 0; i < count; i++) sum += values[i];
  return sum / count;
}

/* Puts the k-th smallest of `values` at its place, smaller ones before it, larger ones behind (Hoare's
 * selection); a sort would take most of a study's time. */
static void place(double *values, uint32_t count, uint32_t k) {
  uint32_t first = 0, last = count - 1;
  while (first < last) {
    const double pivot = values[first + (last - first) / 2];
    uint32_t i = first, j = last;
    for (;;) {
      while (values[i] < pivot) i++;
      while (values[j] > pivot) j--;
      if (i >= j) break;
      const double kept = values[i];
      values[i++] = values[j], values[j--] = kept;
    }
    if (k <= j)
      last = j;
    else
      first = j + 1;
  }
}

/* A number below n from the upper half of a draw; it favours some numbers by less than n in 2^32. */
static uint32_t draw_below(kedge_random *random, uint32_t n) {
  return (uint32_t)(((kedge_random_next(random) >> 32) * n) >> 32);
}

/* starts[b] is the first value of base b, starts[bases] their number; no base is empty. */
static double resample(kedge_random *random, const double *values, const uint32_t *starts, uint32_t bases) {
  double sum = 0;
  for (uint32_t i = 0; i < bases; i++) {
    const uint32_t b = draw_below(random, bases), count = starts[b + 1] - starts[b];
    double inner = 0;
    for (uint32_t j = 0; j < count; j++) inner += values[starts[b] + draw_below(random, count)];
    sum += inner / count;
  }
  return sum / bases;
}

/* Order statistics of the resampled means, interpolated. */
static double percentile(double *means, double share) {
  const double at = share * (KEDGE_RESAMPLES - 1), below = floor(at);
  const uint32_t k = (uint32_t)below;
  place(means, KEDGE_RESAMPLES, k + 1);
  place(means, k + 1, k);
  return means[k] + (means[k + 1] - means[k]) * (at - below);
}

static void bootstrap(const double *values, const uint32_t *starts, uint32_t bases, double *means,
                      kedge_estimate *e) {
  kedge_random random = kedge_random_start(KEDGE_BOOTSTRAP_SEED, 0);
  uint32_t low = 0, high = 0;
  for (uint32_t r = 0; r < KEDGE_RESAMPLES; r++) {
    means[r] = resample(&random, values, starts, bases);
    low += means[r] <= 0, high += means[r] >= 0;
  }
  e->low = percentile(means, 0.025), e->high = percentile(means, 0.975);
  e->p = fmin(1, 2.0 * (1 + (low < high ? low : high)) / (1 + KEDGE_RESAMPLES));
}

static void student(const double *base_means, uint32_t bases, kedge_estimate *e) {
  double squares = 0;
  if (bases < 2) return;
  for (uint32_t b = 0; b < bases; b++) squares += (base_means[b] - e->mean) * (base_means[b] - e->mean);
  const double error = sqrt(squares / (bases - 1) / bases), half = error * kedge_student_t(0.05, bases - 1);
  if (!(error > 1e-9 * fabs(e->mean))) return;
  e->t_low = e->mean - half, e->t_high = e->mean + half;
  e->t_p = kedge_student_p(e->mean / error, bases - 1);
  e->wide_low = fmin(e->low, e->t_low), e->wide_high = fmax(e->high, e->t_high);
  e->p_both = fmax(e->p, e->t_p);
}

kedge_status kedge_estimate_mean(const double *values, const uint32_t *counts, uint32_t bases,
                                 kedge_estimate *estimate) {
  *estimate = (kedge_estimate){.mean = NAN,
                               .low = NAN,
                               .high = NAN,
                               .p = NAN,
                               .t_low = NAN,
                               .t_high = NAN,
                               .t_p = NAN,
                               .wide_low = NAN,
                               .wide_high = NAN,
                               .p_both = NAN};
  uint32_t *starts = kedge_alloc((size_t)bases + 1, sizeof *starts);
  double *means = kedge_alloc((size_t)bases + KEDGE_RESAMPLES, sizeof *means);
  kedge_status status = starts && means ? KEDGE_OK : KEDGE_ERR_MEMORY;
  uint32_t used = 0;
  for (uint32_t b = 0; status == KEDGE_OK && b < bases; b++) {
    if (!counts[b]) continue;
    means[used] = mean_of(values + starts[used], counts[b]);
    starts[used + 1] = starts[used] + counts[b];
    used++;
  }
  if (status == KEDGE_OK && used) {
    estimate->bases = used, estimate->values = starts[used];
    estimate->mean = mean_of(means, used);
    if (estimate->values > 1) bootstrap(values, starts, used, means + used, estimate);
    student(means, used, estimate);
  }
  kedge_free(starts);
  kedge_free(means);
  return status;
}

/* ---- Many tests
 * ------------------------------------------------------------------------------------------------- */

typedef struct ranked {
  double p;
  uint32_t at;
} ranked;

static int by_p(const void *a, const void *b) {
  const ranked *x = a, *y = b;
  if (x->p != y->p) return x->p < y->p ? -1 : 1;
  return (x->at > y->at) - (x->at < y->at);
}

kedge_status kedge_holm(const double *p, uint32_t count, double *adjusted) {
  ranked *order = kedge_alloc(count ? count : 1, sizeof *order);
  uint32_t tests = 0;
  double least = 0;
  if (!order) return KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; i < count; i++) {
    adjusted[i] = NAN;
    if (!isnan(p[i])) order[tests++] = (ranked){p[i], i};
  }
  qsort(order, tests, sizeof *order, by_p);
  for (uint32_t i = 0; i < tests; i++) {
    least = fmax(least, fmin(1, (tests - i) * order[i].p));
    adjusted[order[i].at] = least;
  }
  kedge_free(order);
  return KEDGE_OK;
}
