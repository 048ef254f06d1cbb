/* SPDX-License-Identifier: Apache-2.0
 * Loading a configuration: defaults, the file, `key=value`, checks (config.h). One value's conversion is in
 * config_value.c. */
#include "models/training/config_internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

kedge_status kedge__config_fail(kedge_config_loader *loader, kedge_status status, const char *format, ...) {
  kedge_config_problem *problem = &loader->problem;
  va_list list;
  va_start(list, format);
  vsnprintf(problem->text, sizeof problem->text, format, list);
  va_end(list);
  const char *key = loader->key ? loader->key : "";
  problem->fault = status == KEDGE_ERR_UNSUPPORTED ? KEDGE_FAULT_REFUSED : KEDGE_FAULT_VALUE;
  problem->line = loader->line;
  snprintf(problem->key, sizeof problem->key, "%.80s", key);
  if (loader->override)
    return kedge_fail(status, "override \"%.120s\": key \"%.80s\": %s", loader->override, key, problem->text);
  if (!loader->line) return kedge_fail(status, "%s: key \"%.80s\": %s", loader->source, key, problem->text);
  return kedge_fail(status, "%s:%u: key \"%.80s\": %s", loader->source, loader->line, key, problem->text);
}

kedge_status kedge__config_fail_unknown(kedge_config_loader *loader, const kedge_nearest *nearest) {
  if (nearest->best)
    kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "unknown; nearest is \"%.*s\"", (int)nearest->length,
                       nearest->best);
  else
    kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "unknown");
  loader->problem.fault = KEDGE_FAULT_UNKNOWN;
  snprintf(loader->problem.text, sizeof loader->problem.text, "%.*s",
           nearest->best ? (int)nearest->length : 0, nearest->best ? nearest->best : "");
  return KEDGE_ERR_ARGUMENT;
}

kedge_status kedge__config_note(kedge_config *config, const char *format, ...) {
  char text[512];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  kedge_config_notes *notes = &config->notes;
  char **items = kedge_realloc(notes->items, notes->count + 1, sizeof *items);
  if (!items) return KEDGE_ERR_MEMORY;
  notes->items = items;
  items[notes->count] = kedge_strdup(text);
  if (!items[notes->count]) return KEDGE_ERR_MEMORY;
  notes->count++;
  return KEDGE_OK;
}

void kedge_config_destroy(kedge_config *config) {
#define KEY_STRING(name, aliases, def, doc) kedge_free(config->name);
#define KEY_PATH(name, aliases, def, doc)   kedge_free(config->name);
#define KEY_FILES(name, aliases, doc)       kedge__config_files_clear(&config->name);
#define KEY_ROUTER(name, aliases, doc)      kedge__config_routers_clear(&config->name);
#include "models/training/config.def"
  for (size_t i = 0; i < config->notes.count; i++) kedge_free(config->notes.items[i]);
  kedge_free(config->notes.items);
  memset(config, 0, sizeof *config);
}

/* ---- Keys
 * ------------------------------------------------------------------------------------------------------- */

/* A row whose name ends in * and begins as `name` does. */
static bool is_family(const kedge_config_key *key, const char *name) {
  size_t length = strlen(key->name);
  return key->name[length - 1] == '*' && !strncmp(key->name, name, length - 1);
}

static const kedge_config_key *find_key(const char *name) {
  const kedge_config_key *family = NULL;
  for (size_t i = 0; i < kedge__config_key_count; i++) {
    const kedge_config_key *key = &kedge__config_keys[i];
    if (key->kind == KEDGE_KIND_GROUP) continue;
    if (!strcmp(key->name, name) || kedge__config_in_list(key->aliases, name)) return key;
    if (!family && is_family(key, name)) family = key;
  }
  return family;
}

bool kedge__config_given(const kedge_config_loader *loader, const char *name) {
  const kedge_config_key *key = find_key(name);
  return key && loader->given[key - kedge__config_keys];
}

kedge_status kedge__config_conflict(kedge_config_loader *loader, const char *name, const char *text) {
  const kedge_config_key *key = find_key(name);
  loader->key = name;
  loader->line = key ? loader->lines[key - kedge__config_keys] : 0;
  return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "%s", text);
}

/* True if some name or alias reads "<name>.<something>". */
static bool names_mapping(const char *name) {
  size_t length = strlen(name);
  for (size_t i = 0; i < kedge__config_key_count; i++) {
    const char *own = kedge__config_keys[i].name;
    if (!strncmp(own, name, length) && own[length] == '.') return true;
    for (const char *at = kedge__config_keys[i].aliases; *at;) {
      if (!strncmp(at, name, length) && at[length] == '.') return true;
      at += strcspn(at, ",");
      if (*at) at++;
    }
  }
  return false;
}

static kedge_status unknown(kedge_config_loader *loader) {
  kedge_nearest nearest = {.word = loader->key};
  for (size_t i = 0; i < kedge__config_key_count; i++) {
    const kedge_config_key *key = &kedge__config_keys[i];
    if (key->kind == KEDGE_KIND_GROUP || key->kind > KEDGE_KIND_SPECIAL) continue;
    kedge__nearest_offer(&nearest, key->name, strlen(key->name));
    kedge__nearest_offer_list(&nearest, key->aliases);
  }
  return kedge__config_fail_unknown(loader, &nearest);
}

/* Notes that a key was given; refuses the second time in one layer, by whatever names. */
static kedge_status mark_given(kedge_config_loader *loader, const kedge_config_key *key) {
  size_t index = (size_t)(key - kedge__config_keys);
  const char *before = loader->spelled[index];
  if (before && !strcmp(before, loader->key))
    return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "given twice");
  if (before)
    return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "given twice: \"%.80s\" is the same key", before);
  char *copy = kedge_strdup(loader->key);
  if (!copy) return KEDGE_ERR_MEMORY;
  loader->spelled[index] = copy;
  loader->given[index] = true;
  loader->lines[index] = loader->override ? 0 : loader->line;
  return KEDGE_OK;
}

static kedge_status store_key(kedge_config_loader *loader, const kedge_config_key *key, uint32_t node) {
  char *field = (char *)loader->config + key->offset;
  switch (key->kind) {
  case KEDGE_KIND_FILES:
    return kedge__config_files_set(loader, (kedge_config_files *)(void *)field, node);
  case KEDGE_KIND_ROUTER:
    return kedge__config_routers_set(loader, node);
  case KEDGE_KIND_SPECIAL:
    return key->special(loader, node);
  default:
    return kedge__config_store(loader, key, loader->config, node);
  }
}

/* A truth value of a key that elsewhere is a path: true stays as the word, false is no value. */
static kedge_status normalise_resume(kedge_config *config) {
  bool value;
  char **path = &config->resume_from_checkpoint;
  if (!*path || !kedge__config_bool(*path, &value)) return KEDGE_OK;
  char *word = value ? kedge_strdup("true") : NULL;
  if (value && !word) return KEDGE_ERR_MEMORY;
  kedge_free(*path);
  *path = word;
  return KEDGE_OK;
}

/* Children of a mapping that only groups keys: lr_scheduler_kwargs: {min_lr: 1e-6}. */
static kedge_status set_children(kedge_config_loader *loader, const char *name, const kedge_yaml_node *map) {
  for (uint32_t at = map->first; at; at = loader->yaml->nodes[loader->yaml->nodes[at].next].next) {
    char *full = kedge_format("%s.%s", name, loader->yaml->nodes[at].text);
    if (!full) return KEDGE_ERR_MEMORY;
    kedge_status status =
        kedge__config_put_aside(loader, kedge__config_set(loader, full, loader->yaml->nodes[at].next));
    kedge_free(full);
    KEDGE_TRY(status);
  }
  return KEDGE_OK;
}

/* A key of another dialect without a meaning here. */
static kedge_status pass_over(kedge_config_loader *loader, const kedge_config_key *key, uint32_t node) {
  bool refused = key->kind == KEDGE_KIND_REFUSED;
  if (kedge__config_is_empty(loader->yaml, node, !refused || !*key->accepts)) return KEDGE_OK;
  if (!refused) return kedge__config_note(loader->config, "%s: no use here: %s", loader->key, key->doc);
  if (kedge__config_is_among(loader->yaml, node, key->accepts)) return KEDGE_OK;
  return kedge__config_fail(loader, KEDGE_ERR_UNSUPPORTED, "not supported: %s", key->doc);
}

kedge_status kedge__config_set(kedge_config_loader *loader, const char *name, uint32_t node) {
  loader->key = name;
  loader->line = loader->yaml->nodes[node].line;
  const kedge_config_key *key = find_key(name);
  const kedge_yaml_node *value = kedge__yaml_at(loader->yaml, node);
  if (!key && names_mapping(name) && !strchr(name, '.')) {
    if (value->kind == KEDGE_YAML_MAP) return set_children(loader, name, value);
    if (value->kind == KEDGE_YAML_SCALAR && value->plain && (!*value->text || !strcmp(value->text, "null")))
      return KEDGE_OK;
    return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "expected a mapping");
  }
  if (!key) return unknown(loader);
  if (key->kind > KEDGE_KIND_SPECIAL) return pass_over(loader, key, node);
  KEDGE_TRY(mark_given(loader, key));
  return store_key(loader, key, node);
}

kedge_status kedge__config_set_text(kedge_config_loader *loader, const char *name, const char *text) {
  const kedge_config_key *key = find_key(name);
  KEDGE_TRY(mark_given(loader, key));
  return kedge__config_store_text(loader, key, loader->config, text);
}

/* ---- Layers
 * ------------------------------------------------------------------------------------------------------- */

static void end_layer(kedge_config_loader *loader) {
  for (size_t i = 0; i < KEDGE_CONFIG_MAX_KEYS; i++) {
    kedge_free((char *)(uintptr_t)loader->spelled[i]);
    loader->spelled[i] = NULL;
  }
  memset(loader->router_layer, 0, sizeof loader->router_layer);
}

static kedge_status set_defaults(kedge_config_loader *loader) {
  for (size_t i = 0; i < kedge__config_key_count; i++) {
    const kedge_config_key *key = &kedge__config_keys[i];
    bool scalar = key->kind != KEDGE_KIND_GROUP && key->kind != KEDGE_KIND_FILES &&
                  key->kind != KEDGE_KIND_ROUTER && key->kind < KEDGE_KIND_SPECIAL;
    loader->key = key->name;
    if (scalar) KEDGE_TRY(kedge__config_store_text(loader, key, loader->config, key->def));
  }
  return KEDGE_OK;
}

static kedge_status read_text(kedge_config_loader *loader, const char *text, size_t size) {
  kedge_yaml yaml;
  kedge_status status = kedge__yaml_parse(&yaml, loader->source, text, size);
  if (status != KEDGE_OK) return status == KEDGE_ERR_MEMORY ? status : KEDGE_ERR_ARGUMENT;
  loader->yaml = &yaml;
  if (yaml.root) {
    const kedge_yaml_node *root = &yaml.nodes[yaml.root];
    bool empty = root->kind == KEDGE_YAML_SCALAR && root->plain && !*root->text;
    if (root->kind != KEDGE_YAML_MAP && !empty)
      status = kedge_fail(KEDGE_ERR_ARGUMENT, "%s:%u: expected keys with values, came a %s", loader->source,
                          root->line, root->kind == KEDGE_YAML_LIST ? "list" : "word");
    uint32_t at = root->kind == KEDGE_YAML_MAP ? root->first : 0;
    for (; at && status == KEDGE_OK; at = yaml.nodes[yaml.nodes[at].next].next)
      status = kedge__config_put_aside(loader,
                                       kedge__config_set(loader, yaml.nodes[at].text, yaml.nodes[at].next));
  }
  if (status == KEDGE_OK) status = kedge__config_problems_end(loader);
  kedge__yaml_destroy(&yaml);
  loader->yaml = NULL;
  end_layer(loader);
  return status;
}

/* "router.beta" and "router[1].beta": which entry, which field. A path without index means the only entry. */
static kedge_status set_router_path(kedge_config_loader *loader, const char *rest, uint32_t node) {
  kedge_config_routers *routers = &loader->config->router;
  size_t index = 0;
  if (*rest == '[') {
    char *end;
    unsigned long number = strtoul(rest + 1, &end, 10);
    if (rest[1] < '0' || rest[1] > '9' || *end != ']' || end[1] != '.')
      return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "expected router[NUMBER].KEY");
    if (number > routers->count)
      return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "there are %zu router entries, counted from 0",
                                routers->count);
    index = number;
    rest = end + 1;
  } else if (routers->count > 1) {
    return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "there are %zu router entries; write router[0]%s",
                              routers->count, rest);
  }
  if (index == routers->count) KEDGE_TRY(kedge__config_router_add(loader));
  return kedge__config_router_field(loader, index, rest + 1, node);
}

/* A quoted value is YAML, and so is a list or a mapping, except where the key takes a text, such as a
 * template that opens with {prompt}. Everything else stands for itself. */
static bool reads_as_yaml(const char *name, const char *value) {
  const kedge_config_key *key = find_key(name);
  if (*value == '"' || *value == '\'') return true;
  bool text = key && (key->kind == KEDGE_KIND_STRING || key->kind == KEDGE_KIND_PATH);
  return (*value == '[' || *value == '{') && !text;
}

static kedge_status set_override(kedge_config_loader *loader, const char *override) {
  loader->override = override;
  loader->key = "";
  const char *equals = strchr(override, '=');
  if (!equals || equals == override)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "override \"%.120s\": expected key=value", override);
  const char *value = equals + 1;
  char *name = kedge_format("%.*s", (int)(equals - override > 4096 ? 4096 : equals - override), override);
  if (!name) return KEDGE_ERR_MEMORY;
  kedge_yaml yaml;
  kedge_status status = reads_as_yaml(name, value) ? kedge__yaml_parse(&yaml, "value", value, strlen(value))
                                                   : kedge__yaml_plain(&yaml, value);
  if (status == KEDGE_OK) {
    loader->yaml = &yaml;
    loader->key = name;
    bool nested = !strncmp(name, "router.", 7) || !strncmp(name, "router[", 7);
    status =
        nested ? set_router_path(loader, name + 6, yaml.root) : kedge__config_set(loader, name, yaml.root);
    kedge__yaml_destroy(&yaml);
    loader->yaml = NULL;
  } else if (status != KEDGE_ERR_MEMORY) {
    status = kedge_fail_in(KEDGE_ERR_ARGUMENT, "override \"%.120s\"", override);
  }
  kedge_free(name);
  return status;
}

static kedge_status parse(kedge_config *config, const char *name, const char *text, size_t size,
                          const char *const *overrides, size_t count, uint32_t ranks) {
  memset(config, 0, sizeof *config);
  kedge_config_loader *loader = kedge_alloc(1, sizeof *loader);
  if (!loader) return KEDGE_ERR_MEMORY;
  loader->config = config;
  loader->source = name;
  loader->ranks = ranks;
  kedge_status status = set_defaults(loader);
  if (status == KEDGE_OK && size) status = read_text(loader, text, size);
  for (size_t i = 0; i < count && status == KEDGE_OK; i++) status = set_override(loader, overrides[i]);
  loader->override = NULL;
  if (status == KEDGE_OK) status = normalise_resume(config);
  if (status == KEDGE_OK) status = kedge__config_check(loader);
  end_layer(loader);
  kedge__config_problems_clear(&loader->problems);
  kedge_free(loader);
  if (status != KEDGE_OK) kedge_config_destroy(config);
  return status;
}

kedge_status kedge_config_parse(kedge_config *config, const char *name, const char *text, size_t size,
                                const char *const *overrides, size_t count) {
  return parse(config, name, text, size, overrides, count, 1);
}

static kedge_status read_file(const char *path, char **text, size_t *size) {
  FILE *file = fopen(path, "rb");
  if (!file) return kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
  *text = kedge_alloc(KEDGE_YAML_MAX_BYTES + 1, 1);
  kedge_status status = *text ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (*text) {
    *size = fread(*text, 1, KEDGE_YAML_MAX_BYTES + 1, file);
    if (ferror(file)) status = kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
  }
  fclose(file);
  if (status != KEDGE_OK) {
    kedge_free(*text);
    *text = NULL;
  }
  return status;
}

kedge_status kedge_config_load_for(kedge_config *config, uint32_t ranks, const char *path,
                                   const char *const *overrides, size_t count) {
  char *text = NULL;
  size_t size = 0;
  memset(config, 0, sizeof *config);
  if (path) KEDGE_TRY(read_file(path, &text, &size));
  kedge_status status = parse(config, path ? path : "configuration", text, size, overrides, count, ranks);
  kedge_free(text);
  return status;
}

kedge_status kedge_config_load(kedge_config *config, const char *path, const char *const *overrides,
                               size_t count) {
  return kedge_config_load_for(config, 1, path, overrides, count);
}

kedge_status kedge_config_require(const kedge_config *config, const char *keys) {
  for (const char *at = keys; *at;) {
    char name[64];
    size_t length = strcspn(at, ",");
    snprintf(name, sizeof name, "%.*s", (int)length, at);
    const kedge_config_key *key = find_key(name);
    if (!key) return kedge_fail(KEDGE_ERR_ARGUMENT, "key \"%s\": unknown", name);
    const void *field = (const char *)config + key->offset;
    bool there = key->kind == KEDGE_KIND_FILES ? ((const kedge_config_files *)field)->count > 0
                                               : *(char *const *)field != NULL && **(char *const *)field;
    if (!there)
      return kedge_fail(KEDGE_ERR_ARGUMENT, "key \"%s\" is needed and has no value: %s", name, key->doc);
    at += length;
    if (*at) at++;
  }
  return KEDGE_OK;
}
