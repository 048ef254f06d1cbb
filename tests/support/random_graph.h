/* SPDX-License-Identifier: Apache-2.0
 *
 * Random graphs for the planner's suite: elementwise ops, matrix products, views, in-place ops, state
 * changes, recompute regions, outputs, and often a gradient. One seed gives one graph, whatever is marked as
 * output.
 */
#ifndef KEDGE_TESTS_RANDOM_GRAPH_H
#define KEDGE_TESTS_RANDOM_GRAPH_H

#include "tests/support/suite.h"

enum { KEDGE_RANDOM_VALUES = 160, KEDGE_RANDOM_PARAMETERS = 48 };

typedef struct kedge_random_graph {
  kedge_graph *graph;
  kedge_device *device;
  kedge_random random;
  uint32_t pool_count, parameter_count, input_count, output_count;
  kedge_value pool[KEDGE_RANDOM_VALUES]; /* [rows, cols] floats to build on, views among them */
  kedge_value parameters[KEDGE_RANDOM_PARAMETERS], inputs[4];
  kedge_buffer *buffers[KEDGE_RANDOM_PARAMETERS];
  kedge_value outputs[KEDGE_RANDOM_VALUES]; /* what is an output for any `all_outputs` */
} kedge_random_graph;

/* `all_outputs`: every value that a node makes is marked as an output, so that no two share memory. */
kedge_status kedge_random_graph_init(kedge_random_graph *r, kedge_device *device, uint64_t seed,
                                     bool all_outputs);
void kedge_random_graph_destroy(kedge_random_graph *r);
/* The same numbers each time: to inputs and parameters. */
kedge_status kedge_random_graph_fill(kedge_random_graph *r, kedge_exec *exec);

#endif
