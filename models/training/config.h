/* SPDX-License-Identifier: Apache-2.0
 *
 * The configuration of a run: one struct, filled from YAML and `key=value`, checked, and printed again with
 * every effective value. The keys are in config.def, the values of enumerated keys in config_enums.def; the
 * files config_*.c beside this one read YAML (config_yaml), convert values (config_value), take other
 * dialects (config_dialect), check (config_check), collect what is wrong (config_problems) and print
 * (config_print). */
#ifndef KEDGE_MODELS_TRAINING_CONFIG_H
#define KEDGE_MODELS_TRAINING_CONFIG_H

#include "core/kedge.h"
#include "models/training/config_enums.def"

/* One enum type a value list: kedge_config_SCHEDULES { KEDGE_CONFIG_SCHEDULE_LINEAR, ... } and so on. */
#define KEDGE_CONFIG_VALUE(constant, value, others) KEDGE_CONFIG_##constant,
#define KEDGE_CONFIG_ENUM(list)                                                                              \
  typedef enum kedge_config_##list{KEDGE_VALUES_##list(KEDGE_CONFIG_VALUE)} kedge_config_##list;
KEDGE_CONFIG_ENUM(CHOICES)
KEDGE_CONFIG_ENUM(PACKINGS)
KEDGE_CONFIG_ENUM(OPTIMIZERS)
KEDGE_CONFIG_ENUM(SCHEDULES)
KEDGE_CONFIG_ENUM(LB_SCOPES)
KEDGE_CONFIG_ENUM(LB_CONVENTIONS)
KEDGE_CONFIG_ENUM(LB_LAYERS)
KEDGE_CONFIG_ENUM(LB_COUNTS)
KEDGE_CONFIG_ENUM(INTERVENTIONS)
KEDGE_CONFIG_ENUM(GATE_SOURCES)
KEDGE_CONFIG_ENUM(SHUFFLES)
KEDGE_CONFIG_ENUM(SPANS)
KEDGE_CONFIG_ENUM(MASKS)
KEDGE_CONFIG_ENUM(SWITCHES)
KEDGE_CONFIG_ENUM(STRATEGIES)
KEDGE_CONFIG_ENUM(REPORTS)
KEDGE_CONFIG_ENUM(DTYPES)
#undef KEDGE_CONFIG_VALUE
#undef KEDGE_CONFIG_ENUM

/* A data file. `type` names its form (NULL: found by looking); whether the form exists is for the reader of
 * the data. */
typedef struct kedge_config_file {
  char *path, *type;
} kedge_config_file;

typedef struct kedge_config_files {
  kedge_config_file *items;
  size_t count;
} kedge_config_files;

/* MoE layers by number, ascending and distinct; count 0 means all. */
typedef struct kedge_config_layers {
  uint32_t *items;
  size_t count;
} kedge_config_layers;

/* One intervention: the ROUTER_ keys of config.def. `coef` is the effective coefficient, 0 where the
 * intervention has none. */
typedef struct kedge_config_router {
#define ROUTER_ENUM(name, list, def, doc)  int name; /* kedge_config_<list> */
#define ROUTER_REAL(name, range, def, doc) double name;
#define ROUTER_INT(name, range, def, doc)  int64_t name;
#define ROUTER_PATH(name, doc)             char *name; /* NULL: none */
#define ROUTER_LAYERS(name, doc)           kedge_config_layers name;
#include "models/training/config.def"
} kedge_config_router;

typedef struct kedge_config_routers {
  kedge_config_router *items;
  size_t count;
} kedge_config_routers;

/* Lines for the user that are no errors: "warmup_ratio is not used: warmup_steps is given". */
typedef struct kedge_config_notes {
  char **items;
  size_t count;
} kedge_config_notes;

/* All keys. Strings are NULL and unset reals NaN where a key has no value; after loading only min_lr_ratio is
 * ever NaN, and data_seed, min_learning_rate and eval_steps hold what is in effect. `router` is all that is
 * in effect: it also holds what freeze_moe_router, router_aux_loss_coef and router_z_loss_coef ask for, and
 * neither `none` nor a loss of weight 0; those three keys agree with it. */
typedef struct kedge_config {
#define KEY_STRING(name, aliases, def, doc)      char *name;
#define KEY_PATH(name, aliases, def, doc)        char *name;
#define KEY_FILES(name, aliases, doc)            kedge_config_files name;
#define KEY_INT(name, aliases, range, def, doc)  int64_t name;
#define KEY_REAL(name, aliases, range, def, doc) double name;
#define KEY_STEPS(name, aliases, def, doc)       double name; /* resolve with kedge_schedule_every */
#define KEY_BOOL(name, aliases, def, doc)        bool name;
#define KEY_ENUM(name, aliases, list, def, doc)  int name; /* kedge_config_<list> */
#define KEY_ROUTER(name, aliases, doc)           kedge_config_routers name;
#include "models/training/config.def"
  kedge_config_notes notes;
} kedge_config;

/* Defaults, then the YAML file (path NULL: none), then `overrides` [count] as "key=value" with dots and
 * indices for nested keys ("router.beta=0.5", "router[1].coef=0.1"), then checks. A file holds at most 1 MiB.
 * On failure *config is empty and need not be destroyed. Errors: ERR_IO, ERR_ARGUMENT ("run.yaml:12: key
 * ...", or all keys of the file that are wrong in one line), ERR_UNSUPPORTED for what other tools have and
 * Kedge does not, ERR_MEMORY. Relative paths are kept as
 * they are: relative to the current folder. */
kedge_status kedge_config_load(kedge_config *config, const char *path, const char *const *overrides,
                               size_t count);
/* The same for a run of several ranks, which share global_batch_size. */
kedge_status kedge_config_load_for(kedge_config *config, uint32_t ranks, const char *path,
                                   const char *const *overrides, size_t count);

/* The same from text [size bytes]; `name` stands for the file in messages. */
kedge_status kedge_config_parse(kedge_config *config, const char *name, const char *text, size_t size,
                                const char *const *overrides, size_t count);
void kedge_config_destroy(kedge_config *config);

/* ERR_ARGUMENT naming the first of the comma-separated keys (strings, paths, files) that has no value. */
kedge_status kedge_config_require(const kedge_config *config, const char *keys);

/* The resolved configuration as YAML that loads to the same configuration, or as one JSON object. New memory,
 * owned by the caller; NULL: no memory. */
char *kedge_config_yaml(const kedge_config *config);
char *kedge_config_json(const kedge_config *config);

/* All keys in groups with default and meaning, for `--help`. New memory, owned by the caller; NULL: no
 * memory. */
char *kedge_config_help(void);

/* The value of an enumerated key as written in a file, by key name ("lr_scheduler_type", or "router.mask").
 * Static. */
const char *kedge_config_value_name(const char *key, int value);

#endif
