/* SPDX-License-Identifier: Apache-2.0
 * Runs on several ranks (ranks.h). */
#include "tests/support/ranks.h"

#include "tests/support/files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char *program(void) {
  const char *path = getenv("KEDGE_BIN");
  return path ? path : "kedge";
}

bool ranks_possible(void) {
  char module[4096];
  const char *slash = strrchr(program(), '/');
  const int length = slash ? (int)(slash - program()) : 1;
  snprintf(module, sizeof module, "%.*s/libkedge-mpi.so", length, slash ? program() : ".");
  const bool built = access(module, R_OK) == 0, launches = system("mpirun --version >/dev/null 2>&1") == 0;
  if (!built || !launches)
    printf("skipped: runs of several ranks; %s\n",
           built ? "there is no mpirun" : "the module for MPI was not built");
  return built && launches;
}

/* As a machine with fewer cores than ranks needs it; also as root, as in containers. */
static test_run run(int ranks, const char *what, const char *format, va_list list) {
  char arguments[2048], command[7000], launch[512] = "";
  vsnprintf(arguments, sizeof arguments, format, list);
  if (ranks > 1)
    snprintf(launch, sizeof launch,
             "timeout 300 mpirun -n %d --allow-run-as-root --oversubscribe --bind-to none --mca "
             "mpi_yield_when_idle 1 "
             "--mca btl self,vader,tcp ",
             ranks);
  snprintf(command, sizeof command,
           "cd '%s' && OMP_WAIT_POLICY=passive OMPI_MCA_orte_tmpdir_base='%s' %s'%s' %s", test_folder(),
           test_folder(), launch, what, arguments);
  return test_run_shell(command);
}

test_run ranks_kedge(int ranks, const char *format, ...) {
  va_list list;
  va_start(list, format);
  test_run r = run(ranks, program(), format, list);
  va_end(list);
  return r;
}

void ranks_expect(int ranks, int code, const char *err, const char *format, ...) {
  va_list list;
  va_start(list, format);
  test_run r = run(ranks, program(), format, list);
  va_end(list);
  if (r.exit_code != code || !strstr(r.err, err))
    fail_msg("kedge %s on %d ranks: exit %d, want %d; said \"%s\", want \"%s\"", format, ranks, r.exit_code,
             code, r.err, err);
  test_run_free(&r);
}

void ranks_worker(int ranks, const char *format, ...) {
  char self[4096], full[2048];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  assert_true(length > 0);
  self[length] = 0;
  snprintf(full, sizeof full, "worker %s", format);
  va_list list;
  va_start(list, format);
  test_run r = run(ranks, self, full, list);
  va_end(list);
  if (r.exit_code) fail_msg("worker %s on %d ranks: exit %d: %s%s", format, ranks, r.exit_code, r.out, r.err);
  test_run_free(&r);
}
