/* SPDX-License-Identifier: Apache-2.0
 *
 * The language-model head and its cross-entropy as one op, so that the logits [T,V] never exist. Tuned twin:
 * backends/cpu/kernels/softmax.c. Siblings: route.c has the softmax of router scores, attention.c that of
 * attention. */

#if defined(KEDGE_PART_RULES)
#include "core/op.h"

kedge_value kedge_head_loss(kedge_graph *g, kedge_value h, kedge_value weight, kedge_value labels,
                            kedge_value *lse) {
  kedge_args_head_loss args = {0};
  kedge_value outs[KEDGE_MAX_OUT] = {0};
  kedge_value nll =
      kedge__node(g, KEDGE_OP_head_loss, (kedge_value[]){h, weight, labels}, &args, KEDGE_F32, outs);
  if (lse) *lse = outs[1];
  return nll;
}

/* What head_loss and its gradient want of h, weight and labels. */
static kedge_status check_head(const kedge_shape *in) {
  KEDGE_TRY(kedge__want_rank(&in[0], 2, "hidden states"));
  KEDGE_TRY(kedge__want_rank(&in[1], 2, "head weight"));
  KEDGE_TRY(kedge__want_dim(&in[1], 1, in[0].dims[1], "width of the head weight"));
  KEDGE_TRY(kedge__want_rank(&in[2], 1, "labels"));
  return kedge__want_dim(&in[2], 0, in[0].dims[0], "number of labels");
}

KEDGE_SHAPE(head_loss) {
  kedge_args_head_loss *a = rule->args;
  const kedge_shape *in = rule->in;
  KEDGE_TRY(check_head(in));
  a->tokens = in[0].dims[0];
  a->dim = in[0].dims[1];
  a->vocab = in[1].dims[0];
  kedge__set_shape(&rule->out[0], 1, a->tokens, 1, 1);
  kedge__set_shape(&rule->out[1], 1, a->tokens, 1, 1);
  return KEDGE_OK;
}

KEDGE_GRADIENT(head_loss) {
  if (rule->dout[1] != KEDGE_NONE) {
    kedge__graph_fail(rule->graph, KEDGE_ERR_UNSUPPORTED,
                      "head_loss: the logsumexp has no gradient, only the loss has");
    return;
  }
  kedge_args_head_loss_grad args = {0};
  kedge_value outs[KEDGE_MAX_OUT] = {0};
  kedge__node(rule->graph, KEDGE_OP_head_loss_grad,
              (kedge_value[]){rule->in[0], rule->in[1], rule->in[2], rule->out[1], rule->dout[0]}, &args,
              KEDGE_F32, outs);
  if (rule->need[0]) rule->din[0] = outs[0];
  if (rule->need[1]) rule->din[1] = outs[1];
}

KEDGE_SHAPE(head_loss_grad) {
  kedge_args_head_loss_grad *a = rule->args;
  const kedge_shape *in = rule->in;
  KEDGE_TRY(check_head(in));
  KEDGE_TRY(kedge__want_rank(&in[3], 1, "logsumexp"));
  KEDGE_TRY(kedge__want_dim(&in[3], 0, in[0].dims[0], "number of logsumexps"));
  KEDGE_TRY(kedge__same_shape(&in[3], &in[4], "gradient of the loss"));
  a->tokens = in[0].dims[0];
  a->dim = in[0].dims[1];
  a->vocab = in[1].dims[0];
  kedge__set_shape(&rule->out[0], 2, a->tokens, a->dim, 1);
  kedge__set_shape(&rule->out[1], 2, a->vocab, a->dim, 1);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(head_loss_grad)

#elif defined(KEDGE_PART_KERNELS)
#include "core/ops/kernel.h"

static kedge_real dot(const kedge_x *a, const kedge_x *b, size_t n) {
  kedge_real sum = 0;
  for (size_t i = 0; i < n; i++) sum += kedge_load(a[i]) * kedge_load(b[i]);
  return sum;
}

/* One pass a token: `sum` counts the logits relative to the largest so far, and shrinks when a larger one
 * comes. */
KEDGE_KERNEL(head_loss) {
  KEDGE_CALL_ARGS(head_loss);
  const kedge_x *h = KEDGE_IN_X(0), *w = KEDGE_IN_X(1);
  const int32_t *labels = KEDGE_IN_I(2);
  kedge_real *nll = KEDGE_OUT_F(0), *lse = KEDGE_OUT_F(1);
  size_t dim = a->dim;
  for (size_t t = 0; t < a->tokens; t++) {
    nll[t] = lse[t] = 0;
    if (labels[t] < 0) continue;
    assert((uint32_t)labels[t] < a->vocab);
    kedge_real max = -INFINITY, sum = 0, chosen = 0;
    for (size_t v = 0; v < a->vocab; v++) {
      kedge_real z = dot(h + t * dim, w + v * dim, dim);
      if (v == (size_t)labels[t]) chosen = z;
      if (z > max) {
        sum *= KEDGE_EXP(max - z);
        max = z;
      }
      sum += KEDGE_EXP(z - max);
    }
    lse[t] = max + KEDGE_LOG(sum);
    nll[t] = lse[t] - chosen;
  }
}

/* dL/dlogit of one token and word. */
static kedge_real logit_gradient(const kedge_call *call, size_t t, size_t v) {
  KEDGE_CALL_ARGS(head_loss_grad);
  const int32_t *labels = KEDGE_IN_I(2);
  const kedge_real *lse = KEDGE_IN_F(3), *dnll = KEDGE_IN_F(4);
  size_t dim = a->dim;
  kedge_real p = KEDGE_EXP(dot(KEDGE_IN_X(0) + t * dim, KEDGE_IN_X(1) + v * dim, dim) - lse[t]);
  return dnll[t] * (p - (kedge_real)(v == (size_t)labels[t]));
}

KEDGE_KERNEL(head_loss_grad) {
  KEDGE_CALL_ARGS(head_loss_grad);
  enum { SPAN = 1024 }; /* columns of dH summed at a time */
  const kedge_x *h = KEDGE_IN_X(0), *w = KEDGE_IN_X(1);
  const int32_t *labels = KEDGE_IN_I(2);
  kedge_x *dh = KEDGE_OUT_X(0);
  kedge_real *dw = KEDGE_OUT_F(1), sum[SPAN];
  size_t dim = a->dim;
  for (size_t t = 0; t < a->tokens; t++) {
    assert(labels[t] < 0 || (uint32_t)labels[t] < a->vocab);
    for (size_t first = 0; first < dim; first += SPAN) {
      size_t n = dim - first < SPAN ? dim - first : SPAN;
      for (size_t d = 0; d < n; d++) sum[d] = 0;
      for (size_t v = 0; v < a->vocab && labels[t] >= 0; v++) {
        kedge_real g = logit_gradient(call, t, v);
        for (size_t d = 0; d < n; d++) sum[d] += g * kedge_load(w[v * dim + first + d]);
      }
      for (size_t d = 0; d < n; d++) dh[t * dim + first + d] = kedge_store(sum[d]);
    }
  }
  for (size_t v = 0; v < a->vocab; v++) {
    for (size_t d = 0; d < dim; d++) dw[v * dim + d] = 0;
    for (size_t t = 0; t < a->tokens; t++) {
      if (labels[t] < 0) continue;
      kedge_real g = logit_gradient(call, t, v);
      for (size_t d = 0; d < dim; d++) dw[v * dim + d] += g * kedge_load(h[t * dim + d]);
    }
  }
}

#elif defined(KEDGE_PART_CASES)
#include "core/op.h"
#include "tests/support/cases.h"

enum { HEAD_TOKENS = 600 };

/* Labels that walk through the vocabulary; every `gap`-th token (0: none) has none. */
static kedge_value walking_labels(kedge_case *c, uint32_t tokens, uint32_t vocab, uint32_t gap) {
  int32_t labels[HEAD_TOKENS];
  for (uint32_t t = 0; t < tokens; t++) labels[t] = gap && t % gap == 0 ? -1 : (int32_t)(t * 7 % vocab);
  return kedge_case_i(c, "labels", 1, (uint32_t[]){tokens}, labels);
}

static void head(kedge_case *c, uint32_t tokens, uint32_t dim, uint32_t vocab, uint32_t gap, double sd,
                 bool lse) {
  kedge_value h = kedge_case_scaled(c, "h", c->dtype, 2, (uint32_t[]){tokens, dim}, 0, sd);
  kedge_value w = kedge_case_x(c, "w", 2, (uint32_t[]){vocab, dim}), logsumexp;
  kedge_case_output(c, kedge_head_loss(c->graph, h, w, walking_labels(c, tokens, vocab, gap), &logsumexp));
  if (lse) kedge_case_output(c, logsumexp);
}
static void head_odd(kedge_case *c) {
  head(c, 5, 7, 11, 0, 0.5, false);
}
static void head_gaps(kedge_case *c) {
  head(c, 9, 3, 13, 2, 0.7, false);
}
static void head_one(kedge_case *c) {
  head(c, 1, 1, 1, 0, 1, true);
}
static void head_none(kedge_case *c) {
  head(c, 4, 3, 5, 1, 1, true);
}
static void head_steep(kedge_case *c) {
  head(c, 6, 16, 40, 3, 20, true);
}
static void head_tall(kedge_case *c) {
  head(c, HEAD_TOKENS, 5, 131, 11, 1, true);
}
static void head_wide(kedge_case *c) {
  head(c, 3, 9, 2300, 0, 1, true);
}
static void head_bad_width(kedge_case *c) {
  kedge_value h = kedge_case_x(c, "h", 2, (uint32_t[]){4, 8}),
              w = kedge_case_x(c, "w", 2, (uint32_t[]){5, 7});
  kedge_case_output(c, kedge_head_loss(c->graph, h, w, walking_labels(c, 4, 5, 0), NULL));
}
static void head_bad_labels(kedge_case *c) {
  kedge_value h = kedge_case_x(c, "h", 2, (uint32_t[]){4, 8}),
              w = kedge_case_x(c, "w", 2, (uint32_t[]){5, 8});
  kedge_case_output(c, kedge_head_loss(c->graph, h, w, walking_labels(c, 3, 5, 0), NULL));
}
KEDGE_CASES(head_loss) = {{"odd sizes", head_odd, .differentiable = true},
                          {"tokens without a label", head_gaps, .differentiable = true},
                          {"one word", head_one, .rejects = NULL},
                          {"no labels at all", head_none, .rejects = NULL},
                          {"large logits", head_steep, .rejects = NULL},
                          {"more tokens than a panel", head_tall, .f32 = 1e-5},
                          {"a vocabulary of several chunks", head_wide, .f32 = 1e-5},
                          {"weight of another width", head_bad_width, .rejects = "width of the head weight"},
                          {"too few labels", head_bad_labels, .rejects = "number of labels"},
                          {0}};

static void head_grad(kedge_case *c, uint32_t tokens, uint32_t dim, uint32_t vocab, uint32_t gap,
                      uint32_t seeds) {
  kedge_value h = kedge_case_scaled(c, "h", c->dtype, 2, (uint32_t[]){tokens, dim}, 0, 0.7);
  kedge_value w = kedge_case_x(c, "w", 2, (uint32_t[]){vocab, dim});
  kedge_value dnll = kedge_case_f(c, "dnll", 1, (uint32_t[]){seeds});
  kedge_value labels = walking_labels(c, tokens, vocab, gap), lse, outs[KEDGE_MAX_OUT] = {0};
  kedge_args_head_loss_grad args = {0};
  kedge_head_loss(c->graph, h, w, labels, &lse);
  kedge__node(c->graph, KEDGE_OP_head_loss_grad, (kedge_value[]){h, w, labels, lse, dnll}, &args, KEDGE_F32,
              outs);
  kedge_case_output(c, outs[0]);
  kedge_case_output(c, outs[1]);
}
static void head_grad_odd(kedge_case *c) {
  head_grad(c, 5, 7, 11, 0, 5);
}
static void head_grad_none(kedge_case *c) {
  head_grad(c, 3, 2, 4, 1, 3);
}
static void head_grad_tall(kedge_case *c) {
  head_grad(c, HEAD_TOKENS, 5, 131, 3, HEAD_TOKENS);
}
static void head_grad_wide(kedge_case *c) {
  head_grad(c, 3, 9, 2300, 2, 3);
}
static void head_grad_bad(kedge_case *c) {
  head_grad(c, 5, 7, 11, 0, 4);
}
KEDGE_CASES(head_loss_grad) = {
    {"odd sizes", head_grad_odd, .f32 = 1e-5},
    {"no labels at all", head_grad_none, .rejects = NULL},
    {"more tokens than a panel", head_grad_tall, .f32 = 2e-5},
    {"a vocabulary of several chunks", head_grad_wide, .f32 = 1e-5},
    {"gradient of too few tokens", head_grad_bad, .rejects = "gradient of the loss"},
    {0}};
#endif
