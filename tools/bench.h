/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of `kedge bench`: bench.c reads options and prints, bench_time.c times, bench_ops.c has single
 * operations and the layer of experts, bench_model.c the training step and generation. */
#ifndef KEDGE_TOOLS_BENCH_H
#define KEDGE_TOOLS_BENCH_H

#include "core/kedge.h"

enum { BENCH_OPS = 64, BENCH_LINES = 128 };

/* Widths of a layer of experts; heads and key/value heads of 64 for attention. */
typedef struct bench_shape {
  const char *name;
  uint32_t hidden, width, experts, topk, tokens, heads, kv_heads, vocabulary;
} bench_shape;

/* What was asked for. */
typedef struct bench_options {
  const char *isa;
  double seconds; /* for each line */
} bench_options;

/* One line of the result. Work of 0 is not printed. */
typedef struct bench_line {
  const char *bench, *shape, *name, *unit; /* unit: of `rate`, "tokens/s"; NULL: none */
  kedge_dtype dtype;
  uint32_t runs;
  double seconds, best, cpu;    /* of a run: median, least; what the process spent on average */
  double flops, bytes;          /* of a run */
  double rate, load;            /* by the median; cores that others kept busy meanwhile */
  kedge_op_time ops[BENCH_OPS]; /* seconds by op over all runs; op_count 0: a single op */
  uint32_t op_count;
} bench_line;

typedef struct bench_report {
  kedge_device *device;
  const bench_options *options;
  bench_line *lines;
  uint32_t count;
  double peaks[2]; /* f32, bf16: operations a second of the multiply-adds by themselves */
} bench_report;

/* Times `run` until the seconds of the options are over, at least 3 times, after one run that is not counted.
 * `measure` gives the seconds of a run; NULL: its wall clock. Fills runs, seconds, best and load. */
typedef kedge_status (*bench_run)(void *context);
typedef double (*bench_measure)(void *context);
kedge_status bench_repeat(const bench_options *options, bench_run run, bench_measure measure, void *context,
                          bench_line *line);

/* A new line of the report; the last one is given again where there is no room. */
bench_line *bench_add(bench_report *report);

kedge_status bench_ops(bench_report *report, const bench_shape *shape, kedge_dtype dtype);
/* Of the operations the products alone. */
kedge_status bench_products(bench_report *report, const bench_shape *shape, kedge_dtype dtype);
kedge_status bench_layer(bench_report *report, const bench_shape *shape, kedge_dtype dtype);
/* The laptop model: 4 layers, width 256, 4 heads of 64 with 2 for keys and values, 16 experts top-4 of width
 * 128, vocabulary 4,096, tied head. */
kedge_status bench_step(bench_report *report, kedge_dtype dtype);
kedge_status bench_generate(bench_report *report, kedge_dtype dtype);

#endif
