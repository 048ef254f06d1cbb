/* SPDX-License-Identifier: Apache-2.0
 *
 * Test cases of ops. A family file's KEDGE_PART_CASES section lists, for each of its ops, small graphs; the suites run each
 * case in every dtype on every backend against the reference (test_ops), and its gradient against central differences in
 * all-double (test_gradients).
 *
 *   static void odd_width(kedge_case *c) {
 *     kedge_value x = kedge_case_x(c, "x", 2, (uint32_t[]){5, 7}), w = kedge_case_x(c, "w", 1, (uint32_t[]){7});
 *     kedge_case_output(c, kedge_rms_norm(c->graph, x, w, 1e-6));
 *   }
 *   KEDGE_CASES(rms_norm) = {{"odd width", odd_width, .differentiable = true}, {"weight of another width", bad, "weight"}, {0}};
 */
#ifndef KEDGE_TESTS_CASES_H
#define KEDGE_TESTS_CASES_H

#include "core/args.h"
#include "core/kedge.h"

enum { KEDGE_CASE_MAX = 24 };

/* A case while it is built: the graph and device to build for, and what was created. */
typedef struct kedge_case {
  kedge_graph *graph;
  kedge_device *device;
  kedge_dtype dtype; /* storage dtype of x values in this run */
  uint64_t seed;
  uint32_t input_count, output_count;
  kedge_value inputs[KEDGE_CASE_MAX];  /* float parameters, in order of creation */
  double *data[KEDGE_CASE_MAX];        /* their values, before rounding to the dtype */
  kedge_buffer *buffers[2 * KEDGE_CASE_MAX];
  uint32_t buffer_count;
  kedge_value outputs[KEDGE_CASE_MAX];
} kedge_case;

/* Random normal parameters (mean 0, sd 1, fixed by seed and order of creation): storage dtype; f32; with mean and sd; with
 * given values. All are differentiated in gradient tests unless made by _constant. */
kedge_value kedge_case_x(kedge_case *c, const char *name, uint32_t rank, const uint32_t *dims);
kedge_value kedge_case_f(kedge_case *c, const char *name, uint32_t rank, const uint32_t *dims);
kedge_value kedge_case_scaled(kedge_case *c, const char *name, kedge_dtype dtype, uint32_t rank, const uint32_t *dims,
                              double mean, double sd);
/* f32 values that no gradient is asked for (inverse frequencies, bias tables, hyper-parameters). */
kedge_value kedge_case_constant(kedge_case *c, const char *name, uint32_t rank, const uint32_t *dims, const double *values);
/* i32 values. */
kedge_value kedge_case_i(kedge_case *c, const char *name, uint32_t rank, const uint32_t *dims, const int32_t *values);
/* The value is compared (and, for float outputs, gets a random cotangent). A parameter that the op updates may be an output. */
void kedge_case_output(kedge_case *c, kedge_value value);

/* `rejects`: the graph must fail, and the message must contain this text. `differentiable`: run in the gradient suite. `bf16`:
 * tolerance for bf16 in units of the largest output entry, 0: the default (2^-7). `f32`: for f32, 0: the default (2e-6). */
typedef struct kedge_case_row {
  const char *name;
  void (*build)(kedge_case *c);
  const char *rejects;
  bool differentiable;
  double f32, bf16;
} kedge_case_row;

#define KEDGE_CASES(op)                                                                                                \
  extern const kedge_case_row kedge__cases_##op[];                                                                     \
  const kedge_case_row kedge__cases_##op[]

#endif
