/* SPDX-License-Identifier: Apache-2.0
 * A model's weights between files and a device. */
#include "models/decoder/model.h"

#include "core/comm.h"
#include "models/checkpoint/convert.h"
#include "models/checkpoint/hash.h"
#include "models/checkpoint/writer.h"
#include "models/decoder/rope.h"

#include <stdio.h>
#include <string.h>

enum { PIECE = 1 << 20 }; /* elements converted at a time */

static kedge_st_dtype file_dtype(kedge_dtype dtype) {
  return dtype == KEDGE_BF16 ? KEDGE_ST_BF16 : KEDGE_ST_F32;
}

kedge_dtype kedge_model_file_dtype(const kedge_hf_config *config) {
  return strcmp(config->dtype, "bfloat16") ? KEDGE_F32 : KEDGE_BF16;
}

/* The table of rotary frequencies; f64 in an f64 model. */
static kedge_status make_inv_freq(kedge_model *m) {
  const uint32_t width = kedge_rope_width(&m->config), half = width / 2;
  double *wide = kedge_alloc(half, sizeof *wide);
  float *narrow = kedge_alloc(half, sizeof *narrow);
  kedge_status status = wide && narrow ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) {
    const bool f64 = m->dtype == KEDGE_F64;
    const size_t bytes = half * (f64 ? sizeof *wide : sizeof *narrow);
    kedge_rope_frequencies(&m->config.rope, width, wide);
    for (uint32_t i = 0; i < half; i++) narrow[i] = (float)wide[i];
    status = kedge_buffer_new(m->device, bytes, &m->inv_freq);
    if (status == KEDGE_OK)
      status = kedge_buffer_write(m->inv_freq, 0, f64 ? (void *)wide : (void *)narrow, bytes);
  }
  kedge_free(wide);
  kedge_free(narrow);
  return status;
}

/* A model with its list of parameters and no buffers yet; takes the config over. `share`: it has its part of
 * the experts. */
static kedge_status model_new(kedge_device *device, kedge_hf_config *config, kedge_dtype dtype, bool share,
                              kedge_model **out) {
  const kedge_comm *comm = share ? kedge_device_comm(device) : NULL;
  kedge_model *m = *out = kedge_alloc(1, sizeof *m);
  if (!m) {
    kedge_hf_config_destroy(config);
    return KEDGE_ERR_MEMORY;
  }
  m->config = *config;
  *config = (kedge_hf_config){0};
  m->device = device;
  m->dtype = dtype;
  kedge_status status =
      kedge_params_init_part(&m->params, &m->config, kedge_comm_size(comm, KEDGE_RANKS_EXPERTS),
                             kedge_comm_rank(comm, KEDGE_RANKS_EXPERTS));
  if (status == KEDGE_OK) {
    m->weights = kedge_alloc(m->params.count, sizeof *m->weights);
    m->parts = kedge_alloc(m->params.count, sizeof *m->parts);
    status = m->weights && m->parts ? KEDGE_OK : KEDGE_ERR_MEMORY;
  }
  if (status == KEDGE_OK) status = make_inv_freq(m);
  if (status == KEDGE_OK) return KEDGE_OK;
  kedge_model_free(m);
  *out = NULL;
  return status;
}

static kedge_dtype weight_dtype(const kedge_model *m, uint32_t item) {
  return kedge_param_dtype(&m->params.items[item], m->dtype);
}

static kedge_status weight_new(kedge_model *m, uint32_t item) {
  const uint64_t size = kedge_dtype_size(weight_dtype(m, item));
  return kedge_buffer_new(m->device, kedge_param_count(&m->params.items[item]) * size, &m->weights[item]);
}

kedge_status kedge_model_describe(kedge_device *device, kedge_hf_config *config, kedge_dtype dtype,
                                  kedge_model **out) {
  kedge_model *m;
  KEDGE_TRY(model_new(device, config, dtype, true, &m));
  kedge_status status = KEDGE_OK;
  for (uint32_t i = 0; status == KEDGE_OK && i < m->params.count; i++) status = weight_new(m, i);
  *out = status == KEDGE_OK ? m : NULL;
  if (status != KEDGE_OK) kedge_model_free(m);
  return status;
}

void kedge_model_free(kedge_model *m) {
  if (!m) return;
  for (uint32_t i = 0; m->weights && i < m->params.count; i++) kedge_buffer_free(m->weights[i]);
  for (uint32_t i = 0; m->parts && i < m->params.count; i++) {
    for (uint32_t e = 0; m->parts[i] && e < m->params.items[i].dims[0]; e++)
      kedge_buffer_free(m->parts[i][e]);
    kedge_free(m->parts[i]);
  }
  kedge_free(m->weights);
  kedge_free(m->parts);
  kedge_buffer_free(m->inv_freq);
  kedge_params_destroy(&m->params);
  kedge_checkpoint_close(m->source);
  kedge_hf_config_destroy(&m->config);
  kedge_notes_destroy(&m->notes);
  kedge_free(m);
}

/* ---- Load
 * -------------------------------------------------------------------------------------------------------------
 */

static kedge_status check_tensor(const kedge_param *param, const kedge_st_tensor *tensor) {
  uint64_t shape[KEDGE_MAX_RANK];
  uint32_t rank = kedge_param_part_shape(param, shape);
  bool same = tensor->rank == rank;
  for (uint32_t i = 0; same && i < rank; i++) same = tensor->shape[i] == shape[i];
  if (!same) {
    kedge_st_tensor want = {.rank = rank};
    memcpy(want.shape, shape, rank * sizeof *shape);
    char got_text[128], want_text[128];
    kedge_st_shape_text(tensor, got_text, sizeof got_text);
    kedge_st_shape_text(&want, want_text, sizeof want_text);
    return kedge_fail(KEDGE_ERR_MISMATCH, "tensor %s: expected shape %s from config.json, got %s",
                      tensor->name, want_text, got_text);
  }
  if (tensor->dtype != KEDGE_ST_F32 && tensor->dtype != KEDGE_ST_BF16 && tensor->dtype != KEDGE_ST_F16)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "tensor %s: expected dtype F32, BF16 or F16, got %s",
                      tensor->name, kedge_st_dtype_name(tensor->dtype));
  return KEDGE_OK;
}

/* Of elements numbered over all experts those that lie here: how many of them come first and are left out,
 * and where the others begin. */
static uint64_t elements_before(const kedge_model *m, uint32_t item) {
  const kedge_param *p = &m->params.items[item];
  return p->experts ? kedge_param_count(p) / p->dims[0] * p->first : 0;
}

/* Writes the part of a run that lies here. */
static kedge_status write_run(const kedge_model *m, kedge_run run, uint64_t n, uint64_t size,
                              const void *piece) {
  const uint64_t before = elements_before(m, run.item),
                 end = before + kedge_param_count(&m->params.items[run.item]);
  const uint64_t from = run.start > before ? run.start : before,
                 to = run.start + n < end ? run.start + n : end;
  if (from >= to) return KEDGE_OK;
  return kedge_buffer_write(m->weights[run.item], (from - before) * size,
                            (const unsigned char *)piece + (from - run.start) * size, (to - from) * size);
}

/* Converts a file tensor into its place, or places, on the device. */
static kedge_status fill_part(const kedge_model *m, uint32_t item, uint32_t part,
                              const kedge_st_tensor *tensor, void *piece) {
  const kedge_dtype dtype = weight_dtype(m, item);
  const size_t size = kedge_dtype_size(dtype), from_size = kedge_st_dtype_size(tensor->dtype);
  const uint64_t count = tensor->bytes / from_size;
  uint64_t n;
  for (uint64_t at = 0; at < count; at += n) {
    const kedge_run run = kedge_params_run(&m->params, item, part, at);
    n = run.count < PIECE ? run.count : PIECE;
    KEDGE_TRY(
        kedge_convert_floats(piece, file_dtype(dtype), tensor->data + at * from_size, tensor->dtype, n));
    uint64_t bad = kedge_floats_not_finite(piece, file_dtype(dtype), n);
    if (bad < n)
      return kedge_fail(KEDGE_ERR_NUMERIC, "tensor %s: element %llu is not a finite %s number", tensor->name,
                        (unsigned long long)(at + bad), kedge_dtype_name(dtype));
    KEDGE_TRY(write_run(m, run, n, size, piece));
  }
  kedge_st_drop(tensor);
  return KEDGE_OK;
}

static kedge_status check_tied(const kedge_model *m, const kedge_st_tensor *head) {
  char name[KEDGE_NAME_SIZE];
  const kedge_st_tensor *embed;
  kedge_param_name(&m->params.items[kedge_params_find(&m->params, KEDGE_ROLE_EMBED, 0)], 0, name);
  KEDGE_TRY(kedge_checkpoint_require(m->source, name, &embed));
  if (embed->bytes == head->bytes && !memcmp(embed->data, head->data, head->bytes)) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_MISMATCH, "tensor %s: config.json ties it to %s, but their contents differ",
                    head->name, name);
}

/* Every file tensor is consumed, ignored by name or as an empty one (of shared experts that have no width),
 * or an error. */
static kedge_status check_leftovers(kedge_model *m) {
  for (uint32_t i = 0; i < kedge_checkpoint_count(m->source); i++) {
    const kedge_st_tensor *tensor = kedge_checkpoint_at(m->source, i);
    uint32_t item, part;
    bool tied;
    if (kedge_params_lookup(&m->params, tensor->name, &item, &part, &tied)) {
      if (tied) KEDGE_TRY(check_tied(m, tensor));
      continue;
    }
    const bool empty = !tensor->bytes;
    if (!empty && !kedge_params_ignores(&m->params, tensor->name))
      return kedge_fail(KEDGE_ERR_MISMATCH,
                        "tensor %s (in %s) is not part of a %s model with this config.json", tensor->name,
                        kedge_checkpoint_shard_of(m->source, tensor), m->config.model_type);
    KEDGE_TRY(kedge_notes_add(&m->notes, "tensor %s is %s and is ignored", tensor->name,
                              empty ? "empty" : "a stale buffer"));
  }
  return KEDGE_OK;
}

/* The tensor of a part in files of the model's layout, checked against the config. */
static kedge_status find_in(const kedge_model *m, const kedge_checkpoint *files, uint32_t item, uint32_t part,
                            const kedge_st_tensor **tensor) {
  char name[KEDGE_NAME_SIZE];
  kedge_param_name(&m->params.items[item], part, name);
  KEDGE_TRY(kedge_checkpoint_require(files, name, tensor));
  return check_tensor(&m->params.items[item], *tensor);
}

static kedge_status find_part(const kedge_model *m, uint32_t item, uint32_t part,
                              const kedge_st_tensor **tensor) {
  return find_in(m, m->source, item, part, tensor);
}

/* Whether a tensor can be read where it lies: its dtype is the weight's, its elements are aligned. */
static bool mappable(const kedge_model *m, uint32_t item, const kedge_st_tensor *tensor) {
  const kedge_dtype dtype = weight_dtype(m, item);
  return tensor->dtype == file_dtype(dtype) && (uintptr_t)tensor->data % kedge_dtype_size(dtype) == 0;
}

/* Borrows one expert of a stack from its file tensor. */
static kedge_status map_expert(kedge_model *m, uint32_t item, uint32_t expert) {
  const kedge_param *p = &m->params.items[item];
  const uint64_t bytes = kedge_param_count(p) / p->dims[0] * kedge_dtype_size(m->dtype);
  const uint64_t skip = p->paired ? (2 * (uint64_t)expert + p->second) * bytes : 0;
  const kedge_st_tensor *tensor;
  KEDGE_TRY(find_part(m, item, p->paired ? 0 : expert, &tensor));
  return kedge_buffer_wrap(m->device, tensor->data + skip, bytes, &m->parts[item][expert]);
}

/* Borrows a parameter's file tensors; *mapped stays false if one of them has to be converted. */
static kedge_status map_param(kedge_model *m, uint32_t item, bool *mapped) {
  const kedge_st_tensor *tensor;
  const kedge_param *p = &m->params.items[item];
  *mapped = false;
  for (uint32_t part = 0; part < p->parts; part++) {
    KEDGE_TRY(find_part(m, item, part, &tensor));
    if (!mappable(m, item, tensor)) return KEDGE_OK;
  }
  *mapped = true;
  KEDGE_TRY(find_part(m, item, 0, &tensor));
  if (p->parts == 1 && !p->paired)
    return kedge_buffer_wrap(m->device, tensor->data, tensor->bytes, &m->weights[item]);
  m->parts[item] = kedge_alloc(p->dims[0], sizeof *m->parts[item]);
  if (!m->parts[item]) return KEDGE_ERR_MEMORY;
  for (uint32_t expert = 0; expert < p->dims[0]; expert++) KEDGE_TRY(map_expert(m, item, expert));
  return KEDGE_OK;
}

/* The files must fit the config before its sizes are believed and memory is taken. */
static kedge_status check_tensors(kedge_model *m) {
  const kedge_st_tensor *tensor;
  KEDGE_TRY(check_leftovers(m));
  for (uint32_t i = 0; i < m->params.count; i++)
    for (uint32_t part = 0; part < m->params.items[i].parts; part++)
      KEDGE_TRY(find_part(m, i, part, &tensor));
  return KEDGE_OK;
}

/* Fills a parameter from all its file tensors; a pair's tensor fills both of the pair. */
static kedge_status fill_param(kedge_model *m, uint32_t item, void *piece) {
  for (uint32_t part = 0; part < m->params.items[item].parts; part++) {
    const kedge_st_tensor *tensor;
    KEDGE_TRY(find_part(m, item, part, &tensor));
    KEDGE_TRY(fill_part(m, item, part, tensor, piece));
  }
  return KEDGE_OK;
}

/* Buffers first: a file tensor may fill two parameters. */
static kedge_status fill_all(kedge_model *m, bool map) {
  void *piece = kedge_alloc(PIECE, sizeof(float));
  bool *mapped = kedge_alloc(m->params.count, sizeof *mapped);
  kedge_status status = piece && mapped ? check_tensors(m) : KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; i < m->params.count && status == KEDGE_OK; i++) {
    if (map) status = map_param(m, i, &mapped[i]);
    if (status == KEDGE_OK && !mapped[i]) status = weight_new(m, i);
  }
  for (uint32_t i = 0; i < m->params.count && status == KEDGE_OK; i++)
    if (!mapped[i] && !m->params.items[i].second) status = fill_param(m, i, piece);
  kedge_free(mapped);
  kedge_free(piece);
  return status;
}

kedge_status kedge_model_open(kedge_device *device, const char *directory, const kedge_model_how *how,
                              kedge_model **out) {
  kedge_hf_config config;
  kedge_model *m = NULL;
  *out = NULL;
  KEDGE_TRY(kedge_hf_config_load(directory, &config));
  kedge_status status = kedge_model_options_set(&config, how->options);
  if (status != KEDGE_OK) {
    kedge_hf_config_destroy(&config);
    return status;
  }
  status = model_new(device, &config, how->dtype, how->share_experts, &m);
  if (status == KEDGE_OK) status = kedge_checkpoint_open(directory, &m->source);
  if (status == KEDGE_OK) status = kedge_params_fit(&m->params, m->source);
  if (status == KEDGE_OK) status = fill_all(m, how->map);
  if (status != KEDGE_OK) {
    kedge_model_free(m);
    return kedge_fail_in(status, "%s", directory);
  }
  *out = m;
  return KEDGE_OK;
}

kedge_status kedge_model_reload_fixed(const kedge_model *m, const kedge_checkpoint *files) {
  void *piece = kedge_alloc(PIECE, sizeof(float));
  kedge_status status = piece ? KEDGE_OK : KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; status == KEDGE_OK && i < m->params.count; i++) {
    const kedge_st_tensor *tensor;
    if (!m->params.items[i].fixed) continue;
    status = find_in(m, files, i, 0, &tensor);
    if (status == KEDGE_OK) status = fill_part(m, i, 0, tensor, piece);
  }
  kedge_free(piece);
  return status;
}

kedge_status kedge_model_load(kedge_device *device, const char *directory, kedge_dtype dtype,
                              kedge_model **out) {
  return kedge_model_open(device, directory, &(kedge_model_how){.dtype = dtype}, out);
}

kedge_status kedge_model_map(kedge_device *device, const char *directory, kedge_dtype dtype,
                             kedge_model **out) {
  return kedge_model_open(device, directory, &(kedge_model_how){.dtype = dtype, .map = true}, out);
}

/* ---- Save
 * -------------------------------------------------------------------------------------------------------------
 */

typedef struct save_context {
  const kedge_model *model;
  kedge_weight_read read;
  void *context;
  unsigned char *piece;
} save_context;

/* Masters on the device, or nothing. */
static kedge_status read_masters(void *context, uint32_t item, uint64_t start, uint64_t count, float *values,
                                 bool *own) {
  kedge_buffer *const *masters = context;
  *own = !masters || !masters[item];
  return *own ? KEDGE_OK
              : kedge_buffer_read(masters[item], start * sizeof *values, values, count * sizeof *values);
}

/* Bytes [offset, offset + bytes) of a file tensor, from the device. */
static kedge_status fetch(void *context, const kedge_st_tensor *tensor, uint64_t offset, void *buffer,
                          uint64_t bytes, bool *own) {
  save_context *c = context;
  const kedge_model *m = c->model;
  uint32_t item, part;
  bool tied;
  if (!kedge_params_lookup(&m->params, tensor->name, &item, &part, &tied)) {
    *own = true; /* a stale buffer passes through */
    return KEDGE_OK;
  }
  const uint64_t size = kedge_st_dtype_size(tensor->dtype), first = offset / size, count = bytes / size;
  uint64_t n;
  for (uint64_t at = 0; at < count; at += n) {
    const kedge_run run = kedge_params_run(&m->params, item, part, first + at);
    kedge_dtype dtype = KEDGE_F32;
    bool weights = false;
    n = run.count < count - at ? run.count : count - at;
    KEDGE_TRY(c->read(c->context, run.item, run.start, n, (float *)(void *)c->piece, &weights));
    if (weights) {
      dtype = weight_dtype(m, run.item);
      const uint64_t from_size = kedge_dtype_size(dtype);
      KEDGE_TRY(kedge_buffer_read(m->weights[run.item], run.start * from_size, c->piece, n * from_size));
    }
    KEDGE_TRY(kedge_convert_floats((unsigned char *)buffer + at * size, tensor->dtype, c->piece,
                                   file_dtype(dtype), n));
  }
  return KEDGE_OK;
}

/* A fixed parameter that was moved has steps that 16 bits would round off: it becomes f32. One that holds
 * what the file holds keeps its dtype. */
static kedge_status retype(void *context, const kedge_st_tensor *tensor, kedge_st_dtype *dtype) {
  const save_context *c = context;
  const kedge_model *m = c->model;
  uint32_t item, part;
  bool tied;
  if (tensor->dtype == KEDGE_ST_F32 || !kedge_params_lookup(&m->params, tensor->name, &item, &part, &tied) ||
      !m->params.items[item].fixed)
    return KEDGE_OK;
  const uint64_t size = kedge_st_dtype_size(tensor->dtype), count = tensor->bytes / size;
  const uint64_t most = KEDGE_ST_PIECE / sizeof(float);
  for (uint64_t at = 0; at < count && *dtype != KEDGE_ST_F32; at += most) {
    const uint64_t n = count - at < most ? count - at : most, bytes = n * sizeof(float);
    unsigned char *has = c->piece, *had = has + bytes;
    KEDGE_TRY(kedge_buffer_read(m->weights[item], at * sizeof(float), has, bytes));
    KEDGE_TRY(kedge_convert_floats(had, KEDGE_ST_F32, tensor->data + at * size, tensor->dtype, n));
    if (memcmp(has, had, bytes)) *dtype = KEDGE_ST_F32;
  }
  return KEDGE_OK;
}

kedge_status kedge_model_save(const kedge_model *m, kedge_buffer *const *masters, const char *folder,
                              kedge_notes *notes) {
  return kedge_model_save_from(m, read_masters, (void *)(uintptr_t)masters, folder, notes);
}

kedge_status kedge_model_save_from(const kedge_model *m, kedge_weight_read read, void *context,
                                   const char *folder, kedge_notes *notes) {
  if (!m->source) return kedge_fail(KEDGE_ERR_ARGUMENT, "a model without files has no layout to be saved in");
  save_context c = {m, read, context, kedge_alloc(KEDGE_ST_PIECE, 2)};
  if (!c.piece) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge_checkpoint_save(m->source, folder, fetch, retype, &c, notes);
  kedge_free(c.piece);
  return status;
}

kedge_status kedge_model_hash(const kedge_model *m, char hash[33]) {
  if (!m->source) return kedge_fail(KEDGE_ERR_ARGUMENT, "a model without files has no hash");
  KEDGE_TRY(kedge_hash_checkpoint(m->source, hash));
  if (!m->config.options) return KEDGE_OK;
  char options[KEDGE_MODEL_OPTIONS_TEXT];
  kedge_hash *both = kedge_hash_new();
  if (!both) return KEDGE_ERR_MEMORY;
  kedge_hash_add_text(both, hash);
  kedge_hash_add_text(both, kedge_model_options_text(m->config.options, options));
  kedge_hash_text(both, hash);
  kedge_hash_free(both);
  return KEDGE_OK;
}
