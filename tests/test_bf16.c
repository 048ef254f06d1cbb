/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * bf16 against transformers in bf16, on the same tokens (golden.bf16.safetensors, see
 * tests/golden/README.md): the logits of all tokens together have a cosine of at least 0.999, and every clear
 * choice of experts is the same, as long as no other choice before it has made the two models read other
 * values. What is known to differ: most families of transformers round the router's
 * logits to bf16, Kedge's router is f32 throughout; transformers rounds each expert's contribution before it
 * adds them, Kedge their sum; rotary factors are bf16 there and f32 here.
 */
#include "models/checkpoint/convert.h"
#include "tests/support/batch.h"
#include "tests/support/files.h"

#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A choice is clear where its margin is larger than this many times the largest error that bf16 makes in
 * transformers' own router logits of the layer, against its float32. */
static const double CLEAR = 1;

typedef struct outcome {
  uint32_t choices, clear, differ, clear_differ;
  double worst_margin;   /* of a choice that differs, in parts of the layer's noise */
  double cosine, length; /* of the logits; their length against transformers' */
} outcome;

static void check(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static bool same_set(const int32_t *a, const int32_t *b, uint32_t k) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < k; i++)
    for (uint32_t j = 0; j < k; j++) found += a[i] == b[j];
  return found == k;
}

/* Tokens that another choice in an earlier layer reaches, its own or through attention that of a token before
 * it: from there on the two models compute with other experts, and nothing can be said of their next choice.
 */
static void spread(const int32_t *segments, const bool *fell, uint64_t tokens, bool *reached) {
  for (uint64_t t = 0; t < tokens; t++)
    for (uint64_t before = 0; before <= t; before++)
      reached[t] |= fell[before] && segments[before] == segments[t];
}

static void compare_choices(const kedge_pass *pass, const kedge_model *model, const kedge_st_file *golden,
                            const int32_t *segments, outcome *o) {
  const uint32_t k = model->config.num_experts_per_tok;
  bool reached[512] = {0};
  for (uint32_t l = 0; l < model->params.moe_layers; l++) {
    const uint32_t layer = kedge_params_moe_layer(&model->params, l);
    char name[64];
    uint64_t count, tokens, one;
    snprintf(name, sizeof name, "topk_ids.%u", layer);
    int32_t *want = kedge_test_ints(golden, name, &count),
            *got = test_read_ints(pass, pass->decoder.ids_TK[l]);
    snprintf(name, sizeof name, "margin.%u", layer);
    double *margin = kedge_test_doubles(golden, name, &tokens);
    snprintf(name, sizeof name, "noise.%u", layer);
    double *noise = kedge_test_doubles(golden, name, &one);
    assert_int_equal(count, tokens * k);
    bool fell[512] = {0};
    assert_true(tokens <= 512);
    for (uint64_t t = 0; t < tokens; t++) {
      if (reached[t]) continue;
      const bool clear = margin[t] >= CLEAR * noise[0], same = same_set(want + t * k, got + t * k, k);
      fell[t] = !same;
      o->choices++;
      o->clear += clear;
      o->differ += !same;
      o->clear_differ += clear && !same;
      if (!same) o->worst_margin = fmax(o->worst_margin, margin[t] / noise[0]);
    }
    spread(segments, fell, tokens, reached);
    free(want), free(got), free(margin), free(noise);
  }
}

static void compare_logits(const kedge_pass *pass, const kedge_st_file *golden, outcome *o) {
  uint64_t count;
  double *want = kedge_test_doubles(golden, "logits", &count), dot = 0, gg = 0, ww = 0;
  float *got = test_read_floats(pass, pass->decoder.logits_TV);
  for (uint64_t i = 0; i < count; i++) {
    dot += (double)got[i] * want[i];
    gg += (double)got[i] * (double)got[i];
    ww += want[i] * want[i];
  }
  o->cosine = dot / sqrt(gg * ww);
  o->length = sqrt(gg / ww);
  free(want), free(got);
}

/* The goldens' files are f32. transformers rounds all of it to bf16; Kedge leaves router weights as they are.
 */
static void round_routers(kedge_model *model) {
  for (uint32_t i = 0; i < model->params.count; i++) {
    const kedge_param *p = &model->params.items[i];
    if (p->role != KEDGE_ROLE_ROUTER) continue;
    const uint64_t count = kedge_param_count(p);
    assert_int_equal(kedge_param_dtype(p, model->dtype), KEDGE_F32);
    float *wide = calloc(count, sizeof *wide);
    uint16_t *half = calloc(count, sizeof *half);
    check(kedge_buffer_read(model->weights[i], 0, wide, count * sizeof *wide));
    check(kedge_convert_floats(half, KEDGE_ST_BF16, wide, KEDGE_ST_F32, count));
    check(kedge_convert_floats(wide, KEDGE_ST_F32, half, KEDGE_ST_BF16, count));
    check(kedge_buffer_write(model->weights[i], 0, wide, count * sizeof *wide));
    free(wide), free(half);
  }
}

static outcome compare(const char *variant, const char *backend, const char *options) {
  char path[128];
  outcome o = {0};
  kedge_device *device;
  kedge_model *model;
  kedge_workspace *workspace;
  kedge_st_file *golden;
  kedge_passes passes;
  kedge_pass *pass;
  snprintf(path, sizeof path, "%s/golden.bf16.safetensors", variant);
  check(kedge_st_open(test_golden(path), &golden));
  check(kedge_device_open(backend, NULL, &device));
  const kedge_model_how how = {.dtype = KEDGE_BF16, .options = options};
  check(kedge_model_open(device, test_golden(variant), &how, &model));
  round_routers(model);
  check(kedge_workspace_new(device, &workspace));
  test_batch b = test_batch_read(golden, false);
  const kedge_tokens tokens = test_batch_inputs(&b);
  const kedge_decoder_spec spec = {.logits = true, .taps = true};
  kedge_passes_init(&passes, model, &spec, workspace, NULL, NULL);
  check(kedge_passes_get(&passes, b.size, 0, &pass));
  check(kedge_pass_run(pass, &tokens));
  compare_choices(pass, model, golden, b.segments, &o);
  compare_logits(pass, golden, &o);
  kedge_passes_destroy(&passes);
  kedge_workspace_free(workspace);
  kedge_model_free(model);
  kedge_device_close(device);
  kedge_st_close(golden);
  test_batch_free(&b);
  return o;
}

static void test_all(void **state) {
  static const char *const backends[] = {"ref", "cpu"};
  (void)state;
  glob_t found;
  assert_int_equal(glob(test_golden("*/golden.bf16.safetensors"), 0, NULL, &found), 0);
  assert_int_equal(found.gl_pathc, 16);
  for (size_t b = 0; b < 2; b++) {
    uint32_t clear = 0;
    for (size_t i = 0; i < found.gl_pathc; i++) {
      char variant[64], path[512];
      snprintf(path, sizeof path, "%s", found.gl_pathv[i]);
      *strrchr(path, '/') = 0;
      snprintf(variant, sizeof variant, "%s", strrchr(path, '/') + 1);
      const outcome o = compare(variant, backends[b], NULL);
      clear += o.clear;
      print_message("%-22s %s: cosine %.6f, length %.4f; %u of %u choices clear, %u others fell otherwise "
                    "(margin up to %.2f)\n",
                    variant, backends[b], o.cosine, o.length, o.clear, o.choices, o.differ - o.clear_differ,
                    o.worst_margin);
      if (o.clear_differ)
        fail_msg("%s: %u clear choices differ, margin up to %g", variant, o.clear_differ, o.worst_margin);
      if (!(o.cosine >= 0.999)) fail_msg("%s: cosine %g", variant, o.cosine);
      if (!(fabs(o.length - 1) <= 0.01)) fail_msg("%s: length %g", variant, o.length);
      assert_true(2 * o.clear >= o.choices);
    }
    print_message("%s: %u clear choices compared\n", backends[b], clear);
    assert_true(clear >= 850);
  }
  globfree(&found);
}

/* The gate weights of another implementation are seen in the logits. */
static void test_mistakes(void **state) {
  (void)state;
  const outcome o = compare("deepseek_v2_group", "cpu", "norm_topk_prob=remote");
  assert_true(o.cosine < 0.999);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_all), cmocka_unit_test(test_mistakes)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
