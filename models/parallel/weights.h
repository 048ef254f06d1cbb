/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights that lie on several ranks, read as if they lay on one: rank 0 writes a model's files, and the other
 * ranks answer what it asks for. */
#ifndef KEDGE_MODELS_PARALLEL_WEIGHTS_H
#define KEDGE_MODELS_PARALLEL_WEIGHTS_H

#include "models/parallel/ranges.h"
#include "models/training/optimizer.h"

/* Saves the model as kedge_model_save does, with masters where there are some, from all ranks: rank 0 writes
 * into `folder`, which the others do not look at. Called by all; each gets its own status, which they must
 * agree on. */
kedge_status kedge_weights_save(const kedge_optimizer *optimizer, const char *folder, kedge_notes *notes);

#endif
