/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * Recomputing activations changes no bit: losses, terms, loads, gradients, moments, weights and selection
 * biases after three updates, for every intervention. What a layer counts is counted once. */
#include "tests/support/runs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { UPDATES = 3, LOADS = 2 * 8 };

static int prepare(void **state) {
  (void)state;
  runs_prepare(12);
  return 0;
}

typedef struct outcome {
  kedge_step_result steps[UPDATES];
  uint64_t loads[UPDATES][LOADS];
  float *values[4];
  uint64_t counts[4];
} outcome;

static outcome run(const char *base, const runs_condition *c, const char *recompute) {
  outcome o;
  memset(&o, 0, sizeof o);
  runs_session s;
  runs_open(&s, base, c,
            "max_steps=%d per_device_train_batch_size=2 gradient_accumulation_steps=2 "
            "gradient_checkpointing=%s",
            UPDATES, recompute);
  uint64_t tokens = 0;
  for (int i = 0; i < UPDATES; i++) {
    kedge_update update;
    const uint64_t at = kedge_batches_cursor(s.batches);
    assert_int_equal(kedge_batches_next(s.batches, &update), KEDGE_OK);
    assert_int_equal(kedge_batches_seek(s.batches, at), KEDGE_OK);
    assert_true(runs_update(&s, 3e-3, &o.steps[i]));
    memcpy(o.loads[i], s.stepper.loads, sizeof o.loads[i]);
    tokens = 0;
    for (int e = 0; e < LOADS; e++) tokens += o.loads[i][e];
    assert_int_equal(tokens, update.tokens * 2 * 2); /* two layers, top 2: each choice once */
  }
  for (int what = 0; what < 4; what++)
    o.values[what] = runs_read(&s, (runs_what)what, false, &o.counts[what]);
  runs_close(&s);
  return o;
}

static void check(const char *base, const runs_condition *c) {
  static const char *const names[] = {"weights", "gradients", "first moments", "second moments"};
  outcome off = run(base, c, "false"), on = run(base, c, "true");
  for (int i = 0; i < UPDATES; i++) {
    const kedge_step_result *a = &off.steps[i], *b = &on.steps[i];
    if (a->loss != b->loss || a->aux != b->aux || memcmp(a->terms, b->terms, sizeof a->terms))
      fail_msg("%s, %s: the losses of update %d differ", base, c->name, i + 1);
    if (a->norms.all != b->norms.all || a->norms.router != b->norms.router)
      fail_msg("%s, %s: the norms of update %d differ", base, c->name, i + 1);
    if (memcmp(off.loads[i], on.loads[i], sizeof off.loads[i]))
      fail_msg("%s, %s: the loads of update %d differ", base, c->name, i + 1);
  }
  for (int what = 0; what < 4; what++) {
    assert_int_equal(off.counts[what], on.counts[what]);
    if (memcmp(off.values[what], on.values[what], off.counts[what] * sizeof(float)))
      fail_msg("%s, %s: %s differ", base, c->name, names[what]);
    free(off.values[what]), free(on.values[what]);
  }
}

static void test_cases_12_28_recompute_softmax(void **state) {
  (void)state;
  for (const runs_condition *c = runs_conditions; c->name; c++)
    if (!c->sigmoid) check("base", c);
}

static void test_cases_12_28_recompute_sigmoid(void **state) {
  (void)state;
  for (const runs_condition *c = runs_conditions; c->name; c++) check("sigmoid", c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_cases_12_28_recompute_softmax),
      cmocka_unit_test(test_cases_12_28_recompute_sigmoid),
  };
  return cmocka_run_group_tests_name("runs: recompute", tests, prepare, NULL);
}
