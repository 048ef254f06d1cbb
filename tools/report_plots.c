/* SPDX-License-Identifier: Apache-2.0
 * The figures of a report whose points are conditions or strengths (report_page.h, report_plots.h). */
#include "tools/report_plots.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const report_colours[REPORT_COLOURS] = {"#0072b2", "#e69f00", "#009e73",
                                                    "#cc79a7", "#56b4e9", "#d55e00"};

enum { ROW = 22 }; /* height of a condition */

bool report_plot_begin(report_page *page, plot *p, const char *name, unsigned height) {
  if (page->doc.status != KEDGE_OK || !page->doc.plots) return false;
  char *folder = kedge_format("%s/plots", page->doc.folder);
  if (!folder) {
    page->doc.status = KEDGE_ERR_MEMORY;
    return false;
  }
  plot_open(p, folder, name);
  kedge_free(folder);
  plot_add(p, "set encoding utf8\nset terminal svg size %u,%u noenhanced font \"sans-serif,13\"\nset output ",
           REPORT_WIDTH, height);
  if (p->svg) plot_quoted(p, p->svg);
  plot_add(p, "\nset border 3 lc rgb \"" REPORT_GREY "\"\nset tics nomirror tc rgb \"" REPORT_GREY
              "\"\nset key below Left reverse samplen 2 maxcols 2 height 0.8 "
              "tc rgb \"" REPORT_GREY "\"\nset grid lc rgb \"" REPORT_GREY
              "\" lw 0.4 dt 3\nset datafile missing \"nan\"\n");
  return true;
}

void report_plot_axis(plot *p, char which, const char *title) {
  plot_add(p, "set %clabel ", which);
  plot_quoted(p, title);
  plot_add(p, which == 'x' ? " offset 0,0.3" : "");
  plot_add(p, " tc rgb \"" REPORT_GREY "\"\n");
}

void report_plot_ticks(plot *p, double low, double high) {
  enum { TICKS = 6 };
  if (!(high > low)) return;
  double step = pow(10, floor(log10((high - low) / TICKS)));
  while ((high - low) / step > TICKS) step *= (high - low) / step > 2.5 * TICKS ? 5 : 2;
  plot_add(p, "set xtics %.6g\n", step);
}

void report_plot_end(report_page *page, plot *p, const char *name, const char *caption) {
  const kedge_status status = plot_end(p);
  if (page->doc.status == KEDGE_OK) page->doc.status = status;
  report_figure(&page->doc, name, caption);
}

/* The beginning of a label, whole characters. */
const char *report_plot_label(const char *label, report_label text) {
  size_t length = strlen(label);
  if (length > REPORT_LABEL) {
    length = REPORT_LABEL;
    while (length && ((unsigned char)label[length] & 0xc0) == 0x80) length--;
  }
  snprintf(text, sizeof(report_label), "%.*s%s", (int)length, label, label[length] ? ".." : "");
  return text;
}

/* ---- Rows of conditions
 * ------------------------------------------------------------------------------------------ */

/* A series of points with their intervals, one row a condition. */
typedef struct series {
  const char *title;
  kedge_measure measure;
  unsigned point;
} series;

typedef const kedge_estimate *(*estimate_of)(const kedge_view *, uint32_t, kedge_measure);

static const kedge_estimate *contrast_of(const kedge_view *view, uint32_t condition, kedge_measure measure) {
  return &kedge_view_contrast(view, condition, measure)->e;
}

typedef struct rows_plot {
  const char *name, *x, *caption;
  estimate_of get;
  series series[3];
  uint32_t count, conditions; /* series; of the study */
  bool base;                  /* its row comes first */
  double scale;
  bool zero; /* a line at 0 */
} rows_plot;

/* The condition of a row: the base, whose number is the last, or the conditions in their order. */
static uint32_t row_condition(const rows_plot *r, uint32_t i) {
  return !r->base ? i : i ? i - 1 : r->conditions;
}

static bool row_known(const kedge_view *view, const rows_plot *r, uint32_t condition) {
  for (uint32_t s = 0; s < r->count; s++)
    if (r->get(view, condition, r->series[s].measure)->values) return true;
  return false;
}

static void add_row_labels(const report_page *page, const kedge_view *view, const rows_plot *r, plot *p) {
  report_label text;
  uint32_t row = 0;
  plot_add(p, "set ytics (");
  for (uint32_t i = 0; i < r->conditions + r->base; i++) {
    const uint32_t c = row_condition(r, i);
    if (!row_known(view, r, c)) continue;
    plot_add(p, row ? ", " : "");
    plot_quoted(p, report_plot_label(
                       c < page->study->condition_count ? page->study->conditions[c].label : "base", text));
    plot_add(p, " %u", row++);
  }
  plot_add(p, ")\nset yrange [%u.6:-0.6]\n", row - 1);
}

static void add_rows(const kedge_view *view, const rows_plot *r, plot *p) {
  double low = INFINITY, high = -INFINITY;
  for (uint32_t s = 0; s < r->count; s++) {
    uint32_t row = 0;
    plot_add(p, "$s%u << EOD\n", s);
    for (uint32_t i = 0; i < r->conditions + r->base; i++) {
      const uint32_t c = row_condition(r, i);
      if (!row_known(view, r, c)) continue;
      const kedge_estimate *e = r->get(view, c, r->series[s].measure);
      if (e->values) {
        /* One value has no interval. */
        const double first = fmin(e->mean, e->low) * r->scale, last = fmax(e->mean, e->high) * r->scale;
        plot_add(p, "%.6g %.6g %.6g %.2f\n", r->scale * e->mean, first, last,
                 row + 0.24 * (s - (r->count - 1) / 2.0));
        low = fmin(low, first), high = fmax(high, last);
      }
      row++;
    }
    plot_add(p, "nan nan nan nan\nEOD\n");
  }
  report_plot_ticks(p, low, high);
}

static void draw_rows(report_page *page, const kedge_view *view, const rows_plot *r) {
  plot p;
  uint32_t rows = 0;
  report_view_text file;
  for (uint32_t i = 0; i < r->conditions + r->base; i++) rows += row_known(view, r, row_condition(r, i));
  if (!rows) return;
  char *name = kedge_format("%s-%s", r->name, report_view_file(page, view, file));
  if (name && report_plot_begin(page, &p, name, 110 + ROW * rows)) {
    add_rows(view, r, &p);
    add_row_labels(page, view, r, &p);
    report_plot_axis(&p, 'x', r->x);
    plot_add(&p, "set offsets graph 0.04, graph 0.04, 0, 0\nset xrange [*:*] noextend\n");
    if (r->zero)
      plot_add(&p, "set arrow from 0,graph 0 to 0,graph 1 nohead lc rgb \"" REPORT_GREY "\" lw 1.2\n");
    plot_add(&p, "plot ");
    for (uint32_t s = 0; s < r->count; s++) {
      plot_add(&p, "%s$s%u using 1:4:2:3 with xerrorbars pt %u ps 0.6 lw 1.5 lc rgb \"%s\" title ",
               s ? ", " : "", s, r->series[s].point, report_colours[s]);
      plot_quoted(&p, r->series[s].title);
    }
    report_figures_begin(&page->doc);
    report_plot_end(page, &p, name, r->caption);
    report_figures_end(&page->doc);
  }
  kedge_free(name);
}

void report_plot_accuracy(report_page *page, const kedge_view *view) {
  const rows_plot r = {.name = "accuracy",
                       .x = "accuracy, %",
                       .caption = "Accuracy by condition, with 95 % intervals over bases and seeds.",
                       .get = kedge_view_mean,
                       .series = {{"ID", KEDGE_MEASURE_ID, 7},
                                  {"OOD", KEDGE_MEASURE_OOD, 5},
                                  {"near-OOD", KEDGE_MEASURE_NEAR, 9}},
                       .count = 3,
                       .conditions = page->study->condition_count,
                       .base = true,
                       .scale = 100};
  draw_rows(page, view, &r);
}

void report_plot_contrasts(report_page *page, const kedge_view *view) {
  const rows_plot r = {.name = "contrasts",
                       .x = "difference from SFT, points of percent",
                       .caption = "Condition less SFT, paired, with 95 % intervals.",
                       .get = contrast_of,
                       .series = {{"ID", KEDGE_MEASURE_ID, 7}, {"OOD", KEDGE_MEASURE_OOD, 5}},
                       .count = 2,
                       .conditions = page->study->condition_count,
                       .scale = 100,
                       .zero = true};
  draw_rows(page, view, &r);
}

void report_plot_communities(report_page *page, const kedge_view *view) {
  const rows_plot r = {.name = "communities",
                       .x = "NMI with the base's communities, rho .10 (no unit)",
                       .caption =
                           "Communities kept, between the floor that chance gives and the ceiling of two "
                           "halves of the base's tokens.",
                       .get = kedge_view_mean,
                       .series = {{"kept", KEDGE_MEASURE_NMI10, 7},
                                  {"ceiling", KEDGE_MEASURE_CEILING10, 5},
                                  {"floor", KEDGE_MEASURE_FLOOR10, 9}},
                       .count = 3,
                       .conditions = page->study->condition_count,
                       .scale = 1};
  draw_rows(page, view, &r);
}

/* ---- Scatter and strengths
 * --------------------------------------------------------------------------------------- */

/* Bars of the block $<letter><number>, columns x, y, low, high. Points are drawn apart from them: gnuplot
 * puts white behind those of bars. */
static void add_bars(plot *p, bool first, char letter, uint32_t number, const char *colour) {
  plot_add(p, "%s$%c%u using 1:3:(0):($4-$3) with vectors nohead lw 1 lc rgb \"%s\" notitle",
           first ? "plot " : ", \\\n  ", letter, number, colour);
}

static bool scatter_knows(const kedge_view *view, uint32_t condition, kedge_measure measure) {
  return report_knows(view, condition, measure) && report_knows(view, condition, KEDGE_MEASURE_OOD);
}

static void add_scatter(const kedge_view *view, kedge_measure measure, uint32_t conditions, plot *p) {
  double low = INFINITY, high = -INFINITY;
  for (uint32_t c = 0; c < conditions; c++) {
    const kedge_estimate *x = kedge_view_mean(view, c, measure);
    const kedge_estimate *y = kedge_view_mean(view, c, KEDGE_MEASURE_OOD);
    if (!scatter_knows(view, c, measure)) continue;
    low = fmin(low, x->mean), high = fmax(high, x->mean);
    plot_add(p, "$c%u << EOD\n%.6g %.6g %.6g %.6g\nEOD\n", c, x->mean, 100 * y->mean, 100 * y->low,
             100 * y->high);
  }
  report_plot_ticks(p, low, high);
}

void report_plot_scatter(report_page *page, const kedge_view *view, kedge_measure measure) {
  static const unsigned points[] = {7, 5, 9, 11, 13};
  const kedge_study *s = page->study;
  const kedge_measure_row *row = kedge_measure_get(measure);
  uint32_t known = 0;
  report_label text;
  plot p;
  report_view_text file;
  for (uint32_t c = 0; c < s->condition_count; c++) known += scatter_knows(view, c, measure);
  if (!known) return;
  char *name = kedge_format("%s-%s", row->key, report_view_file(page, view, file)),
       *title = kedge_format("%s with the base (share)", row->title),
       *caption = kedge_format("Performance on the other domains against %s: means of conditions, with 95 %% "
                               "intervals of OOD.",
                               row->title);
  if (name && title && caption && report_plot_begin(page, &p, name, 290 + 18 * ((known + 1) / 2))) {
    report_plot_axis(&p, 'x', title), report_plot_axis(&p, 'y', "OOD accuracy, %");
    plot_add(&p, "set offsets graph 0.05, graph 0.05, graph 0.05, graph 0.05\n");
    add_scatter(view, measure, s->condition_count, &p);
    for (uint32_t c = 0, at = 0; c < s->condition_count; c++) {
      if (!scatter_knows(view, c, measure)) continue;
      const char *colour = report_colours[at % REPORT_COLOURS];
      add_bars(&p, at == 0, 'c', c, colour);
      plot_add(&p, ", $c%u using 1:2 with points pt %u ps 0.8 lc rgb \"%s\" title ", c,
               points[at / REPORT_COLOURS % (sizeof points / sizeof *points)], colour);
      plot_quoted(&p, report_plot_label(s->conditions[c].label, text));
      at++;
    }
    report_plot_end(page, &p, name, caption);
  }
  kedge_free(name);
  kedge_free(title);
  kedge_free(caption);
}

static void add_sweep_points(plot *p, const kedge_view *view, const report_sweep *sweep) {
  static const kedge_measure measures[] = {KEDGE_MEASURE_ID, KEDGE_MEASURE_OOD};
  for (uint32_t m = 0; m < 2; m++) {
    plot_add(p, "$s%u << EOD\n%g 0 0 0\n", m, m ? 0.06 : -0.06);
    for (uint32_t i = 0; i < sweep->count; i++) {
      const kedge_estimate *e = &kedge_view_contrast(view, sweep->conditions[i], measures[m])->e;
      if (e->values)
        plot_add(p, "%g %.6g %.6g %.6g\n", i + 1 + (m ? 0.06 : -0.06), 100 * e->mean,
                 100 * fmin(e->mean, e->low), 100 * fmax(e->mean, e->high));
    }
    plot_add(p, "EOD\n");
  }
}

void report_plot_sweep(report_page *page, const kedge_view *view, const report_sweep *sweep) {
  plot p;
  report_view_text file;
  bool known = false;
  for (uint32_t i = 0; i < sweep->count; i++)
    known = known || kedge_view_contrast(view, sweep->conditions[i], KEDGE_MEASURE_OOD)->e.values;
  if (!known) return;
  char *name = kedge_format("strength-%u-%s", sweep->conditions[0], report_view_file(page, view, file)),
       *title = kedge_format("strength of %s (no unit); 0 is SFT", sweep->name),
       *caption = kedge_format("%s: difference from SFT by strength, with 95 %% intervals.", sweep->name);
  if (name && title && caption && report_plot_begin(page, &p, name, 280)) {
    report_plot_axis(&p, 'x', title), report_plot_axis(&p, 'y', "difference from SFT, points");
    add_sweep_points(&p, view, sweep);
    plot_add(&p, "set xtics (\"0\" 0");
    for (uint32_t i = 0; i < sweep->count; i++) plot_add(&p, ", \"%g\" %u", sweep->strengths[i], i + 1);
    plot_add(&p, ")\nset xrange [-0.4:%u.4]\nset xzeroaxis lt 1 lc rgb \"" REPORT_GREY "\"\n", sweep->count);
    for (uint32_t m = 0; m < 2; m++) {
      add_bars(&p, m == 0, 's', m, report_colours[m]);
      plot_add(&p, ", $s%u using 1:2 with linespoints pt %u ps 0.7 lw 1.5 dt %u lc rgb \"%s\" title \"%s\"",
               m, m ? 5 : 7, m + 1, report_colours[m], m ? "OOD" : "ID");
    }
    report_figures_begin(&page->doc);
    report_plot_end(page, &p, name, caption);
    report_figures_end(&page->doc);
  }
  kedge_free(name);
  kedge_free(title);
  kedge_free(caption);
}
