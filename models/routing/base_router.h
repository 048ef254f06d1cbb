/* SPDX-License-Identifier: Apache-2.0
 *
 * The frozen base beside a run: its router's logits and choices for the tokens at hand, of every MoE layer.
 * For interventions that hold a token to what the base does with that token (kl_token, replay), and for the
 * share of the base's choices that a run still makes.
 */
#ifndef KEDGE_MODELS_ROUTING_BASE_ROUTER_H
#define KEDGE_MODELS_ROUTING_BASE_ROUTER_H

#include "models/decoder/pass.h"
#include "models/training/batches.h"

typedef struct kedge_base_router kedge_base_router;

/* Maps the model of a directory. The workspace is shared with the run's own passes and borrowed; one pass
 * runs at a time. Errors: those of kedge_model_map. Owned by the caller. */
kedge_status kedge_base_router_open(kedge_device *device, const char *directory, kedge_dtype dtype,
                                    kedge_workspace *workspace, kedge_base_router **base);
void kedge_base_router_free(kedge_base_router *base);

/* Runs the base on a micro-batch. logits_LTE f32 [L,T,E] and ids_LTK i32 [L,T,K] (-1 in padding) are filled
 * where they are not NULL, T = batch->size. ERR_NUMERIC for scores that are not finite. */
kedge_status kedge_base_router_run(kedge_base_router *base, const kedge_micro_batch *batch, float *logits_LTE,
                                   int32_t *ids_LTK);

#endif
