/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands on their way to the device: slots in turn, each a command buffer with the memory its commands
 * read. The host sleeps on one timeline semaphore. A barrier stands only before a command that touches what
 * an earlier one since the last barrier wrote, or writes what one read.
 */
#include "backends/vulkan/vulkan.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 192 }; /* commands that are handed over together */

static kedge_status make_slot(vk_state *s, vk_slot *slot) {
  const VkCommandBufferAllocateInfo commands = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                .commandPool = s->pool,
                                                .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                                .commandBufferCount = 1};
  const VkQueryPoolCreateInfo ticks = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                       .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                       .queryCount = 2};
  void *args = NULL, *staging = NULL;
  VK_TRY(s, vkAllocateCommandBuffers(s->device, &commands, &slot->commands), "making a command buffer");
  if (s->facts.tick > 0)
    VK_TRY(s, vkCreateQueryPool(s->device, &ticks, NULL, &slot->ticks), "making a query pool");
  KEDGE_TRY(kedge__vk_memory_new(s, VK_ARGS_BYTES, true, &slot->args, &slot->args_memory, &args,
                                 &slot->args_address));
  slot->args_at = args;
  KEDGE_TRY(
      kedge__vk_memory_new(s, VK_STAGING_BYTES, true, &slot->staging, &slot->staging_memory, &staging, NULL));
  slot->staging_at = staging;
  return KEDGE_OK;
}

kedge_status kedge__vk_stream_make(vk_state *s) {
  const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                        .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                        .queueFamilyIndex = s->facts.family};
  const VkSemaphoreTypeCreateInfo timeline = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                              .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
  const VkSemaphoreCreateInfo semaphore = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO,
                                           .pNext = &timeline};
  VK_TRY(s, vkCreateCommandPool(s->device, &pool, NULL, &s->pool), "making a command pool");
  VK_TRY(s, vkCreateSemaphore(s->device, &semaphore, NULL, &s->timeline), "making a semaphore");
  for (uint32_t i = 0; i < VK_SLOTS; i++) KEDGE_TRY(make_slot(s, &s->slots[i]));
  return KEDGE_OK;
}

void kedge__vk_stream_destroy(vk_state *s) {
  for (uint32_t i = 0; i < VK_SLOTS; i++) {
    vk_slot *slot = &s->slots[i];
    if (slot->ticks) vkDestroyQueryPool(s->device, slot->ticks, NULL);
    if (slot->args) vkDestroyBuffer(s->device, slot->args, NULL);
    if (slot->staging) vkDestroyBuffer(s->device, slot->staging, NULL);
    if (slot->args_memory) vkFreeMemory(s->device, slot->args_memory, NULL);
    if (slot->staging_memory) vkFreeMemory(s->device, slot->staging_memory, NULL);
  }
  if (s->timeline) vkDestroySemaphore(s->device, s->timeline, NULL);
  if (s->pool) vkDestroyCommandPool(s->device, s->pool, NULL);
  kedge_free(s->reads.items);
  kedge_free(s->writes.items);
  kedge_free(s->accesses);
}

/* Sleeps until a slot's commands are done, and adds the time that they took. */
static kedge_status finish(vk_state *s, vk_slot *slot) {
  if (!slot->value) return KEDGE_OK;
  if (s->lost) return kedge__vk_fail(s, VK_ERROR_DEVICE_LOST, "waiting");
  const VkSemaphoreWaitInfo wait = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                    .semaphoreCount = 1,
                                    .pSemaphores = &s->timeline,
                                    .pValues = &slot->value};
  VK_TRY(s, vkWaitSemaphores(s->device, &wait, UINT64_MAX), "waiting");
  slot->value = 0;
  if (!slot->measured) return KEDGE_OK;
  uint64_t ticks[2] = {0, 0};
  slot->measured = false;
  VK_TRY(s,
         vkGetQueryPoolResults(s->device, slot->ticks, 0, 2, sizeof ticks, ticks, 8,
                               VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT),
         "reading timestamps");
  s->seconds += (double)((ticks[1] - ticks[0]) & s->facts.tick_mask) * s->facts.tick;
  return KEDGE_OK;
}

static kedge_status begin(vk_state *s, vk_slot *slot) {
  const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                         .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
  KEDGE_TRY(finish(s, slot));
  slot->args_used = slot->staging_used = 0;
  slot->recorded = 0;
  slot->work = 0;
  VK_TRY(s, vkBeginCommandBuffer(slot->commands, &info), "recording");
  if (slot->ticks) {
    vkCmdResetQueryPool(slot->commands, slot->ticks, 0, 2);
    vkCmdWriteTimestamp(slot->commands, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, slot->ticks, 0);
  }
  slot->open = true;
  return KEDGE_OK;
}

kedge_status kedge__vk_stream_open(vk_state *s, uint64_t args, uint64_t staging, vk_slot **out) {
  vk_slot *slot = &s->slots[s->slot];
  if (s->lost) return kedge__vk_fail(s, VK_ERROR_DEVICE_LOST, "recording");
  if (args > VK_ARGS_BYTES || staging > VK_STAGING_BYTES)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED,
                      "vulkan: %llu bytes of arguments in one call, expected at most %u",
                      (unsigned long long)args, VK_ARGS_BYTES);
  if (slot->open && (slot->args_used + args > VK_ARGS_BYTES ||
                     slot->staging_used + staging > VK_STAGING_BYTES || slot->recorded >= BATCH))
    KEDGE_TRY(kedge__vk_stream_submit(s));
  slot = &s->slots[s->slot];
  if (!slot->open) KEDGE_TRY(begin(s, slot));
  *out = slot;
  return KEDGE_OK;
}

kedge_status kedge__vk_stream_submit(vk_state *s) {
  vk_slot *slot = &s->slots[s->slot];
  if (!slot->open) return KEDGE_OK;
  slot->open = false;
  if (slot->ticks) vkCmdWriteTimestamp(slot->commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, slot->ticks, 1);
  VK_TRY(s, vkEndCommandBuffer(slot->commands), "recording");
  const uint64_t value = s->submitted + 1;
  const VkTimelineSemaphoreSubmitInfo timeline = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                                  .signalSemaphoreValueCount = 1,
                                                  .pSignalSemaphoreValues = &value};
  const VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                             .pNext = &timeline,
                             .commandBufferCount = 1,
                             .pCommandBuffers = &slot->commands,
                             .signalSemaphoreCount = 1,
                             .pSignalSemaphores = &s->timeline};
  VK_TRY(s, vkQueueSubmit(s->queue, 1, &info, VK_NULL_HANDLE), "submitting");
  slot->value = s->submitted = value;
  slot->measured = slot->ticks != VK_NULL_HANDLE;
  s->slot = (s->slot + 1) % VK_SLOTS;
  return KEDGE_OK;
}

kedge_status kedge__vk_stream_sync(vk_state *s) {
  KEDGE_TRY(kedge__vk_stream_submit(s));
  for (uint32_t i = 0; i < VK_SLOTS; i++) KEDGE_TRY(finish(s, &s->slots[(s->slot + i) % VK_SLOTS]));
  return KEDGE_OK;
}

/* ---- Dependences
 * --------------------------------------------------------------------------------------------------- */

static bool touches(const vk_ranges *earlier, const vk_range *now, uint32_t count) {
  for (uint32_t i = 0; i < earlier->count; i++)
    for (uint32_t k = 0; k < count; k++)
      if (earlier->items[i].first < now[k].end && now[k].first < earlier->items[i].end) return true;
  return false;
}

static kedge_status add_ranges(vk_ranges *r, const vk_range *items, uint32_t count) {
  if (r->count + count > r->capacity) {
    uint32_t capacity = 2 * (r->count + count);
    vk_range *larger = kedge_realloc(r->items, capacity, sizeof *larger);
    if (!larger) return KEDGE_ERR_MEMORY;
    r->items = larger;
    r->capacity = capacity;
  }
  if (count) memcpy(r->items + r->count, items, count * sizeof *items);
  r->count += count;
  return KEDGE_OK;
}

void kedge__vk_barrier(vk_state *s, vk_slot *slot) {
  const VkAccessFlags shader = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT;
  const VkAccessFlags copies = VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
  const VkPipelineStageFlags stages = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
  const VkMemoryBarrier barrier = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                   .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
                                   .dstAccessMask = shader | copies};
  vkCmdPipelineBarrier(slot->commands, stages, stages, 0, 1, &barrier, 0, NULL, 0, NULL);
  s->reads.count = s->writes.count = 0;
  s->barriers++;
}

kedge_status kedge__vk_depend(vk_state *s, vk_slot *slot, const vk_range *reads, uint32_t read_count,
                              const vk_range *writes, uint32_t write_count) {
  if (touches(&s->writes, reads, read_count) || touches(&s->writes, writes, write_count) ||
      touches(&s->reads, writes, write_count))
    kedge__vk_barrier(s, slot);
  kedge__vk_validation_access(s, reads, read_count, writes, write_count);
  KEDGE_TRY(add_ranges(&s->reads, reads, read_count));
  return add_ranges(&s->writes, writes, write_count);
}
