/* SPDX-License-Identifier: Apache-2.0
 * Pictures of a probe (probe_plots.h). Heat maps use a palette whose lightness rises evenly, lines use hues
 * that differ for every kind of colour vision, and different dashes. */
#include "tools/probe_plots.h"

#include "models/checkpoint/atomic.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char palette[] =
    "set palette defined (0 \"#00204d\", 1 \"#31446b\", 2 \"#666970\", 3 \"#958f78\", 4 \"#cbba69\", 5 "
    "\"#ffea46\")\n";

/* An image of few pixels is smoothed by whoever shows it, until no expert can be told from the next. Cells
 * are drawn one by one instead, about 100 bytes each, unless there are too many; then they are small. */
static const char *cells_style(uint64_t cells) {
  enum { MOST = 60000 };
  return cells <= MOST ? "image pixels" : "image";
}

static char *picture_name(const char *kind, const char *domain, const char *side) {
  return side ? kedge_format("%s-%s-%s", kind, domain, side) : kedge_format("%s-%s", kind, domain);
}

/* ---- Utilisation
 * -------------------------------------------------------------------------------------------------- */

static kedge_status plot_use(const kedge_use *u, const char *folder, const char *domain, const char *side) {
  plot p;
  char *name = picture_name("utilisation", domain, side);
  if (!name) return KEDGE_ERR_MEMORY;
  unsigned height = 160 + 14 * (u->layers < 60 ? u->layers : 60);
  plot_begin(&p, folder, name, 900, height);
  kedge_free(name);
  plot_add(&p, "$use << EOD\n");
  for (uint32_t l = 0; l < u->layers; l++) {
    for (uint32_t e = 0; e < u->experts; e++)
      plot_add(&p, "%.6g ", u->at[l].tokens ? u->share[(size_t)l * u->experts + e] * u->experts : NAN);
    plot_add(&p, "\n");
  }
  plot_add(&p, "EOD\n%sset title ", palette);
  char *title = kedge_format("Use of experts, %s, %s", domain, side);
  plot_quoted(&p, title ? title : "");
  kedge_free(title);
  plot_add(&p,
           "\nset xlabel \"expert\"\nset ylabel \"MoE layer\"\nset cblabel \"relative to even use\"\n"
           "set cbrange [0:*]\nset xrange [-0.5:%u.5]\nset yrange [%u.5:-0.5]\nset ytics (",
           u->experts - 1, u->layers - 1);
  for (uint32_t l = 0, step = 1 + u->layers / 30; l < u->layers; l += step)
    plot_add(&p, "%s\"%d\" %u", l ? ", " : "", u->at[l].layer, l);
  plot_add(&p, ")\nplot $use matrix with %s notitle\n", cells_style((uint64_t)u->layers * u->experts));
  return plot_end(&p);
}

/* ---- Co-activation
 * ------------------------------------------------------------------------------------------------ */

/* Experts by community, larger communities first, then by number; borders between communities of more than
 * one member go to `ends`. */
static uint32_t order_experts(const uint32_t *labels, uint32_t experts, uint32_t *order, uint32_t *ends) {
  uint32_t used = 0, borders = 0;
  for (uint32_t size = experts; size >= 1; size--)
    for (uint32_t c = 0; c < experts; c++) {
      uint32_t members = 0;
      for (uint32_t e = 0; e < experts; e++) members += labels[e] == c;
      if (members != size) continue;
      for (uint32_t e = 0; e < experts; e++)
        if (labels[e] == c) order[used++] = e;
      if (size > 1) ends[borders++] = used;
    }
  return borders;
}

/* One layer as a panel: pairs in the order of the communities, relative to the largest. */
static void add_matrix(plot *p, const kedge_coactivation *c, uint32_t panel, const uint32_t *order) {
  uint32_t largest = 1;
  for (uint64_t i = 0; i < kedge_pair_count(c->experts); i++)
    if (c->pairs[i] > largest) largest = c->pairs[i];
  plot_add(p, "$m%u << EOD\n", panel);
  for (uint32_t y = 0; y < c->experts; y++) {
    for (uint32_t x = 0; x < c->experts; x++) {
      const uint32_t i = order[x] < order[y] ? order[x] : order[y],
                     j = order[x] < order[y] ? order[y] : order[x];
      double share = i == j ? 0 : (double)c->pairs[kedge_pair_index(c->experts, i, j)] / largest;
      plot_add(p, "%.4g ", sqrt(share));
    }
    plot_add(p, "\n");
  }
  plot_add(p, "EOD\n");
}

static void add_panel(plot *p, uint32_t panel, int32_t layer, uint32_t experts, const uint32_t *ends,
                      uint32_t borders, const char *style) {
  plot_add(p, "set title \"layer %d\" offset 0,-0.6\nunset arrow\n", layer);
  uint32_t from = 0;
  for (uint32_t b = 0; b < borders; b++) {
    const double low = from - 0.5, high = ends[b] - 0.5;
    const double corners[5][2] = {{low, low}, {high, low}, {high, high}, {low, high}, {low, low}};
    for (int s = 0; s < 4; s++)
      plot_add(p, "set arrow from %g,%g to %g,%g nohead lw 1.2 lc rgb \"#ffffff\" front\n", corners[s][0],
               corners[s][1], corners[s + 1][0], corners[s + 1][1]);
    from = ends[b];
  }
  plot_add(p, "plot [-0.5:%u.5] [%u.5:-0.5] $m%u matrix with %s notitle\n", experts - 1, experts - 1, panel,
           style);
}

static kedge_status plot_pairs(const kedge_probe *probe, const kedge_probe_domain *d, bool post,
                               const char *folder) {
  const kedge_coactivation *pairs = post ? d->post_pairs : d->base_pairs;
  const kedge_community_report *r = &d->communities;
  const uint32_t *labels = post ? r->post_labels : r->base_labels;
  const char *side = post ? "post" : "base";
  const uint32_t layers = probe->layers, E = probe->experts, columns = layers < 6 ? layers : 6;
  uint32_t main_rho, *order, *ends;
  plot p;
  KEDGE_TRY(kedge_probe_main_rho(probe, &main_rho));
  char *name = picture_name("coactivation", d->name, side), *title;
  order = kedge_alloc(2 * (size_t)E, sizeof *order);
  if (!name || !order) {
    kedge_free(name);
    kedge_free(order);
    return KEDGE_ERR_MEMORY;
  }
  ends = order + E;
  const uint32_t rows = (layers + columns - 1) / columns;
  plot_begin(&p, folder, name, 100 + 190 * columns, 90 + 190 * rows);
  kedge_free(name);
  title = kedge_format(
      "Tokens that chose both experts, root of the share of the layer's largest; %s, %s; experts by "
      "community (rho %g)",
      d->name, side, r->rows[main_rho].rho);
  for (uint32_t l = 0; l < layers; l++) {
    order_experts(labels + ((size_t)l * r->rho_count + main_rho) * E, E, order, ends);
    add_matrix(&p, &pairs[l], l, order);
  }
  plot_add(&p,
           "%sset cbrange [0:1]\nunset colorbox\nunset key\nset xlabel \"expert\" offset 0,0.8\n"
           "set ylabel \"expert\" offset 1.5\nset format \"\"\nset size ratio 1\n"
           "set multiplot layout %u,%u title ",
           palette, rows, columns);
  plot_quoted(&p, title ? title : "");
  plot_add(&p, "\n");
  for (uint32_t l = 0; l < layers; l++) {
    uint32_t borders = order_experts(labels + ((size_t)l * r->rho_count + main_rho) * E, E, order, ends);
    add_panel(&p, l, probe->layer_numbers[l], E, ends, borders, cells_style((uint64_t)layers * E * E));
  }
  plot_add(&p, "unset multiplot\n");
  kedge_free(title);
  kedge_free(order);
  return plot_end(&p);
}

/* ---- NMI against rho
 * ---------------------------------------------------------------------------------------------- */

typedef struct line {
  const char *title, *colour;
  unsigned dash, point;
  bool bars; /* low and high are known */
} line;

/* The column `at` with its line, over bars from the two columns behind it. */
static void add_line(plot *p, uint32_t at, const line *l) {
  plot_add(p, at == 2 ? "plot " : ", \\\n  ");
  if (l->bars)
    plot_add(p, "$nmi using 1:%u:%u:%u with yerrorbars lw 1 pt 7 ps 0 lc rgb \"%s\" notitle, \\\n  ", at,
             at + 1, at + 2, l->colour);
  plot_add(p, "$nmi using 1:%u with linespoints lw 2 dt %u pt %u ps 0.7 lc rgb \"%s\" title ", at, l->dash,
           l->point, l->colour);
  plot_quoted(p, l->title);
}

static kedge_status plot_nmi(const kedge_probe_domain *d, const char *folder) {
  const kedge_community_report *r = &d->communities;
  plot p;
  char *name = picture_name("communities", d->name, NULL), *title;
  if (!name) return KEDGE_ERR_MEMORY;
  plot_begin(&p, folder, name, 720, 440);
  kedge_free(name);
  plot_add(&p, "set datafile missing \"nan\"\n$nmi << EOD\n");
  for (uint32_t i = 0; i < r->rho_count; i++) {
    const kedge_community_row *m = &r->means[i];
    const kedge_summary *seen = r->has_post ? &m->nmi : &m->base.seed_nmi;
    const double floor = r->has_post ? m->floor.median : m->base.floor.median;
    plot_add(&p, "%g %g %g %g %g %g %g\n", m->rho, seen->median, seen->low, seen->high,
             m->base.split_nmi.median, floor, r->has_post ? m->null_nmi.mean : NAN);
  }
  title = kedge_format("Communities of experts, %s: mean NMI of the layers", d->name);
  plot_add(&p, "EOD\nset title ");
  plot_quoted(&p, title ? title : "");
  kedge_free(title);
  plot_add(&p,
           "\nset xlabel \"rho: share of expert pairs kept as edges\" offset 0,0.4\nset ylabel \"NMI\"\nset "
           "yrange "
           "[0:1.02]\nset xrange [0:%g]\nset grid ytics lc rgb \"#dddddd\"\nset key below maxcols 2 Left "
           "reverse\n",
           r->rows[r->rho_count - 1].rho * 1.1);
  const line seen = {r->has_post ? "post against base, over seeds" : "same graph, other seed", "#0072b2", 1,
                     7, true};
  const line ceiling = {"two halves of the base's tokens (ceiling)", "#009e73", 2, 5, false};
  const line floor = {"permuted labels (floor)", "#d55e00", 3, 9, false};
  const line null = {"null graphs of post against base", "#cc79a7", 4, 11, false};
  add_line(&p, 2, &seen);
  add_line(&p, 5, &ceiling);
  add_line(&p, 6, &floor);
  if (r->has_post) add_line(&p, 7, &null);
  return plot_end(&p);
}

/* ---- All
 * ----------------------------------------------------------------------------------------------------------
 */

kedge_status probe_plot(const kedge_probe *probe, const char *folder) {
  KEDGE_TRY(kedge_folder_make(folder));
  for (uint32_t i = 0; i < probe->count; i++) {
    const kedge_probe_domain *d = &probe->domains[i];
    KEDGE_TRY(plot_use(&d->base[KEDGE_PROBE_ALL], folder, d->name, "base"));
    if (probe->compares) KEDGE_TRY(plot_use(&d->post[KEDGE_PROBE_ALL], folder, d->name, "post"));
    if (!d->has_communities) continue;
    KEDGE_TRY(plot_pairs(probe, d, false, folder));
    if (probe->compares) KEDGE_TRY(plot_pairs(probe, d, true, folder));
    KEDGE_TRY(plot_nmi(d, folder));
  }
  return KEDGE_OK;
}
