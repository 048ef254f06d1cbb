/* SPDX-License-Identifier: Apache-2.0
 * The CSV tables of a report (report_page.h): everything, also what the page leaves out. Which files there
 * are does not depend on what has been run. */
#include "tools/report_page.h"

#include "models/evaluation/extract.h"

#include <math.h>

static void view_columns(report_table *t) {
  report_table_column(t, "", "size", REPORT_TEXT, false);
  report_table_column(t, "", "arm", REPORT_TEXT, false);
  report_table_column(t, "", "split", REPORT_TEXT, false);
}

static void view_cells(const report_page *page, report_table *t, const kedge_view *view) {
  const kedge_study *s = page->study;
  report_table_text(t, "%s", s->sizes.at[view->size]);
  report_table_text(t, "%s", s->arms.at[view->arm]);
  report_table_text(t, "%s", view->shift == KEDGE_STUDY_NONE ? "all" : s->shifts.at[view->shift]);
}

static void estimate_columns(report_table *t) {
  static const char *const keys[] = {"p_bootstrap", "p_student", "p_both", "student_low", "student_high"};
  report_table_column(t, "", "mean", REPORT_REAL, true);
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    report_table_column(t, "", keys[i], REPORT_REAL, false);
  report_table_column(t, "", "bases", REPORT_COUNT, false);
  report_table_column(t, "", "values", REPORT_COUNT, false);
}

static void estimate_cells(report_table *t, const kedge_estimate *e) {
  report_estimate(t, e, false);
  const double numbers[] = {e->p, e->t_p, e->p_both, e->t_low, e->t_high, e->bases, e->values};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) report_table_number(t, numbers[i]);
}

static void add_means(report_page *page) {
  const kedge_study *s = page->study;
  report_table t;
  report_table_begin(&t, "means");
  view_columns(&t);
  report_table_column(&t, "", "condition", REPORT_TEXT, false);
  report_table_column(&t, "", "measure", REPORT_TEXT, false);
  estimate_columns(&t);
  for (uint32_t v = 0; v < page->analysis->view_count; v++)
    for (uint32_t c = 0; c <= s->condition_count; c++)
      for (uint32_t m = 0; m < KEDGE_MEASURES; m++) {
        const kedge_view *view = &page->analysis->views[v];
        const kedge_estimate *e = kedge_view_mean(view, c, (kedge_measure)m);
        if (!e->values) continue;
        view_cells(page, &t, view);
        report_table_text(&t, "%s", c < s->condition_count ? s->conditions[c].name : "base");
        report_table_text(&t, "%s", kedge_measure_get((kedge_measure)m)->key);
        estimate_cells(&t, e);
      }
  report_table_end(&page->doc, &t);
}

static void add_contrasts(report_page *page) {
  const kedge_study *s = page->study;
  report_table t;
  report_table_begin(&t, "contrasts");
  view_columns(&t);
  report_table_column(&t, "", "condition", REPORT_TEXT, false);
  report_table_column(&t, "", "less", REPORT_TEXT, false);
  report_table_column(&t, "", "measure", REPORT_TEXT, false);
  report_table_column(&t, "", "primary", REPORT_COUNT, false);
  estimate_columns(&t);
  report_table_column(&t, "", "p_holm", REPORT_REAL, false);
  for (uint32_t v = 0; v < page->analysis->view_count; v++)
    for (uint32_t c = 0; c < s->condition_count; c++)
      for (uint32_t m = 0; m < KEDGE_MEASURES; m++) {
        const kedge_view *view = &page->analysis->views[v];
        const kedge_contrast *k = kedge_view_contrast(view, c, (kedge_measure)m);
        if (!k->e.values) continue;
        view_cells(page, &t, view);
        report_table_text(&t, "%s", s->conditions[c].name);
        report_table_text(&t, "sft");
        report_table_text(&t, "%s", kedge_measure_get((kedge_measure)m)->key);
        report_table_number(&t, k->primary);
        estimate_cells(&t, &k->e);
        report_table_number(&t, k->adjusted);
      }
  report_table_end(&page->doc, &t);
}

static void add_orderings(report_page *page) {
  report_table t;
  report_table_begin(&t, "orderings");
  view_columns(&t);
  static const char *const keys[] = {"ordering", "claimed_by", "claim", "measure", "upper", "lower"};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    report_table_column(&t, "", keys[i], REPORT_TEXT, false);
  report_table_column(&t, "", "margin", REPORT_REAL, false);
  report_table_column(&t, "", "verdict", REPORT_TEXT, false);
  estimate_columns(&t);
  for (uint32_t v = 0; v < page->analysis->view_count; v++)
    for (uint32_t i = 0; i < kedge_ordering_count(); i++) {
      const kedge_view *view = &page->analysis->views[v];
      const kedge_ordering *o = kedge_ordering_get(i);
      view_cells(page, &t, view);
      const char *const texts[] = {o->key,   o->pilot ? "pilot" : "paper",
                                   o->text,  kedge_measure_get(o->measure)->key,
                                   o->upper, o->lower};
      for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) report_table_text(&t, "%s", texts[k]);
      report_table_number(&t, o->margin);
      report_table_text(&t, "%s", kedge_verdict_text(view->judged[i].verdict));
      estimate_cells(&t, &view->judged[i].e);
    }
  report_table_end(&page->doc, &t);
}

/* A row for each cell and test set. */
static void add_scores(report_page *page) {
  const kedge_study *s = page->study;
  report_table t;
  report_table_begin(&t, "scores");
  report_table_column(&t, "", "cell", REPORT_TEXT, false);
  report_table_column(&t, "", "test", REPORT_TEXT, false);
  static const char *const keys[] = {"right", "items", "chance"};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    report_table_column(&t, "", keys[i], REPORT_REAL, false);
  report_table_column(&t, "", "accuracy", REPORT_REAL, true); /* Wilson's interval */
  static const char *const more[] = {"nll",          "accuracy_with_bias", "nll_with_bias",
                                     "nll_own",      "nll_base",           "nll_forced",
                                     "nll_converse", "accuracy_own",       "accuracy_forced"};
  for (size_t i = 0; i < sizeof more / sizeof *more; i++)
    report_table_column(&t, "", more[i], REPORT_REAL, false);
  for (uint32_t i = 0; i < s->cell_count; i++)
    for (uint32_t k = 0; k < s->cells[i].score_count; k++) {
      const kedge_study_score *score = &s->cells[i].scores[k];
      double low = NAN, high = NAN;
      if (score->items > 0) kedge_wilson(score->right, score->items, &low, &high);
      report_table_text(&t, "%s", s->cells[i].id);
      report_table_text(&t, "%s", s->keys.at[score->key]);
      report_table_number(&t, score->right), report_table_number(&t, score->items);
      report_table_number(&t, score->chance);
      report_table_interval(&t, score->right / score->items, low, high, false);
      report_table_number(&t, score->nll);
      report_table_number(&t, score->bias_right / score->bias_items),
          report_table_number(&t, score->bias_nll);
      const double selected[] = {score->own_nll,      score->base_nll,     score->forced_nll,
                                 score->converse_nll, score->own_accuracy, score->forced_accuracy};
      for (size_t n = 0; n < sizeof selected / sizeof *selected; n++) report_table_number(&t, selected[n]);
    }
  report_table_end(&page->doc, &t);
}

static void add_cells(report_page *page) {
  const kedge_study *s = page->study;
  static const char *const texts[] = {"cell", "size", "arm", "split", "condition"};
  static const char *const numbers[] = {"base", "seed", "steps", "final_loss", "train_seconds", "seconds"};
  static const char *const hashes[] = {"hash_base", "hash_prior", "hash_data", "hash_model", "hash_config"};
  report_table t;
  report_table_begin(&t, "cells");
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    report_table_column(&t, "", texts[i], REPORT_TEXT, false);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    report_table_column(&t, "", numbers[i], REPORT_REAL, false);
  for (size_t i = 0; i < sizeof hashes / sizeof *hashes; i++)
    report_table_column(&t, "", hashes[i], REPORT_TEXT, false);
  for (uint32_t i = 0; i < s->cell_count; i++) {
    const kedge_study_cell *c = &s->cells[i];
    const bool base = c->condition == KEDGE_STUDY_NONE;
    report_table_text(&t, "%s", c->id);
    report_table_text(&t, "%s", s->sizes.at[c->size]);
    report_table_text(&t, "%s", base ? "" : s->arms.at[c->arm]);
    report_table_text(&t, "%s", base ? "" : s->shifts.at[c->shift]);
    report_table_text(&t, "%s", base ? "base" : s->conditions[c->condition].name);
    const double values[] = {
        c->base, base ? (double)NAN : c->seed, c->steps, c->final_loss, c->train_seconds, c->seconds};
    for (size_t k = 0; k < sizeof values / sizeof *values; k++) report_table_number(&t, values[k]);
    for (size_t h = 0; h < KEDGE_STUDY_HASHES; h++)
      report_table_text(&t, "%s", c->hashes[h] ? c->hashes[h] : "");
  }
  report_table_end(&page->doc, &t);
}

static void add_losses(report_page *page) {
  const kedge_study *s = page->study;
  report_table t;
  report_table_begin(&t, "losses");
  report_table_column(&t, "", "cell", REPORT_TEXT, false);
  report_table_column(&t, "", "step", REPORT_COUNT, false);
  report_table_column(&t, "", "loss", REPORT_REAL, false);
  for (uint32_t i = 0; i < s->cell_count; i++)
    for (uint32_t k = 0; k < s->cells[i].curve_count; k++) {
      report_table_text(&t, "%s", s->cells[i].id);
      report_table_number(&t, s->cells[i].curve_step[k]), report_table_number(&t, s->cells[i].curve_loss[k]);
    }
  report_table_end(&page->doc, &t);
}

void report_csv(report_page *page) {
  add_means(page);
  add_contrasts(page);
  add_orderings(page);
  add_scores(page);
  add_cells(page);
  add_losses(page);
}
