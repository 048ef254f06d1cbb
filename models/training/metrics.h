/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run leaves behind as numbers: metrics.jsonl, one flat JSON object a line, and trainer_state.json of
 * a checkpoint with the keys of transformers. Not a number and infinities are written as null. Siblings:
 * schedule.h, config.h. */
#ifndef KEDGE_MODELS_TRAINING_METRICS_H
#define KEDGE_MODELS_TRAINING_METRICS_H

#include "models/training/schedule.h"

/* A named number: "train/loss", "router/tvd_mean" in metrics.jsonl; "loss", "grad_norm" in a trainer state.
 * Whole numbers up to 10^15 are written without a fraction. */
typedef struct kedge_metric {
  const char *key;
  double value;
} kedge_metric;

typedef struct kedge_metrics kedge_metrics;

/* Opens metrics.jsonl for appending. resume_step 0 begins an empty file; over 0 lines whose "step" is larger
 * are dropped, and so is a last line that was cut off when a run ended; lines without a step stay. The file
 * is replaced at once, never in part. Errors: ERR_IO; ERR_FORMAT "<path>:<line>: ..." for a line that is no
 * JSON object. Owned by the caller. */
kedge_status kedge_metrics_open(const char *path, uint64_t resume_step, kedge_metrics **metrics);

/* Writes {"step": step, "epoch": epoch, <items [count]>} as one line and flushes it. */
kedge_status kedge_metrics_write(kedge_metrics *metrics, uint64_t step, double epoch,
                                 const kedge_metric *items, size_t count);

/* Closes the file; ERR_IO if its end could not be written. NULL is allowed. */
kedge_status kedge_metrics_close(kedge_metrics *metrics);

typedef struct kedge_trainer_state kedge_trainer_state;

/* An empty state with the keys of transformers: global_step, max_steps, num_train_epochs, log_history and so
 * on. */
kedge_status kedge_trainer_state_new(kedge_trainer_state **state);
void kedge_trainer_state_free(kedge_trainer_state *state);

/* A number at the top level ("global_step", "epoch", "max_steps", "num_train_epochs", "best_metric", ...).
 * `get` gives ERR_FORMAT where the key is absent or no number. */
kedge_status kedge_trainer_state_set(kedge_trainer_state *state, const char *key, double value);
kedge_status kedge_trainer_state_get(const kedge_trainer_state *state, const char *key, double *value);
/* What transformers writes of the run itself: max_steps, num_train_epochs (whole, rounded up), logging_steps,
 * save_steps and eval_steps in updates (null: not by steps), train_batch_size (the micro-batch). */
kedge_status kedge_trainer_state_set_run(kedge_trainer_state *state, const kedge_config *config,
                                         const kedge_schedule *schedule);
/* The checkpoint with the best evaluation loss; NULL: none. */
kedge_status kedge_trainer_state_set_best(kedge_trainer_state *state, const char *checkpoint);

/* Appends {"epoch", <items [count]>, "step"} to log_history. */
kedge_status kedge_trainer_state_log(kedge_trainer_state *state, uint64_t step, double epoch,
                                     const kedge_metric *items, size_t count);
size_t kedge_trainer_state_logs(const kedge_trainer_state *state);

/* Writes the whole file or leaves the old one. */
kedge_status kedge_trainer_state_save(const kedge_trainer_state *state, const char *path);
/* Reads a state, also one that transformers wrote; log entries after its global_step are dropped. Errors:
 * ERR_IO, ERR_FORMAT. */
kedge_status kedge_trainer_state_load(const char *path, kedge_trainer_state **state);

#endif
