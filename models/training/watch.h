/* SPDX-License-Identifier: Apache-2.0
 *
 * Watches a run's routing: how much of the base's choices on one fixed batch of held-out (or else training)
 * samples the model still makes. For trainer.c; `kedge probe` measures in full.
 */
#ifndef KEDGE_MODELS_TRAINING_WATCH_H
#define KEDGE_MODELS_TRAINING_WATCH_H

#include "models/retention/retention.h"
#include "models/routing/reader.h"
#include "models/training/setup.h"

enum { KEDGE_WATCH_TOKENS = 2048 };

typedef struct kedge_watch {
  kedge_batches *batches; /* holds the batch */
  kedge_micro_batch batch;
  kedge_router_reader *reader; /* of the run's model */
  kedge_trace base, now;
  int32_t *ids_LTK;
} kedge_watch;

/* The batch is the first samples of the evaluation data, or without them of the training data, up to 2048
 * tokens, at least one sample. Runs the base on it: `base` reads its routers, or is NULL to have it opened
 * for that. The workspace is borrowed. On failure nothing is left open. */
kedge_status kedge_watch_init(kedge_watch *watch, const kedge_setup *setup, kedge_workspace *workspace,
                              kedge_router_reader *base);
void kedge_watch_destroy(kedge_watch *watch);

/* Compares the model as it is now with the base. The result is the caller's to destroy. */
kedge_status kedge_watch_measure(kedge_watch *watch, kedge_retention *retention);

#endif
