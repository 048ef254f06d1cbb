/* SPDX-License-Identifier: Apache-2.0
 * Programs, folders and files for tests (run.h). */
#include "tests/support/run.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

char *test_file_read(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  if (!file) return NULL;
  size_t used = 0, capacity = 4096;
  char *text = malloc(capacity);
  for (;;) {
    if (!text) abort();
    used += fread(text + used, 1, capacity - used - 1, file);
    if (used + 1 < capacity) break;
    capacity *= 2;
    char *grown = realloc(text, capacity);
    if (!grown) abort();
    text = grown;
  }
  fclose(file);
  text[used] = 0;
  if (size) *size = used;
  return text;
}

void test_file_write(const char *path, const char *text, size_t size) {
  FILE *file = fopen(path, "wb");
  if (!file || fwrite(text, 1, size, file) != size || fclose(file)) abort();
}

char *test_folder_new(void) {
  char *folder = strdup("/tmp/kedge-test-XXXXXX");
  if (!folder || !mkdtemp(folder)) abort();
  return folder;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk) {
  (void)info, (void)kind, (void)walk;
  return remove(path);
}

void test_folder_free(char *folder) {
  nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
  free(folder);
}

test_run test_run_shell(const char *command) {
  char *folder = test_folder_new(), line[8192], out[64], err[64];
  snprintf(out, sizeof out, "%s/out", folder);
  snprintf(err, sizeof err, "%s/err", folder);
  snprintf(line, sizeof line, "(%s) >%s 2>%s </dev/null", command, out, err);
  int status = system(line); /* the tests' own commands */
  test_run run = {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1};
  run.out = test_file_read(out, NULL);
  run.err = test_file_read(err, NULL);
  test_folder_free(folder);
  return run;
}

void test_run_free(test_run *run) {
  free(run->out);
  free(run->err);
}
