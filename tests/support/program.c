/* SPDX-License-Identifier: Apache-2.0
 * The program under test (program.h). */
#include "tests/support/program.h"
#include "tests/support/files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

test_run test_kedge(const char *arguments, int code, const char *err) {
  char command[4096];
  const char *program = getenv("KEDGE_BIN");
  int length = snprintf(command, sizeof command, "cd '%s' && '%s' %s", test_folder(),
                        program ? program : "kedge", arguments);
  assert_true(length > 0 && (size_t)length < sizeof command);
  test_run run = test_run_shell(command);
  if (run.exit_code != code || !strstr(run.err, err))
    fail_msg("kedge %s: exit %d, want %d; said \"%s\", want \"%s\"", arguments, run.exit_code, code, run.err,
             err);
  if (code == 2 && strchr(run.err, '\n') != run.err + strlen(run.err) - 1)
    fail_msg("kedge %s: said more than a line: \"%s\"", arguments, run.err);
  return run;
}

void test_kedge_expect(const char *arguments, int code, const char *err) {
  test_run run = test_kedge(arguments, code, err);
  test_run_free(&run);
}

json_t *test_kedge_json(const char *arguments) {
  test_run run = test_kedge(arguments, 0, "");
  json_error_t error;
  json_t *root = json_loads(run.out, JSON_REJECT_DUPLICATES, &error);
  if (!root) fail_msg("kedge %s: line %d: %s: \"%s\"", arguments, error.line, error.text, run.out);
  test_run_free(&run);
  return root;
}

json_int_t test_json_int(const json_t *root, const char *path) {
  const json_t *at = root;
  for (const char *key = path; at; key += strcspn(key, ".") + 1) {
    size_t length = strcspn(key, ".");
    at = json_object_getn(at, key, length);
    if (!key[length]) break;
  }
  if (!json_is_integer(at)) fail_msg("no integer at %s", path);
  return json_integer_value(at);
}
