/* SPDX-License-Identifier: Apache-2.0
 *
 * How far a long command is, on standard error. On a terminal one line that is drawn over, at most ten times
 * a second; elsewhere a plain line every 10 seconds and one at the end. NO_COLOR and TERM=dumb are respected.
 */
#ifndef KEDGE_TOOLS_PROGRESS_H
#define KEDGE_TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct progress {
  FILE *out;
  const char *label, *unit; /* "train", "updates" */
  uint64_t first, total;    /* steps done before this run (a resumed one), and in all; total 0: not known */
  uint64_t done, tokens;    /* tokens since the start */
  double start, shown;      /* seconds of a monotonic clock */
  bool terminal, colour;
  bool drawn; /* a line without newline stands on the terminal */
} progress;

void progress_init(progress *p, FILE *out, const char *label, const char *unit, uint64_t first,
                   uint64_t total);

/* `done` steps of `total` and `tokens` tokens since the start of this run; `text` (or NULL) is shown behind:
 * "loss 1.234". */
void progress_update(progress *p, uint64_t done, uint64_t tokens, const char *text);

/* Before something else is printed: takes the drawn line away. */
void progress_clear(progress *p);

/* The last line, always shown. */
void progress_end(progress *p, const char *text);

#endif
