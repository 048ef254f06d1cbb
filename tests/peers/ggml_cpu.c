/* SPDX-License-Identifier: Apache-2.0
 *
 * Times ggml's products of experts (mul_mat_id) on the CPU, for tests/peers/ggml.py: rows of tokens by the
 * experts that each token chose, the forward product of a layer. Built by that script against ggml's headers
 * and libraries; it is no part of Kedge's build.
 *
 *     ggml_cpu TYPE THREADS SECONDS HIDDEN WIDTH EXPERTS TOP TOKENS    TYPE: f32, f16 or bf16, of the weights
 *
 * Prints the median seconds of a run by the clock and the mean of processor time. */
#include <ggml-cpu.h>
#include <ggml.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RUNS = 4096 };

static double seconds_of(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static uint64_t next_random(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

static void fill(struct ggml_tensor *t) {
  uint64_t state = 1;
  const int64_t count = ggml_nelements(t);
  for (int64_t i = 0; i < count; i++) {
    const float value = (float)next_random(&state) / (float)0x40000000 - 1;
    if (t->type == GGML_TYPE_F32)
      ((float *)t->data)[i] = value;
    else if (t->type == GGML_TYPE_F16)
      ((ggml_fp16_t *)t->data)[i] = ggml_fp32_to_fp16(value);
    else
      ((ggml_bf16_t *)t->data)[i] = ggml_fp32_to_bf16(value);
  }
}

/* Different experts for a token, spread as `kedge bench` spreads them. */
static void choose(struct ggml_tensor *ids, uint32_t experts, uint32_t top, uint32_t tokens) {
  for (uint32_t t = 0; t < tokens; t++) {
    uint64_t state = t;
    next_random(&state);
    const uint64_t first = next_random(&state);
    for (uint32_t k = 0; k < top; k++)
      ((int32_t *)ids->data)[t * top + k] = (int32_t)((first + (uint64_t)k * (experts / top)) % experts);
  }
}

int main(int argc, char **argv) {
  if (argc != 9) {
    fprintf(stderr, "ggml_cpu TYPE THREADS SECONDS HIDDEN WIDTH EXPERTS TOP TOKENS\n");
    return 2;
  }
  const enum ggml_type type = !strcmp(argv[1], "f32")   ? GGML_TYPE_F32
                              : !strcmp(argv[1], "f16") ? GGML_TYPE_F16
                                                        : GGML_TYPE_BF16;
  const int threads = atoi(argv[2]);
  const double limit = atof(argv[3]);
  const uint32_t hidden = (uint32_t)atoi(argv[4]), width = (uint32_t)atoi(argv[5]),
                 experts = (uint32_t)atoi(argv[6]), top = (uint32_t)atoi(argv[7]),
                 tokens = (uint32_t)atoi(argv[8]);
  const size_t bytes = (size_t)experts * hidden * width * ggml_type_size(type) +
                       4 * (size_t)tokens * (hidden + (size_t)top * (width + 1));
  struct ggml_context *c = ggml_init((struct ggml_init_params){.mem_size = bytes + (16u << 20)});
  if (!c) return 1;
  ggml_cpu_init();
  struct ggml_tensor *w = ggml_new_tensor_3d(c, type, hidden, width, experts);
  struct ggml_tensor *x = ggml_new_tensor_3d(c, GGML_TYPE_F32, hidden, 1, tokens);
  struct ggml_tensor *ids = ggml_new_tensor_2d(c, GGML_TYPE_I32, top, tokens);
  fill(w);
  fill(x);
  choose(ids, experts, top, tokens);
  struct ggml_cgraph *graph = ggml_new_graph(c);
  ggml_build_forward_expand(graph, ggml_mul_mat_id(c, w, x, ids));
  struct ggml_cplan plan = ggml_graph_plan(graph, threads, NULL);
  plan.work_data = malloc(plan.work_size ? plan.work_size : 1);
  if (!plan.work_data || ggml_graph_compute(graph, &plan) != GGML_STATUS_SUCCESS) return 1;
  static double times[RUNS];
  int count = 0;
  const double start = seconds_of(CLOCK_MONOTONIC), spent = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  while (count < RUNS && (count < 3 || seconds_of(CLOCK_MONOTONIC) - start < limit)) {
    const double before = seconds_of(CLOCK_MONOTONIC);
    ggml_graph_compute(graph, &plan);
    times[count++] = seconds_of(CLOCK_MONOTONIC) - before;
  }
  const double cpu = (seconds_of(CLOCK_PROCESS_CPUTIME_ID) - spent) / count;
  qsort(times, (size_t)count, sizeof *times, by_value);
  printf("%.9f %.9f\n", times[count / 2], cpu);
  free(plan.work_data);
  ggml_free(c);
  return 0;
}
