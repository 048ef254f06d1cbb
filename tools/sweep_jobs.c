/* SPDX-License-Identifier: Apache-2.0
 * Running a sweep: `kedge train` in child processes, some at a time (sweep.h). Children have process groups
 * of their own, so that Ctrl-C reaches the sweep alone, which asks each of them once to save and stop; where
 * the sweep itself is killed, the kernel asks them. */
#include "models/checkpoint/atomic.h"
#include "models/training/run_checkpoint.h"
#include "tools/board.h"
#include "tools/child.h"
#include "tools/interrupt.h"
#include "tools/sweep.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct jobs {
  sweep *s;
  board board;
  bool asked; /* the children were told to stop */
  size_t failed, stopped;
  long threads; /* for each child; 0: as configured */
} jobs;

static size_t count(const sweep *s, sweep_state state) {
  size_t n = 0;
  for (size_t i = 0; i < s->run_count; i++) n += s->runs[i].state == state;
  return n;
}

/* ---- What is shown
 * -------------------------------------------------------------------------------------------------- */

/* A line about one run, with its place among all. */
static void tell(jobs *j, const sweep_run *run, const char *what) {
  board_tell(&j->board, (size_t)(run - j->s->runs) + 1, j->s->run_count, run->name, what);
}

static double share_done(const sweep_run *run) {
  unsigned long long done, total;
  return child_updates(run->log, &done, &total) ? (double)done / (double)total : 0;
}

/* Seconds left if runs go on as fast as in this call; negative: not known yet. */
static double time_left(const jobs *j, double at) {
  double made = 0, left = 0;
  for (size_t i = 0; i < j->s->run_count; i++) {
    const sweep_run *run = &j->s->runs[i];
    double share = run->state == SWEEP_RUNNING ? share_done(run) : 0;
    if (run->state == SWEEP_RUNNING) made += share > run->share ? share - run->share : 0;
    if (run->state == SWEEP_FINISHED && run->began > 0) made += 1 - run->share;
    if (run->state == SWEEP_RUNNING) left += 1 - share;
    if (run->state == SWEEP_WAITING) left += 1;
  }
  return made > 0 ? (at - j->board.began) * left / made : -1;
}

/* "sweep: 3 of 12 finished, 2 running, 1h 02m, 3h 10m left: NAME 120/782, NAME 80/782". */
static void show(jobs *j, double at) {
  char text[24];
  const sweep *s = j->s;
  const double left = time_left(j, at);
  board *b = &j->board;
  board_add(b, "%zu of %zu finished", count(s, SWEEP_FINISHED), s->run_count);
  if (j->failed) board_add(b, ", %zu failed", j->failed);
  board_add(b, ", %zu running, %s", count(s, SWEEP_RUNNING), cli_duration(at - b->began, text));
  if (left >= 0) board_add(b, ", %s left", cli_duration(left, text));
  for (size_t i = 0; i < s->run_count; i++)
    if (s->runs[i].state == SWEEP_RUNNING) board_job(b, s->runs[i].name, s->runs[i].log);
  board_draw(b, at);
}

/* ---- A child
 * -------------------------------------------------------------------------------------------------------- */

static kedge_status spawn(jobs *j, sweep_run *run, const char *yaml, bool resumes) {
  char threads[40];
  snprintf(threads, sizeof threads, "threads=%ld", j->threads);
  char *argv[6] = {NULL, (char[]){"train"}, (char *)(uintptr_t)yaml};
  argv[3] = resumes ? (char[]){"resume_from_checkpoint=true"} : (char[]){"overwrite_output_dir=true"};
  if (j->threads && !run->threads) argv[4] = threads;
  const child_how how = {.log = run->log, .append = resumes, .on_death = SIGTERM};
  return child_start(argv, &how, &run->process);
}

/* Whether a process is at work in the folder: a child of a sweep that was killed takes a moment to save. */
static bool busy(const sweep_run *run) {
  int folder = open(run->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return false;
  bool held = flock(folder, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
  close(folder);
  return held;
}

/* A folder that holds something and no record of a sweep is someone's: nothing is written there. */
static kedge_status claim(const sweep_run *run) {
  KEDGE_TRY(kedge_folder_make(run->folder));
  if (run->found) return KEDGE_OK;
  DIR *folder = opendir(run->folder);
  if (!folder) return kedge_fail(KEDGE_ERR_IO, "%s: %s", run->folder, strerror(errno));
  bool empty = true;
  for (struct dirent *e; (e = readdir(folder));) empty = empty && e->d_name[0] == '.';
  closedir(folder);
  return empty ? KEDGE_OK
               : kedge_fail(KEDGE_ERR_ARGUMENT, "%s holds files that no sweep wrote; choose another --out",
                            run->folder);
}

static kedge_status start(jobs *j, sweep_run *run) {
  char *yaml = kedge_path_join(run->folder, "run.yaml"), *checkpoint = NULL;
  kedge_status status = yaml ? claim(run) : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = sweep_record(j->s, run, false);
  if (status == KEDGE_OK) status = kedge_file_write(yaml, run->yaml, strlen(run->yaml));
  if (status == KEDGE_OK) status = kedge_run_find(run->folder, &checkpoint, NULL);
  run->share = checkpoint ? share_done(run) : 0;
  if (status == KEDGE_OK) status = spawn(j, run, yaml, checkpoint != NULL);
  if (status == KEDGE_OK) {
    run->state = SWEEP_RUNNING;
    run->began = child_clock();
    tell(j, run, checkpoint ? "goes on" : run->found ? "starts anew" : "starts");
    run->found = true;
  }
  kedge_free(checkpoint);
  kedge_free(yaml);
  return status;
}

static void fail_run(jobs *j, sweep_run *run, const char *why) {
  char line[700];
  run->state = SWEEP_FAILED;
  j->failed++;
  snprintf(line, sizeof line, "failed: %s", why);
  tell(j, run, line);
}

/* What became of a child. */
static void finish(jobs *j, sweep_run *run, int code) {
  char line[400], text[640], took[24];
  const double seconds = child_clock() - run->began;
  run->process = 0;
  run->seconds += seconds;
  child_last_line(run->log, line, sizeof line);
  if (WIFEXITED(code) && WEXITSTATUS(code) == 0) {
    run->state = SWEEP_FINISHED;
    if (sweep_record(j->s, run, true) != KEDGE_OK) {
      fail_run(j, run, kedge_message());
      return;
    }
    snprintf(text, sizeof text, "finished in %s", cli_duration(seconds, took));
    tell(j, run, text);
  } else if (WIFEXITED(code) && WEXITSTATUS(code) == 130) {
    run->state = SWEEP_STOPPED;
    j->stopped++;
    tell(j, run, j->asked ? "stopped, its checkpoint is saved" : line);
  } else if (WIFSIGNALED(code)) {
    snprintf(text, sizeof text, "%s after \"%s\"", strsignal(WTERMSIG(code)), line);
    if (j->asked && WTERMSIG(code) == SIGTERM) {
      run->state = SWEEP_STOPPED; /* it had not come as far as listening */
      j->stopped++;
      tell(j, run, "stopped before its first update");
    } else {
      fail_run(j, run, text);
    }
  } else {
    fail_run(j, run, *line ? line : "it said nothing");
  }
}

static void reap(jobs *j) {
  for (size_t i = 0; i < j->s->run_count; i++) {
    int code;
    sweep_run *run = &j->s->runs[i];
    if (run->state == SWEEP_RUNNING && waitpid(run->process, &code, WNOHANG) == run->process)
      finish(j, run, code);
  }
}

/* ---- All of them
 * ---------------------------------------------------------------------------------------------------- */

static void start_more(jobs *j) {
  size_t running = count(j->s, SWEEP_RUNNING);
  for (size_t i = 0; i < j->s->run_count && running < (size_t)j->s->jobs; i++) {
    sweep_run *run = &j->s->runs[i];
    if (run->state != SWEEP_WAITING || busy(run)) continue;
    if (start(j, run) == KEDGE_OK)
      running++;
    else
      fail_run(j, run, kedge_message());
  }
}

static void ask_to_stop(jobs *j) {
  board_clear(&j->board);
  fprintf(stderr, "sweep: stopping; each run saves a checkpoint first\n");
  for (size_t i = 0; i < j->s->run_count; i++)
    if (j->s->runs[i].state == SWEEP_RUNNING) kill(j->s->runs[i].process, SIGTERM);
  j->asked = true;
}

/* Several children with all threads each would slow one another down; results do not depend on threads. */
static long threads_each(const sweep *s) {
  const long each = s->jobs < 2 ? 0 : child_cores() / (long)s->jobs;
  return s->jobs < 2 || each > 1 ? each : 1;
}

static void announce(const jobs *j) {
  size_t begun = 0;
  for (size_t i = 0; i < j->s->run_count; i++)
    begun += j->s->runs[i].state == SWEEP_WAITING && j->s->runs[i].found;
  fprintf(stderr, "sweep: %zu runs in %s; %zu finished before, %zu begun before; %lld at a time\n",
          j->s->run_count, j->s->out, count(j->s, SWEEP_FINISHED), begun, (long long)j->s->jobs);
}

kedge_status sweep_go(sweep *s, size_t *failed) {
  jobs j = {.s = s, .threads = threads_each(s)};
  board_open(&j.board, "sweep");
  signal(SIGCHLD, SIG_DFL); /* where it is ignored, no child can be waited for */
  interrupt_listen();
  announce(&j);
  for (;;) {
    reap(&j);
    if (interrupt_requested() && !j.asked) ask_to_stop(&j);
    if (!j.asked) start_more(&j);
    const size_t running = count(s, SWEEP_RUNNING);
    if (!running && (j.asked || !count(s, SWEEP_WAITING))) break;
    const double at = child_clock();
    if (board_due(&j.board, at)) show(&j, at);
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
  }
  board_clear(&j.board);
  *failed = j.failed + (j.asked ? 0 : j.stopped);
  if (j.asked)
    return kedge_fail(KEDGE_ERR_INTERRUPTED,
                      "stopped with %zu of %zu runs finished; the same command goes on",
                      count(s, SWEEP_FINISHED), s->run_count);
  return KEDGE_OK;
}
