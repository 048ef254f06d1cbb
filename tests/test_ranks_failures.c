/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * Runs of several ranks that go wrong. A rank killed at any moment, ten times over, ends all of them at once,
 * and the run, resumed each time, ends with the bits of one that nothing happened to; a rank that hangs is
 * found by its missing heartbeat; a file that one rank cannot write leaves the checkpoint before it whole,
 * and is told in one line. */
#include "tests/support/files.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 4, STEPS = 100, KILLS = 10, PROMISE = 30 };

static const char settings[] =
    "save_total_limit=2 gradient_accumulation_steps=2 threads=1 "
    "per_device_train_batch_size=2 lr_scheduler_type=constant router_probe_steps=0";

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Each rank leaves its process id in pid.<rank> and becomes kedge. */
static int prepare(void **state) {
  char script[1024];
  (void)state;
  training_prepare(40);
  snprintf(
      script, sizeof script,
      "#!/bin/sh\n[ \"$OMPI_COMM_WORLD_RANK\" != \"$SMALL_RANK\" ] || ulimit -f \"$SMALL\"\n"
      "echo $$ >pid.tmp.$OMPI_COMM_WORLD_RANK && mv pid.tmp.$OMPI_COMM_WORLD_RANK pid.$OMPI_COMM_WORLD_RANK\n"
      "exec '%s' \"$@\"\n",
      getenv("KEDGE_BIN"));
  test_write_text(test_path(test_folder(), "rank.sh"), script);
  assert_int_equal(system("true"), 0);
  return 0;
}

/* Starts a run in the background; what it says goes to <out>.log. */
static pid_t start(const char *out, int steps, const char *more) {
  char command[4096];
  for (int r = 0; r < RANKS; r++) {
    char pid[16];
    snprintf(pid, sizeof pid, "pid.%d", r);
    test_remove(test_path(test_folder(), pid));
  }
  snprintf(
      command, sizeof command,
      "cd '%s' && exec mpirun -n %d --allow-run-as-root --oversubscribe --bind-to none --mca "
      "mpi_yield_when_idle 1 --mca orte_tmpdir_base '%s' -x SMALL -x SMALL_RANK sh rank.sh train run.yaml "
      "output_dir=%s max_steps=%d save_steps=2 %s %s >%s.log 2>&1 </dev/null",
      test_folder(), RANKS, test_folder(), out, steps, settings, more, out);
  const pid_t child = fork();
  if (child == 0) {
    setenv("OMP_WAIT_POLICY", "passive", 1);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
  }
  assert_true(child > 0);
  return child;
}

/* The exit status once it has ended, within so many seconds. */
static int finish(pid_t child, double seconds) {
  const double end = now() + seconds;
  for (int status; now() < end; usleep(20000))
    if (waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  fail_msg("the ranks did not end within %g seconds", seconds);
  return -1;
}

static pid_t pid_of(int rank) {
  char name[16];
  size_t bytes;
  snprintf(name, sizeof name, "pid.%d", rank);
  const char *path = test_path(test_folder(), name);
  if (!test_exists(path)) return 0;
  char *text = test_read(path, &bytes);
  const pid_t pid = (pid_t)atoi(text);
  free(text);
  return pid;
}

static char *said(const char *out) {
  char name[64];
  size_t bytes;
  snprintf(name, sizeof name, "%s.log", out);
  return test_read(test_path(test_folder(), name), &bytes);
}

/* Lines of our own about the end of a run. */
static int complaints(const char *text) {
  int count = 0;
  for (const char *at = text; (at = strstr(at, "kedge train: ")); at++) count++;
  return count;
}

/* Waits for the logs of an update, or the end of the run. */
static bool wait_for(const char *out, unsigned step, pid_t child) {
  char name[64];
  snprintf(name, sizeof name, "%s/metrics.jsonl", out);
  for (double end = now() + 60; now() < end; usleep(5000)) {
    siginfo_t info = {0};
    if (waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid == child) return false;
    if (test_exists(test_path(test_folder(), name)) && isfinite(training_metric(out, step, "train/loss")))
      return true;
  }
  return false;
}

/* The last update whose log is there: of an earlier sitting, too. */
static unsigned last_logged(const char *out) {
  char name[64];
  unsigned step = 0;
  snprintf(name, sizeof name, "%s/metrics.jsonl", out);
  if (!test_exists(test_path(test_folder(), name))) return 0;
  while (isfinite(training_metric(out, step + 1, "train/loss"))) step++;
  return step;
}

static void test_killed_ten_times(void **state) {
  (void)state;
  unsigned random = 12345, kills = 0;
  double slowest = 0;
  ranks_expect(RANKS, 0, "trained model", "train run.yaml output_dir=calm max_steps=%d save_steps=2 %s",
               STEPS, settings);
  for (unsigned k = 0; k < KILLS; k++) {
    random = random * 1103515245u + 12345u;
    const int victim = (int)(random >> 16) % RANKS;
    const unsigned next = last_logged("killed") + 3; /* a checkpoint is whole, and all ranks have begun */
    const pid_t child = start("killed", STEPS, "resume_from_checkpoint=true");
    if (wait_for("killed", next, child)) {
      usleep((random >> 8) % 60000); /* into an update or a save */
      const pid_t pid = pid_of(victim);
      const double time = now();
      if (pid > 0 && kill(pid, SIGKILL) == 0) kills++;
      assert_int_not_equal(finish(child, PROMISE), 0);
      if (now() - time > slowest) slowest = now() - time;
    } else {
      finish(child, PROMISE);
    }
  }
  print_message("%u ranks killed; all others had ended %.1f s later at most\n", kills, slowest);
  assert_int_equal(kills, KILLS);
  assert_int_equal(finish(start("killed", STEPS, "resume_from_checkpoint=true"), 120), 0);
  assert_true(training_same("calm/model.safetensors", "killed/model.safetensors"));
  assert_true(training_same("calm/metrics.jsonl", "killed/metrics.jsonl"));
  for (int r = 0; r < RANKS; r++) {
    char a[96], b[96];
    snprintf(a, sizeof a, "calm/checkpoint-%d/optimizer-%05d-of-%05d.safetensors", STEPS, r, RANKS);
    snprintf(b, sizeof b, "killed/checkpoint-%d/optimizer-%05d-of-%05d.safetensors", STEPS, r, RANKS);
    assert_true(training_same(a, b));
  }
}

/* Stopped, not dead: no connection breaks. */
static void test_hanging_rank(void **state) {
  (void)state;
  const pid_t child = start("hung", 100000, "");
  assert_true(wait_for("hung", 3, child));
  const double time = now();
  assert_int_equal(kill(pid_of(2), SIGSTOP), 0);
  assert_int_not_equal(finish(child, PROMISE), 0);
  print_message("found after %.1f s\n", now() - time);
  char *text = said("hung");
  if (!strstr(text, "nothing heard of rank 2 for")) fail_msg("said \"%s\"", text);
  assert_int_equal(complaints(text), 1);
  free(text);
}

/* What rank 2 writes at the second save does not fit: the first stays, one line tells. */
static void test_full_disk(void **state) {
  (void)state;
  setenv("SMALL_RANK", "2", 1);
  setenv("SMALL", "60", 1); /* blocks of 512 bytes; its states take more */
  const pid_t child = start("full", STEPS, "");
  const int code = finish(child, 60);
  unsetenv("SMALL_RANK");
  unsetenv("SMALL");
  char *text = said("full");
  if (code == 0 || complaints(text) != 1 || !strstr(text, "rank 2") || !strstr(text, "was not written"))
    fail_msg("exit %d, said \"%s\"", code, text);
  free(text);
  assert_false(test_exists(test_path(test_folder(), "full/checkpoint-2")));
  /* With room again the run begins and ends as if nothing had been. */
  assert_int_equal(finish(start("full", STEPS, "resume_from_checkpoint=true overwrite_output_dir=true"), 120),
                   0);
  assert_true(training_same("calm/model.safetensors", "full/model.safetensors"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_killed_ten_times),
      cmocka_unit_test(test_hanging_rank),
      cmocka_unit_test(test_full_disk),
  };
  if (!ranks_possible()) return 77;
  return cmocka_run_group_tests_name("ranks: failures", tests, prepare, NULL);
}
