/* SPDX-License-Identifier: Apache-2.0
 *
 * DeepSeek-V2 and V2-Lite: latent attention, with or without a latent for queries, YaRN; the first layers are
 * dense; softmax router, top-k greedy or inside the groups with the best single expert; shared experts are
 * one wide MLP. As in transformers, weights are never normalised, whatever norm_topk_prob says, and the
 * latent norms use epsilon 1e-6. With the option norm_topk_prob=remote it is heeded as in DeepSeek's own
 * code: normalised weights are not scaled by the routed scaling factor (no published model sets it).
 */
#include "models/decoder/names.h"

#include "core/args.h"
#include "models/decoder/rope.h"

#include <math.h>
#include <string.h>

static const kedge_tensor_name names[] = {
    KEDGE_NAMES_STACK,
    KEDGE_NAMES_LATENT,
    KEDGE_NAMES_MLP,
    KEDGE_NAMES_EXPERTS,
    KEDGE_NAMES_SHARED("shared_experts"),
};

static kedge_status options(const kedge_hf_config *config, kedge_family_options *o) {
  KEDGE_TRY(kedge__check_latent(config));
  const bool grouped = !strcmp(config->topk_method, "group_limited_greedy");
  if (!grouped && strcmp(config->topk_method, "greedy"))
    return kedge_fail(
        KEDGE_ERR_UNSUPPORTED,
        "config.json: key \"topk_method\": expected \"greedy\" or \"group_limited_greedy\", got "
        "\"%s\"",
        config->topk_method);
  const bool normalise = config->options & KEDGE_OPTION_NORM_TOPK_PROB && config->norm_topk_prob &&
                         config->num_experts_per_tok > 1;
  *o = (kedge_family_options){
      .rope_interleaved = true,
      .attention_scale = kedge_rope_score_scale(&config->rope) / sqrt((double)config->head_dim),
      .latent_norm_eps = kedge__latent_norm_eps(config),
      .shared_width = config->n_shared_experts * config->moe_intermediate_size,
      .score_kind = KEDGE_SCORE_SOFTMAX,
      .group_kind = KEDGE_GROUP_MAX,
      .groups = grouped ? config->n_group : 1,
      .topk_groups = grouped ? config->topk_group : 1,
      .gate_normalise = normalise,
      .gate_alpha = normalise ? 1 : config->routed_scaling_factor,
      .gate_epsilon = 1e-20,
  };
  return KEDGE_OK;
}

const kedge_family kedge__family_deepseek_v2 = {
    .model_type = "deepseek_v2",
    .architecture = "DeepseekV2ForCausalLM",
    .names = names,
    .name_count = sizeof names / sizeof *names,
    .other_names = kedge__fused_experts,
    .other_count = KEDGE_FUSED_EXPERTS,
    .ignored = kedge__stale_tensors,
    .known_options = KEDGE_OPTION_NORM_TOPK_PROB | KEDGE_OPTION_LATENT_NORM_EPS,
    .options = options,
};
