/* SPDX-License-Identifier: Apache-2.0
 *
 * Notes: one-line remarks about an input that is usable but worth a word (a stray file, a default taken). The
 * library never prints; a caller shows them. Used by checkpoint.h, save.h and hf_config.h. */
#ifndef KEDGE_MODELS_CHECKPOINT_NOTES_H
#define KEDGE_MODELS_CHECKPOINT_NOTES_H

#include "core/kedge.h"

/* Caller-owned; zeroed memory is an empty list. `items[0..count)` are owned by the list. */
typedef struct kedge_notes {
  char **items;
  uint32_t count, capacity;
} kedge_notes;

/* Appends a formatted note. `notes` may be NULL: nothing happens. ERR_MEMORY on failure. */
kedge_status kedge_notes_add(kedge_notes *notes, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Frees the strings and leaves an empty list. */
void kedge_notes_destroy(kedge_notes *notes);

#endif
