/* SPDX-License-Identifier: Apache-2.0
 * Kernels with and without mistakes, for test_sim_faults.c: what the simulated card must find. */
#include "backends/gpu/product.h"
#include "tests/sim_faults.h"

/* ---- Results that depend on the order of threads */

enum { N = 128 };

GPU_KERNEL reverse_kernel(const float *x, float *y, bool barrier) {
  GPU_SHARED(float, own, N);
  own[gpu_thread()] = x[gpu_thread()];
  if (barrier) GPU_BARRIER();
  y[gpu_thread()] = own[N - 1 - gpu_thread()];
}

/* A barrier at the head of a loop and none at its end: the next round may overwrite what is still read. */
GPU_KERNEL shift_kernel(const float *x, float *y, bool barrier) {
  GPU_SHARED(float, own, N);
  float sum = 0;
  for (uint32_t i = 0; i < 4; i++) {
    own[gpu_thread()] = x[gpu_thread()] * (float)(i + 1);
    GPU_BARRIER();
    sum += own[(gpu_thread() + 1) % N];
    if (barrier) GPU_BARRIER();
  }
  y[gpu_thread()] = sum;
}

/* Sums over the wave, or over 32 lanes whatever the wave is. */
GPU_KERNEL wave_kernel(const float *x, float *y, uint32_t width) {
  float sum = x[gpu_thread()];
  for (uint32_t mask = (width ? width : gpu_wave_width()) / 2; mask; mask /= 2)
    sum += gpu_shuffle_xor(sum, mask);
  GPU_SHARED(float, part, 32);
  if (gpu_lane() == 0) part[gpu_wave()] = sum;
  GPU_BARRIER();
  sum = 0;
  for (uint32_t i = 0; i < gpu_waves(); i++) sum += part[i];
  y[gpu_thread()] = sum;
}

/* Two blocks write one cell. */
GPU_KERNEL race_kernel(const float *x, float *y, bool apart) {
  y[apart ? gpu_block() * N + gpu_thread() : gpu_thread()] = x[gpu_thread()] + (float)gpu_block();
}

/* A copy to shared memory, with and without the wait for it. */
GPU_KERNEL copy_kernel(const float *x, float *y, bool wait) {
  GPU_SHARED(unsigned char, own, N * 4);
  if (gpu_thread() < N / 4) gpu_copy_chunk(own + 16 * gpu_thread(), x + 4 * gpu_thread());
  gpu_copy_group();
  if (wait) gpu_copy_wait<0>();
  GPU_BARRIER();
  y[gpu_thread()] = ((const float *)(const void *)own)[N - 1 - gpu_thread()];
}

void sim_order_fault(sim_order_kernel which, const sim_settings *settings, const float *x, float *y,
                     bool good) {
  gpu_step step = {NULL, (sim_settings *)settings, settings->processors, NULL};
  const gpu_step *s = &step;
  if (which == SIM_MISSING_BARRIER) GPU_LAUNCH(reverse_kernel, 1, N, s, x, y, good);
  if (which == SIM_MISSING_SECOND_BARRIER) GPU_LAUNCH(shift_kernel, 1, N, s, x, y, good);
  if (which == SIM_LANES_OF_32) GPU_LAUNCH(wave_kernel, 1, N, s, x, y, good ? 0u : 32u);
  if (which == SIM_BLOCK_RACE) GPU_LAUNCH(race_kernel, 2, N, s, x, y, good);
  if (which == SIM_MISSING_WAIT) GPU_LAUNCH(copy_kernel, 1, N, s, x, y, good);
}

/* ---- What ends a kernel with an error */

GPU_KERNEL diverging_kernel(float *y) {
  if (gpu_thread() % 2)
    GPU_BARRIER();
  else
    GPU_BARRIER();
  y[0] = 1;
}

GPU_KERNEL leaving_kernel(float *y) {
  if (gpu_thread() == 5) return;
  GPU_BARRIER();
  y[0] = 1;
}

GPU_KERNEL half_wave_kernel(float *y) {
  if (gpu_lane() < 16) y[gpu_thread()] = gpu_shuffle_xor((float)gpu_lane(), 1);
}

GPU_KERNEL overrun_kernel(float *y, uint32_t at) {
  GPU_SHARED(float, own, N);
  GPU_SHARED(float, other, N);
  own[gpu_thread()] = other[gpu_thread()] = 0;
  if (gpu_thread() == 0) own[at] = 1;
  y[0] = 1;
}

GPU_KERNEL greedy_kernel(float *y) {
  GPU_SHARED(float, own, 16 * 1024);
  own[gpu_thread()] = 1;
  y[0] = own[0];
}

GPU_KERNEL outside_kernel(float *y, int64_t at) {
  if (gpu_thread() == 3) y[at] = 1;
}

void sim_error_fault(sim_error_kernel which, const sim_settings *settings, float *y, int64_t at) {
  gpu_step step = {NULL, (sim_settings *)settings, settings->processors, NULL};
  const gpu_step *s = &step;
  if (which == SIM_DIVERGING) GPU_LAUNCH(diverging_kernel, 2, N, s, y);
  if (which == SIM_LEAVING) GPU_LAUNCH(leaving_kernel, 2, N, s, y);
  if (which == SIM_HALF_WAVE) GPU_LAUNCH(half_wave_kernel, 1, N, s, y);
  if (which == SIM_SHARED_OVERRUN) GPU_LAUNCH(overrun_kernel, 1, N, s, y, (uint32_t)at);
  if (which == SIM_SHARED_TOO_LARGE) GPU_LAUNCH(greedy_kernel, 1, N, s, y);
  if (which == SIM_OUTSIDE) GPU_LAUNCH(outside_kernel, 1, N, s, y, at);
}
