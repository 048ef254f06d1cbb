/* SPDX-License-Identifier: Apache-2.0
 * Jobs in child processes (workers.h). Children take the next job from a shared counter, write results into
 * shared memory, and tell the parent by a byte in a pipe; the pipe ends when the last child does. */
#include "models/retention/workers.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORKERS_MAX = 64, MESSAGE = 400, POLL_MS = 100, NO_JOB = -1 };

typedef struct job_outcome {
  kedge_status status;
  char message[MESSAGE];
} job_outcome;

/* At the start of the shared memory; outcomes and results follow. */
typedef struct shared {
  atomic_uint next;
  atomic_int at[WORKERS_MAX]; /* the job that a worker is at */
} shared;

typedef struct pool {
  const kedge__jobs *jobs;
  uint8_t *memory;
  size_t bytes, results_at;
  uint32_t workers;
  pid_t children[WORKERS_MAX];
  int ends[2]; /* of the pipe */
} pool;

static job_outcome *outcome_of(const pool *p, uint32_t job) {
  return (job_outcome *)(void *)(p->memory + sizeof(shared)) + job;
}

static void work(const pool *p, uint32_t worker) {
  shared *s = (shared *)(void *)p->memory;
  for (;;) {
    const uint32_t job = atomic_fetch_add(&s->next, 1);
    if (job >= p->jobs->count) break;
    atomic_store(&s->at[worker], (int)job);
    job_outcome *o = outcome_of(p, job);
    o->status = p->jobs->job(p->jobs->context, job, p->memory + p->results_at + job * p->jobs->result_bytes);
    if (o->status != KEDGE_OK) {
      snprintf(o->message, MESSAGE, "%s", kedge_message());
      /* The others need not go on. */
      atomic_store(&s->next, p->jobs->count);
    }
    while (write(p->ends[1], "", 1) < 0 && errno == EINTR) {
    }
  }
  atomic_store(&s->at[worker], NO_JOB);
}

static uint32_t cores(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return (uint32_t)CPU_COUNT(&set);
  return 1;
}

static kedge_status run_here(const kedge__jobs *jobs, void *results) {
  for (uint32_t i = 0; i < jobs->count; i++) {
    if (jobs->progress && !jobs->progress(jobs->progress_context, i, jobs->count))
      return kedge_fail(KEDGE_ERR_INTERRUPTED, "stopped at %s %u of %u", jobs->name, i, jobs->count);
    KEDGE_TRY(jobs->job(jobs->context, i, (uint8_t *)results + i * jobs->result_bytes));
  }
  if (jobs->progress) jobs->progress(jobs->progress_context, jobs->count, jobs->count);
  return KEDGE_OK;
}

/* Starts as many children as the system allows, at least one. */
static kedge_status start(pool *p, uint32_t workers) {
  const pid_t parent = getpid();
  for (p->workers = 0; p->workers < workers; p->workers++) {
    const pid_t child = fork();
    if (child < 0) break;
    if (child == 0) {
      /* Gone with the parent, also where that was killed before this line. */
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() == parent) {
        close(p->ends[0]);
        work(p, p->workers);
      }
      _exit(0);
    }
    p->children[p->workers] = child;
  }
  if (p->workers) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_IO, "cannot start a child process: %s", strerror(errno));
}

/* Until every child has closed its end of the pipe. False when stopped on request. */
static bool follow(pool *p) {
  const kedge__jobs *jobs = p->jobs;
  uint32_t done = 0;
  for (;;) {
    if (jobs->progress && !jobs->progress(jobs->progress_context, done, jobs->count)) return false;
    struct pollfd wait = {.fd = p->ends[0], .events = POLLIN};
    if (poll(&wait, 1, POLL_MS) <= 0) continue;
    uint8_t bytes[256];
    const ssize_t got = read(p->ends[0], bytes, sizeof bytes);
    if (got == 0) return true;
    if (got > 0) done += (uint32_t)got;
  }
}

/* Waits for all children; reports the first that did not end by itself. */
static kedge_status collect(pool *p, bool expected_death) {
  kedge_status status = KEDGE_OK;
  for (uint32_t w = 0; w < p->workers; w++) {
    int end = 0;
    while (waitpid(p->children[w], &end, 0) < 0 && errno == EINTR) {
    }
    if (expected_death || status != KEDGE_OK || (WIFEXITED(end) && WEXITSTATUS(end) == 0)) continue;
    const int job = atomic_load(&((shared *)(void *)p->memory)->at[w]);
    if (WIFSIGNALED(end))
      status = kedge_fail(KEDGE_ERR_IO, "%s %d of %u: its process was ended by signal %d (%s)", p->jobs->name,
                          job, p->jobs->count, WTERMSIG(end), strsignal(WTERMSIG(end)));
    else
      status = kedge_fail(KEDGE_ERR_IO, "%s %d of %u: its process ended with status %d", p->jobs->name, job,
                          p->jobs->count, WEXITSTATUS(end));
  }
  return status;
}

static kedge_status run_children(pool *p, uint32_t workers, void *results) {
  for (uint32_t w = 0; w < WORKERS_MAX; w++) atomic_store(&((shared *)(void *)p->memory)->at[w], NO_JOB);
  if (pipe2(p->ends, O_CLOEXEC))
    return kedge_fail(KEDGE_ERR_IO, "cannot make a pipe for child processes: %s", strerror(errno));
  kedge_status status = start(p, workers);
  close(p->ends[1]);
  const bool whole = status == KEDGE_OK ? follow(p) : true;
  for (uint32_t w = 0; !whole && w < p->workers; w++) kill(p->children[w], SIGKILL);
  close(p->ends[0]);
  if (status == KEDGE_OK) status = collect(p, !whole);
  if (!whole)
    return kedge_fail(KEDGE_ERR_INTERRUPTED, "stopped while child processes worked on %u jobs",
                      p->jobs->count);
  for (uint32_t i = 0; i < p->jobs->count && status == KEDGE_OK; i++) {
    const job_outcome *o = outcome_of(p, i);
    if (o->status != KEDGE_OK) status = kedge_fail(o->status, "%s", o->message);
  }
  if (status == KEDGE_OK) memcpy(results, p->memory + p->results_at, p->jobs->count * p->jobs->result_bytes);
  return status;
}

kedge_status kedge__jobs_run(const kedge__jobs *jobs, void *results) {
  uint32_t workers = jobs->workers ? jobs->workers : cores();
  if (workers > jobs->count) workers = jobs->count;
  if (workers > WORKERS_MAX) workers = WORKERS_MAX;
  memset(results, 0, jobs->count * jobs->result_bytes);
  if (jobs->workers == 1 || !workers) return run_here(jobs, results);
  pool p = {.jobs = jobs};
  const size_t head = sizeof(shared) + jobs->count * sizeof(job_outcome);
  p.results_at = (head + 63) / 64 * 64;
  p.bytes = p.results_at + jobs->count * jobs->result_bytes;
  void *memory = mmap(NULL, p.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return kedge_fail(KEDGE_ERR_MEMORY, "out of memory: %zu bytes shared with child processes", p.bytes);
  p.memory = memory;
  const kedge_status status = run_children(&p, workers, results);
  munmap(memory, p.bytes);
  return status;
}
