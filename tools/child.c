/* SPDX-License-Identifier: Apache-2.0
 * Child processes that run sub-commands (child.h). */
#include "tools/child.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { TAIL = 4096 };

double child_clock(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

long child_cores(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

/* In the child: never returns. Only what is safe after fork is called. */
static void become(char *const *argv, const child_how *how, pid_t parent) {
  signal(SIGTERM, SIG_DFL); /* the parent's handler would lose it before the new program listens */
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, how->on_death);
  if (getppid() != parent) _exit(127);
  int log = open(how->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (how->append ? 0 : O_TRUNC), 0666);
  int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (log < 0 || null < 0 || dup2(null, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0) _exit(127);
  static const char text[] = "kedge: the program cannot be started\n";
  if (!how->folder || chdir(how->folder) == 0) {
    execv(argv[0], argv);
    execv("/proc/self/exe", argv); /* the file was replaced meanwhile */
  }
  if (write(2, text, sizeof text - 1) < 0) _exit(126);
  _exit(127);
}

kedge_status child_start(char **argv, const child_how *how, pid_t *process) {
  char program[4096];
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (length <= 0) return kedge_fail(KEDGE_ERR_IO, "/proc/self/exe: %s", strerror(errno));
  program[length] = 0;
  argv[0] = program;
  const pid_t parent = getpid();
  fflush(NULL);
  *process = fork();
  if (*process == 0) become(argv, how, parent);
  argv[0] = NULL;
  if (*process < 0) return kedge_fail(KEDGE_ERR_IO, "no new process: %s", strerror(errno));
  setpgid(*process, *process); /* also here: a signal may come before the child gets to it */
  return KEDGE_OK;
}

/* ---- Logs
 * -------------------------------------------------------------------------------------------------------- */

/* The end of a log, with a NUL; its first line may be cut. */
static void read_tail(const char *log, char text[TAIL + 1]) {
  FILE *file = fopen(log, "rb");
  size_t length = 0;
  if (file && (fseek(file, -TAIL, SEEK_END) == 0 || fseek(file, 0, SEEK_SET) == 0))
    length = fread(text, 1, TAIL, file);
  text[length] = 0;
  if (file) fclose(file);
}

void child_last_line(const char *log, char *line, size_t size) {
  char text[TAIL + 1];
  read_tail(log, text);
  size_t end = strlen(text);
  while (end && strchr(" \t\r\n", text[end - 1])) end--;
  text[end] = 0;
  const char *newline = strrchr(text, '\n');
  snprintf(line, size, "%s", newline ? newline + 1 : text);
}

bool child_updates(const char *log, unsigned long long *done, unsigned long long *total) {
  static const char label[] = "\ntrain: ";
  char text[TAIL + 1];
  bool found = false;
  read_tail(log, text);
  for (const char *at = text; (at = strstr(at, label)); at++) {
    unsigned long long a, b;
    if (sscanf(at + sizeof label - 1, "%20llu/%20llu updates", &a, &b) != 2 || a > b || !b) continue;
    *done = a;
    *total = b;
    found = true;
  }
  return found;
}
