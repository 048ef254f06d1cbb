/* SPDX-License-Identifier: Apache-2.0
 * Which form a trace has, and which of its layers are wanted (trace_import.h). */
#include "models/trace/trace_import.h"

#include "models/checkpoint/atomic.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- Forms
 * -------------------------------------------------------------------------------------------------------- */

static const char *const names[] = {"auto", "safetensors", "jsonl", "raw", "npy"};

kedge_status kedge_trace_form_parse(const char *name, kedge_trace_form *form) {
  for (uint32_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(name, names[i])) {
      *form = (kedge_trace_form)i;
      return KEDGE_OK;
    }
  return kedge_fail(KEDGE_ERR_ARGUMENT,
                    "format of a trace: expected jsonl, raw, npy, safetensors or auto, came \"%.80s\"", name);
}

static kedge_status form_of_folder(const char *path, kedge_trace_form *form) {
  struct stat info;
  char *index = kedge_path_join(path, "index.json");
  if (!index) return KEDGE_ERR_MEMORY;
  bool found = !stat(index, &info) && S_ISREG(info.st_mode);
  kedge_free(index);
  *form = KEDGE_TRACE_RAW;
  if (found) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_FORMAT, "%s: a folder without index.json is no routing trace", path);
}

/* A safetensors file begins with the length of its header and the header's brace; the length itself may look
 * like a brace. */
static kedge_trace_form form_of_bytes(const unsigned char *bytes, size_t count, uint64_t size) {
  uint64_t header = 0;
  if (count >= 6 && !memcmp(bytes, "\x93NUMPY", 6)) return KEDGE_TRACE_NPY;
  for (unsigned i = 0; i < 8 && i < count; i++) header |= (uint64_t)bytes[i] << 8 * i;
  if (count >= 9 && bytes[8] == '{' && header <= size - 8) return KEDGE_TRACE_SAFETENSORS;
  size_t at = count >= 3 && !memcmp(bytes, "\xef\xbb\xbf", 3) ? 3 : 0;
  while (at < count && strchr(" \t\r\n", bytes[at]) && bytes[at]) at++;
  return at < count && (bytes[at] == '{' || bytes[at] == '[') ? KEDGE_TRACE_JSONL : KEDGE_TRACE_AUTO;
}

kedge_status kedge_trace_form_of(const char *path, kedge_trace_form *form) {
  struct stat info;
  unsigned char bytes[256];
  if (stat(path, &info)) return kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
  if (S_ISDIR(info.st_mode)) return form_of_folder(path, form);
  FILE *file = fopen(path, "rb");
  if (!file) return kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
  size_t count = fread(bytes, 1, sizeof bytes, file);
  fclose(file);
  *form = form_of_bytes(bytes, count, (uint64_t)info.st_size);
  if (*form != KEDGE_TRACE_AUTO) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_FORMAT,
                    "%s: expected a routing trace (safetensors, JSON Lines, NumPy), got something else",
                    path);
}

/* ---- Layers
 * ------------------------------------------------------------------------------------------------------- */

static kedge_status bad_layers(const char *text) {
  return kedge_fail(KEDGE_ERR_ARGUMENT,
                    "layers: expected ascending numbers such as 1-26 or 0,3,5-8, came \"%.80s\"", text);
}

kedge_status kedge_trace_layers_parse(const char *text, int32_t **numbers, uint32_t *count) {
  enum { LIMIT = 65536 };
  int32_t *list = *numbers = kedge_alloc(LIMIT, sizeof *list);
  const char *at = text;
  long least = 0;
  *count = 0;
  if (!list) return KEDGE_ERR_MEMORY;
  for (;;) {
    char *end = NULL;
    long first = *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : -1, last = first;
    if (end && *end == '-') {
      at = end + 1;
      last = *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : -1;
    }
    if (first < least || last < first || last >= LIMIT || (*end && *end != ',')) break;
    for (long l = first; l <= last; l++) list[(*count)++] = (int32_t)l;
    least = last + 1;
    if (!*end) return KEDGE_OK;
    at = end + 1;
  }
  kedge_free(list);
  *numbers = NULL;
  return bad_layers(text);
}

/* Keeps the layers at places[0..count), ascending: every array is closed up in place. */
static void keep_layers(kedge_trace *t, const uint32_t *places, uint32_t count) {
  const size_t bytes = (t->experts + 7u) / 8;
  for (size_t token = 0; token < t->tokens; token++)
    for (uint32_t l = 0; l < count; l++) {
      size_t to = token * count + l, from = token * t->layers + places[l];
      memmove(t->ids + to * t->topk, t->ids + from * t->topk, t->topk * sizeof *t->ids);
      if (t->weights)
        memmove(t->weights + to * t->topk, t->weights + from * t->topk, t->topk * sizeof *t->weights);
      if (t->logits)
        memmove(t->logits + to * t->experts, t->logits + from * t->experts, t->experts * sizeof *t->logits);
      if (t->ties) t->ties[to] = t->ties[from];
      if (t->tied) memmove(t->tied + to * bytes, t->tied + from * bytes, bytes);
    }
  for (uint32_t l = 0; l < count; l++) t->layer_numbers[l] = t->layer_numbers[places[l]];
  t->layers = count;
}

static kedge_status pick_layers(const char *path, const kedge_trace_import_options *o, kedge_trace *t,
                                bool numbered) {
  if (!o->layers) return KEDGE_OK;
  if (!numbered && o->layer_count == t->layers) {
    memcpy(t->layer_numbers, o->layers, t->layers * sizeof *o->layers);
    return KEDGE_OK;
  }
  uint32_t *places = kedge_alloc(o->layer_count, sizeof *places), at = 0;
  if (!places) return KEDGE_ERR_MEMORY;
  for (uint32_t l = 0; l < o->layer_count; l++) {
    while (at < t->layers && t->layer_numbers[at] < o->layers[l]) at++;
    if (at == t->layers || t->layer_numbers[at] != o->layers[l]) {
      kedge_free(places);
      return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: layer %d is not in the trace, whose %u layers are %d to %d",
                        path, o->layers[l], t->layers, t->layer_numbers[0], t->layer_numbers[t->layers - 1]);
    }
    places[l] = at;
  }
  keep_layers(t, places, o->layer_count);
  kedge_free(places);
  return KEDGE_OK;
}

/* ---- Reading
 * ------------------------------------------------------------------------------------------------------ */

static kedge_status check_options(const kedge_trace_import_options *o, kedge_trace_form form,
                                  const char *path) {
  if (form != KEDGE_TRACE_NPY && (o->weights || o->samples || o->spans))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: files of weights, samples or spans belong to a NumPy trace",
                      path);
  if (form != KEDGE_TRACE_RAW && o->domain)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: only a folder of raw files has domains to choose from", path);
  return KEDGE_OK;
}

static kedge_status check_experts(const kedge_trace_import_options *o, const kedge_trace *t,
                                  const char *path) {
  if (o->experts && o->experts != t->experts)
    return kedge_fail(KEDGE_ERR_MISMATCH, "%s: has %u experts, not %u", path, t->experts, o->experts);
  if (o->topk && o->topk != t->topk)
    return kedge_fail(KEDGE_ERR_MISMATCH, "%s: has %u experts a token, not %u", path, t->topk, o->topk);
  return KEDGE_OK;
}

kedge_status kedge_trace_read(const char *path, const kedge_trace_import_options *options,
                              kedge_trace *trace) {
  static const kedge_trace_import_options defaults;
  const kedge_trace_import_options *o = options ? options : &defaults;
  kedge_trace_form form = o->form;
  bool numbered = true;
  kedge_status status;
  *trace = (kedge_trace){0};
  if (form == KEDGE_TRACE_AUTO) KEDGE_TRY(kedge_trace_form_of(path, &form));
  KEDGE_TRY(check_options(o, form, path));
  switch (form) {
  case KEDGE_TRACE_JSONL:
    status = kedge__trace_read_jsonl(path, o, trace, &numbered);
    break;
  case KEDGE_TRACE_RAW:
    status = kedge__trace_read_raw(path, o, trace);
    break;
  case KEDGE_TRACE_NPY:
    numbered = false;
    status = kedge__trace_read_npy(path, o, trace);
    break;
  default:
    status = kedge_trace_load(path, trace);
  }
  if (status == KEDGE_OK) status = check_experts(o, trace, path);
  if (status == KEDGE_OK) status = pick_layers(path, o, trace, numbered);
  if (status == KEDGE_OK && form != KEDGE_TRACE_SAFETENSORS) status = kedge_trace_check(trace, path);
  if (status == KEDGE_OK) status = kedge_trace_find_ties(trace);
  if (status != KEDGE_OK) kedge_trace_destroy(trace);
  return status;
}
