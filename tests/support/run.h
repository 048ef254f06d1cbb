/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests: run a program and keep what it printed. Files and folders are in files.h. */
#ifndef KEDGE_TESTS_SUPPORT_RUN_H
#define KEDGE_TESTS_SUPPORT_RUN_H

typedef struct test_run {
  int exit_code; /* -1: killed by a signal or not started */
  char *out, *err;
} test_run;

/* Runs `command` through the shell with standard input empty. Freed by test_run_free. */
test_run test_run_shell(const char *command);
void test_run_free(test_run *run);

#endif
