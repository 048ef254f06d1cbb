/* SPDX-License-Identifier: Apache-2.0
 * The report's sections on what became of routing (report_page.h). */
#include "tools/report_page.h"

#include <math.h>
#include <stdio.h>

static bool known_to_any(const kedge_study *s, const kedge_view *view, kedge_measure measure) {
  for (uint32_t c = 0; c <= s->condition_count; c++)
    if (report_knows(view, c, measure)) return true;
  return false;
}

/* One row a condition that knows the first measure, the base first where `base`; one column a measure that
 * any condition knows. */
static void add_means(report_page *page, const kedge_view *view, const kedge_measure *measures, size_t count,
                      bool base) {
  const kedge_study *s = page->study;
  report_table t;
  report_table_begin(&t, NULL);
  report_table_column(&t, "Condition", "condition", REPORT_TEXT, false);
  for (size_t m = 0; m < count; m++) {
    const kedge_measure_row *row = kedge_measure_get(measures[m]);
    if (!known_to_any(s, view, measures[m])) continue;
    report_table_column(&t, row->title, row->key,
                        row->kind == KEDGE_KIND_SHARE ? REPORT_PERCENT : REPORT_REAL, true);
  }
  for (uint32_t i = 0; i <= s->condition_count; i++) {
    const uint32_t c = i ? i - 1 : s->condition_count;
    bool known = i || base;
    known = known && report_knows(view, c, measures[0]);
    if (!known) continue;
    report_table_text(&t, "%s", i ? s->conditions[c].label : "base");
    for (size_t m = 0; m < count; m++)
      if (known_to_any(s, view, measures[m]))
        report_estimate(&t, kedge_view_mean(view, c, measures[m]), false);
  }
  report_table_end(&page->doc, &t);
}

static void add_mismatch(report_page *page, const kedge_view *view) {
  static const kedge_measure measures[] = {KEDGE_MEASURE_BIAS_GAIN_ID, KEDGE_MEASURE_BIAS_GAIN_OOD,
                                           KEDGE_MEASURE_ID,           KEDGE_MEASURE_BIAS_ID,
                                           KEDGE_MEASURE_OOD,          KEDGE_MEASURE_BIAS_OOD};
  add_means(page, view, measures, sizeof measures / sizeof *measures, false);
}

static void add_retention(report_page *page, const kedge_view *view) {
  static const kedge_measure measures[] = {KEDGE_MEASURE_TOPK, KEDGE_MEASURE_TOP1, KEDGE_MEASURE_GATE,
                                           KEDGE_MEASURE_TVD,  KEDGE_MEASURE_JSD,  KEDGE_MEASURE_EFFECTIVE};
  report_figures_begin(&page->doc);
  report_plot_scatter(page, view, KEDGE_MEASURE_TOPK);
  report_plot_scatter(page, view, KEDGE_MEASURE_NMI10);
  report_figures_end(&page->doc);
  add_means(page, view, measures, sizeof measures / sizeof *measures, false);
}

/* ---- Selection
 * --------------------------------------------------------------------------------------------------- */

static void add_forced(report_page *page, const kedge_view *view) {
  static const kedge_measure measures[] = {KEDGE_MEASURE_FORGOTTEN, KEDGE_MEASURE_REGAINED,
                                           KEDGE_MEASURE_CONVERSE, KEDGE_MEASURE_OWN_ACC,
                                           KEDGE_MEASURE_FORCED_ACC};
  const kedge_study *s = page->study;
  report_table t;
  report_table_begin(&t, NULL);
  report_table_column(&t, "Condition", "condition", REPORT_TEXT, false);
  report_table_column(&t, "rise of NLL, OOD", "forgotten", REPORT_SIGNED, true);
  report_table_column(&t, "regained on the base's experts", "regained", REPORT_SIGNED, true);
  report_table_column(&t, "part of the rise, %", "part", REPORT_PERCENT, false);
  report_table_column(&t, "the base's rise on its experts", "converse", REPORT_SIGNED, true);
  report_table_column(&t, "OOD", "ood", REPORT_PERCENT, true);
  report_table_column(&t, "OOD on the base's experts", "forced_ood", REPORT_PERCENT, true);
  for (uint32_t c = 0; c < s->condition_count; c++) {
    if (!report_knows(view, c, KEDGE_MEASURE_REGAINED)) continue;
    const kedge_estimate *e[sizeof measures / sizeof *measures];
    for (size_t m = 0; m < sizeof measures / sizeof *measures; m++)
      e[m] = kedge_view_mean(view, c, measures[m]);
    report_table_text(&t, "%s", s->conditions[c].label);
    report_estimate(&t, e[0], false), report_estimate(&t, e[1], false);
    report_table_number(&t, e[0]->wide_low > 0 ? e[1]->mean / e[0]->mean : NAN);
    for (size_t m = 2; m < sizeof measures / sizeof *measures; m++) report_estimate(&t, e[m], false);
  }
  report_table_end(&page->doc, &t);
}

/* Mean over a view's cells of a condition, and over the other domains, of the NLL with rank r's expert from
 * the base less the NLL as it is. */
static double rank_change(const report_page *page, const kedge_view *view, uint32_t condition,
                          uint32_t rank) {
  const kedge_study *s = page->study;
  double sum = 0;
  uint32_t count = 0;
  for (uint32_t i = 0; i < s->cell_count; i++) {
    const kedge_study_cell *cell = &s->cells[i];
    if (cell->condition != condition || cell->size != view->size || cell->arm != view->arm) continue;
    const uint32_t own = kedge_study_domain_of(s, s->shifts.at[cell->shift]);
    for (uint32_t d = 0; d < s->domains.count; d++) {
      const kedge_study_score *score = kedge_study_score_of(cell, kedge_study_domain_key(s, d));
      if (d == own || !score || rank >= score->ranks) continue;
      const double as_is = isnan(score->own_nll) ? score->nll : score->own_nll;
      const double change = score->rank_nll[rank] - as_is;
      if (!isnan(change)) sum += change, count++;
    }
  }
  return count ? sum / count : NAN;
}

static void add_ranks(report_page *page, const kedge_view *view) {
  const kedge_study *s = page->study;
  uint32_t ranks = 0;
  char titles[KEDGE_STUDY_RANKS][24];
  report_table t;
  for (uint32_t i = 0; i < s->cell_count; i++)
    for (uint32_t k = 0; k < s->cells[i].score_count; k++)
      if (s->cells[i].size == view->size && s->cells[i].scores[k].ranks > ranks)
        ranks = s->cells[i].scores[k].ranks;
  if (!ranks) return;
  report_note(&page->doc, "Change of NLL, OOD, when the expert of one rank alone is the base's:");
  report_table_begin(&t, NULL);
  report_table_column(&t, "Condition", "condition", REPORT_TEXT, false);
  for (uint32_t r = 0; r < ranks; r++) {
    snprintf(titles[r], sizeof titles[r], "rank %u", r + 1);
    report_table_column(&t, titles[r], "rank", REPORT_SIGNED, false);
  }
  for (uint32_t c = 0; c < s->condition_count; c++) {
    if (isnan(rank_change(page, view, c, 0))) continue;
    report_table_text(&t, "%s", s->conditions[c].label);
    for (uint32_t r = 0; r < ranks; r++) report_table_number(&t, rank_change(page, view, c, r));
  }
  report_table_end(&page->doc, &t);
}

static void add_selection(report_page *page, const kedge_view *view) {
  add_forced(page, view);
  add_ranks(page, view);
}

/* ---- Communities, use, losses
 * ------------------------------------------------------------------------------------ */

static void add_communities(report_page *page, const kedge_view *view) {
  static const kedge_measure measures[] = {KEDGE_MEASURE_NMI10,     KEDGE_MEASURE_CEILING10,
                                           KEDGE_MEASURE_FLOOR10,   KEDGE_MEASURE_NMI20,
                                           KEDGE_MEASURE_CEILING20, KEDGE_MEASURE_FLOOR20};
  report_plot_communities(page, view);
  add_means(page, view, measures, sizeof measures / sizeof *measures, false);
}

static void add_use(report_page *page, const kedge_view *view) {
  static const kedge_measure measures[] = {KEDGE_MEASURE_EFFECTIVE};
  report_plot_use(page, view);
  add_means(page, view, measures, 1, true);
}

static void add_losses(report_page *page, const kedge_view *view) {
  static const kedge_measure measures[] = {KEDGE_MEASURE_LOSS};
  report_plot_losses(page, view);
  add_means(page, view, measures, 1, false);
}

static void each_view(report_page *page, void (*add)(report_page *, const kedge_view *)) {
  report_view_text name;
  if (!page->analysis->view_count) report_note(&page->doc, "No cell has this yet.");
  for (uint32_t v = 0; v < page->analysis->view_count; v++) {
    const kedge_view *view = &page->analysis->views[v];
    if (view->shift != KEDGE_STUDY_NONE) continue;
    report_heading(&page->doc, report_view_name(page, view, name));
    add(page, view);
  }
}

void report_routing_sections(report_page *page) {
  report_doc *doc = &page->doc;
  report_section(doc, "mismatch", "Evaluated with the training bias");
  report_say(doc,
             "RPB trains with a bias on the router that is absent afterwards. Evaluated once with it, in "
             "percent and points:");
  each_view(page, add_mismatch);
  report_section(doc, "retention", "Routing kept, and performance");
  report_say(
      doc,
      "Overlaps are the share of the base's choices that post-training kept, on the same tokens; 1 is "
      "all. TVD and JSD: total variation and Jensen-Shannon divergence (nats) between how often the base and "
      "the post-trained model use each expert; 0 is the same. Effective experts: exp(entropy of use) / "
      "number of experts; 1 is even use.");
  each_view(page, add_retention);
  report_section(doc, "selection", "How much is due to selection");
  report_say(
      doc,
      "The post-trained model run on the experts that the base chooses, gates from its own logits. If "
      "forgetting were drift of selection, the NLL of the other domains would fall back to the base's. "
      "The part is told where both intervals of the rise, the bootstrap's and Student's, are above 0. The "
      "other way round, the base run on the experts of the post-trained model rises by what drift of "
      "selection does alone. All of this is on the fewer rows whose routing is measured, and an answer "
      "counts "
      "as right here if each of its tokens is the likeliest, choices too: OOD is not that of the tables "
      "above.");
  each_view(page, add_selection);
  report_section(doc, "communities", "Communities of experts");
  report_say(
      doc,
      "NMI (normalised mutual information, 1 is the same) between the communities of experts of base and "
      "post-trained model. Communities are of a graph that links the share rho of the pairs of experts, "
      "those most often chosen together. The ceiling is what two halves of the "
      "base's own tokens give, the floor what chance gives.");
  each_view(page, add_communities);
  report_section(doc, "use", "Use of experts");
  report_say(
      doc,
      "Of the first base and seed: the base, SFT, and the conditions of the primary contrasts. A block is a "
      "layer, a row in it a domain in the order of the table of bases, the first one on top; 1 is even use.");
  each_view(page, add_use);
  report_section(doc, "losses", "Training losses");
  report_say(
      doc, "Means over bases and seeds, in nats a token. What a condition adds to the loss is part of it, so "
           "that levels of different conditions do not compare.");
  each_view(page, add_losses);
}
