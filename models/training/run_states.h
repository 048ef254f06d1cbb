/* SPDX-License-Identifier: Apache-2.0
 *
 * Masters and moments in a checkpoint: optimizer.safetensors of a single rank, with whole tensors
 * "<state>.<name>", or of several ranks a file each, optimizer-<rank>-of-<ranks>.safetensors, with what the
 * rank keeps: "<state>.<name>@ <first element>", of one dimension, numbered over all experts. For
 * run_checkpoint.c. */
#ifndef KEDGE_MODELS_TRAINING_RUN_STATES_H
#define KEDGE_MODELS_TRAINING_RUN_STATES_H

#include "models/parallel/ranges.h"
#include "models/training/optimizer.h"

/* Writes this rank's file into `folder`. Not collective. */
kedge_status kedge_states_save(const kedge_optimizer *optimizer, const char *folder);

/* ERR_FORMAT unless every file of a checkpoint that was written by a run of this layout is there and can be
 * opened. */
kedge_status kedge_states_check(const char *checkpoint, kedge_layout layout);

/* Reads what this rank keeps, and its weights whole, from a checkpoint that was written by a run of that
 * layout, whatever the layout of this one. ERR_MISMATCH names a tensor that is absent or has another size.
 * Not collective.
 */
kedge_status kedge_states_load(kedge_optimizer *optimizer, const char *checkpoint, kedge_layout layout);

/* Bytes of this rank's states. */
uint64_t kedge_states_bytes(const kedge_optimizer *optimizer);

#endif
