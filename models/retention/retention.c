/* SPDX-License-Identifier: Apache-2.0
 * Retention metrics over routing traces (retention.h). */
#include "models/retention/retention.h"

#include <math.h>
#include <string.h>

/* ---- Divergences
 * -------------------------------------------------------------------------------------------------- */

/* Largest entry and sum of p / largest, so that neither denormal nor huge entries overflow on the way. */
static kedge_status measure(const double *p, uint32_t count, double *largest, double *sum) {
  *largest = *sum = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (!(p[i] >= 0 && isfinite(p[i])))
      return kedge_fail(KEDGE_ERR_ARGUMENT,
                        "utilisation of expert %u: expected a finite number, 0 or more, got %g", i, p[i]);
    *largest = fmax(*largest, p[i]);
  }
  if (*largest == 0) return kedge_fail(KEDGE_ERR_ARGUMENT, "utilisation of %u experts: the sum is 0", count);
  for (uint32_t i = 0; i < count; i++) *sum += p[i] / *largest;
  return KEDGE_OK;
}

kedge_status kedge_retention_tvd(const double *p, const double *q, uint32_t count, double *tvd) {
  double p_largest, p_sum, q_largest, q_sum, total = 0;
  KEDGE_TRY(measure(p, count, &p_largest, &p_sum));
  KEDGE_TRY(measure(q, count, &q_largest, &q_sum));
  for (uint32_t i = 0; i < count; i++) total += fabs(p[i] / p_largest / p_sum - q[i] / q_largest / q_sum);
  *tvd = fmin(total / 2, 1);
  return KEDGE_OK;
}

/* a log(2a / (a + b)); 0 log 0 is 0. With a > 0 the quotient is between a's rounding and 2: never 0, never
 * infinite. */
static double term(double a, double b) {
  return a > 0 ? a * log(2 * (a / (a + b))) : 0;
}

kedge_status kedge_retention_jsd(const double *p, const double *q, uint32_t count, double *nats) {
  double p_largest, p_sum, q_largest, q_sum, total = 0;
  KEDGE_TRY(measure(p, count, &p_largest, &p_sum));
  KEDGE_TRY(measure(q, count, &q_largest, &q_sum));
  for (uint32_t i = 0; i < count; i++) {
    double a = p[i] / p_largest / p_sum, b = q[i] / q_largest / q_sum;
    total += term(a, b) + term(b, a);
  }
  *nats = fmin(fmax(total / 2, 0), log(2));
  return KEDGE_OK;
}

/* ---- Counts
 * ------------------------------------------------------------------------------------------------------- */

static bool in_span(const kedge_trace *t, uint32_t token, int span) {
  return span == KEDGE_RETENTION_ALL || t->spans[token] == span;
}

static const int32_t *row(const kedge_trace *t, uint32_t token, uint32_t layer) {
  return t->ids + ((size_t)token * t->layers + layer) * t->topk;
}

uint64_t kedge_trace_counts(const kedge_trace *t, uint32_t layer, int span, uint64_t *counts) {
  uint64_t tokens = 0;
  memset(counts, 0, t->experts * sizeof *counts);
  for (uint32_t i = 0; i < t->tokens; i++) {
    if (!in_span(t, i, span) || !kedge_trace_is_routed(t, i, layer)) continue;
    tokens++;
    for (uint32_t k = 0; k < t->topk; k++) counts[row(t, i, layer)[k]]++;
  }
  return tokens;
}

/* ---- Comparing
 * ---------------------------------------------------------------------------------------------------- */

static kedge_status differ(const char *what, uint64_t base, uint64_t post) {
  return kedge_fail(KEDGE_ERR_MISMATCH, "routing traces do not match: %s: base has %llu, post has %llu", what,
                    (unsigned long long)base, (unsigned long long)post);
}

static kedge_status check_hash(const char *what, const char *base, const char *post) {
  if (!*base || !*post || !strcmp(base, post)) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_MISMATCH, "routing traces do not match: %s: base has hash %s, post has %s",
                    what, base, post);
}

static kedge_status check_same(const kedge_trace *a, const kedge_trace *b) {
  if (a->layers != b->layers) return differ("MoE layers", a->layers, b->layers);
  if (a->experts != b->experts) return differ("experts", a->experts, b->experts);
  if (a->topk != b->topk) return differ("experts a token", a->topk, b->topk);
  if (a->tokens != b->tokens) return differ("tokens", a->tokens, b->tokens);
  KEDGE_TRY(check_hash("tokenizer", a->tokenizer, b->tokenizer));
  KEDGE_TRY(check_hash("data", a->data, b->data));
  for (uint32_t l = 0; l < a->layers; l++)
    if (a->layer_numbers[l] != b->layer_numbers[l])
      return kedge_fail(KEDGE_ERR_MISMATCH,
                        "routing traces do not match: MoE layer %u: base has number %d, post has %d", l,
                        a->layer_numbers[l], b->layer_numbers[l]);
  for (uint32_t t = 0; t < a->tokens; t++)
    if (a->samples[t] != b->samples[t] || a->spans[t] != b->spans[t])
      return kedge_fail(KEDGE_ERR_MISMATCH,
                        "routing traces do not match: token %u: base has sample %d, span %d; post has sample "
                        "%d, span %d",
                        t, a->samples[t], a->spans[t], b->samples[t], b->spans[t]);
  return KEDGE_OK;
}

typedef struct comparison {
  const kedge_trace *base, *post;
  int span;
  double *base_counts, *post_counts; /* [experts] of the layer at hand */
  uint8_t *chosen;                   /* [experts] by the base, for the token at hand */
  uint32_t *place;                   /* [experts] place among the base's choice, where chosen */
  uint8_t *compared;                 /* [tokens] in some layer */
  uint64_t padding;
} comparison;

/* Experts that both rows have; chosen and place stay set for the token. */
static uint32_t common(const comparison *c, const int32_t *a, const int32_t *b) {
  uint32_t both = 0, K = c->base->topk;
  for (uint32_t k = 0; k < K; k++) c->chosen[a[k]] = 1, c->place[a[k]] = k;
  for (uint32_t k = 0; k < K; k++) both += c->chosen[b[k]];
  return both;
}

static void forget(const comparison *c, const int32_t *a) {
  for (uint32_t k = 0; k < c->base->topk; k++) c->chosen[a[k]] = 0;
}

static double dead(const double *counts, uint32_t experts) {
  uint32_t none = 0;
  for (uint32_t e = 0; e < experts; e++) none += counts[e] == 0;
  return none;
}

static double load(const double *counts, uint32_t experts) {
  double largest = 0, sum = 0;
  for (uint32_t e = 0; e < experts; e++) {
    largest = fmax(largest, counts[e]);
    sum += counts[e];
  }
  return largest * experts / sum;
}

static bool has_tie(const kedge_trace *t, uint32_t token, uint32_t layer) {
  return t->ties && t->ties[(size_t)token * t->layers + layer];
}

static const uint8_t *tied_of(const kedge_trace *t, uint32_t token, uint32_t layer) {
  if (!t->tied || !has_tie(t, token, layer)) return NULL;
  return t->tied + ((size_t)token * t->layers + layer) * ((t->experts + 7u) / 8);
}

static bool holds(const uint8_t *bits, uint32_t e) {
  return bits && bits[e / 8] >> e % 8 & 1;
}

static bool is_in(const int32_t *ids, uint32_t k, int32_t e) {
  for (uint32_t i = 0; i < k; i++)
    if (ids[i] == e) return true;
  return false;
}

/* Experts that both rows have when each fills its places at the cut, among the experts that scored the same,
 * in the way that gives the most: first with what the other has for sure, then with what both may take. */
static uint32_t common_at_best(const comparison *c, uint32_t token, uint32_t layer, const int32_t *a,
                               const int32_t *b) {
  const uint32_t K = c->base->topk, E = c->base->experts;
  const uint8_t *x = tied_of(c->base, token, layer), *y = tied_of(c->post, token, layer);
  uint32_t a_free = 0, b_free = 0, sure = 0, a_takes = 0, b_takes = 0, either = 0;
  for (uint32_t k = 0; k < K; k++) a_free += holds(x, (uint32_t)a[k]), b_free += holds(y, (uint32_t)b[k]);
  for (uint32_t e = 0; e < E; e++) {
    bool in_a = !holds(x, e) && is_in(a, K, (int32_t)e), in_b = !holds(y, e) && is_in(b, K, (int32_t)e);
    sure += in_a && in_b;
    a_takes += holds(x, e) && in_b;
    b_takes += holds(y, e) && in_a;
    either += holds(x, e) && holds(y, e);
  }
  if (a_takes > a_free) a_takes = a_free;
  if (b_takes > b_free) b_takes = b_free;
  a_free -= a_takes, b_free -= b_takes;
  uint32_t both = a_free < b_free ? a_free : b_free;
  return sure + a_takes + b_takes + (both < either ? both : either);
}

enum { FINE_BITS = 32 };

/* A share in [0, 1] as an integer, for sums that do not depend on their order. A trace has less than 2^31
 * tokens. */
static uint64_t fine(double share) {
  return (uint64_t)llround(ldexp(fmin(fmax(share, 0), 1), FINE_BITS));
}

/* Gate mass that both rows give to the same experts. chosen and place are those of the base. */
static double common_gates(const comparison *c, uint32_t token, uint32_t layer, const int32_t *b) {
  const uint32_t K = c->base->topk;
  const size_t at = ((size_t)token * c->base->layers + layer) * K;
  const float *g = c->base->weights + at, *h = c->post->weights + at;
  double g_sum = 0, h_sum = 0, both = 0;
  for (uint32_t k = 0; k < K; k++) g_sum += (double)g[k], h_sum += (double)h[k];
  if (!(g_sum > 0 && h_sum > 0)) return 0;
  for (uint32_t k = 0; k < K; k++)
    if (c->chosen[b[k]]) both += fmin((double)g[c->place[b[k]]] / g_sum, (double)h[k] / h_sum);
  return both;
}

/* What is summed over a layer's tokens. */
typedef struct sums {
  uint64_t both, first, tolerant, gates;
  bool tied_known; /* every tie so far has its experts */
} sums;

static void walk_token(comparison *c, uint32_t t, uint32_t layer, sums *s, kedge_retention_layer *out) {
  const kedge_trace *a = c->base, *b = c->post;
  const int32_t *base = row(a, t, layer), *post = row(b, t, layer);
  const bool tie_a = has_tie(a, t, layer), tie_b = has_tie(b, t, layer);
  for (uint32_t k = 0; k < a->topk; k++) {
    c->base_counts[base[k]]++;
    c->post_counts[post[k]]++;
  }
  uint32_t both = common(c, base, post);
  if (a->weights && b->weights) s->gates += fine(common_gates(c, t, layer, post));
  forget(c, base);
  s->both += both;
  s->first += base[0] == post[0];
  if ((tie_a && !a->tied) || (tie_b && !b->tied)) s->tied_known = false;
  s->tolerant += (tie_a || tie_b) && s->tied_known ? common_at_best(c, t, layer, base, post) : both;
  out->ties += tie_a || tie_b;
  out->tokens++;
  c->compared[t] = 1;
}

/* Walks a layer's tokens: counts, and the measures of single tokens as sums. */
static void walk(comparison *c, uint32_t layer, kedge_retention_layer *out) {
  const kedge_trace *a = c->base, *b = c->post;
  sums s = {.tied_known = a->ties && b->ties};
  memset(c->base_counts, 0, a->experts * sizeof *c->base_counts);
  memset(c->post_counts, 0, a->experts * sizeof *c->post_counts);
  for (uint32_t t = 0; t < a->tokens; t++) {
    if (!in_span(a, t, c->span)) continue;
    if (kedge_trace_is_routed(a, t, layer) && kedge_trace_is_routed(b, t, layer))
      walk_token(c, t, layer, &s, out);
    else
      c->padding++;
  }
  const double tokens = (double)out->tokens, places = tokens * a->topk;
  out->overlap = (double)s.both / places;
  out->top1 = (double)s.first / tokens;
  out->tolerant = s.tied_known ? (double)s.tolerant / places : NAN;
  out->gates = a->weights && b->weights ? ldexp((double)s.gates, -FINE_BITS) / tokens : NAN;
}

static kedge_status compare_layer(comparison *c, uint32_t layer, kedge_retention_layer *out) {
  const uint32_t E = c->base->experts;
  *out = (kedge_retention_layer){.layer = c->base->layer_numbers[layer]};
  walk(c, layer, out);
  if (!out->tokens) {
    out->overlap = out->top1 = out->tolerant = out->gates = out->tvd = out->jsd_nats = out->jsd_bits = NAN;
    out->load_base = out->load_post = out->dead_base = out->dead_post = NAN;
    return KEDGE_OK;
  }
  KEDGE_TRY(kedge_retention_tvd(c->base_counts, c->post_counts, E, &out->tvd));
  KEDGE_TRY(kedge_retention_jsd(c->base_counts, c->post_counts, E, &out->jsd_nats));
  out->jsd_bits = out->jsd_nats / log(2);
  out->dead_base = dead(c->base_counts, E);
  out->dead_post = dead(c->post_counts, E);
  out->load_base = load(c->base_counts, E);
  out->load_post = load(c->post_counts, E);
  return KEDGE_OK;
}

static void take_mean(kedge_retention *r) {
  kedge_retention_layer m = {.layer = -1};
  for (uint32_t l = 0; l < r->count; l++) {
    const kedge_retention_layer *at = &r->layers[l];
    r->skipped += !at->tokens;
    if (!at->tokens) continue;
    m.tokens += at->tokens, m.ties += at->ties;
    m.overlap += at->overlap, m.top1 += at->top1;
    m.tolerant += at->tolerant, m.gates += at->gates;
    m.tvd += at->tvd, m.jsd_nats += at->jsd_nats;
    m.load_base += at->load_base, m.load_post += at->load_post;
    m.dead_base += at->dead_base, m.dead_post += at->dead_post;
  }
  double n = (double)(r->count - r->skipped); /* 0: every mean is 0/0 */
  m.overlap /= n, m.top1 /= n, m.tolerant /= n, m.gates /= n, m.tvd /= n, m.jsd_nats /= n;
  m.load_base /= n, m.load_post /= n;
  m.jsd_bits = m.jsd_nats / log(2);
  if (n == 0) m.dead_base = m.dead_post = NAN;
  r->mean = m;
}

kedge_status kedge_retention_compare(const kedge_trace *base, const kedge_trace *post, int span,
                                     kedge_retention *r) {
  comparison c = {.base = base, .post = post, .span = span};
  *r = (kedge_retention){0};
  KEDGE_TRY(check_same(base, post));
  kedge_status status = KEDGE_ERR_MEMORY;
  c.base_counts = kedge_alloc(base->experts, sizeof *c.base_counts);
  c.post_counts = kedge_alloc(base->experts, sizeof *c.post_counts);
  c.chosen = kedge_alloc(base->experts, 1);
  c.place = kedge_alloc(base->experts, sizeof *c.place);
  c.compared = kedge_alloc(base->tokens, 1);
  r->layers = kedge_alloc(base->layers, sizeof *r->layers);
  if (!c.base_counts || !c.post_counts || !c.chosen || !c.place || !c.compared || !r->layers) goto done;
  status = KEDGE_OK;
  for (uint32_t l = 0; l < base->layers && status == KEDGE_OK; l++)
    status = compare_layer(&c, l, &r->layers[r->count++]);
  for (uint32_t t = 0; t < base->tokens; t++) r->tokens += c.compared[t];
  r->padding = c.padding;
  r->ties_known = base->ties && post->ties;
  take_mean(r);
done:
  kedge_free(c.base_counts);
  kedge_free(c.post_counts);
  kedge_free(c.chosen);
  kedge_free(c.place);
  kedge_free(c.compared);
  if (status != KEDGE_OK) kedge_retention_destroy(r);
  return status;
}

void kedge_retention_destroy(kedge_retention *r) {
  kedge_free(r->layers);
  *r = (kedge_retention){0};
}
