/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory that training a model takes, by kind: for `kedge plan` and for `kedge train --dry-run`. */
#ifndef KEDGE_TOOLS_PLAN_H
#define KEDGE_TOOLS_PLAN_H

#include "models/decoder/decoder.h"

/* Bytes by kind. */
typedef struct plan_report {
  uint64_t weights, gradients, moments, masters, activations, naive, scratch, inputs;
  uint32_t nodes, values, size; /* size: the bucket of the tokens */
} plan_report;

typedef struct plan_row {
  const char *key, *label;
  uint64_t bytes;
} plan_row;

enum { PLAN_ROWS = 7 };

/* Builds and plans the training graph that `spec` asks for, `tokens` and `loss` aside: of `tokens` at once.
 * `model` is a description (kedge_model_describe) on a device that computes nothing. */
kedge_status plan_measure(const kedge_model *model, uint32_t tokens, const kedge_decoder_spec *spec,
                          plan_report *report);

/* The kinds with their names; returns their sum. */
uint64_t plan_rows(const plan_report *report, plan_row rows[PLAN_ROWS]);

#endif
