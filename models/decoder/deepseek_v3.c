/* SPDX-License-Identifier: Apache-2.0
 *
 * DeepSeek-V3 (Moonlight-16B-A3B and kin): latent attention, with or without a latent for queries; the first
 * layers are dense; sigmoid router whose choice adds a correction bias and keeps to the best groups of
 * experts, ranked by their two best; weights from the scores without the bias; shared experts are one wide
 * MLP. The latent norms use epsilon 1e-6, whatever rms_norm_eps says, as transformers does. With the option
 * norm_topk_prob=remote the weight of a single expert a token is not divided by itself, as in DeepSeek's own
 * code.
 */
#include "models/decoder/names.h"

#include "core/args.h"
#include "models/decoder/rope.h"

#include <math.h>

static const kedge_tensor_name names[] = {
    KEDGE_NAMES_STACK,
    KEDGE_NAMES_LATENT,
    KEDGE_NAMES_MLP,
    KEDGE_NAMES_EXPERTS,
    KEDGE_NAMES_SHARED("shared_experts"),
    {KEDGE_ROLE_ROUTER_CORRECTION, "model.layers.{l}.mlp.gate.e_score_correction_bias"},
};

static kedge_status options(const kedge_hf_config *config, kedge_family_options *o) {
  KEDGE_TRY(kedge__check_latent(config));
  if (config->n_group > 1 &&
      config->num_experts / config->n_group < 2) /* A group's score is that of its two best. */
    return kedge_fail(
        KEDGE_ERR_UNSUPPORTED,
        "config.json: key \"n_group\": expected groups of 2 or more of the %u experts, got %u groups",
        config->num_experts, config->n_group);
  const bool remote = config->options & KEDGE_OPTION_NORM_TOPK_PROB;
  *o = (kedge_family_options){
      .rope_interleaved = config->rope_interleave,
      .attention_scale = kedge_rope_score_scale(&config->rope) / sqrt((double)config->head_dim),
      .latent_norm_eps = kedge__latent_norm_eps(config),
      .shared_width = config->n_shared_experts * config->moe_intermediate_size,
      .correction = true,
      .score_kind = KEDGE_SCORE_SIGMOID,
      .group_kind = KEDGE_GROUP_TWO,
      .groups = config->n_group,
      .topk_groups = config->topk_group,
      .gate_normalise = config->norm_topk_prob && !(remote && config->num_experts_per_tok == 1),
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
    .known_options = KEDGE_OPTION_NORM_TOPK_PROB | KEDGE_OPTION_LATENT_NORM_EPS,
    .options = options,
};
