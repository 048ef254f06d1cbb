/* SPDX-License-Identifier: Apache-2.0
 *
 * Pictures of a probe through gnuplot: each is an SVG and, beside it, the script that draws it. probe_plots.c
 * draws a probe, plot.c runs gnuplot, probe_runs.c draws a table of runs. */
#ifndef KEDGE_TOOLS_PROBE_PLOTS_H
#define KEDGE_TOOLS_PROBE_PLOTS_H

#include "models/retention/probe.h"

/* ERR_UNSUPPORTED, in one line, where there is no gnuplot. */
kedge_status probe_plot_check(void);

/* Draws into a folder that is made: utilisation-<domain>-<side>.svg, coactivation-<domain>-<side>.svg by
 * community, communities-<domain>.svg (NMI against rho). */
kedge_status probe_plot(const kedge_probe *probe, const char *folder);

/* Reads a CSV file of runs, columns name, performance, then measures, and draws performance against each
 * measure: retention-performance.svg. ERR_FORMAT names file and line. */
kedge_status probe_plot_runs(const char *path, const char *folder);

/* ---- Between the files: a script in the making (plot.c)
 * ----------------------------------------------------------------- */

typedef struct plot {
  kedge_status status; /* the first failure; later calls do nothing */
  char *svg, *script_path;
  char *text;
  size_t length, capacity;
} plot;

/* Begins <folder>/<name>.svg without a line of script; `name`'s odd characters become "_". plot_begin() also
 * sets terminal, size in points, output and frame. */
void plot_open(plot *p, const char *folder, const char *name);
void plot_begin(plot *p, const char *folder, const char *name, unsigned width, unsigned height);
void plot_add(plot *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A text in quotes for a command; one in a line of data, where quotes become apostrophes. */
void plot_quoted(plot *p, const char *text);
void plot_cell(plot *p, const char *text);
/* Writes the script, runs gnuplot, frees. */
kedge_status plot_end(plot *p);

#endif
