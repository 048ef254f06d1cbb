/* SPDX-License-Identifier: Apache-2.0
 *
 * Neutral names for what CUDA, HIP and the simulated card (sim/) call differently: the host's runtime, for
 * backend.c, and what kernels are written with. Kernels name no vendor and never write the width of a wave.
 * kernel.h builds on it what families share.
 */
#ifndef KEDGE_GPU_GPU_H
#define KEDGE_GPU_GPU_H

#ifdef __cplusplus
extern "C" {
#endif
#include "core/device.h"
#ifdef __cplusplus
}
#endif

/* ---- Runtime */

#if defined(KEDGE_GPU_CUDA)
#include <cuda_runtime_api.h>
#define GPU(name)       cuda##name
#define GPU_NAME        "cuda"
#define GPU_PINNED_NEW  cudaHostAlloc
#define GPU_PINNED_FREE cudaFreeHost
#elif defined(KEDGE_GPU_HIP)
#include <hip/hip_runtime_api.h>
#define GPU(name)       hip##name
#define GPU_NAME        "hip"
#define GPU_PINNED_NEW  hipHostMalloc
#define GPU_PINNED_FREE hipHostFree
#elif defined(KEDGE_GPU_SIM)
#include "backends/gpu/sim/runtime.h"
#define GPU(name)       sim##name
#define GPU_NAME        "sim"
#define GPU_PINNED_NEW  simHostAlloc
#define GPU_PINNED_FREE simFreeHost
#else
#error "one of KEDGE_GPU_CUDA, KEDGE_GPU_HIP, KEDGE_GPU_SIM"
#endif
typedef GPU(Stream_t) gpu_stream;
typedef GPU(Event_t) gpu_event;
typedef GPU(Error_t) gpu_error;

/* What a launcher gets: a call whose addresses are the device's, where to put its kernels, and how many
 * multiprocessors there are, for kernels that hand out their own work. `blas`, NULL where there is none,
 * multiplies dense matrices by the vendor's library (blas.c); `groups`: products by groups of waves
 * (group.h). */
typedef struct gpu_step {
  const kedge_call *call;
  gpu_stream stream;
  uint32_t processors;
  struct gpu_blas *blas;
  bool groups;
} gpu_step;
typedef void (*gpu_launcher)(const gpu_step *step);

#ifdef __cplusplus

/* ---- Kernels */

#if defined(KEDGE_GPU_SIM)
#define GPU_KERNEL static void
#define GPU_DEVICE static inline
#define GPU_MEMBER inline
#define GPU_LAMBDA [=]
#define GPU_BOUNDS(threads)
#define GPU_LAUNCH(kernel, blocks, threads, step, ...)                                                       \
  sim_launch((step)->stream, (uint32_t)(blocks), threads, #kernel, [=]() { kernel(__VA_ARGS__); })
#define GPU_TEXT_(x)  #x
#define GPU_TEXT(x)   GPU_TEXT_(x)
#define GPU_SITE      __FILE__ ":" GPU_TEXT(__LINE__)
#define GPU_BARRIER() sim_barrier(GPU_SITE)
#define GPU_SHARED(type, name, count)                                                                        \
  static const char name##_key = 0;                                                                          \
  type *const name = (type *)sim_shared(&name##_key, sizeof(type) * (count), #name)
#define GPU_SHARED_PANELS(name, bytes) GPU_SHARED(unsigned char, name, bytes)
GPU_DEVICE uint32_t gpu_thread() {
  return sim_now.thread;
}
GPU_DEVICE uint32_t gpu_threads() {
  return sim_now.threads;
}
GPU_DEVICE uint32_t gpu_block() {
  return sim_now.block;
}
GPU_DEVICE uint32_t gpu_blocks() {
  return sim_now.blocks;
}
GPU_DEVICE uint32_t gpu_wave_width() {
  return sim_now.wave;
}
template <class T> GPU_DEVICE T gpu_shuffle_xor(T value, uint32_t mask) {
  const unsigned char *all = sim_wave_share(&value, sizeof value, GPU_SITE);
  T other;
  __builtin_memcpy(&other, all + ((sim_now.thread % sim_now.wave) ^ mask) * SIM_SHARE_BYTES, sizeof other);
  return other;
}
#else
#if defined(KEDGE_GPU_HIP)
#include <hip/hip_runtime.h>
#endif
#define GPU_KERNEL          static __global__ void
#define GPU_DEVICE          static __device__ __forceinline__
#define GPU_MEMBER          __device__ __forceinline__
#define GPU_LAMBDA          [=] __device__
#define GPU_BOUNDS(threads) __launch_bounds__(threads)
#define GPU_LAUNCH(kernel, blocks, threads, step, ...)                                                       \
  kernel<<<dim3((uint32_t)(blocks)), dim3(threads), 0, (step)->stream>>>(__VA_ARGS__)
#define GPU_BARRIER()                  __syncthreads()
#define GPU_SHARED(type, name, count)  __shared__ __align__(16) type name[count]
#define GPU_SHARED_PANELS(name, bytes) __shared__ __align__(1024) unsigned char name[bytes]
GPU_DEVICE uint32_t gpu_thread() {
  return threadIdx.x;
}
GPU_DEVICE uint32_t gpu_threads() {
  return blockDim.x;
}
GPU_DEVICE uint32_t gpu_block() {
  return blockIdx.x;
}
GPU_DEVICE uint32_t gpu_blocks() {
  return gridDim.x;
}
#if defined(KEDGE_GPU_CUDA)
GPU_DEVICE uint32_t gpu_wave_width() {
  return 32;
}
template <class T> GPU_DEVICE T gpu_shuffle_xor(T value, uint32_t mask) {
  return __shfl_xor_sync(0xffffffffu, value, (int)mask);
}
#else
GPU_DEVICE uint32_t gpu_wave_width() {
  return __AMDGCN_WAVEFRONT_SIZE; /* of the target that is compiled for: loops over a tile's lanes unroll */
}
template <class T> GPU_DEVICE T gpu_shuffle_xor(T value, uint32_t mask) {
  return __shfl_xor(value, (int)mask);
}
#endif
#endif

/* A number that all lanes of a wave have, told to the compiler, so that what depends on it does not diverge.
 */
GPU_DEVICE uint32_t gpu_uniform(uint32_t value) {
#if defined(KEDGE_GPU_CUDA)
  return __shfl_sync(0xffffffffu, value, 0);
#else
  return value;
#endif
}
GPU_DEVICE uint32_t gpu_lane() {
  return gpu_thread() % gpu_wave_width();
}
GPU_DEVICE uint32_t gpu_wave() {
  return gpu_thread() / gpu_wave_width();
}
GPU_DEVICE uint32_t gpu_waves() {
  return gpu_threads() / gpu_wave_width();
}

#endif
#endif
