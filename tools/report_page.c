/* SPDX-License-Identifier: Apache-2.0
 * The report's sections on what was run, abilities, contrasts, claims and strengths (report_page.h). */
#include "tools/report_page.h"

#include "models/evaluation/extract.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Small things
 * ------------------------------------------------------------------------------------------------ */

const char *report_view_name(const report_page *page, const kedge_view *view, report_view_text text) {
  const kedge_study *s = page->study;
  snprintf(text, sizeof(report_view_text), "%.80s%s%.80s%s%.80s", s->sizes.at[view->size],
           s->arms.count > 1 ? ", " : "", s->arms.count > 1 ? s->arms.at[view->arm] : "",
           view->shift != KEDGE_STUDY_NONE || view->shifts > 1 ? ", " : "",
           view->shift != KEDGE_STUDY_NONE ? s->shifts.at[view->shift]
           : view->shifts > 1              ? "all splits"
                                           : "");
  return text;
}

const char *report_view_file(const report_page *page, const kedge_view *view, report_view_text text) {
  snprintf(text, sizeof(report_view_text), "%u", (unsigned)(view - page->analysis->views));
  return text;
}

bool report_knows(const kedge_view *view, uint32_t condition, kedge_measure measure) {
  return kedge_view_mean(view, condition, measure)->values > 0;
}

void report_estimate(report_table *table, const kedge_estimate *estimate, bool marked) {
  report_table_interval(table, estimate->mean, estimate->low, estimate->high, marked);
}

static report_kind kind_of(kedge_measure measure, bool difference) {
  switch (kedge_measure_get(measure)->kind) {
  case KEDGE_KIND_SHARE:
    return difference ? REPORT_POINTS : REPORT_PERCENT;
  default:
    return difference ? REPORT_SIGNED : REPORT_REAL;
  }
}

/* ---- What was run
 * ------------------------------------------------------------------------------------------------ */

/* What the conditions of `kedge lab` do, by their names without the strength. */
static const char *condition_does(const char *name) {
  static const struct {
    const char *name, *does;
  } known[] = {
      {"sft", "plain post-training; the router learns as all else does"},
      {"lbl", "adds a load-balancing loss with this coefficient"},
      {"rpb_hard",
       "uses the prior's own top experts for all tokens of a question or an answer, in training alone"},
      {"rpb",
       "Router Prior Bias: in training alone, adds to the router's logits what the base's router prefers on "
       "average over the question or the answer, times this strength"},
      {"within_soft", "RPB 1 with the prior's experts permuted within the base's communities: a control"},
      {"within_hard", "RPB hard with the prior's experts permuted within the base's communities: a control"},
      {"global_soft", "RPB 1 with the prior's experts permuted among all: a control"},
      {"global_hard", "RPB hard with the prior's experts permuted among all: a control"},
      {"router_l2", "adds the squared distance of the router's weights from the base's"},
      {"kl_token", "adds the divergence (KL) of the router from the base's router, token by token"},
      {"kl", "adds the divergence (KL) of the router from the prior of the question or the answer"},
      {"logit_l2", "adds the squared distance of the router's centred logits from the prior's"},
      {"z_loss", "adds the router's z-loss, which keeps its logits small"},
      {"freeze", "the router keeps the base's weights"},
  };
  const char *line = strrchr(name, '_');
  char *end = NULL;
  if (line && line[1]) strtod(line + 1, &end);
  const size_t length = end && !*end ? (size_t)(line - name) : strlen(name);
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strlen(known[i].name) == length && !memcmp(known[i].name, name, length)) return known[i].does;
  return NULL;
}

static void add_names(report_page *page) {
  const kedge_study *s = page->study;
  report_table t;
  report_note(
      &page->doc,
      "A cell is one model: a base, or what became of a base by post-training under one condition with one "
      "seed. The conditions:");
  report_table_begin(&t, NULL);
  report_table_column(&t, "Condition", "condition", REPORT_TEXT, false);
  report_table_column(&t, "what it does", "does", REPORT_TEXT, false);
  for (uint32_t c = 0; c < s->condition_count; c++) {
    const char *does = condition_does(s->conditions[c].name);
    report_table_text(&t, "%s", s->conditions[c].label);
    report_table_text(&t, "%s", does ? does : "\u2013");
  }
  report_table_end(&page->doc, &t);
}

static void add_run(report_page *page) {
  const kedge_study *s = page->study;
  report_table t;
  report_view_text name;
  double seconds = 0;
  uint32_t bases = 0;
  for (uint32_t i = 0; i < s->cell_count; i++) {
    bases += s->cells[i].condition == KEDGE_STUDY_NONE;
    if (!isnan(s->cells[i].seconds)) seconds += s->cells[i].seconds;
  }
  report_section(&page->doc, "run", "What was run");
  report_say(
      &page->doc,
      "Small mixture-of-experts models, made from nothing, are post-trained on a shifted form of one of "
      "their domains under several conditions, and asked what the paper (arXiv:2609.08115) reports of "
      "large ones: what is learnt, what is forgotten, and how much of the routing is kept.");
  if (!strcmp(s->preset, "quick"))
    report_say(&page->doc,
               "This is a demonstration without statistical power: with so few bases the intervals "
               "say little. The preset standard is the study.");
  if (isnan(s->cells_expected))
    report_say(&page->doc, "%u cells are finished, %u of them bases.", s->cell_count, bases);
  else
    report_say(&page->doc, "%u of %.0f cells are finished, %u of them bases.%s", s->cell_count,
               s->cells_expected, bases,
               s->cell_count < s->cells_expected ? " What follows is of these alone and will change." : "");
  if (s->left_out)
    report_say(&page->doc, "%u cells are of conditions that this study does not name; they are left out.",
               s->left_out);
  if (seconds > 0)
    report_say(&page->doc, "Together they took %.1f core-%s, not counting the pretraining of the bases.",
               seconds / (seconds < 3600 ? 60 : 3600), seconds < 3600 ? "minutes" : "hours");
  report_table_begin(&t, NULL);
  report_table_column(&t, "Bases", "view", REPORT_TEXT, false);
  report_table_column(&t, "cells", "cells", REPORT_COUNT, false);
  report_table_column(&t, "bases", "bases", REPORT_COUNT, false);
  report_table_column(&t, "seeds", "seeds", REPORT_COUNT, false);
  report_table_column(&t, "trained splits", "splits", REPORT_COUNT, false);
  for (uint32_t v = 0; v < page->analysis->view_count; v++) {
    const kedge_view *view = &page->analysis->views[v];
    report_table_text(&t, "%s", report_view_name(page, view, name));
    report_table_number(&t, view->cells), report_table_number(&t, view->bases);
    report_table_number(&t, view->seeds), report_table_number(&t, view->shifts);
  }
  report_table_end(&page->doc, &t);
  report_note(
      &page->doc,
      "S is the split that was trained, d its domain. ID: accuracy on S's own test. near-OOD: on d's "
      "original test. OOD: mean over the original tests of the other domains. Overall: mean of ID and "
      "those. Brackets are 95 %% intervals of a bootstrap over bases and, within them, seeds (%d "
      "resamples). Values: how many there are, one of each base and seed, with all splits the mean over "
      "them. NLL: negative "
      "log-likelihood of the reference answers.",
      KEDGE_RESAMPLES);
  add_names(page);
}

/* ---- Bases
 * ------------------------------------------------------------------------------------------------------ */

static void add_bases(report_page *page) {
  const kedge_study *s = page->study;
  report_table t;
  report_section(&page->doc, "bases", "The bases, before post-training");
  report_say(&page->doc,
             "Accuracy in percent on every test set, with Wilson's 95 %% interval over its items; "
             "chance beside it.");
  report_table_begin(&t, NULL);
  report_table_column(&t, "Test set", "test", REPORT_TEXT, false);
  report_table_column(&t, "chance", "chance", REPORT_PERCENT, false);
  const uint32_t first = t.column_count;
  for (uint32_t i = 0; i < s->cell_count && t.column_count < REPORT_COLUMNS; i++)
    if (s->cells[i].condition == KEDGE_STUDY_NONE)
      report_table_column(&t, s->cells[i].id, "base", REPORT_PERCENT, true);
  for (uint32_t k = 0; k < s->keys.count && t.column_count > first; k++) {
    double chance = NAN;
    report_table_text(&t, "%s", s->keys.at[k]);
    for (uint32_t i = 0; i < s->cell_count && isnan(chance); i++) {
      const kedge_study_score *score = kedge_study_score_of(&s->cells[i], k);
      if (score) chance = score->chance;
    }
    report_table_number(&t, chance);
    for (uint32_t i = 0, column = first; i < s->cell_count && column < t.column_count; i++) {
      if (s->cells[i].condition != KEDGE_STUDY_NONE) continue;
      const kedge_study_score *score = kedge_study_score_of(&s->cells[i], k);
      double low = NAN, high = NAN;
      if (score && score->items > 0) kedge_wilson(score->right, score->items, &low, &high);
      report_table_interval(&t, score ? score->right / score->items : NAN, low, high, false);
      column++;
    }
  }
  report_table_end(&page->doc, &t);
}

/* Answers of `kedge audit`, where the bases have been audited. */
static void add_audits(report_page *page) {
  const kedge_study *s = page->study;
  report_table t;
  report_table_begin(&t, NULL);
  report_table_column(&t, "Audit of the router", "question", REPORT_TEXT, false);
  for (uint32_t i = 0; i < s->cell_count && t.column_count < REPORT_COLUMNS; i++)
    if (s->cells[i].audited) report_table_column(&t, s->cells[i].id, "base", REPORT_TEXT, false);
  for (uint32_t q = 0; q < KEDGE_AUDIT_QUESTIONS && t.column_count > 1; q++) {
    report_table_text(&t, "%s", kedge_audit_title((kedge_audit_question)q));
    for (uint32_t i = 0, column = 1; i < s->cell_count && column < t.column_count; i++) {
      if (!s->cells[i].audited) continue;
      report_table_text(&t, "%s", kedge_audit_words((kedge_audit_question)q, s->cells[i].audit[q]));
      column++;
    }
  }
  if (t.column_count > 1) report_table_end(&page->doc, &t);
}

/* ---- Accuracy and contrasts
 * -------------------------------------------------------------------------------------- */

static void add_accuracy_table(report_page *page, const kedge_view *view) {
  static const kedge_measure measures[] = {KEDGE_MEASURE_ID,     KEDGE_MEASURE_NEAR,
                                           KEDGE_MEASURE_OOD,    KEDGE_MEASURE_OVERALL,
                                           KEDGE_MEASURE_NLL_ID, KEDGE_MEASURE_NLL_OOD};
  const size_t count = sizeof measures / sizeof *measures;
  const kedge_study *s = page->study;
  report_table t;
  report_table_begin(&t, NULL);
  report_table_column(&t, "Condition", "condition", REPORT_TEXT, false);
  report_table_column(&t, "values", "values", REPORT_COUNT, false);
  for (size_t m = 0; m < count; m++)
    report_table_column(&t, kedge_measure_get(measures[m])->title, kedge_measure_get(measures[m])->key,
                        kind_of(measures[m], false), true);
  for (uint32_t i = 0; i <= s->condition_count; i++) {
    const uint32_t c = i ? i - 1 : s->condition_count; /* the base comes first */
    if (!report_knows(view, c, KEDGE_MEASURE_ID) && !report_knows(view, c, KEDGE_MEASURE_OOD)) continue;
    report_table_text(&t, "%s", i ? s->conditions[c].label : "base");
    report_table_number(&t, kedge_view_mean(view, c, KEDGE_MEASURE_ID)->values);
    for (size_t m = 0; m < count; m++) report_estimate(&t, kedge_view_mean(view, c, measures[m]), false);
  }
  report_table_end(&page->doc, &t);
}

static void add_accuracy(report_page *page) {
  report_view_text name;
  report_section(&page->doc, "accuracy", "Accuracy by condition");
  report_say(&page->doc, "Accuracies in percent, NLL in nats a token of the answers. Intervals hold what "
                         "differs between bases; conditions are compared in the next section, pair by pair.");
  for (uint32_t v = 0; v < page->analysis->view_count; v++) {
    const kedge_view *view = &page->analysis->views[v];
    report_heading(&page->doc, report_view_name(page, view, name));
    if (view->shift == KEDGE_STUDY_NONE) report_plot_accuracy(page, view);
    add_accuracy_table(page, view);
  }
}

static const kedge_measure compared[] = {KEDGE_MEASURE_ID,      KEDGE_MEASURE_NEAR,    KEDGE_MEASURE_OOD,
                                         KEDGE_MEASURE_OVERALL, KEDGE_MEASURE_NLL_OOD, KEDGE_MEASURE_TOPK,
                                         KEDGE_MEASURE_NMI10};

static void add_primary_table(report_page *page, const kedge_view *view) {
  const kedge_study *s = page->study;
  report_table t;
  report_table_begin(&t, NULL);
  report_table_column(&t, "Primary contrast, OOD", "contrast", REPORT_TEXT, false);
  report_table_column(&t, "points", "points", REPORT_POINTS, true);
  report_table_column(&t, "Student, over bases", "student", REPORT_POINTS, true);
  report_table_column(&t, "p, bootstrap", "p_bootstrap", REPORT_P, false);
  report_table_column(&t, "p, Student", "p_student", REPORT_P, false);
  report_table_column(&t, "bases", "bases", REPORT_COUNT, false);
  report_table_column(&t, "values", "values", REPORT_COUNT, false);
  report_table_column(&t, "", "separated", REPORT_TEXT, false);
  for (uint32_t i = 0; i < s->primary_count; i++) {
    const kedge_estimate *e = &view->primary[i];
    if (!e->values) continue;
    report_table_text(&t, "%s \u2212 %s", s->conditions[s->primary[i][0]].label,
                      s->conditions[s->primary[i][1]].label);
    report_estimate(&t, e, false);
    report_table_interval(&t, e->mean, e->t_low, e->t_high, false);
    report_table_number(&t, e->p), report_table_number(&t, e->t_p);
    report_table_number(&t, e->bases), report_table_number(&t, e->values);
    report_table_text(&t, e->wide_low > 0 || e->wide_high < 0 ? "separated" : "no separation");
  }
  report_table_end(&page->doc, &t);
}

static void add_contrast_table(report_page *page, const kedge_view *view) {
  const size_t count = sizeof compared / sizeof *compared;
  const kedge_study *s = page->study;
  report_table t;
  report_table_begin(&t, NULL);
  report_table_column(&t, "Condition \u2212 SFT", "condition", REPORT_TEXT, false);
  for (size_t m = 0; m < count; m++)
    report_table_column(&t, kedge_measure_get(compared[m])->title, kedge_measure_get(compared[m])->key,
                        kind_of(compared[m], true), true);
  for (uint32_t c = 0; c < s->condition_count; c++) {
    bool known = false;
    for (size_t m = 0; m < count; m++) known = known || kedge_view_contrast(view, c, compared[m])->e.values;
    if (!known) continue;
    report_table_text(&t, "%s", s->conditions[c].label);
    for (size_t m = 0; m < count; m++) {
      const kedge_contrast *k = kedge_view_contrast(view, c, compared[m]);
      report_estimate(&t, &k->e, (k->primary ? k->e.p_both : k->adjusted) < 0.05);
    }
  }
  report_table_end(&page->doc, &t);
}

static void add_contrasts(report_page *page) {
  report_view_text name;
  report_section(&page->doc, "contrasts", "Contrasts with SFT");
  report_say(
      &page->doc,
      "Differences of cells of the same base, split and seed, which saw the same data in the same order: "
      "points of percent for accuracies, nats a token for NLL.");
  report_say(
      &page->doc,
      "The unit of inference is the base. A bootstrap over few bases is too narrow, since it cannot draw a "
      "base that was not there; so nothing is called separated, and no claim decided, unless Student's "
      "interval over the means of bases excludes the other side too. Bold: p below 0.05 by both, for all "
      "but the primary contrasts after Holm's correction for the number of them.");
  for (uint32_t v = 0; v < page->analysis->view_count; v++) {
    const kedge_view *view = &page->analysis->views[v];
    report_heading(&page->doc, report_view_name(page, view, name));
    add_primary_table(page, view);
    if (view->shift == KEDGE_STUDY_NONE) report_plot_contrasts(page, view);
    add_contrast_table(page, view);
  }
}

/* ---- What was claimed
 * -------------------------------------------------------------------------------------------- */

static const char *label_of(const kedge_study *study, const char *name) {
  const uint32_t c = kedge_study_condition_find(study, name);
  return c == KEDGE_STUDY_NONE ? name : study->conditions[c].label;
}

static void add_ordering_table(report_page *page, const kedge_view *view, bool pilot) {
  report_table t;
  report_table_begin(&t, NULL);
  report_table_column(&t, "Claim", "claim", REPORT_TEXT, false);
  report_table_column(&t, "verdict", "verdict", REPORT_TEXT, false);
  report_table_column(&t, "measure", "measure", REPORT_TEXT, false);
  report_table_column(&t, "first \u2212 second", "difference", REPORT_TEXT, false);
  report_table_column(&t, "difference", "difference", REPORT_SIGNED, true);
  report_table_column(&t, "Student", "student", REPORT_SIGNED, true);
  report_table_column(&t, "bases", "bases", REPORT_COUNT, false);
  report_table_column(&t, "values", "values", REPORT_COUNT, false);
  for (uint32_t i = 0; i < kedge_ordering_count(); i++) {
    const kedge_ordering *o = kedge_ordering_get(i);
    const kedge_judged *j = &view->judged[i];
    if (o->pilot != pilot || j->verdict == KEDGE_VERDICT_NO_DATA) continue;
    if (o->margin > 0)
      report_table_text(&t, "%s (margin %.2f)", o->text, o->margin);
    else
      report_table_text(&t, "%s", o->text);
    report_table_text(&t, "%s", kedge_verdict_text(j->verdict));
    report_table_text(&t, "%s", kedge_measure_get(o->measure)->title);
    report_table_text(&t, "%s \u2212 %s", label_of(page->study, o->upper), label_of(page->study, o->lower));
    report_estimate(&t, &j->e, false);
    report_table_interval(&t, j->e.mean, j->e.t_low, j->e.t_high, false);
    report_table_number(&t, j->e.bases), report_table_number(&t, j->e.values);
  }
  report_table_end(&page->doc, &t);
}

static void add_orderings(report_page *page) {
  report_view_text name;
  report_section(&page->doc, "orderings", "The paper's orderings");
  report_say(
      &page->doc,
      "What the paper reports of models of 16 to 30 billion parameters, asked of these small ones. "
      "Reproduced: "
      "both intervals lie on the claim's side; not reproduced: both lie on the other; undecided: neither, "
      "and the intervals say how large a difference would have gone unseen. Claims on conditions that were "
      "not run are left out. Nothing is corrected for their number: of twenty claims without truth one is "
      "decided by "
      "chance. The paper's LBL has the coefficient 0.001; LBL 0.01 stands for it here, as a coefficient "
      "belongs to its learning rate. Differences of accuracy are shares here, not percent.");
  for (uint32_t v = 0; v < page->analysis->view_count; v++) {
    const kedge_view *view = &page->analysis->views[v];
    if (view->shift != KEDGE_STUDY_NONE) continue;
    report_heading(&page->doc, report_view_name(page, view, name));
    add_ordering_table(page, view, false);
    report_note(&page->doc, "What a pilot of this study saw, which the paper does not claim:");
    add_ordering_table(page, view, true);
  }
}

/* ---- Strengths
 * --------------------------------------------------------------------------------------------------- */

/* The name up to the last "_" and the number behind it. */
static bool split_name(const kedge_study_condition *c, char *family, size_t room, double *strength) {
  const char *line = strrchr(c->name, '_');
  char *end;
  if (!line || !line[1]) return false;
  *strength = strtod(line + 1, &end);
  if (*end || !isfinite(*strength)) return false;
  return snprintf(family, room, "%.*s", (int)(line - c->name), c->name) < (int)room;
}

bool report_sweep_next(const kedge_study *study, uint32_t *from, report_sweep *sweep) {
  char family[100];
  double strength;
  for (; *from < study->condition_count; ++*from) {
    if (!split_name(&study->conditions[*from], sweep->name, sizeof sweep->name, &strength)) continue;
    sweep->count = 0;
    bool first = true;
    for (uint32_t c = 0; c < study->condition_count && sweep->count < REPORT_STRENGTHS; c++) {
      if (!split_name(&study->conditions[c], family, sizeof family, &strength)) continue;
      if (strcmp(family, sweep->name) != 0) continue;
      first = first && c >= *from;
      uint32_t at = sweep->count++;
      for (; at && sweep->strengths[at - 1] > strength; at--)
        sweep->strengths[at] = sweep->strengths[at - 1], sweep->conditions[at] = sweep->conditions[at - 1];
      sweep->strengths[at] = strength, sweep->conditions[at] = c;
    }
    if (!first || sweep->count < 2) continue;
    ++*from;
    return true;
  }
  return false;
}

static void add_sweep_table(report_page *page, const kedge_view *view, const report_sweep *sweep) {
  static const kedge_measure measures[] = {KEDGE_MEASURE_ID,   KEDGE_MEASURE_OOD,       KEDGE_MEASURE_OVERALL,
                                           KEDGE_MEASURE_TOPK, KEDGE_MEASURE_EFFECTIVE, KEDGE_MEASURE_NMI10};
  const size_t count = sizeof measures / sizeof *measures;
  report_table t;
  report_table_begin(&t, NULL);
  report_table_column(&t, "Strength", "strength", REPORT_TEXT, false);
  for (size_t m = 0; m < count; m++)
    report_table_column(&t, kedge_measure_get(measures[m])->title, kedge_measure_get(measures[m])->key,
                        kind_of(measures[m], true), true);
  for (uint32_t i = 0; i < sweep->count; i++) {
    report_table_text(&t, "%s", page->study->conditions[sweep->conditions[i]].label);
    for (size_t m = 0; m < count; m++)
      report_estimate(&t, &kedge_view_contrast(view, sweep->conditions[i], measures[m])->e, false);
  }
  report_table_end(&page->doc, &t);
}

static void add_sweeps(report_page *page) {
  report_view_text name;
  report_sweep sweep;
  uint32_t found = 0;
  report_section(&page->doc, "strengths", "Strengths");
  report_say(&page->doc, "Each strength less SFT, which has strength 0.");
  for (uint32_t v = 0; v < page->analysis->view_count; v++) {
    const kedge_view *view = &page->analysis->views[v];
    if (view->shift != KEDGE_STUDY_NONE) continue;
    for (uint32_t from = 0; report_sweep_next(page->study, &from, &sweep); found++) {
      char *title = kedge_format("%s, %s", sweep.name, report_view_name(page, view, name));
      report_heading(&page->doc, title ? title : "");
      kedge_free(title);
      report_plot_sweep(page, view, &sweep);
      add_sweep_table(page, view, &sweep);
    }
  }
  if (!found) report_note(&page->doc, "No condition was run at two strengths.");
}

/* ---- All
 * -------------------------------------------------------------------------------------------------------- */

static void add_configuration(report_page *page) {
  const kedge_study *s = page->study;
  static const char *const titles[KEDGE_STUDY_HASHES] = {"base", "prior", "data", "model", "config"};
  report_table t;
  report_section(&page->doc, "configuration", "Configuration and hashes");
  report_say(&page->doc, "Kedge %s, computed on %s%s%s.", *s->version ? s->version : "of unknown version",
             *s->isa ? s->isa : "unknown", *s->created ? ", begun " : "", s->created);
  if (s->protocol) report_fold(&page->doc, "Protocol", s->protocol);
  for (uint32_t c = 0; c < s->condition_count; c++)
    if (s->conditions[c].settings) report_fold(&page->doc, s->conditions[c].label, s->conditions[c].settings);
  report_say(&page->doc, "Hashes of the bases; those of every cell are in tables/cells.csv.");
  report_table_begin(&t, NULL);
  report_table_column(&t, "Base", "id", REPORT_TEXT, false);
  for (int h = 0; h < KEDGE_STUDY_HASHES; h++)
    report_table_column(&t, titles[h], titles[h], REPORT_TEXT, false);
  for (uint32_t i = 0; i < s->cell_count; i++) {
    const kedge_study_cell *cell = &s->cells[i];
    if (cell->condition != KEDGE_STUDY_NONE) continue;
    report_table_text(&t, "%s", cell->id);
    for (int h = 0; h < KEDGE_STUDY_HASHES; h++)
      report_table_text(&t, "%s", cell->hashes[h] ? cell->hashes[h] : "\u2013");
  }
  report_table_end(&page->doc, &t);
}

kedge_status report_write(const kedge_analysis *analysis, const char *folder, bool plots) {
  const kedge_study *s = analysis->study;
  report_page page = {.study = s, .analysis = analysis};
  report_begin(&page.doc, folder, plots);
  report_section(&page.doc, "findings", "Findings");
  report_list(&page.doc, analysis->findings, sizeof analysis->findings / sizeof *analysis->findings);
  if (!plots)
    report_note(&page.doc, "Figures are left out; they are drawn by gnuplot (Debian: gnuplot-nox).");
  add_run(&page);
  add_bases(&page);
  add_audits(&page);
  add_accuracy(&page);
  add_contrasts(&page);
  add_orderings(&page);
  add_sweeps(&page);
  report_routing_sections(&page);
  add_configuration(&page);
  report_csv(&page);
  char *badge = kedge_format("preset %s \u00b7 %u cells%s", *s->preset ? s->preset : "unknown", s->cell_count,
                             !strcmp(s->preset, "quick") ? " \u00b7 a demonstration without power" : "");
  const kedge_status status =
      report_end(&page.doc, "Router anchors in small mixtures of experts", badge ? badge : "");
  kedge_free(badge);
  return status;
}
