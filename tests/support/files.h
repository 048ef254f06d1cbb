/* SPDX-License-Identifier: Apache-2.0
 *
 * Files for tests: a fresh folder, small files in it, goldens, and data that may be absent. A failure inside
 * fails the running cmocka test. */
#ifndef KEDGE_TESTS_FILES_H
#define KEDGE_TESTS_FILES_H

#include <stdbool.h>
#include <stddef.h>

/* A fresh folder under TMPDIR, /dev/shm or /tmp, removed with its contents when the program ends. Static
 * string. */
const char *test_folder(void);
/* A path in a static ring of buffers, valid for the next 16 calls: "<a>/<b>". */
const char *test_path(const char *a, const char *b);
/* A file or folder under tests/golden. */
const char *test_golden(const char *relative);
/* A file of the shared data folder; NULL, with a printed line, where it is absent: then skip(). */
const char *test_shared(const char *relative);

void test_write(const char *path, const void *data, size_t bytes);
void test_write_text(const char *path, const char *text);
/* Whole contents, to be freed by free(); a NUL follows. */
char *test_read(const char *path, size_t *bytes);
bool test_same_file(const char *a, const char *b);
bool test_exists(const char *path);
void test_make_folder(const char *path);
void test_remove(const char *path); /* a file, or a folder with its contents; absent is fine */
/* How many entries a folder has. */
unsigned test_entries(const char *path);

#endif
