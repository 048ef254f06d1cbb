/* SPDX-License-Identifier: Apache-2.0
 * Replacing a small file at once (replace.h). */
#include "models/training/replace.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

kedge_status kedge__replace_begin(kedge_replace *replace, const char *path) {
  *replace = (kedge_replace){.path = kedge_strdup(path), .temporary = kedge_format("%s.tmp", path)};
  kedge_status status = replace->path && replace->temporary ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) {
    replace->file = fopen(replace->temporary, "wb");
    if (!replace->file) status = kedge_fail(KEDGE_ERR_IO, "%s: %s", replace->temporary, strerror(errno));
  }
  if (status != KEDGE_OK) {
    kedge_free(replace->path);
    kedge_free(replace->temporary);
  }
  return status;
}

/* The rename itself reaches the disk with its folder. A file system that cannot sync a folder is no failure.
 */
static void sync_folder(char *path) {
  char *slash = strrchr(path, '/');
  if (slash) *slash = 0;
  int folder = open(slash ? *path ? path : "/" : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    fsync(folder);
    close(folder);
  }
}

kedge_status kedge__replace_end(kedge_replace *replace, kedge_status written) {
  kedge_status status = written;
  bool whole = !fflush(replace->file) && !ferror(replace->file) && !fsync(fileno(replace->file));
  if (status == KEDGE_OK && !whole)
    status = kedge_fail(KEDGE_ERR_IO, "%s: %s", replace->temporary, strerror(errno));
  if (fclose(replace->file) && status == KEDGE_OK)
    status = kedge_fail(KEDGE_ERR_IO, "%s: %s", replace->temporary, strerror(errno));
  if (status == KEDGE_OK && rename(replace->temporary, replace->path))
    status = kedge_fail(KEDGE_ERR_IO, "%s: %s", replace->path, strerror(errno));
  if (status == KEDGE_OK)
    sync_folder(replace->path);
  else
    unlink(replace->temporary);
  kedge_free(replace->path);
  kedge_free(replace->temporary);
  return status;
}
