/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a model's routers for the tokens at hand: logits and choices of every MoE layer, without any
 * intervention. Of the frozen base beside a run, for interventions that hold a token to what the base does
 * with it (kl_token, replay); of base and run, to watch what is kept.
 */
#ifndef KEDGE_MODELS_ROUTING_READER_H
#define KEDGE_MODELS_ROUTING_READER_H

#include "models/decoder/pass.h"
#include "models/training/batches.h"

typedef struct kedge_router_reader kedge_router_reader;

/* Of a model that is borrowed. The workspace is shared with a run's own passes and borrowed too: one pass
 * runs at a time. Owned by the caller. */
kedge_status kedge_router_reader_new(const kedge_model *model, kedge_workspace *workspace,
                                     kedge_router_reader **reader);
/* Of the model in a directory, mapped: on the device, in the dtype and with the options of `like`. Errors:
 * those of kedge_model_open. */
kedge_status kedge_router_reader_open(const kedge_model *like, const char *directory,
                                      kedge_workspace *workspace, kedge_router_reader **reader);
void kedge_router_reader_free(kedge_router_reader *reader);

/* Runs the model on a micro-batch. logits_LTE f32 [L,T,E] and ids_LTK i32 [L,T,K] (-1 in padding) are filled
 * where they are not NULL, T = batch->size. ERR_NUMERIC for scores that are not finite. */
kedge_status kedge_router_reader_run(kedge_router_reader *reader, const kedge_micro_batch *batch,
                                     float *logits_LTE, int32_t *ids_LTK);

/* Its passes, for profiling; borrowed. */
kedge_passes *kedge_router_reader_passes(kedge_router_reader *reader);

#endif
