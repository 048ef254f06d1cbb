/* SPDX-License-Identifier: Apache-2.0
 *
 * Intervals and tests of a study whose unit of inference is the base model: values of (base, seed), weighted
 * so that every base counts the same. statistics.c; contrast.h says which values these are.
 */
#ifndef KEDGE_MODELS_REPORT_STATISTICS_H
#define KEDGE_MODELS_REPORT_STATISTICS_H

#include "core/kedge.h"

enum { KEDGE_RESAMPLES = 10000 };
#define KEDGE_BOOTSTRAP_SEED 20260u

/* What values of several bases say about their mean. NaN: undefined.
 *
 *   mean        mean over bases of the mean over a base's values
 *   low, high   percentile bootstrap, 2.5 % and 97.5 %: bases are drawn with replacement, then within each
 *               drawn base its values; order statistics are interpolated linearly;
 *               undefined for one value
 *   p           2 (1 + min(#{m* <= 0}, #{m* >= 0})) / (1 + KEDGE_RESAMPLES), at most 1
 *   t_low, ...  Student's over the means of bases, bases - 1 degrees of freedom; undefined for one base, and
 * where all have the same mean: counts of few items do, which says nothing of how bases differ
 *
 * With few bases a bootstrap is too narrow, as it cannot draw what it has not seen. So what is decided rests
 * on both: wide_low and wide_high are the ends of the union of the two intervals, p_both the larger p; all
 * three are undefined where Student's are. */
typedef struct kedge_estimate {
  uint32_t bases, values;
  double mean, low, high, p;
  double t_low, t_high, t_p;
  double wide_low, wide_high, p_both;
} kedge_estimate;

/* `values` holds counts[0] values of the first base, then counts[1] of the second, ...; a count may be 0, and
 * such a base is not counted. The same numbers on every machine: resamples come from a counter, the seed is
 * fixed. ERR_MEMORY. */
kedge_status kedge_estimate_mean(const double *values, const uint32_t *counts, uint32_t bases,
                                 kedge_estimate *estimate);

/* Holm's step-down adjustment: adjusted[i] >= p[i], in the order of p. Entries that are NaN stay NaN and do
 * not count. ERR_MEMORY. */
kedge_status kedge_holm(const double *p, uint32_t count, double *adjusted);

/* Student's distribution: the two-sided p of t, and the t that has two-sided p. degrees >= 1. */
double kedge_student_p(double t, double degrees);
double kedge_student_t(double p, double degrees);

#endif
