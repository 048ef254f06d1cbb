/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * The same 8 rows as 8 x 1, 2 x 4 and 1 x 8 (rows x micro-batches) give one router gradient, for every
 * intervention and rows of different lengths: each term is a mean over the whole update, not a mean of means.
 * Load balancing by micro-batch is by definition no such mean: it agrees for equal rows alone. Windows that
 * end with the data are scaled by what they hold. */
#include "tests/support/files.h"
#include "tests/support/runs.h"
#include "tests/support/training.h"

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

enum { ROWS = 8 };

static int prepare(void **state) {
  (void)state;
  runs_prepare(ROWS);
  return 0;
}

typedef struct outcome {
  kedge_step_result step;
  float *gradient; /* of the routers */
  uint64_t count;
} outcome;

static outcome run(const char *base, const runs_condition *c, int batch, int accumulation, const char *more) {
  outcome o;
  runs_session s;
  runs_open(&s, base, c,
            "shuffle_dataset=false num_train_epochs=1 per_device_train_batch_size=%d "
            "gradient_accumulation_steps=%d %s",
            batch, accumulation, more);
  runs_perturb(&s);
  assert_true(runs_update(&s, 0, &o.step));
  if (s.setup.router.trained) { /* frozen: the gradient of everything else */
    o.gradient = runs_read(&s, RUNS_GRADIENT, false, &o.count);
  } else {
    o.gradient = runs_read(&s, RUNS_GRADIENT, true, &o.count);
  }
  runs_close(&s);
  return o;
}

static double difference(const char *name, const outcome *a, const outcome *b) {
  assert_int_equal(a->count, b->count);
  double most = runs_distance(a->gradient, b->gradient, a->count);
  const double losses[][2] = {
      {a->step.loss, b->step.loss}, {a->step.aux, b->step.aux}, {a->step.norms.router, b->step.norms.router}};
  for (int i = 0; i < 3; i++)
    most = fmax(most, fabs(losses[i][0] - losses[i][1]) / fmax(fabs(losses[i][1]), 1e-3));
  for (int i = 0; i < KEDGE_MAX_INTERVENTIONS; i++)
    most = fmax(most, fabs(a->step.terms[i] - b->step.terms[i]) / fmax(fabs(b->step.terms[i]), 1e-3));
  if (!isfinite(most)) fail_msg("%s: not a number", name);
  return most;
}

/* Whether frequencies are counted within a micro-batch, or in those so far. */
static bool counts_parts(const runs_condition *c) {
  return !strcmp(c->name, "lbl micro") || !strcmp(c->name, "lbl global_running");
}

static double check(const char *base, const runs_condition *c, const char *more, bool same) {
  static const int ways[][2] = {{1, 8}, {2, 4}, {8, 1}, {3, 3}};
  double most = 0;
  outcome whole = run(base, c, ROWS, 1, more);
  for (int i = 0; i < 4; i++) {
    outcome part = run(base, c, ways[i][0], ways[i][1], more);
    const double gap = difference(c->name, &part, &whole);
    if (same && !(gap <= order(base)))
      fail_msg("%s, %s as %d x %d: the gradient is off by %g", base, c->name, ways[i][0], ways[i][1], gap);
    most = fmax(most, gap);
    free(part.gradient);
  }
  free(whole.gradient);
  return most;
}

static void test_cases_9_11_21_rows_of_any_length(void **state) {
  (void)state;
  double worst = 0;
  for (const runs_condition *c = runs_conditions; c->name; c++) {
    if (counts_parts(c)) continue;
    if (!c->sigmoid) worst = fmax(worst, check("base", c, "", true));
    worst = fmax(worst, check("sigmoid", c, "", true));
  }
  print_message("largest difference between accumulations: %.2g\n", worst);
}

/* Packed rows: other streams, the same sums. */
static void test_packed(void **state) {
  (void)state;
  for (const runs_condition *c = runs_conditions; c->name; c++) {
    if (counts_parts(c) || c->sigmoid) continue;
    outcome plain = run("base", c, ROWS, 1, ""), packed = run("base", c, ROWS, 1, "packing=true");
    const double gap = difference(c->name, &packed, &plain);
    if (!(gap <= order("base"))) fail_msg("%s packed: off by %g", c->name, gap);
    free(plain.gradient);
    free(packed.gradient);
  }
}

/* By micro-batch, and by the micro-batches so far: equal rows agree, others do not. */
static void test_case_9_scope_micro(void **state) {
  (void)state;
  char row[] = "{\"prompt\": \"Ann has 3 apples and gets 4 more. How many?\", \"completion\": \" 3 + 4 = "
               "7\"}\n",
       text[ROWS * sizeof row] = "";
  for (int i = 0; i < ROWS; i++) strcat(text, row);
  test_write_text("equal.jsonl", text);
  for (const runs_condition *c = runs_conditions; c->name; c++) {
    if (!counts_parts(c)) continue;
    check("base", c, "dataset=equal.jsonl", true);
    check("sigmoid", c, "dataset=equal.jsonl", true);
    assert_true(check("base", c, "", false) > 1e-3);
  }
}

/* One micro-batch is the whole update: every scope but the one by sequence is the same loss. Exact global
 * frequencies agree with those counted at once however the update is cut. */
static void test_scopes_agree_on_one_micro_batch(void **state) {
  (void)state;
  outcome micro = run("base", &runs_conditions[1], ROWS, 1, ""),
          global = run("base", &runs_conditions[3], 1, ROWS, ""),
          running = run("base", &runs_conditions[4], ROWS, 1, "");
  assert_string_equal(runs_conditions[1].name, "lbl micro");
  assert_string_equal(runs_conditions[3].name, "lbl global");
  assert_string_equal(runs_conditions[4].name, "lbl global_running");
  assert_true(difference("global", &global, &micro) <= order("base"));
  assert_true(difference("global_running", &running, &micro) <= order("base"));
  free(micro.gradient), free(global.gradient), free(running.gradient);
}

/* Nothing of an update is left for the next one: the same rows again, nothing having moved, are the same
 * numbers to the bit. */
static void test_updates_leave_nothing_behind(void **state) {
  (void)state;
  for (const runs_condition *c = runs_conditions; c->name; c++) {
    runs_session s;
    kedge_step_result steps[2];
    float *gradients[2];
    uint64_t count;
    if (c->sigmoid) continue; /* moves the selection bias */
    runs_open(&s, "base", c,
              "shuffle_dataset=false num_train_epochs=2 per_device_train_batch_size=3 "
              "gradient_accumulation_steps=3 max_steps=2");
    runs_perturb(&s);
    for (int i = 0; i < 2; i++) {
      assert_int_equal(kedge_batches_seek(s.batches, 0), KEDGE_OK);
      assert_true(runs_update(&s, 0, &steps[i]));
      gradients[i] = runs_read(&s, RUNS_GRADIENT, false, &count);
    }
    if (memcmp(&steps[0], &steps[1], sizeof steps[0])) fail_msg("%s: losses or norms differ", c->name);
    if (memcmp(gradients[0], gradients[1], count * sizeof(float))) fail_msg("%s: gradients differ", c->name);
    free(gradients[0]), free(gradients[1]);
    runs_close(&s);
  }
}

/* A last window with fewer micro-batches: 8 rows by 3 x 2 are 6 and 2. It is scaled by what it holds. */
static void test_case_22_last_window(void **state) {
  (void)state;
  for (const runs_condition *c = runs_conditions; c->name; c++) {
    if (counts_parts(c)) continue;
    const char *base = c->sigmoid ? "sigmoid" : "base";
    outcome o[2];
    for (int way = 0; way < 2; way++) {
      runs_session s;
      kedge_update update;
      runs_open(&s, base, c,
                "shuffle_dataset=false num_train_epochs=1 per_device_train_batch_size=%d "
                "gradient_accumulation_steps=%d",
                way ? 6 : 2, way ? 1 : 3);
      assert_int_equal(kedge_batches_updates(s.batches), 2);
      runs_perturb(&s);
      assert_int_equal(kedge_batches_next(s.batches, &update), KEDGE_OK);
      assert_int_equal(update.rows, 6);
      assert_true(runs_update(&s, 0, &o[way].step));
      o[way].gradient = runs_read(&s, RUNS_GRADIENT, !s.setup.router.trained, &o[way].count);
      kedge_step_result over;
      assert_false(runs_update(&s, 0, &over));
      runs_close(&s);
    }
    const double gap = difference(c->name, &o[0], &o[1]);
    if (!(gap <= order(base))) fail_msg("%s: the last window is off by %g", c->name, gap);
    free(o[0].gradient), free(o[1].gradient);
  }
  training_expect(2, "gradient_accumulation_steps",
                  "train run.yaml output_dir=zero gradient_accumulation_steps=0");
  training_expect(
      0, "updates: 1 of 1",
      "train run.yaml output_dir=long num_train_epochs=1 gradient_accumulation_steps=50 save_strategy=no");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_cases_9_11_21_rows_of_any_length),
      cmocka_unit_test(test_packed),
      cmocka_unit_test(test_case_9_scope_micro),
      cmocka_unit_test(test_scopes_agree_on_one_micro_batch),
      cmocka_unit_test(test_updates_leave_nothing_behind),
      cmocka_unit_test(test_case_22_last_window),
  };
  return cmocka_run_group_tests_name("runs: accumulation", tests, prepare, NULL);
}
