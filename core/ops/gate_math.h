/* SPDX-License-Identifier: Apache-2.0
 *
 * One token's gate weights and their gradient, for the reference (core/ops/route.c) and the tuned CPU
 * kernels. Written on kedge_real. With score s (softmax or sigmoid of the logits z), choice S and D = sum
 * over S of s + epsilon, the weight of j in S is alpha s_j / D if normalised, else alpha s_j; an id of -1 has
 * weight 0.
 *
 * Normalised softmax with epsilon 0 is the softmax over S alone, and is computed as that: the chosen keep
 * their proportions even where their full probabilities underflow.
 */
#ifndef KEDGE_OPS_GATE_MATH_H
#define KEDGE_OPS_GATE_MATH_H

#include "core/scalar.h"

#include <stdbool.h>
#include <stddef.h>

/* softmax(z)_e = exp(z_e - max) / sum. */
typedef struct kedge_softmax_stats {
  kedge_real max, sum;
} kedge_softmax_stats;

static inline kedge_softmax_stats kedge__softmax_stats(const kedge_real *z, size_t n) {
  kedge_softmax_stats s = {z[0], 0};
  for (size_t e = 1; e < n; e++) s.max = z[e] > s.max ? z[e] : s.max;
  for (size_t e = 0; e < n; e++) s.sum += KEDGE_EXP(z[e] - s.max);
  return s;
}

/* What the scores of a row are relative to (softmax), and D of the chosen (1 if not normalised). */
typedef struct kedge_gate_row {
  kedge_softmax_stats softmax;
  kedge_real divisor;
} kedge_gate_row;

static inline bool kedge__gate_over_chosen(const kedge_args_gates *a) {
  return a->kind == KEDGE_SCORE_SOFTMAX && a->normalise && a->epsilon == 0;
}

static inline kedge_real kedge__gate_score(const kedge_args_gates *a, const kedge_gate_row *row,
                                           kedge_real z) {
  return a->kind == KEDGE_SCORE_SIGMOID ? kedge_sigmoid(z)
                                        : KEDGE_EXP(z - row->softmax.max) / row->softmax.sum;
}

static inline kedge_gate_row kedge__gate_row(const kedge_args_gates *a, const kedge_real *z,
                                             const int32_t *ids) {
  kedge_gate_row row = {{0, 1}, 1};
  if (kedge__gate_over_chosen(a)) {
    kedge_real max = 0, sum = 0;
    bool first = true;
    for (uint32_t k = 0; k < a->k; k++) {
      if (ids[k] < 0) continue;
      if (first || z[ids[k]] > max) max = z[ids[k]];
      first = false;
    }
    for (uint32_t k = 0; k < a->k; k++)
      if (ids[k] >= 0) sum += KEDGE_EXP(z[ids[k]] - max);
    row.softmax = (kedge_softmax_stats){max, sum};
    return row;
  }
  if (a->kind == KEDGE_SCORE_SOFTMAX) row.softmax = kedge__softmax_stats(z, a->experts);
  if (!a->normalise) return row;
  row.divisor = 0;
  for (uint32_t k = 0; k < a->k; k++)
    if (ids[k] >= 0) row.divisor += kedge__gate_score(a, &row, z[ids[k]]);
  row.divisor += a->epsilon;
  if (row.divisor == 0) row.divisor = 1; /* every score underflowed: weights of 0, not 0/0 */
  return row;
}

static inline kedge_real kedge__gate(const kedge_args_gates *a, const kedge_gate_row *row,
                                     const kedge_real *z, int32_t id) {
  return id < 0 ? 0 : a->alpha * kedge__gate_score(a, row, z[id]) / row->divisor;
}

/* dz [E] of one row from the gradients dg [K] of its gates g. With M = sum over S of dg_j g_j, the gradient
 * of a score is u_j = (alpha dg_j - M) / D if normalised and alpha dg_j if not; then dz_j = s_j (1 - s_j) u_j
 * for a sigmoid, and s_j (u_j - sum over S of s u) for a softmax, over all experts or, where the softmax is
 * over the chosen, over those. */
static inline void kedge__gate_gradient(const kedge_args_gates *a, const kedge_real *z, const int32_t *ids,
                                        const kedge_real *dg, kedge_real *dz) {
  kedge_gate_row row = kedge__gate_row(a, z, ids);
  kedge_real total = 0, mean = 0; /* sum of dg_j g_j; sum of s_j u_j */
  for (uint32_t k = 0; k < a->k; k++) total += dg[k] * kedge__gate(a, &row, z, ids[k]);
  bool shared = a->normalise && !kedge__gate_over_chosen(a);
  for (uint32_t k = 0; k < a->k; k++) {
    if (ids[k] < 0) continue;
    kedge_real u = (a->alpha * dg[k] - (shared ? total : 0)) / row.divisor;
    mean += kedge__gate_score(a, &row, z[ids[k]]) * u;
  }
  bool everyone = a->kind == KEDGE_SCORE_SOFTMAX && !kedge__gate_over_chosen(a);
  for (size_t e = 0; e < a->experts; e++) dz[e] = everyone ? -kedge__gate_score(a, &row, z[e]) * mean : 0;
  for (uint32_t k = 0; k < a->k; k++) {
    if (ids[k] < 0) continue;
    kedge_real s = kedge__gate_score(a, &row, z[ids[k]]);
    kedge_real u = (a->alpha * dg[k] - (shared ? total : 0)) / row.divisor;
    if (a->kind == KEDGE_SCORE_SIGMOID)
      dz[ids[k]] += s * (1 - s) * u;
    else
      dz[ids[k]] += s * (everyone ? u : u - mean);
  }
}

#endif
