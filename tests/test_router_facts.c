/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * One router with its interventions, in double: identities of the losses and of their gradients, and the
 * cases at the edge of what is defined. Whole decoders are in test_interventions.c. */
#include "core/args.h"
#include "core/kedge.h"
#include "models/routing/router.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { T = 8, E = 8, K = 3, MOST = T * E };

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static void near(const char *what, double got, double want, double limit) {
  if (!(fabs(got - want) <= limit)) fail_msg("%s: got %.17g, want %.17g", what, got, want);
}

/* A router whose weights are the unit matrix: its logits are its input. Zero-initialise, then set. */
typedef struct spot {
  uint32_t tokens, experts, topk; /* 0: T, E, K */
  uint32_t score_kind;            /* KEDGE_SCORE_* */
  bool normalise;
  double alpha;               /* 0: 1 */
  double z[MOST];             /* [tokens,experts] logits */
  const double *correction_E; /* NULL: none */
  const double *w0_EE;        /* base weights; NULL: the unit matrix */
  double table[MOST];         /* rows of E reals, as the intervention reads them */
  int32_t ids[MOST];          /* rows of K ids, where it reads those */
  int32_t index[T];           /* row of each token */
  bool outside[T];            /* not routed, not counted */
  kedge_intervention it;
} spot;

typedef struct outcome {
  double loss, dz[MOST], dw[MOST], gates[T * E], counts[E];
  int32_t ids[T * E], bad;
} outcome;

static void defaults(spot *s) {
  if (!s->tokens) s->tokens = T;
  if (!s->experts) s->experts = E;
  if (!s->topk) s->topk = K;
  if (s->alpha == 0) s->alpha = 1;
  s->it.coef = 1;
}

/* Deterministic numbers without ties, between -2 and 2. */
static void scatter(double *numbers, uint32_t count, uint32_t salt) {
  for (uint32_t i = 0; i < count; i++) numbers[i] = 4 * fmod((i + 1) * 0.6180339887 + salt * 0.377, 1) - 2;
}

static void softmax(const double *z, uint32_t n, double *p) {
  double most = -INFINITY, sum = 0;
  for (uint32_t e = 0; e < n; e++) most = fmax(most, z[e]);
  for (uint32_t e = 0; e < n; e++) sum += p[e] = exp(z[e] - most);
  for (uint32_t e = 0; e < n; e++) p[e] /= sum;
}

typedef struct built {
  kedge_graph *graph;
  kedge_exec *exec;
  kedge_value x, w, segments, correction, cotangent, loss, gradients[2];
  kedge_router_feed feed;
  kedge_router_values values;
} built;

static bool adds(const spot *s) {
  return kedge_router_get_kind(s->it.id) == KEDGE_ROUTER_LOSS;
}

static void make_feed(const spot *s, built *b) {
  const kedge_router_table table = kedge_intervention_table(&s->it);
  const uint32_t reals[] = {1, s->tokens, s->experts}, ids[] = {1, s->tokens, s->topk},
                 base[] = {1, s->experts, s->experts}, one[] = {1, 1, s->experts};
  if (table == KEDGE_TABLE_BIAS || table == KEDGE_TABLE_PRIOR || table == KEDGE_TABLE_BASE_LOGITS)
    b->feed.table = kedge_input(b->graph, "table", KEDGE_F32, 3, reals);
  if (table == KEDGE_TABLE_PRIOR_IDS || table == KEDGE_TABLE_BASE_IDS)
    b->feed.table = kedge_input(b->graph, "table", KEDGE_I32, 3, ids);
  if (table == KEDGE_TABLE_BASE_WEIGHTS) b->feed.table = kedge_input(b->graph, "table", KEDGE_F32, 3, base);
  if (table == KEDGE_TABLE_COUNTS) b->feed.table = kedge_input(b->graph, "table", KEDGE_F32, 3, one);
  const bool whole = s->it.id == KEDGE_ROUTER_router_l2;
  if (!whole && s->it.id != KEDGE_ROUTER_z_loss)
    b->feed.index_T = kedge_input(b->graph, "index", KEDGE_I32, 1, &s->tokens);
  if (adds(s))
    b->feed.weights = kedge_input(b->graph, "weights", KEDGE_F32, 1, (uint32_t[]){whole ? 1 : s->tokens});
}

static void build(const spot *s, built *b, kedge_device *device) {
  kedge_graph *g = b->graph = kedge_graph_new(true);
  b->x = kedge_input(g, "x", KEDGE_F32, 2, (uint32_t[]){s->tokens, s->experts});
  b->w = kedge_input(g, "w", KEDGE_F32, 2, (uint32_t[]){s->experts, s->experts});
  b->segments = kedge_input(g, "segments", KEDGE_I32, 1, &s->tokens);
  if (s->correction_E) b->correction = kedge_input(g, "correction", KEDGE_F32, 1, &s->experts);
  if (!adds(s)) b->cotangent = kedge_input(g, "cotangent", KEDGE_F32, 2, (uint32_t[]){s->tokens, s->topk});
  if (kedge_intervention_builds(&s->it)) make_feed(s, b);
  const bool sigmoid = s->score_kind == KEDGE_SCORE_SIGMOID;
  const kedge_router_site site = {.graph = g,
                                  .experts = s->experts,
                                  .groups = s->tokens,
                                  .score_kind = s->score_kind,
                                  .choice = {.k = s->topk},
                                  .gate = {s->score_kind, s->normalise, s->alpha, sigmoid ? 1e-20 : 0},
                                  .x_TD = b->x,
                                  .weight_ED = b->w,
                                  .segments_T = b->segments,
                                  .correction_E = b->correction,
                                  .interventions = &s->it,
                                  .feeds = &b->feed,
                                  .intervention_count = 1};
  b->values = kedge_router_build(&site);
  b->loss = adds(s) ? kedge_scale(g, b->values.terms[0], 1)
                    : kedge_sum(g, kedge_mul(g, b->values.weights_TK, b->cotangent));
  kedge_gradient(g, b->loss, (kedge_value[]){b->values.logits_TE, b->w}, 2, b->gradients, NULL, NULL);
  const kedge_value outputs[] = {b->loss,         b->values.ids_TK, b->values.weights_TK, b->values.bad_1,
                                 b->gradients[0], b->gradients[1],  b->values.counts_GE};
  for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
    if (outputs[i]) kedge_output(g, outputs[i], "output");
  ok(kedge_graph_status(g));
  ok(kedge_exec_new(device, g, NULL, &b->exec));
}

static void put(const built *b, kedge_value value, const void *data) {
  if (value) ok(kedge_exec_write(b->exec, value, data, kedge_value_bytes(b->graph, value)));
}

static void get(const built *b, kedge_value value, void *data) {
  if (value) ok(kedge_exec_read(b->exec, value, data, kedge_value_bytes(b->graph, value)));
}

static void write_inputs(const spot *s, const built *b) {
  double unit[MOST] = {0}, weights[T] = {0}, cotangent[T * E], counted = 0;
  int32_t segments[T], index[T];
  for (uint32_t e = 0; e < s->experts; e++) unit[e * s->experts + e] = 1;
  for (uint32_t t = 0; t < s->tokens; t++) counted += !s->outside[t];
  for (uint32_t t = 0; t < s->tokens; t++) {
    segments[t] = s->outside[t] ? -1 : 0;
    index[t] = s->outside[t] ? -1 : s->index[t];
    weights[t] = s->outside[t] ? 0 : 1 / counted;
  }
  if (s->it.id == KEDGE_ROUTER_router_l2) weights[0] = 1;
  scatter(cotangent, s->tokens * s->topk, 5);
  put(b, b->x, s->z);
  put(b, b->w, unit);
  put(b, b->segments, segments);
  put(b, b->correction, s->correction_E);
  put(b, b->cotangent, cotangent);
  put(b, b->feed.index_T, index);
  put(b, b->feed.weights, weights);
  const bool ids = b->feed.table && kedge_value_dtype(b->graph, b->feed.table) == KEDGE_I32;
  const double *base = s->w0_EE ? s->w0_EE : unit;
  put(b, b->feed.table,
      ids                                  ? (const void *)s->ids
      : s->it.id == KEDGE_ROUTER_router_l2 ? (const void *)base
                                           : s->table);
}

static outcome run(spot *s) {
  kedge_device *device;
  built b = {0};
  outcome o = {0};
  defaults(s);
  ok(kedge_device_open("ref", NULL, &device));
  build(s, &b, device);
  write_inputs(s, &b);
  ok(kedge_exec_run(b.exec, 0, UINT32_MAX));
  get(&b, b.loss, &o.loss);
  get(&b, b.values.ids_TK, o.ids);
  get(&b, b.values.weights_TK, o.gates);
  get(&b, b.values.bad_1, &o.bad);
  get(&b, b.gradients[0], o.dz);
  get(&b, b.gradients[1], o.dw);
  if (s->it.scope != KEDGE_BALANCE_SEQUENCE) get(&b, b.values.counts_GE, o.counts);
  kedge_exec_free(b.exec);
  kedge_graph_free(b.graph);
  kedge_device_close(device);
  return o;
}

static double row_sum(const outcome *o, const spot *s, uint32_t t) {
  double sum = 0;
  for (uint32_t e = 0; e < s->experts; e++) sum += o->dz[t * s->experts + e];
  return sum;
}

static double largest(const double *numbers, uint32_t count) {
  double most = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (!isfinite(numbers[i])) return INFINITY;
    most = fmax(most, fabs(numbers[i]));
  }
  return most;
}

static const kedge_router_id losses[] = {KEDGE_ROUTER_lbl, KEDGE_ROUTER_z_loss, KEDGE_ROUTER_kl,
                                         KEDGE_ROUTER_kl_token, KEDGE_ROUTER_logit_l2};
enum { LOSSES = 5 };
static const uint32_t kinds[] = {KEDGE_SCORE_SOFTMAX, KEDGE_SCORE_SIGMOID};

/* Random logits; the table holds probabilities, or logits where the loss reads those; one row for all. */
static spot usual(kedge_router_id id, uint32_t kind) {
  spot s = {.score_kind = kind, .normalise = true, .it = {.id = id, .beta = 0.75, .coef = 1}};
  double row[E];
  scatter(s.z, T * E, 1);
  scatter(row, E, 3);
  softmax(row, E, s.table);
  if (id == KEDGE_ROUTER_kl_token) memcpy(s.table, row, sizeof row);
  return s;
}

/* ---- Load balancing
 * ----------------------------------------------------------------------------------------------- */

static void test_balance(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    spot s = usual(KEDGE_ROUTER_lbl, kinds[i]);
    memset(s.z, 0, sizeof s.z); /* q uniform, f as unbalanced as can be: all ties to the same experts */
    outcome o = run(&s);
    near("uniform q", o.loss, 1, 1e-14);
    near("choices of expert 0", o.counts[0], T, 0);
    for (uint32_t j = 0; j < T * E; j++)
      s.z[j] = (double)((j / E + j) % E) * 0.7; /* each row turned by one */
    o = run(&s);
    near("balanced f and P", o.loss, 1, 1e-13);
    for (uint32_t e = 0; e < E; e++) near("choices", o.counts[e], K, 0);
    for (uint32_t j = 0; j < T * E; j++) s.z[j] = j % E < K ? 40 : -700; /* all the mass on the same K */
    o = run(&s);
    near("collapse", o.loss, (double)E / K, 1e-12);
    s.it.balance_hf = true;
    o = run(&s);
    near("collapse, times K", o.loss, E, 1e-12);
    memset(s.z, 0, sizeof s.z);
    o = run(&s);
    near("uniform, times K", o.loss, K, 1e-13);
  }
}

/* Low sigmoids do not cheat the loss: shares are of the scores' own sum. */
static void test_balance_low(void **state) {
  (void)state;
  spot s = usual(KEDGE_ROUTER_lbl, KEDGE_SCORE_SIGMOID);
  for (int i = 0; i < T * E; i++) s.z[i] = -60;
  outcome o = run(&s);
  near("all at -60", o.loss, 1, 1e-12);
  spot one = usual(KEDGE_ROUTER_lbl, KEDGE_SCORE_SIGMOID);
  one.tokens = 1;
  for (int i = 0; i < E; i++) one.z[i] = one.z[i] - 60;
  o = run(&one);
  if (!(o.loss >= 1) || !isfinite(largest(o.dz, E))) fail_msg("near -60: the loss is %g", o.loss);
}

/* ---- Shifts and sums
 * ---------------------------------------------------------------------------------------------- */

/* A constant on all logits of a row is invisible to softmax models, but not to the z-loss and to sigmoids. */
static void test_shift(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    const bool sigmoid = kinds[i] == KEDGE_SCORE_SIGMOID;
    for (int j = 0; j <= LOSSES; j++) {
      const kedge_router_id id = j < LOSSES ? losses[j] : KEDGE_ROUTER_none;
      spot s = usual(id, kinds[i]);
      const outcome before = run(&s);
      for (int k = 0; k < T * E; k++) s.z[k] += 0.3 * (k / E) - 0.8;
      const outcome after = run(&s);
      const bool seen =
          id == KEDGE_ROUTER_z_loss || (sigmoid && (id == KEDGE_ROUTER_lbl || id == KEDGE_ROUTER_none));
      assert_memory_equal(after.ids, before.ids, sizeof before.ids);
      double moved = fabs(after.loss - before.loss);
      for (int k = 0; k < T * E; k++) moved = fmax(moved, fabs(after.dz[k] - before.dz[k]));
      if (seen ? moved < 1e-3 : moved > 1e-13)
        fail_msg("%s, kind %u: a shift moves it by %g", kedge_router_name(id), kinds[i], moved);
    }
  }
}

static void test_sums(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < LOSSES; j++) {
      spot s = usual(losses[j], kinds[i]);
      const outcome o = run(&s);
      const bool sigmoid = kinds[i] == KEDGE_SCORE_SIGMOID && losses[j] == KEDGE_ROUTER_lbl;
      for (uint32_t t = 0; t < T; t++) {
        double lse = 0;
        for (int e = 0; e < E; e++) lse += exp(s.z[t * E + (uint32_t)e]);
        const double want = losses[j] == KEDGE_ROUTER_z_loss ? 2 * log(lse) / T : 0;
        if (sigmoid)
          assert_true(fabs(row_sum(&o, &s, t)) > 1e-4);
        else
          near(kedge_router_name(losses[j]), row_sum(&o, &s, t), want, 1e-14);
      }
    }
  for (int normalise = 0; normalise < 2; normalise++) { /* both softmax gates, and the sigmoid's */
    spot s = usual(KEDGE_ROUTER_none, KEDGE_SCORE_SOFTMAX), g = usual(KEDGE_ROUTER_none, KEDGE_SCORE_SIGMOID);
    s.normalise = g.normalise = normalise;
    const outcome o = run(&s), n = run(&g);
    for (uint32_t t = 0; t < T; t++) {
      near("softmax gates", row_sum(&o, &s, t), 0, 1e-14);
      assert_true(fabs(row_sum(&n, &g, t)) > 1e-6);
      for (uint32_t e = 0; e < E; e++) { /* nothing for the experts left out, but in softmax as it is */
        bool in = false;
        for (uint32_t k = 0; k < K; k++) in |= o.ids[t * K + k] == (int32_t)e;
        if (!in) assert_true((o.dz[t * E + e] == 0) == normalise && n.dz[t * E + e] == 0);
      }
    }
  }
}

/* ---- Anchors at the base
 * ------------------------------------------------------------------------------------------ */

/* With spans of one token, or token by token, nothing pulls at W = W0. */
static void test_at_base(void **state) {
  static const kedge_router_id anchors[] = {KEDGE_ROUTER_kl, KEDGE_ROUTER_kl_token, KEDGE_ROUTER_logit_l2};
  (void)state;
  for (int i = 0; i < 3; i++) {
    spot s = usual(anchors[i], KEDGE_SCORE_SIGMOID); /* softmax space even so */
    for (uint32_t t = 0; t < T; t++) {
      s.index[t] = (int32_t)t;
      if (anchors[i] == KEDGE_ROUTER_kl_token)
        memcpy(s.table + t * E, s.z + t * E, E * sizeof *s.z);
      else
        softmax(s.z + t * E, E, s.table + t * E);
    }
    const outcome o = run(&s);
    near(kedge_router_name(anchors[i]), o.loss, 0, 1e-15);
    near("its gradient", largest(o.dz, T * E), 0, 1e-15);
  }
}

/* Spans of several tokens pull each to their mean: no gradient over the span, but one for each token. */
static void test_span_mean(void **state) {
  (void)state;
  spot s = usual(KEDGE_ROUTER_kl, KEDGE_SCORE_SOFTMAX);
  double mean[E] = {0};
  for (int t = 0; t < T; t++) {
    double p[E];
    softmax(s.z + t * E, E, p);
    for (int e = 0; e < E; e++) mean[e] += p[e] / T;
  }
  memcpy(s.table, mean, sizeof mean);
  const outcome o = run(&s);
  assert_true(o.loss > 0.01 && largest(o.dz, E) > 0.001);
  for (int e = 0; e < E; e++) {
    double sum = 0;
    for (int t = 0; t < T; t++) sum += o.dz[t * E + e];
    near("over the span", sum, 0, 1e-15);
  }
}

static void test_router_l2(void **state) {
  (void)state;
  spot s = usual(KEDGE_ROUTER_router_l2, KEDGE_SCORE_SOFTMAX);
  outcome o = run(&s);
  assert_true(o.loss == 0 && largest(o.dw, E * E) == 0); /* exactly */
  double base[MOST] = {0};
  for (int i = 0; i < E * E; i++) base[i] = (i % (E + 1) ? 0 : 1) + 0.5 * (i == 3);
  s.w0_EE = base;
  o = run(&s);
  near("distance", o.loss, 0.25, 0);
  near("its gradient", o.dw[3], -1, 0);
}

/* ---- The edge
 * ----------------------------------------------------------------------------------------------------- */

/* No token counted: every loss and every gradient is 0, nothing is a NaN. */
static void test_empty(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < LOSSES; j++)
      for (int scope = 0; scope < (losses[j] == KEDGE_ROUTER_lbl ? 4 : 1); scope++) {
        spot s = usual(losses[j], kinds[i]);
        s.it.scope = (kedge_balance_scope)scope;
        for (int t = 0; t < T; t++) s.outside[t] = true;
        if (scope >= KEDGE_BALANCE_GLOBAL) memset(s.table, 0, sizeof s.table);
        const outcome o = run(&s);
        if (o.loss != 0 || largest(o.dz, T * E) != 0 || largest(o.dw, E * E) != 0)
          fail_msg("%s, kind %u: loss %g of no tokens", kedge_router_name(losses[j]), kinds[i], o.loss);
        for (int k = 0; k < T * K; k++) assert_int_equal(o.ids[k], -1);
      }
}

/* What stands in tokens outside changes nothing. */
static void test_padding(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < LOSSES; j++) {
      spot s = usual(losses[j], kinds[i]);
      s.outside[2] = s.outside[T - 1] = true;
      const outcome before = run(&s);
      for (int e = 0; e < E; e++) s.z[2 * E + e] = 50 * e, s.z[(T - 1) * E + e] = -e;
      const outcome after = run(&s);
      assert_true(before.loss != 0 && after.loss == before.loss);
      assert_memory_equal(after.dz, before.dz, sizeof before.dz);
    }
}

static void test_all_experts(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    spot s = usual(KEDGE_ROUTER_none, kinds[i]);
    s.topk = E;
    outcome o = run(&s);
    for (int t = 0; t < T; t++) {
      uint32_t seen = 0;
      double sum = 0;
      for (int k = 0; k < E; k++) seen |= 1u << o.ids[t * E + k], sum += o.gates[t * E + k];
      assert_int_equal(seen, (1u << E) - 1);
      near("gates", sum, 1, 1e-14);
    }
    s = usual(KEDGE_ROUTER_lbl, kinds[i]);
    s.topk = E;
    near("balanced by itself", run(&s).loss, 1, 1e-13);
  }
}

static void test_one_expert(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++)
    for (int j = 0; j <= LOSSES; j++) {
      spot s = usual(j < LOSSES ? losses[j] : KEDGE_ROUTER_none, kinds[i]);
      s.experts = s.topk = 1;
      s.table[0] = s.it.id == KEDGE_ROUTER_kl_token ? 0.3 : 1;
      const outcome o = run(&s);
      for (int t = 0; t < T; t++) {
        assert_int_equal(o.ids[t], 0);
        near("its gate", o.gates[t], 1, 1e-15);
      }
      const bool z_loss = s.it.id == KEDGE_ROUTER_z_loss;
      if (s.it.id == KEDGE_ROUTER_lbl) near("lbl", o.loss, 1, 1e-15);
      if (j > 1 && j < LOSSES) near(kedge_router_name(s.it.id), o.loss, 0, 1e-15);
      if (!z_loss) near("gradient", largest(o.dz, T), 0, 1e-15);
    }
}

static void test_ties(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    spot s = usual(KEDGE_ROUTER_none, kinds[i]);
    for (int j = 0; j < T * E; j++) s.z[j] = 0.25;
    s.z[E + 5] = 1, s.z[E + 1] = -1; /* row 1: one better, one worse, the rest tied at the boundary */
    const outcome o = run(&s);
    for (int k = 0; k < K; k++) assert_int_equal(o.ids[k], k);
    const int32_t want[] = {5, 0, 2};
    assert_memory_equal(o.ids + K, want, sizeof want);
  }
}

/* Rows that are not finite are counted and not routed; those of padding are none of the router's. */
static void test_not_finite(void **state) {
  static const double odd[] = {NAN, INFINITY, -INFINITY};
  (void)state;
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 3; j++) {
      spot s = usual(KEDGE_ROUTER_none, kinds[i]);
      assert_int_equal(run(&s).bad, 0);
      /* The logits are x W^T: one such entry spoils its row. */
      s.z[3 * E + 2] = odd[j], s.z[5 * E] = odd[j];
      s.outside[5] = true;
      const outcome o = run(&s);
      assert_int_equal(o.bad, 1);
      for (int k = 0; k < K; k++) assert_true(o.ids[3 * K + k] == -1 && o.ids[4 * K + k] >= 0);
    }
}

/* All sigmoids underflow: weights of about 0, no division by it. */
static void test_underflow(void **state) {
  (void)state;
  spot s = usual(KEDGE_ROUTER_none, KEDGE_SCORE_SIGMOID);
  for (int i = 0; i < T * E; i++) s.z[i] -= 800;
  const outcome o = run(&s);
  assert_true(largest(o.gates, T * K) < 1e-10 && isfinite(largest(o.dz, T * E)));
  assert_int_equal(o.bad, 0);
}

/* ---- Forced choices
 * ------------------------------------------------------------------------------------------------ */

/* Weights of a forced choice are those of the raw scores on it; a selection bias has no part in them. */
static void test_forced(void **state) {
  static const double correction[E] = {3, -3, 2, -2, 1, -1, 0, 5};
  static const kedge_router_id ids[] = {KEDGE_ROUTER_rpb_hard, KEDGE_ROUTER_replay};
  (void)state;
  for (int way = 0; way < 8; way++) {
    spot s = usual(ids[way & 1], kinds[way >> 1 & 1]);
    const bool sigmoid = s.score_kind == KEDGE_SCORE_SIGMOID;
    s.normalise = way >> 2 & 1;
    s.alpha = 2.446;
    s.correction_E = sigmoid ? correction : NULL;
    s.ids[0] = 6, s.ids[1] = 1, s.ids[2] = 3;
    s.index[4] = -1; /* no span: as ever */
    const outcome forced = run(&s);
    s.it.id = KEDGE_ROUTER_none;
    const outcome free_choice = run(&s);
    for (int t = 0; t < T; t++) {
      double p[E], sum = 0;
      softmax(s.z + t * E, E, p);
      for (int e = 0; sigmoid && e < E; e++) p[e] = 1 / (1 + exp(-s.z[t * E + e]));
      const int32_t *chosen = forced.ids + t * K, *want = t == 4 ? free_choice.ids + t * K : s.ids;
      assert_memory_equal(chosen, want, K * sizeof *want);
      for (int k = 0; k < K; k++) sum += p[chosen[k]];
      for (int k = 0; k < K; k++)
        near("gate", forced.gates[t * K + k], 2.446 * p[chosen[k]] / (s.normalise ? sum : 1), 1e-14);
    }
  }
}

/* No expert twice, whatever the logits. */
static void test_distinct(void **state) {
  (void)state;
  for (uint32_t salt = 0; salt < 40; salt++) {
    spot s = usual(salt % 2 ? KEDGE_ROUTER_rpb : KEDGE_ROUTER_none, kinds[salt / 2 % 2]);
    scatter(s.z, T * E, salt);
    for (int i = 0; i < T * E; i++) s.z[i] = round(s.z[i]); /* many ties */
    const outcome o = run(&s);
    for (int t = 0; t < T; t++)
      assert_true(o.ids[t * K] != o.ids[t * K + 1] && o.ids[t * K] != o.ids[t * K + 2] &&
                  o.ids[t * K + 1] != o.ids[t * K + 2]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_balance),    cmocka_unit_test(test_balance_low),
      cmocka_unit_test(test_shift),      cmocka_unit_test(test_sums),
      cmocka_unit_test(test_at_base),    cmocka_unit_test(test_span_mean),
      cmocka_unit_test(test_router_l2),  cmocka_unit_test(test_empty),
      cmocka_unit_test(test_padding),    cmocka_unit_test(test_all_experts),
      cmocka_unit_test(test_one_expert), cmocka_unit_test(test_ties),
      cmocka_unit_test(test_not_finite), cmocka_unit_test(test_underflow),
      cmocka_unit_test(test_forced),     cmocka_unit_test(test_distinct),
  };
  return cmocka_run_group_tests_name("router facts", tests, NULL, NULL);
}
