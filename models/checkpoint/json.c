/* SPDX-License-Identifier: Apache-2.0
 * JSON through jansson, strict (json.h). */
#include "models/checkpoint/json.h"

#include "models/checkpoint/atomic.h"

#include <math.h>

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

enum { WHOLE_DEPTH = 2100 }; /* over jansson's own limit */

/* The integer that a real stands for, or NULL if it is none. */
static json_t *as_integer(const json_t *value) {
  double real = json_real_value(value);
  bool whole = json_is_real(value) && real == floor(real) && fabs(real) <= 9007199254740992.0;
  return whole ? json_integer((json_int_t)real) : NULL;
}

/* Turns whole reals back into integers, below `value`. False without memory. */
static bool restore_integers(json_t *value, int depth) {
  const char *key;
  json_t *item, *integer;
  size_t index;
  if (depth > WHOLE_DEPTH) return true;
  json_object_foreach(value, key, item) {
    integer = as_integer(item);
    if (integer ? json_object_set_new(value, key, integer) != 0 : !restore_integers(item, depth + 1))
      return false;
  }
  json_array_foreach(value, index, item) {
    integer = as_integer(item);
    if (integer ? json_array_set_new(value, index, integer) != 0 : !restore_integers(item, depth + 1))
      return false;
  }
  return true;
}

/* Python writes integers of any size (a tokenizer's "no limit" is 10^30); jansson has 64 bits. Read again
 * with all numbers as reals, those that are whole and exact become integers again. */
static json_t *load_big_integers(const char *text, size_t bytes, json_error_t *error) {
  json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, error);
  if (root && restore_integers(root, 0)) return root;
  json_decref(root);
  return NULL;
}

kedge_status kedge__json_parse(const char *text, size_t bytes, const char *name, json_t **root) {
  json_error_t error = {0};
  *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
  if (!*root && json_error_code(&error) == json_error_numeric_overflow)
    *root = load_big_integers(text, bytes, &error);
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
