/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums of gradients over ranks while the backward pass still runs: a thread that reduce-scatters one bucket
 * of parameters after another, as soon as all of a bucket are complete. The buckets and their order follow
 * from the parameters alone, the last ones first, as a backward pass completes them; so all ranks make the
 * same exchanges in one order, and the sums have the bits that they have without the thread. It talks over
 * groups of its own, beside which the pass may exchange rows of experts.
 *
 * Where it cannot be, there is none: on one rank, on a device whose memory the host cannot address or that
 * sends it itself, and where the transport does not allow several threads. */
#ifndef KEDGE_MODELS_PARALLEL_OVERLAP_H
#define KEDGE_MODELS_PARALLEL_OVERLAP_H

#include "core/comm.h"

typedef struct kedge_overlap kedge_overlap;

/* A gradient that is summed: its parameter's number, its buffer of f32, and the ranks that sum it. */
typedef struct kedge_overlap_item {
  uint32_t param;
  kedge_buffer *gradient;
  kedge_ranks ranks;
} kedge_overlap_item;

/* `items` in the order of the parameters, copied; buffers are borrowed; NULL: there was no memory
 * for them. All ranks call this. *overlap is NULL
 * where there can be none. */
kedge_status kedge_overlap_new(kedge_device *device, const kedge_overlap_item *items, uint32_t count,
                               kedge_overlap **overlap);
/* Bytes that it takes beside the tensors; 0 without memory to find out. */
uint64_t kedge_overlap_bytes(kedge_comm *comm, const kedge_overlap_item *items, uint32_t count);
/* Ends the thread; NULL is allowed. Sums that were begun are waited for, unless the ranks are broken. */
void kedge_overlap_free(kedge_overlap *overlap);

/* An update whose gradients are to be handed over begins. */
void kedge_overlap_begin(kedge_overlap *overlap);
/* The gradient of a parameter is complete; those that are no item are passed over. */
void kedge_overlap_complete(kedge_overlap *overlap, uint32_t param);
/* Whether all of them are since the beginning. */
bool kedge_overlap_whole(const kedge_overlap *overlap);
/* Hands over what is left, whatever it holds, so that the other ranks do not wait for it: after a failure. */
void kedge_overlap_give_up(kedge_overlap *overlap);
/* Waits until all that was handed over is summed. */
kedge_status kedge_overlap_wait(kedge_overlap *overlap);

typedef struct kedge_overlap_times {
  uint64_t buckets, updates;
  uint64_t early; /* buckets that were handed over before the last gradient was complete */
  double summing,
      waiting;    /* seconds that the thread worked, and that it was waited for: the rest was hidden */
  uint64_t bytes; /* of memory beside the tensors */
} kedge_overlap_times;
kedge_overlap_times kedge_overlap_measure(const kedge_overlap *overlap);

#endif
