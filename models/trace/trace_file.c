/* SPDX-License-Identifier: Apache-2.0
 * Routing traces as safetensors files (trace.h). */
#include "models/trace/trace.h"

#include "models/checkpoint/writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Writing
 * ------------------------------------------------------------------------------------------------------ */

enum { TENSORS = 10 };

static kedge_status fill(void *context, uint32_t index, uint64_t offset, void *buffer, uint64_t bytes) {
  memcpy(buffer, ((const char *const *)context)[index] + offset, bytes);
  return KEDGE_OK;
}

kedge_status kedge_trace_save(const kedge_trace *t, const char *path) {
  const kedge_st_spec all[TENSORS] = {
      {"ids", KEDGE_ST_I32, 3, {t->tokens, t->layers, t->topk}},
      {"weights", KEDGE_ST_F32, 3, {t->tokens, t->layers, t->topk}},
      {"logits", KEDGE_ST_F32, 3, {t->tokens, t->layers, t->experts}},
      {"ties", KEDGE_ST_U8, 2, {t->tokens, t->layers}},
      {"tied", KEDGE_ST_U8, 3, {t->tokens, t->layers, (t->experts + 7u) / 8}},
      {"gap", KEDGE_ST_F32, 2, {t->tokens, t->layers}},
      {"next", KEDGE_ST_I32, 2, {t->tokens, t->layers}},
      {"sample", KEDGE_ST_I32, 1, {t->tokens}},
      {"span", KEDGE_ST_I32, 1, {t->tokens}},
      {"layers", KEDGE_ST_I32, 1, {t->layers}},
  };
  const void *contents[TENSORS] = {t->ids,  t->weights, t->logits,  t->ties,  t->tied,
                                   t->gaps, t->nexts,   t->samples, t->spans, t->layer_numbers};
  kedge_st_spec specs[TENSORS];
  const void *data[TENSORS];
  uint32_t count = 0;
  for (uint32_t i = 0; i < TENSORS; i++) {
    if (!contents[i]) continue;
    specs[count] = all[i];
    data[count++] = contents[i];
  }
  char experts[16];
  snprintf(experts, sizeof experts, "%u", t->experts);
  kedge_st_pair extra[6] = {
      {"kedge_trace", "1"}, {"num_experts", experts}, {"kedge_version", kedge_version()}};
  uint32_t pairs = 3;
  if (*t->model) extra[pairs++] = (kedge_st_pair){"model_hash", t->model};
  if (*t->tokenizer) extra[pairs++] = (kedge_st_pair){"tokenizer_hash", t->tokenizer};
  if (*t->data) extra[pairs++] = (kedge_st_pair){"data_hash", t->data};
  return kedge_st_write(path, specs, count, extra, pairs, fill, (void *)data);
}

/* ---- Reading
 * ------------------------------------------------------------------------------------------------------ */

/* The tensor of that name, NULL if the file has none; ERR_FORMAT if its dtype or shape is another. */
static kedge_status find(const kedge_st_file *file, const char *name, kedge_st_dtype dtype, uint32_t rank,
                         const uint64_t *shape, const kedge_st_tensor **out) {
  const kedge_st_tensor *t = *out = kedge_st_find(file, name);
  if (!t) return KEDGE_OK;
  bool same = t->dtype == dtype && t->rank == rank;
  for (uint32_t i = 0; same && i < rank; i++) same = !shape || t->shape[i] == shape[i];
  if (same) return KEDGE_OK;
  char got[128], want[128];
  kedge_st_tensor expected = {.rank = shape ? rank : 0};
  if (shape) memcpy(expected.shape, shape, rank * sizeof *shape);
  kedge_st_shape_text(t, got, sizeof got);
  kedge_st_shape_text(&expected, want, sizeof want);
  return kedge_fail(KEDGE_ERR_FORMAT, "%s: tensor %s: expected %s %s, got %s %s", kedge_st_path(file), name,
                    kedge_st_dtype_name(dtype), shape ? want : "[tokens, layers, k]",
                    kedge_st_dtype_name(t->dtype), got);
}

static kedge_status experts_of(const kedge_st_file *file, uint32_t *experts) {
  const char *text = kedge_st_metadata(file, "num_experts");
  char *end = NULL;
  unsigned long value = text && *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : 0;
  if (!end || *end || value < 1 || value > 65536)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: metadata num_experts: expected 1 to 65536, got %s",
                      kedge_st_path(file), text ? text : "nothing");
  *experts = (uint32_t)value;
  return KEDGE_OK;
}

static kedge_status hash_of(const kedge_st_file *file, const char *key, char hash[33]) {
  const char *text = kedge_st_metadata(file, key);
  if (!text) return KEDGE_OK;
  if (strlen(text) != 32)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: metadata %s: expected 32 hex digits, got %s",
                      kedge_st_path(file), key, text);
  memcpy(hash, text, 33);
  return KEDGE_OK;
}

/* Copies an optional tensor: into *array, which is new memory if it is NULL. */
static kedge_status take(const kedge_st_file *file, const char *name, kedge_st_dtype dtype, uint32_t rank,
                         const uint64_t *shape, void **array) {
  const kedge_st_tensor *tensor;
  KEDGE_TRY(find(file, name, dtype, rank, shape, &tensor));
  if (!tensor) return KEDGE_OK;
  if (!*array && !(*array = kedge_alloc(tensor->bytes, 1))) return KEDGE_ERR_MEMORY;
  memcpy(*array, tensor->data, tensor->bytes);
  return KEDGE_OK;
}

#define TAKE(name, dtype, rank, shape, field)                                                                \
  do {                                                                                                       \
    void *memory_ = (field);                                                                                 \
    kedge_status taken_ = take(file, (name), (dtype), (rank), (shape), &memory_);                            \
    (field) = memory_;                                                                                       \
    if (taken_ != KEDGE_OK) return taken_;                                                                   \
  } while (0)

static kedge_status read_tensors(const kedge_st_file *file, kedge_trace *t) {
  const uint64_t T = t->tokens, L = t->layers, K = t->topk, E = t->experts;
  TAKE("ids", KEDGE_ST_I32, 3, ((uint64_t[]){T, L, K}), t->ids);
  TAKE("weights", KEDGE_ST_F32, 3, ((uint64_t[]){T, L, K}), t->weights);
  TAKE("logits", KEDGE_ST_F32, 3, ((uint64_t[]){T, L, E}), t->logits);
  TAKE("ties", KEDGE_ST_U8, 2, ((uint64_t[]){T, L}), t->ties);
  TAKE("tied", KEDGE_ST_U8, 3, ((uint64_t[]){T, L, (E + 7) / 8}), t->tied);
  TAKE("gap", KEDGE_ST_F32, 2, ((uint64_t[]){T, L}), t->gaps);
  TAKE("next", KEDGE_ST_I32, 2, ((uint64_t[]){T, L}), t->nexts);
  TAKE("sample", KEDGE_ST_I32, 1, (&T), t->samples);
  TAKE("span", KEDGE_ST_I32, 1, (&T), t->spans);
  TAKE("layers", KEDGE_ST_I32, 1, (&L), t->layer_numbers);
  KEDGE_TRY(hash_of(file, "model_hash", t->model));
  KEDGE_TRY(hash_of(file, "tokenizer_hash", t->tokenizer));
  return hash_of(file, "data_hash", t->data);
}

static kedge_status read_file(const kedge_st_file *file, kedge_trace *t) {
  const kedge_st_tensor *ids;
  uint32_t experts = 0;
  KEDGE_TRY(find(file, "ids", KEDGE_ST_I32, 3, NULL, &ids));
  if (!ids)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: tensor ids: expected I32 [tokens, layers, k], got nothing",
                      kedge_st_path(file));
  KEDGE_TRY(experts_of(file, &experts));
  const uint64_t *s = ids->shape;
  if (!s[0] || s[0] > INT32_MAX || !s[1] || s[1] > 65536 || !s[2] || s[2] > experts)
    return kedge_fail(KEDGE_ERR_FORMAT,
                      "%s: tensor ids: expected at least one token, 1 to 65536 layers and 1 to %u experts a "
                      "token, got [%llu,%llu,%llu]",
                      kedge_st_path(file), experts, (unsigned long long)s[0], (unsigned long long)s[1],
                      (unsigned long long)s[2]);
  KEDGE_TRY(kedge_trace_init(t, (uint32_t)s[0], (uint32_t)s[1], experts, (uint32_t)s[2]));
  KEDGE_TRY(read_tensors(file, t));
  KEDGE_TRY(kedge_trace_check(t, kedge_st_path(file)));
  return kedge_trace_find_ties(t);
}

kedge_status kedge_trace_load(const char *path, kedge_trace *trace) {
  kedge_st_file *file = NULL;
  *trace = (kedge_trace){0};
  kedge_status status = kedge_st_open(path, &file);
  if (status == KEDGE_OK) status = read_file(file, trace);
  if (status != KEDGE_OK) kedge_trace_destroy(trace);
  kedge_st_close(file);
  return status;
}
