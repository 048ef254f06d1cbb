/* SPDX-License-Identifier: Apache-2.0
 *
 * What `kedge train` tells of a run before it begins (train_describe.c). */
#ifndef KEDGE_TOOLS_TRAIN_H
#define KEDGE_TOOLS_TRAIN_H

#include "models/training/setup.h"

/* The resolved configuration on standard output; device, model, data and interventions on standard error. */
void train_describe(const kedge_setup *setup);

/* Opens all that a run needs, as training does, and tells what it would do: besides the above the updates,
 * the tokens and the memory. Writes no file. */
kedge_status train_dry_run(const kedge_config *config, kedge_note note, void *context);

#endif
