/* SPDX-License-Identifier: Apache-2.0
 * What a study is: sizes, conditions, amounts (lab.h). docs/study.md explains the choices. */
#include "tools/lab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const lab_condition conditions[] = {
    {"sft", "SFT", "none", NULL, 0, NULL, false, false, false},
    {"lbl_1e-3", "LBL 0.001", "lbl", "coef", 1e-3, NULL, false, false, false},
    {"lbl_1e-2", "LBL 0.01", "lbl", "coef", 1e-2, NULL, false, false, false},
    {"lbl_1e-1", "LBL 0.1", "lbl", "coef", 1e-1, NULL, false, false, false},
    {"rpb_0.5", "RPB 0.5", "rpb", "beta", 0.5, NULL, true, false, true},
    {"rpb_1", "RPB 1", "rpb", "beta", 1, NULL, true, false, true},
    {"rpb_hard", "RPB hard", "rpb_hard", NULL, 0, NULL, true, false, false},
    {"within_soft", "Within, soft", "rpb", "beta", 1, "router.shuffle=within", true, true, false},
    {"within_hard", "Within, hard", "rpb_hard", NULL, 0, "router.shuffle=within", true, true, false},
    {"global_soft", "Global, soft", "rpb", "beta", 1, "router.shuffle=global", true, false, false},
    {"global_hard", "Global, hard", "rpb_hard", NULL, 0, "router.shuffle=global", true, false, false},
    {"router_l2", "Router-L2", "router_l2", "coef", 1e4, NULL, false, false, false},
    {"kl", "KL", "kl", "coef", 0.1, NULL, true, false, false},
    {"logit_l2", "Logit-L2", "logit_l2", "coef", 1e-3, NULL, true, false, false},
    {"kl_token", "KL per token", "kl_token", "coef", 0.1, NULL, false, false, false},
    {"z_loss", "z-loss", "z_loss", "coef", 1e-3, NULL, false, false, false},
    {"freeze", "Frozen router", "freeze", NULL, 0, NULL, false, false, false},
};

static const lab_size sizes[] = {
    {"E16K2", 96, 3, 4, 24, 16, 2, 32}, {"E32K4", 96, 3, 4, 24, 32, 4, 16}, {"E8K2", 32, 2, 2, 16, 8, 2, 16}};

/* brief and tiny are those of the demonstration and of tests. */
static const lab_arm arms[] = {
    {"short", 300, 2e-4}, {"long", 1200, 1e-4}, {"brief", 150, 5e-4}, {"tiny", 12, 1e-3}};

static const lab_preset presets[] = {
    {.name = "quick",
     .remark = "a demonstration without power: two bases, few conditions",
     .sizes = "E16K2",
     .shifts = "arithmetic",
     .arms = "brief",
     .conditions = "sft lbl_1e-2 rpb_1 kl_token",
     .bases = 2,
     .seeds = 3,
     .pretrain_steps = 900,
     .pretrain_batch = 64,
     .samples = 1000,
     .items = 200,
     .probe_rows = 30,
     .pretrain_rate = 3e-3},
    {.name = "standard",
     .remark = "all conditions on four bases and two shifts",
     .sizes = "E16K2",
     .shifts = "arithmetic strings",
     .arms = "short",
     .bases = 4,
     .seeds = 3,
     .pretrain_steps = 1500,
     .pretrain_batch = 64,
     .samples = 2000,
     .items = 1000,
     .probe_rows = 60,
     .pretrain_rate = 3e-3},
    {.name = "full",
     .remark = "all conditions on six bases of each size, two shifts, short and long runs",
     .sizes = "E16K2 E32K4",
     .shifts = "arithmetic strings",
     .arms = "short long",
     .bases = 6,
     .seeds = 5,
     .pretrain_steps = 1500,
     .pretrain_batch = 64,
     .samples = 2000,
     .items = 1000,
     .probe_rows = 60,
     .pretrain_rate = 3e-3},
    {.name = "micro",
     .remark = "for tests of the command: its numbers mean nothing",
     .sizes = "E8K2",
     .shifts = "arithmetic",
     .arms = "tiny",
     .conditions = "sft rpb_1 within_soft",
     .bases = 1,
     .seeds = 2,
     .pretrain_steps = 60,
     .pretrain_batch = 16,
     .samples = 64,
     .items = 12,
     .probe_rows = 6,
     .pretrain_rate = 3e-3}};

#define COUNT(list) (sizeof(list) / sizeof *(list))

const lab_preset *lab_preset_find(const char *name) {
  for (size_t i = 0; i < COUNT(presets); i++)
    if (!strcmp(name, presets[i].name)) return &presets[i];
  return NULL;
}

const lab_condition *lab_condition_at(uint32_t index) {
  return index < COUNT(conditions) ? &conditions[index] : NULL;
}

static bool named(const char *name, const char *text, size_t length) {
  return strlen(name) == length && !memcmp(name, text, length);
}

const lab_size *lab_size_find(const char *name, size_t length) {
  for (size_t i = 0; i < COUNT(sizes); i++)
    if (named(sizes[i].name, name, length)) return &sizes[i];
  return NULL;
}

const lab_arm *lab_arm_find(const char *name, size_t length) {
  for (size_t i = 0; i < COUNT(arms); i++)
    if (named(arms[i].name, name, length)) return &arms[i];
  return NULL;
}

size_t lab_next_name(const char **at) {
  *at += strspn(*at, " ");
  return strcspn(*at, " ");
}

bool lab_preset_has(const lab_preset *preset, const lab_condition *condition) {
  if (!preset->conditions) return true;
  const char *at = preset->conditions;
  for (size_t n; (n = lab_next_name(&at)); at += n)
    if (named(condition->name, at, n)) return true;
  return false;
}

/* First the five domains, then their shifted forms. */
const char *lab_suite_name(uint32_t suite) {
  const kedge_corpus_domain *d = kedge_corpus_domain_at(suite % KEDGE_CORPUS_DOMAINS);
  return suite < KEDGE_CORPUS_DOMAINS ? d->name : d->shifted;
}

kedge_corpus_split lab_suite_split(uint32_t suite) {
  return suite < KEDGE_CORPUS_DOMAINS ? KEDGE_CORPUS_TEST : KEDGE_CORPUS_SHIFT_TEST;
}

/* ---- As JSON
 * ----------------------------------------------------------------------------------------------------- */

static json_t *names_json(const char *at) {
  json_t *list = json_array();
  for (size_t n; (n = lab_next_name(&at)); at += n) json_array_append_new(list, json_stringn(at, n));
  return list;
}

static json_t *arms_json(const char *at) {
  json_t *list = json_array();
  for (size_t n; (n = lab_next_name(&at)); at += n) {
    const lab_arm *arm = lab_arm_find(at, n);
    json_array_append_new(list, json_pack("{s:s, s:I, s:f}", "name", arm->name, "steps",
                                          (json_int_t)arm->steps, "learning_rate", arm->rate));
  }
  return list;
}

static json_t *conditions_json(const lab_preset *p) {
  json_t *list = json_array();
  for (size_t i = 0; i < COUNT(conditions); i++) {
    const lab_condition *c = &conditions[i];
    if (!lab_preset_has(p, c)) continue;
    json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s?, s:o}", "name", c->name, "label", c->label,
                                          "intervention", c->intervention, "setting", c->setting, "strength",
                                          c->setting ? json_real(c->strength) : json_null()));
  }
  return list;
}

static json_t *amounts_json(const lab_preset *p) {
  return json_pack("{s:s, s:o, s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:o}", "remark", p->remark, "sizes",
                   names_json(p->sizes), "bases", (json_int_t)p->bases, "seeds", (json_int_t)p->seeds,
                   "pretrain_steps", (json_int_t)p->pretrain_steps, "pretrain_batch",
                   (json_int_t)p->pretrain_batch, "pretrain_learning_rate", p->pretrain_rate, "samples",
                   (json_int_t)p->samples, "items", (json_int_t)p->items, "probe_rows",
                   (json_int_t)p->probe_rows, "arms", arms_json(p->arms));
}

/* The contrasts that the study is for, as far as it has their conditions. */
static json_t *primary_json(const lab_preset *p) {
  static const char *const pairs[][2] = {{"lbl_1e-2", "sft"}, {"rpb_1", "sft"}};
  json_t *list = json_array();
  for (size_t i = 0; i < COUNT(pairs); i++) {
    bool both[2] = {false, false};
    for (size_t c = 0; c < COUNT(conditions); c++)
      for (int side = 0; side < 2; side++)
        both[side] |= !strcmp(conditions[c].name, pairs[i][side]) && lab_preset_has(p, &conditions[c]);
    if (both[0] && both[1]) json_array_append_new(list, json_pack("[s,s]", pairs[i][0], pairs[i][1]));
  }
  return list;
}

json_t *lab_describe(const lab_preset *p) {
  json_t *domains = json_array(), *splits = json_array(), *bases = json_array(), *chosen = conditions_json(p);
  size_t runs = 0;
  for (uint32_t d = 0; d < KEDGE_CORPUS_DOMAINS; d++)
    json_array_append_new(domains, json_string(lab_suite_name(d)));
  const char *at = p->shifts;
  for (size_t n; (n = lab_next_name(&at)); at += n)
    for (uint32_t d = 0; d < KEDGE_CORPUS_DOMAINS; d++)
      if (named(lab_suite_name(d), at, n))
        json_array_append_new(splits, json_string(lab_suite_name(d + KEDGE_CORPUS_DOMAINS)));
  at = p->sizes;
  for (size_t n; (n = lab_next_name(&at)); at += n)
    for (uint32_t b = 0; b < p->bases; b++)
      json_array_append_new(bases, json_sprintf("%.*s-b%u", (int)n, at, b));
  at = p->arms;
  for (size_t n; (n = lab_next_name(&at)); at += n)
    runs += json_array_size(splits) * p->seeds * json_array_size(chosen);
  const size_t cells = json_array_size(bases) * (1 + runs);
  return json_pack("{s:i, s:s, s:o, s:I, s:o, s:o, s:o, s:o, s:o}", "kedge_lab", 1, "preset", p->name,
                   "protocol", amounts_json(p), "cells_expected", (json_int_t)cells, "bases", bases,
                   "conditions", chosen, "domains", domains, "splits", splits, "primary", primary_json(p));
}

char *lab_config_text(const lab_size *s) {
  return kedge_format(
      "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"model_type\": \"qwen3_moe\", \"vocab_size\": 512,\n"
      " \"hidden_size\": %u, \"num_hidden_layers\": %u, \"num_attention_heads\": %u,\n"
      " \"num_key_value_heads\": %u, \"head_dim\": %u, \"num_experts\": %u, \"num_experts_per_tok\": %u,\n"
      " \"moe_intermediate_size\": %u, \"intermediate_size\": 128, \"norm_topk_prob\": true,\n"
      " \"decoder_sparse_step\": 1, \"mlp_only_layers\": [], \"max_position_embeddings\": 256,\n"
      " \"rope_theta\": 10000, \"rms_norm_eps\": 1e-6, \"hidden_act\": \"silu\", \"tie_word_embeddings\": "
      "true,\n"
      " \"initializer_range\": 0.1, \"torch_dtype\": \"float32\", \"attention_bias\": false,\n"
      " \"eos_token_id\": 0, \"output_router_logits\": false}\n",
      s->hidden, s->layers, s->heads, s->heads, s->head, s->experts, s->top, s->width);
}
