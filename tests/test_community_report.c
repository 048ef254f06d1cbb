/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * The report on communities: the real routing log of the shared data folder against its calibration, what a
 * report must not depend on, what it says of traces without edges or tokens, bad options, time and memory.
 */
#include "models/retention/community_report.h"
#include "models/retention/retention.h"
#include "tests/support/files.h"
#include "tests/support/routing_log.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

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

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void same_report(const kedge_community_report *a, const kedge_community_report *b) {
  const size_t places = (size_t)a->layers * a->rho_count, labels = places * a->experts;
  assert_true(a->layers == b->layers && a->rho_count == b->rho_count && a->has_post == b->has_post);
  assert_memory_equal(a->rows, b->rows, places * sizeof *a->rows);
  assert_memory_equal(a->means, b->means, a->rho_count * sizeof *a->means);
  assert_memory_equal(a->base_labels, b->base_labels, labels * sizeof *a->base_labels);
  if (a->has_post) assert_memory_equal(a->post_labels, b->post_labels, labels * sizeof *a->post_labels);
}

/* ---- The real log
 * ------------------------------------------------------------------------------------------------- */

static bool read_both(kedge_trace *intent, kedge_trace *summary) {
  return test_routing_log("intent", intent) && test_routing_log("summary", summary);
}

/* The figures of the calibration come from another implementation with other seeds and another way of
 * halving: means over 26 layers agree within a few hundredths. Q, a maximum that all detectors come close to,
 * agrees better, and so do whole numbers of isolated experts, on which nothing is random. */
static void check_calibration(const kedge_community_report *r) {
  const struct {
    double rho, q[2], nmi;
  } page[] = {{0.05, {.424, .401}, .653}, {0.10, {.392, .371}, .481}, {0.20, {.336, .326}, .378}};
  for (uint32_t i = 0; i < r->rho_count; i++) {
    const kedge_community_row *m = &r->means[i];
    for (size_t p = 0; p < sizeof page / sizeof *page; p++) {
      if (page[p].rho != m->rho) continue;
      near("Q of intent", m->base.q.median, page[p].q[0], 0.004);
      near("Q of summary", m->post.q.median, page[p].q[1], 0.004);
      near("NMI", m->nmi.median, page[p].nmi, 0.025);
    }
    /* What stands around the NMI: floor < chance of the same margins < NMI < ceiling. */
    assert_true(m->floor.mean < m->null_nmi.mean && m->null_nmi.mean < m->nmi.median);
    assert_true(m->nmi.median < m->post.split_nmi.median && m->nmi.median < m->base.split_nmi.median);
    /* A shuffle within communities changes none, one of all experts leaves what chance does. */
    for (int post = 0; post < 2; post++) {
      const kedge_community_side *side = post ? &m->post : &m->base;
      near("within", side->within.mean, side->seed_nmi.mean, 0.04);
      near("global", side->global.mean, side->floor.mean, 0.02);
      printf(
          "rho %.2f: shuffled within communities NMI %.3f (least %.3f), all experts %.3f; other seed %.3f\n",
          m->rho, side->within.mean, side->within.low, side->global.mean, side->seed_nmi.mean);
    }
    assert_true(fabs(m->ami.median) < m->nmi.median && m->ari.median < m->nmi.median);
    assert_true(m->base.null_q.draws == 26 && m->base.null_q.rank_p < 0.02 && m->post.null_q.rank_p < 0.02);
    near("dQ", m->dq, m->post.q.median - m->base.q.median, 1e-12);
  }
  const kedge_community_row *m = &r->means[1];
  near("isolated in intent", m->base.isolated / 26.0, 12.5, 0.05);
  near("isolated in summary", m->post.isolated / 26.0, 10.0, 0.05);
  near("communities of intent", m->base.communities / 26.0, 16.9, 0.4);
  near("communities of summary", m->post.communities / 26.0, 14.3, 0.4);
  near("other seed, intent", m->base.seed_nmi.mean, .932, 0.02);
  near("other seed, summary", m->post.seed_nmi.mean, .906, 0.03);
  near("halves of summary", m->post.split_nmi.median, .825, 0.03);
  near("halves of intent", m->base.split_nmi.median, .914, 0.08);
  assert_true(m->floor.mean > 0.29 && m->floor.mean < 0.41);
  double margins[2] = {0, 0};
  const uint32_t layers[5] = {1, 7, 13, 20, 26};
  for (size_t i = 0; i < 5; i++) {
    const kedge_community_row *row = &r->rows[(layers[i] - 1) * r->rho_count + 1];
    assert_int_equal(row->layer, layers[i]);
    margins[0] += row->base.null_q.margin / 5, margins[1] += row->post.null_q.margin / 5;
  }
  near("null margin of intent", margins[0], .313, 0.01);
  near("null margin of summary", margins[1], .294, 0.01);
}

/* Both models, all the defaults. The budget is 10 seconds on two free cores; the machine may be busy with
 * other things, so that the processors' time is what is held to it. */
static void test_real_log(void **state) {
  (void)state;
  kedge_trace intent, summary;
  if (!read_both(&intent, &summary)) skip();
  kedge_community_report r;
  struct rusage before, after, self;
  const double start = seconds();
  getrusage(RUSAGE_CHILDREN, &before);
  ok(kedge_community_report_make(&intent, &summary, KEDGE_RETENTION_ALL, NULL, &r));
  const double wall = seconds() - start;
  getrusage(RUSAGE_CHILDREN, &after);
  getrusage(RUSAGE_SELF, &self);
  const double used = (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec) +
                      1e-6 * (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec);
  const long most = after.ru_maxrss > self.ru_maxrss ? after.ru_maxrss : self.ru_maxrss;
  printf("two models of 26 layers: %.1f s, %.1f s of processors, %ld kB\n", wall, used, most);
  check_calibration(&r);
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) &&                                                     \
    !defined(__clang__) /* sanitizers take more of both */
  assert_true(used < 20);
  assert_true(most < 200 * 1024);
#endif
  kedge_community_report_destroy(&r);
  kedge_trace_destroy(&intent), kedge_trace_destroy(&summary);
}

/* ---- What a report does not depend on
 * ----------------------------------------------------------------------------- */

static kedge_community_options few(void) {
  kedge_community_options o = kedge_community_defaults();
  o.rho_count = 2, o.seeds = 3, o.nulls = 5, o.permutations = 10, o.shuffles = 4;
  return o;
}

/* The layers `first`, `first + step`, ... of a trace. */
static kedge_trace pick_layers(const kedge_trace *t, uint32_t first, uint32_t step) {
  const uint32_t layers = (t->layers - first + step - 1) / step;
  kedge_trace p;
  ok(kedge_trace_init(&p, t->tokens, layers, t->experts, t->topk));
  memcpy(p.samples, t->samples, t->tokens * sizeof *p.samples);
  memcpy(p.spans, t->spans, t->tokens * sizeof *p.spans);
  for (uint32_t l = 0; l < layers; l++) {
    p.layer_numbers[l] = t->layer_numbers[first + l * step];
    for (uint32_t i = 0; i < t->tokens; i++)
      memcpy(p.ids + ((size_t)i * layers + l) * t->topk,
             t->ids + ((size_t)i * t->layers + first + l * step) * t->topk, t->topk * sizeof *p.ids);
  }
  return p;
}

/* The same samples in reverse order. */
static kedge_trace reverse_samples(const kedge_trace *t) {
  kedge_trace p;
  const size_t row = (size_t)t->layers * t->topk;
  uint32_t at = 0, end = t->tokens;
  ok(kedge_trace_init(&p, t->tokens, t->layers, t->experts, t->topk));
  memcpy(p.layer_numbers, t->layer_numbers, t->layers * sizeof *p.layer_numbers);
  while (end) {
    uint32_t start = end - 1;
    while (start && t->samples[start - 1] == t->samples[end - 1]) start--;
    memcpy(p.ids + at * row, t->ids + start * row, (end - start) * row * sizeof *p.ids);
    memcpy(p.spans + at, t->spans + start, (end - start) * sizeof *p.spans);
    for (uint32_t i = start; i < end; i++) p.samples[at++] = t->samples[t->tokens - 1] - t->samples[end - 1];
    end = start;
  }
  return p;
}

static void test_independent(void **state) {
  (void)state;
  kedge_trace intent, summary;
  if (!read_both(&intent, &summary)) skip();
  kedge_trace a = pick_layers(&intent, 0, 6), b = pick_layers(&summary, 0, 6);
  kedge_trace a_back = reverse_samples(&a), b_back = reverse_samples(&b);
  for (kedge_detector d = KEDGE_LOUVAIN; d <= KEDGE_LEIDEN; d++)
    for (kedge_split split = KEDGE_SPLIT_TOKENS; split <= KEDGE_SPLIT_SAMPLES; split++) {
      kedge_community_options o = few();
      kedge_community_report one, r;
      o.detector = d, o.split = split, o.workers = 1;
      ok(kedge_community_report_make(&a, &b, KEDGE_RETENTION_ALL, &o, &one));
      for (o.workers = 2; o.workers < 7; o.workers += 2) {
        ok(kedge_community_report_make(&a, &b, KEDGE_RETENTION_ALL, &o, &r));
        same_report(&one, &r);
        kedge_community_report_destroy(&r);
      }
      ok(kedge_community_report_make(&a_back, &b_back, KEDGE_RETENTION_ALL, &o, &r));
      same_report(&one, &r);
      kedge_community_report_destroy(&r);
      kedge_community_report_destroy(&one);
    }
  /* A layer's figures are the same among others. */
  kedge_trace one_layer = pick_layers(&intent, 12, 100);
  kedge_community_options o = few();
  kedge_community_report all, alone;
  ok(kedge_community_report_make(&a, NULL, KEDGE_RETENTION_ALL, &o, &all));
  ok(kedge_community_report_make(&one_layer, NULL, KEDGE_RETENTION_ALL, &o, &alone));
  assert_memory_equal(alone.rows, all.rows + 2 * o.rho_count, o.rho_count * sizeof *all.rows);
  kedge_community_report_destroy(&all), kedge_community_report_destroy(&alone);
  kedge_trace_destroy(&one_layer), kedge_trace_destroy(&a), kedge_trace_destroy(&b);
  kedge_trace_destroy(&a_back), kedge_trace_destroy(&b_back);
  kedge_trace_destroy(&intent), kedge_trace_destroy(&summary);
}

/* A model against itself: all is kept. Alone it has the same figures as beside another. */
static void test_itself(void **state) {
  (void)state;
  kedge_trace intent, summary;
  if (!read_both(&intent, &summary)) skip();
  kedge_trace a = pick_layers(&intent, 3, 11), b = pick_layers(&summary, 3, 11);
  kedge_community_options o = few();
  kedge_community_report same, pair, alone;
  ok(kedge_community_report_make(&a, &a, KEDGE_RETENTION_ALL, &o, &same));
  ok(kedge_community_report_make(&b, &a, KEDGE_RETENTION_ALL, &o, &pair));
  ok(kedge_community_report_make(&a, NULL, KEDGE_RETENTION_ALL, &o, &alone));
  assert_true(same.has_post && !alone.has_post && !alone.post_labels);
  for (uint32_t i = 0; i < same.layers * o.rho_count; i++) {
    const kedge_community_row *row = &same.rows[i];
    assert_true(row->nmi.low == 1 && row->nmi_active.low == 1 && row->ami.low == 1 && row->ari.low == 1);
    assert_true(row->dq == 0 && row->active == 64 - row->base.isolated);
    assert_true(row->null_nmi.margin > 0 && row->floor.mean < 0.8);
    assert_memory_equal(&row->base, &row->post, sizeof row->base);
    assert_memory_equal(&row->base, &alone.rows[i].base, sizeof row->base);
    assert_memory_equal(&row->base, &pair.rows[i].post, sizeof row->base);
    assert_true(isnan(alone.rows[i].nmi.median) && isnan(alone.rows[i].dq));
    assert_true(isnan(alone.rows[i].post.q.median) && isnan(alone.rows[i].null_nmi.margin));
    assert_true(alone.rows[i].nmi.count == 0 && alone.rows[i].floor.count == 0);
  }
  kedge_community_report_destroy(&same), kedge_community_report_destroy(&pair);
  kedge_community_report_destroy(&alone);
  kedge_trace_destroy(&a), kedge_trace_destroy(&b);
  kedge_trace_destroy(&intent), kedge_trace_destroy(&summary);
}

/* ---- Degenerate traces
 * -------------------------------------------------------------------------------------------- */

/* Top-1 has no pairs: singletons, no modularity, no null, and no failure. A span without tokens: nothing to
 * compare. */
static void test_no_edges(void **state) {
  (void)state;
  kedge_trace t;
  kedge_community_options o = few();
  kedge_community_report r;
  ok(kedge_trace_init(&t, 6, 2, 4, 1));
  for (int32_t i = 0; i < 12; i++) t.ids[i] = i % 4, t.spans[i / 2] = KEDGE_SPAN_A;
  ok(kedge_community_report_make(&t, &t, KEDGE_RETENTION_ALL, &o, &r));
  for (uint32_t i = 0; i < 4; i++) {
    const kedge_community_row *row = &r.rows[i];
    assert_true(row->base.edges == 0 && row->base.isolated == 4 && row->base.communities == 4 &&
                row->base.singletons == 4 && row->base.tokens == 6 && row->base.pair_total == 0);
    assert_true(isnan(row->base.q.median) && isnan(row->base.null_q.margin) && isnan(row->dq));
    assert_true(isnan(row->base.split_nmi.median) && row->active == 0);
    assert_true(row->nmi.median == 1 && isnan(row->nmi_active.median));
  }
  assert_true(isnan(r.means[0].base.q.median) && r.means[0].base.q.count == 0);
  kedge_community_report_destroy(&r);
  ok(kedge_community_report_make(&t, &t, KEDGE_SPAN_Q, &o, &r));
  assert_true(r.rows[0].base.tokens == 0 && isnan(r.rows[0].nmi.median) && isnan(r.rows[0].ami.median));
  assert_true(isnan(r.means[0].nmi.median));
  kedge_community_report_destroy(&r);
  kedge_trace_destroy(&t);
}

static bool stop(void *context, uint32_t done, uint32_t layers) {
  (void)context, (void)done, (void)layers;
  return false;
}

static void test_refused(void **state) {
  (void)state;
  kedge_trace t, other;
  kedge_community_report r;
  ok(kedge_trace_init(&t, 6, 2, 4, 2));
  ok(kedge_trace_init(&other, 6, 2, 4, 2));
  kedge_community_options o = few();
  const int all = KEDGE_RETENTION_ALL;
  o.rho[1] = 1.01;
  fails(kedge_community_report_make(&t, NULL, all, &o, &r), KEDGE_ERR_ARGUMENT, "rho");
  assert_null(r.rows);
  o = few(), o.rho_count = 17;
  fails(kedge_community_report_make(&t, NULL, all, &o, &r), KEDGE_ERR_ARGUMENT, "1 to 16 values");
  o = few(), o.seeds = 0;
  fails(kedge_community_report_make(&t, NULL, all, &o, &r), KEDGE_ERR_ARGUMENT, "seeds");
  o = few(), o.resolution = -1;
  fails(kedge_community_report_make(&t, NULL, all, &o, &r), KEDGE_ERR_ARGUMENT, "resolution");
  o = few(), o.nulls = 2000000;
  fails(kedge_community_report_make(&t, NULL, all, &o, &r), KEDGE_ERR_ARGUMENT, "nulls");
  o = few();
  other.topk = 1;
  fails(kedge_community_report_make(&t, &other, all, &o, &r), KEDGE_ERR_MISMATCH, "base has 2, post has 1");
  other.topk = 2, other.layer_numbers[1] = 7;
  fails(kedge_community_report_make(&t, &other, all, &o, &r), KEDGE_ERR_MISMATCH, "base has 1, post has 7");
  o.progress = stop;
  for (o.workers = 1; o.workers < 3; o.workers++)
    fails(kedge_community_report_make(&t, NULL, all, &o, &r), KEDGE_ERR_INTERRUPTED, "stopped");
  kedge_trace_destroy(&t), kedge_trace_destroy(&other);
}

/* Each allocation fails once: told, and nothing left behind. */
static void test_memory(void **state) {
  (void)state;
  kedge_trace t;
  kedge_community_options o = few();
  ok(kedge_trace_init(&t, 6, 1, 4, 2));
  for (int32_t i = 0; i < 6; i++) t.ids[2 * i] = i % 3, t.ids[2 * i + 1] = 3;
  o.rho_count = 1, o.rho[0] = 0.6, o.seeds = 2, o.nulls = o.permutations = o.shuffles = 1, o.workers = 1;
  uint64_t n = 1;
  for (;; n++) {
    kedge_community_report r;
    kedge_alloc_fail_nth(n);
    const kedge_status status = kedge_community_report_make(&t, &t, KEDGE_RETENTION_ALL, &o, &r);
    const uint64_t used = kedge_alloc_fail_nth(0);
    if (status == KEDGE_OK) kedge_community_report_destroy(&r);
    if (used < n) break;
    assert_int_equal(status, KEDGE_ERR_MEMORY);
    assert_null(r.rows);
  }
  assert_true(n > 20);
  kedge_trace_destroy(&t);
}

static void test_summary(void **state) {
  (void)state;
  kedge_summary s = kedge_summary_of((double[]){4, NAN, 1, 2, 9}, 5);
  assert_true(s.count == 4 && s.median == 3 && s.mean == 4 && s.low == 1 && s.high == 9);
  near("sd", s.sd, sqrt(38.0 / 3), 1e-15);
  s = kedge_summary_of((double[]){NAN, 5}, 2);
  assert_true(s.count == 1 && s.median == 5 && s.sd == 0);
  s = kedge_summary_of((double[]){NAN}, 1);
  assert_true(s.count == 0 && isnan(s.median) && isnan(s.sd));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_real_log), cmocka_unit_test(test_independent), cmocka_unit_test(test_itself),
      cmocka_unit_test(test_no_edges), cmocka_unit_test(test_refused),     cmocka_unit_test(test_memory),
      cmocka_unit_test(test_summary),
  };
  return cmocka_run_group_tests_name("community_report", tests, NULL, NULL);
}
