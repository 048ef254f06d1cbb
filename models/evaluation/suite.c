/* SPDX-License-Identifier: Apache-2.0
 * Files of suites and reading them (suite.h). */
#include "models/evaluation/suite.h"

#include "models/checkpoint/atomic.h"
#include "models/checkpoint/json.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

enum { FOLDER_DEPTH = 4, MOST_FILES = 4096, WHOLE_CAP = 256 << 20 };

static bool ends_in(const char *text, const char *end) {
  const size_t length = strlen(text), rest = strlen(end);
  return length >= rest && !strcmp(text + length - rest, end);
}

/* ---- Reading a file
 * ----------------------------------------------------------------------------------------------- */

/* The whole of a compressed file, for reading from memory; freed by kedge_free. */
static kedge_status inflate_file(const char *path, char **bytes, size_t *length) {
  gzFile file = gzopen(path, "rb");
  *bytes = NULL;
  *length = 0;
  if (!file) return kedge_fail(KEDGE_ERR_IO, "%s: cannot be opened", path);
  size_t capacity = 0;
  kedge_status status = KEDGE_OK;
  for (;;) {
    if (*length + (1 << 20) > capacity) {
      capacity = capacity * 2 + (2 << 20);
      char *grown = kedge_realloc(*bytes, capacity, 1);
      if (!grown) {
        status = KEDGE_ERR_MEMORY;
        break;
      }
      *bytes = grown;
    }
    const int got = gzread(file, *bytes + *length, 1 << 20);
    if (got < 0) status = kedge_fail(KEDGE_ERR_FORMAT, "%s: is no whole gzip file", path);
    if (got <= 0) break;
    *length += (size_t)got;
    if (*length > WHOLE_CAP) {
      status = kedge_fail(KEDGE_ERR_FORMAT, "%s: over %d MiB when unpacked", path, WHOLE_CAP >> 20);
      break;
    }
  }
  if (gzclose(file) != Z_OK && status == KEDGE_OK)
    status = kedge_fail(KEDGE_ERR_FORMAT, "%s: is no whole gzip file", path);
  if (status != KEDGE_OK) {
    kedge_free(*bytes);
    *bytes = NULL;
  }
  return status;
}

/* The examples of a file that is one object, {"examples": [...]}; NULL if it is none. */
static kedge_status open_object(const char *path, const char *text, size_t length, json_t **whole) {
  json_t *root;
  KEDGE_TRY(kedge__json_parse(text, length, path, &root));
  if (json_is_array(json_object_get(root, "examples")))
    *whole = json_incref(json_object_get(root, "examples"));
  json_decref(root);
  return *whole ? KEDGE_OK
                : kedge_fail(KEDGE_ERR_FORMAT, "%s: an object without a list of \"examples\"", path);
}

static char first_character(const char *text, size_t length) {
  size_t at = length >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0;
  while (at < length && strchr(" \t\r\n", text[at])) at++;
  return at < length ? text[at] : 0;
}

static void close_reader(kedge_suite *s) {
  if (s->reader) kedge_jsonl_close(s->reader);
  json_decref(s->whole);
  kedge_free(s->memory);
  s->memory = NULL;
  s->reader = NULL;
  s->whole = NULL;
}

static kedge_status open_reader(kedge_suite *s, const char *path) {
  char *text = NULL;
  size_t length = 0;
  const bool packed = ends_in(path, ".gz"), one = ends_in(path, ".json") || ends_in(path, ".json.gz");
  close_reader(s);
  s->place = 0;
  if (packed)
    KEDGE_TRY(inflate_file(path, &text, &length));
  else if (one)
    KEDGE_TRY(kedge_file_read(path, WHOLE_CAP, &text, &length));
  else
    return kedge_jsonl_open(path, false, NULL, NULL, &s->reader);
  kedge_status status = KEDGE_OK;
  if (one && first_character(text, length) == '{')
    status = open_object(path, text, length, &s->whole);
  else
    status = kedge_jsonl_open_memory(path, text, length, false, NULL, NULL, &s->reader);
  if (status == KEDGE_OK && s->reader) {
    s->memory = text;
    return KEDGE_OK;
  }
  kedge_free(text);
  return status;
}

/* The next record of the open file, owned by the caller; NULL at its end. */
static kedge_status next_record(kedge_suite *s, json_t **record, uint64_t *line) {
  if (!s->whole) return kedge_jsonl_next(s->reader, record, line);
  *record = json_incref(json_array_get(s->whole, s->place));
  *line = s->place;
  if (*record && !json_is_object(*record)) {
    json_decref(*record);
    *record = NULL;
    return kedge_fail(KEDGE_ERR_FORMAT, "\"examples\"[%llu]: expected an object, got %s",
                      (unsigned long long)s->place, kedge__json_type(json_array_get(s->whole, s->place)));
  }
  return KEDGE_OK;
}

/* ---- Items
 * ------------------------------------------------------------------------------------------------------- */

/* The file's name without folder and endings: at most 63 bytes of it. */
static void stem_of(const char *path, char stem[64]) {
  static const char *const ends[] = {".gz", ".jsonl", ".json"};
  const char *slash = strrchr(path, '/');
  snprintf(stem, 64, "%s", slash ? slash + 1 : path);
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
    if (ends_in(stem, ends[i])) stem[strlen(stem) - strlen(ends[i])] = 0;
}

static kedge_status read_item(kedge_suite *s, kedge_suite_file *file, kedge_item *item, bool *some) {
  json_t *record = NULL;
  uint64_t line = 0;
  char stem[64];
  *some = false;
  kedge_status status = next_record(s, &record, &line);
  if (status == KEDGE_OK && !record) return KEDGE_OK;
  if (status == KEDGE_OK && !file->form) {
    file->form = kedge__form_detect(record);
    if (!file->form) status = kedge_fail(KEDGE_ERR_UNSUPPORTED, "%s: is in no form of a suite", file->path);
  }
  stem_of(file->path, stem);
  if (status == KEDGE_OK) {
    status = kedge__form_read(file->form, record, stem, s->place, s->order, item);
    if (status != KEDGE_OK && status != KEDGE_ERR_MEMORY)
      kedge_fail_in(status, s->whole ? "%s: example %llu (%s)" : "%s:%llu (%s)", file->path,
                    (unsigned long long)line, kedge_suite_form_name(file->form));
  }
  json_decref(record);
  if (status != KEDGE_OK) return status;
  s->place++;
  *some = true;
  return KEDGE_OK;
}

kedge_status kedge_suite_next(kedge_suite *s, kedge_item *item, uint32_t *file, bool *some) {
  *item = (kedge_item){0};
  *some = false;
  while (s->file < s->count) {
    kedge_suite_file *f = &s->files[s->file];
    if (!s->reader && !s->whole) KEDGE_TRY(open_reader(s, f->path));
    kedge_status status = KEDGE_OK;
    if (!s->limit || s->place < s->limit) status = read_item(s, f, item, some);
    if (status != KEDGE_OK) {
      kedge_item_destroy(item);
      return status;
    }
    *file = s->file;
    if (*some) {
      s->number++;
      return KEDGE_OK;
    }
    close_reader(s);
    s->file++;
  }
  return KEDGE_OK;
}

void kedge_suite_rewind(kedge_suite *s) {
  close_reader(s);
  s->file = 0;
  s->place = s->number = 0;
}

/* ---- Files
 * ------------------------------------------------------------------------------------------------------- */

typedef struct listing {
  kedge_suite *suite;
  kedge_notice notice;
  void *context;
} listing;

static kedge_status add_file(kedge_suite *s, const char *path) {
  if (s->count == MOST_FILES)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "more than %d files in a suite", MOST_FILES);
  kedge_suite_file *grown = kedge_realloc(s->files, s->count + 1, sizeof *grown);
  if (!grown) return KEDGE_ERR_MEMORY;
  s->files = grown;
  grown[s->count] = (kedge_suite_file){.path = kedge_strdup(path)};
  if (!grown[s->count].path) return KEDGE_ERR_MEMORY;
  s->count++;
  return KEDGE_OK;
}

/* Reads the last file of the list to its end and counts. A file of a folder in no known form goes again. */
static kedge_status count_items(const listing *l, bool named) {
  kedge_suite *s = l->suite;
  kedge_suite_file *file = &s->files[s->count - 1];
  kedge_status status = open_reader(s, file->path);
  for (bool some = status == KEDGE_OK; status == KEDGE_OK && some && (!s->limit || file->items < s->limit);) {
    kedge_item item = {0};
    status = read_item(s, file, &item, &some);
    file->items += some;
    s->code += some && item.kind == KEDGE_ANSWER_PYTHON;
    kedge_item_destroy(&item);
  }
  close_reader(s);
  if (status == KEDGE_OK) status = kedge_hash_file(file->path, file->hash);
  if (status == KEDGE_OK && !file->items && named)
    status = kedge_fail(KEDGE_ERR_FORMAT, "%s: has no records", file->path);
  s->items += file->items;
  if (named || (status != KEDGE_ERR_UNSUPPORTED && (status != KEDGE_OK || file->items))) return status;
  char *line = kedge_format("%s is in no form of a suite and is left out", file->path);
  if (line && l->notice) l->notice(l->context, line);
  kedge_free(file->path);
  s->count--;
  const kedge_status result = line ? KEDGE_OK : KEDGE_ERR_MEMORY;
  kedge_free(line);
  return result;
}

static int by_name(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names in a folder but those that begin with a point, sorted. */
static kedge_status list_folder(const char *path, char ***names, size_t *count) {
  DIR *folder = opendir(path);
  if (!folder) return kedge_fail(KEDGE_ERR_IO, "%s: cannot be opened", path);
  kedge_status status = KEDGE_OK;
  for (struct dirent *e; status == KEDGE_OK && (e = readdir(folder));) {
    if (e->d_name[0] == '.') continue;
    char **grown = kedge_realloc(*names, *count + 1, sizeof *grown);
    if (grown) *names = grown;
    if (!grown || !(grown[*count] = kedge_strdup(e->d_name)))
      status = KEDGE_ERR_MEMORY;
    else if (++*count > 16 * MOST_FILES)
      status = kedge_fail(KEDGE_ERR_ARGUMENT, "%s: too many entries for a suite", path);
  }
  closedir(folder);
  if (*count) qsort(*names, *count, sizeof **names, by_name);
  return status;
}

static kedge_status add_path(const listing *l, const char *path, uint32_t depth) {
  struct stat info;
  if (stat(path, &info)) return kedge_fail(KEDGE_ERR_IO, "%s: is not there", path);
  if (!S_ISDIR(info.st_mode)) {
    static const char *const ends[] = {".jsonl", ".json", ".jsonl.gz", ".json.gz"};
    bool fits = !depth;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) fits |= ends_in(path, ends[i]);
    if (!fits || !S_ISREG(info.st_mode)) {
      if (depth) return KEDGE_OK;
      if (!S_ISREG(info.st_mode)) return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: is no regular file", path);
    }
    KEDGE_TRY(add_file(l->suite, path));
    return count_items(l, !depth);
  }
  if (depth == FOLDER_DEPTH) return KEDGE_OK;
  char **names = NULL;
  size_t count = 0;
  kedge_status status = list_folder(path, &names, &count);
  for (size_t i = 0; status == KEDGE_OK && i < count; i++) {
    char *inner = kedge_path_join(path, names[i]);
    status = inner ? add_path(l, inner, depth + 1) : KEDGE_ERR_MEMORY;
    kedge_free(inner);
  }
  for (size_t i = 0; i < count; i++) kedge_free(names[i]);
  kedge_free(names);
  return status;
}

kedge_status kedge_suite_open(kedge_suite *s, const char *const *paths, size_t count, uint64_t limit,
                              int64_t order, kedge_notice notice, void *context) {
  const listing l = {s, notice, context};
  *s = (kedge_suite){.limit = limit, .order = order};
  for (size_t i = 0; i < count; i++) KEDGE_TRY(add_path(&l, paths[i], 0));
  if (!s->items) return kedge_fail(KEDGE_ERR_ARGUMENT, "there is nothing to evaluate in the suites");
  kedge_suite_rewind(s);
  return KEDGE_OK;
}

void kedge_suite_close(kedge_suite *s) {
  close_reader(s);
  for (uint32_t i = 0; i < s->count; i++) kedge_free(s->files[i].path);
  kedge_free(s->files);
  *s = (kedge_suite){0};
}
