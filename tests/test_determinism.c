/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * One forward and backward pass gives one set of bits, however often it runs; a sequence does not notice what
 * it is packed with; the router tells logits apart that bf16 could not.
 */
#include "models/decoder/pass.h"
#include "models/training/optimizer.h"
#include "tests/support/files.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { T = 40, V = 61 };

static void check(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

/* Sequences of the given lengths end to end, then tokens outside any. The ids of a sequence depend on its
 * number alone. */
typedef struct stream {
  int32_t ids[T], positions[T], segments[T], labels[T];
  float weights[T];
} stream;

static void stream_make(stream *s, const int *numbers, const int *lengths, int count) {
  int at = 0;
  memset(s, 0, sizeof *s);
  for (int t = 0; t < T; t++) s->segments[t] = s->labels[t] = -1;
  for (int i = 0; i < count; i++) {
    for (int t = 0; t < lengths[i]; t++) {
      s->ids[at + t] = (numbers[i] * 17 + t * t * 5 + 3) % V;
      s->positions[at + t] = t;
      s->segments[at + t] = at;
      s->labels[at + t] = t + 1 < lengths[i] ? (t * 7 + numbers[i]) % V : -1;
      s->weights[at + t] = t + 1 < lengths[i] ? 0.05f : 0;
    }
    at += lengths[i];
  }
}

typedef struct bench {
  kedge_device *device;
  kedge_model *model;
  kedge_workspace *workspace;
  kedge_optimizer optimizer;
  kedge_passes passes;
  kedge_pass *pass;
} bench;

static void bench_open(bench *b) {
  const kedge_open_options options = {.threads = 2};
  const kedge_decoder_spec spec = {.loss = true, .logits = true, .taps = true};
  const kedge_optimizer_options adamw = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
  memset(b, 0, sizeof *b);
  check(kedge_device_open("cpu", &options, &b->device));
  check(kedge_model_load(b->device, test_golden("qwen3_moe_top2of8"), KEDGE_F32, &b->model));
  check(kedge_workspace_new(b->device, &b->workspace));
  check(kedge_optimizer_init(&b->optimizer, b->model, &adamw, b->workspace));
  kedge_passes_init(&b->passes, b->model, &spec, b->workspace, kedge_optimizer_extend, &b->optimizer);
  check(kedge_passes_get(&b->passes, T, 0, &b->pass));
}

static void bench_close(bench *b) {
  kedge_passes_destroy(&b->passes);
  kedge_optimizer_destroy(&b->optimizer);
  kedge_workspace_free(b->workspace);
  kedge_model_free(b->model);
  kedge_device_close(b->device);
}

static void bench_run(bench *b, const stream *s) {
  const kedge_tokens tokens = {.ids = s->ids,
                               .positions = s->positions,
                               .segments = s->segments,
                               .labels = s->labels,
                               .weights = s->weights};
  check(kedge_optimizer_begin(&b->optimizer));
  check(kedge_pass_run(b->pass, &tokens));
}

/* Loss and all gradients, as one block of bytes. */
static unsigned char *snapshot(const bench *b, size_t *bytes) {
  *bytes = 4;
  for (uint32_t i = 0; i < b->model->params.count; i++) *bytes += kedge_buffer_size(b->optimizer.grad[i]);
  unsigned char *all = malloc(*bytes), *at = all + 4;
  assert_non_null(all);
  check(kedge_exec_read(b->pass->exec, b->pass->decoder.loss_1, all, 4));
  for (uint32_t i = 0; i < b->model->params.count; i++) {
    size_t n = kedge_buffer_size(b->optimizer.grad[i]);
    check(kedge_buffer_read(b->optimizer.grad[i], 0, at, n));
    at += n;
  }
  return all;
}

static void test_forty_passes(void **state) {
  (void)state;
  bench b;
  stream s;
  size_t bytes, again_bytes;
  bench_open(&b);
  stream_make(&s, (int[]){0, 1}, (int[]){19, 16}, 2);
  bench_run(&b, &s);
  unsigned char *first = snapshot(&b, &bytes);
  for (int i = 1; i < 40; i++) {
    bench_run(&b, &s);
    unsigned char *again = snapshot(&b, &again_bytes);
    assert_memory_equal(first, again, bytes);
    free(again);
  }
  s.ids[3]++; /* and the comparison can fail */
  bench_run(&b, &s);
  unsigned char *other = snapshot(&b, &again_bytes);
  assert_memory_not_equal(first, other, bytes);
  free(first), free(other);
  bench_close(&b);
}

/* Sequence 1 alone, and behind sequence 0: logits, router logits and choices agree. */
static void test_packed_or_alone(void **state) {
  (void)state;
  enum { A = 13, B = 21 };
  static float alone[T * V], packed[T * V];
  int32_t ids_alone[T * 2], ids_packed[T * 2];
  bench b;
  stream s;
  bench_open(&b);
  for (uint32_t layer = 0; layer < b.model->params.moe_layers; layer++) {
    stream_make(&s, (int[]){1}, (int[]){B}, 1);
    bench_run(&b, &s);
    check(kedge_exec_read(b.pass->exec, b.pass->decoder.logits_TV, alone, sizeof alone));
    check(kedge_exec_read(b.pass->exec, b.pass->decoder.ids_TK[layer], ids_alone, sizeof ids_alone));
    stream_make(&s, (int[]){0, 1}, (int[]){A, B}, 2);
    bench_run(&b, &s);
    check(kedge_exec_read(b.pass->exec, b.pass->decoder.logits_TV, packed, sizeof packed));
    check(kedge_exec_read(b.pass->exec, b.pass->decoder.ids_TK[layer], ids_packed, sizeof ids_packed));
    assert_memory_equal(ids_alone, ids_packed + A * 2, B * 2 * sizeof(int32_t));
    for (int i = 0; i < B * V; i++) assert_true(fabsf(alone[i] - packed[A * V + i]) <= 1e-5f);
  }
  bench_close(&b);
}

/* h and W in bf16 whose logits are 1 and 1.00195: equal once rounded to bf16, and the second is larger. */
static void test_close_logits(void **state) {
  (void)state;
  static const char *const backends[] = {"ref", "cpu"};
  for (int i = 0; i < 2; i++) {
    kedge_device *device;
    kedge_exec *exec;
    kedge_graph *g = kedge_graph_new(false);
    check(kedge_device_open(backends[i], NULL, &device));
    kedge_value h = kedge_input(g, "h", KEDGE_BF16, 2, (uint32_t[]){1, 2});
    kedge_value w = kedge_input(g, "w", KEDGE_BF16, 2, (uint32_t[]){2, 2});
    kedge_value segments = kedge_input(g, "segments", KEDGE_I32, 1, (uint32_t[]){1});
    kedge_value z = kedge_linear(g, kedge_cast(g, h, KEDGE_F32), kedge_cast(g, w, KEDGE_F32));
    kedge_value ids = kedge_topk(g, z, KEDGE_NONE, segments, &(kedge_topk_options){.k = 1}, NULL);
    kedge_output(g, ids, "ids");
    check(kedge_exec_new(device, g, NULL, &exec));
    const uint16_t h_data[] = {kedge_f32_to_bf16(1), kedge_f32_to_bf16(0.001953125f)};
    const uint16_t w_data[] = {kedge_f32_to_bf16(1), 0, kedge_f32_to_bf16(1), kedge_f32_to_bf16(1)};
    assert_int_equal(kedge_f32_to_bf16(1.001953125f), kedge_f32_to_bf16(1));
    const int32_t segment = 0;
    int32_t chosen = -1;
    check(kedge_exec_write(exec, h, h_data, sizeof h_data));
    check(kedge_exec_write(exec, w, w_data, sizeof w_data));
    check(kedge_exec_write(exec, segments, &segment, sizeof segment));
    check(kedge_exec_run(exec, 0, UINT32_MAX));
    check(kedge_exec_read(exec, ids, &chosen, sizeof chosen));
    assert_int_equal(chosen, 1);
    kedge_exec_free(exec);
    kedge_graph_free(g);
    kedge_device_close(device);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_forty_passes),
                                     cmocka_unit_test(test_packed_or_alone),
                                     cmocka_unit_test(test_close_logits)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
