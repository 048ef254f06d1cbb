/* SPDX-License-Identifier: Apache-2.0
 * Files that can be continued (partial.h). */
#include "models/prior/partial.h"

#include "models/checkpoint/atomic.h"
#include "models/checkpoint/hash.h"
#include "models/checkpoint/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_CAP = 1 << 20, TRIES = 8 };

/* One place of the journal. */
typedef struct record {
  char magic[8];
  uint64_t sequence, done, extra;
  char settings[200];
  char hash[40]; /* of all before it */
} record;

static const char magic[8] = "kedgepj1";

struct kedge__partial {
  char *path, *name; /* final; with .partial */
  int fd;
  uint64_t bytes, sequence;
  char settings[200];
};

static kedge_status fail_io(const kedge__partial *p, const char *what) {
  return kedge_fail(KEDGE_ERR_IO, "%s: %s: %s", p->name, what, strerror(errno));
}

kedge_status kedge__partial_write(kedge__partial *p, uint64_t offset, const void *data, uint64_t bytes) {
  const char *from = data;
  while (bytes) {
    ssize_t wrote = pwrite(p->fd, from, bytes < (1u << 30) ? (size_t)bytes : 1u << 30, (off_t)offset);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return fail_io(p, "cannot write");
    from += wrote;
    offset += (uint64_t)wrote;
    bytes -= (uint64_t)wrote;
  }
  return KEDGE_OK;
}

/* Reads up to `bytes`; less only at the end of the file. */
static kedge_status read_at(const kedge__partial *p, uint64_t offset, void *data, uint64_t bytes,
                            uint64_t *got) {
  *got = 0;
  while (*got < bytes) {
    ssize_t part = pread(p->fd, (char *)data + *got, (size_t)(bytes - *got), (off_t)(offset + *got));
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) return fail_io(p, "cannot read");
    if (!part) break;
    *got += (uint64_t)part;
  }
  return KEDGE_OK;
}

/* ---- Journal
 * ------------------------------------------------------------------------------------------------- */

static kedge_status seal(const record *r, char hash[40]) {
  kedge_hash *h = kedge_hash_new();
  if (!h) return KEDGE_ERR_MEMORY;
  memset(hash, 0, 40);
  kedge_hash_add(h, r, offsetof(record, hash));
  kedge_hash_text(h, hash);
  kedge_hash_free(h);
  return KEDGE_OK;
}

kedge_status kedge__partial_mark(kedge__partial *p, kedge__partial_place place) {
  record r = {.sequence = p->sequence + 1, .done = place.done, .extra = place.extra};
  memcpy(r.magic, magic, sizeof magic);
  memcpy(r.settings, p->settings, sizeof r.settings);
  KEDGE_TRY(seal(&r, r.hash));
  kedge__step("sync rows");
  if (fdatasync(p->fd)) return fail_io(p, "sync");
  kedge__step("write journal");
  KEDGE_TRY(kedge__partial_write(p, p->bytes + r.sequence % 2 * sizeof r, &r, sizeof r));
  p->sequence = r.sequence;
  return KEDGE_OK;
}

/* The newer valid record; sequence 0: there is none. */
static kedge_status read_journal(kedge__partial *p, record *newest) {
  *newest = (record){.sequence = 0};
  for (uint64_t i = 0; i < 2; i++) {
    record r;
    char hash[40];
    uint64_t got;
    KEDGE_TRY(read_at(p, p->bytes + i * sizeof r, &r, sizeof r, &got));
    if (got < sizeof r || memcmp(r.magic, magic, sizeof magic)) continue;
    KEDGE_TRY(seal(&r, hash));
    if (memcmp(hash, r.hash, sizeof hash) || r.settings[sizeof r.settings - 1]) continue;
    if (r.sequence > newest->sequence) *newest = r;
  }
  p->sequence = newest->sequence;
  return KEDGE_OK;
}

/* ---- Whose file it is
 * ------------------------------------------------------------------------------------------- */

/* Names the first pair of the metadata, or the tensor, that differs. */
static kedge_status differs(const kedge__partial *p, const json_t *there, const json_t *now) {
  static const char advice[] = "the options of that run go on with it; --restart begins anew";
  const char *key;
  json_t *value;
  const json_t *old = json_object_get(there, "__metadata__");
  json_object_foreach(json_object_get(now, "__metadata__"), key, value) {
    const char *was = json_string_value(json_object_get(old, key)), *is = json_string_value(value);
    if (!was || strcmp(was, is))
      return kedge_fail(KEDGE_ERR_MISMATCH, "%s: begun with %s %.100s, this run has %.100s: %s", p->name, key,
                        was ? was : "unset", is, advice);
  }
  return kedge_fail(KEDGE_ERR_MISMATCH, "%s: begun with other tensors: %s", p->name, advice);
}

/* The JSON of a header, whose length word comes first; NULL if it is none. */
static json_t *parse(const kedge__partial *p, const char *bytes, uint64_t got) {
  uint64_t length = 0;
  json_t *root = NULL;
  for (unsigned i = 8; got > 8 && i-- > 0;) length = length << 8 | (uint8_t)bytes[i];
  if (got <= 8 || length > got - 8 || !length) return NULL;
  return kedge__json_parse(bytes + 8, (size_t)length, p->name, &root) == KEDGE_OK ? root : NULL;
}

/* *ours: a file of this program. *same: with this header. *blank: nothing was written yet. */
static kedge_status read_owner(const kedge__partial *p, const kedge__partial_spec *spec, bool *blank,
                               bool *same) {
  char *bytes = kedge_alloc(HEADER_CAP, 1);
  uint64_t got = 0;
  json_t *there = NULL, *now = NULL;
  kedge_status status = bytes ? KEDGE_OK : KEDGE_ERR_MEMORY;
  KEDGE_GOTO(status, status, done);
  KEDGE_GOTO(read_at(p, 0, bytes, HEADER_CAP, &got), status, done);
  *blank = true;
  for (uint64_t i = 0; i < got && i < spec->header_bytes && *blank; i++) *blank = !bytes[i];
  *same = got >= spec->header_bytes && !memcmp(bytes, spec->header, (size_t)spec->header_bytes);
  if (*blank || *same) goto done;
  there = parse(p, bytes, got);
  now = parse(p, spec->header, spec->header_bytes);
  if (!json_object_get(json_object_get(there, "__metadata__"), "kedge_prior"))
    status = kedge_fail(KEDGE_ERR_FORMAT, "%s: is there already and was not begun by `kedge prior`", p->name);
  else if (!spec->restart)
    status = differs(p, there, now);
done:
  json_decref(there);
  json_decref(now);
  kedge_free(bytes);
  return status;
}

/* ---- Opening
 * ------------------------------------------------------------------------------------------------ */

static kedge_status create(kedge__partial *p, const kedge__partial_spec *spec) {
  const uint64_t all = p->bytes + 2 * sizeof(record);
  p->sequence = 0;
  if (ftruncate(p->fd, 0)) return fail_io(p, "cannot cut");
  KEDGE_TRY(kedge_disk_require(p->name, all));
  kedge__step("reserve rows");
  if (fallocate(p->fd, 0, 0, (off_t)all) && errno != EOPNOTSUPP) return fail_io(p, "cannot reserve the rows");
  if (ftruncate(p->fd, (off_t)all)) return fail_io(p, "cannot reserve the rows");
  kedge__step("write header");
  return kedge__partial_write(p, 0, spec->header, spec->header_bytes);
}

/* Opens and locks; a file that another writer renamed in between is not written to. */
static kedge_status lock(kedge__partial *p) {
  struct stat info, named;
  for (int i = 0; i < TRIES; i++) {
    p->fd = open(p->name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (p->fd < 0) return fail_io(p, "cannot create");
    if (fstat(p->fd, &info)) return fail_io(p, "cannot look at it");
    if (!S_ISREG(info.st_mode))
      return kedge_fail(KEDGE_ERR_IO, "%s: is there already and is not a regular file", p->name);
    KEDGE_TRY(kedge__writer_lock(p->fd, p->name));
    if (!stat(p->name, &named) && named.st_ino == info.st_ino && named.st_dev == info.st_dev) return KEDGE_OK;
    close(p->fd);
    p->fd = -1;
  }
  return kedge_fail(KEDGE_ERR_IO, "%s: another writer is at work", p->name);
}

static kedge_status examine(kedge__partial *p, const kedge__partial_spec *spec, kedge__partial_place *place,
                            bool *fresh, bool *whole) {
  struct stat info;
  bool blank = true, same = false;
  record newest;
  if (fstat(p->fd, &info)) return fail_io(p, "cannot look at it");
  if (info.st_size) KEDGE_TRY(read_owner(p, spec, &blank, &same));
  *fresh = true;
  if (blank || !same || spec->restart) return create(p, spec);
  /* Only finish makes this size, after all was synced. */
  *whole = (uint64_t)info.st_size == p->bytes;
  if (!*whole) {
    KEDGE_TRY(read_journal(p, &newest));
    if (!newest.sequence) return create(p, spec);
    if (strcmp(newest.settings, p->settings))
      return kedge_fail(KEDGE_ERR_MISMATCH, "%s: begun with %s, this run has %s: --restart begins anew",
                        p->name, newest.settings, p->settings);
    *place = (kedge__partial_place){newest.done, newest.extra};
  }
  *fresh = false;
  return KEDGE_OK;
}

kedge_status kedge__partial_open(const kedge__partial_spec *spec, kedge__partial_place *place, bool *fresh,
                                 bool *whole, kedge__partial **result) {
  struct stat info;
  *result = NULL;
  *place = (kedge__partial_place){0};
  *fresh = *whole = false;
  if (!stat(spec->path, &info) && !S_ISREG(info.st_mode))
    return kedge_fail(KEDGE_ERR_IO, "%s: is there already and is not a regular file", spec->path);
  kedge__partial *p = kedge_alloc(1, sizeof *p);
  if (!p) return KEDGE_ERR_MEMORY;
  p->fd = -1;
  p->bytes = spec->bytes;
  p->path = kedge_strdup(spec->path);
  p->name = kedge_format("%s.partial", spec->path);
  snprintf(p->settings, sizeof p->settings, "%s", spec->settings);
  kedge_status status = p->path && p->name ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = lock(p);
  if (status == KEDGE_OK) status = examine(p, spec, place, fresh, whole);
  if (status == KEDGE_OK)
    *result = p;
  else
    kedge__partial_close(p);
  return status;
}

void kedge__partial_close(kedge__partial *p) {
  if (!p) return;
  if (p->fd >= 0) close(p->fd);
  kedge_free(p->path);
  kedge_free(p->name);
  kedge_free(p);
}

static kedge_status finish(kedge__partial *p) {
  char *folder = NULL, *base = NULL;
  kedge__step("sync rows");
  if (fdatasync(p->fd)) return fail_io(p, "sync");
  kedge__step("cut journal");
  if (ftruncate(p->fd, (off_t)p->bytes)) return fail_io(p, "cannot cut");
  if (fsync(p->fd)) return fail_io(p, "sync");
  kedge__step("rename file");
  if (rename(p->name, p->path)) return kedge_fail(KEDGE_ERR_IO, "%s: rename: %s", p->path, strerror(errno));
  KEDGE_TRY(kedge__path_split(p->path, &folder, &base));
  kedge__step("sync folder of file");
  kedge_status status = kedge__sync_path(folder);
  kedge_free(folder);
  kedge_free(base);
  return status;
}

kedge_status kedge__partial_finish(kedge__partial *p) {
  kedge_status status = finish(p);
  kedge__partial_close(p);
  return status;
}
