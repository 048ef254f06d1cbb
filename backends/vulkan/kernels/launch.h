/* SPDX-License-Identifier: Apache-2.0
 *
 * For the launches of kernels/: float arguments, and small helpers. A file here says which shaders (shaders/,
 * of the same stem) an op runs, over how many groups.
 */
#ifndef KEDGE_BACKEND_VULKAN_LAUNCH_H
#define KEDGE_BACKEND_VULKAN_LAUNCH_H

#include "backends/vulkan/vulkan.h"

static inline uint32_t vk_is_bf16(const kedge_tensor *t) {
  return t->rank && t->dtype == KEDGE_BF16;
}

/* One subgroup a row. `work`: operations of a row. */
static inline void vk_rows(vk_launch *launch, vk_shader shader, uint64_t rows, uint64_t work) {
  kedge__vk_pass(launch, &(vk_pass){.shader = shader, .groups = rows, .work = work});
}

/* Elements that know nothing of each other (shaders/elements.glsl). `work`: operations of one. */
static inline void vk_elements(vk_launch *launch, vk_shader shader, uint64_t count, uint64_t work) {
  enum { LOCAL = 128, EACH = 8 };
  kedge__vk_pass(launch, &(vk_pass){.shader = shader,
                                    .groups = vk_ceil(count, LOCAL * EACH),
                                    .local = LOCAL,
                                    .work = work * LOCAL * EACH,
                                    .special = {EACH}});
}

#endif
