/* SPDX-License-Identifier: Apache-2.0
 * Programs for tests (run.h). */
#include "tests/support/run.h"
#include "tests/support/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

test_run test_run_shell(const char *command) {
  const char *out = test_path(test_folder(), "stdout"), *err = test_path(test_folder(), "stderr");
  char line[8192];
  snprintf(line, sizeof line, "(%s) >'%s' 2>'%s' </dev/null", command, out, err);
  int status = system(line); /* the tests' own commands */
  test_run run = {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1};
  size_t bytes;
  run.out = test_read(out, &bytes);
  run.err = test_read(err, &bytes);
  return run;
}

void test_run_free(test_run *run) {
  free(run->out);
  free(run->err);
}
