/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract of core/device.h on Vulkan: a step becomes a record of addresses and arguments in the slot's
 * memory and one or more dispatches, whose shaders kernels/ names. Every dispatch goes through dispatch().
 */
#include "backends/vulkan/vulkan.h"
#include "core/module.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern const kedge_module exported __asm__("kedge_backend_module"); /* the type has the name in C */

static const vk_kernel *const kernels[KEDGE_OP_COUNT] = {
#define KEDGE_KERNELS_ONLY
#define KEDGE_OP(name, ...) &kedge__vk_kernel_##name,
#include "core/ops.def"
#undef KEDGE_OP
#undef KEDGE_KERNELS_ONLY
};

static void vk_close(kedge_device *device) {
  vk_state *s = device->state;
  if (!s) return;
  if (s->device) {
    if (!s->lost) kedge__vk_stream_sync(s);
    vkDeviceWaitIdle(s->device);
    kedge__vk_stream_destroy(s);
    kedge__vk_pipelines_destroy(s);
  }
  kedge__vk_device_destroy(s);
  kedge_free(s);
  device->state = NULL;
}

/* What a developer may ask for; a word that means nothing is an error, not another way to run. */
static kedge_status read_environment(vk_state *s) {
  const char *tiles = getenv("KEDGE_VULKAN_TILES"), *budget = getenv("KEDGE_VULKAN_BUDGET");
  s->budget = 20000000000ull;
  s->narrow = s->facts.subgroup <= 8;
  if (budget && *budget) {
    char *end;
    errno = 0;
    s->budget = strtoull(budget, &end, 10);
    if (*budget < '0' || *budget > '9' || *end || errno || !s->budget)
      return kedge_fail(KEDGE_ERR_ARGUMENT,
                        "KEDGE_VULKAN_BUDGET: expected a number of operations above 0, came \"%.40s\"",
                        budget);
  }
  const bool any = tiles && *tiles, shared = any && !strcmp(tiles, "shared"),
             matrix = any && !strcmp(tiles, "matrix");
  if (any && !shared && !matrix)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "KEDGE_VULKAN_TILES: expected shared or matrix, came \"%.40s\"",
                      tiles);
  if (matrix && !s->facts.matrix.m)
    return kedge_fail(KEDGE_ERR_ARGUMENT,
                      "KEDGE_VULKAN_TILES: expected shared, came matrix; %s has no matrices", s->facts.name);
  if (shared) s->narrow = false;
  s->matrix_rows = UINT64_MAX;
  if (s->facts.matrix.m && !shared && (matrix || !s->facts.software)) s->matrix_rows = matrix ? 0 : 16;
  return KEDGE_OK;
}

static kedge_status vk_open(const kedge_open_options *options, kedge_device *device) {
  vk_state *s = kedge_alloc(1, sizeof *s);
  if (!s) return KEDGE_ERR_MEMORY;
  device->state = s;
  kedge_status status = kedge__vk_device_make(s, options);
  if (status == KEDGE_OK) status = read_environment(s);
  if (status == KEDGE_OK) status = kedge__vk_stream_make(s);
  if (status == KEDGE_OK) status = kedge__vk_pipelines_make(s);
  if (status != KEDGE_OK) {
    vk_close(device);
    return status;
  }
  const uint8_t m = (uint8_t)s->facts.matrix.m, n = (uint8_t)s->facts.matrix.n,
                k = (uint8_t)s->facts.matrix.k;
  char matrices[32] = "";
  if (s->matrix_rows != UINT64_MAX)
    snprintf(matrices, sizeof matrices, ", matrices of %u x %u x %u", m, n, k);
  snprintf(device->description, sizeof device->description, "vulkan (%.60s%s%s%s)", s->facts.name,
           s->facts.number, s->facts.software ? ", software" : "", matrices);
  if (s->note[0]) snprintf(device->note, sizeof device->note, "%s", s->note);
  return KEDGE_OK;
}

static void vk_limits(const kedge_device *device, kedge_limits *limits) {
  const vk_state *s = device->state;
  *limits = (kedge_limits){.max_buffer = s->facts.max_buffer,
                           .alignment = 256,
                           .threads = 1,
                           .computes = true,
                           .slow_bf16 = s->facts.software};
}

static uint64_t vk_scratch(const kedge_device *device, const kedge_step *step) {
  const vk_kernel *kernel = kernels[step->op];
  return kernel->scratch ? kernel->scratch(device->state, &step->call) : 0;
}

/* ---- Steps
 * ---------------------------------------------------------------------------------------------------------
 */

/* Bytes from a tensor's first element to behind its last. */
static uint64_t extent(const kedge_tensor *t, bool part) {
  uint64_t rows = 1;
  uint32_t cols = t->dims[t->rank - 1];
  for (uint32_t i = part ? 1 : 0; i + 1 < t->rank; i++) rows *= t->dims[i];
  return ((rows - 1) * t->pitch + cols) * kedge_dtype_size(t->dtype);
}

static kedge_status note_tensor(vk_ranges *r, const kedge_tensor *t) {
  uint32_t count = t->parts ? t->dims[0] : 1;
  if (!t->rank) return KEDGE_OK;
  if (r->count + count > r->capacity) {
    uint32_t capacity = 2 * (r->count + count);
    vk_range *larger = kedge_realloc(r->items, capacity, sizeof *larger);
    if (!larger) return KEDGE_ERR_MEMORY;
    r->items = larger;
    r->capacity = capacity;
  }
  for (uint32_t i = 0; i < count; i++) {
    uint64_t at = (uint64_t)(uintptr_t)(t->parts ? t->parts[i] : t->data);
    r->items[r->count++] = (vk_range){at, at + extent(t, t->parts != NULL)};
  }
  return KEDGE_OK;
}

/* The barrier before a step, if it needs one. */
static kedge_status depend(vk_state *s, vk_slot *slot, const kedge_step *step) {
  const kedge_op_info *info = kedge_op_get(step->op);
  const vk_kernel *kernel = kernels[step->op];
  vk_ranges reads = {0}, writes = {0};
  kedge_status status = KEDGE_OK;
  for (uint32_t i = 0; i < info->in_count && status == KEDGE_OK; i++) {
    status = note_tensor(&reads, &step->call.in[i]);
    if (status == KEDGE_OK && info->in[i].updated) status = note_tensor(&writes, &step->call.in[i]);
  }
  for (uint32_t i = 0; i < info->out_count && status == KEDGE_OK; i++)
    status = note_tensor(&writes, &step->call.out[i]);
  uint64_t scratch = kernel->scratch ? kernel->scratch(s, &step->call) : 0;
  if (scratch && status == KEDGE_OK) {
    kedge_tensor bytes = {.data = step->call.scratch, .dtype = KEDGE_F32, .rank = 1};
    bytes.dims[0] = bytes.pitch = (uint32_t)(scratch / 4 < UINT32_MAX ? vk_ceil(scratch, 4) : UINT32_MAX);
    status = note_tensor(&writes, &bytes);
  }
  if (status == KEDGE_OK)
    status = kedge__vk_depend(s, slot, reads.items, reads.count, writes.items, writes.count);
  kedge_free(reads.items);
  kedge_free(writes.items);
  return status;
}

/* Bytes of a step's record: the addresses, the arguments, and a table for each input in parts. */
static uint64_t record_bytes(const kedge_op_info *info, const kedge_step *step) {
  uint64_t bytes = sizeof(vk_call) + 256;
  for (uint32_t i = 0; i < info->in_count; i++)
    if (info->in[i].parts) bytes += 8 * (uint64_t)step->call.in[i].dims[0];
  return bytes;
}

/* Writes the record; a tensor that may lie in parts is always a table of addresses. */
static void write_record(const kedge_op_info *info, const kedge_step *step, vk_slot *slot, uint64_t bytes) {
  unsigned char *at = slot->args_at + slot->args_used;
  uint64_t table = sizeof(vk_call) + 256;
  vk_call call = {.scratch = (uint64_t)(uintptr_t)step->call.scratch};
  for (uint32_t i = 0; i < KEDGE_MAX_IN && i < info->in_count; i++) {
    const kedge_tensor *t = &step->call.in[i];
    call.in[i] = (uint64_t)(uintptr_t)t->data;
    call.in_pitch[i] = t->pitch;
    call.in_bf16 |= (uint32_t)(t->rank && t->dtype == KEDGE_BF16) << i;
    if (!info->in[i].parts) continue;
    call.in[i] = slot->args_address + slot->args_used + table;
    uint64_t each = extent(t, true);
    for (uint32_t p = 0; p < t->dims[0]; p++, table += 8) {
      uint64_t address = (uint64_t)(uintptr_t)(t->parts ? t->parts[p] : t->data) + (t->parts ? 0 : p * each);
      memcpy(at + table, &address, 8);
    }
  }
  for (uint32_t i = 0; i < KEDGE_MAX_OUT && i < info->out_count; i++) {
    call.out[i] = (uint64_t)(uintptr_t)step->call.out[i].data;
    call.out_bf16 |= (uint32_t)(step->call.out[i].dtype == KEDGE_BF16) << i;
  }
  memcpy(at, &call, sizeof call);
  memcpy(at + sizeof call, step->call.args, info->args_size_f32);
  slot->args_used += (bytes + 63) / 64 * 64;
}

static kedge_status vk_run(kedge_device *device, const kedge_step *steps, uint32_t count) {
  vk_state *s = device->state;
  for (uint32_t i = 0; i < count; i++) {
    const kedge_op_info *info = kedge_op_get(steps[i].op);
    const uint64_t bytes = record_bytes(info, &steps[i]);
    vk_launch launch = {.state = s, .step = &steps[i], .call = &steps[i].call, .args = steps[i].call.args};
    KEDGE_TRY(kedge__vk_stream_open(s, bytes + 64, 0, &launch.slot));
    launch.address = launch.slot->args_address + launch.slot->args_used;
    write_record(info, &steps[i], launch.slot, bytes);
    KEDGE_TRY(depend(s, launch.slot, &steps[i]));
    kernels[steps[i].op]->run(&launch);
    if (launch.status != KEDGE_OK) return launch.status;
    /* What is handed over together has an end, too: watchdogs count it as one. */
    if (launch.slot->work > 4 * s->budget) KEDGE_TRY(kedge__vk_stream_submit(s));
  }
  KEDGE_TRY(kedge__vk_stream_submit(s));
  return kedge__vk_validation(s);
}

/* ---- Dispatches
 * ---------------------------------------------------------------------------------------------------- */

typedef struct vk_push {
  uint64_t call;
  uint32_t first, end; /* groups of this dispatch */
  uint32_t number[VK_NUMBERS];
} vk_push;

/* The one place that dispatches: work is cut to the budget, and a grid wider than the device allows is folded
 * into rows; the groups past its end do nothing. */
static void dispatch(vk_state *s, vk_slot *slot, const vk_pass *pass, uint64_t address) {
  uint64_t most = pass->work ? s->budget / pass->work : UINT32_MAX;
  if (!most) most = 1;
  vk_push push = {.call = address};
  memcpy(push.number, pass->number, sizeof push.number);
  for (uint64_t first = 0, count; first < pass->groups; first += count) {
    count = pass->groups - first < most ? pass->groups - first : most;
    const uint32_t wide = (uint32_t)(count < s->facts.max_groups ? count : s->facts.max_groups);
    push.first = (uint32_t)first;
    push.end = (uint32_t)(first + count);
    vkCmdPushConstants(slot->commands, s->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof push, &push);
    vkCmdDispatch(slot->commands, wide, (uint32_t)vk_ceil(count, wide), 1);
    s->dispatches++;
    slot->recorded++;
    slot->work += count * pass->work;
  }
}

void kedge__vk_pass(vk_launch *launch, const vk_pass *pass) {
  vk_state *s = launch->state;
  vk_pipeline_key key = {.shader = pass->shader,
                         .local = pass->local ? pass->local : s->facts.subgroup,
                         .bf16 = launch->step->variant == KEDGE_VARIANT_BF16,
                         .full = pass->full};
  VkPipeline pipeline = VK_NULL_HANDLE;
  if (launch->status != KEDGE_OK || !pass->groups) return;
  memcpy(key.special, pass->special, sizeof key.special);
  launch->status = kedge__vk_pipeline(s, &key, &pipeline);
  if (launch->status != KEDGE_OK) return;
  vkCmdBindPipeline(launch->slot->commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
  dispatch(s, launch->slot, pass, launch->address);
}

void kedge__vk_pass_barrier(vk_launch *launch) {
  vk_state *s = launch->state;
  const uint32_t reads = s->reads.count, writes = s->writes.count;
  kedge__vk_barrier(s, launch->slot);
  s->reads.count = reads; /* the op's own ranges still wait for the next op */
  s->writes.count = writes;
}

static kedge_status vk_sync(kedge_device *device) {
  KEDGE_TRY(kedge__vk_stream_sync(device->state));
  return kedge__vk_validation(device->state);
}

/* Seconds that the device has worked, by its own clock where its queue has one. */
static double vk_time(kedge_device *device) {
  const vk_state *s = device->state;
  struct timespec now;
  if (s->facts.tick > 0) return s->seconds;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static const kedge_backend backend = {.name = "vulkan",
                                      .settings = "a device's number, or part of its name",
                                      .open = vk_open,
                                      .close = vk_close,
                                      .limits = vk_limits,
                                      .buffer_new = kedge__vk_buffer_new,
                                      .buffer_wrap = kedge__vk_buffer_wrap,
                                      .buffer_free = kedge__vk_buffer_free,
                                      .write = kedge__vk_write,
                                      .read = kedge__vk_read,
                                      .fill = kedge__vk_fill,
                                      .scratch = vk_scratch,
                                      .run = vk_run,
                                      .sync = vk_sync,
                                      .time = vk_time};

const kedge_module exported = {KEDGE_MODULE_CONTRACT(KEDGE_MODULE_ARGS), KEDGE_OP_COUNT, sizeof(kedge_step),
                               &backend};
