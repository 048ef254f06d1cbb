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
#endif
