/* SPDX-License-Identifier: Apache-2.0
 *
 * YAML text to a small tree of nodes with line numbers, by libyaml's events. Anchors and aliases work; an
 * alias is a reference, never a copy, so that it costs one node whatever it names. Bounded: depth, nodes,
 * anchors; duplicate keys, merge keys, tags of other types and several documents are refused. Used by
 * config.c alone. */
#ifndef KEDGE_MODELS_TRAINING_CONFIG_YAML_H
#define KEDGE_MODELS_TRAINING_CONFIG_YAML_H

#include "core/kedge.h"

enum {
  KEDGE_YAML_MAX_BYTES = 1 << 20,
  KEDGE_YAML_MAX_DEPTH = 16,
  KEDGE_YAML_MAX_NODES = 1 << 16,
  KEDGE_YAML_MAX_KEYS = 512, /* in one mapping: finding duplicates takes time in the square of it */
  KEDGE_YAML_MAX_ANCHORS = 256
};

typedef enum kedge_yaml_kind {
  KEDGE_YAML_SCALAR,
  KEDGE_YAML_LIST,
  KEDGE_YAML_MAP,
  KEDGE_YAML_ALIAS
} kedge_yaml_kind;

/* Nodes are indices; 0 is "none". A list's children are its items; a mapping's are key, value, key, value. */
typedef struct kedge_yaml_node {
  kedge_yaml_kind kind;
  bool plain;  /* a scalar written without quotes */
  bool closed; /* a collection that has ended */
  uint32_t line;
  uint32_t first, last, next; /* children and sibling; for an alias `first` is what it names */
  char *text;                 /* of a scalar */
} kedge_yaml_node;

typedef struct kedge_yaml {
  kedge_yaml_node *nodes;
  uint32_t count, capacity;
  uint32_t root; /* 0: the text holds no document */
} kedge_yaml;

/* Errors: ERR_FORMAT "<name>:<line>: ...", ERR_MEMORY. On failure the tree is empty. */
kedge_status kedge__yaml_parse(kedge_yaml *yaml, const char *name, const char *text, size_t size);
/* A tree of one plain scalar, for values that come from the command line. */
kedge_status kedge__yaml_plain(kedge_yaml *yaml, const char *text);
void kedge__yaml_destroy(kedge_yaml *yaml);

/* The node itself, or what an alias names. */
const kedge_yaml_node *kedge__yaml_at(const kedge_yaml *yaml, uint32_t node);

#endif
