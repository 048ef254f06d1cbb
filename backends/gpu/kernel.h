/* SPDX-License-Identifier: Apache-2.0
 *
 * What the families' kernels share: storage types, a call's tensors, sums over a wave and a block, loops over
 * elements and rows, and how a launcher is defined. Names of hardware come from gpu.h.
 *
 * X is the storage type of a kernel: float or gpu_bf16. Arithmetic is in f32, a store rounds once. Sums have
 * one order, which follows from shape and width of the wave alone.
 */
#ifndef KEDGE_GPU_KERNEL_H
#define KEDGE_GPU_KERNEL_H

#include "backends/gpu/gpu.h"

#if !defined(KEDGE_GPU_SIM)
#define KEDGE_SCALAR static __host__ __device__ inline
#endif
#include "core/scalar.h"

/* ---- Storage */

struct gpu_bf16 {
  uint16_t bits;
};
GPU_DEVICE float gpu_load(float v) {
  return v;
}
GPU_DEVICE float gpu_load(gpu_bf16 v) {
  union {
    uint32_t u;
    float f;
  } bits;
  bits.u = (uint32_t)v.bits << 16;
  return bits.f;
}
template <class X> struct gpu_stored;
template <> struct gpu_stored<float> {
  static GPU_MEMBER float of(float v) { return v; }
};
template <> struct gpu_stored<gpu_bf16> {
  static GPU_MEMBER gpu_bf16 of(float v) {
    gpu_bf16 x;
    x.bits = kedge__bf16_round(v);
    return x;
  }
};
template <class X> GPU_DEVICE X gpu_store(float v) {
  return gpu_stored<X>::of(v);
}
GPU_DEVICE bool gpu_is_nan(float v) {
  return v != v;
}
GPU_DEVICE float gpu_infinity() {
  union {
    uint32_t u;
    float f;
  } bits;
  bits.u = 0x7f800000u;
  return bits.f;
}

/* A w tensor: f32 or bf16, known when it runs. */
struct gpu_w {
  void *data;
  bool bf16;
};
GPU_DEVICE float gpu_load_w(const gpu_w &w, size_t i) {
  return w.bf16 ? gpu_load(((const gpu_bf16 *)w.data)[i]) : ((const float *)w.data)[i];
}
GPU_DEVICE void gpu_store_w(const gpu_w &w, size_t i, float v) {
  if (w.bf16)
    ((gpu_bf16 *)w.data)[i] = gpu_store<gpu_bf16>(v);
  else
    ((float *)w.data)[i] = v;
}

/* ---- A call's tensors */

template <class T> static inline const T *gpu_in(const gpu_step *s, uint32_t i) {
  return (const T *)s->call->in[i].data;
}
template <class T> static inline T *gpu_updated(const gpu_step *s, uint32_t i) {
  return (T *)s->call->in[i].data;
}
template <class T> static inline T *gpu_out(const gpu_step *s, uint32_t i) {
  return (T *)s->call->out[i].data;
}
static inline size_t gpu_pitch(const gpu_step *s, uint32_t i) {
  return s->call->in[i].pitch;
}
static inline gpu_w gpu_as_w(const kedge_tensor *t) {
  gpu_w w;
  w.data = t->data;
  w.bf16 = t->dtype == KEDGE_BF16;
  return w;
}

/* Defines the launchers kedge_gpu_{f32,bf16}_<op>: a body with `s`, `a` (arguments) and X. GPU_OP_PLAIN is
 * for ops without x tensors, whose variant is always f32. */
#define GPU_OP(op)                                                                                           \
  template <class X> static void launch_##op(const gpu_step *s, const kedge_args_##op *a);                   \
  extern "C" void kedge_gpu_f32_##op(const gpu_step *s) {                                                    \
    launch_##op<float>(s, (const kedge_args_##op *)s->call->args);                                           \
  }                                                                                                          \
  extern "C" void kedge_gpu_bf16_##op(const gpu_step *s) {                                                   \
    launch_##op<gpu_bf16>(s, (const kedge_args_##op *)s->call->args);                                        \
  }                                                                                                          \
  template <class X> static void launch_##op(const gpu_step *s, const kedge_args_##op *a)
#define GPU_OP_PLAIN(op)                                                                                     \
  static void launch_##op(const gpu_step *s, const kedge_args_##op *a);                                      \
  extern "C" void kedge_gpu_f32_##op(const gpu_step *s) {                                                    \
    launch_##op(s, (const kedge_args_##op *)s->call->args);                                                  \
  }                                                                                                          \
  extern "C" void kedge_gpu_bf16_##op(const gpu_step *s) {                                                   \
    kedge_gpu_f32_##op(s);                                                                                   \
  }                                                                                                          \
  static void launch_##op(const gpu_step *s, const kedge_args_##op *a)
/* Bytes of scratch that an op needs; listed in scratch.def. */
#define GPU_SCRATCH(op) extern "C" uint64_t kedge_gpu_##op##_scratch(const gpu_step *s)

/* ---- Sums */

struct gpu_sum {
  template <class V> static GPU_MEMBER V of(V a, V b) { return a + b; }
};
struct gpu_max {
  template <class V> static GPU_MEMBER V of(V a, V b) { return a < b ? b : a; }
};

/* Over the lanes of the wave; every lane gets the result. */
template <class Fold, class V> GPU_DEVICE V gpu_wave_fold(V v) {
  for (uint32_t mask = gpu_wave_width() / 2; mask; mask /= 2) v = Fold::of(v, gpu_shuffle_xor(v, mask));
  return v;
}

/* Over the threads of the block; every thread gets the result. All threads must come. */
template <class Fold, class V> GPU_DEVICE V gpu_block_fold(V v) {
  GPU_SHARED(V, part, 32);
  v = gpu_wave_fold<Fold>(v);
  GPU_BARRIER();
  if (gpu_lane() == 0) part[gpu_wave()] = v;
  GPU_BARRIER();
  v = part[0];
  for (uint32_t i = 1; i < gpu_waves(); i++) v = Fold::of(v, part[i]);
  return v;
}

/* ---- Loops */

enum { GPU_THREADS = 256 };

static inline uint32_t gpu_groups(uint64_t n, uint64_t each) {
  return (uint32_t)((n + each - 1) / each);
}

template <class F> GPU_KERNEL gpu_each_kernel(uint64_t n, F f) {
  for (uint64_t i = (uint64_t)gpu_block() * gpu_threads() + gpu_thread(); i < n;
       i += (uint64_t)gpu_blocks() * gpu_threads())
    f(i);
}
/* f(i) for i in [0, n). */
template <class F> static void gpu_each(const gpu_step *s, uint64_t n, const F &f) {
  uint64_t blocks = (n + GPU_THREADS - 1) / GPU_THREADS, most = (uint64_t)s->processors * 16;
  if (n) GPU_LAUNCH(gpu_each_kernel, blocks < most ? blocks : most, GPU_THREADS, s, n, f);
}

template <class F> GPU_KERNEL gpu_rows_kernel(uint32_t rows, F f) {
  for (uint32_t r = gpu_block(); r < rows; r += gpu_blocks()) f(r);
}
/* f(r) for rows [0, rows), a block each: f may use barriers. */
template <class F> static void gpu_rows(const gpu_step *s, uint32_t rows, const F &f) {
  uint32_t most = s->processors * 16;
  if (rows) GPU_LAUNCH(gpu_rows_kernel, rows < most ? rows : most, GPU_THREADS, s, rows, f);
}

template <class F> GPU_KERNEL gpu_wave_rows_kernel(uint32_t rows, F f) {
  for (uint64_t r = (uint64_t)gpu_block() * gpu_waves() + gpu_wave(); r < rows;
       r += (uint64_t)gpu_blocks() * gpu_waves())
    f((uint32_t)r);
}
/* f(r) for rows [0, rows), a wave each: f may use the wave's collectives. Short rows. */
template <class F> static void gpu_wave_rows(const gpu_step *s, uint32_t rows, const F &f) {
  uint32_t blocks = gpu_groups(rows, 4), most = s->processors * 16;
  if (rows) GPU_LAUNCH(gpu_wave_rows_kernel, blocks < most ? blocks : most, GPU_THREADS, s, rows, f);
}

#endif
