/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums and gathers over ranks, on host memory over any transport, and on a device that carries its own bytes
 * (site.h): parts are exchanged and summed in the order of the ranks, in pieces, so that neither the
 * transport's algorithm nor the size of a tensor matters. Sibling: rows.c, the rows of experts. */
#include "backends/comm/site.h"

enum { PIECE = 1 << 20 }; /* elements of a share that are exchanged at once, over all members */

/* Elements of each part that are summed at once. */
static uint64_t piece_of(uint64_t count, uint32_t size) {
  const uint64_t most = kedge_comm_share(count, size, 0).count, piece = PIECE / size + 1;
  return most < piece ? most : piece;
}

/* This member's share of x becomes its sum over the members. */
static kedge_status reduce_share(const kedge_site *site, kedge_ranks group, kedge_dtype dtype,
                                 unsigned char *x, uint64_t count, unsigned char *parts) {
  traffic t = {0};
  const uint64_t size = kedge_dtype_size(dtype);
  kedge_status status = kedge__traffic_init(&t, site, group);
  const kedge_share own = kedge_comm_share(count, t.size, t.rank), most = kedge_comm_share(count, t.size, 0);
  const uint64_t piece = piece_of(count, t.size);
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
    status = kedge__site_exchange(site, group, t.to, t.from);
    if (status == KEDGE_OK)
      status =
          kedge__site_add(site, &(kedge_addition){dtype, t.size, parts, n, n, x + (own.start + at) * size});
  }
  kedge__traffic_destroy(&t);
  return status;
}

/* Every share of x from the member that keeps it. */
static kedge_status gather_shares(const kedge_site *site, kedge_ranks group, uint64_t size, unsigned char *x,
                                  uint64_t count) {
  traffic t = {0};
  kedge_status status = kedge__traffic_init(&t, site, group);
  const kedge_share own = kedge_comm_share(count, t.size, t.rank);
  for (uint32_t r = 0; status == KEDGE_OK && r < t.size; r++) {
    const kedge_share theirs = kedge_comm_share(count, t.size, r);
    const bool self = r == t.rank;
    t.to[r] = (kedge_parcel){x + own.start * size, self ? 0 : own.count * size};
    t.from[r] = (kedge_parcel){x + theirs.start * size, self ? 0 : theirs.count * size};
  }
  if (status == KEDGE_OK) status = kedge__site_exchange(site, group, t.to, t.from);
  kedge__traffic_destroy(&t);
  return status;
}

kedge_status kedge__collective_all_reduce(const kedge_site *site, const kedge_call *call) {
  const kedge_args_all_reduce *a = call->args; /* u32 alone: the same in every build */
  const kedge_dtype dtype = call->out[0].dtype;
  const uint64_t size = kedge_dtype_size(dtype);
  const kedge_ranks group = (kedge_ranks)a->group;
  KEDGE_TRY(kedge__site_copy(site, call->out[0].data, call->in[0].data, a->n * size));
  if (kedge__site_alone(site, group)) return KEDGE_OK;
  KEDGE_TRY(reduce_share(site, group, dtype, call->out[0].data, a->n, call->scratch));
  return gather_shares(site, group, size, call->out[0].data, a->n);
}

kedge_status kedge__collective_reduce_scatter(const kedge_site *site, const kedge_call *call) {
  const kedge_args_reduce_scatter *a = call->args;
  const kedge_ranks group = (kedge_ranks)a->group;
  if (kedge__site_alone(site, group)) return KEDGE_OK;
  return reduce_share(site, group, call->in[0].dtype, call->in[0].data, a->n, call->scratch);
}

kedge_status kedge__collective_all_gather(const kedge_site *site, const kedge_call *call) {
  const kedge_args_all_gather *a = call->args;
  const kedge_ranks group = (kedge_ranks)a->group;
  if (kedge__site_alone(site, group)) return KEDGE_OK;
  return gather_shares(site, group, kedge_dtype_size(call->in[0].dtype), call->in[0].data, a->n);
}

/* ---- Many small tensors at once: one message in the place of hundreds, and the same bits
 * -------------------------- */

enum {
  SMALL = 1 << 20,
  WHOLE = 16 << 20
}; /* bytes of a tensor that is sent with others, and of all of them */

static bool joins(kedge_op op) {
  return op == KEDGE_OP_reduce_scatter || op == KEDGE_OP_all_gather;
}

/* Arguments of both: the elements, and the group. */
static uint32_t elements(const kedge_step *step) {
  return step->op == KEDGE_OP_all_gather ? ((const kedge_args_all_gather *)step->call.args)->n
                                         : ((const kedge_args_reduce_scatter *)step->call.args)->n;
}
static kedge_ranks group_of(const kedge_step *step) {
  return (kedge_ranks)(step->op == KEDGE_OP_all_gather
                           ? ((const kedge_args_all_gather *)step->call.args)->group
                           : ((const kedge_args_reduce_scatter *)step->call.args)->group);
}

static uint64_t size_of(const kedge_step *step) {
  return kedge_dtype_size(step->call.in[0].dtype);
}

/* How many of the steps may go together: of one op, group and dtype, all small. */
static uint32_t together(const kedge_step *steps, uint32_t most) {
  uint64_t bytes = 0;
  uint32_t count = 0;
  while (count < most && joins(steps[count].op) && steps[count].op == steps[0].op &&
         group_of(&steps[count]) == group_of(&steps[0]) &&
         steps[count].call.in[0].dtype == steps[0].call.in[0].dtype) {
    const uint64_t own = elements(&steps[count]) * size_of(&steps[count]);
    if (own > SMALL || bytes + own > WHOLE) break;
    bytes += own;
    count++;
  }
  return count;
}

static kedge_share share_of(const kedge_step *step, uint32_t size, uint32_t rank) {
  return kedge_comm_share(elements(step), size, rank);
}

/* Bytes of a member's shares of all steps. */
static uint64_t shares_bytes(const kedge_step *steps, uint32_t count, uint32_t size, uint32_t rank) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < count; i++) bytes += share_of(&steps[i], size, rank).count * size_of(&steps[i]);
  return bytes;
}

/* A member's shares of all steps, one after another, to or from their tensors. *packed moves to the end of
 * the bytes. */
static kedge_status copy_shares(const kedge_site *site, const kedge_step *steps, uint32_t count,
                                const traffic *t, uint32_t rank, unsigned char **packed, bool pack) {
  for (uint32_t i = 0; i < count; i++) {
    const kedge_share share = share_of(&steps[i], t->size, rank);
    const uint64_t bytes = share.count * size_of(&steps[i]);
    unsigned char *there = (unsigned char *)steps[i].call.in[0].data + share.start * size_of(&steps[i]);
    KEDGE_TRY(kedge__site_copy(site, pack ? *packed : there, pack ? there : *packed, bytes));
    *packed += bytes;
  }
  return KEDGE_OK;
}

static kedge_status gather_together(const kedge_site *site, const kedge_step *steps, uint32_t count,
                                    traffic *t, unsigned char *memory) {
  unsigned char *at = memory;
  KEDGE_TRY(copy_shares(site, steps, count, t, t->rank, &at, true));
  const uint64_t own = (uint64_t)(at - memory);
  for (uint32_t r = 0; r < t->size; r++) {
    const uint64_t bytes = r == t->rank ? 0 : shares_bytes(steps, count, t->size, r);
    t->to[r] = (kedge_parcel){memory, r == t->rank ? 0 : own};
    t->from[r] = (kedge_parcel){at, bytes};
    at += bytes;
  }
  KEDGE_TRY(kedge__site_exchange(site, group_of(steps), t->to, t->from));
  for (uint32_t r = 0; r < t->size; r++) {
    unsigned char *from = t->from[r].data;
    if (r != t->rank) KEDGE_TRY(copy_shares(site, steps, count, t, r, &from, false));
  }
  return KEDGE_OK;
}

static kedge_status reduce_together(const kedge_site *site, const kedge_step *steps, uint32_t count,
                                    traffic *t, unsigned char *memory) {
  const uint64_t own = shares_bytes(steps, count, t->size, t->rank), size = size_of(steps);
  unsigned char *at = memory;
  for (uint32_t r = 0; r < t->size; r++) {
    unsigned char *start = at;
    KEDGE_TRY(copy_shares(site, steps, count, t, r, &at, true));
    t->to[r] = (kedge_parcel){start, (uint64_t)(at - start)};
  }
  for (uint32_t r = 0; r < t->size; r++) t->from[r] = (kedge_parcel){at + r * own, own};
  KEDGE_TRY(kedge__site_exchange(site, group_of(steps), t->to, t->from));
  for (uint32_t i = 0; i < count; i++) {
    const kedge_share share = share_of(&steps[i], t->size, t->rank);
    const kedge_tensor *x = &steps[i].call.in[0];
    KEDGE_TRY(kedge__site_add(site, &(kedge_addition){x->dtype, t->size, at, share.count, own / size,
                                                      (unsigned char *)x->data + share.start * size}));
    at += share.count * size;
  }
  return KEDGE_OK;
}

/* Bytes that steps need which go together: all their shares, and of sums every member's part of one share. */
static uint64_t together_bytes(const kedge_step *steps, uint32_t count, uint32_t size) {
  uint64_t bytes = 0;
  for (uint32_t r = 0; r < size; r++) bytes += shares_bytes(steps, count, size, r);
  return steps->op == KEDGE_OP_reduce_scatter ? bytes + size * shares_bytes(steps, count, size, 0) : bytes;
}

kedge_status kedge__collective_together(const kedge_site *site, const kedge_step *steps, uint32_t most,
                                        uint32_t *done) {
  traffic t = {0};
  const uint32_t count = together(steps, most);
  *done = 0;
  if (count < 2 || kedge__site_alone(site, group_of(steps))) return KEDGE_OK;
  kedge_status status = kedge__traffic_init(&t, site, group_of(steps));
  if (status == KEDGE_OK)
    status = steps->op == KEDGE_OP_all_gather ? gather_together(site, steps, count, &t, steps->call.scratch)
                                              : reduce_together(site, steps, count, &t, steps->call.scratch);
  kedge__traffic_destroy(&t);
  *done = count;
  return status;
}

/* ---- What they need
 * ------------------------------------------------------------------------------------------------ */

static uint64_t sum_bytes(const kedge_comm *comm, uint32_t group, uint64_t count, uint64_t size) {
  const uint32_t members = kedge_comm_size(comm, (kedge_ranks)group);
  return members > 1 ? members * piece_of(count, members) * size : 0;
}

uint64_t kedge__collective_scratch(const kedge_comm *comm, const kedge_step *steps, uint32_t most) {
  const kedge_call *call = &steps->call;
  uint64_t bytes = 0;
  if (steps->op == KEDGE_OP_all_reduce) {
    const kedge_args_all_reduce *a = call->args;
    return sum_bytes(comm, a->group, a->n, kedge_dtype_size(call->in[0].dtype));
  }
  if (steps->op == KEDGE_OP_all_to_all_rows) return kedge__rows_scratch(call);
  if (!joins(steps->op)) return 0;
  const uint32_t members = kedge_comm_size(comm, group_of(steps)), count = together(steps, most);
  if (steps->op == KEDGE_OP_reduce_scatter)
    bytes = sum_bytes(comm, (uint32_t)group_of(steps), elements(steps), size_of(steps));
  if (members > 1 && count > 1 && together_bytes(steps, count, members) > bytes)
    bytes = together_bytes(steps, count, members);
  return bytes;
}
