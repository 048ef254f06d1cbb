/* SPDX-License-Identifier: Apache-2.0
 * Atomic files, whole-file reads, copies, free space (atomic.h); directories are in directory.c. */
#include "models/checkpoint/atomic.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

void (*kedge__atomic_step)(const char *step);
bool kedge__atomic_no_exchange;

void kedge__step(const char *step) {
  if (kedge__atomic_step) kedge__atomic_step(step);
}

enum { BUFFER_SIZE = 1 << 20 };

/* ---- Paths
 * -------------------------------------------------------------------------------------------------------- */

char *kedge_path_join(const char *a, const char *b) {
  size_t length = strlen(a);
  return kedge_format("%s%s%s", a, length && a[length - 1] == '/' ? "" : "/", b);
}

kedge_status kedge__path_split(const char *path, char **folder, char **base) {
  *folder = *base = NULL;
  size_t end = strlen(path);
  while (end && path[end - 1] == '/') end--;
  size_t start = end;
  while (start && path[start - 1] != '/') start--;
  size_t length = end - start;
  if (!length || (length == 1 && path[start] == '.') || (length == 2 && !strncmp(path + start, "..", 2)))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "\"%s\": expected a path that ends in a name", path);
  size_t head = start;
  while (head > 1 && path[head - 1] == '/') head--;
  *folder = head ? kedge_format("%.*s", (int)head, path) : kedge_strdup(".");
  *base = kedge_format("%.*s", (int)length, path + start);
  if (*folder && *base) return KEDGE_OK;
  kedge_free(*folder);
  kedge_free(*base);
  *folder = *base = NULL;
  return KEDGE_ERR_MEMORY;
}

kedge_status kedge__sync_path(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
  /* Some file systems cannot sync a folder and say EINVAL; there is nothing more to do then. */
  int failed = fsync(fd) && errno != EINVAL && errno != ENOTSUP ? errno : 0;
  close(fd);
  return failed ? kedge_fail(KEDGE_ERR_IO, "%s: sync: %s", path, strerror(failed)) : KEDGE_OK;
}

/* ---- Writers, alive and dead
 * ----------------------------------------------------------------------------------------- */

kedge_status kedge__writer_lock(int fd, const char *path) {
  /* A file system without locks is no reason to refuse: process ids are the second means. */
  if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: another writer is at work", path);
  return KEDGE_OK;
}

static bool writer_is_dead(int folder, const char *name, long pid) {
  int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return false;
  bool dead;
  if (!flock(fd, LOCK_EX | LOCK_NB))
    dead = true;
  else if (errno == EWOULDBLOCK)
    dead = false;
  else
    dead = kill((pid_t)pid, 0) && errno == ESRCH;
  close(fd);
  return dead;
}

/* The number after `<base><infix>`; -1 if the name is none of ours. */
static long pid_of(const char *name, const char *base, const char *infix) {
  size_t base_length = strlen(base), infix_length = strlen(infix);
  if (strncmp(name, base, base_length) || strncmp(name + base_length, infix, infix_length)) return -1;
  const char *digits = name + base_length + infix_length;
  size_t length = strspn(digits, "0123456789");
  return length && length < 11 && !digits[length] ? strtol(digits, NULL, 10) : -1;
}

kedge_status kedge__stale_each(const char *folder, const char *base, const char *infix,
                               kedge__stale_visit visit, void *context) {
  DIR *dir = opendir(folder);
  if (!dir) return kedge_fail(KEDGE_ERR_IO, "%s: %s", folder, strerror(errno));
  kedge_status status = KEDGE_OK;
  for (struct dirent *item; status == KEDGE_OK && (item = readdir(dir));) {
    long pid = pid_of(item->d_name, base, infix);
    if (pid >= 0 && writer_is_dead(dirfd(dir), item->d_name, pid)) status = visit(context, item->d_name);
  }
  closedir(dir);
  return status;
}

/* ---- Reading
 * ---------------------------------------------------------------------------------------------------------
 */

static kedge_status read_all(int fd, const char *path, size_t bytes, char *text) {
  size_t at = 0;
  while (at < bytes) {
    ssize_t got = read(fd, text + at, bytes - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
    if (!got) return kedge_fail(KEDGE_ERR_IO, "%s: ends after %zu of %zu bytes", path, at, bytes);
    at += (size_t)got;
  }
  return KEDGE_OK;
}

static kedge_status open_regular(const char *path, int *fd, uint64_t *bytes) {
  *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (*fd < 0) return kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
  struct stat info;
  int failed = fstat(*fd, &info) ? errno : 0;
  if (!failed && S_ISREG(info.st_mode)) {
    *bytes = (uint64_t)info.st_size;
    return KEDGE_OK;
  }
  close(*fd);
  return kedge_fail(KEDGE_ERR_IO, "%s: %s", path, failed ? strerror(failed) : "not a regular file");
}

kedge_status kedge_file_read(const char *path, size_t cap, char **text, size_t *bytes) {
  *text = NULL;
  *bytes = 0;
  int fd;
  uint64_t size;
  KEDGE_TRY(open_regular(path, &fd, &size));
  kedge_status status;
  if (size > cap) {
    status =
        kedge_fail(KEDGE_ERR_FORMAT, "%s: %" PRIu64 " bytes are more than the %zu allowed", path, size, cap);
  } else if (!(*text = kedge_alloc((size_t)size + 1, 1))) {
    status = KEDGE_ERR_MEMORY;
  } else {
    *bytes = (size_t)size;
    status = read_all(fd, path, *bytes, *text);
  }
  close(fd);
  if (status != KEDGE_OK) {
    kedge_free(*text);
    *text = NULL;
  }
  return status;
}

/* ---- Writing
 * ---------------------------------------------------------------------------------------------------------
 */

struct kedge_outfile {
  char *path, *temporary, *folder;
  int fd;
  uint8_t *buffer;
  size_t used;
};

static kedge_status remove_stale(void *context, const char *name) {
  char *path = kedge_path_join(context, name);
  if (!path) return KEDGE_ERR_MEMORY;
  unlink(path); /* a leftover that cannot go does no harm */
  kedge_free(path);
  return KEDGE_OK;
}

static void output_free(kedge_outfile *output) {
  if (output->fd >= 0) close(output->fd);
  kedge_free(output->buffer);
  kedge_free(output->folder);
  kedge_free(output->temporary);
  kedge_free(output->path);
  kedge_free(output);
}

/* Renaming onto a device or a pipe would put a file in its place. */
static kedge_status check_place(const char *path) {
  struct stat info;
  if (stat(path, &info) || S_ISREG(info.st_mode)) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_IO, "%s: is there already and is not a regular file", path);
}

kedge_status kedge_outfile_open(const char *path, kedge_outfile **result) {
  *result = NULL;
  KEDGE_TRY(check_place(path));
  kedge_outfile *output = kedge_alloc(1, sizeof *output);
  if (!output) return KEDGE_ERR_MEMORY;
  output->fd = -1;
  char *base = NULL;
  kedge_status status;
  KEDGE_GOTO(kedge__path_split(path, &output->folder, &base), status, failed);
  KEDGE_GOTO(kedge__stale_each(output->folder, base, ".tmp-", remove_stale, output->folder), status, failed);
  status = KEDGE_ERR_MEMORY;
  if (!(output->path = kedge_strdup(path)) || !(output->buffer = kedge_alloc(BUFFER_SIZE, 1)) ||
      !(output->temporary = kedge_format("%s/%s.tmp-%ld", output->folder, base, (long)getpid())))
    goto failed;
  output->fd = open(output->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (output->fd < 0) {
    status = kedge_fail(KEDGE_ERR_IO, "%s: cannot create: %s", output->temporary, strerror(errno));
    goto failed;
  }
  if ((status = kedge__writer_lock(output->fd, output->temporary)) != KEDGE_OK) goto failed;
  kedge_free(base);
  *result = output;
  return KEDGE_OK;
failed:
  kedge_free(base);
  output_free(output);
  return status;
}

static kedge_status write_all(kedge_outfile *output, const uint8_t *data, uint64_t bytes) {
  while (bytes) {
    size_t chunk = bytes < (1u << 30) ? (size_t)bytes : 1u << 30;
    ssize_t wrote = write(output->fd, data, chunk);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0)
      return kedge_fail(KEDGE_ERR_IO, "%s: cannot write: %s", output->path, strerror(wrote ? errno : ENOSPC));
    data += wrote;
    bytes -= (uint64_t)wrote;
  }
  return KEDGE_OK;
}

static kedge_status flush(kedge_outfile *output) {
  size_t used = output->used;
  output->used = 0;
  return write_all(output, output->buffer, used);
}

kedge_status kedge_outfile_write(kedge_outfile *output, const void *data, uint64_t bytes) {
  if (bytes > BUFFER_SIZE - output->used) KEDGE_TRY(flush(output));
  if (bytes >= BUFFER_SIZE) return write_all(output, data, bytes);
  if (bytes) memcpy(output->buffer + output->used, data, (size_t)bytes);
  output->used += (size_t)bytes;
  return KEDGE_OK;
}

void kedge_outfile_discard(kedge_outfile *output) {
  if (!output) return;
  unlink(output->temporary);
  output_free(output);
}

kedge_status kedge_outfile_commit(kedge_outfile *output) {
  kedge__step("flush file");
  kedge_status status = flush(output);
  if (status == KEDGE_OK && fsync(output->fd))
    status = kedge_fail(KEDGE_ERR_IO, "%s: sync: %s", output->path, strerror(errno));
  kedge__step("rename file");
  if (status == KEDGE_OK && rename(output->temporary, output->path))
    status = kedge_fail(KEDGE_ERR_IO, "%s: rename: %s", output->path, strerror(errno));
  if (status != KEDGE_OK) {
    kedge_outfile_discard(output);
    return status;
  }
  kedge__step("sync folder of file");
  status = kedge__sync_path(output->folder);
  output_free(output);
  return status;
}

kedge_status kedge_file_write(const char *path, const void *data, uint64_t bytes) {
  kedge_outfile *output;
  KEDGE_TRY(kedge_outfile_open(path, &output));
  kedge_status status = kedge_outfile_write(output, data, bytes);
  if (status == KEDGE_OK) return kedge_outfile_commit(output);
  kedge_outfile_discard(output);
  return status;
}

static kedge_status copy_into(kedge_outfile *output, int fd, const char *from) {
  for (;;) {
    if (output->used == BUFFER_SIZE) KEDGE_TRY(flush(output));
    ssize_t got = read(fd, output->buffer + output->used, BUFFER_SIZE - output->used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return kedge_fail(KEDGE_ERR_IO, "%s: %s", from, strerror(errno));
    if (!got) return KEDGE_OK;
    output->used += (size_t)got;
  }
}

kedge_status kedge_file_copy(const char *from, const char *to) {
  int fd;
  uint64_t bytes;
  KEDGE_TRY(open_regular(from, &fd, &bytes));
  kedge_outfile *output = NULL;
  kedge_status status;
  KEDGE_GOTO(kedge_outfile_open(to, &output), status, done);
  KEDGE_GOTO(copy_into(output, fd, from), status, done);
  status = kedge_outfile_commit(output);
  output = NULL;
done:
  kedge_outfile_discard(output);
  close(fd);
  return status;
}

/* ---- Free space
 * ---------------------------------------------------------------------------------------------------------
 */

kedge_status kedge_disk_require(const char *path, uint64_t bytes) {
  /* The nearest folder that exists decides. */
  char *at = kedge_strdup(path);
  if (!at) return KEDGE_ERR_MEMORY;
  struct statvfs info;
  int failed = 0;
  while (statvfs(*at ? at : ".", &info)) {
    failed = errno;
    if ((failed != ENOENT && failed != ENOTDIR) || !*at) break;
    char *slash = strrchr(at, '/');
    failed = 0;
    if (!slash)
      *at = 0;
    else
      slash[slash == at && slash[1] ? 1 : 0] = 0;
  }
  kedge_free(at);
  if (failed) return kedge_fail(KEDGE_ERR_IO, "%s: free space: %s", path, strerror(failed));
  uint64_t available;
  if (__builtin_mul_overflow((uint64_t)info.f_bavail, (uint64_t)info.f_frsize, &available))
    available = UINT64_MAX;
  if (available < bytes)
    return kedge_fail(KEDGE_ERR_IO, "%s: %" PRIu64 " bytes are needed, %" PRIu64 " are free on that disk",
                      path, bytes, available);
  return KEDGE_OK;
}
