/* SPDX-License-Identifier: Apache-2.0
 *
 * A model family: its tensor names and options, as data. One file a family (qwen3_moe.c, ...), listed in
 * families.c; the shared builders (blocks.c, decoder.c) read options and never ask which family they serve.
 */
#ifndef KEDGE_MODELS_DECODER_FAMILY_H
#define KEDGE_MODELS_DECODER_FAMILY_H

#include "models/checkpoint/hf_config.h"

/* What a weight is for. Global roles first, then roles of a layer. dqk and dv are the widths of a query and
 * of a value head, dn and dr the parts of dqk without and with rope; c_q and c_kv the ranks of latent
 * attention. */
typedef enum kedge_role {
  KEDGE_ROLE_EMBED,      /* [V,D] */
  KEDGE_ROLE_FINAL_NORM, /* [D] */
  KEDGE_ROLE_HEAD,       /* [V,D], absent when tied to the embedding */
  KEDGE_ROLE_GLOBAL_COUNT,
  KEDGE_ROLE_INPUT_NORM = KEDGE_ROLE_GLOBAL_COUNT, /* [D] before attention */
  KEDGE_ROLE_Q,                                    /* [H*dqk,D] */
  KEDGE_ROLE_Q_BIAS,                               /* [H*dqk] */
  KEDGE_ROLE_Q_A,                                  /* [c_q,D] latent attention: down to the query's latent */
  KEDGE_ROLE_Q_A_NORM,                             /* [c_q] */
  KEDGE_ROLE_Q_B,                                  /* [H*dqk,c_q] and up to the heads */
  KEDGE_ROLE_K,                                    /* [Hkv*dqk,D] */
  KEDGE_ROLE_K_BIAS,                               /* [Hkv*dqk] */
  KEDGE_ROLE_V,                                    /* [Hkv*dv,D] */
  KEDGE_ROLE_V_BIAS,                               /* [Hkv*dv] */
  KEDGE_ROLE_KV_A,      /* [c_kv+dr,D]: the latent of keys and values, then the key part of all heads */
  KEDGE_ROLE_KV_A_NORM, /* [c_kv] */
  KEDGE_ROLE_KV_B,      /* [H*(dn+dv),c_kv]: of each head the key without rope, then the value */
  KEDGE_ROLE_O,         /* [D,H*dv] */
  KEDGE_ROLE_Q_NORM,    /* [dqk] one for all heads, or [H*dqk] */
  KEDGE_ROLE_K_NORM,    /* [dqk] or [Hkv*dqk] */
  KEDGE_ROLE_POST_NORM, /* [D] before the MLP or MoE */
  KEDGE_ROLE_MLP_GATE,  /* [F,D] dense layers */
  KEDGE_ROLE_MLP_UP,    /* [F,D] */
  KEDGE_ROLE_MLP_DOWN,  /* [D,F] */
  KEDGE_ROLE_ROUTER,    /* [E,D] */
  KEDGE_ROLE_ROUTER_CORRECTION, /* [E] f32, added to scores for the choice alone; never trained */
  KEDGE_ROLE_EXPERT_GATE,       /* [E,I,D] */
  KEDGE_ROLE_EXPERT_UP,         /* [E,I,D] */
  KEDGE_ROLE_EXPERT_DOWN,       /* [E,D,I] */
  KEDGE_ROLE_SHARED_GATE,       /* [Is,D] the expert of every token */
  KEDGE_ROLE_SHARED_UP,         /* [Is,D] */
  KEDGE_ROLE_SHARED_DOWN,       /* [D,Is] */
  KEDGE_ROLE_SHARED_ROUTER,     /* [1,D] its sigmoid weighs the shared expert */
  KEDGE_ROLE_COUNT
} kedge_role;

/* True for the stacks of routed experts, which ranks may share. */
static inline bool kedge_role_is_expert(kedge_role role) {
  return role >= KEDGE_ROLE_EXPERT_GATE && role <= KEDGE_ROLE_EXPERT_DOWN;
}

/* Name of a role's tensor in files; "{l}" stands for the layer, "{e}" for the expert. A name of experts
 * without
 * "{e}" is one tensor for all of them; where gate and up have the same name, each expert's rows are those of
 * gate, then those of up. */
typedef struct kedge_tensor_name {
  kedge_role role;
  const char *pattern;
} kedge_tensor_name;

typedef enum kedge_qk_norm {
  KEDGE_QK_NORM_NONE,
  KEDGE_QK_NORM_HEAD, /* over each query and key head, before rope */
  KEDGE_QK_NORM_FULL, /* over all heads together, before rope */
} kedge_qk_norm;

/* Everything in which families differ, beyond names and what the config says itself. */
typedef struct kedge_family_options {
  kedge_qk_norm qk_norm;
  bool rope_interleaved;  /* pairs (2i, 2i+1) instead of (i, i + d/2) */
  double attention_scale; /* of q.k */
  double clip_qkv;        /* queries, keys and values are kept within +- this; 0: as they are */
  bool multipliers;       /* the config's multipliers of embeddings, branches and logits hold */
  double latent_norm_eps; /* of the norms inside latent attention */
  uint32_t shared_width;  /* Is; 0: no shared expert */
  bool shared_gated;      /* weighed by a sigmoid of its own */
  bool correction;        /* the router has a selection bias */
  uint32_t score_kind;    /* KEDGE_SCORE_* */
  uint32_t group_kind;    /* KEDGE_GROUP_* */
  uint32_t groups,
      topk_groups;     /* groups of experts and how many of them a token may use; 0 or 1: no groups */
  bool gate_normalise; /* gate weights divided by their sum over the chosen */
  double gate_alpha;   /* routed scaling factor */
  double gate_epsilon; /* added to that sum */
} kedge_family_options;

/* Where implementations of a family differ, transformers' way holds unless the user names the other: bits of
 * kedge_hf_config.options. */
enum {
  KEDGE_OPTION_NORM_TOPK_PROB =
      1, /* norm_topk_prob=remote: heeded as by the code beside DeepSeek's weights */
  KEDGE_OPTION_LATENT_NORM_EPS =
      2, /* latent_norm_eps=config: rms_norm_eps holds inside latent attention, too */
};
enum { KEDGE_MODEL_OPTIONS_TEXT = 96 };

typedef struct kedge_family {
  const char *model_type;
  const char *architecture; /* class of transformers, for config.json */
  const kedge_tensor_name *names;
  uint32_t name_count;
  /* Names that take the place of `names` in the other layout that files may have. */
  const kedge_tensor_name *other_names;
  uint32_t other_count;
  const char *const *ignored; /* NULL-ended: suffixes of file tensors that are known to be stale */
  unsigned known_options;     /* KEDGE_OPTION_* that change the family's mathematics */
  /* Refuses configs that the family's mathematics does not cover and fills the options. */
  kedge_status (*options)(const kedge_hf_config *config, kedge_family_options *options);
} kedge_family;

/* Experts in one tensor a projection, as transformers holds them in memory: other_names of most families. */
extern const kedge_tensor_name kedge__fused_experts[];
enum { KEDGE_FUSED_EXPERTS = 3 };
extern const char *const kedge__stale_tensors[]; /* rotary tables: what every family ignores */

/* The family of a config's model_type; ERR_UNSUPPORTED names the type and the known ones. */
kedge_status kedge_family_find(const kedge_hf_config *config, const kedge_family **family);

/* Sets options of `config` from "NAME=VALUE,..." (NULL or "": none). ERR_ARGUMENT for an unknown name or
 * value, with the known ones; ERR_UNSUPPORTED where the family has nothing to choose. */
kedge_status kedge_model_options_set(kedge_hf_config *config, const char *text);
/* KEDGE_OPTION_* bits in the same form, in a fixed order. Returns `text`. */
const char *kedge_model_options_text(unsigned options, char text[KEDGE_MODEL_OPTIONS_TEXT]);
/* The bits that make a difference for a model of this config. */
unsigned kedge_model_options_open(const kedge_hf_config *config);

/* The epsilon of the norms inside latent attention. transformers takes 1e-6, whatever rms_norm_eps says. */
double kedge__latent_norm_eps(const kedge_hf_config *config);
/* For options of families with latent attention: ERR_UNSUPPORTED unless the config has a latent rank and as
 * many key as query heads. */
kedge_status kedge__check_latent(const kedge_hf_config *config);

extern const kedge_family kedge__family_qwen3_moe, kedge__family_qwen2_moe, kedge__family_olmoe,
    kedge__family_mixtral, kedge__family_granitemoe, kedge__family_deepseek_v2, kedge__family_deepseek_v3;

#endif
