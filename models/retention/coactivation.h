/* SPDX-License-Identifier: Apache-2.0
 *
 * Co-activation of experts: how often two experts of a layer are chosen for the same token, in whole numbers,
 * and the graph of the heaviest pairs. coactivation.c; communities.h finds the communities of such a graph,
 * null_model.h draws counts as they would be by chance, community_report.h puts all of it together.
 *
 *   C_ij = #{t : i in S_t and j in S_t}, i < j;  sum C_ij = N K (K - 1) / 2
 *   m    = max(1, floor(rho E (E - 1) / 2 + 0.5)) heaviest pairs with C_ij > 0 are kept, ties by (i, j)
 *          ascending; fewer where fewer exist. All experts stay nodes.
 */
#ifndef KEDGE_MODELS_ROUTING_COACTIVATION_H
#define KEDGE_MODELS_ROUTING_COACTIVATION_H

#include "models/trace/trace.h"

/* Pairs stand row by row: (0,1), (0,2) .. (0,E-1), (1,2) .. : the upper triangle. Memory: 2 E (E - 1) bytes,
 * 8 kB for 64 experts. */
typedef struct kedge_coactivation {
  uint32_t experts, topk;
  uint64_t tokens;  /* N, padding left out */
  uint64_t total;   /* sum of all pairs */
  uint64_t *counts; /* [experts] tokens that chose the expert; times K - 1 it is the sum of its pairs */
  uint32_t *pairs;  /* [experts (experts - 1) / 2] */
} kedge_coactivation;

/* An undirected graph without loops: edge i joins ends[2 i] < ends[2 i + 1] with a weight above 0. Memory is
 * kept between uses: `capacity` edges. */
typedef struct kedge_weighted_graph {
  uint32_t nodes, edges, capacity;
  uint32_t *ends;  /* [edges, 2] */
  double *weights; /* [edges] */
} kedge_weighted_graph;

/* Number of pairs of `experts`, and the place of the pair (i, j), i < j. */
static inline uint64_t kedge_pair_count(uint32_t experts) {
  return (uint64_t)experts * (experts - 1) / 2;
}
static inline uint64_t kedge_pair_index(uint32_t experts, uint32_t i, uint32_t j) {
  return (uint64_t)i * (2 * (uint64_t)experts - i - 1) / 2 + (j - i - 1);
}

/* All zero for so many experts. ERR_UNSUPPORTED for more than 4096; ERR_ARGUMENT for 0. */
kedge_status kedge_coactivation_init(kedge_coactivation *c, uint32_t experts, uint32_t topk);
/* Counts the tokens of a span (KEDGE_SPAN_*, or KEDGE_RETENTION_ALL) that the layer, by its index in the
 * trace, has routed. `part` [tokens] may be NULL; else only tokens with part[t] == which count. The result is
 * the caller's to destroy, and the same for any order of the tokens. */
kedge_status kedge_coactivation_count(const kedge_trace *trace, uint32_t layer, int span, const uint8_t *part,
                                      uint8_t which, kedge_coactivation *c);
void kedge_coactivation_destroy(kedge_coactivation *c);

/* Number of pairs with a count above 0. */
uint64_t kedge_coactivation_nonzero(const kedge_coactivation *c);

/* The m of the rule above: how many edges at most are kept. rho in (0, 1]. */
uint64_t kedge_edge_limit(uint32_t experts, double rho);
/* Keeps the heaviest pairs [experts (experts - 1) / 2] as a graph, edges by (i, j) ascending. `graph` is
 * all zero or one of an earlier call. `least` (may be NULL) receives the smallest kept count, 0 without an
 * edge. ERR_ARGUMENT unless 0 < rho <= 1; ERR_MEMORY. */
kedge_status kedge_pairs_threshold(const uint32_t *pairs, uint32_t experts, double rho,
                                   kedge_weighted_graph *graph, uint32_t *least);
void kedge_weighted_graph_destroy(kedge_weighted_graph *graph);

#endif
