/* SPDX-License-Identifier: Apache-2.0
 *
 * A probe: the routing that a post-trained model kept of its base, over all tokens and over questions and
 * answers alone, from two routing traces (trace.h); and its report as JSON. `kedge probe` is in
 * tools/probe.c.
 */
#ifndef KEDGE_MODELS_ROUTING_PROBE_H
#define KEDGE_MODELS_ROUTING_PROBE_H

#include "models/routing/retention.h"

typedef struct kedge_probe {
  kedge_retention all, question, answer;
  uint32_t experts, topk, samples;
  char base[33], post[33], tokenizer[33], data[33]; /* content hashes, "" where not known */
} kedge_probe;

/* ERR_MISMATCH, naming both values, unless two model directories have the same family, layers, MoE layers,
 * experts, experts a token and hidden size, and their tokenizers give the same ids. Reads no weights. */
kedge_status kedge_probe_check(const char *base, const char *post);

/* Compares two traces of the same tokens; errors as kedge_retention_compare. The probe is the caller's to
 * destroy. */
kedge_status kedge_probe_compare(const kedge_trace *base, const kedge_trace *post, kedge_probe *probe);
void kedge_probe_destroy(kedge_probe *probe);

/* The report as one JSON object in new memory, owned by the caller. Numbers are finite; what is undefined (a
 * span without tokens) is null. Keys, at the top for all tokens and again under spans.question and
 * spans.answer:
 *
 *   tokens, topk_overlap_mean, top1_agreement_mean, tvd_mean, jsd_nats_mean, jsd_bits_mean,
 *   load_max_mean_base, load_max_mean_post     means over layers
 *   dead_experts_base, dead_experts_post       sums over layers
 *   boundary_ties                              choices that hung on the rule of ties, null if not known
 *   layers_skipped, padding_rows
 *
 * and once: samples, moe_layers, num_experts, top_k, base_hash, post_hash, tokenizer_hash, data_hash. With
 * `layers` also a list "layers" of {layer, tokens, topk_overlap, top1_agreement, tvd, jsd_nats, jsd_bits,
 * load_max_mean_base, load_max_mean_post, dead_experts_base, dead_experts_post, boundary_ties}. */
kedge_status kedge_probe_json(const kedge_probe *probe, bool layers, char **text);

#endif
