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
 * seed of the random one, whether products use the fragment layouts of matrix units (of the wave's width) or
 * plain multiply-adds, and how many multiprocessors a persistent kernel finds. */
typedef struct sim_settings {
  uint32_t wave, seed, processors;
  sim_order order;
  bool plain;
} sim_settings;

/* What the running thread knows of itself. */
typedef struct sim_place {
  uint32_t thread, threads, block, blocks, wave;
  bool plain;
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

/* Buffers, zeroed, with guards before and behind; NULL without memory. sim_buffers_check tells of a guard
 * that was written (sim_error). */
void *sim_buffer_new(size_t bytes);
void sim_buffer_free(void *memory);
void sim_buffers_check(void);

/* Between sim.c and memory.c: a block begins, ends. False: an array was overrun. */
void sim__shared_begin(void);
bool sim__shared_end(const char *kernel, uint32_t block);

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
