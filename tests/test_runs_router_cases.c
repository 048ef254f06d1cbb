/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Known mistakes of router losses, each as a case with its number: one router whose weight is the identity,
 * so that its input is its logits, with feeds that models/routing/feed.c fills, in double on the reference
 * backend. Numbers are closed forms. */
#include "core/args.h"
#include "models/routing/feed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 32 }; /* tokens, and experts */

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static void near(const char *what, double got, double want, double limit) {
  if (!(fabs(got - want) <= limit)) fail_msg("%s: got %.17g, want %.17g", what, got, want);
}

/* A router and its tokens. A token whose sample is -1 is padding. */
typedef struct bench {
  uint32_t tokens, experts, topk, score_kind;
  uint64_t update_tokens, update_samples; /* of the whole update; 0: those here */
  int32_t sample[MOST];
  double logits[MOST * MOST];
  float prior[2 * MOST * MOST]; /* [S,E]; both spans of a sample have the same row */
  double base[MOST * MOST];     /* [T,E], of kl_token */
  double counts[MOST];          /* choices counted elsewhere */
} bench;

typedef struct outcome {
  double loss, gradient[MOST * MOST]; /* with respect to the logits */
  float counts[MOST];
  int32_t ids[MOST * MOST];
} outcome;

static bench bench_of(uint32_t tokens, uint32_t experts, uint32_t topk) {
  bench b = {.tokens = tokens, .experts = experts, .topk = topk};
  return b;
}

static void set_row(bench *b, uint32_t t, const double *row) {
  memcpy(b->logits + t * b->experts, row, b->experts * sizeof *row);
}

/* All tokens of one sample but those that are padding. */
static uint64_t real_tokens(const bench *b) {
  uint64_t n = 0;
  for (uint32_t t = 0; t < b->tokens; t++) n += b->sample[t] >= 0;
  return n;
}

typedef struct feeding {
  kedge_params params;
  kedge_feeds feeds;
  kedge_source source;
  kedge_dataset data;
  uint64_t ids[MOST];
  uint32_t samples[MOST];
  int32_t segments[MOST], spans[MOST], positions[MOST];
  kedge_micro_batch mb;
} feeding;

/* The feeds of the one intervention, as a run fills them; tables of priors are the bench's own. */
static void feed(feeding *f, const bench *b, const kedge_intervention *it) {
  uint32_t samples = 1;
  *f = (feeding){0};
  f->params.moe_layers = 1;
  f->params.config.num_experts = b->experts;
  f->params.config.num_experts_per_tok = b->topk;
  for (uint32_t t = 0; t < b->tokens; t++) {
    const int32_t s = b->sample[t];
    if (s >= 0 && (uint32_t)s >= samples) samples = (uint32_t)s + 1;
    f->spans[t] = s < 0 ? -1 : 2 * s;
    f->segments[t] = s < 0 ? -1 : (int32_t)t;
  }
  for (uint32_t i = 0; i < samples; i++) f->ids[i] = f->samples[i] = i;
  f->data = (kedge_dataset){.count = samples, .sample_ids = f->ids};
  f->mb = (kedge_micro_batch){.size = b->tokens,
                              .tokens = b->tokens,
                              .samples = samples,
                              .segments_T = f->segments,
                              .spans_T = f->spans,
                              .positions_T = f->positions,
                              .samples_S = f->samples};
  const uint64_t tokens = b->update_tokens ? b->update_tokens : real_tokens(b);
  const kedge_update update = {
      .micro_batches = 1, .samples = b->update_samples ? b->update_samples : samples, .tokens = tokens};
  kedge_feeds_init(&f->feeds, &f->params, it, &f->source, 1);
  kedge_intervention plain = *it;
  if (kedge_router_needs_prior(it->id)) plain.id = KEDGE_ROUTER_kl_token; /* no file: rows are set below */
  f->feeds.interventions = &plain;
  ok(kedge_feeds_fill(&f->feeds, &f->data, &update, &f->mb));
  if (plain.id != it->id)
    for (uint32_t t = 0; t < b->tokens; t++) f->feeds.index[0][t] = f->spans[t];
  f->feeds.interventions = it;
}

/* The rows of a table as doubles: how values of an all-double graph are written. */
static uint64_t table_of(const bench *b, const feeding *f, const kedge_intervention *it, double *rows) {
  const uint64_t E = b->experts;
  switch (kedge_intervention_table(it)) {
  case KEDGE_TABLE_PRIOR:
    for (uint64_t i = 0; i < 2 * f->mb.samples * E; i++) rows[i] = (double)b->prior[i];
    return 2 * f->mb.samples;
  case KEDGE_TABLE_BASE_LOGITS:
    memcpy(rows, b->base, b->tokens * E * sizeof *rows);
    return b->tokens;
  case KEDGE_TABLE_COUNTS:
    memcpy(rows, b->counts, E * sizeof *rows);
    return 1;
  default:
    return 0;
  }
}

static kedge_value input2(kedge_graph *g, const char *name, uint32_t rows, uint32_t cols) {
  return kedge_input(g, name, KEDGE_F32, 2, (uint32_t[]){rows, cols});
}

static void widen(const float *from, uint32_t count, double *to) {
  for (uint32_t i = 0; i < count; i++) to[i] = (double)from[i];
}

/* Builds the router of the bench with one added loss and gives its term (without coefficient) and the
 * gradient of coef * term. */
static outcome run(const bench *b, const kedge_intervention *it) {
  const uint32_t T = b->tokens, E = b->experts;
  static double rows[2 * MOST * MOST];
  outcome o = {0};
  feeding f;
  kedge_device *device;
  kedge_exec *exec;
  feed(&f, b, it);
  const uint32_t S = (uint32_t)table_of(b, &f, it, rows);
  kedge_graph *g = kedge_graph_new(true);
  kedge_router_feed in = {0};
  kedge_value x = input2(g, "x", T, E), w = input2(g, "w", E, E);
  kedge_value segments = kedge_input(g, "segments", KEDGE_I32, 1, &T);
  if (S) in.table = kedge_input(g, "table", KEDGE_F32, 3, (uint32_t[]){1, S, E});
  if (it->id != KEDGE_ROUTER_z_loss) in.index_T = kedge_input(g, "index", KEDGE_I32, 1, &T);
  in.weights = kedge_input(g, "weights", KEDGE_F32, 1, &T);
  const kedge_router_site site = {.graph = g,
                                  .experts = E,
                                  .groups = kedge_feeds_rows(&f.feeds, f.mb.samples) / 2,
                                  .score_kind = b->score_kind,
                                  .choice = {.k = b->topk},
                                  .gate = {b->score_kind, true, 1, 0},
                                  .x_TD = x,
                                  .weight_ED = w,
                                  .segments_T = segments,
                                  .interventions = it,
                                  .feeds = &in,
                                  .intervention_count = 1};
  kedge_router_values v = kedge_router_build(&site);
  if (!v.terms[0]) fail_msg("%s: no term", kedge_router_name(it->id));
  kedge_value gradient, loss = kedge_scale(g, v.terms[0], it->coef);
  kedge_gradient(g, loss, &x, 1, &gradient, NULL, NULL);
  kedge_output(g, v.terms[0], "term");
  kedge_output(g, gradient, "gradient");
  kedge_output(g, v.ids_TK, "ids");
  ok(kedge_graph_status(g));
  ok(kedge_device_open("ref", NULL, &device));
  ok(kedge_exec_new(device, g, NULL, &exec));
  double identity[MOST * MOST] = {0}, weights[MOST];
  for (uint32_t e = 0; e < E; e++) identity[e * E + e] = 1;
  widen(f.feeds.weights[0], T, weights);
  ok(kedge_exec_write(exec, x, b->logits, (uint64_t)T * E * sizeof(double)));
  ok(kedge_exec_write(exec, w, identity, (uint64_t)E * E * sizeof(double)));
  ok(kedge_exec_write(exec, segments, f.segments, T * sizeof(int32_t)));
  ok(kedge_exec_write(exec, in.weights, weights, T * sizeof(double)));
  if (in.index_T) ok(kedge_exec_write(exec, in.index_T, f.feeds.index[0], T * sizeof(int32_t)));
  if (S) ok(kedge_exec_write(exec, in.table, rows, (uint64_t)S * E * sizeof(double)));
  ok(kedge_exec_run(exec, 0, UINT32_MAX));
  ok(kedge_exec_read(exec, v.terms[0], &o.loss, sizeof o.loss));
  ok(kedge_exec_read(exec, gradient, o.gradient, (uint64_t)T * E * sizeof(double)));
  ok(kedge_exec_read(exec, v.ids_TK, o.ids, (uint64_t)T * b->topk * sizeof(int32_t)));
  kedge_exec_free(exec);
  kedge_graph_free(g);
  kedge_device_close(device);
  kedge_feeds_destroy(&f.feeds);
  return o;
}

static kedge_intervention loss_of(kedge_router_id id) {
  return (kedge_intervention){.id = id, .coef = 1};
}

/* ---- Load balancing
 * ----------------------------------------------------------------------------------------------- */

/* Softmax once: 16 tokens of [4,0,0,0,0,0,0,0] give 8 e^4/(e^4+7) = 7.0909; twice would give 2.0344. */
static void case_1_softmax_once(void **state) {
  (void)state;
  bench b = bench_of(16, 8, 1);
  for (uint32_t t = 0; t < 16; t++) b.logits[t * 8] = 4;
  const kedge_intervention lbl = loss_of(KEDGE_ROUTER_lbl);
  near("LB", run(&b, &lbl).loss, 8 * exp(4) / (exp(4) + 7), 1e-6);
  near("LB", run(&b, &lbl).loss, 7.0909, 5e-5);
}

/* Opposite imbalances of two layers are 2 and 2, their sum 4 and mean 2; pooled they would be 1. */
static void case_2_layers_apart(void **state) {
  (void)state;
  bench first = bench_of(6, 2, 1), second = bench_of(6, 2, 1);
  for (uint32_t t = 0; t < 6; t++) first.logits[2 * t] = second.logits[2 * t + 1] = 60;
  const kedge_intervention lbl = loss_of(KEDGE_ROUTER_lbl);
  near("layer 0", run(&first, &lbl).loss, 2, 1e-6);
  near("layer 1", run(&second, &lbl).loss, 2, 1e-6);
}

/* Four tokens, one to each expert, and four in padding that would all go to expert 0. */
static bench padded(bool pads, bool left) {
  bench b = bench_of(pads ? 8 : 4, 4, 1);
  for (uint32_t t = 0; t < b.tokens; t++) {
    const bool pad = pads && (left ? t < 4 : t >= 4);
    b.sample[t] = pad ? -1 : 0;
    b.logits[4 * t + (pad ? 0 : t % 4)] = pad ? 70 + t : 60;
  }
  return b;
}

static void case_3_padding_not_counted(void **state) {
  (void)state;
  const kedge_intervention lbl = loss_of(KEDGE_ROUTER_lbl);
  const bench plain = padded(false, false), right = padded(true, false), left = padded(true, true);
  const outcome a = run(&plain, &lbl), b = run(&right, &lbl), c = run(&left, &lbl);
  near("LB", a.loss, 1, 1e-6);
  assert_true(a.loss == b.loss && a.loss == c.loss);
  assert_memory_equal(a.gradient, b.gradient, sizeof(double) * 16);
  assert_memory_equal(a.gradient, c.gradient + 16, sizeof(double) * 16);
  for (int i = 0; i < 16; i++) assert_true(b.gradient[16 + i] == 0 && c.gradient[i] == 0);
  bench counted = right; /* were they counted: 1.75 */
  for (int t = 0; t < 8; t++) counted.sample[t] = 0;
  assert_true(run(&counted, &lbl).loss > 1.7);
}

static void case_4_not_constant(void **state) {
  (void)state;
  bench balanced = bench_of(4, 4, 1), collapsed = bench_of(4, 4, 1);
  for (uint32_t t = 0; t < 4; t++) balanced.logits[4 * t + t] = collapsed.logits[4 * t] = 60;
  const kedge_intervention lbl = loss_of(KEDGE_ROUTER_lbl);
  near("balanced", run(&balanced, &lbl).loss, 1, 1e-6);
  near("collapsed", run(&collapsed, &lbl).loss, 4, 1e-6);
}

/* Balanced is 1 for any k; in the convention of transformers k. */
static void case_6_conventions(void **state) {
  (void)state;
  bench b = bench_of(4, 4, 2);
  for (uint32_t t = 0; t < 4; t++) b.logits[4 * t + t] = b.logits[4 * t + (t + 1) % 4] = 40;
  kedge_intervention lbl = loss_of(KEDGE_ROUTER_lbl);
  near("switch", run(&b, &lbl).loss, 1, 1e-6);
  lbl.balance_hf = true;
  near("hf", run(&b, &lbl).loss, 2, 1e-6);
}

/* Sigmoid scores that all underflow a fixed epsilon: the loss stays at least 1. */
static void case_1_sigmoid_has_no_epsilon(void **state) {
  (void)state;
  bench b = bench_of(4, 4, 1);
  b.score_kind = KEDGE_SCORE_SIGMOID;
  for (uint32_t i = 0; i < 16; i++) b.logits[i] = -60;
  const kedge_intervention lbl = loss_of(KEDGE_ROUTER_lbl);
  near("LB", run(&b, &lbl).loss, 1, 1e-6);
}

/* A micro-batch without a token adds 0, with gradient 0. */
static void case_9_no_tokens(void **state) {
  (void)state;
  static const kedge_router_id losses[] = {KEDGE_ROUTER_lbl, KEDGE_ROUTER_z_loss, KEDGE_ROUTER_kl,
                                           KEDGE_ROUTER_kl_token, KEDGE_ROUTER_logit_l2};
  for (int scope = KEDGE_BALANCE_MICRO; scope <= KEDGE_BALANCE_GLOBAL_RUNNING; scope++)
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) {
      for (int others = 0; others < 2; others++) {
        bench b = bench_of(4, 4, 2);
        for (uint32_t t = 0; t < 16; t++) b.logits[t] = sin(t), b.sample[t % 4] = -1;
        b.update_tokens = others ? 7 : 0; /* of other micro-batches, or of none at all */
        kedge_intervention it = loss_of(losses[i]);
        it.scope = (kedge_balance_scope)scope;
        const outcome o = run(&b, &it);
        assert_true(o.loss == 0);
        for (int j = 0; j < 16; j++) assert_true(o.gradient[j] == 0);
      }
    }
}

/* Tokens [first, first + count) of 12 that take experts 0 and 1 of 4 in turn, as one micro-batch of the
 * update. */
static double window(uint32_t first, uint32_t count, double *gradient) {
  bench b = bench_of(count, 4, 1);
  b.update_tokens = 12;
  for (uint32_t t = 0; t < count; t++) {
    const double row[] = {(first + t) % 2 ? 0 : 1 + 0.1 * (first + t), (first + t) % 2 ? 2 : 0,
                          -0.1 * (first + t), 0.3};
    set_row(&b, t, row);
  }
  const kedge_intervention lbl = loss_of(KEDGE_ROUTER_lbl);
  const outcome o = run(&b, &lbl);
  memcpy(gradient + 4 * first, o.gradient, 4 * count * sizeof(double));
  return o.loss;
}

/* Windows of 4, 4, 4 and of 6, 2, 4 tokens with the same frequencies. */
static void case_11_uneven_windows(void **state) {
  (void)state;
  double even[48], uneven[48], a = 0, b = 0;
  for (uint32_t w = 0; w < 3; w++) a += window(4 * w, 4, even);
  b += window(0, 6, uneven);
  b += window(6, 2, uneven);
  b += window(8, 4, uneven);
  near("loss", b, a, 1e-14);
  for (int i = 0; i < 48; i++) near("gradient", uneven[i], even[i], 1e-15);
  assert_true(fabs(even[0]) > 1e-4);
}

/* The added loss alone moves the router, twice as much with twice the coefficient. */
static void case_13_coefficient(void **state) {
  (void)state;
  static const kedge_router_id losses[] = {KEDGE_ROUTER_lbl, KEDGE_ROUTER_z_loss, KEDGE_ROUTER_kl,
                                           KEDGE_ROUTER_kl_token, KEDGE_ROUTER_logit_l2};
  for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) {
    bench b = bench_of(5, 4, 2);
    for (uint32_t j = 0; j < 20; j++) b.logits[j] = sin(1.0 + j), b.base[j] = cos(2.0 + j);
    for (uint32_t j = 0; j < 8; j++) b.prior[j] = 0.25f;
    kedge_intervention it = loss_of(losses[i]);
    it.coef = 0.01;
    const outcome once = run(&b, &it);
    it.coef = 0.02;
    const outcome twice = run(&b, &it);
    double most = 0;
    for (int j = 0; j < 20; j++) {
      assert_true(twice.gradient[j] == 2 * once.gradient[j]);
      most = fmax(most, fabs(once.gradient[j]));
    }
    assert_true(most > 1e-5);
    for (int j = 0; j < 20; j++) { /* central differences of the term */
      const double h = 1e-5, at = b.logits[j];
      b.logits[j] = at + h;
      const double up = run(&b, &it).loss;
      b.logits[j] = at - h;
      const double down = run(&b, &it).loss;
      b.logits[j] = at;
      near(kedge_router_name(it.id), 0.02 * (up - down) / (2 * h), twice.gradient[j], 1e-9);
    }
  }
}

/* ---- Others
 * ------------------------------------------------------------------------------------------------------- */

static void case_15_z_loss_without_padding(void **state) {
  (void)state;
  bench b = bench_of(3, 3, 1);
  static const double rows[3][3] = {{1, 2, 3}, {0, 0, 0}, {9, 9, 9}};
  for (uint32_t t = 0; t < 3; t++) set_row(&b, t, rows[t]);
  b.sample[2] = -1;
  const kedge_intervention z = loss_of(KEDGE_ROUTER_z_loss);
  near("z-loss", run(&b, &z).loss, 6.4093637, 5e-8);
  b.sample[2] = 0;
  const double three = (pow(log(exp(1) + exp(2) + exp(3)), 2) + pow(log(3), 2) + pow(9 + log(3), 2)) / 3;
  near("were it counted", run(&b, &z).loss, three, 1e-5);
  near("were it counted", three, 38.2669, 5e-5);
}

/* KL from the reference to the new: 0.4330396, not 0.4742658; gradient p_new - p_ref. */
static void case_16_direction_of_kl(void **state) {
  (void)state;
  const double ref[] = {2, 0, 0}, sum = exp(2) + 2;
  bench b = bench_of(1, 3, 1);
  memcpy(b.base, ref, sizeof ref);
  for (int e = 0; e < 3; e++) b.prior[e] = b.prior[3 + e] = (float)(exp(ref[e]) / sum);
  static const kedge_router_id ids[] = {KEDGE_ROUTER_kl, KEDGE_ROUTER_kl_token};
  for (int i = 0; i < 2; i++) {
    const kedge_intervention it = loss_of(ids[i]);
    const outcome o = run(&b, &it);
    near("KL(ref || new)", o.loss, 0.4330396, 1e-7);
    for (int e = 0; e < 3; e++) near("gradient", o.gradient[e], 1.0 / 3 - exp(ref[e]) / sum, 1e-7);
  }
}

/* 0 log 0 = 0: an entry of probability 0 on both sides adds nothing, though its logit is minus infinity. */
static void case_18_zero_times_infinity(void **state) {
  (void)state;
  static const double z[3] = {1, 0, -INFINITY}, z0[3] = {0, 1, -INFINITY}, one = 1;
  static const int32_t index[1] = {0};
  kedge_device *device;
  kedge_exec *exec;
  kedge_graph *g = kedge_graph_new(true);
  kedge_value z_TE = input2(g, "z", 1, 3), z0_TE = input2(g, "z0", 1, 3), gradient;
  kedge_value index_T = kedge_input(g, "index", KEDGE_I32, 1, (uint32_t[]){1});
  kedge_value p0_TE = kedge_scores(g, z0_TE, KEDGE_SCORE_SOFTMAX);
  kedge_value loss = kedge_sum(g, kedge_anchor_kl(g, z_TE, p0_TE, index_T));
  kedge_gradient(g, loss, &z_TE, 1, &gradient, NULL, NULL);
  kedge_output(g, loss, "loss");
  kedge_output(g, gradient, "gradient");
  ok(kedge_graph_status(g));
  ok(kedge_device_open("ref", NULL, &device));
  ok(kedge_exec_new(device, g, NULL, &exec));
  ok(kedge_exec_write(exec, z_TE, z, sizeof z));
  ok(kedge_exec_write(exec, z0_TE, z0, sizeof z0));
  ok(kedge_exec_write(exec, index_T, index, sizeof index));
  ok(kedge_exec_run(exec, 0, UINT32_MAX));
  double got, dz[3];
  ok(kedge_exec_read(exec, loss, &got, sizeof got));
  ok(kedge_exec_read(exec, gradient, dz, sizeof dz));
  near("KL", got, 0.4621172, 5e-8);
  near("gradient", dz[0], tanh(0.5) * one, 1e-7);
  near("gradient", dz[1], -tanh(0.5) * one, 1e-7);
  assert_true(dz[2] == 0);
  kedge_exec_free(exec);
  kedge_graph_free(g);
  kedge_device_close(device);
}

/* Token losses 4 and 1, 1, 1 in two micro-batches: their mean is 1.75, not 2.5. */
static void case_21_mean_of_tokens(void **state) {
  (void)state;
  double total = 0, anchors[2] = {0};
  for (int part = 0; part < 2; part++) {
    bench b = bench_of(part ? 3 : 1, 2, 1);
    b.update_tokens = 4;
    for (uint32_t i = 0; i < 2 * b.tokens; i++) b.logits[i] = (part ? 1 : 2) - log(2), b.prior[i] = 0.5f;
    kedge_intervention it = loss_of(KEDGE_ROUTER_z_loss); /* (logsumexp)^2 = 4 or 1 */
    total += run(&b, &it).loss;
    for (uint32_t t = 0; t < b.tokens; t++) { /* centred logits (a, -a): loss 2 a^2 = 4 or 1 */
      const double a = sqrt(part ? 0.5 : 2);
      b.logits[2 * t] = a, b.logits[2 * t + 1] = -a;
    }
    it = loss_of(KEDGE_ROUTER_logit_l2);
    anchors[0] += run(&b, &it).loss;
    for (uint32_t t = 0; t < b.tokens; t++) b.logits[2 * t] = part ? 1 : 4, b.logits[2 * t + 1] = 0;
    it = loss_of(KEDGE_ROUTER_kl);
    anchors[1] += run(&b, &it).loss;
  }
  near("z-loss", total, 1.75, 1e-6);
  near("Logit-L2", anchors[0], 1.75, 1e-6);
  const double kl4 = log(1 + exp(4)) - 2 - log(2), kl1 = log(1 + exp(1)) - 0.5 - log(2);
  near("KL", anchors[1], (kl4 + 3 * kl1) / 4, 1e-6);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(case_1_softmax_once),     cmocka_unit_test(case_1_sigmoid_has_no_epsilon),
      cmocka_unit_test(case_2_layers_apart),     cmocka_unit_test(case_3_padding_not_counted),
      cmocka_unit_test(case_4_not_constant),     cmocka_unit_test(case_6_conventions),
      cmocka_unit_test(case_9_no_tokens),        cmocka_unit_test(case_11_uneven_windows),
      cmocka_unit_test(case_13_coefficient),     cmocka_unit_test(case_15_z_loss_without_padding),
      cmocka_unit_test(case_16_direction_of_kl), cmocka_unit_test(case_18_zero_times_infinity),
      cmocka_unit_test(case_21_mean_of_tokens),
  };
  return cmocka_run_group_tests_name("router cases", tests, NULL, NULL);
}
