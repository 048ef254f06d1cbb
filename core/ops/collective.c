/* SPDX-License-Identifier: Apache-2.0
 *
 * Ops between ranks: rules and cases. What they do is in backends/comm/collectives.c, run by core/collect.c;
 * a device that joined no comm is the only rank, and then a sum over ranks is a copy. docs/clusters.md tells
 * who uses them. */

#if defined(KEDGE_PART_RULES)
#include "core/comm.h"
#include "core/op.h"

static kedge_status want_group(uint32_t group) {
  return group < KEDGE_RANKS_COUNT
             ? KEDGE_OK
             : kedge_fail(KEDGE_ERR_ARGUMENT, "group of ranks: expected below %d, got %u", KEDGE_RANKS_COUNT,
                          group);
}

kedge_value kedge_all_reduce(kedge_graph *g, kedge_value x, uint32_t group) {
  kedge_args_all_reduce args = {.group = group};
  return kedge__node(g, KEDGE_OP_all_reduce, &x, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(all_reduce) {
  kedge_args_all_reduce *a = rule->args;
  KEDGE_TRY(want_group(a->group));
  return kedge__alike(rule, 1, 1, "summand", &a->n);
}
KEDGE_NO_GRADIENT(all_reduce)

void kedge_reduce_scatter(kedge_graph *g, kedge_value x, uint32_t group) {
  kedge_args_reduce_scatter args = {.group = group};
  kedge__node(g, KEDGE_OP_reduce_scatter, &x, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(reduce_scatter) {
  kedge_args_reduce_scatter *a = rule->args;
  KEDGE_TRY(want_group(a->group));
  a->n = (uint32_t)kedge__shape_count(&rule->in[0]);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(reduce_scatter)

void kedge_all_gather(kedge_graph *g, kedge_value x, uint32_t group) {
  kedge_args_all_gather args = {.group = group};
  kedge__node(g, KEDGE_OP_all_gather, &x, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(all_gather) {
  kedge_args_all_gather *a = rule->args;
  KEDGE_TRY(want_group(a->group));
  a->n = (uint32_t)kedge__shape_count(&rule->in[0]);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(all_gather)

kedge_exchange kedge_exchange_counts(kedge_graph *g, const kedge_routes *routes, uint32_t members,
                                     uint32_t capacity) {
  kedge_args_exchange_counts args = {.members = members, .capacity = capacity};
  kedge_value outs[KEDGE_MAX_OUT] = {0};
  kedge__node(g, KEDGE_OP_exchange_counts, &routes->offsets_E1, &args, KEDGE_F32, outs);
  return (kedge_exchange){.counts_PE = outs[0],
                          .routes = {.slots_R = outs[1],
                                     .offsets_E1 = outs[2],
                                     .rows_TK = outs[3],
                                     .experts = members ? routes->experts / members : 0,
                                     .topk = 1},
                          .members = members,
                          .capacity = capacity};
}

KEDGE_SHAPE(exchange_counts) {
  kedge_args_exchange_counts *a = rule->args;
  KEDGE_TRY(kedge__want_rank(&rule->in[0], 1, "the offsets of the routes"));
  a->experts = rule->in[0].dims[0] - 1;
  if (!a->members || !a->experts || a->experts % a->members)
    return kedge_fail(KEDGE_ERR_SHAPE, "expected ranks that divide the experts, %u, got %u", a->experts,
                      a->members);
  if (!a->capacity) return kedge_fail(KEDGE_ERR_SHAPE, "expected room for at least 1 row, got 0");
  kedge__set_shape(&rule->out[0], 2, a->members, a->experts, 1);
  kedge__set_shape(&rule->out[1], 1, a->capacity, 1, 1);
  kedge__set_shape(&rule->out[2], 1, a->experts / a->members + 1, 1, 1);
  kedge__set_shape(&rule->out[3], 2, a->capacity, 1, 1);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(exchange_counts)

static kedge_value move_rows(kedge_graph *g, kedge_value x, kedge_value counts, uint32_t rows_out,
                             bool back) {
  kedge_args_all_to_all_rows args = {.rows_out = rows_out, .back = back};
  return kedge__node(g, KEDGE_OP_all_to_all_rows, (kedge_value[]){x, counts}, &args, KEDGE_F32, NULL);
}

kedge_value kedge_send_rows(kedge_graph *g, kedge_value x, const kedge_exchange *e) {
  return move_rows(g, x, e->counts_PE, e->capacity, false);
}

kedge_value kedge_return_rows(kedge_graph *g, kedge_value x, const kedge_exchange *e, uint32_t rows) {
  return move_rows(g, x, e->counts_PE, rows, true);
}

KEDGE_SHAPE(all_to_all_rows) {
  kedge_args_all_to_all_rows *a = rule->args;
  KEDGE_TRY(kedge__want_rank(&rule->in[0], 2, "x"));
  KEDGE_TRY(kedge__want_rank(&rule->in[1], 2, "the exchanged counts"));
  a->members = rule->in[1].dims[0];
  a->experts = rule->in[1].dims[1];
  a->rows_in = rule->in[0].dims[0];
  a->cols = rule->in[0].dims[1];
  kedge__set_shape(&rule->out[0], 2, a->rows_out, a->cols, 1);
  return KEDGE_OK;
}

/* Going and coming back are each other's transpose. */
KEDGE_GRADIENT(all_to_all_rows) {
  const kedge_args_all_to_all_rows *a = rule->args;
  kedge_value dy = kedge__gradient_as(rule, rule->dout[0], rule->in[0]);
  rule->din[0] = move_rows(rule->graph, dy, rule->in[1], a->rows_in, !a->back);
}

#elif defined(KEDGE_PART_CASES)
#include "core/comm.h"
#include "tests/support/cases.h"

static void all_reduce_of(kedge_case *c, uint32_t group) {
  kedge_value x = kedge_case_f(c, "x", 2, (uint32_t[]){3, 7});
  kedge_case_output(c, kedge_all_reduce(c->graph, x, group));
}
static void all_reduce_all(kedge_case *c) {
  all_reduce_of(c, KEDGE_RANKS_ALL);
}
static void all_reduce_bad(kedge_case *c) {
  all_reduce_of(c, KEDGE_RANKS_COUNT);
}
KEDGE_CASES(all_reduce) = {{"one rank", all_reduce_all, .rejects = NULL},
                           {"no such group", all_reduce_bad, .rejects = "group of ranks"},
                           {0}};

static void reduce_scatter_of(kedge_case *c, uint32_t group) {
  kedge_value x = kedge_case_f(c, "x", 2, (uint32_t[]){5, 9});
  kedge_reduce_scatter(c->graph, x, group);
  kedge_case_output(c, x);
}
static void reduce_scatter_all(kedge_case *c) {
  reduce_scatter_of(c, KEDGE_RANKS_ALL);
}
static void reduce_scatter_bad(kedge_case *c) {
  reduce_scatter_of(c, KEDGE_RANKS_COUNT);
}
KEDGE_CASES(reduce_scatter) = {{"one rank", reduce_scatter_all, .rejects = NULL},
                               {"no such group", reduce_scatter_bad, .rejects = "group of ranks"},
                               {0}};

static void all_gather_of(kedge_case *c, kedge_dtype dtype, uint32_t group) {
  kedge_value x = kedge_case_scaled(c, "x", dtype, 1, (uint32_t[]){33}, 0, 1);
  kedge_all_gather(c->graph, x, group);
  kedge_case_output(c, x);
}
static void all_gather_f(kedge_case *c) {
  all_gather_of(c, KEDGE_F32, KEDGE_RANKS_ALL);
}
static void all_gather_x(kedge_case *c) {
  all_gather_of(c, c->dtype, KEDGE_RANKS_REPLICAS);
}
static void all_gather_bad(kedge_case *c) {
  all_gather_of(c, KEDGE_F32, KEDGE_RANKS_COUNT);
}
KEDGE_CASES(all_gather) = {{"f32", all_gather_f, .rejects = NULL},
                           {"storage", all_gather_x, .rejects = NULL},
                           {"no such group", all_gather_bad, .rejects = "group of ranks"},
                           {0}};

/* 5 tokens of 2 slots, three of them without an expert; 4 experts on one rank, the last without rows. */
static const int32_t some_ids[] = {2, 0, 0, 1, -1, -1, 2, 1, 0, -1};

static kedge_routes some_routes(kedge_case *c) {
  return kedge_dispatch(c->graph, kedge_case_i(c, "ids", 2, (uint32_t[]){5, 2}, some_ids), 4);
}
static void exchange_of(kedge_case *c, uint32_t members, uint32_t capacity) {
  kedge_routes routes = some_routes(c);
  kedge_exchange e = kedge_exchange_counts(c->graph, &routes, members, capacity);
  kedge_case_output(c, e.counts_PE);
  kedge_case_output(c, e.routes.slots_R);
  kedge_case_output(c, e.routes.offsets_E1);
  kedge_case_output(c, e.routes.rows_TK);
}
static void exchange_roomy(kedge_case *c) {
  exchange_of(c, 1, 13);
}
static void exchange_tight(kedge_case *c) {
  exchange_of(c, 1, 7);
}
static void exchange_bad(kedge_case *c) {
  exchange_of(c, 3, 13);
}
KEDGE_CASES(exchange_counts) = {
    {"room to spare", exchange_roomy, .rejects = NULL},
    {"room for just these", exchange_tight, .rejects = NULL},
    {"three ranks for four experts", exchange_bad, .rejects = "divide the experts"},
    {0}};

static void rows_of(kedge_case *c, kedge_dtype dtype, uint32_t cols, bool back) {
  kedge_routes routes = some_routes(c);
  kedge_exchange e = kedge_exchange_counts(c->graph, &routes, 1, 13);
  kedge_value x = kedge_case_scaled(c, "x", dtype, 2, (uint32_t[]){back ? 13 : 10, cols}, 0, 1);
  kedge_case_output(c, back ? kedge_return_rows(c->graph, x, &e, 10) : kedge_send_rows(c->graph, x, &e));
}
static void rows_there(kedge_case *c) {
  rows_of(c, c->dtype, 7, false);
}
static void rows_back(kedge_case *c) {
  rows_of(c, c->dtype, 7, true);
}
static void rows_weights(kedge_case *c) {
  rows_of(c, KEDGE_F32, 1, false);
}
static void rows_bad(kedge_case *c) {
  kedge_routes routes = some_routes(c);
  kedge_exchange e = kedge_exchange_counts(c->graph, &routes, 1, 13);
  kedge_case_output(c, kedge_send_rows(c->graph, kedge_case_x(c, "x", 1, (uint32_t[]){10}), &e));
}
KEDGE_CASES(all_to_all_rows) = {{"there", rows_there, .differentiable = true},
                                {"back", rows_back, .differentiable = true},
                                {"weights in f32", rows_weights, .differentiable = true},
                                {"no rows", rows_bad, .rejects = "2 dimensions"},
                                {0}};
#endif
