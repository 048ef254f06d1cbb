/* SPDX-License-Identifier: Apache-2.0
 *
 * Losses that hold router logits near a frozen router's, token by token, and the logsumexp of logits. The
 * tuned CPU kernels are in backends/cpu/kernels/anchor.c; the loss that balances experts is in balance.c.
 */
#if defined(KEDGE_PART_RULES)
#include "core/op.h"

/* The table is frozen: a gradient asked for it is an error, not a silent zero. */
static bool table_is_constant(kedge_gradient_rule *rule, const char *op) {
  if (!rule->need[1]) return true;
  kedge__graph_fail(rule->graph, KEDGE_ERR_UNSUPPORTED, "%s has no gradient for its table", op);
  return false;
}

/* The shape of a row loss, or of its gradient where the gradient of the loss is input 3. */
static kedge_status row_loss(kedge_shape_rule *rule, bool gradient, kedge_u32 *tokens, kedge_u32 *experts,
                             kedge_u32 *rows) {
  KEDGE_TRY(kedge__want_row_loss(rule->in, "the table"));
  *tokens = rule->in[0].dims[0];
  *experts = rule->in[0].dims[1];
  *rows = rule->in[1].dims[0];
  kedge__set_shape(&rule->out[0], gradient ? 2 : 1, *tokens, gradient ? *experts : 1, 1);
  if (!gradient) return KEDGE_OK;
  KEDGE_TRY(kedge__want_rank(&rule->in[3], 1, "gradient of the loss"));
  return kedge__want_dim(&rule->in[3], 0, *tokens, "gradient of the loss");
}

kedge_value kedge_anchor_kl(kedge_graph *g, kedge_value z, kedge_value table, kedge_value index) {
  kedge_args_anchor_kl args = {0};
  return kedge__node(g, KEDGE_OP_anchor_kl, (kedge_value[]){z, table, index}, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(anchor_kl) {
  kedge_args_anchor_kl *a = rule->args;
  return row_loss(rule, false, &a->tokens, &a->experts, &a->rows);
}

KEDGE_GRADIENT(anchor_kl) {
  if (!table_is_constant(rule, "anchor_kl")) return;
  kedge_args_anchor_kl_grad args = {0};
  kedge_value in[] = {rule->in[0], rule->in[1], rule->in[2], rule->dout[0]};
  rule->din[0] = kedge__node(rule->graph, KEDGE_OP_anchor_kl_grad, in, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(anchor_kl_grad) {
  kedge_args_anchor_kl_grad *a = rule->args;
  return row_loss(rule, true, &a->tokens, &a->experts, &a->rows);
}
KEDGE_NO_GRADIENT(anchor_kl_grad)

kedge_value kedge_anchor_l2(kedge_graph *g, kedge_value z, kedge_value table, kedge_value index,
                            double floor) {
  kedge_args_anchor_l2 args = {.floor = floor};
  return kedge__node(g, KEDGE_OP_anchor_l2, (kedge_value[]){z, table, index}, &args, KEDGE_F32, NULL);
}

/* A floor is kept as a float by float kernels, where it must not become 0. */
static kedge_status want_floor(double floor) {
  if (floor >= 1e-30 && floor <= 1) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_ARGUMENT, "expected a floor from 1e-30 to 1, got %g", floor);
}

KEDGE_SHAPE(anchor_l2) {
  kedge_args_anchor_l2 *a = rule->args;
  KEDGE_TRY(want_floor(a->floor));
  return row_loss(rule, false, &a->tokens, &a->experts, &a->rows);
}

KEDGE_GRADIENT(anchor_l2) {
  const kedge_args_anchor_l2 *a = rule->args;
  if (!table_is_constant(rule, "anchor_l2")) return;
  kedge_args_anchor_l2_grad args = {.floor = a->floor};
  kedge_value in[] = {rule->in[0], rule->in[1], rule->in[2], rule->dout[0]};
  rule->din[0] = kedge__node(rule->graph, KEDGE_OP_anchor_l2_grad, in, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(anchor_l2_grad) {
  kedge_args_anchor_l2_grad *a = rule->args;
  KEDGE_TRY(want_floor(a->floor));
  return row_loss(rule, true, &a->tokens, &a->experts, &a->rows);
}
KEDGE_NO_GRADIENT(anchor_l2_grad)

kedge_value kedge_logsumexp(kedge_graph *g, kedge_value x) {
  kedge_args_logsumexp args = {0};
  return kedge__node(g, KEDGE_OP_logsumexp, &x, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(logsumexp) {
  kedge_args_logsumexp *a = rule->args;
  KEDGE_TRY(kedge__want_rank(&rule->in[0], 2, "x"));
  a->rows = rule->in[0].dims[0];
  a->cols = rule->in[0].dims[1];
  kedge__set_shape(&rule->out[0], 1, a->rows, 1, 1);
  return KEDGE_OK;
}

KEDGE_GRADIENT(logsumexp) {
  kedge_args_logsumexp_grad args = {0};
  rule->din[0] = kedge__node(rule->graph, KEDGE_OP_logsumexp_grad,
                             (kedge_value[]){rule->in[0], rule->dout[0]}, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(logsumexp_grad) {
  kedge_args_logsumexp_grad *a = rule->args;
  KEDGE_TRY(kedge__want_rank(&rule->in[0], 2, "x"));
  KEDGE_TRY(kedge__want_rank(&rule->in[1], 1, "gradient of the logsumexp"));
  a->rows = rule->in[0].dims[0];
  a->cols = rule->in[0].dims[1];
  KEDGE_TRY(kedge__want_dim(&rule->in[1], 0, a->rows, "gradient of the logsumexp"));
  kedge__set_shape(&rule->out[0], 2, a->rows, a->cols, 1);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(logsumexp_grad)

#elif defined(KEDGE_PART_KERNELS)
#include "core/ops/gate_math.h"
#include "core/ops/kernel.h"

/* The token's row of the table, NULL where it has none. */
static const kedge_real *row_of(const kedge_call *call, size_t t, size_t experts, uint32_t rows) {
  int32_t row = KEDGE_IN_I(2)[t];
  assert(row < 0 || (uint32_t)row < rows);
  (void)rows;
  return row < 0 ? NULL : KEDGE_IN_F(1) + (size_t)row * experts;
}

/* An expert whose pi is 0 is left out, so that logits of -inf may stand there. */
static kedge_real kl_row(const kedge_real *z, const kedge_real *pi, size_t n) {
  kedge_softmax_stats stats = kedge__softmax_stats(z, n);
  kedge_real log_sum = KEDGE_LOG(stats.sum), loss = 0;
  for (size_t e = 0; e < n; e++)
    if (pi[e] > 0) loss += pi[e] * (KEDGE_LOG(pi[e]) - (z[e] - stats.max - log_sum));
  return loss;
}

KEDGE_KERNEL(anchor_kl) {
  KEDGE_CALL_ARGS(anchor_kl);
  for (size_t t = 0; t < a->tokens; t++) {
    const kedge_real *pi = row_of(call, t, a->experts, a->rows);
    KEDGE_OUT_F(0)[t] = pi ? kl_row(KEDGE_IN_F(0) + t * a->experts, pi, a->experts) : 0;
  }
}

KEDGE_KERNEL(anchor_kl_grad) {
  KEDGE_CALL_ARGS(anchor_kl_grad);
  for (size_t t = 0; t < a->tokens; t++) {
    const kedge_real *z = KEDGE_IN_F(0) + t * a->experts, *pi = row_of(call, t, a->experts, a->rows);
    kedge_real *dz = KEDGE_OUT_F(0) + t * a->experts, total = 0;
    if (!pi) {
      for (size_t e = 0; e < a->experts; e++) dz[e] = 0;
      continue;
    }
    kedge_softmax_stats stats = kedge__softmax_stats(z, a->experts);
    for (size_t e = 0; e < a->experts; e++) total += pi[e];
    for (size_t e = 0; e < a->experts; e++)
      dz[e] = KEDGE_IN_F(3)[t] * (KEDGE_EXP(z[e] - stats.max) / stats.sum * total - pi[e]);
  }
}

static kedge_real floored_log(kedge_real pi, kedge_real floor) {
  return KEDGE_LOG(pi > floor ? pi : floor);
}

/* mean(z) - mean(log max(pi, floor)). */
static kedge_real l2_shift(const kedge_real *z, const kedge_real *pi, size_t n, kedge_real floor) {
  kedge_real sum = 0;
  for (size_t e = 0; e < n; e++) sum += z[e] - floored_log(pi[e], floor);
  return sum / (kedge_real)n;
}

KEDGE_KERNEL(anchor_l2) {
  KEDGE_CALL_ARGS(anchor_l2);
  for (size_t t = 0; t < a->tokens; t++) {
    const kedge_real *z = KEDGE_IN_F(0) + t * a->experts, *pi = row_of(call, t, a->experts, a->rows);
    kedge_real loss = 0, shift = pi ? l2_shift(z, pi, a->experts, a->floor) : 0;
    for (size_t e = 0; pi && e < a->experts; e++) {
      kedge_real delta = z[e] - floored_log(pi[e], a->floor) - shift;
      loss += delta * delta;
    }
    KEDGE_OUT_F(0)[t] = loss;
  }
}

KEDGE_KERNEL(anchor_l2_grad) {
  KEDGE_CALL_ARGS(anchor_l2_grad);
  for (size_t t = 0; t < a->tokens; t++) {
    const kedge_real *z = KEDGE_IN_F(0) + t * a->experts, *pi = row_of(call, t, a->experts, a->rows);
    kedge_real *dz = KEDGE_OUT_F(0) + t * a->experts, twice = 2 * KEDGE_IN_F(3)[t];
    kedge_real shift = pi ? l2_shift(z, pi, a->experts, a->floor) : 0;
    for (size_t e = 0; e < a->experts; e++)
      dz[e] = pi ? twice * (z[e] - floored_log(pi[e], a->floor) - shift) : 0;
  }
}

/* A row of nothing but -inf has the logsumexp -inf, and no softmax. */
KEDGE_KERNEL(logsumexp) {
  KEDGE_CALL_ARGS(logsumexp);
  for (size_t r = 0; r < a->rows; r++) {
    kedge_softmax_stats stats = kedge__softmax_stats(KEDGE_IN_F(0) + r * a->cols, a->cols);
    KEDGE_OUT_F(0)[r] = stats.max == -INFINITY ? stats.max : stats.max + KEDGE_LOG(stats.sum);
  }
}

KEDGE_KERNEL(logsumexp_grad) {
  KEDGE_CALL_ARGS(logsumexp_grad);
  for (size_t r = 0; r < a->rows; r++) {
    const kedge_real *x = KEDGE_IN_F(0) + r * a->cols;
    kedge_softmax_stats stats = kedge__softmax_stats(x, a->cols);
    for (size_t e = 0; e < a->cols; e++) KEDGE_OUT_F(0)
    [r * a->cols + e] =
        stats.max == -INFINITY ? 0 : KEDGE_IN_F(1)[r] * (KEDGE_EXP(x[e] - stats.max) / stats.sum);
  }
}

#elif defined(KEDGE_PART_CASES)
#include "core/op.h"
#include "tests/support/cases.h"

#include <math.h>

enum { MANY = 150 };

#define F(name, ...) kedge_case_f(c, name, sizeof((uint32_t[]){__VA_ARGS__}) / 4, (uint32_t[]){__VA_ARGS__})
#define IDS(name, ...)                                                                                       \
  kedge_case_i(c, name, 1, (uint32_t[]){sizeof((int32_t[]){__VA_ARGS__}) / 4}, (int32_t[]){__VA_ARGS__})

/* Rows of probabilities, every fifth of them 0; the last row has the sum 0.8. */
static kedge_value table_of(kedge_case *c, uint32_t rank, const uint32_t *dims) {
  double numbers[1200];
  uint32_t cols = dims[rank - 1], rows = dims[0] * (rank == 3 ? dims[1] : 1);
  for (uint32_t r = 0; r < rows; r++) {
    double sum = 0;
    for (uint32_t e = 0; e < cols; e++) sum += numbers[r * cols + e] = (double)((7 * e + 3 * r + 1) % 5);
    for (uint32_t e = 0; e < cols; e++)
      numbers[r * cols + e] = sum > 0 ? numbers[r * cols + e] / sum * (r + 1 == rows && r ? 0.8 : 1) : 1;
  }
  return kedge_case_constant(c, "table", rank, dims, numbers);
}

/* Rows 0 to `rows`, in turn, and for every eleventh token none. */
static kedge_value many_rows(kedge_case *c, uint32_t rows) {
  int32_t index[MANY];
  for (uint32_t t = 0; t < MANY; t++) index[t] = t % 11 == 4 ? -1 : (int32_t)(t * 5 % rows);
  return kedge_case_i(c, "index", 1, (uint32_t[]){MANY}, index);
}

typedef kedge_value builder(kedge_graph *g, kedge_value z, kedge_value table, kedge_value index);
static kedge_value l2(kedge_graph *g, kedge_value z, kedge_value table, kedge_value index) {
  return kedge_anchor_l2(g, z, table, index, 1e-4);
}

static void some(kedge_case *c, builder *build) {
  kedge_value table = table_of(c, 2, (uint32_t[]){3, 7});
  kedge_case_output(c, build(c->graph, F("z", 5, 7), table, IDS("index", 2, -1, 0, 1, 0)));
}
static void in_part(kedge_case *c, builder *build) {
  kedge_value table = table_of(c, 3, (uint32_t[]){3, 2, 9}), index = IDS("index", 1, 0, -1, 1);
  kedge_case_output(c, build(c->graph, F("z", 4, 9), kedge_part(c->graph, table, 1), index));
}
static void nowhere(kedge_case *c, builder *build) {
  kedge_value table = table_of(c, 2, (uint32_t[]){1, 6});
  kedge_case_output(c, build(c->graph, F("z", 3, 6), table, IDS("index", -1, -1, -1)));
}
static void alone(kedge_case *c, builder *build) {
  kedge_value table = table_of(c, 2, (uint32_t[]){1, 1});
  kedge_case_output(c, build(c->graph, F("z", 2, 1), table, IDS("index", 0, -1)));
}
static void many(kedge_case *c, builder *build) {
  kedge_value z = kedge_case_scaled(c, "z", KEDGE_F32, 2, (uint32_t[]){MANY, 67}, 0, 3);
  kedge_case_output(c, build(c->graph, z, table_of(c, 2, (uint32_t[]){13, 67}), many_rows(c, 13)));
}
static void far(kedge_case *c, builder *build) {
  kedge_value z = kedge_case_scaled(c, "z", KEDGE_F32, 2, (uint32_t[]){5, 33}, -60, 90);
  kedge_case_output(c, build(c->graph, z, table_of(c, 2, (uint32_t[]){2, 33}), IDS("index", 0, 1, 1, -1, 0)));
}
static void wide(kedge_case *c, builder *build) {
  kedge_value table = table_of(c, 2, (uint32_t[]){2, 6});
  kedge_case_output(c, build(c->graph, F("z", 2, 7), table, IDS("index", 0, 1)));
}
static void late(kedge_case *c, builder *build) {
  kedge_value table = table_of(c, 2, (uint32_t[]){2, 7});
  kedge_case_output(c, build(c->graph, F("z", 2, 7), table, IDS("index", 0, 1, 1)));
}
static void flat(kedge_case *c, builder *build) {
  kedge_value table = table_of(c, 2, (uint32_t[]){2, 7});
  kedge_case_output(c, build(c->graph, F("z", 7), table, IDS("index", 0)));
}

#define EACH(op, build)                                                                                      \
  static void op##_some(kedge_case *c) {                                                                     \
    some(c, build);                                                                                          \
  }                                                                                                          \
  static void op##_in_part(kedge_case *c) {                                                                  \
    in_part(c, build);                                                                                       \
  }                                                                                                          \
  static void op##_nowhere(kedge_case *c) {                                                                  \
    nowhere(c, build);                                                                                       \
  }                                                                                                          \
  static void op##_alone(kedge_case *c) {                                                                    \
    alone(c, build);                                                                                         \
  }                                                                                                          \
  static void op##_many(kedge_case *c) {                                                                     \
    many(c, build);                                                                                          \
  }                                                                                                          \
  static void op##_far(kedge_case *c) {                                                                      \
    far(c, build);                                                                                           \
  }                                                                                                          \
  static void op##_wide(kedge_case *c) {                                                                     \
    wide(c, build);                                                                                          \
  }                                                                                                          \
  static void op##_late(kedge_case *c) {                                                                     \
    late(c, build);                                                                                          \
  }                                                                                                          \
  static void op##_flat(kedge_case *c) {                                                                     \
    flat(c, build);                                                                                          \
  }
#define GRADIENT(op, type, ...)                                                                              \
  static kedge_value op##_grad(kedge_graph *g, kedge_value z, kedge_value table, kedge_value index) {        \
    type args = {__VA_ARGS__};                                                                               \
    uint32_t tokens = kedge_value_dim(g, z, 0);                                                              \
    kedge_value d = kedge_fill(g, KEDGE_F32, 1, &tokens, 0.37);                                              \
    return kedge__node(g, KEDGE_OP_##op##_grad, (kedge_value[]){z, table, index, d}, &args, KEDGE_F32,       \
                       NULL);                                                                                \
  }
GRADIENT(anchor_kl, kedge_args_anchor_kl_grad, 0)
GRADIENT(anchor_l2, kedge_args_anchor_l2_grad, .floor = 1e-4)
EACH(kl, kedge_anchor_kl)
EACH(kl_grad, anchor_kl_grad)
EACH(l2, l2)
EACH(l2_grad, anchor_l2_grad)

#define REJECTED(op)                                                                                         \
  {"table of another width", op##_wide, .rejects = "width of the logits"},                                   \
      {"more indices than tokens", op##_late, .rejects = "the index"}, {                                     \
    "logits without experts", op##_flat, .rejects = "router logits"                                          \
  }
#define VALUES(op)                                                                                           \
  {"no token has a row", op##_nowhere, .rejects = NULL}, {"one expert", op##_alone, .rejects = NULL},        \
      {"many tokens", op##_many, .rejects = NULL}, {                                                         \
    "logits of hundreds", op##_far, .rejects = NULL                                                          \
  }

/* Experts that can never be chosen, in the table and in the logits. */
static void never_of(kedge_case *c, builder *build) {
  const double z[] = {1, 0, -INFINITY, -INFINITY, -INFINITY, 2}, pi[] = {.25, .75, 0, 0, 0, 1};
  kedge_value logits = kedge_case_constant(c, "z", 2, (uint32_t[]){2, 3}, z);
  kedge_value table = kedge_case_constant(c, "table", 2, (uint32_t[]){2, 3}, pi);
  kedge_case_output(c, build(c->graph, logits, table, IDS("index", 0, 1)));
}
static void kl_never(kedge_case *c) {
  never_of(c, kedge_anchor_kl);
}
static void kl_grad_never(kedge_case *c) {
  never_of(c, anchor_kl_grad);
}
KEDGE_CASES(anchor_kl) = {{"rows and none", kl_some, .differentiable = true},
                          {"a part of a table", kl_in_part, .differentiable = true},
                          {"impossible experts", kl_never, .rejects = NULL},
                          VALUES(kl),
                          REJECTED(kl),
                          {0}};
KEDGE_CASES(anchor_kl_grad) = {{"rows and none", kl_grad_some, .rejects = NULL},
                               {"a part of a table", kl_grad_in_part, .rejects = NULL},
                               {"impossible experts", kl_grad_never, .rejects = NULL},
                               VALUES(kl_grad),
                               REJECTED(kl_grad),
                               {0}};

static void l2_bad_floor(kedge_case *c) {
  kedge_value table = table_of(c, 2, (uint32_t[]){2, 7});
  kedge_case_output(c, kedge_anchor_l2(c->graph, F("z", 1, 7), table, IDS("index", 0), 0));
}
KEDGE_CASES(anchor_l2) = {{"rows and none", l2_some, .differentiable = true},
                          {"a part of a table", l2_in_part, .differentiable = true},
                          VALUES(l2),
                          REJECTED(l2),
                          {"a floor of 0", l2_bad_floor, .rejects = "got 0"},
                          {0}};
KEDGE_CASES(anchor_l2_grad) = {{"rows and none", l2_grad_some, .rejects = NULL},
                               {"a part of a table", l2_grad_in_part, .rejects = NULL},
                               VALUES(l2_grad),
                               REJECTED(l2_grad),
                               {0}};

static void lse_of(kedge_case *c, uint32_t rows, uint32_t cols, double sd) {
  kedge_value x = kedge_case_scaled(c, "x", KEDGE_F32, 2, (uint32_t[]){rows, cols}, 0, sd);
  kedge_case_output(c, kedge_logsumexp(c->graph, x));
}
static void lse_some(kedge_case *c) {
  lse_of(c, 5, 7, 1);
}
static void lse_one(kedge_case *c) {
  lse_of(c, 3, 1, 1);
}
static void lse_many(kedge_case *c) {
  lse_of(c, MANY, 67, 40);
}
static const double never[] = {-INFINITY, 3, -INFINITY, 1, -2, -INFINITY};
static void lse_never(kedge_case *c) {
  kedge_case_output(c, kedge_logsumexp(c->graph, kedge_case_constant(c, "x", 2, (uint32_t[]){2, 3}, never)));
}
static void lse_flat(kedge_case *c) {
  kedge_case_output(c, kedge_logsumexp(c->graph, F("x", 4)));
}
KEDGE_CASES(logsumexp) = {{"rows", lse_some, .differentiable = true},
                          {"one column", lse_one, .differentiable = true},
                          {"many rows of large numbers", lse_many, .rejects = NULL},
                          {"minus infinity", lse_never, .rejects = NULL},
                          {"a vector", lse_flat, .rejects = "2 dimensions"},
                          {0}};

static void lse_grad_of(kedge_case *c, kedge_value x, kedge_value d) {
  kedge_args_logsumexp_grad args = {0};
  kedge_case_output(
      c, kedge__node(c->graph, KEDGE_OP_logsumexp_grad, (kedge_value[]){x, d}, &args, KEDGE_F32, NULL));
}
static void lse_grad_some(kedge_case *c) {
  lse_grad_of(c, F("x", 5, 7), F("d", 5));
}
static void lse_grad_many(kedge_case *c) {
  lse_grad_of(c, kedge_case_scaled(c, "x", KEDGE_F32, 2, (uint32_t[]){MANY, 67}, 0, 40), F("d", MANY));
}
static void lse_grad_never(kedge_case *c) {
  lse_grad_of(c, kedge_case_constant(c, "x", 2, (uint32_t[]){2, 3}, never), F("d", 2));
}
static void lse_grad_few(kedge_case *c) {
  lse_grad_of(c, F("x", 5, 7), F("d", 4));
}
KEDGE_CASES(logsumexp_grad) = {{"rows", lse_grad_some, .rejects = NULL},
                               {"many rows of large numbers", lse_grad_many, .rejects = NULL},
                               {"minus infinity", lse_grad_never, .rejects = NULL},
                               {"a row short", lse_grad_few, .rejects = "gradient of the logsumexp"},
                               {0}};
#endif
