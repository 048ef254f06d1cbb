/* SPDX-License-Identifier: Apache-2.0
 *
 * Drawing the figures of a report by gnuplot (probe_plots.h): report_plots.c has those of conditions,
 * report_curves.c heat maps and curves. Figures are as wide as a telephone, so that letters are still letters
 * there, and grow with the page; the ground is transparent, and what is not data is a grey that shows on
 * light and on dark.
 */
#ifndef KEDGE_TOOLS_REPORT_PLOTS_H
#define KEDGE_TOOLS_REPORT_PLOTS_H

#include "tools/probe_plots.h"
#include "tools/report_page.h"

#define REPORT_GREY "#777777"
enum { REPORT_WIDTH = 400, REPORT_LABEL = 24, REPORT_COLOURS = 6 };

/* Okabe and Ito's, without the two that vanish on white or on black. */
extern const char *const report_colours[REPORT_COLOURS];

/* Begins plots/<name>.svg of that height; false, with nothing to end, where no figures are drawn. */
bool report_plot_begin(report_page *page, plot *p, const char *name, unsigned height);
void report_plot_axis(plot *p, char which, const char *title);
/* Ticks of the x axis for values from `low` to `high`, few enough to stand beside each other. */
void report_plot_ticks(plot *p, double low, double high);
/* Draws it and puts it on the page. */
void report_plot_end(report_page *page, plot *p, const char *name, const char *caption);

/* The beginning of a label, whole characters. */
typedef char report_label[REPORT_LABEL + 4];
const char *report_plot_label(const char *label, report_label text);

#endif
