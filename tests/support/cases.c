/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters of test cases: random numbers of our own, rounding, buffers with guard bytes. Declared in
 * cases.h for family files and in suite.h for the suites.
 */
#include "tests/support/cases.h"
#include "core/op.h"
#include "tests/support/suite.h"

#include <math.h>
#include <string.h>

/* Bytes before and after every range. The range itself starts at an address that is a multiple of 8 alone,
 * because tensors of mapped files do. */
enum { GUARD = 200, GUARD_BYTE = 0xa5 };

double kedge_random_unit(kedge_random *r) {
  r->state += 0x9e3779b97f4a7c15u;
  uint64_t z = r->state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return ((double)((z ^ (z >> 31)) >> 11) + 0.5) * 0x1p-53;
}

uint32_t kedge_random_below(kedge_random *r, uint32_t n) {
  return (uint32_t)(kedge_random_unit(r) * n);
}

double kedge_random_normal(kedge_random *r) {
  double radius = sqrt(-2 * log(kedge_random_unit(r)));
  return radius * cos(2 * 3.14159265358979323846 * kedge_random_unit(r));
}

double kedge_round_to(kedge_dtype dtype, double value) {
  switch (dtype) {
  case KEDGE_F32:
    return (double)(float)value;
  case KEDGE_BF16:
    return (double)kedge_bf16_to_f32(kedge_f32_to_bf16((float)value));
  case KEDGE_I32:
    return (double)(int32_t)value;
  default:
    return value;
  }
}

void kedge_numbers_encode(kedge_dtype dtype, const double *numbers, uint64_t count, void *bytes) {
  for (uint64_t i = 0; i < count; i++) {
    if (dtype == KEDGE_F32) ((float *)bytes)[i] = (float)numbers[i];
    if (dtype == KEDGE_BF16) ((uint16_t *)bytes)[i] = kedge_f32_to_bf16((float)numbers[i]);
    if (dtype == KEDGE_I32) ((int32_t *)bytes)[i] = (int32_t)numbers[i];
    if (dtype == KEDGE_F64) ((double *)bytes)[i] = numbers[i];
  }
}

void kedge_numbers_decode(kedge_dtype dtype, const void *bytes, uint64_t count, double *numbers) {
  for (uint64_t i = 0; i < count; i++) {
    if (dtype == KEDGE_F32) numbers[i] = (double)((const float *)bytes)[i];
    if (dtype == KEDGE_BF16) numbers[i] = (double)kedge_bf16_to_f32(((const uint16_t *)bytes)[i]);
    if (dtype == KEDGE_I32) numbers[i] = (double)((const int32_t *)bytes)[i];
    if (dtype == KEDGE_F64) numbers[i] = ((const double *)bytes)[i];
  }
}

static uint32_t range_count(const kedge_case_tensor *t) {
  return t->parts ? t->parts : 1;
}

static uint64_t range_bytes(const kedge_case_tensor *t) {
  return t->count / range_count(t) * kedge_dtype_size(t->dtype);
}

kedge_status kedge_case_write(const kedge_case_tensor *t) {
  uint64_t bytes = range_bytes(t), each = t->count / range_count(t);
  unsigned char *data = kedge_alloc(bytes, 1);
  if (!data) return KEDGE_ERR_MEMORY;
  kedge_status status = KEDGE_OK;
  for (uint32_t i = 0; i < range_count(t) && status == KEDGE_OK; i++) {
    kedge_numbers_encode(t->dtype, t->numbers + i * each, each, data);
    status = kedge_buffer_write(t->buffer, t->offsets[i], data, bytes);
  }
  kedge_free(data);
  return status;
}

kedge_status kedge_case_read(const kedge_case_tensor *t, void *bytes) {
  for (uint32_t i = 0; i < range_count(t); i++)
    KEDGE_TRY(kedge_buffer_read(t->buffer, t->offsets[i], (unsigned char *)bytes + i * range_bytes(t),
                                range_bytes(t)));
  return KEDGE_OK;
}

/* A buffer with room for all ranges, its bytes set to the guard, then the numbers written. */
static kedge_status make_buffer(kedge_case *c, kedge_case_tensor *t) {
  uint64_t stride = (range_bytes(t) + GUARD + 7) / 8 * 8, total = GUARD + range_count(t) * stride;
  KEDGE_TRY(kedge_buffer_new(c->device, total, &t->buffer));
  unsigned char *guard = kedge_alloc(total, 1);
  if (!guard) return KEDGE_ERR_MEMORY;
  memset(guard, GUARD_BYTE, total);
  kedge_status status = kedge_buffer_write(t->buffer, 0, guard, total);
  kedge_free(guard);
  /* The last part comes first. */
  for (uint32_t i = 0; i < range_count(t); i++) t->offsets[i] = GUARD + (range_count(t) - 1 - i) * stride;
  return status == KEDGE_OK ? kedge_case_write(t) : status;
}

kedge_status kedge_case_check_guards(const kedge_case *c) {
  for (uint32_t n = 0; n < c->tensor_count; n++) {
    const kedge_case_tensor *t = &c->tensors[n];
    uint64_t total = kedge_buffer_size(t->buffer);
    unsigned char *all = kedge_alloc(total, 1);
    if (!all) return KEDGE_ERR_MEMORY;
    kedge_status status = kedge_buffer_read(t->buffer, 0, all, total);
    for (uint32_t i = 0; i < range_count(t); i++) memset(all + t->offsets[i], GUARD_BYTE, range_bytes(t));
    for (uint64_t i = 0; i < total && status == KEDGE_OK; i++)
      if (all[i] != GUARD_BYTE)
        status = kedge_fail(KEDGE_ERR_MISMATCH, "a byte outside parameter %s was written, at %lld from it",
                            kedge_value_name(c->graph, t->value), (long long)i - (long long)t->offsets[0]);
    kedge_free(all);
    KEDGE_TRY(status);
  }
  return KEDGE_OK;
}

/* New parameter; `numbers` is taken. */
static kedge_value create(kedge_case *c, const char *name, kedge_dtype dtype, uint32_t rank,
                          const uint32_t *dims, double *numbers, bool parts, bool wanted) {
  kedge_buffer *buffers[KEDGE_CASE_MAX] = {0};
  kedge_case_tensor *t = &c->tensors[c->tensor_count];
  uint64_t count = 1;
  for (uint32_t i = 0; i < rank; i++) count *= dims[i];
  if (c->tensor_count == KEDGE_CASE_MAX || (parts && dims[0] > KEDGE_CASE_MAX)) {
    kedge_free(numbers);
    return kedge__graph_fail(c->graph, KEDGE_ERR_ARGUMENT, "a case has at most %d parameters and parts",
                             KEDGE_CASE_MAX);
  }
  for (uint64_t i = 0; i < count; i++) numbers[i] = kedge_round_to(dtype, numbers[i]);
  bool wide = kedge_graph_is_double(c->graph) && dtype != KEDGE_I32;
  *t = (kedge_case_tensor){.dtype = wide ? KEDGE_F64 : dtype,
                           .count = count,
                           .parts = parts ? dims[0] : 0,
                           .wanted = wanted,
                           .numbers = numbers};
  c->tensor_count++;
  if (c->device && make_buffer(c, t) != KEDGE_OK)
    return kedge__graph_fail(c->graph, KEDGE_ERR_MEMORY, "%s", kedge_message());
  for (uint32_t i = 0; i < t->parts; i++) buffers[i] = t->buffer;
  t->value = parts ? kedge_parameter_parts(c->graph, name, dtype, rank, dims, buffers, t->offsets)
                   : kedge_parameter(c->graph, name, dtype, rank, dims, t->buffer, t->offsets[0]);
  return t->value;
}

static kedge_value create_normal(kedge_case *c, const char *name, kedge_dtype dtype, uint32_t rank,
                                 const uint32_t *dims, double mean, double sd, bool parts) {
  kedge_random random = {c->seed * 0x9e3779b97f4a7c15u + (uint64_t)c->tensor_count * 0x632be59bd9b4e019u};
  uint64_t count = 1;
  for (uint32_t i = 0; i < rank; i++) count *= dims[i];
  if (kedge_graph_status(c->graph) != KEDGE_OK || count > 1u << 24)
    return kedge__graph_fail(c->graph, KEDGE_ERR_ARGUMENT, "%s: a case's parameter is too large", name);
  double *numbers = kedge_alloc(count, sizeof *numbers);
  if (!numbers) return kedge__graph_fail(c->graph, KEDGE_ERR_MEMORY, "out of memory");
  for (uint64_t i = 0; i < count; i++) numbers[i] = mean + sd * kedge_random_normal(&random);
  return create(c, name, dtype, rank, dims, numbers, parts, true);
}

kedge_value kedge_case_x(kedge_case *c, const char *name, uint32_t rank, const uint32_t *dims) {
  return create_normal(c, name, c->dtype, rank, dims, 0, 1, false);
}

kedge_value kedge_case_f(kedge_case *c, const char *name, uint32_t rank, const uint32_t *dims) {
  return create_normal(c, name, KEDGE_F32, rank, dims, 0, 1, false);
}

kedge_value kedge_case_scaled(kedge_case *c, const char *name, kedge_dtype dtype, uint32_t rank,
                              const uint32_t *dims, double mean, double sd) {
  return create_normal(c, name, dtype, rank, dims, mean, sd, false);
}

kedge_value kedge_case_parts(kedge_case *c, const char *name, uint32_t rank, const uint32_t *dims) {
  return create_normal(c, name, c->dtype, rank, dims, 0, 1, true);
}

kedge_value kedge_case_constant(kedge_case *c, const char *name, uint32_t rank, const uint32_t *dims,
                                const double *values) {
  uint64_t count = 1;
  for (uint32_t i = 0; i < rank; i++) count *= dims[i];
  double *numbers = kedge_alloc(count, sizeof *numbers);
  if (!numbers) return kedge__graph_fail(c->graph, KEDGE_ERR_MEMORY, "out of memory");
  for (uint64_t i = 0; i < count; i++) numbers[i] = values[i];
  return create(c, name, KEDGE_F32, rank, dims, numbers, false, false);
}

kedge_value kedge_case_i(kedge_case *c, const char *name, uint32_t rank, const uint32_t *dims,
                         const int32_t *values) {
  uint64_t count = 1;
  for (uint32_t i = 0; i < rank; i++) count *= dims[i];
  double *numbers = kedge_alloc(count, sizeof *numbers);
  if (!numbers) return kedge__graph_fail(c->graph, KEDGE_ERR_MEMORY, "out of memory");
  for (uint64_t i = 0; i < count; i++) numbers[i] = (double)values[i];
  return create(c, name, KEDGE_I32, rank, dims, numbers, false, false);
}

void kedge_case_output(kedge_case *c, kedge_value value) {
  char name[32] = "output 00";
  if (!value) return;
  if (c->output_count == KEDGE_CASE_MAX) {
    kedge__graph_fail(c->graph, KEDGE_ERR_ARGUMENT, "a case has at most %d outputs", KEDGE_CASE_MAX);
    return;
  }
  name[7] = (char)('0' + c->output_count / 10);
  name[8] = (char)('0' + c->output_count % 10);
  bool parameter = false; /* keeps its own name */
  for (uint32_t i = 0; i < c->tensor_count; i++) parameter |= c->tensors[i].value == value;
  if (!parameter) kedge_output(c->graph, value, name);
  c->outputs[c->output_count++] = value;
}

void kedge_case_destroy(kedge_case *c) {
  kedge_graph_free(c->graph);
  for (uint32_t i = 0; i < c->tensor_count; i++) {
    kedge_free(c->tensors[i].numbers);
    kedge_buffer_free(c->tensors[i].buffer);
  }
  *c = (kedge_case){0};
}

kedge_status kedge_case_init(kedge_case *c, const kedge_case_row *row, kedge_device *device,
                             kedge_dtype dtype, bool all_double) {
  *c = (kedge_case){.device = device, .dtype = dtype, .seed = 7};
  for (const char *s = row->name; *s; s++) c->seed = c->seed * 31 + (unsigned char)*s;
  c->graph = kedge_graph_new(all_double);
  if (!c->graph) return KEDGE_ERR_MEMORY;
  row->build(c);
  return kedge_graph_status(c->graph);
}
