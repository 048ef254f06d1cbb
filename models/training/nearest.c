/* SPDX-License-Identifier: Apache-2.0
 * Edit distance between short words (nearest.h). */
#include "models/training/nearest.h"

#include <string.h>

enum { MAX_WORD = 64, MOST_EDITS = 3, SHORTEST_PART = 5 };

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

/* Whether a candidate begins with all of the word, or ends with it as whole words: "max_seq_len" is the begin
 * of max_seq_length, "batch_size" the end of micro_batch_size. */
static bool abbreviates(const char *word, size_t word_length, const char *candidate, size_t length) {
  if (word_length < SHORTEST_PART || length <= word_length) return false;
  bool begins = true, ends = folded(candidate[length - word_length - 1]) == '_';
  for (size_t i = 0; i < word_length; i++) {
    begins = begins && folded(word[i]) == folded(candidate[i]);
    ends = ends && folded(word[i]) == folded(candidate[length - word_length + i]);
  }
  return begins || ends;
}

void kedge__nearest_offer(kedge_nearest *nearest, const char *candidate, size_t length) {
  size_t word_length = strlen(nearest->word);
  if (!word_length || word_length > MAX_WORD || !length || length > MAX_WORD) return;
  uint32_t limit = word_length < 8 ? 1 : word_length < 12 ? 2 : MOST_EDITS;
  uint32_t distance = edits(nearest->word, word_length, candidate, length);
  if (distance > limit && abbreviates(nearest->word, word_length, candidate, length))
    distance = MOST_EDITS + 1;
  else if (distance > limit || distance >= word_length)
    return;
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
