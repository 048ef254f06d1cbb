/* SPDX-License-Identifier: Apache-2.0
 *
 * The validation layers, with synchronisation validation, where the environment says KEDGE_VULKAN_VALIDATE=1.
 * What they say fails the next run, so that tests see it; the suites run so.
 */
#include "backends/vulkan/vulkan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static VkBool32 listen(VkDebugUtilsMessageSeverityFlagBitsEXT severity, VkDebugUtilsMessageTypeFlagsEXT types,
                       const VkDebugUtilsMessengerCallbackDataEXT *data, void *context) {
  vk_state *s = context;
  (void)severity;
  (void)types;
  if (!s->messages++) snprintf(s->message, sizeof s->message, "%s", data->pMessage ? data->pMessage : "");
  return VK_FALSE;
}

void kedge__vk_validation_ask(vk_state *s, VkInstanceCreateInfo *info) {
  static const char *const layers[] = {"VK_LAYER_KHRONOS_validation"};
  static const char *const extensions[] = {VK_EXT_DEBUG_UTILS_EXTENSION_NAME,
                                           VK_EXT_VALIDATION_FEATURES_EXTENSION_NAME};
  static const VkValidationFeatureEnableEXT on[] = {
      VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT};
  static const VkValidationFeaturesEXT features = {.sType = VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
                                                   .enabledValidationFeatureCount = 1,
                                                   .pEnabledValidationFeatures = on};
  const char *asked = getenv("KEDGE_VULKAN_VALIDATE");
  s->validate = asked && !strcmp(asked, "1");
  if (!s->validate) return;
  info->pNext = &features;
  info->enabledLayerCount = 1;
  info->ppEnabledLayerNames = layers;
  info->enabledExtensionCount = 2;
  info->ppEnabledExtensionNames = extensions;
}

void kedge__vk_validation_listen(vk_state *s) {
  const VkDebugUtilsMessengerCreateInfoEXT info = {
      .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
      .messageSeverity =
          VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
      .messageType =
          VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT,
      .pfnUserCallback = listen,
      .pUserData = s};
  PFN_vkCreateDebugUtilsMessengerEXT make = NULL;
  PFN_vkVoidFunction found =
      s->validate ? vkGetInstanceProcAddr(s->instance, "vkCreateDebugUtilsMessengerEXT") : NULL;
  memcpy(&make, &found, sizeof make);
  if (make) make(s->instance, &info, NULL, &s->messenger);
}

void kedge__vk_validation_stop(vk_state *s) {
  PFN_vkDestroyDebugUtilsMessengerEXT destroy = NULL;
  PFN_vkVoidFunction found = vkGetInstanceProcAddr(s->instance, "vkDestroyDebugUtilsMessengerEXT");
  memcpy(&destroy, &found, sizeof destroy);
  if (destroy && s->messenger) destroy(s->instance, s->messenger, NULL);
}

static void conflict(vk_state *s, const vk_range *now, uint32_t count, bool write) {
  for (uint32_t i = 0; i < count; i++)
    for (uint32_t k = 0; k < s->access_count; k++) {
      const vk_access *old = &s->accesses[k];
      if (!write && !old->write) continue;
      if (old->range.first >= now[i].end || now[i].first >= old->range.end || s->messages++) continue;
      snprintf(s->message, sizeof s->message, "no barrier between a %s and a %s of addresses from %llx on",
               old->write ? "write" : "read", write ? "write" : "read", (unsigned long long)now[i].first);
    }
}

/* The layers do not see what shaders read and write through addresses: this is told by the ranges of each
 * command against those of all commands since the last barrier that was really recorded. */
void kedge__vk_validation_access(vk_state *s, const vk_range *reads, uint32_t read_count,
                                 const vk_range *writes, uint32_t write_count) {
  const uint32_t count = read_count + write_count;
  if (!s->validate) return;
  if (s->access_barriers != s->barriers) s->access_count = 0;
  s->access_barriers = s->barriers;
  conflict(s, reads, read_count, false);
  conflict(s, writes, write_count, true);
  if (s->access_count + count > s->access_capacity) {
    const uint32_t capacity = 2 * (s->access_count + count);
    vk_access *larger = kedge_realloc(s->accesses, capacity, sizeof *larger);
    if (!larger) return;
    s->accesses = larger;
    s->access_capacity = capacity;
  }
  for (uint32_t i = 0; i < count; i++)
    s->accesses[s->access_count++] =
        (vk_access){i < read_count ? reads[i] : writes[i - read_count], i >= read_count};
}

kedge_status kedge__vk_validation(vk_state *s) {
  if (!s->messages) return KEDGE_OK;
  kedge_status status =
      kedge_fail(KEDGE_ERR_DEVICE, "vulkan: validation (%u messages): %s", s->messages, s->message);
  s->messages = 0;
  return status;
}
