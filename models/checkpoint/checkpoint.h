/* SPDX-License-Identifier: Apache-2.0
 *
 * The weights of a model directory as one set of named tensors, whatever files they lie in. Siblings:
 * safetensors.h is one file, save.h writes a model in the layout of its input, hash.h identifies the
 * contents, hf_config.h reads config.json. */
#ifndef KEDGE_MODELS_CHECKPOINT_CHECKPOINT_H
#define KEDGE_MODELS_CHECKPOINT_CHECKPOINT_H

#include "models/checkpoint/notes.h"
#include "models/checkpoint/safetensors.h"

#define KEDGE_CHECKPOINT_INDEX  "model.safetensors.index.json"
#define KEDGE_CHECKPOINT_SINGLE "model.safetensors"
enum { KEDGE_CHECKPOINT_INDEX_CAP = 100000000 }; /* largest index that is read, bytes */

typedef struct kedge_checkpoint kedge_checkpoint;

/* Opens a model directory (by its index, or else by its one model.safetensors) or one .safetensors file.
 * Shard names come from the index alone. Errors name the index, the shard and the tensor: a shard that is
 * missing (ERR_IO), a tensor that is not in the shard the index names, a name in two shards, a shard name
 * with a folder in it (ERR_FORMAT), and those of kedge_st_open. Notes: .safetensors files that the index does
 * not name (ignored); tensors of a shard that the index omits (they belong to the checkpoint all the same); a
 * total_size that is not the sum. */
kedge_status kedge_checkpoint_open(const char *path, kedge_checkpoint **checkpoint);
void kedge_checkpoint_close(kedge_checkpoint *checkpoint);

const char *kedge_checkpoint_path(const kedge_checkpoint *checkpoint); /* as it was opened */
/* The model directory; NULL when a single file was opened. */
const char *kedge_checkpoint_directory(const kedge_checkpoint *checkpoint);
const kedge_notes *kedge_checkpoint_notes(const kedge_checkpoint *checkpoint);

/* Tensors shard by shard, in the order of their data; and in the order of their names. index < count. */
uint32_t kedge_checkpoint_count(const kedge_checkpoint *checkpoint);
const kedge_st_tensor *kedge_checkpoint_at(const kedge_checkpoint *checkpoint, uint32_t index);
const kedge_st_tensor *kedge_checkpoint_by_name(const kedge_checkpoint *checkpoint, uint32_t index);
uint64_t kedge_checkpoint_bytes(const kedge_checkpoint *checkpoint); /* of all tensors */

/* The tensor of that name, or NULL. O(log count). */
const kedge_st_tensor *kedge_checkpoint_find(const kedge_checkpoint *checkpoint, const char *name);
/* The same; ERR_MISMATCH naming checkpoint and tensor when there is none. */
kedge_status kedge_checkpoint_require(const kedge_checkpoint *checkpoint, const char *name,
                                      const kedge_st_tensor **tensor);

/* Shards in the order of their names. */
uint32_t kedge_checkpoint_shard_count(const kedge_checkpoint *checkpoint);
const kedge_st_file *kedge_checkpoint_shard(const kedge_checkpoint *checkpoint, uint32_t index);
const char *kedge_checkpoint_shard_name(const kedge_checkpoint *checkpoint,
                                        uint32_t index); /* file name, no folder */
/* File name of the shard that holds a tensor of this checkpoint. */
const char *kedge_checkpoint_shard_of(const kedge_checkpoint *checkpoint, const kedge_st_tensor *tensor);
/* Whether there is an index file. */
bool kedge_checkpoint_has_index(const kedge_checkpoint *checkpoint);

#endif
