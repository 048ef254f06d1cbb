/* SPDX-License-Identifier: Apache-2.0
 *
 * ggml's Vulkan backend at the shapes of tests/test_vulkan_speed.c, for tests/peers/vulkan.py, which runs
 * both in turn. For developers: it is no part of the build, and needs an installed ggml with its Vulkan
 * backend.
 *
 *   cc -O2 -I GGML/include tests/peers/ggml_vulkan.c -L GGML/lib -lggml -lggml-base -lggml-vulkan -o
 * ggml_vulkan
 *
 * It prints a line a case: name, seconds of wall-clock time, seconds of processor time, each the least of
 * RUNS.
 */
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-vulkan.h>
#include <ggml.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIDE = 1024, E = 64, K = 1024, M = 352, T = 512, TOP = 6, NODES = 16 };

typedef struct ggml_tensor tensor;
typedef struct ggml_context context;

static tensor *square(context *c) {
  return ggml_new_tensor_2d(c, GGML_TYPE_F32, SIDE, SIDE);
}
static tensor *product(context *c) {
  return ggml_mul_mat(c, square(c), square(c));
}
/* What ggml's own backward pass makes of a product, for its first operand and its second; the Vulkan backend
 * takes no turned operand, so that it lies there turned. */
static tensor *gradient_first(context *c) {
  return ggml_out_prod(c, square(c), square(c));
}
static tensor *gradient_second(context *c) {
  return ggml_out_prod(c, square(c), ggml_cont(c, ggml_transpose(c, square(c))));
}
static tensor *experts(context *c) {
  tensor *w = ggml_new_tensor_3d(c, GGML_TYPE_F32, K, M, E),
         *x = ggml_new_tensor_3d(c, GGML_TYPE_F32, K, 1, T);
  return ggml_mul_mat_id(c, w, x, ggml_new_tensor_2d(c, GGML_TYPE_I32, TOP, T));
}
static tensor *norm(context *c) {
  return ggml_rms_norm(c, ggml_new_tensor_2d(c, GGML_TYPE_F32, 512, 2048), 1e-6f);
}
static tensor *softmax(context *c) {
  return ggml_soft_max(c, ggml_new_tensor_2d(c, GGML_TYPE_F32, 4096, 4096));
}

static const struct {
  const char *name;
  tensor *(*build)(context *c);
} cases[] = {{"matmul", product},
             {"gradient_first", gradient_first},
             {"gradient_second", gradient_second},
             {"experts", experts},
             {"norm", norm},
             {"softmax", softmax}};

static double seconds(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void fill(tensor *t) {
  const int64_t count = ggml_nelements(t);
  float *data = malloc((size_t)count * sizeof *data);
  int32_t *ids = malloc((size_t)count * sizeof *ids);
  if (!data || !ids) exit(1);
  for (int64_t i = 0; i < count; i++) {
    data[i] = (float)(i * 37 % 1009) / 1009.0f - 0.5f;
    ids[i] = (int32_t)((i / TOP * 37 + i % TOP * 11) % E);
  }
  ggml_backend_tensor_set(t, t->type == GGML_TYPE_I32 ? (void *)ids : (void *)data, 0, ggml_nbytes(t));
  free(data);
  free(ids);
}

static int run(ggml_backend_t backend, const char *name, tensor *(*build)(context *c), int runs) {
  const struct ggml_init_params options = {ggml_tensor_overhead() * NODES + ggml_graph_overhead(), NULL,
                                           true};
  context *c = ggml_init(options);
  double wall = INFINITY, processor = INFINITY;
  tensor *out = build(c);
  struct ggml_cgraph *graph = ggml_new_graph(c);
  ggml_build_forward_expand(graph, out);
  if (!ggml_backend_supports_op(backend, out)) {
    printf("%s unsupported\n", name);
    ggml_free(c);
    return 0;
  }
  ggml_backend_buffer_t memory = ggml_backend_alloc_ctx_tensors(c, backend);
  if (!memory) return 1;
  for (tensor *t = ggml_get_first_tensor(c); t; t = ggml_get_next_tensor(c, t))
    if (t->op == GGML_OP_NONE) fill(t);
  for (int i = 0; i <= runs; i++) { /* the first makes pipelines */
    const double start = seconds(CLOCK_MONOTONIC), used = seconds(CLOCK_PROCESS_CPUTIME_ID);
    if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) return 1;
    const double took = seconds(CLOCK_MONOTONIC) - start, spent = seconds(CLOCK_PROCESS_CPUTIME_ID) - used;
    if (i) wall = fmin(wall, took), processor = fmin(processor, spent);
  }
  printf("%s %.6f %.6f\n", name, wall, processor);
  fflush(stdout);
  ggml_backend_buffer_free(memory);
  ggml_free(c);
  return 0;
}

int main(int argc, char **argv) {
  ggml_backend_t backend = ggml_backend_vk_init(0);
  const int runs = argc > 1 ? atoi(argv[1]) : 3;
  int failed = !backend;
  for (size_t i = 0; i < sizeof cases / sizeof *cases && !failed; i++)
    if (argc < 3 || strstr(cases[i].name, argv[2]))
      failed = run(backend, cases[i].name, cases[i].build, runs);
  if (backend) ggml_backend_free(backend);
  return failed;
}
