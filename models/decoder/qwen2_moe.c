/* SPDX-License-Identifier: Apache-2.0
 *
 * Qwen2-MoE (Qwen1.5-MoE-A2.7B and kin): attention with biases on queries, keys and values, rotate-half rope;
 * softmax router, greedy top-k, weights normalised only if norm_topk_prob; a shared expert weighed by a
 * sigmoid of its own.
 */
#include "models/decoder/names.h"

#include "core/args.h"

#include <math.h>

static const kedge_tensor_name names[] = {
    KEDGE_NAMES_STACK,
    KEDGE_NAMES_KV,
    KEDGE_NAMES_MLP,
    KEDGE_NAMES_EXPERTS,
    KEDGE_NAMES_SHARED("shared_expert"),
    {KEDGE_ROLE_Q_BIAS, "model.layers.{l}.self_attn.q_proj.bias"},
    {KEDGE_ROLE_K_BIAS, "model.layers.{l}.self_attn.k_proj.bias"},
    {KEDGE_ROLE_V_BIAS, "model.layers.{l}.self_attn.v_proj.bias"},
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
