/* SPDX-License-Identifier: Apache-2.0
 *
 * Tuned losses of router logits against a frozen table, over blocks of tokens; their meaning is
 * core/ops/anchor.c.
 */
#include "backends/cpu/kernels/blocks.h"
#include "backends/cpu/kernels/kernel.h"
#include "backends/cpu/kernels/vexp.h"

#include <float.h>

enum { TOKENS = 32 }; /* tokens a task */

/* The token's row of the table, NULL where it has none. */
static const float *row_of(const kedge_call *call, size_t t, size_t experts, uint32_t rows) {
  int32_t row = KEDGE_IN_I(2)[t];
  assert(row < (int32_t)rows);
  (void)rows;
  return row < 0 ? NULL : KEDGE_IN_F(1) + (size_t)row * experts;
}

static float row_max(const float *z, size_t n) {
  float max = z[0];
#pragma omp simd reduction(max : max)
  for (size_t e = 0; e < n; e++) max = z[e] > max ? z[e] : max;
  return max;
}

static float exp_sum(const float *z, float max, size_t n) {
  float sum = 0;
  KEDGE_SIMD_SUM(sum)
  for (size_t e = 0; e < n; e++) sum += kedge__vexp(z[e] - max);
  return sum;
}

/* y = exp(z - max); returns their sum. */
static float exp_row(const float *z, float max, float *y, size_t n) {
  float sum = 0;
  KEDGE_SIMD_SUM(sum)
  for (size_t e = 0; e < n; e++) {
    y[e] = kedge__vexp(z[e] - max);
    sum += y[e];
  }
  return sum;
}

/* Where pi is 0 the term is dropped, even if it is no number because z is -inf. A subnormal pi has the log of
 * the smallest normal: its own weight hides the difference. */
static float kl_row(const float *z, const float *pi, size_t n) {
  float max = row_max(z, n), shift = max + logf(exp_sum(z, max, n)), loss = 0;
  KEDGE_SIMD_SUM(loss)
  for (size_t e = 0; e < n; e++) {
    float term = pi[e] * (kedge__vlog(pi[e] > FLT_MIN ? pi[e] : FLT_MIN) - (z[e] - shift));
    loss += pi[e] > 0 ? term : 0;
  }
  return loss;
}

KEDGE_KERNEL(anchor_kl) {
  KEDGE_CALL_ARGS(anchor_kl);
  size_t n = a->experts;
  KEDGE_EACH (t, a->tokens, TOKENS) {
    const float *pi = row_of(call, t, n, a->rows);
    KEDGE_OUT_F(0)[t] = pi ? kl_row(KEDGE_IN_F(0) + t * n, pi, n) : 0;
  }
}

static void kl_grad_row(const float *z, const float *pi, float d, float *dz, size_t n) {
  float sum = exp_row(z, row_max(z, n), dz, n), total = 0;
  KEDGE_SIMD_SUM(total)
  for (size_t e = 0; e < n; e++) total += pi[e];
  KEDGE_SIMD
  for (size_t e = 0; e < n; e++) dz[e] = d * (dz[e] / sum * total - pi[e]);
}

KEDGE_KERNEL(anchor_kl_grad) {
  KEDGE_CALL_ARGS(anchor_kl_grad);
  size_t n = a->experts;
  KEDGE_EACH (t, a->tokens, TOKENS) {
    const float *pi = row_of(call, t, n, a->rows);
    float *dz = KEDGE_OUT_F(0) + t * n;
    if (pi)
      kl_grad_row(KEDGE_IN_F(0) + t * n, pi, KEDGE_IN_F(3)[t], dz, n);
    else
      memset(dz, 0, n * sizeof *dz);
  }
}

static inline float floored_log(float pi, float floor) {
  return kedge__vlog(pi > floor ? pi : floor);
}

/* mean(z) - mean(log max(pi, floor)). */
static float l2_shift(const float *z, const float *pi, float floor, size_t n) {
  float sum = 0;
  KEDGE_SIMD_SUM(sum)
  for (size_t e = 0; e < n; e++) sum += z[e] - floored_log(pi[e], floor);
  return sum / (float)n;
}

static float l2_row(const float *z, const float *pi, float floor, size_t n) {
  float shift = l2_shift(z, pi, floor, n), loss = 0;
  KEDGE_SIMD_SUM(loss)
  for (size_t e = 0; e < n; e++) {
    float delta = z[e] - floored_log(pi[e], floor) - shift;
    loss += delta * delta;
  }
  return loss;
}

KEDGE_KERNEL(anchor_l2) {
  KEDGE_CALL_ARGS(anchor_l2);
  size_t n = a->experts;
  KEDGE_EACH (t, a->tokens, TOKENS) {
    const float *pi = row_of(call, t, n, a->rows);
    KEDGE_OUT_F(0)[t] = pi ? l2_row(KEDGE_IN_F(0) + t * n, pi, a->floor, n) : 0;
  }
}

static void l2_grad_row(const float *z, const float *pi, float floor, float twice, float *dz, size_t n) {
  float shift = l2_shift(z, pi, floor, n);
  KEDGE_SIMD
  for (size_t e = 0; e < n; e++) dz[e] = twice * (z[e] - floored_log(pi[e], floor) - shift);
}

KEDGE_KERNEL(anchor_l2_grad) {
  KEDGE_CALL_ARGS(anchor_l2_grad);
  size_t n = a->experts;
  KEDGE_EACH (t, a->tokens, TOKENS) {
    const float *pi = row_of(call, t, n, a->rows);
    float *dz = KEDGE_OUT_F(0) + t * n;
    if (pi)
      l2_grad_row(KEDGE_IN_F(0) + t * n, pi, a->floor, 2 * KEDGE_IN_F(3)[t], dz, n);
    else
      memset(dz, 0, n * sizeof *dz);
  }
}

KEDGE_KERNEL(logsumexp) {
  KEDGE_CALL_ARGS(logsumexp);
  size_t n = a->cols;
  KEDGE_EACH (t, a->rows, TOKENS) {
    const float *x = KEDGE_IN_F(0) + t * n;
    float max = row_max(x, n);
    KEDGE_OUT_F(0)[t] = max == -INFINITY ? max : max + logf(exp_sum(x, max, n));
  }
}

KEDGE_KERNEL(logsumexp_grad) {
  KEDGE_CALL_ARGS(logsumexp_grad);
  size_t n = a->cols;
  KEDGE_EACH (t, a->rows, TOKENS) {
    const float *x = KEDGE_IN_F(0) + t * n;
    float *dx = KEDGE_OUT_F(0) + t * n, max = row_max(x, n);
    if (max == -INFINITY) {
      memset(dx, 0, n * sizeof *dx);
      continue;
    }
    float sum = exp_row(x, max, dx, n), d = KEDGE_IN_F(1)[t];
    KEDGE_SIMD
    for (size_t e = 0; e < n; e++) dx[e] = d * (dx[e] / sum);
  }
}
