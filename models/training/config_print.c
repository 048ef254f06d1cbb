/* SPDX-License-Identifier: Apache-2.0
 * The resolved configuration as YAML and JSON, and the help text, from the key tables (config.h). One walk
 * serves both forms; numbers are the shortest decimals that read back to the same bits. */
#include "models/routing/router.h"
#include "models/training/config_internal.h"
#include "models/training/number.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- Scalars
 * ------------------------------------------------------------------------------------------------------ */

static void put_real(FILE *out, double value) {
  char text[KEDGE_REAL_TEXT];
  fputs(kedge__real_text(value, text), out);
}

/* A word that YAML reads as the same string without quotes. */
static bool is_plain(const char *text) {
  static const char *const reserved[] = {"null", "Null", "NULL", "true", "false", "yes",
                                         "no",   "on",   "off",  "y",    "n"};
  for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
    if (!strcmp(text, reserved[i])) return false;
  bool starts =
      (*text >= 'a' && *text <= 'z') || (*text >= 'A' && *text <= 'Z') || *text == '/' || *text == '_';
  static const char others[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";
  return starts && strspn(text, others) == strlen(text);
}

/* Whether a code point may stand in YAML as it is. */
static bool printable(int32_t point) {
  if (point < 0x20 || (point >= 0x7f && point < 0xa0)) return false;
  return point != 0x2028 && point != 0x2029 && point != 0xfeff && point != 0xfffe && point != 0xffff;
}

/* In double quotes with the escapes that JSON and YAML share. */
static void put_quoted(FILE *out, const char *text) {
  fputc('"', out);
  while (*text) {
    utf8proc_int32_t point;
    utf8proc_ssize_t step = utf8proc_iterate((const utf8proc_uint8_t *)text, -1, &point);
    if (step <= 0) break; /* stored strings are UTF-8 */
    if (point == '"' || point == '\\')
      fprintf(out, "\\%c", (char)point);
    else if (!printable(point))
      fprintf(out, "\\u%04x", (unsigned)point);
    else
      fwrite(text, 1, (size_t)step, out);
    text += step;
  }
  fputc('"', out);
}

static void put_string(FILE *out, const char *text, bool json) {
  if (!text)
    fputs("null", out);
  else if (!json && is_plain(text))
    fputs(text, out);
  else
    put_quoted(out, text);
}

static void put_scalar(FILE *out, const kedge_config_key *key, const void *base, bool json) {
  const void *field = (const char *)base + key->offset;
  switch (key->kind) {
  case KEDGE_KIND_INT:
    fprintf(out, "%" PRId64, *(const int64_t *)field);
    break;
  case KEDGE_KIND_STEPS: /* without a default 0 is only what follows from no value */
    put_real(out, key->def || *(const double *)field > 0 ? *(const double *)field : (double)NAN);
    break;
  case KEDGE_KIND_REAL:
    put_real(out, *(const double *)field);
    break;
  case KEDGE_KIND_BOOL:
    fputs(*(const bool *)field ? "true" : "false", out);
    break;
  case KEDGE_KIND_ENUM:
    put_string(out, key->choices[*(const int *)field].value, json);
    break;
  default:
    put_string(out, *(char *const *)field, json);
    break;
  }
}

/* ---- Lists
 * -------------------------------------------------------------------------------------------------------- */

static void put_files(FILE *out, const kedge_config_files *files, bool json) {
  if (json || !files->count) fputs(" [" + json, out);
  for (size_t i = 0; i < files->count; i++) {
    const kedge_config_file *file = &files->items[i];
    fputs(json ? i ? "," : "" : "\n  - ", out);
    if (!file->type) {
      put_string(out, file->path, json);
      continue;
    }
    fputs(json ? "{\"path\":" : "{path: ", out);
    put_quoted(out, file->path);
    fputs(json ? ",\"type\":" : ", type: ", out);
    put_quoted(out, file->type);
    fputc('}', out);
  }
  if (json || !files->count) fputc(']', out);
}

static void put_layers(FILE *out, const kedge_config_layers *layers, bool json) {
  if (!layers->count) {
    fputs(json ? "\"all\"" : "all", out);
    return;
  }
  for (size_t i = 0; i < layers->count; i++)
    fprintf(out, "%s%u", i ? json ? "," : ", " : "[", layers->items[i]);
  fputc(']', out);
}

/* Only the keys that the intervention reads. */
static void put_router(FILE *out, const kedge_config_router *router, bool json) {
  bool first = true;
  for (size_t i = 0; i < kedge__router_key_count; i++) {
    const kedge_config_key *key = &kedge__router_keys[i];
    if (!kedge__router_uses(router->intervention, key->name)) continue;
    if (json)
      fprintf(out, "%s\"%s\":", first ? "{" : ",", key->name);
    else
      fprintf(out, "\n  %s %s: ", first ? "-" : " ", key->name);
    first = false;
    if (key->kind == KEDGE_KIND_LAYERS)
      put_layers(out, &router->layers, json);
    else
      put_scalar(out, key, router, json);
  }
  if (json) fputc('}', out);
}

static void put_routers(FILE *out, const kedge_config_routers *routers, bool json) {
  if (json || !routers->count) fputs(" [" + json, out);
  for (size_t i = 0; i < routers->count; i++) {
    if (json && i) fputc(',', out);
    put_router(out, &routers->items[i], json);
  }
  if (json || !routers->count) fputc(']', out);
}

/* ---- Whole texts
 * ---------------------------------------------------------------------------------------------------- */

static void put_config(FILE *out, const kedge_config *config, bool json) {
  bool first = true;
  for (size_t i = 0; i < kedge__config_key_count; i++) {
    const kedge_config_key *key = &kedge__config_keys[i];
    const void *field = (const char *)config + key->offset;
    if (key->kind >= KEDGE_KIND_SPECIAL) continue;
    if (key->kind == KEDGE_KIND_GROUP) {
      if (!json) fprintf(out, "%s# %s\n", first ? "" : "\n", key->name);
      continue;
    }
    if (json)
      fprintf(out, "%s\"%s\":", first ? "{" : ",", key->name);
    else
      fprintf(out, "%s:", key->name);
    first = false;
    if (key->kind == KEDGE_KIND_FILES) {
      put_files(out, field, json);
    } else if (key->kind == KEDGE_KIND_ROUTER) {
      put_routers(out, field, json);
    } else {
      if (!json) fputc(' ', out);
      put_scalar(out, key, config, json);
    }
    if (!json) fputc('\n', out);
  }
  if (json) fputc('}', out);
}

/* `context` goes to `put`, whose text becomes memory of the library. */
static char *collect(void (*put)(FILE *out, const void *context), const void *context) {
  char *text = NULL, *copy = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (!out) {
    kedge_fail(KEDGE_ERR_MEMORY, "out of memory");
    return NULL;
  }
  put(out, context);
  bool whole = !ferror(out);
  if (fclose(out) == 0 && whole)
    copy = kedge_strdup(text);
  else
    kedge_fail(KEDGE_ERR_MEMORY, "out of memory");
  free(text);
  return copy;
}

static void put_yaml(FILE *out, const void *config) {
  put_config(out, config, false);
}
static void put_json(FILE *out, const void *config) {
  put_config(out, config, true);
}

char *kedge_config_yaml(const kedge_config *config) {
  return collect(put_yaml, config);
}
char *kedge_config_json(const kedge_config *config) {
  return collect(put_json, config);
}

/* A comma-separated list with spaces. */
static void put_names(FILE *out, const char *list) {
  for (; *list; list++) fprintf(out, *list == ',' ? ", " : "%c", *list);
}

static void put_key_help(FILE *out, const kedge_config_key *key, int indent) {
  char head[96];
  bool shows_default = key->def && *key->def;
  snprintf(head, sizeof head, "%s%s%s", key->name, shows_default ? " = " : "", shows_default ? key->def : "");
  fprintf(out, "%*s%-*s  %s\n", indent, "", 38 - indent, head, key->doc);
  int under = 40 + indent / 4;
  if (key->kind == KEDGE_KIND_ENUM) {
    fprintf(out, "%*sone of: ", under, "");
    for (size_t i = 0; i < key->choice_count; i++) fprintf(out, "%s%s", i ? ", " : "", key->choices[i].value);
    fputc('\n', out);
  }
  if (key->range) fprintf(out, "%*sin %s\n", under, "", key->range);
  const char *serves = indent == 2 ? kedge__config_serves(key->name) : NULL;
  if (serves) fprintf(out, "%*sfor %s\n", under, "", serves);
  if (*key->aliases) {
    fprintf(out, "%*salso: ", under, "");
    put_names(out, key->aliases);
    fputc('\n', out);
  }
}

/* What each intervention does, and the keys of one of them. */
static void put_router_help(FILE *out) {
  for (int i = 0; i < (int)KEDGE_ROUTER_COUNT; i++)
    fprintf(out, "%*s%s: %s\n", 40, "", kedge_router_name((kedge_router_id)i),
            kedge_router_doc((kedge_router_id)i));
  for (size_t i = 0; i < kedge__router_key_count; i++) put_key_help(out, &kedge__router_keys[i], 4);
}

/* The names of all rows of a kind, in lines of at most 100 columns. */
static void put_row_names(FILE *out, kedge_config_kind kind, const char *title) {
  size_t column = 0;
  fprintf(out, "\n%s\n", title);
  for (size_t i = 0; i < kedge__config_key_count; i++) {
    const char *name = kedge__config_keys[i].name;
    if (kedge__config_keys[i].kind != kind) continue;
    bool breaks = column && column + 2 + strlen(name) > 99;
    fprintf(out, "%s%s", breaks ? ",\n  " : column ? ", " : "  ", name);
    column = (breaks ? 2 : column + 2) + strlen(name);
  }
  fputc('\n', out);
}

static void put_help(FILE *out, const void *unused) {
  (void)unused;
  bool first = true, others = false;
  for (size_t i = 0; i < kedge__config_key_count; i++) {
    const kedge_config_key *key = &kedge__config_keys[i];
    if (key->kind > KEDGE_KIND_SPECIAL) continue;
    if (key->kind == KEDGE_KIND_GROUP) {
      fprintf(out, "%s%s\n", first ? "" : "\n", key->name);
      first = false;
      continue;
    }
    if (key->kind == KEDGE_KIND_SPECIAL && !others) {
      fputs("\nTaken from other dialects\n", out);
      others = true;
    }
    put_key_help(out, key, 2);
    if (key->kind == KEDGE_KIND_ROUTER) put_router_help(out);
  }
  put_row_names(out, KEDGE_KIND_IGNORED, "Accepted and without use here");
  put_row_names(out, KEDGE_KIND_REFUSED, "Refused with a reason, unless they ask for what Kedge does anyway");
}

char *kedge_config_help(void) {
  return collect(put_help, NULL);
}
