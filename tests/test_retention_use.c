/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Use of experts, ties and gates: traces worked out by hand, what must not change when tokens or experts are
 * permuted, and the real routing log against golden/esft_metrics.json. */
#include "models/retention/probe.h"
#include "models/trace/trace_import.h"
#include "tests/support/files.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static void near(const char *what, double got, double want, double limit) {
  if (!(fabs(got - want) <= limit)) fail_msg("%s: got %.17g, want %.17g", what, got, want);
}

static kedge_trace make(uint32_t tokens, uint32_t layers, uint32_t experts, uint32_t topk,
                        const int32_t *ids) {
  kedge_trace t;
  ok(kedge_trace_init(&t, tokens, layers, experts, topk));
  memcpy(t.ids, ids, (size_t)tokens * layers * topk * sizeof *ids);
  return t;
}

/* ---- By hand
 * ------------------------------------------------------------------------------------------------------ */

/* Layer 0: 4 tokens use experts 0 0 1 1 of 4; layer 1: 0 1 2 3. Two samples of two tokens. */
static void test_use(void **state) {
  (void)state;
  kedge_trace t = make(4, 2, 4, 1, (int32_t[]){0, 0, 0, 1, 1, 2, 1, 3});
  t.samples[2] = t.samples[3] = 1, t.spans[0] = 0, t.spans[1] = t.spans[2] = t.spans[3] = 1;
  kedge_use u;
  ok(kedge_use_measure(&t, KEDGE_RETENTION_ALL, &u));
  assert_true(u.tokens == 4 && u.samples == 2 && u.skipped == 0 && u.padding == 0);
  assert_true(u.counts[0] == 2 && u.counts[1] == 2 && u.counts[2] == 0 && u.counts[7] == 1);
  near("entropy", u.at[0].entropy_nats, log(2), 1e-15);
  near("effective", u.at[0].effective, 0.5, 1e-15);
  near("sharp", u.at[0].l1, 1, 1e-15); /* .25 + .25 + .25 + .25 */
  assert_true(u.at[0].dead == 2 && u.at[0].load == 2 && u.at[1].dead == 0 && u.at[1].load == 1);
  near("even", u.at[1].entropy_nats, log(4), 1e-15);
  assert_true(u.at[1].l1 == 0);
  near("samples, layer 0", u.at[0].effective_sample, 0.25, 1e-9); /* one expert of four in each */
  near("samples, layer 1", u.at[1].effective_sample, 0.5, 1e-9);
  near("mean", u.mean.effective, 0.75, 1e-15);
  near("mean l1", u.mean.l1, 0.5, 1e-15);
  assert_true(u.mean.dead == 2);
  near("averaged", u.layer_mean[0], 0.375, 1e-15); /* .375 .375 .125 .125 */
  near("averaged l1", u.l1_layer_mean, 0.5, 1e-15);
  near("averaged fraction", u.effective_layer_mean, exp(-.75 * log(.375) - .25 * log(.125)) / 4, 1e-15);
  kedge_use_destroy(&u);
  ok(kedge_use_measure(&t, KEDGE_RETENTION_Q, &u));
  assert_true(u.tokens == 1 && u.samples == 1 && u.at[0].dead == 3 && u.at[0].l1 == 1.5);
  kedge_use_destroy(&u);
  t.ids[0] = t.ids[1] = -1; /* the only token of the question */
  ok(kedge_use_measure(&t, KEDGE_RETENTION_Q, &u));
  assert_true(u.tokens == 0 && u.samples == 0 && u.skipped == 2 && u.padding == 2);
  assert_true(isnan(u.mean.effective) && isnan(u.l1_layer_mean) && isnan(u.mean.dead));
  kedge_use_destroy(&u);
  kedge_trace_destroy(&t);
}

static void test_pair(void **state) {
  (void)state;
  kedge_trace a = make(2, 2, 2, 1, (int32_t[]){0, 0, 0, 0}), b = make(2, 2, 2, 1, (int32_t[]){0, 1, 1, 1});
  kedge_use u, v;
  kedge_use_pair p;
  ok(kedge_use_measure(&a, KEDGE_RETENTION_ALL, &u));
  ok(kedge_use_measure(&b, KEDGE_RETENTION_ALL, &v));
  ok(kedge_use_compare(&u, &v, &p));
  near("tvd", p.tvd, 0.75, 1e-15); /* layers: .5 and 1 */
  near("l1", p.l1, 1.5, 1e-15);
  near("averaged", p.l1_layer_mean, 1.5, 1e-15); /* (1, 0) against (.25, .75) */
  near("cosine", p.cosine, sqrt(.5) / 2, 1e-15);
  near("cosine averaged", p.cosine_layer_mean, .25 / sqrt(.0625 + .5625), 1e-15);
  near("cosine of all", p.cosine_all, .5 / sqrt(2 * 1.5), 1e-15);
  ok(kedge_use_compare(&u, &u, &p));
  assert_true(p.tvd == 0 && p.jsd_nats == 0 && p.l1 == 0 && p.cosine_all == 1);
  kedge_use_destroy(&u), kedge_use_destroy(&v);
  kedge_trace_destroy(&a), kedge_trace_destroy(&b);
}

/* CASES row 26: all logits equal, top-2 of 4. Each row hangs on the rule of ties, and choices that differ by
 * that rule alone have a tolerant overlap of 1. */
static void test_ties(void **state) {
  (void)state;
  kedge_trace a = make(1, 1, 4, 2, (int32_t[]){0, 1}), b = make(1, 1, 4, 2, (int32_t[]){2, 3});
  kedge_retention r;
  a.logits = kedge_alloc(4, sizeof *a.logits), b.logits = kedge_alloc(4, sizeof *b.logits);
  ok(kedge_trace_find_ties(&a)), ok(kedge_trace_find_ties(&b));
  assert_true(a.ties[0] == 1 && a.tied[0] == 15);
  ok(kedge_trace_check(&a, "a"));
  ok(kedge_retention_compare(&a, &b, KEDGE_RETENTION_ALL, &r));
  assert_true(r.mean.ties == 1 && r.mean.overlap == 0 && r.mean.tolerant == 1);
  kedge_retention_destroy(&r);
  kedge_trace_destroy(&a), kedge_trace_destroy(&b);
  /* One place is sure, one hangs on experts 1 and 2; the other model is sure of 0 and 2, then of 3 and 2. */
  a = make(2, 1, 4, 2, (int32_t[]){0, 1, 0, 1}), b = make(2, 1, 4, 2, (int32_t[]){2, 0, 3, 2});
  const float z[8] = {2, 1, 1, 0, 2, 1, 1, 0}, w[8] = {1, 0, 2, 0, 0, 0, 1, 2};
  a.logits = kedge_alloc(8, sizeof *a.logits), b.logits = kedge_alloc(8, sizeof *b.logits);
  memcpy(a.logits, z, sizeof z), memcpy(b.logits, w, sizeof w);
  ok(kedge_trace_find_ties(&a)), ok(kedge_trace_find_ties(&b));
  assert_true(a.ties[0] && a.tied[0] == 6 && b.ties[0] == 0 && !b.tied);
  ok(kedge_retention_compare(&a, &b, KEDGE_RETENTION_ALL, &r));
  assert_true(r.mean.overlap == 0.25 && r.mean.tolerant == 0.75 && r.mean.ties == 2);
  kedge_retention_destroy(&r);
  /* That there are ties is known, not between which: the tolerant overlap is not known. */
  kedge_free(a.tied), a.tied = NULL;
  ok(kedge_retention_compare(&a, &b, KEDGE_RETENTION_ALL, &r));
  assert_true(r.ties_known && isnan(r.mean.tolerant));
  kedge_retention_destroy(&r);
  a.ties[0] = a.ties[1] = 0; /* and without any it is the plain one */
  ok(kedge_retention_compare(&a, &b, KEDGE_RETENTION_ALL, &r));
  assert_true(r.mean.tolerant == r.mean.overlap);
  kedge_retention_destroy(&r);
  kedge_trace_destroy(&a), kedge_trace_destroy(&b);
  /* Places are not taken twice: both models are sure of one and hang on the rest for one place each. The base
   * has 0 and may take 1, 2 or 3; the post has 1 and may take 0, 2 or 3: at best the two places cross. */
  a = make(1, 1, 4, 2, (int32_t[]){0, 2}), b = make(1, 1, 4, 2, (int32_t[]){1, 3});
  a.logits = kedge_alloc(4, sizeof *a.logits), b.logits = kedge_alloc(4, sizeof *b.logits);
  memcpy(a.logits, (float[]){2, 1, 1, 1}, 16), memcpy(b.logits, (float[]){1, 2, 1, 1}, 16);
  ok(kedge_trace_find_ties(&a)), ok(kedge_trace_find_ties(&b));
  ok(kedge_retention_compare(&a, &b, KEDGE_RETENTION_ALL, &r));
  assert_true(r.mean.overlap == 0 && r.mean.tolerant == 1);
  kedge_retention_destroy(&r);
  /* With 0 out of the post's reach, the base's one place goes to 1, and nothing is left for 2 or 3. */
  memcpy(b.logits, (float[]){0, 2, 1, 1}, 16);
  kedge_free(b.ties), kedge_free(b.tied), b.ties = b.tied = NULL;
  ok(kedge_trace_find_ties(&b));
  ok(kedge_retention_compare(&a, &b, KEDGE_RETENTION_ALL, &r));
  assert_true(r.mean.tolerant == 0.5);
  kedge_retention_destroy(&r);
  kedge_trace_destroy(&a), kedge_trace_destroy(&b);
}

static void test_gates(void **state) {
  (void)state;
  kedge_trace a = make(2, 1, 4, 2, (int32_t[]){0, 1, 0, 1}), b = make(2, 1, 4, 2, (int32_t[]){1, 2, 1, 0});
  kedge_retention r;
  ok(kedge_retention_compare(&a, &b, KEDGE_RETENTION_ALL, &r));
  assert_true(isnan(r.mean.gates));
  kedge_retention_destroy(&r);
  a.weights = kedge_alloc(4, sizeof *a.weights), b.weights = kedge_alloc(4, sizeof *b.weights);
  memcpy(a.weights, (float[]){3, 1, 1, 1}, 16), memcpy(b.weights, (float[]){.5f, .5f, 6, 2}, 16);
  ok(kedge_retention_compare(&a, &b, KEDGE_RETENTION_ALL, &r));
  near("gates", r.mean.gates, (.25 + .75) / 2, 1e-9); /* min(1/4, 1/2); min(1/2, 1/4) + min(1/2, 3/4) */
  kedge_retention_destroy(&r);
  /* Equal gates: the plain overlap. */
  for (int i = 0; i < 4; i++) a.weights[i] = b.weights[i] = 0.5f;
  ok(kedge_retention_compare(&a, &b, KEDGE_RETENTION_ALL, &r));
  assert_true(r.mean.gates == r.mean.overlap);
  kedge_retention_destroy(&r);
  ok(kedge_retention_compare(&a, &a, KEDGE_RETENTION_ALL, &r));
  assert_true(r.mean.gates == 1);
  kedge_retention_destroy(&r);
  kedge_trace_destroy(&a), kedge_trace_destroy(&b);
}

/* CASES row 64: a dead expert keeps its layer, padding counts nowhere. */
static void test_dead(void **state) {
  (void)state;
  kedge_trace t = make(4, 1, 4, 1, (int32_t[]){0, 1, 2, -1});
  kedge_use u;
  ok(kedge_use_measure(&t, KEDGE_RETENTION_ALL, &u));
  assert_true(u.mean.dead == 1 && u.skipped == 0 && u.padding == 1 && u.at[0].tokens == 3);
  near("fraction", u.mean.effective, 0.75, 1e-15);
  kedge_use_destroy(&u);
  kedge_trace_destroy(&t);
}

/* ---- The real log
 * ------------------------------------------------------------------------------------------------- */

static bool read_domain(const char *domain, kedge_trace *t) {
  const char *index = test_shared("data/router/esft/index.json");
  char folder[1024];
  if (!index) return false;
  snprintf(folder, sizeof folder, "%.*s", (int)(strlen(index) - strlen("/index.json")), index);
  ok(kedge_trace_read(folder, &(kedge_trace_import_options){.domain = domain}, t));
  return true;
}

static double value(const json_t *object, const char *a, const char *b) {
  const json_t *found = json_object_get(b ? json_object_get(object, a) : object, b ? b : a);
  if (!json_is_number(found)) fail_msg("no number at %s %s", a, b ? b : "");
  return json_number_value(found);
}

static void check_domain(const kedge_use *u, const char *name, const json_t *golden) {
  for (uint32_t l = 0; l < u->layers; l++) {
    char key[32];
    snprintf(key, sizeof key, "%s/%d", name, u->at[l].layer);
    const json_t *layer = json_object_get(json_object_get(golden, "layers"), key);
    assert_int_equal(u->at[l].tokens, (uint64_t)value(layer, "tokens", NULL));
    for (uint32_t e = 0; e < u->experts; e++)
      assert_int_equal(u->counts[(size_t)l * u->experts + e],
                       (uint64_t)json_integer_value(json_array_get(json_object_get(layer, "count"), e)));
    near(key, u->at[l].l1, value(layer, "l1_to_uniform", NULL), 1e-9);
    near(key, u->at[l].effective, value(layer, "eff_expert_frac", NULL), 1e-9);
  }
  near(name, u->l1_layer_mean, value(golden, "sharpness_layermean_L1", name), 1e-9);
  near(name, u->mean.l1, value(golden, "sharpness_perlayer_L1_mean", name), 1e-9);
}

static void check_page(const kedge_use *u, double averaged, double layers, double samples, double l1_averaged,
                       double l1) {
  near("fraction, averaged", u->effective_layer_mean, averaged, 5e-4);
  near("fraction, layers", u->mean.effective, layers, 5e-4);
  near("fraction, samples", u->mean.effective_sample, samples, 5e-4);
  near("L1, averaged", u->l1_layer_mean, l1_averaged, 5e-4);
  near("L1", u->mean.l1, l1, 5e-4);
}

static void test_real_log(void **state) {
  (void)state;
  kedge_trace intent, summary;
  kedge_use a, b;
  kedge_use_pair p;
  const char *path = test_shared("golden/esft_metrics.json");
  if (!path) skip();
  json_t *golden = json_load_file(path, 0, NULL);
  assert_non_null(golden);
  if (!read_domain("intent", &intent)) skip();
  read_domain("summary", &summary);
  assert_true(intent.weights && intent.samples[intent.tokens - 1] == 126 && intent.layer_numbers[25] == 26);
  clock_t start = clock();
  ok(kedge_use_measure(&intent, KEDGE_RETENTION_ALL, &a));
  ok(kedge_use_measure(&summary, KEDGE_RETENTION_ALL, &b));
  ok(kedge_use_compare(&a, &b, &p));
  print_message("measuring two domains: %.0f ms\n", 1e3 * (double)(clock() - start) / CLOCKS_PER_SEC);
  check_domain(&a, "intent", golden);
  check_domain(&b, "summary", golden);
  check_page(&a, .987, .757, .696, .121, .601);
  check_page(&b, .985, .801, .768, .146, .505);
  const json_t *pair = json_object_get(json_object_get(golden, "pairs"), "intent|summary");
  near("tvd", p.tvd, value(pair, "tvd_layer_mean", NULL), 1e-9);
  near("jsd", p.jsd_nats, value(pair, "jsd_nats_layer_mean", NULL), 1e-9);
  near("jsd bits", p.jsd_bits, value(pair, "jsd_nats_layer_mean", NULL) / log(2), 1e-9);
  near("l1", p.l1_layer_mean, value(pair, "l1_of_layer_means", NULL), 1e-9);
  near("cosine", p.cosine_layer_mean, value(pair, "cos_of_layer_means", NULL), 1e-9);
  near("cosine", p.cosine_all, value(pair, "cos_of_concat_layers", NULL), 1e-9);
  kedge_use_destroy(&a), kedge_use_destroy(&b);
  kedge_trace_destroy(&intent), kedge_trace_destroy(&summary);
  json_decref(golden);
}

/* ---- What must not change
 * ------------------------------------------------------------------------------------------ */

static uint32_t draw(uint32_t *state, uint32_t below) {
  *state = *state * 1664525u + 1013904223u;
  return (uint32_t)((uint64_t)*state * below >> 32);
}

enum { TOKENS = 60, LAYERS = 3, EXPERTS = 11, TOPK = 3 };

static kedge_trace random_trace(uint32_t seed) {
  kedge_trace t;
  ok(kedge_trace_init(&t, TOKENS, LAYERS, EXPERTS, TOPK));
  t.weights = kedge_alloc(TOKENS * LAYERS, TOPK * sizeof *t.weights);
  for (uint32_t row = 0; row < TOKENS * LAYERS; row++) {
    int32_t order[EXPERTS];
    for (int32_t e = 0; e < EXPERTS; e++) order[e] = e;
    for (uint32_t k = 0; k < TOPK; k++) {
      uint32_t with = k + draw(&seed, EXPERTS - k);
      int32_t kept = order[k];
      order[k] = order[with], order[with] = kept;
      t.ids[row * TOPK + k] = order[k];
      t.weights[row * TOPK + k] = (float)draw(&seed, 1000) / 999;
    }
  }
  for (uint32_t i = 0; i < TOKENS; i++) t.samples[i] = (int32_t)(i / 7), t.spans[i] = (int32_t)(i / 3 % 2);
  return t;
}

/* Whole samples in reverse order, numbered again; experts renamed e -> 10 - e if asked. */
static kedge_trace rearranged(const kedge_trace *t, bool rename) {
  kedge_trace out = random_trace(1);
  uint32_t to = 0;
  for (int32_t s = (TOKENS - 1) / 7; s >= 0; s--)
    for (uint32_t i = 0; i < TOKENS; i++) {
      if (t->samples[i] != s) continue;
      const size_t row = (size_t)LAYERS * TOPK;
      memcpy(out.ids + to * row, t->ids + i * row, row * sizeof *t->ids);
      memcpy(out.weights + to * row, t->weights + i * row, row * sizeof *t->weights);
      out.samples[to] = (TOKENS - 1) / 7 - s, out.spans[to] = t->spans[i];
      to++;
    }
  for (size_t i = 0; rename && i < (size_t)TOKENS * LAYERS * TOPK; i++) out.ids[i] = EXPERTS - 1 - out.ids[i];
  return out;
}

static char *report_of(const kedge_trace *base, const kedge_trace *post) {
  kedge_probe p = {0};
  char *text;
  ok(kedge_probe_add(&p, "x", base, post));
  ok(kedge_probe_json(&p, true, &text));
  kedge_probe_destroy(&p);
  return text;
}

static void test_order(void **state) {
  (void)state;
  kedge_trace base = random_trace(5), post = random_trace(6);
  kedge_trace base_turned = rearranged(&base, false), post_turned = rearranged(&post, false);
  char *one = report_of(&base, &post), *other = report_of(&base_turned, &post_turned);
  assert_string_equal(one, other);
  kedge_free(other);
  kedge_trace base_named = rearranged(&base, true), post_named = rearranged(&post, true);
  kedge_retention r, named;
  ok(kedge_retention_compare(&base, &post, KEDGE_RETENTION_A, &r));
  ok(kedge_retention_compare(&base_named, &post_named, KEDGE_RETENTION_A, &named));
  assert_true(r.mean.overlap == named.mean.overlap && r.mean.top1 == named.mean.top1);
  assert_true(r.mean.gates == named.mean.gates && r.mean.gates > 0 && r.mean.gates < 1);
  near("tvd", named.mean.tvd, r.mean.tvd, 1e-14);
  near("jsd", named.mean.jsd_nats, r.mean.jsd_nats, 1e-14);
  kedge_retention_destroy(&r), kedge_retention_destroy(&named);
  kedge_free(one);
  kedge_trace_destroy(&base), kedge_trace_destroy(&post);
  kedge_trace_destroy(&base_turned), kedge_trace_destroy(&post_turned);
  kedge_trace_destroy(&base_named), kedge_trace_destroy(&post_named);
}

/* ---- Probes of several domains
 * ------------------------------------------------------------------------------------- */

static void test_domains(void **state) {
  (void)state;
  kedge_trace a = random_trace(1), b = random_trace(2), c = random_trace(3), d = random_trace(4);
  kedge_probe p = {0};
  kedge_retention one, two;
  ok(kedge_probe_add(&p, "math", &a, &b));
  ok(kedge_probe_add(&p, "code", &c, &d));
  ok(kedge_retention_compare(&a, &b, KEDGE_RETENTION_Q, &one));
  ok(kedge_retention_compare(&c, &d, KEDGE_RETENTION_Q, &two));
  const kedge_retention *q = &p.kept[KEDGE_PROBE_QUESTION];
  near("overlap", q->mean.overlap, (one.mean.overlap + two.mean.overlap) / 2, 1e-15);
  near("tvd of a layer", q->layers[1].tvd, (one.layers[1].tvd + two.layers[1].tvd) / 2, 1e-15);
  assert_true(q->tokens == one.tokens + two.tokens && p.samples == 18 && p.count == 2);
  assert_int_equal(kedge_probe_add(&p, "math", &a, &b), KEDGE_ERR_ARGUMENT);
  assert_int_equal(kedge_probe_add(&p, "third", &a, NULL), KEDGE_ERR_MISMATCH);
  c.topk = 2; /* another k */
  assert_int_equal(kedge_probe_add(&p, "third", &c, &d), KEDGE_ERR_MISMATCH);
  c.topk = TOPK, c.layer_numbers[2] = 9;
  assert_int_equal(kedge_probe_add(&p, "third", &c, &c), KEDGE_ERR_MISMATCH);
  assert_int_equal(p.count, 2);
  memset(a.model, 'a', 32), ok(kedge_probe_add(&p, "third", &a, &b));
  memset(b.model, 'b', 32);
  assert_int_equal(kedge_probe_add(&p, "fourth", &b, &a), KEDGE_ERR_MISMATCH);
  kedge_retention_destroy(&one), kedge_retention_destroy(&two);
  kedge_probe_destroy(&p);
  kedge_trace_destroy(&a), kedge_trace_destroy(&b), kedge_trace_destroy(&c), kedge_trace_destroy(&d);
}

/* Every allocation of a probe fails once; nothing is lost, and a later try gives the report. */
static void test_no_memory(void **state) {
  (void)state;
  kedge_trace a = random_trace(1), b = random_trace(2);
  kedge_status status = KEDGE_ERR_MEMORY;
  for (uint64_t nth = 1; status != KEDGE_OK && nth < 1000; nth++) {
    kedge_probe p = {0};
    kedge_alloc_fail_nth(nth);
    status = kedge_probe_add(&p, "x", &a, &b);
    kedge_alloc_fail_nth(0);
    assert_true(status == KEDGE_OK || (status == KEDGE_ERR_MEMORY && p.count == 0));
    kedge_probe_destroy(&p);
  }
  assert_int_equal(status, KEDGE_OK);
  kedge_trace_destroy(&a), kedge_trace_destroy(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_use),   cmocka_unit_test(test_pair),    cmocka_unit_test(test_ties),
      cmocka_unit_test(test_gates), cmocka_unit_test(test_dead),    cmocka_unit_test(test_real_log),
      cmocka_unit_test(test_order), cmocka_unit_test(test_domains), cmocka_unit_test(test_no_memory),
  };
  return cmocka_run_group_tests_name("use of experts", tests, NULL, NULL);
}
