/* SPDX-License-Identifier: Apache-2.0
 * A model directory's weights: index, shards, checks across shards (checkpoint.h). */
#include "models/checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "models/checkpoint/atomic.h"
#include "models/checkpoint/json.h"

enum { NAMES_IN_NOTE = 16 };

/* One tensor and its shard, in the order of names. */
typedef struct named {
  const kedge_st_tensor *tensor;
  uint32_t shard;
} named;

struct kedge_checkpoint {
  char *path, *directory, *index; /* directory, index: NULL where there is none */
  char **names;                   /* of shards, sorted */
  kedge_st_file **shards;
  uint32_t shard_count;
  const kedge_st_tensor **tensors; /* shard by shard */
  named *by_name;
  uint32_t count;
  uint64_t bytes;
  kedge_notes notes;
};

static bool ends_with(const char *text, const char *tail) {
  size_t length = strlen(text), size = strlen(tail);
  return length > size && !strcmp(text + length - size, tail);
}

/* ---- The index
 * ----------------------------------------------------------------------------------------------------- */

static int compare_text(const void *left, const void *right) {
  return strcmp(*(char *const *)left, *(char *const *)right);
}

static kedge_status check_shard_name(const kedge_checkpoint *checkpoint, const char *tensor,
                                     const json_t *value) {
  const char *name = json_string_value(value);
  if (!name)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: tensor \"%s\": expected a file name, got %s", checkpoint->index,
                      tensor, kedge__json_type(value));
  if (strchr(name, '/') || strstr(name, "..") || !ends_with(name, ".safetensors"))
    return kedge_fail(
        KEDGE_ERR_FORMAT,
        "%s: tensor \"%s\": shard \"%s\": expected the name of a .safetensors file beside the index",
        checkpoint->index, tensor, name);
  return KEDGE_OK;
}

/* The distinct shard names of the weight map, sorted. */
static kedge_status collect_shards(kedge_checkpoint *checkpoint, json_t *map) {
  size_t count = json_object_size(map), at = 0;
  const char **all = kedge_alloc(count, sizeof *all);
  if (!all) return KEDGE_ERR_MEMORY;
  kedge_status status = KEDGE_OK;
  const char *tensor;
  json_t *value;
  json_object_foreach(map, tensor, value) {
    KEDGE_GOTO(check_shard_name(checkpoint, tensor, value), status, done);
    all[at++] = json_string_value(value);
  }
  qsort(all, count, sizeof *all, compare_text);
  checkpoint->names = kedge_alloc(count, sizeof *checkpoint->names);
  if (!checkpoint->names) status = KEDGE_ERR_MEMORY;
  for (size_t i = 0; status == KEDGE_OK && i < count; i++) {
    if (i && !strcmp(all[i - 1], all[i])) continue;
    char *name = kedge_strdup(all[i]);
    if (name)
      checkpoint->names[checkpoint->shard_count++] = name;
    else
      status = KEDGE_ERR_MEMORY;
  }
done:
  kedge_free(all);
  return status;
}

static kedge_status read_index(kedge_checkpoint *checkpoint, json_t **root) {
  KEDGE_TRY(kedge__json_load(checkpoint->index, KEDGE_CHECKPOINT_INDEX_CAP, root));
  json_t *map = json_object_get(*root, "weight_map");
  if (!json_is_object(map) || !json_object_size(map))
    return kedge_fail(KEDGE_ERR_FORMAT,
                      "%s: key \"weight_map\": expected an object with a file for each tensor, got %s",
                      checkpoint->index, json_is_object(map) ? "an empty one" : kedge__json_type(map));
  return collect_shards(checkpoint, map);
}

/* ---- Shards
 * -----------------------------------------------------------------------------------------------------------
 */

static kedge_status open_shards(kedge_checkpoint *checkpoint, const char *folder, json_t *map) {
  checkpoint->shards = kedge_alloc(checkpoint->shard_count, sizeof *checkpoint->shards);
  if (!checkpoint->shards) return KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; i < checkpoint->shard_count; i++) {
    char *path = folder ? kedge_path_join(folder, checkpoint->names[i]) : kedge_strdup(checkpoint->path);
    if (!path) return KEDGE_ERR_MEMORY;
    kedge_status status = kedge_st_open(path, &checkpoint->shards[i]);
    kedge_free(path);
    if (status == KEDGE_OK) continue;
    /* A shard that cannot be read is told with the first tensor that is lost with it. */
    const char *tensor;
    json_t *value;
    json_object_foreach(map, tensor, value) {
      if (!strcmp(json_string_value(value), checkpoint->names[i]))
        return kedge_fail_in(status, "%s: tensor \"%s\"", checkpoint->index, tensor);
    }
    return status;
  }
  return KEDGE_OK;
}

static int compare_named(const void *left, const void *right) {
  const named *a = left, *b = right;
  int order = strcmp(a->tensor->name, b->tensor->name);
  return order ? order : a->shard < b->shard ? -1 : a->shard > b->shard;
}

static kedge_status join_shards(kedge_checkpoint *checkpoint) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < checkpoint->shard_count; i++) total += kedge_st_count(checkpoint->shards[i]);
  if (total > UINT32_MAX)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: %" PRIu64 " tensors are too many", checkpoint->path, total);
  checkpoint->tensors = kedge_alloc((size_t)total, sizeof *checkpoint->tensors);
  checkpoint->by_name = kedge_alloc((size_t)total, sizeof *checkpoint->by_name);
  if (!checkpoint->tensors || !checkpoint->by_name) return KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; i < checkpoint->shard_count; i++)
    for (uint32_t j = 0; j < kedge_st_count(checkpoint->shards[i]); j++) {
      const kedge_st_tensor *tensor = kedge_st_at(checkpoint->shards[i], j);
      checkpoint->bytes += tensor->bytes;
      checkpoint->by_name[checkpoint->count] = (named){tensor, i};
      checkpoint->tensors[checkpoint->count++] = tensor;
    }
  if (checkpoint->count)
    qsort(checkpoint->by_name, checkpoint->count, sizeof *checkpoint->by_name, compare_named);
  for (uint32_t i = 1; i < checkpoint->count; i++) {
    const named *a = &checkpoint->by_name[i - 1], *b = &checkpoint->by_name[i];
    if (!strcmp(a->tensor->name, b->tensor->name))
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: tensor \"%s\" is in two shards, %s and %s", checkpoint->path,
                        a->tensor->name, checkpoint->names[a->shard], checkpoint->names[b->shard]);
  }
  return KEDGE_OK;
}

/* Every tensor of the index is in the shard it names. */
static kedge_status check_map(const kedge_checkpoint *checkpoint, json_t *map) {
  const char *name;
  json_t *value;
  json_object_foreach(map, name, value) {
    const char *wanted = json_string_value(value);
    const kedge_st_tensor *tensor = kedge_checkpoint_find(checkpoint, name);
    if (!tensor)
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: tensor \"%s\" is not in %s", checkpoint->index, name, wanted);
    const char *found = kedge_checkpoint_shard_of(checkpoint, tensor);
    if (strcmp(found, wanted))
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: tensor \"%s\" is not in %s but in %s", checkpoint->index, name,
                        wanted, found);
  }
  return KEDGE_OK;
}

/* ---- Notes
 * --------------------------------------------------------------------------------------------------------------
 */

static kedge_status note_omitted(kedge_checkpoint *checkpoint, json_t *map) {
  for (uint32_t i = 0; i < checkpoint->shard_count; i++) {
    char names[640] = "";
    size_t used = 0;
    uint32_t omitted = 0;
    for (uint32_t j = 0; j < kedge_st_count(checkpoint->shards[i]); j++) {
      const char *name = kedge_st_at(checkpoint->shards[i], j)->name;
      if (json_object_get(map, name)) continue;
      if (omitted++ < NAMES_IN_NOTE && used < sizeof names)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", omitted > 1 ? ", " : "", name);
    }
    if (omitted)
      KEDGE_TRY(kedge_notes_add(&checkpoint->notes, "%s: %u tensor(s) that the index omits: %s%s",
                                checkpoint->names[i], omitted, names,
                                omitted > NAMES_IN_NOTE || used >= sizeof names ? ", ..." : ""));
  }
  return KEDGE_OK;
}

static kedge_status note_total(kedge_checkpoint *checkpoint, json_t *root) {
  const json_t *total = json_object_get(json_object_get(root, "metadata"), "total_size");
  if (json_is_integer(total) && (uint64_t)json_integer_value(total) != checkpoint->bytes)
    return kedge_notes_add(&checkpoint->notes,
                           "%s: total_size is %" PRId64 ", the tensors have %" PRIu64 " bytes",
                           checkpoint->index, (int64_t)json_integer_value(total), checkpoint->bytes);
  return KEDGE_OK;
}

/* A shard of the model, or the optimizer's state that a checkpoint of a run has beside it. */
static bool is_known(const kedge_checkpoint *checkpoint, const char *name) {
  return !strcmp(name, "optimizer.safetensors") ||
         bsearch(&name, checkpoint->names, checkpoint->shard_count, sizeof *checkpoint->names, compare_text);
}

static kedge_status note_strays(kedge_checkpoint *checkpoint) {
  DIR *dir = opendir(checkpoint->directory);
  if (!dir) return kedge_fail(KEDGE_ERR_IO, "%s: %s", checkpoint->directory, strerror(errno));
  kedge_status status = KEDGE_OK;
  for (struct dirent *item; status == KEDGE_OK && (item = readdir(dir));)
    if (ends_with(item->d_name, ".safetensors") && !is_known(checkpoint, item->d_name))
      status = kedge_notes_add(&checkpoint->notes, "%s: not a shard of this model, ignored", item->d_name);
  closedir(dir);
  return status;
}

/* ---- Open and close
 * -------------------------------------------------------------------------------------------------------- */

static kedge_status set_single(kedge_checkpoint *checkpoint, const char *name) {
  checkpoint->names = kedge_alloc(1, sizeof *checkpoint->names);
  if (!checkpoint->names || !(checkpoint->names[0] = kedge_strdup(name))) return KEDGE_ERR_MEMORY;
  checkpoint->shard_count = 1;
  return KEDGE_OK;
}

static bool exists(const char *path) {
  struct stat info;
  return !stat(path, &info) || errno != ENOENT;
}

/* Finds out what the directory holds; `*root` is the index or NULL. */
static kedge_status find_shards(kedge_checkpoint *checkpoint, json_t **root) {
  checkpoint->index = kedge_path_join(checkpoint->directory, KEDGE_CHECKPOINT_INDEX);
  if (!checkpoint->index) return KEDGE_ERR_MEMORY;
  if (exists(checkpoint->index)) return read_index(checkpoint, root);
  kedge_free(checkpoint->index);
  checkpoint->index = NULL;
  char *single = kedge_path_join(checkpoint->directory, KEDGE_CHECKPOINT_SINGLE);
  if (!single) return KEDGE_ERR_MEMORY;
  bool found = exists(single);
  kedge_free(single);
  if (!found)
    return kedge_fail(KEDGE_ERR_IO, "%s: expected %s or %s in this directory, found neither",
                      checkpoint->directory, KEDGE_CHECKPOINT_INDEX, KEDGE_CHECKPOINT_SINGLE);
  return set_single(checkpoint, KEDGE_CHECKPOINT_SINGLE);
}

static kedge_status open_directory(kedge_checkpoint *checkpoint, json_t **root) {
  if (!(checkpoint->directory = kedge_strdup(checkpoint->path))) return KEDGE_ERR_MEMORY;
  KEDGE_TRY(find_shards(checkpoint, root));
  json_t *map = json_object_get(*root, "weight_map");
  KEDGE_TRY(open_shards(checkpoint, checkpoint->directory, map));
  KEDGE_TRY(join_shards(checkpoint));
  if (*root) {
    KEDGE_TRY(check_map(checkpoint, map));
    KEDGE_TRY(note_omitted(checkpoint, map));
    KEDGE_TRY(note_total(checkpoint, *root));
  }
  return note_strays(checkpoint);
}

static kedge_status open_file(kedge_checkpoint *checkpoint) {
  const char *slash = strrchr(checkpoint->path, '/');
  KEDGE_TRY(set_single(checkpoint, slash ? slash + 1 : checkpoint->path));
  KEDGE_TRY(open_shards(checkpoint, NULL, NULL));
  return join_shards(checkpoint);
}

kedge_status kedge_checkpoint_open(const char *path, kedge_checkpoint **result) {
  *result = NULL;
  struct stat info;
  if (stat(path, &info)) return kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
  kedge_checkpoint *checkpoint = kedge_alloc(1, sizeof *checkpoint);
  if (!checkpoint) return KEDGE_ERR_MEMORY;
  json_t *root = NULL;
  kedge_status status = KEDGE_ERR_MEMORY;
  if ((checkpoint->path = kedge_strdup(path)))
    status = S_ISDIR(info.st_mode) ? open_directory(checkpoint, &root) : open_file(checkpoint);
  json_decref(root);
  if (status == KEDGE_OK)
    *result = checkpoint;
  else
    kedge_checkpoint_close(checkpoint);
  return status;
}

void kedge_checkpoint_close(kedge_checkpoint *checkpoint) {
  if (!checkpoint) return;
  kedge_notes_destroy(&checkpoint->notes);
  kedge_free(checkpoint->by_name);
  kedge_free(checkpoint->tensors);
  for (uint32_t i = 0; i < checkpoint->shard_count; i++) {
    if (checkpoint->shards) kedge_st_close(checkpoint->shards[i]);
    kedge_free(checkpoint->names[i]);
  }
  kedge_free(checkpoint->shards);
  kedge_free(checkpoint->names);
  kedge_free(checkpoint->index);
  kedge_free(checkpoint->directory);
  kedge_free(checkpoint->path);
  kedge_free(checkpoint);
}

/* ---- Reading what is there
 * --------------------------------------------------------------------------------------------------- */

const char *kedge_checkpoint_path(const kedge_checkpoint *checkpoint) {
  return checkpoint->path;
}
const char *kedge_checkpoint_directory(const kedge_checkpoint *checkpoint) {
  return checkpoint->directory;
}
const kedge_notes *kedge_checkpoint_notes(const kedge_checkpoint *checkpoint) {
  return &checkpoint->notes;
}
uint32_t kedge_checkpoint_count(const kedge_checkpoint *checkpoint) {
  return checkpoint->count;
}
uint64_t kedge_checkpoint_bytes(const kedge_checkpoint *checkpoint) {
  return checkpoint->bytes;
}
uint32_t kedge_checkpoint_shard_count(const kedge_checkpoint *checkpoint) {
  return checkpoint->shard_count;
}
bool kedge_checkpoint_has_index(const kedge_checkpoint *checkpoint) {
  return checkpoint->index;
}

const kedge_st_tensor *kedge_checkpoint_at(const kedge_checkpoint *checkpoint, uint32_t index) {
  return checkpoint->tensors[index];
}

const kedge_st_tensor *kedge_checkpoint_by_name(const kedge_checkpoint *checkpoint, uint32_t index) {
  return checkpoint->by_name[index].tensor;
}

const kedge_st_file *kedge_checkpoint_shard(const kedge_checkpoint *checkpoint, uint32_t index) {
  return checkpoint->shards[index];
}

const char *kedge_checkpoint_shard_name(const kedge_checkpoint *checkpoint, uint32_t index) {
  return checkpoint->names[index];
}

static const named *find(const kedge_checkpoint *checkpoint, const char *name) {
  uint32_t low = 0, high = checkpoint->count;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    int order = strcmp(name, checkpoint->by_name[middle].tensor->name);
    if (!order) return &checkpoint->by_name[middle];
    if (order < 0)
      high = middle;
    else
      low = middle + 1;
  }
  return NULL;
}

const kedge_st_tensor *kedge_checkpoint_find(const kedge_checkpoint *checkpoint, const char *name) {
  const named *found = find(checkpoint, name);
  return found ? found->tensor : NULL;
}

const char *kedge_checkpoint_shard_of(const kedge_checkpoint *checkpoint, const kedge_st_tensor *tensor) {
  const named *found = find(checkpoint, tensor->name);
  return found ? checkpoint->names[found->shard] : NULL;
}

kedge_status kedge_checkpoint_require(const kedge_checkpoint *checkpoint, const char *name,
                                      const kedge_st_tensor **tensor) {
  *tensor = kedge_checkpoint_find(checkpoint, name);
  return *tensor ? KEDGE_OK
                 : kedge_fail(KEDGE_ERR_MISMATCH, "%s: tensor \"%s\" is missing", checkpoint->path, name);
}
