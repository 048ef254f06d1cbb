/* SPDX-License-Identifier: Apache-2.0
 * Co-activation counts of a routing trace, and the graph of their heaviest pairs (coactivation.h). */
#include "models/retention/coactivation.h"

#include "models/retention/retention.h"

#include <math.h>
#include <string.h>

enum { EXPERTS_LIMIT = 4096 };

/* ---- Counting
 * ----------------------------------------------------------------------------------------------------- */

kedge_status kedge_coactivation_init(kedge_coactivation *c, uint32_t experts, uint32_t topk) {
  *c = (kedge_coactivation){.experts = experts, .topk = topk};
  if (!experts) return kedge_fail(KEDGE_ERR_ARGUMENT, "co-activation: expected 1 expert or more, got 0");
  if (experts > EXPERTS_LIMIT)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "co-activation: expected at most %d experts, got %u",
                      EXPERTS_LIMIT, experts);
  c->counts = kedge_alloc(experts, sizeof *c->counts);
  /* One place more, so that a single expert, who has no pair, is no allocation of nothing. */
  c->pairs = kedge_alloc((size_t)kedge_pair_count(experts) + 1, sizeof *c->pairs);
  if (!c->counts || !c->pairs) {
    kedge_coactivation_destroy(c);
    return KEDGE_ERR_MEMORY;
  }
  return KEDGE_OK;
}

static void count_row(kedge_coactivation *c, const int32_t *ids) {
  for (uint32_t a = 0; a < c->topk; a++) {
    const uint32_t i = (uint32_t)ids[a];
    c->counts[i]++;
    for (uint32_t b = a + 1; b < c->topk; b++) {
      const uint32_t j = (uint32_t)ids[b];
      c->pairs[i < j ? kedge_pair_index(c->experts, i, j) : kedge_pair_index(c->experts, j, i)]++;
    }
  }
}

kedge_status kedge_coactivation_count(const kedge_trace *t, uint32_t layer, int span, const uint8_t *part,
                                      uint8_t which, kedge_coactivation *c) {
  KEDGE_TRY(kedge_coactivation_init(c, t->experts, t->topk));
  for (uint32_t i = 0; i < t->tokens; i++) {
    if ((span != KEDGE_RETENTION_ALL && t->spans[i] != span) || (part && part[i] != which)) continue;
    if (!kedge_trace_is_routed(t, i, layer)) continue;
    c->tokens++;
    count_row(c, t->ids + ((size_t)i * t->layers + layer) * t->topk);
  }
  c->total = c->tokens * ((uint64_t)t->topk * (t->topk - 1) / 2);
  return KEDGE_OK;
}

void kedge_coactivation_destroy(kedge_coactivation *c) {
  kedge_free(c->counts);
  kedge_free(c->pairs);
  *c = (kedge_coactivation){0};
}

uint64_t kedge_coactivation_nonzero(const kedge_coactivation *c) {
  uint64_t nonzero = 0;
  for (uint64_t p = 0; p < kedge_pair_count(c->experts); p++) nonzero += c->pairs[p] > 0;
  return nonzero;
}

/* ---- The heaviest pairs
 * ------------------------------------------------------------------------------------------- */

uint64_t kedge_edge_limit(uint32_t experts, double rho) {
  const uint64_t pairs = kedge_pair_count(experts);
  const uint64_t limit = (uint64_t)floor(rho * (double)pairs + 0.5);
  return limit < 1 ? 1 : limit > pairs ? pairs : limit;
}

/* The n-th largest of values [count], 1 <= n <= count, whose order is lost. */
static uint32_t nth_largest(uint32_t *values, size_t count, size_t n) {
  size_t low = 0, high = count - 1;
  const size_t wanted = n - 1;
  while (low < high) {
    const uint32_t pivot = values[low + (high - low) / 2];
    size_t i = low, j = high;
    for (;;) {
      while (values[i] > pivot) i++;
      while (values[j] < pivot) j--;
      if (i >= j) break;
      const uint32_t kept = values[i];
      values[i++] = values[j];
      values[j--] = kept;
    }
    /* values[low..j] >= pivot >= values[j + 1..high], and j < high: the pivot stood before the end. */
    if (wanted <= j)
      high = j;
    else
      low = j + 1;
  }
  return values[low];
}

static kedge_status reserve(kedge_weighted_graph *g, uint64_t edges) {
  if (edges <= g->capacity) return KEDGE_OK;
  kedge_weighted_graph_destroy(g);
  g->ends = kedge_alloc((size_t)edges, 2 * sizeof *g->ends);
  g->weights = kedge_alloc((size_t)edges, sizeof *g->weights);
  if (!g->ends || !g->weights) {
    kedge_weighted_graph_destroy(g);
    return KEDGE_ERR_MEMORY;
  }
  g->capacity = (uint32_t)edges;
  return KEDGE_OK;
}

/* The edges by (i, j): all above the least count, and the first `ties` pairs of that count. */
static void keep(const uint32_t *pairs, uint32_t experts, uint32_t least, uint64_t ties,
                 kedge_weighted_graph *g) {
  g->nodes = experts, g->edges = 0;
  for (uint32_t i = 0; i < experts; i++)
    for (uint32_t j = i + 1; j < experts; j++) {
      const uint32_t count = *pairs++;
      if (count < least || !count) continue;
      if (count == least) {
        if (!ties) continue;
        ties--;
      }
      g->ends[2 * (size_t)g->edges] = i, g->ends[2 * (size_t)g->edges + 1] = j;
      g->weights[g->edges++] = (double)count;
    }
}

kedge_status kedge_pairs_threshold(const uint32_t *pairs, uint32_t experts, double rho,
                                   kedge_weighted_graph *g, uint32_t *least) {
  if (!(rho > 0 && rho <= 1))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "rho: expected above 0 and at most 1, got %g", rho);
  const uint64_t all = kedge_pair_count(experts);
  uint32_t *positive = kedge_alloc((size_t)all + 1, sizeof *positive), smallest = 0;
  if (!positive) return KEDGE_ERR_MEMORY;
  uint64_t count = 0, limit = kedge_edge_limit(experts, rho), above = 0;
  for (uint64_t p = 0; p < all; p++)
    if (pairs[p]) positive[count++] = pairs[p];
  if (limit > count) limit = count;
  kedge_status status = reserve(g, limit);
  g->nodes = experts, g->edges = 0;
  if (status == KEDGE_OK && limit) {
    smallest = nth_largest(positive, (size_t)count, (size_t)limit);
    for (uint64_t p = 0; p < all; p++) above += pairs[p] > smallest;
    keep(pairs, experts, smallest, limit - above, g);
  }
  if (least) *least = smallest;
  kedge_free(positive);
  return status;
}

void kedge_weighted_graph_destroy(kedge_weighted_graph *g) {
  kedge_free(g->ends);
  kedge_free(g->weights);
  *g = (kedge_weighted_graph){0};
}
