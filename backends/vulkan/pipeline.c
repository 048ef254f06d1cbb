/* SPDX-License-Identifier: Apache-2.0
 *
 * Pipelines, made on first use from the SPIR-V that the build embeds, one for each shader with its workgroup
 * size and constants. What a process made, the next finds on disk (cache.c).
 */
#include "backends/vulkan/vulkan.h"

#include <stdio.h>
#include <string.h>

#define KEDGE_SHADER(name, op, file) extern const uint32_t kedge__spirv_##name[], kedge__spirv_words_##name;
#include "backends/vulkan/shaders.def"
#undef KEDGE_SHADER

static const struct {
  const char *name;
  const uint32_t *code, *words;
} shaders[] = {
#define KEDGE_SHADER(name, op, file) {#name, kedge__spirv_##name, &kedge__spirv_words_##name},
#include "backends/vulkan/shaders.def"
#undef KEDGE_SHADER
};

/* What a dispatch gives directly: struct Push of shaders/kedge.glsl. */
enum { PUSH_BYTES = 8 + 8 + 4 * VK_NUMBERS };
enum { FULL_SUBGROUPS = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT_EXT };

kedge_status kedge__vk_pipelines_make(vk_state *s) {
  const VkPushConstantRange push = {VK_SHADER_STAGE_COMPUTE_BIT, 0, PUSH_BYTES};
  const VkPipelineLayoutCreateInfo layout = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                             .pushConstantRangeCount = 1,
                                             .pPushConstantRanges = &push};
  VkPipelineCacheCreateInfo cache = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
  void *data;
  VK_TRY(s, vkCreatePipelineLayout(s->device, &layout, NULL, &s->layout), "making a pipeline layout");
  KEDGE_TRY(kedge__vk_cache_read(s, &data, &cache.initialDataSize));
  cache.pInitialData = data;
  VkResult result = vkCreatePipelineCache(s->device, &cache, NULL, &s->cache);
  kedge_free(data);
  return result == VK_SUCCESS ? KEDGE_OK : kedge__vk_fail(s, result, "making a pipeline cache");
}

static void save(vk_state *s) {
  size_t bytes = 0;
  if (!s->made || s->lost || vkGetPipelineCacheData(s->device, s->cache, &bytes, NULL) != VK_SUCCESS) return;
  void *data = kedge_alloc(bytes + 1, 1);
  if (data && vkGetPipelineCacheData(s->device, s->cache, &bytes, data) == VK_SUCCESS)
    kedge__vk_cache_write(s, data, bytes);
  kedge_free(data);
}

void kedge__vk_pipelines_destroy(vk_state *s) {
  if (s->cache) save(s);
  for (uint32_t i = 0; i < s->pipeline_count; i++)
    vkDestroyPipeline(s->device, s->pipelines[i].pipeline, NULL);
  for (uint32_t i = 0; i < VK_SHADER_COUNT; i++)
    if (s->modules[i]) vkDestroyShaderModule(s->device, s->modules[i], NULL);
  if (s->cache) vkDestroyPipelineCache(s->device, s->cache, NULL);
  if (s->layout) vkDestroyPipelineLayout(s->device, s->layout, NULL);
  kedge_free(s->pipelines);
}

static kedge_status get_module(vk_state *s, vk_shader shader, VkShaderModule *module) {
  const VkShaderModuleCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                         .codeSize = 4 * (size_t)*shaders[shader].words,
                                         .pCode = shaders[shader].code};
  if (!s->modules[shader])
    VK_TRY(s, vkCreateShaderModule(s->device, &info, NULL, &s->modules[shader]), shaders[shader].name);
  *module = s->modules[shader];
  return KEDGE_OK;
}

static kedge_status make(vk_state *s, const vk_pipeline_key *key, VkPipeline *pipeline) {
  VkSpecializationMapEntry entries[2 + VK_SPECIALS];
  uint32_t values[2 + VK_SPECIALS] = {key->local, key->bf16};
  memcpy(values + 2, key->special, sizeof key->special);
  for (uint32_t i = 0; i < 2 + VK_SPECIALS; i++) entries[i] = (VkSpecializationMapEntry){i, 4 * i, 4};
  const VkSpecializationInfo special = {2 + VK_SPECIALS, entries, sizeof values, values};
  const VkPipelineShaderStageRequiredSubgroupSizeCreateInfoEXT size = {
      .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO_EXT,
      .requiredSubgroupSize = s->facts.subgroup};
  VkComputePipelineCreateInfo info = {.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
                                      .layout = s->layout,
                                      .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                                                .pNext = s->facts.resize_subgroup ? &size : NULL,
                                                .flags = key->full ? FULL_SUBGROUPS : 0,
                                                .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                                                .pName = "main",
                                                .pSpecializationInfo = &special}};
  char what[96];
  KEDGE_TRY(get_module(s, key->shader, &info.stage.module));
  snprintf(what, sizeof what, "making the pipeline %s", shaders[key->shader].name);
  VK_TRY(s, vkCreateComputePipelines(s->device, s->cache, 1, &info, NULL, pipeline), what);
  s->made++;
  return KEDGE_OK;
}

kedge_status kedge__vk_pipeline(vk_state *s, const vk_pipeline_key *key, VkPipeline *pipeline) {
  for (uint32_t i = 0; i < s->pipeline_count; i++)
    if (!memcmp(&s->pipelines[i].key, key, sizeof *key)) {
      *pipeline = s->pipelines[i].pipeline;
      return KEDGE_OK;
    }
  if (s->pipeline_count == s->pipeline_capacity) {
    uint32_t capacity = s->pipeline_capacity ? 2 * s->pipeline_capacity : 64;
    vk_pipeline *larger = kedge_realloc(s->pipelines, capacity, sizeof *larger);
    if (!larger) return KEDGE_ERR_MEMORY;
    s->pipelines = larger;
    s->pipeline_capacity = capacity;
  }
  KEDGE_TRY(make(s, key, pipeline));
  s->pipelines[s->pipeline_count++] = (vk_pipeline){*key, *pipeline};
  return KEDGE_OK;
}
