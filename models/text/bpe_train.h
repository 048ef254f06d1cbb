/* SPDX-License-Identifier: Apache-2.0
 *
 * Learning the merges of byte-pair encoding from counted pieces. Siblings: bpe_train.c; tokenizer_train.c
 * counts the pieces and writes the files; bpe.h has the tables.
 */
#ifndef KEDGE_MODELS_TEXT_BPE_TRAIN_H
#define KEDGE_MODELS_TEXT_BPE_TRAIN_H

#include "models/text/bpe.h"

enum { KEDGE__LEARN_MAX_BYTES = 1 << 28 };

/* Different pieces of text (raw bytes) and how often each was seen. */
typedef struct kedge__piece_counts {
  kedge__vocab pieces; /* numbers without holes */
  uint64_t *counts;    /* [pieces.size] */
  size_t capacity;     /* of counts */
  uint64_t bytes;      /* of the different pieces together, at most KEDGE__LEARN_MAX_BYTES */
} kedge__piece_counts;

/* Learns merges until `vocab` has `size` entries or no two symbols stand side by side any more. `vocab` comes
 * with the spellings of all 256 bytes in the byte alphabet (and, it may be, special tokens) and grows by the
 * spelling of each new token, numbered in order. The pair that is seen most often goes first; of equal ones,
 * that whose left number, then whose right number, is lower. A merge whose spelling is in the vocabulary
 * already gives that token. Time and memory grow with the bytes of the different pieces alone, whatever they
 * hold. *merges, ordered by rank, is new memory owned by the caller. Errors: ERR_MEMORY. */
kedge_status kedge__bpe_learn(const kedge__piece_counts *text, uint32_t size, kedge__vocab *vocab,
                              kedge__merge **merges, size_t *count);

#endif
