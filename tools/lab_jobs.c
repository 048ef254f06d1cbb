/* SPDX-License-Identifier: Apache-2.0
 * Running a study's stages in child processes, some at a time (lab.h). Where the study is killed the kernel
 * kills its children: what they had made is not recorded, and made again. */
#include "tools/board.h"
#include "tools/child.h"
#include "tools/cli.h"
#include "tools/interrupt.h"
#include "tools/lab.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_WORDS = 96 };

typedef struct jobs {
  lab *l;
  board board;
  double expected, took; /* of stages that ended in this call: their weights, their seconds */
  bool asked;            /* the children were told to stop */
  size_t failed;
} jobs;

static size_t count(const lab *l, lab_state state) {
  size_t n = 0;
  for (size_t i = 0; i < l->count; i++) n += l->stages[i].state == state;
  return n;
}

static char *log_path(const lab *l, const lab_stage *s) {
  char *name = kedge_format("%s.log", s->id), *path = name ? lab_path(l, "logs", name) : NULL;
  kedge_free(name);
  return path;
}

/* ---- What is shown
 * ----------------------------------------------------------------------------------------------- */

static void tell(jobs *j, const lab_stage *s, const char *what) {
  board_tell(&j->board, count(j->l, LAB_FINISHED), j->l->count, s->id, what);
}

/* The part of a running stage that is done, as far as it tells: bases do. */
static double share_done(const jobs *j, const lab_stage *s) {
  unsigned long long done = 0, total = 1;
  char *log = s->kind == LAB_BASE ? log_path(j->l, s) : NULL;
  const bool told = log && child_updates(log, &done, &total);
  kedge_free(log);
  return told ? (double)done / (double)total : 0;
}

/* Seconds until the end, if stages take as long as in this call compared with their weights. */
static double time_left(const jobs *j, double at) {
  double took = j->took, expected = j->expected, left = 0, longest = 0;
  for (size_t i = 0; i < j->l->count; i++) {
    const lab_stage *s = &j->l->stages[i];
    const double share = s->state == LAB_RUNNING ? share_done(j, s) - s->before : 0;
    if (share < 0.02) continue;
    took += at - s->began;
    expected += s->weight * share;
  }
  const double pace = took > 0 ? took / expected : 1;
  for (size_t i = 0; i < j->l->count; i++) {
    const lab_stage *s = &j->l->stages[i];
    if (s->state != LAB_WAITING && s->state != LAB_READY && s->state != LAB_RUNNING) continue;
    const double share = s->state == LAB_RUNNING ? share_done(j, s) : 0;
    double rest = s->weight * pace * (1 - share);
    if (s->state == LAB_RUNNING && share <= 0) rest -= at - s->began;
    if (rest < 0) rest = 0;
    left += rest;
    if (rest > longest) longest = rest;
  }
  left /= (double)j->l->jobs;
  return left > longest ? left : longest;
}

static void show(jobs *j, double at) {
  char text[24], more[24];
  const lab *l = j->l;
  board_add(&j->board, "%zu of %zu stages, %s, about %s left", count(l, LAB_FINISHED), l->count,
            cli_duration(at - j->board.began, text), cli_duration(time_left(j, at), more));
  for (size_t i = 0; i < l->count; i++) {
    const lab_stage *s = &l->stages[i];
    if (s->state != LAB_RUNNING) continue;
    char *log = s->kind == LAB_BASE ? log_path(l, s) : NULL;
    board_job(&j->board, s->id, log);
    kedge_free(log);
  }
  board_draw(&j->board, at);
}

/* ---- A step
 * ------------------------------------------------------------------------------------------------------ */

/* Splits a command line at its blanks; `line` is changed. */
static kedge_status split(char *line, char *argv[MAX_WORDS + 2]) {
  size_t n = 1;
  for (char *rest = line, *word; (word = strsep(&rest, " "));) {
    if (n > MAX_WORDS) return kedge_fail(KEDGE_ERR_ARGUMENT, "a command line has too many words");
    argv[n++] = word;
  }
  argv[n] = NULL;
  return KEDGE_OK;
}

static kedge_status start_step(const lab *l, lab_stage *s, bool goes_on) {
  char *argv[MAX_WORDS + 2],
      *log = log_path(l, s),
      *line = kedge_format("%s%s", s->steps[s->step], goes_on ? " resume_from_checkpoint=true" : "");
  const child_how how = {.folder = l->out, .log = log, .append = s->step > 0 || goes_on, .on_death = SIGKILL};
  kedge_status status = log && line ? split(line, argv) : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = child_start(argv, &how, &s->process);
  kedge_free(log);
  kedge_free(line);
  return status;
}

static void fail_stage(jobs *j, lab_stage *s, const char *why) {
  char line[700];
  s->state = LAB_FAILED;
  j->failed++;
  snprintf(line, sizeof line, "failed: %s", why);
  tell(j, s, line);
}

static void start(jobs *j, size_t index) {
  lab_stage *s = &j->l->stages[index];
  bool goes_on;
  kedge_status status = lab_begin(j->l, index, &goes_on);
  s->step = goes_on ? s->step_count - 1 : 0; /* of a base, whose last step trains */
  s->began = child_clock();
  s->cpu = s->train_cpu = 0;
  s->before = goes_on ? share_done(j, s) : 0;
  if (status == KEDGE_OK) status = start_step(j->l, s, goes_on);
  if (status != KEDGE_OK) {
    fail_stage(j, s, kedge_message());
    return;
  }
  s->state = LAB_RUNNING;
  if (goes_on) tell(j, s, "goes on from its checkpoint");
}

static void finish(jobs *j, size_t index) {
  lab_stage *s = &j->l->stages[index];
  char text[64], took[24];
  const double seconds = child_clock() - s->began;
  if (lab_finish(j->l, index) != KEDGE_OK) {
    fail_stage(j, s, kedge_message());
    return;
  }
  j->expected += s->weight;
  j->took += seconds;
  snprintf(text, sizeof text, "finished in %s", cli_duration(seconds, took));
  tell(j, s, text);
}

static void end_step(jobs *j, size_t index, int code, const struct rusage *use) {
  lab_stage *s = &j->l->stages[index];
  char line[400], text[640], *log = log_path(j->l, s);
  const double cpu = (double)use->ru_utime.tv_sec + 1e-6 * (double)use->ru_utime.tv_usec +
                     (double)use->ru_stime.tv_sec + 1e-6 * (double)use->ru_stime.tv_usec;
  s->process = 0;
  s->cpu += cpu;
  if (!strncmp(s->steps[s->step], "train ", 6)) s->train_cpu += cpu;
  if (log) child_last_line(log, line, sizeof line);
  if (!log) line[0] = 0;
  kedge_free(log);
  if (j->asked) {
    s->state = LAB_STOPPED;
  } else if (WIFEXITED(code) && !WEXITSTATUS(code)) {
    if (++s->step == s->step_count)
      finish(j, index);
    else if (start_step(j->l, s, false) != KEDGE_OK)
      fail_stage(j, s, kedge_message());
  } else if (WIFSIGNALED(code)) {
    snprintf(text, sizeof text, "%s after \"%s\"", strsignal(WTERMSIG(code)), line);
    fail_stage(j, s, text);
  } else {
    fail_stage(j, s, *line ? line : "it said nothing");
  }
}

/* ---- All of them
 * --------------------------------------------------------------------------------------------------- */

/* Whether any child had ended. */
static bool reap(jobs *j) {
  bool any = false;
  for (size_t i = 0; i < j->l->count; i++) {
    int code;
    struct rusage use;
    lab_stage *s = &j->l->stages[i];
    if (s->state != LAB_RUNNING || wait4(s->process, &code, WNOHANG, &use) != s->process) continue;
    end_step(j, i, code, &use);
    any = true;
  }
  return any;
}

static kedge_status start_more(jobs *j) {
  size_t running = count(j->l, LAB_RUNNING);
  for (size_t i = 0; i < j->l->count; i++) {
    lab_stage *s = &j->l->stages[i];
    const lab_state before = s->state;
    KEDGE_TRY(lab_look(j->l, i));
    if (before == LAB_WAITING && s->state == LAB_FAILED) j->failed++;
    if (s->state != LAB_READY || running >= (size_t)j->l->jobs) continue;
    start(j, i);
    running += s->state == LAB_RUNNING;
  }
  return KEDGE_OK;
}

static void ask_to_stop(jobs *j) {
  board_clear(&j->board);
  fprintf(stderr, "lab: stopping\n");
  for (size_t i = 0; i < j->l->count; i++)
    if (j->l->stages[i].state == LAB_RUNNING) kill(j->l->stages[i].process, SIGTERM);
  j->asked = true;
}

static void end_all(const lab *l) {
  for (size_t i = 0; i < l->count; i++)
    if (l->stages[i].state == LAB_RUNNING) {
      kill(l->stages[i].process, SIGKILL);
      waitpid(l->stages[i].process, NULL, 0);
    }
}

static void announce(const jobs *j) {
  const lab *l = j->l;
  fprintf(stderr, "lab: %s, %s\nlab: %zu stages in %s, %lld at a time; %zu finished before\n",
          l->preset->name, l->preset->remark, l->count, l->out, (long long)l->jobs, count(l, LAB_FINISHED));
}

kedge_status lab_go(lab *l, size_t *failed) {
  jobs j = {.l = l};
  kedge_status status = KEDGE_OK;
  bool changed = true;
  board_open(&j.board, "lab");
  signal(SIGCHLD, SIG_DFL); /* where it is ignored, no child can be waited for */
  interrupt_listen();
  for (size_t i = 0; status == KEDGE_OK && i < l->count; i++) status = lab_look(l, i);
  if (status == KEDGE_OK) announce(&j);
  while (status == KEDGE_OK) {
    if (interrupt_requested() && !j.asked) ask_to_stop(&j);
    if (changed && !j.asked) status = start_more(&j);
    if (!count(l, LAB_RUNNING)) break;
    const double at = child_clock();
    if (board_due(&j.board, at)) show(&j, at);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    changed = reap(&j);
  }
  board_clear(&j.board);
  if (status != KEDGE_OK) end_all(l);
  KEDGE_TRY(status);
  *failed = j.failed;
  if (j.asked)
    return kedge_fail(KEDGE_ERR_INTERRUPTED,
                      "stopped with %zu of %zu stages finished; the same command goes on",
                      count(l, LAB_FINISHED), l->count);
  return KEDGE_OK;
}

kedge_status lab_call(char **argv, int *code) {
  char program[4096];
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (length <= 0) return kedge_fail(KEDGE_ERR_IO, "/proc/self/exe: %s", strerror(errno));
  program[length] = 0;
  argv[0] = program;
  fflush(NULL);
  const pid_t process = fork();
  if (process < 0) return kedge_fail(KEDGE_ERR_IO, "no new process: %s", strerror(errno));
  if (!process) {
    execv(program, argv);
    _exit(127);
  }
  while (waitpid(process, code, 0) < 0 && errno == EINTR) {
  }
  *code = WIFEXITED(*code) ? WEXITSTATUS(*code) : 1;
  return KEDGE_OK;
}
