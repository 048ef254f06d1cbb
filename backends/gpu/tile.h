/* SPDX-License-Identifier: Apache-2.0
 *
 * A product of 16 x 16 x 16 by a wave, behind names that hide who does it:
 *
 *   waves of 32   two mma.sync.m16n8k16 (CUDA, bf16), fragments loaded by ldmatrix
 *   waves of 64   one MFMA 16x16x16 (gfx90a and its successors, bf16)
 *   plain         multiply-adds, for f32 and for cards without such units; the same lanes hold the same sums
 *
 * The simulated card runs all three: collectives of the wave that follow the documented layouts, so that
 * addresses and lanes are tried without a card. product.h builds block products on it.
 *
 * Operands lie in shared memory as panels of GPU_PANEL bytes a line group, in one of two layouts:
 *   lines along m (or n): [lines][BK], 64 bytes a line, BK = 64 / sizeof(X)
 *   lines along k:        [lines / L][BK][L], 128 bytes a line, L = 128 / sizeof(X)
 * Chunks of 16 bytes are permuted within a line so that neither layout meets bank conflicts. group.h has
 * larger products, which read the same panels.
 */
#ifndef KEDGE_GPU_TILE_H
#define KEDGE_GPU_TILE_H

#include "backends/gpu/kernel.h"

#if defined(KEDGE_GPU_SIM)
#define GPU_UNROLL
#define GPU_UNROLL_TWO
#define GPU_UNROLL_LOADS
#elif defined(KEDGE_GPU_HIP) && __AMDGCN_WAVEFRONT_SIZE == 32
/* Sums, and operands of plain multiply-adds, fill the 256 registers of these cards. */
#define GPU_UNROLL       _Pragma("unroll")
#define GPU_UNROLL_TWO   _Pragma("unroll 1")
#define GPU_UNROLL_LOADS _Pragma("unroll 1")
#else
#define GPU_UNROLL       _Pragma("unroll")
#define GPU_UNROLL_TWO   _Pragma("unroll 2")
#define GPU_UNROLL_LOADS _Pragma("unroll")
#endif

/* Sixteen bytes, the unit of copies. */
struct alignas(16) gpu_chunk {
  uint32_t word[4];
};

template <class X> GPU_DEVICE constexpr uint32_t gpu_panel_depth() {
  return 64 / sizeof(X);
}

/* Byte of an element of a panel. */
template <class X, bool ALONG_K> GPU_DEVICE uint32_t gpu_panel_at(uint32_t line, uint32_t k) {
  if (ALONG_K) {
    const uint32_t byte = line * (uint32_t)sizeof(X), chunk = byte / 16 % 8 ^ (k & 7);
    return byte / 128 * gpu_panel_depth<X>() * 128 + k * 128 + chunk * 16 + byte % 16;
  }
  const uint32_t byte = k * (uint32_t)sizeof(X), chunk = byte / 16 ^ (line >> 1 & 3);
  return line * 64 + chunk * 16 + byte % 16;
}

/* ---- Which lane holds which sums of a tile: rows x cols of them, all pairs */

GPU_DEVICE uint32_t gpu_tile_rows() {
  return gpu_wave_width() == 32 ? 2 : 4;
}
GPU_DEVICE uint32_t gpu_tile_cols() {
  return gpu_wave_width() == 32 ? 4 : 1;
}
GPU_DEVICE uint32_t gpu_tile_sums() {
  return 256 / gpu_wave_width();
}
GPU_DEVICE uint32_t gpu_tile_row(uint32_t r) {
  return gpu_wave_width() == 32 ? gpu_lane() / 4 + 8 * r : gpu_lane() / 16 * 4 + r;
}
GPU_DEVICE uint32_t gpu_tile_col(uint32_t c) {
  return gpu_wave_width() == 32 ? gpu_lane() % 4 * 2 + (c & 1) + 8 * (c >> 1) : gpu_lane() % 16;
}
GPU_DEVICE uint32_t gpu_tile_sum(uint32_t r, uint32_t c) {
  return gpu_wave_width() == 32 ? (c >> 1) * 4 + r * 2 + (c & 1) : r;
}
/* So many lanes, next to each other, share a row. */
GPU_DEVICE uint32_t gpu_tile_row_lanes() {
  return gpu_wave_width() == 32 ? 4 : 16;
}

/* ---- Whether a storage type has matrix units here */

#if defined(KEDGE_GPU_SIM)
template <class X> GPU_DEVICE bool gpu_has_tiles() {
  return sizeof(X) == 2 && !sim_now.plain;
}
#elif defined(KEDGE_GPU_CUDA) || defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx942__)
template <class X> GPU_DEVICE constexpr bool gpu_has_tiles() {
  return sizeof(X) == 2;
}
#else
template <class X> GPU_DEVICE constexpr bool gpu_has_tiles() {
  return false;
}
#endif

/* A lane's part of an operand tile: 16 lines x 16 k. */
struct gpu_fragment {
  uint32_t word[4]; /* waves of 64 use two */
};

/* ---- Loads of fragments */

#if defined(KEDGE_GPU_SIM)
/* ldmatrix: lane 8 i + r points to row r of matrix i, 8 elements of 2 bytes. */
GPU_DEVICE gpu_fragment gpu_load_matrices(const unsigned char *own, bool transposed) {
  gpu_fragment f;
  const unsigned char *all = sim_wave_share(&own, sizeof own, GPU_SITE);
  const uint32_t lane = gpu_lane();
  for (uint32_t i = 0; i < 4; i++) {
    uint16_t pair[2];
    for (uint32_t h = 0; h < 2; h++) {
      const uint32_t row = transposed ? lane % 4 * 2 + h : lane / 4,
                     col = transposed ? lane / 4 : lane % 4 * 2 + h;
      const unsigned char *from;
      __builtin_memcpy(&from, all + (8 * i + row) * SIM_SHARE_BYTES, sizeof from);
      __builtin_memcpy(&pair[h], from + 2 * col, 2);
    }
    f.word[i] = (uint32_t)pair[1] << 16 | pair[0];
  }
  return f;
}
#elif defined(KEDGE_GPU_CUDA)
GPU_DEVICE gpu_fragment gpu_load_matrices(const unsigned char *own, bool transposed) {
  gpu_fragment f;
  const uint32_t at = (uint32_t)__cvta_generic_to_shared(own);
  if (transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f.word[0]), "=r"(f.word[1]), "=r"(f.word[2]), "=r"(f.word[3])
                 : "r"(at)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f.word[0]), "=r"(f.word[1]), "=r"(f.word[2]), "=r"(f.word[3])
                 : "r"(at)
                 : "memory");
  return f;
}
#else
GPU_DEVICE gpu_fragment gpu_load_matrices(const unsigned char *, bool) {
  gpu_fragment f = {{0, 0, 0, 0}};
  return f;
}
#endif

/* Lines [line0, +16) and k [k0, +16) of a panel of bf16. FIRST: as the left operand. Waves of 32 have four 8
 * x 8 matrices, (lines, k) = (0,0) (8,0) (0,8) (8,8) for the left operand, (0,0) (0,8) (8,0) (8,8) for the
 * right; waves of 64 have in lane l the line l % 16 and k from l / 16 * 4, four of them. */
template <bool ALONG_K, uint32_t EXTENT, bool FIRST>
GPU_DEVICE gpu_fragment gpu_load_fragment(const unsigned char *panel, uint32_t line0, uint32_t k0) {
  const uint32_t lane = gpu_lane();
  if (gpu_wave_width() == 32) {
    const uint32_t within = lane % 8, second = lane / 8 % 2, third = lane / 16;
    const uint32_t line8 = FIRST ? second : third, k8 = FIRST ? third : second;
    const uint32_t line = line0 + 8 * line8 + (ALONG_K ? 0 : within),
                   k = k0 + 8 * k8 + (ALONG_K ? within : 0);
    return gpu_load_matrices(panel + gpu_panel_at<gpu_bf16, ALONG_K>(line, k), ALONG_K);
  }
  gpu_fragment f;
  uint32_t half[4];
  GPU_UNROLL
  for (uint32_t j = 0; j < 4; j++)
    half[j] = *(const uint16_t *)(panel +
                                  gpu_panel_at<gpu_bf16, ALONG_K>(line0 + lane % 16, k0 + lane / 16 * 4 + j));
  f.word[0] = half[1] << 16 | half[0];
  f.word[1] = half[3] << 16 | half[2];
  f.word[2] = f.word[3] = 0;
  return f;
}

/* ---- The product of two fragments, added to a lane's sums */

#if defined(KEDGE_GPU_SIM)
GPU_DEVICE float gpu_half_of(const unsigned char *all, uint32_t lane, uint32_t word, uint32_t half) {
  gpu_bf16 x;
  __builtin_memcpy(&x.bits, all + lane * SIM_SHARE_BYTES + word * 4 + half * 2, 2);
  return gpu_load(x);
}
GPU_DEVICE void gpu_tile_add(float *sums, const gpu_fragment &a, const gpu_fragment &b) {
  struct {
    gpu_fragment a, b;
  } own = {a, b};
  const unsigned char *all = sim_wave_share(&own, sizeof own, GPU_SITE);
  const bool wide = gpu_wave_width() == 64;
  for (uint32_t r = 0; r < gpu_tile_rows(); r++)
    for (uint32_t c = 0; c < gpu_tile_cols(); c++) {
      const uint32_t row = gpu_tile_row(r), col = gpu_tile_col(c);
      float sum = sums[gpu_tile_sum(r, c)];
      for (uint32_t k = 0; k < 16; k++)
        sum += wide ? gpu_half_of(all, row + k / 4 * 16, k % 4 / 2, k & 1) *
                          gpu_half_of(all, col + k / 4 * 16, 4 + k % 4 / 2, k & 1)
                    : gpu_half_of(all, row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2, k & 1) *
                          gpu_half_of(all, col % 8 * 4 + k % 8 / 2, 4 + col / 8 * 2 + k / 8, k & 1);
      sums[gpu_tile_sum(r, c)] = sum;
    }
}
#elif defined(KEDGE_GPU_CUDA)
GPU_DEVICE void gpu_tile_add(float *sums, const gpu_fragment &a, const gpu_fragment &b) {
  GPU_UNROLL
  for (int h = 0; h < 2; h++)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(sums[4 * h]), "+f"(sums[4 * h + 1]), "+f"(sums[4 * h + 2]), "+f"(sums[4 * h + 3])
                 : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b.word[2 * h]),
                   "r"(b.word[2 * h + 1]));
}
#elif defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx942__)
GPU_DEVICE void gpu_tile_add(float *sums, const gpu_fragment &a, const gpu_fragment &b) {
  typedef short halves __attribute__((ext_vector_type(4)));
  typedef float floats __attribute__((ext_vector_type(4)));
  union {
    uint32_t word[2];
    halves h;
  } left = {{a.word[0], a.word[1]}}, right = {{b.word[0], b.word[1]}};
  floats c = {sums[0], sums[1], sums[2], sums[3]};
  c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(left.h, right.h, c, 0, 0, 0);
  GPU_UNROLL
  for (int i = 0; i < 4; i++) sums[i] = c[i];
}
#else
GPU_DEVICE void gpu_tile_add(float *, const gpu_fragment &, const gpu_fragment &) {}
#endif

/* ---- Copies to shared memory that are waited for later */

#if defined(KEDGE_GPU_SIM)
GPU_DEVICE void gpu_copy_chunk(unsigned char *to, const void *from) {
  sim_copy_later(to, from, 16);
}
GPU_DEVICE void gpu_copy_group() {
  sim_copy_group();
}
template <uint32_t BEHIND> GPU_DEVICE void gpu_copy_wait() {
  sim_copy_wait(BEHIND);
}
#elif defined(KEDGE_GPU_CUDA)
GPU_DEVICE void gpu_copy_chunk(unsigned char *to, const void *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
               "l"(from)
               : "memory");
}
GPU_DEVICE void gpu_copy_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <uint32_t BEHIND> GPU_DEVICE void gpu_copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(BEHIND) : "memory");
}
#else
GPU_DEVICE void gpu_copy_chunk(unsigned char *to, const void *from) {
  *(gpu_chunk *)to = *(const gpu_chunk *)from;
}
GPU_DEVICE void gpu_copy_group() {}
template <uint32_t BEHIND> GPU_DEVICE void gpu_copy_wait() {}
#endif

#endif
