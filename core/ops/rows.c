/* SPDX-License-Identifier: Apache-2.0
 *
 * Ops that move, gather, combine and sum rows. The tuned CPU kernels are in backends/cpu/kernels/rows.c;
 * core/op.h says what the three parts are. gather and combine are each other's transpose.
 */
#if defined(KEDGE_PART_RULES)
#include "core/op.h"

/* Output 0 takes the shape of input 0 with another last dimension. */
static void with_cols(kedge_shape_rule *rule, kedge_u32 cols) {
  kedge_dtype dtype = rule->out[0].dtype;
  rule->out[0] = rule->in[0];
  rule->out[0].dtype = dtype;
  rule->out[0].dims[rule->in[0].rank - 1] = cols;
}

kedge_value kedge_gather_rows(kedge_graph *g, kedge_value x, const kedge_routes *routes) {
  kedge_args_gather_rows args = {.topk = routes->topk};
  kedge_value in[] = {x, routes->slots_R, routes->offsets_E1, routes->rows_TK};
  return kedge__node(g, KEDGE_OP_gather_rows, in, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(gather_rows) {
  kedge_args_gather_rows *a = rule->args;
  KEDGE_TRY(kedge__want_rank(&rule->in[0], 2, "x"));
  KEDGE_TRY(kedge__want_rank(&rule->in[1], 1, "the slots of the routes"));
  KEDGE_TRY(kedge__want_rank(&rule->in[2], 1, "the offsets of the routes"));
  a->rows = rule->in[1].dims[0];
  a->cols = rule->in[0].dims[1];
  a->experts = rule->in[2].dims[0] - 1;
  if (!a->topk || a->rows % a->topk)
    return kedge_fail(KEDGE_ERR_SHAPE, "expected whole tokens of %u slots, got %u slots", a->topk, a->rows);
  KEDGE_TRY(kedge__want_dim(&rule->in[0], 0, a->rows / a->topk, "x (tokens of the routes)"));
  kedge__set_shape(&rule->out[0], 2, a->rows, a->cols, 1);
  return KEDGE_OK;
}

KEDGE_GRADIENT(gather_rows) {
  const kedge_args_gather_rows *a = rule->args;
  kedge_routes routes = {KEDGE_NONE, rule->in[1], rule->in[2], rule->in[3], a->experts, a->topk};
  rule->din[0] = kedge_combine_rows(rule->graph, rule->dout[0], &routes);
}

kedge_value kedge_combine_rows(kedge_graph *g, kedge_value x, const kedge_routes *routes) {
  kedge_args_combine_rows args = {0};
  kedge_value in[] = {x, routes->rows_TK, routes->slots_R, routes->offsets_E1};
  return kedge__node(g, KEDGE_OP_combine_rows, in, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(combine_rows) {
  kedge_args_combine_rows *a = rule->args;
  KEDGE_TRY(kedge__want_rank(&rule->in[0], 2, "x"));
  KEDGE_TRY(kedge__want_rank(&rule->in[1], 2, "the rows of the routes"));
  a->tokens = rule->in[1].dims[0];
  a->topk = rule->in[1].dims[1];
  a->cols = rule->in[0].dims[1];
  KEDGE_TRY(kedge__want_dim(&rule->in[0], 0, a->tokens * a->topk, "x (rows of the routes)"));
  kedge__set_shape(&rule->out[0], 2, a->tokens, a->cols, 1);
  return KEDGE_OK;
}

/* In the storage dtype before the gather, so that a grouped product can absorb the gather. */
KEDGE_GRADIENT(combine_rows) {
  const kedge_args_combine_rows *a = rule->args;
  kedge_graph *g = rule->graph;
  uint32_t experts = kedge_value_dim(g, rule->in[3], 0) - 1;
  kedge_routes routes = {KEDGE_NONE, rule->in[2], rule->in[3], rule->in[1], experts, a->topk};
  rule->din[0] =
      kedge_gather_rows(g, kedge_cast(g, rule->dout[0], kedge_value_dtype(g, rule->in[0])), &routes);
}

kedge_value kedge_embed(kedge_graph *g, kedge_value weight, kedge_value ids) {
  kedge_args_embed args = {0};
  return kedge__node(g, KEDGE_OP_embed, (kedge_value[]){weight, ids}, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(embed) {
  kedge_args_embed *a = rule->args;
  KEDGE_TRY(kedge__want_rank(&rule->in[0], 2, "the weight"));
  KEDGE_TRY(kedge__want_rank(&rule->in[1], 1, "the ids"));
  a->tokens = rule->in[1].dims[0];
  a->vocab = rule->in[0].dims[0];
  a->cols = rule->in[0].dims[1];
  kedge__set_shape(&rule->out[0], 2, a->tokens, a->cols, 1);
  return KEDGE_OK;
}

KEDGE_GRADIENT(embed) {
  const kedge_args_embed *a = rule->args;
  kedge_args_embed_grad args = {.vocab = a->vocab};
  kedge_value in[] = {rule->in[1], rule->dout[0]};
  rule->din[0] = kedge__node(rule->graph, KEDGE_OP_embed_grad, in, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(embed_grad) {
  kedge_args_embed_grad *a = rule->args;
  KEDGE_TRY(kedge__want_rank(&rule->in[0], 1, "the ids"));
  KEDGE_TRY(kedge__want_rank(&rule->in[1], 2, "dy"));
  a->tokens = rule->in[0].dims[0];
  a->cols = rule->in[1].dims[1];
  KEDGE_TRY(kedge__want_dim(&rule->in[1], 0, a->tokens, "dy (a row an id)"));
  kedge__set_shape(&rule->out[0], 2, a->vocab, a->cols, 1);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(embed_grad)

void kedge_scatter_rows(kedge_graph *g, kedge_value dst, kedge_value x, kedge_value index) {
  kedge_args_scatter_rows args = {0};
  kedge__node(g, KEDGE_OP_scatter_rows, (kedge_value[]){dst, x, index}, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(scatter_rows) {
  kedge_args_scatter_rows *a = rule->args;
  KEDGE_TRY(kedge__want_rank(&rule->in[0], 2, "dst"));
  KEDGE_TRY(kedge__want_rank(&rule->in[1], 2, "x"));
  KEDGE_TRY(kedge__want_rank(&rule->in[2], 1, "the index"));
  a->capacity = rule->in[0].dims[0];
  a->cols = rule->in[0].dims[1];
  a->rows = rule->in[1].dims[0];
  KEDGE_TRY(kedge__want_dim(&rule->in[1], 1, a->cols, "x (width of dst)"));
  return kedge__want_dim(&rule->in[2], 0, a->rows, "the index (rows of x)");
}
KEDGE_NO_GRADIENT(scatter_rows)

kedge_value kedge_slice(kedge_graph *g, kedge_value x, uint32_t offset, uint32_t cols) {
  kedge_args_slice args = {.offset = offset, .cols = cols};
  return kedge__node(g, KEDGE_OP_slice, &x, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(slice) {
  kedge_args_slice *a = rule->args;
  a->rows = kedge__rows(&rule->in[0]);
  a->total = kedge__cols(&rule->in[0]);
  if (!a->cols || a->offset > a->total || a->cols > a->total - a->offset)
    return kedge_fail(KEDGE_ERR_SHAPE, "expected some of %u columns, got %u from column %u on", a->total,
                      a->cols, a->offset);
  with_cols(rule, a->cols);
  return KEDGE_OK;
}

KEDGE_GRADIENT(slice) {
  const kedge_args_slice *a = rule->args;
  rule->din[0] = kedge_place(rule->graph, rule->dout[0], a->offset, a->total);
}

kedge_value kedge_place(kedge_graph *g, kedge_value x, uint32_t offset, uint32_t total) {
  kedge_args_place args = {.offset = offset, .total = total};
  return kedge__node(g, KEDGE_OP_place, &x, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(place) {
  kedge_args_place *a = rule->args;
  a->rows = kedge__rows(&rule->in[0]);
  a->cols = kedge__cols(&rule->in[0]);
  if (a->offset > a->total || a->cols > a->total - a->offset)
    return kedge_fail(KEDGE_ERR_SHAPE, "expected room for %u columns, got column %u of %u", a->cols,
                      a->offset, a->total);
  with_cols(rule, a->total);
  return KEDGE_OK;
}

KEDGE_GRADIENT(place) {
  const kedge_args_place *a = rule->args;
  rule->din[0] = kedge_window(rule->graph, rule->dout[0], a->offset, a->cols);
}

kedge_value kedge_concat(kedge_graph *g, kedge_value a, kedge_value b) {
  kedge_args_concat args = {0};
  return kedge__node(g, KEDGE_OP_concat, (kedge_value[]){a, b}, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(concat) {
  kedge_args_concat *a = rule->args;
  KEDGE_TRY(kedge__want_rank(&rule->in[1], rule->in[0].rank, "b"));
  for (uint32_t i = 0; i + 1 < rule->in[0].rank; i++)
    KEDGE_TRY(kedge__want_dim(&rule->in[1], i, rule->in[0].dims[i], "b"));
  a->rows = kedge__rows(&rule->in[0]);
  a->cols_a = kedge__cols(&rule->in[0]);
  a->cols_b = kedge__cols(&rule->in[1]);
  with_cols(rule, a->cols_a + a->cols_b);
  return KEDGE_OK;
}

KEDGE_GRADIENT(concat) {
  const kedge_args_concat *a = rule->args;
  if (rule->need[0]) rule->din[0] = kedge_window(rule->graph, rule->dout[0], 0, a->cols_a);
  if (rule->need[1]) rule->din[1] = kedge_window(rule->graph, rule->dout[0], a->cols_a, a->cols_b);
}

kedge_value kedge_row_bias(kedge_graph *g, kedge_value x, kedge_value table, kedge_value spans,
                           double factor) {
  kedge_args_row_bias args = {.factor = factor};
  return kedge__node(g, KEDGE_OP_row_bias, (kedge_value[]){x, table, spans}, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(row_bias) {
  kedge_args_row_bias *a = rule->args;
  KEDGE_TRY(kedge__want_rank(&rule->in[0], 2, "x"));
  KEDGE_TRY(kedge__want_rank(&rule->in[1], 2, "the table"));
  KEDGE_TRY(kedge__want_rank(&rule->in[2], 1, "the spans"));
  a->tokens = rule->in[0].dims[0];
  a->experts = rule->in[0].dims[1];
  a->spans = rule->in[1].dims[0];
  KEDGE_TRY(kedge__want_dim(&rule->in[1], 1, a->experts, "the table (width of x)"));
  KEDGE_TRY(kedge__want_dim(&rule->in[2], 0, a->tokens, "the spans (rows of x)"));
  rule->out[0] = rule->in[0];
  return KEDGE_OK;
}

/* The table is a frozen prior: a gradient asked for it is an error, not a silent zero. */
KEDGE_GRADIENT(row_bias) {
  if (rule->need[1])
    kedge__graph_fail(rule->graph, KEDGE_ERR_UNSUPPORTED, "row_bias has no gradient for its table");
  rule->din[0] = rule->dout[0];
}

kedge_value kedge_sum(kedge_graph *g, kedge_value x) {
  kedge_args_sum args = {0};
  return kedge__node(g, KEDGE_OP_sum, &x, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(sum) {
  kedge_args_sum *a = rule->args;
  a->n = (kedge_u32)kedge__shape_count(&rule->in[0]);
  kedge__set_shape(&rule->out[0], 1, 1, 1, 1);
  return KEDGE_OK;
}

KEDGE_GRADIENT(sum) {
  kedge_graph *g = rule->graph;
  uint32_t dims[KEDGE_MAX_RANK], rank = kedge_value_rank(g, rule->in[0]);
  for (uint32_t i = 0; i < rank; i++) dims[i] = kedge_value_dim(g, rule->in[0], i);
  rule->din[0] = kedge_spread(g, kedge_cast(g, rule->dout[0], KEDGE_F32), rank, dims);
}

kedge_value kedge_sum_squares(kedge_graph *g, kedge_value x) {
  kedge_args_sum_squares args = {0};
  return kedge__node(g, KEDGE_OP_sum_squares, &x, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(sum_squares) {
  kedge_args_sum_squares *a = rule->args;
  a->n = (kedge_u32)kedge__shape_count(&rule->in[0]);
  kedge__set_shape(&rule->out[0], 1, 1, 1, 1);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(sum_squares)
#endif

#if defined(KEDGE_PART_KERNELS)
#include "core/ops/kernel.h"

KEDGE_KERNEL(gather_rows) {
  KEDGE_CALL_ARGS(gather_rows);
  const int32_t *slots = KEDGE_IN_I(1), *offsets = KEDGE_IN_I(2);
  for (size_t r = 0; r < a->rows; r++)
    for (size_t j = 0; j < a->cols; j++) KEDGE_OUT_X(0)
  [r * a->cols + j] = r < (size_t)offsets[a->experts]
                          ? KEDGE_IN_X(0)[(size_t)slots[r] / a->topk * call->in[0].pitch + j]
                          : kedge_store(0);
}

KEDGE_KERNEL(combine_rows) {
  KEDGE_CALL_ARGS(combine_rows);
  const int32_t *rows = KEDGE_IN_I(1);
  for (size_t t = 0; t < a->tokens; t++)
    for (size_t j = 0; j < a->cols; j++) {
      kedge_real sum = 0;
      for (size_t s = t * a->topk; s < (t + 1) * a->topk; s++)
        if (rows[s] >= 0) sum += kedge_load(KEDGE_IN_X(0)[(size_t)rows[s] * a->cols + j]);
      KEDGE_OUT_X(0)[t * a->cols + j] = kedge_store(sum);
    }
}

KEDGE_KERNEL(embed) {
  KEDGE_CALL_ARGS(embed);
  for (size_t t = 0; t < a->tokens; t++) {
    int32_t id = KEDGE_IN_I(1)[t];
    assert(id >= 0 && (uint32_t)id < a->vocab);
    memcpy(KEDGE_OUT_X(0) + t * a->cols, KEDGE_IN_X(0) + (size_t)id * a->cols, a->cols * sizeof(kedge_x));
  }
}

KEDGE_KERNEL(embed_grad) {
  KEDGE_CALL_ARGS(embed_grad);
  kedge_real *dw = KEDGE_OUT_F(0);
  for (size_t i = 0; i < (size_t)a->vocab * a->cols; i++) dw[i] = 0;
  for (size_t t = 0; t < a->tokens; t++) {
    int32_t id = KEDGE_IN_I(0)[t];
    assert(id >= 0 && (uint32_t)id < a->vocab);
    for (size_t j = 0; j < a->cols; j++)
      dw[(size_t)id * a->cols + j] += kedge_load(KEDGE_IN_X(1)[t * a->cols + j]);
  }
}

KEDGE_KERNEL(scatter_rows) {
  KEDGE_CALL_ARGS(scatter_rows);
  kedge_x *dst = call->in[0].data;
  for (size_t t = 0; t < a->rows; t++) {
    int32_t to = KEDGE_IN_I(2)[t];
    if (to < 0) continue;
    assert((uint32_t)to < a->capacity);
    memcpy(dst + (size_t)to * a->cols, KEDGE_IN_X(1) + t * call->in[1].pitch, a->cols * sizeof(kedge_x));
  }
}

KEDGE_KERNEL(slice) {
  KEDGE_CALL_ARGS(slice);
  for (size_t i = 0; i < a->rows; i++)
    memcpy(KEDGE_OUT_X(0) + i * a->cols, KEDGE_IN_X(0) + i * call->in[0].pitch + a->offset,
           a->cols * sizeof(kedge_x));
}

KEDGE_KERNEL(place) {
  KEDGE_CALL_ARGS(place);
  for (size_t i = 0; i < a->rows; i++)
    for (size_t j = 0; j < a->total; j++) KEDGE_OUT_X(0)
  [i * a->total + j] = j >= a->offset && j - a->offset < a->cols
                           ? KEDGE_IN_X(0)[i * call->in[0].pitch + j - a->offset]
                           : kedge_store(0);
}

KEDGE_KERNEL(concat) {
  KEDGE_CALL_ARGS(concat);
  for (size_t i = 0; i < a->rows; i++) {
    kedge_x *y = KEDGE_OUT_X(0) + i * ((size_t)a->cols_a + a->cols_b);
    memcpy(y, KEDGE_IN_X(0) + i * call->in[0].pitch, a->cols_a * sizeof(kedge_x));
    memcpy(y + a->cols_a, KEDGE_IN_X(1) + i * call->in[1].pitch, a->cols_b * sizeof(kedge_x));
  }
}

KEDGE_KERNEL(row_bias) {
  KEDGE_CALL_ARGS(row_bias);
  for (size_t t = 0; t < a->tokens; t++) {
    int32_t span = KEDGE_IN_I(2)[t];
    assert(span < 0 || (uint32_t)span < a->spans);
    for (size_t e = 0; e < a->experts; e++) {
      size_t i = t * a->experts + e;
      kedge_real x = KEDGE_IN_F(0)[i];
      KEDGE_OUT_F(0)[i] = span < 0 ? x : x + a->factor * KEDGE_IN_F(1)[(size_t)span * a->experts + e];
    }
  }
}

/* Long sums: blocks of 1024 elements in kedge_real, the blocks in double, so that 2^31 elements lose no
 * digits. */
KEDGE_KERNEL(sum) {
  KEDGE_CALL_ARGS(sum);
  double total = 0;
  for (size_t first = 0; first < a->n; first += 1024) {
    kedge_real block = 0;
    for (size_t i = first; i < a->n && i < first + 1024; i++) block += kedge_load_w(&call->in[0], i);
    total += block;
  }
  KEDGE_OUT_F(0)[0] = (kedge_real)total;
}

KEDGE_KERNEL(sum_squares) {
  KEDGE_CALL_ARGS(sum_squares);
  double total = 0;
  for (size_t first = 0; first < a->n; first += 1024) {
    kedge_real block = 0;
    for (size_t i = first; i < a->n && i < first + 1024; i++)
      block += kedge_load_w(&call->in[0], i) * kedge_load_w(&call->in[0], i);
    total += block;
  }
  KEDGE_OUT_F(0)[0] = (kedge_real)total;
}
#endif

#if defined(KEDGE_PART_CASES)
#include "core/op.h"
#include "tests/support/cases.h"

#define X(name, ...) kedge_case_x(c, name, sizeof((uint32_t[]){__VA_ARGS__}) / 4, (uint32_t[]){__VA_ARGS__})
#define F(name, ...) kedge_case_f(c, name, sizeof((uint32_t[]){__VA_ARGS__}) / 4, (uint32_t[]){__VA_ARGS__})
#define IDS(name, ...)                                                                                       \
  kedge_case_i(c, name, 1, (uint32_t[]){sizeof((int32_t[]){__VA_ARGS__}) / 4}, (int32_t[]){__VA_ARGS__})

/* Six tokens to two of five experts; token 2 goes nowhere, expert 3 gets nothing. */
static kedge_routes routes_6(kedge_case *c) {
  const int32_t ids[] = {0, 4, 1, 0, -1, -1, 4, 2, 0, 1, 4, 0};
  return kedge_dispatch(c->graph, kedge_case_i(c, "ids", 2, (uint32_t[]){6, 2}, ids), 5);
}
static kedge_routes routes_none(kedge_case *c) {
  return kedge_dispatch(c->graph, kedge_case_i(c, "ids", 2, (uint32_t[]){2, 1}, (int32_t[]){-1, -1}), 3);
}

static void gather_some(kedge_case *c) {
  kedge_routes r = routes_6(c);
  kedge_case_output(c, kedge_gather_rows(c->graph, X("x", 6, 7), &r));
}
static void gather_window(kedge_case *c) {
  kedge_routes r = routes_6(c);
  kedge_case_output(c, kedge_gather_rows(c->graph, kedge_window(c->graph, X("x", 6, 9), 3, 5), &r));
}
static void gather_none(kedge_case *c) {
  kedge_routes r = routes_none(c);
  kedge_case_output(c, kedge_gather_rows(c->graph, X("x", 2, 3), &r));
}
static void gather_few(kedge_case *c) {
  kedge_routes r = routes_6(c);
  kedge_case_output(c, kedge_gather_rows(c->graph, X("x", 5, 7), &r));
}
KEDGE_CASES(gather_rows) = {{"a token without experts", gather_some, .differentiable = true},
                            {"of a window", gather_window, .differentiable = true},
                            {"no valid row", gather_none, .rejects = NULL},
                            {"a token short", gather_few, .rejects = "tokens of the routes"},
                            {0}};

static void combine_some(kedge_case *c) {
  kedge_routes r = routes_6(c);
  kedge_case_output(c, kedge_combine_rows(c->graph, X("x", 12, 7), &r));
}
static void combine_none(kedge_case *c) {
  kedge_routes r = routes_none(c);
  kedge_case_output(c, kedge_combine_rows(c->graph, X("x", 2, 3), &r));
}
static void combine_few(kedge_case *c) {
  kedge_routes r = routes_6(c);
  kedge_case_output(c, kedge_combine_rows(c->graph, X("x", 6, 7), &r));
}
KEDGE_CASES(combine_rows) = {{"a token without experts", combine_some, .differentiable = true},
                             {"no valid row", combine_none, .rejects = NULL},
                             {"rows short", combine_few, .rejects = "rows of the routes"},
                             {0}};

static void embed_some(kedge_case *c) {
  kedge_case_output(c, kedge_embed(c->graph, X("w", 5, 7), IDS("ids", 3, 0, 3, 4, 3)));
}
static void embed_one(kedge_case *c) {
  kedge_case_output(c, kedge_embed(c->graph, X("w", 1, 1), IDS("ids", 0)));
}
static void embed_rank(kedge_case *c) {
  kedge_case_output(c, kedge_embed(c->graph, X("w", 5), IDS("ids", 3)));
}
KEDGE_CASES(embed) = {{"repeated ids", embed_some, .differentiable = true},
                      {"one", embed_one, .differentiable = true},
                      {"a vector for weight", embed_rank, .rejects = "2 dimensions"},
                      {0}};

static void embed_grad_of(kedge_case *c, kedge_value ids, kedge_value dy, uint32_t vocab) {
  kedge_args_embed_grad args = {.vocab = vocab};
  kedge_case_output(
      c, kedge__node(c->graph, KEDGE_OP_embed_grad, (kedge_value[]){ids, dy}, &args, KEDGE_F32, NULL));
}
static void embed_grad_some(kedge_case *c) {
  embed_grad_of(c, IDS("ids", 3, 0, 3, 4, 3), X("dy", 5, 7), 6);
}
static void embed_grad_wide(kedge_case *c) {
  embed_grad_of(c, IDS("ids", 1, 1), X("dy", 2, 300), 70);
}
static void embed_grad_few(kedge_case *c) {
  embed_grad_of(c, IDS("ids", 3, 0), X("dy", 5, 7), 6);
}
KEDGE_CASES(embed_grad) = {{"repeated ids", embed_grad_some, .rejects = NULL},
                           {"wide", embed_grad_wide, .rejects = NULL},
                           {"ids short", embed_grad_few, .rejects = "a row an id"},
                           {0}};

static void scatter_of(kedge_case *c, kedge_value dst, kedge_value x, kedge_value index) {
  kedge_scatter_rows(c->graph, dst, x, index);
  kedge_case_output(c, dst);
}
static void scatter_some(kedge_case *c) {
  scatter_of(c, X("dst", 5, 3), X("x", 4, 3), IDS("i", 4, -1, 0, 2));
}
static void scatter_window(kedge_case *c) {
  scatter_of(c, X("dst", 3, 4), kedge_window(c->graph, X("x", 2, 7), 2, 4), IDS("i", 1, 0));
}
static void scatter_width(kedge_case *c) {
  scatter_of(c, X("dst", 5, 3), X("x", 2, 4), IDS("i", 0, 1));
}
KEDGE_CASES(scatter_rows) = {{"with a skipped row", scatter_some, .rejects = NULL},
                             {"from a window", scatter_window, .rejects = NULL},
                             {"other width", scatter_width, .rejects = "width of dst"},
                             {0}};

static void slice_some(kedge_case *c) {
  kedge_case_output(c, kedge_slice(c->graph, X("x", 3, 2, 9), 2, 5));
}
static void slice_all(kedge_case *c) {
  kedge_case_output(c, kedge_slice(c->graph, X("x", 1, 4), 0, 4));
}
static void slice_window(kedge_case *c) {
  kedge_case_output(c, kedge_slice(c->graph, kedge_window(c->graph, X("x", 4, 9), 1, 7), 2, 3));
}
static void slice_beyond(kedge_case *c) {
  kedge_case_output(c, kedge_slice(c->graph, X("x", 3, 9), 5, 5));
}
KEDGE_CASES(slice) = {{"some columns", slice_some, .differentiable = true},
                      {"all columns", slice_all, .differentiable = true},
                      {"of a window", slice_window, .differentiable = true},
                      {"beyond the end", slice_beyond, .rejects = "some of 9 columns"},
                      {0}};

static void place_some(kedge_case *c) {
  kedge_case_output(c, kedge_place(c->graph, X("x", 3, 2, 4), 2, 9));
}
static void place_all(kedge_case *c) {
  kedge_case_output(c, kedge_place(c->graph, X("x", 3, 4), 0, 4));
}
static void place_window(kedge_case *c) {
  kedge_case_output(c, kedge_place(c->graph, kedge_window(c->graph, X("x", 3, 6), 1, 4), 5, 9));
}
static void place_beyond(kedge_case *c) {
  kedge_case_output(c, kedge_place(c->graph, X("x", 3, 4), 2, 5));
}
KEDGE_CASES(place) = {{"some columns", place_some, .differentiable = true},
                      {"all columns", place_all, .differentiable = true},
                      {"of a window, at the end", place_window, .differentiable = true},
                      {"beyond the end", place_beyond, .rejects = "room for 4 columns"},
                      {0}};

static void concat_some(kedge_case *c) {
  kedge_case_output(c, kedge_concat(c->graph, X("a", 2, 3, 4), X("b", 2, 3, 1)));
}
static void concat_windows(kedge_case *c) {
  kedge_value x = X("x", 5, 12);
  kedge_case_output(c,
                    kedge_concat(c->graph, kedge_window(c->graph, x, 7, 5), kedge_window(c->graph, x, 0, 3)));
}
static void concat_rows(kedge_case *c) {
  kedge_case_output(c, kedge_concat(c->graph, X("a", 2, 3), X("b", 3, 3)));
}
KEDGE_CASES(concat) = {{"odd widths", concat_some, .differentiable = true},
                       {"windows", concat_windows, .differentiable = true},
                       {"other rows", concat_rows, .rejects = "dimension 0 equal to 2"},
                       {0}};

static const double bias_table[] = {0.5, -1, 2, 0.25, -0.75, 1.5};
static void bias_some(kedge_case *c) {
  kedge_value table = kedge_case_constant(c, "table", 2, (uint32_t[]){2, 3}, bias_table);
  kedge_case_output(c, kedge_row_bias(c->graph, F("x", 4, 3), table, IDS("spans", 1, -1, 0, 1), 0.7));
}
static void bias_one(kedge_case *c) {
  kedge_value table = kedge_case_constant(c, "table", 2, (uint32_t[]){1, 6}, bias_table);
  kedge_case_output(c, kedge_row_bias(c->graph, F("x", 1, 6), table, IDS("spans", 0), -2));
}
static void bias_width(kedge_case *c) {
  kedge_value table = kedge_case_constant(c, "table", 2, (uint32_t[]){3, 2}, bias_table);
  kedge_case_output(c, kedge_row_bias(c->graph, F("x", 4, 3), table, IDS("spans", 1, -1, 0, 1), 1));
}
KEDGE_CASES(row_bias) = {{"two spans and none", bias_some, .differentiable = true},
                         {"one row", bias_one, .differentiable = true},
                         {"table of another width", bias_width, .rejects = "width of x"},
                         {0}};

static void sum_some(kedge_case *c) {
  kedge_case_output(c, kedge_sum(c->graph, X("x", 3, 7)));
}
static void sum_one(kedge_case *c) {
  kedge_case_output(c, kedge_sum(c->graph, F("x", 1)));
}
static void sum_long(kedge_case *c) {
  kedge_case_output(
      c, kedge_sum(c->graph, kedge_case_scaled(c, "x", c->dtype, 1, (uint32_t[]){150001}, 0.5, 1)));
}
static void sum_ids(kedge_case *c) {
  kedge_case_output(c, kedge_sum(c->graph, IDS("i", 1, 2)));
}
KEDGE_CASES(sum) = {{"matrix", sum_some, .differentiable = true},
                    {"one element", sum_one, .differentiable = true},
                    {"several blocks", sum_long, .rejects = NULL},
                    {"of ids", sum_ids, .rejects = "dtype i32"},
                    {0}};

static void squares_some(kedge_case *c) {
  kedge_case_output(c, kedge_sum_squares(c->graph, X("x", 3, 7)));
}
static void squares_long(kedge_case *c) {
  kedge_case_output(c, kedge_sum_squares(c->graph, X("x", 301, 501)));
}
static void squares_ids(kedge_case *c) {
  kedge_case_output(c, kedge_sum_squares(c->graph, IDS("i", 1, 2)));
}
KEDGE_CASES(sum_squares) = {{"matrix", squares_some, .rejects = NULL},
                            {"several blocks", squares_long, .rejects = NULL},
                            {"of ids", squares_ids, .rejects = "dtype i32"},
                            {0}};
#endif
