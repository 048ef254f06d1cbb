/* SPDX-License-Identifier: Apache-2.0
 *
 * The practical peak of the machine: loops of independent multiply-adds that touch no memory. */
#include "backends/cpu/cpu.h"

#include <omp.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include "backends/cpu/kernels/amx.h"

#include <immintrin.h>
#endif

/* Operations of a call of a loop with `turns` turns. */
typedef double (*peak_loop)(long turns);

enum { CHAINS = 12 }; /* more than latency times throughput on all machines of the last ten years */

/* A loop of CHAINS sums in vectors of `lanes` floats; the empty statement keeps the compiler from folding
 * turns into one. */
#define PEAK_LOOP(name, target_, vector, zero, add, lanes, operations)                                       \
  target_ static double name(long turns) {                                                                   \
    vector sum[CHAINS], a = zero;                                                                            \
    for (int c = 0; c < CHAINS; c++) sum[c] = zero;                                                          \
    for (long i = 0; i < turns; i++) {                                                                       \
      KEEP(a);                                                                                               \
      for (int c = 0; c < CHAINS; c++) sum[c] = add(sum[c], a);                                              \
    }                                                                                                        \
    for (int c = 0; c < CHAINS; c++) KEEP(sum[c]);                                                           \
    return (double)(operations)*CHAINS * (lanes) * (double)turns;                                            \
  }

typedef float four __attribute__((vector_size(16)));
#define ADD_BASE(sum, a) sum + a *a
#if defined(__x86_64__)
#define KEEP(v) __asm__ volatile("" : "+x"(v))
PEAK_LOOP(peak_base, , four, ((four){0}), ADD_BASE, 4, 2)
#define ADD_AVX2(sum, a) _mm256_fmadd_ps(a, a, sum)
PEAK_LOOP(peak_avx2, __attribute__((target("avx2,fma"))), __m256, _mm256_setzero_ps(), ADD_AVX2, 8, 2)
#undef KEEP
#define KEEP(v)            __asm__ volatile("" : "+v"(v))
#define ADD_AVX512(sum, a) _mm512_fmadd_ps(a, a, sum)
PEAK_LOOP(peak_avx512, __attribute__((target("avx512f"))), __m512, _mm512_setzero_ps(), ADD_AVX512, 16, 2)
#define ADD_BF16(sum, a) _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)a)
PEAK_LOOP(peak_avx512bf16, __attribute__((target("avx512f,avx512bf16"))), __m512, _mm512_setzero_ps(),
          ADD_BF16, 16, 4)

/* Four tiles of sums from two and two, as the kernels have them. */
static double peak_amx(long turns) {
  kedge__amx_begin();
  for (long i = 0; i < turns; i++) {
    kedge__amx_multiply(0, 4, 6);
    kedge__amx_multiply(1, 4, 7);
    kedge__amx_multiply(2, 5, 6);
    kedge__amx_multiply(3, 5, 7);
  }
  kedge__amx_end();
  return 4.0 * 2 * 16 * 16 * 32 * (double)turns;
}
#else
#define KEEP(v) __asm__ volatile("" : "+w"(v))
PEAK_LOOP(peak_base, , four, ((four){0}), ADD_BASE, 4, 2)
#endif

static peak_loop choose(const char *isa, kedge_dtype dtype) {
#if defined(__x86_64__)
  if (dtype == KEDGE_BF16 && !strcmp(isa, "amx")) return peak_amx;
  if (dtype == KEDGE_BF16 && !strcmp(isa, "avx512bf16")) return peak_avx512bf16;
  if (!strcmp(isa, "avx2")) return peak_avx2;
  if (strcmp(isa, "base")) return peak_avx512;
#endif
  (void)isa, (void)dtype;
  return peak_base;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double kedge__cpu_peak(const kedge_device *device, kedge_dtype dtype) {
  enum { TRIES = 8 };
  const peak_loop loop = choose(kedge__cpu_isa(device), dtype);
  const int threads = (int)device->limits.threads;
  double best = 0;
  for (long turns = 100000, tries = 0; tries < TRIES; tries++) {
    double total = 0;
    const double start = now();
#pragma omp parallel num_threads(threads) reduction(+ : total)
    total += loop(turns);
    const double seconds = now() - start;
    if (total / seconds > best) best = total / seconds;
    if (seconds < 2e-3) turns *= 2;
  }
  return best;
}
