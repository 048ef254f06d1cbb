# SPDX-License-Identifier: Apache-2.0
"""The models that make_models.py makes.

Sizes are odd on purpose: heads * head_dim differs from hidden_size where the family allows it, nothing is a multiple of
16. `lengths` are the sequences of the batch and `prompts` how many first tokens of each are no targets. `dead` is (layer,
expert): that expert is given no token. `traps` are mistakes of forward64.py that must move the logits.
`sharded`, `bf16`: the size of a shard of a second copy; `fused`: a second copy as transformers holds it in memory; `v4`:
config.json once more in the spelling of transformers 4; `mixed_bf16`: a bfloat16 copy with two kinds of correction bias.
"""


def plain_rope(theta):
    return {"rope_type": "default", "rope_theta": theta}


VARIANTS = {
    "qwen3_moe_top2of8": {
        "config": dict(hidden_size=20, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                       moe_intermediate_size=12, intermediate_size=36, num_experts=8, num_experts_per_tok=2,
                       norm_topk_prob=True, vocab_size=61, tie_word_embeddings=False, rms_norm_eps=1e-6,
                       rope_parameters=plain_rope(10000.0)),
        "lengths": [17, 5, 23], "prompts": [6, 0, 9], "dead": (1, 3), "seed": 1000, "sharded": "40KB", "bf16": "20KB", "fused": True,
    },
    "qwen3_moe_top8of16": {
        "config": dict(hidden_size=28, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, head_dim=10,
                       moe_intermediate_size=9, intermediate_size=36, num_experts=16, num_experts_per_tok=8,
                       norm_topk_prob=False, vocab_size=67, tie_word_embeddings=True, rms_norm_eps=1e-6,
                       rope_parameters=plain_rope(1000000.0)),
        "lengths": [1, 26, 15], "prompts": [0, 10, 3], "seed": 2000,
    },
    "qwen3_moe_mixed": {
        "config": dict(hidden_size=24, num_hidden_layers=3, num_attention_heads=5, num_key_value_heads=1, head_dim=6,
                       moe_intermediate_size=10, intermediate_size=36, num_experts=8, num_experts_per_tok=3,
                       norm_topk_prob=True, vocab_size=53, tie_word_embeddings=False, rms_norm_eps=1e-5,
                       rope_parameters=plain_rope(10000.0), mlp_only_layers=[1]),
        "lengths": [11, 4, 19, 7], "prompts": [4, 4, 0, 5], "seed": 3000,
    },
    # decoder_sparse_step 2 puts experts in layers 1 and 3, mlp_only_layers takes 1 away again: layer 3 alone is left.
    "qwen3_moe_step2": {
        "config": dict(hidden_size=12, num_hidden_layers=4, num_attention_heads=3, num_key_value_heads=3, head_dim=4,
                       moe_intermediate_size=7, intermediate_size=18, num_experts=5, num_experts_per_tok=1,
                       norm_topk_prob=False, vocab_size=31, tie_word_embeddings=False, rms_norm_eps=1e-6,
                       rope_parameters=plain_rope(10000.0), decoder_sparse_step=2, mlp_only_layers=[1]),
        "lengths": [13, 9], "prompts": [2, 0], "seed": 4000,
    },
    "olmoe_plain": {
        "config": dict(hidden_size=18, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3, intermediate_size=7,
                       num_experts=8, num_experts_per_tok=3, norm_topk_prob=False, vocab_size=47, tie_word_embeddings=False,
                       rms_norm_eps=1e-5, rope_parameters=plain_rope(10000.0)),
        "lengths": [15, 6, 1, 18], "prompts": [5, 0, 0, 7], "seed": 5000, "v4": True,
        "traps": ["norm_each_head", "other_rope_pairs", "other_normalisation"],
    },
    "olmoe_clip": {
        "config": dict(hidden_size=20, num_hidden_layers=2, num_attention_heads=5, num_key_value_heads=1, intermediate_size=9,
                       num_experts=6, num_experts_per_tok=2, norm_topk_prob=True, vocab_size=41, tie_word_embeddings=False,
                       rms_norm_eps=1e-5, clip_qkv=1.25, rope_parameters=plain_rope(10000.0)),
        "lengths": [9, 16], "prompts": [3, 0], "seed": 5500,
        "traps": ["no_clip", "clip_before_norm", "other_normalisation"],
    },
    "mixtral_plain": {
        "config": dict(hidden_size=20, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, intermediate_size=9,
                       num_local_experts=6, num_experts_per_tok=2, vocab_size=43, tie_word_embeddings=False, rms_norm_eps=1e-5,
                       rope_parameters=plain_rope(1000000.0)),
        "lengths": [12, 21], "prompts": [0, 8], "seed": 6000, "fused": True,
        "traps": ["other_rope_pairs", "other_normalisation"],
    },
    "mixtral_kv": {
        "config": dict(hidden_size=18, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, head_dim=4,
                       intermediate_size=7, num_local_experts=5, num_experts_per_tok=3, vocab_size=37, tie_word_embeddings=False,
                       rms_norm_eps=1e-5, rope_parameters=plain_rope(10000.0)),
        "lengths": [7, 14, 11], "prompts": [2, 5, 0], "dead": (2, 4), "seed": 6500,
        "traps": ["other_normalisation"],
    },
    "granitemoe_tied": {
        "config": dict(hidden_size=20, num_hidden_layers=2, num_attention_heads=5, num_key_value_heads=1, intermediate_size=9,
                       num_local_experts=8, num_experts_per_tok=3, vocab_size=45, tie_word_embeddings=True, rms_norm_eps=1e-6,
                       embedding_multiplier=3.0, residual_multiplier=0.6, attention_multiplier=0.2, logits_scaling=1.5,
                       rope_parameters=plain_rope(10000.0)),
        "lengths": [13, 20], "prompts": [4, 9], "seed": 7000,
        "traps": ["scale_by_head_dim", "no_embedding_multiplier", "no_residual_multiplier", "no_logits_scaling", "other_normalisation"],
    },
    "granitemoe_untied": {
        "config": dict(hidden_size=18, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=3, intermediate_size=7,
                       num_local_experts=6, num_experts_per_tok=2, vocab_size=39, tie_word_embeddings=False, rms_norm_eps=1e-6,
                       embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.0625, logits_scaling=0.5,
                       rope_parameters=plain_rope(10000.0)),
        "lengths": [8, 17, 5], "prompts": [0, 6, 2], "dead": (0, 2), "seed": 7500,
        "traps": ["scale_by_head_dim", "no_embedding_multiplier", "no_residual_multiplier", "no_logits_scaling"],
    },
    # Layers 1 and 3 have experts.
    "qwen2_moe_plain": {
        "config": dict(hidden_size=18, num_hidden_layers=4, num_attention_heads=3, num_key_value_heads=1, moe_intermediate_size=7,
                       shared_expert_intermediate_size=11, intermediate_size=15, num_experts=6, num_experts_per_tok=3,
                       norm_topk_prob=False, vocab_size=43, tie_word_embeddings=False, rms_norm_eps=1e-6, decoder_sparse_step=2,
                       rope_parameters=plain_rope(1000000.0)),
        "lengths": [14, 5, 17], "prompts": [4, 0, 6], "seed": 8000, "v4": True,
        "traps": ["shared_without_gate", "no_bias", "other_normalisation"],
    },
    # Layer 0 is dense, normalised.
    "qwen2_moe_mixed": {
        "config": dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3, moe_intermediate_size=9,
                       shared_expert_intermediate_size=5, intermediate_size=14, num_experts=5, num_experts_per_tok=2,
                       norm_topk_prob=True, vocab_size=29, tie_word_embeddings=True, rms_norm_eps=1e-6, mlp_only_layers=[0],
                       rope_parameters=plain_rope(10000.0)),
        "lengths": [10, 13], "prompts": [0, 3], "seed": 8500,
        "traps": ["shared_without_gate", "no_bias", "other_normalisation"],
    },
    # Positions to 37, far beyond the 16 of the first training; a ramp with four distinct values strictly inside.
    # The native class needs even widths here: it views pairs as complex numbers in place.
    "deepseek_v2_greedy": {
        "config": dict(hidden_size=18, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=None,
                       kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=12, v_head_dim=7, intermediate_size=21,
                       moe_intermediate_size=5, n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3, first_k_dense_replace=1,
                       n_group=1, topk_group=1, topk_method="greedy", routed_scaling_factor=1.0, norm_topk_prob=False, vocab_size=41,
                       rms_norm_eps=1e-6, max_position_embeddings=640,
                       rope_parameters={"rope_type": "yarn", "rope_theta": 100.0, "factor": 40.0, "beta_fast": 2.0, "beta_slow": 0.1,
                                        "mscale": 0.707, "mscale_all_dim": 0.707, "original_max_position_embeddings": 16}),
        "lengths": [38, 9], "prompts": [12, 0], "seed": 9000, "v4": True,
        "traps": ["no_mscale", "mscale_once", "mscale_not_divided", "no_yarn", "other_rope_pairs", "other_normalisation", "no_shared"],
    },
    "deepseek_v2_group": {
        "config": dict(hidden_size=15, num_hidden_layers=2, num_attention_heads=5, num_key_value_heads=5, q_lora_rank=9,
                       kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=6, v_head_dim=5, intermediate_size=21,
                       moe_intermediate_size=5, n_routed_experts=10, n_shared_experts=1, num_experts_per_tok=3, first_k_dense_replace=1,
                       n_group=2, topk_group=1, topk_method="group_limited_greedy", routed_scaling_factor=1.5, norm_topk_prob=True,
                       vocab_size=41, rms_norm_eps=1e-6, max_position_embeddings=64, rope_parameters=plain_rope(10000.0)),
        "lengths": [11, 17, 6], "prompts": [0, 5, 2], "seed": 9500,
        "traps": ["other_group_score", "no_groups", "no_routed_scaling", "other_normalisation", "other_rope_pairs"],
        "notes": ["norm_topk_prob is true in config.json and the native class ignores it: the weights are the softmax values "
                  "times routed_scaling_factor, not divided by their sum"],
    },
    # The latents are small (`latent`), so that the 1e-6 in their norms can be told from the 1e-5 of the others.
    "deepseek_v3_moonlight": {
        "config": dict(hidden_size=18, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=None,
                       kv_lora_rank=10, qk_nope_head_dim=5, qk_rope_head_dim=6, v_head_dim=7, intermediate_size=21,
                       moe_intermediate_size=5, n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3, first_k_dense_replace=1,
                       n_group=1, topk_group=1, routed_scaling_factor=2.446, norm_topk_prob=True, vocab_size=43, rms_norm_eps=1e-5,
                       max_position_embeddings=64, rope_parameters=plain_rope(50000.0)),
        "lengths": [19, 8, 13], "prompts": [6, 0, 4], "seed": 10000, "v4": True, "latent": 0.12, "bias": (0.0, 0.25), "mixed_bf16": True,
        "traps": ["latent_eps_of_config", "no_bias_in_choice", "bias_in_weights", "other_rope_pairs", "other_normalisation",
                  "no_routed_scaling", "no_shared"],
    },
    # Biases so low that choices of the kept group fall below zero, where a mask of 0.0 would prefer the other group.
    "deepseek_v3_group": {
        "config": dict(hidden_size=15, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=9,
                       kv_lora_rank=7, qk_nope_head_dim=4, qk_rope_head_dim=8, v_head_dim=5, intermediate_size=21,
                       moe_intermediate_size=5, n_routed_experts=10, n_shared_experts=1, num_experts_per_tok=3, first_k_dense_replace=1,
                       n_group=2, topk_group=1, routed_scaling_factor=2.5, norm_topk_prob=False, vocab_size=41, rms_norm_eps=1e-6,
                       max_position_embeddings=64,
                       rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.3, "mscale_all_dim": 0.8,
                                        "original_max_position_embeddings": 16}),
        "lengths": [27, 12], "prompts": [9, 0], "dead": (1, 7), "seed": 10500, "bias": (-0.7, 0.2), "fused": True,
        "traps": ["groups_masked_by_zero", "other_group_score", "no_groups", "no_bias_in_choice", "bias_in_weights", "no_mscale",
                  "mscale_once", "mscale_not_divided", "no_yarn", "other_normalisation", "no_routed_scaling", "other_rope_pairs"],
    },
}
