/* SPDX-License-Identifier: Apache-2.0
 * The folder of a study (study.h): lab.json, and which cells there are. A cell's file is read in cell.c. */
#include "models/report/study.h"

#include "models/checkpoint/atomic.h"
#include "models/checkpoint/json.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LAB_BYTES = 16 << 20, MOST_CELLS = 50000, MOST_CONDITIONS = 64, MOST_NAMES = 64 };

/* ---- Names
 * ------------------------------------------------------------------------------------------------------ */

uint32_t kedge_names_find(const kedge_names *names, const char *text) {
  for (uint32_t i = 0; i < names->count; i++)
    if (!strcmp(names->at[i], text)) return i;
  return KEDGE_STUDY_NONE;
}

kedge_status kedge__names_add(kedge_names *names, const char *text, uint32_t *at) {
  *at = kedge_names_find(names, text);
  if (*at != KEDGE_STUDY_NONE) return KEDGE_OK;
  if (names->count >= MOST_NAMES)
    return kedge_fail(KEDGE_ERR_FORMAT, "\"%.80s\": more than %d different names", text, MOST_NAMES);
  char **grown = kedge_realloc(names->at, (size_t)names->count + 1, sizeof *grown);
  if (!grown) return KEDGE_ERR_MEMORY;
  names->at = grown;
  char *copy = kedge_strdup(text);
  if (!copy) return KEDGE_ERR_MEMORY;
  names->at[names->count] = copy;
  *at = names->count++;
  return KEDGE_OK;
}

static void names_destroy(kedge_names *names) {
  for (uint32_t i = 0; i < names->count; i++) kedge_free(names->at[i]);
  kedge_free(names->at);
}

uint32_t kedge_study_condition_find(const kedge_study *study, const char *name) {
  for (uint32_t i = 0; i < study->condition_count; i++)
    if (!strcmp(study->conditions[i].name, name)) return i;
  return KEDGE_STUDY_NONE;
}

uint32_t kedge_study_domain_key(const kedge_study *study, uint32_t domain) {
  return kedge_names_find(&study->keys, study->domains.at[domain]);
}

uint32_t kedge_study_domain_of(const kedge_study *study, const char *shifted) {
  const size_t length = strlen(shifted);
  if (length < 2 || shifted[length - 1] != 'S') return KEDGE_STUDY_NONE;
  for (uint32_t d = 0; d < study->domains.count; d++)
    if (!strncmp(study->domains.at[d], shifted, length - 1)) return d;
  return KEDGE_STUDY_NONE;
}

/* ---- Members of JSON
 * -------------------------------------------------------------------------------------------- */

kedge_status kedge__study_number(const json_t *object, const char *key, const char *where, double *value) {
  const json_t *found = json_object_get(object, key);
  *value = NAN;
  if (!found || json_is_null(found)) return KEDGE_OK;
  if (!json_is_number(found))
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: \"%.80s\": expected a number, came %s", where, key,
                      kedge__json_type(found));
  *value = json_number_value(found);
  if (!(fabs(*value) <= 1e12))
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: \"%.80s\": expected a number up to 1e12, came %g", where, key,
                      *value);
  return KEDGE_OK;
}

kedge_status kedge__study_text(const json_t *object, const char *key, const char *where, char **text) {
  enum { MOST_BYTES = 400 };
  const json_t *found = json_object_get(object, key);
  *text = NULL;
  if (!found || json_is_null(found)) return KEDGE_OK;
  if (!json_is_string(found))
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: \"%.80s\": expected a string, came %s", where, key,
                      kedge__json_type(found));
  if (json_string_length(found) > MOST_BYTES || strlen(json_string_value(found)) != json_string_length(found))
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: \"%.80s\": expected at most %d bytes, none of them 0", where,
                      key, MOST_BYTES);
  *text = kedge_strdup(json_string_value(found));
  return *text ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

kedge_status kedge__study_object(const json_t *object, const char *key, const char *where,
                                 const json_t **found) {
  *found = json_object_get(object, key);
  if (json_is_null(*found)) *found = NULL;
  if (*found && !json_is_object(*found))
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: \"%.80s\": expected an object, came %s", where, key,
                      kedge__json_type(*found));
  return KEDGE_OK;
}

/* ---- lab.json
 * --------------------------------------------------------------------------------------------------- */

static kedge_status read_names(const json_t *lab, const char *key, const char *where, bool needed,
                               kedge_names *names) {
  const json_t *list = json_object_get(lab, key), *item;
  size_t index;
  if (!list && !needed) return KEDGE_OK;
  if (!json_is_array(list) || (needed && !json_array_size(list)))
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: \"%s\": expected a list of names, came %s", where, key,
                      json_is_array(list) ? "an empty one" : kedge__json_type(list));
  json_array_foreach(list, index, item) {
    uint32_t at;
    if (!json_is_string(item) || !json_string_length(item) || json_string_length(item) > 80)
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: \"%s\": entry %zu: expected a name of at most 80 bytes", where,
                        key, index);
    KEDGE_TRY(kedge__names_add(names, json_string_value(item), &at));
  }
  return KEDGE_OK;
}

static kedge_status read_condition(kedge_study *study, const json_t *item, size_t index, const char *where) {
  kedge_study_condition *c = &study->conditions[study->condition_count];
  *c = (kedge_study_condition){.strength = NAN};
  if (!json_is_object(item))
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: \"conditions\": entry %zu: expected an object, came %s", where,
                      index, kedge__json_type(item));
  study->condition_count++; /* from here on it is freed with the study */
  KEDGE_TRY(kedge__study_text(item, "name", where, &c->name));
  KEDGE_TRY(kedge__study_text(item, "label", where, &c->label));
  if (!c->name || !*c->name)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: \"conditions\": entry %zu has no name", where, index);
  if (kedge_study_condition_find(study, c->name) != study->condition_count - 1)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: \"conditions\": \"%.80s\" stands there twice", where, c->name);
  if (!c->label && !(c->label = kedge_strdup(c->name))) return KEDGE_ERR_MEMORY;
  if (json_is_number(json_object_get(item, "strength")))
    KEDGE_TRY(kedge__study_number(item, "strength", where, &c->strength));
  return KEDGE_OK;
}

static kedge_status read_conditions(kedge_study *study, const json_t *lab, const char *where) {
  const json_t *list = json_object_get(lab, "conditions"), *item;
  size_t index;
  if (!json_is_array(list) || !json_array_size(list) || json_array_size(list) > MOST_CONDITIONS)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: \"conditions\": expected a list of 1 to %d, came %s", where,
                      MOST_CONDITIONS, json_is_array(list) ? "another number" : kedge__json_type(list));
  study->conditions = kedge_alloc(json_array_size(list), sizeof *study->conditions);
  if (!study->conditions) return KEDGE_ERR_MEMORY;
  json_array_foreach(list, index, item) KEDGE_TRY(read_condition(study, item, index, where));
  return KEDGE_OK;
}

static kedge_status read_primary(kedge_study *study, const json_t *lab, const char *where) {
  const json_t *list = json_object_get(lab, "primary"), *item;
  size_t index;
  if (!list || json_is_null(list)) return KEDGE_OK;
  if (!json_is_array(list) || json_array_size(list) > MOST_CONDITIONS)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: \"primary\": expected a list of pairs of conditions, came %s",
                      where, json_is_array(list) ? "too many" : kedge__json_type(list));
  study->primary = kedge_alloc(json_array_size(list) + 1, sizeof *study->primary);
  if (!study->primary) return KEDGE_ERR_MEMORY;
  json_array_foreach(list, index, item) {
    uint32_t pair[2];
    bool known = true;
    for (size_t side = 0; side < 2; side++) {
      const char *name = json_string_value(json_array_get(item, side));
      if (!name)
        return kedge_fail(KEDGE_ERR_FORMAT, "%s: \"primary\": entry %zu: expected names of two conditions",
                          where, index);
      pair[side] = kedge_study_condition_find(study, name);
      known = known && pair[side] != KEDGE_STUDY_NONE;
    }
    if (!known) continue; /* of conditions that this preset leaves out */
    memcpy(study->primary[study->primary_count++], pair, sizeof pair);
  }
  return KEDGE_OK;
}

/* "" where absent. */
static kedge_status read_label(const json_t *lab, const char *key, const char *where, char **text) {
  const json_t *found = json_object_get(lab, key);
  if (json_is_number(found)) {
    *text = kedge_format("%.15g", json_number_value(found));
    return *text ? KEDGE_OK : KEDGE_ERR_MEMORY;
  }
  KEDGE_TRY(kedge__study_text(lab, key, where, text));
  if (!*text) *text = kedge_strdup("");
  return *text ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

static kedge_status read_lab(kedge_study *study, const json_t *lab, const char *where) {
  uint32_t at;
  if (!json_is_object(lab) || !json_is_integer(json_object_get(lab, "kedge_lab")) ||
      json_integer_value(json_object_get(lab, "kedge_lab")) != 1)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: expected an object with \"kedge_lab\": 1", where);
  KEDGE_TRY(read_label(lab, "preset", where, &study->preset));
  KEDGE_TRY(read_label(lab, "kedge_version", where, &study->version));
  KEDGE_TRY(read_label(lab, "isa", where, &study->isa));
  KEDGE_TRY(read_label(lab, "created", where, &study->created));
  KEDGE_TRY(kedge__study_number(lab, "cells_expected", where, &study->cells_expected));
  KEDGE_TRY(read_conditions(study, lab, where));
  KEDGE_TRY(read_primary(study, lab, where));
  KEDGE_TRY(read_names(lab, "domains", where, true, &study->domains));
  KEDGE_TRY(read_names(lab, "splits", where, false, &study->shifts));
  for (uint32_t d = 0; d < study->domains.count; d++)
    KEDGE_TRY(kedge__names_add(&study->keys, study->domains.at[d], &at));
  for (uint32_t s = 0; s < study->shifts.count; s++) {
    if (kedge_study_domain_of(study, study->shifts.at[s]) == KEDGE_STUDY_NONE)
      return kedge_fail(KEDGE_ERR_FORMAT,
                        "%s: \"splits\": \"%s\" is the shifted split of none of the domains", where,
                        study->shifts.at[s]);
    KEDGE_TRY(kedge__names_add(&study->keys, study->shifts.at[s], &at));
  }
  if (json_is_object(json_object_get(lab, "protocol"))) {
    char *text = json_dumps(json_object_get(lab, "protocol"), JSON_INDENT(2) | JSON_REAL_PRECISION(10));
    study->protocol = text ? kedge_strdup(text) : NULL;
    free(text);
    if (!study->protocol) return KEDGE_ERR_MEMORY;
  }
  return KEDGE_OK;
}

/* ---- Cells
 * ------------------------------------------------------------------------------------------------------ */

static bool is_cell(const char *name) {
  const size_t length = strlen(name);
  return length > 5 && name[0] != '.' && !strcmp(name + length - 5, ".json");
}

static int by_place(const void *a, const void *b) {
  const kedge_study_cell *x = a, *y = b;
  /* A base has KEDGE_STUDY_NONE everywhere, which plus 1 is the least. */
  const uint32_t xs[] = {x->size, x->base, x->arm + 1, x->shift + 1, x->condition + 1, x->seed + 1};
  const uint32_t ys[] = {y->size, y->base, y->arm + 1, y->shift + 1, y->condition + 1, y->seed + 1};
  for (size_t i = 0; i < sizeof xs / sizeof *xs; i++)
    if (xs[i] != ys[i]) return xs[i] < ys[i] ? -1 : 1;
  return 0;
}

const kedge_study_cell *kedge_study_find(const kedge_study *study, const kedge_study_cell *like) {
  return study->cell_count ? bsearch(like, study->cells, study->cell_count, sizeof *study->cells, by_place)
                           : NULL;
}

const kedge_study_cell *kedge_study_base(const kedge_study *study, uint32_t size, uint32_t base) {
  const kedge_study_cell like = {.size = size,
                                 .base = base,
                                 .condition = KEDGE_STUDY_NONE,
                                 .shift = KEDGE_STUDY_NONE,
                                 .arm = KEDGE_STUDY_NONE,
                                 .seed = KEDGE_STUDY_NONE};
  return kedge_study_find(study, &like);
}

static int by_name(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names of the cells' files in an order that does not hang on the file system. */
static kedge_status list_cells(const char *folder, char ***names, uint32_t *count) {
  uint32_t capacity = 0;
  DIR *dir = opendir(folder);
  kedge_status status = KEDGE_OK;
  if (!dir) return errno == ENOENT ? KEDGE_OK : kedge_fail(KEDGE_ERR_IO, "%s: %s", folder, strerror(errno));
  for (struct dirent *item; status == KEDGE_OK && (item = readdir(dir));) {
    if (!is_cell(item->d_name)) continue;
    if (*count == MOST_CELLS) {
      status = kedge_fail(KEDGE_ERR_FORMAT, "%s: more than %d cells", folder, MOST_CELLS);
    } else if (*count == capacity) {
      capacity = 2 * capacity + 64;
      char **grown = kedge_realloc(*names, capacity, sizeof *grown);
      if (grown)
        *names = grown;
      else
        status = KEDGE_ERR_MEMORY;
    }
    if (status == KEDGE_OK && !((*names)[*count] = kedge_strdup(item->d_name))) status = KEDGE_ERR_MEMORY;
    if (status == KEDGE_OK) ++*count;
  }
  closedir(dir);
  if (*count) qsort(*names, *count, sizeof **names, by_name);
  return status;
}

static kedge_status read_cells(kedge_study *study, const char *folder, char **names, uint32_t count) {
  study->cells = kedge_alloc((size_t)count + 1, sizeof *study->cells);
  if (!study->cells) return KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; i < count; i++) {
    bool known = false;
    char *path = kedge_path_join(folder, names[i]);
    if (!path) return KEDGE_ERR_MEMORY;
    kedge_study_cell *cell = &study->cells[study->cell_count];
    kedge_status status = kedge__study_cell_read(study, path, cell, &known);
    kedge_free(path);
    if (status != KEDGE_OK || !known) kedge__study_cell_destroy(cell);
    KEDGE_TRY(status);
    study->cell_count += known, study->left_out += !known;
  }
  if (study->cell_count) qsort(study->cells, study->cell_count, sizeof *study->cells, by_place);
  for (uint32_t i = 1; i < study->cell_count; i++)
    if (!by_place(&study->cells[i - 1], &study->cells[i]))
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: \"%s\" and \"%s\" are the same cell", folder,
                        study->cells[i - 1].id, study->cells[i].id);
  return KEDGE_OK;
}

kedge_status kedge_study_read(kedge_study *study, const char *folder) {
  json_t *lab = NULL;
  char **names = NULL, *cells;
  uint32_t count = 0;
  *study = (kedge_study){.folder = kedge_strdup(folder), .cells_expected = NAN};
  char *path = kedge_path_join(folder, "lab.json");
  kedge_status status = study->folder && path ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = kedge__json_load(path, MOST_LAB_BYTES, &lab);
  if (status == KEDGE_OK) status = read_lab(study, lab, path);
  json_decref(lab);
  kedge_free(path);
  KEDGE_TRY(status);
  if (!(cells = kedge_path_join(folder, "cells"))) return KEDGE_ERR_MEMORY;
  status = list_cells(cells, &names, &count);
  if (status == KEDGE_OK) status = read_cells(study, cells, names, count);
  for (uint32_t i = 0; i < count; i++) kedge_free(names[i]);
  kedge_free(names);
  kedge_free(cells);
  return status;
}

void kedge_study_destroy(kedge_study *study) {
  kedge_names *lists[] = {&study->domains, &study->shifts, &study->sizes, &study->arms, &study->keys};
  char *texts[] = {study->folder, study->preset, study->version, study->isa, study->created, study->protocol};
  for (uint32_t i = 0; i < study->condition_count; i++) {
    kedge_free(study->conditions[i].name);
    kedge_free(study->conditions[i].label);
    kedge_free(study->conditions[i].settings);
  }
  for (uint32_t i = 0; i < study->cell_count; i++) kedge__study_cell_destroy(&study->cells[i]);
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) names_destroy(lists[i]);
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) kedge_free(texts[i]);
  kedge_free(study->conditions);
  kedge_free(study->primary);
  kedge_free(study->cells);
  *study = (kedge_study){0};
}
