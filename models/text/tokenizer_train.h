/* SPDX-License-Identifier: Apache-2.0
 *
 * Training a tokenizer: byte-level byte-pair encoding over the texts of data files. Siblings:
 * tokenizer_train.c (pieces and files), bpe_train.c (merges); tokenizer.h opens what is written here.
 */
#ifndef KEDGE_MODELS_TEXT_TOKENIZER_TRAIN_H
#define KEDGE_MODELS_TEXT_TOKENIZER_TRAIN_H

#include "models/text/jsonl.h"

/* The 256 bytes are always tokens. */
enum {
  KEDGE_TOKENIZER_MIN_SIZE = 256,
  KEDGE_TOKENIZER_MAX_SIZE = 1 << 20,
  KEDGE_TOKENIZER_MAX_SPECIALS = 64
};

typedef struct kedge_tokenizer_trainer kedge_tokenizer_trainer;

typedef struct kedge_tokenizer_trainer_stats {
  uint64_t records, skipped; /* of files: read, and bad lines passed over */
  uint64_t texts, bytes;     /* counted */
  uint32_t pieces;           /* different ones */
} kedge_tokenizer_trainer_stats;

/* Errors: ERR_MEMORY. Owned by the caller. */
kedge_status kedge_tokenizer_trainer_new(kedge_tokenizer_trainer **trainer);
void kedge_tokenizer_trainer_free(kedge_tokenizer_trainer *trainer);

/* Counts the pieces of UTF-8 `text` [length bytes]: single digits (any character of class N), runs of letters
 * or of other signs, each with one space before it or without, runs of white space. Memory grows with the
 * different pieces alone. Errors: ERR_FORMAT for invalid UTF-8, ERR_UNSUPPORTED over 256 MiB of different
 * pieces, ERR_MEMORY. */
kedge_status kedge_tokenizer_trainer_add(kedge_tokenizer_trainer *trainer, const char *text, size_t length);

typedef struct kedge_tokenizer_reading {
  bool skip_bad_lines; /* count bad lines and go on */
  kedge_notice notice; /* may be NULL */
  /* Called every few thousand records; false stops with ERR_INTERRUPTED. May be NULL; `total` is 0 where
   * unknown. */
  bool (*progress)(void *context, uint64_t bytes, uint64_t total, uint64_t records);
  void *context; /* of both */
} kedge_tokenizer_reading;

/* Counts the texts of a data file (samples.h): of each record the fields of its format, each a text of its
 * own; of chat turns their contents. Other fields are not read. `reading` may be NULL. Errors: those of
 * kedge_jsonl and of kedge_tokenizer_trainer_add, "file:line: ...". */
kedge_status kedge_tokenizer_trainer_read(kedge_tokenizer_trainer *trainer, const char *path,
                                          const kedge_tokenizer_reading *reading);

kedge_tokenizer_trainer_stats kedge_tokenizer_trainer_counted(const kedge_tokenizer_trainer *trainer);

/* Learns a vocabulary of `size` tokens (fewer where the text has no more pairs to merge; *made tells) and
 * writes tokenizer.json and tokenizer_config.json into `directory`, which is made if it is not there. Ids are
 * in order: the special tokens, the bytes, the merges. The first special token ends a text (eos).
 * The result depends on what was counted alone, not on its order. Rule of ties: bpe_train.h; it is that of
 * the `tokenizers` library's trainer, whose file of the same counts is the same byte for byte. Errors:
 * ERR_ARGUMENT for a size out of range or below that of specials and bytes, no special token, more than
 * KEDGE_TOKENIZER_MAX_SPECIALS, one that is empty, repeated or a byte's spelling; ERR_FORMAT if no text was
 * counted; ERR_IO, ERR_MEMORY. */
kedge_status kedge_tokenizer_trainer_save(const kedge_tokenizer_trainer *trainer, uint32_t size,
                                          const char *const *specials, size_t special_count,
                                          const char *directory, uint32_t *made);

#endif
