/* SPDX-License-Identifier: Apache-2.0
 * Checkpoints of a run: writing, finding, loading. The record's JSON is in run_record.c. */
#include "models/training/run_checkpoint.h"

#include "models/checkpoint/atomic.h"
#include "models/checkpoint/convert.h"
#include "models/checkpoint/writer.h"
#include "models/training/run_record.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STATES = 3, PIECE = 1 << 20 };
static const char *const state_names[STATES] = {"master", "m", "v"};

/* Where state s of parameter i lives on the device. */
static kedge_buffer *state_buffer(const kedge_optimizer *o, uint32_t i, uint32_t s) {
  kedge_buffer *master = o->master[i] ? o->master[i] : o->model->weights[i];
  return s == 0 ? master : s == 1 ? o->m[i] : o->v[i];
}

static void state_name(const kedge_param *param, uint32_t s, char name[KEDGE_NAME_SIZE + 8]) {
  char base[KEDGE_NAME_SIZE];
  kedge_param_name(param, param->parts, base);
  snprintf(name, KEDGE_NAME_SIZE + 8, "%s.%s", state_names[s], base);
}

/* ---- Save
 * -------------------------------------------------------------------------------------------------------------
 */

typedef struct state_list {
  const kedge_optimizer *optimizer;
  kedge_st_spec *specs;
  char (*names)[KEDGE_NAME_SIZE + 8];
  uint32_t *items, *states, count;
} state_list;

static void state_list_destroy(state_list *l) {
  kedge_free(l->specs);
  kedge_free(l->names);
  kedge_free(l->items);
  kedge_free(l->states);
}

static kedge_status state_list_init(state_list *l, const kedge_optimizer *o) {
  const kedge_params *params = &o->model->params;
  const size_t most = (size_t)params->count * STATES;
  *l = (state_list){.optimizer = o};
  l->specs = kedge_alloc(most, sizeof *l->specs);
  l->names = kedge_alloc(most, sizeof *l->names);
  l->items = kedge_alloc(most, sizeof *l->items);
  l->states = kedge_alloc(most, sizeof *l->states);
  if (!l->specs || !l->names || !l->items || !l->states) return KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; i < params->count; i++)
    for (uint32_t s = 0; s < STATES && o->trained[i]; s++) {
      const kedge_param *p = &params->items[i];
      uint32_t at = l->count++;
      state_name(p, s, l->names[at]);
      l->specs[at] = (kedge_st_spec){.name = l->names[at], .dtype = KEDGE_ST_F32, .rank = p->rank};
      for (uint32_t d = 0; d < p->rank; d++) l->specs[at].shape[d] = p->dims[d];
      l->items[at] = i;
      l->states[at] = s;
    }
  return KEDGE_OK;
}

static kedge_status fill_state(void *context, uint32_t index, uint64_t offset, void *buffer, uint64_t bytes) {
  const state_list *l = context;
  return kedge_buffer_read(state_buffer(l->optimizer, l->items[index], l->states[index]), offset, buffer,
                           bytes);
}

static kedge_status save_states(const kedge_optimizer *o, const char *folder) {
  state_list list;
  char *path = kedge_path_join(folder, "optimizer.safetensors");
  kedge_status status = state_list_init(&list, o);
  char steps[24];
  snprintf(steps, sizeof steps, "%llu", (unsigned long long)o->steps);
  const kedge_st_pair extra[] = {{"kedge_optimizer", "adamw"}, {"steps", steps}};
  if (status == KEDGE_OK && !path) status = KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = kedge_st_write(path, list.specs, list.count, extra, 2, fill_state, &list);
  state_list_destroy(&list);
  kedge_free(path);
  return status;
}

static kedge_status save_text(const char *folder, const char *name, const char *text) {
  char *path = kedge_path_join(folder, name);
  kedge_status status = path ? kedge_file_write(path, text, strlen(text)) : KEDGE_ERR_MEMORY;
  kedge_free(path);
  return status;
}

static kedge_status save_parts(const char *folder, const kedge_optimizer *o, const kedge_run_record *record,
                               const kedge_trainer_state *state, const char *config_yaml,
                               kedge_notes *notes) {
  char *run = kedge__run_record_json(record), *path = kedge_path_join(folder, "trainer_state.json");
  kedge_status status = run && path ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = kedge_model_save(o->model, o->master, folder, notes);
  if (status == KEDGE_OK) status = save_states(o, folder);
  if (status == KEDGE_OK) status = kedge_trainer_state_save(state, path);
  if (status == KEDGE_OK) status = save_text(folder, "kedge_config.yaml", config_yaml);
  if (status == KEDGE_OK) status = save_text(folder, KEDGE_RUN_RECORD, run);
  kedge_free(run);
  kedge_free(path);
  return status;
}

/* Bytes of a checkpoint, a little over. */
static uint64_t checkpoint_bytes(const kedge_optimizer *o) {
  uint64_t bytes = kedge_checkpoint_bytes(o->model->source) + (8u << 20);
  for (uint32_t i = 0; i < o->model->params.count; i++)
    if (o->trained[i]) bytes += 4ull * STATES * kedge_param_count(&o->model->params.items[i]);
  return bytes;
}

/* Step of a name "checkpoint-<step>"; false for other names. */
static bool checkpoint_step(const char *name, uint64_t *step) {
  char *end;
  if (strncmp(name, "checkpoint-", 11) || name[11] < '0' || name[11] > '9') return false;
  errno = 0;
  *step = strtoull(name + 11, &end, 10);
  return !*end && !errno;
}

/* Removes a checkpoint's record first, so that what a crash leaves behind is not taken for a checkpoint. */
static void remove_checkpoint(const char *path) {
  char *record = kedge_path_join(path, KEDGE_RUN_RECORD);
  DIR *folder = opendir(path);
  if (record && folder && (unlink(record) == 0 || errno == ENOENT)) {
    for (struct dirent *e; (e = readdir(folder));) {
      char *file = kedge_path_join(path, e->d_name);
      if (file && e->d_name[0] != '.') unlink(file);
      kedge_free(file);
    }
    rmdir(path);
  }
  if (folder) closedir(folder);
  kedge_free(record);
}

/* Steps of the checkpoints below output_dir, ascending; *steps is new memory. */
static int by_step(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

static kedge_status list_checkpoints(const char *output_dir, uint64_t **steps, size_t *count) {
  DIR *folder = opendir(output_dir);
  *steps = NULL;
  *count = 0;
  if (!folder) return KEDGE_OK;
  kedge_status status = KEDGE_OK;
  for (struct dirent *e; status == KEDGE_OK && (e = readdir(folder));) {
    uint64_t step;
    if (!checkpoint_step(e->d_name, &step)) continue;
    uint64_t *grown = kedge_realloc(*steps, *count + 1, sizeof *grown);
    if (!grown) status = KEDGE_ERR_MEMORY;
    if (grown) (*steps = grown)[(*count)++] = step;
  }
  closedir(folder);
  if (*count) qsort(*steps, *count, sizeof **steps, by_step);
  return status;
}

static kedge_status remove_old(const char *output_dir, uint32_t keep, uint64_t newest) {
  uint64_t *steps;
  size_t count, older = 0;
  KEDGE_TRY(list_checkpoints(output_dir, &steps, &count));
  while (older < count && steps[older] < newest) older++;
  for (size_t i = 0; keep && i + keep <= older; i++) {
    char *path = kedge_format("%s/checkpoint-%llu", output_dir, (unsigned long long)steps[i]);
    if (path) remove_checkpoint(path);
    kedge_free(path);
  }
  kedge_free(steps);
  return KEDGE_OK;
}

static uint64_t export_bytes(const kedge_optimizer *o) {
  return kedge_checkpoint_bytes(o->model->source) + (8u << 20);
}

kedge_status kedge_run_require_disk(const char *output_dir, const kedge_optimizer *o, bool checkpoints) {
  return kedge_disk_require(output_dir, checkpoints ? checkpoint_bytes(o) : export_bytes(o));
}

kedge_status kedge_run_save(const char *output_dir, const kedge_optimizer *o, const kedge_run_record *record,
                            const kedge_trainer_state *state, const char *config_yaml, uint32_t keep,
                            kedge_notes *notes) {
  kedge_directory *directory = NULL;
  KEDGE_TRY(kedge_disk_require(output_dir, checkpoint_bytes(o)));
  char *path = kedge_format("%s/checkpoint-%llu", output_dir, (unsigned long long)record->step);
  kedge_status status = path ? kedge_directory_begin(path, true, &directory) : KEDGE_ERR_MEMORY;
  kedge_free(path);
  KEDGE_TRY(status);
  status = save_parts(kedge_directory_path(directory), o, record, state, config_yaml, notes);
  if (status != KEDGE_OK) {
    kedge_directory_discard(directory);
    return kedge_fail_in(status, "checkpoint at step %llu was not written", (unsigned long long)record->step);
  }
  KEDGE_TRY(kedge_directory_commit(directory));
  return remove_old(output_dir, keep, record->step);
}

/* ---- Load
 * -------------------------------------------------------------------------------------------------------------
 */

static bool has_file(const char *folder, const char *name) {
  struct stat info;
  char *path = kedge_path_join(folder, name);
  bool found = path && !stat(path, &info) && S_ISREG(info.st_mode) && info.st_size > 0;
  kedge_free(path);
  return found;
}

/* Whether every part of a checkpoint is there and can be opened. The record is the caller's to destroy. */
static kedge_status check_whole(const char *checkpoint, kedge_run_record *record) {
  static const char *const files[] = {"config.json", "trainer_state.json", "optimizer.safetensors"};
  kedge_st_file *states = NULL;
  kedge_checkpoint *weights = NULL;
  KEDGE_TRY(kedge__run_record_read(checkpoint, record));
  kedge_status status = KEDGE_OK;
  for (size_t i = 0; status == KEDGE_OK && i < sizeof files / sizeof *files; i++)
    if (!has_file(checkpoint, files[i]))
      status = kedge_fail(KEDGE_ERR_FORMAT, "%s: %s is missing or empty", checkpoint, files[i]);
  char *path = kedge_path_join(checkpoint, "optimizer.safetensors");
  if (status == KEDGE_OK) status = path ? kedge_st_open(path, &states) : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = kedge_checkpoint_open(checkpoint, &weights);
  kedge_st_close(states);
  kedge_checkpoint_close(weights);
  kedge_free(path);
  if (status != KEDGE_OK) kedge_run_record_destroy(record);
  return status;
}

kedge_status kedge_run_find(const char *output_dir, char **path, kedge_notes *notes) {
  uint64_t *steps;
  size_t count;
  *path = NULL;
  KEDGE_TRY(list_checkpoints(output_dir, &steps, &count));
  kedge_status status = KEDGE_OK;
  while (status == KEDGE_OK && count-- > 0 && !*path) {
    char *candidate = kedge_format("%s/checkpoint-%llu", output_dir, (unsigned long long)steps[count]);
    kedge_run_record record;
    if (!candidate) {
      status = KEDGE_ERR_MEMORY;
    } else if (check_whole(candidate, &record) == KEDGE_OK) {
      kedge_run_record_destroy(&record);
      *path = candidate;
    } else {
      status = kedge_notes_add(notes, "%s is not a whole checkpoint and is skipped (%s)", candidate,
                               kedge_message());
      kedge_free(candidate);
    }
  }
  kedge_free(steps);
  return status;
}

static kedge_status load_state(kedge_optimizer *o, const kedge_st_file *file, uint32_t i, uint32_t s,
                               void *piece) {
  const kedge_param *p = &o->model->params.items[i];
  char name[KEDGE_NAME_SIZE + 8];
  state_name(p, s, name);
  const kedge_st_tensor *t = kedge_st_find(file, name);
  uint64_t count = kedge_param_count(p);
  if (!t || t->dtype != KEDGE_ST_F32 || t->bytes != 4 * count)
    return kedge_fail(KEDGE_ERR_MISMATCH, "%s: tensor %s: expected F32 with %llu elements, got %s",
                      kedge_st_path(file), name, (unsigned long long)count,
                      t ? "another size or dtype" : "nothing");
  KEDGE_TRY(kedge_buffer_write(state_buffer(o, i, s), 0, t->data, t->bytes));
  for (uint64_t at = 0; s == 0 && o->master[i] && at < count; at += PIECE) {
    uint64_t n = count - at < PIECE ? count - at : PIECE;
    KEDGE_TRY(kedge_convert_floats(piece, KEDGE_ST_BF16, t->data + 4 * at, KEDGE_ST_F32, n));
    KEDGE_TRY(kedge_buffer_write(o->model->weights[i], 2 * at, piece, 2 * n));
  }
  return KEDGE_OK;
}

static kedge_status load_states(kedge_optimizer *o, const char *checkpoint) {
  char *path = kedge_path_join(checkpoint, "optimizer.safetensors");
  void *piece = kedge_alloc(PIECE, 2);
  kedge_st_file *file = NULL;
  kedge_status status = path && piece ? kedge_st_open(path, &file) : KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; status == KEDGE_OK && i < o->model->params.count; i++)
    for (uint32_t s = 0; status == KEDGE_OK && s < STATES && o->trained[i]; s++)
      status = load_state(o, file, i, s, piece);
  kedge_st_close(file);
  kedge_free(path);
  kedge_free(piece);
  return status;
}

/* Selection biases have no state in the optimizer: a run that moves them leaves them in the checkpoint's
 * model. */
static kedge_status load_fixed(const kedge_optimizer *o, const char *checkpoint) {
  kedge_checkpoint *weights;
  KEDGE_TRY(kedge_checkpoint_open(checkpoint, &weights));
  kedge_status status = kedge_model_reload_fixed(o->model, weights);
  kedge_checkpoint_close(weights);
  return status;
}

kedge_status kedge_run_load(const char *checkpoint, kedge_optimizer *o, const kedge_run_record *want,
                            kedge_run_record *record, kedge_trainer_state **state, kedge_notes *notes) {
  *state = NULL;
  KEDGE_TRY(check_whole(checkpoint, record));
  char *path = kedge_path_join(checkpoint, "trainer_state.json");
  kedge_status status = path ? kedge__run_record_match(checkpoint, record, want) : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK && strcmp(record->device, want->device))
    status = kedge_notes_add(
        notes, "the checkpoint was computed on %s, this run uses %s: results will differ in the last bits",
        record->device, want->device);
  if (status == KEDGE_OK) status = load_states(o, checkpoint);
  if (status == KEDGE_OK) status = load_fixed(o, checkpoint);
  if (status == KEDGE_OK) status = kedge_trainer_state_load(path, state);
  if (status == KEDGE_OK) o->steps = record->step;
  kedge_free(path);
  if (status != KEDGE_OK) kedge_run_record_destroy(record);
  return status;
}

/* ---- Final model
 * -------------------------------------------------------------------------------------------------------- */

static kedge_status move_files(const char *from, const char *to);

/* A folder that is there already takes the other one's files. */
static kedge_status move_item(const char *from, const char *to, const char *name) {
  char *a = kedge_path_join(from, name), *b = kedge_path_join(to, name);
  kedge_status status = a && b ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK && rename(a, b))
    status = errno == ENOTEMPTY || errno == EEXIST
                 ? move_files(a, b)
                 : kedge_fail(KEDGE_ERR_IO, "%s: could not move %s there: %s", to, name, strerror(errno));
  kedge_free(a);
  kedge_free(b);
  return status;
}

/* Moves the files of `from` into `to`, config.json last. */
static kedge_status move_files(const char *from, const char *to) {
  for (int last = 0; last < 2; last++) {
    DIR *folder = opendir(from);
    if (!folder) return kedge_fail(KEDGE_ERR_IO, "%s: %s", from, strerror(errno));
    kedge_status status = KEDGE_OK;
    for (struct dirent *e; status == KEDGE_OK && (e = readdir(folder));)
      if (e->d_name[0] != '.' && last == !strcmp(e->d_name, "config.json"))
        status = move_item(from, to, e->d_name);
    closedir(folder);
    if (status == KEDGE_OK) status = kedge__sync_path(to);
    KEDGE_TRY(status);
  }
  return KEDGE_OK;
}

kedge_status kedge_run_export(const char *output_dir, const kedge_optimizer *o, kedge_notes *notes) {
  KEDGE_TRY(kedge_disk_require(output_dir, export_bytes(o)));
  kedge_directory *directory = NULL;
  char *staging = kedge_path_join(output_dir, "final"), *config = kedge_path_join(output_dir, "config.json");
  kedge_status status =
      staging && config ? kedge_directory_begin(staging, true, &directory) : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK)
    status = kedge_model_save(o->model, o->master, kedge_directory_path(directory), notes);
  if (status == KEDGE_OK && unlink(config) && errno != ENOENT)
    status = kedge_fail(KEDGE_ERR_IO, "%s: %s", config, strerror(errno));
  if (status == KEDGE_OK) status = move_files(kedge_directory_path(directory), output_dir);
  kedge_directory_discard(directory);
  kedge_free(staging);
  kedge_free(config);
  return status;
}
