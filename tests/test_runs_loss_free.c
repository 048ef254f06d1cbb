/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * Loss-free balancing from end to end: how the selection bias moves, that it is exported in f32 once it has
 * moved and as it was read while it has not, one file or shards, and that a resumed run has it to the bit. */
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/convert.h"
#include "models/checkpoint/writer.h"
#include "models/trace/trace.h"
#include "tests/support/files.h"
#include "tests/support/runs.h"
#include "tests/support/training.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { E = 8, MOE = 2, K = 2 };

static const char *const bias_names[MOE] = {"model.layers.1.mlp.gate.e_score_correction_bias",
                                            "model.layers.2.mlp.gate.e_score_correction_bias"};
/* Not representable in bf16 but for the last layer's, which a bf16 file can hold. */
static const float fine[E] = {0.1234567f, -0.2f, 0.3f, -0.01f, 0.05f, 0.7f, -0.33f, 0.011f};
static const float coarse[E] = {0.125f, -0.25f, 0.5f, -0.0078125f, 0.0625f, 0.75f, -0.375f, 0.01171875f};

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

/* ---- Bases
 * -------------------------------------------------------------------------------------------------------- */

typedef struct base_spec {
  const char *name, *dtype;
  kedge_st_dtype weights, bias;
  uint32_t shards;
} base_spec;

typedef struct base_writer {
  const kedge_checkpoint *from;
  const kedge_st_spec *specs;
  const float *bias;
} base_writer;

static bool is_bias(const char *name) {
  return strstr(name, "e_score_correction_bias") != NULL;
}

static kedge_status fill(void *context, uint32_t index, uint64_t offset, void *buffer, uint64_t bytes) {
  const base_writer *w = context;
  const kedge_st_spec *spec = &w->specs[index];
  const uint64_t size = kedge_st_dtype_size(spec->dtype), at = offset / size;
  const float *from = is_bias(spec->name)
                          ? w->bias
                          : (const float *)(const void *)kedge_checkpoint_find(w->from, spec->name)->data;
  return kedge_convert_floats(buffer, spec->dtype, from + at, KEDGE_ST_F32, bytes / size);
}

static bool first_shard(uint32_t i, uint32_t count) {
  return 2 * i < count;
}

static const char *shard_name(const base_spec *b, uint32_t shard) {
  static const char *const names[] = {"model-0.safetensors", "model-1.safetensors"};
  return b->shards > 1 ? names[shard] : KEDGE_CHECKPOINT_SINGLE;
}

/* One shard of a base; its tensors are added to the map. */
static void make_shard(const base_spec *b, const kedge_checkpoint *from, uint32_t shard, json_t *map) {
  const uint32_t count = kedge_checkpoint_count(from);
  kedge_st_spec *specs = calloc(count, sizeof *specs);
  uint32_t used = 0;
  for (uint32_t i = 0; i < count; i++) {
    const kedge_st_tensor *t = kedge_checkpoint_at(from, i);
    if (b->shards > 1 && first_shard(i, count) != (shard == 0)) continue;
    specs[used] = (kedge_st_spec){t->name, is_bias(t->name) ? b->bias : b->weights, t->rank, {0}};
    memcpy(specs[used++].shape, t->shape, sizeof t->shape);
    json_object_set_new(map, t->name, json_string(shard_name(b, shard)));
  }
  base_writer w = {from, specs, b->bias == KEDGE_ST_F32 ? fine : coarse};
  ok(kedge_st_write(test_path(b->name, shard_name(b, shard)), specs, used,
                    (const kedge_st_pair[]){{"made", "here"}}, 1, fill, &w));
  free(specs);
}

static void copy_side_files(const base_spec *b) {
  static const char *const side[] = {"tokenizer.json", "tokenizer_config.json", "config.json"};
  for (int i = 0; i < 3; i++) {
    size_t bytes;
    if (!test_exists(test_path("sigmoid", side[i]))) continue;
    char *file = test_read(test_path("sigmoid", side[i]), &bytes);
    char *dtype = i == 2 ? strstr(file, "\"float32\"") : NULL;
    assert_true(i < 2 || dtype);
    FILE *out = fopen(test_path(b->name, side[i]), "w");
    assert_non_null(out);
    if (dtype)
      fprintf(out, "%.*s\"%s\"%s", (int)(dtype - file), file, b->dtype, dtype + strlen("\"float32\""));
    else
      fwrite(file, 1, bytes, out);
    assert_int_equal(fclose(out), 0);
    free(file);
  }
}

/* The base `sigmoid` in other dtypes and with a bias that is not 0; shards have an index that holds more than
 * it needs. */
static void make_base(const base_spec *b) {
  kedge_checkpoint *from;
  test_make_folder(b->name);
  ok(kedge_checkpoint_open("sigmoid", &from));
  json_t *map = json_object();
  for (uint32_t shard = 0; shard < b->shards; shard++) make_shard(b, from, shard, map);
  if (b->shards > 1) {
    json_t *index = json_pack("{s:{s:I, s:s}, s:O}", "metadata", "total_size", (json_int_t)0, "more", "kept",
                              "weight_map", map);
    assert_int_equal(json_dump_file(index, test_path(b->name, KEDGE_CHECKPOINT_INDEX), JSON_INDENT(2)), 0);
    json_decref(index);
  }
  json_decref(map);
  copy_side_files(b);
  kedge_checkpoint_close(from);
}

static const base_spec bases[] = {
    {"coarse", "bfloat16", KEDGE_ST_BF16, KEDGE_ST_BF16, 2}, /* all in bf16, the bias too */
    {"single", "bfloat16", KEDGE_ST_BF16, KEDGE_ST_BF16, 1},
    {"fine", "bfloat16", KEDGE_ST_BF16, KEDGE_ST_F32, 2}, /* the bias in f32, as published models have it */
    {"wide", "float32", KEDGE_ST_F32, KEDGE_ST_F32, 1},
};
enum { BASES = 4 };

static int prepare(void **state) {
  (void)state;
  runs_prepare(24);
  for (int i = 0; i < BASES; i++) make_base(&bases[i]);
  return 0;
}

/* ---- What a directory has
 * ----------------------------------------------------------------------------------------- */

static kedge_st_dtype read_bias(const char *folder, int layer, float values[E]) {
  kedge_checkpoint *c;
  const kedge_st_tensor *t;
  ok(kedge_checkpoint_open(folder, &c));
  ok(kedge_checkpoint_require(c, bias_names[layer], &t));
  const kedge_st_dtype dtype = t->dtype;
  ok(kedge_convert_floats(values, KEDGE_ST_F32, t->data, t->dtype, E));
  kedge_checkpoint_close(c);
  return dtype;
}

static void expect_bias(const char *folder, int layer, kedge_st_dtype dtype, const float want[E]) {
  float got[E];
  const kedge_st_dtype has = read_bias(folder, layer, got);
  if (has != dtype) fail_msg("%s, layer %d: the bias is %s", folder, layer + 1, kedge_st_dtype_name(has));
  for (int e = 0; e < E; e++)
    if (memcmp(&got[e], &want[e], sizeof want[e]))
      fail_msg("%s, layer %d, expert %d: bias %.9g, want %.9g", folder, layer + 1, e, (double)got[e],
               (double)want[e]);
}

/* Names and shapes of the base, aligned data, the index's own size and its other keys. */
static void expect_layout(const char *folder, const base_spec *b, bool moved) {
  kedge_checkpoint *base, *c;
  ok(kedge_checkpoint_open(b->name, &base));
  ok(kedge_checkpoint_open(folder, &c));
  if (b->shards > 1 && moved && b->bias != KEDGE_ST_F32)
    assert_int_equal(kedge_checkpoint_notes(c)->count, 0); /* total_size is right */
  assert_int_equal(kedge_checkpoint_count(c), kedge_checkpoint_count(base));
  assert_int_equal(kedge_checkpoint_shard_count(c), b->shards);
  for (uint32_t i = 0; i < kedge_checkpoint_count(c); i++) {
    const kedge_st_tensor *t = kedge_checkpoint_by_name(c, i), *had = kedge_checkpoint_by_name(base, i);
    assert_string_equal(t->name, had->name);
    assert_memory_equal(t->shape, had->shape, sizeof t->shape);
    assert_string_equal(kedge_checkpoint_shard_of(c, t), kedge_checkpoint_shard_of(base, had));
    if (!is_bias(t->name)) assert_int_equal(t->dtype, had->dtype);
    assert_int_equal((uintptr_t)t->data % kedge_st_dtype_size(t->dtype), 0); /* files are mapped by pages */
  }
  bool any = false;
  for (uint32_t i = 0; i < b->shards; i++) {
    const kedge_st_file *shard = kedge_checkpoint_shard(c, i), *had = kedge_checkpoint_shard(base, i);
    assert_string_equal(kedge_st_metadata(shard, "made"), "here");
    assert_string_equal(kedge_st_metadata(shard, "format"), "pt");
    uint64_t x, y;
    const uint8_t *p = kedge_st_header(shard, &x), *q = kedge_st_header(had, &y);
    bool retyped = false;
    for (int l = 0; l < MOE; l++) {
      const kedge_st_tensor *was = kedge_st_find(had, bias_names[l]),
                            *is = kedge_st_find(shard, bias_names[l]);
      retyped |= was && is->dtype != was->dtype;
    }
    any |= retyped;
    if (retyped == (x == y && !memcmp(p, q, x))) fail_msg("%s: header of shard %u", folder, i);
  }
  assert_int_equal(any, moved && b->bias != KEDGE_ST_F32);
  if (b->shards > 1) {
    json_t *index = json_load_file(test_path(folder, KEDGE_CHECKPOINT_INDEX), 0, NULL);
    const json_t *metadata = json_object_get(index, "metadata");
    assert_string_equal(json_string_value(json_object_get(metadata, "more")), "kept");
    assert_int_equal(json_integer_value(json_object_get(metadata, "total_size")),
                     any ? kedge_checkpoint_bytes(c) : 0);
    json_decref(index);
  }
  kedge_checkpoint_close(c);
  kedge_checkpoint_close(base);
}

/* ---- The move
 * ------------------------------------------------------------------------------------------------------ */

/* a_e + u sign(mean n - n_e), less the mean of the changes on request. */
static void moved_by_hand(const float a[E], const uint64_t n[E], double u, bool mean_removal, float to[E]) {
  double total = 0, moves[E], mean = 0;
  for (int e = 0; e < E; e++) total += (double)n[e];
  for (int e = 0; e < E; e++) {
    const double load = (double)n[e] * E;
    moves[e] = load < total ? u : load > total ? -u : 0;
    mean += moves[e] / E;
  }
  for (int e = 0; e < E; e++) to[e] = (float)((double)a[e] + moves[e] - (mean_removal ? mean : 0));
}

static void device_bias(const runs_session *s, int layer, float values[E]) {
  const kedge_params *p = &s->setup.model->params;
  const uint32_t item = kedge_params_find(p, KEDGE_ROLE_ROUTER_CORRECTION, (uint32_t)layer + 1);
  ok(kedge_buffer_read(s->setup.model->weights[item], 0, values, E * sizeof *values));
}

static const runs_condition loss_free = {"loss_free", "router.intervention=loss_free", true};

/* The move of every update from its counts, which are those of the whole update however it is cut, with
 * recompute and without. */
static void test_update_rule(void **state) {
  (void)state;
  static const char *const ways[] = {
      "per_device_train_batch_size=8 gradient_accumulation_steps=1",
      "per_device_train_batch_size=2 gradient_accumulation_steps=4",
      "per_device_train_batch_size=1 gradient_accumulation_steps=8 gradient_checkpointing=true"};
  for (int removal = 0; removal < 2; removal++) {
    uint64_t first[MOE * E];
    for (int w = 0; w < 3; w++) {
      runs_session s;
      float a[MOE][E], want[E], got[E];
      runs_open(&s, "wide", &loss_free, "max_steps=3 router.coef=0.25 router.bias_mean_removal=%s %s",
                removal ? "true" : "false", ways[w]);
      for (int l = 0; l < MOE; l++) memcpy(a[l], fine, sizeof fine);
      for (int i = 0; i < 3; i++) {
        kedge_step_result step;
        assert_true(runs_update(&s, 0, &step));
        const uint64_t *n = s.stepper.loads;
        for (int l = 0; l < MOE; l++) {
          moved_by_hand(a[l], n + l * E, 0.25, removal, want);
          device_bias(&s, l, got);
          assert_memory_equal(got, want, sizeof got);
          double sum = 0;
          for (int e = 0; e < E; e++) sum += (double)got[e] - (double)a[l][e];
          assert_true(!removal || fabs(sum) < 1e-6);
          assert_true(memcmp(got, a[l], sizeof got) != 0);
          memcpy(a[l], got, sizeof got);
        }
        if (i) continue;
        if (!w) memcpy(first, n, sizeof first);
        assert_memory_equal(n, first, sizeof first); /* counted once, whatever the way */
      }
      runs_close(&s);
    }
  }
}

/* The rule above itself: loads 5 1 0 2 2 3 2 1 of 16, mean 2. */
static void test_by_hand(void **state) {
  (void)state;
  static const uint64_t n[E] = {5, 1, 0, 2, 2, 3, 2, 1};
  static const float zero[E];
  static const float plain[E] = {-0.25f, 0.25f, 0.25f, 0, 0, -0.25f, 0, 0.25f};
  static const float removed[E] = {-0.28125f, 0.21875f,  0.21875f,  -0.03125f,
                                   -0.03125f, -0.28125f, -0.03125f, 0.21875f};
  float got[E];
  moved_by_hand(zero, n, 0.25, false, got);
  assert_memory_equal(got, plain, sizeof got);
  moved_by_hand(zero, n, 0.25, true, got);
  assert_memory_equal(got, removed, sizeof got);
}

/* ---- Export
 * -------------------------------------------------------------------------------------------------------- */

enum { STEPS = 4 };

/* The same run from the inside: the biases after so many updates. */
static void biases_after(const char *base, const char *more, int updates, float to[MOE][E]) {
  runs_session s;
  runs_open(&s, base, &loss_free, "max_steps=%d %s", STEPS, more);
  for (int i = 0; i < updates; i++) {
    kedge_step_result step;
    assert_true(runs_update(&s, 0, &step));
  }
  for (int l = 0; l < MOE; l++) device_bias(&s, l, to[l]);
  runs_close(&s);
}

static void test_case_52_moved_bias_is_f32(void **state) {
  (void)state;
  for (int i = 0; i < BASES; i++) {
    const base_spec *b = &bases[i];
    float want[MOE][E];
    char out[64], folder[128];
    snprintf(out, sizeof out, "%s-out", b->name);
    training_expect(0, "loss_free moves the selection bias by 0.001 an update",
                    "train run.yaml model_name_or_path=%s output_dir=%s router.intervention=loss_free "
                    "learning_rate=0 max_steps=%d save_steps=2",
                    b->name, out, STEPS);
    static const int at[] = {2, STEPS, STEPS};
    for (int j = 0; j < 3; j++) {
      if (j < 2)
        snprintf(folder, sizeof folder, "%s/checkpoint-%d", out, at[j]);
      else
        snprintf(folder, sizeof folder, "%s", out);
      biases_after(b->name, "", at[j], want);
      for (int l = 0; l < MOE; l++) {
        assert_true(memcmp(want[l], b->bias == KEDGE_ST_F32 ? fine : coarse, sizeof want[l]) != 0);
        expect_bias(folder, l, KEDGE_ST_F32, want[l]);
      }
      expect_layout(folder, b, true);
    }
  }
}

/* One layer named: the other's bias keeps dtype and bits. */
static void test_layers(void **state) {
  (void)state;
  float want[MOE][E];
  training_expect(0, "",
                  "train run.yaml model_name_or_path=coarse output_dir=one-layer learning_rate=0 "
                  "router.intervention=loss_free router.layers=[2] max_steps=%d save_strategy=no",
                  STEPS);
  biases_after("coarse", "router.layers=[2]", STEPS, want);
  expect_bias("one-layer", 0, KEDGE_ST_BF16, coarse);
  expect_bias("one-layer", 1, KEDGE_ST_F32, want[1]);
  expect_layout("one-layer", &bases[0], true);
}

/* Without loss_free the bias comes out as it went in: dtype, bits, and the headers around it. */
static void test_case_36_bias_left_alone(void **state) {
  (void)state;
  static const char *const ways[] = {"", "router.intervention=freeze weight_decay=0.1",
                                     "router.intervention=lbl"};
  for (int i = 0; i < BASES; i++) {
    const base_spec *b = &bases[i];
    for (int w = 0; w < 3; w++) {
      char out[64];
      snprintf(out, sizeof out, "%s-%d", b->name, w);
      training_expect(0, "",
                      "train run.yaml model_name_or_path=%s output_dir=%s max_steps=2 save_strategy=no %s",
                      b->name, out, ways[w]);
      for (int l = 0; l < MOE; l++) expect_bias(out, l, b->bias, b->bias == KEDGE_ST_F32 ? fine : coarse);
      expect_layout(out, b, false);
    }
  }
}

/* What was exported routes as what was in memory, and a second export is the first. The weights stand still,
 * since 16 bits would round what a router learnt. */
static void test_case_52_idempotent(void **state) {
  (void)state;
  runs_session s;
  kedge_trace before, after;
  kedge_model *again;
  runs_open(&s, "coarse", &loss_free, "max_steps=3 router.coef=0.013");
  for (int i = 0; i < 3; i++) {
    kedge_step_result step;
    assert_true(runs_update(&s, 0, &step));
  }
  test_make_folder("exported");
  test_make_folder("twice");
  ok(kedge_model_save(s.setup.model, s.stepper.optimizer.master, "exported", NULL));
  ok(kedge_model_load(s.setup.device, "exported", KEDGE_BF16, &again));
  ok(kedge_model_save(again, NULL, "twice", NULL));
  assert_true(training_same("exported/model-0.safetensors", "twice/model-0.safetensors"));
  assert_true(training_same("exported/model-1.safetensors", "twice/model-1.safetensors"));
  assert_true(test_same_file(test_path("exported", KEDGE_CHECKPOINT_INDEX),
                             test_path("twice", KEDGE_CHECKPOINT_INDEX)));
  ok(kedge_trace_collect(s.setup.model, s.setup.data, NULL, &before));
  ok(kedge_trace_collect(again, s.setup.data, NULL, &after));
  assert_int_equal(before.tokens, after.tokens);
  assert_memory_equal(before.ids, after.ids,
                      (size_t)before.tokens * before.layers * before.topk * sizeof *before.ids);
  kedge_trace_destroy(&before);
  kedge_trace_destroy(&after);
  kedge_model_free(again);
  runs_close(&s);
}

/* ---- Resume
 * -------------------------------------------------------------------------------------------------------- */

static void test_resume(void **state) {
  (void)state;
  for (int i = 0; i < BASES; i++) {
    const char *name = bases[i].name;
    char run[512], a[64], b[64];
    snprintf(run, sizeof run,
             "train run.yaml model_name_or_path=%s router.intervention=loss_free router.coef=0.01 "
             "max_steps=%d save_steps=2",
             name, STEPS);
    snprintf(a, sizeof a, "%s-a", name);
    snprintf(b, sizeof b, "%s-b", name);
    training_expect(0, "", "%s output_dir=%s", run, a);
    training_expect(0, "", "%s output_dir=%s resume_from_checkpoint=%s/checkpoint-2", run, b, a);
    float x[E], y[E];
    for (int l = 0; l < MOE; l++) {
      assert_int_equal(read_bias(a, l, x), KEDGE_ST_F32);
      assert_int_equal(read_bias(b, l, y), KEDGE_ST_F32);
      assert_memory_equal(x, y, sizeof x);
    }
    static const char *const files[] = {"model.safetensors", "model-0.safetensors", "model-1.safetensors"};
    for (int f = 0; f < 3; f++)
      if (test_exists(test_path(a, files[f])))
        assert_true(test_same_file(test_path(a, files[f]), test_path(b, files[f])));
    for (int step = 3; step <= STEPS; step++)
      assert_true(training_metric(a, (unsigned)step, "train/loss") ==
                  training_metric(b, (unsigned)step, "train/loss"));
    snprintf(run, sizeof run, "%s/checkpoint-%d/optimizer.safetensors", a, STEPS);
    char again[512];
    snprintf(again, sizeof again, "%s/checkpoint-%d/optimizer.safetensors", b, STEPS);
    assert_true(training_same(run, again));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_by_hand),
      cmocka_unit_test(test_update_rule),
      cmocka_unit_test(test_case_52_moved_bias_is_f32),
      cmocka_unit_test(test_layers),
      cmocka_unit_test(test_case_36_bias_left_alone),
      cmocka_unit_test(test_case_52_idempotent),
      cmocka_unit_test(test_resume),
  };
  return cmocka_run_group_tests_name("runs: loss_free", tests, prepare, NULL);
}
