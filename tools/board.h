/* SPDX-License-Identifier: Apache-2.0
 *
 * What a command that runs many jobs in child processes (child.h) shows on standard error: a line for each
 * event, and one that tells how all of them go, drawn over on a terminal, written every half minute
 * elsewhere. */
#ifndef KEDGE_TOOLS_BOARD_H
#define KEDGE_TOOLS_BOARD_H

#include "core/kedge.h"

typedef struct board {
  const char *name;    /* the command's */
  double began, shown; /* child_clock() */
  bool terminal, drawn;
  size_t jobs; /* named in `line` */
  char line[1024];
} board;

void board_open(board *b, const char *name);

/* Takes the drawn line away. */
void board_clear(board *b);

/* "[3/12] JOB: what", job number `place` of `count`. */
void board_tell(board *b, size_t place, size_t count, const char *job, const char *what);

/* Whether the time has come to compose a line by board_add() and board_job() and to draw it. */
bool board_due(const board *b, double at);
void board_add(board *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Names a running job, at most four; with a log that tells its updates, those too. `log` may be NULL. */
void board_job(board *b, const char *job, const char *log);
void board_draw(board *b, double at);

#endif
