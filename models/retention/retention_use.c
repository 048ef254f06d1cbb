/* SPDX-License-Identifier: Apache-2.0
 * Use of experts by one model (retention_use.h). */
#include "models/retention/retention_use.h"

#include <math.h>
#include <string.h>

/* ---- One layer
 * ---------------------------------------------------------------------------------------------------- */

/* -sum p log p in nats of p = share / sum. */
static double entropy(const double *share, uint32_t count) {
  double h = 0;
  for (uint32_t e = 0; e < count; e++)
    if (share[e] > 0) h -= share[e] * log(share[e]);
  return fmax(h, 0);
}

static double l1_to_uniform(const double *share, uint32_t count) {
  double sum = 0;
  for (uint32_t e = 0; e < count; e++) sum += fabs(share[e] - 1.0 / count);
  return sum;
}

static const int32_t *row(const kedge_trace *t, uint32_t token, uint32_t layer) {
  return t->ids + ((size_t)token * t->layers + layer) * t->topk;
}

static bool counts_in(const kedge_trace *t, uint32_t token, int span) {
  return span == KEDGE_RETENTION_ALL || t->spans[token] == span;
}

enum { FINE_BITS = 32 };

/* Sum over samples of the effective fraction of each, as an integer, so that the order of samples does not
 * matter. `counts` [experts] is zero before and after. */
typedef struct sample_sum {
  uint64_t fraction, samples;
} sample_sum;

static void close_sample(const kedge_trace *t, uint32_t layer, int span, uint32_t first, uint32_t last,
                         uint32_t *counts, sample_sum *sum) {
  double total = 0, h = 0;
  for (uint32_t i = first; i < last; i++)
    if (counts_in(t, i, span) && kedge_trace_is_routed(t, i, layer))
      for (uint32_t k = 0; k < t->topk; k++) counts[row(t, i, layer)[k]]++, total++;
  if (total == 0) return;
  /* Experts in their order, so that equal samples give equal bits. */
  for (uint32_t e = 0; e < t->experts; e++) {
    if (!counts[e]) continue;
    double share = counts[e] / total;
    h -= share * log(share);
    counts[e] = 0;
  }
  sum->fraction += (uint64_t)llround(ldexp(exp(h) / t->experts, FINE_BITS));
  sum->samples++;
}

static double sample_fraction(const kedge_trace *t, uint32_t layer, int span, uint32_t *counts) {
  sample_sum sum = {0};
  for (uint32_t first = 0; first < t->tokens;) {
    uint32_t last = first + 1;
    while (last < t->tokens && t->samples[last] == t->samples[first]) last++;
    close_sample(t, layer, span, first, last, counts, &sum);
    first = last;
  }
  return ldexp((double)sum.fraction, -FINE_BITS) / (double)sum.samples;
}

static void measure_layer(const kedge_trace *t, uint32_t l, int span, uint32_t *scratch, kedge_use *u) {
  const uint32_t E = t->experts;
  uint64_t *counts = u->counts + (size_t)l * E, largest = 0;
  double *share = u->share + (size_t)l * E;
  kedge_use_layer *out = &u->at[l];
  *out = (kedge_use_layer){.layer = t->layer_numbers[l], .tokens = kedge_trace_counts(t, l, span, counts)};
  if (!out->tokens) {
    out->entropy_nats = out->effective = out->l1 = out->effective_sample = out->load = out->dead = NAN;
    return;
  }
  const double total = (double)out->tokens * t->topk;
  for (uint32_t e = 0; e < E; e++) {
    share[e] = (double)counts[e] / total;
    largest = counts[e] > largest ? counts[e] : largest;
    out->dead += counts[e] == 0;
  }
  out->load = (double)largest * E / total;
  out->entropy_nats = entropy(share, E);
  out->effective = exp(out->entropy_nats) / E;
  out->l1 = l1_to_uniform(share, E);
  out->effective_sample = sample_fraction(t, l, span, scratch);
  for (uint32_t i = 0; t->ties && i < t->tokens; i++)
    out->ties +=
        counts_in(t, i, span) && kedge_trace_is_routed(t, i, l) && t->ties[(size_t)i * t->layers + l];
}

/* ---- All layers
 * --------------------------------------------------------------------------------------------------- */

static void take_mean(kedge_use *u) {
  kedge_use_layer m = {.layer = -1};
  const uint32_t E = u->experts;
  for (uint32_t l = 0; l < u->layers; l++) {
    const kedge_use_layer *at = &u->at[l];
    u->skipped += !at->tokens;
    if (!at->tokens) continue;
    m.tokens += at->tokens, m.ties += at->ties, m.dead += at->dead;
    m.entropy_nats += at->entropy_nats, m.effective += at->effective, m.l1 += at->l1;
    m.effective_sample += at->effective_sample, m.load += at->load;
    for (uint32_t e = 0; e < E; e++) u->layer_mean[e] += u->share[(size_t)l * E + e];
  }
  const double n = (double)(u->layers - u->skipped); /* 0: every mean is 0/0 */
  m.entropy_nats /= n, m.effective /= n, m.l1 /= n, m.effective_sample /= n, m.load /= n;
  if (n == 0) m.dead = NAN;
  u->mean = m;
  for (uint32_t e = 0; e < E && n > 0; e++) u->layer_mean[e] /= n;
  u->l1_layer_mean = n > 0 ? l1_to_uniform(u->layer_mean, E) : NAN;
  u->effective_layer_mean = n > 0 ? exp(entropy(u->layer_mean, E)) / E : NAN;
}

static void count_tokens(const kedge_trace *t, int span, kedge_use *u) {
  bool counted = false; /* the sample at hand */
  for (uint32_t i = 0; i < t->tokens; i++) {
    uint32_t routed = 0;
    if (i == 0 || t->samples[i] != t->samples[i - 1]) counted = false;
    if (!counts_in(t, i, span)) continue;
    for (uint32_t l = 0; l < t->layers; l++) routed += kedge_trace_is_routed(t, i, l);
    u->padding += t->layers - routed;
    u->tokens += routed > 0;
    u->samples += routed && !counted;
    counted = counted || routed;
  }
}

kedge_status kedge_use_measure(const kedge_trace *t, int span, kedge_use *u) {
  const size_t cells = (size_t)t->layers * t->experts;
  *u =
      (kedge_use){.layers = t->layers, .experts = t->experts, .topk = t->topk, .ties_known = t->ties != NULL};
  u->at = kedge_alloc(t->layers, sizeof *u->at);
  u->counts = kedge_alloc(cells, sizeof *u->counts);
  u->share = kedge_alloc(cells, sizeof *u->share);
  u->layer_mean = kedge_alloc(t->experts, sizeof *u->layer_mean);
  uint32_t *scratch = kedge_alloc(t->experts, sizeof *scratch);
  if (!u->at || !u->counts || !u->share || !u->layer_mean || !scratch) {
    kedge_free(scratch);
    kedge_use_destroy(u);
    return KEDGE_ERR_MEMORY;
  }
  for (uint32_t l = 0; l < t->layers; l++) measure_layer(t, l, span, scratch, u);
  kedge_free(scratch);
  take_mean(u);
  count_tokens(t, span, u);
  return KEDGE_OK;
}

void kedge_use_destroy(kedge_use *u) {
  kedge_free(u->at);
  kedge_free(u->counts);
  kedge_free(u->share);
  kedge_free(u->layer_mean);
  *u = (kedge_use){0};
}

/* ---- Two domains
 * -------------------------------------------------------------------------------------------------- */

typedef struct products {
  double ab, aa, bb;
} products;

static void multiply(const double *a, const double *b, uint32_t count, products *p) {
  for (uint32_t i = 0; i < count; i++) p->ab += a[i] * b[i], p->aa += a[i] * a[i], p->bb += b[i] * b[i];
}

static double cosine(const products *p) {
  return p->ab / sqrt(p->aa * p->bb);
}

static double l1_between(const double *a, const double *b, uint32_t count) {
  double sum = 0;
  for (uint32_t i = 0; i < count; i++) sum += fabs(a[i] - b[i]);
  return sum;
}

kedge_status kedge_use_compare(const kedge_use *a, const kedge_use *b, kedge_use_pair *pair) {
  kedge_use_pair m = {0};
  products all = {0}, mean = {0};
  const uint32_t E = a->experts;
  if (a->layers != b->layers || E != b->experts)
    return kedge_fail(KEDGE_ERR_MISMATCH, "use of experts: %u layers of %u against %u layers of %u",
                      a->layers, E, b->layers, b->experts);
  for (uint32_t l = 0; l < a->layers; l++) {
    const double *p = a->share + (size_t)l * E, *q = b->share + (size_t)l * E;
    double tvd, jsd;
    products own = {0};
    if (!a->at[l].tokens || !b->at[l].tokens) {
      m.skipped++;
      continue;
    }
    KEDGE_TRY(kedge_retention_tvd(p, q, E, &tvd));
    KEDGE_TRY(kedge_retention_jsd(p, q, E, &jsd));
    multiply(p, q, E, &own);
    multiply(p, q, E, &all);
    m.tvd += tvd, m.jsd_nats += jsd, m.l1 += l1_between(p, q, E), m.cosine += cosine(&own);
  }
  const double n = (double)(a->layers - m.skipped);
  m.tvd /= n, m.jsd_nats /= n, m.l1 /= n, m.cosine /= n;
  m.jsd_bits = m.jsd_nats / log(2);
  m.cosine_all = cosine(&all);
  multiply(a->layer_mean, b->layer_mean, E, &mean);
  m.cosine_layer_mean = cosine(&mean);
  m.l1_layer_mean = n > 0 ? l1_between(a->layer_mean, b->layer_mean, E) : NAN;
  *pair = m;
  return KEDGE_OK;
}
