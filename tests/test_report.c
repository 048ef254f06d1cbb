/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Statistics of a study against NumPy and SciPy, measures of cells by hand, and whether effects that were put
 * into a made-up study are found, and none where there is none. The command is in test_report_command.c. */
#include "models/evaluation/extract.h"
#include "models/report/contrast.h"
#include "tests/support/files.h"
#include "tests/support/studies.h"

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

static const char *at(const char *name) {
  return test_path(test_folder(), name);
}

static void near(double got, double want, double tolerance, const char *what) {
  if (!(fabs(got - want) <= tolerance)) fail_msg("%s: %.17g, expected %.17g", what, got, want);
}

/* ---- Statistics
 * ------------------------------------------------------------------------------------------------- */

static json_t *golden;

static int read_golden(void **state) {
  (void)state;
  golden = json_load_file(test_golden("report_statistics.json"), 0, NULL);
  return golden ? 0 : -1;
}

static int free_golden(void **state) {
  (void)state;
  json_decref(golden);
  return 0;
}

static double real(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  if (!json_is_number(value)) fail_msg("%s is not a number", key);
  return json_number_value(value);
}

static kedge_estimate estimate(const json_t *groups) {
  enum { MOST = 64 };
  double values[MOST];
  uint32_t counts[MOST], bases = 0, used = 0;
  kedge_estimate e;
  size_t i, j;
  const json_t *group, *value;
  json_array_foreach(groups, i, group) {
    counts[bases++] = (uint32_t)json_array_size(group);
    json_array_foreach(group, j, value) values[used++] = json_number_value(value);
  }
  ok(kedge_estimate_mean(values, counts, bases, &e));
  assert_int_equal(e.bases, bases);
  assert_int_equal(e.values, used);
  return e;
}

static void test_bootstrap(void **state) {
  (void)state;
  size_t index;
  const json_t *one;
  json_array_foreach(json_object_get(golden, "bootstrap"), index, one) {
    const kedge_estimate e = estimate(json_object_get(one, "groups"));
    const double width = real(one, "high") - real(one, "low");
    near(e.mean, real(one, "mean"), 1e-12, "mean");
    near(e.low, real(one, "low"), 1e-12, "low");
    near(e.high, real(one, "high"), 1e-12, "high");
    near(e.p, real(one, "p"), 1e-12, "p");
    near(e.low, real(one, "numpy_low"), 0.05 * width, "low by another generator");
    near(e.high, real(one, "numpy_high"), 0.05 * width, "high by another generator");
    if (e.bases < 2) {
      assert_true(isnan(e.t_p) && isnan(e.wide_low) && isnan(e.p_both));
      continue;
    }
    near(e.t_low, real(one, "t_low"), 1e-10, "Student's low");
    near(e.t_high, real(one, "t_high"), 1e-10, "Student's high");
    near(e.t_p, real(one, "t_p"), 1e-10, "Student's p");
    assert_true(e.wide_low == fmin(e.low, e.t_low) && e.wide_high == fmax(e.high, e.t_high));
    assert_true(e.p_both == fmax(e.p, e.t_p));
  }
  assert_true(index >= 6);
}

static void test_edges(void **state) {
  (void)state;
  kedge_estimate e;
  ok(kedge_estimate_mean(NULL, NULL, 0, &e));
  assert_true(e.values == 0 && isnan(e.mean) && isnan(e.low) && isnan(e.p_both));
  /* A base without values does not count. */
  ok(kedge_estimate_mean((double[]){1, 1, 1}, (uint32_t[]){2, 0, 1}, 3, &e));
  assert_true(e.bases == 2 && e.values == 3 && e.mean == 1 && e.low == 1 && e.high == 1);
  assert_true(isnan(e.t_low) && isnan(e.t_p) && isnan(e.wide_low)); /* bases that agree by chance */
  ok(kedge_estimate_mean((double[]){0, 0}, (uint32_t[]){1, 1}, 2, &e));
  assert_true(e.p == 1 && isnan(e.t_p) && isnan(e.p_both));
  ok(kedge_estimate_mean((double[]){2}, (uint32_t[]){1}, 1, &e));
  assert_true(e.mean == 2 && isnan(e.low) && isnan(e.p) && isnan(e.p_both));
  double adjusted[2];
  ok(kedge_holm((double[]){NAN, 0.04}, 2, adjusted));
  assert_true(isnan(adjusted[0]) && adjusted[1] == 0.04);
  ok(kedge_holm(NULL, 0, NULL));
}

static void test_tables(void **state) {
  (void)state;
  size_t i, j;
  const json_t *one, *value;
  json_array_foreach(json_object_get(golden, "holm"), i, one) {
    double p[32], adjusted[32];
    const json_t *list = json_object_get(one, "p"), *want = json_object_get(one, "adjusted");
    json_array_foreach(list, j, value) p[j] = json_number_value(value);
    ok(kedge_holm(p, (uint32_t)json_array_size(list), adjusted));
    json_array_foreach(want, j, value) near(adjusted[j], json_number_value(value), 1e-14, "Holm");
  }
  json_array_foreach(json_object_get(golden, "student"), i, one) {
    const double p = real(one, "p"), t95 = real(one, "t95");
    near(kedge_student_p(real(one, "t"), real(one, "degrees")), p, 1e-12 + 1e-9 * p, "Student's p");
    near(kedge_student_t(0.05, real(one, "degrees")), t95, 1e-9 * t95, "Student's t");
  }
  json_array_foreach(json_object_get(golden, "wilson"), i, one) {
    double low, high;
    kedge_wilson(real(one, "right"), real(one, "items"), &low, &high);
    near(low, real(one, "low"), 1e-9, "Wilson's low");
    near(high, real(one, "high"), 1e-9, "Wilson's high");
  }
}

/* ---- Measures
 * --------------------------------------------------------------------------------------------------- */

/* JSON with apostrophes for quotes. */
static void write_json(const char *folder, const char *name, const char *text) {
  char *json = strdup(text);
  for (char *c = json; *c; c++)
    if (*c == '\'') *c = '"';
  test_write_text(test_path(at(folder), name), json);
  free(json);
}

static void write_by_hand(const char *folder) {
  test_make_folder(at(folder));
  test_make_folder(test_path(at(folder), "cells"));
  write_json(folder, "lab.json",
             "{'kedge_lab': 1, 'conditions': [{'name': 'sft'}], 'splits': ['arithS'],"
             " 'domains': ['arithmetic', 'facts', 'strings']}");
  write_json(folder, "cells/b.json",
             "{'kedge_lab_cell': 1, 'size': 'E', 'base': 3, 'condition': 'base', 'shift': null,"
             " 'nll': {'facts': 1, 'strings': 2}}");
  write_json(
      folder, "cells/c.json",
      "{'kedge_lab_cell': 1, 'size': 'E', 'base': 3, 'condition': 'sft', 'shift': 'arithS', 'seed': 7,"
      " 'arm': 'short', 'nll': {'arithS': 0.5, 'facts': 1.5, 'strings': 2.1},"
      " 'accuracy': {'arithS': {'right': 60, 'items': 100}, 'arithmetic': {'right': 50, 'items': 100},"
      "  'facts': {'right': 20, 'items': 100}, 'strings': {'right': 40, 'items': 100}},"
      " 'with_bias': {'accuracy': {'arithS': {'right': 63, 'items': 100}}},"
      " 'routing': {'facts': {'topk_overlap': 0.5}, 'strings': {'topk_overlap': 0.7},"
      "  'mean': {'top1_overlap': 0.9}},"
      " 'communities': {'0.10': {'nmi': 0.4}, '0.20': {'nmi': 0.3}, '0.30': {'nmi': 1}},"
      " 'selection': {'facts': {'nll_own': 1.6, 'nll_base': 1.2, 'nll_forced': 1.25, 'nll_converse': 1.4},"
      "  'strings': {'nll_own': 2.2, 'nll_base': 2.0, 'nll_forced': 2.05, 'nll_converse': 2.2}},"
      " 'utilisation': {'facts': [[0.5, 0.5, 0, 0], [0.25, 0.25, 0.25, 0.25]]}}");
  write_json(folder, "cells/other.json",
             "{'kedge_lab_cell': 1, 'size': 'E', 'base': 3, 'condition': 'unheard-of'}");
  test_write_text(test_path(at(folder), "cells/notes.txt"), "no cell");
}

static void test_measures(void **state) {
  (void)state;
  kedge_study s;
  write_by_hand("hand");
  ok(kedge_study_read(&s, at("hand")));
  assert_true(s.cell_count == 2 && s.left_out == 1 && isnan(s.cells_expected));
  const kedge_study_cell *c = &s.cells[1];
  assert_true(c->condition == 0 && c->seed == 7 && c->base == 3 && s.cells[0].condition == KEDGE_STUDY_NONE);
  const struct {
    kedge_measure measure;
    double value;
  } want[] = {
      {KEDGE_MEASURE_ID, 0.6},        {KEDGE_MEASURE_NEAR, 0.5},       {KEDGE_MEASURE_OOD, 0.3},
      {KEDGE_MEASURE_OVERALL, 0.4},   {KEDGE_MEASURE_NLL_ID, 0.5},     {KEDGE_MEASURE_NLL_OOD, 1.8},
      {KEDGE_MEASURE_TOPK, 0.6},      {KEDGE_MEASURE_TOP1, 0.9},       {KEDGE_MEASURE_NMI10, 0.4},
      {KEDGE_MEASURE_NMI20, 0.3},     {KEDGE_MEASURE_EFFECTIVE, 0.75}, {KEDGE_MEASURE_BIAS_GAIN_ID, 0.03},
      {KEDGE_MEASURE_FORGOTTEN, 0.3}, {KEDGE_MEASURE_REGAINED, 0.25},  {KEDGE_MEASURE_CONVERSE, 0.2},
      {KEDGE_MEASURE_OWN_ACC, 0.3}};
  for (size_t i = 0; i < sizeof want / sizeof *want; i++)
    near(kedge_study_measure(&s, c, 0, want[i].measure), want[i].value, 1e-7,
         kedge_measure_get(want[i].measure)->key);
  /* What the cell lacks is not known; an OOD of fewer domains would be another quantity. */
  const kedge_measure unknown[] = {KEDGE_MEASURE_NLL_NEAR,   KEDGE_MEASURE_TVD,
                                   KEDGE_MEASURE_BIAS_OOD,   KEDGE_MEASURE_REGAINED_ID,
                                   KEDGE_MEASURE_FORCED_ACC, KEDGE_MEASURE_LOSS};
  for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
    assert_true(isnan(kedge_study_measure(&s, c, 0, unknown[i])));
  kedge_study_destroy(&s);
}

/* ---- Effects
 * ---------------------------------------------------------------------------------------------------- */

typedef struct looked {
  kedge_study study;
  kedge_analysis analysis;
} looked;

static void look(const char *folder, const test_study *study, looked *l) {
  test_study_write(at(folder), study);
  ok(kedge_study_read(&l->study, at(folder)));
  ok(kedge_analysis_make(&l->analysis, &l->study));
}

static void forget(looked *l) {
  kedge_analysis_destroy(&l->analysis);
  kedge_study_destroy(&l->study);
}

static kedge_verdict verdict(const kedge_view *view, const char *key) {
  for (uint32_t i = 0; i < kedge_ordering_count(); i++)
    if (!strcmp(kedge_ordering_get(i)->key, key)) return view->judged[i].verdict;
  fail_msg("no ordering %s", key);
  return KEDGE_VERDICT_NO_DATA;
}

static void test_found(void **state) {
  (void)state;
  static const test_study study = {"standard", 4, 3, 2, 1, 1, true, 1, 0.02, NULL};
  static const char *const yes[] = {"rpb-sft-ood",   "sft-lbl-ood", "rpb-lbl-ood",     "l2-sft",
                                    "within-global", "beta-half",   "overlap-sft-lbl", "nmi-rpb-sft",
                                    "flat-lbl-sft",  "token-sft",   "rpb-l2",          "lbl-strong-ood",
                                    "nmi20-sft-lbl"};
  static const char *const no[] = {"rpb-sft-id", "rpb-lbl-id", "jsd-sft-lbl", "sft-kl", "sft-logit"};
  looked l;
  look("found", &study, &l);
  assert_int_equal(l.analysis.view_count, 3); /* both splits, and each */
  const kedge_view *v = &l.analysis.views[0];
  assert_true(v->bases == 4 && v->seeds == 3 && v->shifts == 2 && v->cells == 408);
  near(v->primary[0].mean, -0.05, 0.01, "LBL less SFT");
  near(v->primary[1].mean, 0.03, 0.01, "RPB less SFT");
  assert_true(v->primary[0].bases == 4 && v->primary[0].values == 12);
  for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
    if (verdict(v, yes[i]) != KEDGE_VERDICT_REPRODUCED) fail_msg("%s is not found", yes[i]);
  for (size_t i = 0; i < sizeof no / sizeof *no; i++)
    if (verdict(v, no[i]) != KEDGE_VERDICT_NOT_REPRODUCED) fail_msg("%s is found", no[i]);
  /* The primary contrasts are not among the corrected ones, others are, and no p becomes smaller. */
  const kedge_contrast *primary =
      kedge_view_contrast(v, kedge_study_condition_find(&l.study, "rpb_1"), KEDGE_MEASURE_OOD);
  const kedge_contrast *other =
      kedge_view_contrast(v, kedge_study_condition_find(&l.study, "kl_token"), KEDGE_MEASURE_OOD);
  assert_true(primary->primary && isnan(primary->adjusted));
  assert_true(!other->primary && other->adjusted > other->e.p_both && other->adjusted < 0.05);
  for (size_t i = 0; i < 5; i++) assert_true(strlen(l.analysis.findings[i]) > 20);
  assert_non_null(strstr(l.analysis.findings[3], "separated"));
  forget(&l);
}

static void test_nothing(void **state) {
  (void)state;
  static const test_study study = {"standard", 4, 3, 1, 1, 1, true, 0, 0.05, NULL};
  uint32_t decided = 0;
  looked l;
  look("nothing", &study, &l);
  const kedge_view *v = &l.analysis.views[0];
  assert_int_equal(verdict(v, "rpb-sft-ood"), KEDGE_VERDICT_UNDECIDED);
  assert_int_equal(verdict(v, "sft-lbl-ood"), KEDGE_VERDICT_UNDECIDED);
  for (uint32_t i = 0; i < kedge_ordering_count(); i++)
    if (kedge_ordering_get(i)->margin == 0) decided += v->judged[i].verdict != KEDGE_VERDICT_UNDECIDED;
  if (decided > 4)
    fail_msg("%u of %u orderings are decided without an effect", decided, kedge_ordering_count());
  assert_non_null(strstr(l.analysis.findings[3], "no separation"));
  forget(&l);
}

/* One base is no sample of bases, however many seeds it has. */
static void test_one_base(void **state) {
  (void)state;
  static const test_study study = {"quick", 1, 6, 1, 1, 1, false, 1, 0.01, NULL};
  looked l;
  look("one", &study, &l);
  for (uint32_t i = 0; i < kedge_ordering_count(); i++) {
    const kedge_verdict found = l.analysis.views[0].judged[i].verdict;
    assert_true(found == KEDGE_VERDICT_UNDECIDED || found == KEDGE_VERDICT_NO_DATA);
  }
  assert_int_equal(verdict(&l.analysis.views[0], "l2-sft"), KEDGE_VERDICT_NO_DATA);
  forget(&l);
}

/* A contrast takes only pairs: a cell without its counterpart does not count. */
static void test_pairs(void **state) {
  (void)state;
  static const test_study study = {"quick", 3, 2, 1, 1, 1, false, 1, 0.01, NULL};
  looked l;
  test_study_write(at("pairs"), &study);
  test_remove(at("pairs/cells/E16K2-b1-arithS-short-sft-s0.json"));
  test_remove(at("pairs/cells/E16K2-b2-arithS-short-rpb_1-s0.json"));
  test_remove(at("pairs/cells/E16K2-b2-arithS-short-rpb_1-s1.json"));
  ok(kedge_study_read(&l.study, at("pairs")));
  ok(kedge_analysis_make(&l.analysis, &l.study));
  const kedge_view *v = &l.analysis.views[0];
  assert_true(v->primary[0].bases == 3 && v->primary[0].values == 5);
  assert_true(v->primary[1].bases == 2 && v->primary[1].values == 3);
  near(v->primary[1].mean, 0.03, 0.01, "RPB less SFT");
  forget(&l);
}

static void test_memory(void **state) {
  (void)state;
  static const test_study study = {"quick", 1, 1, 1, 1, 1, false, 1, 0.01, NULL};
  looked l;
  test_study_write(at("memory"), &study);
  kedge_status status = KEDGE_ERR_MEMORY;
  for (uint64_t n = 1; status != KEDGE_OK; n++) {
    kedge_alloc_fail_nth(n);
    status = kedge_study_read(&l.study, at("memory"));
    kedge_alloc_fail_nth(0);
    if (status != KEDGE_OK && status != KEDGE_ERR_MEMORY)
      fail_msg("allocation %d: %s", (int)n, kedge_message());
    if (status != KEDGE_OK) kedge_study_destroy(&l.study);
  }
  status = KEDGE_ERR_MEMORY;
  for (uint64_t n = 1; status != KEDGE_OK; n += 1 + n / 4) {
    kedge_alloc_fail_nth(n);
    status = kedge_analysis_make(&l.analysis, &l.study);
    kedge_alloc_fail_nth(0);
    if (status != KEDGE_OK && status != KEDGE_ERR_MEMORY)
      fail_msg("allocation %d: %s", (int)n, kedge_message());
    kedge_analysis_destroy(&l.analysis);
  }
  kedge_study_destroy(&l.study);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bootstrap), cmocka_unit_test(test_edges), cmocka_unit_test(test_tables),
      cmocka_unit_test(test_measures),  cmocka_unit_test(test_found), cmocka_unit_test(test_nothing),
      cmocka_unit_test(test_one_base),  cmocka_unit_test(test_pairs), cmocka_unit_test(test_memory)};
  return cmocka_run_group_tests(tests, read_golden, free_golden);
}
