/* SPDX-License-Identifier: Apache-2.0
 *
 * Executions by bucket. A batch is one flat stream whose length is rounded up to a bucket; each bucket's
 * graph is built and planned once and kept. All buckets share one workspace.
 */
#ifndef KEDGE_MODELS_DECODER_PASS_H
#define KEDGE_MODELS_DECODER_PASS_H

#include "models/decoder/decoder.h"

/* One bucket: its graph, planned on the model's device. */
typedef struct kedge_pass {
  uint32_t tokens, prior_rows, expert_rows, interventions;
  kedge_decoder decoder;
  kedge_exec *exec;
} kedge_pass;

/* Called after a decoder is built and before it is planned: appends what else the graph should do
 * (gradients). */
typedef kedge_status (*kedge_pass_extend)(void *context, kedge_decoder *decoder);

typedef struct kedge_passes {
  const kedge_model *model;
  kedge_decoder_spec spec; /* template; tokens and prior_rows are filled in */
  kedge_pass_extend extend;
  void *context;
  bool profile;               /* set before the first pass: every execution times its ops */
  kedge_workspace *workspace; /* shared, borrowed */
  kedge_pass **items;
  uint32_t count;
  uint32_t least_rows; /* of shared experts, that there must be room for; grows as they are needed */
} kedge_passes;

/* `extend` may be NULL. The model and workspace are borrowed. */
void kedge_passes_init(kedge_passes *passes, const kedge_model *model, const kedge_decoder_spec *spec,
                       kedge_workspace *workspace, kedge_pass_extend extend, void *context);
void kedge_passes_destroy(kedge_passes *passes);

/* The bucket for exactly `tokens` and `prior_rows` (both already rounded), built on first use. Borrowed. */
kedge_status kedge_passes_get(kedge_passes *passes, uint32_t tokens, uint32_t prior_rows, kedge_pass **pass);

/* Contents of an intervention's inputs (kedge_router_feed); what its graph does not read may be NULL. */
typedef struct kedge_feed_data {
  const void *table;
  const int32_t *index;
  const float *weights;
} kedge_feed_data;

/* Token inputs of a run: arrays of the bucket's T entries; labels and weights for graphs with a loss, feeds
 * for graphs with interventions, one each. */
typedef struct kedge_tokens {
  const int32_t *ids, *positions, *segments, *labels;
  const float *weights;
  const kedge_feed_data *feeds;
} kedge_tokens;

/* Writes the inputs that the bucket's graph has and runs it whole. */
kedge_status kedge_pass_run(kedge_pass *pass, const kedge_tokens *tokens);

/* Gets the bucket and runs it. Where ranks share experts and one of them gets more rows than it has room for,
 * all of them learn so from the exchanged counts, before anything is changed, and run again with more room:
 * no token is ever dropped. */
kedge_status kedge_passes_run(kedge_passes *passes, uint32_t tokens, uint32_t prior_rows,
                              const kedge_tokens *data, kedge_pass **pass);

#endif
