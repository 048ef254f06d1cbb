/* SPDX-License-Identifier: Apache-2.0
 * Random graphs (random_graph.h). */
#include "tests/support/random_graph.h"
#include "core/graph.h"

#include <stdio.h>
#include <string.h>

static uint32_t below(kedge_random_graph *r, uint32_t end) {
  return kedge_random_below(&r->random, end);
}

static uint32_t rows_of(const kedge_random_graph *r, kedge_value v) {
  return kedge_value_dim(r->graph, v, 0);
}
static uint32_t cols_of(const kedge_random_graph *r, kedge_value v) {
  return kedge_value_dim(r->graph, v, 1);
}

static kedge_value named(kedge_random_graph *r, const char *name, uint32_t rank, uint32_t d0, uint32_t d1) {
  uint32_t i = r->parameter_count, dims[] = {d0, d1};
  if (r->graph->status != KEDGE_OK) return KEDGE_NONE;
  if (i == KEDGE_RANDOM_PARAMETERS)
    return kedge__graph_fail(r->graph, KEDGE_ERR_ARGUMENT, "too many parameters");
  uint64_t bytes = 4 * (uint64_t)d0 * (rank > 1 ? d1 : 1);
  if (kedge_buffer_new(r->device, bytes, &r->buffers[i]) != KEDGE_OK)
    return kedge__graph_fail(r->graph, KEDGE_ERR_MEMORY, "%s", kedge_message());
  kedge_value v = kedge_parameter(r->graph, name, KEDGE_F32, rank, dims, r->buffers[i], 0);
  r->parameters[r->parameter_count++] = v;
  return v;
}

static kedge_value parameter(kedge_random_graph *r, uint32_t rank, uint32_t d0, uint32_t d1) {
  return named(r, "parameter", rank, d0, d1);
}

static void keep(kedge_random_graph *r, kedge_value v) {
  if (v && kedge_value_rank(r->graph, v) == 2 && r->pool_count < KEDGE_RANDOM_VALUES)
    r->pool[r->pool_count++] = v;
}

/* Later values are likelier, so that graphs are deep as well as wide. */
static kedge_value pick(kedge_random_graph *r) {
  uint32_t window = below(r, 2) && r->pool_count > 4 ? 4 : r->pool_count;
  return r->pool[r->pool_count - 1 - below(r, window)];
}

/* Another value of a's shape: at random, a itself if there is none. */
static kedge_value partner(kedge_random_graph *r, kedge_value a) {
  uint32_t from = below(r, r->pool_count);
  for (uint32_t i = 0; i < r->pool_count; i++) {
    kedge_value b = r->pool[(from + i) % r->pool_count];
    if (b != a && rows_of(r, a) == rows_of(r, b) && cols_of(r, a) == cols_of(r, b)) return b;
  }
  return a;
}

static kedge_value same_rows(kedge_random_graph *r, kedge_value a) {
  uint32_t from = below(r, r->pool_count);
  for (uint32_t i = 0; i < r->pool_count; i++)
    if (rows_of(r, a) == rows_of(r, r->pool[(from + i) % r->pool_count]))
      return r->pool[(from + i) % r->pool_count];
  return a;
}

static void grow_elementwise(kedge_random_graph *r, kedge_value a) {
  kedge_graph *g = r->graph;
  switch (below(r, 6)) {
  case 0:
    keep(r, kedge_add(g, a, partner(r, a)));
    break;
  case 1:
    keep(r, kedge_mul(g, a, partner(r, a)));
    break;
  case 2:
    keep(r, kedge_swiglu(g, a, partner(r, a)));
    break;
  case 3:
    keep(r, kedge_scale(g, a, 0.7));
    break;
  case 4:
    keep(r, kedge_rms_norm(g, a, parameter(r, 1, cols_of(r, a), 1), 1e-5));
    break;
  default:
    if (rows_of(r, a) == rows_of(r, r->pool[0]))
      keep(r, kedge_row_bias(g, a, named(r, "table", 2, 3, cols_of(r, a)), r->inputs[1], 0.5));
    else
      kedge_accumulate(g, parameter(r, 2, rows_of(r, a), cols_of(r, a)), a);
  }
}

static void grow_matrix(kedge_random_graph *r, kedge_value a) {
  kedge_graph *g = r->graph;
  kedge_value b = same_rows(r, a);
  switch (below(r, 3)) {
  case 0:
    keep(r, kedge_linear(g, a, parameter(r, 2, 1 + below(r, 30), cols_of(r, a))));
    break;
  case 1:
    keep(r, kedge_matmul(g, a, b, true, false, KEDGE_F32));
    break;
  default:
    if (cols_of(r, a) + cols_of(r, b) < 80) keep(r, kedge_concat(g, a, b));
  }
}

static void grow_view(kedge_random_graph *r, kedge_value a) {
  kedge_graph *g = r->graph;
  uint32_t rows = rows_of(r, a), cols = cols_of(r, a), width = 1 + below(r, cols);
  uint32_t offset = below(r, cols - width + 1);
  kedge_value part;
  switch (below(r, 5)) {
  case 0:
    keep(r, kedge_window(g, a, offset, width));
    break;
  case 1:
    keep(r, kedge_reshape(g, a, 2, (uint32_t[]){cols, rows}));
    break;
  case 2:
    part = kedge_part(g, kedge_reshape(g, a, 2, (uint32_t[]){rows, cols}), below(r, rows));
    keep(r, kedge_reshape(g, part, 2, (uint32_t[]){1, cols}));
    break;
  case 3:
    keep(r, kedge_slice(g, a, offset, width));
    break;
  default:
    keep(r, kedge_place(g, a, below(r, 5), cols + 5));
  }
}

/* Gradients go into accumulators as soon as they are there. */
static void consume(void *context, kedge_graph *g, kedge_value wrt, kedge_value gradient) {
  kedge_random_graph *r = context;
  uint32_t rank = kedge_value_rank(g, wrt);
  kedge_value into = parameter(r, rank, kedge_value_dim(g, wrt, 0), kedge_value_dim(g, wrt, 1));
  kedge_accumulate(g, into, gradient);
}

static void differentiate(kedge_random_graph *r) {
  kedge_graph *g = r->graph;
  kedge_value gradients[KEDGE_RANDOM_PARAMETERS], loss = kedge_sum(g, r->pool[r->pool_count - 1]);
  for (uint32_t i = 0; i < 3; i++) loss = kedge_add(g, loss, kedge_sum(g, pick(r)));
  kedge_value wrt[12];
  uint32_t count = 0;
  for (uint32_t i = 0; i < r->parameter_count && count < 12; i++)
    if (strcmp(kedge_value_name(g, r->parameters[i]), "table")) wrt[count++] = r->parameters[i];
  kedge_gradient(g, loss, wrt, count, gradients, below(r, 2) ? consume : NULL, r);
  for (uint32_t i = 0; i < count; i++)
    if (gradients[i] && r->output_count < KEDGE_RANDOM_VALUES) r->outputs[r->output_count++] = gradients[i];
}

kedge_status kedge_random_graph_init(kedge_random_graph *r, kedge_device *device, uint64_t seed,
                                     bool all_outputs) {
  *r = (kedge_random_graph){.device = device, .random = {seed * 77 + 1}};
  kedge_graph *g = r->graph = kedge_graph_new(false);
  if (!g) return KEDGE_ERR_MEMORY;
  uint32_t rows = 1 + below(r, 6), cols = 1 + below(r, 40), steps = 5 + below(r, 40);
  r->inputs[0] = kedge_input(g, "x", KEDGE_F32, 2, (uint32_t[]){rows, cols});
  r->inputs[1] = kedge_input(g, "spans", KEDGE_I32, 1, (uint32_t[]){rows});
  r->input_count = 2;
  keep(r, r->inputs[0]);
  keep(r, parameter(r, 2, rows, 1 + below(r, 40)));
  KEDGE_TRY(kedge_graph_status(g)); /* there is something to pick from */
  uint32_t region = below(r, 2) ? below(r, steps) : steps, end = region + 1 + below(r, 12);
  for (uint32_t i = 0; i < steps && r->parameter_count < 24; i++) {
    if (i == region) kedge_region_begin(g, "region");
    kedge_value a = pick(r);
    uint32_t kind = below(r, 10);
    if (kind < 5)
      grow_elementwise(r, a);
    else if (kind < 7)
      grow_matrix(r, a);
    else
      grow_view(r, a);
    if (i == end) kedge_region_end(g);
  }
  kedge_region_end(g);
  KEDGE_TRY(kedge_graph_status(g));
  if (below(r, 3)) differentiate(r);
  r->outputs[r->output_count++] = r->pool[r->pool_count - 1];
  for (uint32_t i = 0; i < 2; i++) r->outputs[r->output_count++] = pick(r);
  KEDGE_TRY(kedge_graph_status(g));
  for (uint32_t i = 0; i < r->output_count; i++) {
    char name[20];
    snprintf(name, sizeof name, "o%u", i);
    if (!kedge__is_dense(g, r->outputs[i])) r->outputs[i] = kedge_copy(g, r->outputs[i], KEDGE_F32);
    if (r->outputs[i]) kedge_output(g, r->outputs[i], name);
  }
  for (kedge_value v = 1; all_outputs && v < g->value_count; v++)
    if (g->values[v].storage == KEDGE_STORE_VALUE && !g->values[v].output) kedge_output(g, v, "value");
  return kedge_graph_status(g);
}

void kedge_random_graph_destroy(kedge_random_graph *r) {
  kedge_graph_free(r->graph);
  for (uint32_t i = 0; i < r->parameter_count; i++) kedge_buffer_free(r->buffers[i]);
  *r = (kedge_random_graph){0};
}

kedge_status kedge_random_graph_fill(kedge_random_graph *r, kedge_exec *exec) {
  kedge_random random = {99};
  float *numbers = kedge_alloc(1 << 16, sizeof *numbers);
  if (!numbers) return KEDGE_ERR_MEMORY;
  kedge_status status = KEDGE_OK;
  for (uint32_t i = 0; i < r->parameter_count + 1 && status == KEDGE_OK; i++) {
    kedge_value v = i < r->parameter_count ? r->parameters[i] : r->inputs[0];
    uint64_t count = kedge_value_count(r->graph, v);
    for (uint64_t k = 0; k < count && k < 1 << 16; k++) numbers[k] = (float)kedge_random_normal(&random);
    status = kedge_exec_write(exec, v, numbers, 4 * count);
  }
  int32_t spans[8] = {1, -1, 0, 2, 1, -1, 2, 0};
  if (status == KEDGE_OK)
    status = kedge_exec_write(exec, r->inputs[1], spans, kedge_value_bytes(r->graph, r->inputs[1]));
  kedge_free(numbers);
  return status;
}
