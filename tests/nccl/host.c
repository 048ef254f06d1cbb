/* SPDX-License-Identifier: Apache-2.0
 *
 * libkedge-test-nccl.so: the functions of nccl.def between processes of one machine, on host memory, so that
 * the simulated card goes the whole way that cuda and hip go with NCCL and RCCL. A communicator is a piece of
 * shared memory that is found by its id, with a ring of bytes from every rank to every other. It is strict
 * where NCCL hangs or corrupts: a length that differs on both sides, a rank that is not there, a group that
 * was not begun are errors. Operations run when a group ends, in the order in which they were posted.
 *
 * KEDGE_TEST_NCCL_FAULT: `<function>:<rank>` makes that function of that rank of a communicator fail, `flip`
 * changes a bit of everything that is received.
 */
#include "backends/gpu/nccl_types.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define NCCL_STREAM                             void *
#define NCCL_FUNCTION(result, name, parameters) result nccl##name parameters;
#include "backends/gpu/nccl.def"

enum { RING = 1 << 16, MOST_OPS = 4096, VERSION = 99900 };

typedef struct ring {
  _Atomic uint64_t written, read;
  char bytes[RING];
} ring;

typedef struct shared {
  _Atomic uint32_t joined;
  ring rings[]; /* [from][to] */
} shared;

struct ncclComm {
  shared *memory;
  size_t bytes;
  int size, rank;
};

typedef struct operation {
  ncclComm_t comm;
  char *data;
  uint64_t length, done; /* done: of the header and the data */
  int peer;
  bool send;
  char header[8];
} operation;

static operation operations[MOST_OPS];
static size_t posted;
static int depth;
static char last[200];

static ncclResult_t fail(ncclResult_t result, const char *text) {
  snprintf(last, sizeof last, "%s", text);
  return result;
}

static bool faulty(const char *function, int rank) {
  char own[64];
  const char *fault = getenv("KEDGE_TEST_NCCL_FAULT");
  snprintf(own, sizeof own, "%s:%d", function, rank);
  return fault && !strcmp(fault, own);
}

const char *ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess           ? "no error"
         : result == ncclSystemError     ? "unhandled system error"
         : result == ncclInvalidArgument ? "invalid argument"
                                         : "invalid usage";
}

const char *ncclGetLastError(ncclComm_t comm) {
  (void)comm;
  return last;
}

ncclResult_t ncclGetVersion(int *version) {
  *version = VERSION;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  static int count;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  memset(id, 0, sizeof *id);
  snprintf(id->internal, sizeof id->internal, "/kedge-nccl-%ld-%d-%lx%lx", (long)getpid(), count++,
           (unsigned long)now.tv_sec, (unsigned long)now.tv_nsec);
  return ncclSuccess;
}

static void rest(void) {
  const struct timespec t = {0, 20000};
  nanosleep(&t, NULL);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank) {
  const size_t bytes = sizeof(shared) + (size_t)size * (size_t)size * sizeof(ring);
  if (size < 1 || rank < 0 || rank >= size) return fail(ncclInvalidArgument, "a rank outside of the ranks");
  if (faulty("CommInitRank", rank)) return fail(ncclSystemError, "a fault that was asked for");
  const int file = shm_open(id.internal, O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, (off_t)bytes)) return fail(ncclSystemError, "no shared memory");
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  ncclComm_t c = *comm = calloc(1, sizeof *c);
  if (memory == MAP_FAILED || !c) return fail(ncclSystemError, "no memory");
  *c = (struct ncclComm){memory, bytes, size, rank};
  atomic_fetch_add(&c->memory->joined, 1);
  while (atomic_load(&c->memory->joined) < (uint32_t)size) rest();
  if (!rank) shm_unlink(id.internal);
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  munmap(comm->memory, comm->bytes);
  free(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return ncclCommDestroy(comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
  (void)comm;
  *error = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart(void) {
  depth++;
  return ncclSuccess;
}

static ncclResult_t post(operation op) {
  if (op.peer < 0 || op.peer >= op.comm->size) return fail(ncclInvalidArgument, "no such peer");
  if (!depth) return fail(ncclInvalidUsage, "outside of a group");
  if (posted == MOST_OPS) return fail(ncclInvalidUsage, "too many operations in a group");
  if (op.send) memcpy(op.header, &op.length, sizeof op.header);
  operations[posted++] = op;
  return ncclSuccess;
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      void *stream) {
  (void)type, (void)stream;
  if (faulty("Send", comm->rank)) return fail(ncclSystemError, "a fault that was asked for");
  return post((operation){comm, (char *)(uintptr_t)data, count, 0, peer, true, ""});
}

ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      void *stream) {
  (void)type, (void)stream;
  if (faulty("Recv", comm->rank)) return fail(ncclSystemError, "a fault that was asked for");
  return post((operation){comm, data, count, 0, peer, false, ""});
}

/* The part of an operation that comes next: what is left of the header, then of the data. */
static char *next(operation *op, uint64_t *bytes) {
  if (op->done < sizeof op->header) {
    *bytes = sizeof op->header - op->done;
    return op->header + op->done;
  }
  const uint64_t at = op->done - sizeof op->header;
  *bytes = op->length - at;
  return op->data + at;
}

/* Moves what the ring has room or bytes for. */
static ncclResult_t move(operation *op, bool *moved) {
  const int from = op->send ? op->comm->rank : op->peer, to = op->send ? op->peer : op->comm->rank;
  ring *r = &op->comm->memory->rings[from * op->comm->size + to];
  const uint64_t written = atomic_load(&r->written), read = atomic_load(&r->read);
  const uint64_t there = op->send ? RING - (written - read) : written - read;
  const uint64_t place = (op->send ? written : read) % RING;
  uint64_t bytes;
  char *own = next(op, &bytes);
  if (bytes > there) bytes = there;
  if (bytes > RING - place) bytes = RING - place;
  if (!bytes) return ncclSuccess;
  memcpy(op->send ? r->bytes + place : own, op->send ? own : r->bytes + place, bytes);
  atomic_store(op->send ? &r->written : &r->read, (op->send ? written : read) + bytes);
  op->done += bytes;
  *moved = true;
  uint64_t length;
  memcpy(&length, op->header, sizeof length);
  if (!op->send && op->done == sizeof op->header && length != op->length)
    return fail(ncclInvalidUsage, "a message of another length than was sent");
  return ncclSuccess;
}

static bool done(const operation *op) {
  return op->done == op->length + sizeof op->header;
}

/* An operation waits for earlier ones of its communicator, peer and direction. */
static bool waits(const operation *op) {
  for (const operation *o = operations; o < op; o++)
    if (!done(o) && o->comm == op->comm && o->peer == op->peer && o->send == op->send) return true;
  return false;
}

ncclResult_t ncclGroupEnd(void) {
  const char *fault = getenv("KEDGE_TEST_NCCL_FAULT");
  ncclResult_t result = ncclSuccess;
  if (!depth) return fail(ncclInvalidUsage, "no group was begun");
  if (--depth) return ncclSuccess;
  for (size_t left = posted; left && result == ncclSuccess;) {
    bool moved = false;
    left = 0;
    for (size_t i = 0; i < posted && result == ncclSuccess; i++) {
      operation *op = &operations[i];
      if (done(op)) continue;
      if (!waits(op)) result = move(op, &moved);
      left += !done(op);
    }
    if (!moved && left) rest();
  }
  for (size_t i = 0; fault && !strcmp(fault, "flip") && i < posted; i++)
    if (!operations[i].send) operations[i].data[0] ^= 1;
  posted = 0;
  return result;
}
