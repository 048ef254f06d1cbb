/* SPDX-License-Identifier: Apache-2.0
 *
 * Byte-pair encoding of one piece: vocabulary, merge table, and the merging itself. Siblings: bpe.c
 * (merging), bpe_table.c (tables). Files and pipelines are the business of the tokenizer files.
 */
#ifndef KEDGE_MODELS_TEXT_BPE_H
#define KEDGE_MODELS_TEXT_BPE_H

#include "models/text/unicode.h"

/* Strings <-> numbers: the spellings of all tokens in one blob, each closed by a 0 byte, and a hash table of
 * numbers over it. Numbers may have holes. */
typedef struct kedge__vocab {
  kedge__bytes blob;
  uint32_t *offsets; /* [size] into the blob; UINT32_MAX marks a hole */
  uint32_t *lengths; /* [size] bytes */
  uint32_t *slots;   /* [slot_count] number + 1, 0 is free */
  uint32_t size;     /* largest number + 1 */
  uint32_t capacity, slot_count, count;
} kedge__vocab;

/* Adds a string under a number. Errors: ERR_FORMAT where the string or the number is already taken,
 * ERR_MEMORY. The caller has checked that the number is reasonable: memory is in proportion to the largest.
 */
kedge_status kedge__vocab_add(kedge__vocab *vocab, const char *text, size_t length, uint32_t number);
/* The number of a string, -1 if it has none. */
int32_t kedge__vocab_find(const kedge__vocab *vocab, const char *text, size_t length);
/* The string of a number (0-closed), NULL for a hole or beyond the end. */
const char *kedge__vocab_text(const kedge__vocab *vocab, uint32_t number, size_t *length);
void kedge__vocab_free(kedge__vocab *vocab);

/* One merge: the neighbours `left` and `right` become `id`; the lowest rank goes first. */
typedef struct kedge__merge {
  uint32_t left, right, rank, id;
} kedge__merge;

/* Hash table of merges by (left, right); a free slot has id UINT32_MAX. */
typedef struct kedge__merges {
  kedge__merge *slots;
  size_t slot_count, count;
} kedge__merges;

/* Adds a merge; a second one of the same pair replaces the first, as in the reference library. */
kedge_status kedge__merges_add(kedge__merges *merges, kedge__merge merge);
/* The merge of a pair, NULL if there is none. */
const kedge__merge *kedge__merges_find(const kedge__merges *merges, uint32_t left, uint32_t right);
void kedge__merges_free(kedge__merges *merges);

enum { KEDGE__UNK_NONE = -1, KEDGE__UNK_LOST = -2 };

typedef struct kedge__bpe {
  kedge__vocab vocab;
  kedge__merges merges;
  int32_t first[KEDGE__ALPHABET_END]; /* ids of the one-character tokens of low code points, -1 none */
  int32_t byte_ids[256];              /* ids of <0x00> to <0xFF>, -1 none */
  /* KEDGE__UNK_NONE: unknown characters are dropped; KEDGE__UNK_LOST: the token that should stand for them is
   * not in the vocabulary, and they are an error. Both as in the reference library. */
  int32_t unk;
  bool fuse_unk, byte_fallback;
  bool whole_first; /* a piece that is a token is that token, whatever the merges say */
} kedge__bpe;

/* Fills `first` and `byte_ids` once the vocabulary is complete. */
void kedge__bpe_index(kedge__bpe *bpe);
void kedge__bpe_free(kedge__bpe *bpe);

typedef struct kedge__ids {
  int32_t *data;
  size_t length, capacity;
} kedge__ids;
kedge_status kedge__ids_push(kedge__ids *ids, int32_t id);
void kedge__ids_free(kedge__ids *ids);

/* Memory of one caller, reused from piece to piece. All zero is empty. */
typedef struct kedge__bpe_scratch {
  struct kedge__symbol *symbols;
  struct kedge__candidate *heap;
  size_t symbol_capacity, heap_capacity;
} kedge__bpe_scratch;
void kedge__bpe_scratch_free(kedge__bpe_scratch *scratch);

/* Appends the ids of one piece of valid UTF-8 (at most UINT32_MAX / 4 characters). Only merges of a rank
 * below `rank_end` take part (UINT32_MAX: all), and the whole-piece rule only where all do. Time is n log n
 * in the piece's length. */
kedge_status kedge__bpe_encode(const kedge__bpe *bpe, kedge__bpe_scratch *scratch, const char *text,
                               size_t length, uint32_t rank_end, kedge__ids *ids);

#endif
