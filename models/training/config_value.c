/* SPDX-License-Identifier: Apache-2.0
 * Scalars of the configuration: text to a number, a truth value, a word or a string, with range checks and
 * messages that say what was expected (config_internal.h). */
#include "models/training/config_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <utf8proc.h>

enum { SHOWN = 80 }; /* bytes of a wrong value that a message repeats */

bool kedge__config_in_list(const char *list, const char *name) {
  size_t wanted = strlen(name);
  while (*list) {
    size_t length = strcspn(list, ",");
    if (length && length == wanted && !strncmp(list, name, length)) return true;
    list += length;
    if (*list) list++;
  }
  return false;
}

bool kedge__config_bool(const char *text, bool *value) {
  static const char *const yes[] = {"true", "yes", "on", "t", "y", "1"};
  static const char *const no[] = {"false", "no", "off", "f", "n", "0"};
  for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) {
    *value = !strcasecmp(text, yes[i]);
    if (*value || !strcasecmp(text, no[i])) return true;
  }
  return false;
}

static bool is_null(const char *text) {
  return !*text || !strcmp(text, "~") || !strcmp(text, "null") || !strcmp(text, "Null") ||
         !strcmp(text, "NULL");
}

kedge_status kedge__config_scalar(kedge_config_loader *loader, uint32_t node, const char *expected,
                                  const char **text) {
  const kedge_yaml_node *at = kedge__yaml_at(loader->yaml, node);
  if (at->kind != KEDGE_YAML_SCALAR)
    return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "expected %s, came a %s", expected,
                              at->kind == KEDGE_YAML_LIST ? "list" : "mapping");
  /* `null` is a backend's name too. */
  const bool name = !strcmp(loader->key, "backend") && *at->text;
  *text = at->plain && !name && is_null(at->text) ? NULL : at->text;
  return KEDGE_OK;
}

/* Decimal digits with a sign and nothing else. */
static bool whole(const char *text, int64_t *value) {
  const char *digits = text + (*text == '-' || *text == '+');
  if (!*digits || strspn(digits, "0123456789") != strlen(digits)) return false;
  errno = 0;
  *value = strtoll(text, NULL, 10);
  return errno == 0;
}

/* A decimal number with optional fraction and exponent: no hexadecimal, no words. */
static bool real(const char *text, double *value) {
  const char *at = text + (*text == '-' || *text == '+');
  size_t before = strspn(at, "0123456789"), after = 0;
  at += before;
  if (*at == '.') after = strspn(++at, "0123456789"), at += after;
  if (!before && !after) return false;
  if (*at == 'e' || *at == 'E') {
    at += 1 + (at[1] == '-' || at[1] == '+');
    if (!*at) return false;
    at += strspn(at, "0123456789");
  }
  if (*at) return false;
  *value = strtod(text, NULL);
  return true;
}

static bool names_no_number(const char *text) {
  static const char *const words[] = {"nan", "inf", "infinity"};
  text += *text == '-' || *text == '+';
  text += *text == '.';
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (!strcasecmp(text, words[i])) return true;
  return false;
}

/* Whether a value lies in an interval such as "[0, 1)". */
static bool in_range(const char *range, double value) {
  char *end;
  double low = strtod(range + 1, &end);
  double high = strtod(end + 1, &end);
  bool above = *range == '[' ? value >= low : value > low;
  bool below = *end == ']' ? value <= high : value < high;
  return above && below;
}

bool kedge__config_is_empty(const kedge_yaml *yaml, uint32_t node, bool off) {
  const kedge_yaml_node *at = kedge__yaml_at(yaml, node);
  bool value;
  double number;
  if (at->kind != KEDGE_YAML_SCALAR) return off && !at->first;
  if (!*at->text || (at->plain && is_null(at->text))) return true;
  if (!off) return false;
  if (kedge__config_bool(at->text, &value)) return !value;
  return !strcasecmp(at->text, "none") || (real(at->text, &number) && number == 0);
}

bool kedge__config_is_among(const kedge_yaml *yaml, uint32_t node, const char *list) {
  const kedge_yaml_node *at = kedge__yaml_at(yaml, node);
  if (at->kind == KEDGE_YAML_MAP) return false;
  uint32_t item = at->kind == KEDGE_YAML_LIST ? at->first : node;
  for (; item; item = at->kind == KEDGE_YAML_LIST ? yaml->nodes[item].next : 0) {
    const kedge_yaml_node *word = kedge__yaml_at(yaml, item);
    char lower[32];
    size_t length = word->kind == KEDGE_YAML_SCALAR ? strlen(word->text) : sizeof lower;
    if (length >= sizeof lower) return false;
    for (size_t i = 0; i <= length; i++)
      lower[i] = (char)(word->text[i] >= 'A' && word->text[i] <= 'Z' ? word->text[i] + 32 : word->text[i]);
    if (!kedge__config_in_list(list, lower)) return false;
  }
  return at->kind == KEDGE_YAML_SCALAR || at->first;
}

static kedge_status wrong(kedge_config_loader *loader, const char *expected, const char *text) {
  return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "expected %s, came \"%.*s\"", expected, SHOWN, text);
}

static kedge_status store_int(kedge_config_loader *loader, const kedge_config_key *key, int64_t *field,
                              const char *text) {
  int64_t value;
  if (!whole(text, &value)) {
    double number;
    return wrong(loader, real(text, &number) ? "a whole number" : "a number", text);
  }
  if (!in_range(key->range, (double)value))
    return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "%.*s is outside %s", SHOWN, text, key->range);
  *field = value;
  return KEDGE_OK;
}

static kedge_status store_real(kedge_config_loader *loader, const char *range, double *field,
                               const char *text) {
  double value;
  if (names_no_number(text))
    return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "expected a finite number, came \"%.*s\"", SHOWN,
                              text);
  if (!real(text, &value)) return wrong(loader, "a number", text);
  if (!isfinite(value))
    return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "%.*s is too large for a number", SHOWN, text);
  if (!in_range(range, value))
    return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "%.*s is outside %s", SHOWN, text, range);
  *field = value == 0 ? 0 : value; /* no negative zero */
  return KEDGE_OK;
}

static kedge_status store_steps(kedge_config_loader *loader, double *field, const char *text) {
  double value;
  KEDGE_TRY(store_real(loader, "[0, 2147483647]", &value, text));
  if (value > 1 && value != floor(value))
    return wrong(loader, "a whole number of updates, or a part of the run below 1", text);
  *field = value;
  return KEDGE_OK;
}

static kedge_status store_choice(kedge_config_loader *loader, const kedge_config_key *key, int *field,
                                 const char *text) {
  char known[256] = "";
  kedge_nearest nearest = {.word = text};
  for (size_t i = 0; i < key->choice_count; i++) {
    const kedge_config_choice *choice = &key->choices[i];
    char lower[32];
    size_t length = 0;
    for (; text[length] && length + 1 < sizeof lower; length++)
      lower[length] = (char)(text[length] >= 'A' && text[length] <= 'Z' ? text[length] + 32 : text[length]);
    lower[length] = 0;
    if (!text[length] && (!strcmp(choice->value, lower) || kedge__config_in_list(choice->others, lower))) {
      *field = (int)i;
      return KEDGE_OK;
    }
    size_t used = strlen(known);
    snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", choice->value);
    kedge__nearest_offer(&nearest, choice->value, strlen(choice->value));
  }
  if (nearest.best)
    return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "\"%.*s\" is not one of %s; nearest is \"%.*s\"",
                              SHOWN, text, known, (int)nearest.length, nearest.best);
  return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "\"%.*s\" is not one of %s (%s)", SHOWN, text, known,
                            key->doc);
}

static kedge_status store_string(kedge_config_loader *loader, char **field, const char *text) {
  size_t length = strlen(text);
  if (length > 4096)
    return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "%zu bytes; at most 4096 are read", length);
  for (const char *at = text; *at;) {
    utf8proc_int32_t point;
    utf8proc_ssize_t step = utf8proc_iterate((const utf8proc_uint8_t *)at, -1, &point);
    if (step <= 0) return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "the value is not UTF-8");
    at += step;
  }
  char *copy = kedge_strdup(text);
  if (!copy) return KEDGE_ERR_MEMORY;
  kedge_free(*field);
  *field = copy;
  return KEDGE_OK;
}

/* No value: strings become NULL, what else may be unset becomes so, and the rest keeps its default. */
static kedge_status store_nothing(kedge_config_loader *loader, const kedge_config_key *key, char *field) {
  if (key->def) return kedge__config_store_text(loader, key, field - key->offset, key->def);
  switch (key->kind) {
  case KEDGE_KIND_STRING:
  case KEDGE_KIND_PATH:
    kedge_free(*(char **)(void *)field);
    *(char **)(void *)field = NULL;
    break;
  case KEDGE_KIND_REAL:
  case KEDGE_KIND_STEPS:
    *(double *)(void *)field = (double)NAN;
    break;
  case KEDGE_KIND_INT:
    *(int64_t *)(void *)field = INT64_MIN;
    break;
  default:
    break;
  }
  return KEDGE_OK;
}

kedge_status kedge__config_store_text(kedge_config_loader *loader, const kedge_config_key *key, void *base,
                                      const char *text) {
  char *field = (char *)base + key->offset;
  if (!text) return store_nothing(loader, key, field);
  switch (key->kind) {
  case KEDGE_KIND_INT:
    return store_int(loader, key, (int64_t *)(void *)field, text);
  case KEDGE_KIND_REAL:
    return store_real(loader, key->range, (double *)(void *)field, text);
  case KEDGE_KIND_STEPS:
    return store_steps(loader, (double *)(void *)field, text);
  case KEDGE_KIND_BOOL:
    return kedge__config_bool(text, (bool *)(void *)field) ? KEDGE_OK : wrong(loader, "true or false", text);
  case KEDGE_KIND_ENUM:
    return store_choice(loader, key, (int *)(void *)field, text);
  default:
    return store_string(loader, (char **)(void *)field, text);
  }
}

static const char *expected_of(kedge_config_kind kind) {
  switch (kind) {
  case KEDGE_KIND_INT:
    return "a whole number";
  case KEDGE_KIND_REAL:
  case KEDGE_KIND_STEPS:
    return "a number";
  case KEDGE_KIND_BOOL:
    return "true or false";
  case KEDGE_KIND_PATH:
    return "a path";
  case KEDGE_KIND_ENUM:
    return "a word";
  default:
    return "a string";
  }
}

/* A list where one word is expected: report_to: [none] is that word, [] no value; a list with a word that is
 * none of the choices is refused for that word. */
static kedge_status store_words(kedge_config_loader *loader, const kedge_config_key *key, void *base,
                                uint32_t node) {
  const kedge_yaml_node *list = kedge__yaml_at(loader->yaml, node);
  const char *text = NULL;
  for (uint32_t item = list->first; item; item = loader->yaml->nodes[item].next) {
    KEDGE_TRY(kedge__config_scalar(loader, item, "a word", &text));
    KEDGE_TRY(kedge__config_store_text(loader, key, base, text));
  }
  if (list->first != list->last) return kedge__config_scalar(loader, node, "a word", &text);
  return list->first ? KEDGE_OK : kedge__config_store_text(loader, key, base, NULL);
}

kedge_status kedge__config_store(kedge_config_loader *loader, const kedge_config_key *key, void *base,
                                 uint32_t node) {
  const kedge_yaml_node *at = kedge__yaml_at(loader->yaml, node);
  if (key->kind == KEDGE_KIND_ENUM && at->kind == KEDGE_YAML_LIST)
    return store_words(loader, key, base, node);
  const char *text;
  KEDGE_TRY(kedge__config_scalar(loader, node, expected_of(key->kind), &text));
  return kedge__config_store_text(loader, key, base, text);
}
