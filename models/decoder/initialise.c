/* SPDX-License-Identifier: Apache-2.0
 * Random models (initialise.h): numbers, shards, configs. */
#include "models/decoder/initialise.h"

#include "models/checkpoint/atomic.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/convert.h"
#include "models/checkpoint/json.h"
#include "models/checkpoint/writer.h"
#include "models/text/random.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* ---- Numbers
 * ------------------------------------------------------------------------------------------------------ */

/* Two normal numbers (Box and Muller) of pair `pair` of a stream. */
static void normal_pair(uint64_t key, uint64_t pair, double deviation, double values[2]) {
  kedge_random random = {key, 2 * pair};
  const double unit = 0x1p-53;
  double radius = (double)((kedge_random_next(&random) >> 11) + 1) * unit; /* (0, 1]: never log 0 */
  double turn = (double)(kedge_random_next(&random) >> 11) * unit;         /* [0, 1) */
  radius = deviation * sqrt(-2 * log(radius));
  values[0] = radius * cos(2 * M_PI * turn);
  values[1] = radius * sin(2 * M_PI * turn);
}

void kedge_initialise_normal(uint64_t seed, const char *name, double deviation, uint64_t first,
                             uint64_t count, float *values) {
  if (!count) return;
  const uint64_t key = kedge_random_start(seed, XXH3_64bits(name, strlen(name))).key;
  const int64_t begin = (int64_t)(first / 2), end = (int64_t)((first + count - 1) / 2);
#pragma omp parallel for schedule(static)
  for (int64_t pair = begin; pair <= end; pair++) {
    double two[2];
    normal_pair(key, (uint64_t)pair, deviation, two);
    for (uint64_t i = 0; i < 2; i++) {
      uint64_t at = 2 * (uint64_t)pair + i;
      if (at >= first && at < first + count) values[at - first] = (float)two[i];
    }
  }
}

/* ---- Weights
 * ------------------------------------------------------------------------------------------------------ */

typedef struct file_tensor {
  char name[KEDGE_NAME_SIZE];
  bool random; /* normal numbers, else `value` everywhere */
  float value;
} file_tensor;

/* All tensors in the order of the parameters, cut into shards. */
typedef struct writing {
  const kedge_params *params;
  const kedge_initialise_options *options;
  file_tensor *tensors;          /* [count] */
  kedge_st_spec *specs;          /* [count] */
  uint32_t *shard_of;            /* [count] */
  uint32_t count, shards, start; /* start: first tensor of the shard being written */
  uint64_t total, done;          /* bytes */
  float *piece;
} writing;

static kedge_st_dtype dtype_of(const kedge_param *param, kedge_st_dtype dtype) {
  return param->fixed ? KEDGE_ST_F32 : dtype;
}

/* Vectors are norms, except for biases. */
static float vector_value(kedge_role role) {
  const bool bias = role == KEDGE_ROLE_Q_BIAS || role == KEDGE_ROLE_K_BIAS || role == KEDGE_ROLE_V_BIAS ||
                    role == KEDGE_ROLE_ROUTER_CORRECTION;
  return bias ? 0 : 1;
}

static bool list_tensors(writing *w) {
  const kedge_params *p = w->params;
  const uint64_t limit = w->options->shard_bytes ? w->options->shard_bytes : KEDGE_SHARD_BYTES;
  uint64_t filled = 0;
  w->tensors = kedge_alloc(p->tensors, sizeof *w->tensors);
  w->specs = kedge_alloc(p->tensors, sizeof *w->specs);
  w->shard_of = kedge_alloc(p->tensors, sizeof *w->shard_of);
  w->piece = kedge_alloc(KEDGE_ST_PIECE, sizeof *w->piece / 2); /* a 2-byte dtype has the most elements */
  if (!w->tensors || !w->specs || !w->shard_of || !w->piece) return false;
  for (uint32_t i = 0; i < p->count; i++)
    for (uint32_t part = 0; part < p->items[i].parts && !p->items[i].second; part++) {
      file_tensor *tensor = &w->tensors[w->count];
      kedge_st_spec *spec = &w->specs[w->count];
      kedge_param_name(&p->items[i], part, tensor->name);
      *spec = (kedge_st_spec){.name = tensor->name, .dtype = dtype_of(&p->items[i], w->options->dtype)};
      spec->rank = kedge_param_part_shape(&p->items[i], spec->shape);
      tensor->random = spec->rank >= 2;
      tensor->value = vector_value(p->items[i].role);
      uint64_t bytes = kedge_st_dtype_size(spec->dtype);
      for (uint32_t d = 0; d < spec->rank; d++) bytes *= spec->shape[d];
      if (filled && filled + bytes > limit) {
        w->shards++;
        filled = 0;
      }
      filled += bytes;
      w->total += bytes;
      w->shard_of[w->count++] = w->shards;
    }
  w->shards++;
  return true;
}

static kedge_status fill(void *context, uint32_t index, uint64_t offset, void *buffer, uint64_t bytes) {
  writing *w = context;
  const file_tensor *tensor = &w->tensors[w->start + index];
  const kedge_st_dtype dtype = w->specs[w->start + index].dtype;
  const uint32_t size = kedge_st_dtype_size(dtype);
  const uint64_t count = bytes / size;
  if (tensor->random)
    kedge_initialise_normal(w->options->seed, tensor->name, w->params->config.initializer_range,
                            offset / size, count, w->piece);
  for (uint64_t i = 0; !tensor->random && i < count; i++) w->piece[i] = tensor->value;
  w->done += bytes;
  if (w->options->progress && !w->options->progress(w->options->context, w->done, w->total))
    return kedge_fail(KEDGE_ERR_INTERRUPTED, "stopped while writing %s", tensor->name);
  return kedge_convert_floats(buffer, dtype, w->piece, KEDGE_ST_F32, count);
}

static void shard_name(const writing *w, uint32_t shard, char name[64]) {
  if (w->shards == 1)
    snprintf(name, 64, KEDGE_CHECKPOINT_SINGLE);
  else
    snprintf(name, 64, "model-%05u-of-%05u.safetensors", shard + 1, w->shards);
}

static kedge_status write_shards(writing *w, const char *folder) {
  uint32_t end = 0;
  for (uint32_t shard = 0; shard < w->shards; shard++) {
    char name[64];
    shard_name(w, shard, name);
    w->start = end;
    while (end < w->count && w->shard_of[end] == shard) end++;
    char *path = kedge_path_join(folder, name);
    if (!path) return KEDGE_ERR_MEMORY;
    kedge_status status = kedge_st_write(path, w->specs + w->start, end - w->start, NULL, 0, fill, w);
    kedge_free(path);
    KEDGE_TRY(status);
  }
  return KEDGE_OK;
}

/* Writes a JSON value as a file of `folder`, and gives it back. */
static kedge_status write_json(json_t *root, const char *folder, const char *name, size_t flags) {
  kedge_status status = KEDGE_ERR_MEMORY;
  char *path = kedge_path_join(folder, name), *text = root ? json_dumps(root, flags) : NULL;
  char *lines = text ? kedge_format("%s\n", text) : NULL;
  if (path && lines)
    status = kedge_file_write(path, lines, strlen(lines));
  else
    kedge_fail(KEDGE_ERR_MEMORY, "out of memory while writing %s", name);
  free(text);
  kedge_free(lines);
  kedge_free(path);
  json_decref(root);
  return status;
}

static kedge_status write_index(const writing *w, const char *folder) {
  json_t *map = json_object();
  for (uint32_t i = 0; map && i < w->count; i++) {
    char name[64];
    shard_name(w, w->shard_of[i], name);
    json_object_set_new(map, w->tensors[i].name, json_string(name));
  }
  json_t *root =
      json_pack("{s:{s:I, s:I}, s:o}", "metadata", "total_parameters", (json_int_t)w->params->total,
                "total_size", (json_int_t)w->total, "weight_map", map);
  return write_json(root, folder, KEDGE_CHECKPOINT_INDEX, JSON_INDENT(2) | JSON_SORT_KEYS);
}

uint64_t kedge_initialise_bytes(const kedge_params *params, kedge_st_dtype dtype) {
  return params->total * kedge_st_dtype_size(dtype) + params->fixed * sizeof(float);
}

static bool can_write(kedge_st_dtype dtype) {
  return dtype == KEDGE_ST_F32 || dtype == KEDGE_ST_BF16 || dtype == KEDGE_ST_F16;
}

kedge_status kedge_initialise_weights(const kedge_params *params, const kedge_initialise_options *options,
                                      const char *folder) {
  if (!can_write(options->dtype))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "weights are written as F32, BF16 or F16, not as %s",
                      kedge_st_dtype_name(options->dtype));
  /* Headers and index besides the data: names and numbers of each tensor, generously. */
  KEDGE_TRY(
      kedge_disk_require(folder, kedge_initialise_bytes(params, options->dtype) + params->tensors * 512));
  writing w = {.params = params, .options = options};
  kedge_status status = list_tensors(&w) ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = write_shards(&w, folder);
  if (status == KEDGE_OK && w.shards > 1) status = write_index(&w, folder);
  kedge_free(w.tensors);
  kedge_free(w.specs);
  kedge_free(w.shard_of);
  kedge_free(w.piece);
  return status;
}

/* ---- Configs
 * ------------------------------------------------------------------------------------------------------ */

static const char *dtype_text(kedge_st_dtype dtype) {
  return dtype == KEDGE_ST_BF16 ? "bfloat16" : dtype == KEDGE_ST_F16 ? "float16" : "float32";
}

/* Both spellings of the dtype's key are right; the one in the file stays. True if something changed. */
static bool set_dtype(json_t *root, const char *text) {
  const char *key = json_object_get(root, "dtype") ? "dtype" : "torch_dtype";
  const char *old = json_string_value(json_object_get(root, key));
  if (old && !strcmp(old, text)) return false;
  json_object_set_new(root, key, json_string(text));
  return true;
}

static bool set_architecture(json_t *root, const kedge_params *params) {
  if (*params->config.architecture || !params->family->architecture) return false;
  json_object_set_new(root, "architectures", json_pack("[s]", params->family->architecture));
  return true;
}

static json_t *generation_config(const kedge_hf_config *config) {
  json_t *root = json_pack("{s:b}", "_from_model_config", 1), *eos = json_array();
  for (uint32_t i = 0; i < config->eos.count; i++)
    json_array_append_new(eos, json_integer(config->eos.ids[i]));
  if (config->bos_token_id >= 0)
    json_object_set_new(root, "bos_token_id", json_integer(config->bos_token_id));
  if (config->pad_token_id >= 0)
    json_object_set_new(root, "pad_token_id", json_integer(config->pad_token_id));
  if (config->eos.count == 1)
    json_object_set_new(root, "eos_token_id", json_integer(config->eos.ids[0]));
  else if (config->eos.count)
    json_object_set(root, "eos_token_id", eos);
  json_decref(eos);
  return root;
}

static kedge_status copy_text(const char *text, size_t bytes, const char *folder, const char *name) {
  char *path = kedge_path_join(folder, name);
  kedge_status status = path ? kedge_file_write(path, text, bytes) : KEDGE_ERR_MEMORY;
  kedge_free(path);
  return status;
}

kedge_status kedge_initialise_configs(const kedge_params *params, kedge_st_dtype dtype, const char *config,
                                      size_t bytes, const char *generation, size_t generation_bytes,
                                      const char *folder) {
  json_t *root;
  KEDGE_TRY(kedge__json_parse(config, bytes, "config.json", &root));
  if (!json_is_object(root)) {
    json_decref(root);
    return kedge_fail(KEDGE_ERR_FORMAT, "config.json: expected an object");
  }
  bool changed = set_architecture(root, params);
  changed |= set_dtype(root, dtype_text(dtype));
  if (changed) {
    KEDGE_TRY(write_json(root, folder, "config.json", JSON_INDENT(2)));
  } else {
    json_decref(root);
    KEDGE_TRY(copy_text(config, bytes, folder, "config.json"));
  }
  if (generation) return copy_text(generation, generation_bytes, folder, "generation_config.json");
  return write_json(generation_config(&params->config), folder, "generation_config.json", JSON_INDENT(2));
}
