/* SPDX-License-Identifier: Apache-2.0
 *
 * Cooperative matrices: whether a device multiplies f16 with f32 sums, and in which shape. The shaders are
 * compiled for KHR's extension where the compiler and the headers know it, else for NV's (cmake/vulkan.cmake
 * sets KEDGE_MATRICES to 2 or 1; 0 is neither), and only that one is asked for.
 */
#include "backends/vulkan/vulkan.h"

#include <string.h>

#if KEDGE_MATRICES == 2
#define NAME            VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME
#define MATRIX_F16      VK_COMPONENT_TYPE_FLOAT16_KHR
#define MATRIX_F32      VK_COMPONENT_TYPE_FLOAT32_KHR
#define MATRIX_SUBGROUP VK_SCOPE_SUBGROUP_KHR
#define RESULT_TYPE     ResultType
typedef VkPhysicalDeviceCooperativeMatrixFeaturesKHR features_type;
typedef VkPhysicalDeviceCooperativeMatrixPropertiesKHR properties_type;
typedef VkCooperativeMatrixPropertiesKHR entry_type;
typedef PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR list_function;
enum {
  FEATURES = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR,
  PROPERTIES = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_PROPERTIES_KHR,
  ENTRY = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR
};
#define LIST "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"
#elif KEDGE_MATRICES == 1
#define NAME            VK_NV_COOPERATIVE_MATRIX_EXTENSION_NAME
#define MATRIX_F16      VK_COMPONENT_TYPE_FLOAT16_NV
#define MATRIX_F32      VK_COMPONENT_TYPE_FLOAT32_NV
#define MATRIX_SUBGROUP VK_SCOPE_SUBGROUP_NV
#define RESULT_TYPE     DType
typedef VkPhysicalDeviceCooperativeMatrixFeaturesNV features_type;
typedef VkPhysicalDeviceCooperativeMatrixPropertiesNV properties_type;
typedef VkCooperativeMatrixPropertiesNV entry_type;
typedef PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesNV list_function;
enum {
  FEATURES = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_NV,
  PROPERTIES = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_PROPERTIES_NV,
  ENTRY = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_NV
};
#define LIST            "vkGetPhysicalDeviceCooperativeMatrixPropertiesNV"
#endif

#if KEDGE_MATRICES
enum { MOST_ENTRIES = 128 };

static vk_matrix listed(const vk_state *s) {
  entry_type found[MOST_ENTRIES];
  vk_matrix_entry list[MOST_ENTRIES];
  uint32_t count = MOST_ENTRIES;
  list_function ask = NULL;
  PFN_vkVoidFunction address = vkGetInstanceProcAddr(s->instance, LIST);
  memcpy(&ask, &address, sizeof ask);
  for (uint32_t i = 0; i < MOST_ENTRIES; i++) found[i] = (entry_type){.sType = (VkStructureType)ENTRY};
  VkResult result = ask ? ask(s->physical, &count, found) : VK_ERROR_EXTENSION_NOT_PRESENT;
  if (result != VK_SUCCESS && result != VK_INCOMPLETE) count = 0;
  for (uint32_t i = 0; i < count; i++)
    list[i] =
        (vk_matrix_entry){.shape = {found[i].MSize, found[i].NSize, found[i].KSize},
                          .f16_in = found[i].AType == MATRIX_F16 && found[i].BType == MATRIX_F16,
                          .f32_sums = found[i].CType == MATRIX_F32 && found[i].RESULT_TYPE == MATRIX_F32,
                          .subgroup = found[i].scope == MATRIX_SUBGROUP};
  return vk_matrix_choose(list, count);
}

void kedge__vk_matrix_learn(vk_state *s) {
  features_type offered = {.sType = (VkStructureType)FEATURES};
  VkPhysicalDeviceSubgroupSizeControlFeaturesEXT sizes = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES_EXT, .pNext = &offered};
  VkPhysicalDeviceVulkan12Features core = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
                                           .pNext = &sizes};
  VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                        .pNext = &core};
  properties_type stages = {.sType = (VkStructureType)PROPERTIES};
  VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                            .pNext = &stages};
  if (!kedge__vk_has_extension(s->physical, NAME) ||
      !kedge__vk_has_extension(s->physical, VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME))
    return;
  vkGetPhysicalDeviceFeatures2(s->physical, &features);
  vkGetPhysicalDeviceProperties2(s->physical, &properties);
  if (!offered.cooperativeMatrix || !core.shaderFloat16 || !core.vulkanMemoryModel ||
      !sizes.computeFullSubgroups)
    return;
  if (!(stages.cooperativeMatrixSupportedStages & VK_SHADER_STAGE_COMPUTE_BIT)) return;
  const vk_matrix shape = listed(s);
  if (!shape.m) return;
  const vk_matrix_tile tile = vk_matrix_tile_for(shape, s->facts.subgroup, UINT64_MAX);
  if (tile.shared > s->facts.shared_bytes || tile.subgroups * s->facts.subgroup > s->facts.max_local) return;
  s->facts.matrix = shape;
}

const void *kedge__vk_matrix_features(const vk_state *s, const char **extension) {
  static const features_type wanted = {.sType = (VkStructureType)FEATURES, .cooperativeMatrix = VK_TRUE};
  if (!s->facts.matrix.m) return NULL;
  *extension = NAME;
  return &wanted;
}
#else
void kedge__vk_matrix_learn(vk_state *s) {
  (void)s;
}

const void *kedge__vk_matrix_features(const vk_state *s, const char **extension) {
  (void)s;
  (void)extension;
  return NULL;
}
#endif
