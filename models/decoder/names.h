/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensor names that several families share, as rows for their tables of kedge_tensor_name. A family file
 * (qwen3_moe.c, ...) lists the groups that it has and adds what is its own.
 */
#ifndef KEDGE_MODELS_DECODER_NAMES_H
#define KEDGE_MODELS_DECODER_NAMES_H

#include "models/decoder/family.h"

/* clang-format off */
/* Embedding, norms and head: every family has them. */
#define KEDGE_NAMES_STACK                                                          \
  {KEDGE_ROLE_EMBED, "model.embed_tokens.weight"},                                 \
  {KEDGE_ROLE_FINAL_NORM, "model.norm.weight"},                                    \
  {KEDGE_ROLE_HEAD, "lm_head.weight"},                                             \
  {KEDGE_ROLE_INPUT_NORM, "model.layers.{l}.input_layernorm.weight"},              \
  {KEDGE_ROLE_POST_NORM, "model.layers.{l}.post_attention_layernorm.weight"},      \
  {KEDGE_ROLE_O, "model.layers.{l}.self_attn.o_proj.weight"},                      \
  {KEDGE_ROLE_Q, "model.layers.{l}.self_attn.q_proj.weight"}

/* Grouped-query attention, and norms of its queries and keys. */
#define KEDGE_NAMES_KV                                                             \
  {KEDGE_ROLE_K, "model.layers.{l}.self_attn.k_proj.weight"},                      \
  {KEDGE_ROLE_V, "model.layers.{l}.self_attn.v_proj.weight"}
#define KEDGE_NAMES_QK_NORM                                                        \
  {KEDGE_ROLE_Q_NORM, "model.layers.{l}.self_attn.q_norm.weight"},                 \
  {KEDGE_ROLE_K_NORM, "model.layers.{l}.self_attn.k_norm.weight"}

/* Latent attention of the DeepSeek families. */
#define KEDGE_NAMES_LATENT                                                         \
  {KEDGE_ROLE_Q_A, "model.layers.{l}.self_attn.q_a_proj.weight"},                  \
  {KEDGE_ROLE_Q_A_NORM, "model.layers.{l}.self_attn.q_a_layernorm.weight"},        \
  {KEDGE_ROLE_Q_B, "model.layers.{l}.self_attn.q_b_proj.weight"},                  \
  {KEDGE_ROLE_KV_A, "model.layers.{l}.self_attn.kv_a_proj_with_mqa.weight"},       \
  {KEDGE_ROLE_KV_A_NORM, "model.layers.{l}.self_attn.kv_a_layernorm.weight"},      \
  {KEDGE_ROLE_KV_B, "model.layers.{l}.self_attn.kv_b_proj.weight"}

/* Dense MLP; router and one tensor an expert; shared experts under `module`. */
#define KEDGE_NAMES_MLP                                                            \
  {KEDGE_ROLE_MLP_GATE, "model.layers.{l}.mlp.gate_proj.weight"},                  \
  {KEDGE_ROLE_MLP_UP, "model.layers.{l}.mlp.up_proj.weight"},                      \
  {KEDGE_ROLE_MLP_DOWN, "model.layers.{l}.mlp.down_proj.weight"}
#define KEDGE_NAMES_EXPERTS                                                        \
  {KEDGE_ROLE_ROUTER, "model.layers.{l}.mlp.gate.weight"},                         \
  {KEDGE_ROLE_EXPERT_GATE, "model.layers.{l}.mlp.experts.{e}.gate_proj.weight"},   \
  {KEDGE_ROLE_EXPERT_UP, "model.layers.{l}.mlp.experts.{e}.up_proj.weight"},       \
  {KEDGE_ROLE_EXPERT_DOWN, "model.layers.{l}.mlp.experts.{e}.down_proj.weight"}
#define KEDGE_NAMES_SHARED(module)                                                 \
  {KEDGE_ROLE_SHARED_GATE, "model.layers.{l}.mlp." module ".gate_proj.weight"},    \
  {KEDGE_ROLE_SHARED_UP, "model.layers.{l}.mlp." module ".up_proj.weight"},        \
  {KEDGE_ROLE_SHARED_DOWN, "model.layers.{l}.mlp." module ".down_proj.weight"}
/* clang-format on */

#endif
