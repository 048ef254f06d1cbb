/* SPDX-License-Identifier: Apache-2.0
 * Memory-mapped safetensors reader (safetensors.h): header checks, lookup, hints. */
#include "models/checkpoint/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "models/checkpoint/json.h"

static const struct {
  const char *name;
  uint32_t size;
} dtypes[KEDGE_ST_DTYPE_COUNT] = {
    [KEDGE_ST_BOOL] = {"BOOL", 1},       [KEDGE_ST_U8] = {"U8", 1},           [KEDGE_ST_I8] = {"I8", 1},
    [KEDGE_ST_F8_E5M2] = {"F8_E5M2", 1}, [KEDGE_ST_F8_E4M3] = {"F8_E4M3", 1}, [KEDGE_ST_U16] = {"U16", 2},
    [KEDGE_ST_I16] = {"I16", 2},         [KEDGE_ST_F16] = {"F16", 2},         [KEDGE_ST_BF16] = {"BF16", 2},
    [KEDGE_ST_U32] = {"U32", 4},         [KEDGE_ST_I32] = {"I32", 4},         [KEDGE_ST_F32] = {"F32", 4},
    [KEDGE_ST_U64] = {"U64", 8},         [KEDGE_ST_I64] = {"I64", 8},         [KEDGE_ST_F64] = {"F64", 8},
};

/* A tensor with its place in the data, which is needed only while the file is checked and sorted. */
typedef struct entry {
  kedge_st_tensor tensor;
  uint64_t begin, end;
  uint32_t position; /* in the header */
} entry;

struct kedge_st_file {
  char *path;
  uint8_t *map;
  uint64_t size, header; /* bytes of the file; of the JSON */
  entry *entries;        /* in data order */
  uint32_t *by_name;     /* indices of entries */
  uint32_t count;
  char *names;     /* one block for all names */
  json_t *meta;    /* NULL or an object of strings */
  const char **kv; /* 2 x metadata count: key, value */
  uint32_t kv_count;
};

const char *kedge_st_dtype_name(kedge_st_dtype dtype) {
  return (unsigned)dtype < KEDGE_ST_DTYPE_COUNT ? dtypes[dtype].name : "?";
}

uint32_t kedge_st_dtype_size(kedge_st_dtype dtype) {
  return (unsigned)dtype < KEDGE_ST_DTYPE_COUNT ? dtypes[dtype].size : 0;
}

bool kedge_st_dtype_parse(const char *token, kedge_st_dtype *dtype) {
  for (unsigned i = 0; i < KEDGE_ST_DTYPE_COUNT; i++)
    if (!strcmp(token, dtypes[i].name)) {
      *dtype = (kedge_st_dtype)i;
      return true;
    }
  return false;
}

/* ---- Checks of one tensor
 * ------------------------------------------------------------------------------------ */

#define TENSOR_ERROR(status, format, ...)                                                                    \
  kedge_fail(status, "%s: tensor \"%s\": " format, file->path, item->tensor.name, __VA_ARGS__)

static kedge_status read_shape(const kedge_st_file *file, const json_t *shape, entry *item) {
  if (!json_is_array(shape))
    return TENSOR_ERROR(KEDGE_ERR_FORMAT, "\"shape\": expected an array of integers, got %s",
                        kedge__json_type(shape));
  size_t rank = json_array_size(shape);
  if (rank > KEDGE_ST_MAX_RANK)
    return TENSOR_ERROR(KEDGE_ERR_UNSUPPORTED, "rank %zu is more than %d", rank, KEDGE_ST_MAX_RANK);
  item->tensor.rank = (uint32_t)rank;
  for (size_t i = 0; i < rank; i++) {
    const json_t *dim = json_array_get(shape, i);
    if (!json_is_integer(dim) || json_integer_value(dim) < 0)
      return TENSOR_ERROR(KEDGE_ERR_FORMAT, "\"shape\"[%zu]: expected an integer of 0 or more, got %s", i,
                          json_is_integer(dim) ? "a negative one" : kedge__json_type(dim));
    item->tensor.shape[i] = (uint64_t)json_integer_value(dim);
  }
  return KEDGE_OK;
}

static kedge_status read_offsets(const kedge_st_file *file, const json_t *offsets, entry *item) {
  if (!json_is_array(offsets) || json_array_size(offsets) != 2)
    return TENSOR_ERROR(KEDGE_ERR_FORMAT, "\"data_offsets\": expected an array of %d integers", 2);
  uint64_t value[2];
  for (size_t i = 0; i < 2; i++) {
    const json_t *offset = json_array_get(offsets, i);
    if (!json_is_integer(offset) || json_integer_value(offset) < 0)
      return TENSOR_ERROR(KEDGE_ERR_FORMAT, "\"data_offsets\"[%zu]: expected an integer of 0 or more, got %s",
                          i, json_is_integer(offset) ? "a negative one" : kedge__json_type(offset));
    value[i] = (uint64_t)json_integer_value(offset);
  }
  uint64_t data_size = file->size - 8 - file->header;
  if (value[0] > value[1])
    return TENSOR_ERROR(KEDGE_ERR_FORMAT, "data_offsets [%" PRIu64 ",%" PRIu64 "] are reversed", value[0],
                        value[1]);
  if (value[1] > data_size)
    return TENSOR_ERROR(KEDGE_ERR_FORMAT,
                        "data_offsets [%" PRIu64 ",%" PRIu64 "] end after the data of %" PRIu64 " bytes",
                        value[0], value[1], data_size);
  item->begin = value[0];
  item->end = value[1];
  return KEDGE_OK;
}

/* One member of the header object into `item`, whose name is set. */
static kedge_status read_tensor(const kedge_st_file *file, const json_t *info, entry *item) {
  if (!json_is_object(info))
    return TENSOR_ERROR(KEDGE_ERR_FORMAT, "expected an object, got %s", kedge__json_type(info));
  const json_t *token = json_object_get(info, "dtype");
  if (!json_is_string(token))
    return TENSOR_ERROR(KEDGE_ERR_FORMAT, "\"dtype\": expected a string, got %s", kedge__json_type(token));
  if (!kedge_st_dtype_parse(json_string_value(token), &item->tensor.dtype))
    return TENSOR_ERROR(KEDGE_ERR_UNSUPPORTED, "unknown dtype \"%.40s\"", json_string_value(token));
  KEDGE_TRY(read_shape(file, json_object_get(info, "shape"), item));
  KEDGE_TRY(read_offsets(file, json_object_get(info, "data_offsets"), item));
  uint64_t bytes = kedge_st_dtype_size(item->tensor.dtype);
  char shape[200];
  kedge_st_shape_text(&item->tensor, shape, sizeof shape);
  for (uint32_t i = 0; i < item->tensor.rank; i++)
    if (__builtin_mul_overflow(bytes, item->tensor.shape[i], &bytes))
      return TENSOR_ERROR(KEDGE_ERR_FORMAT, "the size of shape %s overflows", shape);
  if (bytes != item->end - item->begin)
    return TENSOR_ERROR(KEDGE_ERR_FORMAT, "%s of shape %s is %" PRIu64 " bytes, data_offsets give %" PRIu64,
                        kedge_st_dtype_name(item->tensor.dtype), shape, bytes, item->end - item->begin);
  item->tensor.bytes = bytes;
  item->tensor.data = file->map + 8 + file->header + item->begin;
  return KEDGE_OK;
}

/* ---- Order
 * --------------------------------------------------------------------------------------------------- */

static int compare_data(const void *left, const void *right) {
  const entry *a = left, *b = right;
  if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
  if (a->end != b->end) return a->end < b->end ? -1 : 1;
  return a->position < b->position ? -1 : a->position > b->position;
}

static int compare_name(const void *left, const void *right, void *context) {
  const entry *entries = context;
  return strcmp(entries[*(const uint32_t *)left].tensor.name, entries[*(const uint32_t *)right].tensor.name);
}

/* The data must be covered once: each tensor begins where the one before it ended, the last at the end of the
 * file. */
static kedge_status check_cover(const kedge_st_file *file) {
  uint64_t at = 0, data_size = file->size - 8 - file->header;
  for (uint32_t i = 0; i < file->count; i++) {
    const entry *item = &file->entries[i];
    if (item->begin < at)
      return TENSOR_ERROR(KEDGE_ERR_FORMAT, "data_offsets [%" PRIu64 ",%" PRIu64 "] overlap those of \"%s\"",
                          item->begin, item->end, file->entries[i - 1].tensor.name);
    if (item->begin > at)
      return TENSOR_ERROR(KEDGE_ERR_FORMAT, "data_offsets begin at %" PRIu64 ", leaving a gap after %" PRIu64,
                          item->begin, at);
    at = item->end;
  }
  if (at != data_size)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: the tensors cover %" PRIu64 " of %" PRIu64 " bytes of data",
                      file->path, at, data_size);
  return KEDGE_OK;
}

/* ---- The header
 * ------------------------------------------------------------------------------------------------ */

static kedge_status read_metadata(kedge_st_file *file, json_t *meta) {
  if (json_is_null(meta)) return KEDGE_OK;
  if (!json_is_object(meta))
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: \"__metadata__\": expected an object of strings, got %s",
                      file->path, kedge__json_type(meta));
  size_t count = json_object_size(meta);
  file->kv = kedge_alloc(2 * count, sizeof *file->kv);
  if (!file->kv) return KEDGE_ERR_MEMORY;
  file->meta = json_incref(meta);
  const char *key;
  json_t *value;
  json_object_foreach(meta, key, value) {
    if (!json_is_string(value))
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: \"__metadata__\": \"%s\": expected a string, got %s",
                        file->path, key, kedge__json_type(value));
    file->kv[2 * file->kv_count] = key;
    file->kv[2 * file->kv_count++ + 1] = json_string_value(value);
  }
  return KEDGE_OK;
}

/* Room for the tensors of the header; names move into one block, so that the JSON can go. */
static kedge_status reserve(kedge_st_file *file, json_t *root) {
  const char *name;
  json_t *value;
  size_t count = 0, text = 0;
  json_object_foreach(root, name, value) {
    if (!strcmp(name, "__metadata__")) continue;
    count++;
    text += strlen(name) + 1;
  }
  file->entries = kedge_alloc(count, sizeof *file->entries);
  file->by_name = kedge_alloc(count, sizeof *file->by_name);
  file->names = kedge_alloc(text, 1);
  return file->entries && file->by_name && file->names ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

static kedge_status read_root(kedge_st_file *file, json_t *root) {
  if (!json_is_object(root))
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: the header is not a JSON object", file->path);
  KEDGE_TRY(reserve(file, root));
  const char *name;
  json_t *value;
  char *text = file->names;
  json_object_foreach(root, name, value) {
    if (!strcmp(name, "__metadata__")) {
      KEDGE_TRY(read_metadata(file, value));
      continue;
    }
    entry *item = &file->entries[file->count];
    size_t length = strlen(name) + 1;
    memcpy(text, name, length);
    item->tensor.name = text;
    item->position = file->count;
    text += length;
    KEDGE_TRY(read_tensor(file, value, item));
    file->by_name[file->count] = file->count;
    file->count++;
  }
  if (file->count) {
    qsort(file->entries, file->count, sizeof *file->entries, compare_data);
    qsort_r(file->by_name, file->count, sizeof *file->by_name, compare_name, file->entries);
  }
  return check_cover(file);
}

static kedge_status read_header(kedge_st_file *file) {
  if (file->size < 8)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: %" PRIu64 " bytes are too few for a safetensors file",
                      file->path, file->size);
  uint64_t length = 0;
  for (int i = 7; i >= 0; i--) length = length << 8 | file->map[i];
  if (length > KEDGE_ST_MAX_HEADER)
    return kedge_fail(KEDGE_ERR_FORMAT,
                      "%s: header length %" PRIu64 " is over the limit of %u: not a safetensors file?",
                      file->path, length, KEDGE_ST_MAX_HEADER);
  if (length > file->size - 8)
    return kedge_fail(KEDGE_ERR_FORMAT,
                      "%s: header length %" PRIu64 ", but only %" PRIu64 " bytes follow (file cut short?)",
                      file->path, length, file->size - 8);
  file->header = length;
  if (!length || file->map[8] != '{')
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: the header does not start with '{'", file->path);
  json_t *root;
  KEDGE_TRY(kedge__json_parse((const char *)file->map + 8, length, file->path, &root));
  kedge_status status = read_root(file, root);
  json_decref(root);
  return status;
}

/* ---- Open and close
 * --------------------------------------------------------------------------------------------- */

static kedge_status map_file(kedge_st_file *file) {
  /* Without blocking: opening a pipe must not wait for a writer. */
  int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return kedge_fail(KEDGE_ERR_IO, "%s: %s", file->path, strerror(errno));
  kedge_status status = KEDGE_OK;
  struct stat info;
  if (fstat(fd, &info))
    status = kedge_fail(KEDGE_ERR_IO, "%s: %s", file->path, strerror(errno));
  else if (!S_ISREG(info.st_mode))
    status = kedge_fail(KEDGE_ERR_IO, "%s: not a regular file", file->path);
  else if (info.st_size > 0) {
    file->size = (uint64_t)info.st_size;
    void *map = mmap(NULL, (size_t)file->size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED)
      status = kedge_fail(KEDGE_ERR_IO, "%s: cannot map %" PRIu64 " bytes: %s", file->path, file->size,
                          strerror(errno));
    else
      file->map = map;
  }
  close(fd);
  return status;
}

kedge_status kedge_st_open(const char *path, kedge_st_file **result) {
  *result = NULL;
  kedge_st_file *file = kedge_alloc(1, sizeof *file);
  if (!file) return KEDGE_ERR_MEMORY;
  kedge_status status = KEDGE_ERR_MEMORY;
  if (!(file->path = kedge_strdup(path))) goto failed;
  KEDGE_GOTO(map_file(file), status, failed);
  KEDGE_GOTO(read_header(file), status, failed);
  *result = file;
  return KEDGE_OK;
failed:
  kedge_st_close(file);
  return status;
}

void kedge_st_close(kedge_st_file *file) {
  if (!file) return;
  json_decref(file->meta);
  kedge_free(file->kv);
  kedge_free(file->names);
  kedge_free(file->by_name);
  kedge_free(file->entries);
  if (file->map) munmap(file->map, (size_t)file->size);
  kedge_free(file->path);
  kedge_free(file);
}

/* ---- Reading what is there
 * ---------------------------------------------------------------------------------------- */

const char *kedge_st_path(const kedge_st_file *file) {
  return file->path;
}
uint32_t kedge_st_count(const kedge_st_file *file) {
  return file->count;
}
uint64_t kedge_st_size(const kedge_st_file *file) {
  return file->size;
}

const kedge_st_tensor *kedge_st_at(const kedge_st_file *file, uint32_t index) {
  return &file->entries[index].tensor;
}

const kedge_st_tensor *kedge_st_by_name(const kedge_st_file *file, uint32_t index) {
  return &file->entries[file->by_name[index]].tensor;
}

const kedge_st_tensor *kedge_st_find(const kedge_st_file *file, const char *name) {
  uint32_t low = 0, high = file->count;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    const kedge_st_tensor *tensor = kedge_st_by_name(file, middle);
    int order = strcmp(name, tensor->name);
    if (!order) return tensor;
    if (order < 0)
      high = middle;
    else
      low = middle + 1;
  }
  return NULL;
}

uint32_t kedge_st_metadata_count(const kedge_st_file *file) {
  return file->kv_count;
}

void kedge_st_metadata_at(const kedge_st_file *file, uint32_t index, const char **key, const char **value) {
  *key = file->kv[2 * index];
  *value = file->kv[2 * index + 1];
}

const char *kedge_st_metadata(const kedge_st_file *file, const char *key) {
  return json_string_value(json_object_get(file->meta, key));
}

const uint8_t *kedge_st_header(const kedge_st_file *file, uint64_t *bytes) {
  *bytes = 8 + file->header;
  return file->map;
}

void kedge_st_shape_text(const kedge_st_tensor *tensor, char *text, size_t size) {
  size_t at = (size_t)snprintf(text, size, "[");
  for (uint32_t i = 0; i < tensor->rank && at < size; i++)
    at += (size_t)snprintf(text + at, size - at, "%s%" PRIu64, i ? "," : "", tensor->shape[i]);
  if (at < size) snprintf(text + at, size - at, "]");
}

static void advise(const kedge_st_tensor *tensor, bool inner, int advice) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)tensor->data,
            end = begin + tensor->bytes;
  /* Dropping must not touch a neighbour's pages: only whole pages inside. Reading ahead rounds outwards. */
  begin = (inner ? begin + page - 1 : begin) / page * page;
  end = (inner ? end : end + page - 1) / page * page;
  if (end > begin) madvise((void *)begin, end - begin, advice);
}

void kedge_st_prefetch(const kedge_st_tensor *tensor) {
  advise(tensor, false, MADV_WILLNEED);
}
void kedge_st_drop(const kedge_st_tensor *tensor) {
  advise(tensor, true, MADV_DONTNEED);
}
