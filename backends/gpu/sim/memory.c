/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the simulated card (sim.h). A buffer has guards before and behind it. Shared arrays lie in one
 * arena of 48 KiB, as much as every card offers, are full of NaN when a block first names them, and have red
 * zones between them, which the address sanitizer watches where it is there.
 */
#include "backends/gpu/sim/sim.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

extern void __asan_poison_memory_region(void const volatile *at, size_t size) __attribute__((weak));
extern void __asan_unpoison_memory_region(void const volatile *at, size_t size) __attribute__((weak));

static void watch(void *at, size_t bytes) {
  if (__asan_poison_memory_region) __asan_poison_memory_region(at, bytes);
}
static void unwatch(void *at, size_t bytes) {
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(at, bytes);
}

static bool untouched(const unsigned char *at, size_t bytes, unsigned char want) {
  for (size_t i = 0; i < bytes; i++)
    if (at[i] != want) return false;
  return true;
}

/* The compiler is told to leave these loops what they are (cmake/gpu.cmake). */
void sim__copy(void *to, const void *from, size_t bytes) {
  unsigned char *t = to;
  const unsigned char *f = from;
  for (; bytes >= 4; bytes -= 4, t += 4, f += 4) __builtin_memcpy(t, f, 4);
  while (bytes--) *t++ = *f++;
}
void sim__set(void *at, unsigned char byte, size_t bytes) {
  unsigned char *t = at;
  const uint64_t word = byte * (uint64_t)0x0101010101010101;
  for (; bytes >= 8; bytes -= 8, t += 8) __builtin_memcpy(t, &word, 8);
  while (bytes--) *t++ = byte;
}

/* ---- Buffers */

enum { GUARD = 256, GUARD_BYTE = 0xb7 };
typedef struct buffer {
  struct buffer *next, *previous;
  unsigned char *base; /* of the guard before */
  size_t bytes;
} buffer;
static buffer buffers = {&buffers, &buffers, NULL, 0};
static pthread_mutex_t buffers_lock = PTHREAD_MUTEX_INITIALIZER;

/* The multiple of 8 at or behind a size: the sanitizer's granule. */
static size_t rounded(size_t bytes) {
  return (bytes + 7) / 8 * 8;
}

void *sim_buffer_new(size_t bytes) {
  buffer *b = calloc(1, sizeof *b);
  void *memory = NULL;
  if (!b || bytes > SIZE_MAX - 4 * GUARD || posix_memalign(&memory, GUARD, rounded(bytes) + 2 * GUARD)) {
    free(b);
    return NULL;
  }
  b->base = memory;
  b->bytes = bytes;
  memset(b->base, GUARD_BYTE, GUARD);
  memset(b->base + GUARD, 0, bytes);
  memset(b->base + GUARD + bytes, GUARD_BYTE, GUARD + rounded(bytes) - bytes);
  watch(b->base, GUARD);
  watch(b->base + GUARD + rounded(bytes), GUARD);
  pthread_mutex_lock(&buffers_lock);
  b->next = buffers.next;
  b->previous = &buffers;
  b->next->previous = buffers.next = b;
  pthread_mutex_unlock(&buffers_lock);
  return b->base + GUARD;
}

static void check(buffer *b) {
  if (!untouched(b->base, GUARD, GUARD_BYTE))
    sim_fail("a kernel wrote before a buffer of %zu bytes", b->bytes);
  if (!untouched(b->base + GUARD + b->bytes, GUARD, GUARD_BYTE))
    sim_fail("a kernel wrote behind a buffer of %zu bytes", b->bytes);
}

void sim_buffer_free(void *memory) {
  if (!memory) return;
  pthread_mutex_lock(&buffers_lock);
  buffer *b = buffers.next;
  while (b != &buffers && b->base + GUARD != memory) b = b->next;
  if (b != &buffers) {
    check(b);
    b->previous->next = b->next;
    b->next->previous = b->previous;
    unwatch(b->base, rounded(b->bytes) + 2 * GUARD);
    free(b->base);
    free(b);
  }
  pthread_mutex_unlock(&buffers_lock);
}

void sim_buffers_check(void) {
  pthread_mutex_lock(&buffers_lock);
  for (buffer *b = buffers.next; b != &buffers; b = b->next) check(b);
  pthread_mutex_unlock(&buffers_lock);
}

/* ---- Shared arrays of the running block */

enum { ZONE = 64, ZONE_BYTE = 0xa5, MAX_ARRAYS = 16 };
typedef struct array {
  const void *key;
  const char *name;
  size_t offset, bytes;
} array;
static array arrays[MAX_ARRAYS];
static uint32_t array_count;
static size_t used, claimed; /* with, without red zones */
enum { PAGE = 1024, ARENA = SIM_SHARED_BYTES + (MAX_ARRAYS + 1) * (ZONE + PAGE) }; /* ends of large arrays */
static _Alignas(PAGE) unsigned char arenas[SIM_POOLS][(ARENA + PAGE - 1) / PAGE * PAGE];
static unsigned char *arena = arenas[0];

void sim__shared_begin(uint32_t which) {
  arena = arenas[which];
  unwatch(arena, ARENA);
  array_count = 0;
  claimed = 0;
  used = ZONE;
  sim__set(arena, ZONE_BYTE, ZONE);
  watch(arena, ZONE);
}

void *sim_shared(const void *key, size_t bytes, const char *name) {
  for (uint32_t i = 0; i < array_count; i++)
    if (arrays[i].key == key) return arena + arrays[i].offset;
  claimed += (bytes + 15) / 16 * 16;
  if (array_count == MAX_ARRAYS || claimed > SIM_SHARED_BYTES) {
    sim_fail("shared array %s of %zu bytes: more than %d arrays or %d bytes", name, bytes, MAX_ARRAYS,
             SIM_SHARED_BYTES);
    return arena; /* not reached: sim_fail leaves the kernel */
  }
  if (bytes >= PAGE) { /* descriptors of operands want it */
    const size_t first = (used + PAGE - 1) / PAGE * PAGE;
    sim__set(arena + used, ZONE_BYTE, first - used);
    watch(arena + used, first - used);
    used = first;
  }
  array *a = &arrays[array_count++];
  *a = (array){key, name, used, bytes};
  size_t end = used + bytes, next = (end + ZONE + 63) / 64 * 64;
  sim__set(arena + used, 0xff, bytes);
  sim__set(arena + end, ZONE_BYTE, next - end);
  watch(arena + rounded(end), next - rounded(end));
  used = next;
  return arena + a->offset;
}

uint32_t sim_shared_address(const void *at) {
  const uintptr_t from = (uintptr_t)at - (uintptr_t)arena;
  if (from >= ARENA) sim_fail("%p is not in shared memory", at);
  return (uint32_t)from;
}

const void *sim_shared_at(uint32_t address) {
  if (address >= ARENA) sim_fail("there is no shared memory at %u", address);
  return arena + address;
}

bool sim__shared_end(const char *kernel, uint32_t block) {
  bool whole = untouched(arena, ZONE, ZONE_BYTE);
  const char *name = "the first array, before it";
  for (uint32_t i = 0; i < array_count && whole; i++) {
    size_t end = arrays[i].offset + arrays[i].bytes;
    size_t next = i + 1 < array_count ? arrays[i + 1].offset : used;
    whole = untouched(arena + end, next - end, ZONE_BYTE);
    name = arrays[i].name;
  }
  unwatch(arena, ARENA);
  if (!whole) sim_fail("%s, block %u: shared array %s was overrun", kernel, block, name);
  return whole;
}
