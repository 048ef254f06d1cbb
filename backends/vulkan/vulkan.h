/* SPDX-License-Identifier: Apache-2.0
 *
 * The insides of the Vulkan backend, for its own files: device.c (instance, choice of device, features),
 * matrix.c (matrix units), memory.c (buffers), stream.c (command buffers, barriers, waiting), pipeline.c
 * (shaders to pipelines), cache.c (pipelines on disk), vulkan.c (the contract of core/device.h), kernels/
 * (which shaders an op runs). The shaders are in shaders/.
 */
#ifndef KEDGE_BACKEND_VULKAN_H
#define KEDGE_BACKEND_VULKAN_H

#include "backends/vulkan/matrix.h"
#include "core/device.h"

#include <vulkan/vulkan.h>

/* Every SPIR-V module, a row of shaders.def each. */
typedef enum vk_shader {
#define KEDGE_SHADER(name, op, file) VK_SHADER_##name,
#include "backends/vulkan/shaders.def"
#undef KEDGE_SHADER
  VK_SHADER_COUNT
} vk_shader;

enum { VK_SPECIALS = 8, VK_NUMBERS = 4, VK_SLOTS = 3 };

/* What a pipeline is made for: a shader with its workgroup size and constants. */
typedef struct vk_pipeline_key {
  vk_shader shader;
  uint32_t local, bf16, special[VK_SPECIALS]; /* specialisation constants 0, 1, 2.. */
  uint32_t full;                              /* 1: all subgroups are full, which matrices need */
} vk_pipeline_key;

typedef struct vk_pipeline {
  vk_pipeline_key key;
  VkPipeline pipeline;
} vk_pipeline;

/* What is known of a physical device. */
typedef struct vk_facts {
  char name[VK_MAX_PHYSICAL_DEVICE_NAME_SIZE];
  char number[16];             /* " 1" where another device has the same name, else "" */
  uint32_t vendor, id, family; /* family: of the queue */
  uint8_t driver[VK_UUID_SIZE], cache[VK_UUID_SIZE];
  bool software, resize_subgroup;
  uint32_t subgroup, shared_bytes, max_local, max_groups;
  uint64_t max_buffer;
  vk_matrix matrix; /* of f16 with f32 sums; m is 0 where there is none */
  double tick;      /* seconds of a timestamp; 0: the queue has none */
  uint64_t tick_mask;
} vk_facts;

typedef struct vk_range {
  uint64_t first, end; /* device addresses */
} vk_range;

typedef struct vk_ranges {
  vk_range *items;
  uint32_t count, capacity;
} vk_ranges;

/* A command buffer with the memory that its commands read: arguments, and bytes on their way. */
typedef struct vk_slot {
  VkCommandBuffer commands;
  VkBuffer args, staging;
  VkDeviceMemory args_memory, staging_memory;
  unsigned char *args_at, *staging_at;
  uint64_t args_address, args_used, staging_used;
  VkQueryPool ticks;
  uint64_t value; /* of the timeline when its commands are done; 0: never submitted */
  bool open, measured;
  uint32_t recorded; /* commands since it was opened */
  uint64_t work;     /* operations of its dispatches */
} vk_slot;

/* For validation: a range that a command touched. */
typedef struct vk_access {
  vk_range range;
  bool write;
} vk_access;

typedef struct vk_state {
  vk_facts facts;
  VkInstance instance;
  VkPhysicalDevice physical;
  VkDevice device;
  VkQueue queue;
  VkPhysicalDeviceMemoryProperties memory;
  VkCommandPool pool;
  VkSemaphore timeline;
  uint64_t submitted; /* last value given to the timeline */
  vk_slot slots[VK_SLOTS];
  uint32_t slot;
  vk_ranges reads, writes; /* of commands since the last barrier */
  bool lost;
  double seconds;           /* that the device has worked, by its timestamps */
  uint64_t allocated, peak; /* bytes in buffers of the contract */
  uint64_t dispatches, barriers;
  VkPipelineLayout layout;
  VkShaderModule modules[VK_SHADER_COUNT];
  vk_pipeline *pipelines;
  uint32_t pipeline_count, pipeline_capacity, made; /* made: not found on disk */
  VkPipelineCache cache;
  char cache_path[512], note[200];
  bool validate;
  VkDebugUtilsMessengerEXT messenger;
  uint32_t messages;   /* of the validation layers */
  char message[600];   /* the first */
  vk_access *accesses; /* since the last barrier */
  uint32_t access_count, access_capacity;
  uint64_t access_barriers;
  bool narrow;          /* products without shared memory (shaders/product.glsl) */
  uint64_t matrix_rows; /* from so many rows on, products of bf16 are the matrix units'; UINT64_MAX: never */
  uint64_t budget;      /* operations that one dispatch may take */
} vk_state;

/* ---- device.c */
kedge_status kedge__vk_device_make(vk_state *s, const kedge_open_options *options);
void kedge__vk_device_destroy(vk_state *s);
bool kedge__vk_has_extension(VkPhysicalDevice physical, const char *name);
/* The status and line of a failed call. DEVICE_LOST marks the device. */
kedge_status kedge__vk_fail(vk_state *s, VkResult result, const char *what);
#define VK_TRY(state, call, what)                                                                            \
  do {                                                                                                       \
    VkResult vk_result_ = (call);                                                                            \
    if (vk_result_ != VK_SUCCESS) return kedge__vk_fail(state, vk_result_, what);                            \
  } while (0)

/* ---- matrix.c */
/* Sets facts.matrix, after the other facts. */
void kedge__vk_matrix_learn(vk_state *s);
/* The end of the chain of features that the device is opened with, and its extension; NULL: none. */
const void *kedge__vk_matrix_features(const vk_state *s, const char **extension);

/* ---- validate.c: KEDGE_VULKAN_VALIDATE=1 turns the validation layers on; any message of theirs is an error.
 */
void kedge__vk_validation_ask(vk_state *s, VkInstanceCreateInfo *info);
void kedge__vk_validation_listen(vk_state *s);
void kedge__vk_validation_stop(vk_state *s);
kedge_status kedge__vk_validation(vk_state *s);

/* What a command touches, after its barrier if it has one: found out in a second way, that nothing that it
 * must wait for is on its way. */
void kedge__vk_validation_access(vk_state *s, const vk_range *reads, uint32_t read_count,
                                 const vk_range *writes, uint32_t write_count);

/* ---- memory.c */
/* A buffer with memory of its own. `host`: mapped at *at, coherent. *address may be NULL. */
kedge_status kedge__vk_memory_new(vk_state *s, uint64_t bytes, bool host, VkBuffer *buffer,
                                  VkDeviceMemory *memory, void **at, uint64_t *address);
kedge_status kedge__vk_buffer_new(kedge_device *device, uint64_t bytes, kedge_buffer *buffer);
kedge_status kedge__vk_buffer_wrap(kedge_device *device, const void *memory, uint64_t bytes,
                                   kedge_buffer *buffer);
void kedge__vk_buffer_free(kedge_buffer *buffer);
kedge_status kedge__vk_write(kedge_buffer *buffer, uint64_t offset, const void *data, uint64_t bytes);
kedge_status kedge__vk_read(const kedge_buffer *buffer, uint64_t offset, void *data, uint64_t bytes);
kedge_status kedge__vk_fill(kedge_buffer *buffer, uint64_t offset, uint64_t bytes, uint8_t byte);

/* ---- stream.c */
kedge_status kedge__vk_stream_make(vk_state *s);
void kedge__vk_stream_destroy(vk_state *s);
/* A slot that takes commands, with room for `args` and `staging` bytes. */
kedge_status kedge__vk_stream_open(vk_state *s, uint64_t args, uint64_t staging, vk_slot **slot);
/* Hands over what was recorded, without waiting. */
kedge_status kedge__vk_stream_submit(vk_state *s);
/* Submits, and sleeps until all is done. */
kedge_status kedge__vk_stream_sync(vk_state *s);
/* Before a command: a barrier if it must wait for one since the last barrier. Notes what it touches. */
kedge_status kedge__vk_depend(vk_state *s, vk_slot *slot, const vk_range *reads, uint32_t read_count,
                              const vk_range *writes, uint32_t write_count);
void kedge__vk_barrier(vk_state *s, vk_slot *slot);
enum { VK_ARGS_BYTES = 1 << 21, VK_STAGING_BYTES = 1 << 23 };

/* ---- pipeline.c, cache.c */
kedge_status kedge__vk_pipelines_make(vk_state *s);
void kedge__vk_pipelines_destroy(vk_state *s);
kedge_status kedge__vk_pipeline(vk_state *s, const vk_pipeline_key *key, VkPipeline *pipeline);
/* Reads the pipelines that an earlier process left, *data NULL where there are none or they are refused
 * (s->note says why). Theirs to kedge_free. */
kedge_status kedge__vk_cache_read(vk_state *s, void **data, size_t *bytes);
/* Leaves pipelines for a later process. */
void kedge__vk_cache_write(const vk_state *s, const void *data, size_t bytes);

/* ---- vulkan.c: for kernels/ */

/* What a shader sees of a call, before the op's arguments: struct Call of shaders/kedge.glsl. */
typedef struct vk_call {
  uint64_t in[KEDGE_MAX_IN], out[KEDGE_MAX_OUT], scratch;
  uint32_t in_pitch[KEDGE_MAX_IN];
  uint32_t in_bf16, out_bf16; /* a bit a tensor */
} vk_call;

/* A step on its way into a slot. */
typedef struct vk_launch {
  vk_state *state;
  const kedge_step *step;
  const kedge_call *call;
  const void *args;
  uint64_t address; /* of the vk_call */
  vk_slot *slot;
  kedge_status status; /* of the first pass that failed */
} vk_launch;

/* One shader over `groups` workgroups of `local` invocations. `work`: operations of one group, to cut long
 * work. */
typedef struct vk_pass {
  vk_shader shader;
  uint64_t groups, work;
  uint32_t local;
  uint32_t number[VK_NUMBERS];
  uint32_t special[VK_SPECIALS];
  bool full; /* it multiplies matrices */
} vk_pass;

typedef struct vk_kernel {
  void (*run)(vk_launch *launch);
  uint64_t (*scratch)(const vk_state *state, const kedge_call *call); /* NULL: none */
} vk_kernel;

void kedge__vk_pass(vk_launch *launch, const vk_pass *pass);
/* Between passes of one op where the second reads what the first wrote. */
void kedge__vk_pass_barrier(vk_launch *launch);

/* Defines the kernel of an op: a function of the launch, and scratch bytes or NULL. */
#define VK_KERNEL(op, run, scratch) const vk_kernel kedge__vk_kernel_##op = {run, scratch}
#define KEDGE_KERNELS_ONLY
#define KEDGE_OP(name, ...) extern const vk_kernel kedge__vk_kernel_##name;
#include "core/ops.def"
#undef KEDGE_OP
#undef KEDGE_KERNELS_ONLY

/* `const kedge_args_<op> *a` in f32. */
#define VK_ARGS(op) const kedge_args_##op *a = launch->args

static inline uint64_t vk_ceil(uint64_t a, uint64_t b) {
  return (a + b - 1) / b;
}

#endif
