/* SPDX-License-Identifier: Apache-2.0
 *
 * The tokenizer's inside. A tokenizer is a list of stages around a byte-pair model; a stage is a row: one
 * function and its options. Siblings: tokenizer.c         opening, encoding, decoding, questions
 *   tokenizer_json.c    tokenizer.json: model and added tokens
 *   tokenizer_stage.c   what the stages do;  tokenizer_pipeline.c  reading them from tokenizer.json
 *   tokenizer_added.c   added tokens in a text
 *   tokenizer_ranks.c   ranks files, vocabulary and merges files, the known kinds of them
 *   tokenizer_config.c  tokenizer_config.json and its companions
 *   tokenizer_save.c    writing a model directory's tokenizer files
 */
#ifndef KEDGE_MODELS_TEXT_TOKENIZER_INTERNAL_H
#define KEDGE_MODELS_TEXT_TOKENIZER_INTERNAL_H

#include "models/text/bpe.h"
#include "models/text/tokenizer.h"
#include "models/text/tokenizer_regex.h"

#include <jansson.h>

typedef struct kedge__span {
  uint32_t start, length;
} kedge__span;

/* A text and the pieces it is cut into, in order. */
typedef struct kedge__pieces {
  kedge__bytes text;
  kedge__span *spans;
  size_t count, capacity;
} kedge__pieces;
kedge_status kedge__pieces_push(kedge__pieces *pieces, size_t start, size_t length);

/* A stretch of text, or an added token found in it. */
typedef struct kedge__segment {
  size_t start, length;
  int32_t id; /* -1: text */
} kedge__segment;

typedef struct kedge__segments {
  kedge__segment *data;
  size_t count, capacity;
} kedge__segments;

/* Memory of one encode or decode call. */
typedef struct kedge__work {
  kedge__pieces now, next; /* a stage reads `now`, writes `next`, and swaps what it wrote */
  bool at_start;           /* the first piece begins the whole text */
  bool continues;          /* the first piece goes on where another text ended: nothing is put before it */
  kedge__segments raw, normalized;
  kedge__bytes text; /* a normalised segment */
  kedge__ids ids;
  kedge__regex_scratch regex;
  kedge__bpe_scratch bpe;
} kedge__work;
void kedge__work_free(kedge__work *work);

typedef enum kedge__behavior {
  KEDGE__REMOVED,
  KEDGE__ISOLATED,
  KEDGE__MERGED_WITH_PREVIOUS,
  KEDGE__MERGED_WITH_NEXT,
  KEDGE__CONTIGUOUS
} kedge__behavior;

typedef enum kedge__prepend { KEDGE__ALWAYS, KEDGE__FIRST, KEDGE__NEVER } kedge__prepend;

/* A stage of normalisation, pre-tokenisation or decoding. Which options are used is said at the function. */
typedef struct kedge__stage {
  kedge_status (*run)(const struct kedge__stage *stage, kedge__work *work);
  kedge__regex *regex;
  kedge__behavior behavior;
  bool invert;
  kedge__form form;
  kedge__prepend prepend;
  char *content; /* 0-closed */
  size_t content_length, start, stop;
} kedge__stage;

typedef struct kedge__stages {
  kedge__stage *items;
  size_t count, capacity;
} kedge__stages;

/* Appends a stage and takes over its regex and content, also on failure. */
kedge_status kedge__stages_push(kedge__stages *stages, kedge__stage stage);
kedge_status kedge__stages_run(const kedge__stages *stages, kedge__work *work);
void kedge__stages_free(kedge__stages *stages);

/* What stages do (tokenizer_stage.c). Options in brackets. */
kedge_status kedge__stage_split(const kedge__stage *stage, kedge__work *work); /* [regex, behavior, invert] */
kedge_status kedge__stage_spell(const kedge__stage *stage,
                                kedge__work *work); /* bytes to the byte alphabet */
kedge_status kedge__stage_prefix(const kedge__stage *stage,
                                 kedge__work *work); /* [content, prepend] unless there */
kedge_status kedge__stage_normalize(const kedge__stage *stage, kedge__work *work); /* [form] */
kedge_status kedge__stage_lowercase(const kedge__stage *stage,
                                    kedge__work *work); /* every character by itself */
kedge_status kedge__stage_put_before(const kedge__stage *stage, kedge__work *work); /* [content] */
kedge_status kedge__stage_replace(const kedge__stage *stage, kedge__work *work);    /* [regex, content] */
kedge_status kedge__stage_unspell(const kedge__stage *stage, kedge__work *work); /* byte alphabet to bytes */
kedge_status kedge__stage_bytes(const kedge__stage *stage, kedge__work *work);   /* <0xHH> to the byte */
kedge_status kedge__stage_fuse(const kedge__stage *stage, kedge__work *work);    /* all pieces become one */
kedge_status kedge__stage_strip(const kedge__stage *stage, kedge__work *work);   /* [content, start, stop] */
kedge_status kedge__stage_unmetaspace(const kedge__stage *stage, kedge__work *work); /* [content, prepend] */

/* Appends the stages of a byte-level pre-tokenizer: the pattern (NULL: none) and the byte alphabet. */
kedge_status kedge__push_byte_level(kedge__stages *stages, bool prefix_space, const char *pattern);
extern const char kedge__gpt2_pattern[];

typedef struct kedge__added_token {
  const char *content; /* borrowed from the table of contents */
  char *match;         /* what is looked for: the content, normalised where `normalized` */
  size_t match_length;
  int32_t id;
  bool single_word, lstrip, rstrip, normalized, special;
} kedge__added_token;

/* Added tokens in file order, and for each of the two passes their indices ordered by what is looked for. */
typedef struct kedge__added {
  kedge__added_token *tokens;
  size_t count, capacity;
  kedge__vocab contents;                  /* content -> index in `tokens` */
  uint32_t *by_id;                        /* [count] indices ordered by id */
  uint32_t *by_match[2];                  /* [match_count] indices ordered by match: raw, normalized */
  uint32_t match_count[2], first[2][257]; /* where the matches that start with a byte begin */
  int32_t largest;                        /* id, -1 if there is none */
} kedge__added;

/* Adds a token, or changes the flags of a known one. Its id is its vocabulary id or the next free one; where
 * `wanted` is not -1 it must be that. Errors: ERR_FORMAT, ERR_MEMORY. */
kedge_status kedge__added_push(kedge_tokenizer *tokenizer, const char *content, int32_t wanted,
                               kedge__added_token flags);
/* Builds the orders; called again after later additions. */
kedge_status kedge__added_index(kedge_tokenizer *tokenizer);
const kedge__added_token *kedge__added_by_id(const kedge__added *added, int32_t id);
/* Cuts `text` at the added tokens of a pass (0: raw, 1: normalised text) that `flags` allows. */
kedge_status kedge__added_scan(const kedge_tokenizer *tokenizer, int pass, unsigned flags, const char *text,
                               size_t length, kedge__segments *segments);
void kedge__added_free(kedge__added *added);

/* A kind of ranks file: what the file itself does not say. */
typedef struct kedge__kind {
  const char *name;
  uint32_t ranks;
  const char *pattern;
  bool nfc, chunked;
  const char *bos, *eos, *pad, *class_name, *chat_template;
  kedge_status (*add_tokens)(kedge_tokenizer *tokenizer, uint32_t first);
} kedge__kind;
const kedge__kind *kedge__kind_find(const char *name, uint32_t ranks);

/* Companion files, kept so that saving copies them. */
enum {
  KEDGE__FILE_TOKENIZER,
  KEDGE__FILE_CONFIG,
  KEDGE__FILE_SPECIALS,
  KEDGE__FILE_TEMPLATE,
  KEDGE__FILE_COUNT
};
extern const char *const kedge__file_names[KEDGE__FILE_COUNT];

struct kedge_tokenizer {
  kedge__bpe bpe;
  kedge__stages normalizer, pre_tokenizer, decoder;
  kedge__added added;
  kedge__ids prefix, suffix; /* what the template puts around a document */
  int32_t bos, eos, pad;
  const kedge__kind *kind; /* NULL: tokenizer.json */
  bool bare;       /* a ranks file by itself: no normaliser, and ordinary text has no added tokens at all */
  bool from_ranks; /* merges are all splits of every token */
  bool normalized; /* NFC goes into a converted tokenizer.json */
  kedge__bytes files[KEDGE__FILE_COUNT];
  kedge__bytes pipeline; /* what decides ids beside vocabulary, merges and added tokens: enters the hash */
  char *chat_template, *description;
  uint32_t size;
  char hash[33];
};

/* Reads a whole file; at most 1 GiB. `missing` (may be NULL) turns a missing file into an empty answer. */
kedge_status kedge__read_file(const char *path, kedge__bytes *out, bool *missing);
/* Parses JSON text; the message names the file and the line. The root is an object, owned by the caller. */
kedge_status kedge__parse_json(const char *path, const kedge__bytes *text, json_t **root);

/* Members of JSON objects with the type they must have. A missing or null member gives the default. */
kedge_status kedge__json_bool(const json_t *object, const char *key, bool otherwise, bool *value);
kedge_status kedge__json_text(const json_t *object, const char *key,
                              const char **value); /* NULL if missing; borrowed */

kedge_status kedge__read_tokenizer_json(kedge_tokenizer *tokenizer, const char *path, const json_t *root);
kedge_status kedge__read_pipeline(kedge_tokenizer *tokenizer, const json_t *root);
kedge_status kedge__read_ranks(kedge_tokenizer *tokenizer, const char *path, const kedge__bytes *text,
                               const char *kind);
/* vocab.json and merges.txt under any names. */
kedge_status kedge__read_pair(kedge_tokenizer *tokenizer, const char *vocab_path, const char *merges_path,
                              const char *kind);
/* Adds vocabulary entries of a JSON object {spelling: id}. */
kedge_status kedge__read_vocab(kedge__vocab *vocab, const json_t *object);
/* tokenizer_config.json, special_tokens_map.json, chat_template.jinja and config.json of a directory. */
kedge_status kedge__read_companions(kedge_tokenizer *tokenizer, const char *directory);
/* The class named in a directory's tokenizer_config.json, "" if none. */
kedge_status kedge__read_class_name(const char *directory, char *name, size_t size);

#endif
