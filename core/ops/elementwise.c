/* SPDX-License-Identifier: Apache-2.0
 *
 * Elementwise ops: copy, fill, spread, add, mul, scale, clamp, detach.
 * The tuned CPU kernels are in backends/cpu/kernels/elementwise.c; core/op.h says what the three parts are.
 */
#if defined(KEDGE_PART_RULES)
#include "core/op.h"

/* The number of elements of a shape asked for by a caller, 0 after a refusal. */
static uint32_t wanted(kedge_graph *g, const char *op, uint32_t rank, const uint32_t *dims) {
  uint64_t n = rank >= 1 && rank <= KEDGE_MAX_RANK;
  for (uint32_t i = 0; n && n <= INT32_MAX && i < rank; i++) n *= dims[i];
  if (n && n <= INT32_MAX) return (uint32_t)n;
  kedge__graph_fail(g, KEDGE_ERR_SHAPE,
                    "%s: expected 1 to %d dimensions, none 0, and at most %d elements, got %u dimensions", op,
                    KEDGE_MAX_RANK, INT32_MAX, rank);
  return 0;
}

kedge_value kedge_copy(kedge_graph *g, kedge_value x, kedge_dtype dtype) {
  if (dtype == KEDGE_I32)
    return kedge__graph_fail(g, KEDGE_ERR_SHAPE, "copy: expected a float dtype to copy to, got i32");
  kedge_args_copy args = {0};
  return kedge__node(g, KEDGE_OP_copy, &x, &args, dtype, NULL);
}

kedge_value kedge_cast(kedge_graph *g, kedge_value x, kedge_dtype dtype) {
  if (!x || kedge_value_dtype(g, x) == dtype) return x;
  if (kedge_graph_is_double(g) && dtype != KEDGE_I32 && kedge_value_dtype(g, x) == KEDGE_F64) return x;
  return kedge_copy(g, x, dtype);
}

KEDGE_SHAPE(copy) {
  kedge_args_copy *a = rule->args;
  kedge_u32 n;
  KEDGE_TRY(kedge__alike(rule, 1, 1, "x", &n));
  a->rows = kedge__rows(&rule->in[0]);
  a->cols = kedge__cols(&rule->in[0]);
  return KEDGE_OK;
}

KEDGE_GRADIENT(copy) {
  rule->din[0] = kedge__gradient_as(rule, rule->dout[0], rule->in[0]);
}

kedge_value kedge_fill(kedge_graph *g, kedge_dtype dtype, uint32_t rank, const uint32_t *dims, double value) {
  if (dtype == KEDGE_I32)
    return kedge__graph_fail(g, KEDGE_ERR_SHAPE, "fill: expected a float dtype, got i32");
  kedge_args_fill args = {.n = wanted(g, "fill", rank, dims), .value = value};
  if (!args.n) return KEDGE_NONE;
  kedge_value y = kedge__node(g, KEDGE_OP_fill, NULL, &args, dtype, NULL);
  return rank == 1 ? y : kedge_reshape(g, y, rank, dims);
}

/* The builder gave the number of elements; a reshape of the flat result has the shape. */
KEDGE_SHAPE(fill) {
  const kedge_args_fill *a = rule->args;
  kedge__set_shape(&rule->out[0], 1, a->n, 1, 1);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(fill)

kedge_value kedge_spread(kedge_graph *g, kedge_value x, uint32_t rank, const uint32_t *dims) {
  kedge_args_spread args = {.n = wanted(g, "spread", rank, dims)};
  if (!args.n) return KEDGE_NONE;
  kedge_value y = kedge__node(g, KEDGE_OP_spread, &x, &args, KEDGE_F32, NULL);
  return rank == 1 ? y : kedge_reshape(g, y, rank, dims);
}

KEDGE_SHAPE(spread) {
  const kedge_args_spread *a = rule->args;
  KEDGE_TRY(kedge__want_rank(&rule->in[0], 1, "x"));
  KEDGE_TRY(kedge__want_dim(&rule->in[0], 0, 1, "x"));
  kedge__set_shape(&rule->out[0], 1, a->n, 1, 1);
  return KEDGE_OK;
}

KEDGE_GRADIENT(spread) {
  rule->din[0] = kedge_sum(rule->graph, rule->dout[0]);
}

kedge_value kedge_add(kedge_graph *g, kedge_value a, kedge_value b) {
  kedge_args_add args = {0};
  return kedge__node(g, KEDGE_OP_add, (kedge_value[]){a, b}, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(add) {
  kedge_args_add *a = rule->args;
  return kedge__alike(rule, 2, 1, "a and b", &a->n);
}

KEDGE_GRADIENT(add) {
  rule->din[0] = rule->dout[0];
  rule->din[1] = rule->dout[0];
}

kedge_value kedge_mul(kedge_graph *g, kedge_value a, kedge_value b) {
  kedge_args_mul args = {0};
  return kedge__node(g, KEDGE_OP_mul, (kedge_value[]){a, b}, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(mul) {
  kedge_args_mul *a = rule->args;
  return kedge__alike(rule, 2, 1, "a and b", &a->n);
}

KEDGE_GRADIENT(mul) {
  kedge_value dy = kedge__gradient_as(rule, rule->dout[0], rule->in[0]);
  if (rule->need[0]) rule->din[0] = kedge_mul(rule->graph, dy, rule->in[1]);
  if (rule->need[1]) rule->din[1] = kedge_mul(rule->graph, dy, rule->in[0]);
}

kedge_value kedge_scale(kedge_graph *g, kedge_value x, double factor) {
  kedge_args_scale args = {.factor = factor};
  return kedge__node(g, KEDGE_OP_scale, &x, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(scale) {
  kedge_args_scale *a = rule->args;
  return kedge__alike(rule, 1, 1, "x", &a->n);
}

KEDGE_GRADIENT(scale) {
  const kedge_args_scale *a = rule->args;
  rule->din[0] = kedge_scale(rule->graph, rule->dout[0], a->factor);
}

kedge_value kedge_clamp(kedge_graph *g, kedge_value x, double limit) {
  kedge_args_clamp args = {.limit = limit};
  return kedge__node(g, KEDGE_OP_clamp, &x, &args, KEDGE_F32, NULL);
}

static kedge_status want_limit(double limit) {
  return limit > 0 ? KEDGE_OK : kedge_fail(KEDGE_ERR_ARGUMENT, "expected a limit over 0, got %g", limit);
}

KEDGE_SHAPE(clamp) {
  kedge_args_clamp *a = rule->args;
  KEDGE_TRY(want_limit(a->limit));
  return kedge__alike(rule, 1, 1, "x", &a->n);
}

KEDGE_GRADIENT(clamp) {
  const kedge_args_clamp *a = rule->args;
  kedge_args_clamp_grad args = {.limit = a->limit};
  kedge_value in[] = {rule->in[0], kedge__gradient_as(rule, rule->dout[0], rule->in[0])};
  rule->din[0] = kedge__node(rule->graph, KEDGE_OP_clamp_grad, in, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(clamp_grad) {
  kedge_args_clamp_grad *a = rule->args;
  KEDGE_TRY(want_limit(a->limit));
  return kedge__alike(rule, 2, 1, "x and dy", &a->n);
}
KEDGE_NO_GRADIENT(clamp_grad)

kedge_value kedge_detach(kedge_graph *g, kedge_value x) {
  kedge_args_detach args = {0};
  return kedge__node(g, KEDGE_OP_detach, &x, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(detach) {
  kedge_args_detach *a = rule->args;
  return kedge__alike(rule, 1, 1, "x", &a->n);
}
KEDGE_NO_GRADIENT(detach)
#endif

#if defined(KEDGE_PART_KERNELS)
#include "core/ops/kernel.h"

KEDGE_KERNEL(copy) {
  KEDGE_CALL_ARGS(copy);
  for (size_t i = 0; i < a->rows; i++)
    for (size_t j = 0; j < a->cols; j++)
      kedge_store_w(&call->out[0], i * a->cols + j, kedge_load_w(&call->in[0], i * call->in[0].pitch + j));
}

KEDGE_KERNEL(fill) {
  KEDGE_CALL_ARGS(fill);
  for (size_t i = 0; i < a->n; i++) kedge_store_w(&call->out[0], i, a->value);
}

KEDGE_KERNEL(spread) {
  KEDGE_CALL_ARGS(spread);
  for (size_t i = 0; i < a->n; i++) KEDGE_OUT_F(0)[i] = KEDGE_IN_F(0)[0];
}

KEDGE_KERNEL(add) {
  KEDGE_CALL_ARGS(add);
  for (size_t i = 0; i < a->n; i++)
    KEDGE_OUT_X(0)[i] = kedge_store(kedge_load(KEDGE_IN_X(0)[i]) + kedge_load(KEDGE_IN_X(1)[i]));
}

KEDGE_KERNEL(mul) {
  KEDGE_CALL_ARGS(mul);
  for (size_t i = 0; i < a->n; i++)
    KEDGE_OUT_X(0)[i] = kedge_store(kedge_load(KEDGE_IN_X(0)[i]) * kedge_load(KEDGE_IN_X(1)[i]));
}

KEDGE_KERNEL(scale) {
  KEDGE_CALL_ARGS(scale);
  for (size_t i = 0; i < a->n; i++) KEDGE_OUT_X(0)[i] = kedge_store(a->factor * kedge_load(KEDGE_IN_X(0)[i]));
}

KEDGE_KERNEL(clamp) {
  KEDGE_CALL_ARGS(clamp);
  for (size_t i = 0; i < a->n; i++) {
    kedge_real x = kedge_load(KEDGE_IN_X(0)[i]);
    KEDGE_OUT_X(0)[i] = kedge_store(x < -a->limit ? -a->limit : x > a->limit ? a->limit : x);
  }
}

KEDGE_KERNEL(clamp_grad) {
  KEDGE_CALL_ARGS(clamp_grad);
  for (size_t i = 0; i < a->n; i++) {
    kedge_real x = kedge_load(KEDGE_IN_X(0)[i]);
    KEDGE_OUT_X(0)[i] = x < -a->limit || x > a->limit ? kedge_store(0) : KEDGE_IN_X(1)[i];
  }
}
KEDGE_KERNEL(detach) {
  KEDGE_CALL_ARGS(detach);
  memmove(KEDGE_OUT_X(0), KEDGE_IN_X(0), a->n * sizeof(kedge_x));
}
#endif

#if defined(KEDGE_PART_CASES)
#include "core/op.h"
#include "tests/support/cases.h"

#define X(name, ...) kedge_case_x(c, name, sizeof((uint32_t[]){__VA_ARGS__}) / 4, (uint32_t[]){__VA_ARGS__})
#define F(name, ...) kedge_case_f(c, name, sizeof((uint32_t[]){__VA_ARGS__}) / 4, (uint32_t[]){__VA_ARGS__})

static void copy_same(kedge_case *c) {
  kedge_case_output(c, kedge_copy(c->graph, X("x", 3, 5), c->dtype));
}
static void copy_to_f32(kedge_case *c) {
  kedge_case_output(c, kedge_copy(c->graph, X("x", 7, 33), KEDGE_F32));
}
static void copy_to_bf16(kedge_case *c) {
  kedge_case_output(c, kedge_copy(c->graph, F("x", 2, 3, 19), KEDGE_BF16));
}
static void copy_window(kedge_case *c) {
  kedge_case_output(c, kedge_copy(c->graph, kedge_window(c->graph, X("x", 5, 21), 4, 11), KEDGE_F32));
}
static void copy_ids(kedge_case *c) {
  kedge_case_output(c, kedge_copy(c->graph, X("x", 3), KEDGE_I32));
}
KEDGE_CASES(copy) = {{"same dtype", copy_same, .differentiable = true},
                     {"to f32", copy_to_f32, .differentiable = true},
                     {"to bf16", copy_to_bf16, .differentiable = true, .f32 = 0x1p-8},
                     {"of a window", copy_window, .differentiable = true},
                     {"to i32", copy_ids, .rejects = "float dtype"},
                     {0}};

static void fill_f32(kedge_case *c) {
  kedge_case_output(c, kedge_fill(c->graph, KEDGE_F32, 3, (uint32_t[]){3, 1, 7}, -1.7));
}
static void fill_storage(kedge_case *c) {
  kedge_case_output(c, kedge_fill(c->graph, c->dtype, 1, (uint32_t[]){1}, 0.3));
}
static void fill_nothing(kedge_case *c) {
  kedge_case_output(c, kedge_fill(c->graph, KEDGE_F32, 2, (uint32_t[]){3, 0}, 1));
}
static void fill_huge(kedge_case *c) {
  kedge_case_output(c, kedge_fill(c->graph, KEDGE_F32, 2, (uint32_t[]){65536, 65536}, 1));
}
KEDGE_CASES(fill) = {{"f32", fill_f32, .rejects = NULL},
                     {"storage", fill_storage, .rejects = NULL},
                     {"no elements", fill_nothing, .rejects = "none 0"},
                     {"2^32 elements", fill_huge, .rejects = "at most"},
                     {0}};

static void spread_some(kedge_case *c) {
  kedge_case_output(c, kedge_spread(c->graph, F("x", 1), 2, (uint32_t[]){3, 5}));
}
static void spread_one(kedge_case *c) {
  kedge_case_output(c, kedge_spread(c->graph, F("x", 1), 1, (uint32_t[]){1}));
}
static void spread_two(kedge_case *c) {
  kedge_case_output(c, kedge_spread(c->graph, F("x", 2), 1, (uint32_t[]){4}));
}
KEDGE_CASES(spread) = {{"to a matrix", spread_some, .differentiable = true},
                       {"to one", spread_one, .differentiable = true},
                       {"of two elements", spread_two, .rejects = "equal to 1"},
                       {0}};

static void add_matrix(kedge_case *c) {
  kedge_case_output(c, kedge_add(c->graph, X("a", 5, 7), X("b", 5, 7)));
}
static void add_one(kedge_case *c) {
  kedge_case_output(c, kedge_add(c->graph, X("a", 1), X("b", 1)));
}
static void add_self(kedge_case *c) {
  kedge_value x = X("x", 4, 3);
  kedge_case_output(c, kedge_add(c->graph, x, x));
}
static void add_many(kedge_case *c) {
  kedge_case_output(c, kedge_add(c->graph, X("a", 67, 513), X("b", 67, 513)));
}
static void add_window(kedge_case *c) {
  kedge_value x = X("x", 3, 10);
  kedge_case_output(c, kedge_add(c->graph, kedge_window(c->graph, x, 0, 4), kedge_window(c->graph, x, 5, 4)));
}
static void add_unlike(kedge_case *c) {
  kedge_case_output(c, kedge_add(c->graph, X("a", 5, 7), X("b", 7, 5)));
}
KEDGE_CASES(add) = {{"matrix", add_matrix, .differentiable = true},
                    {"one element", add_one, .differentiable = true},
                    {"twice the same", add_self, .differentiable = true},
                    {"several blocks", add_many, .rejects = NULL},
                    {"windows", add_window, .differentiable = true},
                    {"other shape", add_unlike, .rejects = "one shape"},
                    {0}};

static void mul_matrix(kedge_case *c) {
  kedge_case_output(c, kedge_mul(c->graph, X("a", 3, 9), X("b", 3, 9)));
}
static void mul_self(kedge_case *c) {
  kedge_value x = X("x", 5);
  kedge_case_output(c, kedge_mul(c->graph, x, x));
}
static void mul_many(kedge_case *c) {
  kedge_case_output(c, kedge_mul(c->graph, X("a", 33000), X("b", 33000)));
}
static void mul_unlike(kedge_case *c) {
  kedge_case_output(c, kedge_mul(c->graph, X("a", 6), X("b", 2, 3)));
}
KEDGE_CASES(mul) = {{"matrix", mul_matrix, .differentiable = true},
                    {"square", mul_self, .differentiable = true},
                    {"several blocks", mul_many, .rejects = NULL},
                    {"other rank", mul_unlike, .rejects = "one shape"},
                    {0}};

static void scale_some(kedge_case *c) {
  kedge_case_output(c, kedge_scale(c->graph, X("x", 3, 5), -0.37));
}
static void scale_many(kedge_case *c) {
  kedge_case_output(c, kedge_scale(c->graph, X("x", 17, 1999), 3.0));
}
static void scale_ids(kedge_case *c) {
  kedge_case_output(c,
                    kedge_scale(c->graph, kedge_case_i(c, "i", 1, (uint32_t[]){2}, (int32_t[]){1, 2}), 2.0));
}
KEDGE_CASES(scale) = {{"negative factor", scale_some, .differentiable = true},
                      {"several blocks", scale_many, .rejects = NULL},
                      {"of ids", scale_ids, .rejects = "dtype i32"},
                      {0}};

static void clamp_some(kedge_case *c) {
  kedge_case_output(c, kedge_clamp(c->graph, X("x", 7, 9), 0.7));
}
static void clamp_nothing(kedge_case *c) {
  kedge_case_output(c, kedge_clamp(c->graph, X("x", 5), 0));
}
KEDGE_CASES(clamp) = {{"about half", clamp_some, .differentiable = true},
                      {"no limit", clamp_nothing, .rejects = "a limit over 0"},
                      {0}};

static void clamp_grad_of(kedge_case *c, kedge_value x, kedge_value dy) {
  kedge_args_clamp_grad args = {.limit = 0.7};
  kedge_case_output(
      c, kedge__node(c->graph, KEDGE_OP_clamp_grad, (kedge_value[]){x, dy}, &args, KEDGE_F32, NULL));
}
static void clamp_grad_some(kedge_case *c) {
  clamp_grad_of(c, X("x", 7, 9), X("dy", 7, 9));
}
static void clamp_grad_unlike(kedge_case *c) {
  clamp_grad_of(c, X("x", 3), X("dy", 4));
}
KEDGE_CASES(clamp_grad) = {{"about half", clamp_grad_some, .rejects = NULL},
                           {"dy of another shape", clamp_grad_unlike, .rejects = "one shape"},
                           {0}};

/* The gradient of x detach(c) for x is c; that x itself gets none through detach is test_graph_gradient's. */
static void detach_some(kedge_case *c) {
  const double factors[] = {0.5, -1, 2, 0.25, -0.75, 1.5};
  kedge_value y = kedge_detach(c->graph, kedge_case_constant(c, "c", 2, (uint32_t[]){2, 3}, factors));
  kedge_case_output(c, kedge_mul(c->graph, F("x", 2, 3), y));
}
static void detach_many(kedge_case *c) {
  kedge_case_output(c, kedge_detach(c->graph, kedge_scale(c->graph, X("x", 71, 501), 2)));
}
static void detach_ids(kedge_case *c) {
  kedge_case_output(c, kedge_detach(c->graph, kedge_case_i(c, "i", 1, (uint32_t[]){2}, (int32_t[]){1, 2})));
}
KEDGE_CASES(detach) = {{"a factor", detach_some, .differentiable = true},
                       {"several blocks", detach_many, .rejects = NULL},
                       {"of ids", detach_ids, .rejects = "dtype i32"},
                       {0}};
#endif
