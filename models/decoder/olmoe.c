/* SPDX-License-Identifier: Apache-2.0
 *
 * OLMoE: attention with one RMS norm over all query heads and one over all key heads before rotate-half rope,
 * queries, keys and values clamped where clip_qkv is set; softmax router, greedy top-k, weights normalised
 * only if norm_topk_prob; no shared expert, no dense layer.
 */
#include "models/decoder/names.h"

#include "core/args.h"

#include <math.h>

static const kedge_tensor_name names[] = {
    KEDGE_NAMES_STACK,
    KEDGE_NAMES_KV,
    KEDGE_NAMES_QK_NORM,
    KEDGE_NAMES_EXPERTS,
};

static kedge_status options(const kedge_hf_config *config, kedge_family_options *o) {
  *o = (kedge_family_options){
      .qk_norm = KEDGE_QK_NORM_FULL,
      .clip_qkv = config->has_clip_qkv ? config->clip_qkv : 0,
      .attention_scale = 1.0 / sqrt((double)config->head_dim),
      .score_kind = KEDGE_SCORE_SOFTMAX,
      .gate_normalise = config->norm_topk_prob,
      .gate_alpha = 1.0,
  };
  return KEDGE_OK;
}

const kedge_family kedge__family_olmoe = {
    .model_type = "olmoe",
    .architecture = "OlmoeForCausalLM",
    .names = names,
    .name_count = sizeof names / sizeof *names,
    .other_names = kedge__fused_experts,
    .other_count = KEDGE_FUSED_EXPERTS,
    .ignored = kedge__stale_tensors,
    .options = options,
};
