/* SPDX-License-Identifier: Apache-2.0
 * Host memory: one allocator for the whole library, with a hook that makes the nth allocation fail. */
#include "core/kedge.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Atomic uint64_t allocations, fail_at;

uint64_t kedge_alloc_fail_nth(uint64_t nth) {
  uint64_t made = atomic_exchange(&allocations, 0);
  atomic_store(&fail_at, nth);
  return made;
}

/* Counts one allocation; false if it is the one that must fail. */
static bool allowed(void) {
  uint64_t now = atomic_fetch_add(&allocations, 1) + 1;
  uint64_t at = atomic_load(&fail_at);
  if (at && now == at) {
    atomic_store(&fail_at, 0);
    return false;
  }
  return true;
}

static void *failed(size_t count, size_t size) {
  kedge_fail(KEDGE_ERR_MEMORY, "out of memory: %zu x %zu bytes", count, size);
  return NULL;
}

void *kedge_alloc(size_t count, size_t size) {
  void *memory = allowed() ? calloc(count ? count : 1, size ? size : 1) : NULL;
  return memory ? memory : failed(count, size);
}

void *kedge_realloc(void *memory, size_t count, size_t size) {
  size_t bytes;
  if (!allowed() || __builtin_mul_overflow(count, size, &bytes)) return failed(count, size);
  void *grown = realloc(memory, bytes ? bytes : 1);
  return grown ? grown : failed(count, size);
}

void kedge_free(void *memory) {
  free(memory);
}

char *kedge_strdup(const char *text) {
  size_t size = strlen(text) + 1;
  char *copy = kedge_alloc(size, 1);
  if (copy) memcpy(copy, text, size);
  return copy;
}

char *kedge_format(const char *format, ...) {
  va_list list;
  va_start(list, format);
  int length = vsnprintf(NULL, 0, format, list);
  va_end(list);
  if (length < 0) return failed(1, 0);
  char *text = kedge_alloc((size_t)length + 1, 1);
  if (!text) return NULL;
  va_start(list, format);
  vsnprintf(text, (size_t)length + 1, format, list);
  va_end(list);
  return text;
}
