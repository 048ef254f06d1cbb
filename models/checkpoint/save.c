/* SPDX-License-Identifier: Apache-2.0
 * Export in the layout of the input (save.h). */
#include "models/checkpoint/save.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "models/checkpoint/atomic.h"
#include "models/checkpoint/writer.h"

static const char RUN_PREFIX[] = "checkpoint-"; /* of the folders that a run writes */
enum { SIDE_DEPTH = 4 };                        /* of sub-folders that are copied */

/* ---- Shards
 * ---------------------------------------------------------------------------------------------------------
 */

static kedge_status write_tensor(kedge_outfile *output, const kedge_st_tensor *tensor, kedge_save_fetch fetch,
                                 void *context, void *piece) {
  if (!fetch) return kedge_outfile_write(output, tensor->data, tensor->bytes);
  for (uint64_t at = 0; at < tensor->bytes;) {
    uint64_t part = tensor->bytes - at < KEDGE_ST_PIECE ? tensor->bytes - at : KEDGE_ST_PIECE;
    bool own = false;
    KEDGE_TRY(fetch(context, tensor, at, piece, part, &own));
    KEDGE_TRY(kedge_outfile_write(output, own ? tensor->data + at : piece, part));
    at += part;
  }
  return KEDGE_OK;
}

static kedge_status write_shard(const kedge_st_file *shard, const char *path, kedge_save_fetch fetch,
                                void *context, void *piece) {
  kedge_outfile *output;
  KEDGE_TRY(kedge_outfile_open(path, &output));
  uint64_t header_bytes;
  const uint8_t *header = kedge_st_header(shard, &header_bytes);
  kedge_status status;
  KEDGE_GOTO(kedge_outfile_write(output, header, header_bytes), status, failed);
  for (uint32_t i = 0; i < kedge_st_count(shard); i++) {
    const kedge_st_tensor *tensor = kedge_st_at(shard, i);
    KEDGE_GOTO(write_tensor(output, tensor, fetch, context, piece), status, failed);
    kedge_st_drop(tensor);
  }
  return kedge_outfile_commit(output);
failed:
  kedge_outfile_discard(output);
  return status;
}

/* ---- Side files
 * ------------------------------------------------------------------------------------------------------ */

/* Files that hold weights, of this or another format: a copy would stand beside the new weights and
 * contradict them. */
static bool holds_weights(const char *name) {
  static const char *const tails[] = {".safetensors", ".index.json", ".bin",  ".pt",   ".pth",
                                      ".ckpt",        ".h5",         ".gguf", ".onnx", ".msgpack"};
  size_t length = strlen(name);
  for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
    size_t size = strlen(tails[i]);
    if (length > size && !strcmp(name + length - size, tails[i])) return true;
  }
  return false;
}

/* What a run wrote beside its model. It tells of the making of the input; in the output it would take the
 * place of the new run's own. */
static bool tells_of_a_run(const char *name) {
  static const char *const names[] = {"metrics.jsonl", "trainer_state.json", "kedge_run.json",
                                      "kedge_config.yaml"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(name, names[i])) return true;
  return false;
}

/* `name` is relative to the model directory; `bytes` is NOT_TAKEN for a folder that stays behind. */
typedef kedge_status (*side_visit)(void *context, const char *name, const char *path, uint64_t bytes);
#define NOT_TAKEN UINT64_MAX

typedef struct side_walk {
  const kedge_checkpoint *like;
  const char *target; /* the folder that is written: it may lie in the model directory */
  side_visit visit;
  void *context;
} side_walk;

static bool same_folder(const struct stat *a, const struct stat *b) {
  return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Whether `target` is the folder, or lies anywhere in it. */
static bool leads_to(const struct stat *folder, const char *target) {
  char *path = realpath(target, NULL);
  bool found = false;
  for (char *end = path; end && !found;) {
    struct stat info;
    found = !stat(*path ? path : "/", &info) && same_folder(&info, folder);
    end = strrchr(path, '/');
    if (end) *end = 0;
  }
  free(path);
  return found;
}

/* Whether a sub-folder is a model or a run of its own, by what lies in it. */
static bool is_another_model(const char *path) {
  DIR *dir = opendir(path);
  bool found = false;
  for (struct dirent *item; dir && !found && (item = readdir(dir));)
    found = holds_weights(item->d_name) || tells_of_a_run(item->d_name) ||
            !strncmp(item->d_name, RUN_PREFIX, strlen(RUN_PREFIX));
  if (dir) closedir(dir);
  return found;
}

/* Hidden folders (.git, .cache), links, checkpoints and other models stay behind. */
static bool enters(const side_walk *w, const char *name, const char *path, unsigned depth) {
  struct stat info;
  return depth < SIDE_DEPTH && *name != '.' && strncmp(name, RUN_PREFIX, strlen(RUN_PREFIX)) &&
         !lstat(path, &info) && S_ISDIR(info.st_mode) && !leads_to(&info, w->target) &&
         !is_another_model(path);
}

static bool is_side_file(const side_walk *w, const char *name, unsigned depth) {
  if (!depth && kedge_checkpoint_has_index(w->like) && !strcmp(name, KEDGE_CHECKPOINT_INDEX)) return true;
  return !holds_weights(name) && !tells_of_a_run(name);
}

static kedge_status walk_side(const side_walk *w, const char *inner, unsigned depth);

static kedge_status visit_item(const side_walk *w, int folder, const char *inner, const char *name,
                               unsigned depth) {
  struct stat info;
  if (fstatat(folder, name, &info, 0)) return KEDGE_OK;
  const bool is_folder = S_ISDIR(info.st_mode);
  if (!is_folder && (!S_ISREG(info.st_mode) || !is_side_file(w, name, depth))) return KEDGE_OK;
  char *relative = *inner ? kedge_path_join(inner, name) : kedge_strdup(name),
       *path = relative ? kedge_path_join(kedge_checkpoint_directory(w->like), relative) : NULL;
  kedge_status status = KEDGE_ERR_MEMORY;
  if (path && is_folder && enters(w, name, path, depth))
    status = walk_side(w, relative, depth + 1);
  else if (path)
    status = w->visit(w->context, relative, path, is_folder ? NOT_TAKEN : (uint64_t)info.st_size);
  kedge_free(path);
  kedge_free(relative);
  return status;
}

/* Visits each regular file (or link to one) of the model directory that holds no weights and is no record of
 * a run, also in sub-folders (`inner`: the one at hand), and each sub-folder that is not entered. */
static kedge_status walk_side(const side_walk *w, const char *inner, unsigned depth) {
  const char *root = kedge_checkpoint_directory(w->like);
  if (!root) return KEDGE_OK;
  char *path = *inner ? kedge_path_join(root, inner) : kedge_strdup(root);
  if (!path) return KEDGE_ERR_MEMORY;
  DIR *dir = opendir(path);
  kedge_status status = dir ? KEDGE_OK : kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
  for (struct dirent *item; status == KEDGE_OK && (item = readdir(dir));)
    if (strcmp(item->d_name, ".") && strcmp(item->d_name, ".."))
      status = visit_item(w, dirfd(dir), inner, item->d_name, depth);
  if (dir) closedir(dir);
  kedge_free(path);
  return status;
}

/* The index is copied whatever its size. */
static bool is_copied(const char *name, uint64_t bytes) {
  return bytes <= KEDGE_SAVE_COPY_CAP || (bytes != NOT_TAKEN && !strcmp(name, KEDGE_CHECKPOINT_INDEX));
}

static kedge_status add_bytes(void *context, const char *name, const char *path, uint64_t bytes) {
  (void)path;
  if (is_copied(name, bytes)) *(uint64_t *)context += bytes;
  return KEDGE_OK;
}

typedef struct copier {
  const char *folder;
  kedge_notes *notes;
} copier;

static kedge_status copy_side_file(void *context, const char *name, const char *path, uint64_t bytes) {
  const copier *to = context;
  if (bytes == NOT_TAKEN) return kedge_notes_add(to->notes, "folder %s of the model: not copied", name);
  if (!is_copied(name, bytes))
    return kedge_notes_add(to->notes, "%s: %" PRIu64 " bytes, larger than %d: not copied", name, bytes,
                           KEDGE_SAVE_COPY_CAP);
  char *target = kedge_path_join(to->folder, name);
  if (!target) return KEDGE_ERR_MEMORY;
  kedge_status status = KEDGE_OK;
  char *slash = strchr(name, '/') ? strrchr(target, '/') : NULL;
  if (slash) {
    *slash = 0;
    status = kedge_folder_make(target);
    *slash = '/';
  }
  if (status == KEDGE_OK) status = kedge_file_copy(path, target);
  kedge_free(target);
  return status;
}

/* ---- All
 * ----------------------------------------------------------------------------------------------------------------
 */

kedge_status kedge_checkpoint_save(const kedge_checkpoint *like, const char *folder, kedge_save_fetch fetch,
                                   void *context, kedge_notes *notes) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < kedge_checkpoint_shard_count(like); i++)
    bytes += kedge_st_size(kedge_checkpoint_shard(like, i));
  const side_walk sizes = {like, folder, add_bytes, &bytes};
  KEDGE_TRY(walk_side(&sizes, "", 0));
  KEDGE_TRY(kedge_disk_require(folder, bytes));
  void *piece = kedge_alloc(KEDGE_ST_PIECE, 1);
  if (!piece) return KEDGE_ERR_MEMORY;
  kedge_status status = KEDGE_OK;
  for (uint32_t i = 0; status == KEDGE_OK && i < kedge_checkpoint_shard_count(like); i++) {
    char *path = kedge_path_join(folder, kedge_checkpoint_shard_name(like, i));
    status =
        path ? write_shard(kedge_checkpoint_shard(like, i), path, fetch, context, piece) : KEDGE_ERR_MEMORY;
    kedge_free(path);
  }
  kedge_free(piece);
  if (status != KEDGE_OK) return status;
  copier to = {folder, notes};
  const side_walk copies = {like, folder, copy_side_file, &to};
  return walk_side(&copies, "", 0);
}
