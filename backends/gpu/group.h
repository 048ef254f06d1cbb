/* SPDX-License-Identifier: Apache-2.0
 *
 * A product of 64 x 128 x 16 in bf16 by a group of four waves, whose operands stay in shared memory: wgmma of
 * sm_90a. Operands are told by descriptors, which follow PTX's "asynchronous warpgroup-level matrix
 * instructions"; tile.h's panels are laid out as they want it:
 *
 *   lines along m (or n)   rows of 64 bytes of k, swizzled by 64 bytes: eight lines are 512 bytes
 *   lines along k          rows of 64 lines, swizzled by 128 bytes: eight of k are 1024 bytes, the next 64
 *                          lines lie behind the panel's whole depth
 *
 * The sums of a lane are those of a wave that has 16 whole rows of tile.h's tiles. A product goes on while
 * its waves do other things, until it is waited for. The simulated card reads operands through the
 * descriptors, some orders when the product is issued and some when it is waited for, and checks that all
 * four waves issue the same.
 */
#ifndef KEDGE_GPU_GROUP_H
#define KEDGE_GPU_GROUP_H

#include "backends/gpu/tile.h"

#if defined(KEDGE_GPU_SIM) || defined(KEDGE_GPU_GROUPS)
#define GPU_HAS_GROUPS 1
#else
#define GPU_HAS_GROUPS 0
#endif

#if GPU_HAS_GROUPS

enum : uint32_t { GPU_GROUP_THREADS = 128, GPU_GROUP_M = 64, GPU_GROUP_N = 128, GPU_GROUP_K = 16 };
enum : uint32_t { GPU_SWIZZLE_128 = 1, GPU_SWIZZLE_64 = 2 };

/* Which group of the block; the same for all its waves. */
GPU_DEVICE uint32_t gpu_group() {
  return gpu_uniform(gpu_thread() / GPU_GROUP_THREADS);
}

#if defined(KEDGE_GPU_SIM)
GPU_DEVICE uint32_t gpu_shared_address(const unsigned char *at) {
  return sim_shared_address(at);
}
#else
GPU_DEVICE uint32_t gpu_shared_address(const unsigned char *at) {
  return (uint32_t)__cvta_generic_to_shared(at);
}
#endif

/* The descriptor of the operand whose lines begin at line0, a multiple of 64, and whose k begin at k0, a
 * multiple of 16. */
template <bool ALONG_K>
GPU_DEVICE uint64_t gpu_group_operand(const unsigned char *panel, uint32_t line0, uint32_t k0) {
  const uint32_t at = gpu_shared_address(panel) + gpu_panel_at<gpu_bf16, ALONG_K>(line0, k0);
  const uint32_t leading = ALONG_K ? gpu_panel_depth<gpu_bf16>() * 128 : 16, stride = ALONG_K ? 1024 : 512;
  return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 |
         (uint64_t)(ALONG_K ? GPU_SWIZZLE_128 : GPU_SWIZZLE_64) << 62;
}

#if defined(KEDGE_GPU_SIM)

/* The element of an operand: which byte a descriptor means by its line and k. */
GPU_DEVICE float gpu_group_value(uint64_t operand, bool along_k, uint32_t line, uint32_t k) {
  const uint32_t start = (uint32_t)(operand & 0x3fff) << 4, leading = (uint32_t)(operand >> 16 & 0x3fff) << 4,
                 stride = (uint32_t)(operand >> 32 & 0x3fff) << 4, mode = (uint32_t)(operand >> 62);
  const uint32_t row = mode == 1 ? 128 : mode == 2 ? 64 : mode == 3 ? 32 : 16; /* bytes of a swizzled row */
  uint32_t at = start;
  if (along_k)
    at += line / (row / 2) * leading + line % (row / 2) * 2 + k / 8 * stride + k % 8 * row;
  else
    at += line / 8 * stride + line % 8 * row + k * 2;
  at ^= at >> 3 & (row - 16); /* the 16-byte chunk of a row, by which row of eight it is */
  gpu_bf16 x;
  __builtin_memcpy(&x.bits, sim_shared_at(at), 2);
  return gpu_load(x);
}

GPU_DEVICE void gpu_group_multiply(const sim_group_product &p) {
  const uint32_t lane = gpu_lane(), first = gpu_wave() % 4 * 16 + lane / 4;
  float left[2][GPU_GROUP_K], right[GPU_GROUP_K];
  for (uint32_t half = 0; half < 2; half++)
    for (uint32_t k = 0; k < GPU_GROUP_K; k++)
      left[half][k] = gpu_group_value(p.a, p.a_along_k, first + 8 * half, k);
  for (uint32_t col = 0; col < GPU_GROUP_N / 4; col++) {
    for (uint32_t k = 0; k < GPU_GROUP_K; k++)
      right[k] = gpu_group_value(p.b, p.b_along_k, col / 2 * 8 + lane % 4 * 2 + col % 2, k);
    for (uint32_t half = 0; half < 2; half++) {
      float &sum = p.sums[col / 2 * 4 + half * 2 + col % 2];
      for (uint32_t k = 0; k < GPU_GROUP_K; k++) sum += left[half][k] * right[k];
    }
  }
}

template <bool A_K, bool B_K> GPU_DEVICE void gpu_group_add(float *sums, uint64_t a, uint64_t b) {
  const sim_group_product p = {sums, a, b, A_K, B_K};
  if (sim_group_issue(&p)) gpu_group_multiply(p);
}
GPU_DEVICE void gpu_group_begin() {}
GPU_DEVICE void gpu_group_end() {}
GPU_DEVICE void gpu_group_wait(float *) {
  sim_group_product p;
  while (sim_group_next(&p)) gpu_group_multiply(p);
}
GPU_DEVICE void gpu_group_publish() {
  sim_group_publish();
}

#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define GPU_SUMS_8(s, i)                                                                                     \
  "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3]), "+f"(s[i + 4]), "+f"(s[i + 5]),                \
      "+f"(s[i + 6]), "+f"(s[i + 7])

/* sums += A B; A_K, B_K: lines along k, which the instruction calls transposed. */
template <bool A_K, bool B_K> GPU_DEVICE void gpu_group_add(float *s, uint64_t a, uint64_t b) {
  asm volatile("{\n"
               ".reg .pred add;\n"
               "setp.eq.u32 add, 0, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
               "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
               "%64, %65, add, 1, 1, %66, %67;\n"
               "}\n"
               : GPU_SUMS_8(s, 0), GPU_SUMS_8(s, 8), GPU_SUMS_8(s, 16), GPU_SUMS_8(s, 24), GPU_SUMS_8(s, 32),
                 GPU_SUMS_8(s, 40), GPU_SUMS_8(s, 48), GPU_SUMS_8(s, 56)
               : "l"(a), "l"(b), "n"(A_K ? 1 : 0), "n"(B_K ? 1 : 0)
               : "memory");
}
/* Before the first of some products: what was done to sums is done. */
GPU_DEVICE void gpu_group_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
GPU_DEVICE void gpu_group_end() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Until the products are made and their operands read. */
GPU_DEVICE void gpu_group_wait(float *s) {
  __syncwarp(); /* copies may have parted the lanes */
  asm volatile("wgmma.wait_group.sync.aligned 0;"
               : GPU_SUMS_8(s, 0), GPU_SUMS_8(s, 8), GPU_SUMS_8(s, 16), GPU_SUMS_8(s, 24), GPU_SUMS_8(s, 32),
                 GPU_SUMS_8(s, 40), GPU_SUMS_8(s, 48), GPU_SUMS_8(s, 56)
               :
               : "memory");
}
/* What the thread wrote to shared memory is there for products behind the next barrier. */
GPU_DEVICE void gpu_group_publish() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#else

/* Targets without such units, in a module that has sm_90a beside them: never launched there. */
template <bool A_K, bool B_K> GPU_DEVICE void gpu_group_add(float *, uint64_t, uint64_t) {
  __trap();
}
GPU_DEVICE void gpu_group_begin() {}
GPU_DEVICE void gpu_group_end() {}
GPU_DEVICE void gpu_group_wait(float *) {}
GPU_DEVICE void gpu_group_publish() {}

#endif

/* A block's sums of one panel, from operands that are published: begun, not waited for. */
template <class G, bool A_K, bool B_K>
GPU_DEVICE void gpu_multiply_group(float *sums, const unsigned char *a, const unsigned char *b) {
  constexpr uint32_t m = G::M, n = G::N, threads = G::T;
  static_assert(n == GPU_GROUP_N && m * GPU_GROUP_THREADS == threads * GPU_GROUP_M, "a group has 64 rows");
  gpu_group_begin();
  GPU_UNROLL
  for (uint32_t k = 0; k < gpu_panel_depth<gpu_bf16>(); k += GPU_GROUP_K)
    gpu_group_add<A_K, B_K>(sums, gpu_group_operand<A_K>(a, gpu_group() * GPU_GROUP_M, k),
                            gpu_group_operand<B_K>(b, 0, k));
  gpu_group_end();
}

#endif
#endif
