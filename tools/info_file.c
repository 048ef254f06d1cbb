/* SPDX-License-Identifier: Apache-2.0
 * Single files for `kedge info` (info.h): safetensors, priors, scores, tokenizers, data. */
#include "models/checkpoint/atomic.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/hash.h"
#include "models/prior/prior.h"
#include "models/text/samples_internal.h"
#include "tools/info.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_METADATA = 64, CONFIG_CAP = 16 << 20, FORMATS = 16 };

/* ---- Safetensors
 * --------------------------------------------------------------------------------------------------- */

static void list_tensors(json_t *root, const kedge_st_file *file) {
  json_t *list = json_array();
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < kedge_st_count(file); i++) {
    const kedge_st_tensor *tensor = kedge_st_at(file, i);
    char shape[256];
    kedge_st_shape_text(tensor, shape, sizeof shape);
    bytes += tensor->bytes;
    json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:I}", "name", tensor->name, "dtype",
                                          kedge_st_dtype_name(tensor->dtype), "shape", shape, "bytes",
                                          (json_int_t)tensor->bytes));
  }
  info_number(root, "tensors", kedge_st_count(file));
  info_number(root, "bytes", bytes);
  json_object_set_new(root, "tensor_list", list);
}

static void list_metadata(info_report *r, const kedge_st_file *file) {
  json_t *object = json_object();
  const uint32_t count = kedge_st_metadata_count(file);
  for (uint32_t i = 0; i < count && i < MOST_METADATA; i++) {
    const char *key, *value;
    kedge_st_metadata_at(file, i, &key, &value);
    json_object_set_new(object, key, json_string(value));
  }
  if (count > MOST_METADATA) info_say(r->notes, "%u further pairs of metadata", count - MOST_METADATA);
  if (count) json_object_set(r->root, "metadata", object);
  json_decref(object);
}

static void describe_prior(info_report *r, const char *path) {
  kedge_prior *prior;
  if (kedge_prior_open(path, &prior) != KEDGE_OK) {
    info_say(r->problems, "%s", kedge_message());
    return;
  }
  kedge_prior_identity id = kedge_prior_get_identity(prior);
  info_number(r->root, "samples", kedge_prior_samples(prior));
  info_number(r->root, "layers_with_experts", kedge_prior_layers(prior));
  info_number(r->root, "experts", kedge_prior_experts(prior));
  info_number(r->root, "max_length", id.max_length);
  info_text(r->root, "base", id.base);
  info_text(r->root, "tokenizer_hash", id.tokenizer);
  info_text(r->root, "data", id.data);
  kedge_prior_free(prior);
}

static kedge_status describe_safetensors(info_report *r, const char *path) {
  kedge_st_file *file;
  KEDGE_TRY(kedge_st_open(path, &file));
  const bool prior = kedge_st_metadata(file, "kedge_prior"), scores = kedge_st_metadata(file, "kedge_score"),
             trace = kedge_st_metadata(file, "kedge_trace");
  info_text(r->root, "kind",
            prior    ? "router prior"
            : scores ? "scores"
            : trace  ? "routing trace"
                     : "safetensors");
  if (prior) describe_prior(r, path);
  list_metadata(r, file);
  list_tensors(r->root, file);
  kedge_st_close(file);
  if (!r->hash) return KEDGE_OK;
  kedge_checkpoint *checkpoint;
  char hash[KEDGE_HASH_TEXT];
  KEDGE_TRY(kedge_checkpoint_open(path, &checkpoint));
  kedge_status status = kedge_hash_checkpoint(checkpoint, hash);
  kedge_checkpoint_close(checkpoint);
  if (status == KEDGE_OK) info_text(r->root, "hash", hash);
  return status;
}

/* ---- Data
 * ----------------------------------------------------------------------------------------------------------
 */

/* How often each record format was seen. */
typedef struct formats {
  const char *names[FORMATS];
  uint64_t counts[FORMATS];
  int count;
} formats;

static void count_format(formats *f, const char *name) {
  int i = 0;
  while (i < f->count && strcmp(f->names[i], name)) i++;
  if (i == FORMATS) return;
  f->names[i] = name;
  f->counts[i]++;
  if (i == f->count) f->count++;
}

static void on_bad_line(void *context, const char *line) {
  const info_report *r = context;
  info_say(r->problems, "%s", line);
}

static kedge_status count_records(kedge_jsonl *reader, formats *found, uint64_t *records, json_t *fields) {
  json_t *record;
  uint64_t line;
  for (;;) {
    KEDGE_TRY(kedge_jsonl_next(reader, &record, &line));
    if (!record) return KEDGE_OK;
    const kedge__format *format = NULL;
    const char *key;
    json_t *value;
    if (!(*records)++)
      json_object_foreach(record, key, value) json_array_append_new(fields, json_string(key));
    count_format(found,
                 kedge__format_detect(record, &format) == KEDGE_OK ? kedge__format_name(format) : "unknown");
    json_decref(record);
  }
}

static kedge_status describe_data(info_report *r, const char *path) {
  kedge_jsonl *reader;
  formats found = {.count = 0};
  uint64_t records = 0;
  KEDGE_TRY(kedge_jsonl_open(path, true, on_bad_line, r, &reader));
  json_t *fields = json_array(), *list = json_array();
  kedge_status status = count_records(reader, &found, &records, fields);
  if (status == KEDGE_OK && !records)
    status = kedge_fail(KEDGE_ERR_FORMAT,
                        "%s: is no safetensors file, no tokenizer and holds no JSON records", path);
  for (int i = 0; i < found.count; i++)
    json_array_append_new(
        list, json_pack("{s:s, s:I}", "format", found.names[i], "records", (json_int_t)found.counts[i]));
  if (status == KEDGE_OK) {
    info_text(r->root, "kind", "data");
    info_number(r->root, "records", records);
    info_number(r->root, "bad_lines", kedge_jsonl_skipped(reader));
    info_number(r->root, "bytes", kedge_jsonl_bytes(reader));
    json_object_set(r->root, "fields", fields);
    json_object_set(r->root, "formats", list);
  }
  json_decref(fields);
  json_decref(list);
  kedge_jsonl_close(reader);
  return status;
}

/* ---- Which is which
 * ------------------------------------------------------------------------------------------------ */

static bool ends_with(const char *text, const char *tail) {
  size_t length = strlen(text), n = strlen(tail);
  return length >= n && !strcmp(text + length - n, tail);
}

static kedge_status describe_tokenizer(info_report *r, const char *path) {
  json_t *object = json_object();
  info_text(r->root, "kind", "tokenizer");
  if (info_tokenizer(r, object, path, 0)) {
    json_object_set(r->root, "tokenizer", object);
    json_decref(object);
    return KEDGE_OK;
  }
  json_decref(object);
  return KEDGE_ERR_FORMAT; /* with the message of the attempt */
}

/* A small .json file with model_type is a config; one with a model is a tokenizer. */
static kedge_status describe_json(info_report *r, const char *path) {
  char *text;
  size_t bytes;
  if (kedge_file_read(path, CONFIG_CAP, &text, &bytes) != KEDGE_OK) return describe_data(r, path);
  json_t *root = json_loadb(text, bytes, 0, NULL);
  kedge_free(text);
  const bool config = json_object_get(root, "model_type"),
             tokenizer = json_is_object(json_object_get(root, "model"));
  json_decref(root);
  return config ? info_config(r, path) : tokenizer ? describe_tokenizer(r, path) : describe_data(r, path);
}

kedge_status info_file(info_report *r, const char *path) {
  unsigned char head[16] = {0};
  struct stat place;
  if (!stat(path, &place) && !S_ISREG(place.st_mode))
    return kedge_fail(KEDGE_ERR_IO, "%s: is neither a folder nor a regular file", path);
  FILE *file = fopen(path, "rbe");
  if (!file) return kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
  size_t got = fread(head, 1, sizeof head, file), first = 0;
  fclose(file);
  if (ends_with(path, ".safetensors") || (got > 8 && head[8] == '{' && !head[7]))
    return describe_safetensors(r, path);
  if (ends_with(path, "tokenizer.json") || ends_with(path, ".tiktoken") || ends_with(path, "tiktoken.model"))
    return describe_tokenizer(r, path);
  if (ends_with(path, ".json")) return describe_json(r, path);
  if (got >= 3 && !memcmp(head, "\xef\xbb\xbf", 3)) first = 3;
  while (first < got && strchr(" \t\r\n", head[first]) && head[first]) first++;
  if (first == got || head[first] == '{' || head[first] == '[') return describe_data(r, path);
  kedge_status status = describe_tokenizer(r, path);
  if (status == KEDGE_ERR_FORMAT)
    return kedge_fail(status, "%s: is no safetensors file, no tokenizer and holds no JSON records", path);
  return status;
}
