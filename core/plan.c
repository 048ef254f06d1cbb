/* SPDX-License-Identifier: Apache-2.0
 *
 * The planner: a pure function from graph to arena offsets. A value lives from the node that writes it to the
 * last node that reads it or a view of it; an output lives to the end. Values are placed from the largest to
 * the smallest, each at the lowest offset that is free during its whole life.
 */
#include "core/graph.h"

#include <stdlib.h>
#include <string.h>

void kedge__plan_destroy(kedge_plan *p) {
  kedge_free(p->live);
  kedge_free(p->offset);
  kedge_free(p->first);
  kedge_free(p->last);
  kedge_free(p->owner);
  *p = (kedge_plan){0};
}

/* From the last node to the first: a node runs if it changes state or somebody needs one of its outputs. */
static void find_live(const kedge_graph *g, kedge_plan *p) {
  for (kedge_value v = 1; v < g->value_count; v++)
    if (g->values[v].output) p->last[g->values[v].base] = g->node_count;
  for (uint32_t n = g->node_count; n-- > 0;) {
    const kedge_node *node = &g->nodes[n];
    const kedge_op_info *info = kedge_op_get(node->op);
    bool live = info->flags & KEDGE_OP_STATE;
    for (uint32_t i = 0; i < info->out_count; i++) live |= p->last[node->out[i]] != 0;
    p->live[n] = live;
    p->nodes += live;
    p->dead += !live;
    for (uint32_t i = 0; i < info->out_count; i++) {
      p->first[node->out[i]] = n;
      if (live && p->last[node->out[i]] < n) p->last[node->out[i]] = n; /* written though nobody reads it */
    }
    for (uint32_t i = 0; live && i < info->in_count; i++) {
      kedge_value base = g->values[node->in[i]].base;
      if (node->in[i] && p->last[base] < n) p->last[base] = n;
    }
  }
}

/* Output 0 of an in-place op takes its input's memory where the input is a whole value that dies there. */
static void share_in_place(const kedge_graph *g, kedge_plan *p) {
  for (uint32_t n = 0; n < g->node_count; n++) {
    const kedge_node *node = &g->nodes[n];
    if (!p->live[n] || !(kedge_op_get(node->op)->flags & KEDGE_OP_INPLACE)) continue;
    kedge_value in = node->in[0], out = node->out[0];
    kedge_value base = g->values[in].base;
    const kedge_value_info *b = &g->values[base];
    if (b->storage != KEDGE_STORE_VALUE || b->output || g->values[out].output) continue;
    if (p->last[base] != n || kedge_value_bytes(g, base) != kedge_value_bytes(g, out)) continue;
    if (kedge_value_bytes(g, in) != kedge_value_bytes(g, base)) continue;
    bool read_twice = false; /* another input reads the same memory, maybe in another order */
    for (uint32_t i = 1; i < kedge_op_get(node->op)->in_count; i++)
      read_twice |= node->in[i] && g->values[node->in[i]].base == base;
    if (read_twice) continue;
    kedge_value owner = p->owner[base];
    p->owner[out] = owner;
    if (p->last[owner] < p->last[out]) p->last[owner] = p->last[out];
  }
}

typedef struct item {
  uint64_t bytes, offset;
  kedge_value value;
  uint32_t first, last;
} item;

static int by_size(const void *a, const void *b) {
  const item *x = a, *y = b;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
  return x->value < y->value ? -1 : 1;
}

static int by_offset(const void *a, const void *b) {
  const item *const *x = a, *const *y = b;
  return (*x)->offset < (*y)->offset ? -1 : (*x)->offset > (*y)->offset;
}

/* Places items[at] among the earlier ones that live at the same time; `beside` is room for their addresses.
 */
static void place(item *items, uint32_t at, item **beside) {
  uint32_t count = 0;
  item *it = &items[at];
  for (uint32_t i = 0; i < at; i++)
    if (items[i].first <= it->last && it->first <= items[i].last) beside[count++] = &items[i];
  qsort(beside, count, sizeof *beside, by_offset);
  uint64_t offset = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (beside[i]->offset >= offset + it->bytes) break;
    if (beside[i]->offset + beside[i]->bytes > offset) offset = beside[i]->offset + beside[i]->bytes;
  }
  it->offset = offset;
}

static kedge_status assign(const kedge_graph *g, uint32_t alignment, kedge_plan *p) {
  kedge_status status = KEDGE_OK;
  uint32_t count = 0;
  item *items = kedge_alloc(g->value_count, sizeof *items);
  item **beside = kedge_alloc(g->value_count, sizeof *beside);
  if (!items || !beside) {
    status = KEDGE_ERR_MEMORY;
    goto done;
  }
  for (kedge_value v = 1; v < g->value_count; v++) {
    if (g->values[v].storage != KEDGE_STORE_VALUE || !p->live[g->values[v].node]) continue;
    uint64_t bytes = (kedge_value_bytes(g, v) + alignment - 1) / alignment * alignment;
    p->naive += bytes;
    if (p->owner[v] == v) items[count++] = (item){bytes, 0, v, p->first[v], p->last[v]};
  }
  qsort(items, count, sizeof *items, by_size);
  for (uint32_t i = 0; i < count; i++) {
    place(items, i, beside);
    p->offset[items[i].value] = items[i].offset;
    if (items[i].offset + items[i].bytes > p->bytes) p->bytes = items[i].offset + items[i].bytes;
  }
  for (kedge_value v = 1; v < g->value_count; v++)
    if (p->owner[v] != v) p->offset[v] = p->offset[p->owner[v]];
done:
  kedge_free(items);
  kedge_free(beside);
  return status;
}

kedge_status kedge__plan_make(const kedge_graph *g, uint32_t alignment, kedge_plan *p) {
  *p = (kedge_plan){0};
  KEDGE_TRY(kedge_graph_status(g));
  p->live = kedge_alloc(g->node_count, sizeof *p->live);
  p->offset = kedge_alloc(g->value_count, sizeof *p->offset);
  p->first = kedge_alloc(g->value_count, sizeof *p->first);
  p->last = kedge_alloc(g->value_count, sizeof *p->last);
  p->owner = kedge_alloc(g->value_count, sizeof *p->owner);
  kedge_status status = KEDGE_ERR_MEMORY;
  if (p->live && p->offset && p->first && p->last && p->owner) {
    for (kedge_value v = 0; v < g->value_count; v++) {
      p->offset[v] = UINT64_MAX;
      p->owner[v] = v;
    }
    find_live(g, p);
    share_in_place(g, p);
    status = assign(g, alignment, p);
  }
  if (status != KEDGE_OK) kedge__plan_destroy(p);
  return status;
}
