/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes ("ranks") that train one model together: which there are, their groups, and what they tell each
 * other. What carries the bytes is a transport (backends/comm): `alone` for a single process, `mpi` from a
 * module that is loaded where a launcher started the process. Collective ops of a graph are run by collect.c.
 *
 * Three groups: all ranks; those that share the experts of one copy of the model (neighbours by number);
 * those that hold the same experts, one of each copy. Every function below that names a comm is collective:
 * all ranks call it, in one order. Sums run over the ranks in their order, in double, and are rounded once,
 * whatever the transport does.
 */
#ifndef KEDGE_COMM_H
#define KEDGE_COMM_H

#include "core/kedge.h"

typedef enum kedge_ranks {
  KEDGE_RANKS_ALL,
  KEDGE_RANKS_EXPERTS,  /* together they hold every expert once */
  KEDGE_RANKS_REPLICAS, /* they hold the same experts */
  KEDGE_RANKS_COUNT
} kedge_ranks;

/* Bytes for, or from, one member of a group. */
typedef struct kedge_parcel {
  void *data;
  uint64_t bytes;
} kedge_parcel;

/* Called from a thread of the transport when a rank has not been heard of for too long. */
typedef void (*kedge_comm_lost)(void *context, uint32_t rank, double seconds);

/* A transport. A group is its own handle. Functions return NULL, or what failed as a static or lasting text.
 * It needs nothing of libkedge, so that a module can hold it. */
typedef struct kedge_transport {
  const char *name;
  const char *(*start)(uint32_t *rank, uint32_t *size, void **world);
  /* Members with one colour become a group, ordered by their ranks. */
  const char *(*split)(void *group, uint32_t colour, uint32_t rank, void **part);
  void (*release)(void *group);
  /* To and from every member, itself included; both sides know the sizes. No member may need what another one
   * sends. */
  const char *(*exchange)(void *group, const kedge_parcel *to, const kedge_parcel *from);
  const char *(*gather)(void *group, const void *mine, uint64_t bytes, void *all);
  const char *(*broadcast)(void *group, uint32_t root, void *data, uint64_t bytes);
  /* Whether several threads may use it at a time, each with groups of its own. */
  bool (*threads)(void);
  /* How many ranks run on this machine, and which of them this one is. */
  const char *(*local)(uint32_t *rank, uint32_t *size);
  /* Begins to listen for the other ranks' heartbeats. *on: they could be started. */
  const char *(*watch)(double limit, kedge_comm_lost lost, void *context, bool *on);
  void (*stop)(int code); /* ends all ranks; returns, if at all, after some seconds */
  void (*finish)(void);
} kedge_transport;

typedef struct kedge_comm {
  const kedge_transport *transport; /* NULL: a plan, nothing is sent */
  void *module;                     /* of dlopen, NULL: none */
  void *groups[KEDGE_RANKS_COUNT];
  uint32_t size[KEDGE_RANKS_COUNT], rank[KEDGE_RANKS_COUNT];
  uint32_t local_rank, local_size; /* on this machine */
  bool agreed;                     /* the last failure is known to all ranks */
  bool broken;       /* this rank failed where the others may wait for it: nothing can be agreed on */
  uint32_t overflow; /* rows that the last dispatch needed room for, over its capacity; 0: enough */
  uint64_t sent;     /* bytes sent to other ranks so far */
} kedge_comm;

/* Joins the ranks that a launcher (mpirun, srun) started; a process without a launcher is the only rank.
 * ERR_DEVICE: a launcher started several processes, but there is no module for MPI or it failed. Owned by the
 * caller. */
kedge_status kedge_comm_open(kedge_comm **comm);
/* How many processes a launcher started with this one, by its variables; 0: no launcher. */
uint32_t kedge_comm_launched(void);
/* A comm for planning: rank 0 of `size`, which sends nothing. */
kedge_status kedge_comm_plan(uint32_t size, kedge_comm **comm);
/* Leaves together with all others; NULL is allowed. */
void kedge_comm_close(kedge_comm *comm);

/* Forms the groups of experts: `members` ranks hold every expert once. ERR_ARGUMENT unless it divides all
 * ranks. */
kedge_status kedge_comm_arrange(kedge_comm *comm, uint32_t members);

/* Number of ranks in a group, and this one's place in it. A NULL comm is a single rank. */
uint32_t kedge_comm_size(const kedge_comm *comm, kedge_ranks group);
uint32_t kedge_comm_rank(const kedge_comm *comm, kedge_ranks group);

/* The part of `count` elements that member `rank` of `size` keeps: equal parts of whole blocks of 16
 * elements, the last ones shorter or empty. */
typedef struct kedge_share {
  uint64_t start, count;
} kedge_share;
kedge_share kedge_comm_share(uint64_t count, uint32_t size, uint32_t rank);

/* Adds up `count` numbers over all ranks, in their order. */
kedge_status kedge_comm_sum(kedge_comm *comm, double *values, uint64_t count);
/* Rank `root`'s bytes everywhere. */
kedge_status kedge_comm_broadcast(kedge_comm *comm, uint32_t root, void *data, uint64_t bytes);
/* Every rank's bytes, [size][bytes], everywhere. */
kedge_status kedge_comm_gather(kedge_comm *comm, const void *mine, uint64_t bytes, void *all);
/* One status for all: of a broken comm its own; else KEDGE_OK where all have that, else the failure of the
 * lowest rank that failed, with its message
 * ("rank 2: ..."). */
kedge_status kedge_comm_agree(kedge_comm *comm, kedge_status status);
/* ERR_MISMATCH, on all ranks, unless `text` is the same on all: names the rank that differs from rank 0. At
 * most 255 bytes of it are told. `what` names it ("version"). */
kedge_status kedge_comm_same(kedge_comm *comm, const char *what, const char *text);
/* True on all ranks if it is true on any. */
kedge_status kedge_comm_any(kedge_comm *comm, bool *value);

/* Watches the other ranks; `lost` is called in another thread when one has not been heard of for `limit`
 * seconds. *on tells whether the transport can do that. */
kedge_status kedge_comm_watch(kedge_comm *comm, double limit, kedge_comm_lost lost, void *context, bool *on);
/* Ends all ranks with an exit status, without agreement: for a failure that the others do not know of. Does
 * not return. */
void kedge_comm_abort(kedge_comm *comm, int code) __attribute__((noreturn));

/* Lets the collective ops of a device's graphs run over a comm, which must outlive it. NULL: alone. */
void kedge_device_join(kedge_device *device, kedge_comm *comm);
kedge_comm *kedge_device_comm(const kedge_device *device);
/* Lets a device with memory of its own talk to the other ranks' devices, where its backend can (NCCL, RCCL);
 * called by all ranks after kedge_comm_arrange and kedge_device_join. Without it, and where there is no such
 * way, collective ops go through the host. */
kedge_status kedge_device_connect(kedge_device *device);
/* What collective ops go over: "NCCL 2.28.9 (libnccl.so.2)", "host memory"; "" before a device is connected.
 */
const char *kedge_device_link(const kedge_device *device);
/* Which of the machine's devices of its kind it is, from 0; -1 where there is only one. */
int32_t kedge_device_index(const kedge_device *device);

/* ---- Between core and backends/comm */
extern const kedge_transport kedge__transport_alone;
/* The transport of the launcher that started this process: `alone` without one. *module is for dlclose. */
kedge_status kedge__transport_find(const kedge_transport **transport, void **module);
/* Counts the bytes of parcels to others. */
void kedge__comm_count(kedge_comm *comm, kedge_ranks group, const kedge_parcel *to);
/* Sends through a group's transport; a failure names it. */
kedge_status kedge__comm_exchange(kedge_comm *comm, kedge_ranks group, const kedge_parcel *to,
                                  const kedge_parcel *from);

#endif
