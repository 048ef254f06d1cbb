/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * Products by matrix units on Vulkan: which shape is taken of a device's list, tiles that fit, the embedded
 * modules (valid, and needing the extension only where they use it), and, on a device that has matrices,
 * their results: cases of the op suite, and operands whose rows lie far apart. Debian 12's lavapipe has none;
 * Mesa 26's has.
 */
#include "backends/vulkan/matrix.h"
#include "core/exec.h"
#include "tests/support/files.h"
#include "tests/support/suite.h"
#include "tests/support/vulkan.h"

#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static kedge_device *ref, *vulkan; /* vulkan: NULL where it has no matrices */

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

/* ---- Shapes
 * -------------------------------------------------------------------------------------------------------- */

static vk_matrix_entry entry(uint32_t m, uint32_t n, uint32_t k, bool f16, bool f32, bool subgroup) {
  return (vk_matrix_entry){.shape = {m, n, k}, .f16_in = f16, .f32_sums = f32, .subgroup = subgroup};
}

static void expect_shape(const vk_matrix_entry *list, uint32_t count, uint32_t m, uint32_t n, uint32_t k) {
  const vk_matrix s = vk_matrix_choose(list, count);
  if (s.m != m || s.n != n || s.k != k)
    fail_msg("%u x %u x %u, expected %u x %u x %u", s.m, s.n, s.k, m, n, k);
}

static void test_shapes(void **state) {
  (void)state;
  /* As lists of drivers go: with f16 sums first, several sizes, integers, workgroups' matrices. */
  const vk_matrix_entry many[] = {entry(16, 16, 16, true, false, true), entry(16, 8, 8, true, true, true),
                                  entry(16, 8, 16, true, true, true),   entry(16, 16, 16, true, true, true),
                                  entry(16, 16, 32, false, true, true), entry(64, 64, 16, true, true, true),
                                  entry(32, 32, 16, true, true, false)};
  const vk_matrix_entry flat[] = {entry(8, 32, 16, true, true, true), entry(16, 16, 16, true, true, true),
                                  entry(8, 16, 32, true, true, true)};
  expect_shape(many, 7, 16, 16, 16);
  expect_shape(many, 3, 16, 8, 16);
  expect_shape(many, 2, 16, 8, 8);
  expect_shape(many, 1, 0, 0, 0);
  expect_shape(many + 4, 3, 0, 0, 0);
  expect_shape(flat, 3, 16, 16, 16);
  expect_shape(flat, 1, 8, 32, 16);
  expect_shape(NULL, 0, 0, 0, 0);
  expect_shape(&(vk_matrix_entry){{12, 8, 8}, true, true, true}, 1, 0, 0, 0);
}

static void test_tiles(void **state) {
  (void)state;
  static const vk_matrix shapes[] = {{8, 8, 8},   {16, 16, 16}, {16, 8, 8},
                                     {16, 8, 16}, {8, 16, 16},  {8, 8, 32}};
  static const uint32_t lanes[] = {4, 8, 16, 32, 64, 128};
  static const uint64_t rows[] = {1, 16, 17, 64, 65, 1000, UINT64_MAX};
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
    for (size_t l = 0; l < sizeof lanes / sizeof *lanes; l++)
      for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        const vk_matrix_tile t = vk_matrix_tile_for(shapes[s], lanes[l], rows[r]);
        assert_int_equal(t.high, t.down * shapes[s].m * (t.subgroups / t.side));
        assert_int_equal(t.wide, t.across * shapes[s].n * t.side);
        assert_int_equal(t.subgroups % t.side, 0);
        assert_int_equal(t.step % shapes[s].k, 0);
        assert_true(t.down >= 1 && t.across >= 1 && t.down * t.across <= 16);
        assert_true(t.high % 8 == 0 && t.wide % 8 == 0 && t.high <= 128 && t.wide <= 128);
        assert_true(t.shared <= 32768);
        /* Half as high would not hold the rows. */
        assert_true(t.down == 1 || t.down == 4 || t.high / 2 < rows[r]);
      }
}

/* ---- Modules
 * ------------------------------------------------------------------------------------------------------- */

enum { CAPABILITY = 17, CAP_FLOAT16 = 9, CAP_NV = 5357, CAP_KHR = 6022 };

/* The words of a module as the build embeds them, written to `path` too. */
static uint32_t *read_module(const char *words_path, const char *path, size_t *count) {
  size_t bytes, most;
  char *text = test_read(words_path, &bytes), *at = text, *end;
  uint32_t *words = malloc((most = bytes / 2 + 1) * sizeof *words);
  for (*count = 0; *count < most; (*count)++, at = end) {
    while (*at && strchr(", \n", *at)) at++;
    words[*count] = (uint32_t)strtoul(at, &end, 0);
    if (end == at) break;
  }
  free(text);
  test_write(path, words, *count * sizeof *words);
  return words;
}

static bool needs(const uint32_t *words, size_t count, uint32_t capability) {
  for (size_t at = 5; at + 1 < count && words[at] >> 16; at += words[at] >> 16)
    if ((words[at] & 0xffff) == CAPABILITY && words[at + 1] == capability) return true;
  return false;
}

static void test_modules(void **state) {
  (void)state;
  const char *program = getenv("KEDGE_BIN");
  char pattern[600], command[1400];
  glob_t found;
  unsigned matrices = 0;
  const bool validator = system("command -v spirv-val >/dev/null 2>&1") == 0;
  if (!program) skip();
  snprintf(pattern, sizeof pattern, "%.*s/spirv/*.inc", (int)(strrchr(program, '/') - program), program);
  assert_int_equal(glob(pattern, 0, NULL, &found), 0);
  const char *path = test_path(test_folder(), "module.spv");
  for (size_t i = 0; i < found.gl_pathc; i++) {
    size_t count;
    uint32_t *words = read_module(found.gl_pathv[i], path, &count);
    assert_true(count > 20);
    assert_int_equal(words[0], 0x07230203);
    const bool named = strstr(found.gl_pathv[i], "_matrix.inc") != NULL;
    const bool uses = needs(words, count, CAP_NV) || needs(words, count, CAP_KHR);
    matrices += named && uses;
    if (uses != named || needs(words, count, CAP_FLOAT16) != named)
      fail_msg("%s: %s", found.gl_pathv[i], named ? "no matrices in it" : "needs what devices may lack");
    free(words);
    snprintf(command, sizeof command, "spirv-val --target-env vulkan1.2 --scalar-block-layout %s", path);
    if (validator && system(command) != 0) fail_msg("%s is not valid", found.gl_pathv[i]);
  }
  printf("%zu modules, %u with matrices%s\n", found.gl_pathc, matrices,
         validator ? "" : "; skipped: 1 check, there is no spirv-val");
  assert_int_equal(matrices, 3);
  globfree(&found);
}

/* ---- Results
 * ------------------------------------------------------------------------------------------------------- */

static void need_matrices(void) {
  if (vulkan) return;
  printf("skipped: 1 check, as the device has no matrices\n");
  skip();
}

static void check_op(kedge_op op) {
  for (const kedge_case_row *row = kedge_cases_of(op); row->name; row++) {
    kedge_result want = {0}, got = {0}, again = {0};
    const char *where = "";
    if (row->rejects) continue;
    ok(kedge_case_run(row, ref, KEDGE_BF16, false, 0xff, &want));
    ok(kedge_case_run(row, vulkan, KEDGE_BF16, false, 0xff, &got));
    ok(kedge_case_run(row, vulkan, KEDGE_BF16, false, 0x7f, &again));
    const double error = kedge_result_error(&got, &want, &where), limit = row->bf16 > 0 ? row->bf16 : 0x1p-7;
    if (!(error <= limit)) fail_msg("\"%s\": error %.3g of %s is over %.3g", row->name, error, where, limit);
    if (!kedge_result_same_bits(&got, &again)) fail_msg("\"%s\": a second run gave other bits", row->name);
    kedge_result_destroy(&want);
    kedge_result_destroy(&got);
    kedge_result_destroy(&again);
  }
}

static void test_cases(void **state) {
  (void)state;
  need_matrices();
  check_op(KEDGE_OP_matmul);
  check_op(KEDGE_OP_grouped_matmul);
  check_op(KEDGE_OP_grouped_wgrad);
}

enum { M = 150, N = 71, K = 1100 };

/* C of A [m, k] and B [k, n], f32 of bf16. */
static void multiply(kedge_device *device, bool ta, bool tb, const uint16_t *a, const uint16_t *b, float *c) {
  kedge_graph *g = kedge_graph_new(false);
  kedge_exec *exec;
  kedge_value x = kedge_input(g, "a", KEDGE_BF16, 2, ta ? (uint32_t[]){K, M} : (uint32_t[]){M, K});
  kedge_value y = kedge_input(g, "b", KEDGE_BF16, 2, tb ? (uint32_t[]){N, K} : (uint32_t[]){K, N});
  kedge_value z = kedge_matmul(g, x, y, ta, tb, KEDGE_F32);
  kedge_output(g, z, "c");
  ok(kedge_exec_new(device, g, NULL, &exec));
  ok(kedge_exec_write(exec, x, a, 2 * M * K));
  ok(kedge_exec_write(exec, y, b, 2 * K * N));
  ok(kedge_exec_run(exec, 0, UINT32_MAX));
  ok(kedge_exec_read(exec, z, c, 4 * M * N));
  kedge_exec_free(exec);
  kedge_graph_free(g);
}

/* Rows of A from 2^-100 to 2^49 and columns of B from 2^-20 to 2^50, far outside f16. Where k is even, A is
 * 2^20 larger and B is 0, so that all of C comes from elements far below their line's largest. */
static void make_far(int m_or_n, bool is_a, double *line) {
  static kedge_random random = {3};
  for (int k = 0; k < K; k++) {
    line[k] = ldexp(kedge_random_normal(&random), is_a ? m_or_n - 100 + 20 * !(k & 1) : m_or_n - 20);
    if (!is_a && !(k & 1)) line[k] = 0;
    line[k] = kedge_round_to(KEDGE_BF16, line[k]);
  }
}

static void test_scales(void **state) {
  (void)state;
  static uint16_t a[M * K], b[K * N];
  static double rows[M][K], cols[N][K];
  static float got[M * N];
  need_matrices();
  for (int m = 0; m < M; m++) make_far(m, true, rows[m]);
  for (int n = 0; n < N; n++) make_far(n, false, cols[n]);
  for (int turn = 0; turn < 4; turn++) {
    const bool ta = turn & 1, tb = turn >> 1;
    for (int k = 0; k < K; k++) {
      for (int m = 0; m < M; m++) a[ta ? k * M + m : m * K + k] = kedge_f32_to_bf16((float)rows[m][k]);
      for (int n = 0; n < N; n++) b[tb ? n * K + k : k * N + n] = kedge_f32_to_bf16((float)cols[n][k]);
    }
    multiply(vulkan, ta, tb, a, b, got);
    for (int m = 0; m < M; m++)
      for (int n = 0; n < N; n++) {
        double want = 0;
        for (int k = 0; k < K; k++) want += rows[m][k] * cols[n][k];
        const double x = (double)got[m * N + n], size = ldexp(sqrt(K / 2), m + n - 120);
        if (!(fabs(x - want) <= 5e-6 * size))
          fail_msg("transposed %d %d, row %d, column %d: %g, expected %g", ta, tb, m, n, x, want);
      }
  }
}

/* What is no finite number stays so, in its row and column alone. */
static void test_not_finite(void **state) {
  (void)state;
  static uint16_t a[M * K], b[K * N];
  static float got[M * N];
  need_matrices();
  for (int i = 0; i < M * K; i++) a[i] = kedge_f32_to_bf16(0.5f);
  for (int i = 0; i < K * N; i++) b[i] = kedge_f32_to_bf16(0.25f);
  a[3 * K + 5] = 0x7f80;
  a[20 * K + 7] = 0x7fc0;
  b[9 * N + 40] = 0xff80;
  multiply(vulkan, false, false, a, b, got);
  for (int m = 0; m < M; m++)
    for (int n = 0; n < N; n++) {
      const float x = got[m * N + n];
      if (m == 20 || (m == 3 && n == 40))
        assert_true(isnan(x));
      else if (m == 3 || n == 40)
        assert_true(isinf(x) && (x > 0) == (m == 3));
      else
        assert_true(x == 0.125f * K);
    }
}

int main(void) {
  if (!kedge_test_vulkan(&vulkan)) return 77;
  kedge_device_close(vulkan);
  setenv("KEDGE_VULKAN_TILES", "matrix", 1);
  if (kedge_device_open(kedge_test_vulkan_name(), NULL, &vulkan) != KEDGE_OK) {
    printf("%s\n", kedge_message());
    if (!strstr(kedge_message(), "has no matrices")) return 1;
    vulkan = NULL;
  } else {
    printf("%s\n", kedge_device_description(vulkan));
    if (!strstr(kedge_device_description(vulkan), "matrices of")) return 1;
  }
  ok(kedge_device_open("ref", NULL, &ref));
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes),  cmocka_unit_test(test_tiles),
                                     cmocka_unit_test(test_modules), cmocka_unit_test(test_cases),
                                     cmocka_unit_test(test_scales),  cmocka_unit_test(test_not_finite)};
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  kedge_device_close(vulkan);
  kedge_device_close(ref);
  return failed;
}
