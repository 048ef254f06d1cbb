/* SPDX-License-Identifier: Apache-2.0
 *
 * Questions about what a program prints. The interpreter (program.h) runs each one: the worked answer is the
 * list of values that its variables take, the answer is what it prints. Shifted: loops with conditions,
 * while, division, larger numbers. Sibling: corpus.c.
 */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "models/text/corpus_internal.h"
#include "models/text/program.h"

enum { STEPS = 10000, MAX_VALUES = 12, LARGEST = 999 };

static const char *const names[] = {"a", "b", "n", "x"};
#define NAMES(r, v, count) kedge__pick_some((r), names, KEDGE__COUNT(names), (v), (count))

/* ---- Plain
 * ------------------------------------------------------------------------------------------------------- */

/* "x + 3", "x - 3", "x * 2", "x + y". */
static void operation(kedge__row *r, kedge__text *t, const char *x, const char *y) {
  int kind = kedge__between(r, 0, 4);
  if (kind == 0 && y)
    kedge__say(t, "%s + %s", x, y);
  else if (kind == 1)
    kedge__say(t, "%s * %d", x, kedge__between(r, 2, 3));
  else
    kedge__say(t, "%s %c %d", x, kind & 1 ? '-' : '+', kedge__between(r, 1, 5));
}

static void straight(kedge__row *r, kedge__text *t) {
  const char *v[3];
  NAMES(r, v, 3);
  kedge__say(t, "%s = %d\n%s = ", v[0], kedge__between(r, 3, 12), v[1]);
  operation(r, t, v[0], NULL);
  kedge__say(t, "\n%s = ", v[2]);
  operation(r, t, v[1], v[0]);
  kedge__say(t, "\nprint(%s)\n", v[2]);
}

static void counted(kedge__row *r, kedge__text *t) {
  const char *v[1];
  NAMES(r, v, 1);
  bool index = kedge__maybe(r, 40);
  kedge__say(t, "%s = %d\nfor i in range(%d):\n  %s += ", v[0], kedge__between(r, 1, 20),
             kedge__between(r, 2, 4), v[0]);
  if (index)
    kedge__say(t, "i\n");
  else
    kedge__say(t, "%d\n", kedge__between(r, 2, 6));
  kedge__say(t, "print(%s)\n", v[0]);
}

static void branch(kedge__row *r, kedge__text *t) {
  const char *v[2];
  NAMES(r, v, 2);
  int first = kedge__between(r, 5, 12), border = first + kedge__between(r, -4, 4);
  kedge__say(t, "%s = %d\nif %s %c %d:\n  %s = ", v[0], first, v[0], kedge__maybe(r, 50) ? '<' : '>', border,
             v[1]);
  operation(r, t, v[0], NULL);
  kedge__say(t, "\nelse:\n  %s = ", v[1]);
  operation(r, t, v[0], NULL);
  kedge__say(t, "\nprint(%s)\n", v[1]);
}

/* ---- Shifted
 * ----------------------------------------------------------------------------------------------------- */

static void condition(kedge__row *r, kedge__text *t) {
  const char *v[1];
  NAMES(r, v, 1);
  kedge__say(
      t, "%s = %d\nfor k in range(%d):\n  if k %% 2 == %d:\n    %s += %d\n  else:\n    %s -= %d\nprint(%s)\n",
      v[0], kedge__between(r, 10, 30), kedge__between(r, 2, 4), kedge__between(r, 0, 1), v[0],
      kedge__between(r, 2, 9), v[0], kedge__between(r, 1, 5), v[0]);
}

static void until(kedge__row *r, kedge__text *t) {
  const char *v[2];
  NAMES(r, v, 2);
  int start = kedge__between(r, 2, 15), by = kedge__between(r, 3, 9);
  bool doubles = kedge__maybe(r, 40);
  int limit = doubles ? start * kedge__between(r, 3, 12)
                      : start + by * kedge__between(r, 1, 4) - kedge__between(r, 0, 3);
  kedge__say(t, "%s = %d\n%s = 0\nwhile %s < %d:\n  %s %s %d\n  %s += 1\n", v[0], start, v[1], v[0], limit,
             v[0], doubles ? "*=" : "+=", doubles ? 2 : by, v[1]);
  kedge__say(t, kedge__maybe(r, 50) ? "print(%s + %s)\n" : "print(%s * %s)\n", v[0], v[1]);
}

static void division(kedge__row *r, kedge__text *t) {
  const char *v[3];
  NAMES(r, v, 3);
  kedge__say(t, "%s = %d\n%s = %s // %d\n%s = %s %% %d\n", v[0], kedge__between(r, 20, 60), v[1], v[0],
             kedge__between(r, 3, 9), v[2], v[0], kedge__between(r, 3, 9));
  if (kedge__maybe(r, 50))
    kedge__say(t, "%s += %s * %d\nprint(%s)\n", v[1], v[2], kedge__between(r, 2, 4), v[1]);
  else
    kedge__say(t, "print(max(%s, %s) + %d)\n", v[1], v[2], kedge__between(r, 5, 40));
}

static void ladder(kedge__row *r, kedge__text *t) {
  const char *v[2];
  NAMES(r, v, 2);
  int first = kedge__between(r, 20, 40), second = kedge__between(r, 5, 20);
  kedge__say(t,
             "%s = %d\n%s = %s - %d\nif %s > %d:\n  %s *= %d\nelif %s > %d:\n  %s += %d\nelse:\n  %s = "
             "abs(%s) + %d\n",
             v[0], first, v[1], v[0], second, v[1], kedge__between(r, 20, 30), v[1], kedge__between(r, 2, 3),
             v[1], kedge__between(r, 5, 15), v[1], kedge__between(r, 10, 60), v[1], v[1],
             kedge__between(r, 1, 30));
  kedge__say(t, "print(%s + %s)\n", v[0], v[1]);
}

/* ---- Answers
 * ----------------------------------------------------------------------------------------------------- */

typedef struct trace {
  kedge__text *text;
  uint32_t count;
  int64_t largest;
} trace;

static void watch(void *context, const char *name, int64_t value) {
  trace *t = context;
  if (t->count++ < MAX_VALUES)
    kedge__say(t->text, "%s%s = %" PRId64, t->text->length ? ", " : "", name, value);
  if (value > t->largest || -value > t->largest) t->largest = value < 0 ? -value : value;
}

void kedge__corpus_programs(kedge__row *r) {
  static void (*const plain[])(kedge__row *, kedge__text *) = {straight, counted, branch};
  static void (*const hard[])(kedge__row *, kedge__text *) = {condition, until, division, ladder};
  static const char *const asks[] = {"What does this program print?", "Run this program.",
                                     "Which number is printed?"};
  static const char *const hard_asks[] = {"Trace the code and report its output.",
                                          "State the result of this script."};
  for (;;) {
    kedge__text program = {0};
    kedge_program_result result;
    trace t = {.text = &r->completion};
    r->completion = (kedge__text){0};
    if (r->shifted)
      KEDGE__PICK(r, hard)(r, &program);
    else
      KEDGE__PICK(r, plain)(r, &program);
    r->status = kedge_program_run(program.bytes, program.length, STEPS, watch, &t, &result);
    if (r->status != KEDGE_OK) return;
    assert(result.end == KEDGE_PROGRAM_ENDED && result.length);
    /* Short ones alone, and numbers of up to three digits. */
    if (t.count > MAX_VALUES || t.largest > LARGEST || result.length > 4) continue;
    kedge__say(&r->prompt, "%s\n%s", r->shifted ? KEDGE__PICK(r, hard_asks) : KEDGE__PICK(r, asks),
               program.bytes);
    result.output[result.length - 1] = 0;
    kedge__say(&r->completion, ".");
    kedge__answer(r, "%s", result.output);
    return;
  }
}
