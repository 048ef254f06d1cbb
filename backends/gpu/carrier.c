/* SPDX-License-Identifier: Apache-2.0
 *
 * Collective ops on the cards' own memory (kedge_carrier of core/device.h): NCCL for cuda, RCCL for hip,
 * loaded on demand, move bytes from card to card on the device's stream; parts.cu adds them up and orders
 * rows. What the library is asked for is sending and receiving alone, so that sums have Kedge's one order
 * whatever its algorithms do. The transport of the ranks hands round the ids of its communicators, one a
 * group.
 *
 * KEDGE_NCCL in the environment names another library, or is `off`. The simulated card has none of its own
 * and takes the one that is named.
 */
#include "backends/gpu/state.h"

#include "backends/gpu/nccl_types.h"
#include "core/comm.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NCCL_STREAM gpu_stream
typedef struct nccl_table {
#define NCCL_FUNCTION(result, name, parameters) result(*name) parameters;
#include "backends/gpu/nccl.def"
} nccl_table;
static const char *const names[] = {
#define NCCL_FUNCTION(result, name, parameters) "nccl" #name,
#include "backends/gpu/nccl.def"
};
enum { NAMES = sizeof names / sizeof *names };
_Static_assert(sizeof(nccl_table) == NAMES * sizeof(void *), "a table of function pointers alone");

struct gpu_links {
  void *module;
  nccl_table nccl;
  ncclComm_t groups[KEDGE_RANKS_COUNT]; /* NULL: a group of one */
};

#if defined(KEDGE_GPU_CUDA)
#define LIBRARY      "libnccl.so.2"
#define LIBRARY_NAME "NCCL"
#elif defined(KEDGE_GPU_HIP)
#define LIBRARY      "librccl.so.1"
#define LIBRARY_NAME "RCCL"
#else
#define LIBRARY      "" /* none of its own */
#define LIBRARY_NAME "NCCL's interface"
#endif

/* KEDGE_ERR_DEVICE with the rank, the function and the library's words, unless `result` is success. */
static kedge_status check(kedge_device *device, ncclResult_t result, const char *function, ncclComm_t comm) {
  const gpu_links *l = ((gpu_state *)device->state)->links;
  if (result == ncclSuccess) return KEDGE_OK;
  const char *more = l->nccl.GetLastError(comm);
  return kedge_fail(KEDGE_ERR_DEVICE, "rank %u of %u: nccl%s: %s%s%s", device->comm->rank[KEDGE_RANKS_ALL],
                    device->comm->size[KEDGE_RANKS_ALL], function, l->nccl.GetErrorString(result),
                    more && *more ? ": " : "", more ? more : "");
}
#define NCCL(device, links, comm, function, ...)                                                             \
  check(device, (links)->nccl.function(__VA_ARGS__), #function, comm)

/* ---- Connecting */

static kedge_status load(gpu_links *l, const char *library) {
  void *found[NAMES];
  l->module = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!l->module) return kedge_fail(KEDGE_ERR_DEVICE, "%s cannot be loaded: %s", library, dlerror());
  for (int i = 0; i < NAMES; i++)
    if (!(found[i] = dlsym(l->module, names[i])))
      return kedge_fail(KEDGE_ERR_DEVICE, "%s has no function %s", library, names[i]);
  memcpy(&l->nccl, found, sizeof found);
  return KEDGE_OK;
}

/* A communicator for each group: its first member makes the id, which all of them get. */
static kedge_status join_group(kedge_device *device, gpu_links *l, kedge_ranks group) {
  kedge_comm *comm = device->comm;
  const uint32_t size = kedge_comm_size(comm, group), rank = kedge_comm_rank(comm, group);
  ncclUniqueId own = {{0}}, *all;
  if (size == 1) return KEDGE_OK;
  if (!(all = kedge_alloc(size, sizeof *all))) return KEDGE_ERR_MEMORY;
  kedge_status status = rank ? KEDGE_OK : NCCL(device, l, NULL, GetUniqueId, &own);
  const char *why = comm->transport->gather(comm->groups[group], &own, sizeof own, all);
  if (status == KEDGE_OK && why)
    status = kedge_fail(KEDGE_ERR_DEVICE, "handing round the id of a group: %s", why);
  status = kedge_comm_agree(comm, status);
  if (status == KEDGE_OK) {
    status = NCCL(device, l, NULL, CommInitRank, &l->groups[group], (int)size, all[0], (int)rank);
    comm->broken = status != KEDGE_OK; /* the others may wait in it */
  }
  kedge_free(all);
  return status;
}

static kedge_status join_groups(kedge_device *device, gpu_links *l, const char *library) {
  int version = 0;
  char text[64];
  KEDGE_TRY(NCCL(device, l, NULL, GetVersion, &version));
  snprintf(text, sizeof text, "%d", version);
  KEDGE_TRY(kedge_comm_same(device->comm, "the version of " LIBRARY_NAME, text));
  for (int g = 0; g < KEDGE_RANKS_COUNT; g++) KEDGE_TRY(join_group(device, l, (kedge_ranks)g));
  const char *slash = strrchr(library, '/');
  snprintf(device->link, sizeof device->link, LIBRARY_NAME " %d.%d.%d (%.60s)", version / 10000,
           version / 100 % 100, version % 100, slash ? slash + 1 : library);
  return KEDGE_OK;
}

static kedge_status carrier_connect(kedge_device *device, bool *ready) {
  gpu_state *g = device->state;
  const char *named = getenv("KEDGE_NCCL"), *library = named && *named ? named : LIBRARY;
  bool off = !*library || !strcmp(library, "off"), differ = off;
  gpu__links_close(device);
  *ready = false;
  KEDGE_TRY(kedge_comm_same(device->comm, "the library for collective ops", off ? "none" : library));
  if (off) return KEDGE_OK;
  if (!(g->links = kedge_alloc(1, sizeof *g->links))) return KEDGE_ERR_MEMORY;
  kedge_status status = load(g->links, library);
  differ = status != KEDGE_OK;
  KEDGE_TRY(kedge_comm_any(device->comm, &differ));
  if (differ && !named) { /* none installed, at least not everywhere */
    snprintf(device->link, sizeof device->link, "host memory (without " LIBRARY_NAME ": %.60s)",
             status == KEDGE_OK ? "another rank has none" : LIBRARY " is not here");
    gpu__links_close(device);
    return KEDGE_OK;
  }
  KEDGE_TRY(kedge_comm_agree(device->comm, status));
  status = join_groups(device, g->links, library);
  if (status != KEDGE_OK) gpu__links_close(device);
  *ready = status == KEDGE_OK;
  return status;
}

void gpu__links_close(kedge_device *device) {
  gpu_state *g = device->state;
  gpu_links *l = g->links;
  if (!l) return;
  const bool broken = device->comm && device->comm->broken;
  for (int i = 0; i < KEDGE_RANKS_COUNT; i++) {
    if (!l->groups[i]) continue;
    if (broken)
      l->nccl.CommAbort(l->groups[i]); /* destroying waits for the others */
    else
      l->nccl.CommDestroy(l->groups[i]);
  }
  /* The library stays loaded: its threads may outlive this. */
  kedge_free(l);
  g->links = NULL;
}

/* ---- Moving and adding */

static kedge_status copy(kedge_device *device, void *to, const void *from, uint64_t bytes) {
  gpu_state *g = device->state;
  return gpu__check(device, GPU(MemcpyAsync)(to, from, bytes, GPU(MemcpyDeviceToDevice), g->stream),
                    "a copy on the card");
}

static kedge_status clear(kedge_device *device, void *at, uint64_t bytes) {
  gpu_state *g = device->state;
  return gpu__check(device, GPU(MemsetAsync)(at, 0, bytes, g->stream), "clearing on the card");
}

/* All sends and receives of an exchange, between GroupStart and GroupEnd: together they cannot wait for each
 * other in a circle. */
static kedge_status post(kedge_device *device, const gpu_links *l, uint32_t group, const kedge_parcel *to,
                         const kedge_parcel *from) {
  const gpu_state *g = device->state;
  const uint32_t size = device->comm->size[group], rank = device->comm->rank[group];
  ncclComm_t comm = l->groups[group];
  for (uint32_t r = 0; r < size; r++) {
    if (r == rank) continue;
    if (to[r].bytes)
      KEDGE_TRY(NCCL(device, l, comm, Send, to[r].data, to[r].bytes, ncclInt8, (int)r, comm, g->stream));
    if (from[r].bytes)
      KEDGE_TRY(NCCL(device, l, comm, Recv, from[r].data, from[r].bytes, ncclInt8, (int)r, comm, g->stream));
  }
  return KEDGE_OK;
}

static kedge_status carrier_exchange(kedge_device *device, uint32_t group, const kedge_parcel *to,
                                     const kedge_parcel *from) {
  const gpu_links *l = ((gpu_state *)device->state)->links;
  const uint32_t rank = device->comm->rank[group];
  ncclResult_t earlier = ncclSuccess;
  if (from[rank].bytes && from[rank].data != to[rank].data)
    KEDGE_TRY(copy(device, from[rank].data, to[rank].data, from[rank].bytes));
  KEDGE_TRY(NCCL(device, l, l->groups[group], CommGetAsyncError, l->groups[group], &earlier));
  KEDGE_TRY(check(device, earlier, "Comm (found later)", l->groups[group]));
  KEDGE_TRY(NCCL(device, l, l->groups[group], GroupStart));
  const kedge_status posted = post(device, l, group, to, from);
  const ncclResult_t ended = l->nccl.GroupEnd();
  return posted == KEDGE_OK ? check(device, ended, "GroupEnd", l->groups[group]) : posted;
}

static kedge_status carrier_add(kedge_device *device, const kedge_addition *a) {
  const gpu_state *g = device->state;
  if (a->dtype != KEDGE_F32)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "%s: sums over ranks are in f32", device->description);
  kedge_gpu_add_parts(&(gpu_step){.stream = g->stream, .processors = g->processors}, a);
  return gpu__check(device, GPU(GetLastError)(), "adding parts");
}

static kedge_status carrier_repack(kedge_device *device, const kedge_repacking *p) {
  const gpu_state *g = device->state;
  if (!p->rows) return KEDGE_OK;
  kedge_gpu_repack(&(gpu_step){.stream = g->stream, .processors = g->processors}, p);
  return gpu__check(device, GPU(GetLastError)(), "ordering rows");
}

const kedge_carrier gpu__carrier = {.connect = carrier_connect,
                                    .exchange = carrier_exchange,
                                    .copy = copy,
                                    .clear = clear,
                                    .add = carrier_add,
                                    .repack = carrier_repack};
