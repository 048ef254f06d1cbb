/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory that training a model takes, by kind: for `kedge plan` and for `kedge train --dry-run`. */
#ifndef KEDGE_TOOLS_PLAN_H
#define KEDGE_TOOLS_PLAN_H

#include "models/decoder/decoder.h"

/* Bytes of a rank by kind, and what it sends to others. */
typedef struct plan_report {
  uint64_t weights, gradients, moments, masters, activations, naive, scratch, inputs, sums;
  uint32_t nodes, values, size;     /* size: the bucket of the tokens */
  uint64_t sums_sent, weights_sent; /* an update: gradients to be summed, updated weights */
  uint64_t rows_sent; /* a micro-batch: rows for experts and what comes back, forward and backward */
  uint32_t update_calls, micro_calls; /* collective ops of both */
} plan_report;

typedef struct plan_row {
  const char *key, *label;
  uint64_t bytes;
} plan_row;

enum { PLAN_ROWS = 8 };

/* Builds and plans the training graph that `spec` asks for, `tokens` and `loss` aside: of `tokens` at once.
 * `model` is a description (kedge_model_describe) on a device that computes nothing; where that has joined a
 * comm, a rank of it is planned, as the run plans it. */
kedge_status plan_measure(const kedge_model *model, uint32_t tokens, const kedge_decoder_spec *spec,
                          plan_report *report);

/* What `kedge plan` is asked for. */
typedef struct plan_options {
  const char *model, *dtype, *model_options, *memory;
  int64_t tokens, world, experts, accumulation, sequence;
  double flops, link, latency; /* of a rank: 1e12 operations and 1e9 bytes a second; 1e-6 seconds a message */
  bool recompute, json;
} plan_options;

/* Plans one rank of the options' run. The model is described anew and owned by the caller, as are device and
 * comm. */
typedef struct plan_rank {
  struct kedge_comm *comm;
  kedge_device *device;
  kedge_model *model;
  plan_report report;
} plan_rank;
kedge_status plan_rank_open(const plan_options *options, plan_rank *rank);
void plan_rank_close(plan_rank *rank);

/* A number of bytes with a unit: 80G, 81920MiB, 8.5e10. ERR_ARGUMENT for anything else. */
kedge_status plan_bytes(const char *text, uint64_t *bytes);

/* What several ranks send and how long an update takes, as text or into a JSON object. */
void plan_print_ranks(const plan_options *options, const plan_rank *rank);
void plan_add_ranks(const plan_options *options, const plan_rank *rank, void *json);
/* Whether a rank fits into `memory`, and if not, what would make it fit: tried out with the same planner. */
kedge_status plan_print_fit(const plan_options *options, const plan_rank *rank, uint64_t memory);

/* The kinds with their names; returns their sum. */
uint64_t plan_rows(const plan_report *report, plan_row rows[PLAN_ROWS]);

#endif
