/* SPDX-License-Identifier: Apache-2.0
 * Matrices of a probe as CSV files (probe.h). */
#include "models/retention/probe.h"

#include "models/checkpoint/atomic.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* "<folder>/<name>.csv" in new memory, taking `name`, which may be NULL; what cannot stand in a file's name
 * becomes "_". */
static char *file_name(const char *folder, char *name) {
  for (char *c = name; c && *c; c++)
    if (*c == '/' || (unsigned char)*c < 0x20) *c = '_';
  char *path = name ? kedge_path_join(folder, name) : NULL;
  kedge_free(name);
  return path;
}

static kedge_status write_number(kedge_outfile *out, const char *format, double value) {
  char text[40];
  int length = snprintf(text, sizeof text, format, value);
  return kedge_outfile_write(out, text, (uint64_t)length);
}

/* ",0,1,...,experts - 1" and the line's end. */
static kedge_status write_experts(kedge_outfile *out, uint32_t experts) {
  for (uint32_t e = 0; e < experts; e++) KEDGE_TRY(write_number(out, ",%.0f", e));
  return kedge_outfile_write(out, "\n", 1);
}

/* What a file is made of; which one its writer looks at. */
typedef struct content {
  const kedge_probe *probe;
  const kedge_probe_domain *domain;
  bool post;
  uint32_t layer;
} content;

static kedge_status write_share(const content *c, kedge_outfile *out) {
  const kedge_use *u = c->post ? &c->domain->post[KEDGE_PROBE_ALL] : &c->domain->base[KEDGE_PROBE_ALL];
  KEDGE_TRY(kedge_outfile_write(out, "layer", 5));
  KEDGE_TRY(write_experts(out, u->experts));
  for (uint32_t l = 0; l < u->layers; l++) {
    KEDGE_TRY(write_number(out, "%.0f", u->at[l].layer));
    for (uint32_t e = 0; e < u->experts; e++)
      KEDGE_TRY(write_number(out, ",%.17g", u->share[(size_t)l * u->experts + e]));
    KEDGE_TRY(kedge_outfile_write(out, "\n", 1));
  }
  return KEDGE_OK;
}

static kedge_status write_pairs(const content *c, kedge_outfile *out) {
  const kedge_coactivation *a = &(c->post ? c->domain->post_pairs : c->domain->base_pairs)[c->layer];
  KEDGE_TRY(kedge_outfile_write(out, "expert", 6));
  KEDGE_TRY(write_experts(out, a->experts));
  for (uint32_t i = 0; i < a->experts; i++) {
    KEDGE_TRY(write_number(out, "%.0f", i));
    for (uint32_t j = 0; j < a->experts; j++) {
      const uint32_t low = i < j ? i : j, high = i < j ? j : i;
      KEDGE_TRY(write_number(out, ",%.0f", i == j ? 0 : a->pairs[kedge_pair_index(a->experts, low, high)]));
    }
    KEDGE_TRY(kedge_outfile_write(out, "\n", 1));
  }
  return KEDGE_OK;
}

static kedge_status write_labels(const content *c, kedge_outfile *out) {
  const kedge_community_report *r = &c->domain->communities;
  const uint32_t *labels = c->post ? r->post_labels : r->base_labels;
  KEDGE_TRY(kedge_outfile_write(out, "layer,rho", 9));
  KEDGE_TRY(write_experts(out, r->experts));
  for (uint32_t l = 0; l < r->layers; l++)
    for (uint32_t i = 0; i < r->rho_count; i++) {
      const size_t row = (size_t)l * r->rho_count + i;
      KEDGE_TRY(write_number(out, "%.0f", r->rows[row].layer));
      KEDGE_TRY(write_number(out, ",%.6g", r->rows[row].rho));
      for (uint32_t e = 0; e < r->experts; e++)
        KEDGE_TRY(write_number(out, ",%.0f", labels[row * r->experts + e]));
      KEDGE_TRY(kedge_outfile_write(out, "\n", 1));
    }
  return KEDGE_OK;
}

typedef kedge_status (*writer)(const content *c, kedge_outfile *out);

/* One file; takes `name`. */
static kedge_status write_file(const char *folder, char *name, writer write, const content *c) {
  kedge_outfile *out;
  char *path = file_name(folder, name);
  if (!path) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge_outfile_open(path, &out);
  kedge_free(path);
  if (status != KEDGE_OK) return status;
  status = write(c, out);
  if (status == KEDGE_OK) return kedge_outfile_commit(out);
  kedge_outfile_discard(out);
  return status;
}

static kedge_status write_side(const kedge_probe *p, const kedge_probe_domain *d, bool post,
                               const char *folder) {
  content c = {.probe = p, .domain = d, .post = post};
  const char *side = post ? "post" : "base";
  KEDGE_TRY(write_file(folder, kedge_format("utilisation-%s-%s.csv", d->name, side), write_share, &c));
  for (; d->base_pairs && c.layer < p->layers; c.layer++)
    KEDGE_TRY(write_file(
        folder, kedge_format("coactivation-%s-%s-L%02d.csv", d->name, side, p->layer_numbers[c.layer]),
        write_pairs, &c));
  if (!d->has_communities) return KEDGE_OK;
  return write_file(folder, kedge_format("communities-%s-%s.csv", d->name, side), write_labels, &c);
}

/* ---- One table for all domains
 * ----------------------------------------------------------------------------------- */

/* Nothing for what is undefined or not known. */
static kedge_status write_cell(kedge_outfile *out, double value) {
  return isfinite(value) ? write_number(out, ",%.17g", value) : kedge_outfile_write(out, ",", 1);
}

static kedge_status write_text(kedge_outfile *out, const char *text) {
  return kedge_outfile_write(out, text, strlen(text));
}

static kedge_status write_kept_row(kedge_outfile *out, const char *domain, const char *span,
                                   const kedge_retention_layer *at) {
  const double numbers[] = {at->overlap,  at->tolerant,  at->gates,     at->top1,      at->tvd,
                            at->jsd_nats, at->load_base, at->load_post, at->dead_base, at->dead_post};
  char head[2 * KEDGE_NAME_SIZE + 40];
  snprintf(head, sizeof head, "%.*s,%s,", KEDGE_NAME_SIZE, domain, span);
  KEDGE_TRY(write_text(out, head));
  KEDGE_TRY(at->layer < 0 ? write_text(out, "mean") : write_number(out, "%.0f", at->layer));
  KEDGE_TRY(write_number(out, ",%.0f", (double)at->tokens));
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) KEDGE_TRY(write_cell(out, numbers[i]));
  return write_text(out, "\n");
}

static kedge_status write_kept(const content *c, kedge_outfile *out) {
  static const char *const spans[KEDGE_PROBE_SPANS] = {"all", "question", "answer"};
  KEDGE_TRY(
      write_text(out, "domain,span,layer,tokens,topk_overlap,topk_overlap_tie_tolerant,gate_weighted_overlap,"
                      "top1_agreement,tvd,jsd_nats,load_max_mean_base,load_max_mean_post,dead_experts_base,"
                      "dead_experts_post\n"));
  for (uint32_t i = 0; i < c->probe->count; i++)
    for (int s = 0; s < KEDGE_PROBE_SPANS; s++) {
      const kedge_retention *r = &c->probe->domains[i].kept[s];
      for (uint32_t l = 0; l < r->count; l++)
        KEDGE_TRY(write_kept_row(out, c->probe->domains[i].name, spans[s], &r->layers[l]));
      KEDGE_TRY(write_kept_row(out, c->probe->domains[i].name, spans[s], &r->mean));
    }
  return KEDGE_OK;
}

static kedge_status write_selection_row(kedge_outfile *out, const kedge_probe_domain *d, const char *experts,
                                        const kedge_selection_numbers *n) {
  const kedge_selection *s = &d->selection;
  KEDGE_TRY(write_text(out, d->name));
  KEDGE_TRY(write_text(out, experts));
  KEDGE_TRY(write_number(out, ",%.0f", (double)s->tokens));
  KEDGE_TRY(write_cell(out, n->nll / (double)s->tokens));
  KEDGE_TRY(write_number(out, ",%.0f", (double)s->samples));
  KEDGE_TRY(write_cell(out, (double)n->right / (double)s->samples));
  return write_text(out, "\n");
}

static kedge_status write_selection(const content *c, kedge_outfile *out) {
  KEDGE_TRY(write_text(out, "domain,model,experts,tokens,nll_per_token,samples,accuracy\n"));
  for (uint32_t i = 0; i < c->probe->count; i++) {
    const kedge_probe_domain *d = &c->probe->domains[i];
    const kedge_selection *s = &d->selection;
    if (!d->has_selection) continue;
    KEDGE_TRY(write_selection_row(out, d, ",base,own", &s->base));
    KEDGE_TRY(write_selection_row(out, d, ",post,own", &s->post));
    KEDGE_TRY(write_selection_row(out, d, ",post,base's", &s->forced));
    KEDGE_TRY(write_selection_row(out, d, ",base,post's", &s->converse));
    for (uint32_t r = 0; r < s->topk; r++) {
      char experts[48];
      snprintf(experts, sizeof experts, ",post,base's rank %u", r + 1);
      KEDGE_TRY(write_selection_row(out, d, experts, &s->ranks[r]));
    }
  }
  return KEDGE_OK;
}

kedge_status kedge_probe_csv(const kedge_probe *p, const char *folder) {
  KEDGE_TRY(kedge_folder_make(folder));
  for (uint32_t i = 0; i < p->count; i++) {
    KEDGE_TRY(write_side(p, &p->domains[i], false, folder));
    if (p->compares) KEDGE_TRY(write_side(p, &p->domains[i], true, folder));
  }
  const content all = {.probe = p};
  bool selection = false;
  for (uint32_t i = 0; i < p->count; i++) selection |= p->domains[i].has_selection;
  if (p->compares) KEDGE_TRY(write_file(folder, kedge_strdup("retention.csv"), write_kept, &all));
  if (selection) return write_file(folder, kedge_strdup("selection.csv"), write_selection, &all);
  return KEDGE_OK;
}
