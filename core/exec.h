/* SPDX-License-Identifier: Apache-2.0
 * An execution's insides, for run.c and compare.c. */
#ifndef KEDGE_EXEC_H
#define KEDGE_EXEC_H

#include "core/device.h"
#include "core/graph.h"

struct kedge_workspace {
  kedge_device *device;
  kedge_buffer *buffer; /* NULL until something runs */
  uint64_t generation;  /* changes when the buffer does */
};

struct kedge_exec {
  kedge_device *device;
  const kedge_graph *graph;
  kedge_workspace *workspace;
  bool own_workspace, profile;
  kedge_plan plan;
  kedge_buffer *inputs;
  uint64_t *input_offset; /* value -> bytes into inputs */
  kedge_step *steps;      /* live nodes, in order */
  uint32_t step_count;
  unsigned char *args; /* narrowed, at the same offsets as the graph's */
  void **parts;        /* part addresses of all steps */
  size_t part_count;
  kedge_buffer *device_parts; /* the same on a device with memory of its own */
  uint64_t scratch, generation;
  double seconds[KEDGE_OP_COUNT];
  uint64_t calls[KEDGE_OP_COUNT];
};

/* Reserves the workspace and resolves addresses if it moved. */
kedge_status kedge__exec_prepare(kedge_exec *exec);

#endif
