/* SPDX-License-Identifier: Apache-2.0
 * Null graphs, their margins, and halves of a trace (null_model.h). */
#include "models/retention/null_model.h"

#include "models/retention/retention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- Binomial draws
 * ------------------------------------------------------------------------------------------------ */

/* In (0, 1), never an end. */
static double uniform(kedge_random *random) {
  return ((double)(kedge_random_next(random) >> 12) + 0.5) * 0x1p-52;
}

/* Inversion, for a small mean: walks the probabilities from 0 on. p <= 1/2. */
static uint64_t binomial_walk(kedge_random *random, uint64_t n, double p) {
  const double odds = p / (1 - p), first = exp((double)n * log1p(-p));
  for (;;) {
    double u = uniform(random), f = first;
    /* Far beyond any place that matters, what is left of u is rounding: another number is drawn. */
    for (uint64_t k = 0; k <= n && k < 200; k++) {
      if (u < f) return k;
      u -= f;
      f *= odds * (double)(n - k) / (double)(k + 1);
    }
  }
}

static double log_factorial(double k) {
  int sign;
  return lgamma_r(k + 1, &sign);
}

/* W. Hormann's transformed rejection with squeeze (BTRS, 1993), for a mean of 10 and more. p <= 1/2. */
static uint64_t binomial_reject(kedge_random *random, uint64_t n, double p) {
  const double count = (double)n, spread = sqrt(count * p * (1 - p));
  const double b = 1.15 + 2.53 * spread, a = -0.0873 + 0.0248 * b + 0.01 * p, c = count * p + 0.5;
  const double squeeze = 0.92 - 4.2 / b;
  for (;;) {
    const double u = uniform(random) - 0.5, us = 0.5 - fabs(u), k = floor((2 * a / us + b) * u + c);
    double v = uniform(random);
    if (k < 0 || k > count) continue;
    if (us >= 0.07 && v <= squeeze) return (uint64_t)k;
    const double alpha = (2.83 + 5.1 / b) * spread, mode = floor((count + 1) * p);
    v = log(v * alpha / (a / (us * us) + b));
    const double bound = log_factorial(mode) + log_factorial(count - mode) - log_factorial(k) -
                         log_factorial(count - k) + (k - mode) * log(p / (1 - p));
    if (v <= bound) return (uint64_t)k;
  }
}

uint64_t kedge_random_binomial(kedge_random *random, uint64_t n, double p) {
  if (!n || !(p > 0)) return 0;
  if (p >= 1) return n;
  if (p > 0.5) return n - kedge_random_binomial(random, n, 1 - p);
  return (double)n * p < 10 ? binomial_walk(random, n, p) : binomial_reject(random, n, p);
}

/* ---- The null of co-activation
 * ----------------------------------------------------------------------------------- */

kedge_status kedge_null_model_init(kedge_null_model *m, const kedge_coactivation *c) {
  const uint64_t pairs = kedge_pair_count(c->experts);
  *m = (kedge_null_model){.experts = c->experts, .total = c->total};
  m->share = kedge_alloc((size_t)pairs + 1, sizeof *m->share);
  if (!m->share) return KEDGE_ERR_MEMORY;
  /* From the last pair back: the sum of what follows makes the share of what is left. The factor K - 1 of
   * the strengths cancels. */
  uint64_t p = pairs;
  double rest = 0;
  for (uint32_t i = c->experts; i-- > 0;)
    for (uint32_t j = c->experts; j-- > i + 1;) {
      const double q = (double)c->counts[i] * (double)c->counts[j];
      rest += q;
      m->share[--p] = q > 0 ? q / rest : 0;
    }
  return KEDGE_OK;
}

void kedge_null_model_destroy(kedge_null_model *m) {
  kedge_free(m->share);
  *m = (kedge_null_model){0};
}

void kedge_null_model_draw(const kedge_null_model *m, kedge_random *random, uint32_t *pairs) {
  uint64_t left = m->total;
  for (uint64_t p = 0; p < kedge_pair_count(m->experts); p++) {
    const uint64_t drawn = kedge_random_binomial(random, left, m->share[p]);
    pairs[p] = (uint32_t)drawn;
    left -= drawn;
  }
}

kedge_null_result kedge_null_compare(double observed, const double *draws, uint32_t count) {
  kedge_null_result r = {.low = INFINITY, .high = -INFINITY};
  uint32_t as_high = 0;
  double sum = 0, squares = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (isnan(draws[i])) continue;
    r.draws++;
    sum += draws[i];
    as_high += draws[i] >= observed;
    r.low = fmin(r.low, draws[i]), r.high = fmax(r.high, draws[i]);
  }
  if (!r.draws || isnan(observed)) return (kedge_null_result){.draws = r.draws, NAN, NAN, NAN, NAN, NAN, NAN};
  r.mean = sum / (double)r.draws;
  for (uint32_t i = 0; i < count; i++)
    if (!isnan(draws[i])) squares += (draws[i] - r.mean) * (draws[i] - r.mean);
  r.sd = r.draws > 1 ? sqrt(squares / (double)(r.draws - 1)) : 0;
  r.margin = observed - r.mean;
  r.rank_p = (1.0 + as_high) / ((double)r.draws + 1);
  return r;
}

/* ---- Halves
 * ------------------------------------------------------------------------------------------------------- */

/* A run of tokens of one sample. */
typedef struct stretch {
  uint32_t first, tokens;
  uint64_t hash;
} stretch;

static int compare_stretches(const void *a, const void *b) {
  const stretch *x = a, *y = b;
  if (x->tokens != y->tokens) return x->tokens < y->tokens ? -1 : 1;
  if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
  /* Samples that agree in all of their routing are alike: which comes first changes no count. */
  return x->first < y->first ? -1 : 1;
}

static bool is_used(const kedge_trace *t, uint32_t token, uint32_t layer, int span) {
  return (span == KEDGE_RETENTION_ALL || t->spans[token] == span) && kedge_trace_is_routed(t, token, layer);
}

static uint64_t hash_stretch(const kedge_trace *t, uint32_t layer, const stretch *s) {
  uint64_t hash = 0;
  for (uint32_t i = s->first; i < s->first + s->tokens; i++) {
    const int32_t *ids = t->ids + ((size_t)i * t->layers + layer) * t->topk;
    hash = XXH3_64bits_withSeed(ids, t->topk * sizeof *ids, hash + (uint64_t)(t->spans[i] + 1));
  }
  return hash;
}

kedge_status kedge_trace_halve(const kedge_trace *t, uint32_t layer, int span, kedge_split split,
                               uint8_t *half) {
  stretch *stretches = kedge_alloc(t->tokens, sizeof *stretches);
  if (!stretches) return KEDGE_ERR_MEMORY;
  uint32_t count = 0;
  for (uint32_t i = 0; i < t->tokens; i++) {
    if (!i || t->samples[i] != t->samples[i - 1]) stretches[count++].first = i;
    stretches[count - 1].tokens++;
  }
  for (uint32_t s = 0; s < count; s++) stretches[s].hash = hash_stretch(t, layer, &stretches[s]);
  qsort(stretches, count, sizeof *stretches, compare_stretches);
  uint32_t used = 0, samples = 0;
  for (uint32_t s = 0; s < count; s++) {
    bool any = false;
    for (uint32_t i = stretches[s].first; i < stretches[s].first + stretches[s].tokens; i++) {
      half[i] = 2;
      if (!is_used(t, i, layer, span)) continue;
      any = true;
      half[i] = (uint8_t)((split == KEDGE_SPLIT_TOKENS ? used++ : samples) & 1);
    }
    samples += any;
  }
  kedge_free(stretches);
  return KEDGE_OK;
}
