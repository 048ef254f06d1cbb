/* SPDX-License-Identifier: Apache-2.0
 *
 * For tuned CPU kernels: backends/cpu/kernels/<family>.c, compiled once for each (instruction set, storage
 * type) by cmake/library.cmake; the table in backends/cpu/cpu.c picks a build at run time. A file of its own
 * for one instruction set belongs beside these, guarded by the compiler's macros (__AVX512F__ ...).
 *
 * Rules: OpenMP loops over blocks that are fixed by shape, never by the number of threads; sums in one fixed
 * order; no atomics on floats. `call->threads` threads. Scratch comes from call->scratch, its size from
 * CPU_SCRATCH(op).
 */
#ifndef KEDGE_CPU_KERNEL_H
#define KEDGE_CPU_KERNEL_H

#include "core/ops/kernel.h"

/* Bytes of scratch that op's kernel needs for this call (threads included); defines
 * kedge_<build>_<op>_scratch. */
#define KEDGE_SCRATCH_NAME(build, op) KEDGE_CAT_(build, op##_scratch, )
#define KEDGE_SCRATCH_CAT(build, op)  KEDGE_SCRATCH_NAME(build, op)
#define KEDGE_SCRATCH(op)                                                                                    \
  uint64_t KEDGE_SCRATCH_CAT(KEDGE_BUILD, op)(const kedge_call *call);                                       \
  uint64_t KEDGE_SCRATCH_CAT(KEDGE_BUILD, op)(const kedge_call *call)

#define KEDGE_PRAGMA_(text) _Pragma(#text)
/* A parallel loop over fixed blocks; chunks are handed out by index, so that results never depend on the
 * thread count. */
#define KEDGE_PARALLEL_FOR KEDGE_PRAGMA_(omp parallel for num_threads((int)call->threads) schedule(dynamic))

enum { KEDGE_LANES = 16 }; /* independent sums of a row reduction: lane i takes elements i, i+16, ... */

#endif
