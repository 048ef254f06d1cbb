/* SPDX-License-Identifier: Apache-2.0
 *
 * A tiny language, for questions about what a program prints and for programs that a model wrote. It is a
 * part of Python: what runs here prints what Python prints. Siblings: program.c runs, program_parse.c reads.
 *
 *   block      statements, one a line, indented alike by spaces; `#` opens a comment
 *   statement  NAME = E | NAME += E (and -= *= //= %=) | print(E, ...) | pass | break | continue
 *              | if E: BODY {elif E: BODY} [else: BODY] | while E: BODY | for NAME in range(E[, E[, E]]):
 * BODY BODY       a simple statement on the same line, or a block that is indented further E          or,
 * and, not, < <= > >= == != (also chained), + -, * // %, unary + -, ( ), numbers, names, True, False, abs(E),
 * min(E, E, ...), max(E, E, ...)
 *
 * Values are whole numbers of 64 bits (an overflow ends the program; Python has no such bound) and truth
 * values. There is nothing else: no calls, files, memory or time; a program can only print or be stopped.
 */
#ifndef KEDGE_MODELS_TEXT_PROGRAM_H
#define KEDGE_MODELS_TEXT_PROGRAM_H

#include "core/kedge.h"

enum {
  KEDGE_PROGRAM_MAX_SOURCE = 16384, /* bytes */
  KEDGE_PROGRAM_MAX_OUTPUT = 2048,  /* bytes */
  KEDGE_PROGRAM_MAX_NAMES = 64,     /* different variables */
  KEDGE_PROGRAM_MAX_DEPTH = 40 /* of blocks in blocks and, apart from them, of expressions in expressions */
};

typedef enum kedge_program_end {
  KEDGE_PROGRAM_ENDED,   /* ran to its end */
  KEDGE_PROGRAM_REFUSED, /* is no program; nothing was run */
  KEDGE_PROGRAM_FAILED,  /* did what cannot be done: a name without value, division by zero, an overflow */
  KEDGE_PROGRAM_STOPPED  /* took more steps, or printed more, than it may */
} kedge_program_end;

typedef struct kedge_program_result {
  kedge_program_end end;
  uint32_t line;   /* of the source, from 1, where it did not end; else 0 */
  const char *why; /* in a few words; static, "" where it ended */
  uint64_t steps;  /* statements run and operations evaluated */
  size_t length;   /* of output, bytes; what was printed before a failure is there */
  char output[KEDGE_PROGRAM_MAX_OUTPUT + 1];
} kedge_program_result;

/* Told of every value that a variable takes; `name` lasts for the call. */
typedef void (*kedge_program_watch)(void *context, const char *name, int64_t value);

/* Runs source[0..length), any bytes whatever, for at most `steps` steps. `watch` may be NULL. A program that
 * is wrong is no error: *result tells. Errors: ERR_MEMORY alone. */
kedge_status kedge_program_run(const char *source, size_t length, uint64_t steps, kedge_program_watch watch,
                               void *context, kedge_program_result *result);

#endif
