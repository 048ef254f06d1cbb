/* SPDX-License-Identifier: Apache-2.0
 *
 * Routing: router scores, the choice of K experts, the plan of rows by expert, and the weights of the chosen.
 * Tuned twin: backends/cpu/kernels/route.c. The bias on the logits (row_bias) and the movement of rows are in
 * rows.c. */

#if defined(KEDGE_PART_RULES)
#include "core/op.h"

static kedge_status want_kind(kedge_u32 kind) {
  if (kind == KEDGE_SCORE_SOFTMAX || kind == KEDGE_SCORE_SIGMOID) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_ARGUMENT, "expected a score of kind 0 (softmax) or 1 (sigmoid), got kind %u",
                    kind);
}

kedge_value kedge_scores(kedge_graph *g, kedge_value logits, uint32_t kind) {
  kedge_args_scores args = {.kind = kind};
  return kedge__node(g, KEDGE_OP_scores, &logits, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(scores) {
  kedge_args_scores *a = rule->args;
  KEDGE_TRY(want_kind(a->kind));
  KEDGE_TRY(kedge__want_rank(&rule->in[0], 2, "router logits"));
  a->tokens = rule->in[0].dims[0];
  a->experts = rule->in[0].dims[1];
  kedge__set_shape(&rule->out[0], 2, a->tokens, a->experts, 1);
  return KEDGE_OK;
}

KEDGE_GRADIENT(scores) {
  const kedge_args_scores *a = rule->args;
  kedge_args_scores_grad args = {.kind = a->kind};
  rule->din[0] = kedge__node(rule->graph, KEDGE_OP_scores_grad, (kedge_value[]){rule->out[0], rule->dout[0]},
                             &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(scores_grad) {
  kedge_args_scores_grad *a = rule->args;
  KEDGE_TRY(want_kind(a->kind));
  KEDGE_TRY(kedge__want_rank(&rule->in[0], 2, "router scores"));
  KEDGE_TRY(kedge__same_shape(&rule->in[0], &rule->in[1], "gradient of the scores"));
  a->tokens = rule->in[0].dims[0];
  a->experts = rule->in[0].dims[1];
  kedge__set_shape(&rule->out[0], 2, a->tokens, a->experts, 1);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(scores_grad)

kedge_value kedge_topk(kedge_graph *g, kedge_value scores, kedge_value bias, kedge_value segments,
                       const kedge_topk_options *options, kedge_value *bad) {
  const bool grouped = options->groups > 1;
  kedge_args_topk args = {.k = options->k,
                          .groups = grouped ? options->groups : 1,
                          .topk_groups = grouped ? options->topk_groups : 1,
                          .group_kind = grouped ? options->group_kind : KEDGE_GROUP_MAX};
  kedge_value outs[KEDGE_MAX_OUT] = {0};
  kedge_value ids =
      kedge__node(g, KEDGE_OP_topk, (kedge_value[]){scores, bias, segments}, &args, KEDGE_F32, outs);
  if (bad) *bad = outs[1];
  return ids;
}

static kedge_status want_groups(const kedge_args_topk *a) {
  if (a->group_kind != KEDGE_GROUP_MAX && a->group_kind != KEDGE_GROUP_TWO)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "expected groups of kind 0 (best) or 1 (two best), got kind %u",
                      a->group_kind);
  const uint32_t least = a->group_kind == KEDGE_GROUP_TWO ? 2 : 1;
  if (!a->groups || a->experts % a->groups || a->experts / a->groups < least)
    return kedge_fail(KEDGE_ERR_SHAPE, "expected equal groups of %u or more of the %u experts, got %u groups",
                      least, a->experts, a->groups);
  if (a->topk_groups < 1 || a->topk_groups > a->groups)
    return kedge_fail(KEDGE_ERR_SHAPE, "expected 1 to %u groups a token, got %u", a->groups, a->topk_groups);
  const uint32_t most = a->experts / a->groups * a->topk_groups;
  if (a->k < 1 || a->k > most)
    return kedge_fail(KEDGE_ERR_SHAPE, "expected 1 to %u experts a token, got %u", most, a->k);
  return KEDGE_OK;
}

KEDGE_SHAPE(topk) {
  kedge_args_topk *a = rule->args;
  const kedge_shape *in = rule->in;
  KEDGE_TRY(kedge__want_rank(&in[0], 2, "router scores"));
  a->tokens = in[0].dims[0];
  a->experts = in[0].dims[1];
  KEDGE_TRY(want_groups(a));
  if (rule->present[1]) {
    KEDGE_TRY(kedge__want_rank(&in[1], 1, "selection bias"));
    KEDGE_TRY(kedge__want_dim(&in[1], 0, a->experts, "selection bias"));
  }
  KEDGE_TRY(kedge__want_rank(&in[2], 1, "segments"));
  KEDGE_TRY(kedge__want_dim(&in[2], 0, a->tokens, "segments"));
  kedge__set_shape(&rule->out[0], 2, a->tokens, a->k, 1);
  kedge__set_shape(&rule->out[1], 1, 1, 1, 1);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(topk)

kedge_routes kedge_dispatch(kedge_graph *g, kedge_value ids, uint32_t experts) {
  kedge_args_dispatch args = {.experts = experts};
  kedge_value outs[KEDGE_MAX_OUT] = {0};
  kedge__node(g, KEDGE_OP_dispatch, &ids, &args, KEDGE_F32, outs);
  bool made = outs[0] != KEDGE_NONE;
  return (kedge_routes){.ids_TK = made ? ids : KEDGE_NONE,
                        .slots_R = outs[0],
                        .offsets_E1 = outs[1],
                        .rows_TK = outs[2],
                        .experts = experts,
                        .topk = made ? kedge_value_dim(g, ids, 1) : 0};
}

KEDGE_SHAPE(dispatch) {
  kedge_args_dispatch *a = rule->args;
  KEDGE_TRY(kedge__want_rank(&rule->in[0], 2, "expert ids"));
  a->tokens = rule->in[0].dims[0];
  a->k = rule->in[0].dims[1];
  if (a->k > a->experts)
    return kedge_fail(KEDGE_ERR_SHAPE, "expected at least as many experts as a token has ids, %u, got %u",
                      a->k, a->experts);
  kedge__set_shape(&rule->out[0], 1, a->tokens * a->k, 1, 1);
  kedge__set_shape(&rule->out[1], 1, a->experts + 1, 1, 1);
  kedge__set_shape(&rule->out[2], 2, a->tokens, a->k, 1);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(dispatch)

kedge_value kedge_gates(kedge_graph *g, kedge_value logits, kedge_value ids,
                        const kedge_gate_options *options) {
  kedge_args_gates args = {.kind = options->kind,
                           .normalise = options->normalise,
                           .alpha = options->alpha,
                           .epsilon = options->epsilon};
  return kedge__node(g, KEDGE_OP_gates, (kedge_value[]){logits, ids}, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(gates) {
  kedge_args_gates *a = rule->args;
  const kedge_shape *in = rule->in;
  KEDGE_TRY(want_kind(a->kind));
  if (!(a->epsilon >= 0))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "expected epsilon >= 0, got %g", (double)a->epsilon);
  KEDGE_TRY(kedge__want_rank(&in[0], 2, "router logits"));
  KEDGE_TRY(kedge__want_rank(&in[1], 2, "expert ids"));
  KEDGE_TRY(kedge__want_dim(&in[1], 0, in[0].dims[0], "tokens of the expert ids"));
  a->tokens = in[0].dims[0];
  a->experts = in[0].dims[1];
  a->k = in[1].dims[1];
  kedge__set_shape(&rule->out[0], 2, a->tokens, a->k, 1);
  return KEDGE_OK;
}

KEDGE_GRADIENT(gates) {
  const kedge_args_gates *a = rule->args;
  kedge_args_gates_grad args = {
      .kind = a->kind, .normalise = a->normalise, .alpha = a->alpha, .epsilon = a->epsilon};
  rule->din[0] =
      kedge__node(rule->graph, KEDGE_OP_gates_grad, (kedge_value[]){rule->in[0], rule->in[1], rule->dout[0]},
                  &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(gates_grad) {
  kedge_args_gates_grad *a = rule->args;
  const kedge_shape *in = rule->in;
  KEDGE_TRY(want_kind(a->kind));
  KEDGE_TRY(kedge__want_rank(&in[0], 2, "router logits"));
  KEDGE_TRY(kedge__want_rank(&in[1], 2, "expert ids"));
  KEDGE_TRY(kedge__want_dim(&in[1], 0, in[0].dims[0], "tokens of the expert ids"));
  KEDGE_TRY(kedge__want_rank(&in[2], 2, "gradient of the gates"));
  KEDGE_TRY(kedge__want_dim(&in[2], 0, in[1].dims[0], "gradient of the gates"));
  KEDGE_TRY(kedge__want_dim(&in[2], 1, in[1].dims[1], "gradient of the gates"));
  a->tokens = in[0].dims[0];
  a->experts = in[0].dims[1];
  a->k = in[1].dims[1];
  kedge__set_shape(&rule->out[0], 2, a->tokens, a->experts, 1);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(gates_grad)

#elif defined(KEDGE_PART_KERNELS)
#include "core/ops/gate_math.h"
#include "core/ops/kernel.h"
#include "core/ops/topk_groups.h"

KEDGE_KERNEL(scores) {
  KEDGE_CALL_ARGS(scores);
  for (size_t t = 0; t < a->tokens; t++) {
    const kedge_real *z = KEDGE_IN_F(0) + t * a->experts;
    kedge_real *s = KEDGE_OUT_F(0) + t * a->experts;
    kedge_softmax_stats stats = kedge__softmax_stats(z, a->experts);
    for (size_t e = 0; e < a->experts; e++)
      s[e] = a->kind == KEDGE_SCORE_SIGMOID ? kedge_sigmoid(z[e]) : KEDGE_EXP(z[e] - stats.max) / stats.sum;
  }
}

KEDGE_KERNEL(scores_grad) {
  KEDGE_CALL_ARGS(scores_grad);
  for (size_t t = 0; t < a->tokens; t++) {
    const kedge_real *s = KEDGE_IN_F(0) + t * a->experts, *ds = KEDGE_IN_F(1) + t * a->experts;
    kedge_real *dz = KEDGE_OUT_F(0) + t * a->experts, mean = 0;
    for (size_t e = 0; e < a->experts; e++) mean += s[e] * ds[e];
    for (size_t e = 0; e < a->experts; e++)
      dz[e] = a->kind == KEDGE_SCORE_SIGMOID ? ds[e] * s[e] * (1 - s[e]) : s[e] * (ds[e] - mean);
  }
}

/* Whether a row has K candidates and none that is NaN or +inf; -inf says "never". */
static bool row_is_good(const kedge_choice *c) {
  uint32_t candidates = 0;
  for (uint32_t e = 0; e < c->a->experts; e++) {
    kedge_real v = kedge__choice_value(c, e);
    if (isnan(v) || v == INFINITY) return false;
    candidates += v != -INFINITY && kedge__choice_is_open(c, e);
  }
  return candidates >= c->a->k;
}

/* The best expert among those that come after the last choice in the order (value, lower index). */
static int32_t next_best(const kedge_choice *c, kedge_real last, int32_t last_id) {
  kedge_real best = -INFINITY;
  int32_t id = -1;
  for (int32_t e = 0; e < (int32_t)c->a->experts; e++) {
    kedge_real v = kedge__choice_value(c, (uint32_t)e);
    if (v > best && (v < last || (v == last && e > last_id)) && kedge__choice_is_open(c, (uint32_t)e)) {
      best = v;
      id = e;
    }
  }
  return id;
}

KEDGE_KERNEL(topk) {
  KEDGE_CALL_ARGS(topk);
  const int32_t *segments = KEDGE_IN_I(2);
  int32_t *bad = KEDGE_OUT_I(1);
  *bad = 0;
  for (size_t t = 0; t < a->tokens; t++) {
    const kedge_choice c = {a, KEDGE_IN_F(0) + t * a->experts, KEDGE_IN_F(1)};
    int32_t *ids = KEDGE_OUT_I(0) + t * a->k;
    bool good = segments[t] >= 0 && row_is_good(&c);
    if (segments[t] >= 0 && !good) ++*bad;
    for (uint32_t k = 0; k < a->k; k++) {
      kedge_real last = k && good ? kedge__choice_value(&c, (uint32_t)ids[k - 1]) : INFINITY;
      ids[k] = good ? next_best(&c, last, k ? ids[k - 1] : -1) : -1;
    }
  }
}

/* A counting sort, in place in the offsets: counts, then first rows, then one step to the right as rows are
 * given out. */
KEDGE_KERNEL(dispatch) {
  KEDGE_CALL_ARGS(dispatch);
  const int32_t *ids = KEDGE_IN_I(0);
  int32_t *slots = KEDGE_OUT_I(0), *offsets = KEDGE_OUT_I(1), *rows = KEDGE_OUT_I(2);
  size_t count = (size_t)a->tokens * a->k;
  for (size_t e = 0; e <= a->experts; e++) offsets[e] = 0;
  for (size_t i = 0; i < count; i++) {
    assert(ids[i] < (int32_t)a->experts);
    if (ids[i] >= 0) offsets[ids[i]]++;
  }
  int32_t total = 0;
  for (size_t e = 0; e <= a->experts; e++) {
    int32_t n = offsets[e];
    offsets[e] = total;
    total += n;
  }
  for (size_t i = 0; i < count; i++) slots[i] = -1;
  for (size_t i = 0; i < count; i++) {
    rows[i] = ids[i] < 0 ? -1 : offsets[ids[i]]++;
    if (rows[i] >= 0) slots[rows[i]] = (int32_t)i;
  }
  for (size_t e = a->experts; e > 0; e--) offsets[e] = offsets[e - 1];
  offsets[0] = 0;
}

KEDGE_KERNEL(gates) {
  KEDGE_CALL_ARGS(gates);
  for (size_t t = 0; t < a->tokens; t++) {
    const int32_t *ids = KEDGE_IN_I(1) + t * a->k;
    const kedge_real *z = KEDGE_IN_F(0) + t * a->experts;
    kedge_gate_row row = kedge__gate_row(a, z, ids);
    for (uint32_t k = 0; k < a->k; k++) KEDGE_OUT_F(0)[t * a->k + k] = kedge__gate(a, &row, z, ids[k]);
  }
}

KEDGE_KERNEL(gates_grad) {
  KEDGE_CALL_ARGS(gates_grad);
  const kedge_args_gates forward = {a->tokens,    a->experts, a->k,     a->kind,
                                    a->normalise, 0,          a->alpha, a->epsilon};
  for (size_t t = 0; t < a->tokens; t++)
    kedge__gate_gradient(&forward, KEDGE_IN_F(0) + t * a->experts, KEDGE_IN_I(1) + t * a->k,
                         KEDGE_IN_F(2) + t * a->k, KEDGE_OUT_F(0) + t * a->experts);
}

#elif defined(KEDGE_PART_CASES)
#include "core/op.h"
#include "tests/support/cases.h"

#include <math.h>

static void scores_of(kedge_case *c, uint32_t tokens, uint32_t experts, double sd, uint32_t kind) {
  kedge_value z = kedge_case_scaled(c, "z", KEDGE_F32, 2, (uint32_t[]){tokens, experts}, 0, sd);
  kedge_case_output(c, kedge_scores(c->graph, z, kind));
}
static void scores_softmax(kedge_case *c) {
  scores_of(c, 5, 7, 1, KEDGE_SCORE_SOFTMAX);
}
static void scores_sigmoid(kedge_case *c) {
  scores_of(c, 3, 33, 1, KEDGE_SCORE_SIGMOID);
}
static void scores_one(kedge_case *c) {
  scores_of(c, 1, 1, 1, KEDGE_SCORE_SOFTMAX);
}
static void scores_steep(kedge_case *c) {
  scores_of(c, 9, 16, 80, KEDGE_SCORE_SOFTMAX);
}
static void scores_flat(kedge_case *c) {
  scores_of(c, 9, 16, 80, KEDGE_SCORE_SIGMOID);
}
static void scores_bad(kedge_case *c) {
  scores_of(c, 2, 3, 1, 2);
}
static void scores_flat_rank(kedge_case *c) {
  kedge_case_output(c, kedge_scores(c->graph, kedge_case_f(c, "z", 1, (uint32_t[]){4}), KEDGE_SCORE_SOFTMAX));
}
KEDGE_CASES(scores) = {{"softmax", scores_softmax, .differentiable = true},
                       {"sigmoid", scores_sigmoid, .differentiable = true},
                       {"one expert", scores_one, .rejects = NULL},
                       {"softmax of large logits", scores_steep, .rejects = NULL},
                       {"sigmoid of large logits", scores_flat, .rejects = NULL},
                       {"unknown kind", scores_bad, .rejects = "got kind 2"},
                       {"logits without experts", scores_flat_rank, .rejects = "router logits"},
                       {0}};

static void scores_grad_of(kedge_case *c, uint32_t kind, uint32_t other) {
  kedge_value z = kedge_case_f(c, "z", 2, (uint32_t[]){4, 9}),
              ds = kedge_case_f(c, "ds", 2, (uint32_t[]){4, other});
  kedge_args_scores_grad args = {.kind = kind};
  kedge_value s = kedge_scores(c->graph, z, kind);
  kedge_case_output(
      c, kedge__node(c->graph, KEDGE_OP_scores_grad, (kedge_value[]){s, ds}, &args, KEDGE_F32, NULL));
}
static void scores_grad_softmax(kedge_case *c) {
  scores_grad_of(c, KEDGE_SCORE_SOFTMAX, 9);
}
static void scores_grad_sigmoid(kedge_case *c) {
  scores_grad_of(c, KEDGE_SCORE_SIGMOID, 9);
}
static void scores_grad_bad(kedge_case *c) {
  scores_grad_of(c, KEDGE_SCORE_SIGMOID, 8);
}
KEDGE_CASES(scores_grad) = {
    {"softmax", scores_grad_softmax, .rejects = NULL},
    {"sigmoid", scores_grad_sigmoid, .rejects = NULL},
    {"gradient of another shape", scores_grad_bad, .rejects = "gradient of the scores"},
    {0}};

/* Scores of tokens x experts by value, or random (NULL); the last `tail` tokens are in no segment. */
static void topk_groups_of(kedge_case *c, uint32_t tokens, uint32_t experts,
                           const kedge_topk_options *options, const double *scores, const double *bias,
                           uint32_t tail) {
  int32_t segments[64] = {0};
  for (uint32_t t = tokens - tail; t < tokens; t++) segments[t] = -1;
  uint32_t dims[] = {tokens, experts};
  kedge_value s = scores ? kedge_case_constant(c, "s", 2, dims, scores) : kedge_case_f(c, "s", 2, dims);
  kedge_value b = bias ? kedge_case_constant(c, "bias", 1, &experts, bias) : KEDGE_NONE, bad;
  kedge_case_output(
      c, kedge_topk(c->graph, s, b, kedge_case_i(c, "segments", 1, &tokens, segments), options, &bad));
  kedge_case_output(c, bad);
}
static void topk_of(kedge_case *c, uint32_t tokens, uint32_t experts, uint32_t k, const double *scores,
                    const double *bias, uint32_t tail) {
  topk_groups_of(c, tokens, experts, &(kedge_topk_options){.k = k}, scores, bias, tail);
}
static void topk_random(kedge_case *c) {
  topk_of(c, 50, 37, 6, NULL, NULL, 3);
}
static void topk_all(kedge_case *c) {
  topk_of(c, 4, 5, 5, NULL, NULL, 0);
}
static void topk_one(kedge_case *c) {
  topk_of(c, 1, 1, 1, NULL, NULL, 0);
}
static void topk_ties(kedge_case *c) {
  topk_of(c, 2, 6, 3, (double[]){1, 2, 1, 2, 1, 2, 0, 0, 0, 0, 0, 0}, NULL, 0);
}
static void topk_bias(kedge_case *c) {
  topk_of(c, 3, 4, 2, (double[]){.1, .2, .3, .4, .5, .5, .5, .5, .9, .1, .1, .1}, (double[]){0, .5, -.5, -2},
          1);
}
static void topk_never(kedge_case *c) {
  topk_of(c, 2, 4, 2, (double[]){-INFINITY, 1, -INFINITY, 2, 3, -INFINITY, -INFINITY, -INFINITY}, NULL, 0);
}
static void topk_not_finite(kedge_case *c) { /* infinity + -infinity is not a number */
  topk_of(c, 4, 3, 1, (double[]){1, INFINITY, 2, INFINITY, 2, 3, 1, 2, 3, INFINITY, INFINITY, INFINITY},
          (double[]){0, -INFINITY, 0}, 1);
}
static void topk_too_many(kedge_case *c) {
  topk_of(c, 2, 3, 4, NULL, NULL, 0);
}
static void topk_short_bias(kedge_case *c) {
  kedge_value s = kedge_case_f(c, "s", 2, (uint32_t[]){2, 3}),
              b = kedge_case_f(c, "bias", 1, (uint32_t[]){2});
  kedge_value segments = kedge_case_i(c, "segments", 1, (uint32_t[]){2}, (int32_t[]){0, 0});
  kedge_case_output(c, kedge_topk(c->graph, s, b, segments, &(kedge_topk_options){.k = 1}, NULL));
}
static void topk_grouped(kedge_case *c, uint32_t k, uint32_t groups, uint32_t kept, uint32_t kind) {
  const double bias[] = {-.4, .3, 0, -.2, .1, -2, .5, 0, 0, -.1, .7, -.3};
  topk_groups_of(c, 40, 12, &(kedge_topk_options){k, groups, kept, kind}, NULL, bias, 2);
}
static void topk_group_best(kedge_case *c) {
  topk_grouped(c, 4, 4, 2, KEDGE_GROUP_MAX);
}
static void topk_group_two(kedge_case *c) {
  topk_grouped(c, 3, 3, 2, KEDGE_GROUP_TWO);
}
static void topk_group_single(kedge_case *c) {
  topk_grouped(c, 2, 12, 3, KEDGE_GROUP_MAX);
}
static void topk_group_filled(kedge_case *c) { /* all experts of the group that is left */
  topk_grouped(c, 3, 4, 1, KEDGE_GROUP_TWO);
}
static void topk_group_ties(kedge_case *c) {
  topk_groups_of(c, 2, 6, &(kedge_topk_options){2, 3, 1, KEDGE_GROUP_TWO},
                 (double[]){1, 1, 2, 0, 0, 2, -1, -1, -1, -1, -3, 0}, NULL, 0);
}
/* Scores below 0: a closed group is never chosen for a score of 0 put in its place. */
static void topk_group_negative(kedge_case *c) {
  topk_groups_of(c, 1, 4, &(kedge_topk_options){2, 2, 1, KEDGE_GROUP_TWO}, (double[]){-1, -9, -2, -3}, NULL,
                 0);
}
static void topk_group_never(kedge_case *c) {
  topk_groups_of(c, 2, 4, &(kedge_topk_options){2, 2, 1, KEDGE_GROUP_MAX},
                 (double[]){1, -INFINITY, 0, 0, -INFINITY, -INFINITY, 0, 1}, NULL, 0);
}
static void topk_group_uneven(kedge_case *c) {
  topk_grouped(c, 2, 5, 2, KEDGE_GROUP_MAX);
}
static void topk_group_small(kedge_case *c) {
  topk_grouped(c, 2, 12, 4, KEDGE_GROUP_TWO);
}
static void topk_group_none(kedge_case *c) {
  topk_grouped(c, 2, 4, 0, KEDGE_GROUP_MAX);
}
static void topk_group_few(kedge_case *c) {
  topk_grouped(c, 4, 4, 1, KEDGE_GROUP_MAX);
}
static void topk_group_kind(kedge_case *c) {
  topk_grouped(c, 2, 4, 2, 2);
}
KEDGE_CASES(topk) = {{"random scores, tail tokens", topk_random, .rejects = NULL},
                     {"all experts", topk_all, .rejects = NULL},
                     {"one expert", topk_one, .rejects = NULL},
                     {"ties go to the lowest index", topk_ties, .rejects = NULL},
                     {"a bias changes the choice", topk_bias, .rejects = NULL},
                     {"minus infinity is never chosen", topk_never, .rejects = NULL},
                     {"rows that are not finite", topk_not_finite, .rejects = NULL},
                     {"groups by their best", topk_group_best, .rejects = NULL},
                     {"groups by their two best", topk_group_two, .rejects = NULL},
                     {"groups of one expert", topk_group_single, .rejects = NULL},
                     {"a whole group", topk_group_filled, .rejects = NULL},
                     {"equal groups", topk_group_ties, .rejects = NULL},
                     {"groups of negative scores", topk_group_negative, .rejects = NULL},
                     {"a group with too few candidates", topk_group_never, .rejects = NULL},
                     {"uneven groups", topk_group_uneven, .rejects = "got 5 groups"},
                     {"two best of one", topk_group_small, .rejects = "equal groups of 2"},
                     {"no group", topk_group_none, .rejects = "expected 1 to 4 groups"},
                     {"more than the groups have", topk_group_few, .rejects = "expected 1 to 3"},
                     {"unknown kind of group", topk_group_kind, .rejects = "got kind 2"},
                     {"more than there are", topk_too_many, .rejects = "expected 1 to 3"},
                     {"short bias", topk_short_bias, .rejects = "selection bias"},
                     {0}};

static void dispatch_of(kedge_case *c, uint32_t tokens, uint32_t k, uint32_t experts, const int32_t *ids) {
  kedge_routes r = kedge_dispatch(c->graph, kedge_case_i(c, "ids", 2, (uint32_t[]){tokens, k}, ids), experts);
  kedge_case_output(c, r.slots_R);
  kedge_case_output(c, r.offsets_E1);
  kedge_case_output(c, r.rows_TK);
}
static void dispatch_some(kedge_case *c) {
  dispatch_of(c, 5, 2, 4, (int32_t[]){3, 0, 0, 1, -1, -1, 3, 1, 0, 3}); /* nothing goes to expert 2 */
}
static void dispatch_none(kedge_case *c) {
  dispatch_of(c, 2, 2, 3, (int32_t[]){-1, -1, -1, -1});
}
static void dispatch_one(kedge_case *c) {
  dispatch_of(c, 3, 1, 1, (int32_t[]){0, 0, 0});
}
static void dispatch_bad(kedge_case *c) {
  dispatch_of(c, 1, 3, 2, (int32_t[]){0, 1, -1});
}
KEDGE_CASES(dispatch) = {{"an idle expert, a tail token", dispatch_some, .rejects = NULL},
                         {"no token at all", dispatch_none, .rejects = NULL},
                         {"one expert", dispatch_one, .rejects = NULL},
                         {"more ids than experts", dispatch_bad, .rejects = "at least as many experts"},
                         {0}};

enum { GATE_TOKENS = 5, GATE_EXPERTS = 7, GATE_K = 3 };
static const int32_t gate_ids[] = {6, 0, 3, 1, 2, 5, -1, -1, -1, 4, 3, 2, 0, -1, 1};
static void gates_of(kedge_case *c, double sd, double mean, uint32_t kind, bool normalise, double alpha,
                     double epsilon) {
  kedge_value z = kedge_case_scaled(c, "z", KEDGE_F32, 2, (uint32_t[]){GATE_TOKENS, GATE_EXPERTS}, mean, sd);
  kedge_value ids = kedge_case_i(c, "ids", 2, (uint32_t[]){GATE_TOKENS, GATE_K}, gate_ids);
  kedge_case_output(c, kedge_gates(c->graph, z, ids, &(kedge_gate_options){kind, normalise, alpha, epsilon}));
}
static void gates_softmax(kedge_case *c) {
  gates_of(c, 1, 0, KEDGE_SCORE_SOFTMAX, false, 1.5, 0);
}
static void gates_softmax_norm(kedge_case *c) {
  gates_of(c, 1, 0, KEDGE_SCORE_SOFTMAX, true, 1, 0);
}
static void gates_softmax_eps(kedge_case *c) {
  gates_of(c, 1, 0, KEDGE_SCORE_SOFTMAX, true, 2, 0.125);
}
static void gates_sigmoid(kedge_case *c) {
  gates_of(c, 1, 0, KEDGE_SCORE_SIGMOID, false, 2.5, 0);
}
static void gates_sigmoid_norm(kedge_case *c) {
  gates_of(c, 1, 0, KEDGE_SCORE_SIGMOID, true, 2.446, 1e-20);
}
static void gates_steep(kedge_case *c) {
  gates_of(c, 60, 0, KEDGE_SCORE_SOFTMAX, true, 1, 0);
}
static void gates_tiny(kedge_case *c) {
  gates_of(c, 1, -60, KEDGE_SCORE_SIGMOID, true, 2.446, 1e-20);
}
static void gates_one(kedge_case *c) {
  kedge_value ids = kedge_case_i(c, "ids", 2, (uint32_t[]){2, 1}, (int32_t[]){0, -1});
  kedge_value z = kedge_case_f(c, "z", 2, (uint32_t[]){2, 1});
  kedge_case_output(c, kedge_gates(c->graph, z, ids, &(kedge_gate_options){KEDGE_SCORE_SOFTMAX, true, 1, 0}));
}
static void gates_bad(kedge_case *c) {
  kedge_value ids = kedge_case_i(c, "ids", 2, (uint32_t[]){GATE_TOKENS, GATE_K}, gate_ids);
  kedge_value z = kedge_case_f(c, "z", 2, (uint32_t[]){4, 7});
  kedge_case_output(c, kedge_gates(c->graph, z, ids, &(kedge_gate_options){KEDGE_SCORE_SOFTMAX, true, 1, 0}));
}
KEDGE_CASES(gates) = {{"softmax", gates_softmax, .differentiable = true},
                      {"softmax over the chosen", gates_softmax_norm, .differentiable = true},
                      {"softmax, normalised with epsilon", gates_softmax_eps, .differentiable = true},
                      {"sigmoid", gates_sigmoid, .differentiable = true},
                      {"sigmoid, normalised", gates_sigmoid_norm, .differentiable = true},
                      {"large logits", gates_steep, .rejects = NULL},
                      {"scores far below epsilon", gates_tiny, .rejects = NULL},
                      {"one expert", gates_one, .rejects = NULL},
                      {"ids of other tokens", gates_bad, .rejects = "tokens of the expert ids"},
                      {0}};

static void gates_grad_of(kedge_case *c, uint32_t kind, bool normalise, uint32_t k) {
  kedge_value z = kedge_case_f(c, "z", 2, (uint32_t[]){GATE_TOKENS, GATE_EXPERTS});
  kedge_value ids = kedge_case_i(c, "ids", 2, (uint32_t[]){GATE_TOKENS, GATE_K}, gate_ids);
  kedge_value dg = kedge_case_f(c, "dg", 2, (uint32_t[]){GATE_TOKENS, k});
  kedge_args_gates_grad args = {.kind = kind, .normalise = normalise, .alpha = 1.5};
  kedge_case_output(
      c, kedge__node(c->graph, KEDGE_OP_gates_grad, (kedge_value[]){z, ids, dg}, &args, KEDGE_F32, NULL));
}
static void gates_grad_softmax(kedge_case *c) {
  gates_grad_of(c, KEDGE_SCORE_SOFTMAX, false, GATE_K);
}
static void gates_grad_softmax_norm(kedge_case *c) {
  gates_grad_of(c, KEDGE_SCORE_SOFTMAX, true, GATE_K);
}
static void gates_grad_sigmoid(kedge_case *c) {
  gates_grad_of(c, KEDGE_SCORE_SIGMOID, true, GATE_K);
}
static void gates_grad_bad(kedge_case *c) {
  gates_grad_of(c, KEDGE_SCORE_SIGMOID, true, 2);
}
KEDGE_CASES(gates_grad) = {{"softmax", gates_grad_softmax, .rejects = NULL},
                           {"softmax over the chosen", gates_grad_softmax_norm, .rejects = NULL},
                           {"sigmoid, normalised", gates_grad_sigmoid, .rejects = NULL},
                           {"gradient of fewer choices", gates_grad_bad, .rejects = "gradient of the gates"},
                           {0}};
#endif
