/* SPDX-License-Identifier: Apache-2.0
 *
 * Optimizer state of a run and the graph of one update: gradient norms, clipping, AdamW. Per parameter, never
 * one flat buffer. The gradient accumulators are filled by the training passes (kedge_optimizer_extend).
 *
 * Of several ranks each keeps the masters and moments of its share of every parameter (ZeRO stage 1):
 * gradients are summed into the shares, the shares updated, and the weights gathered from them. Experts that
 * ranks share are summed over the ranks that hold the same ones, all else over all ranks.
 */
#ifndef KEDGE_MODELS_TRAINING_OPTIMIZER_H
#define KEDGE_MODELS_TRAINING_OPTIMIZER_H

#include "core/comm.h"
#include "models/decoder/decoder.h"
#include "models/parallel/overlap.h"

typedef struct kedge_optimizer_options {
  double beta1, beta2, eps, decay, max_norm; /* max_norm <= 0: no clipping */
  bool overlap;                              /* gradients may be summed over ranks beside the backward pass */
  const bool *trained; /* one a parameter, NULL: all; the others keep their bits and are out of the norm */
} kedge_optimizer_options;

/* Buffers are f32, one a parameter, NULL for parameters that are not trained, and for empty shares. Gradients
 * are whole, the others hold the share. */
typedef struct kedge_optimizer {
  const kedge_model *model;
  kedge_comm *comm;    /* of the model's device, NULL: alone */
  kedge_share *shares; /* of each parameter, in elements */
  kedge_optimizer_options options;
  bool *trained;
  kedge_buffer **master; /* NULL where the weights themselves are f32 */
  kedge_buffer **m, **v, **grad;
  kedge_graph *graph;
  kedge_exec *exec;
  kedge_value norm_1, router_norm_1, hyper_4;
  uint32_t sums_end;      /* first node behind the sums over ranks */
  uint32_t norms_end;     /* first node of the updates: norms are known before anything changes */
  uint64_t steps;         /* updates done: t of the bias correction */
  kedge_overlap *overlap; /* NULL: sums are made when an update is complete */
  bool handing;           /* this update's gradients are handed over to it */
} kedge_optimizer;

/* Moments start at 0, masters at the weights. The model and workspace are borrowed. */
kedge_status kedge_optimizer_init(kedge_optimizer *optimizer, const kedge_model *model,
                                  const kedge_optimizer_options *options, kedge_workspace *workspace);
void kedge_optimizer_destroy(kedge_optimizer *optimizer);

/* Appends the gradient of the decoder's loss to its graph, each added to its accumulator as soon as it is
 * complete. For kedge_passes_init; context is the optimizer. */
kedge_status kedge_optimizer_extend(void *context, kedge_decoder *decoder);

/* Zeroes the accumulators. */
kedge_status kedge_optimizer_begin(kedge_optimizer *optimizer);

/* Before the first update, by all ranks: the thread that sums gradients beside the backward pass, where the
 * options want it and there can be one. */
kedge_status kedge_optimizer_open_overlap(kedge_optimizer *optimizer);
/* Bytes that the thread takes beside the tensors. */
uint64_t kedge_optimizer_overlap_bytes(const kedge_optimizer *optimizer);
/* The last micro-batch of an update begins: gradients that its pass completes may be handed over. False where
 * there is nobody to hand them to. */
bool kedge_optimizer_last(kedge_optimizer *optimizer);
/* The gradient of a parameter is complete (kedge_pass_complete); context is the optimizer. */
void kedge_optimizer_complete(void *context, uint32_t param);
/* The update is given up, by all ranks: none may wait for another one's gradients. */
void kedge_optimizer_abandon(kedge_optimizer *optimizer);

/* What an update saw: global norm of all gradients before clipping, and that of the router weights alone. */
typedef struct kedge_optimizer_norms {
  double all, router;
} kedge_optimizer_norms;

/* One AdamW update with the accumulated gradients. ERR_NUMERIC, with nothing changed, if the norm is not
 * finite. */
kedge_status kedge_optimizer_step(kedge_optimizer *optimizer, double learning_rate,
                                  kedge_optimizer_norms *norms);

/* The ranks that sum the gradient of a parameter and share its states. */
kedge_ranks kedge_optimizer_ranks(const kedge_optimizer *optimizer, uint32_t item);

/* Bytes of this rank's master weights, moments and accumulators. */
uint64_t kedge_optimizer_bytes(const kedge_optimizer *optimizer);

#endif
