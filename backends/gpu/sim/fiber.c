/* SPDX-License-Identifier: Apache-2.0
 *
 * Fibers (fiber.h): a dozen instructions on x86-64, ucontext elsewhere. The address and the thread sanitizer
 * are told of every switch, through weak references, so that one build serves with and without them. This
 * file itself is built without sanitizers.
 */
#include "backends/gpu/sim/fiber.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

enum { STACK = 128 * 1024, GUARD = 4096 };

#if defined(__x86_64__)
typedef void *context;
#else
typedef ucontext_t context;
#endif

struct fiber {
  context at;
  char *stack; /* above its guard page */
  void (*main)(void);
  void *fake;   /* the address sanitizer's */
  void *racing; /* the thread sanitizer's: what it takes for a thread */
};

extern void __sanitizer_start_switch_fiber(void **save, const void *bottom, size_t size)
    __attribute__((weak));
extern void __sanitizer_finish_switch_fiber(void *save, const void **bottom, size_t *size)
    __attribute__((weak));
extern void __asan_unpoison_memory_region(void const volatile *at, size_t size) __attribute__((weak));

extern void *__tsan_get_current_fiber(void) __attribute__((weak));
extern void *__tsan_create_fiber(unsigned flags) __attribute__((weak));
extern void __tsan_destroy_fiber(void *fiber) __attribute__((weak));
extern void __tsan_switch_to_fiber(void *fiber, unsigned flags) __attribute__((weak));
extern void __tsan_acquire(void *object) __attribute__((weak));
extern void __tsan_release(void *object) __attribute__((weak));
extern void __tsan_read_range(void *at, unsigned long size) __attribute__((weak));
extern void __tsan_write_range(void *at, unsigned long size) __attribute__((weak));
enum { SWITCH_WITHOUT_ORDER = 1 };

static fiber host; /* the thread's own stack */
static const void *host_bottom;
static size_t host_size;
static bool from_host;

static void arrived(fiber *now, bool fresh) {
  if (!__sanitizer_finish_switch_fiber) return;
  const void *bottom;
  size_t size;
  __sanitizer_finish_switch_fiber(fresh ? NULL : now->fake, &bottom, &size);
  if (from_host) {
    host_bottom = bottom;
    host_size = size;
  }
}

/* ---- For the thread sanitizer */

bool fiber_watched(void) {
  return __tsan_create_fiber != NULL;
}
void fiber_publish(const void *object) {
  if (__tsan_release) __tsan_release((void *)(uintptr_t)object);
}
void fiber_observe(const void *object) {
  if (__tsan_acquire) __tsan_acquire((void *)(uintptr_t)object);
}
void fiber_copies(void *to, const void *from, size_t bytes) {
  if (__tsan_read_range) __tsan_read_range((void *)(uintptr_t)from, bytes);
  if (__tsan_write_range) __tsan_write_range(to, bytes);
}

/* ---- Switches */

static fiber *entering;

#if defined(__x86_64__)
void kedge__fiber_jump(void **save, void *load);
__asm__(".text\n.type kedge__fiber_jump, @function\n.hidden kedge__fiber_jump\nkedge__fiber_jump:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
        ".size kedge__fiber_jump, . - kedge__fiber_jump\n");
#endif

static void begin(void) {
  fiber *f = entering;
  arrived(f, true);
  f->main();
  abort(); /* main() must not return */
}

void fiber_reset(fiber *f) {
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(f->stack, STACK);
  f->fake = NULL;
  if (__tsan_destroy_fiber && f->racing) __tsan_destroy_fiber(f->racing);
  if (__tsan_create_fiber) f->racing = __tsan_create_fiber(0);
#if defined(__x86_64__)
  /* Six registers, where to begin, and one word so that the stack is 8 off 16 there, as after a call. */
  uint64_t *top = (uint64_t *)(void *)(f->stack + STACK) - 8;
  memset(top, 0, 64);
  top[6] = (uint64_t)(uintptr_t)begin;
  f->at = top;
#else
  getcontext(&f->at);
  f->at.uc_stack.ss_sp = f->stack;
  f->at.uc_stack.ss_size = STACK;
  f->at.uc_link = NULL;
  makecontext(&f->at, begin, 0);
#endif
}

fiber *fiber_new(void (*main)(void)) {
  fiber *f = calloc(1, sizeof *f);
  if (!f) return NULL;
  char *memory = mmap(NULL, GUARD + STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    free(f);
    return NULL;
  }
  mprotect(memory, GUARD, PROT_NONE);
  f->stack = memory + GUARD;
  f->main = main;
  fiber_reset(f);
  return f;
}

void fiber_free(fiber *f) {
  if (!f) return;
  if (__tsan_destroy_fiber && f->racing) __tsan_destroy_fiber(f->racing);
  munmap(f->stack - GUARD, GUARD + STACK);
  free(f);
}

void fiber_switch(fiber *from, fiber *to) {
  fiber *a = from ? from : &host, *b = to ? to : &host;
  if (__sanitizer_start_switch_fiber)
    __sanitizer_start_switch_fiber(&a->fake, to ? b->stack : host_bottom, to ? STACK : host_size);
  if (__tsan_switch_to_fiber) {
    if (!from) host.racing = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(b->racing, SWITCH_WITHOUT_ORDER);
  }
  entering = b;
  from_host = !from;
#if defined(__x86_64__)
  kedge__fiber_jump(&a->at, b->at);
#else
  swapcontext(&a->at, &b->at);
#endif
  arrived(a, false);
}
