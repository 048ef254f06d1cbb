/* SPDX-License-Identifier: Apache-2.0
 *
 * Content hashes: XXH3 with 128 bits as 32 hexadecimal digits (the order of `xxhsum -H2`). They tell whether
 * two things are the same; they are no protection against someone who wants them to collide. */
#ifndef KEDGE_MODELS_CHECKPOINT_HASH_H
#define KEDGE_MODELS_CHECKPOINT_HASH_H

#include "models/checkpoint/checkpoint.h"

enum { KEDGE_HASH_TEXT = 33 }; /* 32 digits and the NUL */

typedef struct kedge_hash kedge_hash;
kedge_hash *kedge_hash_new(void); /* NULL without memory */
void kedge_hash_free(kedge_hash *hash);
void kedge_hash_add(kedge_hash *hash, const void *data, uint64_t bytes);
/* Little-endian words and NUL-ended strings (with their length), so that fields never run into each other. */
void kedge_hash_add_u64(kedge_hash *hash, uint64_t value);
void kedge_hash_add_text(kedge_hash *hash, const char *text);
/* The hash of all that was added so far. */
void kedge_hash_text(const kedge_hash *hash, char text[KEDGE_HASH_TEXT]);

/* Name, dtype, shape and bytes of one tensor, added to `hash`. */
void kedge_hash_add_tensor(kedge_hash *hash, const kedge_st_tensor *tensor);
/* Over all tensors in the order of their names: the same whatever the shards and the order in them. */
kedge_status kedge_hash_checkpoint(const kedge_checkpoint *checkpoint, char text[KEDGE_HASH_TEXT]);
/* Over a file's bytes. */
kedge_status kedge_hash_file(const char *path, char text[KEDGE_HASH_TEXT]);

#endif
