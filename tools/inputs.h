/* SPDX-License-Identifier: Apache-2.0
 *
 * What several sub-commands read: a config by file or folder, lists of ids, dtypes and backends by name. All
 * errors are recorded by kedge_fail. */
#ifndef KEDGE_TOOLS_INPUTS_H
#define KEDGE_TOOLS_INPUTS_H

#include "models/decoder/family.h"

/* Help of --model-options, which kedge_model_options_set reads. */
#define INPUT_MODEL_OPTIONS "where implementations differ: norm_topk_prob=remote,latent_norm_eps=config"

/* True for a path that is a folder. */
bool input_is_folder(const char *path);

/* The config of a model directory, or of a config.json by itself. Destroyed by the caller. */
kedge_status input_config(const char *path, kedge_hf_config *config);

/* ERR_ARGUMENT if writing `out` would replace one of the inputs: a data file, or a file of a model directory.
 * `model` may be NULL. */
kedge_status input_spare(const char *out, const char *model, const char *const *data, size_t data_count);

/* "1,2,3" as ids below `vocabulary`; new memory, freed by kedge_free. ERR_ARGUMENT names the place. */
kedge_status input_ids(const char *text, uint32_t vocabulary, int32_t **ids, size_t *count);

/* "f32" or "bf16"; NULL: the dtype that the config names. */
kedge_status input_dtype(const char *name, const kedge_hf_config *config, kedge_dtype *dtype);

/* The option --device, for the tables of commands that open a device by the functions below: which one of the
 * backend's, as behind a colon of its name. */
extern const char *input_device_wanted;
#define INPUT_DEVICE_OPTION                                                                                  \
  {                                                                                                          \
    "--device", CLI_TEXT, &input_device_wanted, "NAME",                                                      \
        "which device of the backend: its number, or part of its name", false, 0, 0                          \
  }

/* Opens `backend`; one that computes nothing is refused. `threads` 0: the backend's default. */
kedge_status input_device(const char *backend, int64_t threads, kedge_device **device);
kedge_status input_device_open(const char *backend, const kedge_open_options *options, kedge_device **device);
/* The device on a line of standard error, unless it is the CPU, of which there is one. */
void input_device_tell(const kedge_device *device);

#endif
