/* SPDX-License-Identifier: Apache-2.0
 *
 * swiglu, plain and gated by routed weights. The tuned CPU kernels are in backends/cpu/kernels/swiglu.c;
 * core/op.h says what the three parts are.
 */
#if defined(KEDGE_PART_RULES)
#include "core/op.h"

kedge_value kedge_swiglu(kedge_graph *g, kedge_value gate, kedge_value up) {
  kedge_args_swiglu args = {0};
  return kedge__node(g, KEDGE_OP_swiglu, (kedge_value[]){gate, up}, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(swiglu) {
  kedge_args_swiglu *a = rule->args;
  return kedge__alike(rule, 2, 1, "gate and up", &a->n);
}

KEDGE_GRADIENT(swiglu) {
  kedge_value outs[KEDGE_MAX_OUT], dy = kedge__gradient_as(rule, rule->dout[0], rule->in[0]);
  kedge_args_swiglu_grad args = {0};
  kedge__node(rule->graph, KEDGE_OP_swiglu_grad, (kedge_value[]){rule->in[0], rule->in[1], dy}, &args,
              KEDGE_F32, outs);
  rule->din[0] = outs[0];
  rule->din[1] = outs[1];
}

KEDGE_SHAPE(swiglu_grad) {
  kedge_args_swiglu_grad *a = rule->args;
  return kedge__alike(rule, 3, 2, "gate, up and dy", &a->n);
}
KEDGE_NO_GRADIENT(swiglu_grad)

kedge_value kedge_swiglu_gated(kedge_graph *g, kedge_value gate, kedge_value up, kedge_value weights,
                               const kedge_routes *routes) {
  kedge_args_swiglu_gated args = {0};
  kedge_value in[] = {gate, up, weights, routes->rows_TK, routes->offsets_E1};
  return kedge__node(g, KEDGE_OP_swiglu_gated, in, &args, KEDGE_F32, NULL);
}

/* Checks the inputs gate, up, weights, rows, offsets and fills the dimensions. */
static kedge_status gated_dims(const kedge_shape *in, kedge_u32 *rows, kedge_u32 *cols, kedge_u32 *experts) {
  KEDGE_TRY(kedge__want_rank(&in[0], 2, "gate"));
  KEDGE_TRY(kedge__same_shape(&in[0], &in[1], "gate and up"));
  KEDGE_TRY(kedge__want_rank(&in[2], 2, "the gate weights"));
  KEDGE_TRY(kedge__same_shape(&in[2], &in[3], "the gate weights and the rows of the routes"));
  KEDGE_TRY(kedge__want_rank(&in[4], 1, "the offsets of the routes"));
  KEDGE_TRY(kedge__want_dim(&in[0], 0, (uint32_t)kedge__shape_count(&in[2]), "gate (a row a gate weight)"));
  *rows = in[0].dims[0];
  *cols = in[0].dims[1];
  *experts = in[4].dims[0] - 1;
  return KEDGE_OK;
}

KEDGE_SHAPE(swiglu_gated) {
  kedge_args_swiglu_gated *a = rule->args;
  KEDGE_TRY(gated_dims(rule->in, &a->rows, &a->cols, &a->experts));
  kedge__set_shape(&rule->out[0], 2, a->rows, a->cols, 1);
  return KEDGE_OK;
}

KEDGE_GRADIENT(swiglu_gated) {
  kedge_value outs[KEDGE_MAX_OUT], dy = kedge__gradient_as(rule, rule->dout[0], rule->in[0]);
  kedge_value in[] = {rule->in[0], rule->in[1], rule->in[2], rule->in[3], rule->in[4], dy};
  kedge_args_swiglu_gated_grad args = {0};
  kedge__node(rule->graph, KEDGE_OP_swiglu_gated_grad, in, &args, KEDGE_F32, outs);
  for (int i = 0; i < 3; i++) rule->din[i] = outs[i];
}

KEDGE_SHAPE(swiglu_gated_grad) {
  kedge_args_swiglu_gated_grad *a = rule->args;
  KEDGE_TRY(gated_dims(rule->in, &a->rows, &a->cols, &a->experts));
  KEDGE_TRY(kedge__same_shape(&rule->in[0], &rule->in[5], "gate and dy"));
  kedge__set_shape(&rule->out[0], 2, a->rows, a->cols, 1);
  kedge__set_shape(&rule->out[1], 2, a->rows, a->cols, 1);
  kedge__set_shape(&rule->out[2], 2, rule->in[2].dims[0], rule->in[2].dims[1], 1);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(swiglu_gated_grad)
#endif

#if defined(KEDGE_PART_KERNELS)
#include "core/ops/kernel.h"

KEDGE_KERNEL(swiglu) {
  KEDGE_CALL_ARGS(swiglu);
  for (size_t i = 0; i < a->n; i++)
    KEDGE_OUT_X(0)[i] = kedge_store(kedge_silu(kedge_load(KEDGE_IN_X(0)[i])) * kedge_load(KEDGE_IN_X(1)[i]));
}

KEDGE_KERNEL(swiglu_grad) {
  KEDGE_CALL_ARGS(swiglu_grad);
  for (size_t i = 0; i < a->n; i++) {
    kedge_real gate = kedge_load(KEDGE_IN_X(0)[i]), up = kedge_load(KEDGE_IN_X(1)[i]),
               dy = kedge_load(KEDGE_IN_X(2)[i]);
    KEDGE_OUT_X(0)[i] = kedge_store(dy * up * kedge_silu_slope(gate));
    KEDGE_OUT_X(1)[i] = kedge_store(dy * kedge_silu(gate));
  }
}

KEDGE_KERNEL(swiglu_gated) {
  KEDGE_CALL_ARGS(swiglu_gated);
  const kedge_x *gate = KEDGE_IN_X(0), *up = KEDGE_IN_X(1);
  const kedge_real *weights = KEDGE_IN_F(2);
  const int32_t *rows = KEDGE_IN_I(3), *offsets = KEDGE_IN_I(4);
  kedge_x *y = KEDGE_OUT_X(0);
  for (size_t s = 0; s < a->rows; s++) {
    if (rows[s] < 0) continue;
    size_t first = (size_t)rows[s] * a->cols;
    for (size_t i = first; i < first + a->cols; i++)
      y[i] = kedge_store(kedge_silu(kedge_load(gate[i])) * kedge_load(up[i]) * weights[s]);
  }
  for (size_t i = (size_t)offsets[a->experts] * a->cols; i < (size_t)a->rows * a->cols; i++)
    y[i] = kedge_store(0);
}

KEDGE_KERNEL(swiglu_gated_grad) {
  KEDGE_CALL_ARGS(swiglu_gated_grad);
  const kedge_x *gate = KEDGE_IN_X(0), *up = KEDGE_IN_X(1), *dy = KEDGE_IN_X(5);
  const kedge_real *weights = KEDGE_IN_F(2);
  const int32_t *rows = KEDGE_IN_I(3), *offsets = KEDGE_IN_I(4);
  kedge_x *dgate = KEDGE_OUT_X(0), *dup = KEDGE_OUT_X(1);
  for (size_t s = 0; s < a->rows; s++) {
    kedge_real sum = 0;
    size_t first = rows[s] < 0 ? 0 : (size_t)rows[s] * a->cols, last = rows[s] < 0 ? 0 : first + a->cols;
    for (size_t i = first; i < last; i++) {
      kedge_real g = kedge_load(gate[i]), u = kedge_load(up[i]), d = kedge_load(dy[i]);
      sum += d * u * kedge_silu(g);
      dgate[i] = kedge_store(d * weights[s] * u * kedge_silu_slope(g));
      dup[i] = kedge_store(d * weights[s] * kedge_silu(g));
    }
    KEDGE_OUT_F(2)[s] = sum;
  }
  for (size_t i = (size_t)offsets[a->experts] * a->cols; i < (size_t)a->rows * a->cols; i++)
    dgate[i] = dup[i] = kedge_store(0);
}
#endif

#if defined(KEDGE_PART_CASES)
#include "core/op.h"
#include "tests/support/cases.h"

#define X(name, ...) kedge_case_x(c, name, sizeof((uint32_t[]){__VA_ARGS__}) / 4, (uint32_t[]){__VA_ARGS__})
#define F(name, ...) kedge_case_f(c, name, sizeof((uint32_t[]){__VA_ARGS__}) / 4, (uint32_t[]){__VA_ARGS__})

static void swiglu_matrix(kedge_case *c) {
  kedge_case_output(c, kedge_swiglu(c->graph, X("g", 5, 13), X("u", 5, 13)));
}
static void swiglu_one(kedge_case *c) {
  kedge_case_output(c, kedge_swiglu(c->graph, X("g", 1, 1), X("u", 1, 1)));
}
static void swiglu_large(kedge_case *c) {
  kedge_value gate = kedge_case_scaled(c, "g", c->dtype, 2, (uint32_t[]){70, 301}, 0, 60);
  kedge_case_output(c, kedge_swiglu(c->graph, gate, X("u", 70, 301)));
}
static void swiglu_unlike(kedge_case *c) {
  kedge_case_output(c, kedge_swiglu(c->graph, X("g", 2, 4), X("u", 2, 3)));
}
KEDGE_CASES(swiglu) = {{"matrix", swiglu_matrix, .differentiable = true},
                       {"one element", swiglu_one, .differentiable = true},
                       {"gates of hundreds", swiglu_large, .rejects = NULL},
                       {"other width", swiglu_unlike, .rejects = "one shape"},
                       {0}};

static void swiglu_grad_of(kedge_case *c, kedge_value gate, kedge_value up, kedge_value dy) {
  kedge_value outs[KEDGE_MAX_OUT];
  kedge_args_swiglu_grad args = {0};
  kedge__node(c->graph, KEDGE_OP_swiglu_grad, (kedge_value[]){gate, up, dy}, &args, KEDGE_F32, outs);
  kedge_case_output(c, outs[0]);
  kedge_case_output(c, outs[1]);
}
static void swiglu_grad_matrix(kedge_case *c) {
  swiglu_grad_of(c, X("g", 3, 11), X("u", 3, 11), X("dy", 3, 11));
}
static void swiglu_grad_large(kedge_case *c) {
  swiglu_grad_of(c, kedge_case_scaled(c, "g", c->dtype, 1, (uint32_t[]){17001}, 0, 60), X("u", 17001),
                 X("dy", 17001));
}
static void swiglu_grad_unlike(kedge_case *c) {
  swiglu_grad_of(c, X("g", 3, 4), X("u", 3, 4), X("dy", 4, 3));
}
KEDGE_CASES(swiglu_grad) = {{"matrix", swiglu_grad_matrix, .rejects = NULL},
                            {"gates of hundreds", swiglu_grad_large, .rejects = NULL},
                            {"dy of another shape", swiglu_grad_unlike, .rejects = "one shape"},
                            {0}};

/* Six tokens to two of five experts; token 2 goes nowhere, expert 3 gets nothing. */
static kedge_routes routes_6(kedge_case *c) {
  const int32_t ids[] = {0, 4, 1, 0, -1, -1, 4, 2, 0, 1, 4, 0};
  return kedge_dispatch(c->graph, kedge_case_i(c, "ids", 2, (uint32_t[]){6, 2}, ids), 5);
}
/* Nobody goes anywhere. */
static kedge_routes routes_none(kedge_case *c) {
  return kedge_dispatch(c->graph, kedge_case_i(c, "ids", 2, (uint32_t[]){2, 1}, (int32_t[]){-1, -1}), 3);
}

static void gated_rows(kedge_case *c) {
  kedge_routes routes = routes_6(c);
  kedge_case_output(c, kedge_swiglu_gated(c->graph, X("g", 12, 7), X("u", 12, 7), F("w", 6, 2), &routes));
}
static void gated_none(kedge_case *c) {
  kedge_routes routes = routes_none(c);
  kedge_case_output(c, kedge_swiglu_gated(c->graph, X("g", 2, 3), X("u", 2, 3), F("w", 2, 1), &routes));
}
static void gated_few_weights(kedge_case *c) {
  kedge_routes routes = routes_6(c);
  kedge_case_output(c, kedge_swiglu_gated(c->graph, X("g", 12, 7), X("u", 12, 7), F("w", 6, 1), &routes));
}
static void gated_few_rows(kedge_case *c) {
  kedge_routes routes = routes_6(c);
  kedge_case_output(c, kedge_swiglu_gated(c->graph, X("g", 11, 7), X("u", 11, 7), F("w", 6, 2), &routes));
}
KEDGE_CASES(swiglu_gated) = {{"a token without experts", gated_rows, .differentiable = true},
                             {"no valid row", gated_none, .rejects = NULL},
                             {"a weight short", gated_few_weights, .rejects = "gate weights"},
                             {"a row short", gated_few_rows, .rejects = "equal to 12"},
                             {0}};

static void gated_grad_of(kedge_case *c, const kedge_routes *routes, kedge_value gate, kedge_value up,
                          kedge_value weights, kedge_value dy) {
  kedge_value outs[KEDGE_MAX_OUT], in[] = {gate, up, weights, routes->rows_TK, routes->offsets_E1, dy};
  kedge_args_swiglu_gated_grad args = {0};
  kedge__node(c->graph, KEDGE_OP_swiglu_gated_grad, in, &args, KEDGE_F32, outs);
  for (int i = 0; i < 3; i++) kedge_case_output(c, outs[i]);
}
static void gated_grad_rows(kedge_case *c) {
  kedge_routes routes = routes_6(c);
  gated_grad_of(c, &routes, X("g", 12, 37), X("u", 12, 37), F("w", 6, 2), X("dy", 12, 37));
}
static void gated_grad_none(kedge_case *c) {
  kedge_routes routes = routes_none(c);
  gated_grad_of(c, &routes, X("g", 2, 1), X("u", 2, 1), F("w", 2, 1), X("dy", 2, 1));
}
static void gated_grad_unlike(kedge_case *c) {
  kedge_routes routes = routes_6(c);
  gated_grad_of(c, &routes, X("g", 12, 3), X("u", 12, 3), F("w", 6, 2), X("dy", 12, 2));
}
KEDGE_CASES(swiglu_gated_grad) = {{"a token without experts", gated_grad_rows, .rejects = NULL},
                                  {"no valid row", gated_grad_none, .rejects = NULL},
                                  {"dy of another width", gated_grad_unlike, .rejects = "one shape"},
                                  {0}};
#endif
