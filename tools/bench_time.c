/* SPDX-License-Identifier: Apache-2.0
 * Repeats and times what `kedge bench` measures, and watches who else is at work meanwhile. */
#include "tools/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RUNS = 1000, LEAST_RUNS = 3 };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds that all cores were at work since the machine started, and those of this process. */
typedef struct work {
  double all, own, wall;
} work;

static work work_now(void) {
  unsigned long long user = 0, nice = 0, kernel = 0, idle = 0, wait = 0, irq = 0, soft = 0;
  work w = {0, 0, now()};
  struct rusage usage;
  FILE *file = fopen("/proc/stat", "r");
  if (file) {
    if (fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &kernel, &idle, &wait, &irq,
               &soft) == 7)
      w.all = (double)(user + nice + kernel + irq + soft) / (double)sysconf(_SC_CLK_TCK);
    fclose(file);
  }
  getrusage(RUSAGE_SELF, &usage);
  w.own = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
          1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  return w;
}

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

kedge_status bench_repeat(const bench_options *o, bench_run run, bench_measure measure, void *context,
                          bench_line *line) {
  KEDGE_TRY(run(context));
  double *seconds = kedge_alloc(MAX_RUNS, sizeof *seconds);
  if (!seconds) return KEDGE_ERR_MEMORY;
  const work before = work_now();
  kedge_status status = KEDGE_OK;
  while (line->runs < MAX_RUNS && (line->runs < LEAST_RUNS || now() - before.wall < o->seconds)) {
    if (measure) measure(context); /* what the runs before took */
    const double start = now();
    status = run(context);
    if (status != KEDGE_OK) break;
    seconds[line->runs++] = measure ? measure(context) : now() - start;
  }
  const work after = work_now();
  if (status == KEDGE_OK) {
    qsort(seconds, line->runs, sizeof *seconds, ascending);
    line->seconds = seconds[line->runs / 2];
    line->best = seconds[0];
    line->cpu = (after.own - before.own) / line->runs;
    line->load = (after.all - before.all - (after.own - before.own)) / (after.wall - before.wall);
    if (line->load < 0) line->load = 0;
  }
  kedge_free(seconds);
  return status;
}

bench_line *bench_add(bench_report *r) {
  bench_line *line = &r->lines[r->count < BENCH_LINES ? r->count++ : BENCH_LINES - 1];
  *line = (bench_line){0};
  return line;
}
