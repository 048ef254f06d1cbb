/* SPDX-License-Identifier: Apache-2.0
 *
 * The loss that balances experts: how often they were chosen times how likely they are, token by token. The
 * tuned CPU kernels are in backends/cpu/kernels/balance.c; counts come from choice.c.
 */
#if defined(KEDGE_PART_RULES)
#include "core/op.h"

kedge_value kedge_balance(kedge_graph *g, kedge_value z, kedge_value counts, kedge_value index,
                          uint32_t kind) {
  kedge_args_balance args = {.kind = kind};
  return kedge__node(g, KEDGE_OP_balance, (kedge_value[]){z, counts, index}, &args, KEDGE_F32, NULL);
}

static kedge_status want_inputs(const kedge_shape *in, kedge_u32 kind) {
  if (kind != KEDGE_SCORE_SOFTMAX && kind != KEDGE_SCORE_SIGMOID)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "expected a score of kind 0 (softmax) or 1 (sigmoid), got kind %u",
                      kind);
  return kedge__want_row_loss(in, "the counts");
}

KEDGE_SHAPE(balance) {
  kedge_args_balance *a = rule->args;
  KEDGE_TRY(want_inputs(rule->in, a->kind));
  a->tokens = rule->in[0].dims[0];
  a->experts = rule->in[0].dims[1];
  a->rows = rule->in[1].dims[0];
  kedge__set_shape(&rule->out[0], 1, a->tokens, 1, 1);
  return KEDGE_OK;
}

/* The counts come from a choice and are constants: a gradient asked for them is an error. */
KEDGE_GRADIENT(balance) {
  const kedge_args_balance *a = rule->args;
  kedge_args_balance_grad args = {.kind = a->kind};
  if (rule->need[1]) {
    kedge__graph_fail(rule->graph, KEDGE_ERR_UNSUPPORTED, "balance has no gradient for its counts");
    return;
  }
  kedge_value in[] = {rule->in[0], rule->in[1], rule->in[2], rule->dout[0]};
  rule->din[0] = kedge__node(rule->graph, KEDGE_OP_balance_grad, in, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(balance_grad) {
  kedge_args_balance_grad *a = rule->args;
  KEDGE_TRY(want_inputs(rule->in, a->kind));
  a->tokens = rule->in[0].dims[0];
  a->experts = rule->in[0].dims[1];
  a->rows = rule->in[1].dims[0];
  KEDGE_TRY(kedge__want_rank(&rule->in[3], 1, "gradient of the loss"));
  KEDGE_TRY(kedge__want_dim(&rule->in[3], 0, a->tokens, "gradient of the loss"));
  kedge__set_shape(&rule->out[0], 2, a->tokens, a->experts, 1);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(balance_grad)

#elif defined(KEDGE_PART_KERNELS)
#include "core/ops/gate_math.h"
#include "core/ops/kernel.h"

/* q of a row: weight(z_e) / sum over e. For a sigmoid, s_e e^-max = exp(min(z_e, 0) - max) / (1 +
 * exp(-|z_e|)) with max the largest min(z_e, 0), so that a row of logits of -200 keeps its proportions. */
typedef struct shares {
  kedge_real max, sum;
} shares;

static kedge_real weight(bool sigmoid, kedge_real z, kedge_real max) {
  if (!sigmoid) return KEDGE_EXP(z - max);
  return KEDGE_EXP((z < 0 ? z : 0) - max) / (1 + KEDGE_EXP(z < 0 ? z : -z));
}

static shares shares_of(bool sigmoid, const kedge_real *z, size_t n) {
  shares s = {z[0], 0};
  for (size_t e = 1; e < n; e++) s.max = z[e] > s.max ? z[e] : s.max;
  if (sigmoid && s.max > 0) s.max = 0;
  for (size_t e = 0; e < n; e++) s.sum += weight(sigmoid, z[e], s.max);
  return s;
}

/* The token's row of counts and their sum; NULL where it has none, or all are 0. */
static const kedge_real *counts_of(const kedge_call *call, size_t t, size_t experts, uint32_t rows,
                                   kedge_real *total) {
  int32_t row = KEDGE_IN_I(2)[t];
  assert(row < 0 || (uint32_t)row < rows);
  (void)rows;
  if (row < 0) return NULL;
  const kedge_real *counts = KEDGE_IN_F(1) + (size_t)row * experts;
  *total = 0;
  for (size_t e = 0; e < experts; e++) *total += counts[e];
  return *total > 0 ? counts : NULL;
}

/* The sum over e of f_e q_e. */
static kedge_real mean_count(bool sigmoid, const kedge_real *z, const kedge_real *counts, kedge_real total,
                             const shares *s, size_t n) {
  kedge_real mean = 0;
  for (size_t e = 0; e < n; e++) mean += counts[e] / total * (weight(sigmoid, z[e], s->max) / s->sum);
  return mean;
}

KEDGE_KERNEL(balance) {
  KEDGE_CALL_ARGS(balance);
  const bool sigmoid = a->kind == KEDGE_SCORE_SIGMOID;
  for (size_t t = 0; t < a->tokens; t++) {
    kedge_real total;
    const kedge_real *z = KEDGE_IN_F(0) + t * a->experts,
                     *counts = counts_of(call, t, a->experts, a->rows, &total);
    KEDGE_OUT_F(0)[t] = 0;
    if (!counts) continue;
    shares s = shares_of(sigmoid, z, a->experts);
    KEDGE_OUT_F(0)[t] = (kedge_real)a->experts * mean_count(sigmoid, z, counts, total, &s, a->experts);
  }
}

KEDGE_KERNEL(balance_grad) {
  KEDGE_CALL_ARGS(balance_grad);
  const bool sigmoid = a->kind == KEDGE_SCORE_SIGMOID;
  for (size_t t = 0; t < a->tokens; t++) {
    kedge_real total;
    const kedge_real *z = KEDGE_IN_F(0) + t * a->experts,
                     *counts = counts_of(call, t, a->experts, a->rows, &total);
    kedge_real *dz = KEDGE_OUT_F(0) + t * a->experts;
    for (size_t e = 0; e < a->experts; e++) dz[e] = 0;
    if (!counts) continue;
    shares s = shares_of(sigmoid, z, a->experts);
    kedge_real mean = mean_count(sigmoid, z, counts, total, &s, a->experts);
    for (size_t e = 0; e < a->experts; e++) {
      kedge_real q = weight(sigmoid, z[e], s.max) / s.sum;
      dz[e] = (kedge_real)a->experts * KEDGE_IN_F(3)[t] * q * (counts[e] / total - mean) *
              (sigmoid ? kedge_sigmoid(-z[e]) : 1);
    }
  }
}

#elif defined(KEDGE_PART_CASES)
#include "core/op.h"
#include "tests/support/cases.h"

#include <math.h>

enum { MANY = 150 };

/* A loss or, with `gradient`, the op of its gradient, of logits with this mean and deviation against `rows`
 * rows of counts; the last of several rows is empty. */
typedef struct shape {
  uint32_t kind, tokens, experts, rows;
  double mean, sd;
  bool gradient;
} shape;

static void add_loss(kedge_case *c, const shape *s, kedge_value z, kedge_value counts, kedge_value index) {
  if (!s->gradient) {
    kedge_case_output(c, kedge_balance(c->graph, z, counts, index, s->kind));
    return;
  }
  kedge_args_balance_grad args = {.kind = s->kind};
  kedge_value in[] = {z, counts, index, kedge_fill(c->graph, KEDGE_F32, 1, &s->tokens, 0.37)};
  kedge_case_output(c, kedge__node(c->graph, KEDGE_OP_balance_grad, in, &args, KEDGE_F32, NULL));
}

static void balance_of(kedge_case *c, const shape *s) {
  double numbers[1200];
  int32_t index[MANY];
  for (uint32_t r = 0; r < s->rows; r++)
    for (uint32_t e = 0; e < s->experts; e++)
      numbers[r * s->experts + e] = r && r + 1 == s->rows ? 0 : (double)((5 * e + 3 * r) % 11);
  for (uint32_t t = 0; t < s->tokens; t++) index[t] = t % 7 == 3 ? -1 : (int32_t)(t * 5 % s->rows);
  kedge_value z =
      kedge_case_scaled(c, "z", KEDGE_F32, 2, (uint32_t[]){s->tokens, s->experts}, s->mean, s->sd);
  kedge_value counts = kedge_case_constant(c, "counts", 2, (uint32_t[]){s->rows, s->experts}, numbers);
  add_loss(c, s, z, counts, kedge_case_i(c, "index", 1, &s->tokens, index));
}

#define CASE(name, ...)                                                                                      \
  static void name(kedge_case *c) {                                                                          \
    balance_of(c, &(shape){__VA_ARGS__});                                                                    \
  }                                                                                                          \
  static void name##_grad(kedge_case *c) {                                                                   \
    balance_of(c, &(shape){__VA_ARGS__, true});                                                              \
  }
CASE(softmax, KEDGE_SCORE_SOFTMAX, 6, 7, 1, 0, 1)
CASE(sigmoid, KEDGE_SCORE_SIGMOID, 5, 9, 1, 0, 1)
CASE(empty, KEDGE_SCORE_SIGMOID, 9, 6, 3, 0, 1)
CASE(softmax_many, KEDGE_SCORE_SOFTMAX, MANY, 67, 13, 0, 30)
CASE(sigmoid_many, KEDGE_SCORE_SIGMOID, MANY, 67, 13, 0, 30)
CASE(low, KEDGE_SCORE_SIGMOID, 6, 8, 1, -60, 1)
CASE(lowest, KEDGE_SCORE_SIGMOID, 6, 33, 1, -200, 2)
CASE(alone, KEDGE_SCORE_SIGMOID, 3, 1, 1, 0, 1)
CASE(unknown, 2, 3, 4, 1, 0, 1)

static void mixed_up(kedge_case *c, uint32_t experts, uint32_t tokens, bool gradient) {
  const shape s = {KEDGE_SCORE_SOFTMAX, 2, 3, 1, 0, 1, gradient};
  const double numbers[] = {1, 2, 3, 4};
  kedge_value z = kedge_case_f(c, "z", 2, (uint32_t[]){s.tokens, s.experts}),
              counts = kedge_case_constant(c, "counts", 2, (uint32_t[]){1, experts}, numbers);
  add_loss(c, &s, z, counts, kedge_case_i(c, "index", 1, &tokens, (int32_t[]){0, 0, 0}));
}
static void narrow(kedge_case *c) {
  mixed_up(c, 2, 2, false);
}
static void late(kedge_case *c) {
  mixed_up(c, 3, 3, false);
}
static void narrow_grad(kedge_case *c) {
  mixed_up(c, 4, 2, true);
}
KEDGE_CASES(balance) = {{"softmax", softmax, .differentiable = true},
                        {"sigmoid", sigmoid, .differentiable = true},
                        {"an empty row of counts", empty, .differentiable = true},
                        {"sigmoids of -60", low, .differentiable = true},
                        {"sigmoids of -200", lowest, .rejects = NULL},
                        {"many tokens, softmax", softmax_many, .rejects = NULL},
                        {"many tokens, sigmoid", sigmoid_many, .rejects = NULL},
                        {"one expert", alone, .rejects = NULL},
                        {"unknown kind", unknown, .rejects = "got kind 2"},
                        {"counts of another width", narrow, .rejects = "width of the logits"},
                        {"more indices than tokens", late, .rejects = "the index"},
                        {0}};
KEDGE_CASES(balance_grad) = {{"softmax", softmax_grad, .rejects = NULL},
                             {"sigmoid", sigmoid_grad, .rejects = NULL},
                             {"an empty row of counts", empty_grad, .rejects = NULL},
                             {"sigmoids of -60", low_grad, .rejects = NULL},
                             {"sigmoids of -200", lowest_grad, .rejects = NULL},
                             {"many tokens, softmax", softmax_many_grad, .rejects = NULL},
                             {"many tokens, sigmoid", sigmoid_many_grad, .rejects = NULL},
                             {"one expert", alone_grad, .rejects = NULL},
                             {"unknown kind", unknown_grad, .rejects = "got kind 2"},
                             {"counts of another width", narrow_grad, .rejects = "width of the logits"},
                             {0}};
#endif
