/* SPDX-License-Identifier: Apache-2.0
 * Transport `alone`: the process is the only rank, and nothing is ever sent. Sibling: mpi.c, a module of its
 * own; find.c chooses. */
#include "core/comm.h"

#include <string.h>

static const char *alone_start(uint32_t *rank, uint32_t *size, void **world) {
  *rank = 0;
  *size = 1;
  *world = NULL;
  return NULL;
}

static const char *alone_split(void *group, uint32_t colour, uint32_t rank, void **part) {
  (void)group;
  (void)colour;
  (void)rank;
  *part = NULL;
  return NULL;
}

static void alone_release(void *group) {
  (void)group;
}

static const char *alone_exchange(void *group, const kedge_parcel *to, const kedge_parcel *from) {
  (void)group;
  if (from->bytes && from->data != to->data) memcpy(from->data, to->data, from->bytes);
  return NULL;
}

static const char *alone_gather(void *group, const void *mine, uint64_t bytes, void *all) {
  (void)group;
  memcpy(all, mine, bytes);
  return NULL;
}

static const char *alone_broadcast(void *group, uint32_t root, void *data, uint64_t bytes) {
  (void)group;
  (void)root;
  (void)data;
  (void)bytes;
  return NULL;
}

static bool alone_threads(void) {
  return false;
}

static const char *alone_local(uint32_t *rank, uint32_t *size) {
  *rank = 0;
  *size = 1;
  return NULL;
}

static const char *alone_watch(double limit, kedge_comm_lost lost, void *context, bool *on) {
  (void)limit;
  (void)lost;
  (void)context;
  *on = false;
  return NULL;
}

static void alone_stop(int code) {
  (void)code;
}

static void alone_finish(void) {}

const kedge_transport kedge__transport_alone = {.name = "alone",
                                                .start = alone_start,
                                                .split = alone_split,
                                                .release = alone_release,
                                                .exchange = alone_exchange,
                                                .gather = alone_gather,
                                                .broadcast = alone_broadcast,
                                                .threads = alone_threads,
                                                .local = alone_local,
                                                .watch = alone_watch,
                                                .stop = alone_stop,
                                                .finish = alone_finish};
