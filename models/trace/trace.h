/* SPDX-License-Identifier: Apache-2.0
 *
 * Routing trace: which experts a model chose for each token of a dataset, in memory and as a safetensors file
 * that any tool can write. trace.c checks, trace_collect.c runs a model, trace_file.c reads and writes,
 * near_ties.h finds choices that rounding decides, trace_import.h reads other tools' files; retention.h
 * compares two traces.
 *
 * File: ids i32 [tokens, layers, k]; optional weights f32 [tokens, layers, k], logits f32 [tokens, layers,
 * experts], ties u8 [tokens, layers], tied u8 [tokens, layers, ceil(experts / 8)], gap f32
 * [tokens, layers], next i32 [tokens, layers], sample i32 [tokens], span i32 [tokens] (0 question, 1 answer,
 * -1 none), layers i32 [layers]; metadata num_experts, and optional model_hash, tokenizer_hash, data_hash.
 */
#ifndef KEDGE_MODELS_ROUTING_TRACE_H
#define KEDGE_MODELS_ROUTING_TRACE_H

#include "models/decoder/model.h"
#include "models/text/samples.h"

#include <float.h>

/* Rows are [token][layer]. A row of ids holds k distinct experts, best first, or -1 in every place: padding,
 * which is marked so and counts nowhere. Memory: 4 k bytes a row for ids, 4 k for weights, 4 experts for
 * logits, 1 for ties; a trace of 5,000 tokens, 48 layers and top-8 takes 7.7 MB, its logits of 128 experts
 * 123 MB more. */
typedef struct kedge_trace {
  uint32_t tokens, layers, experts, topk;
  int32_t *ids;     /* [tokens, layers, topk] */
  float *weights;   /* [tokens, layers, topk] gate weights; NULL: not kept */
  float *logits;    /* [tokens, layers, experts] raw router logits; NULL: not kept */
  uint8_t *ties;    /* [tokens, layers] 1: the last chosen and the first left out scored the same; NULL:
                       not known */
  uint8_t *tied;    /* [tokens, layers, ceil(experts / 8)] where ties has 1: bit e % 8 of byte e / 8 for
                       each expert that scored as the last chosen; NULL: no tie, or not known */
  float *gaps;      /* [tokens, layers] by how much the last chosen scored more than the best left out, in
                       what the router ranks: logits under softmax, else scores with the selection bias;
                       KEDGE_TRACE_GAP_MOST where none could be chosen instead; NULL: not kept */
  int32_t *nexts;   /* [tokens, layers] that best one left out, -1: there is none; NULL: not kept */
  int32_t *samples; /* [tokens] index of the token's sample, ascending */
  int32_t *spans;   /* [tokens] KEDGE_SPAN_* */
  int32_t *layer_numbers;                  /* [layers] number of the layer in the model, dense ones counted */
  char model[33], tokenizer[33], data[33]; /* content hashes, "" where not known */
} kedge_trace;

#define KEDGE_TRACE_GAP_MOST FLT_MAX

typedef struct kedge_trace_options {
  uint32_t batch_size; /* samples a forward pass; 0: 8 */
  uint64_t max_tokens; /* the trace ends after so many tokens, inside a sample if need be; 0: all */
  bool with_weights, with_logits, with_gaps;
  /* Called after each pass; false stops with ERR_INTERRUPTED. May be NULL. */
  bool (*progress)(void *context, uint64_t tokens, uint64_t tokens_total);
  void *context;
} kedge_trace_options;

/* Routes a dataset through a model, without any intervention: the routing that the model has in use. Besides
 * the trace it holds one pass's outputs. `options` may be NULL. model and data hashes are set where the model
 * has files; `tokenizer` is the caller's to set. Errors: ERR_UNSUPPORTED (no MoE layer), ERR_MISMATCH (a
 * token id the model lacks), ERR_NUMERIC naming the layer whose scores are not finite, ERR_INTERRUPTED, those
 * of passes. On success the trace is the caller's to destroy. Ranks of the comm that the model's device has
 * joined share the batches and call this together; all get the trace, with the bits of one rank's. */
kedge_status kedge_trace_collect(const kedge_model *model, const kedge_dataset *dataset,
                                 const kedge_trace_options *options, kedge_trace *trace);
void kedge_trace_destroy(kedge_trace *trace);

/* Allocates a trace of these sizes: ids and spans -1, samples 0, layers numbered from 0. ERR_ARGUMENT for a
 * size of 0, k over the experts or more than 65536 layers or experts. */
kedge_status kedge_trace_init(kedge_trace *trace, uint32_t tokens, uint32_t layers, uint32_t experts,
                              uint32_t topk);
/* ERR_FORMAT naming token and layer unless every row is k distinct experts in range, or all -1; samples
 * ascend; spans are -1, 0 or 1; layer numbers ascend; weights are finite and 0 or more, logits finite; tied
 * experts are more than the row has places for. `name` stands before messages. */
kedge_status kedge_trace_check(const kedge_trace *trace, const char *name);
/* Sets ties and tied of a checked trace from its logits. A trace in which some row is not the k best of its
 * logits (the model chose by other scores) is left as it is. ERR_MEMORY. */
kedge_status kedge_trace_find_ties(kedge_trace *trace);
/* The same for one row: the bits of the experts that score as the worst of ids [k] into tied
 * [ceil(experts / 8)], zeroed before. True if there are more of them than the row has places for. */
bool kedge_trace_mark_ties(const float *logits, uint32_t experts, const int32_t *ids, uint32_t k,
                           uint8_t *tied);
/* Whether a token was routed in a layer (its row is no padding). */
bool kedge_trace_is_routed(const kedge_trace *trace, uint32_t token, uint32_t layer);

/* Writes atomically what the trace has; ERR_IO. */
kedge_status kedge_trace_save(const kedge_trace *trace, const char *path);
/* Reads and checks a file. Memory is taken only after the file's own size covers it. Absent optional tensors
 * are as after kedge_trace_init. Errors: ERR_IO, ERR_FORMAT. The trace is the caller's to destroy. */
kedge_status kedge_trace_load(const char *path, kedge_trace *trace);

#endif
