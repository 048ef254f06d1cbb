/* SPDX-License-Identifier: Apache-2.0
 *
 * A model family: its tensor names and options, as data. One file a family (qwen3_moe.c, ...), listed in
 * families.c; the shared builders (blocks.c, decoder.c) read options and never ask which family they serve.
 */
#ifndef KEDGE_MODELS_DECODER_FAMILY_H
#define KEDGE_MODELS_DECODER_FAMILY_H

#include "models/checkpoint/hf_config.h"

/* What a weight is for. Global roles first, then roles of a layer. */
typedef enum kedge_role {
  KEDGE_ROLE_EMBED,      /* [V,D] */
  KEDGE_ROLE_FINAL_NORM, /* [D] */
  KEDGE_ROLE_HEAD,       /* [V,D], absent when tied to the embedding */
  KEDGE_ROLE_GLOBAL_COUNT,
  KEDGE_ROLE_INPUT_NORM = KEDGE_ROLE_GLOBAL_COUNT, /* [D] before attention */
  KEDGE_ROLE_Q,                                    /* [H*dqk,D] */
  KEDGE_ROLE_K,                                    /* [Hkv*dqk,D] */
  KEDGE_ROLE_V,                                    /* [Hkv*dv,D] */
  KEDGE_ROLE_O,                                    /* [D,H*dv] */
  KEDGE_ROLE_Q_NORM,                               /* [dqk], one for all heads */
  KEDGE_ROLE_K_NORM,                               /* [dqk] */
  KEDGE_ROLE_POST_NORM,                            /* [D] before the MLP or MoE */
  KEDGE_ROLE_MLP_GATE,                             /* [F,D] dense layers */
  KEDGE_ROLE_MLP_UP,                               /* [F,D] */
  KEDGE_ROLE_MLP_DOWN,                             /* [D,F] */
  KEDGE_ROLE_ROUTER,                               /* [E,D] */
  KEDGE_ROLE_EXPERT_GATE,                          /* [E,I,D], one file tensor an expert */
  KEDGE_ROLE_EXPERT_UP,                            /* [E,I,D] */
  KEDGE_ROLE_EXPERT_DOWN,                          /* [E,D,I] */
  KEDGE_ROLE_COUNT
} kedge_role;

/* Name of a role's tensor in files; "{l}" stands for the layer, "{e}" for the expert. */
typedef struct kedge_tensor_name {
  kedge_role role;
  const char *pattern;
} kedge_tensor_name;

/* Everything in which families differ, beyond names and what the config says itself. */
typedef struct kedge_family_options {
  bool qk_norm;           /* RMS norm of each query and key head, before rope */
  bool rope_interleaved;  /* pairs (2i, 2i+1) instead of (i, i + d/2) */
  double attention_scale; /* of q.k */
  uint32_t score_kind;    /* KEDGE_SCORE_* */
  bool gate_normalise;    /* gate weights divided by their sum over the chosen */
  double gate_alpha;      /* routed scaling factor */
  double gate_epsilon;    /* added to that sum */
} kedge_family_options;

typedef struct kedge_family {
  const char *model_type;
  const char *architecture; /* class of transformers, for config.json */
  const kedge_tensor_name *names;
  uint32_t name_count;
  const char *const *ignored; /* NULL-ended: suffixes of file tensors that are known to be stale */
  /* Refuses configs that the family's mathematics does not cover and fills the options. */
  kedge_status (*options)(const kedge_hf_config *config, kedge_family_options *options);
} kedge_family;

/* The family of a config's model_type; ERR_UNSUPPORTED names the type and the known ones. */
kedge_status kedge_family_find(const kedge_hf_config *config, const kedge_family **family);

extern const kedge_family kedge__family_qwen3_moe;

#endif
