/* SPDX-License-Identifier: Apache-2.0
 *
 * The host as a graphics card: what kernels and their backend see of it. A block's threads are fibers that
 * run one at a time, from one barrier to the next, in an order that can be told; so a barrier that is missing
 * shows as another result, one that not every thread reaches as an error with block, thread and source line.
 * sim.c schedules, fiber.c switches stacks, memory.c has buffers and shared arrays with guards.
 */
#ifndef KEDGE_GPU_SIM_H
#define KEDGE_GPU_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum sim_order { SIM_FORWARD, SIM_REVERSE, SIM_RANDOM } sim_order;

/* How a device runs: threads of a wave (32 or 64), the order of threads between barriers and of blocks, the
 * seed of the random one, whether products use the fragment layouts of matrix units (of the wave's width),
 * groups of four waves where they can, or plain multiply-adds, and how many multiprocessors a persistent
 * kernel finds. */
typedef struct sim_settings {
  uint32_t wave, seed, processors;
  sim_order order;
  bool plain, groups;
} sim_settings;

/* What the running thread knows of itself. */
typedef struct sim_place {
  uint32_t thread, threads, block, blocks, wave;
  bool plain, early; /* early: products of groups read their operands when they are issued */
} sim_place;
extern sim_place sim_now;

enum { SIM_MAX_THREADS = 1024, SIM_MAX_WAVE = 64, SIM_SHARE_BYTES = 64, SIM_SHARED_BYTES = 48 * 1024 };

/* Runs body(context) for every thread of every block. A failure is remembered (sim_error). */
void sim_run(const sim_settings *settings, uint32_t blocks, uint32_t threads, const char *kernel,
             void (*body)(void *context), void *context);
/* The first failure since the last call, one line; NULL if there was none. Valid until the next failure. */
const char *sim_error(void);
void sim_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Waits for all threads of the block; `site` is "file:line" of the source. */
void sim_barrier(const char *site);
/* Each lane of the wave hands in up to SIM_SHARE_BYTES; the result is what all of them handed in,
 * SIM_SHARE_BYTES apart, until the lane's second call after this one. */
const unsigned char *sim_wave_share(const void *mine, size_t bytes, const char *site);
/* The block's array of a place in the source; bytes of NaN at first. */
void *sim_shared(const void *key, size_t bytes, const char *name);
/* A copy to shared memory that happens when it is waited for: the wait leaves the last `behind` groups be. */
void sim_copy_later(void *to, const void *from, size_t bytes);
void sim_copy_group(void);
void sim_copy_wait(uint32_t behind);

/* A place in the block's shared memory, which begins at a multiple of 1024, as a number, and back. */
uint32_t sim_shared_address(const void *at);
const void *sim_shared_at(uint32_t address);

/* A product by a group of four waves (group.h), in a thread of it: its sums, and the operands' descriptors.
 */
typedef struct sim_group_product {
  float *sums;
  uint64_t a, b;
  bool a_along_k, b_along_k;
} sim_group_product;
/* True: it is to be made now, else when sim_group_next gives it back; that is until it returns false. */
bool sim_group_issue(const sim_group_product *product);
bool sim_group_next(sim_group_product *product);
/* What the thread wrote to shared memory is there for groups behind the next barrier. */
void sim_group_publish(void);

/* Buffers, zeroed, with guards before and behind; NULL without memory. sim_buffers_check tells of a guard
 * that was written (sim_error). */
void *sim_buffer_new(size_t bytes);
void sim_buffer_free(void *memory);
void sim_buffers_check(void);

/* Between sim.c and memory.c: a block begins, with the arena of that number, ends. False: an array was
 * overrun. */
enum { SIM_POOLS = 3 };
void sim__shared_begin(uint32_t arena);
bool sim__shared_end(const char *kernel, uint32_t block);
/* Between sim.c and group.c: a block begins, ends (false: a thread did not do as its group); a thread's
 * copies arrive; it comes to a barrier. */
void sim__groups_begin(void);
bool sim__groups_end(const char *kernel);
void sim__groups_wrote(void);
void sim__groups_barrier(void);
/* memcpy and memset that no sanitizer sees: what the card does itself is no access of a thread. */
void sim__copy(void *to, const void *from, size_t bytes);
void sim__set(void *at, unsigned char byte, size_t bytes);

#ifdef __cplusplus
}

template <class F> void sim_body(void *context) {
  (*static_cast<const F *>(context))();
}
template <class F>
void sim_launch(const sim_settings *settings, uint32_t blocks, uint32_t threads, const char *kernel,
                const F &f) {
  sim_run(settings, blocks, threads, kernel, sim_body<F>, const_cast<F *>(&f));
}
#endif
#endif
