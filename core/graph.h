/* SPDX-License-Identifier: Apache-2.0
 *
 * The graph's insides, for core's own files: build (graph.c, view.c), gradient (gradient.c), plan (plan.c),
 * run (run.c). Everything is an index into two arrays, nodes and values; index 0 of values is KEDGE_NONE.
 */
#ifndef KEDGE_GRAPH_H
#define KEDGE_GRAPH_H

#include "core/op.h"

typedef enum kedge_storage {
  KEDGE_STORE_INPUT,     /* host writes it; the execution owns its buffer */
  KEDGE_STORE_PARAMETER, /* caller's buffer, or parts */
  KEDGE_STORE_VALUE,     /* a node's output, in the planned arena */
  KEDGE_STORE_VIEW       /* other reading of `base`, which is never a view itself */
} kedge_storage;

typedef struct kedge_value_info {
  kedge_storage storage;
  kedge_shape shape;
  uint32_t pitch;         /* elements between rows of the last dimension */
  uint64_t offset;        /* elements into base (views), bytes into the buffer (parameters) */
  kedge_value base;       /* views: the value they read; itself otherwise */
  uint32_t node;          /* producer (of base), UINT32_MAX for inputs and parameters */
  kedge_buffer *buffer;   /* parameters */
  kedge_buffer **parts;   /* parameters in parts: dims[0] buffers */
  uint64_t *part_offsets; /* bytes */
  char *name;             /* may be NULL */
  bool output;
} kedge_value_info;

typedef struct kedge_node {
  kedge_op op;
  uint32_t region; /* 0: none */
  kedge_value in[KEDGE_MAX_IN], out[KEDGE_MAX_OUT];
  uint32_t args; /* offset into the graph's argument bytes (8-byte aligned) */
} kedge_node;

struct kedge_graph {
  bool all_double;
  kedge_status status;
  char *message; /* of the first failure */
  kedge_node *nodes;
  uint32_t node_count, node_capacity;
  kedge_value_info *values;
  uint32_t value_count, value_capacity;
  unsigned char *args;
  size_t args_used, args_capacity;
  char **regions;
  uint32_t region_count, region; /* region: open one, 0 none */
};

/* New value; KEDGE_NONE after a failure. The name is copied. */
kedge_value kedge__value_new(kedge_graph *graph, kedge_storage storage, const kedge_shape *shape,
                             const char *name);
/* Whether a value's elements are dense (pitch equals the last dimension, or there is one row). */
bool kedge__is_dense(const kedge_graph *graph, kedge_value value);
/* "x f32[3,4], w bf16[4]" of a node's inputs, into text. */
void kedge__describe(const kedge_graph *graph, const kedge_value *in, uint32_t count, char *text,
                     size_t size);

/* ---- Plan (plan.c): a pure function from graph to offsets
 * ---------------------------------------------------------- */

typedef struct kedge_plan {
  uint8_t *live;    /* node i runs: an output or a state change depends on it */
  uint64_t *offset; /* of value v in the arena, bytes; UINT64_MAX: not there */
  uint32_t
      *first; /* node that writes value v, and the last node that reads it (node_count if it is an output) */
  uint32_t *last;
  kedge_value *owner; /* value whose memory v uses: itself, or through in-place its input's */
  uint64_t bytes, naive;
  uint32_t nodes, dead;
} kedge_plan;

/* Liveness, in-place, largest first, offsets aligned to `alignment`. Deterministic. The plan's arrays are the
 * caller's to destroy. */
kedge_status kedge__plan_make(const kedge_graph *graph, uint32_t alignment, kedge_plan *plan);
void kedge__plan_destroy(kedge_plan *plan);

#endif
