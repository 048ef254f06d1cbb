/* SPDX-License-Identifier: Apache-2.0
 * JSON through jansson, strict (json.h). */
#include "models/checkpoint/json.h"

#include "models/checkpoint/atomic.h"

const char *kedge__json_type(const json_t *value) {
  if (!value) return "nothing";
  switch (json_typeof(value)) {
  case JSON_OBJECT:
    return "an object";
  case JSON_ARRAY:
    return "an array";
  case JSON_STRING:
    return "a string";
  case JSON_INTEGER:
    return "an integer";
  case JSON_REAL:
    return "a real number";
  case JSON_TRUE:
    return "true";
  case JSON_FALSE:
    return "false";
  default:
    return "null";
  }
}

kedge_status kedge__json_parse(const char *text, size_t bytes, const char *name, json_t **root) {
  json_error_t error = {0};
  *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
  if (*root) return KEDGE_OK;
  /* jansson leaves the text empty when an allocation fails while it builds a value. */
  if (json_error_code(&error) == json_error_out_of_memory || !error.text[0])
    return kedge_fail(KEDGE_ERR_MEMORY, "%s: out of memory while reading JSON", name);
  return kedge_fail(KEDGE_ERR_FORMAT, "%s: line %d column %d: not valid JSON: %s", name, error.line,
                    error.column, error.text);
}

kedge_status kedge__json_load(const char *path, size_t cap, json_t **root) {
  *root = NULL;
  char *text;
  size_t bytes;
  KEDGE_TRY(kedge_file_read(path, cap, &text, &bytes));
  kedge_status status = kedge__json_parse(text, bytes, path, root);
  kedge_free(text);
  return status;
}
