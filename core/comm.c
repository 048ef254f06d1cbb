/* SPDX-License-Identifier: Apache-2.0
 * Ranks, groups and what they agree on (comm.h). */
#include "core/comm.h"
#include "core/device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ALIGN = 16, TOLD = 256 };

static kedge_status failed(kedge_comm *c, const char *what) {
  c->broken = true;
  return kedge_fail(KEDGE_ERR_DEVICE, "rank %u of %u: %s: %s", c->rank[0], c->size[0], c->transport->name,
                    what);
}

static kedge_status checked(kedge_comm *c, const char *what) {
  return what ? failed(c, what) : KEDGE_OK;
}

static kedge_status comm_new(kedge_comm **comm) {
  kedge_comm *c = *comm = kedge_alloc(1, sizeof *c);
  if (!c) return KEDGE_ERR_MEMORY;
  for (int g = 0; g < KEDGE_RANKS_COUNT; g++) c->size[g] = 1;
  c->local_size = 1;
  return KEDGE_OK;
}

kedge_status kedge_comm_open(kedge_comm **comm) {
  KEDGE_TRY(comm_new(comm));
  kedge_comm *c = *comm;
  kedge_status status = kedge__transport_find(&c->transport, &c->module);
  if (status == KEDGE_OK) status = checked(c, c->transport->start(&c->rank[0], &c->size[0], &c->groups[0]));
  if (status == KEDGE_OK) status = checked(c, c->transport->local(&c->local_rank, &c->local_size));
  if (status == KEDGE_OK) status = kedge_comm_arrange(c, 1);
  if (status != KEDGE_OK) {
    if (c->module) dlclose(c->module);
    kedge_free(c);
    *comm = NULL;
  }
  return status;
}

kedge_status kedge_comm_plan(uint32_t size, kedge_comm **comm) {
  KEDGE_TRY(comm_new(comm));
  (*comm)->size[KEDGE_RANKS_ALL] = size;
  kedge_status status = size ? kedge_comm_arrange(*comm, 1)
                             : kedge_fail(KEDGE_ERR_ARGUMENT, "a run has at least 1 rank, came 0");
  if (status != KEDGE_OK) {
    kedge_free(*comm);
    *comm = NULL;
  }
  return status;
}

static void release_groups(kedge_comm *c) {
  for (int g = 1; g < KEDGE_RANKS_COUNT; g++) {
    if (c->groups[g]) c->transport->release(c->groups[g]);
    c->groups[g] = NULL;
  }
}

void kedge_comm_close(kedge_comm *c) {
  if (!c) return;
  release_groups(c);
  if (c->transport) c->transport->finish();
  /* A module of MPI is not unloaded: its threads and exit handlers may outlive this. */
  kedge_free(c);
}

kedge_status kedge_comm_arrange(kedge_comm *c, uint32_t members) {
  const uint32_t size = c->size[0], rank = c->rank[0];
  if (!members || size % members)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "expert_parallel is %u, which does not divide the %u ranks",
                      members, size);
  release_groups(c);
  c->size[KEDGE_RANKS_EXPERTS] = members;
  c->rank[KEDGE_RANKS_EXPERTS] = rank % members;
  c->size[KEDGE_RANKS_REPLICAS] = size / members;
  c->rank[KEDGE_RANKS_REPLICAS] = rank / members;
  if (!c->transport) return KEDGE_OK;
  KEDGE_TRY(
      checked(c, c->transport->split(c->groups[0], rank / members, rank, &c->groups[KEDGE_RANKS_EXPERTS])));
  return checked(c,
                 c->transport->split(c->groups[0], rank % members, rank, &c->groups[KEDGE_RANKS_REPLICAS]));
}

uint32_t kedge_comm_size(const kedge_comm *c, kedge_ranks group) {
  return c ? c->size[group] : 1;
}
uint32_t kedge_comm_rank(const kedge_comm *c, kedge_ranks group) {
  return c ? c->rank[group] : 0;
}

kedge_share kedge_comm_share(uint64_t count, uint32_t size, uint32_t rank) {
  if (size <= 1) return (kedge_share){0, count};
  const uint64_t blocks = (count + ALIGN - 1) / ALIGN, each = (blocks + size - 1) / size * ALIGN;
  const uint64_t start = each * rank < count ? each * rank : count;
  return (kedge_share){start, count - start < each ? count - start : each};
}

/* ---- What ranks tell each other
 * ------------------------------------------------------------------------------------ */

void kedge__comm_count(kedge_comm *c, kedge_ranks group, const kedge_parcel *to) {
  for (uint32_t i = 0; i < c->size[group]; i++)
    if (i != c->rank[group]) c->sent += to[i].bytes;
}

kedge_status kedge__comm_exchange(kedge_comm *c, kedge_ranks group, const kedge_parcel *to,
                                  const kedge_parcel *from) {
  if (!c->transport) return KEDGE_OK;
  kedge__comm_count(c, group, to);
  return checked(c, c->transport->exchange(c->groups[group], to, from));
}

kedge_status kedge_comm_broadcast(kedge_comm *c, uint32_t root, void *data, uint64_t bytes) {
  if (kedge_comm_size(c, KEDGE_RANKS_ALL) == 1 || !c->transport) return KEDGE_OK;
  return checked(c, c->transport->broadcast(c->groups[0], root, data, bytes));
}

kedge_status kedge_comm_gather(kedge_comm *c, const void *mine, uint64_t bytes, void *all) {
  if (kedge_comm_size(c, KEDGE_RANKS_ALL) == 1 || !c->transport) {
    memcpy(all, mine, bytes);
    return KEDGE_OK;
  }
  return checked(c, c->transport->gather(c->groups[0], mine, bytes, all));
}

kedge_status kedge_comm_sum(kedge_comm *c, double *values, uint64_t count) {
  const uint32_t size = kedge_comm_size(c, KEDGE_RANKS_ALL);
  if (size == 1 || !c->transport || !count) return KEDGE_OK;
  double *all = kedge_alloc(count * size, sizeof *all);
  kedge_status status = all ? kedge_comm_gather(c, values, count * sizeof *values, all) : KEDGE_ERR_MEMORY;
  for (uint64_t i = 0; status == KEDGE_OK && i < count; i++) {
    values[i] = 0;
    for (uint32_t r = 0; r < size; r++) values[i] += all[r * count + i];
  }
  kedge_free(all);
  return status;
}

kedge_status kedge_comm_any(kedge_comm *c, bool *value) {
  double sum = *value;
  KEDGE_TRY(kedge_comm_sum(c, &sum, 1));
  *value = sum > 0;
  return KEDGE_OK;
}

typedef struct verdict {
  int32_t status;
  char message[1020];
} verdict;

kedge_status kedge_comm_agree(kedge_comm *c, kedge_status status) {
  const uint32_t size = kedge_comm_size(c, KEDGE_RANKS_ALL);
  if (size == 1 || !c->transport || c->broken) return status;
  int32_t mine = (int32_t)status, *all = kedge_alloc(size, sizeof *all);
  kedge_status told = all ? kedge_comm_gather(c, &mine, sizeof mine, all) : KEDGE_ERR_MEMORY;
  uint32_t first = 0;
  while (told == KEDGE_OK && first < size && all[first] == KEDGE_OK) first++;
  kedge_free(all);
  if (told != KEDGE_OK || first == size) return told;
  verdict v = {.status = mine};
  snprintf(v.message, sizeof v.message, "%s", kedge_message());
  KEDGE_TRY(kedge_comm_broadcast(c, first, &v, sizeof v));
  c->agreed = true;
  if (first == 0) return kedge_fail((kedge_status)v.status, "%s", v.message);
  return kedge_fail((kedge_status)v.status, "rank %u: %s", first, v.message);
}

kedge_status kedge_comm_same(kedge_comm *c, const char *what, const char *text) {
  const uint32_t size = kedge_comm_size(c, KEDGE_RANKS_ALL);
  char mine[TOLD] = {0};
  if (size == 1 || !c->transport) return KEDGE_OK;
  snprintf(mine, sizeof mine, "%s", text);
  char(*all)[TOLD] = kedge_alloc(size, sizeof *all);
  kedge_status status = all ? kedge_comm_gather(c, mine, sizeof mine, all) : KEDGE_ERR_MEMORY;
  uint32_t other = 1;
  while (status == KEDGE_OK && other < size && !memcmp(all[other], all[0], TOLD)) other++;
  if (status == KEDGE_OK && other < size) {
    c->agreed = true;
    status =
        kedge_fail(KEDGE_ERR_MISMATCH, "the ranks do not belong together: %s is %s on rank %u, %s on rank 0",
                   what, all[other], other, all[0]);
  }
  kedge_free(all);
  return status;
}

/* ---- Failures
 * ----------------------------------------------------------------------------------------------------- */

kedge_status kedge_comm_watch(kedge_comm *c, double limit, kedge_comm_lost lost, void *context, bool *on) {
  *on = false;
  if (kedge_comm_size(c, KEDGE_RANKS_ALL) == 1 || !c->transport) return KEDGE_OK;
  return checked(c, c->transport->watch(limit, lost, context, on));
}

void kedge_comm_abort(kedge_comm *c, int code) {
  if (c && c->transport) c->transport->stop(code);
  _exit(code);
}

void kedge_device_join(kedge_device *device, kedge_comm *comm) {
  device->comm = comm;
  device->carries = false;
}

kedge_status kedge_device_connect(kedge_device *device) {
  const kedge_carrier *carrier = device->backend->carrier;
  device->carries = false;
  if (kedge_comm_size(device->comm, KEDGE_RANKS_ALL) == 1 || !device->comm->transport) return KEDGE_OK;
  snprintf(device->link, sizeof device->link, "host memory");
  return carrier ? carrier->connect(device, &device->carries) : KEDGE_OK;
}

const char *kedge_device_link(const kedge_device *device) {
  return device->link;
}

int32_t kedge_device_index(const kedge_device *device) {
  return device->index;
}
kedge_comm *kedge_device_comm(const kedge_device *device) {
  return device->comm;
}
