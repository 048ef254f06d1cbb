/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Parity with transformers on tiny random models of every family (all folders of tests/golden that hold one):
 * routing, logits, loss, every gradient element-wise, ten AdamW steps; on `ref` and `cpu`, with and without
 * recompute. Then files: both layouts of experts give the same bits, what was not touched comes back
 * unchanged.
 */
#include "models/checkpoint/atomic.h"
#include "models/decoder/pass.h"
#include "models/training/optimizer.h"
#include "tests/support/batch.h"
#include "tests/support/files.h"
#include "tests/support/run.h"

#include <glob.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct run_setup {
  const char *variant, *backend;
  bool recompute;
  const char *options; /* of the model; their golden is golden.options.safetensors */
} run_setup;

static void check(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static void below(const char *what, double error, double limit) {
  if (!(error <= limit)) fail_msg("%s: error %g is over %g", what, error, limit);
}

/* Largest error of a float output's first rows against a golden tensor. */
static double output_error(kedge_pass *pass, kedge_value value, const kedge_st_file *golden,
                           const char *name) {
  uint64_t count;
  double *want = kedge_test_doubles(golden, name, &count);
  float *got = test_read_floats(pass, value);
  double error = kedge_test_error(got, want, count);
  free(want), free(got);
  return error;
}

static void check_routing(kedge_pass *pass, const kedge_model *model, const kedge_st_file *golden) {
  for (uint32_t l = 0; l < model->params.moe_layers; l++) {
    char name[64];
    uint32_t layer = kedge_params_moe_layer(&model->params, l);
    uint64_t count, bytes = kedge_value_bytes(pass->decoder.graph, pass->decoder.ids_TK[l]);
    snprintf(name, sizeof name, "topk_ids.%u", layer);
    int32_t *want = kedge_test_ints(golden, name, &count),
            *got = test_read_ints(pass, pass->decoder.ids_TK[l]);
    assert_memory_equal(got, want, count * 4);
    for (uint64_t i = count; i < bytes / 4; i++) assert_int_equal(got[i], -1);
    free(want), free(got);
    snprintf(name, sizeof name, "router_logits.%u", layer);
    below(name, output_error(pass, pass->decoder.router_TE[l], golden, name), 1e-5);
    snprintf(name, sizeof name, "topk_weights.%u", layer);
    below(name, output_error(pass, pass->decoder.gates_TK[l], golden, name), 1e-5);
  }
}

/* The gradient of a file tensor, from the accumulators of the parameters that it fills. */
static float *gradient_of(const kedge_optimizer *o, uint32_t item, uint32_t part, uint64_t count) {
  float *got = malloc(count * sizeof *got);
  kedge_run run;
  for (uint64_t at = 0; at < count; at += run.count) {
    run = kedge_params_run(&o->model->params, item, part, at);
    assert_true(run.count <= count - at);
    check(kedge_buffer_read(o->grad[run.item], run.start * sizeof *got, got + at, run.count * sizeof *got));
  }
  return got;
}

static void check_gradients(const kedge_optimizer *o, const kedge_st_file *golden, double factor) {
  const kedge_params *params = &o->model->params;
  for (uint32_t i = 0; i < params->count; i++) {
    const kedge_param *p = &params->items[i];
    assert_true(o->trained[i] == !p->fixed);
    if (p->fixed || p->second) continue;
    uint64_t each = kedge_param_count(p) / p->parts * (p->paired ? 2 : 1), count;
    for (uint32_t part = 0; part < p->parts; part++) {
      char name[KEDGE_NAME_SIZE], full[KEDGE_NAME_SIZE + 8];
      kedge_param_name(p, part, name);
      snprintf(full, sizeof full, "grad.%s", name);
      double *want = kedge_test_doubles(golden, full, &count);
      assert_int_equal(count, each);
      float *got = gradient_of(o, i, part, count);
      for (uint64_t e = 0; e < each; e++) got[e] *= (float)factor;
      double error = kedge_test_error(got, want, count);
      if (factor == 1) below(full, error, 1e-4);
      double largest = 0;
      for (uint64_t e = 0; e < each; e++) largest = fmax(largest, fabs(want[e]));
      if (factor != 1 && largest > 0 && error <= 1e-4)
        fail_msg("%s: a gradient times %g passed", full, factor);
      free(want), free(got);
    }
  }
}

/* The first update's loss and gradients. */
static void check_update(kedge_pass *pass, kedge_optimizer *o, const kedge_tokens *tokens,
                         const kedge_st_file *golden) {
  float loss;
  uint64_t n;
  double *want = kedge_test_doubles(golden, "loss", &n);
  check(kedge_optimizer_begin(o));
  check(kedge_pass_run(pass, tokens));
  check(kedge_exec_read(pass->exec, pass->decoder.loss_1, &loss, sizeof loss));
  below("loss", fabs((double)loss - *want) / *want, 1e-6);
  check_gradients(o, golden, 1);
  check_gradients(o, golden, 1.01);
  free(want);
}

static void train_ten(kedge_pass *pass, kedge_optimizer *o, const kedge_tokens *tokens,
                      const kedge_st_file *golden) {
  uint64_t n;
  double *losses = kedge_test_doubles(golden, "train.losses", &n),
         *norms = kedge_test_doubles(golden, "train.grad_norms", &n);
  check_update(pass, o, tokens, golden);
  for (int step = 0; step < 10; step++) {
    float loss;
    kedge_optimizer_norms got;
    check(kedge_optimizer_begin(o));
    check(kedge_pass_run(pass, tokens));
    check(kedge_exec_read(pass->exec, pass->decoder.loss_1, &loss, sizeof loss));
    below("loss", fabs((double)loss - losses[step]) / losses[step], step ? 1e-5 : 1e-6);
    check(kedge_optimizer_step(o, 1e-3, &got));
    below("grad norm", fabs(got.all - norms[step]) / norms[step], 1e-4);
    assert_true(got.router > 0 && got.router < got.all);
  }
  check(kedge_optimizer_begin(o));
  check(kedge_pass_run(pass, tokens));
  below("train.logits", output_error(pass, pass->decoder.logits_TV, golden, "train.logits"), 5e-4);
  free(losses), free(norms);
}

static void run(const run_setup *s, bool train) {
  char path[PATH_MAX + 64];
  kedge_device *device;
  kedge_model *model;
  kedge_workspace *workspace;
  kedge_st_file *golden;
  snprintf(path, sizeof path, "%s/golden%s.safetensors", s->variant, s->options ? ".options" : "");
  check(kedge_st_open(test_golden(path), &golden));
  check(kedge_device_open(s->backend, NULL, &device));
  const kedge_model_how how = {.dtype = KEDGE_F32, .options = s->options};
  check(kedge_model_open(device, test_golden(s->variant), &how, &model));
  check(kedge_workspace_new(device, &workspace));
  test_batch b = test_batch_read(golden, train);
  const kedge_tokens tokens = test_batch_inputs(&b);
  const kedge_decoder_spec spec = {.loss = train, .logits = true, .taps = true, .recompute = s->recompute};
  const kedge_optimizer_options options = {
      .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0.1, .max_norm = 1.0};
  kedge_optimizer optimizer = {0};
  if (train) check(kedge_optimizer_init(&optimizer, model, &options, workspace));
  kedge_passes passes;
  kedge_pass *pass;
  kedge_passes_init(&passes, model, &spec, workspace, train ? kedge_optimizer_extend : NULL, &optimizer);
  check(kedge_passes_get(&passes, b.size, 0, &pass));
  check(kedge_pass_run(pass, &tokens));
  check_routing(pass, model, golden);
  below("logits", output_error(pass, pass->decoder.logits_TV, golden, "logits"), 1e-5);
  if (train) (s->options ? check_update : train_ten)(pass, &optimizer, &tokens, golden);
  kedge_optimizer_destroy(&optimizer);
  kedge_passes_destroy(&passes);
  kedge_workspace_free(workspace);
  kedge_model_free(model);
  kedge_device_close(device);
  kedge_st_close(golden);
  test_batch_free(&b);
}

/* Names of the folders under tests/golden that have a file; `most` of them fit. Returns how many. */
enum { MOST = 64 };
static size_t folders(const char *pattern, char names[MOST][64]) {
  glob_t found;
  size_t count = 0;
  if (glob(test_golden(pattern), 0, NULL, &found)) return 0;
  for (size_t i = 0; i < found.gl_pathc && count < MOST; i++) {
    char *slash = strrchr(found.gl_pathv[i], '/');
    *slash = 0;
    snprintf(names[count++], 64, "%s", strrchr(found.gl_pathv[i], '/') + 1);
  }
  globfree(&found);
  return count;
}

static bool ends_with(const char *text, const char *tail) {
  size_t length = strlen(text), end = strlen(tail);
  return length >= end && !strcmp(text + length - end, tail);
}

static void test_parity(void **state) {
  static const char *const backends[] = {"ref", "cpu"};
  (void)state;
  char names[MOST][64];
  size_t count = folders("*/golden.safetensors", names), trained = 0;
  for (size_t v = 0; v < count; v++) {
    if (ends_with(names[v], "_bf16")) continue;
    trained++;
    for (size_t b = 0; b < 2; b++)
      for (int recompute = 0; recompute < 2; recompute++) {
        const run_setup s = {names[v], backends[b], recompute, NULL};
        print_message("%s on %s%s\n", s.variant, s.backend, recompute ? ", recompute" : "");
        run(&s, true);
      }
  }
  assert_true(trained >= 16);
}

static void test_bf16_files(void **state) {
  (void)state;
  char names[MOST][64];
  size_t count = folders("*_bf16/golden.safetensors", names);
  assert_true(count >= 1);
  for (size_t v = 0; v < count; v++) run(&(run_setup){names[v], "cpu", false, NULL}, false);
}

/* Where implementations differ: each option against its own golden, and it makes a difference. */
static void test_options(void **state) {
  (void)state;
  char names[MOST][64];
  size_t count = folders("*/golden.options.safetensors", names);
  assert_int_equal(count, 2);
  for (size_t v = 0; v < count; v++) {
    char path[PATH_MAX + 64], hash[33], other_hash[33];
    kedge_st_file *golden;
    kedge_device *device;
    kedge_model *model, *other;
    snprintf(path, sizeof path, "%s/golden.options.safetensors", names[v]);
    check(kedge_st_open(test_golden(path), &golden));
    const char *options = kedge_st_metadata(golden, "model_options");
    print_message("%s with %s\n", names[v], options);
    run(&(run_setup){names[v], "ref", false, options}, true);
    run(&(run_setup){names[v], "cpu", true, options}, true);
    check(kedge_device_open("cpu", NULL, &device));
    check(kedge_model_load(device, test_golden(names[v]), KEDGE_F32, &model));
    const kedge_model_how how = {.dtype = KEDGE_F32, .options = options};
    check(kedge_model_open(device, test_golden(names[v]), &how, &other));
    check(kedge_model_hash(model, hash));
    check(kedge_model_hash(other, other_hash));
    assert_string_not_equal(hash, other_hash);
    kedge_model_free(other);
    kedge_model_free(model);
    kedge_device_close(device);
    kedge_st_close(golden);
  }
}

static bool same_set(const int32_t *a, const int32_t *b, uint32_t k) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < k; i++)
    for (uint32_t j = 0; j < k; j++) found += a[i] == b[j];
  return found == k;
}

/* Clears same[t] for the tokens that some layer sends elsewhere than the golden does. */
static void compare_choices(kedge_pass *pass, const kedge_model *model, const kedge_st_file *golden,
                            bool *same) {
  const uint32_t k = model->config.num_experts_per_tok;
  for (uint32_t l = 0; l < model->params.moe_layers; l++) {
    char name[64];
    uint64_t count, bytes = kedge_value_bytes(pass->decoder.graph, pass->decoder.ids_TK[l]);
    snprintf(name, sizeof name, "topk_ids.%u", kedge_params_moe_layer(&model->params, l));
    int32_t *want = kedge_test_ints(golden, name, &count), *got = malloc(bytes);
    check(kedge_exec_read(pass->exec, pass->decoder.ids_TK[l], got, bytes));
    for (uint64_t t = 0; t < count / k; t++) same[t] &= same_set(got + t * k, want + t * k, k);
    free(want), free(got);
  }
}

/* The same model computed in bf16: within bf16's noise of the f32 logits, for the tokens whose experts are
 * the same. Few are not: a choice closer than that noise may fall either way. */
static void bf16_storage(const char *variant) {
  char path[PATH_MAX + 64];
  kedge_device *device;
  kedge_model *model;
  kedge_workspace *workspace;
  kedge_st_file *golden;
  kedge_passes passes;
  kedge_pass *pass;
  uint64_t count;
  snprintf(path, sizeof path, "%s/golden.safetensors", variant);
  check(kedge_st_open(test_golden(path), &golden));
  check(kedge_device_open("cpu", NULL, &device));
  check(kedge_model_load(device, test_golden(variant), KEDGE_BF16, &model));
  check(kedge_workspace_new(device, &workspace));
  test_batch b = test_batch_read(golden, false);
  const kedge_tokens tokens = test_batch_inputs(&b);
  const kedge_decoder_spec spec = {.logits = true, .taps = true};
  kedge_passes_init(&passes, model, &spec, workspace, NULL, NULL);
  check(kedge_passes_get(&passes, b.size, 0, &pass));
  check(kedge_pass_run(pass, &tokens));
  double *want = kedge_test_doubles(golden, "logits", &count), dot = 0, gg = 0, ww = 0;
  uint64_t bytes = kedge_value_bytes(pass->decoder.graph, pass->decoder.logits_TV);
  float *got = malloc(bytes);
  check(kedge_exec_read(pass->exec, pass->decoder.logits_TV, got, bytes));
  bool same[256];
  uint32_t kept = 0;
  assert_true(b.tokens <= sizeof same);
  memset(same, 1, sizeof same);
  compare_choices(pass, model, golden, same);
  for (uint32_t t = 0; t < b.tokens; t++) kept += same[t];
  if (10 * kept < 8 * b.tokens)
    fail_msg("%s: %u of %u tokens go to the same experts", variant, kept, b.tokens);
  for (uint64_t i = 0; i < count; i++) {
    if (!same[i / model->config.vocab_size]) continue;
    dot += (double)got[i] * want[i];
    gg += (double)got[i] * (double)got[i];
    ww += want[i] * want[i];
  }
  if (!(dot / sqrt(gg * ww) > 0.999))
    fail_msg("%s: cosine of the bf16 logits: %g", variant, dot / sqrt(gg * ww));
  free(want), free(got);
  kedge_passes_destroy(&passes);
  kedge_workspace_free(workspace);
  kedge_model_free(model);
  kedge_device_close(device);
  kedge_st_close(golden);
  test_batch_free(&b);
}

static void test_bf16_storage(void **state) {
  (void)state;
  char names[MOST][64];
  size_t count = folders("*_bf16/golden.safetensors", names);
  for (size_t v = 0; v < count; v++) bf16_storage(names[v]);
}

/* Logits of a golden batch from a folder of weights, all or mapped. */
static float *logits_of(const char *folder, const char *variant, bool map, uint64_t *bytes) {
  const kedge_dtype dtype = ends_with(folder, "_bf16") ? KEDGE_BF16 : KEDGE_F32;
  char path[PATH_MAX + 64];
  kedge_device *device;
  kedge_model *model;
  kedge_workspace *workspace;
  kedge_st_file *golden;
  kedge_passes passes;
  kedge_pass *pass;
  snprintf(path, sizeof path, "%s/golden.safetensors", variant);
  check(kedge_st_open(test_golden(path), &golden));
  check(kedge_device_open("cpu", NULL, &device));
  check((map ? kedge_model_map : kedge_model_load)(device, test_golden(folder), dtype, &model));
  check(kedge_workspace_new(device, &workspace));
  test_batch b = test_batch_read(golden, false);
  const kedge_tokens tokens = test_batch_inputs(&b);
  kedge_passes_init(&passes, model, &(kedge_decoder_spec){.logits = true}, workspace, NULL, NULL);
  check(kedge_passes_get(&passes, b.size, 0, &pass));
  check(kedge_pass_run(pass, &tokens));
  *bytes = kedge_value_bytes(pass->decoder.graph, pass->decoder.logits_TV);
  float *got = malloc(*bytes);
  check(kedge_exec_read(pass->exec, pass->decoder.logits_TV, got, *bytes));
  kedge_passes_destroy(&passes);
  kedge_workspace_free(workspace);
  kedge_model_free(model);
  kedge_device_close(device);
  kedge_st_close(golden);
  test_batch_free(&b);
  return got;
}

/* Experts apart and experts in one tensor, loaded and mapped: the same bits. */
static void test_layouts(void **state) {
  (void)state;
  char names[MOST][64];
  size_t count = folders("*/golden.safetensors", names),
         other = folders("*_fused/model.safetensors", names + count);
  for (size_t v = 0; v < count + other; v++) {
    uint64_t bytes, same;
    char base[PATH_MAX];
    snprintf(base, sizeof base, "%s", names[v]);
    if (ends_with(base, "_fused")) base[strlen(base) - strlen("_fused")] = 0;
    float *want = logits_of(base, base, false, &bytes);
    for (int map = 0; map < 2; map++) {
      float *got = logits_of(names[v], base, map, &same);
      assert_true(bytes == same);
      if (memcmp(got, want, bytes)) fail_msg("%s%s: other logits", names[v], map ? ", mapped" : "");
      free(got);
    }
    free(want);
  }
}

/* Loads, maps, builds a training graph and saves. */
static kedge_status load_and_build(kedge_device *device, const char *folder, const char *out) {
  kedge_model *model = NULL, *mapped = NULL;
  kedge_decoder decoder = {0};
  const kedge_decoder_spec spec = {.tokens = 16, .loss = true, .recompute = true};
  kedge_status status;
  KEDGE_GOTO(kedge_model_load(device, folder, KEDGE_F32, &model), status, done);
  KEDGE_GOTO(kedge_model_map(device, folder, KEDGE_F32, &mapped), status, done);
  KEDGE_GOTO(kedge_decoder_build(mapped, &spec, &decoder), status, done);
  kedge_decoder_destroy(&decoder);
  KEDGE_GOTO(kedge_decoder_build(model, &spec, &decoder), status, done);
  status = kedge_model_save(model, NULL, out, NULL);
done:
  kedge_decoder_destroy(&decoder);
  kedge_model_free(mapped);
  kedge_model_free(model);
  return status;
}

/* Every allocation fails once, with experts in pairs and latent attention: an error, and nothing is left. */
static void test_memory(void **state) {
  (void)state;
  kedge_device *device;
  char folder[512];
  snprintf(folder, sizeof folder, "%s", test_golden("deepseek_v3_group_fused"));
  check(kedge_device_open("cpu", NULL, &device));
  for (uint64_t nth = 1, made = nth; made >= nth; nth++) {
    const char *out = test_path(test_folder(), "memory");
    check(kedge_folder_make(out));
    kedge_alloc_fail_nth(nth);
    kedge_status status = load_and_build(device, folder, out);
    made = kedge_alloc_fail_nth(0);
    if (status != (made >= nth ? KEDGE_ERR_MEMORY : KEDGE_OK))
      fail_msg("allocation %llu: %s: %s", (unsigned long long)nth, kedge_status_name(status),
               kedge_message());
    test_remove(out);
  }
  kedge_device_close(device);
}

static void round_trip(const char *folder, kedge_dtype dtype) {
  kedge_device *device;
  kedge_model *model;
  char command[4096];
  const char *out = test_path(test_folder(), "saved");
  check(kedge_device_open("cpu", NULL, &device));
  check(kedge_model_load(device, test_golden(folder), dtype, &model));
  check(kedge_folder_make(out));
  check(kedge_model_save(model, NULL, out, NULL));
  kedge_model_free(model);
  kedge_device_close(device);
  snprintf(command, sizeof command,
           "diff -r --exclude='golden.*' --exclude=sharded --exclude=config.v4.json '%s' '%s'",
           test_golden(folder), out);
  test_run result = test_run_shell(command);
  if (result.exit_code) fail_msg("%s: %s%s", folder, result.out, result.err);
  test_run_free(&result);
  test_remove(out);
}

static void test_round_trips(void **state) {
  (void)state;
  char names[MOST][64];
  size_t count = folders("*/golden.json", names);
  assert_true(count >= 20);
  for (size_t v = 0; v < count; v++) {
    round_trip(names[v], KEDGE_F32);
    if (ends_with(names[v], "_bf16")) round_trip(names[v], KEDGE_BF16);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_parity),     cmocka_unit_test(test_options),
                                     cmocka_unit_test(test_bf16_files), cmocka_unit_test(test_bf16_storage),
                                     cmocka_unit_test(test_layouts),    cmocka_unit_test(test_round_trips),
                                     cmocka_unit_test(test_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
