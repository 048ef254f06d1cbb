/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of runs from the inside: what `kedge train` opens, one update at a time, with the gradients and
 * weights at hand. training.h runs the program itself. A failure inside fails the running cmocka test. */
#ifndef KEDGE_TESTS_SUPPORT_RUNS_H
#define KEDGE_TESTS_SUPPORT_RUNS_H

#include "models/training/step.h"

/* Two bases with priors of train.jsonl beside them, and run.yaml of training.h; makes the folder the current
 * one. `base` has softmax scores and 2 MoE layers, `sigmoid` (deepseek_v3) sigmoid scores with a selection
 * bias, groups, a shared expert and a dense layer before 2 MoE layers. Their priors: base.prior,
 * sigmoid.prior. train.jsonl has `samples` rows. */
void runs_prepare(unsigned samples);

/* One condition: overrides of a run, without the model. */
typedef struct runs_condition {
  const char *name, *overrides; /* words separated by spaces; %s stands for the base's name */
  bool sigmoid;                 /* needs a selection bias: the base `sigmoid` alone */
} runs_condition;
/* Every intervention with its variants; the last has no name. */
extern const runs_condition runs_conditions[];

typedef struct runs_session {
  kedge_config config;
  kedge_setup setup;
  kedge_stepper stepper;
  kedge_batches *batches;
} runs_session;

/* Opens run.yaml with the overrides of a condition on a base and then those of `more` (printf). */
void runs_open(runs_session *session, const char *base, const runs_condition *condition, const char *more,
               ...) __attribute__((format(printf, 4, 5)));
/* The same on one of several ranks. */
void runs_open_on(runs_session *session, kedge_comm *comm, const char *base, const runs_condition *condition,
                  const char *more, ...) __attribute__((format(printf, 5, 6)));
void runs_close(runs_session *session);

/* Moves the router weights a little, the same way each time, so that nothing stands at the base any more. */
void runs_perturb(runs_session *session);
/* The next update at this learning rate; false when the run is over. */
bool runs_update(runs_session *session, double rate, kedge_step_result *result);
/* The stepper's own steps, for micro-batches that a test makes: feeds and the base's values, forward and
 * backward into the accumulators. The pass holds the outputs. */
kedge_pass *runs_micro(runs_session *session, const kedge_update *update, const kedge_micro_batch *micro);

/* What to read of a parameter. */
typedef enum runs_what { RUNS_WEIGHT, RUNS_GRADIENT, RUNS_M, RUNS_V } runs_what;
/* All trained parameters one after another (routers alone, or all), as floats in new memory of *count
 * entries, freed by free(); RUNS_WEIGHT also reads those that are not trained. */
float *runs_read(const runs_session *session, runs_what what, bool routers, uint64_t *count);
/* Largest |a - b| over the largest |b|. */
double runs_distance(const float *a, const float *b, uint64_t count);
/* The number that a value of a pass holds. */
double runs_number(const kedge_pass *pass, kedge_value value);

#endif
