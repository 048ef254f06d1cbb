/* SPDX-License-Identifier: Apache-2.0
 *
 * A file of known size that is written over a long time and outlives its writer: `<path>.partial` has the
 * final layout, and behind it a journal of how far it is. It becomes `path` when it is whole. Used by
 * prior_compute.c (internal).
 *
 * At every moment there is nothing, a partial that can be continued, or a whole file: the journal has two
 * places that are written in turn, each with a hash, and only after what it speaks of was synced. */
#ifndef KEDGE_MODELS_ROUTING_PARTIAL_H
#define KEDGE_MODELS_ROUTING_PARTIAL_H

#include "core/kedge.h"

typedef struct kedge__partial kedge__partial;

typedef struct kedge__partial_spec {
  const char *path;
  const void *header; /* safetensors header, the first bytes of the file: whose file it is */
  uint64_t header_bytes;
  uint64_t bytes;       /* of the whole file, header included */
  const char *settings; /* what else decides the bits, below 200 bytes: "batch size 8, f32 on cpu" */
  bool restart;         /* throw away what is there */
} kedge__partial_spec;

/* How far it is, in units of the caller. */
typedef struct kedge__partial_place {
  uint64_t done, extra;
} kedge__partial_place;

/* Opens or creates the partial file and locks it. *place is {0} for a new one; *fresh tells that. *whole: all
 * was written, only finish is left. ERR_MISMATCH with the difference if it was begun with another header or
 * settings; ERR_FORMAT if the file is something else; ERR_ARGUMENT while another process writes it; ERR_IO,
 * also where the disk is too small. Owned by the caller. */
kedge_status kedge__partial_open(const kedge__partial_spec *spec, kedge__partial_place *place, bool *fresh,
                                 bool *whole, kedge__partial **partial);
/* Writes at an offset of the file. */
kedge_status kedge__partial_write(kedge__partial *partial, uint64_t offset, const void *data, uint64_t bytes);
/* Syncs, then notes in the journal that all up to `place` is there. */
kedge_status kedge__partial_mark(kedge__partial *partial, kedge__partial_place place);
/* Cuts off the journal, syncs and renames. Frees it whatever happens. */
kedge_status kedge__partial_finish(kedge__partial *partial);
/* Leaves the file as it is and frees; NULL is allowed. */
void kedge__partial_close(kedge__partial *partial);

#endif
