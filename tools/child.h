/* SPDX-License-Identifier: Apache-2.0
 *
 * Sub-commands of this program in child processes, for commands that run many of them (sweep_jobs.c,
 * lab_jobs.c). A child has a process group of its own, so that Ctrl-C reaches its parent alone. */
#ifndef KEDGE_TOOLS_CHILD_H
#define KEDGE_TOOLS_CHILD_H

#include "core/kedge.h"

#include <sys/types.h>

typedef struct child_how {
  const char *folder; /* where it works; NULL: here */
  const char *log;    /* gets its output and errors; a path from here */
  bool append;        /* to what the log holds */
  int on_death;       /* signal that it gets where its parent dies */
} child_how;

/* Starts `kedge` with the arguments argv[1..], ended by NULL; argv[0] is set here. ERR_IO where no process
 * can be made. */
kedge_status child_start(char **argv, const child_how *how, pid_t *process);

/* The last line of a log that is not empty, cut to `size`; "" if there is none. */
void child_last_line(const char *log, char *line, size_t size);
/* Updates done and in all, by the last progress of `kedge train` in a log; false where it has none yet. */
bool child_updates(const char *log, unsigned long long *done, unsigned long long *total);

/* Seconds of a clock that only goes forward. */
double child_clock(void);

/* How many processes of one thread go side by side here. */
long child_cores(void);

#endif
