/* SPDX-License-Identifier: Apache-2.0
 * Model-written Python under a filter of system calls (sandbox.h). Only what is listed is allowed; everything
 * else fails with EPERM. Between fork and exec only system calls are made. */
#include "models/evaluation/sandbox.h"

#include "models/text/random.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
#define CAN_FILTER 1
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#endif

enum { TOKEN = 24 }; /* characters that the program's last line prints */

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- Filter
 * ------------------------------------------------------------------------------------------------------ */

#ifdef CAN_FILTER

#if defined(__x86_64__)
#define MACHINE AUDIT_ARCH_X86_64
#else
#define MACHINE AUDIT_ARCH_AARCH64
#endif

/* Calls that are allowed whatever their arguments. */
static const uint32_t allowed[] = {
    /* memory */
    SYS_brk, SYS_mmap, SYS_munmap, SYS_mprotect, SYS_mremap, SYS_madvise,
    /* files that are open, and looking */
    SYS_read, SYS_readv, SYS_pread64, SYS_write, SYS_writev, SYS_close, SYS_lseek, SYS_fstat, SYS_newfstatat,
    SYS_statx, SYS_faccessat, SYS_faccessat2, SYS_readlinkat, SYS_getdents64, SYS_getcwd, SYS_dup, SYS_dup3,
    SYS_statfs, SYS_fstatfs, SYS_fadvise64,
#if defined(__x86_64__)
    SYS_stat, SYS_lstat, SYS_access, SYS_readlink, SYS_dup2, SYS_poll, SYS_select, SYS_arch_prctl,
    SYS_getpgrp, SYS_time,
#endif
    SYS_ppoll, SYS_pselect6,
    /* itself */
    SYS_execve, SYS_exit, SYS_exit_group, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn,
    SYS_sigaltstack, SYS_set_tid_address, SYS_set_robust_list, SYS_rseq, SYS_futex, SYS_getpid, SYS_gettid,
    SYS_getppid, SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getgroups, SYS_uname, SYS_sysinfo,
    SYS_getrusage, SYS_times, SYS_sched_yield, SYS_sched_getaffinity, SYS_umask,
    /* time and chance */
    SYS_clock_gettime, SYS_clock_getres, SYS_clock_nanosleep, SYS_nanosleep, SYS_gettimeofday, SYS_getrandom};
enum { ALLOWED = sizeof allowed / sizeof *allowed };

/* Requests to terminals and descriptors that change nothing outside: TCGETS, TIOCGWINSZ, FIOCLEX, FIONCLEX.
 */
static const uint32_t requests[] = {0x5401, 0x5413, 0x5451, 0x5450};

#define ARGUMENT(n)  ((uint32_t)(offsetof(struct seccomp_data, args) + (n) * sizeof(uint64_t)))
#define LOAD(at)     (struct sock_filter) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (at))
#define RETURN(what) (struct sock_filter) BPF_STMT(BPF_RET | BPF_K, (what))
#define IF_EQUAL(value, yes, no)                                                                             \
  (struct sock_filter) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), (yes), (no))
#define IF_ANY(bits, yes, no) (struct sock_filter) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, (bits), (yes), (no))

enum { REQUESTS = sizeof requests / sizeof *requests, FILTER = 64 + 2 * ALLOWED + 4 * REQUESTS };
static const uint32_t no = SECCOMP_RET_ERRNO | EPERM, yes = SECCOMP_RET_ALLOW;
static const uint32_t writing = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND | (O_TMPFILE & ~O_DIRECTORY);

/* Where call `number` has the argument `argument`, its value must be one of `values`. */
static size_t allow_values(struct sock_filter *f, size_t at, uint32_t number, uint32_t argument,
                           const uint32_t *values, size_t count) {
  f[at++] = IF_EQUAL(number, 0, (uint8_t)(2 * count + 2));
  f[at++] = LOAD(ARGUMENT(argument));
  for (size_t i = 0; i < count; i++) {
    f[at++] = IF_EQUAL(values[i], 0, 1);
    f[at++] = RETURN(yes);
  }
  f[at++] = RETURN(no);
  return at;
}

/* Opening, with flags in the argument `argument`, only for reading. */
static size_t allow_reading(struct sock_filter *f, size_t at, uint32_t number, uint32_t argument) {
  f[at++] = IF_EQUAL(number, 0, 4);
  f[at++] = LOAD(ARGUMENT(argument));
  f[at++] = IF_ANY(writing, 0, 1);
  f[at++] = RETURN(no);
  f[at++] = RETURN(yes);
  return at;
}

/* Its own limits may be asked for, not set: root could raise them again. The new limit, the third argument,
 * must be NULL in both halves. */
static size_t allow_limits(struct sock_filter *f, size_t at) {
  f[at++] = IF_EQUAL(SYS_prlimit64, 0, 8);
  f[at++] = LOAD(ARGUMENT(0));
  f[at++] = IF_EQUAL(0, 0, 5);
  f[at++] = LOAD(ARGUMENT(2));
  f[at++] = IF_EQUAL(0, 0, 3);
  f[at++] = LOAD(ARGUMENT(2) + 4);
  f[at++] = IF_EQUAL(0, 0, 1);
  f[at++] = RETURN(yes);
  f[at++] = RETURN(no);
  return at;
}

static size_t make_filter(struct sock_filter *f) {
  static const uint32_t file_commands[] = {F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC};
  size_t at = 0;
  f[at++] = LOAD(offsetof(struct seccomp_data, arch));
  f[at++] = IF_EQUAL(MACHINE, 1, 0);
  f[at++] = RETURN(SECCOMP_RET_KILL_PROCESS);
  f[at++] = LOAD(offsetof(struct seccomp_data, nr));
  for (size_t i = 0; i < ALLOWED; i++) {
    f[at++] = IF_EQUAL(allowed[i], 0, 1);
    f[at++] = RETURN(yes);
  }
  at = allow_values(f, at, SYS_ioctl, 1, requests, REQUESTS);
  at = allow_values(f, at, SYS_fcntl, 1, file_commands, sizeof file_commands / sizeof *file_commands);
  at = allow_limits(f, at);
  at = allow_reading(f, at, SYS_openat, 2);
#if defined(__x86_64__)
  at = allow_reading(f, at, SYS_open, 1);
#endif
  f[at++] = RETURN(no);
  return at;
}

static bool put_on_filter(struct sock_filter *f, size_t count) {
  const struct sock_fprog program = {(unsigned short)count, f};
  return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
         !syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

/* ---- Child
 * ------------------------------------------------------------------------------------------------------- */

typedef struct child_plan {
  const char *python;
  char *const *arguments, *const *environment;
  int input, output; /* program, pipe */
  struct rlimit cpu, memory;
  struct sock_filter *filter;
  size_t filter_count;
} child_plan;

static bool limit_child(const child_plan *p) {
  static const struct rlimit none = {0, 0}, size = {1 << 20, 1 << 20}, files = {32, 32};
  return !setrlimit(RLIMIT_CPU, &p->cpu) && !setrlimit(RLIMIT_AS, &p->memory) &&
         !setrlimit(RLIMIT_CORE, &none) && !setrlimit(RLIMIT_FSIZE, &size) &&
         !setrlimit(RLIMIT_NOFILE, &files);
}

/* The child's life up to the interpreter; only system calls, as other threads may hold locks. */
static _Noreturn void become(const child_plan *p) {
  const int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);
  bool good = setsid() >= 0 && !prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) && nothing >= 0 && !chdir("/") &&
              dup2(p->input, 0) == 0 && dup2(p->output, 1) == 1 && dup2(nothing, 2) == 2;
  good = good && !syscall(SYS_close_range, 3u, ~0u, 0u);
  for (int s = 1; s < 32; s++)
    if (s != SIGKILL && s != SIGSTOP) signal(s, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  if (good && limit_child(p) && put_on_filter(p->filter, p->filter_count))
    execve(p->python, p->arguments, p->environment);
  _exit(127);
}

/* Reads what the child prints until it ends or its time is over; keeps the last bytes, TOKEN of them. */
static bool watch(int pipe, double seconds, char tail[TOKEN]) {
  const double end = now() + seconds;
  char piece[4096];
  memset(tail, 0, TOKEN);
  for (double left = seconds; left > 0; left = end - now()) {
    struct pollfd at = {pipe, POLLIN, 0};
    const int ready = poll(&at, 1, (int)(left * 1000) + 1);
    if (ready < 0 && errno != EINTR) return true;
    if (ready <= 0) continue;
    const ssize_t got = read(pipe, piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    const size_t some = got > TOKEN ? TOKEN : (size_t)got;
    memmove(tail, tail + some, TOKEN - some);
    memcpy(tail + TOKEN - some, piece + (size_t)got - some, some);
  }
  return false;
}

static kedge_status start(const child_plan *p, const int pipe[2], pid_t *child) {
  *child = fork();
  if (!*child) {
    close(pipe[0]);
    become(p);
  }
  return *child > 0 ? KEDGE_OK : kedge_fail(KEDGE_ERR_IO, "no process for a program: %s", strerror(errno));
}

/* The program in memory, as a file that is read from its start. */
static kedge_status program_file(const char *program, int *fd) {
  *fd = memfd_create("program", MFD_CLOEXEC);
  size_t left = strlen(program);
  for (const char *at = program; *fd >= 0 && left;) {
    const ssize_t wrote = write(*fd, at, left);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return kedge_fail(KEDGE_ERR_IO, "a program of %zu bytes has no room", strlen(program));
    at += wrote;
    left -= (size_t)wrote;
  }
  if (*fd < 0 || lseek(*fd, 0, SEEK_SET))
    return kedge_fail(KEDGE_ERR_IO, "no room for a program: %s", strerror(errno));
  return KEDGE_OK;
}

static kedge_status run_child(const kedge_sandbox *sandbox, const char *program, char tail[TOKEN],
                              bool *in_time, int *state) {
  char *const arguments[] = {sandbox->python, (char *)(uintptr_t) "-I", (char *)(uintptr_t) "-B",
                             (char *)(uintptr_t) "-", NULL};
  char *const environment[] = {(char *)(uintptr_t) "LC_ALL=C.UTF-8", (char *)(uintptr_t) "OMP_NUM_THREADS=1",
                               (char *)(uintptr_t) "OPENBLAS_NUM_THREADS=1", NULL};
  struct sock_filter filter[FILTER];
  const double seconds = sandbox->seconds > 0 ? sandbox->seconds : 10;
  const uint64_t memory = sandbox->memory ? sandbox->memory : (uint64_t)1 << 30;
  child_plan p = {.python = sandbox->python, .arguments = arguments, .environment = environment, .input = -1};
  p.cpu = (struct rlimit){(rlim_t)seconds + 1, (rlim_t)seconds + 1};
  p.memory = (struct rlimit){memory, memory};
  p.filter = filter;
  p.filter_count = make_filter(filter);
  int pipe[2] = {-1, -1};
  pid_t child = 0;
  kedge_status status = program_file(program, &p.input);
  if (status == KEDGE_OK && pipe2(pipe, O_CLOEXEC))
    status = kedge_fail(KEDGE_ERR_IO, "no pipe for a program: %s", strerror(errno));
  p.output = pipe[1];
  if (status == KEDGE_OK) status = start(&p, pipe, &child);
  if (pipe[1] >= 0) close(pipe[1]);
  if (status == KEDGE_OK) {
    *in_time = watch(pipe[0], seconds, tail);
    /* A program that closed its output may still run. */
    if (!*in_time) kill(child, SIGKILL);
    for (double end = now() + 1; waitpid(child, state, WNOHANG) == 0;) {
      const struct timespec pause = {0, 1000000};
      nanosleep(&pause, NULL);
      if (now() > end) kill(child, SIGKILL);
    }
  }
  if (pipe[0] >= 0) close(pipe[0]);
  if (p.input >= 0) close(p.input);
  return status;
}

#else

static kedge_status run_child(const kedge_sandbox *sandbox, const char *program, char tail[TOKEN],
                              bool *in_time, int *state) {
  (void)sandbox, (void)program, (void)tail, (void)in_time, (void)state;
  return kedge_fail(KEDGE_ERR_UNSUPPORTED,
                    "programs are not run here: this system has no filter of system calls");
}

#endif

/* ---- Programs
 * --------------------------------------------------------------------------------------------------- */

/* Text that a program cannot know beforehand: that it was printed shows that the last line was reached. */
static void make_token(char token[TOKEN + 1]) {
  uint64_t seed[2] = {(uint64_t)(now() * 1e9), (uint64_t)(uintptr_t)token};
#ifdef CAN_FILTER
  if (syscall(SYS_getrandom, seed, sizeof seed, 0) < 0) seed[0] += (uint64_t)getpid();
#endif
  kedge_random random = kedge_random_start(seed[0], seed[1]);
  for (int i = 0; i < TOKEN; i++) token[i] = (char)('a' + (char)kedge_random_below(&random, 26));
  token[TOKEN] = 0;
}

kedge_status kedge_sandbox_run(const kedge_sandbox *sandbox, const char *program, kedge_sandbox_end *end) {
  char token[TOKEN + 1], tail[TOKEN];
  bool in_time = false;
  int state = -1;
  make_token(token);
  char *whole =
      kedge_format("%s\nimport sys as kedge_sys\nkedge_sys.stdout.write('%s')\nkedge_sys.stdout.flush()\n",
                   program, token);
  if (!whole) return KEDGE_ERR_MEMORY;
  *end = KEDGE_SANDBOX_FAILED;
  kedge_status status = run_child(sandbox, whole, tail, &in_time, &state);
  kedge_free(whole);
  if (status != KEDGE_OK) return status;
  const bool ended = WIFEXITED(state) && WEXITSTATUS(state) == 0;
  if (!in_time || (WIFSIGNALED(state) && WTERMSIG(state) == SIGXCPU))
    *end = KEDGE_SANDBOX_TIME;
  else if (ended && !memcmp(tail, token, TOKEN))
    *end = KEDGE_SANDBOX_PASSED;
  return KEDGE_OK;
}

/* ---- Interpreter
 * ------------------------------------------------------------------------------------------------ */

/* The file behind a name of the PATH: scripts that only choose an interpreter are asked which. */
static kedge_status find_python(const char *name, char **path) {
  char *command = kedge_format("%s -c 'import sys; print(sys.executable)' 2>/dev/null", name);
  char line[4096] = "";
  *path = NULL;
  if (!command) return KEDGE_ERR_MEMORY;
  for (const char *c = name; *c; c++)
    if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/+", *c)) {
      kedge_free(command);
      return kedge_fail(KEDGE_ERR_ARGUMENT, "\"%.80s\" is no name of an interpreter", name);
    }
  FILE *out = popen(command, "re");
  kedge_free(command);
  const bool read = out && fgets(line, sizeof line, out);
  const int state = out ? pclose(out) : -1;
  line[strcspn(line, "\n")] = 0;
  struct stat info;
  if (!read || state || *line != '/' || stat(line, &info) || !S_ISREG(info.st_mode))
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "programs are not run here: there is no interpreter \"%.80s\"",
                      name);
  *path = kedge_strdup(line);
  return *path ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

kedge_status kedge_sandbox_open(kedge_sandbox *sandbox, const char *python) {
  /* Passes only where the interpreter starts and the filter holds. */
  static const char trial[] =
      "import os\n"
      "for call in (os.fork, lambda: os.kill(os.getppid(), 0), lambda: os.rmdir('/x')):\n"
      "  try:\n"
      "    call()\n"
      "  except PermissionError:\n"
      "    continue\n"
      "  raise SystemExit(1)\n";
  kedge_sandbox_end end = KEDGE_SANDBOX_FAILED;
  *sandbox = (kedge_sandbox){0};
  KEDGE_TRY(find_python(python ? python : "python3", &sandbox->python));
  kedge_status status = kedge_sandbox_run(sandbox, trial, &end);
  if (status == KEDGE_OK && end != KEDGE_SANDBOX_PASSED)
    status = kedge_fail(KEDGE_ERR_UNSUPPORTED,
                        "programs are not run here: %s does not run under a filter of system calls (seccomp)",
                        sandbox->python);
  if (status != KEDGE_OK) kedge_sandbox_close(sandbox);
  return status;
}

void kedge_sandbox_close(kedge_sandbox *sandbox) {
  kedge_free(sandbox->python);
  *sandbox = (kedge_sandbox){0};
}
