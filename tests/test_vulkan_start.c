/* SPDX-License-Identifier: Apache-2.0
 * ctest: long
 *
 * How long the Vulkan backend takes to open and each op's first use takes, in wall-clock and processor time:
 * from nothing, with the pipelines that Kedge and the driver left, with one of the two alone. Each is a
 * process of its own (this program with the argument `use`). It fails where an op's first use needs a second
 * of processor time.
 */
#include "core/exec.h"
#include "core/ops.h"
#include "tests/support/files.h"
#include "tests/support/suite.h"
#include "tests/support/vulkan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct spent {
  double wall, processor;
} spent;

static const char *self;

static spent now(void) {
  struct timespec wall, processor;
  clock_gettime(CLOCK_MONOTONIC, &wall);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &processor);
  return (spent){(double)wall.tv_sec + 1e-9 * (double)wall.tv_nsec,
                 (double)processor.tv_sec + 1e-9 * (double)processor.tv_nsec};
}

static spent since(spent start) {
  const spent end = now();
  return (spent){end.wall - start.wall, end.processor - start.processor};
}

/* The first case of an op, once. */
static bool use(kedge_device *device, kedge_op op, kedge_dtype dtype, spent *took) {
  const kedge_case_row *row = kedge_cases_of(op);
  kedge_result result = {0};
  while (row->name && row->rejects) row++;
  const spent start = now();
  const kedge_status status = kedge_case_run(row, device, dtype, false, 0, &result);
  *took = since(start);
  kedge_result_destroy(&result);
  if (status != KEDGE_OK) printf("%s: %s\n", kedge_op_get(op)->name, kedge_message());
  return status == KEDGE_OK;
}

/* Opens the device and uses every op twice, each dtype; the second use says what was not the first's. */
static int use_all(void) {
  kedge_device *device;
  spent start = now(), first, second, sum = {0, 0}, worst = {0, 0};
  kedge_op slowest = 0;
  if (!kedge_test_vulkan(&device)) return 77;
  const spent open = since(start);
  for (uint32_t d = 0; d < 2; d++)
    for (uint32_t op = 0; op < KEDGE_OP_COUNT; op++) {
      if (kedge_op_get((kedge_op)op)->kind == KEDGE_KIND_COLLECTIVE) continue;
      const kedge_dtype dtype = d ? KEDGE_BF16 : KEDGE_F32;
      if (!use(device, (kedge_op)op, dtype, &first) || !use(device, (kedge_op)op, dtype, &second)) return 1;
      sum.wall += first.wall - second.wall;
      sum.processor += first.processor - second.processor;
      if (first.wall > worst.wall) worst.wall = first.wall;
      if (first.processor <= worst.processor) continue;
      worst.processor = first.processor;
      slowest = (kedge_op)op;
    }
  start = now();
  kedge_device_close(device);
  const spent closing = since(start);
  printf("open %6.3f s (%6.3f s), first uses in all %7.3f s (%7.3f s), the longest %6.3f s (%6.3f s, %s), "
         "close %6.3f s\n",
         open.wall, open.processor, sum.wall, sum.processor, worst.wall, worst.processor,
         kedge_op_get(slowest)->name, closing.wall);
  return worst.processor < 1 ? 0 : 1;
}

static void run(const char *what) {
  printf("%-28s ", what);
  fflush(stdout);
  const pid_t child = fork();
  int status;
  if (!child) {
    execl(self, self, "use", (char *)NULL);
    _exit(127);
  }
  assert_true(child > 0);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  if (WEXITSTATUS(status)) fail_msg("%s: exit %d", what, WEXITSTATUS(status));
}

static void test_start(void **state) {
  (void)state;
  printf("wall-clock time (processor time)\n");
  run("nothing kept");
  run("Kedge's file and the driver's");
  setenv("MESA_SHADER_CACHE_DISABLE", "true", 1);
  run("Kedge's file alone");
  unsetenv("MESA_SHADER_CACHE_DISABLE");
  test_remove(test_path(test_folder(), "kedge"));
  run("the driver's alone");
}

int main(int argc, char **argv) {
  kedge_device *device;
  self = argv[0];
  setenv("KEDGE_VULKAN_VALIDATE", "0", 0);
  if (argc > 1 && !strcmp(argv[1], "use")) return use_all();
  setenv("XDG_CACHE_HOME", test_folder(), 1); /* Mesa's goes there, too */
  if (!kedge_test_vulkan(&device)) return 77;
  kedge_device_close(device);
  test_remove(test_path(test_folder(), "kedge"));
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_start)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
