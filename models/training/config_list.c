/* SPDX-License-Identifier: Apache-2.0
 * The keys that are no scalars: data files, router mappings, lists of layers (config_internal.h). */
#include "models/training/config_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const kedge_yaml_node *child(const kedge_config_loader *loader, uint32_t node) {
  return &loader->yaml->nodes[node];
}

/* ---- Data files
 * --------------------------------------------------------------------------------------------------- */

void kedge__config_files_clear(kedge_config_files *files) {
  for (size_t i = 0; i < files->count; i++) {
    kedge_free(files->items[i].path);
    kedge_free(files->items[i].type);
  }
  kedge_free(files->items);
  memset(files, 0, sizeof *files);
}

/* The fields of one file borrow `file` as their struct. */
static const kedge_config_key path_key = {
    .kind = KEDGE_KIND_PATH, .name = "path", .offset = offsetof(kedge_config_file, path)};
static const kedge_config_key type_key = {
    .kind = KEDGE_KIND_STRING, .name = "type", .offset = offsetof(kedge_config_file, type)};

/* The form of a file under the names of other tools. */
static kedge_status set_type(kedge_config_loader *loader, kedge_config_file *file, uint32_t node) {
  static const char *const others[][2] = {
      {"chat_template", "messages"}, {"completion", "text"}, {"auto", NULL}};
  const char *text;
  KEDGE_TRY(kedge__config_scalar(loader, node, "a word", &text));
  for (size_t i = 0; text && i < sizeof others / sizeof *others; i++) {
    if (strcmp(text, others[i][0])) continue;
    text = others[i][1];
    break;
  }
  return kedge__config_store_text(loader, &type_key, file, text);
}

/* Keys of a data file in other tools: what they may say here, by commas, and why nothing else. */
static const struct {
  const char *name, *accepts, *reason;
} file_keys[] = {
    {"split", "train", "a file is one split"},
    {"ds_type", "json,jsonl", "a file holds JSON lines"},
    {"field", "text", "texts are read from the field text"},
    {"field_messages", "messages,conversations", "turns are read from messages or conversations"},
    {"message_field_role", "role,from", "turns have role and content, or from and value"},
    {"message_field_content", "content,value", "turns have role and content, or from and value"},
    {"roles", "", "roles are named as in the file"},
    {"roles_to_train", "assistant,gpt", "the loss is on the assistant's turns, see assistant_only_loss"},
    {"train_on_eos", "turn", "the end of a trained turn is trained too"},
    {"train_on_eot", "turn", "the end of a trained turn is trained too"},
    {"chat_template", "tokenizer_default", "chat_template is a key of the whole run"},
    {"conversation", "", "chat_template is a key of the whole run"},
    {"name", "", "a file has no configurations"},
    {"data_dir", "", "path is the whole path of a file"},
    {"revision", "main", "a file has no revisions"},
    {"shards", "1", "files are read whole"},
    {"preprocess_shards", "1", "files are read whole"},
    {"trust_remote_code", "true", "no code of a data set is run"},
};

/* {role: from, content: value} of axolotl, which names the fields of a turn. */
static kedge_status check_turn_fields(kedge_config_loader *loader, uint32_t node) {
  const kedge_yaml_node *at = kedge__yaml_at(loader->yaml, node);
  if (kedge__config_is_empty(loader->yaml, node, true)) return KEDGE_OK;
  bool known = at->kind == KEDGE_YAML_MAP;
  for (uint32_t key = known ? at->first : 0; key; key = child(loader, child(loader, key)->next)->next) {
    const char *name = child(loader, key)->text;
    const char *fields = !strcmp(name, "role")      ? "role,from"
                         : !strcmp(name, "content") ? "content,value"
                                                    : "";
    known = known && kedge__config_is_among(loader->yaml, child(loader, key)->next, fields);
  }
  if (known) return KEDGE_OK;
  return kedge__config_fail(loader, KEDGE_ERR_UNSUPPORTED,
                            "message_property_mappings can only name role and content, or from and value");
}

/* The nodes of one mapping of a data file, 0: not given. */
typedef struct file_nodes {
  uint32_t path, data_files, type;
} file_nodes;

static kedge_status take_file_key(kedge_config_loader *loader, file_nodes *nodes, const char *name,
                                  uint32_t node) {
  loader->line = child(loader, node)->line;
  uint32_t *mine = !strcmp(name, "path")         ? &nodes->path
                   : !strcmp(name, "data_files") ? &nodes->data_files
                   : !strcmp(name, "type")       ? &nodes->type
                                                 : NULL;
  if (mine) {
    *mine = node;
    return KEDGE_OK;
  }
  if (!strcmp(name, "message_property_mappings")) return check_turn_fields(loader, node);
  for (size_t i = 0; i < sizeof file_keys / sizeof *file_keys; i++) {
    const char *accepts = file_keys[i].accepts;
    if (strcmp(name, file_keys[i].name)) continue;
    if (kedge__config_is_empty(loader->yaml, node, true) ||
        kedge__config_is_among(loader->yaml, node, accepts))
      return KEDGE_OK;
    return kedge__config_fail(loader, KEDGE_ERR_UNSUPPORTED, "%s %s%s: %s", name,
                              *accepts ? "can only be " : "is not supported", accepts, file_keys[i].reason);
  }
  if (!strncmp(name, "field_", 6) || !strncmp(name, "message_", 8))
    return kedge__config_fail(loader, KEDGE_ERR_UNSUPPORTED,
                              "%.80s is not supported: fields have the names that their type says", name);
  return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "a data file has path and type; \"%.80s\" is unknown",
                            name);
}

/* One file; `type` 0: none. */
static kedge_status add_path(kedge_config_loader *loader, kedge_config_files *files, uint32_t node,
                             uint32_t type) {
  loader->line = child(loader, node)->line;
  if (files->count == KEDGE_CONFIG_MAX_ITEMS)
    return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "more than 4096 files");
  kedge_config_file *items = kedge_realloc(files->items, files->count + 1, sizeof *items);
  if (!items) return KEDGE_ERR_MEMORY;
  files->items = items;
  kedge_config_file *file = &items[files->count++];
  *file = (kedge_config_file){0};
  KEDGE_TRY(kedge__config_store(loader, &path_key, file, node));
  if (!file->path || !*file->path)
    return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "a data file has no path");
  return type ? set_type(loader, file, type) : KEDGE_OK;
}

/* A path, or a mapping. The loader of JSON in the datasets library is called json, and there data_files names
 * the files. */
static kedge_status add_file(kedge_config_loader *loader, kedge_config_files *files, uint32_t node) {
  const kedge_yaml_node *at = kedge__yaml_at(loader->yaml, node);
  file_nodes nodes = {.path = at->kind == KEDGE_YAML_MAP ? 0 : node};
  for (uint32_t key = at->kind == KEDGE_YAML_MAP ? at->first : 0; key;
       key = child(loader, child(loader, key)->next)->next)
    KEDGE_TRY(kedge__config_put_aside(
        loader, take_file_key(loader, &nodes, child(loader, key)->text, child(loader, key)->next)));
  loader->line = child(loader, node)->line;
  if (nodes.path && nodes.data_files && !kedge__config_is_empty(loader->yaml, nodes.data_files, true)) {
    if (!kedge__config_is_among(loader->yaml, nodes.path, "json,jsonl"))
      return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT,
                                "path and data_files are both given; path would then be json");
    nodes.path = 0;
  }
  if (!nodes.path) nodes.path = nodes.data_files;
  if (!nodes.path) return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "a data file has no path");
  const kedge_yaml_node *path = kedge__yaml_at(loader->yaml, nodes.path);
  if (path->kind != KEDGE_YAML_LIST || nodes.path != nodes.data_files)
    return add_path(loader, files, nodes.path, nodes.type);
  for (uint32_t item = path->first; item; item = child(loader, item)->next)
    KEDGE_TRY(add_path(loader, files, item, nodes.type));
  return KEDGE_OK;
}

kedge_status kedge__config_files_set(kedge_config_loader *loader, kedge_config_files *files, uint32_t node) {
  const kedge_yaml_node *at = kedge__yaml_at(loader->yaml, node);
  kedge__config_files_clear(files);
  if (at->kind == KEDGE_YAML_LIST) {
    for (uint32_t item = at->first; item; item = child(loader, item)->next)
      KEDGE_TRY(add_file(loader, files, item));
    return KEDGE_OK;
  }
  if (at->kind == KEDGE_YAML_SCALAR) {
    const char *text;
    KEDGE_TRY(kedge__config_scalar(loader, node, "a path", &text));
    if (!text) return KEDGE_OK;
  }
  return add_file(loader, files, node);
}

/* ---- Layers
 * ---------------------------------------------------------------------------------------------------------
 */

static kedge_status add_layer(kedge_config_loader *loader, kedge_config_layers *layers, uint32_t layer) {
  size_t at = 0;
  while (at < layers->count && layers->items[at] < layer) at++;
  if (at < layers->count && layers->items[at] == layer)
    return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "layer %u is named twice", layer);
  uint32_t *items = kedge_realloc(layers->items, layers->count + 1, sizeof *items);
  if (!items) return KEDGE_ERR_MEMORY;
  layers->items = items;
  memmove(items + at + 1, items + at, (layers->count - at) * sizeof *items);
  items[at] = layer;
  layers->count++;
  return KEDGE_OK;
}

/* "3", "0-7", "0-3,7". */
static kedge_status add_layer_text(kedge_config_loader *loader, kedge_config_layers *layers,
                                   const char *text) {
  const char *at = text;
  do {
    char *end;
    while (*at == ' ') at++;
    if (*at < '0' || *at > '9') break;
    unsigned long first = strtoul(at, &end, 10), last = first;
    if (*end == '-' && end[1] >= '0' && end[1] <= '9') last = strtoul(end + 1, &end, 10);
    if (last < first || last >= KEDGE_CONFIG_MAX_ITEMS)
      return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT,
                                "no layers: \"%.80s\"; they count from 0 to 4095, upwards", text);
    for (unsigned long layer = first; layer <= last; layer++)
      KEDGE_TRY(add_layer(loader, layers, (uint32_t)layer));
    at = end;
    if (!*at) return KEDGE_OK;
  } while (*at++ == ',');
  return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "expected layers as [0, 2] or 0-3,7, came \"%.80s\"",
                            text);
}

kedge_status kedge__config_layers_set(kedge_config_loader *loader, kedge_config_layers *layers,
                                      uint32_t node) {
  const kedge_yaml_node *at = kedge__yaml_at(loader->yaml, node);
  kedge_free(layers->items);
  *layers = (kedge_config_layers){0};
  uint32_t item = at->kind == KEDGE_YAML_LIST ? at->first : node;
  for (; item; item = at->kind == KEDGE_YAML_LIST ? child(loader, item)->next : 0) {
    const char *text;
    KEDGE_TRY(kedge__config_scalar(loader, item, "a layer number", &text));
    if (!text || !strcmp(text, "all")) {
      if (at->kind == KEDGE_YAML_LIST)
        return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "expected layer numbers in the list");
      return KEDGE_OK;
    }
    KEDGE_TRY(add_layer_text(loader, layers, text));
  }
  if (at->kind == KEDGE_YAML_LIST && !layers->count)
    return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT,
                              "an empty list of layers; leave the key out for all");
  return KEDGE_OK;
}

/* ---- Router mappings
 * -------------------------------------------------------------------------------------------------- */

static void clear_router(kedge_config_router *router) {
#define ROUTER_PATH(name, doc)   kedge_free(router->name);
#define ROUTER_LAYERS(name, doc) kedge_free(router->name.items);
#include "models/training/config.def"
}

void kedge__config_router_remove(kedge_config_loader *loader, size_t index) {
  kedge_config_routers *routers = &loader->config->router;
  clear_router(&routers->items[index]);
  routers->count--;
  for (size_t i = index; i < routers->count; i++) {
    routers->items[i] = routers->items[i + 1];
    loader->router_given[i] = loader->router_given[i + 1];
  }
}

void kedge__config_routers_clear(kedge_config_routers *routers) {
  for (size_t i = 0; i < routers->count; i++) clear_router(&routers->items[i]);
  kedge_free(routers->items);
  memset(routers, 0, sizeof *routers);
}

kedge_status kedge__config_router_add(kedge_config_loader *loader) {
  kedge_config_routers *routers = &loader->config->router;
  if (routers->count == KEDGE_CONFIG_MAX_ROUTERS)
    return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "more than 16 interventions");
  kedge_config_router *items = kedge_realloc(routers->items, routers->count + 1, sizeof *items);
  if (!items) return KEDGE_ERR_MEMORY;
  routers->items = items;
  loader->router_layer[routers->count] = loader->router_given[routers->count] = 0;
  kedge_config_router *router = &items[routers->count++];
  memset(router, 0, sizeof *router);
  for (size_t i = 0; i < kedge__router_key_count; i++)
    if (kedge__router_keys[i].kind != KEDGE_KIND_LAYERS)
      KEDGE_TRY(kedge__config_store_text(loader, &kedge__router_keys[i], router, kedge__router_keys[i].def));
  return KEDGE_OK;
}

static kedge_status unknown_field(kedge_config_loader *loader, const char *name) {
  kedge_nearest nearest = {.word = name};
  for (size_t i = 0; i < kedge__router_key_count; i++)
    kedge__nearest_offer(&nearest, kedge__router_keys[i].name, strlen(kedge__router_keys[i].name));
  return kedge__config_fail_unknown(loader, &nearest);
}

static kedge_status set_field(kedge_config_loader *loader, size_t index, const char *name, uint32_t node) {
  for (size_t i = 0; i < kedge__router_key_count; i++) {
    const kedge_config_key *key = &kedge__router_keys[i];
    if (strcmp(key->name, name)) continue;
    uint32_t bit = (uint32_t)1 << i;
    if (loader->router_layer[index] & bit)
      return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "given twice");
    loader->router_layer[index] |= bit;
    loader->router_given[index] |= bit;
    kedge_config_router *router = &loader->config->router.items[index];
    if (key->kind == KEDGE_KIND_LAYERS)
      return kedge__config_layers_set(loader, (kedge_config_layers *)(void *)((char *)router + key->offset),
                                      node);
    return kedge__config_store(loader, key, router, node);
  }
  return unknown_field(loader, name);
}

kedge_status kedge__config_router_field(kedge_config_loader *loader, size_t index, const char *name,
                                        uint32_t node) {
  char *full = kedge_format("router[%zu].%s", index, name);
  if (!full) return KEDGE_ERR_MEMORY;
  const char *outer = loader->key;
  loader->key = full;
  loader->line = child(loader, node)->line;
  kedge_status status = set_field(loader, index, name, node);
  loader->key = outer;
  kedge_free(full);
  return status;
}

/* One entry: a mapping, or the name of an intervention alone. */
static kedge_status add_router(kedge_config_loader *loader, uint32_t node) {
  const kedge_yaml_node *at = kedge__yaml_at(loader->yaml, node);
  size_t index = loader->config->router.count;
  if (at->kind == KEDGE_YAML_LIST)
    return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "expected a mapping, came a list");
  KEDGE_TRY(kedge__config_router_add(loader));
  if (at->kind == KEDGE_YAML_SCALAR) return kedge__config_router_field(loader, index, "intervention", node);
  for (uint32_t key = at->first; key; key = child(loader, child(loader, key)->next)->next)
    KEDGE_TRY(
        kedge__config_put_aside(loader, kedge__config_router_field(loader, index, child(loader, key)->text,
                                                                   child(loader, key)->next)));
  return KEDGE_OK;
}

kedge_status kedge__config_routers_set(kedge_config_loader *loader, uint32_t node) {
  const kedge_yaml_node *at = kedge__yaml_at(loader->yaml, node);
  kedge__config_routers_clear(&loader->config->router);
  if (at->kind == KEDGE_YAML_LIST) {
    for (uint32_t item = at->first; item; item = child(loader, item)->next)
      KEDGE_TRY(add_router(loader, item));
    return KEDGE_OK;
  }
  if (at->kind == KEDGE_YAML_SCALAR) {
    const char *text;
    KEDGE_TRY(kedge__config_scalar(loader, node, "a mapping", &text));
    if (!text) return KEDGE_OK;
  }
  return add_router(loader, node);
}
