/* SPDX-License-Identifier: Apache-2.0
 * Running and comparing cases (suite.h). Their parameters are made in cases.c, devices in devices.c. */
#include "tests/support/suite.h"
#include "core/exec.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define KEDGE_OP(name, ...) extern const kedge_case_row kedge__cases_##name[];
#include "core/ops.def"
#undef KEDGE_OP

const kedge_case_row *kedge_cases_of(kedge_op op) {
  static const kedge_case_row *const cases[] = {
#define KEDGE_OP(name, ...) kedge__cases_##name,
#include "core/ops.def"
#undef KEDGE_OP
  };
  return cases[op];
}

bool kedge_case_updates(const kedge_case *c, kedge_value value) {
  const kedge_graph *g = c->graph;
  for (uint32_t n = 0; n < g->node_count; n++) {
    const kedge_op_info *info = kedge_op_get(g->nodes[n].op);
    for (uint32_t i = 0; i < info->in_count; i++)
      if (info->in[i].updated && g->values[g->nodes[n].in[i]].base == value) return true;
  }
  return false;
}

kedge_value kedge_case_loss(kedge_case *c) {
  kedge_value total = KEDGE_NONE;
  uint64_t seed = c->seed;
  uint32_t outputs = c->output_count;
  for (uint32_t i = 0; i < outputs; i++) {
    kedge_value out = c->outputs[i];
    uint32_t dims[KEDGE_MAX_RANK], rank = kedge_value_rank(c->graph, out);
    kedge_dtype dtype = kedge_value_dtype(c->graph, out);
    if (dtype == KEDGE_I32 || c->graph->values[out].node == UINT32_MAX) continue;
    uint64_t count = kedge_value_count(c->graph, out);
    for (uint32_t d = 0; d < rank; d++) dims[d] = kedge_value_dim(c->graph, out, d);
    kedge_random random = {seed + 1000 + i};
    double *numbers = kedge_alloc(count, sizeof *numbers);
    if (!numbers) return kedge__graph_fail(c->graph, KEDGE_ERR_MEMORY, "out of memory");
    for (uint64_t k = 0; k < count; k++)
      numbers[k] = kedge_round_to(KEDGE_BF16, kedge_random_normal(&random));
    kedge_value cotangent = kedge_case_constant(c, "cotangent", rank, dims, numbers);
    kedge_free(numbers);
    cotangent = kedge_cast(c->graph, cotangent, dtype);
    kedge_value part = kedge_sum(c->graph, kedge_mul(c->graph, out, cotangent));
    total = total ? kedge_add(c->graph, total, part) : part;
  }
  return total;
}

void kedge_result_destroy(kedge_result *result) {
  for (uint32_t i = 0; i < result->count; i++) {
    kedge_free(result->tensors[i].bytes);
    kedge_free(result->tensors[i].numbers);
  }
  *result = (kedge_result){0};
}

static kedge_status result_add(kedge_result *r, const char *name, kedge_dtype dtype, uint64_t count,
                               kedge_result_tensor **out) {
  kedge_result_tensor *t = &r->tensors[r->count++];
  snprintf(t->name, sizeof t->name, "%s", name);
  t->dtype = dtype;
  t->count = count;
  t->bytes = kedge_alloc(count, kedge_dtype_size(dtype));
  t->numbers = kedge_alloc(count, sizeof *t->numbers);
  *out = t;
  return t->bytes && t->numbers ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

kedge_status kedge_exec_fill_arena(kedge_exec *e, uint8_t byte) {
  KEDGE_TRY(kedge__exec_prepare(e));
  kedge_buffer *arena = e->workspace->buffer;
  return e->device->backend->fill(arena, 0, kedge_buffer_size(arena), byte);
}

/* Bytes of the arena that belong to no value and no scratch still have the fill. */
static kedge_status check_arena(const kedge_exec *e, uint8_t fill) {
  const kedge_graph *g = e->graph;
  kedge_buffer *arena = e->workspace->buffer;
  uint64_t total = kedge_buffer_size(arena);
  unsigned char *all = kedge_alloc(total, 1);
  if (!all) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge_buffer_read(arena, 0, all, total);
  for (kedge_value v = 1; v < g->value_count; v++)
    if (g->values[v].storage == KEDGE_STORE_VALUE && e->plan.offset[v] != UINT64_MAX)
      memset(all + e->plan.offset[v], fill, kedge_value_bytes(g, v));
  memset(all + e->plan.bytes, fill, e->scratch);
  for (uint64_t i = 0; i < total && status == KEDGE_OK; i++)
    if (all[i] != fill)
      status = kedge_fail(KEDGE_ERR_MISMATCH,
                          "byte %llu of the arena (%llu of values, %llu of scratch) belongs to no value and "
                          "was written",
                          (unsigned long long)i, (unsigned long long)e->plan.bytes,
                          (unsigned long long)e->scratch);
  kedge_free(all);
  return status;
}

static kedge_status read_outputs(const kedge_case *c, kedge_exec *exec, kedge_result *r) {
  for (uint32_t i = 0; i < c->output_count; i++) {
    kedge_value v = c->outputs[i];
    kedge_result_tensor *t = NULL;
    KEDGE_TRY(result_add(r, kedge_value_name(c->graph, v), kedge_value_dtype(c->graph, v),
                         kedge_value_count(c->graph, v), &t));
    KEDGE_TRY(kedge_exec_read(exec, v, t->bytes, kedge_value_bytes(c->graph, v)));
    kedge_numbers_decode(t->dtype, t->bytes, t->count, t->numbers);
  }
  return KEDGE_OK;
}

/* Adds the parameters that a node updates; the others must be as they were written. */
static kedge_status read_parameters(const kedge_case *c, kedge_result *r) {
  for (uint32_t i = 0; i < c->tensor_count; i++) {
    const kedge_case_tensor *p = &c->tensors[i];
    const char *name = kedge_value_name(c->graph, p->value);
    kedge_result_tensor *t = NULL;
    KEDGE_TRY(result_add(r, name, p->dtype, p->count, &t));
    KEDGE_TRY(kedge_case_read(p, t->bytes));
    kedge_numbers_decode(t->dtype, t->bytes, t->count, t->numbers);
    if (kedge_case_updates(c, p->value)) continue;
    for (uint64_t k = 0; k < t->count; k++)
      if (memcmp(&t->numbers[k], &p->numbers[k], sizeof(double)) &&
          !(isnan(t->numbers[k]) && isnan(p->numbers[k])))
        return kedge_fail(KEDGE_ERR_MISMATCH, "input %s was written at element %llu", name,
                          (unsigned long long)k);
    kedge_free(t->bytes);
    kedge_free(t->numbers);
    r->count--;
  }
  return KEDGE_OK;
}

kedge_status kedge_case_run(const kedge_case_row *row, kedge_device *device, kedge_dtype dtype,
                            bool all_double, uint8_t fill, kedge_result *result) {
  kedge_case c;
  kedge_exec *exec = NULL;
  kedge_status status = KEDGE_OK;
  *result = (kedge_result){0};
  KEDGE_GOTO(kedge_case_init(&c, row, device, dtype, all_double), status, done);
  KEDGE_GOTO(kedge_exec_new(device, c.graph, NULL, &exec), status, done);
  KEDGE_GOTO(kedge_exec_fill_arena(exec, fill), status, done);
  KEDGE_GOTO(kedge_exec_run(exec, 0, UINT32_MAX), status, done);
  KEDGE_GOTO(kedge_case_check_guards(&c), status, done);
  KEDGE_GOTO(check_arena(exec, fill), status, done);
  KEDGE_GOTO(read_outputs(&c, exec, result), status, done);
  KEDGE_GOTO(read_parameters(&c, result), status, done);
done:
  kedge_exec_free(exec);
  kedge_case_destroy(&c);
  return status;
}

double kedge_relative_error(kedge_dtype dtype, const double *got, const double *want, uint64_t count) {
  double most = 0, largest = 0;
  for (uint64_t i = 0; i < count; i++) {
    double difference = got[i] == want[i] ? 0 : fabs(got[i] - want[i]);
    if (!(difference <= most)) most = isnan(difference) ? INFINITY : difference;
    if (isfinite(want[i])) largest = fmax(largest, fabs(want[i]));
  }
  if (dtype == KEDGE_I32) return most > 0 ? INFINITY : 0;
  return most / fmax(largest, FLT_MIN); /* what no f32 can hold counts as nothing */
}

double kedge_result_error(const kedge_result *got, const kedge_result *want, const char **worst) {
  double most = 0;
  if (worst) *worst = "";
  if (got->count != want->count) return INFINITY;
  for (uint32_t i = 0; i < got->count; i++) {
    const kedge_result_tensor *a = &got->tensors[i], *b = &want->tensors[i];
    double error =
        a->count == b->count ? kedge_relative_error(a->dtype, a->numbers, b->numbers, a->count) : INFINITY;
    if (error <= most) continue;
    most = error;
    if (worst) *worst = a->name;
  }
  return most;
}

bool kedge_result_same_bits(const kedge_result *a, const kedge_result *b) {
  if (a->count != b->count) return false;
  for (uint32_t i = 0; i < a->count; i++) {
    const kedge_result_tensor *x = &a->tensors[i], *y = &b->tensors[i];
    if (x->count != y->count || x->dtype != y->dtype) return false;
    if (memcmp(x->bytes, y->bytes, x->count * kedge_dtype_size(x->dtype)) != 0) return false;
  }
  return true;
}
