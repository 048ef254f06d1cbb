/* SPDX-License-Identifier: Apache-2.0
 *
 * Test cases of ops. A family file's KEDGE_PART_CASES section lists, for each of its ops, small graphs; the
 * suites run each case in every dtype on every backend against the reference (test_ops), and its gradient
 * against central differences in all-double (test_gradients). How they build and run a case is in suite.h.
 *
 *   static void odd_width(kedge_case *c) {
 *     kedge_value x = kedge_case_x(c, "x", 2, (uint32_t[]){5, 7});
 *     kedge_value w = kedge_case_x(c, "w", 1, (uint32_t[]){7});
 *     kedge_case_output(c, kedge_rms_norm(c->graph, x, w, 1e-6));
 *   }
 *   KEDGE_CASES(rms_norm) = {
 *       {"odd width", odd_width, .differentiable = true}, {"weight of another width", bad, "weight"}, {0}};
 */
#ifndef KEDGE_TESTS_CASES_H
#define KEDGE_TESTS_CASES_H

#include "core/args.h"
#include "core/kedge.h"

enum { KEDGE_CASE_MAX = 24 };

/* A parameter that a case created: its value, and what was written to its buffer. Around its bytes (and
 * around each part) lie guard bytes that no kernel may touch. */
typedef struct kedge_case_tensor {
  kedge_value value;
  kedge_dtype dtype; /* as stored: f64 for every float in an all-double graph */
  uint64_t count;
  uint32_t parts;  /* 0: one buffer range; else that many, of count / parts elements each */
  bool wanted;     /* a gradient test asks for its gradient */
  double *numbers; /* the values, rounded to the dtype that the case asked for */
  kedge_buffer *buffer;
  uint64_t offsets[KEDGE_CASE_MAX]; /* bytes of each part, or of the whole at 0 */
} kedge_case_tensor;

/* A case while it is built: the graph and device to build for, and what was created. A case function reads
 * graph and dtype alone. In an all-double graph `dtype` is still the storage dtype whose rounding the
 * parameters have; the graph itself turns every float value into f64. */
typedef struct kedge_case {
  kedge_graph *graph;
  kedge_device *device; /* NULL: no buffers, the graph is only built */
  kedge_dtype dtype;    /* storage dtype of x values in this run */
  uint64_t seed;
  uint32_t tensor_count, output_count;
  kedge_case_tensor tensors[KEDGE_CASE_MAX]; /* in order of creation */
  kedge_value outputs[KEDGE_CASE_MAX];
} kedge_case;

/* Random normal parameters (mean 0, sd 1, fixed by seed and order of creation): storage dtype; f32; with mean
 * and sd; with given values. All are differentiated in gradient tests unless made by _constant. */
kedge_value kedge_case_x(kedge_case *c, const char *name, uint32_t rank, const uint32_t *dims);
kedge_value kedge_case_f(kedge_case *c, const char *name, uint32_t rank, const uint32_t *dims);
kedge_value kedge_case_scaled(kedge_case *c, const char *name, kedge_dtype dtype, uint32_t rank,
                              const uint32_t *dims, double mean, double sd);
/* f32 values that no gradient is asked for (inverse frequencies, bias tables, hyper-parameters). */
kedge_value kedge_case_constant(kedge_case *c, const char *name, uint32_t rank, const uint32_t *dims,
                                const double *values);
/* i32 values. */
kedge_value kedge_case_i(kedge_case *c, const char *name, uint32_t rank, const uint32_t *dims,
                         const int32_t *values);
/* As kedge_case_x, but each index of the first dimension (at most KEDGE_CASE_MAX) lies on its own, in an
 * order of memory that is not the order of the indices. */
kedge_value kedge_case_parts(kedge_case *c, const char *name, uint32_t rank, const uint32_t *dims);
/* The value is compared (and, for float outputs, gets a random cotangent). A parameter that the op updates
 * may be an output. */
void kedge_case_output(kedge_case *c, kedge_value value);

/* `rejects`: the graph must fail, and the message must contain this text. `differentiable`: run in the
 * gradient suite. `bf16`: tolerance for bf16 in units of the largest output entry, 0: the default (2^-7).
 * `f32`: for f32, 0: the default (2e-6). `nonzero`: the share of the entries of each gradient that must not
 * be 0; 0: the default (0.1). */
typedef struct kedge_case_row {
  const char *name;
  void (*build)(kedge_case *c);
  const char *rejects;
  bool differentiable;
  double f32, bf16, nonzero;
} kedge_case_row;

#define KEDGE_CASES(op)                                                                                      \
  extern const kedge_case_row kedge__cases_##op[];                                                           \
  const kedge_case_row kedge__cases_##op[]

#endif
