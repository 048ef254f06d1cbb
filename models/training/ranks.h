/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether the ranks of a run belong together, and what they run on. All ranks call these; a comm of one rank
 * passes. For trainer.c. */
#ifndef KEDGE_MODELS_TRAINING_RANKS_H
#define KEDGE_MODELS_TRAINING_RANKS_H

#include "core/comm.h"
#include "models/training/run_checkpoint.h"

/* ERR_MISMATCH, naming the key, unless all ranks have one version of Kedge and one configuration. */
kedge_status kedge_ranks_check(kedge_comm *comm, const kedge_config *config);
/* The same for the contents of model, samples, priors and trace, by their hashes in the record. */
kedge_status kedge_ranks_check_contents(kedge_comm *comm, const kedge_run_record *record);
/* ERR_IO, naming the first rank, unless all ranks have the same folder under this path: rank 0 leaves a file
 * in it, for which the others look. Better told before the first update than at the first checkpoint. */
kedge_status kedge_ranks_see(kedge_comm *comm, const char *folder);
/* Gives rank 0 a line about every rank: host, device, which experts. */
kedge_status kedge_ranks_tell(kedge_comm *comm, const kedge_device *device,
                              void (*tell)(void *context, const char *line), void *context);

#endif
