/* SPDX-License-Identifier: Apache-2.0
 * A growing list of one-line strings (notes.h). */
#include "models/checkpoint/notes.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { NOTE_SIZE = 1024 };

kedge_status kedge_notes_add(kedge_notes *notes, const char *format, ...) {
  if (!notes) return KEDGE_OK;
  char raw[NOTE_SIZE];
  va_list list;
  va_start(list, format);
  vsnprintf(raw, sizeof raw, format, list);
  va_end(list);
  /* A note is one line whatever a file put into a name. */
  for (char *c = raw; *c; c++)
    if ((unsigned char)*c < 32 || *c == 127) *c = '?';
  if (notes->count == notes->capacity) {
    uint32_t capacity = notes->capacity ? 2 * notes->capacity : 8;
    char **items = kedge_realloc(notes->items, capacity, sizeof *items);
    if (!items) return KEDGE_ERR_MEMORY;
    notes->items = items;
    notes->capacity = capacity;
  }
  char *note = kedge_strdup(raw);
  if (!note) return KEDGE_ERR_MEMORY;
  notes->items[notes->count++] = note;
  return KEDGE_OK;
}

void kedge_notes_destroy(kedge_notes *notes) {
  for (uint32_t i = 0; i < notes->count; i++) kedge_free(notes->items[i]);
  kedge_free(notes->items);
  memset(notes, 0, sizeof *notes);
}
