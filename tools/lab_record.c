/* SPDX-License-Identifier: Apache-2.0
 * What a study's folder holds of each stage (lab.h): done/<stage>.json has the key of a finished one, and the
 * hashes of its outputs. A file that was changed, or a stage whose inputs are others now, is made again. */
#include "models/checkpoint/atomic.h"
#include "models/training/run_checkpoint.h"
#include "tools/lab.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { JSON_CAP = 64 << 20 };

char *lab_path(const lab *l, const char *a, const char *b) {
  return b ? kedge_format("%s/%s/%s", l->out, a, b) : kedge_format("%s/%s", l->out, a);
}

static kedge_status read_json(const char *path, json_t **root) {
  char *text = NULL;
  size_t bytes = 0;
  json_error_t error;
  *root = NULL;
  KEDGE_TRY(kedge_file_read(path, JSON_CAP, &text, &bytes));
  *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
  kedge_free(text);
  if (json_is_object(*root)) return KEDGE_OK;
  const kedge_status status = kedge_fail(KEDGE_ERR_FORMAT, "%s: expected an object of JSON%s%s", path,
                                         *root ? "" : ": ", *root ? "" : error.text);
  json_decref(*root);
  *root = NULL;
  return status;
}

kedge_status lab_read_json(const lab *l, const char *name, json_t **root) {
  char *path = lab_path(l, name, NULL);
  *root = NULL;
  const kedge_status status = path ? read_json(path, root) : KEDGE_ERR_MEMORY;
  kedge_free(path);
  return status;
}

static kedge_status write_json(const lab *l, const char *name, const json_t *root) {
  char *text = root ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) : NULL,
       *path = lab_path(l, name, NULL), *ended = text ? kedge_format("%s\n", text) : NULL;
  const kedge_status status = ended && path ? kedge_file_write(path, ended, strlen(ended)) : KEDGE_ERR_MEMORY;
  free(text);
  kedge_free(path);
  kedge_free(ended);
  return status;
}

/* ---- Folders
 * ----------------------------------------------------------------------------------------------------- */

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *place) {
  (void)st, (void)type, (void)place;
  return remove(path) && errno != ENOENT ? -1 : 0;
}

/* Links are removed, not followed. */
static kedge_status remove_tree(const char *path) {
  struct stat st;
  if (lstat(path, &st)) return KEDGE_OK;
  if (!nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS)) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_IO, "%s: cannot be removed: %s", path, strerror(errno));
}

/* Anything but what a study begins with. */
static kedge_status must_be_empty(const char *path) {
  DIR *folder = opendir(path);
  if (!folder) return kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
  bool empty = true;
  for (struct dirent *e; (e = readdir(folder));)
    empty = empty && (e->d_name[0] == '.' || !strncmp(e->d_name, "lab.json", 8));
  closedir(folder);
  return empty ? KEDGE_OK
               : kedge_fail(KEDGE_ERR_ARGUMENT, "%s holds files that no study wrote; choose another --out",
                            path);
}

/* Hash of what computes: the program, and the library that it and its children load from the same place. A
 * library that was replaced shows; a program that was does not, as children are started from this one. */
static kedge_status hash_program(char text[KEDGE_HASH_TEXT]) {
  char one[KEDGE_HASH_TEXT], other[KEDGE_HASH_TEXT] = "";
  Dl_info info;
  struct stat program, library;
  KEDGE_TRY(kedge_hash_file("/proc/self/exe", one));
  const bool found = dladdr((const void *)(uintptr_t)kedge_version, &info) && info.dli_fname;
  if (found && !stat("/proc/self/exe", &program) && !stat(info.dli_fname, &library) &&
      program.st_ino != library.st_ino)
    KEDGE_TRY(kedge_hash_file(info.dli_fname, other));
  kedge_hash *hash = kedge_hash_new();
  if (!hash) return KEDGE_ERR_MEMORY;
  kedge_hash_add_text(hash, one);
  kedge_hash_add_text(hash, other);
  kedge_hash_text(hash, text);
  kedge_hash_free(hash);
  return KEDGE_OK;
}

/* Cells of one study are pairs only if one program on one set of instructions made all of them. A study that
 * does not say which program began it is taken as it is. */
static kedge_status check_maker(const lab *l, const json_t *had, const json_t *is) {
  const char *isa = json_string_value(json_object_get(had, "isa")),
             *here = json_string_value(json_object_get(is, "isa")),
             *program = json_string_value(json_object_get(had, "program"));
  if (isa && here && strcmp(isa, here))
    return kedge_fail(KEDGE_ERR_MISMATCH,
                      "%s was begun on %.60s, here is %.60s: their numbers differ and are not mixed; set "
                      "KEDGE_ISA or choose another --out",
                      l->out, isa, here);
  if (program && strcmp(program, l->program))
    return kedge_fail(
        KEDGE_ERR_MISMATCH,
        "%s was begun by another build of kedge, whose numbers may differ: go on with that one, "
        "choose another --out, or take \"program\" out of its lab.json if they compute the same",
        l->out);
  return KEDGE_OK;
}

/* The same study but for when it was begun. */
static kedge_status check_study(const lab *l, const json_t *had, const json_t *is) {
  static const char *const apart[] = {"created", "isa", "kedge_version", "program"};
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)is, key, value) {
    bool other = false;
    for (size_t i = 0; i < sizeof apart / sizeof *apart; i++) other = other || !strcmp(key, apart[i]);
    if (other || json_equal(value, json_object_get(had, key))) continue;
    const char *preset = json_string_value(json_object_get(had, "preset"));
    return kedge_fail(KEDGE_ERR_MISMATCH,
                      "%s holds another study (preset %.40s; \"%s\" differs); choose another --out", l->out,
                      preset ? preset : "unknown", key);
  }
  return check_maker(l, had, is);
}

static json_t *whole_description(const lab *l) {
  kedge_device *device = NULL;
  const kedge_open_options one = {.threads = 1};
  char now[32];
  const time_t at = time(NULL);
  struct tm utc;
  strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&at, &utc));
  json_t *o = lab_describe(l->preset);
  const bool open = kedge_device_open("cpu", &one, &device) == KEDGE_OK;
  if (o) json_object_set_new(o, "kedge_version", json_string(kedge_version()));
  if (o) json_object_set_new(o, "isa", json_string(open ? kedge_device_description(device) : "unknown"));
  if (o) json_object_set_new(o, "program", json_string(l->program));
  if (o) json_object_set_new(o, "created", json_string(now));
  kedge_device_close(device);
  return o;
}

static kedge_status write_configs(const lab *l) {
  const char *at = l->preset->sizes;
  for (size_t n; (n = lab_next_name(&at)); at += n) {
    const lab_size *size = lab_size_find(at, n);
    char *text = lab_config_text(size), *name = kedge_format("config-%s.json", size->name),
         *path = name ? lab_path(l, name, NULL) : NULL;
    const kedge_status status = text && path ? kedge_file_write(path, text, strlen(text)) : KEDGE_ERR_MEMORY;
    kedge_free(text);
    kedge_free(name);
    kedge_free(path);
    KEDGE_TRY(status);
  }
  return KEDGE_OK;
}

kedge_status lab_folder(lab *l) {
  static const char *const folders[] = {"data", "bases",       "priors", "cells", "done",
                                        "logs", "communities", "audits", "work"};
  KEDGE_TRY(hash_program(l->program));
  json_t *is = whole_description(l), *had = NULL;
  char *path = lab_path(l, "lab.json", NULL);
  kedge_status status = is && path ? kedge_folder_make(l->out) : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK && access(path, F_OK) == 0) {
    status = read_json(path, &had);
    if (status == KEDGE_OK) status = check_study(l, had, is);
  } else if (status == KEDGE_OK) {
    status = must_be_empty(l->out);
    if (status == KEDGE_OK) status = write_json(l, "lab.json", is);
  }
  for (size_t i = 0; status == KEDGE_OK && i < sizeof folders / sizeof *folders; i++) {
    char *folder = lab_path(l, folders[i], NULL);
    status = folder ? kedge_folder_make(folder) : KEDGE_ERR_MEMORY;
    kedge_free(folder);
  }
  if (status == KEDGE_OK) status = write_configs(l);
  json_decref(is);
  json_decref(had);
  kedge_free(path);
  return status;
}

/* ---- Keys
 * -------------------------------------------------------------------------------------------------------- */

static kedge_status hash_one(const lab *l, const char *name, char text[KEDGE_HASH_TEXT]) {
  char *path = lab_path(l, name, NULL);
  const kedge_status status = path ? kedge_hash_file(path, text) : KEDGE_ERR_MEMORY;
  kedge_free(path);
  return status;
}

static kedge_status make_key(const lab *l, lab_stage *s) {
  kedge_status status = KEDGE_OK;
  kedge_hash *hash = kedge_hash_new();
  if (!hash) return KEDGE_ERR_MEMORY;
  kedge_hash_add_text(hash, "stage of a study 1");
  kedge_hash_add_text(hash, s->id);
  for (size_t i = 0; i < s->step_count; i++) kedge_hash_add_text(hash, s->steps[i]);
  for (size_t i = 0; i < s->need_count; i++) kedge_hash_add_text(hash, l->stages[s->needs[i]].content);
  for (size_t i = 0; status == KEDGE_OK && i < s->input_count; i++) {
    char text[KEDGE_HASH_TEXT];
    status = hash_one(l, s->inputs[i], text);
    if (status == KEDGE_OK) kedge_hash_add_text(hash, text);
  }
  kedge_hash_text(hash, s->key);
  kedge_hash_free(hash);
  return status;
}

/* A stage's content is that of its outputs; of a base's cell without the file of results, which has times in
 * it and is nobody's input. `outputs` gets the hash of each. */
static kedge_status make_content(const lab *l, lab_stage *s, json_t *outputs) {
  kedge_status status = KEDGE_OK;
  kedge_hash *hash = kedge_hash_new();
  if (!hash) return KEDGE_ERR_MEMORY;
  for (size_t i = 0; status == KEDGE_OK && i < s->output_count; i++) {
    char text[KEDGE_HASH_TEXT];
    status = hash_one(l, s->outputs[i], text);
    if (status != KEDGE_OK) break;
    json_object_set_new(outputs, s->outputs[i], json_string(text));
    if (!strncmp(s->outputs[i], "cells/", 6)) continue;
    kedge_hash_add_text(hash, s->outputs[i]);
    kedge_hash_add_text(hash, text);
  }
  kedge_hash_text(hash, s->content);
  kedge_hash_free(hash);
  return status;
}

/* Whether the stage's record is of its key, and its outputs are as the record says. Whatever is wrong with
 * them, the stage is made again. */
static kedge_status find_record(const lab *l, lab_stage *s, bool *found) {
  char *name = kedge_format("done/%s.json", s->id), *path = name ? lab_path(l, name, NULL) : NULL;
  json_t *record = NULL, *outputs = json_object();
  *found = false;
  kedge_status status = path && outputs ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK && access(path, F_OK) == 0 && read_json(path, &record) == KEDGE_OK) {
    const char *key = json_string_value(json_object_get(record, "key"));
    *found = key && !strcmp(key, s->key) && make_content(l, s, outputs) == KEDGE_OK &&
             json_equal(outputs, json_object_get(record, "outputs"));
  }
  json_decref(record);
  json_decref(outputs);
  kedge_free(name);
  kedge_free(path);
  return status;
}

kedge_status lab_look(lab *l, size_t index) {
  lab_stage *s = &l->stages[index];
  bool found;
  if (s->state != LAB_WAITING) return KEDGE_OK;
  for (size_t i = 0; i < s->need_count; i++) {
    const lab_state state = l->stages[s->needs[i]].state;
    if (state == LAB_FAILED) s->state = LAB_FAILED;
    if (state != LAB_FINISHED) return KEDGE_OK;
  }
  KEDGE_TRY(make_key(l, s));
  KEDGE_TRY(find_record(l, s, &found));
  s->state = found ? LAB_FINISHED : LAB_READY;
  s->reused = found;
  return KEDGE_OK;
}

/* ---- Begin and end
 * ----------------------------------------------------------------------------------------------- */

static char *working_folder(const lab *l, const lab_stage *s) {
  return lab_path(l, s->kind == LAB_BASE ? "bases" : "work", s->id);
}

/* Whether a base was begun with the same key and has a checkpoint. */
static kedge_status has_checkpoint(const lab_stage *s, const char *folder, bool *has) {
  char *key_file = kedge_path_join(folder, "key"), *model = kedge_path_join(folder, "model"), *key = NULL,
       *checkpoint = NULL;
  size_t bytes;
  *has = false;
  kedge_status status = key_file && model ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK && kedge_file_read(key_file, 64, &key, &bytes) == KEDGE_OK && !strcmp(key, s->key))
    *has = kedge_run_find(model, &checkpoint, NULL) == KEDGE_OK && checkpoint;
  kedge_free(key_file);
  kedge_free(model);
  kedge_free(key);
  kedge_free(checkpoint);
  return status;
}

/* The results that stand where new ones will: were the stage to fail, a report would take them for its own.
 */
static kedge_status drop_results(const lab *l, const lab_stage *s) {
  if (s->kind != LAB_CELL && s->kind != LAB_BASE_CELL) return KEDGE_OK;
  char *path = lab_path(l, s->outputs[0], NULL);
  const kedge_status status = path ? remove_tree(path) : KEDGE_ERR_MEMORY;
  kedge_free(path);
  return status;
}

static kedge_status check_program(const lab *l) {
  char text[KEDGE_HASH_TEXT];
  KEDGE_TRY(hash_program(text));
  if (!strcmp(text, l->program)) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_MISMATCH, "the library of kedge was replaced while the study ran");
}

kedge_status lab_begin(lab *l, size_t index, bool *goes_on) {
  lab_stage *s = &l->stages[index];
  KEDGE_TRY(check_program(l));
  KEDGE_TRY(drop_results(l, s));
  char *folder = working_folder(l, s), *key = folder ? kedge_path_join(folder, "key") : NULL;
  *goes_on = false;
  kedge_status status = key ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK && s->kind == LAB_BASE) status = has_checkpoint(s, folder, goes_on);
  if (status == KEDGE_OK && !*goes_on) {
    status = remove_tree(folder);
    if (status == KEDGE_OK) status = kedge_folder_make(folder);
    if (status == KEDGE_OK && s->kind == LAB_BASE) status = kedge_file_write(key, s->key, strlen(s->key));
  }
  kedge_free(folder);
  kedge_free(key);
  return status;
}

static kedge_status write_cell(const lab *l, const lab_stage *s) {
  json_t *cell = NULL;
  KEDGE_TRY(lab_cell_json(l, s, &cell));
  const kedge_status status = write_json(l, s->outputs[0], cell);
  json_decref(cell);
  return status;
}

/* The weights are most of what a cell takes on disk. */
static kedge_status clear_away(const lab *l, const lab_stage *s) {
  char *folder = working_folder(l, s), *model = folder ? kedge_path_join(folder, "model") : NULL,
       *kept = lab_path(l, "models", s->id), *parent = lab_path(l, "models", NULL);
  kedge_status status = model && kept && parent ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK && l->keep && s->kind == LAB_CELL) {
    status = kedge_folder_make(parent);
    if (status == KEDGE_OK) status = remove_tree(kept);
    if (status == KEDGE_OK && rename(model, kept))
      status = kedge_fail(KEDGE_ERR_IO, "%s: %s", kept, strerror(errno));
  }
  if (status == KEDGE_OK && s->kind != LAB_BASE) status = remove_tree(folder);
  kedge_free(folder);
  kedge_free(model);
  kedge_free(kept);
  kedge_free(parent);
  return status;
}

kedge_status lab_finish(lab *l, size_t index) {
  lab_stage *s = &l->stages[index];
  KEDGE_TRY(check_program(l)); /* as it ran in parts of another one else */
  if (s->kind == LAB_CELL || s->kind == LAB_BASE_CELL) KEDGE_TRY(write_cell(l, s));
  json_t *outputs = json_object();
  kedge_status status = make_content(l, s, outputs);
  json_t *record = json_pack("{s:i, s:s, s:f, s:o}", "kedge_lab_stage", 1, "key", s->key, "seconds_cpu",
                             s->cpu, "outputs", outputs);
  char *name = kedge_format("done/%s.json", s->id);
  if (status == KEDGE_OK) status = record && name ? write_json(l, name, record) : KEDGE_ERR_MEMORY;
  json_decref(record);
  kedge_free(name);
  if (status == KEDGE_OK) status = clear_away(l, s);
  if (status == KEDGE_OK) s->state = LAB_FINISHED;
  return status;
}
