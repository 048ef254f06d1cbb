/* SPDX-License-Identifier: Apache-2.0
 *
 * The graph: values, nodes, sticky errors, recompute marks. Views are in view.c, the gradient in gradient.c,
 * the plan in plan.c.
 */
#include "core/graph.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

kedge_graph *kedge_graph_new(bool all_double) {
  kedge_graph *g = kedge_alloc(1, sizeof *g);
  if (!g) return NULL;
  g->all_double = all_double;
  kedge_shape none = {KEDGE_F32, 0, {1, 1, 1, 1}};
  if (kedge__value_new(g, KEDGE_STORE_INPUT, &none, NULL) != 0 || g->status != KEDGE_OK) {
    kedge_graph_free(g);
    return NULL;
  }
  return g;
}

void kedge_graph_free(kedge_graph *g) {
  if (!g) return;
  for (uint32_t i = 0; i < g->value_count; i++) {
    kedge_free(g->values[i].name);
    kedge_free(g->values[i].parts);
    kedge_free(g->values[i].part_offsets);
  }
  for (uint32_t i = 0; i < g->region_count; i++) kedge_free(g->regions[i]);
  kedge_free(g->regions);
  kedge_free(g->values);
  kedge_free(g->nodes);
  kedge_free(g->args);
  kedge_free(g->message);
  kedge_free(g);
}

kedge_status kedge_graph_status(const kedge_graph *g) {
  return g->status == KEDGE_OK ? KEDGE_OK
                               : kedge_fail(g->status, "%s", g->message ? g->message : "out of memory");
}

bool kedge_graph_is_double(const kedge_graph *g) {
  return g->all_double;
}

kedge_value kedge__graph_fail(kedge_graph *g, kedge_status status, const char *format, ...) {
  if (g->status != KEDGE_OK) return KEDGE_NONE;
  char text[900];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  g->status = status;
  g->message = kedge_strdup(text);
  return KEDGE_NONE;
}

static kedge_value fail_memory(kedge_graph *g) {
  g->status = g->status == KEDGE_OK ? KEDGE_ERR_MEMORY : g->status;
  return KEDGE_NONE;
}

/* Makes room for one more element of an array. */
static bool grow(void **array, uint32_t count, uint32_t *capacity, size_t size) {
  if (count < *capacity) return true;
  uint32_t more = *capacity ? *capacity * 2 : 64;
  void *grown = kedge_realloc(*array, more, size);
  if (!grown) return false;
  *array = grown;
  *capacity = more;
  return true;
}

kedge_value kedge__value_new(kedge_graph *g, kedge_storage storage, const kedge_shape *shape,
                             const char *name) {
  if (g->status != KEDGE_OK) return KEDGE_NONE;
  if (!grow((void **)&g->values, g->value_count, &g->value_capacity, sizeof *g->values))
    return fail_memory(g);
  kedge_value_info *v = &g->values[g->value_count];
  *v = (kedge_value_info){.storage = storage, .shape = *shape, .base = g->value_count, .node = UINT32_MAX};
  if (g->all_double && shape->dtype != KEDGE_I32) v->shape.dtype = KEDGE_F64;
  v->pitch = kedge__cols(shape);
  if (name && !(v->name = kedge_strdup(name))) return fail_memory(g);
  return g->value_count++;
}

/* A shape given by a caller: 1 to 4 dimensions, none 0, at most 2^31-1 elements. */
static bool check_shape(kedge_graph *g, const char *name, kedge_dtype dtype, uint32_t rank,
                        const uint32_t *dims, kedge_shape *shape) {
  if (g->status != KEDGE_OK) return false;
  *shape = (kedge_shape){dtype, rank, {1, 1, 1, 1}};
  uint64_t count = 1;
  if (rank < 1 || rank > KEDGE_MAX_RANK) {
    kedge__graph_fail(g, KEDGE_ERR_SHAPE, "%s: expected 1 to %d dimensions, got %u", name, KEDGE_MAX_RANK,
                      rank);
    return false;
  }
  for (uint32_t i = 0; i < rank; i++) {
    shape->dims[i] = dims[i];
    count *= dims[i];
    if (!dims[i] || count > INT32_MAX) {
      kedge__graph_fail(g, KEDGE_ERR_SHAPE, "%s: a tensor has 1 to 2147483647 elements, dimension %u is %u",
                        name, i, dims[i]);
      return false;
    }
  }
  return true;
}

kedge_value kedge_input(kedge_graph *g, const char *name, kedge_dtype dtype, uint32_t rank,
                        const uint32_t *dims) {
  kedge_shape shape;
  if (!check_shape(g, name, dtype, rank, dims, &shape)) return KEDGE_NONE;
  return kedge__value_new(g, KEDGE_STORE_INPUT, &shape, name);
}

static bool fits(const kedge_buffer *buffer, uint64_t offset, uint64_t bytes) {
  uint64_t size = kedge_buffer_size(buffer);
  return offset <= size && bytes <= size - offset;
}

kedge_value kedge_parameter(kedge_graph *g, const char *name, kedge_dtype dtype, uint32_t rank,
                            const uint32_t *dims, kedge_buffer *buffer, uint64_t offset) {
  kedge_shape shape;
  if (!check_shape(g, name, dtype, rank, dims, &shape)) return KEDGE_NONE;
  kedge_value v = kedge__value_new(g, KEDGE_STORE_PARAMETER, &shape, name);
  if (!v) return KEDGE_NONE;
  g->values[v].buffer = buffer;
  g->values[v].offset = offset;
  if (buffer && !fits(buffer, offset, kedge_value_bytes(g, v)))
    return kedge__graph_fail(g, KEDGE_ERR_SHAPE,
                             "%s: its buffer has %llu bytes, the parameter needs %llu from %llu on", name,
                             (unsigned long long)kedge_buffer_size(buffer),
                             (unsigned long long)kedge_value_bytes(g, v), (unsigned long long)offset);
  return v;
}

kedge_value kedge_parameter_parts(kedge_graph *g, const char *name, kedge_dtype dtype, uint32_t rank,
                                  const uint32_t *dims, kedge_buffer *const *buffers,
                                  const uint64_t *offsets) {
  kedge_value v = kedge_parameter(g, name, dtype, rank, dims, NULL, 0);
  if (!v) return KEDGE_NONE;
  kedge_value_info *info = &g->values[v];
  info->parts = kedge_alloc(dims[0], sizeof *info->parts);
  info->part_offsets = kedge_alloc(dims[0], sizeof *info->part_offsets);
  if (!info->parts || !info->part_offsets) return fail_memory(g);
  uint64_t part_bytes = kedge_value_bytes(g, v) / dims[0];
  for (uint32_t i = 0; i < dims[0]; i++) {
    info->parts[i] = buffers[i];
    info->part_offsets[i] = offsets ? offsets[i] : 0;
    if (buffers[i] && !fits(buffers[i], info->part_offsets[i], part_bytes))
      return kedge__graph_fail(g, KEDGE_ERR_SHAPE, "%s: the buffer of part %u is too small", name, i);
  }
  return v;
}

void kedge_output(kedge_graph *g, kedge_value value, const char *name) {
  if (g->status != KEDGE_OK || !value) return;
  if (!kedge__is_dense(g, value)) {
    kedge__graph_fail(g, KEDGE_ERR_ARGUMENT, "output %s is a window; copy it first", name);
    return;
  }
  kedge_value_info *v = &g->values[value];
  char *copy = kedge_strdup(name);
  if (!copy) {
    fail_memory(g);
    return;
  }
  kedge_free(v->name);
  v->name = copy;
  v->output = true;
  g->values[v->base].output = true;
}

kedge_value kedge_find(const kedge_graph *g, const char *name) {
  for (kedge_value v = 1; v < g->value_count; v++)
    if (g->values[v].name && !strcmp(g->values[v].name, name)) return v;
  return KEDGE_NONE;
}

kedge_dtype kedge_value_dtype(const kedge_graph *g, kedge_value v) {
  return g->values[v].shape.dtype;
}
uint32_t kedge_value_rank(const kedge_graph *g, kedge_value v) {
  return g->values[v].shape.rank;
}
uint32_t kedge_value_dim(const kedge_graph *g, kedge_value v, uint32_t axis) {
  return axis < KEDGE_MAX_RANK ? g->values[v].shape.dims[axis] : 1;
}
uint64_t kedge_value_count(const kedge_graph *g, kedge_value v) {
  return kedge__shape_count(&g->values[v].shape);
}
uint64_t kedge_value_bytes(const kedge_graph *g, kedge_value v) {
  return kedge_value_count(g, v) * kedge_dtype_size(g->values[v].shape.dtype);
}
const char *kedge_value_name(const kedge_graph *g, kedge_value v) {
  return g->values[v].name ? g->values[v].name : "";
}
uint32_t kedge_graph_nodes(const kedge_graph *g) {
  return g->node_count;
}

void kedge_region_begin(kedge_graph *g, const char *name) {
  if (g->status != KEDGE_OK) return;
  assert(!g->region);
  char **grown = kedge_realloc(g->regions, g->region_count + 1, sizeof *grown);
  if (grown) g->regions = grown;
  char *copy = grown ? kedge_strdup(name) : NULL;
  if (!copy) {
    fail_memory(g);
    return;
  }
  g->regions[g->region_count++] = copy;
  g->region = g->region_count;
}

void kedge_region_end(kedge_graph *g) {
  g->region = 0;
}

void kedge__describe(const kedge_graph *g, const kedge_value *in, uint32_t count, char *text, size_t size) {
  size_t at = 0;
  text[0] = 0;
  for (uint32_t i = 0; i < count && at + 1 < size; i++) {
    const kedge_value_info *v = &g->values[in[i]];
    const char *name = v->name                                       ? v->name
                       : v->base != in[i] && g->values[v->base].name ? g->values[v->base].name
                                                                     : "value";
    int n = in[i] ? snprintf(text + at, size - at, "%s%.60s %s[", i ? ", " : "", name,
                             kedge_dtype_name(v->shape.dtype))
                  : snprintf(text + at, size - at, "%sabsent", i ? ", " : "");
    at += n > 0 ? (size_t)n : 0;
    for (uint32_t d = 0; in[i] && d < v->shape.rank && at < size; d++) {
      n = snprintf(text + at, size - at, "%s%u%s", d ? "," : "", v->shape.dims[d],
                   d + 1 == v->shape.rank ? "]" : "");
      at += n > 0 ? (size_t)n : 0;
    }
  }
}

/* Checks one input against its slot and settles the node's storage dtype; inserts a copy for a window that
 * the op cannot read. False after a failure. */
static bool check_input(kedge_graph *g, const kedge_op_info *info, uint32_t i, kedge_value *in,
                        kedge_dtype *storage, bool *settled) {
  const kedge_slot *slot = &info->in[i];
  if (!*in) {
    if (slot->optional) return true;
    kedge__graph_fail(g, KEDGE_ERR_ARGUMENT, "%s: input %u is missing", info->name, i);
    return false;
  }
  const kedge_value_info *v = &g->values[*in];
  kedge_dtype dtype = v->shape.dtype, real = g->all_double ? KEDGE_F64 : KEDGE_F32;
  bool ok = slot->letter == 'i'   ? dtype == KEDGE_I32
            : slot->letter == 'f' ? dtype == real
            : slot->letter == 'w' ? dtype != KEDGE_I32
                                  : dtype != KEDGE_I32 && (!*settled || dtype == *storage);
  if (slot->letter == 'x' && !*settled && dtype != KEDGE_I32) {
    *storage = dtype;
    *settled = true;
  }
  if (!ok) {
    kedge__graph_fail(g, KEDGE_ERR_SHAPE, "%s: input %u has dtype %s, expected %s", info->name, i,
                      kedge_dtype_name(dtype),
                      slot->letter == 'i'   ? "i32"
                      : slot->letter == 'f' ? kedge_dtype_name(real)
                      : slot->letter == 'w' ? "f32 or bf16"
                                            : kedge_dtype_name(*settled ? *storage : real));
    return false;
  }
  if (slot->updated && g->values[v->base].storage != KEDGE_STORE_PARAMETER) {
    kedge__graph_fail(g, KEDGE_ERR_ARGUMENT, "%s: input %u is updated in place, so it must be a parameter",
                      info->name, i);
    return false;
  }
  if (v->parts && !slot->parts) {
    kedge__graph_fail(g, KEDGE_ERR_ARGUMENT, "%s: input %u lies in parts, which this op cannot read",
                      info->name, i);
    return false;
  }
  if (!slot->window && !kedge__is_dense(g, *in)) *in = kedge_copy(g, *in, dtype);
  return *in != KEDGE_NONE;
}

/* Copies arguments into the graph; the offset through *at. */
static bool store_args(kedge_graph *g, const void *args, size_t size, uint32_t *at) {
  size_t need = (size + 7) & ~(size_t)7;
  if (g->args_used + need > g->args_capacity) {
    size_t more = g->args_capacity ? 2 * g->args_capacity : 4096;
    unsigned char *grown = kedge_realloc(g->args, more, 1);
    if (!grown) return false;
    g->args = grown;
    g->args_capacity = more;
  }
  memset(g->args + g->args_used, 0, need);
  memcpy(g->args + g->args_used, args, size);
  *at = (uint32_t)g->args_used;
  g->args_used += need;
  return true;
}

/* Runs the op's shape rule; out shapes have their dtypes set. */
static bool infer(kedge_graph *g, const kedge_op_info *info, const kedge_value *in, void *args,
                  kedge_shape *out) {
  kedge_shape shapes[KEDGE_MAX_IN];
  bool present[KEDGE_MAX_IN];
  for (uint32_t i = 0; i < info->in_count; i++) {
    present[i] = in[i] != KEDGE_NONE;
    shapes[i] = g->values[in[i]].shape;
  }
  kedge_shape_rule rule = {shapes, present, out, args};
  kedge_status status = info->shape(&rule);
  for (uint32_t i = 0; status == KEDGE_OK && i < info->out_count; i++)
    if (kedge__shape_count(&out[i]) > INT32_MAX)
      status = kedge_fail(KEDGE_ERR_SHAPE, "output %u would have more than 2147483647 elements", i);
  if (status == KEDGE_OK) return true;
  char text[512];
  kedge__describe(g, in, info->in_count, text, sizeof text);
  kedge__graph_fail(g, status, "%s(%s): %s", info->name, text, kedge_message());
  return false;
}

kedge_value kedge__node(kedge_graph *g, kedge_op op, const kedge_value *inputs, const void *args,
                        kedge_dtype dtype, kedge_value *outs) {
  const kedge_op_info *info = kedge_op_get(op);
  for (uint32_t i = 0; outs && i < info->out_count; i++) outs[i] = KEDGE_NONE;
  if (g->status != KEDGE_OK) return KEDGE_NONE;
  kedge_node node = {.op = op, .region = g->region};
  kedge_dtype storage = g->all_double ? KEDGE_F64 : KEDGE_F32;
  bool settled = false;
  for (uint32_t i = 0; i < info->in_count; i++) {
    node.in[i] = inputs[i];
    if (!check_input(g, info, i, &node.in[i], &storage, &settled)) return KEDGE_NONE;
  }
  double wide[32];
  assert(info->args_size <= sizeof wide);
  memcpy(wide, args, info->args_size);
  kedge_shape out[KEDGE_MAX_OUT];
  for (uint32_t i = 0; i < info->out_count; i++) {
    char letter = info->out[i].letter;
    kedge_dtype real = g->all_double ? KEDGE_F64 : KEDGE_F32;
    out[i] = (kedge_shape){letter == 'i'   ? KEDGE_I32
                           : letter == 'f' ? real
                           : letter == 'x' ? storage
                                           : dtype,
                           0,
                           {1, 1, 1, 1}};
    if (g->all_double && letter == 'w') out[i].dtype = KEDGE_F64;
  }
  if (!infer(g, info, node.in, wide, out)) return KEDGE_NONE;
  if (!grow((void **)&g->nodes, g->node_count, &g->node_capacity, sizeof *g->nodes)) return fail_memory(g);
  if (!store_args(g, wide, info->args_size, &node.args)) return fail_memory(g);
  for (uint32_t i = 0; i < info->out_count; i++) {
    node.out[i] = kedge__value_new(g, KEDGE_STORE_VALUE, &out[i], NULL);
    if (!node.out[i]) return KEDGE_NONE;
    g->values[node.out[i]].node = g->node_count;
    if (outs) outs[i] = node.out[i];
  }
  g->nodes[g->node_count++] = node;
  return info->out_count ? node.out[0] : KEDGE_NONE;
}

kedge_value kedge__gathered_from(const kedge_graph *g, kedge_value value, kedge_value slots) {
  if (g->status != KEDGE_OK || !value || g->values[value].node == UINT32_MAX) return KEDGE_NONE;
  const kedge_node *node = &g->nodes[g->values[value].node];
  bool gathered = node->op == KEDGE_OP_gather_rows && g->values[value].base == value && node->in[1] == slots;
  return gathered ? node->in[0] : KEDGE_NONE;
}
