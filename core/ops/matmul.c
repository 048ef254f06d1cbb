/* SPDX-License-Identifier: Apache-2.0
 *
 * Dense and grouped matrix products. The tuned CPU kernels are in backends/cpu/kernels/matmul.c; core/op.h
 * says what the three parts are. Grouped products work on rows sorted by expert (kedge_routes) and read token
 * tensors through the slots of the rows, so that gathered copies are never made.
 */
#if defined(KEDGE_PART_RULES)
#include "core/op.h"

kedge_value kedge_matmul(kedge_graph *g, kedge_value a, kedge_value b, bool trans_a, bool trans_b,
                         kedge_dtype dtype) {
  if (dtype == KEDGE_I32)
    return kedge__graph_fail(g, KEDGE_ERR_SHAPE, "matmul: expected a float dtype, got i32");
  kedge_args_matmul args = {.trans_a = trans_a, .trans_b = trans_b};
  return kedge__node(g, KEDGE_OP_matmul, (kedge_value[]){a, b}, &args, dtype, NULL);
}

kedge_value kedge_linear(kedge_graph *g, kedge_value x, kedge_value weight) {
  if (!x || !weight) return KEDGE_NONE;
  return kedge_matmul(g, x, weight, false, true, kedge_value_dtype(g, x));
}

KEDGE_SHAPE(matmul) {
  kedge_args_matmul *a = rule->args;
  KEDGE_TRY(kedge__want_rank(&rule->in[0], 2, "A"));
  KEDGE_TRY(kedge__want_rank(&rule->in[1], 2, "B"));
  a->m = rule->in[0].dims[a->trans_a ? 1 : 0];
  a->k = rule->in[0].dims[a->trans_a ? 0 : 1];
  a->n = rule->in[1].dims[a->trans_b ? 0 : 1];
  KEDGE_TRY(kedge__want_dim(&rule->in[1], a->trans_b ? 1 : 0, a->k, "B"));
  kedge__set_shape(&rule->out[0], 2, a->m, a->n, 1);
  return KEDGE_OK;
}

/* A's gradient has A's dtype; B's, the weight's place, is f32. */
KEDGE_GRADIENT(matmul) {
  const kedge_args_matmul *args = rule->args;
  kedge_graph *g = rule->graph;
  kedge_value a = rule->in[0], b = rule->in[1], dc = kedge_cast(g, rule->dout[0], kedge_value_dtype(g, a));
  kedge_dtype storage = kedge_value_dtype(g, a);
  bool ta = args->trans_a, tb = args->trans_b;
  if (rule->need[0])
    rule->din[0] =
        ta ? kedge_matmul(g, b, dc, tb, true, storage) : kedge_matmul(g, dc, b, false, !tb, storage);
  if (rule->need[1])
    rule->din[1] =
        tb ? kedge_matmul(g, dc, a, true, ta, KEDGE_F32) : kedge_matmul(g, a, dc, !ta, false, KEDGE_F32);
}

kedge_value kedge_grouped_matmul(kedge_graph *g, kedge_value x, kedge_value weight,
                                 const kedge_routes *routes, bool trans_w) {
  kedge_value tokens = kedge__gathered_from(g, x, routes->slots_R);
  kedge_args_grouped_matmul args = {.topk = routes->topk, .gather = tokens != KEDGE_NONE, .trans_w = trans_w};
  kedge_value in[] = {tokens ? tokens : x, weight, routes->slots_R, routes->offsets_E1, routes->rows_TK};
  return kedge__node(g, KEDGE_OP_grouped_matmul, in, &args, KEDGE_F32, NULL);
}

/* Rows of an operand: a row a slot, or a row a token where it is gathered. */
static kedge_status want_rows(const kedge_shape *x, kedge_u32 rows, kedge_u32 topk, bool gathered,
                              const char *what) {
  if (!topk || rows % topk)
    return kedge_fail(KEDGE_ERR_SHAPE, "expected whole tokens of %u slots, got %u slots", topk, rows);
  KEDGE_TRY(kedge__want_rank(x, 2, what));
  return kedge__want_dim(x, 0, gathered ? rows / topk : rows, what);
}

KEDGE_SHAPE(grouped_matmul) {
  kedge_args_grouped_matmul *a = rule->args;
  const kedge_shape *x = &rule->in[0], *w = &rule->in[1];
  KEDGE_TRY(kedge__want_rank(&rule->in[2], 1, "the slots of the routes"));
  KEDGE_TRY(kedge__want_rank(&rule->in[3], 1, "the offsets of the routes"));
  a->rows = rule->in[2].dims[0];
  a->experts = rule->in[3].dims[0] - 1;
  KEDGE_TRY(want_rows(x, a->rows, a->topk, a->gather, "x"));
  KEDGE_TRY(kedge__want_rank(w, 3, "W"));
  KEDGE_TRY(kedge__want_dim(w, 0, a->experts, "W (experts of the routes)"));
  a->k = x->dims[1];
  a->n = w->dims[a->trans_w ? 1 : 2];
  KEDGE_TRY(kedge__want_dim(w, a->trans_w ? 2 : 1, a->k, "W (width of x)"));
  kedge__set_shape(&rule->out[0], 2, a->rows, a->n, 1);
  return KEDGE_OK;
}

/* Weight gradient of operands that are already told apart: by row, or by token and gathered. */
static kedge_value wgrad(kedge_graph *g, kedge_value dy, kedge_value x, const kedge_routes *routes,
                         bool gather_dy, bool gather_x) {
  kedge_args_grouped_wgrad args = {.topk = routes->topk, .gather_dy = gather_dy, .gather_x = gather_x};
  kedge_value in[] = {dy, x, routes->slots_R, routes->offsets_E1};
  return kedge__node(g, KEDGE_OP_grouped_wgrad, in, &args, KEDGE_F32, NULL);
}

/* x may be gathered in the node itself, dy by the gradient of a combine (which is a gather). */
KEDGE_GRADIENT(grouped_matmul) {
  const kedge_args_grouped_matmul *a = rule->args;
  kedge_graph *g = rule->graph;
  kedge_routes routes = {KEDGE_NONE, rule->in[2], rule->in[3], rule->in[4], a->experts, a->topk};
  kedge_value x = rule->in[0], dy = kedge_cast(g, rule->dout[0], kedge_value_dtype(g, x));
  if (rule->need[0]) {
    kedge_value dx = kedge_grouped_matmul(g, dy, rule->in[1], &routes, !a->trans_w);
    rule->din[0] = a->gather ? kedge_combine_rows(g, dx, &routes) : dx;
  }
  if (!rule->need[1]) return;
  kedge_value tokens = kedge__gathered_from(g, dy, routes.slots_R);
  if (tokens) dy = tokens;
  rule->din[1] = a->trans_w ? wgrad(g, dy, x, &routes, tokens != KEDGE_NONE, a->gather)
                            : wgrad(g, x, dy, &routes, a->gather, tokens != KEDGE_NONE);
}

kedge_value kedge_grouped_wgrad(kedge_graph *g, kedge_value dy, kedge_value x, const kedge_routes *routes) {
  kedge_value dy_T = kedge__gathered_from(g, dy, routes->slots_R),
              x_T = kedge__gathered_from(g, x, routes->slots_R);
  return wgrad(g, dy_T ? dy_T : dy, x_T ? x_T : x, routes, dy_T != KEDGE_NONE, x_T != KEDGE_NONE);
}

KEDGE_SHAPE(grouped_wgrad) {
  kedge_args_grouped_wgrad *a = rule->args;
  KEDGE_TRY(kedge__want_rank(&rule->in[2], 1, "the slots of the routes"));
  KEDGE_TRY(kedge__want_rank(&rule->in[3], 1, "the offsets of the routes"));
  a->rows = rule->in[2].dims[0];
  a->experts = rule->in[3].dims[0] - 1;
  KEDGE_TRY(want_rows(&rule->in[0], a->rows, a->topk, a->gather_dy, "dy"));
  KEDGE_TRY(want_rows(&rule->in[1], a->rows, a->topk, a->gather_x, "x"));
  a->n = rule->in[0].dims[1];
  a->k = rule->in[1].dims[1];
  kedge__set_shape(&rule->out[0], 3, a->experts, a->n, a->k);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(grouped_wgrad)
#endif

#if defined(KEDGE_PART_KERNELS)
#include "core/ops/kernel.h"

/* Sums of so many products are added up first, then the sums, so that long sums lose no digits. */
enum { BLOCK = 1024 };

KEDGE_KERNEL(matmul) {
  KEDGE_CALL_ARGS(matmul);
  const kedge_x *A = KEDGE_IN_X(0), *B = KEDGE_IN_X(1);
  size_t pitch_a = call->in[0].pitch, pitch_b = call->in[1].pitch;
  for (size_t i = 0; i < a->m; i++)
    for (size_t j = 0; j < a->n; j++) {
      kedge_real total = 0;
      for (size_t first = 0; first < a->k; first += BLOCK) {
        kedge_real sum = 0;
        for (size_t p = first; p < a->k && p < first + BLOCK; p++)
          sum += kedge_load(a->trans_a ? A[p * pitch_a + i] : A[i * pitch_a + p]) *
                 kedge_load(a->trans_b ? B[j * pitch_b + p] : B[p * pitch_b + j]);
        total += sum;
      }
      kedge_store_w(&call->out[0], i * a->n + j, total);
    }
}

KEDGE_KERNEL(grouped_matmul) {
  KEDGE_CALL_ARGS(grouped_matmul);
  const kedge_x *X = KEDGE_IN_X(0);
  const int32_t *slots = KEDGE_IN_I(2), *offsets = KEDGE_IN_I(3);
  kedge_x *Y = KEDGE_OUT_X(0);
  for (size_t e = 0; e < a->experts; e++) {
    const kedge_x *W = call->in[1].parts ? call->in[1].parts[e] : KEDGE_IN_X(1) + e * a->n * a->k;
    for (size_t r = (size_t)offsets[e]; r < (size_t)offsets[e + 1]; r++) {
      const kedge_x *x = X + (a->gather ? (size_t)slots[r] / a->topk : r) * call->in[0].pitch;
      for (size_t j = 0; j < a->n; j++) {
        kedge_real sum = 0;
        for (size_t p = 0; p < a->k; p++)
          sum += kedge_load(x[p]) * kedge_load(a->trans_w ? W[j * a->k + p] : W[p * a->n + j]);
        Y[r * a->n + j] = kedge_store(sum);
      }
    }
  }
  for (size_t i = (size_t)offsets[a->experts] * a->n; i < (size_t)a->rows * a->n; i++) Y[i] = kedge_store(0);
}

KEDGE_KERNEL(grouped_wgrad) {
  KEDGE_CALL_ARGS(grouped_wgrad);
  const kedge_x *dY = KEDGE_IN_X(0), *X = KEDGE_IN_X(1);
  const int32_t *slots = KEDGE_IN_I(2), *offsets = KEDGE_IN_I(3);
  for (size_t e = 0; e < a->experts; e++)
    for (size_t i = 0; i < a->n; i++)
      for (size_t j = 0; j < a->k; j++) {
        kedge_real total = 0;
        for (size_t first = (size_t)offsets[e], last = (size_t)offsets[e + 1]; first < last; first += BLOCK) {
          kedge_real sum = 0;
          for (size_t r = first; r < last && r < first + BLOCK; r++) {
            size_t token = (size_t)slots[r] / a->topk;
            sum += kedge_load(dY[(a->gather_dy ? token : r) * call->in[0].pitch + i]) *
                   kedge_load(X[(a->gather_x ? token : r) * call->in[1].pitch + j]);
          }
          total += sum;
        }
        KEDGE_OUT_F(0)[(e * a->n + i) * a->k + j] = total;
      }
}
#endif

#if defined(KEDGE_PART_CASES)
#include "core/op.h"
#include "tests/support/cases.h"

#define X(name, ...) kedge_case_x(c, name, sizeof((uint32_t[]){__VA_ARGS__}) / 4, (uint32_t[]){__VA_ARGS__})

static void mm_plain(kedge_case *c) {
  kedge_case_output(c, kedge_matmul(c->graph, X("a", 5, 7), X("b", 7, 3), false, false, c->dtype));
}
static void mm_tb(kedge_case *c) {
  kedge_case_output(c, kedge_matmul(c->graph, X("a", 5, 7), X("b", 3, 7), false, true, c->dtype));
}
static void mm_ta(kedge_case *c) {
  kedge_case_output(c, kedge_matmul(c->graph, X("a", 7, 5), X("b", 7, 3), true, false, c->dtype));
}
static void mm_both(kedge_case *c) {
  kedge_case_output(c, kedge_matmul(c->graph, X("a", 7, 5), X("b", 3, 7), true, true, KEDGE_F32));
}
static void mm_one(kedge_case *c) {
  kedge_case_output(c, kedge_matmul(c->graph, X("a", 1, 1), X("b", 1, 1), false, false, KEDGE_F32));
}
static void mm_row(kedge_case *c) {
  kedge_case_output(c, kedge_linear(c->graph, X("x", 1, 33), X("w", 70, 33)));
}
static void mm_tiles(kedge_case *c) {
  kedge_case_output(c, kedge_matmul(c->graph, X("a", 261, 45), X("b", 530, 45), false, true, KEDGE_F32));
}
static void mm_long(kedge_case *c) {
  kedge_case_output(c, kedge_matmul(c->graph, X("a", 1531, 9), X("b", 1531, 17), true, false, c->dtype));
}
static void mm_windows(kedge_case *c) {
  kedge_value a = kedge_window(c->graph, X("a", 6, 15), 2, 9),
              b = kedge_window(c->graph, X("b", 4, 20), 11, 9);
  kedge_case_output(c, kedge_matmul(c->graph, a, b, false, true, c->dtype));
}
static void mm_windows_ta(kedge_case *c) {
  kedge_value a = kedge_window(c->graph, X("a", 6, 8), 3, 5), b = kedge_window(c->graph, X("b", 6, 9), 0, 4);
  kedge_case_output(c, kedge_matmul(c->graph, a, b, true, false, c->dtype));
}
static void mm_mixed(kedge_case *c) { /* a f32 gradient meets bf16 operands */
  kedge_value y = kedge_matmul(c->graph, X("a", 3, 4), X("b", 4, 5), false, false, KEDGE_F32);
  kedge_case_output(c, kedge_mul(c->graph, y, kedge_case_f(c, "f", 2, (uint32_t[]){3, 5})));
}
static void mm_bad(kedge_case *c) {
  kedge_case_output(c, kedge_matmul(c->graph, X("a", 5, 7), X("b", 5, 7), false, false, c->dtype));
}
static void mm_parts(kedge_case *c) {
  kedge_value w = kedge_case_parts(c, "w", 2, (uint32_t[]){3, 4});
  kedge_case_output(c, kedge_linear(c->graph, X("x", 2, 4), w));
}
static void mm_rank(kedge_case *c) {
  kedge_case_output(c, kedge_linear(c->graph, X("x", 2, 3, 4), X("w", 5, 4)));
}
KEDGE_CASES(matmul) = {{"A B", mm_plain, .differentiable = true},
                       {"A B^T", mm_tb, .differentiable = true},
                       {"A^T B", mm_ta, .differentiable = true},
                       {"A^T B^T", mm_both, .differentiable = true},
                       {"one element", mm_one, .differentiable = true},
                       {"one row", mm_row, .differentiable = true},
                       {"several tiles", mm_tiles, .rejects = NULL},
                       {"long sums", mm_long, .rejects = NULL},
                       {"windows", mm_windows, .differentiable = true},
                       {"transposed windows", mm_windows_ta, .differentiable = true},
                       {"f32 result", mm_mixed, .differentiable = true},
                       {"inner dimensions differ", mm_bad, .rejects = "dimension 0 equal to 7"},
                       {"weight in parts", mm_parts, .rejects = "lies in parts"},
                       {"three dimensions", mm_rank, .rejects = "2 dimensions"},
                       {0}};

/* Six tokens to two of five experts; token 2 goes nowhere, expert 3 gets nothing. */
static kedge_routes routes_6(kedge_case *c) {
  const int32_t ids[] = {0, 4, 1, 0, -1, -1, 4, 2, 0, 1, 4, 0};
  return kedge_dispatch(c->graph, kedge_case_i(c, "ids", 2, (uint32_t[]){6, 2}, ids), 5);
}
static kedge_routes routes_none(kedge_case *c) {
  return kedge_dispatch(c->graph, kedge_case_i(c, "ids", 2, (uint32_t[]){2, 1}, (int32_t[]){-1, -1}), 3);
}
/* Four of five tokens to the one expert there is. */
static kedge_routes routes_one(kedge_case *c) {
  const int32_t ids[] = {0, 0, -1, 0, 0};
  return kedge_dispatch(c->graph, kedge_case_i(c, "ids", 2, (uint32_t[]){5, 1}, ids), 1);
}
/* 601 tokens to one of two experts or to none, very unequally. */
static kedge_routes routes_601(kedge_case *c) {
  int32_t ids[601];
  for (int i = 0; i < 601; i++) ids[i] = i % 50 == 7 ? -1 : i % 9 == 0;
  return kedge_dispatch(c->graph, kedge_case_i(c, "ids", 2, (uint32_t[]){601, 1}, ids), 2);
}

static void gm_rows(kedge_case *c) {
  kedge_routes r = routes_6(c);
  kedge_case_output(c, kedge_grouped_matmul(c->graph, X("x", 12, 3), X("w", 5, 4, 3), &r, true));
}
static void gm_rows_plain(kedge_case *c) {
  kedge_routes r = routes_6(c);
  kedge_case_output(c, kedge_grouped_matmul(c->graph, X("x", 12, 3), X("w", 5, 3, 4), &r, false));
}
static void gm_gather(kedge_case *c) {
  kedge_routes r = routes_6(c);
  kedge_value x = kedge_gather_rows(c->graph, X("x", 6, 7), &r);
  kedge_case_output(c, kedge_grouped_matmul(c->graph, x, X("w", 5, 3, 7), &r, true));
}
static void gm_gather_window(kedge_case *c) {
  kedge_routes r = routes_6(c);
  kedge_value x = kedge_gather_rows(c->graph, kedge_window(c->graph, X("x", 6, 10), 3, 5), &r);
  kedge_case_output(c, kedge_grouped_matmul(c->graph, x, X("w", 5, 5, 2), &r, false));
}
static void
gm_expert(kedge_case *c) { /* the whole expert: both products, and gathers absorbed in either direction */
  kedge_routes r = routes_6(c);
  kedge_value x = kedge_gather_rows(c->graph, X("x", 6, 4), &r);
  kedge_value h = kedge_grouped_matmul(c->graph, x, X("w1", 5, 3, 4), &r, true);
  kedge_value y = kedge_grouped_matmul(c->graph, h, X("w2", 5, 4, 3), &r, true);
  kedge_case_output(c, kedge_combine_rows(c->graph, y, &r));
}
static void gm_parts(kedge_case *c) { /* a tensor an expert, as checkpoints have them */
  kedge_routes r = routes_6(c);
  kedge_value x = kedge_gather_rows(c->graph, X("x", 6, 7), &r);
  kedge_value w = kedge_case_parts(c, "w", 3, (uint32_t[]){5, 9, 7});
  kedge_case_output(c, kedge_grouped_matmul(c->graph, x, w, &r, true));
}
static void gm_parts_plain(kedge_case *c) {
  kedge_routes r = routes_6(c);
  kedge_value w = kedge_case_parts(c, "w", 3, (uint32_t[]){5, 3, 4});
  kedge_case_output(c, kedge_grouped_matmul(c->graph, X("x", 12, 3), w, &r, false));
}
static void gm_none(kedge_case *c) {
  kedge_routes r = routes_none(c);
  kedge_value x = kedge_gather_rows(c->graph, X("x", 2, 3), &r);
  kedge_case_output(c, kedge_grouped_matmul(c->graph, x, X("w", 3, 3, 3), &r, true));
}
static void gm_blocks(kedge_case *c) {
  kedge_routes r = routes_601(c);
  kedge_value x = kedge_gather_rows(c->graph, X("x", 601, 19), &r);
  kedge_case_output(c, kedge_grouped_matmul(c->graph, x, X("w", 2, 23, 19), &r, true));
}
static void gm_wide(kedge_case *c) {
  kedge_routes r = routes_one(c);
  kedge_case_output(c, kedge_grouped_matmul(c->graph, X("x", 5, 521), X("w", 1, 521, 517), &r, false));
}
static void gm_width(kedge_case *c) {
  kedge_routes r = routes_6(c);
  kedge_case_output(c, kedge_grouped_matmul(c->graph, X("x", 12, 3), X("w", 5, 3, 4), &r, true));
}
static void gm_experts(kedge_case *c) {
  kedge_routes r = routes_6(c);
  kedge_case_output(c, kedge_grouped_matmul(c->graph, X("x", 12, 3), X("w", 4, 4, 3), &r, true));
}
KEDGE_CASES(grouped_matmul) = {{"rows, W^T", gm_rows, .differentiable = true},
                               {"rows, W", gm_rows_plain, .differentiable = true},
                               {"gathered", gm_gather, .differentiable = true},
                               {"gathered from a window", gm_gather_window, .differentiable = true},
                               {"an expert layer", gm_expert, .differentiable = true, .bf16 = 0.02},
                               {"experts in parts, W^T", gm_parts, .differentiable = true},
                               {"experts in parts, W", gm_parts_plain, .differentiable = true},
                               {"no valid row", gm_none, .rejects = NULL},
                               {"several row blocks", gm_blocks, .rejects = NULL},
                               {"several tiles", gm_wide, .rejects = NULL},
                               {"W of another width", gm_width, .rejects = "width of x"},
                               {"an expert short", gm_experts, .rejects = "experts of the routes"},
                               {0}};

static void wg_rows(kedge_case *c) {
  kedge_routes r = routes_6(c);
  kedge_case_output(c, kedge_grouped_wgrad(c->graph, X("dy", 12, 3), X("x", 12, 5), &r));
}
static void wg_gather_x(kedge_case *c) {
  kedge_routes r = routes_6(c);
  kedge_value x = kedge_gather_rows(c->graph, kedge_window(c->graph, X("x", 6, 8), 1, 5), &r);
  kedge_case_output(c, kedge_grouped_wgrad(c->graph, X("dy", 12, 3), x, &r));
}
static void wg_gather_both(kedge_case *c) {
  kedge_routes r = routes_601(c);
  kedge_value dy = kedge_gather_rows(c->graph, X("dy", 601, 11), &r),
              x = kedge_gather_rows(c->graph, X("x", 601, 13), &r);
  kedge_case_output(c, kedge_grouped_wgrad(c->graph, dy, x, &r));
}
static void wg_window(kedge_case *c) {
  kedge_routes r = routes_one(c);
  kedge_value dy = kedge_window(c->graph, X("dy", 5, 270), 1, 261),
              x = kedge_window(c->graph, X("x", 5, 531), 5, 517);
  kedge_case_output(c, kedge_grouped_wgrad(c->graph, dy, x, &r));
}
static void wg_none(kedge_case *c) {
  kedge_routes r = routes_none(c);
  kedge_case_output(c, kedge_grouped_wgrad(c->graph, X("dy", 2, 3), X("x", 2, 1), &r));
}
static void wg_few(kedge_case *c) {
  kedge_routes r = routes_6(c);
  kedge_case_output(c, kedge_grouped_wgrad(c->graph, X("dy", 6, 3), X("x", 12, 5), &r));
}
KEDGE_CASES(grouped_wgrad) = {{"rows", wg_rows, .rejects = NULL},
                              {"x gathered from a window", wg_gather_x, .rejects = NULL},
                              {"both gathered, long groups", wg_gather_both, .rejects = NULL},
                              {"windows, several tiles", wg_window, .rejects = NULL},
                              {"no valid row", wg_none, .rejects = NULL},
                              {"dy by token, not gathered", wg_few, .rejects = "dy must have dimension 0"},
                              {0}};
#endif
