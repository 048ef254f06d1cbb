/* SPDX-License-Identifier: Apache-2.0
 *
 * Reader of JSON Lines files and JSON arrays of objects. Reads a character at a time from a buffered stream,
 * so that a file of any size needs the memory of its longest record; siblings: samples_format.c,
 * samples_read.c.
 */
#include "models/text/jsonl.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { NOTICES = 10 };

struct kedge_jsonl {
  FILE *file;
  char *name;
  bool skip_bad, started, array, first, closed;
  kedge_notice notice;
  void *context;
  char *text; /* the present record */
  size_t length, capacity;
  uint64_t line;        /* of the next character, from 1 */
  uint64_t record_line; /* of the present record */
  uint64_t skipped, bytes, size;
  int pending[3]; /* characters put back, the last one first */
  uint32_t pending_count;
};

static int take(kedge_jsonl *r) {
  int c = r->pending_count ? r->pending[--r->pending_count] : getc_unlocked(r->file);
  if (c == EOF) return EOF;
  r->bytes++;
  r->line += c == '\n';
  return c;
}

static void put_back(kedge_jsonl *r, int c) {
  if (c == EOF) return;
  r->pending[r->pending_count++] = c;
  r->bytes--;
  r->line -= c == '\n';
}

static bool is_blank(int c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static kedge_status open_stream(FILE *file, const char *name, bool skip_bad, kedge_notice notice,
                                void *context, kedge_jsonl **reader) {
  kedge_jsonl *r = kedge_alloc(1, sizeof *r);
  char *copy = r ? kedge_strdup(name) : NULL;
  if (!copy) {
    kedge_free(r);
    fclose(file);
    return KEDGE_ERR_MEMORY;
  }
  *r = (kedge_jsonl){
      .file = file, .name = copy, .skip_bad = skip_bad, .notice = notice, .context = context, .line = 1};
  struct stat info;
  int descriptor = fileno(file);
  if (descriptor >= 0 && fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode))
    r->size = (uint64_t)info.st_size;
  *reader = r;
  return KEDGE_OK;
}

kedge_status kedge_jsonl_open(const char *path, bool skip_bad, kedge_notice notice, void *context,
                              kedge_jsonl **reader) {
  *reader = NULL;
  FILE *file = fopen(path, "rb");
  if (!file) return kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
  return open_stream(file, path, skip_bad, notice, context, reader);
}

kedge_status kedge_jsonl_open_memory(const char *name, const void *bytes, size_t length, bool skip_bad,
                                     kedge_notice notice, void *context, kedge_jsonl **reader) {
  *reader = NULL;
  /* fmemopen() wants a writable pointer but, in mode "rb", never writes; it does not take 0 bytes everywhere.
   */
  union {
    const void *read;
    void *write;
  } memory = {length ? bytes : "\n"};
  FILE *file = fmemopen(memory.write, length ? length : 1, "rb");
  if (!file) return kedge_fail(KEDGE_ERR_MEMORY, "%s: %s", name, strerror(errno));
  KEDGE_TRY(open_stream(file, name, skip_bad, notice, context, reader));
  (*reader)->size = length;
  return KEDGE_OK;
}

void kedge_jsonl_close(kedge_jsonl *reader) {
  if (!reader) return;
  fclose(reader->file);
  kedge_free(reader->name);
  kedge_free(reader->text);
  kedge_free(reader);
}

static kedge_status at_end(kedge_jsonl *r) {
  if (ferror(r->file))
    return kedge_fail(KEDGE_ERR_IO, "%s:%llu: %s", r->name, (unsigned long long)r->line, strerror(errno));
  return KEDGE_OK;
}

/* Skips the byte order mark, finds the first character and decides between lines and an array. */
static kedge_status start(kedge_jsonl *r) {
  r->started = true;
  int bytes[3];
  for (int i = 0; i < 3; i++) bytes[i] = take(r);
  if (bytes[0] == 0x1f && bytes[1] == 0x8b)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "%s: a compressed file; unpack it first", r->name);
  bool mark = bytes[0] == 0xef && bytes[1] == 0xbb && bytes[2] == 0xbf;
  for (int i = 2; i >= 0 && !mark; i--) put_back(r, bytes[i]);
  int c = take(r);
  while (is_blank(c)) c = take(r);
  r->array = r->first = c == '[';
  if (!r->array) put_back(r, c);
  return at_end(r);
}

static kedge_status store(kedge_jsonl *r, int c) {
  if (r->length == r->capacity) {
    size_t capacity = r->capacity ? r->capacity * 2 : 4096;
    char *text = kedge_realloc(r->text, capacity, 1);
    if (!text) return KEDGE_ERR_MEMORY;
    r->text = text;
    r->capacity = capacity;
  }
  r->text[r->length++] = (char)c;
  return KEDGE_OK;
}

/* Reads the next line that is not blank into r->text; *found is false at the end of the file. */
static kedge_status read_line(kedge_jsonl *r, bool *found, bool *too_long) {
  *found = *too_long = false;
  int c = take(r);
  while (is_blank(c)) c = take(r);
  r->record_line = r->line;
  r->length = 0;
  for (; c != EOF && c != '\n'; c = take(r)) {
    *found = true;
    if (r->length == KEDGE_JSONL_MAX_RECORD)
      *too_long = true; /* looking for its end only makes sense to go on behind it */
    if (*too_long && !r->skip_bad) break;
    if (!*too_long) KEDGE_TRY(store(r, c));
  }
  return at_end(r);
}

/* A fault in the array itself: where the next element starts is then unknown, so that it is never skipped. */
static kedge_status bad_array(const kedge_jsonl *r, const char *what) {
  return kedge_fail(KEDGE_ERR_FORMAT, "%s:%llu: %s", r->name, (unsigned long long)r->line, what);
}

/* What follows the closing bracket must be blank. */
static kedge_status close_array(kedge_jsonl *r) {
  r->closed = true;
  int c = take(r);
  while (is_blank(c)) c = take(r);
  if (c != EOF) return bad_array(r, "text after the end of the JSON array");
  return at_end(r);
}

/* Reads the text of the next element of the array; brackets are only counted here, jansson judges the
 * element. */
static kedge_status read_element(kedge_jsonl *r, bool *found) {
  *found = false;
  if (r->closed) return KEDGE_OK;
  int c = take(r);
  while (is_blank(c)) c = take(r);
  if (c == ']' && r->first) return close_array(r);
  r->first = false;
  r->record_line = r->line;
  r->length = 0;
  uint64_t depth = 0;
  bool quoted = false, escaped = false;
  for (;; c = take(r)) {
    if (c == EOF) {
      KEDGE_TRY(at_end(r));
      return bad_array(r, "the JSON array is not closed");
    }
    if (quoted) {
      quoted = escaped || c != '"';
      escaped = !escaped && c == '\\';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      depth++;
    } else if (depth && (c == '}' || c == ']')) {
      depth--;
    } else if (!depth && (c == ',' || c == ']')) {
      break;
    }
    if (r->length == KEDGE_JSONL_MAX_RECORD) return bad_array(r, "an element of over 64 MiB");
    KEDGE_TRY(store(r, c));
  }
  if (!r->length) return bad_array(r, "an element of the JSON array is missing");
  *found = true;
  return c == ']' ? close_array(r) : KEDGE_OK;
}

static kedge_status parse(const kedge_jsonl *r, json_t **record) {
  json_error_t error;
  size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL;
  json_t *value = json_loadb(r->text, r->length, flags, &error);
  if (!value) {
    if (json_error_code(&error) == json_error_out_of_memory)
      return kedge_fail(KEDGE_ERR_MEMORY, "out of memory");
    if (error.line > 1)
      return kedge_fail(KEDGE_ERR_FORMAT, "not valid JSON, %d lines below: %s", error.line - 1, error.text);
    return kedge_fail(KEDGE_ERR_FORMAT, "not valid JSON: %s (column %d)", error.text, error.column);
  }
  if (!json_is_object(value)) {
    json_decref(value);
    return kedge_fail(KEDGE_ERR_FORMAT, "expected a JSON object in braces");
  }
  *record = value;
  return KEDGE_OK;
}

kedge_status kedge_jsonl_reject(kedge_jsonl *reader, kedge_status status) {
  kedge_fail_in(status, "%s:%llu", reader->name, (unsigned long long)reader->record_line);
  if (!reader->skip_bad || status != KEDGE_ERR_FORMAT) return status;
  reader->skipped++;
  if (reader->notice && reader->skipped <= NOTICES) {
    char *line = kedge_format("skipped: %s%s", kedge_message(),
                              reader->skipped == NOTICES ? " (further bad lines are only counted)" : "");
    if (!line) return KEDGE_ERR_MEMORY;
    reader->notice(reader->context, line);
    kedge_free(line);
  }
  return KEDGE_OK;
}

kedge_status kedge_jsonl_next(kedge_jsonl *reader, json_t **record, uint64_t *line) {
  *record = NULL;
  *line = 0;
  if (!reader->started) KEDGE_TRY(start(reader));
  for (;;) {
    bool found, too_long = false;
    KEDGE_TRY(reader->array ? read_element(reader, &found) : read_line(reader, &found, &too_long));
    if (!found) return KEDGE_OK;
    kedge_status status =
        too_long ? kedge_fail(KEDGE_ERR_FORMAT, "a line of over 64 MiB") : parse(reader, record);
    if (status == KEDGE_OK) {
      *line = reader->record_line;
      return KEDGE_OK;
    }
    KEDGE_TRY(kedge_jsonl_reject(reader, status));
  }
}

uint64_t kedge_jsonl_skipped(const kedge_jsonl *reader) {
  return reader->skipped;
}
uint64_t kedge_jsonl_bytes(const kedge_jsonl *reader) {
  return reader->bytes;
}
uint64_t kedge_jsonl_size(const kedge_jsonl *reader) {
  return reader->size;
}
