/* SPDX-License-Identifier: Apache-2.0
 * Moving and adding bytes where a collective op works (site.h). */
#include "backends/comm/site.h"

#include <string.h>

kedge_status kedge__traffic_init(traffic *t, const kedge_site *site, kedge_ranks group) {
  t->size = kedge_comm_size(site->comm, group);
  t->rank = kedge_comm_rank(site->comm, group);
  t->to = kedge_alloc(t->size, sizeof *t->to);
  t->from = kedge_alloc(t->size, sizeof *t->from);
  if (t->to && t->from) return KEDGE_OK;
  kedge__traffic_destroy(t);
  return KEDGE_ERR_MEMORY;
}

void kedge__traffic_destroy(traffic *t) {
  kedge_free(t->to);
  kedge_free(t->from);
  t->to = t->from = NULL;
}

bool kedge__site_alone(const kedge_site *site, kedge_ranks group) {
  return kedge_comm_size(site->comm, group) == 1 || !site->comm->transport;
}

kedge_status kedge__site_exchange(const kedge_site *site, kedge_ranks group, const kedge_parcel *to,
                                  const kedge_parcel *from) {
  if (!site->device) return kedge__comm_exchange(site->comm, group, to, from);
  kedge__comm_count(site->comm, group, to);
  return site->device->backend->carrier->exchange(site->device, (uint32_t)group, to, from);
}

kedge_status kedge__site_copy(const kedge_site *site, void *to, const void *from, uint64_t bytes) {
  if (!bytes) return KEDGE_OK;
  if (site->device) return site->device->backend->carrier->copy(site->device, to, from, bytes);
  memcpy(to, from, bytes);
  return KEDGE_OK;
}

kedge_status kedge__site_clear(const kedge_site *site, void *at, uint64_t bytes) {
  if (!bytes) return KEDGE_OK;
  if (site->device) return site->device->backend->carrier->clear(site->device, at, bytes);
  memset(at, 0, bytes);
  return KEDGE_OK;
}

static void add(const kedge_addition *a) {
  const double *wide = a->parts;
  const float *narrow = a->parts;
  for (uint64_t i = 0; i < a->count; i++) {
    double sum = 0;
    for (uint32_t r = 0; r < a->size; r++)
      sum += a->dtype == KEDGE_F64 ? wide[r * a->apart + i] : (double)narrow[r * a->apart + i];
    if (a->dtype == KEDGE_F64)
      ((double *)a->out)[i] = sum;
    else
      ((float *)a->out)[i] = (float)sum;
  }
}

kedge_status kedge__site_add(const kedge_site *site, const kedge_addition *addition) {
  if (!addition->count) return KEDGE_OK;
  if (site->device) return site->device->backend->carrier->add(site->device, addition);
  add(addition);
  return KEDGE_OK;
}
