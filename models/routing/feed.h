/* SPDX-License-Identifier: Apache-2.0
 *
 * What interventions read from outside the graph, filled on the host for each micro-batch: rows of the prior,
 * choices of a trace, weights of tokens. router.h says what each intervention reads; the frozen base's own
 * values come from reader.h, counts of a global batch from the caller.
 */
#ifndef KEDGE_MODELS_ROUTING_FEED_H
#define KEDGE_MODELS_ROUTING_FEED_H

#include "models/decoder/pass.h"
#include "models/prior/prior.h"
#include "models/trace/trace.h"
#include "models/training/batches.h"

/* Where one intervention's table comes from; borrowed. */
typedef struct kedge_source {
  const kedge_prior *prior;
  const kedge_trace *trace; /* of all tokens of `traced`, in order */
  const kedge_dataset *traced;
} kedge_source;

/* Host memory of all feeds; grown as needed. */
typedef struct kedge_feeds {
  const kedge_params *params;
  const kedge_intervention *interventions;
  const kedge_source *sources;
  uint32_t count;
  kedge_feed_data data[KEDGE_MAX_INTERVENTIONS]; /* for kedge_tokens */
  void *tables[KEDGE_MAX_INTERVENTIONS];
  int32_t *index[KEDGE_MAX_INTERVENTIONS];
  float *weights[KEDGE_MAX_INTERVENTIONS];
  uint64_t table_bytes[KEDGE_MAX_INTERVENTIONS], tokens[KEDGE_MAX_INTERVENTIONS];
  uint64_t *sample_ids; /* of the micro-batch */
  uint32_t sample_capacity;
  kedge_prior_clipped clipped; /* of all tables filled since the caller last set it to 0 */
} kedge_feeds;

/* All is borrowed; `sources` has one entry an intervention. */
void kedge_feeds_init(kedge_feeds *feeds, const kedge_params *params, const kedge_intervention *interventions,
                      const kedge_source *sources, uint32_t count);
void kedge_feeds_destroy(kedge_feeds *feeds);

/* Rows S of the prior's table for a micro-batch of `samples` samples: a power of two, so that few graphs
 * serve all; 0 where no intervention tells samples apart. */
uint32_t kedge_feeds_rows(const kedge_feeds *feeds, uint32_t samples);

/* Fills index, weights and what sources give of the tables for a micro-batch of the update. Tables of the
 * base's logits and choices without a trace, and counts, are sized and keep what the caller writes to
 * kedge_feeds_table(). Errors: those of kedge_prior_fill_bias; ERR_MISMATCH for a sample that the trace does
 * not have; ERR_MEMORY. */
kedge_status kedge_feeds_fill(kedge_feeds *feeds, const kedge_dataset *dataset, const kedge_update *update,
                              const kedge_micro_batch *batch);

/* The table of intervention i as last sized. */
void *kedge_feeds_table(kedge_feeds *feeds, uint32_t i);
/* True if intervention i reads values of the frozen base that no source gives. */
bool kedge_feeds_needs_base(const kedge_feeds *feeds, uint32_t i);

#endif
