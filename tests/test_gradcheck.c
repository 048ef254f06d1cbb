/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * The whole table of gradient checks, in all-double here and on cpu by the program, and that wrong gradients
 * of each intervention are rejected: those of another intervention, setting or routing in place of the right
 * ones. */
#include "models/gradcheck/gradcheck.h"
#include "tests/support/program.h"

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

/* Every row of routers.def stands in the table by its name alone. */
static void test_rows(void **state) {
  (void)state;
  for (int i = 0; i < KEDGE_ROUTER_COUNT; i++) {
    const kedge_gradcheck_variant *v = kedge_gradcheck_find_variant(kedge_router_name((kedge_router_id)i));
    if (!v) fail_msg("%s is not checked", kedge_router_name((kedge_router_id)i));
    assert_true(v->count == 1 && v->list[0].id == (kedge_router_id)i);
  }
}

static void check_table(const char *backend) {
  const uint32_t problems = kedge_gradcheck_problem_count, checks = problems * kedge_gradcheck_variant_count;
  const kedge_gradcheck_options options = {.backend = backend, .seed = 1, .entries = 4};
  kedge_gradcheck *results = calloc(checks, sizeof *results);
  double error = 0, scaled = INFINITY, dropped = INFINITY;
  ok(kedge_gradcheck_all(&options, results));
  for (uint32_t i = 0; i < checks; i++) {
    const kedge_gradcheck *r = &results[i];
    const char *variant = kedge_gradcheck_variants[i / problems].name,
               *problem = kedge_gradcheck_problems[i % problems].name;
    if (!r->passed) fail_msg("%s: %s on %s is off by %g", backend, variant, problem, r->error);
    if (!r->sensitive) fail_msg("%s: a planted fault in %s on %s passes", backend, variant, problem);
    error = fmax(error, r->error);
    scaled = fmin(scaled, r->own_scaled), dropped = fmin(dropped, r->own_dropped);
  }
  print_message("%s: %u checks, largest error %.3g; an intervention's part 1 %% too large is off by %.3g at "
                "least, without it by %.3g\n",
                backend, checks, error, scaled, dropped);
  free(results);
}

static void test_table(void **state) {
  (void)state;
  check_table("ref");
}

/* ---- Faults
 * ------------------------------------------------------------------------------------------------------- */

/* A gradient in place of another; `truth` NULL marks the end. */
static const struct {
  const char *truth, *wrong, *fault;
} faults[] = {
    {"lbl", "none", "no gradient of the loss"},
    {"lbl", "lbl, hf", "K times too large"},
    {"lbl", "lbl, mean of layers", "layers joined otherwise"},
    {"lbl", "lbl, sequence", "frequencies of sequences"},
    {"lbl", "lbl, global", "frequencies of other micro-batches"},
    {"lbl", "lbl, completion", "questions left out"},
    {"lbl", "lbl, detached", "no way into the layers below"},
    {"lbl, detached", "lbl", "a way into the layers below"},
    {"lbl, sequence", "lbl", "frequencies of all tokens"},
    {"lbl, global", "lbl", "frequencies of this micro-batch"},
    {"lbl, global", "lbl, global_running", "this micro-batch counted twice"},
    {"lbl, global_running", "lbl, global", "this micro-batch not counted"},
    {"lbl, completion", "lbl", "questions counted"},
    {"z_loss", "none", "no gradient of the loss"},
    {"z_loss", "z_loss, completion", "questions left out"},
    {"z_loss", "z_loss, detached", "no way into the layers below"},
    {"z_loss, detached", "z_loss", "a way into the layers below"},
    {"rpb", "none", "the unmodified routing"},
    {"rpb", "rpb, raw gates", "the bias in the choice, not in the gates"},
    {"rpb, raw gates", "rpb", "the bias in the gates, too"},
    {"rpb", "rpb, whole sample", "the prior of the sample"},
    {"rpb", "rpb, last layer", "a layer without bias"},
    {"rpb, last layer", "rpb", "the bias in all layers"},
    {"rpb, whole sample", "rpb", "the prior of the span"},
    {"rpb_hard", "none", "the unmodified routing"},
    {"rpb_hard", "rpb", "a bias instead of a choice"},
    {"rpb_hard", "replay", "the base's choice"},
    {"rpb_hard, whole sample", "rpb_hard", "the prior of the span"},
    {"replay", "none", "the unmodified routing"},
    {"replay", "rpb_hard", "the prior's choice"},
    {"router_l2", "none", "no gradient of the loss"},
    {"kl", "none", "no gradient of the loss"},
    {"kl", "kl_token", "the base's token instead of the span"},
    {"kl", "logit_l2", "another distance"},
    {"kl", "kl, completion", "questions left out"},
    {"kl", "kl, whole sample", "the prior of the sample"},
    {"kl", "kl, last layer", "a layer left out"},
    {"kl", "kl, detached", "no way into the layers below"},
    {"kl, detached", "kl", "a way into the layers below"},
    {"kl_token", "none", "no gradient of the loss"},
    {"kl_token", "kl", "the span instead of the base's token"},
    {"kl_token", "kl_token, completion", "questions left out"},
    {"kl_token", "kl_token, detached", "no way into the layers below"},
    {"kl_token, detached", "kl_token", "a way into the layers below"},
    {"logit_l2", "none", "no gradient of the loss"},
    {"logit_l2", "kl", "another distance"},
    {"logit_l2", "logit_l2, completion", "questions left out"},
    {"logit_l2", "logit_l2, detached", "no way into the layers below"},
    {"logit_l2, detached", "logit_l2", "a way into the layers below"},
    {NULL, NULL, NULL},
};

static double error_with(const char *problem, const kedge_gradcheck_variant *truth,
                         const kedge_gradcheck_variant *wrong) {
  const kedge_gradcheck_options options = {.seed = 1, .entries = 4, .fault = wrong};
  kedge_gradcheck r;
  ok(kedge_gradcheck_run(kedge_gradcheck_find_problem(problem), truth, &options, &r));
  if (r.passed) fail_msg("%s on %s: the gradient of %s passes", truth->name, problem, wrong->name);
  return r.error;
}

static void test_faults(void **state) {
  static const char *const problems[] = {"qwen3", "ds_v2", "moonlight"};
  (void)state;
  for (int i = 0; faults[i].truth; i++) {
    const kedge_gradcheck_variant *truth = kedge_gradcheck_find_variant(faults[i].truth),
                                  *wrong = kedge_gradcheck_find_variant(faults[i].wrong);
    double least = INFINITY;
    assert_true(truth && wrong);
    for (int p = 0; p < 3; p++) least = fmin(least, error_with(problems[p], truth, wrong));
    print_message("rejected: %-22s %s (off by %.2g)\n", faults[i].truth, faults[i].fault, least);
  }
  /* Choices that no selection bias or group changes are counted as they are: wrong only where one does. */
  const kedge_gradcheck_variant *scores = kedge_gradcheck_find_variant("lbl"),
                                *used = kedge_gradcheck_find_variant("lbl, dispatched");
  print_message("rejected: lbl                    the experts in use are counted (off by %.2g)\n",
                error_with("ds_v3", scores, used));
  print_message("rejected: lbl, dispatched        the best scores are counted (off by %.2g)\n",
                error_with("ds_v3", used, scores));
}

/* Coefficient, strength and clips off by 1 %, of each row that has them. */
static void test_one_percent(void **state) {
  (void)state;
  for (int i = 0; i < KEDGE_ROUTER_COUNT; i++) {
    const kedge_gradcheck_variant *truth =
        kedge_gradcheck_find_variant(kedge_router_name((kedge_router_id)i));
    kedge_gradcheck_variant wrong = *truth;
    if (!kedge_intervention_builds(&truth->list[0])) continue;
    if (kedge_router_get_kind((kedge_router_id)i) == KEDGE_ROUTER_LOSS)
      wrong.list[0].coef *= 1.01;
    else if (i == KEDGE_ROUTER_rpb)
      wrong.list[0].beta *= 1.01;
    else
      continue;
    const double error = error_with("moonlight", truth, &wrong);
    print_message("rejected: %-22s 1 %% stronger (off by %.2g)\n", truth->name, error);
  }
}

/* Any allocation of a check may fail. */
static void test_memory(void **state) {
  (void)state;
  const kedge_gradcheck_options options = {.backend = "cpu", .seed = 1, .entries = 1};
  const kedge_gradcheck_variant *v = kedge_gradcheck_find_variant("kl, detached");
  uint64_t at = 1;
  for (kedge_status status = KEDGE_ERR_MEMORY; status != KEDGE_OK; at += 1 + at / 10) {
    kedge_gradcheck r;
    kedge_alloc_fail_nth(at);
    status = kedge_gradcheck_run(kedge_gradcheck_find_problem("ds_v3"), v, &options, &r);
    kedge_alloc_fail_nth(0);
    if (status != KEDGE_OK && status != KEDGE_ERR_MEMORY)
      fail_msg("allocation %llu: %s", (unsigned long long)at, kedge_message());
  }
  assert_true(at > 500);
}

static void test_program(void **state) {
  (void)state;
  test_run run = test_kedge("gradcheck --all --backend cpu", 0, "");
  assert_non_null(strstr(run.out, "rpb, raw gates"));
  assert_non_null(strstr(run.out, "moonlight"));
  assert_non_null(strstr(run.out, "\npass\n"));
  test_run_free(&run);
  run = test_kedge("gradcheck --intervention 'kl, detached' --problem ds_v2_grp", 0, "");
  assert_non_null(strstr(run.out, "the intervention's own part 1 % too large"));
  test_run_free(&run);
  test_kedge_expect("gradcheck --problem qwen4", 2, "came \"qwen4\"");
  test_kedge_expect("gradcheck --all --intervention rpb", 2, "--all takes no --intervention");
  test_kedge_expect("gradcheck --all --backend null", 2, "computes nothing");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rows),        cmocka_unit_test(test_table),  cmocka_unit_test(test_faults),
      cmocka_unit_test(test_one_percent), cmocka_unit_test(test_memory), cmocka_unit_test(test_program),
  };
  return cmocka_run_group_tests_name("gradient checks", tests, NULL, NULL);
}
