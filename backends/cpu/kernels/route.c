/* SPDX-License-Identifier: Apache-2.0
 *
 * Router scores, top-k and gate weights over blocks of tokens; meaning in core/ops/route.c, the gates'
 * formulas in core/ops/gate_math.h. */
#include "backends/cpu/kernels/panel.h"
#include "backends/cpu/kernels/vexp.h"
#include "core/ops/gate_math.h"

enum { TOKENS = 32 }; /* tokens a task */

#define FOR_TOKENS(block)                                                                                    \
  for (size_t t = (block)*TOKENS; t < kedge__min(((block) + 1) * TOKENS, a->tokens); t++)

static void sigmoid_row(const float *z, float *s, size_t n) {
  for (size_t e = 0; e < n; e++) s[e] = kedge__vsigmoid(z[e]);
}

static void softmax_row(const float *z, float *s, size_t n) {
  float max = z[0], sum = 0;
#pragma omp simd reduction(max : max)
  for (size_t e = 0; e < n; e++) max = z[e] > max ? z[e] : max;
#pragma omp simd reduction(+ : sum)
  for (size_t e = 0; e < n; e++) {
    s[e] = kedge__vexp(z[e] - max);
    sum += s[e];
  }
  for (size_t e = 0; e < n; e++) s[e] /= sum;
}

KEDGE_KERNEL(scores) {
  KEDGE_CALL_ARGS(scores);
  size_t n = a->experts;
  KEDGE_PARALLEL_FOR
  for (size_t b = 0; b < kedge__blocks(a->tokens, TOKENS); b++) FOR_TOKENS(b)
  (a->kind == KEDGE_SCORE_SIGMOID ? sigmoid_row : softmax_row)(KEDGE_IN_F(0) + t * n, KEDGE_OUT_F(0) + t * n,
                                                               n);
}

static void scores_grad_row(const kedge_call *call, size_t t) {
  KEDGE_CALL_ARGS(scores_grad);
  size_t n = a->experts;
  const float *s = KEDGE_IN_F(0) + t * n, *ds = KEDGE_IN_F(1) + t * n;
  float *dz = KEDGE_OUT_F(0) + t * n, mean = 0;
  if (a->kind == KEDGE_SCORE_SIGMOID) {
    for (size_t e = 0; e < n; e++) dz[e] = ds[e] * s[e] * (1 - s[e]);
    return;
  }
#pragma omp simd reduction(+ : mean)
  for (size_t e = 0; e < n; e++) mean += s[e] * ds[e];
  for (size_t e = 0; e < n; e++) dz[e] = s[e] * (ds[e] - mean);
}

KEDGE_KERNEL(scores_grad) {
  KEDGE_CALL_ARGS(scores_grad);
  KEDGE_PARALLEL_FOR
  for (size_t b = 0; b < kedge__blocks(a->tokens, TOKENS); b++) FOR_TOKENS(b) scores_grad_row(call, t);
}

KEDGE_SCRATCH(topk) {
  KEDGE_CALL_ARGS(topk);
  return (uint64_t)call->threads * kedge__pad(a->k) * sizeof(float);
}

/* Keeps the K best so far in order; an equal value stays behind the one that came first. False: the row is
 * not finite. */
static bool choose(const float *score, const float *bias, uint32_t experts, uint32_t k, float *best,
                   int32_t *ids) {
  uint32_t found = 0;
  for (uint32_t e = 0; e < experts; e++) {
    float v = score[e] + (bias ? bias[e] : 0);
    if (!(v < INFINITY)) return false;
    if (v == -INFINITY || (found == k && !(v > best[k - 1]))) continue;
    uint32_t at = found < k ? found++ : k - 1;
    for (; at > 0 && v > best[at - 1]; at--) {
      best[at] = best[at - 1];
      ids[at] = ids[at - 1];
    }
    best[at] = v;
    ids[at] = (int32_t)e;
  }
  return found == k;
}

static int32_t topk_row(const kedge_call *call, size_t t) {
  KEDGE_CALL_ARGS(topk);
  int32_t *ids = KEDGE_OUT_I(0) + t * a->k;
  float *best = (float *)call->scratch + (size_t)omp_get_thread_num() * kedge__pad(a->k);
  bool inside = KEDGE_IN_I(2)[t] >= 0;
  if (inside && choose(KEDGE_IN_F(0) + t * a->experts, KEDGE_IN_F(1), a->experts, a->k, best, ids)) return 0;
  for (uint32_t k = 0; k < a->k; k++) ids[k] = -1;
  return inside;
}

KEDGE_KERNEL(topk) {
  KEDGE_CALL_ARGS(topk);
  int32_t bad = 0;
#pragma omp parallel for num_threads((int)call->threads) schedule(dynamic) reduction(+ : bad)
  for (size_t b = 0; b < kedge__blocks(a->tokens, TOKENS); b++) FOR_TOKENS(b) bad += topk_row(call, t);
  KEDGE_OUT_I(1)[0] = bad;
}

static void gates_row(const kedge_call *call, size_t t) {
  KEDGE_CALL_ARGS(gates);
  const float *z = KEDGE_IN_F(0) + t * a->experts;
  const int32_t *ids = KEDGE_IN_I(1) + t * a->k;
  kedge_gate_row row = kedge__gate_row(a, z, ids);
  for (uint32_t k = 0; k < a->k; k++) KEDGE_OUT_F(0)[t * a->k + k] = kedge__gate(a, &row, z, ids[k]);
}

KEDGE_KERNEL(gates) {
  KEDGE_CALL_ARGS(gates);
  KEDGE_PARALLEL_FOR
  for (size_t b = 0; b < kedge__blocks(a->tokens, TOKENS); b++) FOR_TOKENS(b) gates_row(call, t);
}

KEDGE_KERNEL(gates_grad) {
  KEDGE_CALL_ARGS(gates_grad);
  const kedge_args_gates forward = {a->tokens,    a->experts, a->k,     a->kind,
                                    a->normalise, 0,          a->alpha, a->epsilon};
  KEDGE_PARALLEL_FOR
  for (size_t b = 0; b < kedge__blocks(a->tokens, TOKENS); b++) FOR_TOKENS(b)
  kedge__gate_gradient(&forward, KEDGE_IN_F(0) + t * a->experts, KEDGE_IN_I(1) + t * a->k,
                       KEDGE_IN_F(2) + t * a->k, KEDGE_OUT_F(0) + t * a->experts);
}
