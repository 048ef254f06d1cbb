/* SPDX-License-Identifier: Apache-2.0
 *
 * Buffers of the Vulkan backend. Each has memory of its own on the device; bytes go there and back through
 * the slots' staging memory (stream.c), in pieces.
 */
#include "backends/vulkan/vulkan.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

typedef struct vk_buffer {
  VkBuffer buffer;
  VkDeviceMemory memory;
} vk_buffer;

/* The first memory type of `allowed` with all of `need`, better with `like`. UINT32_MAX: none. */
static uint32_t find_type(const vk_state *s, uint32_t allowed, VkMemoryPropertyFlags need,
                          VkMemoryPropertyFlags like) {
  uint32_t found = UINT32_MAX;
  for (uint32_t i = 0; i < s->memory.memoryTypeCount; i++) {
    VkMemoryPropertyFlags flags = s->memory.memoryTypes[i].propertyFlags;
    if (!(allowed >> i & 1) || (flags & need) != need) continue;
    if ((flags & like) == like) return i;
    if (found == UINT32_MAX) found = i;
  }
  return found;
}

static kedge_status bind_memory(vk_state *s, bool host, VkBuffer buffer, VkDeviceMemory *memory, void **at) {
  const VkMemoryPropertyFlags visible =
      VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  VkMemoryRequirements need;
  vkGetBufferMemoryRequirements(s->device, buffer, &need);
  uint32_t type = host ? find_type(s, need.memoryTypeBits, visible, VK_MEMORY_PROPERTY_HOST_CACHED_BIT)
                       : find_type(s, need.memoryTypeBits, 0, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
  if (type == UINT32_MAX) return kedge__vk_fail(s, VK_ERROR_FEATURE_NOT_PRESENT, "finding a kind of memory");
  const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                           .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
  const VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                     .pNext = &flags,
                                     .allocationSize = need.size,
                                     .memoryTypeIndex = type};
  char what[80];
  snprintf(what, sizeof what, "allocating %llu bytes", (unsigned long long)need.size);
  VkResult result = vkAllocateMemory(s->device, &info, NULL, memory);
  if (result != VK_SUCCESS) {
    *memory = VK_NULL_HANDLE;
    return kedge__vk_fail(s, result, what);
  }
  VK_TRY(s, vkBindBufferMemory(s->device, buffer, *memory, 0), "binding memory");
  if (host) VK_TRY(s, vkMapMemory(s->device, *memory, 0, VK_WHOLE_SIZE, 0, at), "mapping memory");
  return KEDGE_OK;
}

kedge_status kedge__vk_memory_new(vk_state *s, uint64_t bytes, bool host, VkBuffer *buffer,
                                  VkDeviceMemory *memory, void **at, uint64_t *address) {
  const VkBufferCreateInfo info = {
      .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
      .size = bytes,
      .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
               VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT};
  *memory = VK_NULL_HANDLE;
  VkResult result = vkCreateBuffer(s->device, &info, NULL, buffer);
  if (result != VK_SUCCESS) {
    *buffer = VK_NULL_HANDLE;
    return kedge__vk_fail(s, result, "making a buffer");
  }
  kedge_status status = bind_memory(s, host, *buffer, memory, at);
  if (status == KEDGE_OK && address) {
    const VkBufferDeviceAddressInfo where = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
                                             .buffer = *buffer};
    *address = vkGetBufferDeviceAddress(s->device, &where);
  }
  if (status != KEDGE_OK) {
    vkDestroyBuffer(s->device, *buffer, NULL);
    vkFreeMemory(s->device, *memory, NULL);
    *buffer = VK_NULL_HANDLE;
    *memory = VK_NULL_HANDLE;
  }
  return status;
}

/* What the driver rounds a buffer to, so that fills, which are in words, never pass its end. */
static uint64_t rounded(uint64_t bytes) {
  return (bytes ? bytes + 255 : 256) / 256 * 256;
}

kedge_status kedge__vk_buffer_new(kedge_device *device, uint64_t bytes, kedge_buffer *buffer) {
  vk_state *s = device->state;
  vk_buffer *own = kedge_alloc(1, sizeof *own);
  if (!own) return KEDGE_ERR_MEMORY;
  buffer->handle = own;
  kedge_status status =
      kedge__vk_memory_new(s, rounded(bytes), false, &own->buffer, &own->memory, NULL, &buffer->address);
  if (status == KEDGE_OK) {
    s->allocated += bytes;
    if (s->allocated > s->peak) s->peak = s->allocated;
    status = kedge__vk_fill(buffer, 0, rounded(bytes), 0);
    if (status != KEDGE_OK) kedge__vk_buffer_free(buffer);
  } else {
    kedge_free(own);
  }
  return status;
}

/* The device reads its own memory: what was borrowed is copied there. */
kedge_status kedge__vk_buffer_wrap(kedge_device *device, const void *memory, uint64_t bytes,
                                   kedge_buffer *buffer) {
  KEDGE_TRY(kedge__vk_buffer_new(device, bytes, buffer));
  kedge_status status = kedge__vk_write(buffer, 0, memory, bytes);
  if (status != KEDGE_OK) kedge__vk_buffer_free(buffer);
  return status;
}

void kedge__vk_buffer_free(kedge_buffer *buffer) {
  vk_state *s = buffer->device->state;
  vk_buffer *own = buffer->handle;
  kedge__vk_stream_sync(s); /* commands on their way may read it; a lost device has none */
  vkDestroyBuffer(s->device, own->buffer, NULL);
  vkFreeMemory(s->device, own->memory, NULL);
  s->allocated -= buffer->bytes;
  kedge_free(own);
}

kedge_status kedge__vk_write(kedge_buffer *buffer, uint64_t offset, const void *data, uint64_t bytes) {
  vk_state *s = buffer->device->state;
  const vk_buffer *own = buffer->handle;
  for (uint64_t done = 0, part; done < bytes; done += part) {
    vk_slot *slot;
    part = bytes - done < VK_STAGING_BYTES ? bytes - done : VK_STAGING_BYTES;
    KEDGE_TRY(kedge__vk_stream_open(s, 0, part, &slot));
    memcpy(slot->staging_at + slot->staging_used, (const char *)data + done, part);
    const vk_range range = {buffer->address + offset + done, buffer->address + offset + done + part};
    const VkBufferCopy copy = {slot->staging_used, offset + done, part};
    KEDGE_TRY(kedge__vk_depend(s, slot, NULL, 0, &range, 1));
    vkCmdCopyBuffer(slot->commands, slot->staging, own->buffer, 1, &copy);
    slot->staging_used += (part + 63) / 64 * 64;
    slot->recorded++;
  }
  return KEDGE_OK;
}

kedge_status kedge__vk_read(const kedge_buffer *buffer, uint64_t offset, void *data, uint64_t bytes) {
  vk_state *s = buffer->device->state;
  const vk_buffer *own = buffer->handle;
  for (uint64_t done = 0, part; done < bytes; done += part) {
    vk_slot *slot;
    part = bytes - done < VK_STAGING_BYTES ? bytes - done : VK_STAGING_BYTES;
    KEDGE_TRY(kedge__vk_stream_open(s, 0, part, &slot));
    const uint64_t at = slot->staging_used;
    const vk_range range = {buffer->address + offset + done, buffer->address + offset + done + part};
    const VkBufferCopy copy = {offset + done, at, part};
    KEDGE_TRY(kedge__vk_depend(s, slot, &range, 1, NULL, 0));
    vkCmdCopyBuffer(slot->commands, own->buffer, slot->staging, 1, &copy);
    const VkMemoryBarrier seen = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                  .srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT,
                                  .dstAccessMask = VK_ACCESS_HOST_READ_BIT};
    vkCmdPipelineBarrier(slot->commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0, 1,
                         &seen, 0, NULL, 0, NULL);
    slot->staging_used += (part + 63) / 64 * 64;
    slot->recorded++;
    KEDGE_TRY(kedge__vk_stream_sync(s));
    memcpy((char *)data + done, slot->staging_at + at, part);
  }
  return KEDGE_OK;
}

/* Fills are in words; the buffer is longer than asked for, so that its last word is its own. */
kedge_status kedge__vk_fill(kedge_buffer *buffer, uint64_t offset, uint64_t bytes, uint8_t byte) {
  vk_state *s = buffer->device->state;
  const vk_buffer *own = buffer->handle;
  vk_slot *slot;
  const uint32_t word = byte * 0x01010101u;
  const uint64_t first = offset / 4 * 4, end = (offset + bytes + 3) / 4 * 4;
  const vk_range range = {buffer->address + first, buffer->address + end};
  assert(offset % 4 == 0);
  if (!bytes) return KEDGE_OK;
  KEDGE_TRY(kedge__vk_stream_open(s, 0, 0, &slot));
  KEDGE_TRY(kedge__vk_depend(s, slot, NULL, 0, &range, 1));
  vkCmdFillBuffer(slot->commands, own->buffer, first, end - first, word);
  slot->recorded++;
  return KEDGE_OK;
}
