/* SPDX-License-Identifier: Apache-2.0
 * Views: reshape, window of the last dimension, one index of the first. They cost nothing; a view of a view
 * reads the base. */
#include "core/graph.h"

bool kedge__is_dense(const kedge_graph *g, kedge_value value) {
  const kedge_value_info *v = &g->values[value];
  return v->pitch == kedge__cols(&v->shape) || kedge__rows(&v->shape) == 1;
}

static kedge_value view_new(kedge_graph *g, kedge_value value, const kedge_shape *shape, uint64_t skip,
                            uint32_t pitch) {
  kedge_value view = kedge__value_new(g, KEDGE_STORE_VIEW, shape, NULL);
  if (!view) return KEDGE_NONE;
  const kedge_value_info *of = &g->values[value];
  kedge_value_info *v = &g->values[view];
  v->base = of->base;
  v->node = of->node;
  v->offset = (of->storage == KEDGE_STORE_VIEW ? of->offset : 0) + skip;
  v->pitch = pitch;
  return view;
}

kedge_value kedge_reshape(kedge_graph *g, kedge_value value, uint32_t rank, const uint32_t *dims) {
  if (g->status != KEDGE_OK || !value) return KEDGE_NONE;
  if (!kedge__is_dense(g, value)) value = kedge_copy(g, value, kedge_value_dtype(g, value));
  if (!value) return KEDGE_NONE;
  kedge_shape shape = {g->values[value].shape.dtype, rank, {1, 1, 1, 1}};
  uint64_t count = rank >= 1 && rank <= KEDGE_MAX_RANK;
  for (uint32_t i = 0; i < rank && i < KEDGE_MAX_RANK; i++) {
    shape.dims[i] = dims[i];
    count = count > INT32_MAX ? count : count * dims[i]; /* stays wrong once it is too large */
  }
  if (count != kedge_value_count(g, value) || g->values[value].parts)
    return kedge__graph_fail(g, KEDGE_ERR_SHAPE, "reshape(%s): expected %llu elements, got %llu",
                             kedge_value_name(g, value), (unsigned long long)kedge_value_count(g, value),
                             (unsigned long long)count);
  return view_new(g, value, &shape, 0, kedge__cols(&shape));
}

kedge_value kedge_window(kedge_graph *g, kedge_value value, uint32_t offset, uint32_t cols) {
  if (g->status != KEDGE_OK || !value) return KEDGE_NONE;
  kedge_shape shape = g->values[value].shape;
  uint32_t width = kedge__cols(&shape);
  if (!cols || offset > width || cols > width - offset || g->values[value].parts)
    return kedge__graph_fail(g, KEDGE_ERR_SHAPE, "window(%s): columns [%u, %u) of %u",
                             kedge_value_name(g, value), offset, offset + cols, width);
  if (cols == width) return value;
  uint32_t pitch = g->values[value].pitch;
  shape.dims[shape.rank - 1] = cols;
  return view_new(g, value, &shape, offset, pitch);
}

kedge_value kedge_part(kedge_graph *g, kedge_value value, uint32_t index) {
  if (g->status != KEDGE_OK || !value) return KEDGE_NONE;
  const kedge_value_info *v = &g->values[value];
  kedge_shape shape = {v->shape.dtype, v->shape.rank - 1, {1, 1, 1, 1}};
  if (v->shape.rank < 2 || index >= v->shape.dims[0] || v->parts || !kedge__is_dense(g, value))
    return kedge__graph_fail(g, KEDGE_ERR_SHAPE, "part(%s): index %u of %u", kedge_value_name(g, value),
                             index, v->shape.rank < 2 ? 0 : v->shape.dims[0]);
  uint64_t count = 1;
  for (uint32_t i = 0; i < shape.rank; i++) count *= shape.dims[i] = v->shape.dims[i + 1];
  return view_new(g, value, &shape, count * index, kedge__cols(&shape));
}
