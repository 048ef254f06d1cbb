/* SPDX-License-Identifier: Apache-2.0
 *
 * When things happen in a run: how many updates there are, the learning rate of each, and when it logs,
 * evaluates and saves. Training data is one stream of samples over all epochs. An update takes the next
 * `batch` samples of it, across the end of an epoch too; only the last update of a run may take fewer.
 * Siblings: config.h (the keys), metrics.h (what is logged). */
#ifndef KEDGE_MODELS_TRAINING_SCHEDULE_H
#define KEDGE_MODELS_TRAINING_SCHEDULE_H

#include "models/training/config.h"

typedef struct kedge_schedule {
  kedge_config_SCHEDULES type;
  double peak, floor;      /* learning rates: highest, and last of a cosine */
  uint64_t warmup;         /* updates of warm-up */
  uint64_t updates;        /* of the whole run */
  uint64_t samples, batch; /* in an epoch; in an update over all micro-batches and ranks */
  uint64_t planned;        /* samples of the whole run: the last update's share follows from it */
} kedge_schedule;

/* From a loaded configuration. `samples` counts what is trained on in one epoch (after exclusions; rows where
 * packing), `ranks` is the number of data-parallel processes. updates = ceil(epochs * samples / batch) unless
 * max_steps is given, with batch = micro-batch * accumulation * ranks. Errors: ERR_ARGUMENT for 0 samples or
 * ranks and for more than 2^31-1 updates. */
kedge_status kedge_schedule_init(kedge_schedule *schedule, const kedge_config *config, uint64_t samples,
                                 uint32_t ranks);

/* Learning rate of update `step`, counted from 0, with the formulas of transformers' get_*_schedule (n
 * updates, w of warm-up, peak lr p, floor f): step < w:             p * step / max(1, w)          (the first
 * update of a warm-up has rate 0) linear:               p * max(0, (n - step) / max(1, n - w))
 *   cosine[_with_min_lr]: p * (c * (1 - f/p) + f/p),  c = (1 + cos(pi * (step - w) / max(1, n - w))) / 2,
 * never below 0 constant[_with_warmup]: p; `constant` has no warm-up. */
double kedge_schedule_rate(const kedge_schedule *schedule, uint64_t step);

/* Samples that update `step` takes: `batch`, or what is left for the last. */
uint64_t kedge_schedule_samples(const kedge_schedule *schedule, uint64_t step);

/* Epochs passed after `done` updates, as a fraction. */
double kedge_schedule_epoch(const kedge_schedule *schedule, uint64_t done);

/* Whether the run ends inside its warm-up, so that the highest learning rate is never reached. */
bool kedge_schedule_only_warms(const kedge_schedule *schedule);

/* Updates between two events from a key such as save_steps: 0 for off; a part below 1 is of all updates,
 * rounded up. */
uint64_t kedge_schedule_every(const kedge_schedule *schedule, double steps);

/* Whether an event is due after `done` >= 1 updates. `strategy` is a kedge_config_STRATEGIES; `per_epoch`
 * over 0 (as saves_per_epoch) replaces `steps`. The end of a run is the caller's. */
bool kedge_schedule_due(const kedge_schedule *schedule, int strategy, double steps, int64_t per_epoch,
                        uint64_t done);

#endif
