/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests: run a program and keep what it printed; scratch folders; whole files. */
#ifndef KEDGE_TESTS_SUPPORT_RUN_H
#define KEDGE_TESTS_SUPPORT_RUN_H

#include <stddef.h>

typedef struct test_run {
  int exit_code; /* -1: killed by a signal or not started */
  char *out, *err;
} test_run;

/* Runs `command` through the shell with standard input empty. Freed by test_run_free. */
test_run test_run_shell(const char *command);
void test_run_free(test_run *run);

/* A new empty folder below the system's temporary one, and its removal with all that is in it. */
char *test_folder_new(void);
void test_folder_free(char *folder);

/* The bytes of a file with a closing 0, NULL if there is none; malloc'ed. */
char *test_file_read(const char *path, size_t *size);
/* Writes a file; aborts the test program on failure. */
void test_file_write(const char *path, const char *text, size_t size);

#endif
