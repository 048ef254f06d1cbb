/* SPDX-License-Identifier: Apache-2.0
 * Progress of a long command (progress.h). */
#include "tools/progress.h"
#include "tools/cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

void progress_init(progress *p, FILE *out, const char *label, const char *unit, uint64_t first,
                   uint64_t total) {
  const char *term = getenv("TERM"), *no_colour = getenv("NO_COLOR");
  *p = (progress){.out = out, .label = label, .unit = unit, .first = first, .total = total, .done = first};
  p->start = now();
  p->shown = p->start;
  p->terminal = isatty(fileno(out)) && term && strcmp(term, "dumb");
  p->colour = p->terminal && !(no_colour && *no_colour);
}

static size_t width(const progress *p) {
  struct winsize size;
  bool known = !ioctl(fileno(p->out), TIOCGWINSZ, &size) && size.ws_col > 10;
  return known ? size.ws_col : 80;
}

static void put_rate(char *line, size_t size, double rate) {
  if (rate >= 1e6)
    snprintf(line, size, ", %.2fM tokens/s", rate / 1e6);
  else if (rate >= 1e4)
    snprintf(line, size, ", %.1fk tokens/s", rate / 1e3);
  else
    snprintf(line, size, ", %.0f tokens/s", rate);
}

/* "12/782 updates, 1.5%, 3400 tokens/s, 0m 12s, 3m 04s left, loss 1.2". */
static void compose(const progress *p, char *line, size_t size, double seconds, const char *text, bool last) {
  char took[24], left[24];
  size_t used;
  if (p->total)
    snprintf(line, size, "%llu/%llu %s, %.1f%%", (unsigned long long)p->done, (unsigned long long)p->total,
             p->unit, 100.0 * (double)p->done / (double)p->total);
  else
    snprintf(line, size, "%llu %s", (unsigned long long)p->done, p->unit);
  used = strlen(line);
  if (p->tokens && seconds > 0) put_rate(line + used, size - used, (double)p->tokens / seconds);
  used = strlen(line);
  snprintf(line + used, size - used, ", %s", cli_duration(seconds, took));
  used = strlen(line);
  bool known = !last && p->total > p->done && p->done > p->first;
  double rest = known ? seconds * (double)(p->total - p->done) / (double)(p->done - p->first) : 0;
  if (known) snprintf(line + used, size - used, ", %s left", cli_duration(rest, left));
  used = strlen(line);
  if (text) snprintf(line + used, size - used, ", %s", text);
}

static void show(progress *p, double at, const char *text, bool last) {
  char line[256];
  compose(p, line, sizeof line, at - p->start, text, last);
  if (p->terminal) {
    size_t room = width(p) - 1, head = strlen(p->label) + 2;
    int body = (int)(room > head ? room - head : 0);
    fprintf(p->out, "\r%s%s%s: %.*s\033[K%s", p->colour ? "\033[1m" : "", p->label,
            p->colour ? "\033[0m" : "", body, line, last ? "\n" : "");
  } else {
    fprintf(p->out, "%s: %s\n", p->label, line);
  }
  fflush(p->out);
  p->drawn = p->terminal && !last;
  p->shown = at;
}

void progress_update(progress *p, uint64_t done, uint64_t tokens, const char *text) {
  p->done = done;
  p->tokens = tokens;
  double at = now();
  if (at - p->shown >= (p->terminal ? 0.1 : 10.0)) show(p, at, text, false);
}

void progress_clear(progress *p) {
  if (!p->drawn) return;
  fputs("\r\033[K", p->out);
  fflush(p->out);
  p->drawn = false;
}

void progress_end(progress *p, const char *text) {
  show(p, now(), text, true);
}
