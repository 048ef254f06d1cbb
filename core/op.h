/* SPDX-License-Identifier: Apache-2.0
 *
 * What an op is to the rest of core: its row of ops.def, its shape rule and its gradient rule. A family file
 * core/ops/<family>.c has three parts, compiled apart:
 *
 *   KEDGE_PART_RULES    builders, KEDGE_SHAPE(op), KEDGE_GRADIENT(op) or KEDGE_NO_GRADIENT(op)
 *   KEDGE_PART_KERNELS  KEDGE_KERNEL(op): the reference kernel, once for each storage type
 * (core/ops/kernel.h) KEDGE_PART_CASES    KEDGE_CASES(op): test cases (tests/support/cases.h), compiled into
 * the tests
 */
#ifndef KEDGE_OP_H
#define KEDGE_OP_H

#include "core/args.h"
#include "core/kedge.h"

typedef enum kedge_op {
#define KEDGE_OP(name, ...) KEDGE_OP_##name,
#include "core/ops.def"
#undef KEDGE_OP
  KEDGE_OP_COUNT
} kedge_op;

enum { KEDGE_OP_NODIFF = 1, KEDGE_OP_STATE = 2, KEDGE_OP_KEEP = 4, KEDGE_OP_INPLACE = 8, KEDGE_OP_STOP = 16 };
typedef enum kedge_op_kind { KEDGE_KIND_KERNEL, KEDGE_KIND_COLLECTIVE } kedge_op_kind;
typedef enum kedge_grid {
  KEDGE_GRID_ELEMENTS,
  KEDGE_GRID_ROWS,
  KEDGE_GRID_TILES,
  KEDGE_GRID_GROUPED,
  KEDGE_GRID_HEADS,
  KEDGE_GRID_SINGLE
} kedge_grid;

/* One input or output of a row's signature. */
typedef struct kedge_slot {
  char letter; /* x f w i */
  bool window, parts, optional, updated;
} kedge_slot;

/* A value's description, as shape rules see it. dims[rank..] are 1. */
typedef struct kedge_shape {
  kedge_dtype dtype;
  uint32_t rank, dims[KEDGE_MAX_RANK];
} kedge_shape;

/* Shape rule: checks `in` (absent optional inputs have rank 0 and `present` false) against args, fills args'
 * dimensions and the shapes of the outputs (rank and dims; the dtype is preset from the signature, w outputs
 * from the builder's request). Returns kedge_fail(KEDGE_ERR_SHAPE, "what was expected and what came") to
 * refuse; the graph adds op name and shapes. */
typedef struct kedge_shape_rule {
  const kedge_shape *in;
  const bool *present;
  kedge_shape *out;
  void *args; /* kedge_args_<op>, doubles */
} kedge_shape_rule;

/* Gradient rule: sets din[i] for every input with need[i], by appending nodes, from in, out, args and dout
 * (KEDGE_NONE where no gradient came in). The dtype of din[i] is in[i]'s storage dtype or f32. */
typedef struct kedge_gradient_rule {
  kedge_graph *graph;
  const kedge_value *in, *out, *dout;
  const bool *need;
  kedge_value *din;
  const void *args;
} kedge_gradient_rule;

typedef struct kedge_op_info {
  const char *name, *family, *inputs, *outputs, *doc;
  kedge_op_kind kind;
  kedge_grid grid;
  uint32_t flags;
  size_t args_size, args_size_f32; /* of the double and the float version */
  kedge_status (*shape)(kedge_shape_rule *rule);
  void (*gradient)(kedge_gradient_rule *rule);
  uint32_t in_count, out_count;
  kedge_slot in[KEDGE_MAX_IN], out[KEDGE_MAX_OUT];
} kedge_op_info;

/* The table, built from ops.def on first use (thread-safe). `op` < KEDGE_OP_COUNT. */
const kedge_op_info *kedge_op_get(kedge_op op);
/* By name; KEDGE_OP_COUNT if there is none. */
kedge_op kedge_op_find(const char *name);

#define KEDGE_SHAPE(op)    kedge_status kedge__shape_##op(kedge_shape_rule *rule)
#define KEDGE_GRADIENT(op) void kedge__gradient_##op(kedge_gradient_rule *rule)
#define KEDGE_NO_GRADIENT(op)                                                                                \
  void kedge__gradient_##op(kedge_gradient_rule *rule) {                                                     \
    (void)rule;                                                                                              \
  }

#define KEDGE_OP(name, ...)                                                                                  \
  KEDGE_SHAPE(name);                                                                                         \
  KEDGE_GRADIENT(name);
#include "core/ops.def"
#undef KEDGE_OP

/* Appends a node. `in` has the row's number of inputs (KEDGE_NONE for absent optional ones); `args` is copied
 * (double version); `dtype` is the dtype of w outputs. Returns the first output, or KEDGE_NONE (after a
 * failure, and for ops without outputs). outs (may be NULL) receives all outputs. */
kedge_value kedge__node(kedge_graph *graph, kedge_op op, const kedge_value *in, const void *args,
                        kedge_dtype dtype, kedge_value *outs);
/* Makes the graph fail: sticky, the first one wins. Returns KEDGE_NONE. */
kedge_value kedge__graph_fail(kedge_graph *graph, kedge_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The source of a value that kedge_gather_rows made with these slots; KEDGE_NONE otherwise. */
kedge_value kedge__gathered_from(const kedge_graph *graph, kedge_value value, kedge_value slots);
/* Sum of two gradients of one value, either of which may be KEDGE_NONE; mixed dtypes meet in f32. */
kedge_value kedge__add_gradients(kedge_graph *graph, kedge_value a, kedge_value b);
/* A gradient in the dtype of `like`, so that it can stand beside it in one kernel. */
kedge_value kedge__gradient_as(const kedge_gradient_rule *rule, kedge_value gradient, kedge_value like);

/* Helpers for shape rules. */
kedge_status kedge__same_shape(const kedge_shape *a, const kedge_shape *b, const char *what);
/* All inputs have the shape of the first, and so have the first `outputs` outputs; *n is their number of
 * elements. */
kedge_status kedge__alike(kedge_shape_rule *rule, uint32_t inputs, uint32_t outputs, const char *what,
                          uint32_t *n);
kedge_status kedge__want_dim(const kedge_shape *s, uint32_t axis, uint32_t want, const char *what);
kedge_status kedge__want_rank(const kedge_shape *s, uint32_t rank, const char *what);
/* Inputs of a loss by rows of a table: z [T,E], `what` (the table) [R,E], an index [T]. */
kedge_status kedge__want_row_loss(const kedge_shape *in, const char *what);
uint64_t kedge__shape_count(const kedge_shape *s);
/* Product of all dimensions but the last; the last dimension. */
uint32_t kedge__rows(const kedge_shape *s);
uint32_t kedge__cols(const kedge_shape *s);
void kedge__set_shape(kedge_shape *s, uint32_t rank, uint32_t d0, uint32_t d1, uint32_t d2);

#endif
