/* SPDX-License-Identifier: Apache-2.0
 *
 * Random models: a model directory's weights from a config and a seed. Siblings: parameters.h names the
 * tensors, model.h loads what is written here.
 */
#ifndef KEDGE_MODELS_DECODER_INITIALISE_H
#define KEDGE_MODELS_DECODER_INITIALISE_H

#include "models/checkpoint/safetensors.h"
#include "models/decoder/parameters.h"

#define KEDGE_SHARD_BYTES 5000000000u /* largest shard that transformers writes, bytes of tensors */

typedef struct kedge_initialise_options {
  uint64_t seed;
  kedge_st_dtype dtype; /* of the files: F32, BF16 or F16 */
  uint64_t shard_bytes; /* a shard is closed before it grows over this; 0: KEDGE_SHARD_BYTES */
  /* Called as pieces are written, in bytes of tensors; false stops with ERR_INTERRUPTED. May be NULL. */
  bool (*progress)(void *context, uint64_t done, uint64_t total);
  void *context;
} kedge_initialise_options;

/* Elements [first, first + count) of the tensor `name` as f32: normal, mean 0, standard deviation
 * `deviation`. An element depends on seed, name and its index alone, so that any piece of any tensor can be
 * made by itself.
 */
void kedge_initialise_normal(uint64_t seed, const char *name, double deviation, uint64_t first,
                             uint64_t count, float *values);

/* Bytes of all tensors in files of `dtype`. */
uint64_t kedge_initialise_bytes(const kedge_params *params, kedge_st_dtype dtype);

/* Writes every tensor of the model into the existing folder `folder`: matrices normal with the config's
 * initializer_range, norms 1, biases 0. One model.safetensors, or, where that would be over shard_bytes,
 * model-0000N-of-0000M.safetensors and the index. Values are made piece by piece, never a whole tensor in
 * memory. Errors: ERR_IO (also without space), ERR_MEMORY, ERR_ARGUMENT (a dtype), ERR_INTERRUPTED. */
kedge_status kedge_initialise_weights(const kedge_params *params, const kedge_initialise_options *options,
                                      const char *folder);

/* Writes config.json and generation_config.json into `folder`. config.json is the text `config`
 * [bytes] itself unless something must change: the family's architecture is added where none is named, the
 * dtype where it is absent or another one. `generation` [generation_bytes] is copied; NULL: made of the
 * config's special tokens. Errors: ERR_FORMAT (not a JSON object), ERR_IO, ERR_MEMORY. */
kedge_status kedge_initialise_configs(const kedge_params *params, kedge_st_dtype dtype, const char *config,
                                      size_t bytes, const char *generation, size_t generation_bytes,
                                      const char *folder);

#endif
