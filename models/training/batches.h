/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches: the order in which a dataset is walked, and its samples as flat streams of tokens.
 *
 * A run walks one endless stream of rows (a row is a sample, or with packing a bin of samples): every epoch a
 * new seeded permutation. A micro-batch is the next batch_size rows, an update the next `accumulation`
 * micro-batches; both run on across epoch ends, so that only a run's last update may be short. The place in
 * the stream is therefore one number, the update.
 *
 * Of several ranks each sees its own rows of every micro-batch, neighbours in the stream, as many as the
 * others or one fewer; of a short one maybe none. What an update sums up is of all ranks: everyone knows the
 * whole dataset.
 */
#ifndef KEDGE_MODELS_TRAINING_BATCHES_H
#define KEDGE_MODELS_TRAINING_BATCHES_H

#include "models/text/packing.h"
#include "models/text/samples.h"

typedef struct kedge_batches kedge_batches;

typedef struct kedge_batches_options {
  uint32_t batch_size;   /* rows a micro-batch and rank, at least 1 */
  uint32_t accumulation; /* micro-batches an update, at least 1 */
  uint32_t ranks, rank;  /* a micro-batch has batch_size rows a rank, of which this one sees its own; 0: 1 */
  bool packing; /* rows are bins of up to max_length tokens (best-fit decreasing); needs max_length */
  uint32_t max_length;
  bool shuffle; /* a new order of rows each epoch, from seed and epoch; else file order */
  uint64_t seed;
  double epochs;        /* passes over the data, fractions allowed; used where max_updates is 0 */
  uint64_t max_updates; /* over 0: length of the run in updates, whatever the epochs */
} kedge_batches_options;

/* An update: its sums over all micro-batches are known before the first one runs. */
typedef struct kedge_update {
  uint64_t index;         /* from 0 */
  uint32_t micro_batches; /* 0: the run is over. Less than `accumulation` only in a run's last update */
  uint32_t ranks;         /* that share each of them; 0: 1 */
  uint64_t rows, samples;
  uint64_t tokens;         /* real tokens, padding not counted */
  uint64_t supervised;     /* labelled tokens: the divisor of the task loss */
  uint64_t answer;         /* tokens of answer spans */
  uint64_t answered;       /* samples that have such tokens */
  uint32_t longest_stream; /* largest `size` of its micro-batches */
  double epoch;            /* passes over the data done when this update ends */
} kedge_update;

/* A micro-batch as a flat stream of T = size tokens, samples one after another, then padding. Memory belongs
 * to the batches object and holds until the next call with it. */
typedef struct kedge_micro_batch {
  uint32_t size;    /* T = kedge_bucket(tokens) */
  uint32_t tokens;  /* real ones; the rest is padding */
  uint32_t samples; /* S */
  uint32_t supervised, answer;
  const int32_t *ids_T;       /* 0 in padding */
  const int32_t *positions_T; /* from 0 in each sample; 0 in padding */
  const int32_t *segments_T;  /* index of the first token of the token's sample; -1 in padding */
  const int32_t *labels_T;    /* the next token of the sample where that is a target of the loss, else -1 */
  const int32_t *spans_T;     /* 2 * local sample + span (0 question, 1 answer); -1 in padding */
  const float *weights_T;     /* 1 / supervised tokens of the whole update where labelled, else 0 */
  const uint32_t
      *samples_S; /* index in the dataset of each local sample; one may stand twice across an epoch end */
} kedge_micro_batch;

/* `dataset` is borrowed and must outlive the batches. Errors: ERR_ARGUMENT for sizes of 0 and a stream of
 * over 2^31-1 tokens. Starts at update 0. Owned by the caller. */
kedge_status kedge_batches_new(const kedge_dataset *dataset, const kedge_batches_options *options,
                               kedge_batches **batches);
/* For evaluation: one pass in file order, an update a micro-batch; a packed row is never used. */
kedge_status kedge_batches_new_eval(const kedge_dataset *dataset, uint32_t batch_size,
                                    kedge_batches **batches);
void kedge_batches_free(kedge_batches *batches);

uint64_t kedge_batches_updates(const kedge_batches *batches); /* updates in the whole run */
uint32_t kedge_batches_rows(const kedge_batches *batches);    /* rows in an epoch */
uint32_t
kedge_batches_max_size(const kedge_batches *batches); /* no micro-batch has a larger size: the largest plan */

/* The update that kedge_batches_next() gives next: all that a checkpoint must hold, besides the options. */
uint64_t kedge_batches_cursor(const kedge_batches *batches);
/* Goes to an update (0..updates); what follows equals a walk from the start. ERR_ARGUMENT past the end. */
kedge_status kedge_batches_seek(kedge_batches *batches, uint64_t update);
/* Loads the next update and moves on; micro_batches is 0 when the run is over. */
kedge_status kedge_batches_next(kedge_batches *batches, kedge_update *update);
/* Micro-batch `index` of the update that was loaded last, in any order and as often as wanted. */
kedge_status kedge_batches_micro(kedge_batches *batches, uint32_t index, kedge_micro_batch *micro);

#endif
