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
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(a->tokens, TOKENS))
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
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(a->tokens, TOKENS))
  for (size_t b = 0; b < kedge__blocks(a->tokens, TOKENS); b++) FOR_TOKENS(b) scores_grad_row(call, t);
}

/* Floats a thread: the best values, then a value and a mark a group. */
static size_t topk_floats(const kedge_args_topk *a) {
  return kedge__pad(a->k) + 2 * kedge__pad(a->groups);
}

KEDGE_SCRATCH(topk) {
  KEDGE_CALL_ARGS(topk);
  return (uint64_t)call->threads * topk_floats(a) * sizeof(float);
}

/* Puts v and its index behind the values that are at least as large; `found` of at most k are there. */
static uint32_t insert(float v, int32_t id, uint32_t found, uint32_t k, float *best, int32_t *ids) {
  uint32_t at = found < k ? found++ : k - 1;
  for (; at > 0 && v > best[at - 1]; at--) {
    best[at] = best[at - 1];
    ids[at] = ids[at - 1];
  }
  best[at] = v;
  ids[at] = id;
  return found;
}

/* open[g] = 1 for the groups whose experts can be chosen, else 0. */
static void open_groups(const kedge_args_topk *a, const float *score, const float *bias, float *value,
                        float *open) {
  const uint32_t each = a->experts / a->groups;
  for (uint32_t g = 0; g < a->groups; g++) {
    float first = -INFINITY, second = -INFINITY;
    for (uint32_t e = g * each; e < (g + 1) * each; e++) {
      float v = score[e] + (bias ? bias[e] : 0);
      second = v > first ? first : v > second ? v : second;
      first = v > first ? v : first;
    }
    value[g] = a->group_kind == KEDGE_GROUP_TWO ? first + second : first;
  }
  for (uint32_t g = 0; g < a->groups; g++) {
    uint32_t before = 0;
    for (uint32_t o = 0; o < a->groups; o++) before += value[o] > value[g] || (value[o] == value[g] && o < g);
    open[g] = before < a->topk_groups ? 1 : 0;
  }
}

/* Keeps the K best so far in order; an equal value stays behind the one that came first. `open` NULL: every
 * group. False: the row is not finite or has too few candidates. */
static bool choose(const kedge_args_topk *a, const float *score, const float *bias, const float *open,
                   float *best, int32_t *ids) {
  const uint32_t each = a->experts / a->groups;
  uint32_t found = 0;
  for (uint32_t e = 0; e < a->experts; e++) {
    float v = score[e] + (bias ? bias[e] : 0);
    if (!(v < INFINITY)) return false;
    if (v == -INFINITY || (found == a->k && !(v > best[a->k - 1]))) continue;
    if (open && !(open[e / each] > 0)) continue;
    found = insert(v, (int32_t)e, found, a->k, best, ids);
  }
  return found == a->k;
}

static int32_t topk_row(const kedge_call *call, size_t t) {
  KEDGE_CALL_ARGS(topk);
  const float *score = KEDGE_IN_F(0) + t * a->experts, *bias = KEDGE_IN_F(1);
  int32_t *ids = KEDGE_OUT_I(0) + t * a->k;
  float *best = (float *)call->scratch + (size_t)omp_get_thread_num() * topk_floats(a);
  float *value = best + kedge__pad(a->k), *open = value + kedge__pad(a->groups);
  const bool inside = KEDGE_IN_I(2)[t] >= 0, grouped = a->topk_groups < a->groups;
  if (inside && grouped) open_groups(a, score, bias, value, open);
  if (inside && choose(a, score, bias, grouped ? open : NULL, best, ids)) return 0;
  for (uint32_t k = 0; k < a->k; k++) ids[k] = -1;
  return inside;
}

KEDGE_KERNEL(topk) {
  KEDGE_CALL_ARGS(topk);
  int32_t bad = 0;
#pragma omp parallel for num_threads((int)call->threads) schedule(dynamic) reduction(+ : bad) if (a->tokens > TOKENS)
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
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(a->tokens, TOKENS))
  for (size_t b = 0; b < kedge__blocks(a->tokens, TOKENS); b++) FOR_TOKENS(b) gates_row(call, t);
}

KEDGE_KERNEL(gates_grad) {
  KEDGE_CALL_ARGS(gates_grad);
  const kedge_args_gates forward = {a->tokens,    a->experts, a->k,     a->kind,
                                    a->normalise, 0,          a->alpha, a->epsilon};
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(a->tokens, TOKENS))
  for (size_t b = 0; b < kedge__blocks(a->tokens, TOKENS); b++) FOR_TOKENS(b)
  kedge__gate_gradient(&forward, KEDGE_IN_F(0) + t * a->experts, KEDGE_IN_I(1) + t * a->k,
                       KEDGE_IN_F(2) + t * a->k, KEDGE_OUT_F(0) + t * a->experts);
}
