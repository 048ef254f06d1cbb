/* SPDX-License-Identifier: Apache-2.0
 * What a config.json means where it is silent, one row a family: the values that the configuration classes of
 * transformers take for absent keys, and what the family's mathematics fixes. The sizes that no two models
 * share (hidden_size, layers, heads, vocabulary) have no default here: a file without them is broken. */
#include <string.h>

#include "models/checkpoint/hf_config.h"

static const struct {
  const char *model_type, *defaults, *implied;
} families[] = {
    {"qwen3_moe",
     "{\"intermediate_size\":6144,\"num_key_value_heads\":4,\"hidden_act\":\"silu\",\"max_position_"
     "embeddings\":32768,"
     "\"initializer_range\":0.02,\"rms_norm_eps\":1e-6,\"tie_word_embeddings\":false,\"use_sliding_window\":"
     "false,"
     "\"rope_theta\":10000.0,\"decoder_sparse_step\":1,\"moe_intermediate_size\":768,\"num_experts_per_tok\":"
     "8,"
     "\"num_experts\":128,\"norm_topk_prob\":false,\"router_aux_loss_coef\":0.001}",
     "{\"scoring_func\":\"softmax\",\"topk_method\":\"greedy\"}"},
    {"qwen2_moe",
     "{\"intermediate_size\":5632,\"num_key_value_heads\":16,\"hidden_act\":\"silu\",\"max_position_"
     "embeddings\":32768,"
     "\"initializer_range\":0.02,\"rms_norm_eps\":1e-6,\"tie_word_embeddings\":false,\"use_sliding_window\":"
     "false,"
     "\"rope_theta\":10000.0,\"decoder_sparse_step\":1,\"moe_intermediate_size\":1408,"
     "\"shared_expert_intermediate_size\":5632,\"num_experts_per_tok\":4,\"num_experts\":60,\"norm_topk_"
     "prob\":false,"
     "\"router_aux_loss_coef\":0.001,\"qkv_bias\":true}",
     "{\"scoring_func\":\"softmax\",\"topk_method\":\"greedy\"}"},
    {"deepseek_v2",
     "{\"intermediate_size\":11008,\"hidden_act\":\"silu\",\"max_position_embeddings\":2048,\"initializer_"
     "range\":0.02,"
     "\"rms_norm_eps\":1e-6,\"bos_token_id\":1,\"eos_token_id\":2,\"tie_word_embeddings\":false,\"rope_"
     "theta\":10000.0,"
     "\"first_k_dense_replace\":0,\"kv_lora_rank\":512,\"q_lora_rank\":1536,\"n_routed_experts\":64,"
     "\"n_shared_experts\":2,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":128,"
     "\"routed_scaling_factor\":1.0,\"topk_method\":\"greedy\",\"norm_topk_prob\":false,\"moe_intermediate_"
     "size\":1407}",
     "{\"scoring_func\":\"softmax\"}"},
    {"deepseek_v3",
     "{\"intermediate_size\":18432,\"num_key_value_heads\":128,\"hidden_act\":\"silu\",\"max_position_"
     "embeddings\":4096,"
     "\"initializer_range\":0.02,\"rms_norm_eps\":1e-6,\"bos_token_id\":0,\"eos_token_id\":1,"
     "\"tie_word_embeddings\":false,\"rope_theta\":10000.0,\"rope_interleave\":true,\"first_k_dense_"
     "replace\":3,"
     "\"kv_lora_rank\":512,\"q_lora_rank\":1536,\"n_routed_experts\":256,\"n_shared_experts\":1,\"n_group\":"
     "8,"
     "\"topk_group\":4,\"num_experts_per_tok\":8,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_"
     "dim\":128,"
     "\"routed_scaling_factor\":2.5,\"norm_topk_prob\":true,\"moe_intermediate_size\":2048}",
     "{\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\"}"},
    {"olmoe",
     "{\"intermediate_size\":2048,\"hidden_act\":\"silu\",\"max_position_embeddings\":4096,\"initializer_"
     "range\":0.02,"
     "\"rms_norm_eps\":1e-5,\"pad_token_id\":1,\"eos_token_id\":50279,\"tie_word_embeddings\":false,"
     "\"rope_theta\":10000.0,\"num_experts_per_tok\":8,\"num_experts\":64,\"router_aux_loss_coef\":0.01,"
     "\"norm_topk_prob\":false}",
     "{\"scoring_func\":\"softmax\",\"topk_method\":\"greedy\"}"},
    {"mixtral",
     "{\"intermediate_size\":14336,\"num_key_value_heads\":8,\"hidden_act\":\"silu\",\"max_position_"
     "embeddings\":131072,"
     "\"initializer_range\":0.02,\"rms_norm_eps\":1e-5,\"bos_token_id\":1,\"eos_token_id\":2,"
     "\"tie_word_embeddings\":false,\"rope_theta\":1000000.0,\"num_experts_per_tok\":2,\"num_local_experts\":"
     "8,"
     "\"router_aux_loss_coef\":0.001}",
     "{\"scoring_func\":\"softmax\",\"topk_method\":\"greedy\",\"norm_topk_prob\":true}"},
    {"granitemoe",
     "{\"intermediate_size\":11008,\"hidden_act\":\"silu\",\"max_position_embeddings\":2048,\"initializer_"
     "range\":0.02,"
     "\"rms_norm_eps\":1e-6,\"bos_token_id\":1,\"eos_token_id\":2,\"tie_word_embeddings\":false,\"rope_"
     "theta\":10000.0,"
     "\"embedding_multiplier\":1.0,\"logits_scaling\":1.0,\"residual_multiplier\":1.0,\"attention_"
     "multiplier\":1.0,"
     "\"num_local_experts\":8,\"num_experts_per_tok\":2,\"router_aux_loss_coef\":0.001}",
     "{\"scoring_func\":\"softmax\",\"topk_method\":\"greedy\",\"norm_topk_prob\":true}"},
};

static size_t row_of(const char *model_type) {
  size_t i = 0;
  while (i < sizeof families / sizeof *families && strcmp(families[i].model_type, model_type)) i++;
  return i;
}

const char *kedge__hf_defaults(const char *model_type) {
  size_t row = row_of(model_type);
  return row < sizeof families / sizeof *families ? families[row].defaults : NULL;
}

const char *kedge__hf_implied(const char *model_type) {
  size_t row = row_of(model_type);
  return row < sizeof families / sizeof *families ? families[row].implied : NULL;
}
