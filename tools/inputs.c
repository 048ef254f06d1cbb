/* SPDX-License-Identifier: Apache-2.0
 * Inputs that several sub-commands share (inputs.h). */
#include "tools/inputs.h"

#include "core/device.h"
#include "models/checkpoint/atomic.h"
#include "models/decoder/model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *input_device_wanted;

enum { CONFIG_CAP = 16 << 20 };

bool input_is_folder(const char *path) {
  struct stat info;
  return !stat(path, &info) && S_ISDIR(info.st_mode);
}

kedge_status input_config(const char *path, kedge_hf_config *config) {
  if (input_is_folder(path)) return kedge_hf_config_load(path, config);
  char *text;
  size_t bytes;
  *config = (kedge_hf_config){0};
  KEDGE_TRY(kedge_file_read(path, CONFIG_CAP, &text, &bytes));
  kedge_status status = kedge_hf_config_parse(text, bytes, path, config);
  kedge_free(text);
  return status;
}

static bool same_place(const char *a, const char *b) {
  struct stat x, y;
  return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

kedge_status input_spare(const char *out, const char *model, const char *const *data, size_t data_count) {
  for (size_t i = 0; i < data_count; i++)
    if (same_place(out, data[i]))
      return kedge_fail(KEDGE_ERR_ARGUMENT, "--out %s would replace the data that is read", out);
  char *folder = kedge_strdup(out);
  if (!folder) return KEDGE_ERR_MEMORY;
  char *slash = strrchr(folder, '/');
  if (slash) slash[slash == folder] = 0;
  bool inside = model && same_place(slash ? folder : ".", model);
  kedge_free(folder);
  struct stat info;
  if (!inside || stat(out, &info)) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_ARGUMENT, "--out %s would replace a file of the model", out);
}

kedge_status input_ids(const char *text, uint32_t vocabulary, int32_t **ids, size_t *count) {
  size_t capacity = 1;
  for (const char *c = text; *c; c++) capacity += *c == ',';
  *count = 0;
  *ids = kedge_alloc(capacity, sizeof **ids);
  if (!*ids) return KEDGE_ERR_MEMORY;
  kedge_status status = KEDGE_OK;
  for (const char *at = text; status == KEDGE_OK; at++) {
    size_t length = strcspn(at, ",");
    char *end;
    errno = 0;
    long long id = strtoll(at, &end, 10);
    bool number = length && *at >= '0' && *at <= '9' && end == at + length && !errno;
    if (!number)
      status = kedge_fail(KEDGE_ERR_ARGUMENT, "--tokens: entry %zu: expected a token id, came \"%.*s\"",
                          *count + 1, (int)(length > 40 ? 40 : length), at);
    else if (id >= (long long)vocabulary)
      status = kedge_fail(KEDGE_ERR_ARGUMENT, "--tokens: entry %zu: id %lld is not below vocab_size %u",
                          *count + 1, id, vocabulary);
    else
      (*ids)[(*count)++] = (int32_t)id;
    at += length;
    if (!*at) break;
  }
  if (status != KEDGE_OK) {
    kedge_free(*ids);
    *ids = NULL;
  }
  return status;
}

kedge_status input_dtype(const char *name, const kedge_hf_config *config, kedge_dtype *dtype) {
  *dtype = KEDGE_F32;
  if (!name) {
    *dtype = kedge_model_file_dtype(config);
    return KEDGE_OK;
  }
  if (!strcmp(name, "bf16")) *dtype = KEDGE_BF16;
  if (strcmp(name, "bf16") && strcmp(name, "f32"))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--dtype: expected f32 or bf16, came \"%.40s\"", name);
  return KEDGE_OK;
}

kedge_status input_device_open(const char *backend, const kedge_open_options *options,
                               kedge_device **device) {
  kedge_open_options own = *options;
  if (input_device_wanted && strchr(backend, ':'))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--device: --backend %.60s names one already", backend);
  if (!own.settings) own.settings = input_device_wanted;
  KEDGE_TRY(kedge_device_open(backend, &own, device));
  if (kedge_device_note(*device)) fprintf(stderr, "kedge: %s\n", kedge_device_note(*device));
  if ((*device)->limits.computes) return KEDGE_OK;
  kedge_device_close(*device);
  *device = NULL;
  return kedge_fail(KEDGE_ERR_ARGUMENT, "--backend: %s computes nothing; see `kedge devices`", backend);
}

kedge_status input_device(const char *backend, int64_t threads, kedge_device **device) {
  const kedge_open_options options = {.threads = (uint32_t)threads};
  return input_device_open(backend, &options, device);
}

void input_device_tell(const kedge_device *device) {
  if (strcmp(kedge_device_backend(device), "cpu") != 0)
    fprintf(stderr, "device: %s\n", kedge_device_description(device));
}
