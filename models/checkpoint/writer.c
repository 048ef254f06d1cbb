/* SPDX-License-Identifier: Apache-2.0
 * Streaming safetensors writer (writer.h). */
#include "models/checkpoint/writer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/checkpoint/atomic.h"

/* ---- The header as text
 * ---------------------------------------------------------------------------------------------- */

typedef struct text {
  char *bytes;
  size_t used, capacity;
} text;

static kedge_status add(text *out, const char *bytes, size_t count) {
  if (count > out->capacity - out->used) {
    size_t capacity = 2 * (out->used + count) + 256;
    char *grown = kedge_realloc(out->bytes, capacity, 1);
    if (!grown) return KEDGE_ERR_MEMORY;
    out->bytes = grown;
    out->capacity = capacity;
  }
  memcpy(out->bytes + out->used, bytes, count);
  out->used += count;
  return KEDGE_OK;
}

static kedge_status add_text(text *out, const char *bytes) {
  return add(out, bytes, strlen(bytes));
}

static kedge_status add_number(text *out, uint64_t value) {
  char digits[24];
  return add(out, digits, (size_t)snprintf(digits, sizeof digits, "%" PRIu64, value));
}

/* A JSON string: quotes, backslashes and control characters escaped, UTF-8 as it is. */
static kedge_status add_string(text *out, const char *value) {
  KEDGE_TRY(add_text(out, "\""));
  for (const unsigned char *c = (const unsigned char *)value; *c; c++) {
    char piece[8];
    int length = *c == '"' || *c == '\\' ? snprintf(piece, sizeof piece, "\\%c", *c)
                 : *c < 32               ? snprintf(piece, sizeof piece, "\\u%04x", *c)
                                         : snprintf(piece, sizeof piece, "%c", *c);
    KEDGE_TRY(add(out, piece, (size_t)length));
  }
  return add_text(out, "\"");
}

static kedge_status add_pair(text *out, const char *key, const char *value, bool first) {
  if (!first) KEDGE_TRY(add_text(out, ","));
  KEDGE_TRY(add_string(out, key));
  KEDGE_TRY(add_text(out, ":"));
  return add_string(out, value);
}

static kedge_status add_metadata(text *out, const kedge_st_pair *extra, uint32_t count) {
  KEDGE_TRY(add_text(out, "{\"__metadata__\":{"));
  const char *format = "pt";
  for (uint32_t i = 0; i < count; i++)
    if (!strcmp(extra[i].key, "format")) format = extra[i].value;
  KEDGE_TRY(add_pair(out, "format", format, true));
  for (uint32_t i = 0; i < count; i++)
    if (strcmp(extra[i].key, "format")) KEDGE_TRY(add_pair(out, extra[i].key, extra[i].value, false));
  return add_text(out, "}");
}

static kedge_status add_spec(text *out, const kedge_st_spec *spec, uint64_t begin, uint64_t end) {
  KEDGE_TRY(add_text(out, ","));
  KEDGE_TRY(add_string(out, spec->name));
  KEDGE_TRY(add_text(out, ":{\"dtype\":\""));
  KEDGE_TRY(add_text(out, kedge_st_dtype_name(spec->dtype)));
  KEDGE_TRY(add_text(out, "\",\"shape\":["));
  for (uint32_t i = 0; i < spec->rank; i++) {
    if (i) KEDGE_TRY(add_text(out, ","));
    KEDGE_TRY(add_number(out, spec->shape[i]));
  }
  KEDGE_TRY(add_text(out, "],\"data_offsets\":["));
  KEDGE_TRY(add_number(out, begin));
  KEDGE_TRY(add_text(out, ","));
  KEDGE_TRY(add_number(out, end));
  return add_text(out, "]}");
}

/* ---- Checks
 * ------------------------------------------------------------------------------------------------------------
 */

bool kedge_st_spec_bytes(const kedge_st_spec *spec, uint64_t *bytes) {
  *bytes = kedge_st_dtype_size(spec->dtype);
  if (!*bytes || spec->rank > KEDGE_ST_MAX_RANK) return false;
  for (uint32_t i = 0; i < spec->rank; i++)
    if (__builtin_mul_overflow(*bytes, spec->shape[i], bytes)) return false;
  return *bytes <= INT64_MAX;
}

/* Well-formed UTF-8 without overlong forms and surrogates: readers refuse a header that is not. */
static bool is_utf8(const char *value) {
  for (const unsigned char *c = (const unsigned char *)value; *c;) {
    unsigned extra = *c < 0x80                 ? 0
                     : *c >= 0xC2 && *c < 0xE0 ? 1
                     : (*c & 0xF0) == 0xE0     ? 2
                     : *c >= 0xF0 && *c < 0xF5 ? 3
                                               : 9;
    if (extra == 9) return false;
    if (extra > 1 && ((*c == 0xE0 && c[1] < 0xA0) || (*c == 0xED && c[1] > 0x9F) ||
                      (*c == 0xF0 && c[1] < 0x90) || (*c == 0xF4 && c[1] > 0x8F)))
      return false;
    for (unsigned i = 1; i <= extra; i++)
      if ((c[i] & 0xC0) != 0x80) return false;
    c += extra + 1;
  }
  return true;
}

static int compare_names(const void *left, const void *right) {
  return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Names and keys must be distinct UTF-8; `reserved` may be NULL. */
static kedge_status check_names(const char *path, const char *what, const char **names, uint32_t count,
                                const char *reserved) {
  if (count) qsort(names, count, sizeof *names, compare_names);
  for (uint32_t i = 0; i < count; i++) {
    if (!is_utf8(names[i]) || (reserved && !strcmp(names[i], reserved)))
      return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: %s \"%s\" is not allowed", path, what, names[i]);
    if (i && !strcmp(names[i - 1], names[i]))
      return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: %s \"%s\" is given twice", path, what, names[i]);
  }
  return KEDGE_OK;
}

static kedge_status check(const char *path, const kedge_st_spec *specs, uint32_t count,
                          const kedge_st_pair *extra, uint32_t extra_count) {
  const char **names = kedge_alloc((size_t)count + extra_count, sizeof *names);
  if (!names) return KEDGE_ERR_MEMORY;
  kedge_status status = KEDGE_OK;
  for (uint32_t i = 0; i < count; i++) names[i] = specs[i].name;
  KEDGE_GOTO(check_names(path, "tensor", names, count, "__metadata__"), status, done);
  for (uint32_t i = 0; i < extra_count; i++) {
    names[i] = extra[i].key;
    if (!is_utf8(extra[i].value)) {
      status = kedge_fail(KEDGE_ERR_ARGUMENT, "%s: metadata \"%s\": not UTF-8", path, extra[i].key);
      goto done;
    }
  }
  status = check_names(path, "metadata", names, extra_count, NULL);
done:
  kedge_free(names);
  return status;
}

/* ---- Writing
 * -------------------------------------------------------------------------------------------------------------
 */

static kedge_status build_header(const char *path, const kedge_st_spec *specs, uint32_t count,
                                 const kedge_st_pair *extra, uint32_t extra_count, text *header) {
  static const char zero[8];
  KEDGE_TRY(check(path, specs, count, extra, extra_count));
  KEDGE_TRY(add(header, zero, 8)); /* the length word, set below */
  KEDGE_TRY(add_metadata(header, extra, extra_count));
  uint64_t at = 0;
  for (uint32_t i = 0; i < count; i++) {
    uint64_t bytes, end;
    if (!kedge_st_spec_bytes(&specs[i], &bytes) || __builtin_add_overflow(at, bytes, &end) || end > INT64_MAX)
      return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: tensor \"%s\": dtype, rank or size out of range", path,
                        specs[i].name);
    KEDGE_TRY(add_spec(header, &specs[i], at, end));
    at = end;
  }
  KEDGE_TRY(add_text(header, "}"));
  while (header->used % 8) KEDGE_TRY(add_text(header, " "));
  if (header->used - 8 > KEDGE_ST_MAX_HEADER)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: a header of %zu bytes is over the limit of %u", path,
                      header->used - 8, KEDGE_ST_MAX_HEADER);
  for (unsigned i = 0; i < 8; i++) header->bytes[i] = (char)((uint64_t)(header->used - 8) >> (8 * i) & 0xFF);
  return KEDGE_OK;
}

kedge_status kedge_st_header_make(const char *path, const kedge_st_spec *specs, uint32_t count,
                                  const kedge_st_pair *extra, uint32_t extra_count, void **bytes,
                                  uint64_t *length) {
  text header = {0};
  kedge_status status = build_header(path, specs, count, extra, extra_count, &header);
  *bytes = status == KEDGE_OK ? header.bytes : NULL;
  *length = header.used;
  if (status != KEDGE_OK) kedge_free(header.bytes);
  return status;
}

static kedge_status write_data(kedge_outfile *output, const kedge_st_spec *specs, uint32_t count,
                               kedge_st_fill fill, void *context, void *piece) {
  for (uint32_t i = 0; i < count; i++) {
    uint64_t bytes;
    kedge_st_spec_bytes(&specs[i], &bytes);
    for (uint64_t at = 0; at < bytes;) {
      uint64_t part = bytes - at < KEDGE_ST_PIECE ? bytes - at : KEDGE_ST_PIECE;
      KEDGE_TRY(fill(context, i, at, piece, part));
      KEDGE_TRY(kedge_outfile_write(output, piece, part));
      at += part;
    }
  }
  return KEDGE_OK;
}

kedge_status kedge_st_write(const char *path, const kedge_st_spec *specs, uint32_t count,
                            const kedge_st_pair *extra, uint32_t extra_count, kedge_st_fill fill,
                            void *context) {
  text header = {0};
  kedge_outfile *output = NULL;
  void *piece = NULL;
  kedge_status status;
  KEDGE_GOTO(build_header(path, specs, count, extra, extra_count, &header), status, done);
  status = KEDGE_ERR_MEMORY;
  if (!(piece = kedge_alloc(KEDGE_ST_PIECE, 1))) goto done;
  KEDGE_GOTO(kedge_outfile_open(path, &output), status, done);
  KEDGE_GOTO(kedge_outfile_write(output, header.bytes, header.used), status, done);
  KEDGE_GOTO(write_data(output, specs, count, fill, context, piece), status, done);
  status = kedge_outfile_commit(output);
  output = NULL;
done:
  kedge_outfile_discard(output);
  kedge_free(piece);
  kedge_free(header.bytes);
  return status;
}
