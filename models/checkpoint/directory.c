/* SPDX-License-Identifier: Apache-2.0
 * Directories that appear whole or not at all (atomic.h); files are in atomic.c.
 *
 * Names beside a destination D: `D.partial-<pid>` is being built by that process, or is the old D after an
 * exchange; `D.old-<pid>` is the old D on a file system that cannot exchange two names. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "models/checkpoint/atomic.h"

enum { MAX_DEPTH = 16 }; /* of folders inside a directory that is synced or removed */

struct kedge_directory {
  char *destination, *folder, *base, *partial, *old;
  int fd;     /* of `partial`, holds the lock */
  int old_fd; /* of the directory moved aside, so that nobody takes it for a dead writer's; -1 */
};

/* ---- Walking
 * ------------------------------------------------------------------------------------------------------ */

/* What to do with each entry: `file` for anything that is not a folder, `folder` after its contents. */
typedef struct walker {
  kedge_status (*file)(int parent, const char *name, const char *where);
  kedge_status (*folder)(int parent, const char *name, const char *where);
} walker;

static kedge_status walk(const walker *walker_, int parent, const char *name, const char *where, int depth) {
  if (depth > MAX_DEPTH) return kedge_fail(KEDGE_ERR_IO, "%s: folders deeper than %d", where, MAX_DEPTH);
  int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return kedge_fail(KEDGE_ERR_IO, "%s: \"%s\": %s", where, name, strerror(errno));
  DIR *dir = fdopendir(fd);
  if (!dir) {
    close(fd);
    return kedge_fail(KEDGE_ERR_IO, "%s: \"%s\": %s", where, name, strerror(errno));
  }
  kedge_status status = KEDGE_OK;
  for (struct dirent *item; status == KEDGE_OK && (item = readdir(dir));) {
    if (!strcmp(item->d_name, ".") || !strcmp(item->d_name, "..")) continue;
    struct stat info;
    if (fstatat(fd, item->d_name, &info, AT_SYMLINK_NOFOLLOW))
      status = kedge_fail(KEDGE_ERR_IO, "%s: \"%s\": %s", where, item->d_name, strerror(errno));
    else if (S_ISDIR(info.st_mode))
      status = walk(walker_, fd, item->d_name, where, depth + 1);
    else
      status = walker_->file(fd, item->d_name, where);
  }
  closedir(dir);
  return status == KEDGE_OK ? walker_->folder(parent, name, where) : status;
}

static kedge_status sync_entry(int parent, const char *name, const char *where) {
  int fd = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && errno == ELOOP) return KEDGE_OK; /* a link has no data of its own */
  if (fd < 0) return kedge_fail(KEDGE_ERR_IO, "%s: \"%s\": %s", where, name, strerror(errno));
  int failed = fsync(fd) && errno != EINVAL && errno != ENOTSUP ? errno : 0;
  close(fd);
  return failed ? kedge_fail(KEDGE_ERR_IO, "%s: \"%s\": sync: %s", where, name, strerror(failed)) : KEDGE_OK;
}

static kedge_status unlink_file(int parent, const char *name, const char *where) {
  if (unlinkat(parent, name, 0) && errno != ENOENT)
    return kedge_fail(KEDGE_ERR_IO, "%s: cannot remove \"%s\": %s", where, name, strerror(errno));
  return KEDGE_OK;
}

static kedge_status unlink_folder(int parent, const char *name, const char *where) {
  if (unlinkat(parent, name, AT_REMOVEDIR) && errno != ENOENT)
    return kedge_fail(KEDGE_ERR_IO, "%s: cannot remove \"%s\": %s", where, name, strerror(errno));
  return KEDGE_OK;
}

static kedge_status sync_tree(const char *path) {
  static const walker sync_all = {sync_entry, sync_entry};
  return walk(&sync_all, AT_FDCWD, path, path, 0);
}

static kedge_status remove_tree(const char *path) {
  static const walker remove_all = {unlink_file, unlink_folder};
  return walk(&remove_all, AT_FDCWD, path, path, 0);
}

/* ---- Leftovers
 * ------------------------------------------------------------------------------------------------------ */

typedef struct place {
  const char *destination, *folder;
} place;

/* A directory aside: the destination itself if that is missing, else what a finished replacement did not
 * remove. */
static kedge_status settle_old(void *context, const char *name) {
  const place *at = context;
  char *path = kedge_path_join(at->folder, name);
  if (!path) return KEDGE_ERR_MEMORY;
  struct stat info;
  kedge_status status = KEDGE_OK;
  if (!lstat(at->destination, &info))
    status = remove_tree(path);
  else if (rename(path, at->destination))
    status = kedge_fail(KEDGE_ERR_IO, "%s: cannot put back %s: %s", at->destination, path, strerror(errno));
  kedge_free(path);
  return status;
}

static kedge_status remove_partial(void *context, const char *name) {
  const place *at = context;
  char *path = kedge_path_join(at->folder, name);
  if (!path) return KEDGE_ERR_MEMORY;
  kedge_status status = remove_tree(path);
  kedge_free(path);
  return status;
}

static kedge_status recover(const char *destination, const char *folder, const char *base) {
  place at = {destination, folder};
  KEDGE_TRY(kedge__stale_each(folder, base, ".old-", settle_old, &at));
  return kedge__stale_each(folder, base, ".partial-", remove_partial, &at);
}

kedge_status kedge_directory_recover(const char *destination) {
  char *folder, *base;
  KEDGE_TRY(kedge__path_split(destination, &folder, &base));
  char *path = kedge_path_join(folder, base);
  kedge_status status = path ? recover(path, folder, base) : KEDGE_ERR_MEMORY;
  kedge_free(path);
  kedge_free(base);
  kedge_free(folder);
  return status;
}

/* ---- Begin
 * ------------------------------------------------------------------------------------------------------------
 */

kedge_status kedge_folder_make(const char *path) {
  char *part = kedge_strdup(path);
  if (!part) return KEDGE_ERR_MEMORY;
  kedge_status status = KEDGE_OK;
  for (char *at = part; status == KEDGE_OK && *at;) {
    at += strspn(at, "/");
    at += strcspn(at, "/");
    char kept = *at;
    *at = 0;
    struct stat info;
    if (mkdir(part, 0777) && (errno != EEXIST || stat(part, &info) || !S_ISDIR(info.st_mode)))
      status = kedge_fail(KEDGE_ERR_IO, "%s: cannot create: %s", part,
                          strerror(errno == EEXIST ? ENOTDIR : errno));
    *at = kept;
  }
  kedge_free(part);
  return status;
}

static kedge_status check_destination(const char *path, bool replace) {
  struct stat info;
  if (lstat(path, &info))
    return errno == ENOENT ? KEDGE_OK : kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
  if (!S_ISDIR(info.st_mode))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: exists and is not a directory", path);
  if (replace) return KEDGE_OK;
  DIR *dir = opendir(path);
  if (!dir) return kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
  bool empty = true;
  for (struct dirent *item; empty && (item = readdir(dir));)
    empty = !strcmp(item->d_name, ".") || !strcmp(item->d_name, "..");
  closedir(dir);
  return empty ? KEDGE_OK : kedge_fail(KEDGE_ERR_ARGUMENT, "%s: exists and is not empty", path);
}

static void directory_free(kedge_directory *directory) {
  if (directory->fd >= 0) close(directory->fd);
  if (directory->old_fd >= 0) close(directory->old_fd);
  kedge_free(directory->old);
  kedge_free(directory->partial);
  kedge_free(directory->destination);
  kedge_free(directory->base);
  kedge_free(directory->folder);
  kedge_free(directory);
}

static kedge_status create_partial(kedge_directory *directory) {
  const char *path = directory->partial;
  if (mkdir(path, 0777))
    return kedge_fail(KEDGE_ERR_IO, "%s: cannot create: %s", path,
                      errno == EEXIST ? "this process is writing it already" : strerror(errno));
  directory->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  kedge_status status = directory->fd < 0 ? kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno))
                                          : kedge__writer_lock(directory->fd, path);
  if (status != KEDGE_OK) rmdir(path);
  return status;
}

kedge_status kedge_directory_begin(const char *destination, bool replace, kedge_directory **result) {
  *result = NULL;
  kedge_directory *directory = kedge_alloc(1, sizeof *directory);
  if (!directory) return KEDGE_ERR_MEMORY;
  directory->fd = directory->old_fd = -1;
  kedge_status status;
  KEDGE_GOTO(kedge__path_split(destination, &directory->folder, &directory->base), status, failed);
  KEDGE_GOTO(kedge_folder_make(directory->folder), status, failed);
  status = KEDGE_ERR_MEMORY;
  if (!(directory->destination = kedge_path_join(directory->folder, directory->base)) ||
      !(directory->partial = kedge_format("%s.partial-%ld", directory->destination, (long)getpid())) ||
      !(directory->old = kedge_format("%s.old-%ld", directory->destination, (long)getpid())))
    goto failed;
  KEDGE_GOTO(recover(directory->destination, directory->folder, directory->base), status, failed);
  KEDGE_GOTO(check_destination(directory->destination, replace), status, failed);
  KEDGE_GOTO(create_partial(directory), status, failed);
  *result = directory;
  return KEDGE_OK;
failed:
  directory_free(directory);
  return status;
}

const char *kedge_directory_path(const kedge_directory *directory) {
  return directory->partial;
}

void kedge_directory_discard(kedge_directory *directory) {
  if (!directory) return;
  remove_tree(directory->partial); /* what cannot go now goes with the next begin */
  directory_free(directory);
}

/* ---- Commit
 * ------------------------------------------------------------------------------------------------------------
 */

/* Puts the new directory into place. `*leftover` names what holds the old one afterwards, or NULL. */
static kedge_status put_in_place(kedge_directory *directory, const char **leftover) {
  const char *partial = directory->partial, *destination = directory->destination;
  *leftover = NULL;
  kedge__step("rename directory");
  if (!rename(partial, destination)) return KEDGE_OK; /* nothing there, or an empty directory */
  if (errno != ENOTEMPTY && errno != EEXIST)
    return kedge_fail(KEDGE_ERR_IO, "%s: cannot rename to %s: %s", partial, destination, strerror(errno));
  kedge__step("exchange directories");
  if (!kedge__atomic_no_exchange && !renameat2(AT_FDCWD, partial, AT_FDCWD, destination, RENAME_EXCHANGE)) {
    *leftover = partial;
    return KEDGE_OK;
  }
  directory->old_fd = open(destination, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory->old_fd < 0) return kedge_fail(KEDGE_ERR_IO, "%s: %s", destination, strerror(errno));
  KEDGE_TRY(kedge__writer_lock(directory->old_fd, destination));
  kedge__step("move old directory aside");
  if (rename(destination, directory->old))
    return kedge_fail(KEDGE_ERR_IO, "%s: cannot move aside: %s", destination, strerror(errno));
  kedge__step("move new directory in");
  if (rename(partial, destination)) {
    int failed = errno;
    rename(directory->old, destination);
    return kedge_fail(KEDGE_ERR_IO, "%s: cannot rename to %s: %s", partial, destination, strerror(failed));
  }
  *leftover = directory->old;
  return KEDGE_OK;
}

kedge_status kedge_directory_commit(kedge_directory *directory) {
  const char *leftover = NULL;
  kedge__step("sync files");
  kedge_status status = sync_tree(directory->partial);
  if (status == KEDGE_OK) status = put_in_place(directory, &leftover);
  if (status != KEDGE_OK) {
    /* The message of the failure is worth more than one about removing. */
    char *message = kedge_strdup(kedge_message());
    kedge_directory_discard(directory);
    if (message) kedge_fail(status, "%s", message);
    kedge_free(message);
    return status;
  }
  kedge__step("sync parent");
  status = kedge__sync_path(directory->folder);
  kedge__step("remove old directory");
  if (leftover) remove_tree(leftover); /* what cannot go now goes with the next begin */
  kedge__step("done");
  directory_free(directory);
  return status;
}
