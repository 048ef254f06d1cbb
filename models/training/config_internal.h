/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the configuration reader: the key table that config.def expands to, the state of a load, and what
 * the files config_*.c give each other. */
#ifndef KEDGE_MODELS_TRAINING_CONFIG_INTERNAL_H
#define KEDGE_MODELS_TRAINING_CONFIG_INTERNAL_H

#include "models/training/config.h"
#include "models/training/config_yaml.h"
#include "models/training/nearest.h"

#include <stdio.h>

typedef enum kedge_config_kind {
  KEDGE_KIND_GROUP, /* a heading, no key */
  KEDGE_KIND_STRING,
  KEDGE_KIND_PATH,
  KEDGE_KIND_FILES,
  KEDGE_KIND_INT,
  KEDGE_KIND_REAL,
  KEDGE_KIND_STEPS,
  KEDGE_KIND_BOOL,
  KEDGE_KIND_ENUM,
  KEDGE_KIND_LAYERS,
  KEDGE_KIND_ROUTER,
  KEDGE_KIND_SPECIAL, /* from here on: no field of the struct */
  KEDGE_KIND_IGNORED,
  KEDGE_KIND_REFUSED
} kedge_config_kind;

typedef struct kedge_config_choice {
  const char *value, *others;
} kedge_config_choice;

typedef struct kedge_config_loader kedge_config_loader;
typedef kedge_status (*kedge_config_special)(kedge_config_loader *loader, uint32_t node);

typedef struct kedge_config_key {
  kedge_config_kind kind;
  const char *name, *aliases, *range, *def, *doc, *accepts;
  size_t offset; /* of the field in its struct */
  const kedge_config_choice *choices;
  size_t choice_count;
  kedge_config_special special;
} kedge_config_key;

enum { KEDGE_CONFIG_MAX_KEYS = 256, KEDGE_CONFIG_MAX_ROUTERS = 16, KEDGE_CONFIG_MAX_ITEMS = 4096 };

/* The table, headings included, and that of one router mapping. */
extern const kedge_config_key kedge__config_keys[];
extern const size_t kedge__config_key_count;
extern const kedge_config_key kedge__router_keys[];
extern const size_t kedge__router_key_count;

/* What is wrong with one key. */
typedef enum kedge_config_fault {
  KEDGE_FAULT_UNKNOWN,
  KEDGE_FAULT_REFUSED,
  KEDGE_FAULT_VALUE,
  KEDGE_FAULT_COUNT
} kedge_config_fault;

typedef struct kedge_config_problem {
  kedge_config_fault fault;
  uint32_t line;
  char key[96], text[512]; /* the nearest name of an unknown key (may be ""), else what the message says */
} kedge_config_problem;

/* The problems of a file so far, as texts for one message. */
typedef struct kedge_config_problems {
  size_t counts[KEDGE_FAULT_COUNT], shown[KEDGE_FAULT_COUNT];
  char *lists[KEDGE_FAULT_COUNT]; /* owned */
  char *first;                    /* the whole message of the first, owned */
} kedge_config_problems;

/* A load in progress. A key may be given once a layer (file, overrides); what a later layer gives replaces
 * the earlier. */
struct kedge_config_loader {
  kedge_config *config;
  const kedge_yaml *yaml;        /* tree of the text being read */
  const char *source, *override; /* file name, or the override being read (else NULL) */
  const char *key;               /* as the user spelled it, for messages */
  uint32_t line;                 /* of the value being read */
  const char
      *spelled[KEDGE_CONFIG_MAX_KEYS];   /* how the key was spelled in this layer, NULL: not yet. Owned. */
  bool given[KEDGE_CONFIG_MAX_KEYS];     /* in any layer */
  uint32_t lines[KEDGE_CONFIG_MAX_KEYS]; /* of the file, 0: none or given by an override */
  uint32_t router_layer[KEDGE_CONFIG_MAX_ROUTERS]; /* bits of the router keys given in this layer */
  uint32_t router_given[KEDGE_CONFIG_MAX_ROUTERS]; /* and in any */
  int64_t global_batch;                            /* of global_batch_size, not over 0: none */
  int64_t ranks;                                   /* that share an update */
  bool router_logits;                              /* output_router_logits is true */
  kedge_config_problem problem;                    /* the last failure */
  kedge_config_problems problems;
};

/* ---- config.c ---- */
/* Fails with "file:line: key "k": " or "override "k=v": " in front. */
kedge_status kedge__config_fail(kedge_config_loader *loader, kedge_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same for a name that is no key; `nearest` may name none. */
kedge_status kedge__config_fail_unknown(kedge_config_loader *loader, const kedge_nearest *nearest);
/* Sets a key from a node of the tree. `name` is the key or an alias of it. */
kedge_status kedge__config_set(kedge_config_loader *loader, const char *name, uint32_t node);
/* The same from plain text, for keys of another dialect. The current spelling stays in messages. */
kedge_status kedge__config_set_text(kedge_config_loader *loader, const char *key, const char *text);
/* Fails with the place where key `name` was given. */
kedge_status kedge__config_conflict(kedge_config_loader *loader, const char *name, const char *text);
bool kedge__config_given(const kedge_config_loader *loader, const char *name);
kedge_status kedge__config_note(kedge_config *config, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- config_problems.c ---- */
/* Puts a failure that concerns one key of the file aside, so that the keys after it are read too, and gives
 * OK. Every other status, and every failure of an override, comes back. */
kedge_status kedge__config_put_aside(kedge_config_loader *loader, kedge_status status);
/* Fails with all that was put aside: one problem with its own message, several in one line. */
kedge_status kedge__config_problems_end(kedge_config_loader *loader);
void kedge__config_problems_clear(kedge_config_problems *problems);

/* ---- config_value.c ---- */
/* The scalar text of a node, converted and stored in `base` (the struct of `key`). */
kedge_status kedge__config_store(kedge_config_loader *loader, const kedge_config_key *key, void *base,
                                 uint32_t node);
/* `text` may be NULL: no value. */
kedge_status kedge__config_store_text(kedge_config_loader *loader, const kedge_config_key *key, void *base,
                                      const char *text);
/* True if `name` is an entry of the comma-separated `list`. */
bool kedge__config_in_list(const char *list, const char *name);
bool kedge__config_bool(const char *text, bool *value);
/* True for a value that is absent; with `off` also for one that switches something off: false, no, none, off,
 * 0, an empty list or mapping. */
bool kedge__config_is_empty(const kedge_yaml *yaml, uint32_t node, bool off);
/* True for a scalar, or a list of scalars, whose words are all in the comma-separated list, case aside. */
bool kedge__config_is_among(const kedge_yaml *yaml, uint32_t node, const char *list);
/* A scalar's text, NULL for null and empty plain scalars; an error where the node is a list or a mapping. */
kedge_status kedge__config_scalar(kedge_config_loader *loader, uint32_t node, const char *expected,
                                  const char **text);

/* ---- config_list.c: the keys that are no scalars ---- */
kedge_status kedge__config_files_set(kedge_config_loader *loader, kedge_config_files *files, uint32_t node);
void kedge__config_files_clear(kedge_config_files *files);
kedge_status kedge__config_layers_set(kedge_config_loader *loader, kedge_config_layers *layers,
                                      uint32_t node);
kedge_status kedge__config_routers_set(kedge_config_loader *loader, uint32_t node);
/* One field of entry `index`; index == count adds an entry. */
kedge_status kedge__config_router_field(kedge_config_loader *loader, size_t index, const char *name,
                                        uint32_t node);
kedge_status kedge__config_router_add(kedge_config_loader *loader);
void kedge__config_routers_clear(kedge_config_routers *routers);
void kedge__config_router_remove(kedge_config_loader *loader, size_t index);

/* ---- config_check.c ---- */
/* True if an intervention reads a router key, by the key's name. */
bool kedge__router_uses(int intervention, const char *key);
/* The intervention that a key outside `router` is for, NULL: none. */
const char *kedge__config_serves(const char *key);
/* Fills what follows from other keys and refuses contradictions. */
kedge_status kedge__config_check(kedge_config_loader *loader);

/* ---- config_dialect.c ---- */
/* Rows may share a function. */
#define KEY_SPECIAL(name, function, doc)                                                                     \
  kedge_status kedge__config_##function(kedge_config_loader *loader, uint32_t node);
#include "models/training/config.def"

#endif
