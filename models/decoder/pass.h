/* SPDX-License-Identifier: Apache-2.0
 *
 * Executions by bucket. A batch is one flat stream whose length is rounded up to a bucket; each bucket's
 * graph is built and planned once and kept. All buckets share one workspace.
 */
#ifndef KEDGE_MODELS_DECODER_PASS_H
#define KEDGE_MODELS_DECODER_PASS_H

#include "models/decoder/decoder.h"

/* Contents of an intervention's inputs (kedge_router_feed); what its graph does not read may be NULL. */
typedef struct kedge_feed_data {
  const void *table;
  const int32_t *index;
  const float *weights;
} kedge_feed_data;

/* One bucket: its graph, planned on the model's device. */
typedef struct kedge_pass {
  uint32_t tokens, prior_rows, expert_rows, interventions;
  bool part; /* for tokens of a part of the ranks, with the interventions that are meant for it */
  kedge_decoder decoder;
  kedge_exec *exec;
} kedge_pass;

/* Called after a decoder is built and before it is planned: appends what else the graph should do
 * (gradients). */
typedef kedge_status (*kedge_pass_extend)(void *context, kedge_decoder *decoder);

/* Called while a pass runs: the gradient of a parameter is in its accumulator (kedge_decoder.complete). */
typedef void (*kedge_pass_complete)(void *context, uint32_t param);

/* Called by all ranks before tokens are run in parts (kedge_passes_run): finds what a part cannot see. */
typedef kedge_status (*kedge_pass_split)(void *context);

typedef struct kedge_passes {
  const kedge_model *model;
  kedge_decoder_spec spec; /* template; tokens and prior_rows are filled in */
  kedge_pass_extend extend;
  void *context;
  bool profile;               /* set before the first pass: every execution times its ops */
  kedge_workspace *workspace; /* shared, borrowed */
  kedge_pass **items;
  uint32_t count;
  const kedge_intervention *part_interventions; /* as many as the spec has; NULL: the spec's own */
  kedge_pass_split split;                       /* NULL: nothing to be found; its context is split_context */
  void *split_context;
  kedge_pass_complete complete; /* NULL: nobody asks; not called for tokens that are run in parts */
  void *complete_context;
  uint64_t splits; /* calls of kedge_passes_run whose tokens did not fit at once */
  int32_t *idle;   /* [2, idle_tokens] inputs of a rank that has to wait: -1, then 0 */
  uint32_t idle_tokens;
  kedge_feed_data *idle_feeds;
} kedge_passes;

/* `extend` may be NULL. The model and workspace are borrowed. */
void kedge_passes_init(kedge_passes *passes, const kedge_model *model, const kedge_decoder_spec *spec,
                       kedge_workspace *workspace, kedge_pass_extend extend, void *context);
void kedge_passes_destroy(kedge_passes *passes);

/* The bucket for exactly `tokens` and `prior_rows` (both already rounded), built on first use. Borrowed. */
kedge_status kedge_passes_get(kedge_passes *passes, uint32_t tokens, uint32_t prior_rows, kedge_pass **pass);

/* Token inputs of a run: arrays of the bucket's T entries; labels and weights for graphs with a loss, feeds
 * for graphs with interventions, one each. */
typedef struct kedge_tokens {
  const int32_t *ids, *positions, *segments, *labels;
  const float *weights;
  const kedge_feed_data *feeds;
} kedge_tokens;

/* Writes the inputs that the bucket's graph has and runs it whole. */
kedge_status kedge_pass_run(kedge_pass *pass, const kedge_tokens *tokens);

/* Called when the pass that ran this rank's own tokens has ended. */
typedef void (*kedge_pass_read)(void *context, const kedge_pass *pass);

/* Gets the bucket, runs it and has it read, once. Where ranks share experts, all of them call this together,
 * and the room for rows is that of the longest stream among them. If a rank gets more rows, all of them learn
 * so from the exchanged counts, before anything is changed, and run the tokens of one half of every group
 * first, then those of the other, and so on by halves; whoever waits runs padding. One rank's tokens always
 * have room, so that memory is never more than planned, and no token is ever dropped. */
kedge_status kedge_passes_run(kedge_passes *passes, uint32_t tokens, uint32_t prior_rows,
                              const kedge_tokens *data, kedge_pass_read read, void *context);

#endif
