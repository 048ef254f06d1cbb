/* SPDX-License-Identifier: Apache-2.0
 * A small product with edges in every direction, by which products of groups of waves are tried (groups.c).
 */
#ifndef KEDGE_GPU_GROUPS_H
#define KEDGE_GPU_GROUPS_H

#include "backends/gpu/gpu.h"

enum { GPU_TRY_M = 150, GPU_TRY_N = 136, GPU_TRY_K = 72, GPU_TRY_ROWS = 152, GPU_TRY_PITCH = 152 };

#ifdef __cplusplus
extern "C" {
#endif
/* C = A B in bf16, c in f32; layout & 1: a is stored along k, layout & 2: b is. */
void kedge_gpu_groups_try(const gpu_step *s, const void *a, const void *b, float *c, uint32_t layout);
#ifdef __cplusplus
}
#endif
#endif
