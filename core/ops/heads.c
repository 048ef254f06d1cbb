/* SPDX-License-Identifier: Apache-2.0
 *
 * What all heads share: one head's columns repeated for every head, and its transpose, the sum over heads.
 * The key of multi-head latent attention has such a part. The tuned CPU kernels are in
 * backends/cpu/kernels/heads.c; attention itself is in attention.c.
 */
#if defined(KEDGE_PART_RULES)
#include "core/op.h"

kedge_value kedge_repeat(kedge_graph *g, kedge_value x, uint32_t times) {
  kedge_args_repeat args = {.times = times};
  return kedge__node(g, KEDGE_OP_repeat, &x, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(repeat) {
  kedge_args_repeat *a = rule->args;
  const kedge_shape *in = &rule->in[0];
  a->rows = kedge__rows(in);
  a->cols = kedge__cols(in);
  if (!a->times || (uint64_t)a->times * kedge__shape_count(in) > INT32_MAX)
    return kedge_fail(KEDGE_ERR_SHAPE, "expected to repeat once or more, up to %d elements, got %u times",
                      INT32_MAX, a->times);
  kedge_dtype dtype = rule->out[0].dtype;
  rule->out[0] = *in;
  rule->out[0].dtype = dtype;
  rule->out[0].dims[in->rank - 1] = a->times * a->cols;
  return KEDGE_OK;
}

KEDGE_GRADIENT(repeat) {
  const kedge_args_repeat *a = rule->args;
  rule->din[0] = kedge_fold(rule->graph, rule->dout[0], a->times);
}

kedge_value kedge_fold(kedge_graph *g, kedge_value x, uint32_t times) {
  kedge_args_fold args = {.times = times};
  return kedge__node(g, KEDGE_OP_fold, &x, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(fold) {
  kedge_args_fold *a = rule->args;
  const kedge_shape *in = &rule->in[0];
  a->rows = kedge__rows(in);
  if (!a->times || kedge__cols(in) % a->times)
    return kedge_fail(KEDGE_ERR_SHAPE, "expected rows of equal pieces, got %u columns and %u pieces",
                      kedge__cols(in), a->times);
  a->cols = kedge__cols(in) / a->times;
  kedge_dtype dtype = rule->out[0].dtype;
  rule->out[0] = *in;
  rule->out[0].dtype = dtype;
  rule->out[0].dims[in->rank - 1] = a->cols;
  return KEDGE_OK;
}

KEDGE_GRADIENT(fold) {
  const kedge_args_fold *a = rule->args;
  rule->din[0] = kedge_repeat(rule->graph, rule->dout[0], a->times);
}
#endif

#if defined(KEDGE_PART_KERNELS)
#include "core/ops/kernel.h"

KEDGE_KERNEL(repeat) {
  KEDGE_CALL_ARGS(repeat);
  for (size_t r = 0; r < a->rows; r++)
    for (size_t n = 0; n < a->times; n++)
      for (size_t j = 0; j < a->cols; j++)
        KEDGE_OUT_X(0)[(r * a->times + n) * a->cols + j] = KEDGE_IN_X(0)[r * call->in[0].pitch + j];
}

KEDGE_KERNEL(fold) {
  KEDGE_CALL_ARGS(fold);
  for (size_t r = 0; r < a->rows; r++)
    for (size_t j = 0; j < a->cols; j++) {
      const kedge_x *x = KEDGE_IN_X(0) + r * call->in[0].pitch + j;
      kedge_real sum = 0;
      for (size_t n = 0; n < a->times; n++) sum += kedge_load(x[n * a->cols]);
      KEDGE_OUT_X(0)[r * a->cols + j] = kedge_store(sum);
    }
}
#endif

#if defined(KEDGE_PART_CASES)
#include "core/op.h"
#include "tests/support/cases.h"

static void repeat_rows(kedge_case *c) {
  kedge_case_output(c, kedge_repeat(c->graph, kedge_case_x(c, "x", 2, (uint32_t[]){5, 3}), 4));
}
static void repeat_window(kedge_case *c) {
  kedge_value x = kedge_case_x(c, "x", 2, (uint32_t[]){3, 9});
  kedge_case_output(c, kedge_repeat(c->graph, kedge_window(c->graph, x, 4, 5), 2));
}
static void repeat_once(kedge_case *c) {
  kedge_case_output(c, kedge_repeat(c->graph, kedge_case_x(c, "x", 1, (uint32_t[]){7}), 1));
}
static void repeat_never(kedge_case *c) {
  kedge_case_output(c, kedge_repeat(c->graph, kedge_case_x(c, "x", 1, (uint32_t[]){7}), 0));
}
static void repeat_vast(kedge_case *c) {
  kedge_case_output(c, kedge_repeat(c->graph, kedge_case_x(c, "x", 1, (uint32_t[]){7}), 1u << 31));
}
KEDGE_CASES(repeat) = {{"rows", repeat_rows, .differentiable = true},
                       {"a window", repeat_window, .differentiable = true},
                       {"once", repeat_once, .differentiable = true},
                       {"not at all", repeat_never, .rejects = "once or more"},
                       {"too many elements", repeat_vast, .rejects = "got 2147483648 times"},
                       {0}};

static void fold_rows(kedge_case *c) {
  kedge_case_output(c, kedge_fold(c->graph, kedge_case_x(c, "x", 3, (uint32_t[]){2, 5, 12}), 4));
}
static void fold_window(kedge_case *c) {
  kedge_value x = kedge_case_x(c, "x", 2, (uint32_t[]){3, 11});
  kedge_case_output(c, kedge_fold(c->graph, kedge_window(c->graph, x, 1, 9), 3));
}
static void fold_uneven(kedge_case *c) {
  kedge_case_output(c, kedge_fold(c->graph, kedge_case_x(c, "x", 2, (uint32_t[]){2, 7}), 2));
}
KEDGE_CASES(fold) = {{"rows", fold_rows, .differentiable = true},
                     {"a window", fold_window, .differentiable = true},
                     {"uneven pieces", fold_uneven, .rejects = "equal pieces"},
                     {0}};
#endif
