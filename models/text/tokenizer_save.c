/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes a tokenizer's files into a model directory: copies of what was read, and a tokenizer.json for
 * tokenizers that came without one. Sibling header: tokenizer_internal.h.
 */
#include "models/checkpoint/atomic.h"
#include "models/text/tokenizer_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Appends printf text of at most 255 bytes. */
static kedge_status put(kedge__bytes *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
static kedge_status put(kedge__bytes *out, const char *format, ...) {
  char text[256];
  va_list list;
  va_start(list, format);
  int length = vsnprintf(text, sizeof text, format, list);
  va_end(list);
  return kedge__bytes_append(out, text, length < (int)sizeof text ? (size_t)length : sizeof text - 1);
}

/* The inside of a JSON string. */
static kedge_status put_escaped(kedge__bytes *out, const char *text) {
  for (; *text; text++) {
    unsigned char c = (unsigned char)*text;
    if (c < 0x20)
      KEDGE_TRY(put(out, "\\u%04x", c));
    else if (c == '"' || c == '\\')
      KEDGE_TRY(put(out, "\\%c", c));
    else
      KEDGE_TRY(kedge__bytes_append(out, text, 1));
  }
  return KEDGE_OK;
}

static kedge_status put_string(kedge__bytes *out, const char *text) {
  KEDGE_TRY(kedge__bytes_text(out, "\""));
  KEDGE_TRY(put_escaped(out, text));
  return kedge__bytes_text(out, "\"");
}

static kedge_status put_added(kedge__bytes *out, const kedge__added *added) {
  static const char *const words[] = {"false", "true"};
  KEDGE_TRY(kedge__bytes_text(out, "\"added_tokens\":["));
  for (size_t i = 0; i < added->count; i++) {
    const kedge__added_token *t = &added->tokens[added->by_id[i]];
    KEDGE_TRY(put(out, "%s\n{\"id\":%d,\"content\":", i ? "," : "", t->id));
    KEDGE_TRY(put_string(out, t->content));
    KEDGE_TRY(put(out, ",\"single_word\":%s,\"lstrip\":%s,\"rstrip\":%s,\"normalized\":%s,\"special\":%s}",
                  words[t->single_word], words[t->lstrip], words[t->rstrip], words[t->normalized],
                  words[t->special]));
  }
  return kedge__bytes_text(out, "\n],\n");
}

static kedge_status put_pipeline(kedge__bytes *out, const kedge_tokenizer *tokenizer) {
  static const char byte_level[] =
      "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false}";
  KEDGE_TRY(put(out, "\"normalizer\":%s,\n", tokenizer->normalized ? "{\"type\":\"NFC\"}" : "null"));
  KEDGE_TRY(kedge__bytes_text(
      out, "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":"
           "{\"Regex\":"));
  KEDGE_TRY(put_string(out, tokenizer->kind->pattern));
  KEDGE_TRY(put(out, "},\"behavior\":\"Isolated\",\"invert\":false},%s]},\n", byte_level));
  return put(out, "\"post_processor\":%s,\n\"decoder\":%s,\n", byte_level, byte_level);
}

static kedge_status put_vocab(kedge__bytes *out, const kedge__vocab *vocab) {
  bool first = true;
  KEDGE_TRY(kedge__bytes_text(out, "\"vocab\":{"));
  for (uint32_t id = 0; id < vocab->size; id++) {
    const char *text = kedge__vocab_text(vocab, id, NULL);
    if (!text) continue;
    KEDGE_TRY(kedge__bytes_text(out, first ? "\n" : ",\n"));
    KEDGE_TRY(put_string(out, text));
    KEDGE_TRY(put(out, ":%u", id));
    first = false;
  }
  return kedge__bytes_text(out, "\n},\n");
}

static kedge_status put_merge(kedge__bytes *out, const kedge__vocab *vocab, uint32_t left, uint32_t right,
                              bool first) {
  KEDGE_TRY(kedge__bytes_text(out, first ? "\n\"" : ",\n\""));
  KEDGE_TRY(put_escaped(out, kedge__vocab_text(vocab, left, NULL)));
  KEDGE_TRY(kedge__bytes_text(out, " "));
  KEDGE_TRY(put_escaped(out, kedge__vocab_text(vocab, right, NULL)));
  return kedge__bytes_text(out, "\"");
}

/* The merge of a token is what is left of it when only merges of lower ranks are run. A token that is left in
 * more than two parts can only be found whole: *whole says that there is one. */
static kedge_status put_rebuilt_merges(kedge__bytes *out, const kedge__bpe *bpe, bool *whole) {
  kedge__bpe_scratch scratch = {0};
  kedge__ids parts = {0};
  kedge_status status = KEDGE_OK;
  bool first = true;
  *whole = false;
  for (uint32_t id = 0; id < bpe->vocab.size && status == KEDGE_OK; id++) {
    size_t length;
    const char *text = kedge__vocab_text(&bpe->vocab, id, &length);
    parts.length = 0;
    KEDGE_GOTO(kedge__bpe_encode(bpe, &scratch, text, length, id, &parts), status, end);
    if (parts.length == 2) {
      status = put_merge(out, &bpe->vocab, (uint32_t)parts.data[0], (uint32_t)parts.data[1], first);
      first = false;
    } else if (parts.length > 2) {
      *whole = true;
    }
  }
end:
  kedge__bpe_scratch_free(&scratch);
  kedge__ids_free(&parts);
  return status;
}

static int compare_ranks(const void *a, const void *b) {
  uint32_t x = ((const kedge__merge *)a)->rank, y = ((const kedge__merge *)b)->rank;
  return x < y ? -1 : x > y;
}

static kedge_status put_known_merges(kedge__bytes *out, const kedge__bpe *bpe) {
  kedge__merge *list = kedge_alloc(bpe->merges.count, sizeof *list);
  if (!list) return KEDGE_ERR_MEMORY;
  size_t count = 0;
  for (size_t i = 0; i < bpe->merges.slot_count; i++)
    if (bpe->merges.slots[i].id != UINT32_MAX) list[count++] = bpe->merges.slots[i];
  qsort(list, count, sizeof *list, compare_ranks);
  kedge_status status = KEDGE_OK;
  for (size_t i = 0; i < count && status == KEDGE_OK; i++)
    status = put_merge(out, &bpe->vocab, list[i].left, list[i].right, !i);
  kedge_free(list);
  return status;
}

static kedge_status convert(const kedge_tokenizer *tokenizer, kedge__bytes *out) {
  bool whole = tokenizer->bpe.whole_first;
  KEDGE_TRY(kedge__bytes_text(out, "{\"version\":\"1.0\",\n\"truncation\":null,\n\"padding\":null,\n"));
  KEDGE_TRY(put_added(out, &tokenizer->added));
  KEDGE_TRY(put_pipeline(out, tokenizer));
  KEDGE_TRY(kedge__bytes_text(
      out, "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
           "\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":\"\",\"fuse_unk\":false,"
           "\"byte_fallback\":false,\n"));
  KEDGE_TRY(put_vocab(out, &tokenizer->bpe.vocab));
  KEDGE_TRY(kedge__bytes_text(out, "\"merges\":["));
  if (tokenizer->from_ranks)
    KEDGE_TRY(put_rebuilt_merges(out, &tokenizer->bpe, &whole));
  else
    KEDGE_TRY(put_known_merges(out, &tokenizer->bpe));
  return put(out, "\n],\n\"ignore_merges\":%s}}\n", whole ? "true" : "false");
}

/* A member "key": the token's content, or null. */
static kedge_status put_name(kedge__bytes *out, const kedge_tokenizer *tokenizer, const char *key,
                             int32_t id) {
  const char *content = kedge_tokenizer_content(tokenizer, id);
  KEDGE_TRY(put(out, ",\n  \"%s\": ", key));
  return content ? put_string(out, content) : kedge__bytes_text(out, "null");
}

static kedge_status make_config(const kedge_tokenizer *tokenizer, kedge__bytes *out) {
  const char *class_name = tokenizer->kind ? tokenizer->kind->class_name : "PreTrainedTokenizerFast";
  KEDGE_TRY(
      put(out, "{\n  \"tokenizer_class\": \"%s\",\n  \"clean_up_tokenization_spaces\": false", class_name));
  if (tokenizer->kind)
    KEDGE_TRY(kedge__bytes_text(out, ",\n  \"add_bos_token\": false,\n  \"add_prefix_space\": false"));
  KEDGE_TRY(put_name(out, tokenizer, "bos_token", tokenizer->bos));
  KEDGE_TRY(put_name(out, tokenizer, "eos_token", tokenizer->eos));
  KEDGE_TRY(put_name(out, tokenizer, "pad_token", tokenizer->pad));
  /* A class may have an unknown token of its own where the file names none. */
  if (tokenizer->kind) KEDGE_TRY(kedge__bytes_text(out, ",\n  \"unk_token\": null"));
  if (tokenizer->chat_template && !tokenizer->files[KEDGE__FILE_TEMPLATE].length) {
    KEDGE_TRY(kedge__bytes_text(out, ",\n  \"chat_template\": "));
    KEDGE_TRY(put_string(out, tokenizer->chat_template));
  }
  return kedge__bytes_text(out, "\n}\n");
}

static kedge_status make_specials(const kedge_tokenizer *tokenizer, kedge__bytes *out) {
  const char *keys[] = {"bos_token", "eos_token", "pad_token"};
  const int32_t ids[] = {tokenizer->bos, tokenizer->eos, tokenizer->pad};
  bool first = true;
  KEDGE_TRY(kedge__bytes_text(out, "{"));
  for (int i = 0; i < 3; i++) {
    const char *content = kedge_tokenizer_content(tokenizer, ids[i]);
    if (!content) continue;
    KEDGE_TRY(put(out, "%s\n  \"%s\": ", first ? "" : ",", keys[i]));
    KEDGE_TRY(put_string(out, content));
    first = false;
  }
  return kedge__bytes_text(out, "\n}\n");
}

static kedge_status write_file(const char *directory, const char *name, const kedge__bytes *bytes) {
  char *path = kedge_path_join(directory, name);
  kedge_status status = path ? kedge_file_write(path, bytes->data, bytes->length) : KEDGE_ERR_MEMORY;
  kedge_free(path);
  return status;
}

/* What each file holds where none was read; NULL: then it is not written. */
static kedge_status (*const makers[KEDGE__FILE_COUNT])(const kedge_tokenizer *tokenizer,
                                                       kedge__bytes *out) = {convert, make_config,
                                                                             make_specials, NULL};

kedge_status kedge_tokenizer_save(const kedge_tokenizer *tokenizer, const char *directory) {
  for (int i = 0; i < KEDGE__FILE_COUNT; i++) {
    const kedge__bytes *kept = &tokenizer->files[i];
    kedge__bytes made = {0};
    kedge_status status = KEDGE_OK;
    if (!kept->length && makers[i]) status = makers[i](tokenizer, &made);
    if (status == KEDGE_OK && (kept->length || makers[i]))
      status = write_file(directory, kedge__file_names[i], kept->length ? kept : &made);
    kedge__bytes_free(&made);
    KEDGE_TRY(status);
  }
  return KEDGE_OK;
}
