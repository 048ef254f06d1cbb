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

static uint32_t shape(uint32_t dims[KEDGE_MAX_RANK], uint32_t rank, uint32_t a, uint32_t b, uint32_t c) {
  const uint32_t all[KEDGE_MAX_RANK] = {a, b, c, 1};
  for (uint32_t i = 0; i < KEDGE_MAX_RANK; i++) dims[i] = i < rank ? all[i] : 1;
  return rank;
}

/* Attention: queries, keys and values directly, or through latents. */
static uint32_t attention_shape(const kedge_params *p, kedge_role role, uint32_t *dims) {
  const kedge_hf_config *c = &p->config;
  const bool latent = c->kv_lora_rank > 0, q_latent = latent && c->q_lora_rank > 0;
  const bool full = p->options.qk_norm == KEDGE_QK_NORM_FULL, normed = full || p->options.qk_norm;
  const uint32_t D = c->hidden_size, H = c->num_attention_heads, q = H * c->head_dim,
                 k = c->num_key_value_heads * c->head_dim, v = c->num_key_value_heads * c->v_head_dim;
  switch (role) {
  case KEDGE_ROLE_Q:
    return shape(dims, q_latent ? 0 : 2, q, D, 1);
  case KEDGE_ROLE_K:
    return shape(dims, latent ? 0 : 2, k, D, 1);
  case KEDGE_ROLE_V:
    return shape(dims, latent ? 0 : 2, v, D, 1);
  case KEDGE_ROLE_Q_BIAS:
    return shape(dims, c->qkv_bias ? 1 : 0, q, 1, 1);
  case KEDGE_ROLE_K_BIAS:
    return shape(dims, c->qkv_bias ? 1 : 0, k, 1, 1);
  case KEDGE_ROLE_V_BIAS:
    return shape(dims, c->qkv_bias ? 1 : 0, v, 1, 1);
  case KEDGE_ROLE_Q_A:
    return shape(dims, q_latent ? 2 : 0, c->q_lora_rank, D, 1);
  case KEDGE_ROLE_Q_A_NORM:
    return shape(dims, q_latent ? 1 : 0, c->q_lora_rank, 1, 1);
  case KEDGE_ROLE_Q_B:
    return shape(dims, q_latent ? 2 : 0, q, c->q_lora_rank, 1);
  case KEDGE_ROLE_KV_A:
    return shape(dims, latent ? 2 : 0, c->kv_lora_rank + c->qk_rope_head_dim, D, 1);
  case KEDGE_ROLE_KV_A_NORM:
    return shape(dims, latent ? 1 : 0, c->kv_lora_rank, 1, 1);
  case KEDGE_ROLE_KV_B:
    return shape(dims, latent ? 2 : 0, H * (c->qk_nope_head_dim + c->v_head_dim), c->kv_lora_rank, 1);
  case KEDGE_ROLE_O:
    return shape(dims, 2, D, H * c->v_head_dim, 1);
  case KEDGE_ROLE_Q_NORM:
    return shape(dims, normed ? 1 : 0, full ? q : c->head_dim, 1, 1);
  case KEDGE_ROLE_K_NORM:
    return shape(dims, normed ? 1 : 0, full ? k : c->head_dim, 1, 1);
  default:
    return 0;
  }
}

/* A dense MLP, or a router with its experts. */
static uint32_t feed_forward_shape(const kedge_params *p, kedge_role role, bool moe, uint32_t *dims) {
  const kedge_hf_config *c = &p->config;
  const uint32_t D = c->hidden_size, E = c->num_experts, I = c->moe_intermediate_size,
                 F = c->intermediate_size, S = p->options.shared_width;
  switch (role) {
  case KEDGE_ROLE_MLP_GATE:
  case KEDGE_ROLE_MLP_UP:
    return shape(dims, moe ? 0 : 2, F, D, 1);
  case KEDGE_ROLE_MLP_DOWN:
    return shape(dims, moe ? 0 : 2, D, F, 1);
  case KEDGE_ROLE_ROUTER:
    return shape(dims, moe ? 2 : 0, E, D, 1);
  case KEDGE_ROLE_ROUTER_CORRECTION:
    return shape(dims, moe && p->options.correction ? 1 : 0, E, 1, 1);
  case KEDGE_ROLE_EXPERT_GATE:
  case KEDGE_ROLE_EXPERT_UP:
    return shape(dims, moe ? 3 : 0, E, I, D);
  case KEDGE_ROLE_EXPERT_DOWN:
    return shape(dims, moe ? 3 : 0, E, D, I);
  case KEDGE_ROLE_SHARED_GATE:
  case KEDGE_ROLE_SHARED_UP:
    return shape(dims, moe && S ? 2 : 0, S, D, 1);
  case KEDGE_ROLE_SHARED_DOWN:
    return shape(dims, moe && S ? 2 : 0, D, S, 1);
  case KEDGE_ROLE_SHARED_ROUTER:
    return shape(dims, moe && S && p->options.shared_gated ? 2 : 0, 1, D, 1);
  default:
    return 0;
  }
}

/* Shape of a role's tensor. Returns the rank; 0 if this layer (dense or MoE) does not have the role. */
static uint32_t role_shape(const kedge_params *p, kedge_role role, uint32_t layer,
                           uint32_t dims[KEDGE_MAX_RANK]) {
  const kedge_hf_config *c = &p->config;
  switch (role) {
  case KEDGE_ROLE_EMBED:
    return shape(dims, 2, c->vocab_size, c->hidden_size, 1);
  case KEDGE_ROLE_HEAD:
    return shape(dims, c->tie_word_embeddings ? 0 : 2, c->vocab_size, c->hidden_size, 1);
  case KEDGE_ROLE_FINAL_NORM:
  case KEDGE_ROLE_INPUT_NORM:
  case KEDGE_ROLE_POST_NORM:
    return shape(dims, 1, c->hidden_size, 1, 1);
  default:
    return role < KEDGE_ROLE_POST_NORM
               ? attention_shape(p, role, dims)
               : feed_forward_shape(p, role, kedge_hf_layer_is_sparse(c, layer), dims);
  }
}

static const char *find_name(const kedge_tensor_name *names, uint32_t count, kedge_role role) {
  for (uint32_t i = 0; i < count; i++)
    if (names[i].role == role) return names[i].pattern;
  return NULL;
}

static const char *pattern_of(const kedge_params *p, kedge_role role) {
  const kedge_family *f = p->family;
  const char *other = p->other_layout ? find_name(f->other_names, f->other_count, role) : NULL;
  return other ? other : find_name(f->names, f->name_count, role);
}

/* Whether gate and up of the experts lie in one file tensor. */
static bool is_paired(const kedge_params *p, kedge_role role) {
  if (role != KEDGE_ROLE_EXPERT_GATE && role != KEDGE_ROLE_EXPERT_UP) return false;
  return !strcmp(pattern_of(p, KEDGE_ROLE_EXPERT_GATE), pattern_of(p, KEDGE_ROLE_EXPERT_UP));
}

/* Counts a parameter and its file tensors. */
static kedge_status count_item(kedge_params *p, const kedge_param *item) {
  const bool expert = kedge_role_is_expert(item->role);
  uint64_t count = kedge_param_total(item);
  p->tensors += item->second ? 0 : item->parts;
  if (p->tensors > MAX_TENSORS)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "config.json: a model of more than %d tensors", MAX_TENSORS);
  if (item->fixed) {
    p->fixed += count;
    return KEDGE_OK;
  }
  p->total += count;
  if (item->wide) p->wide += count;
  if (expert) count = count / item->experts * p->config.num_experts_per_tok;
  p->active += item->role == KEDGE_ROLE_EMBED && !p->config.tie_word_embeddings ? 0 : count;
  return KEDGE_OK;
}

static kedge_status add(kedge_params *p, kedge_role role, uint32_t layer) {
  kedge_param item = {.role = role, .layer = layer, .parts = 1, .pattern = pattern_of(p, role)};
  item.rank = role_shape(p, role, layer, item.dims);
  if (!item.rank) return KEDGE_OK;
  if (!item.pattern)
    return kedge_fail(
        KEDGE_ERR_UNSUPPORTED,
        "config.json: layer %u needs weights that %s models do not have: expected no "
        "\"kv_lora_rank\" or \"qkv_bias\", and experts in every layer, unless the family has them",
        layer, p->family->model_type);
  if (kedge_param_count(&item) > INT32_MAX)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "config.json: %s would have more than 2147483647 elements",
                      item.pattern);
  if (strstr(item.pattern, "{e}")) item.parts = item.dims[0];
  if (kedge_role_is_expert(role)) {
    item.experts = item.dims[0];
    item.dims[0] /= p->members;
    item.first = item.dims[0] * p->member;
  }
  item.paired = is_paired(p, role);
  item.second = item.paired && role == KEDGE_ROLE_EXPERT_UP;
  item.decay = item.rank >= 2;
  item.fixed = role == KEDGE_ROLE_ROUTER_CORRECTION;
  item.wide = item.fixed || role == KEDGE_ROLE_ROUTER;
  uint32_t row = role < KEDGE_ROLE_GLOBAL_COUNT ? 0 : layer + 1;
  p->index[row * KEDGE_ROLE_COUNT + role] = p->count + 1;
  p->items[p->count++] = item;
  return count_item(p, &item);
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const kedge_file_name *)a)->name, ((const kedge_file_name *)b)->name);
}

/* The sorted list of all file tensors. A tied head may be in files all the same. */
static kedge_status list_names(kedge_params *p) {
  p->names = kedge_alloc(p->tensors + 1, sizeof *p->names);
  if (!p->names) return KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; i < p->count; i++)
    for (uint32_t part = 0; part < p->items[i].parts && !p->items[i].second; part++) {
      kedge_file_name *n = &p->names[p->name_count++];
      *n = (kedge_file_name){.item = i, .part = part};
      kedge_param_name(&p->items[i], part, n->name);
    }
  const char *head = pattern_of(p, KEDGE_ROLE_HEAD);
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

/* Layers behind the stack that predict further tokens. */
static bool is_extra_layer(const kedge_params *p, const char *name) {
  const char prefix[] = "model.layers.";
  if (strncmp(name, prefix, sizeof prefix - 1)) return false;
  const char *digits = name + sizeof prefix - 1;
  char *end;
  if (*digits < '0' || *digits > '9') return false;
  unsigned long layer = strtoul(digits, &end, 10);
  return *end == '.' && layer >= p->config.num_hidden_layers &&
         layer - p->config.num_hidden_layers < p->config.num_nextn_predict_layers;
}

bool kedge_params_ignores(const kedge_params *p, const char *name) {
  size_t length = strlen(name);
  for (const char *const *suffix = p->family->ignored; *suffix; suffix++) {
    size_t tail = strlen(*suffix);
    if (length >= tail && !strcmp(name + length - tail, *suffix)) return true;
  }
  return is_extra_layer(p, name);
}

/* Lists parameters and names in the layout that `other_layout` says. */
static kedge_status list_items(kedge_params *p) {
  const uint32_t layers = p->config.num_hidden_layers;
  memset(p->index, 0, (size_t)(layers + 1) * KEDGE_ROLE_COUNT * sizeof *p->index);
  kedge_free(p->names);
  p->names = NULL;
  p->count = p->moe_layers = p->name_count = 0;
  p->total = p->wide = p->fixed = p->tensors = p->active = 0;
  KEDGE_TRY(add(p, KEDGE_ROLE_EMBED, 0));
  for (uint32_t l = 0; l < layers; l++) {
    p->moe_layers += kedge_hf_layer_is_sparse(&p->config, l);
    for (int role = KEDGE_ROLE_GLOBAL_COUNT; role < KEDGE_ROLE_COUNT; role++)
      KEDGE_TRY(add(p, (kedge_role)role, l));
  }
  KEDGE_TRY(add(p, KEDGE_ROLE_FINAL_NORM, 0));
  KEDGE_TRY(add(p, KEDGE_ROLE_HEAD, 0));
  if (!p->moe_layers)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "config.json: no layer is a mixture of experts");
  return list_names(p);
}

/* Widths that are products of several keys. */
static kedge_status check_widths(const kedge_hf_config *c) {
  const uint64_t heads = c->num_attention_heads, kv = c->num_key_value_heads;
  const uint64_t widths[] = {heads * c->head_dim, heads * ((uint64_t)c->qk_nope_head_dim + c->v_head_dim),
                             kv * c->head_dim, (uint64_t)c->n_shared_experts * c->moe_intermediate_size};
  for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
    if (widths[i] > INT32_MAX)
      return kedge_fail(KEDGE_ERR_UNSUPPORTED,
                        "config.json: heads or shared experts together are %llu wide, more than 2147483647",
                        (unsigned long long)widths[i]);
  return KEDGE_OK;
}

kedge_status kedge_params_init(kedge_params *p, const kedge_hf_config *config) {
  return kedge_params_init_part(p, config, 1, 0);
}

kedge_status kedge_params_init_part(kedge_params *p, const kedge_hf_config *config, uint32_t members,
                                    uint32_t member) {
  *p = (kedge_params){.config = *config, .members = members, .member = member};
  if (config->num_experts % members)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "key \"expert_parallel\": %u ranks cannot share %u experts evenly",
                      members, config->num_experts);
  KEDGE_TRY(kedge_family_find(config, &p->family));
  KEDGE_TRY(check_widths(config));
  KEDGE_TRY(p->family->options(config, &p->options));
  const size_t most = (size_t)(config->num_hidden_layers + 1) * KEDGE_ROLE_COUNT;
  p->items = kedge_alloc(most, sizeof *p->items);
  p->index = kedge_alloc(most, sizeof *p->index);
  kedge_status status = p->items && p->index ? list_items(p) : KEDGE_ERR_MEMORY;
  if (status != KEDGE_OK) kedge_params_destroy(p);
  return status;
}

kedge_status kedge_params_fit(kedge_params *p, const kedge_checkpoint *files) {
  const char *pattern = find_name(p->family->other_names, p->family->other_count, KEDGE_ROLE_EXPERT_DOWN);
  if (!pattern || p->other_layout) return KEDGE_OK;
  const kedge_param stack = {
      .layer = kedge_params_moe_layer(p, 0), .parts = p->config.num_experts, .pattern = pattern};
  char name[KEDGE_NAME_SIZE];
  kedge_param_name(&stack, 0, name);
  if (!kedge_checkpoint_find(files, name)) return KEDGE_OK;
  p->other_layout = true;
  return list_items(p);
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

uint64_t kedge_param_total(const kedge_param *param) {
  const uint64_t count = kedge_param_count(param);
  return param->experts ? count / param->dims[0] * param->experts : count;
}

kedge_dtype kedge_param_dtype(const kedge_param *param, kedge_dtype model) {
  return param->wide && model == KEDGE_BF16 ? KEDGE_F32 : model;
}

void kedge_param_name(const kedge_param *param, uint32_t part, char name[KEDGE_NAME_SIZE]) {
  const bool own = part == param->parts;
  size_t at = 0;
  for (const char *c = param->pattern; *c && at + 12 < KEDGE_NAME_SIZE; c++) {
    bool layer = !strncmp(c, "{l}", 3), expert = !strncmp(c, "{e}", 3);
    if (layer || expert) {
      at += (size_t)(expert && own ? snprintf(name + at, 12, "*")
                                   : snprintf(name + at, 12, "%u", layer ? param->layer : part));
      c += 2;
    } else {
      name[at++] = *c;
    }
  }
  name[at] = 0;
  if (own && param->paired) snprintf(name + at, KEDGE_NAME_SIZE - at, param->second ? ".up" : ".gate");
}

/* Gate and up of an expert alternate in a paired tensor; everything else lies as on the device. */
kedge_run kedge_params_run(const kedge_params *p, uint32_t item, uint32_t part, uint64_t at) {
  const kedge_param *param = &p->items[item];
  const uint64_t whole = kedge_param_total(param), each = whole / param->parts;
  if (!param->paired) return (kedge_run){item, each * part + at, each - at};
  const uint64_t half = whole / param->experts, block = at / half;
  const kedge_role role = block % 2 ? KEDGE_ROLE_EXPERT_UP : KEDGE_ROLE_EXPERT_GATE;
  return (kedge_run){kedge_params_find(p, role, param->layer), block / 2 * half + at % half,
                     half - at % half};
}

uint32_t kedge_param_part_shape(const kedge_param *param, uint64_t shape_[KEDGE_MAX_RANK]) {
  uint32_t skip = strstr(param->pattern, "{e}") ? 1 : 0;
  for (uint32_t i = 0; i + skip < param->rank; i++) shape_[i] = param->dims[i + skip];
  if (param->experts && !skip) shape_[0] = param->experts;
  if (param->paired) shape_[1] *= 2;
  return param->rank - skip;
}

bool kedge_param_is_router(const kedge_param *param) {
  return param->role == KEDGE_ROLE_ROUTER;
}
