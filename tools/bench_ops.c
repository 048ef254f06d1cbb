/* SPDX-License-Identifier: Apache-2.0
 * Single operations, and a layer of experts forward and backward, at named shapes (bench.h). */
#include "tools/bench.h"

#include "core/args.h"

#include <math.h>
#include <string.h>

enum { MAX_BUFFERS = 24, SEQUENCE = 256, HEAD = 64 };

/* A graph with its parameters. */
typedef struct rig {
  kedge_device *device;
  const bench_shape *shape;
  kedge_dtype dtype;
  kedge_graph *graph;
  kedge_exec *exec;
  kedge_buffer *buffers[MAX_BUFFERS];
  uint32_t count;
  kedge_status status;
  kedge_routes routes;
  const char *op; /* whose time counts; NULL: all */
  double total;   /* its seconds at the last look */
  double flops, bytes;
} rig;

static uint64_t next_random(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

static void fill_floats(void *data, kedge_dtype dtype, uint64_t first, uint64_t count, double scale) {
  uint64_t state = first + 1;
  for (uint64_t i = 0; i < count; i++) {
    const float value = (float)(scale * ((double)next_random(&state) / 0x1p30 - 1));
    if (dtype == KEDGE_BF16)
      ((uint16_t *)data)[i] = kedge_f32_to_bf16(value);
    else
      ((float *)data)[i] = value;
  }
}

static kedge_status fill_buffer(kedge_buffer *buffer, kedge_dtype dtype, uint64_t count, double scale) {
  enum { PIECE = 1 << 20 };
  const uint64_t size = kedge_dtype_size(dtype);
  void *piece = kedge_alloc(count < PIECE ? count : PIECE, size);
  kedge_status status = piece ? KEDGE_OK : KEDGE_ERR_MEMORY;
  for (uint64_t at = 0; status == KEDGE_OK && at < count; at += PIECE) {
    const uint64_t n = count - at < PIECE ? count - at : PIECE;
    fill_floats(piece, dtype, at, n, scale);
    status = kedge_buffer_write(buffer, at * size, piece, n * size);
  }
  kedge_free(piece);
  return status;
}

/* A parameter with a buffer of its own; `ints` NULL: floats in (-scale, scale). */
static kedge_value parameter(rig *r, kedge_dtype dtype, double scale, const int32_t *ints, uint32_t rank,
                             const uint32_t *dims) {
  uint64_t count = 1;
  for (uint32_t i = 0; i < rank; i++) count *= dims[i];
  kedge_buffer **buffer = &r->buffers[r->count];
  if (r->status == KEDGE_OK && r->count == MAX_BUFFERS)
    r->status = kedge_fail(KEDGE_ERR_ARGUMENT, "a benchmark has too many parameters");
  if (r->status == KEDGE_OK) r->status = kedge_buffer_new(r->device, count * kedge_dtype_size(dtype), buffer);
  if (r->status != KEDGE_OK) return KEDGE_NONE;
  r->count++;
  r->status = ints ? kedge_buffer_write(*buffer, 0, ints, count * sizeof *ints)
                   : fill_buffer(*buffer, dtype, count, scale);
  return kedge_parameter(r->graph, "parameter", dtype, rank, dims, *buffer, 0);
}

#define STORED(scale, ...)                                                                                   \
  parameter(r, r->dtype, scale, NULL, sizeof((uint32_t[]){__VA_ARGS__}) / 4, (uint32_t[]){__VA_ARGS__})
#define FLOATS(scale, ...)                                                                                   \
  parameter(r, KEDGE_F32, scale, NULL, sizeof((uint32_t[]){__VA_ARGS__}) / 4, (uint32_t[]){__VA_ARGS__})

/* Integers made by a function of their index. */
static kedge_value integers(rig *r, int32_t (*make)(const rig *r, uint32_t i), uint32_t rows, uint32_t cols) {
  int32_t *values = kedge_alloc((size_t)rows * cols, sizeof *values);
  if (!values) r->status = KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; values && i < rows * cols; i++) values[i] = make(r, i);
  kedge_value v = parameter(r, KEDGE_I32, 0, values, cols == 1 ? 1 : 2, (uint32_t[]){rows, cols});
  kedge_free(values);
  return v;
}

/* Different experts for a token, spread as a hash spreads them. */
static int32_t expert_of(const rig *r, uint32_t i) {
  const uint32_t t = i / r->shape->topk, k = i % r->shape->topk, E = r->shape->experts;
  uint64_t state = t;
  next_random(&state);
  return (int32_t)((next_random(&state) + (uint64_t)k * (E / r->shape->topk)) % E);
}
static int32_t segment_of(const rig *r, uint32_t i) {
  (void)r;
  return (int32_t)(i / SEQUENCE * SEQUENCE);
}
static int32_t position_of(const rig *r, uint32_t i) {
  (void)r;
  return (int32_t)(i % SEQUENCE);
}
static int32_t label_of(const rig *r, uint32_t i) {
  return (int32_t)(i * 2654435761u % r->shape->vocabulary);
}

static void route(rig *r) {
  r->routes =
      kedge_dispatch(r->graph, integers(r, expert_of, r->shape->tokens, r->shape->topk), r->shape->experts);
}

static double rows_of(const rig *r) {
  return (double)r->shape->tokens * r->shape->topk;
}
static double size_of(const rig *r) {
  return (double)kedge_dtype_size(r->dtype);
}
/* Floats of the experts' weight. */
static double weights_of(const rig *r) {
  return (double)r->shape->experts * r->shape->hidden * r->shape->width;
}

/* ---- Operations: each builds a graph and says how much work its op is
 * ----------------------------------------- */

static void op_matmul(rig *r) {
  const uint32_t T = r->shape->tokens, D = r->shape->hidden;
  kedge_output(r->graph, kedge_linear(r->graph, STORED(1, T, D), STORED(1, D, D)), "y");
  r->flops = 2.0 * T * D * D;
  r->bytes = size_of(r) * (2.0 * T * D + (double)D * D);
}

static void grouped_work(rig *r) {
  const double D = r->shape->hidden, N = r->shape->width;
  r->flops = 2 * rows_of(r) * D * N;
  r->bytes = size_of(r) * (rows_of(r) * (D + N) + weights_of(r));
}

static void op_forward(rig *r) {
  const bench_shape *s = r->shape;
  route(r);
  kedge_value x = kedge_gather_rows(r->graph, STORED(1, s->tokens, s->hidden), &r->routes);
  kedge_value w = STORED(1, s->experts, s->width, s->hidden);
  kedge_output(r->graph, kedge_grouped_matmul(r->graph, x, w, &r->routes, true), "y");
  grouped_work(r);
}

static void op_input_gradient(rig *r) {
  const bench_shape *s = r->shape;
  route(r);
  kedge_value dy = STORED(1, s->tokens * s->topk, s->width), w = STORED(1, s->experts, s->width, s->hidden);
  kedge_output(r->graph, kedge_grouped_matmul(r->graph, dy, w, &r->routes, false), "dx");
  grouped_work(r);
}

static void op_weight_gradient(rig *r) {
  const bench_shape *s = r->shape;
  route(r);
  kedge_value x = kedge_gather_rows(r->graph, STORED(1, s->tokens, s->hidden), &r->routes);
  kedge_value dy = STORED(1, s->tokens * s->topk, s->width);
  kedge_output(r->graph, kedge_grouped_wgrad(r->graph, dy, x, &r->routes), "dw");
  grouped_work(r);
  r->bytes += (4 - size_of(r)) * weights_of(r);
}

/* Sums a value against fixed random numbers and differentiates the sum, so that gradients are dense. */
static void differentiate(rig *r, kedge_value y, const kedge_value *wrt, uint32_t count) {
  kedge_value gradients[8], loss;
  kedge_value flat = kedge_reshape(r->graph, y, 1, (uint32_t[]){(uint32_t)kedge_value_count(r->graph, y)});
  kedge_value other = parameter(r, kedge_value_dtype(r->graph, y), 1, NULL, 1,
                                (uint32_t[]){(uint32_t)kedge_value_count(r->graph, y)});
  loss = kedge_sum(r->graph, kedge_mul(r->graph, flat, other));
  kedge_gradient(r->graph, loss, wrt, count, gradients, NULL, NULL);
  kedge_output(r->graph, loss, "loss");
  for (uint32_t i = 0; i < count; i++) kedge_output(r->graph, gradients[i], "gradient");
}

static void attend(rig *r, bool gradient) {
  const bench_shape *s = r->shape;
  const kedge_attention_options o = {s->heads, s->kv_heads, 0.125};
  kedge_value in[3] = {STORED(1, s->tokens, s->heads * HEAD), STORED(1, s->tokens, s->kv_heads * HEAD),
                       STORED(1, s->tokens, s->kv_heads * HEAD)};
  kedge_value y =
      kedge_attention(r->graph, in[0], in[1], in[2], integers(r, segment_of, s->tokens, 1), &o, NULL);
  /* Pairs of a query and a key that it sees; two products forward, five backward. */
  const double pairs = (double)s->tokens * (SEQUENCE + 1) / 2;
  r->flops = (gradient ? 5 : 2) * 2 * pairs * s->heads * HEAD;
  r->bytes = size_of(r) * s->tokens * (gradient ? 4 : 2) * (s->heads + s->kv_heads) * HEAD;
  if (gradient)
    differentiate(r, y, in, 3);
  else
    kedge_output(r->graph, y, "y");
}
static void op_attention(rig *r) {
  attend(r, false);
}
static void op_attention_grad(rig *r) {
  attend(r, true);
}

static void normalise(rig *r, bool gradient) {
  const bench_shape *s = r->shape;
  kedge_value in[2] = {STORED(1, s->tokens, s->hidden), STORED(1, s->hidden)};
  kedge_value y = kedge_rms_norm(r->graph, in[0], in[1], 1e-6);
  r->bytes = size_of(r) * s->tokens * s->hidden * (gradient ? 3 : 2);
  if (gradient)
    differentiate(r, y, in, 2);
  else
    kedge_output(r->graph, y, "y");
}
static void op_norm(rig *r) {
  normalise(r, false);
}
static void op_norm_grad(rig *r) {
  normalise(r, true);
}

static void activate(rig *r, bool gradient) {
  const bench_shape *s = r->shape;
  const uint32_t R = s->tokens * s->topk;
  route(r);
  kedge_value in[3] = {STORED(1, R, s->width), STORED(1, R, s->width), FLOATS(1, s->tokens, s->topk)};
  kedge_value y = kedge_swiglu_gated(r->graph, in[0], in[1], in[2], &r->routes);
  r->bytes = size_of(r) * R * s->width * (gradient ? 5 : 3);
  if (gradient)
    differentiate(r, y, in, 3);
  else
    kedge_output(r->graph, y, "y");
}
static void op_swiglu(rig *r) {
  activate(r, false);
}
static void op_swiglu_grad(rig *r) {
  activate(r, true);
}

static void op_rope(rig *r) {
  const bench_shape *s = r->shape;
  const kedge_rope_options o = {.heads = s->heads, .factor = 1};
  kedge_value y = kedge_rope(r->graph, STORED(1, s->tokens, s->heads * HEAD), FLOATS(1, HEAD / 2),
                             integers(r, position_of, s->tokens, 1), &o);
  kedge_output(r->graph, y, "y");
  r->bytes = size_of(r) * s->tokens * s->heads * HEAD * 2;
}

static void op_combine(rig *r) {
  const bench_shape *s = r->shape;
  route(r);
  kedge_value x = STORED(1, s->tokens * s->topk, s->hidden);
  kedge_output(r->graph, kedge_combine_rows(r->graph, x, &r->routes), "y");
  r->bytes = size_of(r) * s->hidden * (rows_of(r) + s->tokens);
}

static void lose(rig *r, bool gradient) {
  const bench_shape *s = r->shape;
  kedge_value in[2] = {STORED(1, s->tokens, s->hidden), STORED(0.05, s->vocabulary, s->hidden)};
  kedge_value nll = kedge_head_loss(r->graph, in[0], in[1], integers(r, label_of, s->tokens, 1), NULL);
  r->flops = (gradient ? 6.0 : 2.0) * s->tokens * s->hidden * s->vocabulary;
  r->bytes = size_of(r) * s->hidden * ((double)s->tokens + s->vocabulary) * (gradient ? 2 : 1);
  if (gradient)
    differentiate(r, nll, in, 2);
  else
    kedge_output(r->graph, nll, "nll");
}
static void op_loss(rig *r) {
  lose(r, false);
}
static void op_loss_grad(rig *r) {
  lose(r, true);
}

static void op_adamw(rig *r) {
  const kedge_adamw_options o = {0.9, 0.95, 1e-8, 0.1};
  const uint32_t n = r->shape->experts * r->shape->width * r->shape->hidden;
  kedge_value copy = r->dtype == KEDGE_BF16 ? STORED(1, n) : KEDGE_NONE;
  kedge_adamw(r->graph, FLOATS(1, n), FLOATS(0, n), FLOATS(0, n), copy, FLOATS(1, n), FLOATS(1, 1),
              FLOATS(1e-3, 4), &o);
  r->bytes = (double)n * (7 * 4 + (r->dtype == KEDGE_BF16 ? 2 : 0));
}

static const struct op_case {
  const char *name, *op;
  void (*build)(rig *r);
} op_cases[] = {{"matmul", "matmul", op_matmul},
                {"grouped forward", "grouped_matmul", op_forward},
                {"grouped input gradient", "grouped_matmul", op_input_gradient},
                {"grouped weight gradient", "grouped_wgrad", op_weight_gradient},
                {"attention", "attention", op_attention},
                {"attention gradient", "attention_grad", op_attention_grad},
                {"rms_norm", "rms_norm", op_norm},
                {"rms_norm gradient", "rms_norm_grad", op_norm_grad},
                {"swiglu", "swiglu_gated", op_swiglu},
                {"swiglu gradient", "swiglu_gated_grad", op_swiglu_grad},
                {"rope", "rope", op_rope},
                {"combine_rows", "combine_rows", op_combine},
                {"head loss", "head_loss", op_loss},
                {"head loss gradient", "head_loss_grad", op_loss_grad},
                {"adamw", "adamw", op_adamw}};

/* ---- Runs
 * ----------------------------------------------------------------------------------------------------------
 */

static kedge_status rig_run(void *context) {
  return kedge_exec_run(((rig *)context)->exec, 0, UINT32_MAX);
}

/* Seconds of the op since the last look. */
static double rig_measure(void *context) {
  rig *r = context;
  kedge_op_time times[BENCH_OPS];
  const uint32_t count = kedge_exec_times(r->exec, times, BENCH_OPS);
  double total = 0;
  for (uint32_t i = 0; i < count && i < BENCH_OPS; i++)
    if (!r->op || !strcmp(times[i].op, r->op)) total += times[i].seconds;
  const double since = total - r->total;
  r->total = total;
  return since;
}

static void rig_close(rig *r) {
  kedge_exec_free(r->exec);
  kedge_graph_free(r->graph);
  for (uint32_t i = 0; i < r->count; i++) kedge_buffer_free(r->buffers[i]);
}

/* Builds, times, frees. `layer`: all ops count, by op. */
static kedge_status rig_bench(rig *r, bench_report *report, void (*build)(rig *), bool layer,
                              bench_line *line) {
  r->graph = kedge_graph_new(false);
  if (!r->graph) return KEDGE_ERR_MEMORY;
  build(r);
  if (r->status == KEDGE_OK) r->status = kedge_exec_new(r->device, r->graph, NULL, &r->exec);
  if (r->status == KEDGE_OK) {
    kedge_exec_profile(r->exec, true);
    r->status = bench_repeat(report->options, rig_run, rig_measure, r, line);
  }
  line->shape = r->shape->name;
  line->dtype = r->dtype;
  line->flops = r->flops;
  line->bytes = r->bytes;
  if (r->status == KEDGE_OK && layer) {
    line->op_count = kedge_exec_times(r->exec, line->ops, BENCH_OPS);
    if (line->op_count > BENCH_OPS) line->op_count = BENCH_OPS;
  }
  rig_close(r);
  return r->status;
}

enum { CASES = sizeof op_cases / sizeof *op_cases, PRODUCTS = 4 }; /* the first are products */

static kedge_status bench_some(bench_report *report, const bench_shape *shape, kedge_dtype dtype,
                               size_t count) {
  for (size_t i = 0; i < count; i++) {
    rig r = {.device = report->device, .shape = shape, .dtype = dtype, .op = op_cases[i].op};
    bench_line *line = bench_add(report);
    KEDGE_TRY(rig_bench(&r, report, op_cases[i].build, false, line));
    line->bench = "ops";
    line->name = op_cases[i].name;
  }
  return KEDGE_OK;
}

kedge_status bench_ops(bench_report *report, const bench_shape *shape, kedge_dtype dtype) {
  return bench_some(report, shape, dtype, CASES);
}
kedge_status bench_products(bench_report *report, const bench_shape *shape, kedge_dtype dtype) {
  return bench_some(report, shape, dtype, PRODUCTS);
}

/* As the model has it (models/decoder/blocks.c): gate, up, activation with the gate weight, down, sum. */
static void build_layer(rig *r) {
  const bench_shape *s = r->shape;
  const double scale = 1.0 / sqrt(s->hidden);
  route(r);
  kedge_value x = STORED(1, s->tokens, s->hidden), weights = FLOATS(1, s->tokens, s->topk);
  kedge_value gate = STORED(scale, s->experts, s->width, s->hidden),
              up = STORED(scale, s->experts, s->width, s->hidden),
              down = STORED(scale, s->experts, s->hidden, s->width);
  kedge_value x_R = kedge_gather_rows(r->graph, x, &r->routes);
  kedge_value act =
      kedge_swiglu_gated(r->graph, kedge_grouped_matmul(r->graph, x_R, gate, &r->routes, true),
                         kedge_grouped_matmul(r->graph, x_R, up, &r->routes, true), weights, &r->routes);
  kedge_value y = kedge_grouped_matmul(r->graph, act, down, &r->routes, true);
  const kedge_value wrt[] = {x, weights, gate, up, down};
  differentiate(r, kedge_combine_rows(r->graph, y, &r->routes), wrt, 5);
  r->flops = 3 * 3 * 2 * rows_of(r) * s->hidden * s->width;
  r->bytes = weights_of(r) * 3 * (2 * size_of(r) + 4);
}

kedge_status bench_layer(bench_report *report, const bench_shape *shape, kedge_dtype dtype) {
  rig r = {.device = report->device, .shape = shape, .dtype = dtype};
  bench_line *line = bench_add(report);
  KEDGE_TRY(rig_bench(&r, report, build_layer, true, line));
  line->bench = "layer";
  line->name = "experts forward and backward";
  line->unit = "tokens/s";
  line->rate = shape->tokens / line->seconds;
  return KEDGE_OK;
}
