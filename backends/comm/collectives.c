/* SPDX-License-Identifier: Apache-2.0
 *
 * The collective ops of ops.def on tensors in host memory, over any transport: parts are exchanged and summed
 * here, in the order of the ranks, in pieces, so that neither the transport's algorithm nor the size of a
 * tensor matters. */
#include "core/collect.h"

#include <string.h>

enum { PIECE = 1 << 20 }; /* elements of a share that are exchanged at once, over all members */

/* One member's part of a step: for each member a parcel to send and one to receive. */
typedef struct traffic {
  kedge_parcel *to, *from;
  uint32_t size, rank;
} traffic;

static kedge_status traffic_init(traffic *t, const kedge_comm *comm, kedge_ranks group) {
  t->size = kedge_comm_size(comm, group);
  t->rank = kedge_comm_rank(comm, group);
  t->to = kedge_alloc(t->size, sizeof *t->to);
  t->from = kedge_alloc(t->size, sizeof *t->from);
  return t->to && t->from ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

static void traffic_destroy(traffic *t) {
  kedge_free(t->to);
  kedge_free(t->from);
}

static bool alone(const kedge_comm *comm, kedge_ranks group) {
  return kedge_comm_size(comm, group) == 1 || !comm->transport;
}

/* out = the sum of `size` parts of n numbers each, in order, in double. */
static void add_parts(kedge_dtype dtype, const unsigned char *parts, uint32_t size, uint64_t n, void *out) {
  const double *wide = (const void *)parts;
  const float *narrow = (const void *)parts;
  for (uint64_t i = 0; i < n; i++) {
    double sum = 0;
    for (uint32_t r = 0; r < size; r++)
      sum += dtype == KEDGE_F64 ? wide[r * n + i] : (double)narrow[r * n + i];
    if (dtype == KEDGE_F64)
      ((double *)out)[i] = sum;
    else
      ((float *)out)[i] = (float)sum;
  }
}

/* This member's share of x becomes its sum over the members. */
static kedge_status reduce_share(kedge_comm *comm, kedge_ranks group, kedge_dtype dtype, unsigned char *x,
                                 uint64_t count) {
  traffic t = {0};
  const uint64_t size = kedge_dtype_size(dtype);
  kedge_status status = traffic_init(&t, comm, group);
  const kedge_share own = kedge_comm_share(count, t.size, t.rank), most = kedge_comm_share(count, t.size, 0);
  const uint64_t piece = PIECE / t.size + 1;
  unsigned char *parts = status == KEDGE_OK ? kedge_alloc(t.size * piece, size) : NULL;
  if (status == KEDGE_OK && !parts) status = KEDGE_ERR_MEMORY;
  for (uint64_t at = 0; status == KEDGE_OK && at < most.count; at += piece) {
    uint64_t n = own.count > at ? own.count - at : 0;
    if (n > piece) n = piece;
    for (uint32_t r = 0; r < t.size; r++) {
      const kedge_share theirs = kedge_comm_share(count, t.size, r);
      uint64_t m = theirs.count > at ? theirs.count - at : 0;
      if (m > piece) m = piece;
      t.to[r] = (kedge_parcel){x + (theirs.start + at) * size, m * size};
      t.from[r] = (kedge_parcel){parts + r * n * size, n * size};
    }
    status = kedge__comm_exchange(comm, group, t.to, t.from);
    if (status == KEDGE_OK) add_parts(dtype, parts, t.size, n, x + (own.start + at) * size);
  }
  kedge_free(parts);
  traffic_destroy(&t);
  return status;
}

/* Every share of x from the member that keeps it. */
static kedge_status gather_shares(kedge_comm *comm, kedge_ranks group, uint64_t size, unsigned char *x,
                                  uint64_t count) {
  traffic t = {0};
  kedge_status status = traffic_init(&t, comm, group);
  const kedge_share own = kedge_comm_share(count, t.size, t.rank);
  for (uint32_t r = 0; status == KEDGE_OK && r < t.size; r++) {
    const kedge_share theirs = kedge_comm_share(count, t.size, r);
    const bool self = r == t.rank;
    t.to[r] = (kedge_parcel){x + own.start * size, self ? 0 : own.count * size};
    t.from[r] = (kedge_parcel){x + theirs.start * size, self ? 0 : theirs.count * size};
  }
  if (status == KEDGE_OK) status = kedge__comm_exchange(comm, group, t.to, t.from);
  traffic_destroy(&t);
  return status;
}

kedge_status kedge__collective_all_reduce(kedge_comm *comm, const kedge_call *call) {
  const kedge_args_all_reduce *a = call->args; /* u32 alone: the same in every build */
  const kedge_dtype dtype = call->out[0].dtype;
  const uint64_t size = kedge_dtype_size(dtype);
  memcpy(call->out[0].data, call->in[0].data, a->n * size);
  if (alone(comm, (kedge_ranks)a->group)) return KEDGE_OK;
  KEDGE_TRY(reduce_share(comm, (kedge_ranks)a->group, dtype, call->out[0].data, a->n));
  return gather_shares(comm, (kedge_ranks)a->group, size, call->out[0].data, a->n);
}

kedge_status kedge__collective_reduce_scatter(kedge_comm *comm, const kedge_call *call) {
  const kedge_args_reduce_scatter *a = call->args;
  if (alone(comm, (kedge_ranks)a->group)) return KEDGE_OK;
  return reduce_share(comm, (kedge_ranks)a->group, call->in[0].dtype, call->in[0].data, a->n);
}

kedge_status kedge__collective_all_gather(kedge_comm *comm, const kedge_call *call) {
  const kedge_args_all_gather *a = call->args;
  if (alone(comm, (kedge_ranks)a->group)) return KEDGE_OK;
  return gather_shares(comm, (kedge_ranks)a->group, kedge_dtype_size(call->in[0].dtype), call->in[0].data,
                       a->n);
}
