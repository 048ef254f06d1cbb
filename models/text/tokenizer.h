/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizers: text <-> ids. One object reads a Hugging Face tokenizer.json or a tiktoken ranks file and gives
 * the ids that the reference libraries give. Immutable after opening; may be shared by threads.
 */
#ifndef KEDGE_MODELS_TEXT_TOKENIZER_H
#define KEDGE_MODELS_TEXT_TOKENIZER_H

#include "core/kedge.h"

typedef struct kedge_tokenizer kedge_tokenizer;

/* Opens `path`: a tokenizer.json, a tiktoken ranks file, or a model directory that holds tokenizer.json,
 * tiktoken.model, one
 * *.tiktoken, vocab.json with merges.txt or encoder.json with vocab.bpe (the first of these). Special tokens,
 * chat template and bos/eos/pad of tokenizer_config.json, special_tokens_map.json, chat_template.jinja and
 * config.json are read from a directory, and from beside a file that is named tokenizer.json.
 *
 * `kind` is NULL or "qwen", "gpt2", "kimi": pattern and special tokens of a file that has none. A ranks file
 * may be two things:
 *   - with `kind` NULL, a file by itself is the bare encoding that the tiktoken library has (its kind is told
 * by its number of ranks): text is not normalised, and KEDGE_ENCODE_PLAIN recognises no added token whatever;
 *   - with `kind` given, or in a directory, it is the model's tokenizer: qwen text is brought to NFC, and
 * tokens such as <think>, which qwen does not count as special, are recognised in plain text. This is what
 * the published tokenizer.json and the one that kedge_tokenizer_save writes do.
 *
 * Errors: ERR_IO, ERR_FORMAT (names the file and the field), ERR_ARGUMENT (no such kind), ERR_UNSUPPORTED (a
 * pipeline stage or a pattern that Kedge does not run: never ignored), ERR_MEMORY. Owned by the caller. */
kedge_status kedge_tokenizer_open(const char *path, const char *kind, kedge_tokenizer **tokenizer);
void kedge_tokenizer_free(kedge_tokenizer *tokenizer);

enum {
  KEDGE_ENCODE_PLAIN = 0, /* text is ordinary text: special tokens in it are not recognised (added ones that
                           * are not special are words of the vocabulary, and are) */
  KEDGE_ENCODE_SPECIAL = 1 << 0, /* special tokens written in the text become their ids */
  KEDGE_ENCODE_TEMPLATE =
      1 << 1, /* the file's post-processor adds its tokens (BOS), as encode() of the reference does */
  KEDGE_ENCODE_LATER = 1 << 2,   /* the text is not the beginning of the whole: nothing goes before it that a
                                  * tokenizer puts at the very start only */
  KEDGE_ENCODE_CONTINUE = 1 << 3 /* nor what it puts before every stretch of text: no added token stands
                                  * between this text and the one before */
};

/* Ids of UTF-8 `text` [length bytes]. *ids is new memory of *count entries, owned by the caller. Invalid
 * UTF-8 is ERR_FORMAT with the byte offset. */
kedge_status kedge_tokenizer_encode(const kedge_tokenizer *tokenizer, const char *text, size_t length,
                                    unsigned flags, int32_t **ids, size_t *count);

/* Bytes of the ids, special tokens included unless `skip_special`. The bytes may end inside a UTF-8
 * character. *text is new memory with a closing 0 byte, owned by the caller; *length excludes it. An id
 * outside the vocabulary is ERR_ARGUMENT. */
kedge_status kedge_tokenizer_decode(const kedge_tokenizer *tokenizer, const int32_t *ids, size_t count,
                                    bool skip_special, char **text, size_t *length);

/* Largest id + 1 over vocabulary and added tokens. */
uint32_t kedge_tokenizer_size(const kedge_tokenizer *tokenizer);
/* Id of a token by its literal content (vocabulary spelling or added token), -1 if there is none. */
int32_t kedge_tokenizer_id(const kedge_tokenizer *tokenizer, const char *content);
/* The literal content of an id (vocabulary spelling), NULL if there is none. Borrowed. */
const char *kedge_tokenizer_content(const kedge_tokenizer *tokenizer, int32_t id);
/* -1 where the files name none. `eos` is the tokenizer's, not the generation config's. */
int32_t kedge_tokenizer_bos(const kedge_tokenizer *tokenizer);
int32_t kedge_tokenizer_eos(const kedge_tokenizer *tokenizer);
int32_t kedge_tokenizer_pad(const kedge_tokenizer *tokenizer);
/* True for an added token that is marked special: `skip_special` leaves it out. */
bool kedge_tokenizer_is_special(const kedge_tokenizer *tokenizer, int32_t id);
/* True if encoding a whole document puts BOS first (post-processor or add_bos_token). */
bool kedge_tokenizer_adds_bos(const kedge_tokenizer *tokenizer);

/* The Jinja chat template of the files (the one named "default" of several), NULL if there is none. Borrowed.
 */
const char *kedge_tokenizer_chat_template(const kedge_tokenizer *tokenizer);

/* "tokenizer.json" or "tiktoken qwen": what was read, for messages. Borrowed. */
const char *kedge_tokenizer_description(const kedge_tokenizer *tokenizer);
/* 32 hex digits over everything that decides ids (vocabulary, merges, pipeline, added tokens). Borrowed. */
const char *kedge_tokenizer_hash(const kedge_tokenizer *tokenizer);

/* Writes tokenizer.json, tokenizer_config.json and special_tokens_map.json (and chat_template.jinja where
 * there was one) into the existing `directory`, readable by the reference libraries. What was read from files
 * is copied byte for byte; a ranks file or a vocabulary with merges is converted, as the model's tokenizer of
 * its kind (see kedge_tokenizer_open). Each file
 * appears whole or not at all.
 * Errors: ERR_IO, ERR_MEMORY. */
kedge_status kedge_tokenizer_save(const kedge_tokenizer *tokenizer, const char *directory);

#endif
