/* SPDX-License-Identifier: Apache-2.0
 *
 * Qwen2-MoE (Qwen1.5-MoE-A2.7B and kin): attention with biases on queries, keys and values, rotate-half rope;
 * softmax router, greedy top-k, weights normalised only if norm_topk_prob; a shared expert weighed by a
 * sigmoid of its own.
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
    {KEDGE_ROLE_Q_BIAS, "model.layers.{l}.self_attn.q_proj.bias"},
    {KEDGE_ROLE_K, "model.layers.{l}.self_attn.k_proj.weight"},
    {KEDGE_ROLE_K_BIAS, "model.layers.{l}.self_attn.k_proj.bias"},
    {KEDGE_ROLE_V, "model.layers.{l}.self_attn.v_proj.weight"},
    {KEDGE_ROLE_V_BIAS, "model.layers.{l}.self_attn.v_proj.bias"},
    {KEDGE_ROLE_O, "model.layers.{l}.self_attn.o_proj.weight"},
    {KEDGE_ROLE_POST_NORM, "model.layers.{l}.post_attention_layernorm.weight"},
    {KEDGE_ROLE_MLP_GATE, "model.layers.{l}.mlp.gate_proj.weight"},
    {KEDGE_ROLE_MLP_UP, "model.layers.{l}.mlp.up_proj.weight"},
    {KEDGE_ROLE_MLP_DOWN, "model.layers.{l}.mlp.down_proj.weight"},
    {KEDGE_ROLE_ROUTER, "model.layers.{l}.mlp.gate.weight"},
    {KEDGE_ROLE_EXPERT_GATE, "model.layers.{l}.mlp.experts.{e}.gate_proj.weight"},
    {KEDGE_ROLE_EXPERT_UP, "model.layers.{l}.mlp.experts.{e}.up_proj.weight"},
    {KEDGE_ROLE_EXPERT_DOWN, "model.layers.{l}.mlp.experts.{e}.down_proj.weight"},
    {KEDGE_ROLE_SHARED_GATE, "model.layers.{l}.mlp.shared_expert.gate_proj.weight"},
    {KEDGE_ROLE_SHARED_UP, "model.layers.{l}.mlp.shared_expert.up_proj.weight"},
    {KEDGE_ROLE_SHARED_DOWN, "model.layers.{l}.mlp.shared_expert.down_proj.weight"},
    {KEDGE_ROLE_SHARED_ROUTER, "model.layers.{l}.mlp.shared_expert_gate.weight"},
};

static kedge_status options(const kedge_hf_config *config, kedge_family_options *o) {
  *o = (kedge_family_options){
      .attention_scale = 1.0 / sqrt((double)config->head_dim),
      .shared_width = config->shared_expert_intermediate_size,
      .shared_gated = true,
      .score_kind = KEDGE_SCORE_SOFTMAX,
      .gate_normalise = config->norm_topk_prob,
      .gate_alpha = 1.0,
  };
  return KEDGE_OK;
}

const kedge_family kedge__family_qwen2_moe = {
    .model_type = "qwen2_moe",
    .architecture = "Qwen2MoeForCausalLM",
    .names = names,
    .name_count = sizeof names / sizeof *names,
    .other_names = kedge__fused_experts,
    .other_count = KEDGE_FUSED_EXPERTS,
    .ignored = kedge__stale_tensors,
    .options = options,
};
