/* SPDX-License-Identifier: Apache-2.0
 * A cell's file (study.h). Whatever a study of another age left out is NaN or NULL; what is there in another
 * form than expected is an error that names file and place. */
#include "models/report/study.h"

#include "models/checkpoint/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CELL_BYTES = 32 << 20, MOST_NUMBER = 1000000000, MOST_LAYERS = 1024, MOST_EXPERTS = 65536 };

/* A cell in the making: the place in the file for messages, "cells/a.json: routing". */
typedef struct reader {
  kedge_study *study;
  kedge_study_cell *cell;
  const char *path;
} reader;

void kedge__study_cell_destroy(kedge_study_cell *cell) {
  for (uint32_t i = 0; i < cell->score_count; i++) kedge_free(cell->scores[i].use);
  for (uint32_t i = 0; i < KEDGE_STUDY_HASHES; i++) kedge_free(cell->hashes[i]);
  kedge_free(cell->scores);
  kedge_free(cell->curve_step);
  kedge_free(cell->curve_loss);
  kedge_free(cell->id);
  *cell = (kedge_study_cell){0};
}

const kedge_study_score *kedge_study_score_of(const kedge_study_cell *cell, uint32_t key) {
  for (uint32_t i = 0; i < cell->score_count; i++)
    if (cell->scores[i].key == key) return &cell->scores[i];
  return NULL;
}

/* The score of a test set, made where it is new. */
static kedge_status score_for(const reader *r, const char *name, kedge_study_score **score) {
  uint32_t key;
  kedge_study_cell *cell = r->cell;
  if (strlen(name) > 80)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: \"%.80s...\": expected a name of at most 80 bytes", r->path,
                      name);
  kedge_status status = kedge__names_add(&r->study->keys, name, &key);
  if (status != KEDGE_OK) return kedge_fail_in(status, "%s", r->path);
  for (uint32_t i = 0; i < cell->score_count; i++)
    if (cell->scores[i].key == key) {
      *score = &cell->scores[i];
      return KEDGE_OK;
    }
  kedge_study_score *grown = kedge_realloc(cell->scores, (size_t)cell->score_count + 1, sizeof *grown);
  if (!grown) return KEDGE_ERR_MEMORY;
  cell->scores = grown;
  *score = &grown[cell->score_count++];
  **score = (kedge_study_score){.key = key,
                                .right = NAN,
                                .items = NAN,
                                .chance = NAN,
                                .nll = NAN,
                                .bias_right = NAN,
                                .bias_items = NAN,
                                .bias_nll = NAN,
                                .own_nll = NAN,
                                .own_accuracy = NAN,
                                .base_nll = NAN,
                                .forced_nll = NAN,
                                .forced_accuracy = NAN,
                                .converse_nll = NAN};
  for (int i = 0; i < KEDGE_ROUTINGS; i++) (*score)->routing[i] = NAN;
  return KEDGE_OK;
}

/* Calls `read` for each member of an object that may be absent. */
static kedge_status each(const reader *r, const json_t *object, const char *key,
                         kedge_status (*read)(const reader *, const char *name, const json_t *,
                                              const char *)) {
  const json_t *found;
  const char *name;
  json_t *item;
  kedge_status status = KEDGE_OK;
  KEDGE_TRY(kedge__study_object(object, key, r->path, &found));
  json_object_foreach((json_t *)(uintptr_t)found, name, item) {
    char *where = kedge_format("%s: %s.%.80s", r->path, key, name);
    if (!where) return KEDGE_ERR_MEMORY;
    status = read(r, name, item, where);
    kedge_free(where);
    KEDGE_TRY(status);
  }
  return KEDGE_OK;
}

static kedge_status need_object(const json_t *item, const char *where) {
  if (json_is_object(item)) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_FORMAT, "%s: expected an object, came %s", where, kedge__json_type(item));
}

/* Right ones of items. */
static kedge_status read_counts(const json_t *item, const char *where, double *right, double *items) {
  KEDGE_TRY(need_object(item, where));
  KEDGE_TRY(kedge__study_number(item, "right", where, right));
  KEDGE_TRY(kedge__study_number(item, "items", where, items));
  if (isnan(*right) && isnan(*items)) return KEDGE_OK;
  if (*items > 0 && *right >= 0 && *right <= *items) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_FORMAT, "%s: expected 0 <= right <= items, came right %g, items %g", where,
                    *right, *items);
}

static kedge_status read_accuracy(const reader *r, const char *name, const json_t *item, const char *where) {
  kedge_study_score *s;
  KEDGE_TRY(score_for(r, name, &s));
  KEDGE_TRY(read_counts(item, where, &s->right, &s->items));
  return kedge__study_number(item, "chance", where, &s->chance);
}

static kedge_status read_bias_accuracy(const reader *r, const char *name, const json_t *item,
                                       const char *where) {
  kedge_study_score *s;
  KEDGE_TRY(score_for(r, name, &s));
  return read_counts(item, where, &s->bias_right, &s->bias_items);
}

/* A number that is a member's whole value. */
static kedge_status take_number(const json_t *item, const char *where, double *value) {
  *value = json_is_number(item) ? json_number_value(item) : NAN;
  if (json_is_null(item) || fabs(*value) <= 1e12) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_FORMAT, "%s: expected a number up to 1e12, came %s", where,
                    kedge__json_type(item));
}

static kedge_status read_nll(const reader *r, const char *name, const json_t *item, const char *where) {
  kedge_study_score *s;
  KEDGE_TRY(score_for(r, name, &s));
  return take_number(item, where, &s->nll);
}

static kedge_status read_bias_nll(const reader *r, const char *name, const json_t *item, const char *where) {
  kedge_study_score *s;
  KEDGE_TRY(score_for(r, name, &s));
  return take_number(item, where, &s->bias_nll);
}

static kedge_status read_routing(const reader *r, const char *name, const json_t *item, const char *where) {
  static const char *const keys[KEDGE_ROUTINGS] = {"topk_overlap", "top1_overlap", "gate_overlap", "tvd",
                                                   "jsd"};
  kedge_study_score *s = NULL;
  KEDGE_TRY(need_object(item, where));
  if (strcmp(name, "mean") != 0) KEDGE_TRY(score_for(r, name, &s));
  for (int i = 0; i < KEDGE_ROUTINGS; i++)
    KEDGE_TRY(kedge__study_number(item, keys[i], where, s ? &s->routing[i] : &r->cell->routing[i]));
  return KEDGE_OK;
}

static kedge_status read_communities(const reader *r, const char *name, const json_t *item,
                                     const char *where) {
  char *end;
  const double rho = strtod(name, &end);
  const int at = rho == 0.1 ? 0 : rho == 0.2 ? 1 : -1;
  KEDGE_TRY(need_object(item, where));
  if (at < 0 || *end) return KEDGE_OK;
  KEDGE_TRY(kedge__study_number(item, "nmi", where, &r->cell->nmi[at]));
  KEDGE_TRY(kedge__study_number(item, "ceiling", where, &r->cell->ceiling[at]));
  return kedge__study_number(item, "floor", where, &r->cell->floor[at]);
}

static kedge_status read_selection(const reader *r, const char *name, const json_t *item, const char *where) {
  kedge_study_score *s;
  KEDGE_TRY(need_object(item, where));
  KEDGE_TRY(score_for(r, name, &s));
  KEDGE_TRY(kedge__study_number(item, "nll_own", where, &s->own_nll));
  KEDGE_TRY(kedge__study_number(item, "accuracy_own", where, &s->own_accuracy));
  KEDGE_TRY(kedge__study_number(item, "nll_base", where, &s->base_nll));
  KEDGE_TRY(kedge__study_number(item, "nll_forced", where, &s->forced_nll));
  KEDGE_TRY(kedge__study_number(item, "accuracy_forced", where, &s->forced_accuracy));
  KEDGE_TRY(kedge__study_number(item, "nll_converse", where, &s->converse_nll));
  const json_t *ranks = json_object_get(item, "nll_rank"), *value;
  size_t index;
  if (!ranks || json_is_null(ranks)) return KEDGE_OK;
  if (!json_is_array(ranks))
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: nll_rank: expected a list, came %s", where,
                      kedge__json_type(ranks));
  json_array_foreach(ranks, index, value) {
    if (index == KEDGE_STUDY_RANKS) break;
    KEDGE_TRY(take_number(value, where, &s->rank_nll[index]));
    s->ranks = (uint32_t)index + 1;
  }
  return KEDGE_OK;
}

static kedge_status read_use(const reader *r, const char *name, const json_t *item, const char *where) {
  kedge_study_score *s;
  const size_t layers = json_array_size(item), experts = json_array_size(json_array_get(item, 0));
  KEDGE_TRY(score_for(r, name, &s));
  if (!layers || !experts || layers > MOST_LAYERS || experts > MOST_EXPERTS)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: expected a list of layers with a list of experts each", where);
  for (size_t l = 0; l < layers; l++)
    if (json_array_size(json_array_get(item, l)) != experts)
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: layer %zu: expected %zu experts, came %zu", where, l, experts,
                        json_array_size(json_array_get(item, l)));
  if (!(s->use = kedge_alloc(layers * experts, sizeof *s->use))) return KEDGE_ERR_MEMORY;
  s->layers = (uint32_t)layers, s->experts = (uint32_t)experts;
  for (size_t i = 0; i < layers * experts; i++) {
    double share;
    KEDGE_TRY(take_number(json_array_get(json_array_get(item, i / experts), i % experts), where, &share));
    if (!(share >= 0 && share <= 1))
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: layer %zu expert %zu: expected a share, came %g", where,
                        i / experts, i % experts, share);
    s->use[i] = (float)share;
  }
  return KEDGE_OK;
}

static kedge_status read_curve(const json_t *curve, const char *where, kedge_study_cell *cell) {
  const json_t *steps = json_object_get(curve, "step"), *losses = json_object_get(curve, "loss");
  const size_t count = json_array_size(losses);
  if (count != json_array_size(steps))
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: curve: expected as many steps as losses, came %zu and %zu",
                      where, json_array_size(steps), count);
  if (!count) return KEDGE_OK;
  cell->curve_step = kedge_alloc(count, sizeof *cell->curve_step);
  cell->curve_loss = kedge_alloc(count, sizeof *cell->curve_loss);
  if (!cell->curve_step || !cell->curve_loss) return KEDGE_ERR_MEMORY;
  for (size_t i = 0; i < count; i++) {
    KEDGE_TRY(take_number(json_array_get(steps, i), where, &cell->curve_step[i]));
    KEDGE_TRY(take_number(json_array_get(losses, i), where, &cell->curve_loss[i]));
  }
  cell->curve_count = (uint32_t)count;
  return KEDGE_OK;
}

static kedge_status read_train(const reader *r, const json_t *root) {
  const json_t *train, *curve;
  kedge_study_cell *cell = r->cell;
  KEDGE_TRY(kedge__study_object(root, "train", r->path, &train));
  KEDGE_TRY(kedge__study_number(train, "steps", r->path, &cell->steps));
  KEDGE_TRY(kedge__study_number(train, "final_loss", r->path, &cell->final_loss));
  KEDGE_TRY(kedge__study_number(train, "seconds_cpu", r->path, &cell->train_seconds));
  KEDGE_TRY(kedge__study_object(train, "curve", r->path, &curve));
  return curve ? read_curve(curve, r->path, cell) : KEDGE_OK;
}

/* ---- Which cell it is
 * ------------------------------------------------------------------------------------------ */

static kedge_status read_whole(const reader *r, const json_t *root, const char *key, bool needed,
                               uint32_t *value) {
  double real;
  KEDGE_TRY(kedge__study_number(root, key, r->path, &real));
  *value = KEDGE_STUDY_NONE;
  if (isnan(real) && !needed) return KEDGE_OK;
  if (!(real >= 0 && real <= MOST_NUMBER && real == floor(real)))
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: \"%s\": expected a whole number up to %d", r->path, key,
                      MOST_NUMBER);
  *value = (uint32_t)real;
  return KEDGE_OK;
}

static kedge_status read_name(const reader *r, const json_t *root, const char *key, bool needed,
                              kedge_names *names, uint32_t *at) {
  char *text;
  *at = KEDGE_STUDY_NONE;
  KEDGE_TRY(kedge__study_text(root, key, r->path, &text));
  if (!text && !needed) return KEDGE_OK;
  kedge_status status = text && *text ? kedge__names_add(names, text, at)
                                      : kedge_fail(KEDGE_ERR_FORMAT, "%s: no \"%s\"", r->path, key);
  kedge_free(text);
  return status;
}

/* *known is false for conditions that lab.json does not name. */
static kedge_status read_place(const reader *r, const json_t *root, bool *known) {
  kedge_study_cell *cell = r->cell;
  kedge_study *study = r->study;
  char *condition;
  const char *file = strrchr(r->path, '/');
  KEDGE_TRY(kedge__study_text(root, "condition", r->path, &condition));
  if (!condition) return kedge_fail(KEDGE_ERR_FORMAT, "%s: no \"condition\"", r->path);
  const bool base = !strcmp(condition, "base");
  cell->condition = base ? KEDGE_STUDY_NONE : kedge_study_condition_find(study, condition);
  kedge_free(condition);
  *known = base || cell->condition != KEDGE_STUDY_NONE;
  if (!*known) return KEDGE_OK;
  KEDGE_TRY(kedge__study_text(root, "id", r->path, &cell->id));
  if (!cell->id && !(cell->id = kedge_strdup(file ? file + 1 : r->path))) return KEDGE_ERR_MEMORY;
  KEDGE_TRY(read_name(r, root, "size", true, &study->sizes, &cell->size));
  KEDGE_TRY(read_whole(r, root, "base", true, &cell->base));
  cell->shift = cell->arm = cell->seed = KEDGE_STUDY_NONE;
  if (base) return KEDGE_OK;
  KEDGE_TRY(read_whole(r, root, "seed", true, &cell->seed));
  KEDGE_TRY(read_name(r, root, "arm", true, &study->arms, &cell->arm));
  KEDGE_TRY(read_name(r, root, "shift", true, &study->shifts, &cell->shift));
  if (kedge_study_domain_of(study, study->shifts.at[cell->shift]) == KEDGE_STUDY_NONE)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: \"shift\": \"%s\" is the shifted split of none of the domains",
                      r->path, study->shifts.at[cell->shift]);
  return KEDGE_OK;
}

/* The first cell of a condition tells its settings. */
static kedge_status read_settings(const reader *r, const json_t *root) {
  const json_t *settings;
  KEDGE_TRY(kedge__study_object(root, "settings", r->path, &settings));
  if (!settings || r->cell->condition == KEDGE_STUDY_NONE) return KEDGE_OK;
  kedge_study_condition *c = &r->study->conditions[r->cell->condition];
  if (c->settings) return KEDGE_OK;
  char *text = json_dumps(settings, JSON_INDENT(2) | JSON_REAL_PRECISION(10));
  c->settings = text ? kedge_strdup(text) : NULL;
  free(text);
  return c->settings ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

static kedge_status read_hashes(const reader *r, const json_t *root) {
  static const char *const keys[KEDGE_STUDY_HASHES] = {"base", "prior", "data", "model", "config"};
  const json_t *hashes;
  KEDGE_TRY(kedge__study_object(root, "hashes", r->path, &hashes));
  for (uint32_t i = 0; i < KEDGE_STUDY_HASHES; i++)
    KEDGE_TRY(kedge__study_text(hashes, keys[i], r->path, &r->cell->hashes[i]));
  return KEDGE_OK;
}

/* Questions and answers of other ages are left out. */
static kedge_status read_audit(const reader *r, const char *name, const json_t *item, const char *where) {
  static const char *const answers[] = {"cannot_tell", "no", "undecided", "yes"};
  KEDGE_TRY(need_object(item, where));
  const char *answer = json_string_value(json_object_get(item, "answer"));
  for (uint32_t q = 0; answer && q < KEDGE_AUDIT_QUESTIONS; q++)
    for (size_t a = 0; a < sizeof answers / sizeof *answers; a++)
      if (!strcmp(name, kedge_audit_key((kedge_audit_question)q)) && !strcmp(answer, answers[a]))
        r->cell->audit[q] = (kedge_audit_answer)a, r->cell->audited = true;
  return KEDGE_OK;
}

static kedge_status read_root(const reader *r, const json_t *root, bool *known) {
  const json_t *bias;
  if (!json_is_object(root) || !json_is_integer(json_object_get(root, "kedge_lab_cell")) ||
      json_integer_value(json_object_get(root, "kedge_lab_cell")) != 1)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: expected an object with \"kedge_lab_cell\": 1", r->path);
  KEDGE_TRY(read_place(r, root, known));
  if (!*known) return KEDGE_OK;
  KEDGE_TRY(each(r, root, "accuracy", read_accuracy));
  KEDGE_TRY(each(r, root, "nll", read_nll));
  KEDGE_TRY(kedge__study_object(root, "with_bias", r->path, &bias));
  KEDGE_TRY(each(r, bias, "accuracy", read_bias_accuracy));
  KEDGE_TRY(each(r, bias, "nll", read_bias_nll));
  KEDGE_TRY(each(r, root, "routing", read_routing));
  KEDGE_TRY(each(r, root, "communities", read_communities));
  KEDGE_TRY(each(r, root, "selection", read_selection));
  KEDGE_TRY(each(r, root, "utilisation", read_use));
  KEDGE_TRY(each(r, root, "audit", read_audit));
  KEDGE_TRY(read_train(r, root));
  KEDGE_TRY(read_settings(r, root));
  KEDGE_TRY(read_hashes(r, root));
  return kedge__study_number(root, "seconds_cpu", r->path, &r->cell->seconds);
}

kedge_status kedge__study_cell_read(kedge_study *study, const char *path, kedge_study_cell *cell,
                                    bool *known) {
  json_t *root;
  *cell = (kedge_study_cell){.seconds = NAN, .steps = NAN, .final_loss = NAN};
  for (int i = 0; i < KEDGE_ROUTINGS; i++) cell->routing[i] = NAN;
  for (int i = 0; i < 2; i++) cell->nmi[i] = cell->ceiling[i] = cell->floor[i] = NAN;
  cell->train_seconds = NAN;
  KEDGE_TRY(kedge__json_load(path, MOST_CELL_BYTES, &root));
  const reader r = {study, cell, path};
  kedge_status status = read_root(&r, root, known);
  json_decref(root);
  return status;
}
