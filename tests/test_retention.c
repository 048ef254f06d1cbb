/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Retention metrics: closed forms, degenerate vectors, padding and dead experts, and the real routing log of
 * the shared data folder against golden/esft_metrics.json.
 */
#include "models/retention/retention.h"
#include "tests/support/files.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static void near(const char *what, double got, double want, double limit) {
  if (!(fabs(got - want) <= limit)) fail_msg("%s: got %.17g, want %.17g", what, got, want);
}

static void fails(kedge_status got, kedge_status want, const char *text) {
  if (got != want) fail_msg("expected %s, got %s", kedge_status_name(want), kedge_status_name(got));
  if (!strstr(kedge_message(), text)) fail_msg("expected \"%s\" in: %s", text, kedge_message());
}

/* ---- Divergences
 * -------------------------------------------------------------------------------------------------- */

static void expect(const char *what, const double *p, const double *q, uint32_t n, double tvd, double jsd,
                   double limit) {
  double got;
  ok(kedge_retention_tvd(p, q, n, &got));
  near(what, got, tvd, limit);
  ok(kedge_retention_tvd(q, p, n, &got));
  near(what, got, tvd, limit);
  ok(kedge_retention_jsd(p, q, n, &got));
  near(what, got, jsd, limit);
  if (got < 0 || got > log(2)) fail_msg("%s: JSD %g is out of range", what, got);
  ok(kedge_retention_jsd(q, p, n, &got));
  near(what, got, jsd, limit);
}

static void test_closed_forms(void **state) {
  (void)state;
  expect("three", (double[]){.3, .3, .4}, (double[]){.5, .5, 0}, 3, 0.4, 0.1638966, 5e-8);
  expect("bits", (double[]){.3, .3, .4}, (double[]){.5, .5, 0}, 3, 0.4, 0.2364528 * log(2), 5e-8);
  expect("disjoint", (double[]){1, 0}, (double[]){0, 3}, 2, 1, log(2), 1e-15);
  expect("denormal", (double[]){0, 1}, (double[]){5e-324, 1}, 2, 0, 0, 1e-300);
  expect("all denormal", (double[]){5e-324, 5e-324}, (double[]){1, 1}, 2, 0, 0, 1e-15);
  expect("huge", (double[]){1e308, 1e308, 1e308}, (double[]){1, 1, 1}, 3, 0, 0, 1e-15);
  double p[64], q[64];
  for (int i = 0; i < 64; i++) {
    float f = 1.0f / (float)(i + 3);
    p[i] = (double)f;
    q[i] = (double)(3.0f * f);
  }
  expect("proportional", p, q, 64, 0, 0, 1e-7);
  double tvd = 1, jsd = 1;
  ok(kedge_retention_tvd(p, p, 64, &tvd));
  ok(kedge_retention_jsd(p, p, 64, &jsd));
  assert_true(tvd == 0 && jsd == 0);
}

static void test_bad_vectors(void **state) {
  (void)state;
  double got;
  fails(kedge_retention_tvd((double[]){0, 0}, (double[]){1, 1}, 2, &got), KEDGE_ERR_ARGUMENT, "sum is 0");
  fails(kedge_retention_jsd((double[]){1, 1}, (double[]){0, 0}, 2, &got), KEDGE_ERR_ARGUMENT, "sum is 0");
  fails(kedge_retention_jsd((double[]){1, -1e-9}, (double[]){1, 0}, 2, &got), KEDGE_ERR_ARGUMENT, "expert 1");
  fails(kedge_retention_jsd((double[]){1, NAN}, (double[]){1, 0}, 2, &got), KEDGE_ERR_ARGUMENT, "nan");
  fails(kedge_retention_tvd((double[]){1, INFINITY}, (double[]){1, 0}, 2, &got), KEDGE_ERR_ARGUMENT, "inf");
}

/* ---- Traces
 * ------------------------------------------------------------------------------------------------------- */

static kedge_trace make(uint32_t tokens, uint32_t layers, uint32_t experts, uint32_t topk,
                        const int32_t *ids) {
  kedge_trace t;
  ok(kedge_trace_init(&t, tokens, layers, experts, topk));
  memcpy(t.ids, ids, (size_t)tokens * layers * topk * sizeof *ids);
  return t;
}

/* Two tokens, two layers, top-2 of 4, worked out by hand. */
static void test_small(void **state) {
  (void)state;
  kedge_trace a = make(2, 2, 4, 2, (int32_t[]){0, 1, 2, 3, 0, 2, 2, 3});
  kedge_trace b = make(2, 2, 4, 2, (int32_t[]){1, 0, 2, 1, 1, 3, 3, 2});
  a.spans[0] = b.spans[0] = 0, a.spans[1] = b.spans[1] = 1;
  a.layer_numbers[0] = b.layer_numbers[0] = 1, a.layer_numbers[1] = b.layer_numbers[1] = 4;
  kedge_retention r;
  ok(kedge_retention_compare(&a, &b, KEDGE_RETENTION_ALL, &r));
  assert_int_equal(r.count, 2);
  assert_int_equal(r.layers[1].layer, 4);
  assert_true(r.layers[0].overlap == 0.5 && r.layers[0].top1 == 0);    /* {0,1}={1,0}; {0,2} and {1,3} */
  assert_true(r.layers[1].overlap == 0.75 && r.layers[1].top1 == 0.5); /* {2,3},{2,1}; {2,3}={3,2} */
  near("tvd", r.layers[0].tvd, 0.5, 1e-15);                            /* 2 1 1 0 against 1 2 0 1 */
  assert_true(r.layers[0].dead_base == 1 && r.layers[0].dead_post == 1);
  assert_true(r.layers[0].load_base == 2 && r.layers[1].load_base == 2);
  assert_true(r.mean.overlap == 0.625 && r.mean.top1 == 0.25 && r.mean.dead_base == 3 &&
              r.mean.dead_post == 2);
  assert_true(r.skipped == 0 && r.tokens == 2 && r.padding == 0 && !r.ties_known);
  near("bits", r.mean.jsd_bits, r.mean.jsd_nats / log(2), 1e-15);
  kedge_retention_destroy(&r);
  ok(kedge_retention_compare(&a, &b, KEDGE_RETENTION_A, &r));
  assert_true(r.layers[0].overlap == 0 && r.layers[1].overlap == 1 && r.tokens == 1);
  kedge_retention_destroy(&r);
  ok(kedge_retention_compare(&a, &a, KEDGE_RETENTION_ALL, &r));
  assert_true(r.mean.overlap == 1 && r.mean.top1 == 1 && r.mean.tvd == 0 && r.mean.jsd_nats == 0);
  kedge_retention_destroy(&r);
  kedge_trace_destroy(&a), kedge_trace_destroy(&b);
}

/* Rows of -1 are padding: the metrics are those of the trace without them, a layer without any other row is
 * skipped and counted, a dead expert keeps its layer. */
static void test_padding(void **state) {
  (void)state;
  kedge_trace a = make(3, 2, 3, 1, (int32_t[]){0, -1, 1, -1, -1, -1});
  kedge_trace b = make(3, 2, 3, 1, (int32_t[]){0, -1, 0, -1, -1, -1});
  kedge_retention r;
  ok(kedge_retention_compare(&a, &b, KEDGE_RETENTION_ALL, &r));
  assert_true(r.skipped == 1 && r.tokens == 2 && r.padding == 4);
  assert_true(r.layers[0].tokens == 2 && r.layers[1].tokens == 0 && isnan(r.layers[1].tvd));
  assert_true(r.mean.overlap == 0.5 && r.mean.tvd == 0.5 && r.mean.dead_base == 1 && r.mean.dead_post == 2);
  kedge_retention_destroy(&r);
  ok(kedge_retention_compare(&a, &b, KEDGE_RETENTION_Q, &r));
  assert_true(r.skipped == 2 && r.tokens == 0 && isnan(r.mean.overlap) && isnan(r.mean.dead_base));
  kedge_retention_destroy(&r);
  uint64_t counts[3];
  assert_int_equal(kedge_trace_counts(&a, 0, KEDGE_RETENTION_ALL, counts), 2);
  assert_true(counts[0] == 1 && counts[1] == 1 && counts[2] == 0);
  kedge_trace_destroy(&a), kedge_trace_destroy(&b);
}

static void test_all_experts(void **state) {
  (void)state;
  kedge_trace a = make(2, 1, 3, 3, (int32_t[]){0, 1, 2, 2, 0, 1});
  kedge_trace b = make(2, 1, 3, 3, (int32_t[]){2, 1, 0, 2, 1, 0});
  kedge_retention r;
  ok(kedge_retention_compare(&a, &b, KEDGE_RETENTION_ALL, &r));
  assert_true(r.mean.overlap == 1 && r.mean.tvd == 0 && r.mean.top1 == 0.5 && r.mean.load_post == 1);
  kedge_retention_destroy(&r);
  kedge_trace_destroy(&a), kedge_trace_destroy(&b);
}

static void test_mismatch(void **state) {
  (void)state;
  const int32_t ids[6] = {0, 1, 2, 0, 1, 2};
  kedge_trace a = make(2, 1, 4, 3, ids), b = make(2, 1, 4, 3, ids), c = make(1, 1, 4, 3, ids),
              d = make(2, 1, 5, 3, ids), e = make(2, 1, 4, 3, ids);
  kedge_retention r;
  fails(kedge_retention_compare(&a, &c, KEDGE_RETENTION_ALL, &r), KEDGE_ERR_MISMATCH,
        "base has 2, post has 1");
  fails(kedge_retention_compare(&a, &d, KEDGE_RETENTION_ALL, &r), KEDGE_ERR_MISMATCH, "experts");
  memset(a.tokenizer, 'a', 32), memset(b.tokenizer, 'b', 32);
  fails(kedge_retention_compare(&a, &b, KEDGE_RETENTION_ALL, &r), KEDGE_ERR_MISMATCH, "tokenizer");
  e.samples[1] = 1;
  fails(kedge_retention_compare(&a, &e, KEDGE_RETENTION_ALL, &r), KEDGE_ERR_MISMATCH, "token 1");
  kedge_trace_destroy(&a), kedge_trace_destroy(&b), kedge_trace_destroy(&c), kedge_trace_destroy(&d);
  kedge_trace_destroy(&e);
}

/* ---- The real log
 * ------------------------------------------------------------------------------------------------- */

enum { ESFT_LAYERS = 26, ESFT_EXPERTS = 64, ESFT_TOPK = 6 };

/* A domain's ids in the order of the file. False where the data folder is absent. */
static bool read_domain(const char *domain, kedge_trace *t) {
  for (uint32_t l = 0; l < ESFT_LAYERS; l++) {
    char name[80];
    size_t bytes;
    snprintf(name, sizeof name, "data/router/esft/%s_L%02u_ids.u8", domain, l + 1);
    const char *path = test_shared(name);
    if (!path) return false;
    char *ids = test_read(path, &bytes);
    if (l == 0) ok(kedge_trace_init(t, (uint32_t)bytes / ESFT_TOPK, ESFT_LAYERS, ESFT_EXPERTS, ESFT_TOPK));
    assert_int_equal(bytes, (size_t)t->tokens * ESFT_TOPK);
    t->layer_numbers[l] = (int32_t)l + 1;
    for (size_t i = 0; i < bytes; i++)
      t->ids[(i / ESFT_TOPK * ESFT_LAYERS + l) * ESFT_TOPK + i % ESFT_TOPK] = (uint8_t)ids[i];
    free(ids);
  }
  ok(kedge_trace_check(t, domain));
  return true;
}

static void check_counts(const kedge_trace *t, const char *domain, const json_t *layers) {
  uint64_t counts[ESFT_EXPERTS];
  for (uint32_t l = 0; l < ESFT_LAYERS; l++) {
    char key[32];
    snprintf(key, sizeof key, "%s/%u", domain, l + 1);
    const json_t *layer = json_object_get(layers, key), *want = json_object_get(layer, "count");
    uint64_t tokens = kedge_trace_counts(t, l, KEDGE_RETENTION_ALL, counts);
    assert_int_equal(tokens, (uint64_t)json_integer_value(json_object_get(layer, "tokens")));
    assert_int_equal(json_array_size(want), ESFT_EXPERTS);
    for (uint32_t e = 0; e < ESFT_EXPERTS; e++)
      assert_int_equal(counts[e], (uint64_t)json_integer_value(json_array_get(want, e)));
  }
}

/* Means over layers of TVD and JSD between two domains. */
static void check_pair(const kedge_trace *a, const kedge_trace *b, const json_t *pair) {
  double tvd = 0, jsd = 0;
  for (uint32_t l = 0; l < ESFT_LAYERS; l++) {
    uint64_t p_counts[ESFT_EXPERTS], q_counts[ESFT_EXPERTS];
    double p[ESFT_EXPERTS], q[ESFT_EXPERTS], layer_tvd, layer_jsd;
    kedge_trace_counts(a, l, KEDGE_RETENTION_ALL, p_counts);
    kedge_trace_counts(b, l, KEDGE_RETENTION_ALL, q_counts);
    for (uint32_t e = 0; e < ESFT_EXPERTS; e++) p[e] = (double)p_counts[e], q[e] = (double)q_counts[e];
    ok(kedge_retention_tvd(p, q, ESFT_EXPERTS, &layer_tvd));
    ok(kedge_retention_jsd(p, q, ESFT_EXPERTS, &layer_jsd));
    tvd += layer_tvd / ESFT_LAYERS, jsd += layer_jsd / ESFT_LAYERS;
  }
  near("tvd", tvd, json_real_value(json_object_get(pair, "tvd_layer_mean")), 1e-9);
  near("jsd", jsd, json_real_value(json_object_get(pair, "jsd_nats_layer_mean")), 1e-9);
  near("tvd of the page", tvd, 0.334, 5e-4);
  near("jsd of the page", jsd, 0.0905, 5e-5);
}

/* The overlap by the plainest of ways: every pair of places. */
static void check_overlap(const kedge_trace *a, const kedge_trace *b) {
  kedge_retention r;
  ok(kedge_retention_compare(a, b, KEDGE_RETENTION_ALL, &r));
  for (uint32_t l = 0; l < ESFT_LAYERS; l++) {
    uint64_t both = 0;
    for (uint32_t t = 0; t < a->tokens; t++)
      for (int i = 0; i < ESFT_TOPK; i++)
        for (int j = 0; j < ESFT_TOPK; j++)
          both += a->ids[((size_t)t * ESFT_LAYERS + l) * ESFT_TOPK + (size_t)i] ==
                  b->ids[((size_t)t * ESFT_LAYERS + l) * ESFT_TOPK + (size_t)j];
    near("overlap", r.layers[l].overlap, (double)both / (double)a->tokens / ESFT_TOPK, 1e-12);
  }
  assert_true(r.mean.overlap > 0.05 && r.mean.overlap < 0.3);
  kedge_retention_destroy(&r);
}

static void test_real_log(void **state) {
  (void)state;
  kedge_trace intent, summary;
  const char *path = test_shared("golden/esft_metrics.json");
  json_error_t error;
  if (!path) skip();
  json_t *golden = json_load_file(path, 0, &error);
  if (!golden) fail_msg("%s: %s", path, error.text);
  if (!read_domain("intent", &intent) || !read_domain("summary", &summary)) skip();
  check_counts(&intent, "intent", json_object_get(golden, "layers"));
  check_counts(&summary, "summary", json_object_get(golden, "layers"));
  check_pair(&intent, &summary, json_object_get(json_object_get(golden, "pairs"), "intent|summary"));
  summary.tokens = intent.tokens; /* token by token they have nothing in common but the number */
  check_overlap(&intent, &summary);
  summary.tokens = intent.tokens;
  json_decref(golden);
  kedge_trace_destroy(&intent), kedge_trace_destroy(&summary);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_closed_forms), cmocka_unit_test(test_bad_vectors),
      cmocka_unit_test(test_small),        cmocka_unit_test(test_padding),
      cmocka_unit_test(test_all_experts),  cmocka_unit_test(test_mismatch),
      cmocka_unit_test(test_real_log),
  };
  return cmocka_run_group_tests_name("retention", tests, NULL, NULL);
}
