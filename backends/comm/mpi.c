/* SPDX-License-Identifier: Apache-2.0
 *
 * Transport `mpi`, a module of its own (libkedge-mpi.so, loaded by find.c). MPI launches, moves bytes and
 * forms groups; sums are made above (collectives.c). Heartbeats go over MPI too, from a thread: a broken link
 * or a hung rank is found after `limit` seconds, where a TCP connection alone would wait for many minutes.
 * Waiting ranks give their core away, so that more ranks than cores still get on. */
#include "core/comm.h"

#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TAG = 7, BEAT_TAG = 11, MESSAGE = 1 << 30, ABORT_SECONDS = 5 };
#define BEAT_SECONDS 1.0

typedef struct group {
  MPI_Comm comm;
  int size, rank;
  MPI_Request *requests;
  size_t capacity;
} group;

static group world;
static bool threads_allowed;
static _Thread_local char failure[MPI_MAX_ERROR_STRING + 64];

static const char *checked(int code) {
  int length = 0;
  if (code == MPI_SUCCESS) return NULL;
  if (MPI_Error_string(code, failure, &length) != MPI_SUCCESS)
    snprintf(failure, sizeof failure, "error %d", code);
  return failure;
}

#define TRY(call)                                                                                            \
  do {                                                                                                       \
    const char *failed_ = checked(call);                                                                     \
    if (failed_) return failed_;                                                                             \
  } while (0)

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void rest(long nanoseconds) {
  const struct timespec t = {0, nanoseconds};
  nanosleep(&t, NULL);
}

static const char *group_init(group *g, MPI_Comm comm) {
  g->comm = comm;
  TRY(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
  TRY(MPI_Comm_size(comm, &g->size));
  TRY(MPI_Comm_rank(comm, &g->rank));
  return NULL;
}

static const char *mpi_start(uint32_t *rank, uint32_t *size, void **handle) {
  int provided = 0, running = 0;
  TRY(MPI_Initialized(&running));
  if (!running) TRY(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided));
  threads_allowed = provided == MPI_THREAD_MULTIPLE;
  const char *why = group_init(&world, MPI_COMM_WORLD);
  if (why) return why;
  *rank = (uint32_t)world.rank;
  *size = (uint32_t)world.size;
  *handle = &world;
  return NULL;
}

static const char *mpi_split(void *handle, uint32_t colour, uint32_t rank, void **part) {
  const group *g = handle;
  MPI_Comm comm;
  TRY(MPI_Comm_split(g->comm, (int)colour, (int)rank, &comm));
  group *made = *part = calloc(1, sizeof *made);
  if (!made) return "no memory for a group";
  return group_init(made, comm);
}

static void mpi_release(void *handle) {
  group *g = handle;
  MPI_Comm_free(&g->comm);
  free(g->requests);
  free(g);
}

/* Waits for requests [0, count): at first eagerly, then with naps. */
static const char *wait_all(MPI_Request *requests, size_t count) {
  const double start = now();
  for (int done = 0;;) {
    TRY(MPI_Testall((int)count, requests, &done, MPI_STATUSES_IGNORE));
    if (done) return NULL;
    if (now() - start < 1e-3)
      sched_yield();
    else
      rest(50000);
  }
}

static const char *reserve(group *g, size_t count) {
  if (count <= g->capacity) return NULL;
  MPI_Request *grown = realloc(g->requests, count * sizeof *grown);
  if (!grown) return "no memory for requests";
  g->requests = grown;
  g->capacity = count;
  return NULL;
}

static size_t messages(uint64_t bytes) {
  return (size_t)((bytes + MESSAGE - 1) / MESSAGE);
}

/* Sends or receives a parcel in messages of at most a GiB. */
static const char *post(group *g, const kedge_parcel *p, int other, bool send, size_t *count) {
  for (uint64_t at = 0; at < p->bytes; at += MESSAGE) {
    const int n = p->bytes - at < MESSAGE ? (int)(p->bytes - at) : (int)MESSAGE;
    char *data = (char *)p->data + at;
    MPI_Request *request = &g->requests[(*count)++];
    TRY(send ? MPI_Isend(data, n, MPI_BYTE, other, TAG, g->comm, request)
             : MPI_Irecv(data, n, MPI_BYTE, other, TAG, g->comm, request));
  }
  return NULL;
}

static const char *mpi_exchange(void *handle, const kedge_parcel *to, const kedge_parcel *from) {
  group *g = handle;
  size_t most = 0, count = 0;
  for (int r = 0; r < g->size; r++) most += messages(to[r].bytes) + messages(from[r].bytes);
  const char *why = reserve(g, most);
  /* Each begins with its right neighbour, so that not all talk to rank 0 first. */
  for (int i = 1; !why && i < g->size; i++) {
    const int source = (g->rank + g->size - i) % g->size;
    why = post(g, &from[source], source, false, &count);
  }
  for (int i = 1; !why && i < g->size; i++) {
    const int target = (g->rank + i) % g->size;
    why = post(g, &to[target], target, true, &count);
  }
  if (why) return why;
  if (from[g->rank].bytes) memmove(from[g->rank].data, to[g->rank].data, from[g->rank].bytes);
  return wait_all(g->requests, count);
}

static const char *mpi_gather(void *handle, const void *mine, uint64_t bytes, void *all) {
  const group *g = handle;
  MPI_Request request;
  if (bytes > MESSAGE) return "a message over 1 GiB";
  TRY(MPI_Iallgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, g->comm, &request));
  return wait_all(&request, 1);
}

static const char *mpi_broadcast(void *handle, uint32_t root, void *data, uint64_t bytes) {
  const group *g = handle;
  for (uint64_t at = 0; at < bytes; at += MESSAGE) {
    const int n = bytes - at < MESSAGE ? (int)(bytes - at) : (int)MESSAGE;
    MPI_Request request;
    TRY(MPI_Ibcast((char *)data + at, n, MPI_BYTE, (int)root, g->comm, &request));
    const char *why = wait_all(&request, 1);
    if (why) return why;
  }
  return NULL;
}

static bool mpi_threads(void) {
  return threads_allowed;
}

static const char *mpi_local(uint32_t *rank, uint32_t *size) {
  MPI_Comm comm;
  int r = 0, s = 1;
  TRY(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world.rank, MPI_INFO_NULL, &comm));
  TRY(MPI_Comm_rank(comm, &r));
  TRY(MPI_Comm_size(comm, &s));
  TRY(MPI_Comm_free(&comm));
  *rank = (uint32_t)r;
  *size = (uint32_t)s;
  return NULL;
}

/* ---- Heartbeats: everyone to rank 0 and rank 0 to everyone, each second
 * ---------------------------------------------- */

typedef struct beat {
  MPI_Request request; /* of the last one sent: another one waits for its end */
  char byte;
  double heard;
} beat;

static struct {
  MPI_Comm comm;
  pthread_t thread;
  bool running;
  volatile bool ending;
  double limit;
  kedge_comm_lost lost;
  void *context;
  beat *beats; /* one a rank */
} heart;

static void send_beat(int other) {
  beat *b = &heart.beats[other];
  int done = 1;
  if (b->request != MPI_REQUEST_NULL && MPI_Test(&b->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
    return;
  if (done) MPI_Isend(&b->byte, 1, MPI_BYTE, other, BEAT_TAG, heart.comm, &b->request);
}

static void hear_beats(void) {
  MPI_Status status;
  char byte;
  int there = 1;
  while (MPI_Iprobe(MPI_ANY_SOURCE, BEAT_TAG, heart.comm, &there, &status) == MPI_SUCCESS && there)
    if (MPI_Recv(&byte, 1, MPI_BYTE, status.MPI_SOURCE, BEAT_TAG, heart.comm, MPI_STATUS_IGNORE) ==
        MPI_SUCCESS)
      heart.beats[status.MPI_SOURCE].heard = now();
}

static void *listen_thread(void *unused) {
  const int first = world.rank ? 0 : 1, last = world.rank ? 1 : world.size;
  double sent = 0, before = now();
  (void)unused;
  while (!heart.ending) {
    const double time = now();
    /* A process that was itself stopped for a while cannot say who was silent. */
    for (int r = first; r < last && time - before > heart.limit / 3; r++) heart.beats[r].heard = time;
    before = time;
    if (time - sent >= BEAT_SECONDS) {
      for (int r = first; r < last; r++) send_beat(r);
      sent = time;
    }
    hear_beats();
    for (int r = first; r < last; r++) {
      const double silent = time - heart.beats[r].heard;
      if (silent > heart.limit && !heart.ending) {
        heart.lost(heart.context, (uint32_t)r, silent);
        heart.beats[r].heard = time;
      }
    }
    rest(100000000);
  }
  return NULL;
}

static const char *mpi_watch(double limit, kedge_comm_lost lost, void *context, bool *on) {
  *on = false;
  if (!threads_allowed || heart.running) return NULL;
  TRY(MPI_Comm_dup(MPI_COMM_WORLD, &heart.comm));
  TRY(MPI_Comm_set_errhandler(heart.comm, MPI_ERRORS_RETURN));
  heart.beats = calloc((size_t)world.size, sizeof *heart.beats);
  if (!heart.beats) return "no memory for heartbeats";
  for (int r = 0; r < world.size; r++) heart.beats[r] = (beat){MPI_REQUEST_NULL, 0, now()};
  heart.limit = limit;
  heart.lost = lost;
  heart.context = context;
  heart.running = *on = pthread_create(&heart.thread, NULL, listen_thread, NULL) == 0;
  return NULL;
}

/* ---- The end
 * ------------------------------------------------------------------------------------------------------ */

static void *abort_thread(void *code) {
  MPI_Abort(MPI_COMM_WORLD, *(int *)code);
  return NULL;
}

/* MPI_Abort itself may hang where a link is broken: it gets some seconds. */
static void mpi_stop(int code) {
  static int status;
  pthread_t thread;
  status = code;
  if (pthread_create(&thread, NULL, abort_thread, &status)) return;
  sleep(ABORT_SECONDS);
}

/* Nobody stops beating before everyone has come here. */
static void mpi_finish(void) {
  MPI_Request request;
  if (MPI_Ibarrier(MPI_COMM_WORLD, &request) == MPI_SUCCESS) wait_all(&request, 1);
  if (heart.running) {
    heart.ending = true;
    pthread_join(heart.thread, NULL);
    MPI_Barrier(heart.comm);
    hear_beats();
    free(heart.beats);
    heart.beats = NULL;
    heart.running = false;
  }
  free(world.requests);
  world.requests = NULL;
  MPI_Finalize();
}

extern const kedge_transport kedge_transport_mpi;
const kedge_transport kedge_transport_mpi = {.name = "mpi",
                                             .start = mpi_start,
                                             .split = mpi_split,
                                             .release = mpi_release,
                                             .exchange = mpi_exchange,
                                             .gather = mpi_gather,
                                             .broadcast = mpi_broadcast,
                                             .threads = mpi_threads,
                                             .local = mpi_local,
                                             .watch = mpi_watch,
                                             .stop = mpi_stop,
                                             .finish = mpi_finish};
