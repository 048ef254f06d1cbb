/* SPDX-License-Identifier: Apache-2.0
 *
 * Best-fit decreasing bins and bucket sizes; used by models/training/batches.c.
 */
#include "models/text/packing.h"

#include <limits.h>
#include <string.h>

enum { MIN_BUCKET = 16, NO_BIN = UINT32_MAX };

uint32_t kedge_bucket(uint32_t tokens) {
  if (tokens <= MIN_BUCKET) return MIN_BUCKET;
  uint32_t top = 31 - (uint32_t)__builtin_clz(tokens - 1); /* 2^top < tokens <= 2^(top+1) */
  uint32_t step = UINT32_C(1) << (top - 3);
  return (tokens + step - 1) / step * step;
}

void kedge_bins_destroy(kedge_bins *bins) {
  kedge_free(bins->offsets);
  kedge_free(bins->samples);
  *bins = (kedge_bins){0};
}

static kedge_status allocate(kedge_bins *bins, uint32_t count) {
  *bins = (kedge_bins){.offsets = kedge_alloc((size_t)count + 1, sizeof *bins->offsets),
                       .samples = kedge_alloc(count, sizeof *bins->samples)};
  if (bins->offsets && bins->samples) return KEDGE_OK;
  kedge_bins_destroy(bins);
  return KEDGE_ERR_MEMORY;
}

kedge_status kedge_bins_init_single(kedge_bins *bins, uint32_t count) {
  KEDGE_TRY(allocate(bins, count));
  bins->count = count;
  for (uint32_t i = 0; i < count; i++) {
    bins->samples[i] = i;
    bins->offsets[i + 1] = i + 1;
  }
  return KEDGE_OK;
}

/* Open bins by the room they have left: a list for each amount, and a bit for each list that is not empty. */
typedef struct rooms {
  uint64_t *bits;  /* [capacity/64+1] */
  uint32_t *heads; /* [capacity+1] a bin with that room */
  uint32_t *next;  /* [count] the next bin with the same room */
  uint32_t capacity;
} rooms;

static void rooms_push(rooms *r, uint32_t room, uint32_t bin) {
  r->next[bin] = r->heads[room];
  r->heads[room] = bin;
  r->bits[room / 64] |= UINT64_C(1) << room % 64;
}

/* Takes a bin with the least room that is at least `length`; NO_BIN if none has. */
static uint32_t rooms_take(rooms *r, uint32_t length, uint32_t *room) {
  uint32_t word = length / 64, words = r->capacity / 64 + 1;
  uint64_t bits = r->bits[word] & UINT64_MAX << length % 64;
  while (!bits) {
    if (++word == words) return NO_BIN;
    bits = r->bits[word];
  }
  *room = word * 64 + (uint32_t)__builtin_ctzll(bits);
  uint32_t bin = r->heads[*room];
  r->heads[*room] = r->next[bin];
  if (r->heads[*room] == NO_BIN) r->bits[word] &= ~(UINT64_C(1) << *room % 64);
  return bin;
}

/* Counting sort of the samples by length, longest first, equal ones in order. `starts` is scratch
 * [capacity+2]. */
static void sort_by_length(const uint32_t *lengths, uint32_t count, uint32_t capacity, uint32_t *starts,
                           uint32_t *order) {
  memset(starts, 0, ((size_t)capacity + 2) * sizeof *starts);
  for (uint32_t i = 0; i < count; i++) starts[capacity - lengths[i] + 1]++;
  for (uint32_t l = 0; l <= capacity; l++) starts[l + 1] += starts[l];
  for (uint32_t i = 0; i < count; i++) order[starts[capacity - lengths[i]]++] = i;
}

/* Turns bin_of [count] into the bins' lists; samples of a bin in the order in which they were placed. */
static void fill(kedge_bins *bins, const uint32_t *order, const uint32_t *bin_of, uint32_t count,
                 uint32_t *at) {
  for (uint32_t i = 0; i < count; i++) bins->offsets[bin_of[i] + 1]++;
  for (uint32_t b = 0; b < bins->count; b++) bins->offsets[b + 1] += bins->offsets[b];
  memcpy(at, bins->offsets, (size_t)bins->count * sizeof *at);
  for (uint32_t i = 0; i < count; i++) bins->samples[at[bin_of[order[i]]]++] = order[i];
}

kedge_status kedge_bins_init(kedge_bins *bins, const uint32_t *lengths, uint32_t count, uint32_t capacity) {
  *bins = (kedge_bins){0};
  if (capacity > INT32_MAX)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "packing rows of %u tokens are too long", capacity);
  for (uint32_t i = 0; i < count; i++)
    if (!lengths[i] || lengths[i] > capacity)
      return kedge_fail(KEDGE_ERR_ARGUMENT, "packing: sample %u has %u tokens, a row holds %u", i, lengths[i],
                        capacity);
  kedge_status status = KEDGE_ERR_MEMORY;
  rooms r = {.capacity = capacity};
  uint32_t *order = NULL, *bin_of = NULL, *starts = NULL;
  if (!(r.bits = kedge_alloc(capacity / 64 + 1, sizeof *r.bits))) goto done;
  if (!(r.heads = kedge_alloc((size_t)capacity + 1, sizeof *r.heads))) goto done;
  if (!(r.next = kedge_alloc(count, sizeof *r.next))) goto done;
  if (!(order = kedge_alloc(count, sizeof *order))) goto done;
  if (!(bin_of = kedge_alloc(count, sizeof *bin_of))) goto done;
  if (!(starts = kedge_alloc((size_t)capacity + 2, sizeof *starts))) goto done;
  KEDGE_GOTO(allocate(bins, count), status, done);
  for (uint32_t room = 0; room <= capacity; room++) r.heads[room] = NO_BIN;
  sort_by_length(lengths, count, capacity, starts, order);
  for (uint32_t i = 0; i < count; i++) {
    uint32_t length = lengths[order[i]], room = capacity, bin = rooms_take(&r, length, &room);
    if (bin == NO_BIN) {
      bin = bins->count++;
      room = capacity;
    }
    bin_of[order[i]] = bin;
    rooms_push(&r, room - length, bin);
  }
  fill(bins, order, bin_of, count, r.next);
  status = KEDGE_OK;
done:
  kedge_free(r.bits);
  kedge_free(r.heads);
  kedge_free(r.next);
  kedge_free(order);
  kedge_free(bin_of);
  kedge_free(starts);
  return status;
}
