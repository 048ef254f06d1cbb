/* SPDX-License-Identifier: Apache-2.0
 *
 * The scheduler of the simulated card (sim.h). One thread of a block runs until it waits or ends; whoever
 * arrives last at a barrier, or at a collective of its wave, queues all who waited, in the order that the
 * device was opened with. A thread that ends lets its fiber go on as a thread that has not begun.
 *
 * Under the thread sanitizer every thread of a block has a fiber of its own, and barriers are the only order
 * between them; blocks have SIM_POOLS sets of fibers and shared memory by turns, so that blocks of one kernel
 * are unordered unless they are a multiple of SIM_POOLS apart.
 */
#include "backends/gpu/sim/sim.h"
#include "backends/gpu/sim/fiber.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAVES = SIM_MAX_THREADS / 32, PENDING = 64 };

typedef struct wave {
  const char *site;
  uint32_t arrived, phase;
  uint32_t turn[SIM_MAX_WAVE]; /* collectives that a lane took part in */
  unsigned char slots[2][SIM_MAX_WAVE][SIM_SHARE_BYTES];
} wave;

typedef struct pending_copy {
  void *to;
  const void *from;
  size_t bytes;
  uint32_t group;
} pending_copy;

typedef struct thread {
  fiber *fiber; /* NULL: has not begun */
  const char *waits;
  bool ended;
  uint32_t group, copies;
  pending_copy copy[PENDING];
} thread;

static struct {
  const sim_settings *settings;
  const char *kernel;
  void (*body)(void *context);
  void *context;
  thread threads[SIM_MAX_THREADS];
  wave waves[WAVES];
  uint32_t queue[SIM_MAX_THREADS], head, queued; /* a ring */
  fiber *idle[SIM_MAX_THREADS], *all[SIM_MAX_THREADS];
  uint32_t idle_count, fiber_count, ended, arrived;
  const char *site;
  uint64_t random;
  bool running, failed;
  fiber *own[SIM_POOLS][SIM_MAX_THREADS]; /* under the thread sanitizer: threads' */
  uint32_t pool, phase, uses[SIM_POOLS];  /* of the block; of its barrier; blocks that a pool had */
} m;
/* What the thread sanitizer knows order by. Those of a barrier, and of blocks with the same fibers,
 * alternate: with one, a thread that is at the next barrier, or has ended, would be before threads that leave
 * this one, or have not begun. */
static struct { uint64_t launch, end, block[SIM_POOLS][2], barrier[SIM_POOLS][2]; } order_of;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char error_text[300];
static bool error_set;

sim_place sim_now;

/* ---- Failures */

const char *sim_error(void) {
  const char *text = error_set ? error_text : NULL;
  error_set = false;
  return text;
}

static fiber *own_fiber(void) {
  return m.threads[sim_now.thread].fiber;
}

void sim_fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  if (!error_set) vsnprintf(error_text, sizeof error_text, format, arguments);
  va_end(arguments);
  error_set = true;
  if (!m.running) return;
  m.failed = true; /* the block is given up: nobody returns to its fibers */
  fiber_switch(own_fiber(), NULL);
}

/* Nobody can go on: some thread waits for others that wait elsewhere or have ended. */
static void stuck(void) {
  uint32_t waiting = 0, other = 0, ended = 0;
  while (waiting < sim_now.threads && !m.threads[waiting].waits) waiting++;
  for (other = 0; other < sim_now.threads; other++)
    if (m.threads[other].waits && m.threads[other].waits != m.threads[waiting].waits) break;
  while (ended < sim_now.threads && !m.threads[ended].ended) ended++;
  if (other < sim_now.threads)
    sim_fail("%s, block %u: thread %u waits at %s, thread %u at %s", m.kernel, sim_now.block, waiting,
             m.threads[waiting].waits, other, m.threads[other].waits);
  else
    sim_fail("%s, block %u: thread %u waits at %s, thread %u has ended", m.kernel, sim_now.block, waiting,
             m.threads[waiting].waits, ended);
}

/* ---- Order */

static uint32_t random_below(uint32_t end) {
  m.random ^= m.random << 13;
  m.random ^= m.random >> 7;
  m.random ^= m.random << 17;
  return (uint32_t)((m.random >> 16) % end);
}

static void arrange(uint32_t *list, uint32_t first, uint32_t count) {
  for (uint32_t i = 0; i < count; i++)
    list[i] = first + (m.settings->order == SIM_REVERSE ? count - 1 - i : i);
  for (uint32_t i = count; m.settings->order == SIM_RANDOM && i > 1; i--) {
    uint32_t j = random_below(i), kept = list[j];
    list[j] = list[i - 1];
    list[i - 1] = kept;
  }
}

static void enqueue(uint32_t first, uint32_t count) {
  uint32_t list[SIM_MAX_THREADS];
  arrange(list, first, count);
  for (uint32_t i = 0; i < count; i++) {
    m.threads[list[i]].waits = NULL;
    m.queue[(m.head + m.queued++) % SIM_MAX_THREADS] = list[i];
  }
}

/* ---- Turns */

static void fiber_main(void);

/* NULL without memory for the first of a block; later ones do not return then. */
static fiber *take_fiber(uint32_t who) {
  if (fiber_watched()) return m.own[m.pool][who];
  if (m.idle_count) return m.idle[--m.idle_count];
  fiber *f = fiber_new(fiber_main);
  if (f)
    m.all[m.fiber_count++] = f;
  else
    sim_fail("%s: no memory for a stack", m.kernel);
  return f;
}

static uint32_t next_thread(void) {
  if (!m.queued) stuck();
  uint32_t next = m.queue[m.head];
  m.head = (m.head + 1) % SIM_MAX_THREADS;
  m.queued--;
  return next;
}

/* Another thread's turn; returns when it is this one's again. */
static void yield(void) {
  const uint32_t self = sim_now.thread, next = next_thread();
  if (next == self) return;
  thread *t = &m.threads[next];
  if (!t->fiber) t->fiber = take_fiber(next);
  sim_now.thread = next;
  fiber_switch(m.threads[self].fiber, t->fiber);
}

/* Threads of a block, one after another, as long as there are any that have not begun. */
static void fiber_main(void) {
  for (;;) {
    thread *t = &m.threads[sim_now.thread];
    fiber *own = t->fiber, *to = NULL;
    fiber_observe(&order_of.launch);
    fiber_observe(&order_of.block[m.pool][m.uses[m.pool] % 2]);
    m.body(m.context);
    fiber_publish(&order_of.block[m.pool][(m.uses[m.pool] + 1) % 2]);
    fiber_publish(&order_of.end);
    t->ended = true;
    t->fiber = own;
    m.ended++;
    if (m.ended < sim_now.threads) {
      sim_now.thread = next_thread();
      thread *next = &m.threads[sim_now.thread];
      if (!next->fiber && !fiber_watched()) {
        next->fiber = own;
        continue;
      }
      if (!next->fiber) next->fiber = take_fiber(sim_now.thread);
      to = next->fiber;
    }
    if (!fiber_watched()) m.idle[m.idle_count++] = own;
    fiber_switch(own, to);
  }
}

/* All fibers begin anew: some were left in the middle of a kernel. */
static void forget_fibers(void) {
  m.idle_count = 0;
  for (uint32_t i = 0; i < SIM_POOLS * SIM_MAX_THREADS; i++)
    if (m.own[i / SIM_MAX_THREADS][i % SIM_MAX_THREADS])
      fiber_reset(m.own[i / SIM_MAX_THREADS][i % SIM_MAX_THREADS]);
  for (uint32_t i = 0; i < m.fiber_count; i++) {
    fiber_reset(m.all[i]);
    m.idle[m.idle_count++] = m.all[i];
  }
}

/* Fibers that the thread sanitizer takes for threads are made here, by nobody whom they would come after. */
static bool make_fibers(uint32_t threads) {
  for (uint32_t i = 0; i < threads && fiber_watched(); i++)
    if (!m.own[m.pool][i] && !(m.own[m.pool][i] = fiber_new(fiber_main))) return false;
  return true;
}

static void run_block(uint32_t block, uint32_t threads) {
  sim_now.block = block;
  m.pool = fiber_watched() ? (m.pool + 1) % SIM_POOLS : 0;
  if (!make_fibers(threads)) {
    sim_fail("no memory for a stack");
    m.failed = true;
    return;
  }
  for (uint32_t i = 0; i < threads; i++) {
    thread *t = &m.threads[i];
    t->fiber = NULL;
    t->waits = NULL;
    t->ended = false;
    t->group = t->copies = 0;
  }
  for (uint32_t w = 0; w * sim_now.wave < threads; w++) {
    m.waves[w].arrived = m.waves[w].phase = 0;
    sim__set(m.waves[w].turn, 0, sizeof m.waves[w].turn);
  }
  m.head = m.queued = m.ended = m.arrived = m.phase = 0;
  sim__shared_begin(m.pool);
  sim__groups_begin();
  enqueue(0, threads);
  sim_now.thread = next_thread();
  fiber *first = take_fiber(sim_now.thread);
  if (!first) {
    m.failed = true;
    return;
  }
  m.threads[sim_now.thread].fiber = first;
  m.running = true;
  m.uses[m.pool]++;
  fiber_switch(NULL, first);
  m.running = false;
  if (m.failed)
    forget_fibers();
  else if (!sim__shared_end(m.kernel, block) || !sim__groups_end(m.kernel))
    m.failed = true;
}

void sim_run(const sim_settings *settings, uint32_t blocks, uint32_t threads, const char *kernel,
             void (*body)(void *context), void *context) {
  pthread_mutex_lock(&lock);
  uint32_t *order = NULL;
  m.settings = settings;
  m.kernel = kernel;
  m.body = body;
  m.context = context;
  m.failed = false;
  m.random = 0x9e3779b97f4a7c15u ^ ((uint64_t)settings->seed << 20);
  sim_now = (sim_place){.threads = threads,
                        .blocks = blocks,
                        .wave = settings->wave,
                        .plain = settings->plain,
                        .early = settings->order == SIM_REVERSE};
  if (!threads || threads > SIM_MAX_THREADS || threads % settings->wave || !blocks || error_set) {
    sim_fail("%s: %u blocks of %u threads in waves of %u", kernel, blocks, threads, settings->wave);
    goto done;
  }
  if (!(order = malloc(blocks * sizeof *order))) {
    sim_fail("%s: no memory for %u blocks", kernel, blocks);
    goto done;
  }
  arrange(order, 0, blocks);
  fiber_publish(&order_of.launch);
  for (uint32_t i = 0; i < blocks && !m.failed; i++) run_block(order[i], threads);
  fiber_observe(&order_of.end);
done:
  free(order);
  pthread_mutex_unlock(&lock);
}

/* ---- What kernels call */

void sim_barrier(const char *site) {
  thread *t = &m.threads[sim_now.thread];
  t->waits = site;
  if (m.ended) stuck();
  if (m.arrived && m.site != site) stuck();
  m.site = site;
  sim__groups_barrier();
  const uint64_t *order = &order_of.barrier[m.pool][m.phase % 2];
  fiber_publish(order);
  if (++m.arrived == sim_now.threads) {
    m.arrived = 0;
    m.phase++;
    enqueue(0, sim_now.threads);
  }
  yield();
  fiber_observe(order);
}

const unsigned char *sim_wave_share(const void *mine, size_t bytes, const char *site) {
  const uint32_t width = sim_now.wave, lane = sim_now.thread % width;
  wave *w = &m.waves[sim_now.thread / width];
  const uint32_t phase = w->turn[lane]++ & 1;
  if (bytes > SIM_SHARE_BYTES) sim_fail("%s: %zu bytes a lane at %s", m.kernel, bytes, site);
  sim__copy(w->slots[phase][lane], mine, bytes);
  m.threads[sim_now.thread].waits = site;
  if (w->arrived && w->site != site) stuck();
  w->site = site;
  if (++w->arrived == width) {
    w->arrived = 0;
    enqueue(sim_now.thread / width * width, width);
  }
  yield();
  return w->slots[phase][0];
}

void sim_copy_later(void *to, const void *from, size_t bytes) {
  thread *t = &m.threads[sim_now.thread];
  if (t->copies == PENDING) sim_fail("%s: more than %d copies in flight", m.kernel, PENDING);
  t->copy[t->copies++] = (pending_copy){to, from, bytes, t->group};
}

void sim_copy_group(void) {
  m.threads[sim_now.thread].group++;
}

void sim_copy_wait(uint32_t behind) {
  thread *t = &m.threads[sim_now.thread];
  uint32_t kept = 0;
  for (uint32_t i = 0; i < t->copies; i++) {
    pending_copy c = t->copy[i];
    if (c.group + behind < t->group) {
      sim__groups_wrote();
      fiber_copies(c.to, c.from, c.bytes);
      sim__copy(c.to, c.from, c.bytes);
    } else
      t->copy[kept++] = c;
  }
  t->copies = kept;
}
