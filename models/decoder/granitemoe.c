/* SPDX-License-Identifier: Apache-2.0
 *
 * Granite MoE: grouped-query attention with rotate-half rope; multipliers of the config on embeddings, both
 * branches, q.k and logits; softmax over the chosen experts, which is softmax over all, normalised; the
 * experts of a layer are one tensor a projection in files.
 */
#include "models/decoder/names.h"

#include "core/args.h"

#include <math.h>

static const kedge_tensor_name names[] = {
    KEDGE_NAMES_STACK,
    KEDGE_NAMES_KV,
    {KEDGE_ROLE_ROUTER, "model.layers.{l}.block_sparse_moe.router.layer.weight"},
    {KEDGE_ROLE_EXPERT_GATE, "model.layers.{l}.block_sparse_moe.input_linear.weight"},
    {KEDGE_ROLE_EXPERT_UP, "model.layers.{l}.block_sparse_moe.input_linear.weight"},
    {KEDGE_ROLE_EXPERT_DOWN, "model.layers.{l}.block_sparse_moe.output_linear.weight"},
};

static const kedge_tensor_name other_names[] = {
    {KEDGE_ROLE_ROUTER, "model.layers.{l}.block_sparse_moe.router.weight"},
    {KEDGE_ROLE_EXPERT_GATE, "model.layers.{l}.block_sparse_moe.experts.gate_up_proj"},
    {KEDGE_ROLE_EXPERT_UP, "model.layers.{l}.block_sparse_moe.experts.gate_up_proj"},
    {KEDGE_ROLE_EXPERT_DOWN, "model.layers.{l}.block_sparse_moe.experts.down_proj"},
};

static kedge_status options(const kedge_hf_config *config, kedge_family_options *o) {
  const double scale = config->attention_multiplier;
  *o = (kedge_family_options){
      .multipliers = true,
      .attention_scale = scale > 0 ? scale : 1.0 / sqrt((double)config->head_dim),
      .score_kind = KEDGE_SCORE_SOFTMAX,
      .gate_normalise = true,
      .gate_alpha = 1.0,
  };
  return KEDGE_OK;
}

const kedge_family kedge__family_granitemoe = {
    .model_type = "granitemoe",
    .architecture = "GraniteMoeForCausalLM",
    .names = names,
    .name_count = sizeof names / sizeof *names,
    .other_names = other_names,
    .other_count = sizeof other_names / sizeof *other_names,
    .ignored = kedge__stale_tensors,
    .options = options,
};
