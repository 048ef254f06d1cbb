/* SPDX-License-Identifier: Apache-2.0
 *
 * OLMoE: attention with one RMS norm over all query heads and one over all key heads before rotate-half rope,
 * queries, keys and values clamped where clip_qkv is set; softmax router, greedy top-k, weights normalised
 * only if norm_topk_prob; no shared expert, no dense layer.
 */
#include "models/decoder/family.h"

#include "core/args.h"

#include <math.h>

static const kedge_tensor_name names[] = {
    {KEDGE_ROLE_EMBED, "model.embed_tokens.weight"},
    {KEDGE_ROLE_FINAL_NORM, "model.norm.weight"},
    {KEDGE_ROLE_HEAD, "lm_head.weight"},
    {KEDGE_ROLE_INPUT_NORM, "model.layers.{l}.input_layernorm.weight"},
    {KEDGE_ROLE_Q, "model.layers.{l}.self_attn.q_proj.weight"},
    {KEDGE_ROLE_K, "model.layers.{l}.self_attn.k_proj.weight"},
    {KEDGE_ROLE_V, "model.layers.{l}.self_attn.v_proj.weight"},
    {KEDGE_ROLE_O, "model.layers.{l}.self_attn.o_proj.weight"},
    {KEDGE_ROLE_Q_NORM, "model.layers.{l}.self_attn.q_norm.weight"},
    {KEDGE_ROLE_K_NORM, "model.layers.{l}.self_attn.k_norm.weight"},
    {KEDGE_ROLE_POST_NORM, "model.layers.{l}.post_attention_layernorm.weight"},
    {KEDGE_ROLE_ROUTER, "model.layers.{l}.mlp.gate.weight"},
    {KEDGE_ROLE_EXPERT_GATE, "model.layers.{l}.mlp.experts.{e}.gate_proj.weight"},
    {KEDGE_ROLE_EXPERT_UP, "model.layers.{l}.mlp.experts.{e}.up_proj.weight"},
    {KEDGE_ROLE_EXPERT_DOWN, "model.layers.{l}.mlp.experts.{e}.down_proj.weight"},
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
