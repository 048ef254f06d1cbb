/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixtral: grouped-query attention with rotate-half rope; softmax router, greedy top-k, weights always
 * normalised over the chosen experts; no shared expert, no dense layer.
 */
#include "models/decoder/names.h"

#include "core/args.h"

#include <math.h>

static const kedge_tensor_name names[] = {
    KEDGE_NAMES_STACK,
    KEDGE_NAMES_KV,
    {KEDGE_ROLE_ROUTER, "model.layers.{l}.block_sparse_moe.gate.weight"},
    {KEDGE_ROLE_EXPERT_GATE, "model.layers.{l}.block_sparse_moe.experts.{e}.w1.weight"},
    {KEDGE_ROLE_EXPERT_UP, "model.layers.{l}.block_sparse_moe.experts.{e}.w3.weight"},
    {KEDGE_ROLE_EXPERT_DOWN, "model.layers.{l}.block_sparse_moe.experts.{e}.w2.weight"},
};

static const kedge_tensor_name other_names[] = {
    {KEDGE_ROLE_ROUTER, "model.layers.{l}.mlp.gate.weight"},
    {KEDGE_ROLE_EXPERT_GATE, "model.layers.{l}.mlp.experts.gate_up_proj"},
    {KEDGE_ROLE_EXPERT_UP, "model.layers.{l}.mlp.experts.gate_up_proj"},
    {KEDGE_ROLE_EXPERT_DOWN, "model.layers.{l}.mlp.experts.down_proj"},
};

static kedge_status options(const kedge_hf_config *config, kedge_family_options *o) {
  *o = (kedge_family_options){
      .attention_scale = 1.0 / sqrt((double)config->head_dim),
      .score_kind = KEDGE_SCORE_SOFTMAX,
      .gate_normalise = true,
      .gate_alpha = 1.0,
  };
  return KEDGE_OK;
}

const kedge_family kedge__family_mixtral = {
    .model_type = "mixtral",
    .architecture = "MixtralForCausalLM",
    .names = names,
    .name_count = sizeof names / sizeof *names,
    .other_names = other_names,
    .other_count = sizeof other_names / sizeof *other_names,
    .ignored = kedge__stale_tensors,
    .options = options,
};
