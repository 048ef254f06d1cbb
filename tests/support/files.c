/* SPDX-License-Identifier: Apache-2.0
 * Files for tests (files.h). */
#include "tests/support/files.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char root[512];
static pid_t owner;

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *at) {
  (void)info, (void)type, (void)at;
  return remove(path);
}

void test_remove(const char *path) {
  nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* A forked child that exits must not take the folder away. */
static void remove_root(void) {
  if (owner == getpid()) test_remove(root);
}

const char *test_folder(void) {
  if (root[0]) return root;
  const char *base = getenv("TMPDIR");
  /* Memory is faster than a disk that is synced a thousand times. */
  if (!base || !*base) base = access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm";
  snprintf(root, sizeof root, "%s/kedge-test-XXXXXX", base);
  if (!mkdtemp(root)) fail_msg("%s: %s", root, strerror(errno));
  owner = getpid();
  atexit(remove_root);
  return root;
}

const char *test_path(const char *a, const char *b) {
  static char ring[16][1024];
  static unsigned next;
  char *path = ring[next++ % 16];
  snprintf(path, sizeof ring[0], "%s/%s", a, b);
  return path;
}

static const char *source(void) {
  const char *folder = getenv("KEDGE_SOURCE");
  return folder && *folder ? folder : ".";
}

const char *test_golden(const char *relative) {
  return test_path(test_path(source(), "tests/golden"), relative);
}

const char *test_shared(const char *relative) {
  static unsigned absent;
  const char *folder = getenv("KEDGE_SHARED");
  const char *path = test_path(folder && *folder ? folder : test_path(source(), "../shared"), relative);
  if (test_exists(path)) return path;
  printf("skipped (%u): %s is not here; KEDGE_SHARED names the folder\n", ++absent, relative);
  return NULL;
}

void test_write(const char *path, const void *data, size_t bytes) {
  FILE *file = fopen(path, "wb");
  if (!file) fail_msg("%s: %s", path, strerror(errno));
  if (bytes && fwrite(data, bytes, 1, file) != 1) fail_msg("%s: %s", path, strerror(errno));
  if (fclose(file)) fail_msg("%s: %s", path, strerror(errno));
}

void test_write_text(const char *path, const char *text) {
  test_write(path, text, strlen(text));
}

char *test_read(const char *path, size_t *bytes) {
  FILE *file = fopen(path, "rb");
  if (!file) fail_msg("%s: %s", path, strerror(errno));
  fseek(file, 0, SEEK_END);
  long size = ftell(file);
  rewind(file);
  char *data = malloc((size_t)size + 1);
  if (!data || (size && fread(data, (size_t)size, 1, file) != 1)) fail_msg("%s: cannot read", path);
  fclose(file);
  data[size] = 0;
  *bytes = (size_t)size;
  return data;
}

bool test_same_file(const char *a, const char *b) {
  size_t a_bytes, b_bytes;
  char *a_data = test_read(a, &a_bytes), *b_data = test_read(b, &b_bytes);
  bool same = a_bytes == b_bytes && !memcmp(a_data, b_data, a_bytes);
  free(a_data);
  free(b_data);
  return same;
}

bool test_exists(const char *path) {
  struct stat info;
  return !lstat(path, &info);
}

void test_make_folder(const char *path) {
  if (mkdir(path, 0777) && errno != EEXIST) fail_msg("%s: %s", path, strerror(errno));
}

unsigned test_entries(const char *path) {
  DIR *dir = opendir(path);
  if (!dir) fail_msg("%s: %s", path, strerror(errno));
  unsigned count = 0;
  for (struct dirent *item; (item = readdir(dir));)
    count += item->d_name[0] != '.' || strlen(item->d_name) > 2;
  closedir(dir);
  return count;
}
