/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads tokenizer.json: the byte-pair model and the added tokens; the stages around them are in
 * tokenizer_pipeline.c. Sibling header: tokenizer_internal.h.
 */
#include "models/checkpoint/atomic.h"
#include "models/checkpoint/json.h"
#include "models/text/tokenizer_internal.h"

#include <string.h>
#include <unistd.h>

enum { MAX_FILE = 1 << 30 };

kedge_status kedge__read_file(const char *path, kedge__bytes *out, bool *missing) {
  kedge__bytes_free(out);
  if (missing) *missing = access(path, F_OK) != 0;
  if (missing && *missing) return KEDGE_OK;
  KEDGE_TRY(kedge_file_read(path, MAX_FILE, &out->data, &out->length));
  out->capacity = out->length + 1;
  return KEDGE_OK;
}

kedge_status kedge__parse_json(const char *path, const kedge__bytes *text, json_t **root) {
  size_t skip = text->length >= 3 && !memcmp(text->data, "\xEF\xBB\xBF", 3) ? 3 : 0;
  *root = NULL;
  KEDGE_TRY(kedge__json_parse(text->data + skip, text->length - skip, path, root));
  if (json_is_object(*root)) return KEDGE_OK;
  json_decref(*root);
  *root = NULL;
  return kedge_fail(KEDGE_ERR_FORMAT, "%s: an object {...} was expected", path);
}

/* A real vocabulary has few holes; an id far beyond the number of entries would only cost memory. */
kedge_status kedge__read_vocab(kedge__vocab *vocab, const json_t *object) {
  if (!json_is_object(object)) return kedge_fail(KEDGE_ERR_FORMAT, "'vocab' must be an object");
  json_int_t limit = (json_int_t)json_object_size(object) * 2 + 65536;
  const char *spelling;
  json_t *id;
  json_object_foreach((json_t *)(uintptr_t)object, spelling, id) {
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= limit)
      return kedge_fail(KEDGE_ERR_FORMAT, "vocab: the id of '%.60s' must be a number from 0 to %lld",
                        spelling, (long long)limit - 1);
    kedge_status status =
        kedge__vocab_add(vocab, spelling, strlen(spelling), (uint32_t)json_integer_value(id));
    if (status != KEDGE_OK) return kedge_fail_in(status, "vocab");
  }
  return KEDGE_OK;
}

/* Adds the merge of two spellings; `joined` is scratch memory. */
static kedge_status add_merge(kedge__bpe *bpe, kedge__bytes *joined, const char *left, size_t left_length,
                              const char *right, size_t right_length, size_t rank) {
  joined->length = 0;
  KEDGE_TRY(kedge__bytes_append(joined, left, left_length));
  KEDGE_TRY(kedge__bytes_append(joined, right, right_length));
  int32_t a = kedge__vocab_find(&bpe->vocab, left, left_length),
          b = kedge__vocab_find(&bpe->vocab, right, right_length);
  int32_t id = kedge__vocab_find(&bpe->vocab, joined->data, joined->length);
  if (a < 0 || b < 0 || id < 0)
    return kedge_fail(KEDGE_ERR_FORMAT,
                      "merge %zu ('%.40s' and '%.40s') names '%.80s', which is not in the vocabulary", rank,
                      left, right,
                      a < 0   ? left
                      : b < 0 ? right
                              : joined->data);
  return kedge__merges_add(&bpe->merges,
                           (kedge__merge){(uint32_t)a, (uint32_t)b, (uint32_t)rank, (uint32_t)id});
}

/* A merge as "a b" (exactly one space between two non-empty parts) or as ["a", "b"]. */
static kedge_status read_merge(kedge__bpe *bpe, kedge__bytes *joined, kedge__bytes *left, const json_t *item,
                               size_t rank) {
  if (json_is_string(item)) {
    const char *text = json_string_value(item), *space = strchr(text, ' ');
    if (!space || space == text || !space[1] || strchr(space + 1, ' '))
      return kedge_fail(KEDGE_ERR_FORMAT, "merge %zu is '%.80s' instead of two parts with a space between",
                        rank, text);
    left->length = 0;
    KEDGE_TRY(kedge__bytes_append(left, text, (size_t)(space - text)));
    return add_merge(bpe, joined, left->data, left->length, space + 1, strlen(space + 1), rank);
  }
  const json_t *a = json_array_get(item, 0), *b = json_array_get(item, 1);
  if (json_array_size(item) != 2 || !json_is_string(a) || !json_is_string(b))
    return kedge_fail(KEDGE_ERR_FORMAT, "merge %zu is neither \"a b\" nor [\"a\", \"b\"]", rank);
  return add_merge(bpe, joined, json_string_value(a), json_string_length(a), json_string_value(b),
                   json_string_length(b), rank);
}

static kedge_status read_merges(kedge__bpe *bpe, const json_t *list) {
  if (!json_is_array(list)) return kedge_fail(KEDGE_ERR_FORMAT, "'merges' must be a list");
  kedge__bytes joined = {0}, left = {0};
  kedge_status status = KEDGE_OK;
  for (size_t i = 0; i < json_array_size(list) && status == KEDGE_OK; i++)
    status = read_merge(bpe, &joined, &left, json_array_get(list, i), i);
  kedge__bytes_free(&joined);
  kedge__bytes_free(&left);
  return status;
}

/* Values that would change ids and that Kedge does not run. */
static kedge_status refuse_options(const json_t *model) {
  const json_t *dropout = json_object_get(model, "dropout");
  if (dropout && !json_is_null(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0.0))
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "BPE dropout makes ids random");
  static const char *const keys[] = {"continuing_subword_prefix", "end_of_word_suffix"};
  for (int i = 0; i < 2; i++) {
    const char *text;
    KEDGE_TRY(kedge__json_text(model, keys[i], &text));
    if (text && *text)
      return kedge_fail(KEDGE_ERR_UNSUPPORTED, "'%s' is '%.40s'; only null is run", keys[i], text);
  }
  return KEDGE_OK;
}

static kedge_status read_model(kedge__bpe *bpe, const json_t *model) {
  const char *type, *unk;
  KEDGE_TRY(kedge__json_text(model, "type", &type));
  if (type && strcmp(type, "BPE"))
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "type '%.40s'; only BPE is run", type);
  if (!type && !json_object_get(model, "merges"))
    return kedge_fail(KEDGE_ERR_FORMAT, "neither 'type' nor 'merges'");
  KEDGE_TRY(refuse_options(model));
  KEDGE_TRY(kedge__json_bool(model, "fuse_unk", false, &bpe->fuse_unk));
  KEDGE_TRY(kedge__json_bool(model, "byte_fallback", false, &bpe->byte_fallback));
  KEDGE_TRY(kedge__json_bool(model, "ignore_merges", false, &bpe->whole_first));
  KEDGE_TRY(kedge__read_vocab(&bpe->vocab, json_object_get(model, "vocab")));
  KEDGE_TRY(read_merges(bpe, json_object_get(model, "merges")));
  KEDGE_TRY(kedge__json_text(model, "unk_token", &unk));
  if (unk) {
    bpe->unk = kedge__vocab_find(&bpe->vocab, unk, strlen(unk));
    /* Byte-level files often name one that no text needs. */
    if (bpe->unk < 0) bpe->unk = KEDGE__UNK_LOST;
  }
  kedge__bpe_index(bpe);
  return KEDGE_OK;
}

static kedge_status read_added(kedge_tokenizer *tokenizer, const json_t *item) {
  const char *content;
  KEDGE_TRY(kedge__json_text(item, "content", &content));
  if (!content) return kedge_fail(KEDGE_ERR_FORMAT, "'content' is missing");
  const json_t *id = json_object_get(item, "id");
  if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
    return kedge_fail(KEDGE_ERR_FORMAT, "the id of '%.60s' must be a number", content);
  kedge__added_token flags = {0};
  KEDGE_TRY(kedge__json_bool(item, "single_word", false, &flags.single_word));
  KEDGE_TRY(kedge__json_bool(item, "lstrip", false, &flags.lstrip));
  KEDGE_TRY(kedge__json_bool(item, "rstrip", false, &flags.rstrip));
  KEDGE_TRY(kedge__json_bool(item, "special", false, &flags.special));
  KEDGE_TRY(kedge__json_bool(item, "normalized", !flags.special, &flags.normalized));
  return kedge__added_push(tokenizer, content, (int32_t)json_integer_value(id), flags);
}

static kedge_status read_all(kedge_tokenizer *tokenizer, const json_t *root) {
  const json_t *model = json_object_get(root, "model"), *list = json_object_get(root, "added_tokens");
  if (!json_is_object(model)) return kedge_fail(KEDGE_ERR_FORMAT, "'model' must be an object");
  kedge_status status = read_model(&tokenizer->bpe, model);
  if (status != KEDGE_OK) return kedge_fail_in(status, "model");
  KEDGE_TRY(kedge__read_pipeline(tokenizer, root));
  if (list && !json_is_null(list) && !json_is_array(list))
    return kedge_fail(KEDGE_ERR_FORMAT, "'added_tokens' must be a list");
  for (size_t i = 0; i < json_array_size(list); i++) {
    status = read_added(tokenizer, json_array_get(list, i));
    if (status != KEDGE_OK) return kedge_fail_in(status, "added_tokens[%zu]", i);
  }
  return KEDGE_OK;
}

/* `truncation` and `padding` are not read: callers of the reference library set them anew at every call. */
kedge_status kedge__read_tokenizer_json(kedge_tokenizer *tokenizer, const char *path, const json_t *root) {
  kedge_status status = read_all(tokenizer, root);
  if (status != KEDGE_OK) return kedge_fail_in(status, "%s", path);
  tokenizer->description = kedge_strdup("tokenizer.json");
  return tokenizer->description ? KEDGE_OK : KEDGE_ERR_MEMORY;
}
