/* SPDX-License-Identifier: Apache-2.0
 * Matrices of a probe as CSV files (probe.h). */
#include "models/retention/probe.h"

#include "models/checkpoint/atomic.h"

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

kedge_status kedge_probe_csv(const kedge_probe *p, const char *folder) {
  KEDGE_TRY(kedge_folder_make(folder));
  for (uint32_t i = 0; i < p->count; i++) {
    KEDGE_TRY(write_side(p, &p->domains[i], false, folder));
    if (p->compares) KEDGE_TRY(write_side(p, &p->domains[i], true, folder));
  }
  return KEDGE_OK;
}
