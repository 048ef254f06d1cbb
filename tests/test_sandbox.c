/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Model-written Python: what the sandbox lets through and what it refuses. Where no sandbox is possible the
 * tests are skipped and counted. */
#include "models/evaluation/verdict.h"
#include "tests/support/files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static kedge_sandbox sandbox;
static bool possible;
static unsigned skipped;

static void check(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static void need(void) {
  if (possible) return;
  printf("skipped: %u, %s\n", ++skipped, kedge_message());
  skip();
}

static kedge_sandbox_end run(const char *program) {
  kedge_sandbox_end end;
  check(kedge_sandbox_run(&sandbox, program, &end));
  return end;
}

static void test_passes(void **state) {
  (void)state;
  need();
  assert_int_equal(run("assert sum(range(10)) == 45"), KEDGE_SANDBOX_PASSED);
  assert_int_equal(
      run("import math, re, collections, itertools, json, random, heapq, typing, string, datetime\n"
          "assert math.gcd(12, 18) == 6"),
      KEDGE_SANDBOX_PASSED);
  assert_int_equal(run("import sys\nsys.stdout.write('x' * 300000)\nprint('y', file=sys.stderr)"),
                   KEDGE_SANDBOX_PASSED);
  assert_int_equal(run("text = 'caf\xc3\xa9'\nassert len(text) == 4"), KEDGE_SANDBOX_PASSED);
  assert_int_equal(run(""), KEDGE_SANDBOX_PASSED);
  /* It is read by the interpreter as it is: quotes and all. */
  assert_int_equal(run("a = '''x'\"'''\nif True:\n  pass"), KEDGE_SANDBOX_PASSED);
}

static void test_failures(void **state) {
  (void)state;
  need();
  assert_int_equal(run("assert 1 == 2"), KEDGE_SANDBOX_FAILED);
  assert_int_equal(run("def f(:"), KEDGE_SANDBOX_FAILED);
  /* An end before the last line is none, whatever it says. */
  assert_int_equal(run("raise SystemExit(0)"), KEDGE_SANDBOX_FAILED);
  assert_int_equal(run("import os\nos._exit(0)"), KEDGE_SANDBOX_FAILED);
  assert_int_equal(run("import os\nos.close(1)"), KEDGE_SANDBOX_FAILED);
  assert_int_equal(run("import os, signal\nos.abort()"), KEDGE_SANDBOX_FAILED);
  assert_int_equal(run("x = bytearray(4 << 30)"), KEDGE_SANDBOX_FAILED); /* memory */
  assert_int_equal(run("x = []\nwhile True: x.append(' ' * 10000000)"), KEDGE_SANDBOX_FAILED);
}

/* Programs that pass only where a call was refused. */
static void refused(const char *setup, const char *call) {
  char program[2048];
  snprintf(program, sizeof program,
           "%s\ntry:\n  %s\nexcept PermissionError:\n  pass\nelse:\n  raise SystemExit(1)\n", setup, call);
  if (run(program) != KEDGE_SANDBOX_PASSED) fail_msg("not refused: %s; %s", setup, call);
}

static void test_refusals(void **state) {
  (void)state;
  need();
  char path[400], call[1024];
  snprintf(path, sizeof path, "%s/victim", test_folder());
  test_write_text(path, "whole");
  refused("import socket", "socket.socket()");
  refused("import socket", "socket.socketpair()");
  refused("import os", "os.fork()");
  refused("import os", "os.kill(os.getppid(), 9)");
  refused("import subprocess", "subprocess.run(['true'])");
  refused("import os", "os.posix_spawn('/bin/true', ['true'], {})");
  snprintf(call, sizeof call, "open('%s', 'w')", path);
  refused("", call);
  snprintf(call, sizeof call, "open('%s', 'r+')", path);
  refused("", call);
  snprintf(call, sizeof call, "os.open('%s', os.O_RDONLY | os.O_TRUNC)", path);
  refused("import os", call);
  snprintf(call, sizeof call, "os.unlink('%s')", path);
  refused("import os", call);
  snprintf(call, sizeof call, "os.rename('%s', '%s2')", path, path);
  refused("import os", call);
  snprintf(call, sizeof call, "os.chmod('%s', 0)", path);
  refused("import os", call);
  snprintf(call, sizeof call, "os.truncate('%s', 0)", path);
  refused("import os", call);
  snprintf(call, sizeof call, "os.symlink('/', '%s3')", path);
  refused("import os", call);
  snprintf(call, sizeof call, "os.mkdir('%s4')", path);
  refused("import os", call);
  refused("import os", "os.memfd_create('x')");
  refused("import os", "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)");
  refused("import resource, os", "resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (0, 0))");
  /* Limits can be read, but not set: root could raise them. */
  assert_int_equal(run("import resource\n"
                       "for f in (resource.setrlimit, lambda *a: resource.prlimit(0, *a)):\n"
                       "  try: f(resource.RLIMIT_CORE, (0, 0))\n"
                       "  except (PermissionError, ValueError): continue\n"
                       "  raise SystemExit(1)"),
                   KEDGE_SANDBOX_PASSED);
  assert_int_equal(run("import resource\nassert resource.getrlimit(resource.RLIMIT_AS)[1] == 1 << 30"),
                   KEDGE_SANDBOX_PASSED);
  assert_int_equal(run("import resource\n"
                       "try: resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n"
                       "except (PermissionError, ValueError): pass\n"
                       "x = bytearray(2 << 30)"),
                   KEDGE_SANDBOX_FAILED);
  /* A fork bomb and threads fail at once. */
  assert_int_equal(run("import os\nwhile True: os.fork()"), KEDGE_SANDBOX_FAILED);
  assert_int_equal(run("import threading\nwhile True: threading.Thread(target=lambda: 0).start()"),
                   KEDGE_SANDBOX_FAILED);
  /* What it executes has the filter still. */
  assert_int_equal(run("import os\nos.execv('/bin/sh', ['sh', '-c', 'true & true'])"), KEDGE_SANDBOX_FAILED);
  size_t bytes;
  char *text = test_read(path, &bytes);
  assert_string_equal(text, "whole");
  free(text);
  assert_int_equal(test_entries(test_folder()), 1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void test_time(void **state) {
  (void)state;
  need();
  const double before = now();
  kedge_sandbox quick = sandbox;
  kedge_sandbox_end end;
  quick.seconds = 1;
  static const char *const programs[] = {
      "while True: pass", "import time\ntime.sleep(100)", "while True: print('x' * 10000)",
      "import signal\nfor s in (15, 24, 2): signal.signal(s, lambda *a: 0)\nwhile 1: pass"};
  for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
    check(kedge_sandbox_run(&quick, programs[i], &end));
    assert_int_equal(end, KEDGE_SANDBOX_TIME);
  }
  /* A program that ends its output and runs on is ended, too. */
  check(kedge_sandbox_run(&quick, "import os\nos.close(1)\nos.close(2)\nwhile True: pass", &end));
  assert_int_not_equal(end, KEDGE_SANDBOX_PASSED);
  assert_true(now() - before < 60);
}

static void test_absent(void **state) {
  (void)state;
  kedge_sandbox none;
  assert_int_equal(kedge_sandbox_open(&none, "no-such-interpreter"), KEDGE_ERR_UNSUPPORTED);
  assert_non_null(strstr(kedge_message(), "no-such-interpreter"));
  assert_int_equal(kedge_sandbox_open(&none, "x; touch y"), KEDGE_ERR_ARGUMENT);
}

/* ---- Programs of items
 * --------------------------------------------------------------------------------------------- */

static bool judged(kedge_item item, const char *output) {
  kedge_verdict verdict;
  item.kind = KEDGE_ANSWER_PYTHON;
  item.id = (char *)(uintptr_t) "x";
  check(kedge_judge(&item, output, strlen(output), &sandbox, &verdict));
  const bool right = verdict.right;
  kedge_verdict_destroy(&verdict);
  return right;
}

static void test_programs(void **state) {
  (void)state;
  need();
  const kedge_item head = {.listed = true,
                           .setup = (char *)(uintptr_t) "import math\n\ndef f(x):\n    \"\"\"Root.\"\"\"\n",
                           .tests = (char *)(uintptr_t) "assert f(9) == 3\n"};
  assert_true(judged(head, "    return math.isqrt(x)\n\nprint(undefined)\n"));
  assert_true(judged(head, "Here:\n```python\ndef f(x):\n    return math.isqrt(x)\n```\nDone."));
  assert_false(judged(head, "    return x\n"));
  assert_false(judged(head, ""));
  const kedge_item tests = {.setup = (char *)(uintptr_t) "",
                            .tests = (char *)(uintptr_t) "assert g() == 1\n"};
  assert_true(judged(tests, "def g(): return 1"));
  assert_true(judged(tests, "```python\ndef g(): return 1\n```"));
  assert_false(judged(tests, "def g(): return 2"));
}

/* The reference solutions of published files pass, and a wrong one does not. */
static void test_published(void **state) {
  (void)state;
  need();
  enum { SOME = 8 };
  static const char *const files[] = {"data/code/HumanEval.jsonl.gz", "data/code/mbpp.jsonl"};
  for (int f = 0; f < 2; f++) {
    const char *path = test_shared(files[f]);
    kedge_suite suite;
    if (!path) skip();
    check(kedge_suite_open(&suite, &path, 1, SOME, -1, NULL, NULL));
    for (int i = 0; i < SOME; i++) {
      kedge_item item;
      uint32_t file;
      bool some;
      check(kedge_suite_next(&suite, &item, &file, &some));
      assert_true(some);
      if (!judged(item, item.reference)) fail_msg("%s: %s is not passed by its solution", path, item.id);
      kedge_item_destroy(&item);
    }
    kedge_suite_close(&suite);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_passes),   cmocka_unit_test(test_failures),
                                     cmocka_unit_test(test_refusals), cmocka_unit_test(test_time),
                                     cmocka_unit_test(test_absent),   cmocka_unit_test(test_programs),
                                     cmocka_unit_test(test_published)};
  possible = kedge_sandbox_open(&sandbox, NULL) == KEDGE_OK;
  const int result = cmocka_run_group_tests(tests, NULL, NULL);
  if (possible) kedge_sandbox_close(&sandbox);
  return result;
}
