/* SPDX-License-Identifier: Apache-2.0
 * Checkpoints of a run: writing, finding, loading. The record's JSON is in run_record.c. */
#include "models/training/run_checkpoint.h"

#include "models/checkpoint/atomic.h"
#include "models/parallel/weights.h"
#include "models/training/run_record.h"
#include "models/training/run_states.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static kedge_status save_text(const char *folder, const char *name, const char *text) {
  char *path = kedge_path_join(folder, name);
  kedge_status status = path ? kedge_file_write(path, text, strlen(text)) : KEDGE_ERR_MEMORY;
  kedge_free(path);
  return status;
}

/* What rank 0 alone writes, besides the weights. */
static kedge_status save_texts(const char *folder, const kedge_run_record *record,
                               const kedge_trainer_state *state, const char *config_yaml) {
  char *run = kedge__run_record_json(record), *path = kedge_path_join(folder, "trainer_state.json");
  kedge_status status = run && path ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = kedge_trainer_state_save(state, path);
  if (status == KEDGE_OK) status = save_text(folder, "kedge_config.yaml", config_yaml);
  if (status == KEDGE_OK) status = save_text(folder, KEDGE_RUN_RECORD, run);
  kedge_free(run);
  kedge_free(path);
  return status;
}

static bool leads(const kedge_optimizer *o) {
  return kedge_comm_rank(o->comm, KEDGE_RANKS_ALL) == 0;
}

/* The weights, and every rank's states, into the folder of rank 0. */
static kedge_status save_parts(const char *folder, const kedge_optimizer *o, kedge_notes *notes) {
  char path[4096] = "";
  kedge_status status = KEDGE_OK;
  if (leads(o) && snprintf(path, sizeof path, "%s", folder) >= (int)sizeof path)
    status = kedge_fail(KEDGE_ERR_ARGUMENT, "%.80s...: a longer path than 4095 bytes", folder);
  KEDGE_TRY(kedge_comm_agree(o->comm, status));
  KEDGE_TRY(kedge_comm_broadcast(o->comm, 0, path, sizeof path));
  status = kedge_weights_save(o, path, notes);
  if (status == KEDGE_OK) status = kedge_states_save(o, path);
  return kedge_comm_agree(o->comm, status);
}

/* Bytes of a checkpoint, a little over. */
static uint64_t checkpoint_bytes(const kedge_optimizer *o) {
  uint64_t bytes = kedge_checkpoint_bytes(o->model->source) + (8u << 20);
  for (uint32_t i = 0; i < o->model->params.count; i++)
    if (o->trained[i]) bytes += 12ull * kedge_range_total(o->model, i);
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
  kedge_status status = KEDGE_OK;
  if (leads(o)) status = kedge_disk_require(output_dir, checkpoints ? checkpoint_bytes(o) : export_bytes(o));
  return kedge_comm_agree(o->comm, status);
}

static kedge_status begin(const char *output_dir, const kedge_optimizer *o, uint64_t step,
                          kedge_directory **directory) {
  if (!leads(o)) return KEDGE_OK;
  KEDGE_TRY(kedge_disk_require(output_dir, checkpoint_bytes(o)));
  char *path = kedge_format("%s/checkpoint-%llu", output_dir, (unsigned long long)step);
  kedge_status status = path ? kedge_directory_begin(path, true, directory) : KEDGE_ERR_MEMORY;
  kedge_free(path);
  return status;
}

kedge_status kedge_run_save(const char *output_dir, const kedge_optimizer *o, const kedge_run_record *record,
                            const kedge_trainer_state *state, const char *config_yaml, uint32_t keep,
                            kedge_notes *notes) {
  kedge_directory *directory = NULL;
  KEDGE_TRY(kedge_comm_agree(o->comm, begin(output_dir, o, record->step, &directory)));
  const char *folder = directory ? kedge_directory_path(directory) : NULL;
  kedge_status status = save_parts(folder, o, notes);
  kedge_run_record placed = *record;
  placed.layout = kedge_layout_of(o->comm);
  if (status == KEDGE_OK && leads(o)) status = save_texts(folder, &placed, state, config_yaml);
  if (status != KEDGE_OK) {
    kedge_directory_discard(directory);
    status =
        kedge_fail_in(status, "checkpoint at step %llu was not written", (unsigned long long)record->step);
  } else if (leads(o)) {
    status = kedge_directory_commit(directory);
    if (status == KEDGE_OK) status = remove_old(output_dir, keep, record->step);
  }
  return kedge_comm_agree(o->comm, status);
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
  static const char *const files[] = {"config.json", "trainer_state.json"};
  kedge_checkpoint *weights = NULL;
  KEDGE_TRY(kedge__run_record_read(checkpoint, record));
  kedge_status status = KEDGE_OK;
  for (size_t i = 0; status == KEDGE_OK && i < sizeof files / sizeof *files; i++)
    if (!has_file(checkpoint, files[i]))
      status = kedge_fail(KEDGE_ERR_FORMAT, "%s: %s is missing or empty", checkpoint, files[i]);
  if (status == KEDGE_OK) status = kedge_states_check(checkpoint, record->layout);
  if (status == KEDGE_OK) status = kedge_checkpoint_open(checkpoint, &weights);
  kedge_checkpoint_close(weights);
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

/* Selection biases have no state in the optimizer: a run that moves them leaves them in the checkpoint's
 * model. */
static kedge_status load_fixed(const kedge_optimizer *o, const char *checkpoint) {
  kedge_checkpoint *weights;
  KEDGE_TRY(kedge_checkpoint_open(checkpoint, &weights));
  kedge_status status = kedge_model_reload_fixed(o->model, weights);
  kedge_checkpoint_close(weights);
  return status;
}

static kedge_status load(const char *checkpoint, kedge_optimizer *o, const kedge_run_record *want,
                         kedge_run_record *record, kedge_trainer_state **state, kedge_notes *notes) {
  KEDGE_TRY(check_whole(checkpoint, record));
  char *path = kedge_path_join(checkpoint, "trainer_state.json");
  kedge_status status = path ? kedge__run_record_match(checkpoint, record, want) : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK && strcmp(record->device, want->device))
    status = kedge_notes_add(
        notes, "the checkpoint was computed on %s, this run uses %s: results will differ in the last bits",
        record->device, want->device);
  if (status == KEDGE_OK) status = kedge_states_load(o, checkpoint, record->layout);
  if (status == KEDGE_OK) status = load_fixed(o, checkpoint);
  if (status == KEDGE_OK) status = kedge_trainer_state_load(path, state);
  if (status == KEDGE_OK) o->steps = record->step;
  kedge_free(path);
  if (status != KEDGE_OK) kedge_run_record_destroy(record);
  return status;
}

kedge_status kedge_run_load(const char *checkpoint, kedge_optimizer *o, const kedge_run_record *want,
                            kedge_run_record *record, kedge_trainer_state **state, kedge_notes *notes) {
  *state = NULL;
  const kedge_status own = load(checkpoint, o, want, record, state, notes),
                     all = kedge_comm_agree(o->comm, own);
  if (own == KEDGE_OK && all != KEDGE_OK) kedge_run_record_destroy(record);
  return all;
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

static kedge_status put_model(const char *output_dir, const kedge_directory *directory) {
  char *config = kedge_path_join(output_dir, "config.json");
  kedge_status status = config ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK && unlink(config) && errno != ENOENT)
    status = kedge_fail(KEDGE_ERR_IO, "%s: %s", config, strerror(errno));
  if (status == KEDGE_OK) status = move_files(kedge_directory_path(directory), output_dir);
  kedge_free(config);
  return status;
}

static kedge_status begin_export(const char *output_dir, const kedge_optimizer *o,
                                 kedge_directory **directory) {
  if (!leads(o)) return KEDGE_OK;
  KEDGE_TRY(kedge_disk_require(output_dir, export_bytes(o)));
  char *staging = kedge_path_join(output_dir, "final");
  kedge_status status = staging ? kedge_directory_begin(staging, true, directory) : KEDGE_ERR_MEMORY;
  kedge_free(staging);
  return status;
}

kedge_status kedge_run_export(const char *output_dir, const kedge_optimizer *o, kedge_notes *notes) {
  kedge_directory *directory = NULL;
  KEDGE_TRY(kedge_comm_agree(o->comm, begin_export(output_dir, o, &directory)));
  kedge_status status = kedge_weights_save(o, directory ? kedge_directory_path(directory) : NULL, notes);
  status = kedge_comm_agree(o->comm, status);
  if (status == KEDGE_OK && leads(o)) status = put_model(output_dir, directory);
  kedge_directory_discard(directory);
  return kedge_comm_agree(o->comm, status);
}
