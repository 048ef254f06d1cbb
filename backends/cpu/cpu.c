/* SPDX-License-Identifier: Apache-2.0
 *
 * Backend `cpu`: tuned kernels (backends/cpu/kernels, one build an instruction set) where kernels.def lists
 * them, the reference kernels for the rest. Picks the instruction set once, when it opens: KEDGE_ISA or the
 * best that the machine has.
 */
#include "backends/cpu/cpu.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

void openblas_set_num_threads(int count);

typedef struct cpu_kernel {
  kedge_kernel run;
  uint64_t (*scratch)(const kedge_call *call); /* NULL: none */
} cpu_kernel;

typedef cpu_kernel cpu_table[KEDGE_OP_COUNT][2]; /* [op][f32, bf16]; run NULL: the reference kernel */

#define DECLARE(build, op) void kedge_cpu_##build##_##op(const kedge_call *call);
#define DECLARE_S(build, op)                                                                                 \
  DECLARE(build, op)                                                                                         \
  uint64_t kedge_cpu_##build##_##op##_scratch(const kedge_call *call);
#define ROW(f32, bf16, op)                                                                                   \
  [KEDGE_OP_##op] = {{kedge_cpu_##f32##_##op, NULL}, {kedge_cpu_##bf16##_##op, NULL}},
#define ROW_S(f32, bf16, op)                                                                                 \
  [KEDGE_OP_##op] = {{kedge_cpu_##f32##_##op, kedge_cpu_##f32##_##op##_scratch},                             \
                     {kedge_cpu_##bf16##_##op, kedge_cpu_##bf16##_##op##_scratch}},

#define KEDGE_CPU(op)         DECLARE(base_f32, op) DECLARE(base_bf16, op)
#define KEDGE_CPU_SCRATCH(op) DECLARE_S(base_f32, op) DECLARE_S(base_bf16, op)
#define KEDGE_CPU_PRODUCT(op) KEDGE_CPU_SCRATCH(op)
#include "backends/cpu/kernels.def"
#undef KEDGE_CPU
#undef KEDGE_CPU_SCRATCH
#undef KEDGE_CPU_PRODUCT
static const cpu_table table_base = {
#define KEDGE_CPU(op)         ROW(base_f32, base_bf16, op)
#define KEDGE_CPU_SCRATCH(op) ROW_S(base_f32, base_bf16, op)
#define KEDGE_CPU_PRODUCT(op) KEDGE_CPU_SCRATCH(op)
#include "backends/cpu/kernels.def"
#undef KEDGE_CPU
#undef KEDGE_CPU_SCRATCH
#undef KEDGE_CPU_PRODUCT
};

#if defined(__x86_64__)
#define KEDGE_CPU(op)                                                                                        \
  DECLARE(avx2_f32, op) DECLARE(avx2_bf16, op) DECLARE(avx512_f32, op) DECLARE(avx512_bf16, op)
#define KEDGE_CPU_SCRATCH(op)                                                                                \
  DECLARE_S(avx2_f32, op) DECLARE_S(avx2_bf16, op) DECLARE_S(avx512_f32, op) DECLARE_S(avx512_bf16, op)
#define KEDGE_CPU_PRODUCT(op) KEDGE_CPU_SCRATCH(op) DECLARE_S(avx512bf16_bf16, op) DECLARE_S(amx_bf16, op)
#include "backends/cpu/kernels.def"
#undef KEDGE_CPU
#undef KEDGE_CPU_SCRATCH
#undef KEDGE_CPU_PRODUCT
static const cpu_table table_avx2 = {
#define KEDGE_CPU(op)         ROW(avx2_f32, avx2_bf16, op)
#define KEDGE_CPU_SCRATCH(op) ROW_S(avx2_f32, avx2_bf16, op)
#define KEDGE_CPU_PRODUCT(op) KEDGE_CPU_SCRATCH(op)
#include "backends/cpu/kernels.def"
#undef KEDGE_CPU
#undef KEDGE_CPU_SCRATCH
#undef KEDGE_CPU_PRODUCT
};
#define KEDGE_CPU(op)         ROW(avx512_f32, avx512_bf16, op)
#define KEDGE_CPU_SCRATCH(op) ROW_S(avx512_f32, avx512_bf16, op)
static const cpu_table table_avx512 = {
#define KEDGE_CPU_PRODUCT(op) KEDGE_CPU_SCRATCH(op)
#include "backends/cpu/kernels.def"
#undef KEDGE_CPU_PRODUCT
};
static const cpu_table table_avx512bf16 = {
#define KEDGE_CPU_PRODUCT(op) ROW_S(avx512_f32, avx512bf16_bf16, op)
#include "backends/cpu/kernels.def"
#undef KEDGE_CPU_PRODUCT
};
static const cpu_table table_amx = {
#define KEDGE_CPU_PRODUCT(op) ROW_S(avx512_f32, amx_bf16, op)
#include "backends/cpu/kernels.def"
#undef KEDGE_CPU_PRODUCT
};
#undef KEDGE_CPU
#undef KEDGE_CPU_SCRATCH
static bool has_avx2(void) {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
static bool has_avx512(void) {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
static bool has_avx512bf16(void) {
  return has_avx512() && __builtin_cpu_supports("avx512bf16");
}

/* Tiles are large state: Linux gives a process their use on request, which all its threads then have. */
static bool has_amx(void) {
  enum { TILE = 1u << 24, BF16 = 1u << 22 }; /* bits of leaf 7, edx */
  enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
  unsigned a, b, c, d;
  if (!has_avx512() || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (TILE | BF16)) != (TILE | BF16))
    return false;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#endif

static bool always(void) {
  return true;
}

/* From the best to the plainest. */
static const struct isa {
  const char *name;
  const cpu_table *table;
  bool (*present)(void);
  bool bf16; /* is at least as fast in bf16 as in f32 (measured), though some widen it */
} isas[] = {
#if defined(__x86_64__)
    {"amx", &table_amx, has_amx, true},          {"avx512bf16", &table_avx512bf16, has_avx512bf16, true},
    {"avx512", &table_avx512, has_avx512, true}, {"avx2", &table_avx2, has_avx2, true},
#endif
    {"base", &table_base, always, false},
};

static kedge_status choose_isa(const char *wanted, const struct isa **found) {
  for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
    if (wanted && strcmp(wanted, isas[i].name)) continue;
    if (isas[i].present()) {
      *found = &isas[i];
      return KEDGE_OK;
    }
    if (wanted) return kedge_fail(KEDGE_ERR_DEVICE, "KEDGE_ISA=%s: this machine does not have it", wanted);
  }
  return kedge_fail(KEDGE_ERR_ARGUMENT, "KEDGE_ISA=%s: expected amx, avx512bf16, avx512, avx2 or base",
                    wanted ? wanted : "");
}

const char *kedge__cpu_isa(const kedge_device *device) {
  return ((const struct isa *)device->state)->name;
}

/* OpenBLAS takes a buffer of this size for each thread at work, and where the system has none (ulimit -v) it
 * asks again for ever. So the addresses are asked for here, once, and given back. */
static kedge_status check_addresses(int threads) {
  const size_t bytes = (size_t)threads << 27;
  void *room = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED)
    return kedge_fail(
        KEDGE_ERR_MEMORY,
        "the limit on this process's address space leaves no room for %d thread%s (%zu MiB); use "
        "fewer threads",
        threads, threads == 1 ? "" : "s", bytes >> 20);
  munmap(room, bytes);
  return KEDGE_OK;
}

static kedge_status cpu_open(const kedge_open_options *options, kedge_device *device) {
  const char *wanted = options->isa ? options->isa : getenv("KEDGE_ISA");
  const struct isa *isa = NULL;
  KEDGE_TRY(choose_isa(wanted && *wanted ? wanted : NULL, &isa));
  int threads = options->threads ? (int)options->threads : omp_get_max_threads();
  KEDGE_TRY(check_addresses(threads));
  openblas_set_num_threads(
      1); /* its results differ between 1 and more threads; our loops are the parallel ones */
  device->state = (void *)(uintptr_t)isa;
  device->limits.threads = (uint32_t)threads;
  snprintf(device->description, sizeof device->description, "cpu (%s, %d thread%s)", isa->name, threads,
           threads == 1 ? "" : "s");
  return KEDGE_OK;
}

static void cpu_close(kedge_device *device) {
  (void)device;
}

static void cpu_limits(const kedge_device *device, kedge_limits *limits) {
  *limits = (kedge_limits){.max_buffer = UINT64_MAX / 2,
                           .alignment = 64,
                           .threads = device->limits.threads,
                           .host_memory = true,
                           .computes = true,
                           .slow_bf16 = !((const struct isa *)device->state)->bf16};
}

static const cpu_kernel *lookup(const kedge_device *device, const kedge_step *step) {
  const struct isa *isa = device->state;
  return &(*isa->table)[step->op][step->variant == KEDGE_VARIANT_BF16];
}

static uint64_t cpu_scratch(const kedge_device *device, const kedge_step *step) {
  const cpu_kernel *kernel = lookup(device, step);
  return kernel->scratch ? kernel->scratch(&step->call) : 0;
}

static kedge_status cpu_run(kedge_device *device, const kedge_step *steps, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    const cpu_kernel *kernel = lookup(device, &steps[i]);
    (kernel->run ? kernel->run : kedge__reference(steps[i].op, steps[i].variant))(&steps[i].call);
  }
  return KEDGE_OK;
}

const kedge_backend kedge__backend_cpu = {.name = "cpu",
                                          .open = cpu_open,
                                          .close = cpu_close,
                                          .limits = cpu_limits,
                                          .buffer_new = kedge__host_buffer_new,
                                          .buffer_wrap = kedge__host_buffer_wrap,
                                          .buffer_free = kedge__host_buffer_free,
                                          .write = kedge__host_write,
                                          .read = kedge__host_read,
                                          .fill = kedge__host_fill,
                                          .scratch = cpu_scratch,
                                          .run = cpu_run,
                                          .sync = kedge__host_sync,
                                          .time = kedge__host_time};
