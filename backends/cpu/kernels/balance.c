/* SPDX-License-Identifier: Apache-2.0
 *
 * The tuned loss that balances experts, over blocks of tokens; its meaning is core/ops/balance.c, and so is
 * the form of a sigmoid's share that does not underflow.
 */
#include "backends/cpu/kernels/blocks.h"
#include "backends/cpu/kernels/kernel.h"
#include "backends/cpu/kernels/vexp.h"

enum { TOKENS = 32 }; /* tokens a task */

/* A token's row: its logits, its counts with their sum, and the largest logit (at most 0 for a sigmoid). */
typedef struct row {
  const float *z, *counts;
  float total, max;
} row;

/* False: the token has no counts, or all are 0. */
static bool row_init(row *r, const kedge_call *call, size_t t, uint32_t kind, uint32_t rows, size_t n) {
  int32_t at = KEDGE_IN_I(2)[t];
  assert(at < (int32_t)rows);
  (void)rows;
  if (at < 0) return false;
  const float *z = KEDGE_IN_F(0) + t * n, *counts = KEDGE_IN_F(1) + (size_t)at * n;
  float total = 0, max = z[0];
  KEDGE_SIMD_SUM(total)
  for (size_t e = 0; e < n; e++) total += counts[e];
#pragma omp simd reduction(max : max)
  for (size_t e = 0; e < n; e++) max = z[e] > max ? z[e] : max;
  *r = (row){z, counts, total, kind == KEDGE_SCORE_SIGMOID && max > 0 ? 0 : max};
  return total > 0;
}

static inline float softmax_weight(float z, float max) {
  return kedge__vexp(z - max);
}

static inline float sigmoid_weight(float z, float max) {
  return kedge__vexp((z < 0 ? z : 0) - max) / (1 + kedge__vexp(z < 0 ? z : -z));
}

/* The sum of f q. */
static float softmax_mean(const row *r, size_t n) {
  float sum = 0, counted = 0;
#pragma omp simd reduction(+ : sum, counted)
  for (size_t e = 0; e < n; e++) {
    float w = softmax_weight(r->z[e], r->max);
    sum += w;
    counted += r->counts[e] / r->total * w;
  }
  return counted / sum;
}

static float sigmoid_mean(const row *r, size_t n) {
  float sum = 0, counted = 0;
#pragma omp simd reduction(+ : sum, counted)
  for (size_t e = 0; e < n; e++) {
    float w = sigmoid_weight(r->z[e], r->max);
    sum += w;
    counted += r->counts[e] / r->total * w;
  }
  return counted / sum;
}

KEDGE_KERNEL(balance) {
  KEDGE_CALL_ARGS(balance);
  size_t n = a->experts;
  KEDGE_EACH (t, a->tokens, TOKENS) {
    row r;
    float loss = 0;
    if (row_init(&r, call, t, a->kind, a->rows, n))
      loss = (float)n * (a->kind == KEDGE_SCORE_SIGMOID ? sigmoid_mean : softmax_mean)(&r, n);
    KEDGE_OUT_F(0)[t] = loss;
  }
}

/* The weights go into dz first. */
static void softmax_grad(const row *r, float d, float *dz, size_t n) {
  float sum = 0, counted = 0;
#pragma omp simd reduction(+ : sum, counted)
  for (size_t e = 0; e < n; e++) {
    dz[e] = softmax_weight(r->z[e], r->max);
    sum += dz[e];
    counted += r->counts[e] / r->total * dz[e];
  }
  float mean = counted / sum;
  KEDGE_SIMD
  for (size_t e = 0; e < n; e++) dz[e] = d * (dz[e] / sum) * (r->counts[e] / r->total - mean);
}

static void sigmoid_grad(const row *r, float d, float *dz, size_t n) {
  float sum = 0, counted = 0;
#pragma omp simd reduction(+ : sum, counted)
  for (size_t e = 0; e < n; e++) {
    dz[e] = sigmoid_weight(r->z[e], r->max);
    sum += dz[e];
    counted += r->counts[e] / r->total * dz[e];
  }
  float mean = counted / sum;
  KEDGE_SIMD
  for (size_t e = 0; e < n; e++)
    dz[e] = d * (dz[e] / sum) * (r->counts[e] / r->total - mean) * kedge__vsigmoid(-r->z[e]);
}

KEDGE_KERNEL(balance_grad) {
  KEDGE_CALL_ARGS(balance_grad);
  size_t n = a->experts;
  KEDGE_EACH (t, a->tokens, TOKENS) {
    row r;
    float *dz = KEDGE_OUT_F(0) + t * n, d = (float)n * KEDGE_IN_F(3)[t];
    if (!row_init(&r, call, t, a->kind, a->rows, n))
      memset(dz, 0, n * sizeof *dz);
    else
      (a->kind == KEDGE_SCORE_SIGMOID ? sigmoid_grad : softmax_grad)(&r, d, dz, n);
  }
}
