/* SPDX-License-Identifier: Apache-2.0
 *
 * DeepSeek-V3 (Moonlight-16B-A3B and kin): latent attention, with or without a latent for queries; the first
 * layers are dense; sigmoid router whose choice adds a correction bias and keeps to the best groups of
 * experts, ranked by their two best; weights from the scores without the bias; shared experts are one wide
 * MLP. The latent norms use epsilon 1e-6, whatever rms_norm_eps says, as transformers does.
 */
#include "models/decoder/family.h"

#include "core/args.h"
#include "models/decoder/rope.h"

#include <math.h>

static const kedge_tensor_name names[] = {
    {KEDGE_ROLE_EMBED, "model.embed_tokens.weight"},
    {KEDGE_ROLE_FINAL_NORM, "model.norm.weight"},
    {KEDGE_ROLE_HEAD, "lm_head.weight"},
    {KEDGE_ROLE_INPUT_NORM, "model.layers.{l}.input_layernorm.weight"},
    {KEDGE_ROLE_Q, "model.layers.{l}.self_attn.q_proj.weight"},
    {KEDGE_ROLE_Q_A, "model.layers.{l}.self_attn.q_a_proj.weight"},
    {KEDGE_ROLE_Q_A_NORM, "model.layers.{l}.self_attn.q_a_layernorm.weight"},
    {KEDGE_ROLE_Q_B, "model.layers.{l}.self_attn.q_b_proj.weight"},
    {KEDGE_ROLE_KV_A, "model.layers.{l}.self_attn.kv_a_proj_with_mqa.weight"},
    {KEDGE_ROLE_KV_A_NORM, "model.layers.{l}.self_attn.kv_a_layernorm.weight"},
    {KEDGE_ROLE_KV_B, "model.layers.{l}.self_attn.kv_b_proj.weight"},
    {KEDGE_ROLE_O, "model.layers.{l}.self_attn.o_proj.weight"},
    {KEDGE_ROLE_POST_NORM, "model.layers.{l}.post_attention_layernorm.weight"},
    {KEDGE_ROLE_MLP_GATE, "model.layers.{l}.mlp.gate_proj.weight"},
    {KEDGE_ROLE_MLP_UP, "model.layers.{l}.mlp.up_proj.weight"},
    {KEDGE_ROLE_MLP_DOWN, "model.layers.{l}.mlp.down_proj.weight"},
    {KEDGE_ROLE_ROUTER, "model.layers.{l}.mlp.gate.weight"},
    {KEDGE_ROLE_ROUTER_CORRECTION, "model.layers.{l}.mlp.gate.e_score_correction_bias"},
    {KEDGE_ROLE_EXPERT_GATE, "model.layers.{l}.mlp.experts.{e}.gate_proj.weight"},
    {KEDGE_ROLE_EXPERT_UP, "model.layers.{l}.mlp.experts.{e}.up_proj.weight"},
    {KEDGE_ROLE_EXPERT_DOWN, "model.layers.{l}.mlp.experts.{e}.down_proj.weight"},
    {KEDGE_ROLE_SHARED_GATE, "model.layers.{l}.mlp.shared_experts.gate_proj.weight"},
    {KEDGE_ROLE_SHARED_UP, "model.layers.{l}.mlp.shared_experts.up_proj.weight"},
    {KEDGE_ROLE_SHARED_DOWN, "model.layers.{l}.mlp.shared_experts.down_proj.weight"},
};

static kedge_status options(const kedge_hf_config *config, kedge_family_options *o) {
  if (!config->kv_lora_rank)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED,
                      "config.json: key \"kv_lora_rank\": expected a rank, got nothing");
  if (config->num_key_value_heads != config->num_attention_heads)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED,
                      "config.json: key \"num_key_value_heads\": expected num_attention_heads %u, got %u",
                      config->num_attention_heads, config->num_key_value_heads);
  *o = (kedge_family_options){
      .rope_interleaved = config->rope_interleave,
      .attention_scale = kedge_rope_score_scale(&config->rope) / sqrt((double)config->head_dim),
      .latent_norm_eps = 1e-6,
      .shared_width = config->n_shared_experts * config->moe_intermediate_size,
      .correction = true,
      .score_kind = KEDGE_SCORE_SIGMOID,
      .group_kind = KEDGE_GROUP_TWO,
      .groups = config->n_group,
      .topk_groups = config->topk_group,
      .gate_normalise = config->norm_topk_prob,
      .gate_alpha = config->routed_scaling_factor,
      .gate_epsilon = 1e-20,
  };
  return KEDGE_OK;
}

const kedge_family kedge__family_deepseek_v3 = {
    .model_type = "deepseek_v3",
    .architecture = "DeepseekV3ForCausalLM",
    .names = names,
    .name_count = sizeof names / sizeof *names,
    .other_names = kedge__fused_experts,
    .other_count = KEDGE_FUSED_EXPERTS,
    .ignored = kedge__stale_tensors,
    .options = options,
};
