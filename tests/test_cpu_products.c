/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Products of every instruction set of this machine against the reference, at sizes around the edges of
 * blocks, panels, slivers and tiles, with operands that end where their memory ends. The AMX kernels run here
 * on any machine: tests.cmake builds them once more with the tile instructions as plain C
 * (backends/cpu/kernels/amx.h), and this file also runs the op suite's cases on them. */
#include "core/device.h"
#include "tests/support/suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void kedge_cpu_emulated_bf16_matmul(const kedge_call *call);
uint64_t kedge_cpu_emulated_bf16_matmul_scratch(const kedge_call *call);
void kedge_cpu_emulated_bf16_grouped_matmul(const kedge_call *call);
uint64_t kedge_cpu_emulated_bf16_grouped_matmul_scratch(const kedge_call *call);
void kedge_cpu_emulated_bf16_grouped_wgrad(const kedge_call *call);
uint64_t kedge_cpu_emulated_bf16_grouped_wgrad_scratch(const kedge_call *call);

/* ---- A device: the CPU backend with emulated tiles for products of bf16
 * --------------------------------------------- */

static kedge_device *under_emulated; /* runs everything else */

static bool emulated_op(const kedge_step *s, kedge_kernel *run, uint64_t (**scratch)(const kedge_call *)) {
  if (s->variant != KEDGE_VARIANT_BF16) return false;
  if (s->op == KEDGE_OP_matmul) {
    *run = kedge_cpu_emulated_bf16_matmul;
    *scratch = kedge_cpu_emulated_bf16_matmul_scratch;
  } else if (s->op == KEDGE_OP_grouped_matmul) {
    *run = kedge_cpu_emulated_bf16_grouped_matmul;
    *scratch = kedge_cpu_emulated_bf16_grouped_matmul_scratch;
  } else if (s->op == KEDGE_OP_grouped_wgrad) {
    *run = kedge_cpu_emulated_bf16_grouped_wgrad;
    *scratch = kedge_cpu_emulated_bf16_grouped_wgrad_scratch;
  } else {
    return false;
  }
  return true;
}

static uint64_t emulated_scratch(const kedge_device *device, const kedge_step *step) {
  kedge_kernel run;
  uint64_t (*scratch)(const kedge_call *call);
  (void)device;
  return emulated_op(step, &run, &scratch) ? scratch(&step->call)
                                           : kedge__backend_cpu.scratch(under_emulated, step);
}

static kedge_status emulated_run(kedge_device *device, const kedge_step *steps, uint32_t count) {
  (void)device;
  for (uint32_t i = 0; i < count; i++) {
    kedge_kernel run;
    uint64_t (*scratch)(const kedge_call *call);
    if (emulated_op(&steps[i], &run, &scratch))
      run(&steps[i].call);
    else
      KEDGE_TRY(kedge__backend_cpu.run(under_emulated, &steps[i], 1));
  }
  return KEDGE_OK;
}

static kedge_backend emulated_backend;
static kedge_device emulated_device;
static kedge_test_devices devices;

static int open_devices(void **state) {
  (void)state;
  if (kedge_test_devices_open(&devices) != KEDGE_OK) return -1;
  if (kedge_device_open("cpu", &(kedge_open_options){.threads = 2, .isa = "base"}, &under_emulated) !=
      KEDGE_OK)
    return -1;
  emulated_backend = kedge__backend_cpu;
  emulated_backend.run = emulated_run;
  emulated_backend.scratch = emulated_scratch;
  emulated_device = *under_emulated;
  emulated_device.backend = &emulated_backend;
  snprintf(emulated_device.description, sizeof emulated_device.description, "cpu (emulated amx)");
  return 0;
}

static int close_devices(void **state) {
  (void)state;
  kedge_test_devices_close(&devices);
  kedge_device_close(under_emulated);
  return 0;
}

/* ---- The op suite's cases
 * ------------------------------------------------------------------------------------------- */

static void test_emulated_cases(void **state) {
  static const char *const ops[] = {"matmul", "grouped_matmul", "grouped_wgrad"};
  uint32_t compared = 0;
  (void)state;
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
    for (const kedge_case_row *row = kedge_cases_of(kedge_op_find(ops[i])); row->name; row++) {
      if (row->rejects) continue;
      kedge_result want = {0}, got = {0};
      const char *where;
      assert_int_equal(kedge_case_run(row, devices.at[0], KEDGE_BF16, false, 0xff, &want), KEDGE_OK);
      assert_int_equal(kedge_case_run(row, &emulated_device, KEDGE_BF16, false, 0xff, &got), KEDGE_OK);
      const double error = kedge_result_error(&got, &want, &where);
      if (!(error <= 0x1p-7)) fail_msg("%s, \"%s\": error %g of %s", ops[i], row->name, error, where);
      kedge_result_destroy(&want);
      kedge_result_destroy(&got);
      compared++;
    }
  printf("%u cases on emulated tiles\n", compared);
  assert_true(compared > 20);
}

/* ---- Sizes
 * ------------------------------------------------------------------------------------------------------- */

/* A tensor in memory that ends with it. */
static void *tensor_new(kedge_tensor *t, kedge_dtype dtype, uint32_t rank, const uint32_t *dims,
                        kedge_random *random) {
  uint64_t count = 1;
  *t = (kedge_tensor){.dtype = dtype, .rank = rank, .pitch = dims[rank - 1]};
  for (uint32_t i = 0; i < KEDGE_MAX_RANK; i++) t->dims[i] = i < rank ? dims[i] : 1;
  for (uint32_t i = 0; i < rank; i++) count *= dims[i];
  t->data = malloc(count * kedge_dtype_size(dtype) + 1); /* a byte, so that none has size 0 */
  assert_non_null(t->data);
  for (uint64_t i = 0; i < count; i++) {
    const float f = random ? (float)kedge_random_normal(random) : 0;
    if (dtype == KEDGE_BF16)
      ((uint16_t *)t->data)[i] = random ? kedge_f32_to_bf16(f) : 0xffff;
    else
      memcpy((float *)t->data + i, random ? (const void *)&f : (const void *)&(uint32_t){0xffffffffu}, 4);
  }
  return t->data;
}

static uint64_t tensor_count(const kedge_tensor *t) {
  uint64_t count = 1;
  for (uint32_t i = 0; i < t->rank; i++) count *= t->dims[i];
  return count;
}

static void compare(const kedge_step *step, const char *device, const kedge_tensor *got,
                    const kedge_tensor *want) {
  const uint64_t count = tensor_count(got);
  const double limit = got->dtype == KEDGE_BF16 ? 0x1p-8 : 4e-6;
  double worst = 0, largest = 0;
  for (uint64_t i = 0; i < count; i++) {
    const bool bf16 = got->dtype == KEDGE_BF16;
    const double g =
        bf16 ? (double)kedge_bf16_to_f32(((uint16_t *)got->data)[i]) : (double)((float *)got->data)[i];
    const double w =
        bf16 ? (double)kedge_bf16_to_f32(((uint16_t *)want->data)[i]) : (double)((float *)want->data)[i];
    const double off = g > w ? g - w : w - g;
    if (!(off <= worst)) worst = off;
    if ((w < 0 ? -w : w) > largest) largest = w < 0 ? -w : w;
  }
  if (!(worst <= limit * largest))
    fail_msg("%s on %s, out [%u,%u,%u]: off by %g of %g", kedge_op_get(step->op)->name, device, got->dims[0],
             got->dims[1], got->dims[2], worst, largest);
}

static uint32_t runs;

/* Runs the step on so many threads into a new output. */
static void run_threads(kedge_device *device, kedge_step *step, uint32_t threads, const kedge_tensor *like) {
  tensor_new(&step->call.out[0], like->dtype, like->rank, like->dims, NULL);
  step->call.threads = threads;
  step->call.scratch = aligned_alloc(64, (device->backend->scratch(device, step) + 63) / 64 * 64 + 64);
  assert_non_null(step->call.scratch);
  assert_int_equal(device->backend->run(device, step, 1), KEDGE_OK);
  free(step->call.scratch);
  runs++;
}

/* Right, and the same bits on one and on three threads. */
static void run_on(kedge_device *device, kedge_step step, const kedge_tensor *want) {
  kedge_step other = step;
  run_threads(device, &step, 1, want);
  run_threads(device, &other, 3, want);
  compare(&step, device->description, &step.call.out[0], want);
  assert_memory_equal(step.call.out[0].data, other.call.out[0].data,
                      tensor_count(want) * kedge_dtype_size(want->dtype));
  free(step.call.out[0].data);
  free(other.call.out[0].data);
}

/* The step on every device against the reference. */
static void check_step(kedge_step *step, kedge_dtype dtype, uint32_t rank, const uint32_t *dims) {
  kedge_tensor want;
  tensor_new(&want, dtype, rank, dims, NULL);
  step->call.out[0] = want;
  step->call.threads = 1;
  kedge__reference(step->op, step->variant)(&step->call);
  for (uint32_t i = 1; i < devices.count; i++)
    if (!devices.same_bits_as_previous[i]) run_on(devices.at[i], *step, &want);
  run_on(&emulated_device, *step, &want);
  free(want.data);
}

static const kedge_dtype storages[] = {KEDGE_F32, KEDGE_BF16};
static const kedge_variant variants[] = {KEDGE_VARIANT_F32, KEDGE_VARIANT_BF16};

static void test_dense_sizes(void **state) {
  static const uint32_t sizes[][3] = {/* m, n, k */
                                      {9, 1, 1},     {14, 32, 64},  {15, 33, 31},  {33, 31, 2},
                                      {257, 17, 5},  {28, 513, 33}, {10, 40, 511}, {12, 47, 1025},
                                      {16, 16, 513}, {3, 5, 1030}};
  kedge_random random = {7};
  (void)state;
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
    for (uint32_t mode = 0; mode < 16; mode++) {
      const uint32_t m = sizes[s][0], n = sizes[s][1], k = sizes[s][2], bf16 = mode & 1,
                     narrow = mode >> 1 & 1;
      if (narrow && !bf16) continue;
      const bool ta = mode >> 2 & 1, tb = mode >> 3 & 1;
      const kedge_args_matmul wide = {.m = m, .n = n, .k = k, .trans_a = ta, .trans_b = tb};
      kedge_step step = {.op = KEDGE_OP_matmul, .variant = variants[bf16]};
      step.call.args = &wide; /* no reals: the same for every kedge_real */
      void *a =
          tensor_new(&step.call.in[0], storages[bf16], 2, (uint32_t[]){ta ? k : m, ta ? m : k}, &random);
      void *b =
          tensor_new(&step.call.in[1], storages[bf16], 2, (uint32_t[]){tb ? n : k, tb ? k : n}, &random);
      check_step(&step, narrow ? KEDGE_BF16 : KEDGE_F32, 2, (uint32_t[]){m, n});
      free(a);
      free(b);
    }
}

/* Rows of four experts: many, none, one, the rest. */
typedef struct plan {
  uint32_t tokens, topk, valid;
  kedge_tensor slots, offsets;
} plan;

static void plan_new(plan *p, uint32_t tokens, uint32_t topk) {
  const uint32_t rows = tokens * topk;
  *p = (plan){.tokens = tokens, .topk = topk, .valid = rows - 3};
  int32_t *slots = tensor_new(&p->slots, KEDGE_I32, 1, (uint32_t[]){rows}, NULL),
          *offsets = tensor_new(&p->offsets, KEDGE_I32, 1, (uint32_t[]){5}, NULL);
  for (uint32_t r = 0; r < rows; r++) slots[r] = r < p->valid ? (int32_t)((r * 7 + 3) % rows) : -1;
  offsets[0] = 0;
  offsets[1] = offsets[2] = (int32_t)(p->valid * 3 / 4);
  offsets[3] = offsets[2] + 1;
  offsets[4] = (int32_t)p->valid;
}

static void check_forward(const plan *p, uint32_t n, uint32_t k, uint32_t mode, kedge_random *random) {
  const uint32_t bf16 = mode & 1, gather = mode >> 1 & 1, trans = mode >> 2 & 1, rows = p->tokens * p->topk;
  const kedge_args_grouped_matmul args = {
      .rows = rows, .n = n, .k = k, .experts = 4, .topk = p->topk, .gather = gather, .trans_w = trans};
  kedge_step step = {.op = KEDGE_OP_grouped_matmul, .variant = variants[bf16]};
  step.call.args = &args;
  void *x =
      tensor_new(&step.call.in[0], storages[bf16], 2, (uint32_t[]){gather ? p->tokens : rows, k}, random);
  void *w =
      tensor_new(&step.call.in[1], storages[bf16], 3, (uint32_t[]){4, trans ? n : k, trans ? k : n}, random);
  step.call.in[2] = p->slots;
  step.call.in[3] = p->offsets;
  check_step(&step, storages[bf16], 2, (uint32_t[]){rows, n});
  free(x);
  free(w);
}

static void check_wgrad(const plan *p, uint32_t n, uint32_t k, uint32_t mode, kedge_random *random) {
  const uint32_t bf16 = mode & 1, gather_dy = mode >> 1 & 1, gather_x = mode >> 2 & 1,
                 rows = p->tokens * p->topk;
  const kedge_args_grouped_wgrad args = {.rows = rows,
                                         .n = n,
                                         .k = k,
                                         .experts = 4,
                                         .topk = p->topk,
                                         .gather_dy = gather_dy,
                                         .gather_x = gather_x};
  kedge_step step = {.op = KEDGE_OP_grouped_wgrad, .variant = variants[bf16]};
  step.call.args = &args;
  void *dy =
      tensor_new(&step.call.in[0], storages[bf16], 2, (uint32_t[]){gather_dy ? p->tokens : rows, n}, random);
  void *x =
      tensor_new(&step.call.in[1], storages[bf16], 2, (uint32_t[]){gather_x ? p->tokens : rows, k}, random);
  step.call.in[2] = p->slots;
  step.call.in[3] = p->offsets;
  check_step(&step, KEDGE_F32, 3, (uint32_t[]){4, n, k});
  free(dy);
  free(x);
}

static void test_grouped_sizes(void **state) {
  static const uint32_t sizes[][4] = {/* tokens, topk, n, k */
                                      {20, 2, 33, 17},
                                      {150, 4, 15, 31},
                                      {30, 3, 48, 520},
                                      {11, 1, 1, 3}};
  kedge_random random = {9};
  (void)state;
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    plan p;
    plan_new(&p, sizes[s][0], sizes[s][1]);
    for (uint32_t mode = 0; mode < 8; mode++) {
      check_forward(&p, sizes[s][2], sizes[s][3], mode, &random);
      check_wgrad(&p, sizes[s][2], sizes[s][3], mode, &random);
    }
    free(p.slots.data);
    free(p.offsets.data);
  }
  printf("%u products compared\n", runs);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_emulated_cases),
                                     cmocka_unit_test(test_dense_sizes),
                                     cmocka_unit_test(test_grouped_sizes)};
  return cmocka_run_group_tests(tests, open_devices, close_devices);
}
