/* SPDX-License-Identifier: Apache-2.0
 * The table of ops as data, built once from ops.def, and helpers that shape rules share. */
#include "core/op.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Sizes of the float version of each argument struct (args_f32.c). */
extern const size_t kedge__args_size_f32[KEDGE_OP_COUNT];

#define KERNEL     KEDGE_KIND_KERNEL
#define COLLECTIVE KEDGE_KIND_COLLECTIVE
static kedge_op_info table[KEDGE_OP_COUNT] = {
#define KEDGE_OP(op_name, op_family, op_kind, op_in, op_out, op_grid, op_flags, op_doc)                      \
  {.name = #op_name,                                                                                         \
   .family = #op_family,                                                                                     \
   .inputs = op_in,                                                                                          \
   .outputs = op_out,                                                                                        \
   .doc = op_doc,                                                                                            \
   .kind = op_kind,                                                                                          \
   .grid = KEDGE_GRID_##op_grid,                                                                             \
   .flags = op_flags,                                                                                        \
   .args_size = sizeof(kedge_args_##op_name),                                                                \
   .shape = kedge__shape_##op_name,                                                                          \
   .gradient = kedge__gradient_##op_name},
#include "core/ops.def"
#undef KEDGE_OP
};
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint32_t parse_signature(const char *text, kedge_slot *slots, uint32_t capacity) {
  uint32_t count = 0;
  for (const char *c = text; *c; c++) {
    kedge_slot *slot = count ? &slots[count - 1] : NULL;
    if (strchr("xfwi", *c)) {
      assert(count < capacity);
      slots[count++] = (kedge_slot){.letter = *c};
      continue;
    }
    assert(slot);
    if (*c == '~') slot->window = true;
    if (*c == '#') slot->parts = true;
    if (*c == '?') slot->optional = true;
    if (*c == '!') slot->updated = true;
  }
  (void)capacity;
  return count;
}

static void parse_table(void) {
  for (uint32_t i = 0; i < KEDGE_OP_COUNT; i++) {
    table[i].in_count = parse_signature(table[i].inputs, table[i].in, KEDGE_MAX_IN);
    table[i].out_count = parse_signature(table[i].outputs, table[i].out, KEDGE_MAX_OUT);
    table[i].args_size_f32 = kedge__args_size_f32[i];
  }
}

const kedge_op_info *kedge_op_get(kedge_op op) {
  pthread_once(&once, parse_table);
  return &table[op];
}

kedge_op kedge_op_find(const char *name) {
  for (uint32_t i = 0; i < KEDGE_OP_COUNT; i++)
    if (!strcmp(kedge_op_get((kedge_op)i)->name, name)) return (kedge_op)i;
  return KEDGE_OP_COUNT;
}

uint64_t kedge__shape_count(const kedge_shape *s) {
  uint64_t n = 1;
  for (uint32_t i = 0; i < s->rank; i++) n *= s->dims[i];
  return n;
}

uint32_t kedge__cols(const kedge_shape *s) {
  return s->rank ? s->dims[s->rank - 1] : 1;
}

uint32_t kedge__rows(const kedge_shape *s) {
  uint64_t n = 1;
  for (uint32_t i = 0; i + 1 < s->rank; i++) n *= s->dims[i];
  return (uint32_t)n;
}

void kedge__set_shape(kedge_shape *s, uint32_t rank, uint32_t d0, uint32_t d1, uint32_t d2) {
  s->rank = rank;
  const uint32_t dims[KEDGE_MAX_RANK] = {d0, d1, d2, 1};
  for (uint32_t i = 0; i < KEDGE_MAX_RANK; i++) s->dims[i] = i < rank ? dims[i] : 1;
}

kedge_status kedge__same_shape(const kedge_shape *a, const kedge_shape *b, const char *what) {
  bool same = a->rank == b->rank;
  for (uint32_t i = 0; same && i < a->rank; i++) same = a->dims[i] == b->dims[i];
  return same ? KEDGE_OK : kedge_fail(KEDGE_ERR_SHAPE, "%s must have one shape", what);
}

kedge_status kedge__alike(kedge_shape_rule *rule, uint32_t inputs, uint32_t outputs, const char *what,
                          uint32_t *n) {
  for (uint32_t i = 1; i < inputs; i++) KEDGE_TRY(kedge__same_shape(&rule->in[0], &rule->in[i], what));
  for (uint32_t i = 0; i < outputs; i++) {
    kedge_dtype dtype = rule->out[i].dtype;
    rule->out[i] = rule->in[0];
    rule->out[i].dtype = dtype;
  }
  *n = (uint32_t)kedge__shape_count(&rule->in[0]);
  return KEDGE_OK;
}

kedge_value kedge__gradient_as(const kedge_gradient_rule *rule, kedge_value gradient, kedge_value like) {
  return kedge_cast(rule->graph, gradient, kedge_value_dtype(rule->graph, like));
}

kedge_status kedge__want_dim(const kedge_shape *s, uint32_t axis, uint32_t want, const char *what) {
  if (axis < s->rank && s->dims[axis] == want) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_SHAPE, "%s must have dimension %u equal to %u, got %u", what, axis, want,
                    axis < s->rank ? s->dims[axis] : 0);
}

kedge_status kedge__want_rank(const kedge_shape *s, uint32_t rank, const char *what) {
  return s->rank == rank
             ? KEDGE_OK
             : kedge_fail(KEDGE_ERR_SHAPE, "%s must have %u dimensions, got %u", what, rank, s->rank);
}

kedge_status kedge__want_row_loss(const kedge_shape *in, const char *what) {
  KEDGE_TRY(kedge__want_rank(&in[0], 2, "router logits"));
  KEDGE_TRY(kedge__want_rank(&in[1], 2, what));
  if (in[1].dims[1] != in[0].dims[1])
    return kedge_fail(KEDGE_ERR_SHAPE, "%s must have the width of the logits, %u, got %u", what,
                      in[0].dims[1], in[1].dims[1]);
  KEDGE_TRY(kedge__want_rank(&in[2], 1, "the index (a row of the table each token)"));
  return kedge__want_dim(&in[2], 0, in[0].dims[0], "the index (tokens)");
}
