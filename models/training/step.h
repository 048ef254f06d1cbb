/* SPDX-License-Identifier: Apache-2.0
 * One update, and one evaluation, of a model: micro-batches through the passes of their buckets. For
 * trainer.c. Of several ranks each runs its part of every micro-batch; results are those of all, and the same
 * on all. A failure that only one rank met is told by all, unless the others wait for it (kedge_comm.broken).
 */
#ifndef KEDGE_MODELS_TRAINING_STEP_H
#define KEDGE_MODELS_TRAINING_STEP_H

#include "models/routing/reader.h"
#include "models/training/optimizer.h"
#include "models/training/setup.h"

enum { KEDGE_STEP_OPS = 64 }; /* room for the times of all ops */

typedef struct kedge_stepper {
  const kedge_setup *setup;
  bool lockstep; /* the passes themselves talk to other ranks: all run as many of them */
  kedge_workspace *workspace;
  kedge_optimizer optimizer;
  kedge_passes train, counting, eval; /* counting: forwards for the balance loss of a global batch */
  kedge_intervention counted[KEDGE_MAX_INTERVENTIONS], parted[KEDGE_MAX_INTERVENTIONS];
  const kedge_micro_batch *micro; /* the one that is trained on */
  kedge_feeds feeds;
  kedge_router_reader *base; /* NULL: no intervention needs it */
  uint64_t *loads;           /* [L,E] tokens of each expert in the update */
  int32_t *offsets;          /* [E+1] of a layer */
  float *counts;             /* [E] */
  double *moves;             /* [E] */
  float *totals;             /* [L,E] choices of a micro-batch that is run in parts */
} kedge_stepper;

kedge_status kedge_stepper_init(kedge_stepper *stepper, const kedge_setup *setup);
void kedge_stepper_destroy(kedge_stepper *stepper);

typedef struct kedge_step_result {
  double loss,
      aux; /* loss over the update's supervised tokens with the interventions' part; that part alone */
  double terms[KEDGE_MAX_INTERVENTIONS]; /* of each intervention, without its coefficient; 0 where it adds
                                            none */
  double load_max;             /* largest over mean number of an expert's tokens, mean over layers */
  uint32_t dead_experts;       /* without a token, over all layers */
  kedge_prior_clipped clipped; /* of the prior's cells in use */
  kedge_optimizer_norms norms;
} kedge_step_result;

/* Forward and backward of all micro-batches of the loaded update, then AdamW. Errors: ERR_NUMERIC with the
 * weights untouched. */
kedge_status kedge_stepper_update(kedge_stepper *stepper, kedge_batches *batches, const kedge_update *update,
                                  double learning_rate, kedge_step_result *result);

/* Seconds by op of all training passes and updates so far, with the forwards that count and those of the base
 * beside the run, the longest first; at most `capacity` are stored, the number of ops is returned. Nothing
 * without `profile` in the configuration. */
uint32_t kedge_stepper_times(const kedge_stepper *stepper, kedge_op_time *times, uint32_t capacity);

/* Mean loss over all supervised tokens of the evaluation samples, without interventions. */
kedge_status kedge_stepper_evaluate(kedge_stepper *stepper, double *loss);

#endif
