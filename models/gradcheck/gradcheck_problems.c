/* SPDX-License-Identifier: Apache-2.0
 *
 * The models that gradient checks run on (gradcheck.h): every family, every kind of score with and without
 * normalised weights, groups of experts, layers of experts that are not the first ones. All have two layers
 * of experts; sizes are odd where they may be. What is run on them is in gradcheck_variants.c. */
#include "models/gradcheck/gradcheck.h"

#include <string.h>

#define COMMON                                                                                               \
  "\"vocab_size\": 37, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-6, \"hidden_act\": \"silu\", "  \
  "\"rope_theta\": 10000.0, "
#define UNTIED "\"tie_word_embeddings\": false, "
#define LATENT                                                                                               \
  "\"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"kv_lora_rank\": 7, \"qk_nope_head_dim\": 3, "   \
  "\"qk_rope_head_dim\": 4, \"v_head_dim\": 5, \"first_k_dense_replace\": 1, \"num_hidden_layers\": 3, "     \
  "\"hidden_size\": 9, \"intermediate_size\": 11, \"moe_intermediate_size\": 5, "

const kedge_gradcheck_problem kedge_gradcheck_problems[] = {
    {"qwen3", "softmax, normalised over the chosen",
     "{\"model_type\": \"qwen3_moe\", " COMMON UNTIED
     "\"hidden_size\": 10, \"num_hidden_layers\": 2, \"num_attention_heads\": 3, \"num_key_value_heads\": 1,"
     " \"head_dim\": 6, \"intermediate_size\": 11, \"moe_intermediate_size\": 7, \"num_experts\": 8,"
     " \"num_experts_per_tok\": 3, \"norm_topk_prob\": true}"},
    {"qwen2", "softmax as it is; biases, a gated shared expert, a dense layer between",
     "{\"model_type\": \"qwen2_moe\", " COMMON UNTIED
     "\"hidden_size\": 9, \"num_hidden_layers\": 3, \"num_attention_heads\": 3, \"num_key_value_heads\": 3,"
     " \"head_dim\": 4, \"intermediate_size\": 11, \"moe_intermediate_size\": 5, \"num_experts\": 6,"
     " \"num_experts_per_tok\": 3, \"norm_topk_prob\": false, \"qkv_bias\": true, \"mlp_only_layers\": [1],"
     " \"decoder_sparse_step\": 1, \"shared_expert_intermediate_size\": 7}"},
    {"olmoe", "softmax as it is; norms over all heads together",
     "{\"model_type\": \"olmoe\", " COMMON UNTIED
     "\"hidden_size\": 12, \"num_hidden_layers\": 2, \"num_attention_heads\": 3, \"num_key_value_heads\": 1,"
     " \"intermediate_size\": 5, \"num_experts\": 7, \"num_experts_per_tok\": 2, \"norm_topk_prob\": false}"},
    {"mixtral", "softmax, normalised over the chosen",
     "{\"model_type\": \"mixtral\", " COMMON UNTIED
     "\"hidden_size\": 8, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
     " \"head_dim\": 4, \"intermediate_size\": 7, \"num_local_experts\": 5, \"num_experts_per_tok\": 2}"},
    {"granite", "softmax of the chosen; multipliers, tied head",
     "{\"model_type\": \"granitemoe\", " COMMON
     "\"hidden_size\": 12, \"num_hidden_layers\": 2, \"num_attention_heads\": 3, \"num_key_value_heads\": 1,"
     " \"intermediate_size\": 5, \"num_local_experts\": 6, \"num_experts_per_tok\": 3,"
     " \"attention_multiplier\": 0.4, \"embedding_multiplier\": 1.7, \"logits_scaling\": 1.5,"
     " \"residual_multiplier\": 0.6, \"tie_word_embeddings\": true}"},
    {"ds_v2", "softmax as it is; latent attention, shared experts, dense first layer",
     "{\"model_type\": \"deepseek_v2\", " COMMON UNTIED LATENT
     "\"n_routed_experts\": 8, \"num_experts_per_tok\": 3, \"n_shared_experts\": 2, \"q_lora_rank\": null,"
     " \"norm_topk_prob\": false, \"routed_scaling_factor\": 1.0, \"scoring_func\": \"softmax\","
     " \"topk_method\": \"greedy\"}"},
    {"ds_v2_grp", "the same times 1.5, inside 2 of 3 groups of experts",
     "{\"model_type\": \"deepseek_v2\", " COMMON UNTIED LATENT
     "\"n_routed_experts\": 9, \"num_experts_per_tok\": 3, \"n_shared_experts\": 1, \"q_lora_rank\": 6,"
     " \"norm_topk_prob\": false, \"routed_scaling_factor\": 1.5, \"scoring_func\": \"softmax\","
     " \"topk_method\": \"group_limited_greedy\", \"n_group\": 3, \"topk_group\": 2}"},
    {"moonlight", "sigmoid and selection bias, normalised, times 2.446; dense first layer",
     "{\"model_type\": \"deepseek_v3\", " COMMON UNTIED LATENT
     "\"n_routed_experts\": 8, \"num_experts_per_tok\": 3, \"n_shared_experts\": 2, \"q_lora_rank\": null,"
     " \"norm_topk_prob\": true, \"routed_scaling_factor\": 2.446, \"scoring_func\": \"sigmoid\","
     " \"topk_method\": \"noaux_tc\", \"n_group\": 1, \"topk_group\": 1}"},
    {"ds_v3", "the same inside 2 of 4 groups of experts",
     "{\"model_type\": \"deepseek_v3\", " COMMON UNTIED LATENT
     "\"n_routed_experts\": 8, \"num_experts_per_tok\": 3, \"n_shared_experts\": 1, \"q_lora_rank\": 6,"
     " \"norm_topk_prob\": true, \"routed_scaling_factor\": 2.446, \"scoring_func\": \"sigmoid\","
     " \"topk_method\": \"noaux_tc\", \"n_group\": 4, \"topk_group\": 2}"},
    {"ds_v3_raw", "sigmoid and selection bias, not normalised, times 2.5, inside 1 of 2 groups",
     "{\"model_type\": \"deepseek_v3\", " COMMON UNTIED LATENT
     "\"n_routed_experts\": 10, \"num_experts_per_tok\": 3, \"n_shared_experts\": 1, \"q_lora_rank\": 6,"
     " \"norm_topk_prob\": false, \"routed_scaling_factor\": 2.5, \"scoring_func\": \"sigmoid\","
     " \"topk_method\": \"noaux_tc\", \"n_group\": 2, \"topk_group\": 1}"},
};

const uint32_t kedge_gradcheck_problem_count =
    sizeof kedge_gradcheck_problems / sizeof *kedge_gradcheck_problems;

const kedge_gradcheck_problem *kedge_gradcheck_find_problem(const char *name) {
  for (uint32_t i = 0; i < kedge_gradcheck_problem_count; i++)
    if (!strcmp(kedge_gradcheck_problems[i].name, name)) return &kedge_gradcheck_problems[i];
  return NULL;
}
