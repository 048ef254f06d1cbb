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
  assert_int_equal(lines(list.out), 4);
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
}

static void test_refusals(void **state) {
  (void)state;
  test_kedge_expect("corpus --domain fact --out x", 2, "there is no \"fact\"");
  test_kedge_expect("corpus --domain facts", 2, "--out is needed");
  test_kedge_expect("corpus --out x", 2, "--domain is needed");
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
