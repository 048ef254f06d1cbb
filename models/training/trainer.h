/* SPDX-License-Identifier: Apache-2.0
 *
 * Post-training: from a configuration to a trained Hugging Face directory, checkpoints, metrics.jsonl and
 * trainer_state.json. trainer.c has the loop, step.c one update and one evaluation.
 */
#ifndef KEDGE_MODELS_TRAINING_TRAINER_H
#define KEDGE_MODELS_TRAINING_TRAINER_H

#include "models/training/batches.h"
#include "models/training/schedule.h"
#include "models/training/setup.h"

/* After each update. */
typedef struct kedge_train_progress {
  uint64_t step, updates;      /* done, of the whole run */
  uint64_t tokens, supervised; /* of this update */
  double epoch, loss, learning_rate, grad_norm, router_grad_norm;
} kedge_train_progress;

/* A line of metrics that was logged ("train/loss" ...), or an evaluation ("eval/loss"). */
typedef struct kedge_train_log {
  uint64_t step;
  double epoch;
  const struct kedge_metric *items;
  size_t count;
} kedge_train_log;

typedef struct kedge_train_hooks {
  void (*note)(void *context, const char *line); /* remarks; may be NULL */
  void (*started)(void *context, const kedge_setup *setup, uint64_t updates, uint64_t done); /* may be NULL */
  void (*progress)(void *context, const kedge_train_progress *progress);                     /* may be NULL */
  void (*logged)(void *context, const kedge_train_log *log);                                 /* may be NULL */
  void (*saved)(void *context, const char *path, uint64_t step);                             /* may be NULL */
  kedge_comm *comm;            /* the ranks that train together; NULL: one */
  bool (*stop)(void *context); /* asked after each update: true saves a checkpoint and ends with
                                  ERR_INTERRUPTED; may be NULL */
  void *context;
} kedge_train_hooks;

typedef struct kedge_train_result {
  uint64_t steps;
  double loss;      /* of the last logged interval; NaN without one */
  double eval_loss; /* of the last evaluation; NaN without one */
  uint64_t workspace_bytes, optimizer_bytes;
  kedge_op_time
      ops[64]; /* with `profile`: seconds by op over training passes and updates, the longest first */
  uint32_t op_count;
} kedge_train_result;

/* Runs the whole thing. With a comm all ranks call it, with equal configurations; rank 0 alone calls hooks
 * (but for `stop`, which any rank may answer), writes files, and tells of ranks and devices. A failure that
 * all know of is marked in the comm (agreed); after another one a rank must end the others
 * (kedge_comm_abort). Errors: those of kedge_setup_init; ERR_NUMERIC (a loss, router or gradient that is not
 * finite: the last checkpoint stays usable); ERR_MISMATCH (resuming another run); ERR_IO. `result` may be
 * NULL. */
kedge_status kedge_train(const kedge_config *config, const kedge_train_hooks *hooks,
                         kedge_train_result *result);

/* Whether kedge_train would write into the configuration's output_dir; reads and changes nothing else.
 * ERR_ARGUMENT: it holds another run, or is the base model's. */
kedge_status kedge_train_check(const kedge_config *config);

/* What a run walks: the batches of its training samples, owned by the caller, and the schedule that goes with
 * them. */
kedge_status kedge_train_batches(const kedge_setup *setup, kedge_batches **batches, kedge_schedule *schedule);

#endif
