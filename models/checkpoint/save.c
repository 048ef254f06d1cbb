/* SPDX-License-Identifier: Apache-2.0
 * Export in the layout of the input (save.h). */
#include "models/checkpoint/save.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "models/checkpoint/atomic.h"
#include "models/checkpoint/writer.h"

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

typedef kedge_status (*side_visit)(void *context, const char *name, const char *path, uint64_t bytes);

/* Calls `visit` for each regular file (or link to one) of the model directory that holds no weights and is no
 * record of a run. */
static kedge_status each_side_file(const kedge_checkpoint *like, side_visit visit, void *context) {
  const char *folder = kedge_checkpoint_directory(like);
  if (!folder) return KEDGE_OK;
  DIR *dir = opendir(folder);
  if (!dir) return kedge_fail(KEDGE_ERR_IO, "%s: %s", folder, strerror(errno));
  kedge_status status = KEDGE_OK;
  for (struct dirent *item; status == KEDGE_OK && (item = readdir(dir));) {
    struct stat info;
    if (fstatat(dirfd(dir), item->d_name, &info, 0) || !S_ISREG(info.st_mode)) continue;
    bool is_index = kedge_checkpoint_has_index(like) && !strcmp(item->d_name, KEDGE_CHECKPOINT_INDEX);
    if (!is_index && (holds_weights(item->d_name) || tells_of_a_run(item->d_name))) continue;
    char *path = kedge_path_join(folder, item->d_name);
    status = path ? visit(context, item->d_name, path, (uint64_t)info.st_size) : KEDGE_ERR_MEMORY;
    kedge_free(path);
  }
  closedir(dir);
  return status;
}

/* The index is copied whatever its size. */
static bool is_copied(const char *name, uint64_t bytes) {
  return bytes <= KEDGE_SAVE_COPY_CAP || !strcmp(name, KEDGE_CHECKPOINT_INDEX);
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
  if (!is_copied(name, bytes))
    return kedge_notes_add(to->notes, "%s: %" PRIu64 " bytes, larger than %d: not copied", name, bytes,
                           KEDGE_SAVE_COPY_CAP);
  char *target = kedge_path_join(to->folder, name);
  if (!target) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge_file_copy(path, target);
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
  KEDGE_TRY(each_side_file(like, add_bytes, &bytes));
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
  return each_side_file(like, copy_side_file, &to);
}
