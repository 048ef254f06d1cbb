/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of experts that lie on several ranks: how many go where, and the rows themselves. On a device that
 * carries its own bytes the rows never pass the host; the counts do (site.h). Sibling: collectives.c. */
#include "backends/comm/site.h"

#include <string.h>

static uint64_t sum_of(const int32_t *counts, uint32_t first, uint32_t last) {
  uint64_t sum = 0;
  for (uint32_t e = first; e < last; e++) sum += (uint64_t)counts[e];
  return sum;
}

/* Each member's counts, and how many rows it has room for: [P][E+1]. */
static kedge_status gather_counts(const kedge_site *site, const int32_t *mine, uint64_t bytes, int32_t *all) {
  traffic t = {0};
  kedge_status status = kedge__traffic_init(&t, site, KEDGE_RANKS_EXPERTS);
  for (uint32_t r = 0; status == KEDGE_OK && r < t.size; r++) {
    t.to[r] = (kedge_parcel){(void *)(uintptr_t)mine, bytes};
    t.from[r] = (kedge_parcel){(unsigned char *)all + r * bytes, bytes};
  }
  if (status == KEDGE_OK) status = kedge__comm_exchange(site->comm, KEDGE_RANKS_EXPERTS, t.to, t.from);
  kedge__traffic_destroy(&t);
  return status;
}

/* Whether any member of any group gets more rows than it has room for: then all run this again, with more
 * room. */
static kedge_status check_room(kedge_comm *comm, const int32_t *all, uint32_t members, uint32_t experts) {
  const uint32_t each = experts / members, own = kedge_comm_rank(comm, KEDGE_RANKS_EXPERTS);
  uint64_t needed = 0;
  bool over = false;
  for (uint32_t m = 0; m < members; m++) {
    uint64_t rows = 0;
    for (uint32_t s = 0; s < members; s++) rows += sum_of(all + s * (experts + 1), m * each, (m + 1) * each);
    over |= rows > (uint64_t)(uint32_t)all[m * (experts + 1) + experts];
    if (m == own) needed = rows;
  }
  if (kedge_comm_size(comm, KEDGE_RANKS_REPLICAS) > 1) KEDGE_TRY(kedge_comm_any(comm, &over));
  if (!over) return KEDGE_OK;
  if (needed > INT32_MAX / 2)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "a rank's experts get %llu rows, more than 1073741823",
                      (unsigned long long)needed);
  if (comm) comm->overflow = needed ? (uint32_t)needed : 1;
  return kedge_fail(KEDGE_ERR_MEMORY, "a rank's experts get %llu rows, more than there is room for",
                    (unsigned long long)needed);
}

/* Always on the host: the counts say how long the messages are. */
kedge_status kedge__collective_exchange_counts(const kedge_site *site, const kedge_call *call) {
  const kedge_args_exchange_counts *a = call->args;
  const int32_t *offsets = call->in[0].data;
  int32_t *counts = call->out[0].data, *slots = call->out[1].data, *own = call->out[2].data,
          *rows = call->out[3].data;
  const uint32_t E = a->experts, P = a->members, each = E / P,
                 rank = kedge_comm_rank(site->comm, KEDGE_RANKS_EXPERTS);
  const uint64_t row = (uint64_t)E + 1;
  int32_t *mine = kedge_alloc(row, sizeof *mine), *all = kedge_alloc(P * row, sizeof *all);
  kedge_status status = mine && all ? KEDGE_OK : KEDGE_ERR_MEMORY;
  for (uint32_t e = 0; status == KEDGE_OK && e < E; e++) mine[e] = offsets[e + 1] - offsets[e];
  if (status == KEDGE_OK) mine[E] = (int32_t)a->capacity;
  if (status == KEDGE_OK && !kedge__site_alone(site, KEDGE_RANKS_EXPERTS))
    status = gather_counts(site, mine, row * sizeof *mine, all);
  else if (status == KEDGE_OK)
    memcpy(all, mine, row * sizeof *mine);
  if (status == KEDGE_OK) status = check_room(site->comm, all, P, E);
  if (status == KEDGE_OK) {
    for (uint32_t m = 0; m < P; m++) memcpy(counts + m * (uint64_t)E, all + m * row, E * sizeof *counts);
    own[0] = 0;
    for (uint32_t e = 0; e < each; e++) {
      own[e + 1] = own[e];
      for (uint32_t m = 0; m < P; m++) own[e + 1] += counts[m * (uint64_t)E + rank * each + e];
    }
    for (uint32_t r = 0; r < a->capacity; r++) slots[r] = rows[r] = r < (uint32_t)own[each] ? (int32_t)r : -1;
  }
  kedge_free(mine);
  kedge_free(all);
  return status;
}

/* Rows in this member's place (by its experts, then by the members that sent them) and in the order of the
 * members (`packed`): copies from one to the other. */
static void repack(const kedge_repacking *p) {
  const uint32_t each = p->experts / p->members, first = p->rank * each;
  uint64_t at = 0;
  for (uint32_t e = 0; e < each; e++) {
    uint64_t before = 0; /* rows of the members before this one */
    for (uint32_t m = 0; m < p->members; m++) {
      const int32_t *theirs = p->counts + m * (uint64_t)p->experts;
      const uint64_t from = before + sum_of(theirs, first, first + e),
                     n = (uint64_t)theirs[first + e] * p->row_bytes;
      unsigned char *there = (unsigned char *)p->packed + from * p->row_bytes,
                    *here = (unsigned char *)p->placed + at * p->row_bytes;
      if (n) memcpy(p->pack ? there : here, p->pack ? here : there, n);
      at += (uint64_t)theirs[first + e];
      before += sum_of(theirs, first, first + each);
    }
  }
}

static kedge_status repack_at(const kedge_site *site, const kedge_repacking *p) {
  if (site->device) return site->device->backend->carrier->repack(site->device, p);
  repack(p);
  return KEDGE_OK;
}

/* Parcels of the sorted side and of the experts' side; `back` swaps who sends. */
static void address_rows(const kedge_args_all_to_all_rows *a, const int32_t *counts, traffic *t,
                         uint64_t bytes, unsigned char *sorted, unsigned char *packed) {
  const uint32_t each = a->experts / a->members;
  uint64_t sorted_at = 0, packed_at = 0;
  for (uint32_t m = 0; m < a->members; m++) {
    const uint64_t out = sum_of(counts + t->rank * (uint64_t)a->experts, m * each, (m + 1) * each),
                   in = sum_of(counts + m * (uint64_t)a->experts, t->rank * each, (t->rank + 1) * each);
    const kedge_parcel there = {sorted + sorted_at * bytes, out * bytes},
                       here = {packed + packed_at * bytes, in * bytes};
    t->to[m] = a->back ? here : there;
    t->from[m] = a->back ? there : here;
    sorted_at += out;
    packed_at += in;
  }
}

/* Rows that this member's experts have room for. */
static uint64_t room(const kedge_args_all_to_all_rows *a) {
  return a->back ? a->rows_in : a->rows_out;
}

static uint64_t row_bytes(const kedge_call *call) {
  const kedge_args_all_to_all_rows *a = call->args;
  return (uint64_t)a->cols * kedge_dtype_size(call->in[0].dtype);
}

/* The packed rows, then where each of them lies. */
static uint64_t packed_bytes(const kedge_call *call) {
  return (room(call->args) * row_bytes(call) + 15) / 16 * 16;
}

uint64_t kedge__rows_scratch(const kedge_call *call) {
  const kedge_args_all_to_all_rows *a = call->args;
  return a->members > 1 ? packed_bytes(call) + room(a) * sizeof(int32_t) : 0;
}

static kedge_status move_rows(const kedge_site *site, const kedge_call *call, const int32_t *counts,
                              uint64_t placed) {
  const kedge_args_all_to_all_rows *a = call->args;
  unsigned char *packed = call->scratch;
  traffic t = {0};
  kedge_repacking p = {.members = a->members,
                       .experts = a->experts,
                       .rank = kedge_comm_rank(site->comm, KEDGE_RANKS_EXPERTS),
                       .rows = placed,
                       .row_bytes = row_bytes(call),
                       .counts = call->in[1].data,
                       .placed = a->back ? call->in[0].data : call->out[0].data,
                       .packed = packed,
                       .pack = a->back};
  if (site->device) p.places = (int32_t *)(void *)(packed + packed_bytes(call));
  KEDGE_TRY(kedge__traffic_init(&t, site, KEDGE_RANKS_EXPERTS));
  kedge_status status = a->back ? repack_at(site, &p) : KEDGE_OK;
  address_rows(a, counts, &t, p.row_bytes, a->back ? call->out[0].data : call->in[0].data, packed);
  if (status == KEDGE_OK) status = kedge__site_exchange(site, KEDGE_RANKS_EXPERTS, t.to, t.from);
  if (status == KEDGE_OK && !a->back) status = repack_at(site, &p);
  kedge__traffic_destroy(&t);
  return status;
}

kedge_status kedge__collective_all_to_all_rows(const kedge_site *site, const kedge_call *call) {
  const kedge_args_all_to_all_rows *a = call->args;
  const int32_t *counts = site->device ? site->counts : call->in[1].data;
  const uint64_t bytes = row_bytes(call);
  const uint32_t rank = kedge_comm_rank(site->comm, KEDGE_RANKS_EXPERTS), each = a->experts / a->members;
  const uint64_t sorted = sum_of(counts + rank * (uint64_t)a->experts, 0, a->experts);
  uint64_t placed = 0;
  for (uint32_t m = 0; m < a->members; m++)
    placed += sum_of(counts + m * (uint64_t)a->experts, rank * each, (rank + 1) * each);
  const uint64_t valid = a->back ? sorted : placed;
  unsigned char *out = call->out[0].data;
  KEDGE_TRY(kedge__site_clear(site, out + valid * bytes, (a->rows_out - valid) * bytes));
  if (kedge__site_alone(site, KEDGE_RANKS_EXPERTS))
    return kedge__site_copy(site, out, call->in[0].data, valid * bytes);
  return move_rows(site, call, counts, placed);
}
