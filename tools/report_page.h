/* SPDX-License-Identifier: Apache-2.0
 *
 * What stands in the report of a study: report_page.c has what was run, abilities and verdicts,
 * report_routing.c what became of routing, report_csv.c the CSV tables, report_plots.h the figures. report.c
 * is the command, report_doc.h how it is written.
 */
#ifndef KEDGE_TOOLS_REPORT_PAGE_H
#define KEDGE_TOOLS_REPORT_PAGE_H

#include "models/report/contrast.h"
#include "tools/report_doc.h"

typedef struct report_page {
  report_doc doc;
  const kedge_study *study;
  const kedge_analysis *analysis;
} report_page;

/* Writes into an existing folder with sub-folders tables and plots; without `plots` a line tells why there
 * are none. */
kedge_status report_write(const kedge_analysis *analysis, const char *folder, bool plots);

/* ---- Between the files
 * ------------------------------------------------------------------------------------------------ */

/* "E16K2, short" of a view over all splits, "E16K2, short, arithS" of one; the arm only where there are
 * several. */
typedef char report_view_text[300];
const char *report_view_name(const report_page *page, const kedge_view *view, report_view_text text);
/* A view's name as part of a file's name. */
const char *report_view_file(const report_page *page, const kedge_view *view, report_view_text text);
/* Whether a view has any cell of the condition that knows the measure. */
bool report_knows(const kedge_view *view, uint32_t condition, kedge_measure measure);
/* Puts an estimate with its interval into the next cell; marked: bold. */
void report_estimate(report_table *table, const kedge_estimate *estimate, bool marked);

/* A family of conditions that differ in strength, from weak to strong: names alike up to the last "_". */
enum { REPORT_STRENGTHS = 16 };
typedef struct report_sweep {
  char name[100];
  uint32_t conditions[REPORT_STRENGTHS];
  double strengths[REPORT_STRENGTHS];
  uint32_t count;
} report_sweep;
/* The next family with at least two strengths from condition *from on; false at the end. */
bool report_sweep_next(const kedge_study *study, uint32_t *from, report_sweep *sweep);

void report_routing_sections(report_page *page);
void report_csv(report_page *page);

/* Figures; each writes plots/<name>.svg and puts it on the page. Nothing is drawn where nothing is known. */
void report_plot_accuracy(report_page *page, const kedge_view *view);
void report_plot_contrasts(report_page *page, const kedge_view *view);
void report_plot_scatter(report_page *page, const kedge_view *view, kedge_measure measure);
void report_plot_sweep(report_page *page, const kedge_view *view, const report_sweep *sweep);
void report_plot_communities(report_page *page, const kedge_view *view);
void report_plot_use(report_page *page, const kedge_view *view);
void report_plot_losses(report_page *page, const kedge_view *view);

#endif
