/* SPDX-License-Identifier: Apache-2.0
 *
 * Files and directories that are either whole or absent: atomic.c has the files, directory.c the directories.
 *
 * A file is written beside its place as `<name>.tmp-<pid>` and renamed; a directory as
 * `<name>.partial-<pid>`. Whoever writes holds a lock (flock) on it, which ends with the process, so that the
 * next writer of the same name can tell what a dead one has left and removes it. */
#ifndef KEDGE_MODELS_CHECKPOINT_ATOMIC_H
#define KEDGE_MODELS_CHECKPOINT_ATOMIC_H

#include "core/kedge.h"

/* ---- Files
 * ------------------------------------------------------------------------------------------------------ */

/* Reads a whole file of at most `cap` bytes. `*text` is owned by the caller and has a NUL after its `*bytes`
 * bytes. ERR_IO; ERR_FORMAT when the file is larger than `cap`; ERR_MEMORY. */
kedge_status kedge_file_read(const char *path, size_t cap, char **text, size_t *bytes);

/* A buffered file that appears at `path` only when it is committed; an older file of that name stays until
 * then. ERR_IO where something else than a regular file is there (a device, a pipe, a folder). */
typedef struct kedge_outfile kedge_outfile;
kedge_status kedge_outfile_open(const char *path, kedge_outfile **output);
kedge_status kedge_outfile_write(kedge_outfile *output, const void *data, uint64_t bytes);
/* Flushes, syncs, renames, syncs the folder. Frees `output` whatever happens; on failure nothing appears at
 * `path`. */
kedge_status kedge_outfile_commit(kedge_outfile *output);
/* Removes what was written and frees `output`; NULL is allowed. */
void kedge_outfile_discard(kedge_outfile *output);

/* Both atomic: a file of these bytes; a copy of a regular file (its contents; links are followed). */
kedge_status kedge_file_write(const char *path, const void *data, uint64_t bytes);
kedge_status kedge_file_copy(const char *from, const char *to);

/* ERR_IO, with the needed and the free bytes, if the file system of `path` (which need not exist yet) has
 * fewer than `bytes` free for this user. */
kedge_status kedge_disk_require(const char *path, uint64_t bytes);

/* "<a>/<b>", owned by the caller; NULL without memory. */
char *kedge_path_join(const char *a, const char *b);

/* ---- Directories
 * ------------------------------------------------------------------------------------------------- */

/* A directory that appears at its destination only when it is committed. */
typedef struct kedge_directory kedge_directory;

/* Creates a folder and its missing parents; one that exists is fine. */
kedge_status kedge_folder_make(const char *path);

/* Creates `<destination>.partial-<pid>`, and missing parents. Before that, leftovers of dead writers of the
 * same destination are removed, and a destination that a crash left aside is put back. `replace`: an existing
 * destination with something in it is allowed and will be replaced whole; without it that is ERR_ARGUMENT. */
kedge_status kedge_directory_begin(const char *destination, bool replace, kedge_directory **directory);
/* Where to create the files (flat or in sub-folders). */
const char *kedge_directory_path(const kedge_directory *directory);
/* Syncs every file and folder, then exchanges the new directory with the destination, then removes the old
 * one. At every moment either the old or the new one is whole. Frees `directory` whatever happens; on failure
 * before the exchange the destination is untouched. */
kedge_status kedge_directory_commit(kedge_directory *directory);
/* Removes what was written and frees `directory`; NULL is allowed. */
void kedge_directory_discard(kedge_directory *directory);

/* Puts back a destination that was aside when its writer died, and removes leftovers. A reader of run
 * directories calls this before it looks at `destination`; begin does so itself. */
kedge_status kedge_directory_recover(const char *destination);

/* ---- For tests
 * ----------------------------------------------------------------------------------------------------- */

/* Called with a step's name before each step of a commit; NULL in use. */
extern void (*kedge__atomic_step)(const char *step);
/* Pretends that the file system cannot exchange two names. */
extern bool kedge__atomic_no_exchange;

/* ---- Between atomic.c and directory.c
 * -------------------------------------------------------------------------------- */

/* Splits into folder ("." if there is none) and last component; trailing slashes are dropped. Both owned by
 * the caller. ERR_ARGUMENT for a path without a last component. */
kedge_status kedge__path_split(const char *path, char **folder, char **base);
/* Calls `visit(context, name, pid)` for each entry of `folder` named `<base><infix><pid>` whose writer is
 * dead. */
typedef kedge_status (*kedge__stale_visit)(void *context, const char *name);
kedge_status kedge__stale_each(const char *folder, const char *base, const char *infix,
                               kedge__stale_visit visit, void *context);
/* Takes the writer's lock on an open file or folder; ERR_ARGUMENT if another writer has it. */
kedge_status kedge__writer_lock(int fd, const char *path);
kedge_status kedge__sync_path(const char *path); /* fsync of a file or folder by name */
void kedge__step(const char *step);

#endif
