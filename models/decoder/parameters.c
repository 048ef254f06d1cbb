/* SPDX-License-Identifier: Apache-2.0
 * The list of a model's parameters, from its config. */
#include "models/decoder/parameters.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The largest models known have under 200 000; a config that asks for far more is damaged or hostile. */
enum { MAX_TENSORS = 1 << 20 };

/* A name in files and what it stands for. */
typedef struct kedge_file_name {
  char name[KEDGE_NAME_SIZE];
  uint32_t item, part;
  bool tied;
} kedge_file_name;

/* Shape of a role's tensor. Returns the rank; 0 if this layer (dense or MoE) does not have the role. */
static uint32_t role_shape(const kedge_params *p, kedge_role role, uint32_t layer,
                           uint32_t dims[KEDGE_MAX_RANK]) {
  const kedge_hf_config *c = &p->config;
  const uint32_t D = c->hidden_size, V = c->vocab_size, E = c->num_experts, I = c->moe_intermediate_size,
                 F = c->intermediate_size, q = c->num_attention_heads * c->head_dim,
                 kv = c->num_key_value_heads * c->head_dim;
  const bool moe = kedge_hf_layer_is_sparse(c, layer);
  uint32_t rank = 2, a = 0, b = 0, d = 0;
  switch (role) {
  case KEDGE_ROLE_EMBED:
    a = V, b = D;
    break;
  case KEDGE_ROLE_HEAD:
    a = V, b = D, rank = c->tie_word_embeddings ? 0 : 2;
    break;
  case KEDGE_ROLE_FINAL_NORM:
  case KEDGE_ROLE_INPUT_NORM:
  case KEDGE_ROLE_POST_NORM:
    rank = 1, a = D;
    break;
  case KEDGE_ROLE_Q:
    a = q, b = D;
    break;
  case KEDGE_ROLE_K:
  case KEDGE_ROLE_V:
    a = kv, b = D;
    break;
  case KEDGE_ROLE_O:
    a = D, b = q;
    break;
  case KEDGE_ROLE_Q_NORM:
  case KEDGE_ROLE_K_NORM:
    rank = p->options.qk_norm ? 1 : 0, a = c->head_dim;
    break;
  case KEDGE_ROLE_MLP_GATE:
  case KEDGE_ROLE_MLP_UP:
    rank = moe ? 0 : 2, a = F, b = D;
    break;
  case KEDGE_ROLE_MLP_DOWN:
    rank = moe ? 0 : 2, a = D, b = F;
    break;
  case KEDGE_ROLE_ROUTER:
    rank = moe ? 2 : 0, a = E, b = D;
    break;
  case KEDGE_ROLE_EXPERT_GATE:
  case KEDGE_ROLE_EXPERT_UP:
    rank = moe ? 3 : 0, a = E, b = I, d = D;
    break;
  case KEDGE_ROLE_EXPERT_DOWN:
    rank = moe ? 3 : 0, a = E, b = D, d = I;
    break;
  case KEDGE_ROLE_COUNT:
    rank = 0;
    break;
  }
  const uint32_t all[KEDGE_MAX_RANK] = {a, b, d, 1};
  for (uint32_t i = 0; i < KEDGE_MAX_RANK; i++) dims[i] = i < rank ? all[i] : 1;
  return rank;
}

static const char *pattern_of(const kedge_family *family, kedge_role role) {
  for (uint32_t i = 0; i < family->name_count; i++)
    if (family->names[i].role == role) return family->names[i].pattern;
  return NULL;
}

static kedge_status add(kedge_params *p, kedge_role role, uint32_t layer) {
  kedge_param item = {.role = role, .layer = layer, .parts = 1, .pattern = pattern_of(p->family, role)};
  item.rank = role_shape(p, role, layer, item.dims);
  if (!item.rank || !item.pattern) return KEDGE_OK;
  if (kedge_param_count(&item) > INT32_MAX)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "config.json: %s would have more than 2147483647 elements",
                      item.pattern);
  if (strstr(item.pattern, "{e}")) item.parts = item.dims[0];
  item.decay = item.rank >= 2;
  uint32_t row = role < KEDGE_ROLE_GLOBAL_COUNT ? 0 : layer + 1;
  if (p->tensors + item.parts > MAX_TENSORS)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "config.json: a model of more than %d tensors", MAX_TENSORS);
  p->index[row * KEDGE_ROLE_COUNT + role] = p->count + 1;
  p->items[p->count++] = item;
  p->tensors += item.parts;
  uint64_t count = kedge_param_count(&item);
  p->total += count;
  bool expert = role >= KEDGE_ROLE_EXPERT_GATE && role <= KEDGE_ROLE_EXPERT_DOWN;
  if (expert) count = count / item.dims[0] * p->config.num_experts_per_tok;
  p->active += role == KEDGE_ROLE_EMBED && !p->config.tie_word_embeddings ? 0 : count;
  return KEDGE_OK;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const kedge_file_name *)a)->name, ((const kedge_file_name *)b)->name);
}

/* The sorted list of all file tensors. A tied head may be in files all the same. */
static kedge_status list_names(kedge_params *p) {
  p->names = kedge_alloc(p->tensors + 1, sizeof *p->names);
  if (!p->names) return KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; i < p->count; i++)
    for (uint32_t part = 0; part < p->items[i].parts; part++) {
      kedge_file_name *n = &p->names[p->name_count++];
      *n = (kedge_file_name){.item = i, .part = part};
      kedge_param_name(&p->items[i], part, n->name);
    }
  const char *head = pattern_of(p->family, KEDGE_ROLE_HEAD);
  if (head && p->config.tie_word_embeddings) {
    kedge_file_name *n = &p->names[p->name_count++];
    *n = (kedge_file_name){.item = kedge_params_find(p, KEDGE_ROLE_EMBED, 0), .tied = true};
    snprintf(n->name, sizeof n->name, "%s", head);
  }
  qsort(p->names, p->name_count, sizeof *p->names, by_name);
  return KEDGE_OK;
}

bool kedge_params_lookup(const kedge_params *p, const char *name, uint32_t *item, uint32_t *part,
                         bool *tied) {
  kedge_file_name key;
  if (strlen(name) >= sizeof key.name) return false;
  snprintf(key.name, sizeof key.name, "%s", name);
  const kedge_file_name *found = bsearch(&key, p->names, p->name_count, sizeof *p->names, by_name);
  if (!found) return false;
  *item = found->item;
  *part = found->part;
  *tied = found->tied;
  return true;
}

bool kedge_params_ignores(const kedge_params *p, const char *name) {
  size_t length = strlen(name);
  for (const char *const *suffix = p->family->ignored; *suffix; suffix++) {
    size_t tail = strlen(*suffix);
    if (length >= tail && !strcmp(name + length - tail, *suffix)) return true;
  }
  return false;
}

kedge_status kedge_params_init(kedge_params *p, const kedge_hf_config *config) {
  *p = (kedge_params){.config = *config};
  KEDGE_TRY(kedge_family_find(config, &p->family));
  KEDGE_TRY(p->family->options(config, &p->options));
  const uint32_t layers = config->num_hidden_layers;
  p->items = kedge_alloc((size_t)(layers + 1) * KEDGE_ROLE_COUNT, sizeof *p->items);
  p->index = kedge_alloc((size_t)(layers + 1) * KEDGE_ROLE_COUNT, sizeof *p->index);
  kedge_status status = p->items && p->index ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = add(p, KEDGE_ROLE_EMBED, 0);
  for (uint32_t l = 0; l < layers && status == KEDGE_OK; l++) {
    p->moe_layers += kedge_hf_layer_is_sparse(config, l);
    for (int role = KEDGE_ROLE_GLOBAL_COUNT; role < KEDGE_ROLE_COUNT && status == KEDGE_OK; role++)
      status = add(p, (kedge_role)role, l);
  }
  if (status == KEDGE_OK) status = add(p, KEDGE_ROLE_FINAL_NORM, 0);
  if (status == KEDGE_OK) status = add(p, KEDGE_ROLE_HEAD, 0);
  if (status == KEDGE_OK && !p->moe_layers)
    status = kedge_fail(KEDGE_ERR_UNSUPPORTED, "config.json: no layer is a mixture of experts");
  if (status == KEDGE_OK) status = list_names(p);
  if (status != KEDGE_OK) kedge_params_destroy(p);
  return status;
}

void kedge_params_destroy(kedge_params *p) {
  kedge_free(p->items);
  kedge_free(p->index);
  kedge_free(p->names);
  *p = (kedge_params){0};
}

uint32_t kedge_params_find(const kedge_params *p, kedge_role role, uint32_t layer) {
  uint32_t row = role < KEDGE_ROLE_GLOBAL_COUNT ? 0 : layer + 1;
  uint32_t at = p->index[row * KEDGE_ROLE_COUNT + role];
  return at ? at - 1 : UINT32_MAX;
}

bool kedge_params_is_moe(const kedge_params *p, uint32_t layer) {
  return kedge_hf_layer_is_sparse(&p->config, layer);
}

uint32_t kedge_params_moe_index(const kedge_params *p, uint32_t layer) {
  uint32_t index = 0;
  for (uint32_t l = 0; l < layer; l++) index += kedge_params_is_moe(p, l);
  return index;
}

uint32_t kedge_params_moe_layer(const kedge_params *p, uint32_t index) {
  uint32_t layer = 0;
  while (layer < p->config.num_hidden_layers && (!kedge_params_is_moe(p, layer) || index-- > 0)) layer++;
  return layer;
}

uint64_t kedge_param_count(const kedge_param *param) {
  uint64_t count = 1;
  for (uint32_t i = 0; i < param->rank; i++) count *= param->dims[i];
  return count;
}

void kedge_param_name(const kedge_param *param, uint32_t part, char name[KEDGE_NAME_SIZE]) {
  size_t at = 0;
  for (const char *c = param->pattern; *c && at + 12 < KEDGE_NAME_SIZE; c++) {
    bool layer = !strncmp(c, "{l}", 3), expert = !strncmp(c, "{e}", 3);
    if (layer || expert) {
      bool star = expert && part == param->parts && param->parts > 1;
      at += (size_t)(star ? snprintf(name + at, 12, "*")
                          : snprintf(name + at, 12, "%u", layer ? param->layer : part));
      c += 2;
    } else {
      name[at++] = *c;
    }
  }
  name[at] = 0;
}

uint32_t kedge_param_part_shape(const kedge_param *param, uint64_t shape[KEDGE_MAX_RANK]) {
  uint32_t skip = param->parts > 1 || strstr(param->pattern, "{e}") ? 1 : 0;
  for (uint32_t i = 0; i + skip < param->rank; i++) shape[i] = param->dims[i + skip];
  return param->rank - skip;
}

bool kedge_param_is_router(const kedge_param *param) {
  return param->role == KEDGE_ROLE_ROUTER;
}
