/* SPDX-License-Identifier: Apache-2.0
 * Edit distance between short words (nearest.h). */
#include "models/training/nearest.h"

#include <string.h>

enum { MAX_WORD = 64 };

static char folded(char c) {
  if (c >= 'A' && c <= 'Z') return (char)(c - 'A' + 'a');
  return c == '-' ? '_' : c;
}

static uint32_t smaller(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

/* Edits (change, add, drop, swap of neighbours) from a to b; both at most MAX_WORD bytes. */
static uint32_t edits(const char *a, size_t a_length, const char *b, size_t b_length) {
  uint32_t rows[3][MAX_WORD + 1];
  for (size_t j = 0; j <= b_length; j++) rows[0][j] = (uint32_t)j;
  for (size_t i = 1; i <= a_length; i++) {
    uint32_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
    row[0] = (uint32_t)i;
    for (size_t j = 1; j <= b_length; j++) {
      bool same = folded(a[i - 1]) == folded(b[j - 1]);
      row[j] = smaller(above[j - 1] + !same, smaller(above[j], row[j - 1]) + 1);
      bool swapped =
          i > 1 && j > 1 && folded(a[i - 1]) == folded(b[j - 2]) && folded(a[i - 2]) == folded(b[j - 1]);
      if (swapped) row[j] = smaller(row[j], above2[j - 2] + 1);
    }
  }
  return rows[a_length % 3][b_length];
}

void kedge__nearest_offer(kedge_nearest *nearest, const char *candidate, size_t length) {
  size_t word_length = strlen(nearest->word);
  if (!word_length || word_length > MAX_WORD || !length || length > MAX_WORD) return;
  uint32_t limit = (uint32_t)(word_length / 3 > 2 ? word_length / 3 : 2);
  uint32_t distance = edits(nearest->word, word_length, candidate, length);
  if (distance > limit || distance >= word_length) return;
  if (nearest->best && distance >= nearest->distance) return;
  nearest->best = candidate;
  nearest->length = length;
  nearest->distance = distance;
}

void kedge__nearest_offer_list(kedge_nearest *nearest, const char *list) {
  while (*list) {
    size_t length = strcspn(list, ",");
    kedge__nearest_offer(nearest, list, length);
    list += length;
    if (*list) list++;
  }
}
