/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * The command `lab` on its smallest study: what a dry run lists; that a study which was killed again and
 * again, or ran with more processes, comes to the same results to the byte, but for times; that what was
 * changed is made again; and what it refuses. */
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CELLS = 7, STAGES = 12 };

static const char *at(const char *name) {
  return test_path(test_folder(), name);
}

/* ---- Comparing
 * --------------------------------------------------------------------------------------------------- */

/* Takes every time out of an object. */
static void without_times(json_t *o) {
  const char *key;
  json_t *value;
  void *next;
  json_object_del(o, "seconds_cpu");
  json_object_foreach_safe(o, next, key, value) if (json_is_object(value)) without_times(value);
}

static json_t *read_cell(const char *folder, const char *name) {
  size_t bytes;
  char *text = test_read(test_path(test_path(at(folder), "cells"), name), &bytes);
  json_t *o = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
  free(text);
  assert_true(json_is_object(o));
  return o;
}

static void same_cells(const char *a, const char *b) {
  DIR *folder = opendir(test_path(at(a), "cells"));
  unsigned count = 0;
  assert_non_null(folder);
  for (struct dirent *e; (e = readdir(folder));) {
    if (e->d_name[0] == '.') continue;
    json_t *x = read_cell(a, e->d_name), *y = read_cell(b, e->d_name);
    without_times(x);
    without_times(y);
    char *p = json_dumps(x, JSON_REAL_PRECISION(17)), *q = json_dumps(y, JSON_REAL_PRECISION(17));
    if (strcmp(p, q)) fail_msg("%s differs:\n%s\n%s", e->d_name, p, q);
    free(p), free(q);
    json_decref(x), json_decref(y);
    count++;
  }
  closedir(folder);
  assert_int_equal(count, CELLS);
  assert_int_equal(test_entries(test_path(at(b), "cells")), CELLS);
}

/* ---- Tests
 * ------------------------------------------------------------------------------------------------------- */

static void a_dry_run_lists_stages_and_writes_nothing(void **state) {
  (void)state;
  test_run run = test_kedge("lab --preset micro --out dry --dry-run", 0, "");
  assert_non_null(strstr(run.out, "base-E8K2-b0: to do\n"));
  assert_non_null(strstr(run.out, "\n  kedge train model=bases/base-E8K2-b0/random "));
  assert_non_null(strstr(run.out, "router.shuffle=within"));
  assert_non_null(strstr(run.out, "12 stages"));
  assert_false(test_exists(at("dry")));
  test_run_free(&run);
  run = test_kedge("lab --preset standard --dry-run", 0, "");
  unsigned cells = 0;
  for (const char *p = run.out; (p = strstr(p, "-short-")); p = strchr(p, '\n'))
    cells += strchr(p, ':') != NULL;
  assert_true(cells >= 408);
  assert_non_null(strstr(run.out, "E16K2-b3-stringS-short-freeze-s2: to do\n"));
  test_run_free(&run);
}

static void a_study_has_all_its_cells(void **state) {
  (void)state;
  test_kedge_expect("lab --preset micro --out whole --jobs 1", 0, "");
  assert_int_equal(test_entries(test_path(at("whole"), "cells")), CELLS);
  assert_int_equal(test_entries(test_path(at("whole"), "work")), 0);
  assert_false(test_exists(test_path(at("whole"), "models")));
  json_t *cell = read_cell("whole", "E8K2-b0-arithS-tiny-rpb_1-s1.json"),
         *base = read_cell("whole", "E8K2-b0.json");
  static const char *const parts[] = {"settings", "hashes",      "train",       "accuracy",  "nll",
                                      "routing",  "communities", "utilisation", "selection", "with_bias"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    if (!json_object_size(json_object_get(cell, parts[i]))) fail_msg("the cell has no %s", parts[i]);
  assert_int_equal(json_object_size(json_object_get(cell, "accuracy")), 10);
  assert_int_equal(test_json_int(cell, "accuracy.arithS.items"), 12);
  assert_int_equal(json_array_size(json_object_get(
                       json_object_get(json_object_get(cell, "selection"), "arithS"), "nll_rank")),
                   2);
  assert_string_equal(json_string_value(json_object_get(base, "condition")), "base");
  assert_true(json_is_null(json_object_get(base, "seed")));
  assert_non_null(json_object_get(base, "audit"));
  json_decref(cell);
  json_decref(base);
}

/* Once more: nothing is made again. */
static void what_is_finished_is_left_alone(void **state) {
  (void)state;
  test_run run = test_kedge("lab --preset micro --out whole", 0, "");
  assert_non_null(strstr(run.err, "12 finished before"));
  assert_null(strstr(run.err, "finished in"));
  test_run_free(&run);
}

static void a_killed_study_comes_to_the_same(void **state) {
  (void)state;
  char command[1024];
  const char *program = getenv("KEDGE_BIN");
  unsigned before = 0;
  for (unsigned i = 0; i < 10; i++) {
    snprintf(command, sizeof command,
             "cd '%s'; '%s' lab --preset micro --out killed --jobs 2 2>said & p=$!; sleep %u.%u; kill -9 $p; "
             "wait $p; "
             "cat said",
             test_folder(), program ? program : "kedge", (300 + 137 * i) / 1000, (300 + 137 * i) % 1000);
    test_run run = test_run_shell(command);
    const char *found = strstr(run.out, "at a time; ");
    if (found) {
      const unsigned now = (unsigned)atoi(found + 11);
      assert_true(now >= before);
      before = now;
    }
    test_run_free(&run);
  }
  test_kedge_expect("lab --preset micro --out killed --jobs 2", 0, "");
  same_cells("whole", "killed");
}

static void a_stopped_study_goes_on(void **state) {
  (void)state;
  char command[1024];
  const char *program = getenv("KEDGE_BIN");
  snprintf(
      command, sizeof command,
      "cd '%s'; '%s' lab --preset micro --out stopped --jobs 3 2>said & p=$!; sleep 1; kill -TERM $p; wait "
      "$p; echo $?",
      test_folder(), program ? program : "kedge");
  test_run run = test_run_shell(command);
  assert_int_equal(atoi(run.out), 130);
  test_run_free(&run);
  test_kedge_expect("lab --preset micro --out stopped --jobs 3", 0, "");
  same_cells("whole", "stopped");
}

/* A cell, its record or the weights of a base that were changed are made again, to the same bytes. */
static void what_was_changed_is_made_again(void **state) {
  (void)state;
  test_write_text(test_path(at("killed"), "cells/E8K2-b0-arithS-tiny-sft-s0.json"),
                  "{\"kedge_lab_cell\": 1}");
  test_write_text(test_path(at("killed"), "done/E8K2-b0-arithS-tiny-rpb_1-s0.json"), "[[[");
  test_run run = test_kedge("lab --preset micro --out killed", 0, "");
  assert_non_null(strstr(run.err, "10 finished before"));
  test_run_free(&run);
  same_cells("whole", "killed");
  test_write_text(test_path(at("killed"), "bases/base-E8K2-b0/model/model.safetensors"), "nothing");
  run = test_kedge("lab --preset micro --out killed", 0, "");
  assert_non_null(strstr(run.err, "base-E8K2-b0: finished in"));
  assert_null(strstr(run.err, "sft-s0: finished in")); /* the base came out as it was */
  test_run_free(&run);
  same_cells("whole", "killed");
}

/* Killed while its base trains, a study goes on from the last checkpoint. */
static void a_base_goes_on_from_its_checkpoint(void **state) {
  (void)state;
  char command[1024];
  const char *program = getenv("KEDGE_BIN");
  snprintf(command, sizeof command,
           "cd '%s'; '%s' lab --preset micro --out base --jobs 1 2>said & p=$!; i=0; "
           "until ls -d base/bases/base-E8K2-b0/model/checkpoint-[1-4][05] >none 2>&1 || [ $i = 2000 ]; do "
           "sleep 0.005; "
           "i=$((i + 1)); done; kill -9 $p; wait $p",
           test_folder(), program ? program : "kedge");
  test_run run = test_run_shell(command);
  test_run_free(&run);
  run = test_kedge("lab --preset micro --out base", 0, "");
  assert_non_null(strstr(run.err, "base-E8K2-b0: goes on from its checkpoint"));
  test_run_free(&run);
  same_cells("whole", "base");
}

/* A stage that fails is told, and what needs it is left out; the next call tries again. */
static void a_failed_stage_is_tried_again(void **state) {
  (void)state;
  test_kedge_expect("lab --preset micro --out failed", 0, "");
  test_remove(test_path(at("failed"), "priors"));
  test_write_text(test_path(at("failed"), "priors"), "in the way");
  test_kedge_expect("lab --preset micro --out failed", 2, "priors");
  test_remove(test_path(at("failed"), "priors"));
  test_make_folder(test_path(at("failed"), "priors"));
  test_make_folder(test_path(at("failed"), "priors/prior-E8K2-b0-arithS-s0.safetensors"));
  test_run run = test_kedge("lab --preset micro --out failed", 1, "3 stages are not finished");
  assert_non_null(strstr(run.err, "prior-E8K2-b0-arithS-s0: failed: "));
  test_run_free(&run);
  test_remove(test_path(at("failed"), "priors/prior-E8K2-b0-arithS-s0.safetensors"));
  test_kedge_expect("lab --preset micro --out failed --keep-models", 0, "");
  same_cells("whole", "failed");
}

/* Results that could not be made again do not stand for what they no longer are. */
static void results_of_another_age_are_dropped(void **state) {
  (void)state;
  const char *log = test_path(at("whole"), "logs/E8K2-b0-arithS-tiny-sft-s0.log");
  test_remove(test_path(at("whole"), "done/E8K2-b0-arithS-tiny-sft-s0.json"));
  test_remove(log);
  test_make_folder(log);
  test_kedge_expect("lab --preset micro --out whole", 1, "");
  assert_false(test_exists(test_path(at("whole"), "cells/E8K2-b0-arithS-tiny-sft-s0.json")));
  assert_int_equal(test_entries(test_path(at("whole"), "cells")), CELLS - 1);
}

/* Puts `value` for the text `key` in lab.json of the folder "begun"; NULL takes it out. */
static void say_begun(const char *key, const char *value) {
  size_t bytes;
  char *text = test_read(test_path(at("begun"), "lab.json"), &bytes);
  json_t *o = json_loadb(text, bytes, 0, NULL);
  assert_true(json_is_string(json_object_get(o, key)));
  if (value) json_object_set_new(o, key, json_string(value));
  if (!value) json_object_del(o, key);
  free(text);
  text = json_dumps(o, 0);
  test_write_text(test_path(at("begun"), "lab.json"), text);
  free(text);
  json_decref(o);
}

/* Numbers of other instructions, or of another build, are not mixed into a study. */
static void numbers_of_two_kinds_are_not_mixed(void **state) {
  (void)state;
  size_t bytes;
  char *text = test_read(test_path(at("whole"), "lab.json"), &bytes);
  test_make_folder(at("begun"));
  test_write_text(test_path(at("begun"), "lab.json"), text);
  say_begun("isa", "cpu (abacus, 1 thread)");
  test_kedge_expect("lab --preset micro --out begun", 2, "set KEDGE_ISA or choose another --out");
  test_write_text(test_path(at("begun"), "lab.json"), text);
  say_begun("program", "0123456789abcdef0123456789abcdef");
  test_kedge_expect("lab --preset micro --out begun", 2, "another build of kedge");
  free(text);
  assert_int_equal(test_entries(at("begun")), 1);
}

static void refuses(void **state) {
  (void)state;
  test_kedge_expect("lab --preset huge", 2, "quick, standard or full");
  test_kedge_expect("lab --preset quick --out whole", 2, "holds another study (preset micro");
  test_make_folder(at("mine"));
  test_write_text(test_path(at("mine"), "thesis.txt"), "x");
  test_kedge_expect("lab --preset micro --out mine", 2, "no study wrote");
  test_make_folder(at("odd"));
  test_write_text(test_path(at("odd"), "lab.json"), "{\"kedge_lab\": ");
  test_kedge_expect("lab --preset micro --out odd", 2, "lab.json");
  test_write_text(test_path(at("odd"), "lab.json"), "[]");
  test_kedge_expect("lab --preset micro --out odd", 2, "lab.json");
  test_write_text(at("file"), "x");
  test_kedge_expect("lab --preset micro --out file", 2, "file");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_dry_run_lists_stages_and_writes_nothing),
                                     cmocka_unit_test(a_study_has_all_its_cells),
                                     cmocka_unit_test(what_is_finished_is_left_alone),
                                     cmocka_unit_test(a_killed_study_comes_to_the_same),
                                     cmocka_unit_test(a_stopped_study_goes_on),
                                     cmocka_unit_test(what_was_changed_is_made_again),
                                     cmocka_unit_test(a_base_goes_on_from_its_checkpoint),
                                     cmocka_unit_test(a_failed_stage_is_tried_again),
                                     cmocka_unit_test(refuses),
                                     cmocka_unit_test(results_of_another_age_are_dropped),
                                     cmocka_unit_test(numbers_of_two_kinds_are_not_mixed)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
