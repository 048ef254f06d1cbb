/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizers: text <-> ids. One object reads a Hugging Face tokenizer.json or a tiktoken ranks file and gives the ids that the
 * reference libraries give. Immutable after opening; may be shared by threads.
 */
#ifndef KEDGE_MODELS_TEXT_TOKENIZER_H
#define KEDGE_MODELS_TEXT_TOKENIZER_H

#include "core/kedge.h"

typedef struct kedge_tokenizer kedge_tokenizer;

/* Opens `path`: a tokenizer.json, a tiktoken ranks file, or a model directory that holds one of them (tokenizer.json first;
 * special tokens, chat template and bos/eos of tokenizer_config.json, special_tokens_map.json and config.json are read where
 * present). `kind` is NULL or "qwen", "gpt2", "kimi": pattern and special tokens of a ranks file whose rank count does not
 * tell. Errors: ERR_IO, ERR_FORMAT (names the file and the field), ERR_UNSUPPORTED (a pipeline stage that Kedge does not
 * run: never ignored). Owned by the caller. */
kedge_status kedge_tokenizer_open(const char *path, const char *kind, kedge_tokenizer **tokenizer);
void kedge_tokenizer_free(kedge_tokenizer *tokenizer);

enum {
  KEDGE_ENCODE_PLAIN = 0,        /* text is ordinary text: special tokens in it are not recognised */
  KEDGE_ENCODE_SPECIAL = 1 << 0, /* special (added) tokens written in the text become their ids */
  KEDGE_ENCODE_TEMPLATE = 1 << 1 /* the file's post-processor adds its tokens (BOS), as encode() of the reference does */
};

/* Ids of UTF-8 `text` [length bytes]. *ids is new memory of *count entries, owned by the caller. Invalid UTF-8 is ERR_FORMAT
 * with the byte offset. */
kedge_status kedge_tokenizer_encode(const kedge_tokenizer *tokenizer, const char *text, size_t length, unsigned flags,
                                    int32_t **ids, size_t *count);

/* Bytes of the ids, special tokens included unless `skip_special`. The bytes may end inside a UTF-8 character. *text is new
 * memory with a closing 0 byte, owned by the caller; *length excludes it. An id outside the vocabulary is ERR_ARGUMENT. */
kedge_status kedge_tokenizer_decode(const kedge_tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special,
                                    char **text, size_t *length);

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
/* True if encoding a whole document puts BOS first (post-processor or add_bos_token). */
bool kedge_tokenizer_adds_bos(const kedge_tokenizer *tokenizer);

/* "tokenizer.json" or "tiktoken qwen": what was read, for messages. Borrowed. */
const char *kedge_tokenizer_description(const kedge_tokenizer *tokenizer);
/* 32 hex digits over everything that decides ids (vocabulary, merges, pipeline, added tokens). Borrowed. */
const char *kedge_tokenizer_hash(const kedge_tokenizer *tokenizer);

/* Writes tokenizer.json and tokenizer_config.json (and special_tokens_map.json) into `directory`, readable by the reference
 * library; a tokenizer opened from tokenizer.json is copied byte for byte, a ranks file is converted (merges rebuilt). */
kedge_status kedge_tokenizer_save(const kedge_tokenizer *tokenizer, const char *directory);

#endif
