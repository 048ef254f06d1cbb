/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Audits of traces (models/retention/audit.h): figures against sums by hand, routers whose verdicts are
 * known, the real routing log of the shared data folder, traces of which nothing can be told, the order of
 * samples. The program is in test_audit_command.c.
 */
#include "models/retention/audit.h"
#include "models/text/random.h"
#include "tests/support/routing_log.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static void near(const char *what, double got, double want, double limit) {
  if (!(fabs(got - want) <= limit)) fail_msg("%s: got %.17g, want %.17g", what, got, want);
}

/* One rho, few seeds and as many null graphs as p 0.05 needs. */
static kedge_community_options options_of(uint32_t nulls) {
  kedge_community_options o = kedge_community_defaults();
  o.rho_count = 1, o.rho[0] = 0.10;
  o.seeds = 4, o.nulls = nulls, o.shuffles = 4, o.permutations = 20, o.workers = 2;
  return o;
}

static void audit_trace(kedge_audit *a, const kedge_trace *t, uint32_t nulls) {
  const kedge_community_options o = options_of(nulls);
  *a = (kedge_audit){0};
  ok(kedge_audit_add(a, "all", t));
  ok(kedge_audit_add_communities(a, 0, t, &o));
  kedge_audit_judge(a, KEDGE_AUDIT_BIAS_UNKNOWN);
}

static void expect(const kedge_audit *a, kedge_audit_question q, kedge_audit_answer want, const char *part) {
  const kedge_audit_verdict *v = &a->verdicts[q];
  if (v->answer != want || !strstr(v->text, part))
    fail_msg("%s: answer %d, want %d; \"%s\", want \"%s\"", kedge_audit_key(q), (int)v->answer, (int)want,
             v->text, part);
}

static bool warns(const kedge_audit *a, const char *part) {
  for (uint32_t i = 0; i < a->warning_count; i++)
    if (strstr(a->warnings[i], part)) return true;
  return false;
}

/* ---- By hand
 * ------------------------------------------------------------------------------------------------------ */

static double choose(unsigned n, unsigned k) {
  double c = 1;
  for (unsigned i = 1; i <= k; i++) c = c * (n - k + i) / i;
  return c;
}

/* E/(N K) E|X - N K/E| as the sum over all X. */
static double expected_l1(unsigned n, unsigned k, unsigned experts) {
  const double p = (double)k / experts;
  double sum = 0;
  for (unsigned x = 0; x <= n; x++) sum += choose(n, x) * pow(p, x) * pow(1 - p, n - x) * fabs(x - n * p);
  return sum * experts / (n * k);
}

static void test_chance(void **state) {
  (void)state;
  static const unsigned sizes[][3] = {{7, 2, 5}, {1, 6, 64}, {40, 3, 4}, {5, 1, 2}, {100, 8, 128}, {3, 2, 3}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    const unsigned n = sizes[i][0], k = sizes[i][1], e = sizes[i][2];
    kedge_trace t;
    kedge_audit a = {0};
    ok(kedge_trace_init(&t, n, 1, e, k));
    for (unsigned r = 0; r < n; r++)
      for (unsigned j = 0; j < k; j++) t.ids[r * k + j] = (int32_t)((r + j) % e);
    ok(kedge_audit_add(&a, "all", &t));
    near("chance", a.domains[0].at[0].l1_noise, expected_l1(n, k, e), 1e-12);
    near("chance of spans", a.domains[0].at[0].l1_span_noise, expected_l1(n, k, e), 1e-12);
    kedge_audit_destroy(&a);
    kedge_trace_destroy(&t);
  }
}

/* 100 choices of one expert each, 30, 20, 25 and 25: chi-squared is 2 with 3 degrees, p 0.5724. */
static void test_uniform_p(void **state) {
  (void)state;
  kedge_trace t;
  kedge_audit a = {0};
  ok(kedge_trace_init(&t, 100, 1, 4, 1));
  for (int i = 0; i < 100; i++) t.ids[i] = i < 30 ? 0 : i < 50 ? 1 : 2 + i % 2;
  ok(kedge_audit_add(&a, "all", &t));
  near("p", a.domains[0].at[0].uniform_p, 0.5724, 5e-3);
  near("most chosen", a.domains[0].at[0].most_chosen, 0.30, 1e-12);
  kedge_audit_destroy(&a);
  /* 60, 20, 10, 10: chi-squared 68, p 1e-14. */
  for (int i = 0; i < 100; i++) t.ids[i] = i < 60 ? 0 : i < 80 ? 1 : 2 + i % 2;
  ok(kedge_audit_add(&a, "all", &t));
  assert_true(a.domains[0].at[0].uniform_p < 1e-9);
  kedge_audit_destroy(&a);
  kedge_trace_destroy(&t);
}

static void set_logits(kedge_trace *t, uint32_t token, const double *p) {
  for (uint32_t e = 0; e < t->experts; e++) t->logits[token * t->experts + e] = (float)log(p[e]);
}

/* A question whose mean softmax is uniform, and an answer of one token. */
static void test_logits(void **state) {
  (void)state;
  static const double tokens[3][4] = {{.4, .3, .2, .1}, {.1, .2, .3, .4}, {.97, .01, .01, .01}};
  static const int32_t ids[3][2] = {{0, 1}, {3, 2}, {0, 1}};
  kedge_trace t;
  kedge_audit a = {0};
  ok(kedge_trace_init(&t, 3, 1, 4, 2));
  t.logits = kedge_alloc(12, sizeof *t.logits);
  for (uint32_t i = 0; i < 3; i++) {
    set_logits(&t, i, tokens[i]);
    memcpy(t.ids + 2 * i, ids[i], sizeof ids[i]);
    t.spans[i] = i == 2 ? KEDGE_SPAN_A : KEDGE_SPAN_Q;
  }
  ok(kedge_trace_find_ties(&t));
  ok(kedge_audit_add(&a, "all", &t));
  const kedge_audit_layer *at = &a.domains[0].at[0];
  near("top-1", at->top1_mass, (.4 + .4 + .97) / 3, 1e-6);
  near("gap", at->gap, 2 * log(1.5) / 3, 1e-6);
  /* Of the answer three cells lie below 0.05/4; b is 3/4 and three times -1/4 of the log of the ratio. */
  near("low", at->clipped_low, 3.0 / 8, 1e-12);
  near("high", at->clipped_high, 0, 1e-12);
  near("sd of b", at->bias_sd, sqrt((9 + 3) / 64.0) * log(.97 / .0125) / 2, 1e-6);
  near("ties", at->tie_share, 1.0 / 3, 1e-12);
  /* L1 of use: both rows of the question use each expert once, the answer half of them. */
  near("L1 of spans", at->l1_span, (0 + 1) / 2.0, 1e-12);
  near("L1", a.probe.domains[0].base[0].at[0].l1, 4 * (1 / 3.0 - 1 / 4.0), 1e-12);
  kedge_audit_destroy(&a);
  kedge_trace_destroy(&t);
}

/* The upper limit: 5/8 of eight experts. */
static void test_clipped_high(void **state) {
  (void)state;
  static const double p[8] = {.65, .05, .05, .05, .05, .05, .05, .05};
  kedge_trace t;
  kedge_audit a = {0};
  ok(kedge_trace_init(&t, 1, 1, 8, 1));
  t.logits = kedge_alloc(8, sizeof *t.logits);
  set_logits(&t, 0, p);
  t.ids[0] = 0;
  ok(kedge_audit_add(&a, "all", &t));
  near("high", a.domains[0].at[0].clipped_high, 1.0 / 8, 1e-12);
  near("sd of b", a.domains[0].at[0].bias_sd, sqrt(7.0) / 8 * log(.625 / .05), 1e-6);
  kedge_audit_judge(&a, KEDGE_AUDIT_BIAS_PRESENT);
  assert_true(warns(&a, "would hold 12.5 % of the prior's cells"));
  expect(&a, KEDGE_AUDIT_Q_LOSS_FREE, KEDGE_AUDIT_YES, "present: loss_free is possible");
  kedge_audit_destroy(&a);
  kedge_trace_destroy(&t);
}

/* ---- Routers made for the purpose
 * ----------------------------------------------------------------------------------- */

enum { LAYERS = 4, EXPERTS = 32, TOPK = 4, BLOCK = 8 };

/* Samples of 50 tokens, half question, half answer. */
static void make(kedge_trace *t, uint32_t tokens) {
  ok(kedge_trace_init(t, tokens, LAYERS, EXPERTS, TOPK));
  for (uint32_t i = 0; i < tokens; i++) t->samples[i] = (int32_t)(i / 50), t->spans[i] = i % 50 >= 25;
}

/* The first k of a permutation of `pool` [count]. */
static void draw(kedge_random *random, uint32_t *pool, uint32_t count, int32_t *ids) {
  kedge_random_shuffle(random, pool, count);
  for (uint32_t k = 0; k < TOPK; k++) ids[k] = (int32_t)pool[k];
}

static void make_uniform(kedge_trace *t, uint32_t tokens, uint64_t seed) {
  uint32_t pool[EXPERTS];
  kedge_random random = kedge_random_start(seed, 0);
  make(t, tokens);
  for (uint32_t e = 0; e < EXPERTS; e++) pool[e] = e;
  for (uint32_t row = 0; row < tokens * LAYERS; row++) draw(&random, pool, EXPERTS, t->ids + row * TOPK);
}

/* Blocks of neighbours; the first has 70 tokens of 100, so that layers agree on who is used much. One token
 * in ten is random. */
static void make_sharp(kedge_trace *t, uint32_t tokens, uint64_t seed) {
  uint32_t all[EXPERTS], pool[BLOCK];
  kedge_random random = kedge_random_start(seed, 0);
  make(t, tokens);
  for (uint32_t e = 0; e < EXPERTS; e++) all[e] = e;
  for (uint32_t row = 0; row < tokens * LAYERS; row++) {
    const uint64_t of = kedge_random_below(&random, 100);
    const uint32_t block = of < 70 ? 0 : of < 80 ? 1 : of < 90 ? 2 : 3;
    for (uint32_t e = 0; e < BLOCK; e++) pool[e] = block * BLOCK + e;
    if (kedge_random_below(&random, 10))
      draw(&random, pool, BLOCK, t->ids + row * TOPK);
    else
      draw(&random, all, EXPERTS, t->ids + row * TOPK);
  }
}

static void test_sharp(void **state) {
  (void)state;
  kedge_trace t;
  kedge_audit a;
  make_sharp(&t, 1000, 1);
  audit_trace(&a, &t, 39);
  const kedge_audit_figures *f = &a.figures;
  expect(&a, KEDGE_AUDIT_Q_SHARPNESS, KEDGE_AUDIT_YES, "sharp (L1 of layers averaged first ");
  expect(&a, KEDGE_AUDIT_Q_DIAGNOSTIC, KEDGE_AUDIT_YES,
         "informative (4 of 4 layers beat the null at p <= 0.05");
  expect(&a, KEDGE_AUDIT_Q_ANCHORING, KEDGE_AUDIT_YES, "makes sense");
  expect(&a, KEDGE_AUDIT_Q_SHUFFLES, KEDGE_AUDIT_YES, "usable");
  assert_true(f->cells == LAYERS && f->tokens == 1000 && f->tested == LAYERS && f->beating == LAYERS);
  assert_true(f->split_nmi > 0.8 && f->floor < 0.6 && f->q_margin > 0.1 && f->uniform == 0);
  assert_true(f->within_nmi > 0.9 && f->seeds == 4 && f->nulls == 39);
  assert_false(warns(&a, "few tokens"));
  assert_false(warns(&a, "near-uniform"));
  kedge_audit_destroy(&a);
  kedge_trace_destroy(&t);
}

static void test_uniform(void **state) {
  (void)state;
  kedge_trace t;
  kedge_audit a;
  make_uniform(&t, 1000, 2);
  audit_trace(&a, &t, 39);
  expect(&a, KEDGE_AUDIT_Q_SHARPNESS, KEDGE_AUDIT_NO, "near uniform (");
  expect(&a, KEDGE_AUDIT_Q_DIAGNOSTIC, KEDGE_AUDIT_NO, "not informative (");
  expect(&a, KEDGE_AUDIT_Q_ANCHORING, KEDGE_AUDIT_NO, "little to hold: routing is near uniform (");
  expect(&a, KEDGE_AUDIT_Q_SHUFFLES, KEDGE_AUDIT_NO, "not usable (communities are unstable: ");
  expect(&a, KEDGE_AUDIT_Q_BALANCING, KEDGE_AUDIT_NO, "little to mend (0 dead experts in 0 of 4 layers");
  expect(&a, KEDGE_AUDIT_Q_LOSS_FREE, KEDGE_AUDIT_CANNOT_TELL, "not known");
  near("L1 is what chance gives", a.figures.l1, a.figures.l1_noise, 0.02);
  near("chance of four layers", a.figures.l1_averaged_noise, a.figures.l1_noise / 2, 1e-12);
  near("also of spans", a.figures.l1_span, a.figures.l1_span_noise, 0.02);
  near("halves are at the floor", a.figures.split_nmi, a.figures.floor, 0.1);
  assert_true(a.figures.beating <= 1 && a.figures.uniform >= 3);
  assert_true(warns(&a, "near-uniform routing"));
  kedge_audit_destroy(&a);
  kedge_trace_destroy(&t);
}

/* Experts are used unevenly and independently of each other: each graph is stable, and no more than its
 * margins. */
static void test_use_alone(void **state) {
  (void)state;
  kedge_trace t;
  kedge_audit a;
  kedge_random random = kedge_random_start(8, 0);
  make(&t, 2000);
  for (uint32_t row = 0; row < t.tokens * LAYERS; row++)
    for (uint32_t k = 0; k < TOPK; k++) {
      /* The square of a uniform number: low experts more often; drawn again where the row has it. */
      const uint64_t u = kedge_random_below(&random, 1000);
      const int32_t e = (int32_t)(u * u * EXPERTS / 1000000);
      uint32_t at = 0;
      while (at < k && t.ids[row * TOPK + at] != e) at++;
      if (at == k)
        t.ids[row * TOPK + k] = e;
      else
        k--;
    }
  audit_trace(&a, &t, 39);
  expect(&a, KEDGE_AUDIT_Q_DIAGNOSTIC, KEDGE_AUDIT_NO, "not informative (");
  expect(&a, KEDGE_AUDIT_Q_ANCHORING, KEDGE_AUDIT_YES, "4 of 4 layers are more uneven than chance");
  expect(&a, KEDGE_AUDIT_Q_SHUFFLES, KEDGE_AUDIT_NO,
         "not usable (communities are what the use of experts alone");
  kedge_audit_destroy(&a);
  kedge_trace_destroy(&t);
}

/* As few tokens of the same routers tell nothing of communities, and it is said. */
static void test_few_tokens(void **state) {
  (void)state;
  kedge_trace t;
  kedge_audit a;
  make_uniform(&t, 100, 3);
  audit_trace(&a, &t, 39);
  expect(&a, KEDGE_AUDIT_Q_DIAGNOSTIC, KEDGE_AUDIT_CANNOT_TELL, "too few tokens");
  expect(&a, KEDGE_AUDIT_Q_ANCHORING, KEDGE_AUDIT_CANNOT_TELL, "cannot tell (");
  /* 2 * 5 * 32 * 31 / (4 * 3) */
  assert_true(warns(&a, "few tokens: 100") && warns(&a, "827 or more"));
  kedge_audit_destroy(&a);
  audit_trace(&a, &t, 18);
  expect(&a, KEDGE_AUDIT_Q_DIAGNOSTIC, KEDGE_AUDIT_CANNOT_TELL, "fewer than 19 null graphs");
  kedge_audit_destroy(&a);
  kedge_trace_destroy(&t);
}

/* Dead experts, ties, and an expert that half of the tokens use. */
static void test_warnings(void **state) {
  (void)state;
  kedge_trace t;
  kedge_audit a;
  make_uniform(&t, 1000, 4);
  t.ties = kedge_alloc((size_t)t.tokens * LAYERS, 1);
  for (uint32_t i = 0; i < t.tokens; i++) {
    int32_t *ids = t.ids + ((size_t)i * LAYERS + 2) * TOPK;
    t.ties[(size_t)i * LAYERS + 1] = i < 8;
    /* In layer 2 experts 30 and 31 become 0 to 7, expert 9 comes to more than half of the tokens. */
    for (uint32_t k = 0; k < TOPK; k++) ids[k] = (int32_t)((i + k) % 8);
    if (i % 5) ids[0] = 9;
  }
  ok(kedge_trace_check(&t, "made"));
  audit_trace(&a, &t, 19);
  expect(&a, KEDGE_AUDIT_Q_BALANCING, KEDGE_AUDIT_YES, "makes sense (23 dead experts in 1 of 4 layers");
  assert_true(a.figures.load_layer == 2 && warns(&a, "layer 2 sends 80 % of the tokens through one expert"));
  assert_true(warns(&a, "dead experts: 23 in 1 of 4 layers"));
  assert_true(warns(&a, "ties: 8 choices (0.2 %)"));
  kedge_audit_destroy(&a);
  kedge_trace_destroy(&t);
}

/* Another order of the samples changes no figure but by rounding. */
static void test_order(void **state) {
  (void)state;
  kedge_trace t, other;
  kedge_audit a, b;
  make_sharp(&t, 500, 5);
  make(&other, 500);
  for (uint32_t s = 0; s < 10; s++)
    memcpy(other.ids + s * 50 * LAYERS * TOPK, t.ids + (9 - s) * 50 * LAYERS * TOPK,
           50 * LAYERS * TOPK * sizeof *t.ids);
  audit_trace(&a, &t, 19);
  audit_trace(&b, &other, 19);
  for (int q = 0; q < KEDGE_AUDIT_QUESTIONS; q++) assert_string_equal(a.verdicts[q].text, b.verdicts[q].text);
  near("spans", a.figures.l1_span, b.figures.l1_span, 1e-12);
  assert_true(a.figures.split_nmi == b.figures.split_nmi && a.figures.q_margin == b.figures.q_margin);
  kedge_audit_destroy(&a), kedge_audit_destroy(&b);
  kedge_trace_destroy(&t), kedge_trace_destroy(&other);
}

/* Two domains are cells of one verdict; what does not fit is refused. */
static void test_domains(void **state) {
  (void)state;
  kedge_trace sharp, uniform, narrow;
  kedge_audit a = {0};
  const kedge_community_options o = options_of(19);
  make_sharp(&sharp, 900, 6), make_uniform(&uniform, 900, 7);
  ok(kedge_audit_add(&a, "sharp", &sharp));
  ok(kedge_audit_add(&a, "uniform", &uniform));
  ok(kedge_audit_add_communities(&a, 0, &sharp, &o));
  ok(kedge_audit_add_communities(&a, 1, &uniform, &o));
  kedge_audit_judge(&a, KEDGE_AUDIT_BIAS_ABSENT);
  expect(&a, KEDGE_AUDIT_Q_DIAGNOSTIC, KEDGE_AUDIT_UNDECIDED, "undecided (");
  expect(&a, KEDGE_AUDIT_Q_LOSS_FREE, KEDGE_AUDIT_NO, "absent");
  assert_true(a.figures.cells == 2 * LAYERS && a.figures.beating >= LAYERS && a.figures.uniform >= 2);
  ok(kedge_trace_init(&narrow, 1, LAYERS, EXPERTS, 2));
  assert_int_equal(kedge_audit_add(&a, "narrow", &narrow), KEDGE_ERR_MISMATCH);
  kedge_audit_destroy(&a);
  kedge_trace_destroy(&sharp), kedge_trace_destroy(&uniform), kedge_trace_destroy(&narrow);
}

/* ---- Nothing to tell
 * -------------------------------------------------------------------------------------------- */

/* Words without "nan" or "inf", JSON that other programs read, no answer on communities. */
static void check_silent(kedge_audit *a) {
  char *text;
  json_error_t error;
  for (int bias = 0; bias < 3; bias++) {
    kedge_audit_judge(a, (kedge_audit_bias)bias);
    for (int q = 0; q < KEDGE_AUDIT_QUESTIONS + (int)a->warning_count; q++) {
      const char *line =
          q < KEDGE_AUDIT_QUESTIONS ? a->verdicts[q].text : a->warnings[q - KEDGE_AUDIT_QUESTIONS];
      if (!*line || strstr(line, "nan") || strstr(line, "inf")) fail_msg("\"%s\"", line);
    }
    expect(a, KEDGE_AUDIT_Q_DIAGNOSTIC, KEDGE_AUDIT_CANNOT_TELL, "cannot tell (");
    expect(a, KEDGE_AUDIT_Q_SHUFFLES, KEDGE_AUDIT_CANNOT_TELL, "cannot tell (");
  }
  ok(kedge_audit_json(a, &text));
  json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
  if (!root) fail_msg("%s: %s", error.text, text);
  const json_t *verdict = json_object_get(json_object_get(root, "verdicts"), "community_diagnostic");
  assert_string_equal(json_string_value(json_object_get(verdict, "answer")), "cannot_tell");
  json_decref(root);
  kedge_free(text);
}

static void test_tiny(void **state) {
  (void)state;
  static const struct {
    uint32_t tokens, layers, experts, topk;
    bool padding, logits, anchors; /* whether something is told of anchoring */
  } cases[] = {{1, 1, 1, 1, false, true, false},   {1, 1, 4, 2, false, true, false},
               {1, 1, 64, 6, false, false, false}, {50, 2, 4, 4, false, true, false},
               {500, 2, 8, 1, false, true, true},  {3, 2, 16, 4, true, false, false},
               {2, 1, 2, 1, false, true, false},   {9, 3, 1, 1, false, false, false},
               {400, 1, 2, 1, false, true, true},  {400, 2, 4, 2, false, true, true},
               {1, 2, 3, 2, false, true, false}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    kedge_trace t;
    kedge_audit a;
    const uint32_t K = cases[c].topk, E = cases[c].experts;
    ok(kedge_trace_init(&t, cases[c].tokens, cases[c].layers, E, K));
    const uint32_t rows = t.tokens * t.layers;
    for (uint32_t i = 0; i < rows * K && !cases[c].padding; i++)
      t.ids[i] = (int32_t)((i / K / t.layers + i % K) % E);
    if (cases[c].logits) t.logits = kedge_alloc(rows, E * sizeof *t.logits);
    for (uint32_t i = 0; i < rows * K && t.logits; i++) t.logits[i / K * E + (uint32_t)t.ids[i]] = 2;
    ok(kedge_trace_check(&t, "made"));
    audit_trace(&a, &t, 19);
    check_silent(&a);
    if (!cases[c].anchors) expect(&a, KEDGE_AUDIT_Q_ANCHORING, KEDGE_AUDIT_CANNOT_TELL, "cannot tell (");
    if (K == E) expect(&a, KEDGE_AUDIT_Q_SHARPNESS, KEDGE_AUDIT_CANNOT_TELL, "every token uses every expert");
    if (cases[c].padding) expect(&a, KEDGE_AUDIT_Q_BALANCING, KEDGE_AUDIT_CANNOT_TELL, "no token was routed");
    kedge_audit_destroy(&a);
    kedge_trace_destroy(&t);
  }
  /* No domain at all. */
  kedge_audit none = {0};
  check_silent(&none);
  kedge_audit_destroy(&none);
}

/* ---- The real log
 * ------------------------------------------------------------------------------------------------- */

/* Figures of the calibration, made by another implementation: whole numbers and sums to its last digit,
 * communities as far as detectors, seeds and halves differ. */
static void test_real_log(void **state) {
  (void)state;
  static const struct {
    const char *name;
    double averaged, l1, effective_averaged, effective, sample, q, isolated, seed, split, margin;
  } page[] = {{"intent", .121, .601, .987, .757, .696, .392, 12.5, .932, .914, .313},
              {"summary", .146, .505, .985, .801, .768, .371, 10.0, .906, .825, .294}};
  const kedge_community_options o = options_of(19);
  kedge_audit a = {0};
  for (int i = 0; i < 2; i++) {
    kedge_trace t;
    if (!test_routing_log(page[i].name, &t)) skip();
    ok(kedge_audit_add(&a, page[i].name, &t));
    ok(kedge_audit_add_communities(&a, (uint32_t)i, &t, &o));
    kedge_trace_destroy(&t);
    const kedge_probe_domain *d = &a.probe.domains[i];
    const kedge_use *u = &d->base[KEDGE_PROBE_ALL];
    const kedge_community_side *m = &d->communities.means[0].base;
    static const uint32_t layers[5] = {1, 7, 13, 20, 26};
    double margin = 0;
    for (size_t l = 0; l < 5; l++) margin += d->communities.rows[layers[l] - 1].base.null_q.margin / 5;
    near("L1, layers averaged first", u->l1_layer_mean, page[i].averaged, 5e-4);
    near("L1 of layers", u->mean.l1, page[i].l1, 5e-4);
    near("effective, layers averaged", u->effective_layer_mean, page[i].effective_averaged, 5e-4);
    near("effective of layers", u->mean.effective, page[i].effective, 5e-4);
    near("effective of samples", u->mean.effective_sample, page[i].sample, 5e-4);
    near("Q", m->q.median, page[i].q, 0.006);
    near("isolated", m->isolated / 26.0, page[i].isolated, 0.05);
    near("other seed", m->seed_nmi.median, page[i].seed, 0.03);
    near("halves", m->split_nmi.median, page[i].split, 0.08);
    near("null margin", margin, page[i].margin, 0.015);
    near("chance", a.domains[i].mean.l1_noise, 0.0272, 5e-4);
  }
  kedge_audit_judge(&a, KEDGE_AUDIT_BIAS_UNKNOWN);
  expect(&a, KEDGE_AUDIT_Q_SHARPNESS, KEDGE_AUDIT_NO, "near uniform (L1 of layers averaged first 0.1334");
  expect(&a, KEDGE_AUDIT_Q_DIAGNOSTIC, KEDGE_AUDIT_YES, "informative (52 of 52 layers beat the null");
  expect(&a, KEDGE_AUDIT_Q_ANCHORING, KEDGE_AUDIT_YES, "52 of 52 layers are more uneven than chance");
  expect(&a, KEDGE_AUDIT_Q_SHUFFLES, KEDGE_AUDIT_YES, "usable");
  assert_true(a.figures.floor > 0.29 && a.figures.floor < 0.41 && !a.figures.ties_known);
  assert_true(warns(&a, "the layer-averaged L1 hides 0.42") && warns(&a, "near-uniform base"));
  kedge_audit_destroy(&a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_chance),       cmocka_unit_test(test_uniform_p),  cmocka_unit_test(test_logits),
      cmocka_unit_test(test_clipped_high), cmocka_unit_test(test_sharp),      cmocka_unit_test(test_uniform),
      cmocka_unit_test(test_use_alone),    cmocka_unit_test(test_few_tokens), cmocka_unit_test(test_warnings),
      cmocka_unit_test(test_order),        cmocka_unit_test(test_domains),    cmocka_unit_test(test_tiny),
      cmocka_unit_test(test_real_log)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
