/* SPDX-License-Identifier: Apache-2.0
 * The list of model families, and the names that several of them share. */
#include "models/decoder/family.h"

#include <stdio.h>
#include <string.h>

static const kedge_family *const families[] = {
    &kedge__family_qwen3_moe,  &kedge__family_qwen2_moe,   &kedge__family_olmoe,      &kedge__family_mixtral,
    &kedge__family_granitemoe, &kedge__family_deepseek_v2, &kedge__family_deepseek_v3};

const kedge_tensor_name kedge__fused_experts[] = {
    {KEDGE_ROLE_EXPERT_GATE, "model.layers.{l}.mlp.experts.gate_up_proj"},
    {KEDGE_ROLE_EXPERT_UP, "model.layers.{l}.mlp.experts.gate_up_proj"},
    {KEDGE_ROLE_EXPERT_DOWN, "model.layers.{l}.mlp.experts.down_proj"},
};

const char *const kedge__stale_tensors[] = {".rotary_emb.inv_freq", NULL};

kedge_status kedge__check_latent(const kedge_hf_config *config) {
  if (!config->kv_lora_rank)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED,
                      "config.json: key \"kv_lora_rank\": expected a rank, got nothing");
  if (config->num_key_value_heads != config->num_attention_heads)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED,
                      "config.json: key \"num_key_value_heads\": expected num_attention_heads %u, got %u",
                      config->num_attention_heads, config->num_key_value_heads);
  return KEDGE_OK;
}

double kedge__latent_norm_eps(const kedge_hf_config *config) {
  return config->options & KEDGE_OPTION_LATENT_NORM_EPS ? config->rms_norm_eps : 1e-6;
}

kedge_status kedge_family_find(const kedge_hf_config *config, const kedge_family **family) {
  char known[256] = "";
  for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
    if (!strcmp(families[i]->model_type, config->model_type)) {
      *family = families[i];
      return KEDGE_OK;
    }
    size_t used = strlen(known);
    snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", families[i]->model_type);
  }
  return kedge_fail(KEDGE_ERR_UNSUPPORTED, "config.json: key \"model_type\": expected one of %s, got \"%s\"",
                    known, config->model_type);
}
