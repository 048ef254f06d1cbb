/* SPDX-License-Identifier: Apache-2.0
 * Collective ops of an execution (collect.h). */
#include "core/collect.h"

static const kedge_collective collectives[KEDGE_OP_COUNT] = {
#define ROW(name)                         [KEDGE_OP_##name] = kedge__collective_##name,
#define KERNEL                            KEDGE_KERNEL_NONE
#define COLLECTIVE                        ROW
#define KEDGE_OP(name, family, kind, ...) kind(name)
#include "core/ops.def"
#undef KEDGE_OP
#undef KERNEL
#undef COLLECTIVE
};

static uint64_t tensor_bytes(const kedge_tensor *t) {
  uint64_t count = 1;
  for (uint32_t i = 0; i < t->rank; i++) count *= t->dims[i];
  return count * kedge_dtype_size(t->dtype);
}

/* The buffer that holds a value, and where. */
static void place_of(const kedge_exec *e, kedge_value v, kedge_buffer **buffer, uint64_t *offset) {
  const kedge_graph *g = e->graph;
  const kedge_value_info *info = &g->values[v], *base = &g->values[info->base];
  *offset = info->storage == KEDGE_STORE_VIEW ? info->offset * kedge_dtype_size(info->shape.dtype) : 0;
  if (base->storage == KEDGE_STORE_PARAMETER) {
    *buffer = base->buffer;
    *offset += base->offset;
  } else if (base->storage == KEDGE_STORE_INPUT) {
    *buffer = e->inputs;
    *offset += e->input_offset[info->base];
  } else {
    *buffer = e->workspace->buffer;
    *offset += e->plan.offset[info->base];
  }
}

/* A tensor's bytes on the host, read from the device where `read` says so. */
static kedge_status lend(const kedge_exec *e, kedge_value v, kedge_tensor *t, bool read) {
  kedge_buffer *buffer;
  uint64_t offset;
  t->data = kedge_alloc(tensor_bytes(t), 1);
  if (!t->data) return KEDGE_ERR_MEMORY;
  if (!read) return KEDGE_OK;
  place_of(e, v, &buffer, &offset);
  return e->device->backend->read(buffer, offset, t->data, tensor_bytes(t));
}

static kedge_status give_back(const kedge_exec *e, kedge_value v, const kedge_tensor *t) {
  kedge_buffer *buffer;
  uint64_t offset;
  place_of(e, v, &buffer, &offset);
  return e->device->backend->write(buffer, offset, t->data, tensor_bytes(t));
}

/* On tensors that are lent to the host for it, with scratch of the host's. */
static kedge_status run_lent(kedge_exec *e, const kedge_step *step) {
  const kedge_op_info *info = kedge_op_get(step->op);
  const kedge_node *node = &e->graph->nodes[step->node];
  const kedge_site site = {.comm = e->device->comm};
  kedge_call call = step->call;
  call.scratch = kedge_alloc(kedge__collective_scratch(site.comm, step, 1) + 1, 1);
  kedge_status status = call.scratch ? KEDGE_OK : KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; i < info->in_count; i++) call.in[i].data = NULL;
  for (uint32_t i = 0; i < info->out_count; i++) call.out[i].data = NULL;
  for (uint32_t i = 0; status == KEDGE_OK && i < info->in_count; i++)
    status = lend(e, node->in[i], &call.in[i], true);
  for (uint32_t i = 0; status == KEDGE_OK && i < info->out_count; i++)
    status = lend(e, node->out[i], &call.out[i], false);
  if (status == KEDGE_OK) status = collectives[step->op](&site, &call);
  for (uint32_t i = 0; i < info->in_count; i++) {
    if (status == KEDGE_OK && info->in[i].updated) status = give_back(e, node->in[i], &call.in[i]);
    kedge_free(call.in[i].data);
  }
  for (uint32_t i = 0; i < info->out_count; i++) {
    if (status == KEDGE_OK) status = give_back(e, node->out[i], &call.out[i]);
    kedge_free(call.out[i].data);
  }
  kedge_free(call.scratch);
  return status;
}

/* On the device itself. Counts of rows are read back: they say how long the messages are. */
static kedge_status run_carried(kedge_exec *e, const kedge_step *step) {
  kedge_site site = {.comm = e->device->comm, .device = e->device};
  if (step->op == KEDGE_OP_exchange_counts) return run_lent(e, step);
  if (step->op != KEDGE_OP_all_to_all_rows) return collectives[step->op](&site, &step->call);
  kedge_tensor counts = step->call.in[1];
  counts.data = NULL;
  kedge_status status = lend(e, e->graph->nodes[step->node].in[1], &counts, true);
  site.counts = counts.data;
  if (status == KEDGE_OK) status = collectives[step->op](&site, &step->call);
  kedge_free(counts.data);
  return status;
}

kedge_status kedge__collective_run(kedge_exec *e, const kedge_step *step) {
  const kedge_site site = {.comm = e->device->comm};
  if (!e->device->limits.computes) return KEDGE_OK;
  const kedge_status status = e->device->carries              ? run_carried(e, step)
                              : e->device->limits.host_memory ? collectives[step->op](&site, &step->call)
                                                              : run_lent(e, step);
  if (status != KEDGE_OK && site.comm && !site.comm->overflow) site.comm->broken = true;
  return status;
}

/* Collective steps [from, to), small ones together. */
static kedge_status run_collectives(kedge_exec *e, uint32_t from, uint32_t to) {
  const kedge_site site = {.comm = e->device->comm, .device = e->device->carries ? e->device : NULL};
  const bool direct =
      e->device->limits.computes && (e->device->carries || e->device->limits.host_memory) && site.comm;
  while (from < to) {
    uint32_t done = 0;
    kedge_status status =
        direct ? kedge__collective_together(&site, e->steps + from, to - from, &done) : KEDGE_OK;
    if (status != KEDGE_OK) {
      site.comm->broken = true;
      return status;
    }
    if (!done) KEDGE_TRY(kedge__collective_run(e, &e->steps[from]));
    from += done ? done : 1;
  }
  return KEDGE_OK;
}

kedge_status kedge__steps_run(kedge_exec *e, uint32_t from, uint32_t to) {
  const kedge_backend *backend = e->device->backend;
  while (from < to) {
    uint32_t end = from, last;
    while (end < to && kedge_op_get(e->steps[end].op)->kind == KEDGE_KIND_KERNEL) end++;
    if (from < end) KEDGE_TRY(backend->run(e->device, e->steps + from, end - from));
    if (end == to) break;
    for (last = end; last < to && kedge_op_get(e->steps[last].op)->kind == KEDGE_KIND_COLLECTIVE;) last++;
    if (!e->device->carries) KEDGE_TRY(backend->sync(e->device));
    KEDGE_TRY(run_collectives(e, end, last));
    from = last;
  }
  return backend->sync(e->device);
}
