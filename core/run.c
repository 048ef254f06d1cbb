/* SPDX-License-Identifier: Apache-2.0
 *
 * Execution: a planned graph bound to a device. Builds the program (steps with narrowed arguments and
 * resolved addresses), moves data in and out, runs node ranges, times ops. Comparing with the reference
 * kernels is in compare.c.
 */
#include "core/collect.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- Workspace
 * ------------------------------------------------------------------------------------------------------ */

kedge_status kedge_workspace_new(kedge_device *device, kedge_workspace **out) {
  kedge_workspace *w = *out = kedge_alloc(1, sizeof *w);
  if (!w) return KEDGE_ERR_MEMORY;
  w->device = device;
  w->generation = 1;
  return KEDGE_OK;
}

void kedge_workspace_free(kedge_workspace *w) {
  if (!w) return;
  kedge_buffer_free(w->buffer);
  kedge_free(w);
}

uint64_t kedge_workspace_bytes(const kedge_workspace *w) {
  return w->buffer ? w->buffer->bytes : 0;
}

static kedge_status workspace_reserve(kedge_workspace *w, uint64_t bytes) {
  if (kedge_workspace_bytes(w) >= bytes) return KEDGE_OK;
  kedge_buffer *larger = NULL;
  kedge_buffer_free(w->buffer); /* contents are never kept across executions */
  w->buffer = NULL;
  w->generation++;
  KEDGE_TRY(kedge_buffer_new(w->device, bytes, &larger));
  w->buffer = larger;
  return KEDGE_OK;
}

/* ---- Program
 * ----------------------------------------------------------------------------------------------------------
 */

/* Which build of the kernels a node needs: the storage dtype of its first x. */
static kedge_variant variant_of(const kedge_graph *g, const kedge_node *node) {
  const kedge_op_info *info = kedge_op_get(node->op);
  if (g->all_double) return KEDGE_VARIANT_F64;
  for (uint32_t i = 0; i < info->in_count; i++)
    if (info->in[i].letter == 'x' && node->in[i])
      return g->values[node->in[i]].shape.dtype == KEDGE_BF16 ? KEDGE_VARIANT_BF16 : KEDGE_VARIANT_F32;
  return KEDGE_VARIANT_F32;
}

/* Copies the double version of an argument struct as the float version: u32 first, then reals. */
static void narrow(const kedge_op_info *info, const unsigned char *wide, unsigned char *out) {
  size_t reals = (info->args_size - info->args_size_f32) / 4, words = (info->args_size - 8 * reals) / 4;
  memcpy(out, wide, 4 * words);
  for (size_t i = 0; i < reals; i++) {
    double value;
    memcpy(&value, wide + 4 * words + 8 * i, 8);
    float small = (float)value;
    memcpy(out + 4 * words + 4 * i, &small, 4);
  }
}

static void describe_tensor(const kedge_graph *g, kedge_value v, kedge_tensor *t) {
  *t = (kedge_tensor){0};
  if (!v) return;
  const kedge_value_info *info = &g->values[v];
  t->dtype = info->shape.dtype;
  t->rank = info->shape.rank;
  memcpy(t->dims, info->shape.dims, sizeof t->dims);
  t->pitch = info->pitch;
}

/* Where a value's bytes are. The workspace must be reserved. */
static uint64_t address_of(const kedge_exec *e, kedge_value v) {
  const kedge_value_info *info = &e->graph->values[v], *base = &e->graph->values[info->base];
  uint64_t skip = info->storage == KEDGE_STORE_VIEW ? info->offset * kedge_dtype_size(info->shape.dtype) : 0;
  if (!e->device->limits.computes) return 0;
  if (base->storage == KEDGE_STORE_PARAMETER)
    return base->buffer ? base->buffer->address + base->offset + skip : 0;
  if (base->storage == KEDGE_STORE_INPUT) return e->inputs->address + e->input_offset[info->base] + skip;
  return e->workspace->buffer->address + e->plan.offset[info->base] + skip;
}

/* The tables of part addresses as kernels see them. */
static kedge_status share_parts(kedge_exec *e) {
  const uint64_t own = (uint64_t)(uintptr_t)e->parts;
  if (!e->part_count || !e->device->limits.computes) return KEDGE_OK;
  if (!e->device->limits.host_memory) {
    if (!e->device_parts)
      KEDGE_TRY(kedge_buffer_new(e->device, e->part_count * sizeof *e->parts, &e->device_parts));
    KEDGE_TRY(kedge_buffer_write(e->device_parts, 0, e->parts, e->part_count * sizeof *e->parts));
  }
  const uint64_t seen = e->device_parts ? e->device_parts->address : own;
  for (uint32_t s = 0; s < e->step_count; s++)
    for (uint32_t i = 0; i < KEDGE_MAX_IN; i++) {
      kedge_tensor *t = &e->steps[s].call.in[i];
      if (t->parts) t->parts_address = seen + ((uint64_t)(uintptr_t)t->parts - own);
    }
  return KEDGE_OK;
}

static void resolve(kedge_exec *e) {
  for (uint32_t s = 0; s < e->step_count; s++) {
    kedge_step *step = &e->steps[s];
    const kedge_node *node = &e->graph->nodes[step->node];
    const kedge_op_info *info = kedge_op_get(node->op);
    for (uint32_t i = 0; i < info->in_count; i++) {
      kedge_tensor *t = &step->call.in[i];
      const kedge_value_info *v = &e->graph->values[node->in[i]];
      if (!node->in[i]) continue;
      for (uint32_t p = 0; v->parts && p < v->shape.dims[0]; p++)
        ((void **)(uintptr_t)t->parts)[p] =
            v->parts[p] && e->device->limits.computes
                ? (void *)(uintptr_t)(v->parts[p]->address + v->part_offsets[p])
                : NULL;
      t->data = v->parts ? NULL : (void *)(uintptr_t)address_of(e, node->in[i]);
    }
    for (uint32_t i = 0; i < info->out_count; i++)
      step->call.out[i].data = (void *)(uintptr_t)address_of(e, node->out[i]);
    step->call.scratch = e->scratch && e->device->limits.computes
                             ? (void *)(uintptr_t)(e->workspace->buffer->address + e->plan.bytes)
                             : NULL;
  }
}

/* Fills the steps of all live nodes, except for addresses. */
static kedge_status build_steps(kedge_exec *e) {
  const kedge_graph *g = e->graph;
  e->steps = kedge_alloc(e->plan.nodes, sizeof *e->steps);
  e->args = kedge_alloc(g->args_used + 8, 1);
  size_t part_count = 0, part_at = 0;
  for (uint32_t n = 0; n < g->node_count; n++)
    for (uint32_t i = 0; e->plan.live[n] && i < kedge_op_get(g->nodes[n].op)->in_count; i++)
      if (g->values[g->nodes[n].in[i]].parts) part_count += g->values[g->nodes[n].in[i]].shape.dims[0];
  e->parts = kedge_alloc(part_count, sizeof *e->parts);
  e->part_count = part_count;
  if (!e->steps || !e->args || !e->parts) return KEDGE_ERR_MEMORY;
  for (uint32_t n = 0; n < g->node_count; n++) {
    const kedge_node *node = &g->nodes[n];
    const kedge_op_info *info = kedge_op_get(node->op);
    if (!e->plan.live[n]) continue;
    kedge_step *step = &e->steps[e->step_count++];
    *step = (kedge_step){.op = node->op, .variant = variant_of(g, node), .node = n};
    step->call.threads = e->device->limits.threads;
    step->call.rowwise = e->device->limits.rowwise;
    step->call.args = e->args + node->args;
    if (g->all_double)
      memcpy(e->args + node->args, g->args + node->args, info->args_size);
    else
      narrow(info, g->args + node->args, e->args + node->args);
    for (uint32_t i = 0; i < info->in_count; i++) {
      describe_tensor(g, node->in[i], &step->call.in[i]);
      if (!g->values[node->in[i]].parts) continue;
      step->call.in[i].parts = e->parts + part_at;
      part_at += g->values[node->in[i]].shape.dims[0];
    }
    for (uint32_t i = 0; i < info->out_count; i++) describe_tensor(g, node->out[i], &step->call.out[i]);
    if (kedge_op_get(node->op)->kind == KEDGE_KIND_COLLECTIVE) continue;
    uint64_t scratch = e->device->backend->scratch(e->device, step);
    if (scratch > e->scratch) e->scratch = scratch;
  }
  return KEDGE_OK;
}

/* Room for what collective steps pack and sum. */
static void reserve_collectives(kedge_exec *e) {
  for (uint32_t s = 0, end; s < e->step_count; s++) {
    for (end = s; end < e->step_count && kedge_op_get(e->steps[end].op)->kind == KEDGE_KIND_COLLECTIVE;)
      end++;
    for (; s < end; s++) {
      const uint64_t scratch = kedge__collective_scratch(e->device->comm, &e->steps[s], end - s);
      if (scratch > e->scratch) e->scratch = scratch;
    }
  }
}

/* One buffer for all inputs. */
static kedge_status build_inputs(kedge_exec *e) {
  const kedge_graph *g = e->graph;
  e->input_offset = kedge_alloc(g->value_count, sizeof *e->input_offset);
  if (!e->input_offset) return KEDGE_ERR_MEMORY;
  uint64_t bytes = 0, align = e->device->limits.alignment;
  for (kedge_value v = 1; v < g->value_count; v++) {
    if (g->values[v].storage != KEDGE_STORE_INPUT) continue;
    e->input_offset[v] = bytes;
    bytes += (kedge_value_bytes(g, v) + align - 1) / align * align;
  }
  return kedge_buffer_new(e->device, bytes ? bytes : align, &e->inputs);
}

kedge_status kedge_exec_new(kedge_device *device, const kedge_graph *graph, kedge_workspace *workspace,
                            kedge_exec **out) {
  *out = NULL;
  KEDGE_TRY(kedge_graph_status(graph));
  if (graph->all_double && device->limits.computes && !device->limits.f64)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "backend %s has no all-double kernels; use ref",
                      device->backend->name);
  kedge_exec *e = kedge_alloc(1, sizeof *e);
  if (!e) return KEDGE_ERR_MEMORY;
  e->device = device;
  e->graph = graph;
  e->workspace = workspace;
  kedge_status status = KEDGE_OK;
  if (!workspace) {
    e->own_workspace = true;
    KEDGE_GOTO(kedge_workspace_new(device, &e->workspace), status, fail);
  }
  KEDGE_GOTO(kedge__plan_make(graph, device->limits.alignment, &e->plan), status, fail);
  KEDGE_GOTO(build_inputs(e), status, fail);
  KEDGE_GOTO(build_steps(e), status, fail);
  reserve_collectives(e);
  *out = e;
  return KEDGE_OK;
fail:
  kedge_exec_free(e);
  return status;
}

void kedge_exec_free(kedge_exec *e) {
  if (!e) return;
  if (e->own_workspace) kedge_workspace_free(e->workspace);
  kedge_buffer_free(e->inputs);
  kedge_buffer_free(e->device_parts);
  kedge__plan_destroy(&e->plan);
  kedge_free(e->input_offset);
  kedge_free(e->steps);
  kedge_free(e->args);
  kedge_free(e->parts);
  kedge_free(e);
}

/* A parameter without a buffer can be planned, not run. */
static kedge_status check_buffers(const kedge_exec *e) {
  if (!e->device->limits.computes) return KEDGE_OK;
  for (uint32_t s = 0; s < e->step_count; s++) {
    const kedge_node *node = &e->graph->nodes[e->steps[s].node];
    const kedge_op_info *info = kedge_op_get(node->op);
    for (uint32_t i = 0; i < info->in_count; i++) {
      const kedge_value_info *v = &e->graph->values[e->graph->values[node->in[i]].base];
      if (!node->in[i] || v->storage != KEDGE_STORE_PARAMETER) continue;
      bool bound = v->parts || v->buffer;
      for (uint32_t p = 0; v->parts && p < v->shape.dims[0]; p++) bound &= v->parts[p] != NULL;
      if (!bound) return kedge_fail(KEDGE_ERR_ARGUMENT, "parameter %s has no buffer", v->name ? v->name : "");
    }
  }
  return KEDGE_OK;
}

kedge_status kedge__exec_prepare(kedge_exec *e) {
  KEDGE_TRY(workspace_reserve(e->workspace, e->plan.bytes + e->scratch + e->device->limits.alignment));
  if (e->generation == e->workspace->generation) return KEDGE_OK;
  KEDGE_TRY(check_buffers(e));
  resolve(e);
  KEDGE_TRY(share_parts(e));
  e->generation = e->workspace->generation;
  return KEDGE_OK;
}

/* ---- Data in and out
 * ---------------------------------------------------------------------------------------------------- */

/* Buffer and offset of a value that the host may see. */
static kedge_status locate(kedge_exec *e, kedge_value v, uint64_t bytes, kedge_buffer **buffer,
                           uint64_t *offset) {
  const kedge_graph *g = e->graph;
  if (!v || v >= g->value_count) return kedge_fail(KEDGE_ERR_ARGUMENT, "no such value in this graph");
  const kedge_value_info *info = &g->values[v], *base = &g->values[info->base];
  if (bytes != kedge_value_bytes(g, v))
    return kedge_fail(KEDGE_ERR_SHAPE, "%s has %llu bytes, got %llu", kedge_value_name(g, v),
                      (unsigned long long)kedge_value_bytes(g, v), (unsigned long long)bytes);
  uint64_t skip = info->storage == KEDGE_STORE_VIEW ? info->offset * kedge_dtype_size(info->shape.dtype) : 0;
  if (base->storage == KEDGE_STORE_PARAMETER) {
    *buffer = base->buffer;
    *offset = base->offset + skip;
  } else if (base->storage == KEDGE_STORE_INPUT) {
    *buffer = e->inputs;
    *offset = e->input_offset[info->base] + skip;
  } else {
    if (!base->output)
      return kedge_fail(KEDGE_ERR_ARGUMENT, "only inputs, parameters and outputs can be read");
    *buffer = e->workspace->buffer;
    *offset = e->plan.offset[info->base] + skip;
  }
  return *buffer ? KEDGE_OK : kedge_fail(KEDGE_ERR_ARGUMENT, "%s has no buffer", kedge_value_name(g, v));
}

kedge_status kedge_exec_write(kedge_exec *e, kedge_value v, const void *data, uint64_t bytes) {
  kedge_buffer *buffer = NULL;
  uint64_t offset = 0;
  KEDGE_TRY(locate(e, v, bytes, &buffer, &offset));
  return kedge_buffer_write(buffer, offset, data, bytes);
}

kedge_status kedge_exec_read(kedge_exec *e, kedge_value v, void *data, uint64_t bytes) {
  kedge_buffer *buffer = NULL;
  uint64_t offset = 0;
  KEDGE_TRY(locate(e, v, bytes, &buffer, &offset));
  return kedge_buffer_read(buffer, offset, data, bytes);
}

/* ---- Run
 * ----------------------------------------------------------------------------------------------------------------
 */

/* First step whose node is not before `node`. */
static uint32_t step_at(const kedge_exec *e, uint32_t node) {
  uint32_t low = 0, high = e->step_count;
  while (low < high) {
    uint32_t mid = low + (high - low) / 2;
    if (e->steps[mid].node < node)
      low = mid + 1;
    else
      high = mid;
  }
  return low;
}

kedge_status kedge_exec_run(kedge_exec *e, uint32_t first, uint32_t last) {
  const kedge_backend *backend = e->device->backend;
  KEDGE_TRY(kedge__exec_prepare(e));
  uint32_t from = step_at(e, first), to = step_at(e, last);
  if (!e->profile) return kedge__steps_run(e, from, to);
  for (uint32_t s = from; s < to; s++) {
    double start = backend->time(e->device);
    KEDGE_TRY(kedge__steps_run(e, s, s + 1));
    e->seconds[e->steps[s].op] += backend->time(e->device) - start;
    e->calls[e->steps[s].op]++;
  }
  return KEDGE_OK;
}

void kedge_exec_profile(kedge_exec *e, bool on) {
  e->profile = on;
  if (!on) return;
  memset(e->seconds, 0, sizeof e->seconds);
  memset(e->calls, 0, sizeof e->calls);
}

uint32_t kedge_exec_times(const kedge_exec *e, kedge_op_time *times, uint32_t capacity) {
  uint32_t count = 0;
  for (uint32_t op = 0; op < KEDGE_OP_COUNT; op++) {
    if (!e->calls[op]) continue;
    if (count < capacity)
      times[count] = (kedge_op_time){kedge_op_get((kedge_op)op)->name, e->calls[op], e->seconds[op]};
    count++;
  }
  return count;
}

kedge_plan_summary kedge_exec_plan(const kedge_exec *e) {
  uint32_t values = 0;
  for (kedge_value v = 1; v < e->graph->value_count; v++) values += e->plan.offset[v] != UINT64_MAX;
  return (kedge_plan_summary){.arena = e->plan.bytes,
                              .scratch = e->scratch,
                              .inputs = e->inputs->bytes,
                              .naive = e->plan.naive,
                              .nodes = e->plan.nodes,
                              .values = values,
                              .dead_nodes = e->plan.dead};
}
