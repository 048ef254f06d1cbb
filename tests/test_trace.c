/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Routing traces: collected from a golden model against the ids of the reference library, cut at max_tokens,
 * the same whatever the batch, saved and read again; bad files and bad routers.
 */
#include "models/checkpoint/writer.h"
#include "models/trace/trace.h"
#include "tests/support/files.h"
#include "tests/support/reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static void fails(kedge_status got, kedge_status want, const char *text) {
  if (got != want) fail_msg("expected %s, got %s", kedge_status_name(want), kedge_status_name(got));
  if (!strstr(kedge_message(), text)) fail_msg("expected \"%s\" in: %s", text, kedge_message());
}

/* ---- Collecting
 * --------------------------------------------------------------------------------------------------- */

typedef struct world {
  kedge_device *device;
  kedge_model *model;
  kedge_st_file *golden;
  kedge_dataset *dataset; /* the golden file's sequences as samples, their first token the question */
} world;

static void open_model(world *w, const char *backend, const char *name) {
  uint64_t tokens, bounds;
  kedge_dataset_builder *b;
  ok(kedge_device_open(backend, NULL, &w->device));
  char path[80];
  snprintf(path, sizeof path, "%s/golden.safetensors", name);
  ok(kedge_model_load(w->device, test_golden(name), KEDGE_F32, &w->model));
  ok(kedge_st_open(test_golden(path), &w->golden));
  int32_t *ids = kedge_test_ints(w->golden, "input_ids", &tokens);
  int32_t *cu = kedge_test_ints(w->golden, "cu_seqlens", &bounds);
  ok(kedge_dataset_builder_new(0, &b));
  ok(kedge_dataset_builder_file(b, "golden"));
  for (uint64_t s = 0; s + 1 < bounds; s++) {
    int8_t spans[256];
    uint8_t trained[256];
    bool kept;
    size_t count = (size_t)(cu[s + 1] - cu[s]);
    assert_in_range(count, 2, 256);
    for (size_t t = 0; t < count; t++) spans[t] = t > 0, trained[t] = t > 0;
    ok(kedge_dataset_builder_add(b, ids + cu[s], spans, trained, count, s + 1, &kept));
    assert_true(kept);
  }
  ok(kedge_dataset_builder_finish(b, &w->dataset));
  kedge_dataset_builder_free(b);
  free(ids), free(cu);
}

static void close_world(world *w) {
  kedge_dataset_free(w->dataset);
  kedge_st_close(w->golden);
  kedge_model_free(w->model);
  kedge_device_close(w->device);
}

static void check_golden(const world *w, const kedge_trace *t) {
  for (uint32_t l = 0; l < t->layers; l++) {
    char name[64];
    uint64_t count;
    snprintf(name, sizeof name, "topk_ids.%d", t->layer_numbers[l]);
    int32_t *want = kedge_test_ints(w->golden, name, &count);
    assert_int_equal(count, (uint64_t)t->tokens * t->topk);
    snprintf(name, sizeof name, "router_logits.%d", t->layer_numbers[l]);
    double *logits = kedge_test_doubles(w->golden, name, &count);
    snprintf(name, sizeof name, "topk_weights.%d", t->layer_numbers[l]);
    double *weights = kedge_test_doubles(w->golden, name, &count);
    for (uint32_t i = 0; i < t->tokens; i++) {
      size_t row = (size_t)i * t->layers + l;
      assert_memory_equal(t->ids + row * t->topk, want + (size_t)i * t->topk, 4 * t->topk);
      assert_true(
          kedge_test_error(t->logits + row * t->experts, logits + (size_t)i * t->experts, t->experts) < 1e-4);
      assert_true(kedge_test_error(t->weights + row * t->topk, weights + (size_t)i * t->topk, t->topk) <
                  1e-4);
      assert_int_equal(t->ties[row], 0);
    }
    free(want), free(logits), free(weights);
  }
}

static void collect_on(const char *backend) {
  world w;
  kedge_trace t, cut;
  open_model(&w, backend, "qwen3_moe_mixed");
  ok(kedge_trace_collect(w.model, w.dataset,
                         &(kedge_trace_options){.with_weights = true, .with_logits = true}, &t));
  ok(kedge_trace_check(&t, "collected"));
  assert_int_equal(t.tokens, w.dataset->offsets[w.dataset->count]);
  check_golden(&w, &t);
  char hash[33];
  ok(kedge_model_hash(w.model, hash));
  assert_string_equal(t.model, hash);
  assert_string_equal(t.data, w.dataset->hash);
  for (uint32_t s = 0; s < w.dataset->count; s++)
    for (uint64_t i = w.dataset->offsets[s]; i < w.dataset->offsets[s + 1]; i++)
      assert_true(t.samples[i] == (int32_t)s && t.spans[i] == (i > w.dataset->offsets[s]));
  /* One sample a pass, cut inside the last sample. */
  ok(kedge_trace_collect(w.model, w.dataset,
                         &(kedge_trace_options){.batch_size = 1, .max_tokens = t.tokens - 1}, &cut));
  assert_int_equal(cut.tokens, t.tokens - 1);
  assert_null(cut.weights);
  assert_memory_equal(cut.ids, t.ids, (size_t)cut.tokens * cut.layers * cut.topk * 4);
  kedge_trace_destroy(&t), kedge_trace_destroy(&cut);
  close_world(&w);
}

static void test_collect(void **state) {
  (void)state;
  collect_on("ref");
  collect_on("cpu");
}

/* Equal logits on both sides of the cut are told, and the lower index is taken. Experts come in groups of k +
 * 1 with one router row: a choice hangs on the rule of ties unless the best group is the last, smaller one.
 */
static void test_ties(void **state) {
  (void)state;
  world w;
  kedge_trace t;
  open_model(&w, "ref", "qwen3_moe_mixed");
  const uint32_t E = w.model->config.num_experts, K = w.model->config.num_experts_per_tok;
  const uint32_t D = w.model->config.hidden_size, last = E / (K + 1) * (K + 1);
  uint32_t item =
      kedge_params_find(&w.model->params, KEDGE_ROLE_ROUTER, kedge_params_moe_layer(&w.model->params, 0));
  float *weights = malloc((size_t)E * D * sizeof *weights);
  ok(kedge_buffer_read(w.model->weights[item], 0, weights, (uint64_t)E * D * sizeof *weights));
  for (uint32_t e = 0; e < E; e++)
    memcpy(weights + (size_t)e * D, weights + (size_t)(e / (K + 1) * (K + 1)) * D, D * sizeof *weights);
  ok(kedge_buffer_write(w.model->weights[item], 0, weights, (uint64_t)E * D * sizeof *weights));
  free(weights);
  ok(kedge_trace_collect(w.model, w.dataset, NULL, &t));
  uint32_t ties = 0;
  for (uint32_t i = 0; i < t.tokens; i++) {
    const int32_t *ids = t.ids + (size_t)i * t.layers * K;
    bool tie = t.ties[(size_t)i * t.layers];
    if ((uint32_t)ids[0] < last) assert_true(tie);
    if (E - last == K && (uint32_t)ids[0] >= last) assert_false(tie);
    for (uint32_t k = 1; k < K && (uint32_t)ids[0] < last; k++) assert_int_equal(ids[k], ids[0] + (int32_t)k);
    ties += tie;
  }
  print_message("%u of %u choices hang on a tie\n", ties, t.tokens);
  assert_true(ties > 0);
  /* The group of the first choice scored the same, and the file tells. */
  kedge_trace got;
  const char *path = test_path(test_folder(), "ties.safetensors");
  const uint32_t bytes = (E + 7) / 8;
  ok(kedge_trace_check(&t, "ties"));
  ok(kedge_trace_save(&t, path));
  ok(kedge_trace_load(path, &got));
  assert_memory_equal(got.tied, t.tied, (size_t)t.tokens * t.layers * bytes);
  for (uint32_t i = 0; i < t.tokens; i++) {
    const size_t row = (size_t)i * t.layers;
    const uint32_t first = (uint32_t)t.ids[row * K];
    for (uint32_t k = 0; k <= K && first < last; k++)
      assert_true(t.tied[row * bytes + (first + k) / 8] >> (first + k) % 8 & 1);
  }
  kedge_trace_destroy(&got);
  kedge_trace_destroy(&t);
  close_world(&w);
}

/* All router rows of a layer alike, and its selection bias as given. */
static void level(world *w, uint32_t layer, const float *bias) {
  const uint32_t E = w->model->config.num_experts, D = w->model->config.hidden_size;
  const uint32_t router = kedge_params_find(&w->model->params, KEDGE_ROLE_ROUTER, layer);
  const uint32_t correction = kedge_params_find(&w->model->params, KEDGE_ROLE_ROUTER_CORRECTION, layer);
  float *row = malloc(D * sizeof *row);
  ok(kedge_buffer_read(w->model->weights[router], 0, row, D * sizeof *row));
  for (uint32_t e = 1; e < E; e++)
    ok(kedge_buffer_write(w->model->weights[router], (uint64_t)e * D * sizeof *row, row, D * sizeof *row));
  ok(kedge_buffer_write(w->model->weights[correction], 0, bias, E * sizeof *bias));
  free(row);
}

/* Sigmoid scores with a selection bias, in groups: what is ranked is compared, not the logits, and experts of
 * groups that are left out tie with none. */
static void test_ties_of_scores(void **state) {
  (void)state;
  world w;
  kedge_trace t;
  float bias[64];
  open_model(&w, "cpu", "deepseek_v3_group");
  const kedge_family_options *o = &w.model->params.options;
  const uint32_t E = w.model->config.num_experts, K = w.model->config.num_experts_per_tok;
  const uint32_t layer = kedge_params_moe_layer(&w.model->params, 0), open = E / o->groups * o->topk_groups;
  assert_true(E <= 64 && o->groups > 1 && o->topk_groups < o->groups && open > K);
  for (uint32_t e = 0; e < E; e++) bias[e] = (float)e / 64;
  level(&w, layer, bias);
  ok(kedge_trace_collect(w.model, w.dataset, NULL, &t));
  for (uint32_t i = 0; i < t.tokens; i++) assert_false(t.ties[(size_t)i * t.layers]);
  kedge_trace_destroy(&t);
  memset(bias, 0, sizeof bias);
  level(&w, layer, bias);
  ok(kedge_trace_collect(w.model, w.dataset, NULL, &t));
  ok(kedge_trace_check(&t, "ties of scores"));
  for (uint32_t i = 0; i < t.tokens; i++) {
    const size_t row = (size_t)i * t.layers;
    assert_true(t.ties[row]);
    for (uint32_t k = 0; k < K; k++) assert_int_equal(t.ids[row * K + k], k);
    for (uint32_t e = 0; e < E; e++)
      assert_int_equal(t.tied[row * ((E + 7) / 8) + e / 8] >> e % 8 & 1, e < open);
  }
  kedge_trace_destroy(&t);
  close_world(&w);
}

static bool stop(void *context, uint64_t tokens, uint64_t total) {
  (void)context;
  return tokens >= total;
}

static void test_refusals(void **state) {
  (void)state;
  world w;
  kedge_trace t;
  open_model(&w, "cpu", "qwen3_moe_mixed");
  fails(
      kedge_trace_collect(w.model, w.dataset, &(kedge_trace_options){.batch_size = 1, .progress = stop}, &t),
      KEDGE_ERR_INTERRUPTED, "stopped after");
  uint32_t layer = kedge_params_moe_layer(&w.model->params, 1);
  uint32_t item = kedge_params_find(&w.model->params, KEDGE_ROLE_ROUTER, layer);
  const float bad = NAN;
  char text[128];
  ok(kedge_buffer_write(w.model->weights[item], 0, &bad, sizeof bad));
  snprintf(text, sizeof text, "not finite: model.layers.%u.mlp.gate.weight holds a NaN at element 0", layer);
  fails(kedge_trace_collect(w.model, w.dataset, NULL, &t), KEDGE_ERR_NUMERIC, text);
  assert_null(t.ids);
  close_world(&w);
}

/* ---- Files
 * -------------------------------------------------------------------------------------------------------- */

static kedge_trace small(void) {
  kedge_trace t;
  ok(kedge_trace_init(&t, 3, 2, 5, 2));
  const int32_t ids[12] = {0, 4, 3, 2, 1, 0, -1, -1, -1, -1, 2, 1};
  memcpy(t.ids, ids, sizeof ids);
  t.samples[2] = 1, t.spans[0] = 0, t.spans[1] = 1;
  t.layer_numbers[0] = 1, t.layer_numbers[1] = 3;
  return t;
}

static void test_file(void **state) {
  (void)state;
  const char *path = test_path(test_folder(), "trace.safetensors");
  kedge_trace t = small(), got;
  ok(kedge_trace_save(&t, path));
  ok(kedge_trace_load(path, &got));
  assert_true(got.tokens == 3 && got.layers == 2 && got.experts == 5 && got.topk == 2);
  assert_memory_equal(got.ids, t.ids, 48);
  assert_memory_equal(got.spans, t.spans, 12);
  assert_memory_equal(got.samples, t.samples, 12);
  assert_memory_equal(got.layer_numbers, t.layer_numbers, 8);
  assert_true(!got.weights && !got.logits && !got.ties && !*got.model);
  kedge_trace_destroy(&got);
  memset(t.model, 'a', 32), memset(t.tokenizer, 'b', 32), memset(t.data, 'c', 32);
  t.weights = kedge_alloc(12, sizeof *t.weights), t.logits = kedge_alloc(30, sizeof *t.logits);
  t.ties = kedge_alloc(6, 1);
  t.weights[11] = 0.25f, t.logits[29] = -7, t.ties[5] = 1;
  ok(kedge_trace_save(&t, path));
  ok(kedge_trace_load(path, &got));
  assert_true(got.weights[11] == 0.25f && got.logits[29] == -7 && got.ties[5] == 1);
  assert_true(!strcmp(got.model, t.model) && !strcmp(got.tokenizer, t.tokenizer) &&
              !strcmp(got.data, t.data));
  assert_true(kedge_trace_is_routed(&got, 2, 1) && !kedge_trace_is_routed(&got, 2, 0));
  kedge_trace_destroy(&got), kedge_trace_destroy(&t);
}

static void reject(kedge_trace *t, const char *text) {
  const char *path = test_path(test_folder(), "bad.safetensors");
  kedge_trace got;
  ok(kedge_trace_save(t, path));
  fails(kedge_trace_load(path, &got), KEDGE_ERR_FORMAT, text);
  assert_null(got.ids);
  kedge_trace_destroy(t);
}

static void test_bad_contents(void **state) {
  (void)state;
  kedge_trace t = small();
  t.ids[1] = 5, reject(&t, "token 0, layer 0");
  t = small(), t.ids[5] = 1, reject(&t, "token 1, layer 0"); /* 1 twice */
  t = small(), t.ids[7] = 1, reject(&t, "token 1, layer 1"); /* half a padding row */
  t = small(), t.ids[10] = -2, reject(&t, "token 2, layer 1");
  t = small(), t.spans[1] = 2, reject(&t, "span of token 1");
  t = small(), t.samples[2] = -1, reject(&t, "sample of token 2");
  t = small(), t.layer_numbers[1] = 1, reject(&t, "layers[1]");
  t = small(), t.weights = kedge_alloc(12, sizeof *t.weights), t.weights[3] = NAN;
  reject(&t, "weights of token 0, layer 1");
  t = small(), t.weights = kedge_alloc(12, sizeof *t.weights), t.weights[3] = -1;
  reject(&t, "weights of token 0, layer 1: expected finite numbers, 0 or more");
  t = small(), t.ties = kedge_alloc(6, 1), t.tied = kedge_alloc(6, 1), t.ties[1] = 1, t.tied[1] = 0x0c;
  reject(&t, "tied of token 0, layer 1"); /* 2 and 3 both have places */
  t = small(), t.ties = kedge_alloc(6, 1), t.tied = kedge_alloc(6, 1), t.ties[1] = 1, t.tied[1] = 0x11;
  reject(&t, "tied of token 0, layer 1"); /* 0 and 4 have none */
}

static kedge_status zeros(void *context, uint32_t index, uint64_t offset, void *buffer, uint64_t bytes) {
  (void)context, (void)index, (void)offset;
  memset(buffer, 0, bytes);
  return KEDGE_OK;
}

static void reject_header(kedge_st_spec spec, const char *experts, const char *text) {
  const char *path = test_path(test_folder(), "header.safetensors");
  const kedge_st_pair pair = {"num_experts", experts};
  kedge_trace got;
  ok(kedge_st_write(path, &spec, 1, &pair, experts ? 1 : 0, zeros, NULL));
  fails(kedge_trace_load(path, &got), KEDGE_ERR_FORMAT, text);
}

static void test_bad_headers(void **state) {
  (void)state;
  const kedge_st_spec fine = {"ids", KEDGE_ST_I32, 3, {2, 1, 1}};
  reject_header((kedge_st_spec){"id", KEDGE_ST_I32, 3, {2, 1, 1}}, "4", "got nothing");
  reject_header((kedge_st_spec){"ids", KEDGE_ST_I64, 3, {2, 1, 1}}, "4", "got I64 [2,1,1]");
  reject_header((kedge_st_spec){"ids", KEDGE_ST_I32, 2, {2, 1}}, "4", "[tokens, layers, k]");
  reject_header((kedge_st_spec){"ids", KEDGE_ST_I32, 3, {0, 1, 1}}, "4", "at least one token");
  reject_header((kedge_st_spec){"ids", KEDGE_ST_I32, 3, {1, 1, 5}}, "4", "1 to 4 experts");
  reject_header(fine, NULL, "num_experts");
  reject_header(fine, "0", "num_experts");
  reject_header(fine, "4x", "got 4x");
  reject_header(fine, "-4", "got -4");
  reject_header(fine, "99999999999999999999", "num_experts");
  kedge_trace t;
  fails(kedge_trace_load(test_path(test_folder(), "absent"), &t), KEDGE_ERR_IO, "absent");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_collect),     cmocka_unit_test(test_ties), cmocka_unit_test(test_ties_of_scores),
      cmocka_unit_test(test_refusals),    cmocka_unit_test(test_file), cmocka_unit_test(test_bad_contents),
      cmocka_unit_test(test_bad_headers),
  };
  return cmocka_run_group_tests_name("trace", tests, NULL, NULL);
}
