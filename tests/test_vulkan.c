/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * The Vulkan backend itself, under the validation layers: choice of a device and its errors, memory, wide
 * grids and work that is cut, pipelines on disk, timestamps, failing allocations. Ops are
 * test_vulkan_ops.c's, models test_vulkan_models.c's.
 */
#include "core/exec.h"
#include "core/ops.h"
#include "tests/support/files.h"
#include "tests/support/vulkan.h"

#include <ctype.h>
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static kedge_device *open_it(void) {
  kedge_device *device;
  ok(kedge_device_open(kedge_test_vulkan_name(), NULL, &device));
  return device;
}

static void expect_refused(const char *name, const char *text) {
  kedge_device *device = NULL;
  kedge_status status = kedge_device_open(name, NULL, &device);
  if (status != KEDGE_ERR_DEVICE) fail_msg("%s: %s", name, kedge_status_name(status));
  if (!strstr(kedge_message(), text)) fail_msg("%s: %s", name, kedge_message());
  assert_null(strchr(kedge_message(), '\n'));
}

/* A software device is taken only by name or number; names that fit nothing list what there is. */
static void test_choice(void **state) {
  (void)state;
  kedge_device *device;
  if (kedge_device_open("vulkan", NULL, &device) == KEDGE_OK) {
    assert_null(strstr(kedge_device_description(device), "software"));
    kedge_device_close(device);
  } else {
    expect_refused("vulkan", "by request alone");
  }
  expect_refused("vulkan:no such device", "there are: 0 ");
  expect_refused("vulkan:99", "no device \"99\"");
  char name[600] = "vulkan:";
  memset(name + 7, 'x', 500);
  expect_refused(name, "there are: 0 "); /* which a long name does not push out */
  snprintf(name, sizeof name, "%s", kedge_test_vulkan_name());
  for (char *at = strchr(name, ':'); at && *at; at++) *at = (char)toupper(*at);
  ok(kedge_device_open(name, NULL, &device));
  kedge_device_close(device);
  device = open_it();
  assert_non_null(strstr(kedge_device_description(device), "vulkan ("));
  kedge_device_close(device);
  /* Without any driver. */
  setenv("VK_ICD_FILENAMES", "/nonexistent.json", 1);
  setenv("VK_DRIVER_FILES", "/nonexistent.json", 1);
  expect_refused(kedge_test_vulkan_name(), "vulkan");
  unsetenv("VK_ICD_FILENAMES");
  unsetenv("VK_DRIVER_FILES");
}

static void expect_description(const char *name, uint32_t ordinal, const char *text) {
  kedge_device *device;
  ok(kedge_device_open(name, &(kedge_open_options){.ordinal = ordinal}, &device));
  if (!strstr(kedge_device_description(device), text))
    fail_msg("%s, process %u: %s", name, ordinal, kedge_device_description(device));
  kedge_device_close(device);
}

/* Processes that share a machine take its devices in turn, unless one is asked for by number. */
static void test_turns(void **state) {
  (void)state;
  glob_t found;
  char drivers[1200];
  size_t bytes;
  if (glob("/usr/share/vulkan/icd.d/lvp_icd*.json", 0, NULL, &found)) skip();
  char *driver = test_read(found.gl_pathv[0], &bytes);
  globfree(&found);
  const char *a = test_path(test_folder(), "a.json"), *b = test_path(test_folder(), "b.json");
  test_write(a, driver, bytes);
  test_write(b, driver, bytes);
  free(driver);
  snprintf(drivers, sizeof drivers, "%s:%s", a, b);
  setenv("VK_ICD_FILENAMES", drivers, 1);
  setenv("VK_DRIVER_FILES", drivers, 1);
  expect_description("vulkan:llvmpipe", 0, " 0, software");
  expect_description("vulkan:llvmpipe", 1, " 1, software");
  expect_description("vulkan:llvmpipe", 2, " 0, software");
  expect_description("vulkan:0", 1, " 0, software");
  expect_description("vulkan:1", 0, " 1, software");
  unsetenv("VK_ICD_FILENAMES");
  unsetenv("VK_DRIVER_FILES");
}

/* Bytes go there and back, at any offset and in pieces; too large a buffer is one line. */
static void test_memory(void **state) {
  (void)state;
  enum { BYTES = (20 << 20) + 13 };
  kedge_device *device = open_it();
  kedge_buffer *buffer, *wrapped;
  unsigned char *data = malloc(BYTES), *back = malloc(BYTES);
  for (size_t i = 0; i < BYTES; i++) data[i] = (unsigned char)(i * 31 + i / 977);
  ok(kedge_buffer_new(device, BYTES, &buffer));
  ok(kedge_buffer_read(buffer, 0, back, BYTES));
  for (size_t i = 0; i < BYTES; i++) assert_int_equal(back[i], 0);
  ok(kedge_buffer_write(buffer, 0, data, BYTES));
  ok(kedge_buffer_write(buffer, 5, data, 1000));
  ok(kedge_buffer_read(buffer, 0, back, BYTES));
  assert_memory_equal(back, data, 5);
  assert_memory_equal(back + 5, data, 1000);
  assert_memory_equal(back + 1005, data + 1005, BYTES - 1005);
  ok(kedge_buffer_wrap(device, data, BYTES, &wrapped));
  ok(kedge_buffer_read(wrapped, 3, back, 100));
  assert_memory_equal(back, data + 3, 100);
  assert_int_equal(kedge_buffer_write(wrapped, 0, data, 4), KEDGE_ERR_ARGUMENT);
  kedge_buffer_free(wrapped);
  kedge_buffer_free(buffer);
  assert_int_equal(kedge_buffer_new(device, 1ull << 60, &buffer), KEDGE_ERR_MEMORY);
  assert_non_null(strstr(kedge_message(), "over the device's limit"));
  /* Up to that limit the driver says no, and the device still works. */
  kedge_buffer *many[64];
  int count = 0;
  while (count < 64 && kedge_buffer_new(device, device->limits.max_buffer, &many[count]) == KEDGE_OK &&
         ++count < 2)
    ;
  while (count-- > 0) kedge_buffer_free(many[count]);
  ok(kedge_buffer_new(device, 64, &buffer));
  kedge_buffer_free(buffer);
  kedge_device_close(device);
  free(data), free(back);
}

/* More groups than one row of the grid has: y = 2 x of 70 million elements. */
static void test_wide_grid(void **state) {
  (void)state;
  const uint32_t n = 70u << 20;
  kedge_device *device = open_it();
  kedge_graph *g = kedge_graph_new(false);
  kedge_exec *exec;
  kedge_value x = kedge_fill(g, KEDGE_F32, 1, &n, 1.5), y = kedge_scale(g, x, 2), s = kedge_sum(g, y);
  kedge_output(g, s, "sum");
  ok(kedge_exec_new(device, g, NULL, &exec));
  float sum;
  ok(kedge_exec_run(exec, 0, UINT32_MAX));
  ok(kedge_exec_read(exec, s, &sum, 4));
  assert_true(sum == 3.0f * (float)n);
  kedge_exec_free(exec);
  kedge_graph_free(g);
  kedge_device_close(device);
}

static kedge_value chain(kedge_graph *g, kedge_value *x) {
  const uint32_t dims[] = {96, 96};
  kedge_value y = *x = kedge_input(g, "x", KEDGE_F32, 2, dims);
  for (int i = 0; i < 5; i++) {
    y = kedge_matmul(g, y, *x, i % 2, false, KEDGE_F32);
    y = kedge_scale(g, kedge_add(g, y, *x), 0.1);
  }
  kedge_output(g, y, "y");
  return y;
}

static void run_chain(kedge_device *device, float *out, double *seconds) {
  kedge_graph *g = kedge_graph_new(false);
  kedge_exec *exec;
  static float data[96 * 96];
  kedge_value x, y = chain(g, &x);
  kedge_op_time times[8];
  for (int i = 0; i < 96 * 96; i++) data[i] = (float)(i * 37 % 101) / 101 - 0.5f;
  ok(kedge_exec_new(device, g, NULL, &exec));
  ok(kedge_exec_write(exec, x, data, sizeof data));
  ok(kedge_exec_run(exec, 0, UINT32_MAX));
  ok(kedge_exec_read(exec, y, out, sizeof data));
  kedge_exec_profile(exec, true);
  ok(kedge_exec_run(exec, 0, UINT32_MAX));
  *seconds = 0;
  uint32_t count = kedge_exec_times(exec, times, 8);
  assert_int_equal(count, 3);
  for (uint32_t i = 0; i < count; i++) *seconds += times[i].seconds;
  const kedge_plan_summary plan = kedge_exec_plan(exec);
  assert_true(kedge_workspace_bytes(exec->workspace) == plan.arena + plan.scratch + device->limits.alignment);
  kedge_exec_free(exec);
  kedge_graph_free(g);
}

/* Work that is cut into many dispatches, products of both kinds, and time by op. */
static void test_cut_work(void **state) {
  (void)state;
  static float whole[96 * 96], cut[96 * 96], shared[96 * 96];
  double seconds;
  kedge_device *device = open_it();
  run_chain(device, whole, &seconds);
  assert_true(seconds > 0 && seconds < 100);
  kedge_device_close(device);
  setenv("KEDGE_VULKAN_BUDGET", "100000", 1);
  device = open_it();
  run_chain(device, cut, &seconds);
  kedge_device_close(device);
  unsetenv("KEDGE_VULKAN_BUDGET");
  assert_memory_equal(whole, cut, sizeof whole);
  setenv("KEDGE_VULKAN_TILES", "shared", 1);
  device = open_it();
  run_chain(device, shared, &seconds);
  kedge_device_close(device);
  unsetenv("KEDGE_VULKAN_TILES");
  for (int i = 0; i < 96 * 96; i++) assert_true(whole[i] - shared[i] < 1e-5f && shared[i] - whole[i] < 1e-5f);
}

/* A word of the environment that means nothing is an error. */
static void test_environment(void **state) {
  (void)state;
  static const char *const bad[][2] = {{"KEDGE_VULKAN_TILES", "wide"},
                                       {"KEDGE_VULKAN_BUDGET", "many"},
                                       {"KEDGE_VULKAN_BUDGET", "0"},
                                       {"KEDGE_VULKAN_BUDGET", "1e9"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    kedge_device *device = NULL;
    setenv(bad[i][0], bad[i][1], 1);
    assert_int_equal(kedge_device_open(kedge_test_vulkan_name(), NULL, &device), KEDGE_ERR_ARGUMENT);
    unsetenv(bad[i][0]);
    if (!strstr(kedge_message(), bad[i][0])) fail_msg("%s", kedge_message());
  }
}

/* Host threads sleep while the device works: processor time of the waiting thread stays small. */
static void test_waiting(void **state) {
  (void)state;
  const uint32_t dims[] = {700, 700};
  struct timespec before, after;
  kedge_device *device = open_it();
  kedge_graph *g = kedge_graph_new(false);
  kedge_exec *exec;
  kedge_value x = kedge_input(g, "x", KEDGE_F32, 2, dims), y = kedge_matmul(g, x, x, false, true, KEDGE_F32);
  kedge_output(g, y, "y");
  ok(kedge_exec_new(device, g, NULL, &exec));
  ok(kedge_exec_run(exec, 0, UINT32_MAX));
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
  for (int i = 0; i < 4; i++) ok(kedge_exec_run(exec, 0, UINT32_MAX));
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
  double busy = (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
  assert_true(busy < 0.02);
  kedge_exec_free(exec);
  kedge_graph_free(g);
  kedge_device_close(device);
}

/* ---- Memory of the host
 * ------------------------------------------------------------------------------------------------ */

static kedge_status small_run(void) {
  const uint32_t n = 100;
  kedge_device *device = NULL;
  kedge_exec *exec = NULL;
  kedge_graph *g = kedge_graph_new(false);
  float sum = 0;
  if (!g) return KEDGE_ERR_MEMORY;
  kedge_value x = kedge_fill(g, KEDGE_F32, 1, &n, 1.5), y = kedge_sum(g, kedge_scale(g, x, 2));
  kedge_output(g, y, "y");
  kedge_status status = kedge_graph_status(g);
  if (status == KEDGE_OK) status = kedge_device_open(kedge_test_vulkan_name(), NULL, &device);
  if (status == KEDGE_OK) status = kedge_exec_new(device, g, NULL, &exec);
  if (status == KEDGE_OK) status = kedge_exec_run(exec, 0, UINT32_MAX);
  if (status == KEDGE_OK) status = kedge_exec_read(exec, y, &sum, 4);
  if (status == KEDGE_OK) assert_true(sum == 300);
  kedge_exec_free(exec);
  kedge_device_close(device);
  kedge_graph_free(g);
  return status;
}

/* Each allocation of opening and running fails once: an error, or what is not needed is left out. */
static void test_allocations(void **state) {
  (void)state;
  setenv("KEDGE_VULKAN_VALIDATE", "0", 1);
  ok(small_run());
  kedge_alloc_fail_nth(0);
  ok(small_run());
  uint64_t made = kedge_alloc_fail_nth(0), refused = 0;
  for (uint64_t n = 1; n <= made; n++) {
    kedge_alloc_fail_nth(n);
    kedge_status status = small_run();
    kedge_alloc_fail_nth(0);
    if (status != KEDGE_OK && status != KEDGE_ERR_MEMORY)
      fail_msg("allocation %u: %s", (unsigned)n, kedge_message());
    refused += status == KEDGE_ERR_MEMORY;
  }
  assert_true(made > 10 && refused * 2 > made);
  setenv("KEDGE_VULKAN_VALIDATE", "1", 1);
}

/* ---- Pipelines on disk
 * --------------------------------------------------------------------------------------------- */

static char cache_file[600];

static const char *opened_note(char *note) {
  static float out[96 * 96];
  double seconds;
  kedge_device *device = open_it();
  snprintf(note, 256, "%s", kedge_device_note(device) ? kedge_device_note(device) : "");
  run_chain(device, out, &seconds);
  kedge_device_close(device);
  return note;
}

static void change_byte(long at) {
  FILE *file = fopen(cache_file, "r+b");
  assert_non_null(file);
  fseek(file, at, at < 0 ? SEEK_END : SEEK_SET);
  int c = fgetc(file);
  fseek(file, at, at < 0 ? SEEK_END : SEEK_SET);
  fputc(c ^ 0x5a, file);
  fclose(file);
}

static void test_cache(void **state) {
  (void)state;
  char note[256];
  glob_t found;
  assert_string_equal(opened_note(note), ""); /* none: written */
  assert_int_equal(glob(test_path(test_folder(), "kedge/vulkan-*.pipelines"), 0, NULL, &found), 0);
  assert_int_equal(found.gl_pathc, 1);
  snprintf(cache_file, sizeof cache_file, "%s", found.gl_pathv[0]);
  globfree(&found);
  assert_string_equal(opened_note(note), ""); /* taken */
  change_byte(-1);
  assert_non_null(strstr(opened_note(note), "its content is damaged"));
  assert_string_equal(opened_note(note), ""); /* written anew */
  change_byte(20);
  assert_non_null(strstr(opened_note(note), "of another driver"));
  change_byte(8);
  assert_non_null(strstr(opened_note(note), "of another device"));
  change_byte(0);
  assert_non_null(strstr(opened_note(note), "no such file"));
  assert_int_equal(truncate(cache_file, 30), 0);
  assert_non_null(strstr(opened_note(note), "cut short"));
  assert_string_equal(opened_note(note), "");
  /* A pipe: nobody waits for what never comes. */
  test_remove(cache_file);
  assert_int_equal(mkfifo(cache_file, 0600), 0);
  alarm(60);
  assert_non_null(strstr(opened_note(note), "no such file"));
  alarm(0);
  assert_string_equal(opened_note(note), "");
  /* A relative folder counts as none. */
  char home[4096];
  assert_non_null(getcwd(home, sizeof home));
  assert_int_equal(chdir(test_folder()), 0);
  setenv("XDG_CACHE_HOME", "relative", 1);
  setenv("HOME", "also relative", 1);
  assert_string_equal(opened_note(note), "");
  assert_false(test_exists("relative/kedge") || test_exists("also relative/.cache/kedge"));
  assert_int_equal(chdir(home), 0);
  /* A folder that cannot be made: no cache, no complaint. */
  setenv("XDG_CACHE_HOME", "/proc/nowhere", 1);
  assert_string_equal(opened_note(note), "");
}

int main(void) {
  kedge_device *device;
  setenv("XDG_CACHE_HOME", test_folder(), 1);
  if (!kedge_test_vulkan(&device)) return 77;
  kedge_device_close(device);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_cache),       cmocka_unit_test(test_choice),
                                     cmocka_unit_test(test_memory),      cmocka_unit_test(test_wide_grid),
                                     cmocka_unit_test(test_cut_work),    cmocka_unit_test(test_waiting),
                                     cmocka_unit_test(test_environment), cmocka_unit_test(test_turns),
                                     cmocka_unit_test(test_allocations)};
  if (getenv("KEDGE_TEST")) cmocka_set_test_filter(getenv("KEDGE_TEST"));
  return cmocka_run_group_tests(tests, NULL, NULL);
}
