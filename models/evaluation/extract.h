/* SPDX-License-Identifier: Apache-2.0
 *
 * From what a model wrote to its answer, and whether that is the reference's. Siblings: suite.h has the
 * items, verdict.h puts both together.
 */
#ifndef KEDGE_MODELS_EVALUATION_EXTRACT_H
#define KEDGE_MODELS_EVALUATION_EXTRACT_H

#include "core/kedge.h"

/* What kind of thing an answer is. */
typedef enum kedge_answer_kind {
  KEDGE_ANSWER_EXACT,  /* the whole text, but for white space around it */
  KEDGE_ANSWER_TEXT,   /* a word, a list of words, a formula */
  KEDGE_ANSWER_NUMBER, /* compared by value: 1,200.50 is 1200.5 */
  KEDGE_ANSWER_LETTER, /* of a choice */
  KEDGE_ANSWER_PYTHON, /* Python code, judged by tests */
  KEDGE_ANSWER_PROGRAM /* a program of models/text/program.h, judged by what it prints */
} kedge_answer_kind;

/* A part of a text; `start` is NULL where there is none. */
typedef struct kedge_extract {
  const char *start;
  size_t length;
} kedge_extract;

/* Inside of the last \boxed{...} whose braces balance; \{ and \} are no braces. */
kedge_extract kedge_extract_boxed(const char *text, size_t length);
/* After the last #### up to the end of its line, without white space around it. */
kedge_extract kedge_extract_hashes(const char *text, size_t length);
/* The last number: digits, with commas between groups of three, a fraction, a sign that is not a minus
 * between two things. */
kedge_extract kedge_extract_number(const char *text, size_t length);
/* After the last "answer:" or "answer is" (in any case) up to the end of its line. */
kedge_extract kedge_extract_stated(const char *text, size_t length);
/* Inside of the first fenced block (three backticks, a word of language allowed); of an open one, the rest;
 * without any, the whole text. */
kedge_extract kedge_extract_code(const char *text, size_t length);
/* The letter of an answer to a choice among `choices` options, 'A' and up; 0 where it names none: the last
 * \boxed{}, else after ####, else what is stated as answer, else a letter that stands at the head of the text
 * or of its last line. */
char kedge_extract_letter(const char *text, size_t length, uint32_t choices);

/* The answer in a text, by kind, as new memory; *answer is NULL where there is none. Of numbers and texts:
 * the last \boxed{}, else after ####, else the last number, or for texts what is stated as answer, else the
 * last line that is not empty. Errors: ERR_MEMORY. */
kedge_status kedge_extract_answer(kedge_answer_kind kind, const char *text, size_t length, uint32_t choices,
                                  char **answer);

/* Whether an extracted answer (NULL: none) is the reference. Numbers by value. Texts after white space is
 * made single, outer $ and a full stop at the end are dropped, and what only changes the looks of a formula
 * is taken out; `fold` also makes a and A the same. Errors: ERR_MEMORY. */
kedge_status kedge_answer_equal(kedge_answer_kind kind, bool fold, const char *got, const char *want,
                                bool *equal);

/* Whether the whole text, without white space around it, is a number. */
bool kedge_answer_is_number(const char *text);

/* Wilson's 95 % interval of a proportion of `good` (may be an average, so not whole) in n; 0 to 1 for n = 0.
 */
void kedge_wilson(double good, double n, double *low, double *high);

#endif
