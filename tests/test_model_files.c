/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Models between files and a device: what was not touched comes back bit for bit, in the same shards; every
 * tensor is filled exactly once or the load fails by name.
 */
#include "models/checkpoint/atomic.h"
#include "models/decoder/decoder.h"
#include "tests/support/files.h"
#include "tests/support/run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

/* A shell command, as in printf; it must succeed. */
static void shell(const char *format, ...) {
  char command[4096];
  va_list list;
  va_start(list, format);
  vsnprintf(command, sizeof command, format, list);
  va_end(list);
  test_run run = test_run_shell(command);
  if (run.exit_code) fail_msg("%s: %s%s", command, run.out, run.err);
  test_run_free(&run);
}

static void round_trip(const char *golden, kedge_dtype dtype) {
  kedge_device *device;
  kedge_model *model;
  const char *out = test_path(test_folder(), "saved");
  check(kedge_device_open("cpu", NULL, &device));
  check(kedge_model_load(device, golden, dtype, &model));
  check(kedge_folder_make(out));
  check(kedge_model_save(model, NULL, out, NULL));
  kedge_model_free(model);
  kedge_device_close(device);
  shell("diff -r --exclude='golden.*' --exclude=sharded '%s' '%s'", golden, out);
  test_remove(out);
}

static void test_round_trip(void **state) {
  (void)state;
  round_trip(test_golden("qwen3_moe_top2of8_bf16"), KEDGE_BF16);
  round_trip(test_golden("qwen3_moe_top2of8_bf16"), KEDGE_F32);
  round_trip(test_golden("qwen3_moe_top2of8"), KEDGE_F32);
  round_trip(test_golden("qwen3_moe_top2of8/sharded"), KEDGE_F32);
  round_trip(test_golden("qwen3_moe_top8of16"), KEDGE_F32);
}

/* transformers writes empty tensors for shared experts without width: they are ignored, and exported. */
static void test_empty_tensor(void **state) {
  (void)state;
  const char *copy = test_path(test_folder(), "empty");
  const char header[] =
      "{\"model.layers.0.mlp.shared_experts.up_proj.weight\":{\"dtype\":\"F32\",\"shape\":[0,4],"
      "\"data_offsets\":[0,0]}}";
  char file[8 + sizeof header] = {(char)(sizeof header - 1)};
  memcpy(file + 8, header, sizeof header - 1);
  shell("cp -r '%s' '%s' && chmod -R u+w '%s'", test_golden("qwen3_moe_top2of8/sharded"), copy, copy);
  test_write(test_path(copy, "empty.safetensors"), file, 8 + sizeof header - 1);
  shell("sed -i 's/\"weight_map\": {/&\"model.layers.0.mlp.shared_experts.up_proj.weight\": "
        "\"empty.safetensors\",/' '%s'",
        test_path(copy, "model.safetensors.index.json"));
  round_trip(copy, KEDGE_F32);
  test_remove(copy);
}

/* A copy of a golden model with one sed command applied to a file; loading must fail with `text`. */
static void refuse(const char *file, const char *edit, const char *text) {
  kedge_device *device;
  kedge_model *model;
  const char *copy = test_path(test_folder(), "edited");
  shell("cp -r '%s' '%s'", test_golden("qwen3_moe_top2of8"), copy);
  shell("chmod -R u+w '%s' && sed -i '%s' '%s'", copy, edit, test_path(copy, file));
  check(kedge_device_open("cpu", NULL, &device));
  kedge_status status = kedge_model_load(device, copy, KEDGE_F32, &model);
  const char *named = status == KEDGE_OK ? NULL : strstr(kedge_message(), copy);
  if (!named || strstr(named + 1, copy) || !strstr(kedge_message(), text))
    fail_msg("want \"%s\" and the folder once, got \"%s\"", text, kedge_message());
  assert_null(model);
  kedge_device_close(device);
  test_remove(copy);
}

static void test_refusals(void **state) {
  (void)state;
  refuse("config.json", "s/\"num_local_experts\": 8/\"num_local_experts\": 9/", "expected shape [9,");
  refuse("config.json", "s/\"num_local_experts\": 8/\"num_local_experts\": 6/", "mlp.experts.6");
  refuse("config.json", "s/\"num_hidden_layers\": 2/\"num_hidden_layers\": 3/", "model.layers.2.");
  refuse("config.json", "s/\"num_hidden_layers\": 2/\"num_hidden_layers\": 1/", "model.layers.1.");
  refuse("config.json", "s/\"vocab_size\": 61/\"vocab_size\": 62/", "model.embed_tokens.weight");
  refuse("config.json", "s/\"tie_word_embeddings\": false/\"tie_word_embeddings\": true/", "lm_head.weight");
  refuse("config.json", "s/\"model_type\": \"qwen3_moe\"/\"model_type\": \"gpt9\"/", "gpt9");
  refuse("config.json", "s/\"hidden_act\": \"silu\"/\"hidden_act\": \"relu\"/", "hidden_act");
  refuse("model.safetensors", "s/layers.1.mlp.gate.weight/layers.1.mlp.gaTe.weight/", "gaTe");
  refuse("model.safetensors", "s/\"dtype\":\"F32\",\"shape\":\\[61,/\"dtype\":\"I32\",\"shape\":[61,/",
         "I32");
}

/* Logits of a golden model, loaded or mapped. */
static float *logits_of(const char *golden, kedge_dtype dtype, bool map, uint32_t tokens, uint64_t *bytes) {
  kedge_device *device;
  kedge_model *model;
  kedge_decoder d;
  kedge_exec *exec;
  int32_t ids[32], positions[32], segments[32] = {0};
  const kedge_decoder_spec spec = {.tokens = tokens, .logits = true};
  for (int t = 0; t < 32; t++) ids[t] = t * 5 % 61, positions[t] = t;
  check(kedge_device_open("cpu", NULL, &device));
  check((map ? kedge_model_map : kedge_model_load)(device, golden, dtype, &model));
  if (map) assert_non_null(model->parts[kedge_params_find(&model->params, KEDGE_ROLE_EXPERT_UP, 0)]);
  check(kedge_decoder_build(model, &spec, &d));
  check(kedge_exec_new(device, d.graph, NULL, &exec));
  check(kedge_exec_write(exec, d.ids_T, ids, 4 * tokens));
  check(kedge_exec_write(exec, d.positions_T, positions, 4 * tokens));
  check(kedge_exec_write(exec, d.segments_T, segments, 4 * tokens));
  check(kedge_exec_run(exec, 0, UINT32_MAX));
  *bytes = kedge_value_bytes(d.graph, d.logits_TV);
  float *logits = malloc(*bytes);
  check(kedge_exec_read(exec, d.logits_TV, logits, *bytes));
  kedge_exec_free(exec);
  kedge_decoder_destroy(&d);
  kedge_model_free(model);
  kedge_device_close(device);
  return logits;
}

/* Weights that stay in the mapped files give the same bits as loaded ones. */
static void test_mapped(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    const char *golden = test_golden(i ? "qwen3_moe_top2of8_bf16" : "qwen3_moe_top2of8");
    uint64_t bytes, more;
    float *loaded = logits_of(golden, i ? KEDGE_BF16 : KEDGE_F32, false, 20, &bytes);
    float *mapped = logits_of(golden, i ? KEDGE_BF16 : KEDGE_F32, true, 20, &more);
    assert_int_equal(bytes, more);
    assert_memory_equal(loaded, mapped, bytes);
    free(loaded), free(mapped);
  }
}

static void test_allocation_failures(void **state) {
  (void)state;
  kedge_device *device;
  kedge_model *model;
  check(kedge_device_open("cpu", NULL, &device));
  for (uint64_t n = 1;; n++) {
    kedge_alloc_fail_nth(n);
    kedge_status status = kedge_model_load(device, test_golden("qwen3_moe_top8of16"), KEDGE_F32, &model);
    kedge_alloc_fail_nth(0);
    if (status == KEDGE_OK) break;
    assert_int_equal(status, KEDGE_ERR_MEMORY);
    assert_null(model);
  }
  kedge_model_free(model);
  kedge_device_close(device);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trip), cmocka_unit_test(test_empty_tensor),
                                     cmocka_unit_test(test_refusals), cmocka_unit_test(test_mapped),
                                     cmocka_unit_test(test_allocation_failures)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
