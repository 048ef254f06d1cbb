/* SPDX-License-Identifier: Apache-2.0
 * The JSON file of communities (communities.h). */
#include "models/retention/communities.h"

#include "models/checkpoint/atomic.h"
#include "models/checkpoint/json.h"

#include <stdlib.h>
#include <string.h>

enum { EXPERTS_LIMIT = 4096, LAYERS_LIMIT = 65536 };
static const size_t FILE_LIMIT = 256u << 20;

void kedge_communities_destroy(kedge_communities *c) {
  kedge_free(c->labels);
  kedge_free(c->layer_numbers);
  *c = (kedge_communities){0};
}

/* ---- Writing
 * ------------------------------------------------------------------------------------------------------ */

static json_t *list_of(const uint32_t *labels, uint32_t count) {
  json_t *list = json_array();
  for (uint32_t i = 0; list && i < count; i++)
    if (json_array_append_new(list, json_integer((json_int_t)labels[i]))) {
      json_decref(list);
      list = NULL;
    }
  return list;
}

/* Both are always used up; false without memory. */
static bool put(json_t *root, const char *key, json_t *value) {
  return !json_object_set_new(root, key, value);
}

static bool fill(json_t *root, const kedge_communities *c, const json_t *about) {
  const char *key;
  json_t *value, *layers = json_array(), *numbers = c->layer_numbers ? json_array() : NULL;
  if (!put(root, "layers", layers)) return false;
  for (uint32_t l = 0; l < c->layers; l++)
    if (json_array_append_new(layers, list_of(c->labels + (size_t)l * c->experts, c->experts))) return false;
  if (c->layer_numbers) {
    if (!put(root, "layer_numbers", numbers)) return false;
    for (uint32_t l = 0; l < c->layers; l++)
      if (json_array_append_new(numbers, json_integer(c->layer_numbers[l]))) return false;
  }
  /* jansson takes the object it walks through as one that may change. */
  json_object_foreach((json_t *)(uintptr_t)about, key, value) {
    if (!json_object_get(root, key) && json_object_set(root, key, value)) return false;
  }
  return true;
}

kedge_status kedge_communities_save(const kedge_communities *c, const json_t *about, const char *path) {
  json_t *root = json_object();
  char *text = NULL;
  if (root && fill(root, c, about)) text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17));
  json_decref(root);
  if (!text) return kedge_fail(KEDGE_ERR_MEMORY, "%s: out of memory", path);
  const size_t bytes = strlen(text);
  text[bytes] = '\n'; /* in the place of its end, which the length replaces */
  const kedge_status status = kedge_file_write(path, text, bytes + 1);
  free(text);
  return status;
}

/* ---- Reading
 * ------------------------------------------------------------------------------------------------------ */

static kedge_status read_layer(const json_t *list, const char *path, uint32_t layer, kedge_communities *c) {
  uint32_t *labels = c->labels + (size_t)layer * c->experts;
  for (uint32_t e = 0; e < c->experts; e++) {
    const json_t *label = json_array_get(list, e);
    const json_int_t value = json_is_integer(label) ? json_integer_value(label) : -1;
    if (!json_is_integer(label))
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: layers[%u][%u]: expected a whole number, got %s", path, layer,
                        e, kedge__json_type(label));
    if (value < 0 || value > INT32_MAX)
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: layers[%u][%u]: expected 0 to 2147483647, got %lld", path,
                        layer, e, (long long)value);
    labels[e] = (uint32_t)value;
  }
  return kedge_labels_canonical(labels, c->experts);
}

static kedge_status read_numbers(const json_t *list, const char *path, kedge_communities *c) {
  if (!list) return KEDGE_OK;
  if (!json_is_array(list) || json_array_size(list) != c->layers)
    return kedge_fail(KEDGE_ERR_FORMAT,
                      "%s: layer_numbers: expected a list of %u numbers as there are layers", path,
                      c->layers);
  c->layer_numbers = kedge_alloc(c->layers, sizeof *c->layer_numbers);
  if (!c->layer_numbers) return KEDGE_ERR_MEMORY;
  for (uint32_t l = 0; l < c->layers; l++) {
    const json_t *number = json_array_get(list, l);
    const json_int_t value = json_is_integer(number) ? json_integer_value(number) : -1;
    if (value < 0 || value >= LAYERS_LIMIT)
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: layer_numbers[%u]: expected 0 to %d", path, l,
                        LAYERS_LIMIT - 1);
    c->layer_numbers[l] = (int32_t)value;
  }
  return KEDGE_OK;
}

static kedge_status read_root(const json_t *root, const char *path, kedge_communities *c) {
  const json_t *layers = json_object_get(root, "layers");
  if (!json_is_array(layers))
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: expected an object with a list \"layers\", got %s", path,
                      json_is_object(root) ? kedge__json_type(layers) : kedge__json_type(root));
  const size_t count = json_array_size(layers), experts = json_array_size(json_array_get(layers, 0));
  if (!count || count > LAYERS_LIMIT || !experts || experts > EXPERTS_LIMIT)
    return kedge_fail(KEDGE_ERR_FORMAT,
                      "%s: layers: expected 1 to %d lists of 1 to %d labels, got %zu, the first of %zu", path,
                      LAYERS_LIMIT, EXPERTS_LIMIT, count, experts);
  c->layers = (uint32_t)count, c->experts = (uint32_t)experts;
  /* Lists are checked before memory is taken for them, so that one long list does not ask for many. */
  for (uint32_t l = 0; l < c->layers; l++)
    if (json_array_size(json_array_get(layers, l)) != experts) {
      const json_t *list = json_array_get(layers, l);
      return kedge_fail(KEDGE_ERR_FORMAT,
                        "%s: layers[%u]: expected %zu labels as in layers[0], got %s of %zu", path, l,
                        experts, kedge__json_type(list), json_array_size(list));
    }
  c->labels = kedge_alloc(count, experts * sizeof *c->labels);
  if (!c->labels) return KEDGE_ERR_MEMORY;
  for (uint32_t l = 0; l < c->layers; l++) KEDGE_TRY(read_layer(json_array_get(layers, l), path, l, c));
  return read_numbers(json_object_get(root, "layer_numbers"), path, c);
}

kedge_status kedge_communities_load(const char *path, kedge_communities *c) {
  json_t *root = NULL;
  *c = (kedge_communities){0};
  KEDGE_TRY(kedge__json_load(path, FILE_LIMIT, &root));
  const kedge_status status = read_root(root, path, c);
  json_decref(root);
  if (status != KEDGE_OK) kedge_communities_destroy(c);
  return status;
}
