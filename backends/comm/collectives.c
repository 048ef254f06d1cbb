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

/* out = the sum of `size` parts of n numbers each, `apart` elements from one to the next, in order, in
 * double. */
static void add_parts(kedge_dtype dtype, const unsigned char *parts, uint32_t size, uint64_t n,
                      uint64_t apart, void *out) {
  const double *wide = (const void *)parts;
  const float *narrow = (const void *)parts;
  for (uint64_t i = 0; i < n; i++) {
    double sum = 0;
    for (uint32_t r = 0; r < size; r++)
      sum += dtype == KEDGE_F64 ? wide[r * apart + i] : (double)narrow[r * apart + i];
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
    if (status == KEDGE_OK) add_parts(dtype, parts, t.size, n, n, x + (own.start + at) * size);
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

/* A member's shares of all steps, one after another, to or from their tensors. Returns the end of the bytes.
 */
static unsigned char *copy_shares(const kedge_step *steps, uint32_t count, uint32_t size, uint32_t rank,
                                  unsigned char *packed, bool pack) {
  for (uint32_t i = 0; i < count; i++) {
    const kedge_share share = share_of(&steps[i], size, rank);
    const uint64_t bytes = share.count * size_of(&steps[i]);
    unsigned char *there = (unsigned char *)steps[i].call.in[0].data + share.start * size_of(&steps[i]);
    if (bytes) memcpy(pack ? packed : there, pack ? there : packed, bytes);
    packed += bytes;
  }
  return packed;
}

static kedge_status gather_together(kedge_comm *comm, const kedge_step *steps, uint32_t count, traffic *t,
                                    unsigned char *memory) {
  unsigned char *at = copy_shares(steps, count, t->size, t->rank, memory, true);
  for (uint32_t r = 0; r < t->size; r++) {
    const uint64_t bytes = r == t->rank ? 0 : shares_bytes(steps, count, t->size, r);
    t->to[r] = (kedge_parcel){memory, r == t->rank ? 0 : shares_bytes(steps, count, t->size, t->rank)};
    t->from[r] = (kedge_parcel){at, bytes};
    at += bytes;
  }
  KEDGE_TRY(kedge__comm_exchange(comm, group_of(steps), t->to, t->from));
  for (uint32_t r = 0; r < t->size; r++)
    if (r != t->rank) copy_shares(steps, count, t->size, r, t->from[r].data, false);
  return KEDGE_OK;
}

static kedge_status reduce_together(kedge_comm *comm, const kedge_step *steps, uint32_t count, traffic *t,
                                    unsigned char *memory) {
  const uint64_t own = shares_bytes(steps, count, t->size, t->rank), size = size_of(steps);
  unsigned char *at = memory;
  for (uint32_t r = 0; r < t->size; r++) {
    unsigned char *end = copy_shares(steps, count, t->size, r, at, true);
    t->to[r] = (kedge_parcel){at, (uint64_t)(end - at)};
    at = end;
  }
  for (uint32_t r = 0; r < t->size; r++) t->from[r] = (kedge_parcel){at + r * own, own};
  KEDGE_TRY(kedge__comm_exchange(comm, group_of(steps), t->to, t->from));
  for (uint32_t i = 0; i < count; i++) {
    const kedge_share share = share_of(&steps[i], t->size, t->rank);
    const kedge_tensor *x = &steps[i].call.in[0];
    add_parts(x->dtype, at, t->size, share.count, own / size, (unsigned char *)x->data + share.start * size);
    at += share.count * size;
  }
  return KEDGE_OK;
}

kedge_status kedge__collective_together(kedge_comm *comm, const kedge_step *steps, uint32_t most,
                                        uint32_t *done) {
  traffic t = {0};
  const uint32_t count = together(steps, most);
  *done = 0;
  if (count < 2 || alone(comm, group_of(steps))) return KEDGE_OK;
  kedge_status status = traffic_init(&t, comm, group_of(steps));
  uint64_t bytes = 0;
  for (uint32_t r = 0; status == KEDGE_OK && r < t.size; r++) bytes += shares_bytes(steps, count, t.size, r);
  if (status == KEDGE_OK && steps->op == KEDGE_OP_reduce_scatter)
    bytes += t.size * shares_bytes(steps, count, t.size, t.rank);
  unsigned char *memory = status == KEDGE_OK ? kedge_alloc(bytes + 1, 1) : NULL;
  if (status == KEDGE_OK && !memory) status = KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK)
    status = steps->op == KEDGE_OP_all_gather ? gather_together(comm, steps, count, &t, memory)
                                              : reduce_together(comm, steps, count, &t, memory);
  kedge_free(memory);
  traffic_destroy(&t);
  *done = count;
  return status;
}

/* ---- Rows of experts
 * ---------------------------------------------------------------------------------------------- */

static uint64_t sum_of(const int32_t *counts, uint32_t first, uint32_t last) {
  uint64_t sum = 0;
  for (uint32_t e = first; e < last; e++) sum += (uint64_t)counts[e];
  return sum;
}

/* Each member's counts, and how many rows it has room for: [P][E+1]. */
static kedge_status gather_counts(kedge_comm *comm, const int32_t *mine, uint64_t bytes, int32_t *all) {
  traffic t = {0};
  kedge_status status = traffic_init(&t, comm, KEDGE_RANKS_EXPERTS);
  for (uint32_t r = 0; status == KEDGE_OK && r < t.size; r++) {
    t.to[r] = (kedge_parcel){(void *)(uintptr_t)mine, bytes};
    t.from[r] = (kedge_parcel){(unsigned char *)all + r * bytes, bytes};
  }
  if (status == KEDGE_OK) status = kedge__comm_exchange(comm, KEDGE_RANKS_EXPERTS, t.to, t.from);
  traffic_destroy(&t);
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

kedge_status kedge__collective_exchange_counts(kedge_comm *comm, const kedge_call *call) {
  const kedge_args_exchange_counts *a = call->args;
  const int32_t *offsets = call->in[0].data;
  int32_t *counts = call->out[0].data, *slots = call->out[1].data, *own = call->out[2].data,
          *rows = call->out[3].data;
  const uint32_t E = a->experts, P = a->members, each = E / P,
                 rank = kedge_comm_rank(comm, KEDGE_RANKS_EXPERTS);
  const uint64_t row = (uint64_t)E + 1;
  int32_t *mine = kedge_alloc(row, sizeof *mine), *all = kedge_alloc(P * row, sizeof *all);
  kedge_status status = mine && all ? KEDGE_OK : KEDGE_ERR_MEMORY;
  for (uint32_t e = 0; status == KEDGE_OK && e < E; e++) mine[e] = offsets[e + 1] - offsets[e];
  if (status == KEDGE_OK) mine[E] = (int32_t)a->capacity;
  if (status == KEDGE_OK && !alone(comm, KEDGE_RANKS_EXPERTS))
    status = gather_counts(comm, mine, row * sizeof *mine, all);
  else if (status == KEDGE_OK)
    memcpy(all, mine, row * sizeof *mine);
  if (status == KEDGE_OK) status = check_room(comm, all, P, E);
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
 * members
 * (`packed`): copies from one to the other. */
static void repack(const kedge_args_all_to_all_rows *a, const int32_t *counts, uint32_t rank, uint64_t bytes,
                   unsigned char *placed, unsigned char *packed, bool pack) {
  const uint32_t each = a->experts / a->members;
  uint64_t at = 0;
  for (uint32_t e = 0; e < each; e++)
    for (uint32_t m = 0; m < a->members; m++) {
      const int32_t *theirs = counts + m * (uint64_t)a->experts;
      uint64_t from = 0;
      for (uint32_t s = 0; s < m; s++)
        from += sum_of(counts + s * (uint64_t)a->experts, rank * each, (rank + 1) * each);
      from += sum_of(theirs, rank * each, rank * each + e);
      const uint64_t n = (uint64_t)theirs[rank * each + e] * bytes;
      unsigned char *there = packed + from * bytes, *here = placed + at * bytes;
      if (n) memcpy(pack ? there : here, pack ? here : there, n);
      at += (uint64_t)theirs[rank * each + e];
    }
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

kedge_status kedge__collective_all_to_all_rows(kedge_comm *comm, const kedge_call *call) {
  const kedge_args_all_to_all_rows *a = call->args;
  const int32_t *counts = call->in[1].data;
  const uint64_t bytes = (uint64_t)a->cols * kedge_dtype_size(call->in[0].dtype);
  const uint32_t rank = kedge_comm_rank(comm, KEDGE_RANKS_EXPERTS), each = a->experts / a->members;
  uint64_t sorted = sum_of(counts + rank * (uint64_t)a->experts, 0, a->experts), placed = 0;
  for (uint32_t m = 0; m < a->members; m++)
    placed += sum_of(counts + m * (uint64_t)a->experts, rank * each, (rank + 1) * each);
  const uint64_t valid = a->back ? sorted : placed;
  unsigned char *in = call->in[0].data, *out = call->out[0].data;
  memset(out + valid * bytes, 0, (a->rows_out - valid) * bytes);
  if (alone(comm, KEDGE_RANKS_EXPERTS)) {
    memcpy(out, in, valid * bytes);
    return KEDGE_OK;
  }
  traffic t = {0};
  kedge_status status = traffic_init(&t, comm, KEDGE_RANKS_EXPERTS);
  unsigned char *packed = status == KEDGE_OK ? kedge_alloc(placed + 1, bytes) : NULL;
  if (status == KEDGE_OK && !packed) status = KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) {
    if (a->back) repack(a, counts, rank, bytes, in, packed, true);
    address_rows(a, counts, &t, bytes, a->back ? out : in, packed);
    status = kedge__comm_exchange(comm, KEDGE_RANKS_EXPERTS, t.to, t.from);
    if (status == KEDGE_OK && !a->back) repack(a, counts, rank, bytes, out, packed, false);
  }
  kedge_free(packed);
  traffic_destroy(&t);
  return status;
}
