/* SPDX-License-Identifier: Apache-2.0
 * The key tables that config.def and config_enums.def expand to (config_internal.h). */
#include "models/training/config_internal.h"

#include <string.h>

#define KEDGE_CHOICE(constant, value, others) {value, others},
#define KEDGE_CHOICES(list)                                                                                  \
  static const kedge_config_choice choices_##list[] = {KEDGE_VALUES_##list(KEDGE_CHOICE)};
KEDGE_CHOICES(CHOICES)
KEDGE_CHOICES(PACKINGS)
KEDGE_CHOICES(OPTIMIZERS)
KEDGE_CHOICES(SCHEDULES)
KEDGE_CHOICES(LB_SCOPES)
KEDGE_CHOICES(LB_CONVENTIONS)
KEDGE_CHOICES(LB_LAYERS)
KEDGE_CHOICES(LB_COUNTS)
KEDGE_CHOICES(INTERVENTIONS)
KEDGE_CHOICES(GATE_SOURCES)
KEDGE_CHOICES(SHUFFLES)
KEDGE_CHOICES(SPANS)
KEDGE_CHOICES(MASKS)
KEDGE_CHOICES(SWITCHES)
KEDGE_CHOICES(STRATEGIES)
KEDGE_CHOICES(REPORTS)
KEDGE_CHOICES(DTYPES)

#define FIELD(name) .offset = offsetof(kedge_config, name)
#define CHOICE_LIST(list)                                                                                    \
  .choices = choices_##list, .choice_count = sizeof choices_##list / sizeof *choices_##list
#define ROW(k, n, ...) {.kind = KEDGE_KIND_##k, .name = n, __VA_ARGS__},

const kedge_config_key kedge__config_keys[] = {
#define KEY_GROUP(title)        ROW(GROUP, title, .aliases = "")
#define KEY_STRING(n, a, d, t)  ROW(STRING, #n, .aliases = a, .def = d, .doc = t, FIELD(n))
#define KEY_PATH(n, a, d, t)    ROW(PATH, #n, .aliases = a, .def = d, .doc = t, FIELD(n))
#define KEY_FILES(n, a, t)      ROW(FILES, #n, .aliases = a, .doc = t, FIELD(n))
#define KEY_INT(n, a, r, d, t)  ROW(INT, #n, .aliases = a, .range = r, .def = d, .doc = t, FIELD(n))
#define KEY_REAL(n, a, r, d, t) ROW(REAL, #n, .aliases = a, .range = r, .def = d, .doc = t, FIELD(n))
#define KEY_STEPS(n, a, d, t)   ROW(STEPS, #n, .aliases = a, .def = d, .doc = t, FIELD(n))
#define KEY_BOOL(n, a, d, t)    ROW(BOOL, #n, .aliases = a, .def = d, .doc = t, FIELD(n))
#define KEY_ENUM(n, a, l, d, t) ROW(ENUM, #n, .aliases = a, .def = d, .doc = t, FIELD(n), CHOICE_LIST(l))
#define KEY_ROUTER(n, a, t)     ROW(ROUTER, #n, .aliases = a, .doc = t, FIELD(n))
#define KEY_SPECIAL(n, f, t)    ROW(SPECIAL, #n, .aliases = "", .doc = t, .special = kedge__config_##f)
#define KEY_IGNORED(n, t)       ROW(IGNORED, #n, .aliases = "", .doc = t)
#define KEY_REFUSED(n, a, t)    ROW(REFUSED, #n, .aliases = "", .accepts = a, .doc = t)
#include "models/training/config.def"
};
const size_t kedge__config_key_count = sizeof kedge__config_keys / sizeof *kedge__config_keys;
_Static_assert(sizeof kedge__config_keys / sizeof *kedge__config_keys <= KEDGE_CONFIG_MAX_KEYS,
               "too many keys");

#undef FIELD
#define FIELD(name) .offset = offsetof(kedge_config_router, name)

const kedge_config_key kedge__router_keys[] = {
#define ROUTER_ENUM(n, l, d, t) ROW(ENUM, #n, .aliases = "", .def = d, .doc = t, FIELD(n), CHOICE_LIST(l))
#define ROUTER_REAL(n, r, d, t) ROW(REAL, #n, .aliases = "", .range = r, .def = d, .doc = t, FIELD(n))
#define ROUTER_INT(n, r, d, t)  ROW(INT, #n, .aliases = "", .range = r, .def = d, .doc = t, FIELD(n))
#define ROUTER_PATH(n, t)       ROW(PATH, #n, .aliases = "", .doc = t, FIELD(n))
#define ROUTER_LAYERS(n, t)     ROW(LAYERS, #n, .aliases = "", .doc = t, FIELD(n))
#include "models/training/config.def"
};
const size_t kedge__router_key_count = sizeof kedge__router_keys / sizeof *kedge__router_keys;
_Static_assert(sizeof kedge__router_keys / sizeof *kedge__router_keys <= 32,
               "router keys are bits of a word");

const char *kedge_config_value_name(const char *key, int value) {
  bool router = !strncmp(key, "router.", 7);
  const kedge_config_key *keys = router ? kedge__router_keys : kedge__config_keys;
  size_t count = router ? kedge__router_key_count : kedge__config_key_count;
  if (router) key += 7;
  for (size_t i = 0; i < count; i++) {
    bool found = keys[i].kind == KEDGE_KIND_ENUM && !strcmp(keys[i].name, key);
    if (found && value >= 0 && (size_t)value < keys[i].choice_count) return keys[i].choices[value].value;
  }
  return "unknown";
}
