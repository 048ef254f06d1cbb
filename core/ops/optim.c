/* SPDX-License-Identifier: Apache-2.0
 *
 * The optimizer's ops: clipping factor, AdamW, gradient accumulation. Tuned twin:
 * backends/cpu/kernels/optim.c; the formula of one AdamW update is in core/scalar.h. The sum of squares that
 * clipping reads is in rows.c. */

#if defined(KEDGE_PART_RULES)
#include "core/op.h"

kedge_value kedge_clip_scale(kedge_graph *g, kedge_value sum_squares, double max_norm, kedge_value *norm) {
  kedge_args_clip_scale args = {.max_norm = max_norm};
  kedge_value outs[KEDGE_MAX_OUT] = {0};
  kedge_value scale = kedge__node(g, KEDGE_OP_clip_scale, &sum_squares, &args, KEDGE_F32, outs);
  if (norm) *norm = outs[1];
  return scale;
}

KEDGE_SHAPE(clip_scale) {
  KEDGE_TRY(kedge__want_rank(&rule->in[0], 1, "sum of squares"));
  KEDGE_TRY(kedge__want_dim(&rule->in[0], 0, 1, "sum of squares"));
  kedge__set_shape(&rule->out[0], 1, 1, 1, 1);
  kedge__set_shape(&rule->out[1], 1, 1, 1, 1);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(clip_scale)

void kedge_adamw(kedge_graph *g, kedge_value master, kedge_value m, kedge_value v, kedge_value storage,
                 kedge_value grad, kedge_value scale, kedge_value hyper, const kedge_adamw_options *options) {
  /* 1 - beta is taken here, in double: 1 - 0.999f would be wrong in its fifth digit. */
  kedge_args_adamw args = {.beta1 = options->beta1,
                           .beta2 = options->beta2,
                           .rest1 = 1 - options->beta1,
                           .rest2 = 1 - options->beta2,
                           .eps = options->eps,
                           .decay = options->decay};
  kedge__node(g, KEDGE_OP_adamw, (kedge_value[]){master, m, v, storage, grad, scale, hyper}, &args, KEDGE_F32,
              NULL);
}

KEDGE_SHAPE(adamw) {
  kedge_args_adamw *a = rule->args;
  const kedge_shape *in = rule->in;
  if (!(a->beta1 >= 0 && a->beta1 < 1 && a->beta2 >= 0 && a->beta2 < 1 && a->eps >= 0))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "expected 0 <= betas < 1 and eps >= 0, got betas %g, %g and eps %g",
                      (double)a->beta1, (double)a->beta2, (double)a->eps);
  KEDGE_TRY(kedge__same_shape(&in[0], &in[1], "first moment"));
  KEDGE_TRY(kedge__same_shape(&in[0], &in[2], "second moment"));
  if (rule->present[3]) KEDGE_TRY(kedge__same_shape(&in[0], &in[3], "storage copy"));
  KEDGE_TRY(kedge__same_shape(&in[0], &in[4], "gradient"));
  KEDGE_TRY(kedge__want_rank(&in[5], 1, "clipping factor"));
  KEDGE_TRY(kedge__want_dim(&in[5], 0, 1, "clipping factor"));
  KEDGE_TRY(kedge__want_rank(&in[6], 1, "hyper-parameters"));
  KEDGE_TRY(kedge__want_dim(&in[6], 0, 4, "hyper-parameters"));
  a->n = (uint32_t)kedge__shape_count(&in[0]);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(adamw)

void kedge_accumulate(kedge_graph *g, kedge_value accumulator, kedge_value x) {
  kedge_args_accumulate args = {0};
  kedge__node(g, KEDGE_OP_accumulate, (kedge_value[]){accumulator, x}, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(accumulate) {
  kedge_args_accumulate *a = rule->args;
  KEDGE_TRY(kedge__same_shape(&rule->in[0], &rule->in[1], "summand"));
  a->n = (uint32_t)kedge__shape_count(&rule->in[0]);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(accumulate)

#elif defined(KEDGE_PART_KERNELS)
#include "core/ops/kernel.h"

/* As torch's clip_grad_norm_. A norm that is not a number gives a factor that is not one either. */
KEDGE_KERNEL(clip_scale) {
  KEDGE_CALL_ARGS(clip_scale);
  kedge_real norm = KEDGE_SQRT(KEDGE_IN_F(0)[0]);
  kedge_real scale = a->max_norm / (norm + (kedge_real)1e-6);
  KEDGE_OUT_F(0)[0] = a->max_norm <= 0 || scale >= 1 ? 1 : scale;
  KEDGE_OUT_F(1)[0] = norm;
}

KEDGE_KERNEL(adamw) {
  KEDGE_CALL_ARGS(adamw);
  kedge_real *w = call->in[0].data, *m = call->in[1].data, *v = call->in[2].data;
  kedge_x *copy = call->in[3].data;
  const kedge_real *grad = KEDGE_IN_F(4), *scale = KEDGE_IN_F(5), *hyper = KEDGE_IN_F(6);
  for (size_t i = 0; i < a->n; i++) {
    kedge_real g = grad[i] * scale[0];
    m[i] = a->beta1 * m[i] + a->rest1 * g;
    v[i] = a->beta2 * v[i] + a->rest2 * g * g;
    w[i] = kedge_adamw_step(w[i], m[i], v[i], hyper[0], hyper[1], hyper[2], a->eps, a->decay);
    if (copy) copy[i] = kedge_store(w[i]);
  }
}

KEDGE_KERNEL(accumulate) {
  KEDGE_CALL_ARGS(accumulate);
  kedge_real *sum = call->in[0].data;
  for (size_t i = 0; i < a->n; i++) sum[i] += kedge_load_w(&call->in[1], i);
}

#elif defined(KEDGE_PART_CASES)
#include "tests/support/cases.h"

static void clip(kedge_case *c, double squares, double max_norm) {
  kedge_value norm, s = kedge_case_constant(c, "squares", 1, (uint32_t[]){1}, &squares);
  kedge_case_output(c, kedge_clip_scale(c->graph, s, max_norm, &norm));
  kedge_case_output(c, norm);
}
static void clip_large(kedge_case *c) {
  clip(c, 49, 1);
}
static void clip_small(kedge_case *c) {
  clip(c, 0.25, 1);
}
static void clip_zero(kedge_case *c) {
  clip(c, 0, 1);
}
static void clip_never(kedge_case *c) {
  clip(c, 1e6, 0);
}
static void clip_bad(kedge_case *c) {
  kedge_value x = kedge_case_f(c, "squares", 1, (uint32_t[]){3});
  kedge_case_output(c, kedge_clip_scale(c->graph, x, 1, NULL));
}
KEDGE_CASES(clip_scale) = {
    {"a norm of 7", clip_large, .rejects = NULL},          {"below the limit", clip_small, .rejects = NULL},
    {"no gradient", clip_zero, .rejects = NULL},           {"no limit", clip_never, .rejects = NULL},
    {"three sums", clip_bad, .rejects = "sum of squares"}, {0}};

static void adamw_of(kedge_case *c, uint32_t rows, uint32_t cols, bool copy, bool bad_moment, double decay) {
  uint32_t dims[] = {rows, cols}, other[] = {cols, rows};
  kedge_value w = kedge_case_f(c, "w", 2, dims);
  kedge_value m = kedge_case_scaled(c, "m", KEDGE_F32, 2, bad_moment ? other : dims, 0, 0.1);
  kedge_value v = kedge_case_scaled(c, "v", KEDGE_F32, 2, dims, 2, 0.1);
  kedge_value storage = copy ? kedge_case_x(c, "copy", 2, dims) : KEDGE_NONE;
  kedge_value grad = kedge_case_f(c, "grad", 2, dims);
  kedge_value scale = kedge_case_constant(c, "scale", 1, (uint32_t[]){1}, (double[]){0.25});
  kedge_value hyper =
      kedge_case_constant(c, "hyper", 1, (uint32_t[]){4}, (double[]){0.01, 0.271, 0.002997, 0});
  kedge_adamw(c->graph, w, m, v, storage, grad, scale, hyper,
              &(kedge_adamw_options){.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .decay = decay});
  kedge_case_output(c, w);
  kedge_case_output(c, m);
  kedge_case_output(c, v);
  if (copy) kedge_case_output(c, storage);
}
static void adamw_copy(kedge_case *c) {
  adamw_of(c, 5, 7, true, false, 0.1);
}
static void adamw_plain(kedge_case *c) {
  adamw_of(c, 1, 1, false, false, 0);
}
static void adamw_long(kedge_case *c) {
  adamw_of(c, 3, 6001, true, false, 0.1);
}
static void adamw_bad(kedge_case *c) {
  adamw_of(c, 2, 3, false, true, 0);
}
KEDGE_CASES(adamw) = {{"with a storage copy", adamw_copy, .rejects = NULL},
                      {"one weight, no copy", adamw_plain, .rejects = NULL},
                      {"more than a block", adamw_long, .rejects = NULL},
                      {"moment of another shape", adamw_bad, .rejects = "first moment"},
                      {0}};

static void accumulate_of(kedge_case *c, uint32_t n, kedge_dtype dtype, uint32_t other) {
  kedge_value a = kedge_case_f(c, "sum", 1, (uint32_t[]){n});
  kedge_accumulate(c->graph, a, kedge_case_scaled(c, "x", dtype, 1, (uint32_t[]){other}, 0, 1));
  kedge_case_output(c, a);
}
static void accumulate_f(kedge_case *c) {
  accumulate_of(c, 13, KEDGE_F32, 13);
}
static void accumulate_x(kedge_case *c) {
  accumulate_of(c, 1, c->dtype, 1);
}
static void accumulate_long(kedge_case *c) {
  accumulate_of(c, 20001, c->dtype, 20001);
}
static void accumulate_bad(kedge_case *c) {
  accumulate_of(c, 4, KEDGE_F32, 5);
}
KEDGE_CASES(accumulate) = {{"f32", accumulate_f, .rejects = NULL},
                           {"storage", accumulate_x, .rejects = NULL},
                           {"more than a block", accumulate_long, .rejects = NULL},
                           {"another length", accumulate_bad, .rejects = "summand"},
                           {0}};
#endif
