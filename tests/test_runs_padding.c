/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * Padding counts nowhere, whatever it holds and wherever it stands: in the stream that a test lays out anew,
 * with padding before, between and after the samples and any content in it, every intervention has the same
 * loss, terms, loads and gradients. Other content: bit for bit. Other places: to the order of summation. */
#include "tests/support/runs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Sums of f32 in another order, relative to the largest entry. Normalised sigmoid scores cancel more. */
static double order(const char *base) {
  return strcmp(base, "sigmoid") ? 4e-6 : 2e-5;
}

enum { ROWS = 5 };

static int prepare(void **state) {
  (void)state;
  runs_prepare(ROWS);
  return 0;
}

/* A micro-batch of the same samples in a stream of `size` tokens. */
typedef struct layout {
  int32_t *ids, *positions, *segments, *labels, *spans;
  float *weights;
  kedge_micro_batch mb;
} layout;

/* What stands in padding: zeros, or any ids, positions and even labels of weight 0. */
typedef enum content { ZEROS, ANY, OTHER } content;

static void layout_pad(layout *l, uint32_t t, content what) {
  const uint32_t any = what == ZEROS ? 0 : 7919u * (t + (uint32_t)what) + 13;
  l->ids[t] = (int32_t)(any % 500);
  l->positions[t] = (int32_t)(any % 300);
  l->segments[t] = l->labels[t] = l->spans[t] = -1;
  l->weights[t] = 0;
}

/* Lays samples out: `before` tokens of padding first, `between` after each, the rest behind. */
static layout lay(const kedge_micro_batch *from, uint32_t size, uint32_t before, uint32_t between,
                  content what) {
  layout l = {.mb = *from};
  int32_t **arrays[] = {&l.ids, &l.positions, &l.segments, &l.labels, &l.spans};
  for (int i = 0; i < 5; i++) assert_non_null(*arrays[i] = malloc(size * sizeof(int32_t)));
  assert_non_null(l.weights = malloc(size * sizeof *l.weights));
  uint32_t at = 0;
  for (; at < before; at++) layout_pad(&l, at, what);
  for (uint32_t t = 0; t < from->tokens; t++) {
    for (uint32_t i = 0; t && from->positions_T[t] == 0 && i < between; i++) layout_pad(&l, at++, what);
    l.ids[at] = from->ids_T[t];
    l.positions[at] = from->positions_T[t];
    l.segments[at] = (int32_t)at - from->positions_T[t];
    l.labels[at] = from->labels_T[t];
    l.spans[at] = from->spans_T[t];
    l.weights[at] = from->weights_T[t];
    at++;
    assert_true(at <= size);
  }
  for (; at < size; at++) layout_pad(&l, at, what);
  l.mb.size = l.mb.tokens = size;
  l.mb.ids_T = l.ids, l.mb.positions_T = l.positions, l.mb.segments_T = l.segments;
  l.mb.labels_T = l.labels, l.mb.spans_T = l.spans, l.mb.weights_T = l.weights;
  return l;
}

static void drop(layout *l) {
  free(l->ids), free(l->positions), free(l->segments), free(l->labels), free(l->spans), free(l->weights);
}

enum { MAX_LOADS = 2 * 9 };

typedef struct outcome {
  double loss, aux, terms[KEDGE_MAX_INTERVENTIONS];
  int32_t loads[MAX_LOADS];
  float counts[2 * 8];
  float *gradient;
  uint64_t count;
} outcome;

static outcome run(runs_session *s, const kedge_update *update, const kedge_micro_batch *mb) {
  outcome o = {0};
  assert_int_equal(kedge_optimizer_begin(&s->stepper.optimizer), KEDGE_OK);
  kedge_pass *pass = runs_micro(s, update, mb);
  const kedge_decoder *d = &pass->decoder;
  o.loss = runs_number(pass, d->loss_1);
  o.aux = runs_number(pass, d->aux_1);
  for (uint32_t i = 0; i < s->stepper.feeds.count; i++) o.terms[i] = runs_number(pass, d->terms_1[i]);
  for (int l = 0; l < 2; l++) {
    assert_int_equal(kedge_exec_read(pass->exec, d->offsets_E1[l], o.loads + 9 * l, 9 * sizeof *o.loads),
                     KEDGE_OK);
    if (d->counts_GE[l] && kedge_value_bytes(d->graph, d->counts_GE[l]) == 8 * sizeof(float))
      assert_int_equal(kedge_exec_read(pass->exec, d->counts_GE[l], o.counts + 8 * l, 8 * sizeof(float)),
                       KEDGE_OK);
  }
  o.gradient = runs_read(s, RUNS_GRADIENT, false, &o.count);
  return o;
}

static void expect(const char *name, const char *what, const outcome *a, const outcome *b, double limit) {
  if (memcmp(a->loads, b->loads, sizeof a->loads)) fail_msg("%s, %s: other loads", name, what);
  if (memcmp(a->counts, b->counts, sizeof a->counts)) fail_msg("%s, %s: other counts", name, what);
  double most = fabs(a->loss - b->loss) / fabs(b->loss);
  most = fmax(most, fabs(a->aux - b->aux) / fmax(fabs(b->aux), 1e-3));
  for (int i = 0; i < KEDGE_MAX_INTERVENTIONS; i++)
    most = fmax(most, fabs(a->terms[i] - b->terms[i]) / fmax(fabs(b->terms[i]), 1e-3));
  const double gradient = runs_distance(a->gradient, b->gradient, a->count);
  if (limit == 0 && (most > 0 || memcmp(a->gradient, b->gradient, a->count * sizeof *a->gradient)))
    fail_msg("%s, %s: losses differ by %g, gradients by %g; bits must not", name, what, most, gradient);
  if (!(most <= limit) || !(gradient <= limit))
    fail_msg("%s, %s: losses differ by %g, gradients by %g", name, what, most, gradient);
}

static void check(const char *base, const runs_condition *c) {
  static const struct {
    const char *name;
    uint32_t before, between;
    content what;
    bool bits; /* against the first of the same layout */
  } ways[] = {{"behind, zeros", 0, 0, ZEROS, true},
              {"behind, any content", 0, 0, ANY, true},
              {"behind, other content", 0, 0, OTHER, true},
              {"before", 37, 0, ANY, false},
              {"between", 0, 11, ANY, false},
              {"everywhere", 23, 9, OTHER, false}};
  runs_session s;
  kedge_update update;
  kedge_micro_batch mb;
  runs_open(&s, base, c, "max_steps=1 per_device_train_batch_size=%d gradient_accumulation_steps=1", ROWS);
  runs_perturb(&s);
  assert_int_equal(kedge_batches_next(s.batches, &update), KEDGE_OK);
  assert_int_equal(kedge_batches_micro(s.batches, 0, &mb), KEDGE_OK);
  outcome first = run(&s, &update, &mb), laid = {0};
  const uint32_t size = 2 * mb.size;
  for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
    layout l = lay(&mb, size, ways[w].before, ways[w].between, ways[w].what);
    outcome o = run(&s, &update, &l.mb);
    expect(c->name, ways[w].name, &o, &first, order(base)); /* the stream as it comes, half as long */
    if (w && ways[w].bits) expect(c->name, ways[w].name, &o, &laid, 0);
    drop(&l);
    if (w)
      free(o.gradient);
    else
      laid = o;
  }
  free(first.gradient);
  free(laid.gradient);
  runs_close(&s);
}

static void test_cases_3_15_padding_softmax(void **state) {
  (void)state;
  for (const runs_condition *c = runs_conditions; c->name; c++)
    if (!c->sigmoid) check("base", c);
}

static void test_cases_3_15_padding_sigmoid(void **state) {
  (void)state;
  for (const runs_condition *c = runs_conditions; c->name; c++) check("sigmoid", c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_cases_3_15_padding_softmax),
      cmocka_unit_test(test_cases_3_15_padding_sigmoid),
  };
  return cmocka_run_group_tests_name("runs: padding", tests, prepare, NULL);
}
