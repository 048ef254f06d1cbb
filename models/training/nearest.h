/* SPDX-License-Identifier: Apache-2.0
 *
 * The word that a misspelled one was probably meant to be. Used by configuration keys and by the program's
 * options. */
#ifndef KEDGE_MODELS_TRAINING_NEAREST_H
#define KEDGE_MODELS_TRAINING_NEAREST_H

#include "core/kedge.h"

/* Remembers the closest of the candidates offered so far. Start from {.word = ...}. */
typedef struct kedge_nearest {
  const char *word;
  const char *best; /* NULL: none is close. Borrowed, not NUL-terminated: `length` bytes. */
  size_t length;
  uint32_t distance;
} kedge_nearest;

/* Offers the first `length` bytes of `candidate`. Close means few letters changed, swapped, added or dropped
 * (1 of up to 7, 2 of up to 11, else 3), or that the word, of 5 letters at least, is the begin of the
 * candidate or its last words; case and the choice between - and _ aside. The first of several equally close
 * ones is kept. */
void kedge__nearest_offer(kedge_nearest *nearest, const char *candidate, size_t length);
/* Offers every entry of a comma-separated list. */
void kedge__nearest_offer_list(kedge_nearest *nearest, const char *list);

#endif
