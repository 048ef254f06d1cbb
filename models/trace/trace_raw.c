/* SPDX-License-Identifier: Apache-2.0
 * Routing traces as folders of plain bytes (trace_import.h): index.json {"top_k", "experts", "layers",
 * "domains": {name: {"tokens", "lengths"}}} and a file of ids [tokens, k] for each domain and layer. */
#include "models/trace/trace_import.h"

#include "models/checkpoint/atomic.h"
#include "models/checkpoint/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { INDEX_CAP = 64 << 20, CHUNK = 8192 };

/* ---- The index
 * --------------------------------------------------------------------------------------------------- */

static kedge_status load_index(const char *folder, json_t **index, char **path) {
  *index = NULL;
  *path = kedge_path_join(folder, "index.json");
  if (!*path) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge__json_load(*path, INDEX_CAP, index);
  if (status == KEDGE_OK && !json_is_object(json_object_get(*index, "domains")))
    status = kedge_fail(KEDGE_ERR_FORMAT, "%s: domains: expected an object, got %s", *path,
                        kedge__json_type(json_object_get(*index, "domains")));
  return status;
}

kedge_status kedge_trace_domains_read(const char *path, kedge_trace_domains *d) {
  kedge_trace_form form;
  json_t *index = NULL, *value;
  char *file = NULL;
  const char *name;
  *d = (kedge_trace_domains){0};
  KEDGE_TRY(kedge_trace_form_of(path, &form));
  if (form != KEDGE_TRACE_RAW) return KEDGE_OK;
  kedge_status status = load_index(path, &index, &file);
  if (status == KEDGE_OK) {
    json_t *domains = json_object_get(index, "domains");
    d->names = kedge_alloc(json_object_size(domains) + 1, sizeof *d->names);
    if (!d->names) status = KEDGE_ERR_MEMORY;
    json_object_foreach(domains, name, value) {
      if (status != KEDGE_OK) break;
      d->names[d->count] = kedge_strdup(name);
      if (!d->names[d->count++]) status = KEDGE_ERR_MEMORY;
    }
  }
  if (status != KEDGE_OK) kedge_trace_domains_destroy(d);
  json_decref(index);
  kedge_free(file);
  return status;
}

void kedge_trace_domains_destroy(kedge_trace_domains *d) {
  for (uint32_t i = 0; i < d->count; i++) kedge_free(d->names[i]);
  kedge_free(d->names);
  *d = (kedge_trace_domains){0};
}

typedef struct raw {
  const char *folder, *index_path, *domain;
  const json_t *index, *entry; /* entry: of the domain */
  kedge_trace *trace;
  uint32_t layer; /* place of the layer at hand */
} raw;

/* The file's own path would leave the folder with a name such as "../x". */
static bool is_plain(const char *name) {
  return *name && *name != '.' && strlen(name) < 128 && !strchr(name, '/');
}

static kedge_status choose_domain(raw *r, const char *wanted) {
  json_t *domains = json_object_get(r->index, "domains"), *value;
  const char *name;
  if (!wanted && json_object_size(domains) != 1)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: has %zu domains; name one of them", r->index_path,
                      json_object_size(domains));
  json_object_foreach(domains, name, value) {
    if (wanted && strcmp(wanted, name)) continue;
    r->domain = name, r->entry = value;
  }
  if (!r->domain) return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: no domain \"%.80s\"", r->index_path, wanted);
  if (!is_plain(r->domain))
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: domains: \"%.80s\" cannot begin the name of a file",
                      r->index_path, r->domain);
  return KEDGE_OK;
}

static kedge_status number(const raw *r, const json_t *object, const char *key, json_int_t most,
                           uint32_t *value) {
  const json_t *item = json_object_get(object, key);
  if (!json_is_integer(item) || json_integer_value(item) < 1 || json_integer_value(item) > most)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: %s: expected 1 to %lld", r->index_path, key, (long long)most);
  *value = (uint32_t)json_integer_value(item);
  return KEDGE_OK;
}

/* Sample lengths, which must add up to the tokens; without them all tokens are one sample. */
static kedge_status take_lengths(raw *r) {
  const json_t *lengths = json_object_get(r->entry, "lengths"), *item;
  uint64_t used = 0;
  size_t sample;
  if (!lengths) return KEDGE_OK;
  if (!json_is_array(lengths))
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: lengths of %s: expected a list", r->index_path, r->domain);
  json_array_foreach(lengths, sample, item) {
    json_int_t length = json_is_integer(item) ? json_integer_value(item) : -1;
    if (length < 0 || used + (uint64_t)length > r->trace->tokens) {
      used = UINT64_MAX;
      break;
    }
    for (json_int_t i = 0; i < length; i++) r->trace->samples[used++] = (int32_t)sample;
  }
  if (used == r->trace->tokens) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_FORMAT, "%s: lengths of %s: expected lengths that add up to its %u tokens",
                    r->index_path, r->domain, r->trace->tokens);
}

/* ---- The files
 * --------------------------------------------------------------------------------------------------- */

/* Opens <domain>_L<layer><ending> if it exists; its size must be `count` numbers of `width` bytes. */
static kedge_status open_layer(const raw *r, const char *ending, uint32_t width, FILE **file) {
  struct stat info;
  kedge_status status = KEDGE_OK;
  const uint64_t want = (uint64_t)r->trace->tokens * r->trace->topk * width;
  char *path = kedge_format("%s/%s_L%02d%s", r->folder, r->domain, r->trace->layer_numbers[r->layer], ending);
  *file = NULL;
  if (!path) return KEDGE_ERR_MEMORY;
  FILE *opened = fopen(path, "rb");
  if (!opened && errno != ENOENT)
    status = kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
  else if (opened &&
           (fstat(fileno(opened), &info) || !S_ISREG(info.st_mode) || (uint64_t)info.st_size != want))
    status = kedge_fail(KEDGE_ERR_FORMAT, "%s: expected %llu bytes, %u tokens of %u numbers of %u bytes",
                        path, (unsigned long long)want, r->trace->tokens, r->trace->topk, width);
  kedge_free(path);
  if (status == KEDGE_OK) {
    *file = opened;
    return KEDGE_OK;
  }
  if (opened) fclose(opened);
  return status;
}

/* Reads the numbers of a layer to their rows: as ids, or as weights in ten thousandths. */
static kedge_status take_layer(const raw *r, FILE *file, uint32_t width, bool weights) {
  kedge_trace *t = r->trace;
  unsigned char bytes[CHUNK];
  const uint64_t count = (uint64_t)t->tokens * t->topk;
  for (uint64_t done = 0; done < count;) {
    uint64_t now = count - done < CHUNK / width ? count - done : CHUNK / width;
    if (fread(bytes, width, now, file) != now)
      return kedge_fail(KEDGE_ERR_IO, "%s: a file of domain %s ends too early", r->folder, r->domain);
    for (uint64_t i = 0; i < now; i++, done++) {
      uint32_t value = width == 1 ? bytes[i] : (uint32_t)(bytes[2 * i] | bytes[2 * i + 1] << 8);
      size_t at = (done / t->topk * t->layers + r->layer) * t->topk + done % t->topk;
      if (weights)
        t->weights[at] = (float)value / 10000;
      else
        t->ids[at] = (int32_t)value;
    }
  }
  return KEDGE_OK;
}

static kedge_status read_layer(raw *r) {
  FILE *file;
  uint32_t width = 1;
  KEDGE_TRY(open_layer(r, "_ids.u8", width, &file));
  if (!file) KEDGE_TRY(open_layer(r, "_ids.u16", width = 2, &file));
  if (!file)
    return kedge_fail(KEDGE_ERR_IO, "%s/%s_L%02d_ids.u8: neither it nor .u16 is there", r->folder, r->domain,
                      r->trace->layer_numbers[r->layer]);
  kedge_status status = take_layer(r, file, width, false);
  fclose(file);
  if (status != KEDGE_OK) return status;
  KEDGE_TRY(open_layer(r, "_w1e4.u16", 2, &file));
  kedge_trace *t = r->trace;
  if (file && !r->layer)
    t->weights = kedge_alloc((size_t)t->tokens * t->layers, t->topk * sizeof *t->weights);
  if (file && !t->weights)
    status = r->layer ? KEDGE_ERR_FORMAT : KEDGE_ERR_MEMORY;
  else if (!file && t->weights)
    status = KEDGE_ERR_FORMAT;
  else if (file)
    status = take_layer(r, file, 2, true);
  if (file) fclose(file);
  if (status == KEDGE_ERR_FORMAT)
    return kedge_fail(KEDGE_ERR_FORMAT,
                      "%s: weights of domain %s: some layers have them, layer %d is another", r->folder,
                      r->domain, t->layer_numbers[r->layer]);
  return status;
}

/* Numbers of the layers, which are parts of names of files. */
static kedge_status check_layers(const raw *r, const json_t *layers) {
  const json_t *item;
  size_t l;
  if (!json_array_size(layers) || json_array_size(layers) > 65536)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: layers: expected a list of 1 to 65536 numbers", r->index_path);
  json_array_foreach(
      layers, l, item) if (!json_is_integer(item) || json_integer_value(item) < 0 ||
                           json_integer_value(item) >
                               65535) return kedge_fail(KEDGE_ERR_FORMAT,
                                                        "%s: layers[%zu]: expected a number from 0 to 65535",
                                                        r->index_path, l);
  return KEDGE_OK;
}

static kedge_status read_domain(raw *r, const char *wanted) {
  uint32_t tokens = 0, experts = 0, topk = 0;
  const json_t *layers = json_object_get(r->index, "layers");
  KEDGE_TRY(choose_domain(r, wanted));
  KEDGE_TRY(number(r, r->index, "experts", 65536, &experts));
  KEDGE_TRY(number(r, r->index, "top_k", experts, &topk));
  KEDGE_TRY(number(r, r->entry, "tokens", INT32_MAX, &tokens));
  KEDGE_TRY(check_layers(r, layers));
  const size_t count = json_array_size(layers);
  /* What the index claims must be in the first layer's file before it is believed. */
  int32_t first = (int32_t)json_integer_value(json_array_get(layers, 0));
  kedge_trace claimed = {.tokens = tokens, .topk = topk, .layer_numbers = &first};
  raw probe = *r;
  FILE *file;
  probe.trace = &claimed;
  KEDGE_TRY(open_layer(&probe, "_ids.u8", 1, &file));
  if (!file) KEDGE_TRY(open_layer(&probe, "_ids.u16", 2, &file));
  if (file)
    fclose(file);
  else
    return kedge_fail(KEDGE_ERR_IO, "%s/%s_L%02d_ids.u8: neither it nor .u16 is there", r->folder, r->domain,
                      first);
  KEDGE_TRY(kedge_trace_init(r->trace, tokens, (uint32_t)count, experts, topk));
  for (uint32_t l = 0; l < count; l++)
    r->trace->layer_numbers[l] = (int32_t)json_integer_value(json_array_get(layers, l));
  KEDGE_TRY(take_lengths(r));
  for (r->layer = 0; r->layer < count; r->layer++) KEDGE_TRY(read_layer(r));
  return KEDGE_OK;
}

kedge_status kedge__trace_read_raw(const char *path, const kedge_trace_import_options *options,
                                   kedge_trace *trace) {
  json_t *index;
  char *index_path;
  kedge_status status = load_index(path, &index, &index_path);
  if (status == KEDGE_OK) {
    raw r = {.folder = path, .index_path = index_path, .index = index, .trace = trace};
    status = read_domain(&r, options->domain);
  }
  json_decref(index);
  kedge_free(index_path);
  return status;
}
