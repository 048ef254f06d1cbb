/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of sub-commands: run `kedge` in the test folder and look at what it printed. A failure inside
 * fails the running cmocka test. */
#ifndef KEDGE_TESTS_SUPPORT_PROGRAM_H
#define KEDGE_TESTS_SUPPORT_PROGRAM_H

#include <jansson.h>

#include "tests/support/run.h"

/* Runs `kedge <arguments>` (a shell's words; the working folder is test_folder()) and checks the exit status;
 * a mistake (2) must be told in one line, which holds `err`. Freed by test_run_free. */
test_run test_kedge(const char *arguments, int code, const char *err);
/* The same, looking at nothing else. */
void test_kedge_expect(const char *arguments, int code, const char *err);
/* The JSON that `kedge <arguments>` prints; to be released by json_decref. */
json_t *test_kedge_json(const char *arguments);
/* The number at a path of keys ("bytes.total"). */
json_int_t test_json_int(const json_t *root, const char *path);

#endif
