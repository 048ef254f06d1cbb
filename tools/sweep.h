/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of `kedge sweep` (sweep.c): which runs there are (sweep_plan.c), what is known of each in its
 * folder (sweep_record.c), running them in child processes (sweep_jobs.c), and the table of their results
 * (sweep_table.c). */
#ifndef KEDGE_TOOLS_SWEEP_H
#define KEDGE_TOOLS_SWEEP_H

#include "tools/cli.h"

#include <sys/types.h>

enum { SWEEP_MAX_GRIDS = 16, SWEEP_MAX_RUNS = 4096 };

/* A key and the values it takes, as they were written. */
typedef struct sweep_grid {
  char *key, **values;
  size_t count;
} sweep_grid;

typedef enum sweep_state {
  SWEEP_WAITING,
  SWEEP_RUNNING,
  SWEEP_FINISHED,
  SWEEP_FAILED,
  SWEEP_STOPPED /* ended early by a signal, with a checkpoint */
} sweep_state;

typedef struct sweep_run {
  size_t point; /* its row of the table */
  int64_t seed;
  char *name, *folder, *log; /* folder is <out>/<name>, log a file in it */
  char *yaml, *settings;     /* the resolved configuration; as JSON without what changes no number */
  char hash[33];             /* of settings */
  int64_t threads;           /* as configured */
  sweep_state state;
  bool found; /* it was begun in an earlier call */
  double seconds;
  /* while it runs */
  pid_t process;
  double began, share; /* time of its start; part of its updates that were done by then */
} sweep_run;

typedef struct sweep {
  const char *config;        /* NULL: none */
  const cli_list *overrides; /* KEY=VALUE for all runs */
  const cli_list *metrics;   /* of the table; none: the usual ones */
  int64_t jobs;
  sweep_grid grids[SWEEP_MAX_GRIDS];
  size_t grid_count;
  int64_t *seeds; /* none: the configuration's */
  size_t seed_count;
  char *out;
  sweep_run *runs; /* point by point, the last grid and then the seeds running fastest */
  size_t run_count, point_count;
} sweep;

/* ---- sweep_plan.c ---- */

/* Adds "KEY=V1,V2,..." to the grids. Commas inside brackets, braces and quotes do not separate. */
kedge_status sweep_add_grid(sweep *s, const char *text);
/* "42,43,44". */
kedge_status sweep_set_seeds(sweep *s, const char *text);
/* All runs, from a sweep whose grids, seeds and `out` (NULL: the configuration's output_dir) are set: each
 * is loaded, so that a key or value that is wrong is found before anything starts. */
kedge_status sweep_plan(sweep *s);
void sweep_destroy(sweep *s);
/* The value of a grid at a point. */
const char *sweep_value(const sweep *s, size_t point, size_t grid);

/* ---- sweep_record.c ---- */

/* Sets the state of each run by the records in the folders. ERR_MISMATCH if a folder holds a run of other
 * settings, naming the first that differs. */
kedge_status sweep_find(sweep *s);
/* Notes in its folder that a run begins, or that it is finished. */
kedge_status sweep_record(const sweep *s, const sweep_run *run, bool finished);

/* ---- sweep_jobs.c ---- */

/* Runs what is not finished, `jobs` at a time. A run that fails is told and the others go on: *failed counts
 * them. ERR_INTERRUPTED after a signal, when all children have saved and ended. */
kedge_status sweep_go(sweep *s, size_t *failed);

/* ---- sweep_table.c ---- */

/* Prints the table and writes it as sweep.csv and sweep.json into `out`. */
kedge_status sweep_table(const sweep *s);

#endif
