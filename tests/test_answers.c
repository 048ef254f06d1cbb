/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Answers in texts: where they are found, how they compare, and the interval of a share. */
#include "models/evaluation/extract.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

/* The answer of a text by kind; NULL stands for none. */
static void expect(kedge_answer_kind kind, const char *text, const char *want) {
  /* A copy without a NUL, so that reading past the end is found. */
  const size_t length = strlen(text);
  char *copy = malloc(length + !length), *got;
  memcpy(copy, text, length);
  check(kedge_extract_answer(kind, copy, length, 4, &got));
  if (!got != !want || (got && strcmp(got, want)))
    fail_msg("\"%s\": \"%s\", want \"%s\"", text, got ? got : "(none)", want ? want : "(none)");
  kedge_free(got);
  free(copy);
}

static void test_numbers(void **state) {
  (void)state;
  const kedge_answer_kind n = KEDGE_ANSWER_NUMBER;
  /* boxed before ####, #### before the last number */
  expect(n, "so \\boxed{12} and #### 13 and 14", "12");
  expect(n, "so #### 13\nand 14", "13");
  expect(n, "so 13, then 14.", "14");
  expect(n, "\\boxed{1} then \\boxed{2}", "2");
  expect(n, "\\boxed{\\frac{1}{2}}", "\\frac{1}{2}");
  expect(n, "\\boxed{\\left\\{1\\right\\}}", "\\left\\{1\\right\\}");
  expect(n, "\\boxed {7 }", "7");
  expect(n, "\\boxed{3} and \\boxed{4", "3"); /* one that is cut off is none */
  expect(n, "\\boxed{4", "4");                /* the last number */
  expect(n, "\\boxed{\\boxed{5}}", "5");
  expect(n, "#### 1\n#### 2,345.60 dollars\nmore", "2,345.60 dollars");
  expect(n, "costs $1,234.50.", "1,234.50");
  expect(n, "1,2,3", "3");
  expect(n, "12,34", "34");
  expect(n, "1234,567", "567");
  expect(n, "is -5", "-5");
  expect(n, "8-5", "5");
  expect(n, "(8)-5", "5");
  expect(n, "=-.5", "-.5");
  expect(n,
         "\xe2\x88\x92"
         "3",
         "\xe2\x88\x92"
         "3");
  expect(n, "3.", "3");
  expect(n, "none", NULL);
  expect(n, "", NULL);
  expect(n, "####", "");
}

static void test_texts(void **state) {
  (void)state;
  const kedge_answer_kind t = KEDGE_ANSWER_TEXT;
  expect(t, "I think.\nThe answer is: blue sky.\nBye", "blue sky.");
  expect(t, "**Answer:** cat", "cat");
  expect(t, "Answer: a\nAnswer: b", "b");
  expect(t, "the answer isn't here\nlast line \n\n", "last line");
  expect(t, "x #### y z ", "y z");
  expect(t, "\\boxed{w}", "w");
  expect(t, "answers: no\nyes", "yes");
  expect(t, "answer:", "answer:");
  expect(KEDGE_ANSWER_EXACT, "  two words \n", "two words");
  expect(KEDGE_ANSWER_PYTHON, "Sure:\n```python\nx = 1\n```\nbye ```no```", "x = 1\n");
  expect(KEDGE_ANSWER_PYTHON, "```\nx = 1", "x = 1");
  expect(KEDGE_ANSWER_PYTHON, "x = 1", "x = 1");
  expect(KEDGE_ANSWER_PYTHON, "```", "");
}

static void test_letters(void **state) {
  (void)state;
  const kedge_answer_kind l = KEDGE_ANSWER_LETTER;
  expect(l, "Answer: B", "B");
  expect(l, "It is A or C. Answer: (D).", "D");
  expect(l, "The answer is **C**", "C");
  expect(l, "answer is c", "C");
  expect(l, "Answer: B because of it", "B");
  expect(l, "\\boxed{\\text{B}}", "B");
  expect(l, "\\boxed{A} Answer: B", "A");
  expect(l, "#### C", "C");
  expect(l, "B", "B");
  expect(l, " (b) ", "B");
  expect(l, "C. because", "C");
  expect(l, "A dog is here", NULL); /* a word */
  expect(l, "a dog is here", NULL);
  expect(l, "reasons\nand more\nD", "D");
  expect(l, "Answer: E", NULL); /* there are four options */
  expect(l, "Answer: Both", NULL);
  expect(l, "D'accord", NULL);
  expect(l, "", NULL);
}

static void same(kedge_answer_kind kind, bool fold, const char *a, const char *b, bool want) {
  bool equal;
  check(kedge_answer_equal(kind, fold, a, b, &equal));
  if (equal != want) fail_msg("\"%s\" and \"%s\" are %s", a ? a : "(none)", b, equal ? "equal" : "different");
}

static void test_equal(void **state) {
  (void)state;
  const kedge_answer_kind n = KEDGE_ANSWER_NUMBER, t = KEDGE_ANSWER_TEXT;
  same(n, false, "1,200.50", "1200.5", true);
  same(n, false, "$ 18.00", "18", true);
  same(n, false, "18%", "18", true);
  same(n, false, "018", "18", true);
  same(n, false, "0.50", ".5", true);
  same(n, false, "-0", "0", true);
  same(n, false,
       "\xe2\x88\x92"
       "7",
       "-7", true);
  same(n, false, "72 clips", "72", true);
  same(n, false, "5 \\text{ cm}", "5", true);
  same(n, false, "123456789012345678901234567890", "123456789012345678901234567891", false);
  same(n, false, "9007199254740993", "9007199254740992", false);
  same(n, false, "18", "-18", false);
  same(n, false, "1.5", "15", false);
  same(n, false, "", "0", false);
  same(n, false, NULL, "0", false);
  same(t, false, "\\dfrac{1}{2}", "\\frac{1}{2}", true);
  same(t, false, "\\left( 1, 2 \\right)", "\\left(1,2\\right)", true);
  same(t, false, "$x+1$", "x+1", true);
  same(t, false, "a  b.", "a b", true);
  same(t, false, "ab", "a b", false);
  same(t, false, "Yes", "yes", false);
  same(t, true, "Yes.", "yes", true);
  same(t, false, "3.0", "3", true);
  same(t, false, "\\leftarrow", "arrow", false);
  same(KEDGE_ANSWER_EXACT, false, "a b", "a  b", false);
  same(KEDGE_ANSWER_LETTER, false, "B", "B", true);
  assert_true(kedge_answer_is_number(" -1,000.5 "));
  assert_false(kedge_answer_is_number("1 2"));
  assert_false(kedge_answer_is_number("B"));
}

/* Long texts of nothing but openings take no more than a moment. */
static void test_hostile(void **state) {
  (void)state;
  enum { COUNT = 200000 };
  static const char *const pieces[] = {"\\boxed{", "####", "answer", "answer:",      "-", "1,",
                                       "\\",       "{",    "```",    "\xe2\x88\x92", "(", "\\boxed{}{"};
  for (size_t p = 0; p < sizeof pieces / sizeof *pieces; p++) {
    const size_t length = strlen(pieces[p]);
    char *text = malloc(COUNT * length), *answer;
    for (size_t i = 0; i < COUNT; i++) memcpy(text + i * length, pieces[p], length);
    for (int kind = 0; kind <= KEDGE_ANSWER_PROGRAM; kind++) {
      bool equal;
      check(kedge_extract_answer((kedge_answer_kind)kind, text, COUNT * length, 26, &answer));
      check(kedge_answer_equal((kedge_answer_kind)kind, true, answer, "1", &equal));
      kedge_free(answer);
    }
    free(text);
  }
}

static void interval(double good, double n, double low, double high) {
  double a, b;
  kedge_wilson(good, n, &a, &b);
  if (!(fabs(a - low) < 5e-6 && fabs(b - high) < 5e-6))
    fail_msg("%g of %g: [%.6f, %.6f], want [%.6f, %.6f]", good, n, a, b, low, high);
}

/* By the formula, worked out with decimals elsewhere. */
static void test_wilson(void **state) {
  (void)state;
  interval(0, 10, 0, 0.277533);
  interval(10, 10, 0.722467, 1);
  interval(5, 10, 0.236593, 0.763407);
  interval(81, 263, 0.255289, 0.366210);
  interval(1, 1000, 0.000177, 0.005643);
  interval(2.5, 10, 0.080948, 0.557819);
  interval(0, 0, 0, 1);
}

static void test_memory(void **state) {
  (void)state;
  char *answer;
  bool equal;
  kedge_alloc_fail_nth(1);
  assert_int_equal(kedge_extract_answer(KEDGE_ANSWER_NUMBER, "5", 1, 0, &answer), KEDGE_ERR_MEMORY);
  for (uint64_t nth = 1; nth <= 4; nth++) {
    kedge_alloc_fail_nth(nth);
    assert_int_equal(kedge_answer_equal(KEDGE_ANSWER_NUMBER, false, "5", "6", &equal), KEDGE_ERR_MEMORY);
  }
  kedge_alloc_fail_nth(0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_numbers), cmocka_unit_test(test_texts),
                                     cmocka_unit_test(test_letters), cmocka_unit_test(test_equal),
                                     cmocka_unit_test(test_hostile), cmocka_unit_test(test_wilson),
                                     cmocka_unit_test(test_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
