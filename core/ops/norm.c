/* SPDX-License-Identifier: Apache-2.0
 *
 * RMS norm and its gradient. The tuned CPU kernels are in backends/cpu/kernels/norm.c; core/op.h says what
 * the three parts are.
 */
#if defined(KEDGE_PART_RULES)
#include "core/op.h"

kedge_value kedge_rms_norm(kedge_graph *g, kedge_value x, kedge_value weight, double eps) {
  kedge_args_rms_norm args = {.eps = eps};
  return kedge__node(g, KEDGE_OP_rms_norm, (kedge_value[]){x, weight}, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(rms_norm) {
  kedge_args_rms_norm *a = rule->args;
  a->rows = kedge__rows(&rule->in[0]);
  a->cols = kedge__cols(&rule->in[0]);
  KEDGE_TRY(kedge__want_rank(&rule->in[1], 1, "the weight"));
  KEDGE_TRY(kedge__want_dim(&rule->in[1], 0, a->cols, "the weight"));
  rule->out[0] = rule->in[0];
  kedge__set_shape(&rule->out[1], 1, a->rows, 1, 1);
  return KEDGE_OK;
}

KEDGE_GRADIENT(rms_norm) {
  if (!rule->dout[0]) return;
  kedge_graph *g = rule->graph;
  kedge_value dy = kedge_cast(g, rule->dout[0], kedge_value_dtype(g, rule->in[0])), outs[KEDGE_MAX_OUT];
  kedge_args_rms_norm_grad args = {0};
  kedge__node(g, KEDGE_OP_rms_norm_grad, (kedge_value[]){rule->in[0], rule->in[1], rule->out[1], dy}, &args,
              KEDGE_F32, outs);
  rule->din[0] = outs[0];
  rule->din[1] = outs[1];
}

KEDGE_SHAPE(rms_norm_grad) {
  kedge_args_rms_norm_grad *a = rule->args;
  a->rows = kedge__rows(&rule->in[0]);
  a->cols = kedge__cols(&rule->in[0]);
  KEDGE_TRY(kedge__want_rank(&rule->in[1], 1, "the weight"));
  KEDGE_TRY(kedge__want_dim(&rule->in[1], 0, a->cols, "the weight"));
  KEDGE_TRY(kedge__want_dim(&rule->in[2], 0, a->rows, "1/sqrt(..)"));
  KEDGE_TRY(kedge__same_shape(&rule->in[0], &rule->in[3], "x and dy"));
  rule->out[0] = rule->in[0];
  kedge__set_shape(&rule->out[1], 1, a->cols, 1, 1);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(rms_norm_grad)
#endif

#if defined(KEDGE_PART_KERNELS)
#include "core/ops/kernel.h"

KEDGE_KERNEL(rms_norm) {
  KEDGE_CALL_ARGS(rms_norm);
  const kedge_x *weight = KEDGE_IN_X(1);
  for (size_t i = 0; i < a->rows; i++) {
    const kedge_x *x = KEDGE_IN_X(0) + i * a->cols;
    kedge_real sum = 0;
    for (size_t j = 0; j < a->cols; j++) sum += kedge_load(x[j]) * kedge_load(x[j]);
    kedge_real scale = 1 / KEDGE_SQRT(sum / (kedge_real)a->cols + a->eps);
    KEDGE_OUT_F(1)[i] = scale;
    for (size_t j = 0; j < a->cols; j++)
      KEDGE_OUT_X(0)[i * a->cols + j] = kedge_store(kedge_load(weight[j]) * kedge_load(x[j]) * scale);
  }
}

/* With s = 1/sqrt(mean(x^2) + eps):  dx = s (w dy - x s^2 mean(w dy x)),  dw = sum over rows of dy x s. */
KEDGE_KERNEL(rms_norm_grad) {
  KEDGE_CALL_ARGS(rms_norm_grad);
  const kedge_x *weight = KEDGE_IN_X(1);
  const kedge_real *scale = KEDGE_IN_F(2);
  for (size_t i = 0; i < a->rows; i++) {
    const kedge_x *x = KEDGE_IN_X(0) + i * a->cols, *dy = KEDGE_IN_X(3) + i * a->cols;
    kedge_real sum = 0, s = scale[i];
    for (size_t j = 0; j < a->cols; j++) sum += kedge_load(weight[j]) * kedge_load(dy[j]) * kedge_load(x[j]);
    kedge_real pull = sum / (kedge_real)a->cols * s * s;
    for (size_t j = 0; j < a->cols; j++) KEDGE_OUT_X(0)
    [i * a->cols + j] =
        kedge_store(s * (kedge_load(weight[j]) * kedge_load(dy[j]) - kedge_load(x[j]) * pull));
  }
  for (size_t j = 0; j < a->cols; j++) {
    kedge_real total = 0;
    for (size_t first = 0; first < a->rows; first += 1024) {
      kedge_real sum = 0;
      for (size_t i = first; i < a->rows && i < first + 1024; i++)
        sum += kedge_load(KEDGE_IN_X(3)[i * a->cols + j]) * kedge_load(KEDGE_IN_X(0)[i * a->cols + j]) *
               scale[i];
      total += sum;
    }
    KEDGE_OUT_F(1)[j] = total;
  }
}
#endif

#if defined(KEDGE_PART_CASES)
#include "core/op.h"
#include "tests/support/cases.h"

#define X(name, ...) kedge_case_x(c, name, sizeof((uint32_t[]){__VA_ARGS__}) / 4, (uint32_t[]){__VA_ARGS__})

static void norm_odd(kedge_case *c) {
  kedge_case_output(c, kedge_rms_norm(c->graph, X("x", 5, 7), X("w", 7), 1e-6));
}
static void norm_one(kedge_case *c) {
  kedge_case_output(c, kedge_rms_norm(c->graph, X("x", 1), X("w", 1), 0.3));
}
static void norm_heads(kedge_case *c) {
  kedge_case_output(c, kedge_rms_norm(c->graph, X("x", 3, 4, 17), X("w", 17), 1e-5));
}
static void norm_wide(kedge_case *c) {
  kedge_case_output(c, kedge_rms_norm(c->graph, X("x", 37, 515), X("w", 515), 1e-6));
}
static void norm_tiny(kedge_case *c) { /* eps decides */
  kedge_value x = kedge_case_scaled(c, "x", c->dtype, 2, (uint32_t[]){2, 6}, 0, 1e-3);
  kedge_case_output(c, kedge_rms_norm(c->graph, x, X("w", 6), 1e-5));
}
static void norm_unlike(kedge_case *c) {
  kedge_case_output(c, kedge_rms_norm(c->graph, X("x", 5, 7), X("w", 5), 1e-6));
}
static void norm_matrix(kedge_case *c) {
  kedge_case_output(c, kedge_rms_norm(c->graph, X("x", 5, 7), X("w", 1, 7), 1e-6));
}
KEDGE_CASES(rms_norm) = {
    {"odd width", norm_odd, .differentiable = true},
    {"one element", norm_one, .differentiable = true},
    {"per head", norm_heads, .differentiable = true},
    {"wide", norm_wide, .rejects = NULL},
    {"tiny values", norm_tiny, .differentiable = true},
    {"weight of another width", norm_unlike, .rejects = "weight must have dimension 0 equal to 7"},
    {"weight a matrix", norm_matrix, .rejects = "weight must have 1 dimensions"},
    {0}};

static void norm_grad_of(kedge_case *c, kedge_value x, kedge_value weight, kedge_value dy) {
  kedge_value norm[KEDGE_MAX_OUT], outs[KEDGE_MAX_OUT];
  kedge_args_rms_norm args = {.eps = 1e-6};
  kedge__node(c->graph, KEDGE_OP_rms_norm, (kedge_value[]){x, weight}, &args, KEDGE_F32, norm);
  kedge_args_rms_norm_grad grad = {0};
  kedge__node(c->graph, KEDGE_OP_rms_norm_grad, (kedge_value[]){x, weight, norm[1], dy}, &grad, KEDGE_F32,
              outs);
  kedge_case_output(c, outs[0]);
  kedge_case_output(c, outs[1]);
}
static void norm_grad_odd(kedge_case *c) {
  norm_grad_of(c, X("x", 5, 7), X("w", 7), X("dy", 5, 7));
}
static void norm_grad_one(kedge_case *c) {
  norm_grad_of(c, X("x", 1, 13), X("w", 13), X("dy", 1, 13));
}
static void norm_grad_long(kedge_case *c) {
  norm_grad_of(c, X("x", 1301, 19), X("w", 19), X("dy", 1301, 19));
}
static void norm_grad_unlike(kedge_case *c) {
  norm_grad_of(c, X("x", 5, 7), X("w", 7), X("dy", 5, 8));
}
KEDGE_CASES(rms_norm_grad) = {{"odd width", norm_grad_odd, .rejects = NULL},
                              {"one row", norm_grad_one, .rejects = NULL},
                              {"several blocks of rows", norm_grad_long, .rejects = NULL},
                              {"dy of another shape", norm_grad_unlike, .rejects = "one shape"},
                              {0}};
#endif
