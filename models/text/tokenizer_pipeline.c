/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the stages of a tokenizer.json: normalizer, pre_tokenizer, post_processor and decoder. A new stage is
 * a row of the table at the end and a function that reads its options; what a stage does is in
 * tokenizer_stage.c. A stage that has no row is refused by name, never left out.
 */
#include "models/text/tokenizer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NORMALIZER = 1, PRE_TOKENIZER = 2, POST_PROCESSOR = 4, DECODER = 8, MAX_NESTING = 8 };

/* Which list is being read, and where its stages go. */
typedef struct reader {
  kedge_tokenizer *tokenizer;
  kedge__stages *stages; /* NULL for the post-processor */
  unsigned where;
  int nesting;
} reader;

const char kedge__gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" KEDGE__SPACE "\\p{L}\\p{N}]+"
    "|[" KEDGE__SPACE "]+(?![^" KEDGE__SPACE "])|[" KEDGE__SPACE "]+";

static kedge_status read_stage(reader *r, const json_t *object);

kedge_status kedge__json_bool(const json_t *object, const char *key, bool otherwise, bool *value) {
  const json_t *member = json_object_get(object, key);
  *value = member && !json_is_null(member) ? json_is_true(member) : otherwise;
  if (!member || json_is_null(member) || json_is_boolean(member)) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_FORMAT, "'%s' must be true or false", key);
}

kedge_status kedge__json_text(const json_t *object, const char *key, const char **value) {
  const json_t *member = json_object_get(object, key);
  *value = NULL;
  if (!member || json_is_null(member)) return KEDGE_OK;
  if (!json_is_string(member)) return kedge_fail(KEDGE_ERR_FORMAT, "'%s' must be a string", key);
  *value = json_string_value(member);
  return KEDGE_OK;
}

static kedge_status need_text(const json_t *object, const char *key, const char **value) {
  KEDGE_TRY(kedge__json_text(object, key, value));
  return *value ? KEDGE_OK : kedge_fail(KEDGE_ERR_FORMAT, "'%s' is missing", key);
}

static kedge_status read_count(const json_t *object, const char *key, size_t *value) {
  const json_t *member = json_object_get(object, key);
  if (!json_is_integer(member) || json_integer_value(member) < 0 || json_integer_value(member) > 1000000)
    return kedge_fail(KEDGE_ERR_FORMAT, "'%s' must be a small number", key);
  *value = (size_t)json_integer_value(member);
  return KEDGE_OK;
}

static kedge_status set_content(kedge__stage *stage, const char *content) {
  stage->content = kedge_strdup(content);
  stage->content_length = strlen(content);
  return stage->content ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

/* Appends a stage whose content is a copy of `content` (may be NULL). */
static kedge_status push(reader *r, kedge__stage stage, const char *content) {
  if (content) {
    kedge_status status = set_content(&stage, content);
    if (status != KEDGE_OK) {
      kedge__regex_free(stage.regex);
      return status;
    }
  }
  return kedge__stages_push(r->stages, stage);
}

static kedge_status push_own_split(kedge__stages *stages, const char *pattern, kedge__behavior behavior,
                                   bool invert) {
  kedge__stage stage = {.run = kedge__stage_split, .behavior = behavior, .invert = invert};
  KEDGE_TRY(kedge__regex_new(KEDGE__OWN_SYNTAX, pattern, strlen(pattern), &stage.regex));
  return kedge__stages_push(stages, stage);
}

kedge_status kedge__push_byte_level(kedge__stages *stages, bool prefix_space, const char *pattern) {
  if (prefix_space) {
    kedge__stage stage = {.run = kedge__stage_prefix, .prepend = KEDGE__ALWAYS};
    KEDGE_TRY(set_content(&stage, " "));
    KEDGE_TRY(kedge__stages_push(stages, stage));
  }
  if (pattern) KEDGE_TRY(push_own_split(stages, pattern, KEDGE__ISOLATED, false));
  return kedge__stages_push(stages, (kedge__stage){.run = kedge__stage_spell});
}

/* ---- One function a stage type
 * ----------------------------------------------------------------------------------------- */

static kedge_status read_sequence(reader *r, const json_t *object) {
  static const char *const keys[] = {"normalizers", "pretokenizers", "processors", "decoders"};
  const json_t *list = NULL;
  for (int i = 0; i < 4; i++)
    if (r->where == 1u << i) list = json_object_get(object, keys[i]);
  if (!json_is_array(list)) return kedge_fail(KEDGE_ERR_FORMAT, "its list of stages is missing");
  if (++r->nesting > MAX_NESTING)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "more than %d sequences in each other", MAX_NESTING);
  for (size_t i = 0; i < json_array_size(list); i++) KEDGE_TRY(read_stage(r, json_array_get(list, i)));
  r->nesting--;
  /* A decoder without stages joins tokens as they are; without any decoder there are spaces between them. */
  return r->where == DECODER && !r->stages->count ? push(r, (kedge__stage){.run = kedge__stage_fuse}, NULL)
                                                  : KEDGE_OK;
}

static kedge_status read_form(reader *r, const json_t *object) {
  static const char *const names[] = {"NFC", "NFD", "NFKC", "NFKD"};
  const char *type = json_string_value(json_object_get(object, "type"));
  kedge__stage stage = {.run = kedge__stage_normalize};
  for (unsigned i = 0; i < 4; i++)
    if (!strcmp(type, names[i])) stage.form = (kedge__form)i;
  return push(r, stage, NULL);
}

static kedge_status read_lowercase(reader *r, const json_t *object) {
  (void)object;
  return push(r, (kedge__stage){.run = kedge__stage_lowercase}, NULL);
}

static kedge_status read_prepend(reader *r, const json_t *object) {
  const char *content;
  KEDGE_TRY(need_text(object, "prepend", &content));
  return push(r, (kedge__stage){.run = kedge__stage_put_before}, content);
}

/* {"String": text} or {"Regex": pattern}; a bare string is a text too. */
static kedge_status read_pattern(const json_t *object, kedge__regex **regex) {
  const json_t *pattern = json_object_get(object, "pattern");
  const json_t *text = json_is_string(pattern) ? pattern : json_object_get(pattern, "String");
  const json_t *expression = json_is_object(pattern) ? json_object_get(pattern, "Regex") : NULL;
  if (json_is_string(text))
    return kedge__regex_new(KEDGE__LITERAL_SYNTAX, json_string_value(text), json_string_length(text), regex);
  if (json_is_string(expression))
    return kedge__regex_new(KEDGE__FILE_SYNTAX, json_string_value(expression), json_string_length(expression),
                            regex);
  return kedge_fail(KEDGE_ERR_FORMAT, "'pattern' must have a 'String' or a 'Regex'");
}

static kedge_status read_replace(reader *r, const json_t *object) {
  const char *content;
  kedge__stage stage = {.run = kedge__stage_replace};
  KEDGE_TRY(need_text(object, "content", &content));
  KEDGE_TRY(read_pattern(object, &stage.regex));
  return push(r, stage, content);
}

static kedge_status read_behavior(const json_t *object, const char *otherwise, kedge__behavior *behavior) {
  static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                      "Contiguous"};
  const char *name;
  KEDGE_TRY(kedge__json_text(object, "behavior", &name));
  if (!name) name = otherwise;
  for (unsigned i = 0; name && i < sizeof names / sizeof *names; i++)
    if (!strcmp(name, names[i])) {
      *behavior = (kedge__behavior)i;
      return KEDGE_OK;
    }
  return kedge_fail(KEDGE_ERR_FORMAT, "'behavior' is '%.40s'", name ? name : "missing");
}

static kedge_status read_split(reader *r, const json_t *object) {
  kedge__stage stage = {.run = kedge__stage_split};
  KEDGE_TRY(read_behavior(object, NULL, &stage.behavior));
  KEDGE_TRY(kedge__json_bool(object, "invert", false, &stage.invert));
  KEDGE_TRY(read_pattern(object, &stage.regex));
  return push(r, stage, NULL);
}

static kedge_status read_byte_level(reader *r, const json_t *object) {
  bool prefix, pattern;
  KEDGE_TRY(kedge__json_bool(object, "add_prefix_space", true, &prefix));
  KEDGE_TRY(kedge__json_bool(object, "use_regex", true, &pattern));
  if (r->where == POST_PROCESSOR) return KEDGE_OK; /* It only moves offsets. */
  if (r->where == DECODER) return push(r, (kedge__stage){.run = kedge__stage_unspell}, NULL);
  return kedge__push_byte_level(r->stages, prefix, pattern ? kedge__gpt2_pattern : NULL);
}

static kedge_status read_digits(reader *r, const json_t *object) {
  bool single;
  KEDGE_TRY(kedge__json_bool(object, "individual_digits", false, &single));
  return push_own_split(r->stages, "\\p{N}", single ? KEDGE__ISOLATED : KEDGE__CONTIGUOUS, false);
}

static kedge_status read_whitespace(reader *r, const json_t *object) {
  (void)object;
  static const char word[] = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}";
  char pattern[256];
  snprintf(pattern, sizeof pattern, "[%s]+|[^%s%s]+", word, word, KEDGE__SPACE);
  return push_own_split(r->stages, pattern, KEDGE__REMOVED, true);
}

static kedge_status read_whitespace_split(reader *r, const json_t *object) {
  (void)object;
  return push_own_split(r->stages, "[" KEDGE__SPACE "]", KEDGE__REMOVED, false);
}

/* The reference library's table of punctuation is that of Unicode 8: without what came later, and with two
 * characters that have since become something else. */
static const char punctuation[] =
    "[!-/:-@\\[-`{-~\\x{166D}\\x{111C9}]|(?!["
    "\\x{61D}\\x{9FD}\\x{A76}\\x{C77}\\x{C84}\\x{1B7D}-\\x{1B7E}\\x{2E43}-\\x{2E4F}"
    "\\x{2E52}-\\x{2E5D}\\x{10EAD}\\x{10F55}-\\x{10F59}\\x{10F86}-\\x{10F89}"
    "\\x{1144B}-\\x{1144F}\\x{1145A}-\\x{1145B}\\x{1145D}\\x{11660}-\\x{1166C}\\x{116B9}"
    "\\x{1183B}\\x{11944}-\\x{11946}\\x{119E2}\\x{11A3F}-\\x{11A46}\\x{11A9A}-\\x{11A9C}"
    "\\x{11A9E}-\\x{11AA2}\\x{11C41}-\\x{11C45}\\x{11C70}-\\x{11C71}\\x{11EF7}-\\x{11EF8}"
    "\\x{11FFF}\\x{12FF1}-\\x{12FF2}\\x{16E97}-\\x{16E9A}\\x{16FE2}\\x{1E95E}-\\x{1E95F}"
    "])\\p{P}";

static kedge_status read_punctuation(reader *r, const json_t *object) {
  kedge__behavior behavior = KEDGE__ISOLATED;
  KEDGE_TRY(read_behavior(object, "Isolated", &behavior));
  return push_own_split(r->stages, punctuation, behavior, false);
}

static kedge_status read_delimiter(reader *r, const json_t *object) {
  const char *delimiter;
  KEDGE_TRY(need_text(object, "delimiter", &delimiter));
  kedge__stage stage = {.run = kedge__stage_split, .behavior = KEDGE__REMOVED};
  KEDGE_TRY(kedge__regex_new(KEDGE__LITERAL_SYNTAX, delimiter, strlen(delimiter), &stage.regex));
  return push(r, stage, NULL);
}

/* prepend_scheme is the present spelling, add_prefix_space the old one. */
static kedge_status read_metaspace(reader *r, const json_t *object) {
  static const char *const schemes[] = {"always", "first", "never"};
  const char *replacement, *scheme;
  bool prefix, split;
  KEDGE_TRY(need_text(object, "replacement", &replacement));
  KEDGE_TRY(kedge__json_text(object, "prepend_scheme", &scheme));
  KEDGE_TRY(kedge__json_bool(object, "add_prefix_space", true, &prefix));
  KEDGE_TRY(kedge__json_bool(object, "split", true, &split));
  if (!*replacement) return kedge_fail(KEDGE_ERR_FORMAT, "'replacement' is empty");
  int prepend = !scheme ? (prefix ? KEDGE__ALWAYS : KEDGE__NEVER) : -1;
  for (int i = 0; scheme && i < 3; i++)
    if (!strcmp(scheme, schemes[i])) prepend = i;
  if (prepend < 0 || (!prefix && prepend != KEDGE__NEVER))
    return kedge_fail(KEDGE_ERR_FORMAT, "'prepend_scheme' is '%.40s'", scheme);
  kedge__stage stage = {.run = kedge__stage_unmetaspace, .prepend = (kedge__prepend)prepend};
  if (r->where == DECODER) return push(r, stage, replacement);
  kedge__stage replace = {.run = kedge__stage_replace};
  KEDGE_TRY(kedge__regex_new(KEDGE__LITERAL_SYNTAX, " ", 1, &replace.regex));
  KEDGE_TRY(push(r, replace, replacement));
  stage.run = kedge__stage_prefix;
  if (prepend != KEDGE__NEVER) KEDGE_TRY(push(r, stage, replacement));
  if (!split) return KEDGE_OK;
  kedge__stage cut = {.run = kedge__stage_split, .behavior = KEDGE__MERGED_WITH_NEXT};
  KEDGE_TRY(kedge__regex_new(KEDGE__LITERAL_SYNTAX, replacement, strlen(replacement), &cut.regex));
  return push(r, cut, NULL);
}

static kedge_status read_byte_fallback(reader *r, const json_t *object) {
  (void)object;
  return push(r, (kedge__stage){.run = kedge__stage_bytes}, NULL);
}

static kedge_status read_fuse(reader *r, const json_t *object) {
  (void)object;
  return push(r, (kedge__stage){.run = kedge__stage_fuse}, NULL);
}

static kedge_status read_strip(reader *r, const json_t *object) {
  const char *content;
  kedge__stage stage = {.run = kedge__stage_strip};
  KEDGE_TRY(need_text(object, "content", &content));
  KEDGE_TRY(read_count(object, "start", &stage.start));
  KEDGE_TRY(read_count(object, "stop", &stage.stop));
  return *content ? push(r, stage, content) : kedge_fail(KEDGE_ERR_FORMAT, "'content' is empty");
}

/* Ids of a special token of a template, from the map beside it. */
static kedge_status template_ids(const json_t *map, const json_t *token, kedge__ids *ids) {
  const char *name = json_string_value(json_object_get(token, "id"));
  const json_t *list = json_object_get(json_object_get(map, name ? name : ""), "ids");
  if (!json_is_array(list))
    return kedge_fail(KEDGE_ERR_FORMAT, "special token '%.60s' has no ids", name ? name : "");
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *id = json_array_get(list, i);
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
      return kedge_fail(KEDGE_ERR_FORMAT, "special token '%.60s' has an id that is no id", name);
    KEDGE_TRY(kedge__ids_push(ids, (int32_t)json_integer_value(id)));
  }
  return KEDGE_OK;
}

/* The `single` form: special tokens around one $A. A second template wraps the first. */
static kedge_status read_template(reader *r, const json_t *object) {
  const json_t *list = json_object_get(object, "single"), *map = json_object_get(object, "special_tokens");
  if (!json_is_array(list)) return kedge_fail(KEDGE_ERR_UNSUPPORTED, "'single' is not a list");
  kedge_tokenizer *t = r->tokenizer;
  kedge__ids prefix = {0};
  kedge_status status = KEDGE_OK;
  size_t texts = 0;
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *item = json_array_get(list, i), *token = json_object_get(item, "SpecialToken");
    const char *text = json_string_value(json_object_get(json_object_get(item, "Sequence"), "id"));
    if (token)
      KEDGE_GOTO(template_ids(map, token, texts ? &t->suffix : &prefix), status, end);
    else if (text && !strcmp(text, "A"))
      texts++;
    else
      texts = 2;
  }
  if (texts != 1) {
    status =
        kedge_fail(KEDGE_ERR_UNSUPPORTED, "'single' must have the text ($A) once and special tokens else");
    goto end;
  }
  for (size_t i = 0; i < t->prefix.length; i++)
    KEDGE_GOTO(kedge__ids_push(&prefix, t->prefix.data[i]), status, end);
  kedge__ids_free(&t->prefix);
  t->prefix = prefix;
  return KEDGE_OK;
end:
  kedge__ids_free(&prefix);
  return status;
}

static const struct row {
  const char *type;
  unsigned where;
  kedge_status (*read)(reader *r, const json_t *object);
} rows[] = {
    {"Sequence", NORMALIZER | PRE_TOKENIZER | POST_PROCESSOR | DECODER, read_sequence},
    {"NFC", NORMALIZER, read_form},
    {"NFD", NORMALIZER, read_form},
    {"NFKC", NORMALIZER, read_form},
    {"NFKD", NORMALIZER, read_form},
    {"Lowercase", NORMALIZER, read_lowercase},
    {"Prepend", NORMALIZER, read_prepend},
    {"Replace", NORMALIZER | DECODER, read_replace},
    {"ByteLevel", PRE_TOKENIZER | POST_PROCESSOR | DECODER, read_byte_level},
    {"Split", PRE_TOKENIZER, read_split},
    {"Digits", PRE_TOKENIZER, read_digits},
    {"Whitespace", PRE_TOKENIZER, read_whitespace},
    {"WhitespaceSplit", PRE_TOKENIZER, read_whitespace_split},
    {"Punctuation", PRE_TOKENIZER, read_punctuation},
    {"CharDelimiterSplit", PRE_TOKENIZER, read_delimiter},
    {"Metaspace", PRE_TOKENIZER | DECODER, read_metaspace},
    {"TemplateProcessing", POST_PROCESSOR, read_template},
    {"ByteFallback", DECODER, read_byte_fallback},
    {"Fuse", DECODER, read_fuse},
    {"Strip", DECODER, read_strip},
};

static kedge_status read_stage(reader *r, const json_t *object) {
  const char *type = json_string_value(json_object_get(object, "type"));
  if (!type) return kedge_fail(KEDGE_ERR_FORMAT, "a stage without a 'type'");
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (strcmp(type, rows[i].type) || !(rows[i].where & r->where)) continue;
    kedge_status status = rows[i].read(r, object);
    return status == KEDGE_OK ? status : kedge_fail_in(status, "%s", type);
  }
  return kedge_fail(KEDGE_ERR_UNSUPPORTED, "stage '%.60s' is not one that Kedge runs", type);
}

/* Remembers the text of a list of stages for the hash. */
static kedge_status remember(kedge_tokenizer *tokenizer, const json_t *object) {
  char *text = json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS);
  if (!text) return kedge_fail(KEDGE_ERR_MEMORY, "out of memory");
  kedge_status status = kedge__bytes_text(&tokenizer->pipeline, text);
  free(text);
  return status;
}

kedge_status kedge__read_pipeline(kedge_tokenizer *tokenizer, const json_t *root) {
  const struct {
    const char *key;
    kedge__stages *stages;
  } lists[] = {{"normalizer", &tokenizer->normalizer},
               {"pre_tokenizer", &tokenizer->pre_tokenizer},
               {"post_processor", NULL},
               {"decoder", &tokenizer->decoder}};
  for (unsigned i = 0; i < 4; i++) {
    const json_t *object = json_object_get(root, lists[i].key);
    KEDGE_TRY(kedge__bytes_text(&tokenizer->pipeline, lists[i].key));
    if (!object || json_is_null(object)) continue;
    reader r = {.tokenizer = tokenizer, .stages = lists[i].stages, .where = 1u << i};
    kedge_status status = read_stage(&r, object);
    if (status != KEDGE_OK) return kedge_fail_in(status, "%s", lists[i].key);
    KEDGE_TRY(remember(tokenizer, object));
  }
  return KEDGE_OK;
}
