/* SPDX-License-Identifier: Apache-2.0
 *
 * The files beside a tokenizer: tokenizer_config.json, special_tokens_map.json, chat_template.jinja and
 * config.json. They name the special tokens, may add tokens, and hold the chat template. Sibling header:
 * tokenizer_internal.h.
 */
#include "models/text/tokenizer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const kedge__file_names[KEDGE__FILE_COUNT] = {"tokenizer.json", "tokenizer_config.json",
                                                          "special_tokens_map.json", "chat_template.jinja"};

/* An entry of added_tokens_decoder. */
typedef struct entry {
  int32_t id;
  const json_t *token;
} entry;

static int compare_entries(const void *a, const void *b) {
  int32_t x = ((const entry *)a)->id, y = ((const entry *)b)->id;
  return x < y ? -1 : x > y;
}

static kedge_status add_entry(kedge_tokenizer *tokenizer, const entry *item) {
  const char *content;
  kedge__added_token flags = {0};
  KEDGE_TRY(kedge__json_text(item->token, "content", &content));
  if (!content) return kedge_fail(KEDGE_ERR_FORMAT, "'content' is missing");
  KEDGE_TRY(kedge__json_bool(item->token, "single_word", false, &flags.single_word));
  KEDGE_TRY(kedge__json_bool(item->token, "lstrip", false, &flags.lstrip));
  KEDGE_TRY(kedge__json_bool(item->token, "rstrip", false, &flags.rstrip));
  KEDGE_TRY(kedge__json_bool(item->token, "special", false, &flags.special));
  KEDGE_TRY(kedge__json_bool(item->token, "normalized", !flags.special, &flags.normalized));
  return kedge__added_push(tokenizer, content, item->id, flags);
}

/* Tokens in the order of their ids, whatever the order in the file. */
static kedge_status read_added_decoder(kedge_tokenizer *tokenizer, const json_t *object) {
  if (!object || json_is_null(object)) return KEDGE_OK;
  if (!json_is_object(object))
    return kedge_fail(KEDGE_ERR_FORMAT, "'added_tokens_decoder' must be an object");
  entry *entries = kedge_alloc(json_object_size(object), sizeof *entries);
  if (!entries) return KEDGE_ERR_MEMORY;
  kedge_status status = KEDGE_OK;
  size_t count = 0;
  const char *key;
  json_t *token;
  json_object_foreach((json_t *)(uintptr_t)object, key, token) {
    char *end;
    long id = strtol(key, &end, 10);
    if (*key < '0' || *key > '9' || *end || id > INT32_MAX || !json_is_object(token)) {
      status =
          kedge_fail(KEDGE_ERR_FORMAT, "added_tokens_decoder: '%.40s' must be an id with an object", key);
      goto end;
    }
    entries[count++] = (entry){(int32_t)id, token};
  }
  qsort(entries, count, sizeof *entries, compare_entries);
  for (size_t i = 0; i < count; i++) {
    status = add_entry(tokenizer, &entries[i]);
    if (status != KEDGE_OK) {
      status = kedge_fail_in(status, "added_tokens_decoder: %d", entries[i].id);
      goto end;
    }
  }
end:
  kedge_free(entries);
  return status;
}

/* A special token named in `object`: a string, or an object with its content. *id is changed where one is
 * named. */
static kedge_status read_named(kedge_tokenizer *tokenizer, const json_t *object, const char *key,
                               int32_t *id) {
  const json_t *member = json_object_get(object, key);
  if (!member || json_is_null(member) || json_is_false(member)) return KEDGE_OK;
  const json_t *content = json_is_object(member) ? json_object_get(member, "content") : member;
  if (!json_is_string(content))
    return kedge_fail(KEDGE_ERR_FORMAT, "'%s' must be a string or have a 'content'", key);
  const char *text = json_string_value(content);
  if (!*text) return KEDGE_OK;
  int32_t known = kedge__vocab_find(&tokenizer->added.contents, text, strlen(text));
  if (known < 0) {
    /* The reference library makes every named token an added one, in the vocabulary or not. */
    kedge__added_token flags = {.special = true};
    KEDGE_TRY(kedge__json_bool(member, "lstrip", false, &flags.lstrip));
    KEDGE_TRY(kedge__json_bool(member, "rstrip", false, &flags.rstrip));
    KEDGE_TRY(kedge__added_push(tokenizer, text, -1, flags));
    known = kedge__vocab_find(&tokenizer->added.contents, text, strlen(text));
  }
  *id = tokenizer->added.tokens[known].id;
  return KEDGE_OK;
}

static kedge_status read_names(kedge_tokenizer *tokenizer, const json_t *object, bool named[3]) {
  static const char *const keys[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
  int32_t unk = -1, *ids[] = {&tokenizer->bos, &tokenizer->eos, &tokenizer->pad, &unk};
  for (int i = 0; i < 4; i++) {
    if (i < 3 && named[i]) continue;
    /* An explicit null is a statement too: a directory's file overrides what a kind of ranks file would say.
     */
    if (i < 3 && json_object_get(object, keys[i])) {
      named[i] = true;
      *ids[i] = -1;
    }
    KEDGE_TRY(read_named(tokenizer, object, keys[i], ids[i]));
  }
  const json_t *more = json_object_get(object, "additional_special_tokens");
  for (size_t i = 0; i < json_array_size(more); i++) {
    const json_t *item = json_array_get(more, i),
                 *content = json_is_object(item) ? json_object_get(item, "content") : item;
    if (!json_is_string(content))
      return kedge_fail(KEDGE_ERR_FORMAT, "'additional_special_tokens' must hold strings");
    const char *text = json_string_value(content);
    if (*text && kedge__vocab_find(&tokenizer->added.contents, text, strlen(text)) < 0)
      KEDGE_TRY(kedge__added_push(tokenizer, text, -1, (kedge__added_token){.special = true}));
  }
  return KEDGE_OK;
}

/* add_bos_token and add_eos_token, where written, replace the file's template. */
static kedge_status read_template_flags(kedge_tokenizer *tokenizer, const json_t *object) {
  const json_t *bos = json_object_get(object, "add_bos_token"),
               *eos = json_object_get(object, "add_eos_token");
  if (!json_is_boolean(bos) && !json_is_boolean(eos)) return KEDGE_OK;
  tokenizer->prefix.length = tokenizer->suffix.length = 0;
  if (json_is_true(bos) && tokenizer->bos >= 0)
    KEDGE_TRY(kedge__ids_push(&tokenizer->prefix, tokenizer->bos));
  if (json_is_true(eos) && tokenizer->eos >= 0)
    KEDGE_TRY(kedge__ids_push(&tokenizer->suffix, tokenizer->eos));
  return KEDGE_OK;
}

/* A string, or a list of named templates of which "default" is taken. */
static kedge_status read_chat_template(kedge_tokenizer *tokenizer, const json_t *member) {
  const char *text = json_string_value(member);
  for (size_t i = 0; i < json_array_size(member); i++) {
    const json_t *item = json_array_get(member, i);
    const char *name = json_string_value(json_object_get(item, "name"));
    if (name && !strcmp(name, "default")) text = json_string_value(json_object_get(item, "template"));
  }
  if (!text) return KEDGE_OK;
  kedge_free(tokenizer->chat_template);
  tokenizer->chat_template = kedge_strdup(text);
  return tokenizer->chat_template ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

/* Reads `name` of a directory if it is there: *root is NULL if not. `text` receives the bytes. */
static kedge_status read_object(const char *directory, const char *name, kedge__bytes *text, json_t **root) {
  *root = NULL;
  char *path = kedge_format("%s/%s", directory, name);
  if (!path) return KEDGE_ERR_MEMORY;
  bool missing;
  kedge_status status = kedge__read_file(path, text, &missing);
  if (status == KEDGE_OK && !missing) status = kedge__parse_json(path, text, root);
  kedge_free(path);
  return status;
}

static kedge_status read_config(kedge_tokenizer *tokenizer, const char *directory, bool named[3]) {
  json_t *root;
  KEDGE_TRY(read_object(directory, kedge__file_names[KEDGE__FILE_CONFIG],
                        &tokenizer->files[KEDGE__FILE_CONFIG], &root));
  if (!root) return KEDGE_OK;
  kedge_status status;
  KEDGE_GOTO(read_added_decoder(tokenizer, json_object_get(root, "added_tokens_decoder")), status, end);
  KEDGE_GOTO(read_names(tokenizer, root, named), status, end);
  KEDGE_GOTO(read_template_flags(tokenizer, root), status, end);
  status = read_chat_template(tokenizer, json_object_get(root, "chat_template"));
end:
  json_decref(root);
  return status == KEDGE_OK ? status : kedge_fail_in(status, "%s/tokenizer_config.json", directory);
}

static kedge_status read_specials(kedge_tokenizer *tokenizer, const char *directory, bool named[3]) {
  json_t *root;
  KEDGE_TRY(read_object(directory, kedge__file_names[KEDGE__FILE_SPECIALS],
                        &tokenizer->files[KEDGE__FILE_SPECIALS], &root));
  if (!root) return KEDGE_OK;
  kedge_status status = read_names(tokenizer, root, named);
  json_decref(root);
  return status == KEDGE_OK ? status : kedge_fail_in(status, "%s/special_tokens_map.json", directory);
}

/* The model's config.json gives ids where no tokenizer file names the token; a list of ids gives its first.
 */
static kedge_status read_model_config(kedge_tokenizer *tokenizer, const char *directory) {
  static const char *const keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
  int32_t *ids[] = {&tokenizer->bos, &tokenizer->eos, &tokenizer->pad};
  kedge__bytes text = {0};
  json_t *root = NULL;
  kedge_status status = read_object(directory, "config.json", &text, &root);
  for (int i = 0; status == KEDGE_OK && i < 3; i++) {
    const json_t *member = json_object_get(root, keys[i]);
    if (json_is_array(member)) member = json_array_get(member, 0);
    json_int_t id = json_is_integer(member) ? json_integer_value(member) : -1;
    bool exists =
        id >= 0 && id <= INT32_MAX &&
        (kedge__vocab_text(&tokenizer->bpe.vocab, (uint32_t)id, NULL) || id <= tokenizer->added.largest);
    if (*ids[i] < 0 && exists) *ids[i] = (int32_t)id;
  }
  json_decref(root);
  kedge__bytes_free(&text);
  return status;
}

static kedge_status read_template_file(kedge_tokenizer *tokenizer, const char *directory) {
  kedge__bytes *text = &tokenizer->files[KEDGE__FILE_TEMPLATE];
  bool missing;
  char *path = kedge_format("%s/%s", directory, kedge__file_names[KEDGE__FILE_TEMPLATE]);
  if (!path) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge__read_file(path, text, &missing);
  kedge_free(path);
  if (status != KEDGE_OK || missing) return status;
  kedge_free(tokenizer->chat_template);
  tokenizer->chat_template = kedge_strdup(text->data);
  return tokenizer->chat_template ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

kedge_status kedge__read_companions(kedge_tokenizer *tokenizer, const char *directory) {
  bool named[3] = {false};
  KEDGE_TRY(read_config(tokenizer, directory, named));
  KEDGE_TRY(read_specials(tokenizer, directory, named));
  KEDGE_TRY(read_model_config(tokenizer, directory));
  return read_template_file(tokenizer, directory);
}

kedge_status kedge__read_class_name(const char *directory, char *name, size_t size) {
  kedge__bytes text = {0};
  json_t *root = NULL;
  kedge_status status = read_object(directory, kedge__file_names[KEDGE__FILE_CONFIG], &text, &root);
  const char *found = json_string_value(json_object_get(root, "tokenizer_class"));
  snprintf(name, size, "%s", found ? found : "");
  json_decref(root);
  kedge__bytes_free(&text);
  return status;
}
