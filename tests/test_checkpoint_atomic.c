/* SPDX-License-Identifier: Apache-2.0
 * Files and directories that are whole or absent: writers killed at every step, full disks, leftovers, locks.
 * ctest: quick */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "models/checkpoint/atomic.h"
#include "tests/support/files.h"

static char parent[600], target[700];

static int fresh(void **state) {
  (void)state;
  snprintf(parent, sizeof parent, "%s/parent", test_folder());
  snprintf(target, sizeof target, "%s/model", parent);
  test_remove(parent);
  test_make_folder(parent);
  kedge__atomic_step = NULL;
  kedge__atomic_no_exchange = false;
  return 0;
}

/* The step at which the running process kills itself. */
static int steps_left = -1;
static void die_at_step(const char *step) {
  (void)step;
  if (steps_left-- == 0) raise(SIGKILL);
}

enum { FILES = 3 };

/* A directory of version `version`: files f0, f1, sub/f2 that hold the version's number many times. */
static kedge_status write_version(int version) {
  kedge_directory *directory;
  KEDGE_TRY(kedge_directory_begin(target, true, &directory));
  const char *path = kedge_directory_path(directory);
  kedge_status status = kedge_folder_make(test_path(path, "sub"));
  char text[5000];
  memset(text, '0' + version, sizeof text);
  static const char *const names[FILES] = {"f0", "f1", "sub/f2"};
  for (int i = 0; status == KEDGE_OK && i < FILES; i++)
    status = kedge_file_write(test_path(path, names[i]), text, sizeof text);
  if (status == KEDGE_OK) return kedge_directory_commit(directory);
  kedge_directory_discard(directory);
  return status;
}

/* The version of the directory at the target; -1 if it is absent, -2 if it is torn. */
static int version_of(void) {
  if (!test_exists(target)) return -1;
  int version = -2;
  static const char *const names[FILES] = {"f0", "f1", "sub/f2"};
  for (int i = 0; i < FILES; i++) {
    const char *path = test_path(target, names[i]);
    if (!test_exists(path)) return -2;
    size_t bytes;
    char *text = test_read(path, &bytes);
    bool whole = bytes == 5000;
    for (size_t j = 0; j < bytes; j++) whole = whole && text[j] == text[0];
    int found = whole ? text[0] - '0' : -2;
    free(text);
    if (found < 0 || (i && found != version)) return -2;
    version = found;
  }
  return test_entries(target) == 3 ? version : -2;
}

/* Runs the writer in a child that dies at step `step`; true if it died there, false if it got to the end. */
static bool killed_at(int step, kedge_status (*write_it)(int), int version) {
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child) {
    steps_left = step;
    kedge__atomic_step = die_at_step;
    _exit(write_it(version) == KEDGE_OK ? 0 : 3);
  }
  int ended;
  assert_int_equal(waitpid(child, &ended, 0), child);
  if (WIFSIGNALED(ended)) {
    assert_int_equal(WTERMSIG(ended), SIGKILL);
    return true;
  }
  assert_int_equal(WEXITSTATUS(ended), 0);
  return false;
}

/* Kills a writer at every step, with and without an older version, with and without an exchange of names. */
static void kills(bool older, bool exchange) {
  int step = 0, seen_old = 0, seen_new = 0;
  for (bool died = true; died; step++) {
    fresh(NULL);
    if (older) assert_int_equal(write_version(1), KEDGE_OK);
    kedge__atomic_no_exchange = !exchange;
    died = killed_at(step, write_version, 2);
    int version = version_of();
    if (!exchange && version == -1 && older) {
      /* Between two renames: the next look puts the old one back. */
      assert_int_equal(kedge_directory_recover(target), KEDGE_OK);
      version = version_of();
      assert_int_equal(version, 1);
    }
    if (version != 2 && version != (older ? 1 : -1)) fail_msg("step %d: version %d", step, version);
    seen_old += version != 2;
    seen_new += version == 2;
    assert_true(died || version == 2);
    /* The next writer cleans up and succeeds. */
    assert_int_equal(write_version(3), KEDGE_OK);
    assert_int_equal(version_of(), 3);
    assert_int_equal(test_entries(parent), 1);
  }
  assert_true(step > 10 && seen_old > 8 && seen_new >= 2);
}

static void killed_first_write(void **state) {
  (void)state;
  kills(false, true);
}

static void killed_replacement(void **state) {
  (void)state;
  kills(true, true);
}

static void killed_replacement_without_exchange(void **state) {
  (void)state;
  kills(true, false);
}

static kedge_status write_file(int version) {
  char text[5000];
  memset(text, '0' + version, sizeof text);
  return kedge_file_write(target, text, sizeof text);
}

static void killed_file(void **state) {
  (void)state;
  int step = 0;
  for (bool died = true; died; step++) {
    fresh(NULL);
    assert_int_equal(write_file(1), KEDGE_OK);
    died = killed_at(step, write_file, 2);
    size_t bytes;
    char *text = test_read(target, &bytes);
    assert_int_equal(bytes, 5000);
    for (size_t i = 0; i < bytes; i++) assert_int_equal(text[i], text[0]);
    assert_true(text[0] == '2' || (died && text[0] == '1'));
    free(text);
    assert_int_equal(write_file(3), KEDGE_OK);
    assert_int_equal(test_entries(parent), 1);
  }
  assert_true(step >= 3);
}

/* ---- Full disks
 * ------------------------------------------------------------------------------------------------------ */

/* No file may grow past `limit`: writes fail as they do on a full disk. */
static void full_disk_at(rlim_t limit) {
  fresh(NULL);
  assert_int_equal(write_version(1), KEDGE_OK);
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child) {
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit small = {limit, limit};
    if (setrlimit(RLIMIT_FSIZE, &small)) _exit(4);
    kedge_status status = write_version(2);
    _exit(status == KEDGE_ERR_IO && strstr(kedge_message(), "cannot write") ? 0 : 3);
  }
  int ended;
  assert_int_equal(waitpid(child, &ended, 0), child);
  assert_true(WIFEXITED(ended));
  assert_int_equal(WEXITSTATUS(ended), 0);
  assert_int_equal(version_of(), 1);
  assert_int_equal(test_entries(parent), 1); /* nothing is left behind */
}

static void full_disk(void **state) {
  (void)state;
  full_disk_at(0);
  full_disk_at(1);
  full_disk_at(4999);
}

static void free_space(void **state) {
  (void)state;
  assert_int_equal(kedge_disk_require(parent, 1), KEDGE_OK);
  assert_int_equal(kedge_disk_require(test_path(parent, "not/yet/there"), 1), KEDGE_OK);
  assert_int_equal(kedge_disk_require("nor-this", 1), KEDGE_OK);
  assert_int_equal(kedge_disk_require("/nor-this", 1), KEDGE_OK);
  assert_int_equal(kedge_disk_require(test_path(parent, "not"), UINT64_MAX), KEDGE_ERR_IO);
  assert_non_null(strstr(kedge_message(), "18446744073709551615 bytes are needed"));
  assert_non_null(strstr(kedge_message(), "are free"));
}

/* ---- Leftovers and locks
 * ------------------------------------------------------------------------------------------------ */

static void leftovers(void **state) {
  (void)state;
  /* Names like ours of a writer that is dead, though its process id may live: nobody holds the lock. */
  char name[40];
  snprintf(name, sizeof name, "model.partial-%ld", (long)getpid());
  test_make_folder(test_path(parent, name));
  test_write_text(test_path(test_path(parent, name), "f0"), "half");
  test_make_folder(test_path(parent, "model.partial-1"));
  static const char *const others[] = {"model.partial-", "model.partial-1x", "model2.partial-1",
                                       "model.partial", "model.old-x"};
  for (size_t i = 0; i < 5; i++) test_make_folder(test_path(parent, others[i]));
  assert_int_equal(write_version(1), KEDGE_OK);
  assert_int_equal(version_of(), 1);
  assert_int_equal(test_entries(parent), 6);
  for (size_t i = 0; i < 5; i++) assert_true(test_exists(test_path(parent, others[i])));
  /* An older version aside goes when there is a newer one in place. */
  test_make_folder(test_path(parent, "model.old-7"));
  assert_int_equal(kedge_directory_recover(target), KEDGE_OK);
  assert_false(test_exists(test_path(parent, "model.old-7")));
  assert_int_equal(version_of(), 1);
}

static void living_writers_are_left_alone(void **state) {
  (void)state;
  kedge_directory *directory, *second;
  assert_int_equal(kedge_directory_begin(target, false, &directory), KEDGE_OK);
  test_write_text(test_path(kedge_directory_path(directory), "f0"), "half");
  assert_int_equal(kedge_directory_begin(target, false, &second), KEDGE_ERR_IO);
  assert_null(second);
  assert_int_equal(kedge_directory_recover(target), KEDGE_OK);
  assert_true(test_exists(test_path(kedge_directory_path(directory), "f0")));
  pid_t child = fork();
  if (!child) _exit(write_version(2) == KEDGE_OK ? 0 : 3);
  int ended;
  assert_int_equal(waitpid(child, &ended, 0), child);
  assert_int_equal(WEXITSTATUS(ended), 0);
  assert_int_equal(version_of(), 2);
  assert_true(test_exists(test_path(kedge_directory_path(directory), "f0")));
  kedge_directory_discard(directory);
  assert_int_equal(test_entries(parent), 1);
}

static void destinations(void **state) {
  (void)state;
  kedge_directory *directory;
  test_write_text(target, "a file");
  assert_int_equal(kedge_directory_begin(target, true, &directory), KEDGE_ERR_ARGUMENT);
  test_remove(target);
  test_make_folder(target); /* an empty one is no obstacle */
  assert_int_equal(kedge_directory_begin(test_path(target, "//"), false, &directory), KEDGE_OK);
  assert_int_equal(kedge_directory_commit(directory), KEDGE_OK);
  assert_int_equal(write_version(1), KEDGE_OK);
  assert_int_equal(kedge_directory_begin(target, false, &directory), KEDGE_ERR_ARGUMENT);
  assert_non_null(strstr(kedge_message(), "not empty"));
  static const char *const nameless[] = {"", "/", ".", "..", "x/..", "x/./"};
  for (size_t i = 0; i < 6; i++)
    assert_int_equal(kedge_directory_begin(nameless[i], true, &directory), KEDGE_ERR_ARGUMENT);
  /* Missing parents are made. */
  assert_int_equal(kedge_directory_begin(test_path(parent, "a/b/c"), false, &directory), KEDGE_OK);
  assert_int_equal(kedge_directory_commit(directory), KEDGE_OK);
  assert_true(test_exists(test_path(parent, "a/b/c")));
  assert_int_equal(kedge_folder_make(test_path(target, "f0/x")), KEDGE_ERR_IO);
}

/* ---- Small files
 * -----------------------------------------------------------------------------------------------------------
 */

static void reading_and_copying(void **state) {
  (void)state;
  size_t bytes;
  char *text, *from = malloc(3000001);
  for (size_t i = 0; i < 3000001; i++) from[i] = (char)(i * 31 >> 4);
  test_write(target, from, 3000001);
  assert_int_equal(kedge_file_read(target, 3000001, &text, &bytes), KEDGE_OK);
  assert_int_equal(bytes, 3000001);
  assert_memory_equal(text, from, bytes);
  assert_int_equal(text[bytes], 0);
  kedge_free(text);
  assert_int_equal(kedge_file_read(target, 3000000, &text, &bytes), KEDGE_ERR_FORMAT);
  assert_null(text);
  assert_int_equal(kedge_file_read(parent, 100, &text, &bytes), KEDGE_ERR_IO);
  assert_int_equal(kedge_file_read(test_path(parent, "absent"), 100, &text, &bytes), KEDGE_ERR_IO);
  assert_int_equal(kedge_file_copy(target, test_path(parent, "copy")), KEDGE_OK);
  assert_true(test_same_file(target, test_path(parent, "copy")));
  assert_int_equal(kedge_file_copy(parent, test_path(parent, "copy")), KEDGE_ERR_IO);
  assert_int_equal(kedge_file_copy(target, test_path(parent, "no/copy")), KEDGE_ERR_IO);
  /* Pieces of every size around the buffer's give the same bytes. */
  kedge_outfile *out;
  assert_int_equal(kedge_outfile_open(test_path(parent, "pieces"), &out), KEDGE_OK);
  size_t at = 0;
  for (size_t piece = 1; at < 3000001; piece = piece * 7 % 1500007) {
    size_t part = piece < 3000001 - at ? piece : 3000001 - at;
    assert_int_equal(kedge_outfile_write(out, from + at, part), KEDGE_OK);
    at += part;
  }
  assert_false(test_exists(test_path(parent, "pieces")));
  assert_int_equal(kedge_outfile_commit(out), KEDGE_OK);
  assert_true(test_same_file(target, test_path(parent, "pieces")));
  free(from);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(killed_first_write, fresh),
      cmocka_unit_test_setup(killed_replacement, fresh),
      cmocka_unit_test_setup(killed_replacement_without_exchange, fresh),
      cmocka_unit_test_setup(killed_file, fresh),
      cmocka_unit_test_setup(full_disk, fresh),
      cmocka_unit_test_setup(free_space, fresh),
      cmocka_unit_test_setup(leftovers, fresh),
      cmocka_unit_test_setup(living_writers_are_left_alone, fresh),
      cmocka_unit_test_setup(destinations, fresh),
      cmocka_unit_test_setup(reading_and_copying, fresh),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
