/* SPDX-License-Identifier: Apache-2.0
 * YAML events to a tree (config_yaml.h). The open collections are a stack of fixed depth: nothing here
 * recurses. */
#include "models/training/config_yaml.h"

#include <string.h>
#include <yaml.h>

typedef struct builder {
  kedge_yaml *yaml;
  const char *name;
  uint32_t open[KEDGE_YAML_MAX_DEPTH];
  uint32_t depth;
  struct {
    char *name;
    uint32_t node;
  } anchors[KEDGE_YAML_MAX_ANCHORS];
  uint32_t anchor_count;
  bool ended; /* the first document is complete */
} builder;

const kedge_yaml_node *kedge__yaml_at(const kedge_yaml *yaml, uint32_t node) {
  const kedge_yaml_node *at = &yaml->nodes[node];
  return at->kind == KEDGE_YAML_ALIAS ? &yaml->nodes[at->first] : at;
}

void kedge__yaml_destroy(kedge_yaml *yaml) {
  for (uint32_t i = 0; i < yaml->count; i++) kedge_free(yaml->nodes[i].text);
  kedge_free(yaml->nodes);
  memset(yaml, 0, sizeof *yaml);
}

/* Appends an unconnected node; node 0 is made first and stays empty. */
static kedge_status new_node(kedge_yaml *yaml, kedge_yaml_kind kind, uint32_t line, uint32_t *node) {
  if (yaml->count == yaml->capacity) {
    uint32_t capacity = yaml->capacity ? 2 * yaml->capacity : 64;
    kedge_yaml_node *nodes = kedge_realloc(yaml->nodes, capacity, sizeof *nodes);
    if (!nodes) return KEDGE_ERR_MEMORY;
    yaml->nodes = nodes;
    yaml->capacity = capacity;
  }
  if (!yaml->count) yaml->nodes[yaml->count++] = (kedge_yaml_node){.kind = KEDGE_YAML_SCALAR, .plain = true};
  *node = yaml->count++;
  yaml->nodes[*node] = (kedge_yaml_node){.kind = kind, .line = line};
  return KEDGE_OK;
}

kedge_status kedge__yaml_plain(kedge_yaml *yaml, const char *text) {
  memset(yaml, 0, sizeof *yaml);
  kedge_status status = new_node(yaml, KEDGE_YAML_SCALAR, 0, &yaml->root);
  if (status == KEDGE_OK) {
    yaml->nodes[yaml->root].plain = true;
    yaml->nodes[yaml->root].text = kedge_strdup(text);
    if (!yaml->nodes[yaml->root].text) status = KEDGE_ERR_MEMORY;
  }
  if (status != KEDGE_OK) kedge__yaml_destroy(yaml);
  return status;
}

static kedge_status fail_at(const builder *b, uint32_t line, const char *text) {
  return kedge_fail(KEDGE_ERR_FORMAT, "%s:%u: %s", b->name, line, text);
}

/* While a mapping is open its `closed` says that a key has come and its value has not. */
static bool expects_key(const kedge_yaml_node *map) {
  return !map->closed;
}

/* Refuses a key that is no scalar, is a merge, or is there already. */
static kedge_status check_key(builder *b, const kedge_yaml_node *map, uint32_t node) {
  const kedge_yaml_node *key = &b->yaml->nodes[node];
  if (key->kind != KEDGE_YAML_SCALAR) return fail_at(b, key->line, "a key must be a plain word");
  if (key->plain && !strcmp(key->text, "<<"))
    return fail_at(b, key->line, "merge keys (<<) are not read; write the keys out");
  uint32_t keys = 0;
  for (uint32_t at = map->first; at; at = b->yaml->nodes[b->yaml->nodes[at].next].next) {
    if (++keys == KEDGE_YAML_MAX_KEYS) return fail_at(b, key->line, "more than 512 keys in one mapping");
    if (!strcmp(b->yaml->nodes[at].text, key->text))
      return kedge_fail(KEDGE_ERR_FORMAT, "%s:%u: key \"%.80s\" is given twice, first in line %u", b->name,
                        key->line, key->text, b->yaml->nodes[at].line);
  }
  return KEDGE_OK;
}

/* Hangs a node under the innermost open collection. */
static kedge_status attach(builder *b, uint32_t node) {
  kedge_yaml_node *nodes = b->yaml->nodes;
  if (!b->depth) {
    b->yaml->root = node;
    return KEDGE_OK;
  }
  kedge_yaml_node *parent = &nodes[b->open[b->depth - 1]];
  if (parent->kind == KEDGE_YAML_MAP) {
    if (expects_key(parent)) KEDGE_TRY(check_key(b, parent, node));
    parent->closed = !parent->closed;
  }
  if (parent->last)
    nodes[parent->last].next = node;
  else
    parent->first = node;
  parent->last = node;
  return KEDGE_OK;
}

static kedge_status set_anchor(builder *b, const yaml_char_t *name, uint32_t node, uint32_t line) {
  if (!name) return KEDGE_OK;
  uint32_t at = 0;
  while (at < b->anchor_count && strcmp(b->anchors[at].name, (const char *)name)) at++;
  if (at == b->anchor_count) {
    if (at == KEDGE_YAML_MAX_ANCHORS) return fail_at(b, line, "more than 256 anchors");
    b->anchors[at].name = kedge_strdup((const char *)name);
    if (!b->anchors[at].name) return KEDGE_ERR_MEMORY;
    b->anchor_count++;
  }
  b->anchors[at].node = node;
  return KEDGE_OK;
}

/* Only the tags that the value has anyway are taken: !!str, !!int, !!float, !!bool, !!null, !!seq, !!map. */
static kedge_status check_tag(builder *b, const yaml_char_t *tag, uint32_t line) {
  if (!tag || !strncmp((const char *)tag, "tag:yaml.org,2002:", 18) || !strcmp((const char *)tag, "!"))
    return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_FORMAT, "%s:%u: tag \"%.80s\" is not known", b->name, line, (const char *)tag);
}

static kedge_status on_scalar(builder *b, const yaml_event_t *event, uint32_t line) {
  uint32_t node;
  const char *text = (const char *)event->data.scalar.value;
  KEDGE_TRY(check_tag(b, event->data.scalar.tag, line));
  if (strlen(text) != event->data.scalar.length) return fail_at(b, line, "a value holds a zero byte");
  KEDGE_TRY(new_node(b->yaml, KEDGE_YAML_SCALAR, line, &node));
  b->yaml->nodes[node].plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
  b->yaml->nodes[node].text = kedge_strdup(text);
  if (!b->yaml->nodes[node].text) return KEDGE_ERR_MEMORY;
  KEDGE_TRY(set_anchor(b, event->data.scalar.anchor, node, line));
  return attach(b, node);
}

static kedge_status on_open(builder *b, kedge_yaml_kind kind, const yaml_char_t *anchor,
                            const yaml_char_t *tag, uint32_t line) {
  uint32_t node;
  KEDGE_TRY(check_tag(b, tag, line));
  if (b->depth == KEDGE_YAML_MAX_DEPTH) return fail_at(b, line, "nested deeper than 16 levels");
  KEDGE_TRY(new_node(b->yaml, kind, line, &node));
  KEDGE_TRY(set_anchor(b, anchor, node, line));
  KEDGE_TRY(attach(b, node));
  b->open[b->depth++] = node;
  return KEDGE_OK;
}

static kedge_status on_alias(builder *b, const yaml_event_t *event, uint32_t line) {
  const char *name = (const char *)event->data.alias.anchor;
  uint32_t at = 0, node;
  while (at < b->anchor_count && strcmp(b->anchors[at].name, name)) at++;
  if (at == b->anchor_count)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s:%u: alias *%.80s names no anchor above it", b->name, line, name);
  for (uint32_t i = 0; i < b->depth; i++)
    if (b->open[i] == b->anchors[at].node)
      return fail_at(b, line, "an alias names the collection that it is in");
  KEDGE_TRY(new_node(b->yaml, KEDGE_YAML_ALIAS, line, &node));
  b->yaml->nodes[node].first = b->anchors[at].node;
  return attach(b, node);
}

static kedge_status on_event(builder *b, const yaml_event_t *event) {
  uint32_t line = (uint32_t)(event->start_mark.line + 1);
  if (b->yaml->count > KEDGE_YAML_MAX_NODES) return fail_at(b, line, "more than 65536 values");
  switch (event->type) {
  case YAML_DOCUMENT_START_EVENT:
    return b->ended ? fail_at(b, line, "a second document begins; one is expected") : KEDGE_OK;
  case YAML_DOCUMENT_END_EVENT:
    b->ended = true;
    return KEDGE_OK;
  case YAML_SCALAR_EVENT:
    return on_scalar(b, event, line);
  case YAML_SEQUENCE_START_EVENT:
    return on_open(b, KEDGE_YAML_LIST, event->data.sequence_start.anchor, event->data.sequence_start.tag,
                   line);
  case YAML_MAPPING_START_EVENT:
    return on_open(b, KEDGE_YAML_MAP, event->data.mapping_start.anchor, event->data.mapping_start.tag, line);
  case YAML_SEQUENCE_END_EVENT:
  case YAML_MAPPING_END_EVENT:
    b->yaml->nodes[b->open[--b->depth]].closed = true;
    return KEDGE_OK;
  case YAML_ALIAS_EVENT:
    return on_alias(b, event, line);
  default:
    return KEDGE_OK;
  }
}

static kedge_status parse_failed(const builder *b, const yaml_parser_t *parser) {
  if (parser->error == YAML_MEMORY_ERROR) return kedge_fail(KEDGE_ERR_MEMORY, "%s: out of memory", b->name);
  size_t line = parser->problem_mark.line + 1;
  if (parser->error == YAML_READER_ERROR)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: no YAML: %s at byte %zu", b->name, parser->problem,
                      parser->problem_offset);
  return kedge_fail(KEDGE_ERR_FORMAT, "%s:%zu: no YAML: %s", b->name, line,
                    parser->problem ? parser->problem : "syntax error");
}

static kedge_status run(builder *b, yaml_parser_t *parser) {
  for (;;) {
    yaml_event_t event;
    if (!yaml_parser_parse(parser, &event)) return parse_failed(b, parser);
    yaml_event_type_t type = event.type;
    kedge_status status = on_event(b, &event);
    yaml_event_delete(&event);
    if (status != KEDGE_OK || type == YAML_STREAM_END_EVENT) return status;
  }
}

kedge_status kedge__yaml_parse(kedge_yaml *yaml, const char *name, const char *text, size_t size) {
  memset(yaml, 0, sizeof *yaml);
  if (size > KEDGE_YAML_MAX_BYTES)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: %zu bytes; a configuration has at most 1048576", name, size);
  builder *b = kedge_alloc(1, sizeof *b);
  if (!b) return KEDGE_ERR_MEMORY;
  b->yaml = yaml;
  b->name = name;
  yaml_parser_t parser;
  kedge_status status = KEDGE_OK;
  if (!yaml_parser_initialize(&parser)) {
    kedge_free(b);
    return kedge_fail(KEDGE_ERR_MEMORY, "%s: out of memory", name);
  }
  yaml_parser_set_input_string(&parser, (const unsigned char *)text, size);
  status = run(b, &parser);
  yaml_parser_delete(&parser);
  for (uint32_t i = 0; i < b->anchor_count; i++) kedge_free(b->anchors[i].name);
  kedge_free(b);
  if (status != KEDGE_OK) kedge__yaml_destroy(yaml);
  return status;
}
