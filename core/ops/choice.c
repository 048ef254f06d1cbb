/* SPDX-License-Identifier: Apache-2.0
 *
 * What is made of a choice of experts: how often each was chosen, and another choice in its place. The choice
 * itself (topk) is in route.c.
 */
#if defined(KEDGE_PART_RULES)
#include "core/op.h"

kedge_value kedge_expert_counts(kedge_graph *g, kedge_value ids, kedge_value index, uint32_t groups,
                                uint32_t experts) {
  kedge_args_expert_counts args = {.groups = groups, .experts = experts};
  return kedge__node(g, KEDGE_OP_expert_counts, (kedge_value[]){ids, index}, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(expert_counts) {
  kedge_args_expert_counts *a = rule->args;
  KEDGE_TRY(kedge__want_rank(&rule->in[0], 2, "expert ids"));
  KEDGE_TRY(kedge__want_rank(&rule->in[1], 1, "the index (groups of tokens)"));
  a->tokens = rule->in[0].dims[0];
  a->k = rule->in[0].dims[1];
  KEDGE_TRY(kedge__want_dim(&rule->in[1], 0, a->tokens, "the index (tokens)"));
  if (!a->groups || !a->experts || (uint64_t)a->groups * a->experts > INT32_MAX)
    return kedge_fail(KEDGE_ERR_SHAPE, "expected 1 to %d counts, got %u groups of %u experts", INT32_MAX,
                      a->groups, a->experts);
  kedge__set_shape(&rule->out[0], 2, a->groups, a->experts, 1);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(expert_counts)

kedge_value kedge_choose_rows(kedge_graph *g, kedge_value ids, kedge_value table, kedge_value index) {
  kedge_args_choose_rows args = {0};
  return kedge__node(g, KEDGE_OP_choose_rows, (kedge_value[]){ids, table, index}, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(choose_rows) {
  kedge_args_choose_rows *a = rule->args;
  KEDGE_TRY(kedge__want_rank(&rule->in[0], 2, "expert ids"));
  KEDGE_TRY(kedge__want_rank(&rule->in[1], 2, "the table"));
  KEDGE_TRY(kedge__want_rank(&rule->in[2], 1, "the index"));
  a->tokens = rule->in[0].dims[0];
  a->k = rule->in[0].dims[1];
  a->rows = rule->in[1].dims[0];
  KEDGE_TRY(kedge__want_dim(&rule->in[1], 1, a->k, "the table (ids of a token)"));
  KEDGE_TRY(kedge__want_dim(&rule->in[2], 0, a->tokens, "the index (tokens)"));
  kedge__set_shape(&rule->out[0], 2, a->tokens, a->k, 1);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(choose_rows)

#elif defined(KEDGE_PART_KERNELS)
#include "core/ops/kernel.h"

/* Whole numbers: their sums are exact in f32 up to 2^24, in whatever order. */
KEDGE_KERNEL(expert_counts) {
  KEDGE_CALL_ARGS(expert_counts);
  const int32_t *ids = KEDGE_IN_I(0), *index = KEDGE_IN_I(1);
  kedge_real *counts = KEDGE_OUT_F(0);
  for (size_t i = 0; i < (size_t)a->groups * a->experts; i++) counts[i] = 0;
  for (size_t t = 0; t < a->tokens; t++) {
    assert(index[t] < (int32_t)a->groups);
    if (index[t] < 0) continue;
    for (size_t k = t * a->k; k < (t + 1) * a->k; k++) {
      assert(ids[k] < (int32_t)a->experts);
      if (ids[k] >= 0) counts[(size_t)index[t] * a->experts + (size_t)ids[k]] += 1;
    }
  }
}

KEDGE_KERNEL(choose_rows) {
  KEDGE_CALL_ARGS(choose_rows);
  const int32_t *index = KEDGE_IN_I(2);
  for (size_t t = 0; t < a->tokens; t++) {
    assert(index[t] < (int32_t)a->rows);
    const int32_t *from = index[t] < 0 ? KEDGE_IN_I(0) + t * a->k : KEDGE_IN_I(1) + (size_t)index[t] * a->k;
    memcpy(KEDGE_OUT_I(0) + t * a->k, from, a->k * sizeof *from);
  }
}

#elif defined(KEDGE_PART_CASES)
#include "core/op.h"
#include "tests/support/cases.h"

static void counts_of(kedge_case *c, uint32_t tokens, uint32_t k, const int32_t *ids, uint32_t indices,
                      const int32_t *index, uint32_t groups, uint32_t experts) {
  kedge_value chosen = kedge_case_i(c, "ids", 2, (uint32_t[]){tokens, k}, ids);
  kedge_value group = kedge_case_i(c, "index", 1, &indices, index);
  kedge_case_output(c, kedge_expert_counts(c->graph, chosen, group, groups, experts));
}
static const int32_t some_ids[] = {3, 0, 0, 1, -1, -1, 3, 1, 0, 3};
static void counts_some(kedge_case *c) {
  counts_of(c, 5, 2, some_ids, 5, (int32_t[]){1, 0, 1, -1, 1}, 3, 4);
}
static void counts_none(kedge_case *c) {
  counts_of(c, 2, 2, some_ids, 2, (int32_t[]){-1, -1}, 2, 4);
}
static void counts_one(kedge_case *c) {
  counts_of(c, 3, 1, (int32_t[]){0, 0, -1}, 3, (int32_t[]){0, 0, 0}, 1, 1);
}
static void counts_many(kedge_case *c) {
  enum { TOKENS = 2000, K = 3, EXPERTS = 37, GROUPS = 5 };
  int32_t ids[TOKENS * K], index[TOKENS];
  for (int i = 0; i < TOKENS * K; i++) ids[i] = i % 53 == 9 ? -1 : i * 7 % EXPERTS;
  for (int t = 0; t < TOKENS; t++) index[t] = t % 17 == 5 ? -1 : t % 3;
  counts_of(c, TOKENS, K, ids, TOKENS, index, GROUPS, EXPERTS);
}
static void counts_late(kedge_case *c) {
  counts_of(c, 5, 2, some_ids, 3, (int32_t[]){0, 0, 0}, 1, 4);
}
static void counts_nothing(kedge_case *c) {
  counts_of(c, 5, 2, some_ids, 5, (int32_t[]){-1, -1, -1, -1, -1}, 0, 4);
}
static void counts_vast(kedge_case *c) {
  counts_of(c, 5, 2, some_ids, 5, (int32_t[]){-1, -1, -1, -1, -1}, 1u << 20, 1u << 12);
}
KEDGE_CASES(expert_counts) = {{"groups and none", counts_some, .rejects = NULL},
                              {"no token counts", counts_none, .rejects = NULL},
                              {"one expert", counts_one, .rejects = NULL},
                              {"many tokens", counts_many, .rejects = NULL},
                              {"an index short", counts_late, .rejects = "the index (tokens)"},
                              {"no group", counts_nothing, .rejects = "got 0 groups"},
                              {"2^32 counts", counts_vast, .rejects = "groups of 4096 experts"},
                              {0}};

static void choose_of(kedge_case *c, uint32_t cols, uint32_t tokens, const int32_t *index) {
  kedge_value ids = kedge_case_i(c, "ids", 2, (uint32_t[]){5, 2}, some_ids);
  kedge_value table =
      kedge_case_i(c, "table", 2, (uint32_t[]){6 / cols, cols}, (int32_t[]){7, 8, 9, -1, 4, 5});
  kedge_value rows = kedge_case_i(c, "index", 1, &tokens, index);
  kedge_case_output(c, kedge_choose_rows(c->graph, ids, table, rows));
}
static void choose_some(kedge_case *c) {
  choose_of(c, 2, 5, (int32_t[]){2, -1, 1, 0, -1});
}
static void choose_none(kedge_case *c) {
  choose_of(c, 2, 5, (int32_t[]){-1, -1, -1, -1, -1});
}
static void choose_part(kedge_case *c) {
  kedge_value ids = kedge_case_i(c, "ids", 2, (uint32_t[]){2, 1}, (int32_t[]){5, 6});
  kedge_value table = kedge_case_i(c, "table", 3, (uint32_t[]){2, 3, 1}, (int32_t[]){0, 1, 2, 3, 4, -1});
  kedge_value rows = kedge_case_i(c, "index", 1, (uint32_t[]){2}, (int32_t[]){1, 2});
  kedge_case_output(c, kedge_choose_rows(c->graph, ids, kedge_part(c->graph, table, 1), rows));
}
static void choose_many(kedge_case *c) {
  enum { TOKENS = 5000, K = 6, ROWS = 70 };
  int32_t ids[TOKENS * K], index[TOKENS];
  for (int i = 0; i < TOKENS * K; i++) ids[i] = i;
  for (int t = 0; t < TOKENS; t++) index[t] = t % 3 ? t % ROWS : -1;
  kedge_value chosen = kedge_case_i(c, "ids", 2, (uint32_t[]){TOKENS, K}, ids);
  kedge_value table = kedge_case_i(c, "table", 2, (uint32_t[]){ROWS, K}, ids + 11);
  kedge_value rows = kedge_case_i(c, "index", 1, (uint32_t[]){TOKENS}, index);
  kedge_case_output(c, kedge_choose_rows(c->graph, chosen, table, rows));
}
static void choose_wide(kedge_case *c) {
  choose_of(c, 3, 5, (int32_t[]){0, -1, 1, 0, -1});
}
static void choose_late(kedge_case *c) {
  choose_of(c, 2, 4, (int32_t[]){0, -1, 1, 0});
}
KEDGE_CASES(choose_rows) = {{"rows and none", choose_some, .rejects = NULL},
                            {"no row", choose_none, .rejects = NULL},
                            {"a part of a table", choose_part, .rejects = NULL},
                            {"many tokens", choose_many, .rejects = NULL},
                            {"table of other choices", choose_wide, .rejects = "ids of a token"},
                            {"an index short", choose_late, .rejects = "the index (tokens)"},
                            {0}};
#endif
