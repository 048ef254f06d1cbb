/* SPDX-License-Identifier: Apache-2.0
 *
 * Reverse-mode differentiation of a graph: one pass over the nodes from the last to the first, in which each
 * op's rule (core/ops/<family>.c) appends ordinary nodes. A node of a recompute region is differentiated on
 * clones of the region's nodes, made just before, so that the first values can die early; ops marked KEEP
 * (ids, offsets) are never cloned.
 */
#include "core/graph.h"

#include <string.h>

typedef struct tape {
  kedge_graph *g;
  uint32_t nodes, values; /* of the graph before the pass */
  bool *needs;            /* value: the loss may depend on a wrt through it */
  kedge_value *grads;     /* base value: its gradient so far */
  kedge_value *clones;    /* value: its twin in the recomputed region, KEDGE_NONE while there is none */
  uint32_t *uses;         /* base value: consumers that have not been passed yet */
  bool *cloned;           /* region */
} tape;

kedge_value kedge__add_gradients(kedge_graph *g, kedge_value a, kedge_value b) {
  if (!a || !b) return a ? a : b;
  kedge_dtype da = kedge_value_dtype(g, a), db = kedge_value_dtype(g, b);
  if (da != db) {
    a = kedge_cast(g, a, KEDGE_F32);
    b = kedge_cast(g, b, KEDGE_F32);
  }
  return kedge_add(g, a, b);
}

/* The gradient of a view's base (its elements in order, in whatever shape), from the view's gradient. */
static kedge_value through_view(tape *t, kedge_value view, kedge_value grad) {
  kedge_graph *g = t->g;
  const kedge_value_info v = g->values[view], base = g->values[v.base];
  if (v.storage != KEDGE_STORE_VIEW) return grad;
  uint32_t total = (uint32_t)kedge__shape_count(&base.shape), count = (uint32_t)kedge__shape_count(&v.shape);
  uint32_t rows = kedge__rows(&v.shape), cols = kedge__cols(&v.shape);
  kedge_value placed = grad;
  if (kedge__is_dense(g, view)) {
    if (count != total) {
      placed = kedge_reshape(g, grad, 2, (uint32_t[]){1, count});
      placed = kedge_place(g, placed, (uint32_t)v.offset, total);
    }
    return placed;
  }
  /* Whole rows of the window's pitch that lie inside the base: from its offset on, or as near as they fit. */
  uint32_t whole = rows * v.pitch, start = (uint32_t)v.offset;
  if (start > total - whole) start = total - whole;
  placed = kedge_reshape(g, grad, 2, (uint32_t[]){rows, cols});
  placed = kedge_place(g, placed, (uint32_t)v.offset - start, v.pitch);
  if (whole != total) {
    placed = kedge_reshape(g, placed, 2, (uint32_t[]){1, whole});
    placed = kedge_place(g, placed, start, total);
  }
  return placed;
}

/* Which values a wrt flows into; how often each base value is read by nodes that matter. */
static void mark(tape *t, const kedge_value *wrt, uint32_t count) {
  const kedge_graph *g = t->g;
  for (uint32_t i = 0; i < count; i++) t->needs[wrt[i]] = true;
  for (uint32_t n = 0; n < t->nodes; n++) {
    const kedge_node *node = &g->nodes[n];
    const kedge_op_info *info = kedge_op_get(node->op);
    bool any = false;
    for (uint32_t i = 0; i < info->in_count; i++) {
      kedge_value base = g->values[node->in[i]].base;
      if (!node->in[i] || !t->needs[base]) continue;
      any = true;
      t->uses[base]++;
    }
    any &= !(info->flags & KEDGE_OP_STOP); /* reads the value, but passes no gradient to it */
    for (uint32_t i = 0; any && i < info->out_count; i++)
      t->needs[node->out[i]] = g->values[node->out[i]].shape.dtype != KEDGE_I32;
  }
}

/* The value that stands for v in the gradient of a node of `region`: its clone where it has one. */
static kedge_value twin(tape *t, kedge_value v) {
  if (!v || v >= t->values) return v;
  if (t->clones[v]) return t->clones[v];
  const kedge_value_info info = t->g->values[v];
  if (info.storage != KEDGE_STORE_VIEW || !t->clones[info.base]) return v;
  kedge_value view = kedge__value_new(t->g, KEDGE_STORE_VIEW, &info.shape, NULL);
  if (!view) return KEDGE_NONE;
  kedge_value_info *w = &t->g->values[view];
  w->base = t->clones[info.base];
  w->node = t->g->values[w->base].node;
  w->offset = info.offset;
  w->pitch = info.pitch;
  return t->clones[v] = view;
}

static void clone_region(tape *t, uint32_t region) {
  kedge_graph *g = t->g;
  t->cloned[region] = true;
  for (uint32_t n = 0; n < t->nodes && g->status == KEDGE_OK; n++) {
    const kedge_node node = g->nodes[n];
    const kedge_op_info *info = kedge_op_get(node.op);
    if (node.region != region || info->flags & (KEDGE_OP_KEEP | KEDGE_OP_STATE)) continue;
    kedge_value in[KEDGE_MAX_IN], outs[KEDGE_MAX_OUT];
    for (uint32_t i = 0; i < info->in_count; i++) in[i] = twin(t, node.in[i]);
    double args[32];
    memcpy(args, g->args + node.args, info->args_size);
    kedge_dtype dtype = info->out_count ? g->values[node.out[0]].shape.dtype : KEDGE_F32;
    kedge__node(g, node.op, in, args, dtype, outs);
    for (uint32_t i = 0; g->status == KEDGE_OK && i < info->out_count; i++) t->clones[node.out[i]] = outs[i];
  }
}

/* Differentiates node n, if a gradient reached it. */
static void backward(tape *t, uint32_t n) {
  kedge_graph *g = t->g;
  const kedge_node node = g->nodes[n];
  const kedge_op_info *info = kedge_op_get(node.op);
  kedge_value in[KEDGE_MAX_IN], out[KEDGE_MAX_OUT], dout[KEDGE_MAX_OUT] = {0}, din[KEDGE_MAX_IN] = {0};
  bool need[KEDGE_MAX_IN] = {0}, any_need = false, any_dout = false;
  for (uint32_t i = 0; i < info->in_count; i++) {
    need[i] =
        node.in[i] && t->needs[g->values[node.in[i]].base] && g->values[node.in[i]].shape.dtype != KEDGE_I32;
    any_need |= need[i];
  }
  for (uint32_t i = 0; i < info->out_count; i++) {
    dout[i] = t->grads[node.out[i]];
    any_dout |= dout[i] != KEDGE_NONE;
  }
  if (!any_need || !any_dout) return;
  if (info->flags & KEDGE_OP_NODIFF) {
    kedge__graph_fail(g, KEDGE_ERR_UNSUPPORTED, "%s has no gradient, but the loss depends on it", info->name);
    return;
  }
  if (node.region && !t->cloned[node.region]) clone_region(t, node.region);
  for (uint32_t i = 0; i < info->in_count; i++) in[i] = node.region ? twin(t, node.in[i]) : node.in[i];
  for (uint32_t i = 0; i < info->out_count; i++) out[i] = node.region ? twin(t, node.out[i]) : node.out[i];
  if (g->status != KEDGE_OK) return;
  double args[32];
  memcpy(args, g->args + node.args, info->args_size);
  kedge_gradient_rule rule = {g, in, out, dout, need, din, args};
  info->gradient(&rule);
  for (uint32_t i = 0; i < info->in_count && g->status == KEDGE_OK; i++) {
    if (!need[i] || !din[i]) continue;
    kedge_value base = g->values[node.in[i]].base;
    if (kedge_value_count(g, din[i]) != kedge_value_count(g, node.in[i])) {
      kedge__graph_fail(g, KEDGE_ERR_SHAPE, "gradient of %s for input %u has the wrong size", info->name, i);
      return;
    }
    kedge_value grad = through_view(t, node.in[i], din[i]);
    const kedge_shape shape = g->values[base].shape;
    if (grad) grad = kedge_reshape(g, grad, shape.rank, shape.dims);
    t->grads[base] = kedge__add_gradients(g, t->grads[base], grad);
  }
}

static bool tape_init(tape *t, kedge_graph *g) {
  *t = (tape){.g = g, .nodes = g->node_count, .values = g->value_count};
  t->needs = kedge_alloc(t->values, sizeof *t->needs);
  t->grads = kedge_alloc(t->values, sizeof *t->grads);
  t->clones = kedge_alloc(t->values, sizeof *t->clones);
  t->uses = kedge_alloc(t->values, sizeof *t->uses);
  t->cloned = kedge_alloc(g->region_count + 1, sizeof *t->cloned);
  return t->needs && t->grads && t->clones && t->uses && t->cloned;
}

static void tape_destroy(tape *t) {
  kedge_free(t->needs);
  kedge_free(t->grads);
  kedge_free(t->clones);
  kedge_free(t->uses);
  kedge_free(t->cloned);
}

/* Hands a complete gradient of a wrt to the caller, in the wrt's shape. */
static void finish(tape *t, kedge_value wrt, kedge_value *gradient, kedge_gradient_sink sink, void *context) {
  kedge_value grad = t->grads[wrt];
  if (grad) {
    const kedge_shape shape = t->g->values[wrt].shape;
    grad = kedge_reshape(t->g, grad, shape.rank, shape.dims);
  }
  *gradient = grad;
  if (grad && sink) sink(context, t->g, wrt, grad);
}

void kedge_gradient(kedge_graph *g, kedge_value loss, const kedge_value *wrt, uint32_t count,
                    kedge_value *gradients, kedge_gradient_sink sink, void *context) {
  for (uint32_t i = 0; i < count; i++) gradients[i] = KEDGE_NONE;
  if (g->status != KEDGE_OK) return;
  for (uint32_t i = 0; i < count; i++)
    if (!wrt[i] || g->values[wrt[i]].storage == KEDGE_STORE_VIEW) {
      kedge__graph_fail(g, KEDGE_ERR_ARGUMENT, "gradient with respect to a view or to nothing (entry %u)", i);
      return;
    }
  if (!loss || kedge_value_count(g, loss) != 1 || kedge_value_dtype(g, loss) == KEDGE_I32) {
    kedge__graph_fail(g, KEDGE_ERR_SHAPE, "the loss must be one float");
    return;
  }
  tape t;
  uint32_t region = g->region;
  g->region = 0;
  if (!tape_init(&t, g)) {
    g->status = KEDGE_ERR_MEMORY;
    goto done;
  }
  mark(&t, wrt, count);
  kedge_value base = g->values[loss].base;
  kedge_shape seed = g->values[base].shape;
  t.grads[base] = kedge_fill(g, seed.dtype, seed.rank, seed.dims, 1.0);
  uint32_t *left = t.uses;
  for (uint32_t i = 0; i < count; i++)
    if (!left[wrt[i]]) finish(&t, wrt[i], &gradients[i], sink, context);
  for (uint32_t n = t.nodes; n-- > 0 && g->status == KEDGE_OK;) {
    backward(&t, n);
    const kedge_node node = g->nodes[n];
    for (uint32_t i = 0; i < kedge_op_get(node.op)->in_count && g->status == KEDGE_OK; i++) {
      kedge_value read = g->values[node.in[i]].base;
      if (!node.in[i] || !t.needs[read] || --left[read]) continue;
      for (uint32_t w = 0; w < count; w++)
        if (wrt[w] == read) finish(&t, read, &gradients[w], sink, context);
    }
  }
done:
  g->region = region;
  tape_destroy(&t);
}
