/* SPDX-License-Identifier: Apache-2.0
 *
 * A model: config, parameter list and weights on a device. Loads from and saves to Hugging Face directories.
 * Siblings: parameters.h lists, decoder.h builds graphs, initialise.h makes random models.
 */
#ifndef KEDGE_MODELS_DECODER_MODEL_H
#define KEDGE_MODELS_DECODER_MODEL_H

#include "models/checkpoint/save.h"
#include "models/decoder/parameters.h"

typedef struct kedge_model {
  kedge_hf_config config;
  kedge_params params;
  kedge_device *device;   /* borrowed */
  kedge_dtype dtype;      /* of the weights on the device: f32 or bf16; f64 to check gradients */
  kedge_buffer **weights; /* one a parameter; NULL where `parts` has it */
  kedge_buffer **
      *parts; /* mapped stacks of experts: a buffer an expert, else NULL; NULL if nothing is mapped */
  kedge_buffer *inv_freq;   /* f32 (f64 in an f64 model) [head_dim/2], the rotary frequencies */
  kedge_checkpoint *source; /* the files that it was loaded from; NULL for a described model */
  kedge_notes notes;        /* what was odd about the files */
} kedge_model;

/* How kedge_model_open opens. */
typedef struct kedge_model_how {
  kedge_dtype dtype;
  bool map;            /* as kedge_model_map does */
  bool share_experts;  /* only this rank's part of them, where the device's comm shares them */
  const char *options; /* kedge_model_options_set; NULL: transformers' way */
} kedge_model_how;

/* Loads config.json and all weights of a model directory, converting to `dtype`. Every parameter is filled
 * exactly once and every file tensor is consumed, or on the family's short list of stale ones (noted), or an
 * error naming it. Errors: those of kedge_hf_config_load and kedge_checkpoint_open; ERR_MISMATCH (a missing,
 * unknown or wrongly shaped tensor). Owned by the caller. */
kedge_status kedge_model_load(kedge_device *device, const char *directory, kedge_dtype dtype,
                              kedge_model **model);

/* The same for reading only: weights whose dtype in the files is `dtype` stay in the mapped files, where the
 * device can read host memory, so that a model larger than memory can be probed. Such a model is not trained
 * or saved. */
kedge_status kedge_model_map(kedge_device *device, const char *directory, kedge_dtype dtype,
                             kedge_model **model);

/* Either of them, with options. Errors also those of kedge_model_options_set. */
kedge_status kedge_model_open(kedge_device *device, const char *directory, const kedge_model_how *how,
                              kedge_model **model);

/* Fills what no gradient trains (selection biases) again from other files of the model's layout: a checkpoint
 * of a run that moved them. Errors: ERR_MISMATCH, ERR_NUMERIC, ERR_MEMORY. */
kedge_status kedge_model_reload_fixed(const kedge_model *model, const kedge_checkpoint *files);

/* A model with buffers but without contents, from a parsed config, which it takes over (also on failure). For
 * planning on `null`; of experts only the part that the device's comm gives this rank. */
kedge_status kedge_model_describe(kedge_device *device, kedge_hf_config *config, kedge_dtype dtype,
                                  kedge_model **model);
void kedge_model_free(kedge_model *model);

/* The dtype that a model's files suggest for computing on a device: bf16 files on hardware that gains from
 * it, else f32. */
kedge_dtype kedge_model_file_dtype(const kedge_hf_config *config);

/* Writes the weights into `folder` (an existing empty folder, normally that of a kedge_directory) in the
 * layout of the source: names, shards, dtypes, index, and the other files of the directory. masters (NULL, or
 * one f32 buffer or NULL a parameter) stand for the weights where given. What no gradient trains (selection
 * biases) is f32 in the output once it is not what the source holds. */
kedge_status kedge_model_save(const kedge_model *model, kedge_buffer *const *masters, const char *folder,
                              kedge_notes *notes);

/* Gives elements [start, start + count) of a trained parameter in f32, numbered over all experts; *own: it
 * does not have them, and the model's weights hold. */
typedef kedge_status (*kedge_weight_read)(void *context, uint32_t item, uint64_t start, uint64_t count,
                                          float *values, bool *own);
/* The same with a reader in the place of masters. */
kedge_status kedge_model_save_from(const kedge_model *model, kedge_weight_read read, void *context,
                                   const char *folder, kedge_notes *notes);

/* 32 hex digits over all tensors of the source files, in name order, and over the options where they are not
 * transformers' way. ERR_ARGUMENT for a described model. */
kedge_status kedge_model_hash(const kedge_model *model, char hash[33]);

#endif
