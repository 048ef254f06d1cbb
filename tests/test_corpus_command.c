/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * The command `corpus`: the generator itself is tested with the data. */
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static const char *at(const char *name) {
  return test_path(test_folder(), name);
}

static size_t lines(const char *text) {
  size_t count = 0;
  for (; *text; text++) count += *text == '\n';
  return count;
}

static void test_files(void **state) {
  (void)state;
  test_run list = test_kedge("corpus --list", 0, "");
  assert_int_equal(lines(list.out), 5);
  test_run_free(&list);
  test_kedge_expect("corpus --domain facts --count 5 --seed 3 --out a", 0, "");
  test_kedge_expect("corpus --domain facts --count 9 --seed 3 --out b", 0, "");
  test_kedge_expect("corpus --domain facts --count 5 --seed 4 --out c", 0, "");
  test_run out = test_kedge("corpus --domain facts --count 5 --seed 3 --out -", 0, "");
  size_t bytes;
  char *a = test_read(at("a"), &bytes), *b = test_read(at("b"), &bytes);
  assert_int_equal(lines(a), 5);
  assert_int_equal(lines(b), 9);
  assert_memory_equal(a, b, strlen(a));
  assert_string_equal(a, out.out);
  assert_false(test_same_file(at("a"), at("c")));
  free(a), free(b);
  test_run_free(&out);
  /* The mixture says what is in it; the help has a row of each domain and split. */
  test_run mixed = test_kedge("corpus --mixture --count 500 --out m", 0, "");
  assert_int_equal(lines(mixed.out), 11);
  assert_non_null(strstr(mixed.out, "  logic       train       99\n"));
  char *m = test_read(at("m"), &bytes);
  assert_int_equal(lines(m), 500);
  free(m);
  test_run_free(&mixed);
  test_run help = test_kedge("corpus --help", 0, "");
  int rows = 0;
  for (const char *row = help.out; (row = strstr(row, "{\"prompt\"")); row++) rows++;
  assert_int_equal(rows, 20);
  test_run_free(&help);
}

static void test_refusals(void **state) {
  (void)state;
  test_kedge_expect("corpus --domain fact --out x", 2, "domain \"fact\": expected arithmetic");
  test_kedge_expect("corpus --domain facts", 2, "--out is needed");
  test_kedge_expect("corpus --out x", 2, "--domain or --mixture is needed");
  test_kedge_expect("corpus --domain facts --split dev --out x", 2, "shift-train or shift-test");
  test_kedge_expect("corpus --mixture --domain facts --out x", 2, "--mixture is of all domains");
  test_kedge_expect("corpus --domain facts --count 0 --out x", 2, "--count");
  test_kedge_expect("corpus --domain facts --out nowhere/x", 2, "nowhere");
  assert_false(test_exists(at("x")));
  /* A file never takes the place of what is none. */
  struct stat info;
  assert_int_equal(mkfifo(at("pipe"), 0600), 0);
  test_kedge_expect("corpus --domain facts --out pipe", 2,
                    "pipe: is there already and is not a regular file");
  assert_int_equal(stat(at("pipe"), &info), 0);
  assert_true(S_ISFIFO(info.st_mode));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_files), cmocka_unit_test(test_refusals)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
