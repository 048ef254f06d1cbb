/* SPDX-License-Identifier: Apache-2.0
 *
 * Training a tokenizer: texts are cut into pieces and counted here, merges are learnt in bpe_train.c, and the
 * files are written here, laid out as the `tokenizers` library does. Sibling header: tokenizer_train.h.
 */
#include "models/text/tokenizer_train.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "models/checkpoint/atomic.h"
#include "models/text/bpe_train.h"
#include "models/text/samples_internal.h"
#include "models/text/tokenizer_regex.h"

enum { PROGRESS_RECORDS = 4096 };

static const char pattern[] = "\\p{N}| ?\\p{L}+| ?[^\\s\\p{L}\\p{N}]+|\\s+";

struct kedge_tokenizer_trainer {
  kedge__regex *regex;
  kedge__regex_scratch scratch;
  kedge__piece_counts counts;
  kedge_tokenizer_trainer_stats stats;
};

kedge_status kedge_tokenizer_trainer_new(kedge_tokenizer_trainer **trainer) {
  *trainer = kedge_alloc(1, sizeof **trainer);
  if (!*trainer) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge__regex_new(KEDGE__FILE_SYNTAX, pattern, sizeof pattern - 1, &(*trainer)->regex);
  if (status == KEDGE_OK) return status;
  kedge_free(*trainer);
  *trainer = NULL;
  return status;
}

void kedge_tokenizer_trainer_free(kedge_tokenizer_trainer *trainer) {
  if (!trainer) return;
  kedge__regex_free(trainer->regex);
  kedge__regex_scratch_free(&trainer->scratch);
  kedge__vocab_free(&trainer->counts.pieces);
  kedge_free(trainer->counts.counts);
  kedge_free(trainer);
}

kedge_tokenizer_trainer_stats kedge_tokenizer_trainer_counted(const kedge_tokenizer_trainer *trainer) {
  kedge_tokenizer_trainer_stats stats = trainer->stats;
  stats.pieces = trainer->counts.pieces.size;
  return stats;
}

/* ---- Counting
 * ---------------------------------------------------------------------------------------------------- */

static kedge_status count_piece(kedge__piece_counts *c, const char *text, size_t length) {
  if (!length) return KEDGE_OK;
  int32_t known = kedge__vocab_find(&c->pieces, text, length);
  if (known >= 0) {
    c->counts[known]++;
    return KEDGE_OK;
  }
  if (length > KEDGE__LEARN_MAX_BYTES - c->bytes)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "the text has more than %d MiB of different words",
                      KEDGE__LEARN_MAX_BYTES >> 20);
  uint32_t number = c->pieces.size;
  if (number >= c->capacity) {
    size_t capacity = c->capacity * 2 + 1024;
    uint64_t *counts = kedge_realloc(c->counts, capacity, sizeof *counts);
    if (!counts) return KEDGE_ERR_MEMORY;
    c->counts = counts;
    c->capacity = capacity;
  }
  KEDGE_TRY(kedge__vocab_add(&c->pieces, text, length, number));
  c->counts[number] = 1;
  c->bytes += length;
  return KEDGE_OK;
}

kedge_status kedge_tokenizer_trainer_add(kedge_tokenizer_trainer *trainer, const char *text, size_t length) {
  size_t valid = kedge__utf8_valid(text, length);
  if (valid < length) return kedge_fail(KEDGE_ERR_FORMAT, "invalid UTF-8 at byte %zu of a text", valid);
  for (size_t at = 0; at < length;) {
    bool found;
    size_t start, end;
    KEDGE_TRY(kedge__regex_find(trainer->regex, &trainer->scratch, text, length, at, &found, &start, &end));
    if (!found) start = end = length;
    /* What no alternative matches is a piece of its own. */
    KEDGE_TRY(count_piece(&trainer->counts, text + at, start - at));
    KEDGE_TRY(count_piece(&trainer->counts, text + start, end - start));
    at = end;
  }
  trainer->stats.texts++;
  trainer->stats.bytes += length;
  return KEDGE_OK;
}

/* ---- Files of records
 * -------------------------------------------------------------------------------------------- */

static kedge_status add_value(kedge_tokenizer_trainer *trainer, const json_t *value) {
  return json_is_string(value)
             ? kedge_tokenizer_trainer_add(trainer, json_string_value(value), json_string_length(value))
             : KEDGE_OK;
}

/* The fields that a format has, by the list of their names "prompt, completion". */
static kedge_status add_fields(kedge_tokenizer_trainer *trainer, const json_t *record, const char *names) {
  while (*names) {
    size_t length = strcspn(names, ", ");
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)length, names);
    names += length;
    names += strspn(names, ", ");
    const json_t *value = json_object_get(record, name), *turn;
    KEDGE_TRY(add_value(trainer, value));
    size_t i;
    json_array_foreach(value, i, turn) {
      KEDGE_TRY(add_value(trainer, json_object_get(turn, "content")));
      KEDGE_TRY(add_value(trainer, json_object_get(turn, "value")));
    }
  }
  return KEDGE_OK;
}

static kedge_status add_record(kedge_tokenizer_trainer *trainer, json_t *record) {
  const kedge__format *format;
  KEDGE_TRY(kedge__format_detect(record, &format));
  KEDGE_TRY(add_fields(trainer, record, kedge__format_fields(format)));
  trainer->stats.records++;
  return KEDGE_OK;
}

static kedge_status read_records(kedge_tokenizer_trainer *trainer, kedge_jsonl *file, const char *path,
                                 const kedge_tokenizer_reading *reading) {
  for (uint64_t read = 1;; read++) {
    json_t *record;
    uint64_t line;
    KEDGE_TRY(kedge_jsonl_next(file, &record, &line));
    if (reading->progress && (!record || read % PROGRESS_RECORDS == 0) &&
        !reading->progress(reading->context, kedge_jsonl_bytes(file), kedge_jsonl_size(file),
                           trainer->stats.records)) {
      json_decref(record);
      return kedge_fail(KEDGE_ERR_INTERRUPTED, "%s: reading was stopped", path);
    }
    if (!record) return KEDGE_OK;
    kedge_status status = add_record(trainer, record);
    json_decref(record);
    if (status != KEDGE_OK) KEDGE_TRY(kedge_jsonl_reject(file, status));
  }
}

kedge_status kedge_tokenizer_trainer_read(kedge_tokenizer_trainer *trainer, const char *path,
                                          const kedge_tokenizer_reading *reading) {
  static const kedge_tokenizer_reading plain;
  if (!reading) reading = &plain;
  kedge_jsonl *file;
  KEDGE_TRY(kedge_jsonl_open(path, reading->skip_bad_lines, reading->notice, reading->context, &file));
  kedge_status status = read_records(trainer, file, path, reading);
  trainer->stats.skipped += kedge_jsonl_skipped(file);
  kedge_jsonl_close(file);
  return status;
}

/* ---- Writing
 * ----------------------------------------------------------------------------------------------------- */

/* A JSON string. */
static kedge_status put_string(kedge__bytes *out, const char *text) {
  KEDGE_TRY(kedge__bytes_text(out, "\""));
  for (; *text; text++) {
    char escape[8];
    unsigned char c = (unsigned char)*text;
    if (c < 0x20)
      snprintf(escape, sizeof escape, "\\u%04x", c);
    else
      snprintf(escape, sizeof escape, c == '"' || c == '\\' ? "\\%c" : "%c", c);
    KEDGE_TRY(kedge__bytes_text(out, escape));
  }
  return kedge__bytes_text(out, "\"");
}

static const char before_added[] = "{\n"
                                   "  \"version\": \"1.0\",\n"
                                   "  \"truncation\": null,\n"
                                   "  \"padding\": null,\n"
                                   "  \"added_tokens\": [";

static const char added_flags[] = ",\n"
                                  "      \"single_word\": false,\n"
                                  "      \"lstrip\": false,\n"
                                  "      \"rstrip\": false,\n"
                                  "      \"normalized\": false,\n"
                                  "      \"special\": true\n"
                                  "    }";

static const char before_pattern[] = "\n  ],\n"
                                     "  \"normalizer\": null,\n"
                                     "  \"pre_tokenizer\": {\n"
                                     "    \"type\": \"Sequence\",\n"
                                     "    \"pretokenizers\": [\n"
                                     "      {\n"
                                     "        \"type\": \"Split\",\n"
                                     "        \"pattern\": {\n"
                                     "          \"Regex\": ";

static const char before_vocab[] = "\n        },\n"
                                   "        \"behavior\": \"Isolated\",\n"
                                   "        \"invert\": false\n"
                                   "      },\n"
                                   "      {\n"
                                   "        \"type\": \"ByteLevel\",\n"
                                   "        \"add_prefix_space\": false,\n"
                                   "        \"trim_offsets\": true,\n"
                                   "        \"use_regex\": false\n"
                                   "      }\n"
                                   "    ]\n"
                                   "  },\n"
                                   "  \"post_processor\": null,\n"
                                   "  \"decoder\": {\n"
                                   "    \"type\": \"ByteLevel\",\n"
                                   "    \"add_prefix_space\": true,\n"
                                   "    \"trim_offsets\": true,\n"
                                   "    \"use_regex\": true\n"
                                   "  },\n"
                                   "  \"model\": {\n"
                                   "    \"type\": \"BPE\",\n"
                                   "    \"dropout\": null,\n"
                                   "    \"unk_token\": null,\n"
                                   "    \"continuing_subword_prefix\": null,\n"
                                   "    \"end_of_word_suffix\": null,\n"
                                   "    \"fuse_unk\": false,\n"
                                   "    \"byte_fallback\": false,\n"
                                   "    \"ignore_merges\": false,\n"
                                   "    \"vocab\": {";

static kedge_status put_added(kedge__bytes *out, const kedge__vocab *vocab, size_t count) {
  for (uint32_t i = 0; i < count; i++) {
    char id[48];
    snprintf(id, sizeof id, "%s\n    {\n      \"id\": %u,\n      \"content\": ", i ? "," : "", i);
    KEDGE_TRY(kedge__bytes_text(out, id));
    KEDGE_TRY(put_string(out, kedge__vocab_text(vocab, i, NULL)));
    KEDGE_TRY(kedge__bytes_text(out, added_flags));
  }
  return KEDGE_OK;
}

static kedge_status put_vocab(kedge__bytes *out, const kedge__vocab *vocab) {
  for (uint32_t id = 0; id < vocab->size; id++) {
    char number[24];
    KEDGE_TRY(kedge__bytes_text(out, id ? ",\n      " : "\n      "));
    KEDGE_TRY(put_string(out, kedge__vocab_text(vocab, id, NULL)));
    snprintf(number, sizeof number, ": %u", id);
    KEDGE_TRY(kedge__bytes_text(out, number));
  }
  return kedge__bytes_text(out, "\n    },\n    \"merges\": [");
}

static kedge_status put_merges(kedge__bytes *out, const kedge__vocab *vocab, const kedge__merge *merges,
                               size_t count) {
  for (size_t i = 0; i < count; i++) {
    KEDGE_TRY(kedge__bytes_text(out, i ? ",\n      [\n        " : "\n      [\n        "));
    KEDGE_TRY(put_string(out, kedge__vocab_text(vocab, merges[i].left, NULL)));
    KEDGE_TRY(kedge__bytes_text(out, ",\n        "));
    KEDGE_TRY(put_string(out, kedge__vocab_text(vocab, merges[i].right, NULL)));
    KEDGE_TRY(kedge__bytes_text(out, "\n      ]"));
  }
  return kedge__bytes_text(out, count ? "\n    ]\n  }\n}" : "]\n  }\n}");
}

static kedge_status put_tokenizer(kedge__bytes *out, const kedge__vocab *vocab, size_t special_count,
                                  const kedge__merge *merges, size_t merge_count) {
  KEDGE_TRY(kedge__bytes_text(out, before_added));
  KEDGE_TRY(put_added(out, vocab, special_count));
  KEDGE_TRY(kedge__bytes_text(out, before_pattern));
  KEDGE_TRY(put_string(out, pattern));
  KEDGE_TRY(kedge__bytes_text(out, before_vocab));
  KEDGE_TRY(put_vocab(out, vocab));
  return put_merges(out, vocab, merges, merge_count);
}

static kedge_status put_config(kedge__bytes *out, const char *eos) {
  KEDGE_TRY(kedge__bytes_text(out, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
                                   "  \"clean_up_tokenization_spaces\": false,\n"
                                   "  \"add_bos_token\": false,\n  \"eos_token\": "));
  KEDGE_TRY(put_string(out, eos));
  return kedge__bytes_text(out, "\n}\n");
}

static kedge_status write_file(const char *directory, const char *name, const kedge__bytes *bytes) {
  char *path = kedge_path_join(directory, name);
  kedge_status status = path ? kedge_file_write(path, bytes->data, bytes->length) : KEDGE_ERR_MEMORY;
  kedge_free(path);
  return status;
}

/* Special tokens, then the bytes in the order of their characters. */
static kedge_status start_vocab(kedge__vocab *vocab, const char *const *specials, size_t count) {
  for (size_t i = 0; i < count; i++) {
    size_t length = strlen(specials[i]);
    if (!length || kedge__utf8_valid(specials[i], length) < length ||
        kedge__vocab_find(vocab, specials[i], length) >= 0)
      return kedge_fail(KEDGE_ERR_ARGUMENT, "special token \"%.60s\" is %s", specials[i],
                        !length                                              ? "empty"
                        : kedge__vocab_find(vocab, specials[i], length) >= 0 ? "given twice"
                                                                             : "not valid UTF-8");
    KEDGE_TRY(kedge__vocab_add(vocab, specials[i], length, vocab->size));
  }
  for (uint32_t code = 0; code < KEDGE__ALPHABET_END; code++) {
    if (kedge__char_byte(code) < 0) continue;
    char spelling[4];
    size_t length = kedge__utf8_encode(code, spelling);
    if (kedge__vocab_find(vocab, spelling, length) >= 0)
      return kedge_fail(KEDGE_ERR_ARGUMENT, "special token \"%.*s\" stands for a byte already", (int)length,
                        spelling);
    KEDGE_TRY(kedge__vocab_add(vocab, spelling, length, vocab->size));
  }
  return KEDGE_OK;
}

static kedge_status check_save(const kedge_tokenizer_trainer *trainer, uint32_t size, size_t special_count) {
  if (!special_count || special_count > KEDGE_TOKENIZER_MAX_SPECIALS)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "%zu special tokens; expected 1 to %d", special_count,
                      KEDGE_TOKENIZER_MAX_SPECIALS);
  if (size < KEDGE_TOKENIZER_MIN_SIZE + special_count || size > KEDGE_TOKENIZER_MAX_SIZE)
    return kedge_fail(KEDGE_ERR_ARGUMENT,
                      "a vocabulary of %u tokens; expected %zu (256 bytes and the special tokens) to %d",
                      size, KEDGE_TOKENIZER_MIN_SIZE + special_count, KEDGE_TOKENIZER_MAX_SIZE);
  return trainer->stats.bytes ? KEDGE_OK
                              : kedge_fail(KEDGE_ERR_FORMAT, "there is no text to train a tokenizer on");
}

kedge_status kedge_tokenizer_trainer_save(const kedge_tokenizer_trainer *trainer, uint32_t size,
                                          const char *const *specials, size_t special_count,
                                          const char *directory, uint32_t *made) {
  kedge__vocab vocab = {0};
  kedge__merge *merges = NULL;
  kedge__bytes tokenizer = {0}, config = {0};
  size_t count = 0;
  kedge_status status;
  *made = 0;
  KEDGE_GOTO(check_save(trainer, size, special_count), status, end);
  KEDGE_GOTO(start_vocab(&vocab, specials, special_count), status, end);
  KEDGE_GOTO(kedge__bpe_learn(&trainer->counts, size, &vocab, &merges, &count), status, end);
  KEDGE_GOTO(put_tokenizer(&tokenizer, &vocab, special_count, merges, count), status, end);
  KEDGE_GOTO(put_config(&config, specials[0]), status, end);
  KEDGE_GOTO(kedge_folder_make(directory), status, end);
  KEDGE_GOTO(write_file(directory, "tokenizer_config.json", &config), status, end);
  KEDGE_GOTO(write_file(directory, "tokenizer.json", &tokenizer), status, end);
  *made = vocab.size;
end:
  kedge__vocab_free(&vocab);
  kedge_free(merges);
  kedge__bytes_free(&tokenizer);
  kedge__bytes_free(&config);
  return status;
}
