/* SPDX-License-Identifier: Apache-2.0
 *
 * The Vulkan instance, the choice of a device and what it must have, and the line for every failed call. A
 * software device is taken only by request.
 */
#include "backends/vulkan/vulkan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DEVICES = 16 };

static const char *result_text(VkResult result) {
  switch (result) {
  case VK_ERROR_OUT_OF_HOST_MEMORY:
    return "out of host memory";
  case VK_ERROR_OUT_OF_DEVICE_MEMORY:
    return "out of device memory";
  case VK_ERROR_TOO_MANY_OBJECTS:
    return "too many allocations";
  case VK_ERROR_DEVICE_LOST:
    return "the device was lost; checkpoints on disk are as they were";
  case VK_ERROR_INITIALIZATION_FAILED:
    return "initialisation failed";
  case VK_ERROR_INCOMPATIBLE_DRIVER:
    return "no driver is installed";
  case VK_ERROR_LAYER_NOT_PRESENT:
    return "a layer is not installed";
  case VK_ERROR_EXTENSION_NOT_PRESENT:
    return "an extension is missing";
  case VK_ERROR_FEATURE_NOT_PRESENT:
    return "a feature is missing";
  default:
    return "error";
  }
}

kedge_status kedge__vk_fail(vk_state *s, VkResult result, const char *what) {
  bool memory = result == VK_ERROR_OUT_OF_HOST_MEMORY || result == VK_ERROR_OUT_OF_DEVICE_MEMORY ||
                result == VK_ERROR_TOO_MANY_OBJECTS;
  if (result == VK_ERROR_DEVICE_LOST) s->lost = true;
  return kedge_fail(memory ? KEDGE_ERR_MEMORY : KEDGE_ERR_DEVICE, "vulkan%s%s: %s: %s (VkResult %d)",
                    s->facts.name[0] ? " on " : "", s->facts.name, what, result_text(result), (int)result);
}

/* What a driver keeps until its library goes, a leak checker finds without an owner: such memory is not ours.
 * The symbols are there in builds with one. */
__attribute__((weak)) void __lsan_disable(void);
__attribute__((weak)) void __lsan_enable(void);

static void driver_begins(void) {
  if (__lsan_disable) __lsan_disable();
}

static void driver_ends(void) {
  if (__lsan_enable) __lsan_enable();
}

static kedge_status make_instance(vk_state *s) {
  const VkApplicationInfo app = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                 .pApplicationName = "kedge",
                                 .apiVersion = VK_API_VERSION_1_2};
  VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &app};
  kedge__vk_validation_ask(s, &info);
  driver_begins();
  VkResult result = vkCreateInstance(&info, NULL, &s->instance);
  driver_ends();
  if (result == VK_SUCCESS) {
    kedge__vk_validation_listen(s);
    return KEDGE_OK;
  }
  s->instance = VK_NULL_HANDLE;
  return kedge__vk_fail(s, result, "making an instance");
}

/* A queue family that computes. UINT32_MAX: none. */
static uint32_t find_family(VkPhysicalDevice physical, VkQueueFamilyProperties *found) {
  VkQueueFamilyProperties families[32];
  uint32_t count = 32, best = UINT32_MAX;
  vkGetPhysicalDeviceQueueFamilyProperties(physical, &count, families);
  for (uint32_t i = 0; i < count; i++) {
    if (!(families[i].queueFlags & VK_QUEUE_COMPUTE_BIT)) continue;
    if (best != UINT32_MAX && families[i].queueFlags & VK_QUEUE_GRAPHICS_BIT) continue;
    best = i;
  }
  if (best != UINT32_MAX) *found = families[best];
  return best;
}

typedef struct wanted_features {
  VkPhysicalDeviceFeatures2 core;
  VkPhysicalDeviceVulkan11Features v11;
  VkPhysicalDeviceVulkan12Features v12;
} wanted_features;

static void chain_features(wanted_features *f) {
  memset(f, 0, sizeof *f);
  f->core.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
  f->v11.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES;
  f->v12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
  f->core.pNext = &f->v11;
  f->v11.pNext = &f->v12;
}

static const char *missing_feature(VkPhysicalDevice physical, const VkPhysicalDeviceProperties *p) {
  const VkSubgroupFeatureFlags groups = VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_VOTE_BIT |
                                        VK_SUBGROUP_FEATURE_ARITHMETIC_BIT | VK_SUBGROUP_FEATURE_BALLOT_BIT;
  VkPhysicalDeviceSubgroupProperties subgroup = {.sType =
                                                     VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES};
  VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                            .pNext = &subgroup};
  wanted_features f;
  if (p->apiVersion < VK_API_VERSION_1_2) return "Vulkan 1.2";
  chain_features(&f);
  vkGetPhysicalDeviceFeatures2(physical, &f.core);
  vkGetPhysicalDeviceProperties2(physical, &properties);
  if (!f.v12.bufferDeviceAddress) return "bufferDeviceAddress";
  if (!f.v12.timelineSemaphore) return "timelineSemaphore";
  if (!f.v12.subgroupBroadcastDynamicId) return "subgroupBroadcastDynamicId";
  if (!f.v12.scalarBlockLayout) return "scalarBlockLayout";
  if (!f.core.features.shaderInt64) return "shaderInt64";
  if (!f.core.features.shaderInt16) return "shaderInt16";
  if (!f.v11.storageBuffer16BitAccess) return "storageBuffer16BitAccess";
  if (!(subgroup.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) ||
      (subgroup.supportedOperations & groups) != groups)
    return "subgroup arithmetic in compute shaders";
  return NULL;
}

bool kedge__vk_has_extension(VkPhysicalDevice physical, const char *name) {
  uint32_t count = 0;
  vkEnumerateDeviceExtensionProperties(physical, NULL, &count, NULL);
  VkExtensionProperties *list = kedge_alloc(count, sizeof *list);
  bool found = false;
  if (!list || vkEnumerateDeviceExtensionProperties(physical, NULL, &count, list) != VK_SUCCESS) count = 0;
  for (uint32_t i = 0; i < count; i++) found |= !strcmp(list[i].extensionName, name);
  kedge_free(list);
  return found;
}

static void learn(vk_state *s) {
  vk_facts *f = &s->facts;
  VkPhysicalDeviceSubgroupSizeControlPropertiesEXT sizes = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES_EXT};
  VkPhysicalDeviceMaintenance3Properties largest = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES};
  VkPhysicalDeviceIDProperties ids = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES,
                                      .pNext = &largest};
  VkPhysicalDeviceSubgroupProperties subgroup = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES, .pNext = &ids};
  VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                   .pNext = &subgroup};
  VkQueueFamilyProperties queue = {0};
  bool control = kedge__vk_has_extension(s->physical, VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME);
  if (control) largest.pNext = &sizes;
  vkGetPhysicalDeviceProperties2(s->physical, &p);
  vkGetPhysicalDeviceMemoryProperties(s->physical, &s->memory);
  const VkPhysicalDeviceLimits *limits = &p.properties.limits;
  snprintf(f->name, sizeof f->name, "%s", p.properties.deviceName);
  f->vendor = p.properties.vendorID;
  f->id = p.properties.deviceID;
  memcpy(f->driver, ids.driverUUID, VK_UUID_SIZE);
  memcpy(f->cache, p.properties.pipelineCacheUUID, VK_UUID_SIZE);
  f->software = p.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
  f->subgroup = subgroup.subgroupSize;
  f->resize_subgroup = control && sizes.minSubgroupSize != sizes.maxSubgroupSize &&
                       sizes.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT;
  f->shared_bytes = limits->maxComputeSharedMemorySize;
  f->max_local = limits->maxComputeWorkGroupInvocations;
  f->max_groups = limits->maxComputeWorkGroupCount[0] < 65535 ? limits->maxComputeWorkGroupCount[0] : 65535;
  f->max_buffer = largest.maxMemoryAllocationSize;
  f->family = find_family(s->physical, &queue);
  if (queue.timestampValidBits) {
    f->tick = 1e-9 * (double)limits->timestampPeriod;
    f->tick_mask = queue.timestampValidBits == 64 ? UINT64_MAX : (1ull << queue.timestampValidBits) - 1;
  }
  kedge__vk_matrix_learn(s);
}

static kedge_status make_device(vk_state *s) {
  const float priority = 1;
  const char *extensions[2] = {VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME};
  VkPhysicalDeviceSubgroupSizeControlFeaturesEXT sizes = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES_EXT,
      .subgroupSizeControl = s->facts.resize_subgroup};
  wanted_features f;
  chain_features(&f);
  f.core.features.shaderInt64 = f.core.features.shaderInt16 = VK_TRUE;
  f.v11.storageBuffer16BitAccess = VK_TRUE;
  f.v12.bufferDeviceAddress = f.v12.timelineSemaphore = f.v12.subgroupBroadcastDynamicId =
      f.v12.scalarBlockLayout = VK_TRUE;
  const void *matrices = kedge__vk_matrix_features(s, &extensions[1]);
  f.v12.shaderFloat16 = f.v12.vulkanMemoryModel = sizes.computeFullSubgroups = matrices != NULL;
  sizes.pNext = (void *)(uintptr_t)matrices;
  if (s->facts.resize_subgroup || matrices) f.v12.pNext = &sizes;
  const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                         .queueFamilyIndex = s->facts.family,
                                         .queueCount = 1,
                                         .pQueuePriorities = &priority};
  const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                   .pNext = &f.core,
                                   .queueCreateInfoCount = 1,
                                   .pQueueCreateInfos = &queue,
                                   .enabledExtensionCount = matrices ? 2 : s->facts.resize_subgroup,
                                   .ppEnabledExtensionNames = extensions};
  driver_begins();
  VkResult result = vkCreateDevice(s->physical, &info, NULL, &s->device);
  driver_ends();
  if (result != VK_SUCCESS) {
    s->device = VK_NULL_HANDLE;
    return kedge__vk_fail(s, result, "opening the device");
  }
  vkGetDeviceQueue(s->device, s->facts.family, 0, &s->queue);
  return KEDGE_OK;
}

/* Discrete before integrated before virtual; software last, and only by request. */
static int rank(VkPhysicalDeviceType type) {
  switch (type) {
  case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
    return 4;
  case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
    return 3;
  case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
    return 2;
  case VK_PHYSICAL_DEVICE_TYPE_CPU:
    return 0;
  default:
    return 1;
  }
}

/* Whether a device is the one that was asked for: by its number among all, or part of its name in letters of
 * either size. */
static bool is_wanted(const char *wanted, uint32_t index, const char *name) {
  char *end;
  unsigned long number = strtoul(wanted, &end, 10);
  if (*wanted >= '0' && *wanted <= '9' && !*end) return number == index;
  return strcasestr(name, wanted) != NULL;
}

static kedge_status refuse(vk_state *s, const VkPhysicalDevice *all, uint32_t count, const char *wanted) {
  char names[400] = "";
  for (uint32_t i = 0; i < count; i++) {
    VkPhysicalDeviceProperties p;
    vkGetPhysicalDeviceProperties(all[i], &p);
    size_t used = strlen(names);
    snprintf(names + used, sizeof names - used, "%s%u %s%s", i ? ", " : "", i, p.deviceName,
             p.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU ? " (software)" : "");
  }
  (void)s;
  if (wanted)
    return kedge_fail(KEDGE_ERR_DEVICE, "vulkan: no device \"%.60s\"; there are: %s", wanted, names);
  return kedge_fail(KEDGE_ERR_DEVICE, "vulkan: only software devices, which are used by request alone: %s",
                    names);
}

/* What a device lacks that the backend needs; NULL: nothing. */
static const char *lacks(VkPhysicalDevice physical, const VkPhysicalDeviceProperties *p) {
  VkQueueFamilyProperties queue;
  const char *missing = missing_feature(physical, p);
  return missing || find_family(physical, &queue) != UINT32_MAX ? missing : "queue that computes";
}

/* Of the devices that are wanted and have all that is needed the best kind, and of several of that kind the
 * one whose turn it is: processes that share a machine have a device each. */
static kedge_status pick(vk_state *s, const VkPhysicalDevice *all, uint32_t count, const char *wanted,
                         uint32_t ordinal) {
  VkPhysicalDeviceProperties p[MOST_DEVICES];
  uint32_t found[MOST_DEVICES], found_count = 0, poor = UINT32_MAX;
  int best = -1;
  for (uint32_t i = 0; i < count; i++) {
    vkGetPhysicalDeviceProperties(all[i], &p[i]);
    const bool software = p[i].deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
    if (wanted ? !is_wanted(wanted, i, p[i].deviceName) : software) continue;
    if (lacks(all[i], &p[i])) {
      if (poor == UINT32_MAX) poor = i;
      continue;
    }
    if (rank(p[i].deviceType) < best) continue;
    if (rank(p[i].deviceType) > best) found_count = 0;
    best = rank(p[i].deviceType);
    found[found_count++] = i;
  }
  if (!found_count && poor != UINT32_MAX)
    return kedge_fail(KEDGE_ERR_DEVICE, "vulkan: %s has no %s", p[poor].deviceName,
                      lacks(all[poor], &p[poor]));
  if (!found_count) return refuse(s, all, count, wanted);
  const uint32_t taken = found[ordinal % found_count];
  s->physical = all[taken];
  for (uint32_t i = 0; i < count; i++)
    if (i != taken && !strcmp(p[i].deviceName, p[taken].deviceName))
      snprintf(s->facts.number, sizeof s->facts.number, " %u", taken);
  return KEDGE_OK;
}

static kedge_status choose(vk_state *s, const char *wanted, uint32_t ordinal) {
  VkPhysicalDevice all[MOST_DEVICES];
  uint32_t count = MOST_DEVICES;
  driver_begins();
  VkResult result = vkEnumeratePhysicalDevices(s->instance, &count, all);
  driver_ends();
  /* The loader says so where each driver that is installed finds nothing to drive. */
  if (result == VK_ERROR_INITIALIZATION_FAILED) count = 0, result = VK_SUCCESS;
  if (result != VK_SUCCESS && result != VK_INCOMPLETE) return kedge__vk_fail(s, result, "listing devices");
  if (!count) return kedge_fail(KEDGE_ERR_DEVICE, "vulkan: no installed driver finds a device");
  return pick(s, all, count, wanted, ordinal);
}

kedge_status kedge__vk_device_make(vk_state *s, const kedge_open_options *options) {
  KEDGE_TRY(make_instance(s));
  KEDGE_TRY(choose(s, options->settings, options->ordinal));
  learn(s);
  return make_device(s);
}

void kedge__vk_device_destroy(vk_state *s) {
  if (s->device) vkDestroyDevice(s->device, NULL);
  if (s->instance) kedge__vk_validation_stop(s);
  if (s->instance) vkDestroyInstance(s->instance, NULL);
}
