/* SPDX-License-Identifier: Apache-2.0
 * The line that shows many jobs (board.h). */
#include "tools/board.h"
#include "tools/child.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

void board_open(board *b, const char *name) {
  const char *term = getenv("TERM");
  *b = (board){.name = name, .terminal = isatty(2) && term && strcmp(term, "dumb")};
  b->began = b->shown = child_clock();
}

void board_clear(board *b) {
  if (b->drawn) fputs("\r\033[K", stderr);
  b->drawn = false;
}

void board_tell(board *b, size_t place, size_t count, const char *job, const char *what) {
  board_clear(b);
  fprintf(stderr, "[%zu/%zu] %s: %s\n", place, count, job, what);
}

bool board_due(const board *b, double at) {
  return at - b->shown >= (b->terminal ? 1 : 30);
}

void board_add(board *b, const char *format, ...) {
  const size_t used = strlen(b->line);
  va_list values;
  va_start(values, format);
  vsnprintf(b->line + used, sizeof b->line - used, format, values);
  va_end(values);
}

void board_job(board *b, const char *job, const char *log) {
  unsigned long long done, total;
  if (b->jobs == 4) return;
  board_add(b, "%s %.60s", b->jobs++ ? "," : ":", job);
  if (log && child_updates(log, &done, &total)) board_add(b, " %llu/%llu", done, total);
}

void board_draw(board *b, double at) {
  struct winsize size;
  const int columns = !ioctl(2, TIOCGWINSZ, &size) && size.ws_col > 20 ? size.ws_col : 80,
            room = columns - (int)strlen(b->name) - 3;
  if (b->terminal)
    fprintf(stderr, "\r%s: %.*s\033[K", b->name, room, b->line);
  else
    fprintf(stderr, "%s: %s\n", b->name, b->line);
  fflush(stderr);
  b->drawn = b->terminal;
  b->shown = at;
  b->jobs = 0;
  b->line[0] = 0;
}
