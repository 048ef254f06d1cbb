/* SPDX-License-Identifier: Apache-2.0
 * The tiny language: what programs print (as Python does), what is refused, and bounds. ctest: quick */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "models/text/program.h"

static kedge_program_result run(const char *source, uint64_t steps) {
  static kedge_program_result result;
  assert_int_equal(kedge_program_run(source, strlen(source), steps, NULL, NULL, &result), KEDGE_OK);
  return result;
}

static void prints_what_python_prints(void **state) {
  (void)state;
  static const struct {
    const char *source, *output;
  } cases[] = {
      {"", ""},
      {"# nothing\n\n   \n", ""},
      {"print()", "\n"},
      {"print(1, -2,+3)", "1 -2 3\n"},
      {"x = 7\nx += 2\nx *= 3\nx -= 1\nprint(x)\nx //= 4\nx %= 4\nprint(x)", "26\n2\n"},
      {"print(7 // 2, -7 // 2, 7 // -2, -7 // -2)", "3 -4 -4 3\n"},
      {"print(7 % 3, -7 % 3, 7 % -3, -7 % -3, 6 % -3)", "1 2 -2 -1 0\n"},
      {"print(2 + 3 * 4 - 10 // 3 % 2, (2 + 3) * 4, - - 3, -2 * -3)", "13 20 3 6\n"},
      {"print(1 < 2, 2 <= 1, 1 == 1, 1 != 1, 3 > 2 > 1, 1 < 3 < 2)", "True False True False True False\n"},
      {"print(True + True, -True, not 0, not 5, True)", "2 -1 True False True\n"},
      {"print(0 or 7, 3 and 4, 0 and 4, 3 or 1 // 0, 0 and 1 // 0, not 1 == 2)", "7 4 0 3 0 True\n"},
      {"print(min(3, 1, 2), max(1, True), max(True, 1), abs(-4), abs(-True))", "1 1 True 4 1\n"},
      {"for i in range(3): print(i)", "0\n1\n2\n"},
      {"for i in range(5, 0, -2):\n  print(i)\nprint(i)", "5\n3\n1\n1\n"},
      {"n = 2\nfor i in range(n):\n  n = 9\n  i = 5\nprint(n, i)", "9 5\n"},
      {"for i in range(2, 2): pass\nelse_ = 4\nprint(else_)", "4\n"},
      {"x = 1\nwhile True:\n  x *= 2\n  if x == 4: continue\n  if x > 20: break\nprint(x)", "32\n"},
      {"for i in range(3):\n  for k in range(3):\n    if k == 1: break\n    print(i, k)", "0 0\n1 0\n2 0\n"},
      {"x = 5\nif x < 3: print(1)\nelif x < 6:\n    print(2)\n# c\nelse:\n  print(3)\nprint(4)", "2\n4\n"},
      {"x = 9\nif x < 3:\n  print(1)\nelif x < 6: print(2)\nelse: print(3)", "3\n"},
      {"if 1:\n if 0: print(1)\n else: print(2)\nelse: print(3)\r\n", "2\n"},
      {"if 0:\n  print(1)\n\nelse:\n\n  if 1: print(2)\n  print(3)", "2\n3\n"},
      {"x = -9223372036854775807 - 1\nprint(x, x % -1)", "-9223372036854775808 0\n"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    kedge_program_result r = run(cases[i].source, 10000);
    if (r.end != KEDGE_PROGRAM_ENDED || r.line || *r.why || strcmp(r.output, cases[i].output))
      fail_msg("%s\nprinted \"%s\", line %u: %s", cases[i].source, r.output, r.line, r.why);
    assert_int_equal(r.length, strlen(cases[i].output));
  }
}

static void tells_what_is_wrong_and_where(void **state) {
  (void)state;
  static const struct {
    const char *source;
    kedge_program_end end;
    uint32_t line;
    const char *why;
  } cases[] = {
      {"x", KEDGE_PROGRAM_REFUSED, 1, "assignment"},
      {"\nx = = 3", KEDGE_PROGRAM_REFUSED, 2, "a number, a name"},
      {"x = 3 4", KEDGE_PROGRAM_REFUSED, 1, "end of the line"},
      {"x = 2 ** 3", KEDGE_PROGRAM_REFUSED, 1, "end of the line"},
      {"x = 4 / 2", KEDGE_PROGRAM_REFUSED, 1, "end of the line"},
      {"x = 1.5", KEDGE_PROGRAM_REFUSED, 1, "whole"},
      {"x = 07", KEDGE_PROGRAM_REFUSED, 1, "begins with 0"},
      {"x = 9223372036854775808", KEDGE_PROGRAM_REFUSED, 1, "large"},
      {"while = 3", KEDGE_PROGRAM_REFUSED, 1, "number, a name"},
      {"import os", KEDGE_PROGRAM_REFUSED, 1, "word of the language"},
      {"open(3)", KEDGE_PROGRAM_REFUSED, 1, "assignment"},
      {"print(min(3))", KEDGE_PROGRAM_REFUSED, 1, "arguments"},
      {"for i in range(): pass", KEDGE_PROGRAM_REFUSED, 1, "arguments"},
      {"for i in x: pass", KEDGE_PROGRAM_REFUSED, 1, "in range"},
      {"if 1: break", KEDGE_PROGRAM_REFUSED, 1, "loop"},
      {"if 1\n  pass", KEDGE_PROGRAM_REFUSED, 1, ": was"},
      {"if 1:\npass", KEDGE_PROGRAM_REFUSED, 2, "indented line"},
      {" pass", KEDGE_PROGRAM_REFUSED, 1, "indented"},
      {"if 1:\n   pass\n  pass", KEDGE_PROGRAM_REFUSED, 3, "alike"},
      {"else: pass", KEDGE_PROGRAM_REFUSED, 1, "word of the language"},
      {"\tpass", KEDGE_PROGRAM_REFUSED, 1, "name"},
      {"print(1)\nprint(x)", KEDGE_PROGRAM_FAILED, 2, "without a value"},
      {"x = 1\nprint(x // (x - 1))", KEDGE_PROGRAM_FAILED, 2, "zero"},
      {"print(1 % 0)", KEDGE_PROGRAM_FAILED, 1, "zero"},
      {"for i in range(1, 2, 0): pass", KEDGE_PROGRAM_FAILED, 1, "step 0"},
      {"x = 9223372036854775807\nx += 1", KEDGE_PROGRAM_FAILED, 2, "64 bits"},
      {"x = 3\nwhile x: x *= 3", KEDGE_PROGRAM_FAILED, 2, "64 bits"},
      {"x = -9223372036854775807 - 1\nprint(x // -1)", KEDGE_PROGRAM_FAILED, 2, "64 bits"},
      {"x = -9223372036854775807 - 1\nprint(abs(x))", KEDGE_PROGRAM_FAILED, 2, "64 bits"},
      {"x = 0\nwhile True: x += 1", KEDGE_PROGRAM_STOPPED, 2, "steps"},
      {"for i in range(9000000000): pass", KEDGE_PROGRAM_STOPPED, 1, "steps"},
      {"while True: print(1)", KEDGE_PROGRAM_STOPPED, 1, "output"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    kedge_program_result r = run(cases[i].source, 10000);
    if (r.end != cases[i].end || r.line != cases[i].line || !strstr(r.why, cases[i].why))
      fail_msg("%s\nended %d, line %u: %s", cases[i].source, r.end, r.line, r.why);
    assert_true(r.length <= KEDGE_PROGRAM_MAX_OUTPUT && r.steps <= 10000);
  }
  assert_string_equal(run("print(1)\nprint(x)", 100).output, "1\n");
}

static char *repeat(const char *head, const char *part, int count, const char *tail) {
  char *text = malloc(strlen(head) + strlen(part) * (size_t)count + strlen(tail) + 1);
  assert_non_null(text);
  strcpy(text, head);
  for (int i = 0; i < count; i++) strcat(text, part);
  return strcat(text, tail);
}

static void is_bounded(void **state) {
  (void)state;
  static const struct {
    const char *head, *part, *tail;
    int count;
    kedge_program_end end;
  } cases[] = {{"x = ", "(", "1", 5000, KEDGE_PROGRAM_REFUSED},
               {"x = ", "-", "1", 5000, KEDGE_PROGRAM_REFUSED},
               {"x = ", "not ", "1", 3000, KEDGE_PROGRAM_REFUSED},
               {"x = 1", " + 1", "", 3000, KEDGE_PROGRAM_REFUSED},
               {"x = 1", " < 1", "", 3000, KEDGE_PROGRAM_REFUSED},
               {"x = ", "min(1,", "1", 2000, KEDGE_PROGRAM_REFUSED},
               {"x = 1", "+1", "", 30, KEDGE_PROGRAM_ENDED},
               {"x=1<1", "<1", "", 15, KEDGE_PROGRAM_ENDED},
               {"if 0: pass\n", "elif 0: pass\n", "else: print(7)", 1000, KEDGE_PROGRAM_ENDED},
               {"", "print(1)\n", "", 2000, KEDGE_PROGRAM_REFUSED}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char *source = repeat(cases[i].head, cases[i].part, cases[i].count, cases[i].tail);
    kedge_program_result r = run(source, 100000);
    if (r.end != cases[i].end) fail_msg("case %zu ended %d: %s", i, r.end, r.why);
    free(source);
  }
  /* Blocks in blocks, and more names than there is room for. */
  char blocks[16384] = "", names[4096] = "";
  for (int i = 0; i < 60; i++) sprintf(blocks + strlen(blocks), "%*sif 1:\n", i, "");
  assert_string_equal(run(blocks, 100).why, "too many blocks in blocks");
  for (int i = 0; i <= KEDGE_PROGRAM_MAX_NAMES; i++) sprintf(names + strlen(names), "v%d = %d\n", i, i);
  assert_string_equal(run(names, 1000).why, "too many names");
  assert_string_equal(run("a_name_of_sixteen_letters = 1", 10).why, "too long a name");
  /* Three nodes to two bytes, all over the source. */
  char *chains = repeat("", "x=1<2<3<4<5<6<7<8<9<1<2<3<4<5<6<7<8\n", 400, "");
  assert_int_equal(run(chains, 1000000).end, KEDGE_PROGRAM_ENDED);
  free(chains);
  kedge_alloc_fail_nth(1);
  kedge_program_result result;
  assert_int_equal(kedge_program_run("", 0, 1, NULL, NULL, &result), KEDGE_ERR_MEMORY);
  kedge_alloc_fail_nth(0);
}

static void watch(void *context, const char *name, int64_t value) {
  char *log = context;
  sprintf(log + strlen(log), "%s=%d ", name, (int)value);
}

static void tells_of_assignments(void **state) {
  (void)state;
  static const char source[] = "a = 2\nfor i in range(2): a += i\nprint(a)";
  kedge_program_result result;
  char log[100] = "";
  assert_int_equal(kedge_program_run(source, sizeof source - 1, 100, watch, log, &result), KEDGE_OK);
  assert_string_equal(log, "a=2 i=0 a=2 i=1 a=3 ");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(prints_what_python_prints),
                                     cmocka_unit_test(tells_what_is_wrong_and_where),
                                     cmocka_unit_test(is_bounded), cmocka_unit_test(tells_of_assignments)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
