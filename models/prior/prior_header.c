/* SPDX-License-Identifier: Apache-2.0
 * The header of a new prior file, and the identity in it. prior.c reads one, prior_check.c compares. */
#include "models/prior/prior_internal.h"

#include "models/checkpoint/hash.h"
#include "models/checkpoint/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_CAP = 16 << 20 };

/* ---- Header
 * ------------------------------------------------------------------------------------------------ */

static void pair(kedge__prior_header *h, const char *key, const char *value) {
  if (*value) h->pairs[h->pair_count++] = (kedge_st_pair){key, value};
}

void kedge__prior_header_init(kedge__prior_header *h, uint32_t samples, uint32_t layers, uint32_t experts,
                              bool half, const kedge_prior_identity *id, uint32_t top_k,
                              const kedge_shuffle *shuffle) {
  *h = (kedge__prior_header){.pair_count = 0};
  h->specs[KEDGE__PRIOR_IDS] = (kedge_st_spec){"sample_ids", KEDGE_ST_I64, 1, {samples}};
  h->specs[KEDGE__PRIOR_COUNTS] = (kedge_st_spec){"counts", KEDGE_ST_I32, 2, {samples, 2}};
  h->specs[KEDGE__PRIOR_LAYERS] = (kedge_st_spec){"layers", KEDGE_ST_I32, 1, {layers}};
  h->specs[KEDGE__PRIOR_ROWS] =
      (kedge_st_spec){"prior_qa", half ? KEDGE_ST_F16 : KEDGE_ST_F32, 4, {samples, 2, layers, experts}};
  snprintf(h->max_length, sizeof h->max_length, "%u", id->max_length);
  if (top_k) snprintf(h->top_k, sizeof h->top_k, "%u", top_k);
  pair(h, "kedge_prior", *id->tensors ? "2" : "1"); /* a copy of an old file knows no more than it */
  pair(h, "base_hash", id->base);
  pair(h, "config_hash", id->config);
  pair(h, "tensor_table_hash", id->tensors);
  pair(h, "router_hash", id->router);
  pair(h, "tokenizer_hash", id->tokenizer);
  pair(h, "data_hash", id->data);
  pair(h, "max_length", h->max_length);
  pair(h, "template", id->templates);
  pair(h, "dtype", half ? "f16" : "f32");
  pair(h, "top_k", h->top_k);
  pair(h, "kedge_version", kedge_version());
  if (!shuffle) return;
  snprintf(h->seed, sizeof h->seed, "%llu", (unsigned long long)shuffle->seed);
  pair(h, "shuffle", kedge_shuffle_mode_name(shuffle->mode));
  pair(h, "shuffle_seed", h->seed);
  pair(h, "communities_hash", shuffle->communities);
}

/* ---- Identity
 * ---------------------------------------------------------------------------------------------- */

/* config.json without what its writer notes down and no computation reads, keys in order. */
static kedge_status hash_config(const char *directory, char text[33]) {
  static const char *const unread[] = {"_name_or_path", "architectures", "transformers_version", "use_cache"};
  char *path = kedge_format("%s/config.json", directory), *dump = NULL;
  json_t *root = NULL;
  kedge_hash *hash = NULL;
  kedge_status status = path ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = kedge__json_load(path, CONFIG_CAP, &root);
  if (status == KEDGE_OK) {
    for (size_t i = 0; i < sizeof unread / sizeof *unread; i++) json_object_del(root, unread[i]);
    dump = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
    hash = dump ? kedge_hash_new() : NULL;
    status = hash ? KEDGE_OK : KEDGE_ERR_MEMORY;
  }
  if (status == KEDGE_OK) {
    kedge_hash_add_text(hash, dump);
    kedge_hash_text(hash, text);
  }
  kedge_hash_free(hash);
  free(dump);
  json_decref(root);
  kedge_free(path);
  return status;
}

static bool is_router(const kedge_params *params, const char *name) {
  uint32_t item, part;
  bool tied;
  return kedge_params_lookup(params, name, &item, &part, &tied) &&
         kedge_param_is_router(&params->items[item]);
}

/* Of all tensors their names, dtypes and shapes; of the router's the bytes too. */
static kedge_status hash_parts(const kedge_model *m, kedge_prior_identity *id) {
  kedge_hash *table = kedge_hash_new(), *router = kedge_hash_new();
  kedge_status status = table && router ? KEDGE_OK : KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; status == KEDGE_OK && i < kedge_checkpoint_count(m->source); i++) {
    const kedge_st_tensor *tensor = kedge_checkpoint_by_name(m->source, i);
    kedge_st_tensor empty = *tensor;
    empty.bytes = 0;
    kedge_hash_add_tensor(table, &empty);
    if (is_router(&m->params, tensor->name)) kedge_hash_add_tensor(router, tensor);
  }
  if (status == KEDGE_OK) {
    kedge_hash_text(table, id->tensors);
    kedge_hash_text(router, id->router);
  }
  kedge_hash_free(table);
  kedge_hash_free(router);
  return status;
}

/* A chat template counts where the tokenizer can carry one; other data do not ask for it. */
static kedge_status describe_template(const kedge_tokenizer *tokenizer, const char *prompt, const char *chat,
                                      kedge_prior_identity *id) {
  const kedge_chat_template *chosen;
  char text[33] = "none";
  const bool chats = kedge_chat_template_choose(chat, tokenizer, &chosen) == KEDGE_OK;
  if (prompt) {
    kedge_hash *hash = kedge_hash_new();
    if (!hash) return KEDGE_ERR_MEMORY;
    kedge_hash_add_text(hash, prompt);
    kedge_hash_text(hash, text);
    kedge_hash_free(hash);
  }
  snprintf(id->templates, sizeof id->templates, "prompt %s, chat %.32s", text,
           chats ? kedge_chat_template_name(chosen) : "none");
  return KEDGE_OK;
}

kedge_status kedge_prior_identify(const kedge_model *model, const kedge_tokenizer *tokenizer,
                                  const kedge_dataset *dataset, uint32_t max_length,
                                  const char *prompt_template, const char *chat_template,
                                  kedge_prior_identity *id) {
  *id = (kedge_prior_identity){.max_length = max_length};
  KEDGE_TRY(kedge_model_hash(model, id->base));
  memcpy(id->tokenizer, kedge_tokenizer_hash(tokenizer), sizeof id->tokenizer);
  memcpy(id->data, dataset->hash, sizeof id->data);
  KEDGE_TRY(hash_parts(model, id));
  const char *directory = kedge_checkpoint_directory(model->source);
  if (directory) KEDGE_TRY(hash_config(directory, id->config));
  return describe_template(tokenizer, prompt_template, chat_template, id);
}
