/* SPDX-License-Identifier: Apache-2.0
 *
 * Replacing a small file at once: written beside it, synced, renamed over it. Used by metrics.c and
 * trainer_state.c. */
#ifndef KEDGE_MODELS_TRAINING_REPLACE_H
#define KEDGE_MODELS_TRAINING_REPLACE_H

#include "core/kedge.h"

#include <stdio.h>

typedef struct kedge_replace {
  FILE *file; /* write here */
  char *path, *temporary;
} kedge_replace;

/* Errors: ERR_IO, ERR_MEMORY; nothing is left to clean up then. */
kedge_status kedge__replace_begin(kedge_replace *replace, const char *path);
/* Puts the new file in place if `written` is KEDGE_OK and the disk took all of it; else removes it. Returns
 * the first failure. */
kedge_status kedge__replace_end(kedge_replace *replace, kedge_status written);

#endif
