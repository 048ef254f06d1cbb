/* SPDX-License-Identifier: Apache-2.0
 *
 * Export of a model in the layout of its input: the same shards, names, order, dtypes, headers and index, so
 * that what was not touched comes back bit for bit. A tensor that its own dtype cannot hold any more may get
 * another; then its shard has a new header, and the index the new size. */
#ifndef KEDGE_MODELS_CHECKPOINT_SAVE_H
#define KEDGE_MODELS_CHECKPOINT_SAVE_H

#include "models/checkpoint/checkpoint.h"

/* Fills buffer[0..bytes) with the bytes from `offset` on of `tensor`, in the tensor's own dtype (convert.h
 * helps); whole elements, at most KEDGE_ST_PIECE at once, in order. Setting `*own` makes the file's own bytes
 * stand instead. */
typedef kedge_status (*kedge_save_fetch)(void *context, const kedge_st_tensor *tensor, uint64_t offset,
                                         void *buffer, uint64_t bytes, bool *own);

/* Sets *dtype, which comes in as the tensor's own, to the one that the output should have. The fetch of such
 * a tensor gets it with the new dtype and size. */
typedef kedge_status (*kedge_save_retype)(void *context, const kedge_st_tensor *tensor,
                                          kedge_st_dtype *dtype);

enum { KEDGE_SAVE_COPY_CAP = 64 << 20 }; /* largest side file that is copied, bytes */

/* Writes the model into the existing folder `folder`, normally that of a kedge_directory. `fetch` NULL: an
 * exact copy. `retype` NULL: every tensor keeps its dtype; else it needs a fetch that can convert. A shard
 * with a new dtype has its tensors sorted by element size, so that all are aligned. A model that was opened
 * as a directory takes its other files along (config.json, tokenizer files, ...): every regular file that
 * holds no weights and is not over the cap, also in sub-folders, save hidden ones, checkpoints of a run and
 * what is a model of its own; what is left behind is told in `notes` (may be NULL). The free space is checked
 * first. Errors: ERR_IO, ERR_MEMORY, and what `fetch` and `retype` return. */
kedge_status kedge_checkpoint_save(const kedge_checkpoint *like, const char *folder, kedge_save_fetch fetch,
                                   kedge_save_retype retype, void *context, kedge_notes *notes);

#endif
