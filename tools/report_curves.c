/* SPDX-License-Identifier: Apache-2.0
 * Heat maps of the use of experts and curves of losses (report_page.h, report_plots.h). */
#include "tools/report_plots.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Use of experts
 * ---------------------------------------------------------------------------------------------- */

/* Cells that a heat map may have in all: each is a shape of its own, about 100 bytes. */
enum { PANELS = 4, MOST_CELLS = 40000 };

typedef struct use_panels {
  const kedge_study_cell *cells[PANELS];
  uint32_t count, layers, experts, domains;
  double most; /* relative to even use */
} use_panels;

static const kedge_study_score *use_of(const kedge_study *s, const kedge_study_cell *cell, uint32_t domain) {
  const kedge_study_score *score = kedge_study_score_of(cell, kedge_study_domain_key(s, domain));
  return score && score->use ? score : NULL;
}

/* Adds a cell whose shape is that of the others. */
static void add_panel(const kedge_study *s, use_panels *u, const kedge_study_cell *cell) {
  uint32_t domains = 0;
  if (!cell || u->count == PANELS) return;
  for (uint32_t d = 0; d < s->domains.count; d++) {
    const kedge_study_score *score = use_of(s, cell, d);
    if (!score) continue;
    if (!u->layers) u->layers = score->layers, u->experts = score->experts;
    if (u->layers != score->layers || u->experts != score->experts) return;
    domains++;
  }
  if (domains) u->cells[u->count++] = cell;
}

/* The base that has the lowest number among the view's cells, and what SFT and the primary conditions made of
 * it with the lowest seed on the first split. */
static void find_panels(const report_page *page, const kedge_view *view, use_panels *u) {
  const kedge_study *s = page->study;
  const kedge_study_cell *sft = NULL;
  for (uint32_t i = 0; i < s->cell_count && !sft; i++) {
    const kedge_study_cell *cell = &s->cells[i];
    const bool here = cell->size == view->size && cell->arm == view->arm;
    if (here && cell->condition == page->analysis->sft) sft = cell;
  }
  if (!sft || page->analysis->sft == KEDGE_STUDY_NONE) return;
  add_panel(s, u, kedge_study_base(s, sft->size, sft->base));
  add_panel(s, u, sft);
  for (uint32_t i = 0; i < s->primary_count; i++) {
    kedge_study_cell like = *sft;
    like.condition = s->primary[i][0];
    add_panel(s, u, kedge_study_find(s, &like));
  }
  u->domains = s->domains.count;
}

static void add_map(const kedge_study *s, use_panels *u, uint32_t panel, plot *p) {
  plot_add(p, "$u%u << EOD\n", panel);
  for (uint32_t l = 0; l < u->layers; l++)
    for (uint32_t d = 0; d < u->domains; d++) {
      const kedge_study_score *score = use_of(s, u->cells[panel], d);
      for (uint32_t e = 0; e < u->experts; e++) {
        const double use = score ? (double)score->use[(size_t)l * u->experts + e] * u->experts : NAN;
        if (use > u->most) u->most = use;
        plot_add(p, "%.4g ", use);
      }
      plot_add(p, "\n");
    }
  plot_add(p, "EOD\n");
}

static void draw_map(const report_page *page, const use_panels *u, uint32_t panel, plot *p) {
  const kedge_study_cell *cell = u->cells[panel];
  const double rows = (double)u->layers * u->domains;
  report_label text;
  plot_add(p, "set title ");
  plot_quoted(p, cell->condition == KEDGE_STUDY_NONE
                     ? "base"
                     : report_plot_label(page->study->conditions[cell->condition].label, text));
  plot_add(p, " tc rgb \"" REPORT_GREY "\" offset 0,-0.7\nunset arrow\n");
  for (uint32_t l = 1; l < u->layers; l++)
    plot_add(p, "set arrow from -0.5,%g to %g,%g nohead front lc rgb \"#ffffff\" lw 2\n",
             (double)l * u->domains - 0.5, u->experts - 0.5, (double)l * u->domains - 0.5);
  plot_add(p, "plot [-0.5:%g] [%g:-0.5] $u%u matrix with image pixels notitle\n", u->experts - 0.5,
           rows - 0.5, panel);
}

void report_plot_use(report_page *page, const kedge_view *view) {
  use_panels u = {0};
  plot p;
  report_view_text file;
  find_panels(page, view, &u);
  if (!u.count || (double)u.count * u.layers * u.domains * u.experts > MOST_CELLS) return;
  char *name = kedge_format("use-%s", report_view_file(page, view, file));
  const unsigned rows = u.layers * u.domains, height = 62 + (8 * rows < 300 ? 8 * rows : 300);
  if (name && report_plot_begin(page, &p, name, 24 + u.count * height)) {
    for (uint32_t i = 0; i < u.count; i++) add_map(page->study, &u, i, &p);
    plot_add(&p,
             "unset grid\nunset key\nset palette defined (0 \"#00204d\", 1 \"#31446b\", 2 \"#666970\", 3 "
             "\"#958f78\", "
             "4 \"#cbba69\", 5 \"#ffea46\")\nset cbrange [0:%g]\nset lmargin 7\nset rmargin 9\nset tmargin "
             "2\nset bmargin 2.6\nset cbtics %g tc rgb \"" REPORT_GREY "\"\nset ytics (",
             u.most > 0 ? u.most : 1, u.most > 3 ? ceil(u.most / 4) : 1);
    for (uint32_t l = 0; l < u.layers; l += 1 + u.layers / 12)
      plot_add(&p, "%s\"%u\" %g", l ? ", " : "", l, (l + 0.5) * u.domains - 0.5);
    plot_add(&p, ")\n");
    report_plot_axis(&p, 'y', "MoE layer");
    plot_add(&p, "set cblabel \"times even use\" tc rgb \"" REPORT_GREY "\"\nset multiplot layout %u,1\n",
             u.count);
    for (uint32_t i = 0; i < u.count; i++) {
      if (i + 1 == u.count) report_plot_axis(&p, 'x', "expert (number)");
      draw_map(page, &u, i, &p);
    }
    plot_add(&p, "unset multiplot\n");
    report_figures_begin(&page->doc);
    report_plot_end(page, &p, name, "Use of experts, relative to even use, before and after post-training.");
    report_figures_end(&page->doc);
  }
  kedge_free(name);
}

/* ---- Losses
 * ------------------------------------------------------------------------------------------------------ */

enum { MOST_CURVES = 12, MOST_POINTS = 300 };

/* The first curve of a condition in a view; its steps are the mean's. */
static const kedge_study_cell *curve_of(const kedge_study *s, const kedge_view *view, uint32_t condition) {
  for (uint32_t i = 0; i < s->cell_count; i++) {
    const kedge_study_cell *c = &s->cells[i];
    if (c->condition == condition && c->size == view->size && c->arm == view->arm && c->curve_count) return c;
  }
  return NULL;
}

/* Mean over the cells whose curves have as many points. */
static double mean_loss(const kedge_study *s, const kedge_study_cell *first, uint32_t at) {
  double sum = 0;
  uint32_t count = 0;
  for (uint32_t i = 0; i < s->cell_count; i++) {
    const kedge_study_cell *c = &s->cells[i];
    if (c->condition != first->condition || c->size != first->size || c->arm != first->arm) continue;
    if (c->curve_count != first->curve_count || isnan(c->curve_loss[at])) continue;
    sum += c->curve_loss[at], count++;
  }
  return count ? sum / count : NAN;
}

static void add_curve(const kedge_study *s, const kedge_study_cell *first, uint32_t number, plot *p) {
  plot_add(p, "$l%u << EOD\n", number);
  const uint32_t stride = 1 + (first->curve_count - 1) / MOST_POINTS;
  for (uint32_t i = 0; i < first->curve_count; i += stride)
    plot_add(p, "%.8g %.6g\n", first->curve_step[i], mean_loss(s, first, i));
  plot_add(p, "EOD\n");
}

void report_plot_losses(report_page *page, const kedge_view *view) {
  const kedge_study *s = page->study;
  const kedge_study_cell *firsts[MOST_CURVES];
  uint32_t count = 0;
  plot p;
  report_label text;
  report_view_text file;
  for (uint32_t c = 0; c < s->condition_count && count < MOST_CURVES; c++) {
    firsts[count] = curve_of(s, view, c);
    count += firsts[count] != NULL;
  }
  char *name = kedge_format("losses-%s", report_view_file(page, view, file));
  if (count && name && report_plot_begin(page, &p, name, 270 + 18 * ((count + 1) / 2))) {
    for (uint32_t i = 0; i < count; i++) add_curve(s, firsts[i], i, &p);
    report_plot_axis(&p, 'x', "step"), report_plot_axis(&p, 'y', "training loss, nats a token");
    plot_add(&p, "plot ");
    for (uint32_t i = 0; i < count; i++) {
      plot_add(&p, "%s$l%u using 1:2 with lines lw 1.5 dt %u lc rgb \"%s\" title ", i ? ", " : "", i,
               1 + i / REPORT_COLOURS, report_colours[i % REPORT_COLOURS]);
      plot_quoted(&p, report_plot_label(s->conditions[firsts[i]->condition].label, text));
    }
    report_figures_begin(&page->doc);
    report_plot_end(page, &p, name, "Training loss: mean over bases, seeds and splits.");
    report_figures_end(&page->doc);
  }
  kedge_free(name);
}
