/* SPDX-License-Identifier: Apache-2.0
 * The thread that sums gradients beside a backward pass (overlap.h). */
#include "models/parallel/overlap.h"

#include "core/collect.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

/* A bucket has so many bytes, or so many parameters: small ones go in one message. */
enum { BUCKET_BYTES = 4 << 20, BUCKET_ITEMS = 8 };

typedef struct bucket {
  uint32_t first, count; /* of the steps */
  uint32_t left;         /* gradients that are not complete yet */
} bucket;

struct kedge_overlap {
  kedge_comm comm; /* the run's, with groups of its own */
  kedge_comm *run;
  kedge_step *steps; /* reduce_scatter of each item, the last parameter first */
  kedge_args_reduce_scatter *args;
  uint32_t *bucket_of; /* by parameter; UINT32_MAX: none */
  uint32_t params;
  bucket *buckets;
  uint32_t bucket_count, complete; /* complete: buckets from the first on */
  void *scratch;
  kedge_overlap_times times;

  pthread_t thread;
  bool running;
  pthread_mutex_t lock; /* of what follows */
  pthread_cond_t changed;
  uint32_t handed, done;
  bool ending;
  kedge_status status;
  char message[1024];
};

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- The thread */

static kedge_status sum_bucket(kedge_overlap *o, const bucket *b) {
  const kedge_site site = {.comm = &o->comm};
  for (uint32_t at = 0, together; at < b->count; at += together ? together : 1) {
    const kedge_step *step = &o->steps[b->first + at];
    KEDGE_TRY(kedge__collective_together(&site, step, b->count - at, &together));
    if (!together) KEDGE_TRY(kedge__collective_reduce_scatter(&site, &step->call));
  }
  return KEDGE_OK;
}

static void *work(void *context) {
  kedge_overlap *o = context;
  pthread_mutex_lock(&o->lock);
  for (;;) {
    while (o->done == o->handed && !o->ending) pthread_cond_wait(&o->changed, &o->lock);
    if (o->done == o->handed) break;
    const bucket *b = &o->buckets[o->done];
    const bool fit = o->status == KEDGE_OK;
    pthread_mutex_unlock(&o->lock);
    const double start = now();
    const kedge_status status = fit ? sum_bucket(o, b) : KEDGE_OK;
    const double seconds = now() - start;
    pthread_mutex_lock(&o->lock);
    if (status != KEDGE_OK) {
      o->status = status;
      const char *told = kedge_message();
      const size_t length = strnlen(told, sizeof o->message - 1);
      memcpy(o->message, told, length);
      o->message[length] = 0;
    }
    o->times.summing += seconds;
    o->times.buckets++;
    o->done++;
    pthread_cond_broadcast(&o->changed);
  }
  pthread_mutex_unlock(&o->lock);
  return NULL;
}

/* ---- Making */

static kedge_status make_groups(kedge_overlap *o) {
  static const kedge_ranks groups[] = {KEDGE_RANKS_ALL, KEDGE_RANKS_REPLICAS};
  memset(o->comm.groups, 0, sizeof o->comm.groups);
  o->comm.sent = 0;
  for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
    const char *why = o->comm.transport->split(o->run->groups[groups[i]], 0, o->run->rank[groups[i]],
                                               &o->comm.groups[groups[i]]);
    if (why) return kedge_fail(KEDGE_ERR_DEVICE, "groups for sums beside the backward pass: %s", why);
  }
  return KEDGE_OK;
}

static void make_step(kedge_overlap *o, uint32_t i, const kedge_overlap_item *item) {
  const uint64_t count = kedge_buffer_size(item->gradient) / sizeof(float);
  o->args[i] = (kedge_args_reduce_scatter){.n = (uint32_t)count, .group = (uint32_t)item->ranks};
  o->steps[i] = (kedge_step){.op = KEDGE_OP_reduce_scatter, .call = {.args = &o->args[i]}};
  o->steps[i].call.in[0] = (kedge_tensor){.data = (void *)(uintptr_t)item->gradient->address,
                                          .dtype = KEDGE_F32,
                                          .rank = 1,
                                          .dims = {(uint32_t)count},
                                          .pitch = (uint32_t)count};
}

/* The last parameter first. */
static kedge_status make_buckets(kedge_overlap *o, const kedge_overlap_item *items, uint32_t count) {
  uint64_t bytes = 0, scratch = 0;
  o->params = items[count - 1].param + 1;
  o->steps = kedge_alloc(count, sizeof *o->steps);
  o->args = kedge_alloc(count, sizeof *o->args);
  o->buckets = kedge_alloc(count, sizeof *o->buckets);
  o->bucket_of = kedge_alloc(o->params, sizeof *o->bucket_of);
  if (!o->steps || !o->args || !o->buckets || !o->bucket_of) return KEDGE_ERR_MEMORY;
  for (uint32_t p = 0; p < o->params; p++) o->bucket_of[p] = UINT32_MAX;
  for (uint32_t i = 0; i < count; i++) {
    const kedge_overlap_item *item = &items[count - 1 - i];
    bucket *b = o->bucket_count ? &o->buckets[o->bucket_count - 1] : NULL;
    if (!b || bytes >= BUCKET_BYTES || b->count == BUCKET_ITEMS) {
      b = &o->buckets[o->bucket_count++];
      *b = (bucket){.first = i};
      bytes = 0;
    }
    make_step(o, i, item);
    o->bucket_of[item->param] = o->bucket_count - 1;
    b->count++;
    bytes += kedge_buffer_size(item->gradient);
  }
  for (uint32_t n = 0; n < o->bucket_count; n++)
    for (uint32_t i = 0; i < o->buckets[n].count; i++) {
      const uint64_t own =
          kedge__collective_scratch(o->run, &o->steps[o->buckets[n].first + i], o->buckets[n].count - i);
      if (own > scratch) scratch = own;
    }
  o->times.bytes = scratch;
  return KEDGE_OK;
}

static kedge_status make_scratch(kedge_overlap *o) {
  o->scratch = kedge_alloc(o->times.bytes, 1);
  for (uint32_t b = 0; b < o->bucket_count; b++)
    for (uint32_t i = 0; i < o->buckets[b].count; i++)
      o->steps[o->buckets[b].first + i].call.scratch = o->scratch;
  return o->scratch ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

static void free_buckets(kedge_overlap *o) {
  kedge_free(o->steps);
  kedge_free(o->args);
  kedge_free(o->buckets);
  kedge_free(o->bucket_of);
  kedge_free(o->scratch);
}

uint64_t kedge_overlap_bytes(kedge_comm *comm, const kedge_overlap_item *items, uint32_t count) {
  kedge_overlap o = {.run = comm};
  if (!items || !count) return 0;
  const kedge_status status = make_buckets(&o, items, count);
  free_buckets(&o);
  return status == KEDGE_OK ? o.times.bytes : 0;
}

static bool possible(const kedge_device *device) {
  const kedge_comm *comm = device->comm;
  return kedge_comm_size(comm, KEDGE_RANKS_ALL) > 1 && comm->transport && comm->transport->threads() &&
         device->limits.computes && device->limits.host_memory && !device->carries;
}

kedge_status kedge_overlap_new(kedge_device *device, const kedge_overlap_item *items, uint32_t count,
                               kedge_overlap **overlap) {
  *overlap = NULL;
  if (!possible(device) || (items && !count)) return KEDGE_OK;
  kedge_overlap *o = items ? kedge_alloc(1, sizeof *o) : NULL;
  kedge_status status = o ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (o) {
    o->comm = *device->comm;
    o->run = device->comm;
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->changed, NULL);
    status = make_buckets(o, items, count);
    if (status == KEDGE_OK) status = make_scratch(o);
  }
  status = kedge_comm_agree(device->comm, status);
  if (status == KEDGE_OK) status = make_groups(o);
  if (status == KEDGE_OK) {
    o->running = pthread_create(&o->thread, NULL, work, o) == 0;
    if (!o->running) status = kedge_fail(KEDGE_ERR_MEMORY, "no thread for sums beside the backward pass");
  }
  status = kedge_comm_agree(device->comm, status);
  if (status == KEDGE_OK)
    *overlap = o;
  else
    kedge_overlap_free(o);
  return status;
}

void kedge_overlap_free(kedge_overlap *o) {
  if (!o) return;
  if (o->running) {
    pthread_mutex_lock(&o->lock);
    const bool stuck = o->run->broken && o->done < o->handed;
    o->ending = true;
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->lock);
    if (stuck) { /* it waits for a rank that is gone; the process is about to end */
      pthread_detach(o->thread);
      return;
    }
    pthread_join(o->thread, NULL);
  }
  for (int g = 0; g < KEDGE_RANKS_COUNT; g++)
    if (o->comm.groups[g] && o->comm.groups[g] != o->run->groups[g])
      o->comm.transport->release(o->comm.groups[g]);
  pthread_mutex_destroy(&o->lock);
  pthread_cond_destroy(&o->changed);
  free_buckets(o);
  kedge_free(o);
}

/* ---- Use */

void kedge_overlap_begin(kedge_overlap *o) {
  for (uint32_t b = 0; b < o->bucket_count; b++) o->buckets[b].left = o->buckets[b].count;
  o->complete = 0;
  pthread_mutex_lock(&o->lock);
  o->handed = o->done = 0;
  pthread_mutex_unlock(&o->lock);
}

static void hand_over(kedge_overlap *o) {
  pthread_mutex_lock(&o->lock);
  o->handed = o->complete;
  pthread_cond_broadcast(&o->changed);
  pthread_mutex_unlock(&o->lock);
}

void kedge_overlap_complete(kedge_overlap *o, uint32_t param) {
  if (param >= o->params || o->bucket_of[param] == UINT32_MAX) return;
  o->buckets[o->bucket_of[param]].left--;
  const uint32_t before = o->complete;
  while (o->complete < o->bucket_count && !o->buckets[o->complete].left) o->complete++;
  if (o->complete < o->bucket_count) o->times.early += o->complete - before;
  if (o->complete > before) hand_over(o);
}

bool kedge_overlap_whole(const kedge_overlap *o) {
  return o->complete == o->bucket_count;
}

void kedge_overlap_give_up(kedge_overlap *o) {
  o->complete = o->bucket_count;
  hand_over(o);
}

kedge_status kedge_overlap_wait(kedge_overlap *o) {
  const double start = now();
  pthread_mutex_lock(&o->lock);
  while (o->done < o->handed) pthread_cond_wait(&o->changed, &o->lock);
  const kedge_status status = o->status;
  o->run->sent += o->comm.sent;
  o->comm.sent = 0;
  pthread_mutex_unlock(&o->lock);
  o->times.waiting += now() - start;
  o->times.updates++;
  if (status == KEDGE_OK) return KEDGE_OK;
  o->run->broken = true;
  return kedge_fail(status, "%s", o->message);
}

kedge_overlap_times kedge_overlap_measure(const kedge_overlap *o) {
  return o->times;
}
