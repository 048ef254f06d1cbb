/* SPDX-License-Identifier: Apache-2.0
 * Verdicts (verdict.h). */
#include "models/evaluation/verdict.h"

#include "models/text/program.h"

#include <string.h>

enum { PROGRAM_STEPS = 1000000 };

static bool is_blank(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

void kedge_verdict_destroy(kedge_verdict *verdict) {
  kedge_free(verdict->extracted);
  *verdict = (kedge_verdict){0};
}

/* Length of code that continues a function: up to the first line that is not part of it. */
static size_t end_of_function(const char *code, size_t length) {
  for (size_t i = 0; i + 1 < length; i++)
    if (code[i] == '\n' && !is_blank(code[i + 1]) && code[i + 1] != '#') return i + 1;
  return length;
}

/* Whether code has a line that begins with "def", at no indentation. */
static bool defines(const char *code, size_t length) {
  const char *end = code + length;
  for (const char *at = code; at < end;) {
    if (end - at > 4 && !memcmp(at, "def ", 4)) return true;
    at = memchr(at, '\n', (size_t)(end - at));
    if (!at) break;
    at++;
  }
  return false;
}

char *kedge_python_program(const kedge_item *item, const char *output, size_t length) {
  const kedge_extract code = kedge_extract_code(output, length);
  const char *setup = item->setup ? item->setup : "", *tests = item->tests ? item->tests : "";
  const bool continues = item->listed && !defines(code.start, code.length);
  const size_t count = continues ? end_of_function(code.start, code.length) : code.length;
  /* The head of a function whose whole is given again still has its imports; its body is its description. */
  return kedge_format("%s%s%.*s\n%s", setup, continues ? "" : "\n",
                      (int)(count < INT32_MAX ? count : INT32_MAX), code.start, tests);
}

static kedge_status judge_python(const kedge_item *item, const char *output, size_t length,
                                 const kedge_sandbox *sandbox, kedge_verdict *verdict) {
  static const char *const ends[] = {"passed", "failed", "out of time"};
  kedge_sandbox_end end = KEDGE_SANDBOX_FAILED;
  if (!sandbox)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "item %s is answered by code, and running it is not allowed",
                      item->id);
  char *program = kedge_python_program(item, output, length);
  if (!program) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge_sandbox_run(sandbox, program, &end);
  kedge_free(program);
  KEDGE_TRY(status);
  verdict->right = end == KEDGE_SANDBOX_PASSED;
  verdict->extracted = kedge_strdup(ends[end]);
  return verdict->extracted ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

/* What the program prints, but for white space around it, has to be the reference. */
static kedge_status judge_program(const kedge_item *item, const char *output, size_t length,
                                  kedge_verdict *verdict) {
  const kedge_extract code = kedge_extract_code(output, length);
  kedge_program_result *r = kedge_alloc(1, sizeof *r);
  if (!r) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge_program_run(code.start, code.length, PROGRAM_STEPS, NULL, NULL, r);
  if (status == KEDGE_OK)
    status = kedge_extract_answer(KEDGE_ANSWER_EXACT, r->output, r->length, 0, &verdict->extracted);
  if (status == KEDGE_OK && r->end == KEDGE_PROGRAM_ENDED)
    status = kedge_answer_equal(KEDGE_ANSWER_EXACT, false, verdict->extracted, item->answer, &verdict->right);
  kedge_free(r);
  return status;
}

kedge_status kedge_judge(const kedge_item *item, const char *output, size_t length,
                         const kedge_sandbox *sandbox, kedge_verdict *verdict) {
  *verdict = (kedge_verdict){0};
  if (item->kind == KEDGE_ANSWER_PYTHON) return judge_python(item, output, length, sandbox, verdict);
  if (item->kind == KEDGE_ANSWER_PROGRAM) return judge_program(item, output, length, verdict);
  kedge_status status =
      kedge_extract_answer(item->kind, output, length, item->choice_count, &verdict->extracted);
  if (status == KEDGE_OK)
    status = kedge_answer_equal(item->kind, item->fold, verdict->extracted, item->answer, &verdict->right);
  if (status != KEDGE_OK) kedge_verdict_destroy(verdict);
  return status;
}

kedge_extract kedge_after_thought(const char *output, size_t length) {
  static const char close[] = "</think>";
  const size_t width = sizeof close - 1;
  for (size_t at = length; at-- > 0;)
    if (length - at >= width && !memcmp(output + at, close, width))
      return (kedge_extract){output + at + width, length - at - width};
  return (kedge_extract){output, length};
}

bool kedge_may_be_right(const kedge_item *item, const char *output, size_t length) {
  if (item->kind != KEDGE_ANSWER_EXACT) return true;
  while (length && is_blank(*output)) output++, length--;
  const size_t want = strlen(item->answer);
  if (memcmp(output, item->answer, length < want ? length : want)) return false;
  for (size_t i = want; i < length; i++)
    if (!is_blank(output[i])) return false;
  return true;
}
