/* SPDX-License-Identifier: Apache-2.0
 *
 * config.json of a Hugging Face model directory as one struct for every family. Which model_type is known is
 * the business of models/decoder's table of families; hf_defaults.c holds the class defaults of transformers.
 */
#ifndef KEDGE_MODELS_CHECKPOINT_HF_CONFIG_H
#define KEDGE_MODELS_CHECKPOINT_HF_CONFIG_H

#include "models/checkpoint/notes.h"

typedef enum kedge_rope_type { KEDGE_ROPE_DEFAULT, KEDGE_ROPE_YARN } kedge_rope_type;

/* `factor` and what follows hold for yarn alone. 0 means absent for mscale, mscale_all_dim and
 * attention_factor. */
typedef struct kedge_rope_config {
  kedge_rope_type type;
  double theta;
  double factor, beta_fast, beta_slow, mscale, mscale_all_dim, attention_factor;
  uint32_t original_max_position_embeddings;
  bool truncate;
} kedge_rope_config;

enum { KEDGE_HF_MAX_IDS = 16, KEDGE_HF_TEXT = 96 };

typedef struct kedge_id_list {
  int32_t ids[KEDGE_HF_MAX_IDS];
  uint32_t count;
} kedge_id_list;

/* Caller-owned; kedge_hf_config_destroy frees what it points to. Counts and widths are 0 where the model has
 * no such thing. */
typedef struct kedge_hf_config {
  char model_type[KEDGE_HF_TEXT];
  char architecture[KEDGE_HF_TEXT]; /* the first of `architectures`; "" if there is none */
  char dtype[KEDGE_HF_TEXT];        /* of torch_dtype or dtype: "bfloat16"; "" if absent */
  char hidden_act[KEDGE_HF_TEXT];   /* "silu" */
  char topk_method[KEDGE_HF_TEXT];  /* "greedy", "group_limited_greedy", "noaux_tc" */
  char scoring_func[KEDGE_HF_TEXT]; /* "softmax", "sigmoid" */

  /* The stack. */
  uint32_t hidden_size, num_hidden_layers, vocab_size, max_position_embeddings;
  uint32_t intermediate_size; /* of a dense layer */
  double rms_norm_eps, initializer_range;
  bool tie_word_embeddings;

  /* Attention. head_dim is the width of a query and key head: explicit, else hidden / heads; with
   * kv_lora_rank it is qk_nope_head_dim + qk_rope_head_dim. q_lora_rank 0: queries are projected directly. */
  uint32_t num_attention_heads, num_key_value_heads, head_dim;
  uint32_t q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim;
  bool has_head_dim; /* the file says it */
  bool qkv_bias, rope_interleave;
  bool has_clip_qkv;
  double clip_qkv; /* > 0 where has_clip_qkv */
  kedge_rope_config rope;

  /* Experts. moe_intermediate_size is the width of one routed expert, whatever key it has in the family. */
  uint32_t num_experts, num_experts_per_tok, moe_intermediate_size;
  uint32_t n_shared_experts, shared_expert_intermediate_size;
  uint32_t n_group, topk_group; /* 1 and 1 without groups */
  bool norm_topk_prob, output_router_logits, seq_aux;
  double routed_scaling_factor, router_aux_loss_coef, aux_loss_alpha;
  bool has_router_aux_loss_coef, has_aux_loss_alpha; /* the file says it */

  /* Which layers have experts: kedge_hf_layer_is_sparse. */
  uint32_t decoder_sparse_step, first_k_dense_replace, moe_layer_freq;
  uint32_t *mlp_only_layers, mlp_only_count;
  uint32_t num_nextn_predict_layers; /* extra prediction layers on disk, not part of the stack */

  /* Granite's multipliers; 1 in other families, attention_multiplier 0: head_dim^-1/2. */
  double embedding_multiplier, residual_multiplier, attention_multiplier, logits_scaling;

  /* Special tokens: -1 and an empty list where there is none. generation_eos is from generation_config.json.
   */
  int32_t bos_token_id, pad_token_id;
  kedge_id_list eos, generation_eos;

  unsigned options;  /* not of the file: KEDGE_OPTION_* of models/decoder/family.h */
  kedge_notes notes; /* defaults taken for absent keys */
} kedge_hf_config;

/* Reads config.json, and generation_config.json if there is one, of a model directory. Errors name file and
 * key, what was expected and what came: ERR_FORMAT (missing key, wrong type, out of range, keys that
 * contradict each other); ERR_UNSUPPORTED (a value that changes the mathematics in a way Kedge does not
 * have); ERR_IO; ERR_MEMORY. On failure there is nothing to destroy. */
kedge_status kedge_hf_config_load(const char *directory, kedge_hf_config *config);
/* The same from text; `name` stands before messages. */
kedge_status kedge_hf_config_parse(const char *text, size_t bytes, const char *name, kedge_hf_config *config);
void kedge_hf_config_destroy(kedge_hf_config *config);

/* Whether a layer (0-based) has routed experts; false for all where there are none. */
bool kedge_hf_layer_is_sparse(const kedge_hf_config *config, uint32_t layer);
uint32_t kedge_hf_sparse_layers(const kedge_hf_config *config); /* how many have */

/* hf_defaults.c: JSON objects of a family, or NULL. `defaults` are what transformers' class takes for an
 * absent key; `implied` are what the family's mathematics fixes, whatever its keys. */
const char *kedge__hf_defaults(const char *model_type);
const char *kedge__hf_implied(const char *model_type);

#endif
