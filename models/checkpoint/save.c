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
#include "models/checkpoint/json.h"
#include "models/checkpoint/writer.h"

static const char RUN_PREFIX[] = "checkpoint-"; /* of the folders that a run writes */
enum { SIDE_DEPTH = 4 };                        /* of sub-folders that are copied */

/* ---- Shards
 * ---------------------------------------------------------------------------------------------------------
 */

/* What a save is made of. */
typedef struct saving {
  const kedge_checkpoint *like;
  const char *folder;
  kedge_save_fetch fetch;
  kedge_save_retype retype;
  void *context;
  kedge_notes *notes;
  void *piece;
  uint64_t bytes; /* of all tensors as they are written */
  bool retyped;   /* one of them has another dtype than in the input */
} saving;

/* The tensor as it is written: another dtype means another size. `*other` is set where it differs. */
static kedge_status retype(const saving *s, const kedge_st_tensor *from, kedge_st_tensor *to, bool *other) {
  *to = *from;
  if (s->retype) KEDGE_TRY(s->retype(s->context, from, &to->dtype));
  if (to->dtype == from->dtype) return KEDGE_OK;
  if (!s->fetch || __builtin_mul_overflow(from->bytes / kedge_st_dtype_size(from->dtype),
                                          (uint64_t)kedge_st_dtype_size(to->dtype), &to->bytes))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "tensor %s: cannot be written as %s", from->name,
                      kedge_st_dtype_name(to->dtype));
  *other = true;
  return KEDGE_OK;
}

/* Sums what will be written. */
static kedge_status measure(saving *s) {
  for (uint32_t i = 0; i < kedge_checkpoint_count(s->like); i++) {
    kedge_st_tensor to;
    KEDGE_TRY(retype(s, kedge_checkpoint_at(s->like, i), &to, &s->retyped));
    if (__builtin_add_overflow(s->bytes, to.bytes, &s->bytes))
      return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: too large to be written", kedge_checkpoint_path(s->like));
  }
  return KEDGE_OK;
}

static kedge_status write_tensor(const saving *s, kedge_outfile *output, const kedge_st_tensor *tensor) {
  if (!s->fetch) return kedge_outfile_write(output, tensor->data, tensor->bytes);
  for (uint64_t at = 0; at < tensor->bytes;) {
    uint64_t part = tensor->bytes - at < KEDGE_ST_PIECE ? tensor->bytes - at : KEDGE_ST_PIECE;
    bool own = false;
    KEDGE_TRY(s->fetch(s->context, tensor, at, s->piece, part, &own));
    KEDGE_TRY(kedge_outfile_write(output, own ? tensor->data + at : s->piece, part));
    at += part;
  }
  return KEDGE_OK;
}

/* A shard whose tensors keep their dtypes: under the header that it has. */
static kedge_status write_same(const saving *s, const kedge_st_file *shard, const char *path) {
  kedge_outfile *output;
  KEDGE_TRY(kedge_outfile_open(path, &output));
  uint64_t header_bytes;
  const uint8_t *header = kedge_st_header(shard, &header_bytes);
  kedge_status status;
  KEDGE_GOTO(kedge_outfile_write(output, header, header_bytes), status, failed);
  for (uint32_t i = 0; i < kedge_st_count(shard); i++) {
    const kedge_st_tensor *tensor = kedge_st_at(shard, i);
    KEDGE_GOTO(write_tensor(s, output, tensor), status, failed);
    kedge_st_drop(tensor);
  }
  return kedge_outfile_commit(output);
failed:
  kedge_outfile_discard(output);
  return status;
}

/* One tensor of a shard with a new header. */
typedef struct retyped {
  const kedge_st_tensor *from;
  kedge_st_tensor to;
  uint32_t place; /* among the shard's tensors */
} retyped;

/* Larger elements first, so that every tensor begins at a multiple of its element; else the order stays. */
static int by_size(const void *a, const void *b) {
  const retyped *x = a, *y = b;
  const uint32_t p = kedge_st_dtype_size(x->to.dtype), q = kedge_st_dtype_size(y->to.dtype);
  if (p != q) return p < q ? 1 : -1;
  return x->place < y->place ? -1 : x->place > y->place;
}

typedef struct refill {
  const saving *saving;
  const retyped *items;
} refill;

static kedge_status fill_retyped(void *context, uint32_t index, uint64_t offset, void *buffer,
                                 uint64_t bytes) {
  const refill *r = context;
  const retyped *item = &r->items[index];
  bool own = false;
  KEDGE_TRY(r->saving->fetch(r->saving->context, &item->to, offset, buffer, bytes, &own));
  if (own && item->to.dtype != item->from->dtype)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "tensor %s: the file has no %s bytes of it", item->to.name,
                      kedge_st_dtype_name(item->to.dtype));
  if (own) memcpy(buffer, item->from->data + offset, bytes);
  if (offset + bytes == item->to.bytes) kedge_st_drop(item->from);
  return KEDGE_OK;
}

/* A shard with a new header: the same metadata, names and shapes. */
static kedge_status write_retyped(const saving *s, const kedge_st_file *shard, const char *path,
                                  retyped *items) {
  const uint32_t count = kedge_st_count(shard), extra_count = kedge_st_metadata_count(shard);
  kedge_st_spec *specs = kedge_alloc(count, sizeof *specs);
  kedge_st_pair *extra = kedge_alloc(extra_count, sizeof *extra);
  kedge_status status = specs && extra ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (count) qsort(items, count, sizeof *items, by_size);
  for (uint32_t i = 0; status == KEDGE_OK && i < count; i++) {
    const kedge_st_tensor *to = &items[i].to;
    specs[i] = (kedge_st_spec){.name = to->name, .dtype = to->dtype, .rank = to->rank};
    memcpy(specs[i].shape, to->shape, sizeof specs[i].shape);
  }
  for (uint32_t i = 0; status == KEDGE_OK && i < extra_count; i++)
    kedge_st_metadata_at(shard, i, &extra[i].key, &extra[i].value);
  refill r = {s, items};
  if (status == KEDGE_OK) status = kedge_st_write(path, specs, count, extra, extra_count, fill_retyped, &r);
  kedge_free(specs);
  kedge_free(extra);
  return status;
}

static kedge_status write_shard(const saving *s, const kedge_st_file *shard, const char *path) {
  if (!s->retyped) return write_same(s, shard, path);
  retyped *items = kedge_alloc(kedge_st_count(shard), sizeof *items);
  kedge_status status = items ? KEDGE_OK : KEDGE_ERR_MEMORY;
  bool other = false;
  for (uint32_t i = 0; status == KEDGE_OK && i < kedge_st_count(shard); i++) {
    items[i] = (retyped){.from = kedge_st_at(shard, i), .place = i};
    status = retype(s, items[i].from, &items[i].to, &other);
  }
  if (status == KEDGE_OK) status = other ? write_retyped(s, shard, path, items) : write_same(s, shard, path);
  kedge_free(items);
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

/* The index with the size that the tensors have now; all else in it stays. */
static kedge_status write_index(const saving *s, const char *from, const char *to) {
  json_t *root;
  KEDGE_TRY(kedge__json_load(from, KEDGE_CHECKPOINT_INDEX_CAP, &root));
  json_t *metadata = json_object_get(root, "metadata");
  if (!json_is_object(metadata)) {
    metadata = json_object();
    if (json_object_set_new(root, "metadata", metadata)) metadata = NULL;
  }
  char *text = NULL;
  if (metadata && !json_object_set_new(metadata, "total_size", json_integer((json_int_t)s->bytes)))
    text = json_dumps(root, JSON_INDENT(2));
  kedge_status status = text ? kedge_file_write(to, text, strlen(text)) : KEDGE_ERR_MEMORY;
  free(text);
  json_decref(root);
  return status;
}

static kedge_status copy_side_file(void *context, const char *name, const char *path, uint64_t bytes) {
  const saving *s = context;
  if (bytes == NOT_TAKEN) return kedge_notes_add(s->notes, "folder %s of the model: not copied", name);
  if (!is_copied(name, bytes))
    return kedge_notes_add(s->notes, "%s: %" PRIu64 " bytes, larger than %d: not copied", name, bytes,
                           KEDGE_SAVE_COPY_CAP);
  char *target = kedge_path_join(s->folder, name);
  if (!target) return KEDGE_ERR_MEMORY;
  const bool index = s->retyped && !strcmp(name, KEDGE_CHECKPOINT_INDEX);
  kedge_status status = KEDGE_OK;
  char *slash = strchr(name, '/') ? strrchr(target, '/') : NULL;
  if (slash) {
    *slash = 0;
    status = kedge_folder_make(target);
    *slash = '/';
  }
  if (status == KEDGE_OK) status = index ? write_index(s, path, target) : kedge_file_copy(path, target);
  kedge_free(target);
  return status;
}

/* ---- All
 * ----------------------------------------------------------------------------------------------------------------
 */

/* Bytes of the shards' headers and of the other files; a new header is a little longer at most. */
static kedge_status require_disk(const saving *s) {
  uint64_t bytes = s->bytes, headers = 0;
  for (uint32_t i = 0; i < kedge_checkpoint_shard_count(s->like); i++) {
    kedge_st_header(kedge_checkpoint_shard(s->like, i), &headers);
    bytes += headers;
  }
  const side_walk sizes = {s->like, s->folder, add_bytes, &bytes};
  KEDGE_TRY(walk_side(&sizes, "", 0));
  return kedge_disk_require(s->folder, bytes);
}

kedge_status kedge_checkpoint_save(const kedge_checkpoint *like, const char *folder, kedge_save_fetch fetch,
                                   kedge_save_retype retype_tensor, void *context, kedge_notes *notes) {
  saving s = {.like = like,
              .folder = folder,
              .fetch = fetch,
              .retype = retype_tensor,
              .context = context,
              .notes = notes};
  KEDGE_TRY(measure(&s));
  KEDGE_TRY(require_disk(&s));
  s.piece = kedge_alloc(KEDGE_ST_PIECE, 1);
  if (!s.piece) return KEDGE_ERR_MEMORY;
  kedge_status status = KEDGE_OK;
  for (uint32_t i = 0; status == KEDGE_OK && i < kedge_checkpoint_shard_count(like); i++) {
    char *path = kedge_path_join(folder, kedge_checkpoint_shard_name(like, i));
    status = path ? write_shard(&s, kedge_checkpoint_shard(like, i), path) : KEDGE_ERR_MEMORY;
    kedge_free(path);
  }
  kedge_free(s.piece);
  const side_walk copies = {like, folder, copy_side_file, &s};
  return status == KEDGE_OK ? walk_side(&copies, "", 0) : status;
}
