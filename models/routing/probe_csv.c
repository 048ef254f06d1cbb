/* SPDX-License-Identifier: Apache-2.0
 * Matrices of a probe as CSV files (probe.h). */
#include "models/routing/probe.h"

#include "models/checkpoint/atomic.h"

#include <stdio.h>
#include <string.h>

/* ".../utilisation-<domain>-<side>.csv" in new memory; what cannot stand in a file's name becomes "_". */
static char *file_name(const char *folder, const char *domain, const char *side) {
  char *name = kedge_format("utilisation-%s-%s.csv", domain, side);
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

static kedge_status write_share(const kedge_use *u, kedge_outfile *out) {
  KEDGE_TRY(kedge_outfile_write(out, "layer", 5));
  for (uint32_t e = 0; e < u->experts; e++) KEDGE_TRY(write_number(out, ",%.0f", e));
  KEDGE_TRY(kedge_outfile_write(out, "\n", 1));
  for (uint32_t l = 0; l < u->layers; l++) {
    KEDGE_TRY(write_number(out, "%.0f", u->at[l].layer));
    for (uint32_t e = 0; e < u->experts; e++)
      KEDGE_TRY(write_number(out, ",%.17g", u->share[(size_t)l * u->experts + e]));
    KEDGE_TRY(kedge_outfile_write(out, "\n", 1));
  }
  return KEDGE_OK;
}

static kedge_status write_use(const kedge_use *u, const char *folder, const char *domain, const char *side) {
  kedge_outfile *out;
  char *path = file_name(folder, domain, side);
  if (!path) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge_outfile_open(path, &out);
  kedge_free(path);
  if (status != KEDGE_OK) return status;
  status = write_share(u, out);
  if (status == KEDGE_OK) return kedge_outfile_commit(out);
  kedge_outfile_discard(out);
  return status;
}

kedge_status kedge_probe_csv(const kedge_probe *p, const char *folder) {
  KEDGE_TRY(kedge_folder_make(folder));
  for (uint32_t i = 0; i < p->count; i++) {
    const kedge_probe_domain *d = &p->domains[i];
    KEDGE_TRY(write_use(&d->base[KEDGE_PROBE_ALL], folder, d->name, "base"));
    if (p->compares) KEDGE_TRY(write_use(&d->post[KEDGE_PROBE_ALL], folder, d->name, "post"));
  }
  return KEDGE_OK;
}
