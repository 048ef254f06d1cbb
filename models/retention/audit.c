/* SPDX-License-Identifier: Apache-2.0
 * What an audit measures of a trace beside a probe (audit.h). */
#include "models/retention/audit.h"

#include "models/prior/prior.h"

#include <math.h>
#include <string.h>

static const double prior_eps = 0.05, prior_clip = 5; /* the paper's, and the defaults of a run */
enum { MAX_PAIRED = 4096 };                           /* experts of a layer whose communities are found */

/* A mean of what is defined. */
typedef struct average {
  double sum;
  uint64_t count;
} average;

static void add(average *a, double value) {
  if (isfinite(value)) a->sum += value, a->count++;
}

static double mean_of(const average *a) {
  return a->count ? a->sum / (double)a->count : NAN;
}

/* ---- Chance
 * ------------------------------------------------------------------------------------------------------- */

/* log n! */
static double log_factorial(double n) {
  int sign;
  return lgamma_r(n + 1, &sign);
}

/* E|X - n p| of a binomial X: 2 m C(n, m) p^m (1 - p)^(n - m + 1) with m = floor(n p) + 1 (de Moivre). */
static double binomial_deviation(double n, double p) {
  if (p >= 1) return 0;
  const double m = fmin(floor(n * p) + 1, n);
  return 2 * m *
         exp(log_factorial(n) - log_factorial(m) - log_factorial(n - m) + m * log(p) +
             (n - m + 1) * log1p(-p));
}

/* Expected L1 of tokens that choose k of all experts at random. */
static double noise(uint64_t tokens, uint32_t k, uint32_t experts) {
  if (!tokens) return NAN;
  const double n = (double)tokens;
  return binomial_deviation(n, (double)k / experts) * experts / (n * k);
}

/* Share of chi-squared with so many degrees that lies above x (Wilson and Hilferty). */
static double chi_squared_above(double x, double degrees) {
  const double s = 2 / (9 * degrees);
  return 0.5 * erfc((cbrt(x / degrees) - (1 - s)) / sqrt(2 * s));
}

static double uniform_p(const kedge_use *u, uint32_t layer) {
  const double n = (double)u->at[layer].tokens, E = u->experts, p = u->topk / E;
  if (n * fmin(p, 1 - p) < KEDGE_AUDIT_COUNT) return NAN;
  double squares = 0;
  for (uint32_t e = 0; e < u->experts; e++) {
    const double d = (double)u->counts[(size_t)layer * u->experts + e] - n * p;
    squares += d * d;
  }
  return chi_squared_above((E - 1) / E * squares / (n * p * (1 - p)), E - 1);
}

/* ---- Samples' spans
 * ------------------------------------------------------------------------------------------------ */

typedef struct rows {
  average l1, noise, low, high, sd;
} rows;

/* Room for one layer's work. */
typedef struct scratch {
  uint32_t *counts;     /* [experts] */
  double *softmax, *pi; /* [experts] of a token; sum of a span */
  float *row, *bias;    /* [experts] */
} scratch;

/* exp(z - max) of a token's logits, brought to sum 1. Returns the largest. */
static double softmax(const float *z, uint32_t experts, double *out) {
  double most = -INFINITY, sum = 0;
  for (uint32_t e = 0; e < experts; e++) most = fmax(most, (double)z[e]);
  for (uint32_t e = 0; e < experts; e++) sum += out[e] = exp((double)z[e] - most);
  for (uint32_t e = 0; e < experts; e++) out[e] /= sum;
  return 1 / sum;
}

/* The prior that a span would have, and its bias. */
static void close_prior(const scratch *s, uint32_t experts, uint64_t tokens, rows *sum) {
  double low = 0, high = 0, squares = 0;
  for (uint32_t e = 0; e < experts; e++) s->row[e] = (float)(s->pi[e] / (double)tokens);
  kedge_prior_bias(s->row, experts, prior_eps, prior_clip, s->bias);
  for (uint32_t e = 0; e < experts; e++) {
    low += (double)s->row[e] <= prior_eps / experts, high += (double)s->row[e] >= prior_clip / experts;
    squares += (double)s->bias[e] * (double)s->bias[e];
  }
  add(&sum->low, low / experts), add(&sum->high, high / experts), add(&sum->sd, sqrt(squares / experts));
}

/* Tokens [first, last) of one sample and layer that stand in `span`. */
static void close_span(const kedge_trace *t, uint32_t layer, int32_t span, uint32_t first, uint32_t last,
                       scratch *s, rows *sum) {
  const uint32_t E = t->experts, K = t->topk;
  uint64_t tokens = 0;
  memset(s->counts, 0, E * sizeof *s->counts);
  memset(s->pi, 0, E * sizeof *s->pi);
  for (uint32_t i = first; i < last; i++) {
    const size_t row = (size_t)i * t->layers + layer;
    if (t->spans[i] != span || t->ids[row * K] < 0) continue;
    tokens++;
    for (uint32_t k = 0; k < K; k++) s->counts[t->ids[row * K + k]]++;
    if (!t->logits) continue;
    softmax(t->logits + row * E, E, s->softmax);
    for (uint32_t e = 0; e < E; e++) s->pi[e] += s->softmax[e];
  }
  if (!tokens) return;
  double l1 = 0;
  for (uint32_t e = 0; e < E; e++) l1 += fabs(s->counts[e] / ((double)tokens * K) - 1.0 / E);
  add(&sum->l1, l1), add(&sum->noise, noise(tokens, K, E));
  if (t->logits) close_prior(s, E, tokens, sum);
}

static void measure_spans(const kedge_trace *t, uint32_t layer, scratch *s, kedge_audit_layer *out) {
  rows sum = {0};
  for (uint32_t first = 0, last; first < t->tokens; first = last) {
    for (last = first + 1; last < t->tokens && t->samples[last] == t->samples[first];) last++;
    for (int32_t span = KEDGE_SPAN_NONE; span <= KEDGE_SPAN_A; span++)
      close_span(t, layer, span, first, last, s, &sum);
  }
  out->l1_span = mean_of(&sum.l1), out->l1_span_noise = mean_of(&sum.noise);
  out->clipped_low = mean_of(&sum.low), out->clipped_high = mean_of(&sum.high);
  out->bias_sd = mean_of(&sum.sd);
}

/* ---- Tokens
 * -------------------------------------------------------------------------------------------------------- */

/* The k-th largest logit - the next one. `z` is put in another order. */
static double gap_of(float *z, uint32_t experts, uint32_t k) {
  if (k >= experts) return NAN;
  for (uint32_t place = 0; place <= k; place++) {
    uint32_t best = place;
    for (uint32_t e = place + 1; e < experts; e++)
      if (z[e] > z[best]) best = e;
    const float kept = z[place];
    z[place] = z[best], z[best] = kept;
  }
  return (double)z[k - 1] - (double)z[k];
}

static void measure_tokens(const kedge_trace *t, uint32_t layer, scratch *s, kedge_audit_layer *out) {
  average top1 = {0}, gap = {0};
  for (uint32_t i = 0; t->logits && i < t->tokens; i++) {
    if (!kedge_trace_is_routed(t, i, layer)) continue;
    memcpy(s->row, t->logits + ((size_t)i * t->layers + layer) * t->experts, t->experts * sizeof *s->row);
    add(&top1, softmax(s->row, t->experts, s->softmax));
    add(&gap, gap_of(s->row, t->experts, t->topk));
  }
  out->top1_mass = mean_of(&top1), out->gap = mean_of(&gap);
}

/* ---- Layers
 * ------------------------------------------------------------------------------------------------------- */

/* Every real of a layer, for means. */
static const size_t reals[] = {
    offsetof(kedge_audit_layer, l1_noise),    offsetof(kedge_audit_layer, uniform_p),
    offsetof(kedge_audit_layer, l1_span),     offsetof(kedge_audit_layer, l1_span_noise),
    offsetof(kedge_audit_layer, tie_share),   offsetof(kedge_audit_layer, most_chosen),
    offsetof(kedge_audit_layer, top1_mass),   offsetof(kedge_audit_layer, gap),
    offsetof(kedge_audit_layer, clipped_low), offsetof(kedge_audit_layer, clipped_high),
    offsetof(kedge_audit_layer, bias_sd)};

static double real_of(const kedge_audit_layer *l, size_t at) {
  return *(const double *)(const void *)((const char *)l + at);
}

static void take_mean(kedge_audit_domain *d, uint32_t layers) {
  d->mean.layer = -1;
  for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
    average a = {0};
    for (uint32_t l = 0; l < layers; l++) add(&a, real_of(&d->at[l], reals[i]));
    *(double *)(void *)((char *)&d->mean + reals[i]) = mean_of(&a);
  }
}

static void measure_layer(const kedge_trace *t, const kedge_use *u, uint32_t layer, scratch *s,
                          kedge_audit_layer *out) {
  const kedge_use_layer *at = &u->at[layer];
  out->layer = at->layer;
  out->l1_noise = noise(at->tokens, t->topk, t->experts);
  out->uniform_p = at->tokens ? uniform_p(u, layer) : NAN;
  out->tie_share = u->ties_known && at->tokens ? (double)at->ties / (double)at->tokens : NAN;
  out->most_chosen = at->load * t->topk / t->experts;
  measure_spans(t, layer, s, out);
  measure_tokens(t, layer, s, out);
}

static void scratch_destroy(scratch *s) {
  kedge_free(s->counts);
  kedge_free(s->softmax);
  kedge_free(s->pi);
  kedge_free(s->row);
  kedge_free(s->bias);
}

static kedge_status scratch_init(scratch *s, uint32_t experts) {
  s->counts = kedge_alloc(experts, sizeof *s->counts);
  s->softmax = kedge_alloc(experts, sizeof *s->softmax);
  s->pi = kedge_alloc(experts, sizeof *s->pi);
  s->row = kedge_alloc(experts, sizeof *s->row);
  s->bias = kedge_alloc(experts, sizeof *s->bias);
  return s->counts && s->softmax && s->pi && s->row && s->bias ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

static kedge_status measure(const kedge_trace *t, const kedge_use *u, kedge_audit_domain *d) {
  scratch s = {0};
  double sum = 0, routed = 0;
  *d = (kedge_audit_domain){.at = kedge_alloc(t->layers, sizeof *d->at)};
  kedge_status status = d->at ? scratch_init(&s, t->experts) : KEDGE_ERR_MEMORY;
  for (uint32_t l = 0; status == KEDGE_OK && l < t->layers; l++) {
    measure_layer(t, u, l, &s, &d->at[l]);
    if (!u->at[l].tokens) continue;
    sum += d->at[l].l1_noise * d->at[l].l1_noise, routed++;
  }
  scratch_destroy(&s);
  if (status != KEDGE_OK) return status;
  d->l1_averaged_noise = sqrt(sum) / routed; /* of independent layers; 0/0 without a token */
  take_mean(d, t->layers);
  return KEDGE_OK;
}

kedge_status kedge_audit_add(kedge_audit *a, const char *name, const kedge_trace *t) {
  const uint32_t place = a->probe.count;
  kedge_audit_domain *more = kedge_realloc(a->domains, (size_t)place + 1, sizeof *more);
  if (!more) return KEDGE_ERR_MEMORY;
  a->domains = more;
  a->domains[place] = (kedge_audit_domain){0};
  KEDGE_TRY(kedge_probe_add(&a->probe, name, t, NULL));
  return measure(t, &a->probe.domains[place].base[KEDGE_PROBE_ALL], &a->domains[place]);
}

kedge_status kedge_audit_add_communities(kedge_audit *a, uint32_t domain, const kedge_trace *t,
                                         const kedge_community_options *options) {
  if (t->experts > MAX_PAIRED) return KEDGE_OK;
  return kedge_probe_add_communities(&a->probe, domain, t, NULL, options);
}

void kedge_audit_destroy(kedge_audit *a) {
  for (uint32_t i = 0; i < a->probe.count; i++) kedge_free(a->domains[i].at);
  kedge_free(a->domains);
  kedge_probe_destroy(&a->probe);
  *a = (kedge_audit){0};
}
