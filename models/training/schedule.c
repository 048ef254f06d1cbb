/* SPDX-License-Identifier: Apache-2.0
 * Updates, learning rates and events of a run (schedule.h). */
#include "models/training/schedule.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

/* Samples of the whole run, as batches.c counts them: 1.1 epochs of 10 are 11, though the product is a little
 * over it. */
static double planned_samples(double epochs, double samples) {
  return fmax(1, ceil(epochs * samples - 1e-6));
}

static uint64_t warmup_updates(const kedge_config *config, uint64_t updates) {
  if (config->warmup_steps >= 1) return (uint64_t)config->warmup_steps;
  double part = config->warmup_steps > 0 ? config->warmup_steps : config->warmup_ratio;
  return (uint64_t)ceil((double)updates * part); /* as transformers, rounding errors included */
}

kedge_status kedge_schedule_init(kedge_schedule *schedule, const kedge_config *config, uint64_t samples,
                                 uint32_t ranks) {
  *schedule = (kedge_schedule){.type = (kedge_config_SCHEDULES)config->lr_scheduler_type,
                               .peak = config->learning_rate};
  if (!samples) return kedge_fail(KEDGE_ERR_ARGUMENT, "no samples to train on");
  if (!ranks) return kedge_fail(KEDGE_ERR_ARGUMENT, "a run has at least 1 rank, came 0");
  if (samples > INT32_MAX) return kedge_fail(KEDGE_ERR_ARGUMENT, "more than 2147483647 samples");
  schedule->floor = config->min_learning_rate;
  schedule->samples = samples;
  /* 65536 * 1048576 * 2^32 would not fit; nothing near it is meant. */
  double batch =
      (double)config->per_device_train_batch_size * (double)config->gradient_accumulation_steps * ranks;
  if (batch > INT32_MAX) return kedge_fail(KEDGE_ERR_ARGUMENT, "more than 2147483647 samples in one update");
  schedule->batch = (uint64_t)batch;
  if (config->max_steps > 0) {
    schedule->updates = (uint64_t)config->max_steps;
    schedule->planned = schedule->updates * schedule->batch;
  } else {
    double planned = planned_samples(config->num_train_epochs, (double)samples);
    double updates = ceil(planned / batch);
    if (updates > INT32_MAX)
      return kedge_fail(KEDGE_ERR_ARGUMENT, "%g epochs of %llu samples are more than 2147483647 updates",
                        config->num_train_epochs, (unsigned long long)samples);
    schedule->planned = (uint64_t)planned;
    schedule->updates = (uint64_t)updates;
  }
  schedule->warmup = warmup_updates(config, schedule->updates);
  return KEDGE_OK;
}

double kedge_schedule_rate(const kedge_schedule *schedule, uint64_t step) {
  double at = (double)step, warmup = (double)schedule->warmup, updates = (double)schedule->updates;
  if (schedule->type == KEDGE_CONFIG_SCHEDULE_CONSTANT) return schedule->peak;
  if (step < schedule->warmup) return schedule->peak * (at / fmax(1, warmup));
  double left = fmax(1, updates - warmup);
  if (schedule->type == KEDGE_CONFIG_SCHEDULE_LINEAR) return schedule->peak * fmax(0, (updates - at) / left);
  if (schedule->type == KEDGE_CONFIG_SCHEDULE_CONSTANT_WITH_WARMUP) return schedule->peak;
  double part = schedule->peak > 0 ? schedule->floor / schedule->peak : 0;
  double factor = 0.5 * (1.0 + cos(pi * ((at - warmup) / left)));
  return schedule->peak * fmax(0, factor * (1 - part) + part);
}

static uint64_t taken(const kedge_schedule *schedule, uint64_t done) {
  uint64_t samples = done * schedule->batch;
  return samples < schedule->planned ? samples : schedule->planned;
}

uint64_t kedge_schedule_samples(const kedge_schedule *schedule, uint64_t step) {
  if (step >= schedule->updates) return 0;
  return taken(schedule, step + 1) - taken(schedule, step);
}

double kedge_schedule_epoch(const kedge_schedule *schedule, uint64_t done) {
  return (double)taken(schedule, done < schedule->updates ? done : schedule->updates) /
         (double)schedule->samples;
}

bool kedge_schedule_only_warms(const kedge_schedule *schedule) {
  return schedule->updates && schedule->warmup >= schedule->updates;
}

uint64_t kedge_schedule_every(const kedge_schedule *schedule, double steps) {
  if (!(steps > 0)) return 0;
  if (steps >= 1) return (uint64_t)steps;
  return (uint64_t)ceil((double)schedule->updates * steps);
}

/* Whether update number `done` passed the end of one of `parts` equal parts of an epoch. */
static bool passes_part(const kedge_schedule *schedule, uint64_t parts, uint64_t done) {
  double before = floor((double)taken(schedule, done - 1) * (double)parts / (double)schedule->samples);
  double after = floor((double)taken(schedule, done) * (double)parts / (double)schedule->samples);
  return after > before;
}

bool kedge_schedule_due(const kedge_schedule *schedule, int strategy, double steps, int64_t per_epoch,
                        uint64_t done) {
  if (strategy == KEDGE_CONFIG_STRATEGY_NO || !done || done > schedule->updates) return false;
  if (strategy == KEDGE_CONFIG_STRATEGY_EPOCH) return passes_part(schedule, 1, done);
  if (per_epoch > 0) return passes_part(schedule, (uint64_t)per_epoch, done);
  uint64_t every = kedge_schedule_every(schedule, steps);
  return every && done % every == 0;
}
