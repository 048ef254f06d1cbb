/* SPDX-License-Identifier: Apache-2.0
 *
 * Writer of one safetensors file, by streaming: tensors are declared, then their bytes are asked for piece by
 * piece, so that no tensor is ever held twice. Siblings: safetensors.h reads, save.h writes a model in the
 * layout of another. */
#ifndef KEDGE_MODELS_CHECKPOINT_WRITER_H
#define KEDGE_MODELS_CHECKPOINT_WRITER_H

#include "models/checkpoint/safetensors.h"

typedef struct kedge_st_spec {
  const char *name;
  kedge_st_dtype dtype;
  uint32_t rank;
  uint64_t shape[KEDGE_ST_MAX_RANK];
} kedge_st_spec;

typedef struct kedge_st_pair {
  const char *key, *value;
} kedge_st_pair;

/* Fills buffer[0..bytes) with the bytes from `offset` on of tensor `index`. Pieces come in order, tensor by
 * tensor; a piece holds whole elements. */
typedef kedge_status (*kedge_st_fill)(void *context, uint32_t index, uint64_t offset, void *buffer,
                                      uint64_t bytes);

/* Largest piece asked for at once, bytes. */
enum { KEDGE_ST_PIECE = 1 << 22 };

/* Writes `path` atomically: tensors in the order given, `__metadata__` {"format":"pt"} and then `extra` (a
 * pair with the key "format" replaces the "pt"), header padded by spaces so that the data begin at a multiple
 * of 8. Errors: ERR_ARGUMENT (a name twice, not UTF-8, or "__metadata__"; a rank, dtype or size out of
 * range), ERR_IO, ERR_MEMORY, or what `fill` returns. */
kedge_status kedge_st_write(const char *path, const kedge_st_spec *specs, uint32_t count,
                            const kedge_st_pair *extra, uint32_t extra_count, kedge_st_fill fill,
                            void *context);

/* The bytes before the data of such a file: length word and header. *bytes is new memory, owned by the
 * caller. `path` is for messages alone. */
kedge_status kedge_st_header_make(const char *path, const kedge_st_spec *specs, uint32_t count,
                                  const kedge_st_pair *extra, uint32_t extra_count, void **bytes,
                                  uint64_t *length);

/* Bytes of the data of a spec; false on overflow, a bad dtype or rank. */
bool kedge_st_spec_bytes(const kedge_st_spec *spec, uint64_t *bytes);

#endif
