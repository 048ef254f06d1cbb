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

/* ---- A product by a group of four waves, of a small matrix in the corner of its panels */

enum group_mistake { NONE, NO_WAIT, NO_PUBLISH, APART, LEAVING };

GPU_KERNEL group_kernel(const float *x, float *y, group_mistake mistake) {
  GPU_SHARED_PANELS(stage, (64 + 128) * 64);
  float sums[64], sum = 0;
  for (uint32_t i = 0; i < 64; i++) sums[i] = 0;
  const gpu_bf16 *v = (const gpu_bf16 *)(const void *)x;
  if (gpu_wave_width() != 32) { /* no such units: the same sums without them */
    for (uint32_t i = 0; i < 64; i++) {
      const uint32_t row = gpu_thread() / 32 * 16 + gpu_thread() % 32 / 4 + i / 2 % 2 * 8,
                     col = i / 4 * 8 + gpu_thread() % 4 * 2 + i % 2;
      for (uint32_t k = 0; k < 32 && row < 8 && col < 8; k++)
        sum += gpu_load(v[row * 32 + k]) * gpu_load(v[col * 32 + k]);
    }
    y[gpu_thread()] = sum;
    return;
  }
  const gpu_operand<gpu_bf16> o = gpu_matrix(v, 32, 8, 32);
  gpu_load_panel<gpu_bf16, false, 64, N>(stage, o, 0, 0);
  gpu_load_panel<gpu_bf16, false, 128, N>(stage + 64 * 64, o, 0, 0);
  gpu_copy_group();
  gpu_copy_wait<0>();
  if (mistake != NO_PUBLISH) gpu_group_publish();
  GPU_BARRIER();
  gpu_group_begin();
  for (uint32_t k = 0; k < 32; k += 16) {
    if (mistake == LEAVING && gpu_thread() == 77 && k) continue;
    const uint32_t from = mistake == APART && gpu_wave() == 2 ? 16 - k : k;
    gpu_group_add<false, false>(sums, gpu_group_operand<false>(stage, 0, from),
                                gpu_group_operand<false>(stage + 64 * 64, 0, from));
  }
  gpu_group_end();
  if (mistake != NO_WAIT) gpu_group_wait(sums);
  GPU_BARRIER();
  for (uint32_t i = gpu_thread(); i < (64 + 128) * 64; i += N) stage[i] = 0;
  GPU_BARRIER();
  if (mistake == NO_WAIT) gpu_group_wait(sums);
  for (uint32_t i = 0; i < 64; i++) sum += sums[i];
  y[gpu_thread()] = sum;
}

void sim_order_fault(sim_order_kernel which, const sim_settings *settings, const float *x, float *y,
                     bool good) {
  gpu_step step = {NULL, (sim_settings *)settings, settings->processors, NULL, false};
  const gpu_step *s = &step;
  if (which == SIM_MISSING_BARRIER) GPU_LAUNCH(reverse_kernel, 1, N, s, x, y, good);
  if (which == SIM_MISSING_SECOND_BARRIER) GPU_LAUNCH(shift_kernel, 1, N, s, x, y, good);
  if (which == SIM_LANES_OF_32) GPU_LAUNCH(wave_kernel, 1, N, s, x, y, good ? 0u : 32u);
  if (which == SIM_BLOCK_RACE) GPU_LAUNCH(race_kernel, 2, N, s, x, y, good);
  if (which == SIM_MISSING_WAIT) GPU_LAUNCH(copy_kernel, 1, N, s, x, y, good);
  if (which == SIM_MISSING_GROUP_WAIT) GPU_LAUNCH(group_kernel, 1, N, s, x, y, good ? NONE : NO_WAIT);
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
  gpu_step step = {NULL, (sim_settings *)settings, settings->processors, NULL, false};
  const gpu_step *s = &step;
  if (which == SIM_DIVERGING) GPU_LAUNCH(diverging_kernel, 2, N, s, y);
  if (which == SIM_LEAVING) GPU_LAUNCH(leaving_kernel, 2, N, s, y);
  if (which == SIM_HALF_WAVE) GPU_LAUNCH(half_wave_kernel, 1, N, s, y);
  if (which == SIM_SHARED_OVERRUN) GPU_LAUNCH(overrun_kernel, 1, N, s, y, (uint32_t)at);
  if (which == SIM_SHARED_TOO_LARGE) GPU_LAUNCH(greedy_kernel, 1, N, s, y);
  if (which == SIM_OUTSIDE) GPU_LAUNCH(outside_kernel, 1, N, s, y, at);
  if (which == SIM_GROUP_UNPUBLISHED) GPU_LAUNCH(group_kernel, 1, N, s, y, y, NO_PUBLISH);
  if (which == SIM_GROUP_APART) GPU_LAUNCH(group_kernel, 1, N, s, y, y, APART);
  if (which == SIM_GROUP_LEAVING) GPU_LAUNCH(group_kernel, 1, N, s, y, y, LEAVING);
}
