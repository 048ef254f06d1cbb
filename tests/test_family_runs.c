/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Whole runs of families that differ from Qwen3-MoE in more than names: random weights, a prior, training
 * with Router Prior Bias from an interrupted run, export, probe and generation. Numbers are checked by
 * test_models.c.
 */
#include "models/checkpoint/safetensors.h"
#include "tests/support/files.h"
#include "tests/support/training.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COMMON                                                                                               \
  "\"vocab_size\": 512, \"hidden_size\": 32, \"num_attention_heads\": 4, \"rms_norm_eps\": 1e-5, "           \
  "\"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"initializer_range\": 0.2, \"max_position_"           \
  "embeddings\": 512, \"bos_token_id\": 0, \"eos_token_id\": 0, "

/* Latents for queries and keys, YaRN, groups, a dense first layer. */
static const char deepseek[] =
    "{\"model_type\": \"deepseek_v3\", " COMMON "\"torch_dtype\": \"float32\", \"num_hidden_layers\": 3, "
    "\"num_key_value_heads\": 4, \"q_lora_rank\": 12, "
    "\"kv_lora_rank\": 16, \"qk_nope_head_dim\": 8, \"qk_rope_head_dim\": 4, \"v_head_dim\": 6, "
    "\"intermediate_size\": 48, \"moe_intermediate_size\": 12, \"n_routed_experts\": 8, "
    "\"n_shared_experts\": "
    "2, \"num_experts_per_tok\": 2, \"n_group\": 4, \"topk_group\": 2, \"first_k_dense_replace\": 1, "
    "\"routed_scaling_factor\": 1.7, \"norm_topk_prob\": true, \"rope_scaling\": {\"type\": \"yarn\", "
    "\"factor\": 4, \"original_max_position_embeddings\": 64, \"mscale\": 1, \"mscale_all_dim\": 0.7}}";
/* Experts in pairs on disk, multipliers, tied head, bf16. */
static const char granite[] =
    "{\"model_type\": \"granitemoe\", " COMMON
    "\"torch_dtype\": \"bfloat16\", \"num_hidden_layers\": 2, \"num_key_value_heads\": 2, "
    "\"intermediate_size\": 24, \"num_local_experts\": 8, \"num_experts_per_tok\": 2, "
    "\"tie_word_embeddings\": "
    "true, \"embedding_multiplier\": 3, \"residual_multiplier\": 0.5, \"attention_multiplier\": 0.3, "
    "\"logits_scaling\": 2}";
/* Biases, a shared expert with a gate. */
static const char qwen2[] =
    "{\"model_type\": \"qwen2_moe\", " COMMON
    "\"torch_dtype\": \"float32\", \"num_hidden_layers\": 2, \"num_key_value_heads\": 2, "
    "\"intermediate_size\": 48, \"moe_intermediate_size\": 12, \"shared_expert_intermediate_size\": 20, "
    "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"norm_topk_prob\": false, \"tie_word_embeddings\": "
    "false}";

static const char *at(const char *relative) {
  return test_path(test_folder(), relative);
}

static void initialise(const char *name, const char *config) {
  char path[64];
  snprintf(path, sizeof path, "%s.json", name);
  test_write_text(at(path), config);
  training_expect(0, "", "init --config %s.json --tokenizer '%s' --out %s --seed 3", name,
                  test_golden("tokenizer/tiny"), name);
}

static void train(const char *name, const char *out, const char *more) {
  training_expect(0, "",
                  "train run.yaml model_name_or_path=%s output_dir=%s router.intervention=rpb "
                  "router.prior=%s.prior save_steps=2 max_steps=4 %s",
                  name, out, name, more);
}

/* A prior, a run, and the same run resumed in the middle. */
static void whole_run(const char *name) {
  training_expect(0, "", "prior --model %s --data train.jsonl --max-length 160 --out %s.prior", name, name);
  char out[64], path[128], again[128];
  snprintf(out, sizeof out, "%s-out", name);
  train(name, out, "");
  double first = training_metric(out, 1, "train/loss"), last = training_metric(out, 4, "train/loss");
  if (!(first > last && last > 0)) fail_msg("%s: the loss went from %g to %g", name, first, last);
  snprintf(path, sizeof path, "resume_from_checkpoint=%s/checkpoint-2", out);
  snprintf(out, sizeof out, "%s-again", name);
  train(name, out, path);
  snprintf(path, sizeof path, "%s-out/model.safetensors", name);
  snprintf(again, sizeof again, "%s-again/model.safetensors", name);
  assert_true(training_same(path, again));
  snprintf(again, sizeof again, "%s/model.safetensors", name);
  assert_false(training_same(path, again));
  training_expect(0, "", "probe --base %s --post %s-out --data train.jsonl", name, name);
  training_expect(0, "", "generate --model %s-out --tokens 3,4,5 --max-new-tokens 4", name);
}

static void test_granite(void **state) {
  (void)state;
  initialise("granite", granite);
  /* Other files of the model come along, in sub-folders too, also where an earlier run has left some. */
  test_make_folder(at("granite/more"));
  test_write_text(at("granite/more/a.txt"), "a");
  whole_run("granite");
  assert_true(training_same("granite/more/a.txt", "granite-out/more/a.txt"));
  test_write_text(at("granite/more/a.txt"), "b");
  test_write_text(at("granite-out/more/kept.txt"), "kept");
  train("granite", "granite-out", "overwrite_output_dir=true");
  assert_true(training_same("granite/more/a.txt", "granite-out/more/a.txt"));
}

static void test_qwen2(void **state) {
  (void)state;
  initialise("qwen2", qwen2);
  whole_run("qwen2");
}

static const char bias_name[] = "model.layers.1.mlp.gate.e_score_correction_bias";
static const float bias[8] = {-3, 0.25f, -0.5f, 3, 0.125f, -0.75f, 0, 1};

/* Random weights have a correction of 0: puts another in its place. */
static void set_bias(const char *path) {
  size_t bytes;
  unsigned char *file = (unsigned char *)test_read(path, &bytes);
  uint64_t header;
  memcpy(&header, file, 8);
  json_t *root = json_loadb((const char *)file + 8, header, 0, NULL);
  json_t *tensor = json_object_get(root, bias_name);
  assert_string_equal(json_string_value(json_object_get(tensor, "dtype")), "F32");
  json_int_t begin = json_integer_value(json_array_get(json_object_get(tensor, "data_offsets"), 0));
  memcpy(file + 8 + header + begin, bias, sizeof bias);
  test_write(path, file, bytes);
  json_decref(root);
  free(file);
}

static void check_bias(const char *path) {
  kedge_st_file *file;
  assert_int_equal(kedge_st_open(at(path), &file), 0);
  const kedge_st_tensor *tensor = kedge_st_find(file, bias_name);
  assert_non_null(tensor);
  assert_int_equal(tensor->bytes, sizeof bias);
  assert_memory_equal(tensor->data, bias, sizeof bias);
  kedge_st_close(file);
}

/* The correction decides, is not trained and comes out as it went in. */
static void test_deepseek(void **state) {
  (void)state;
  initialise("deepseek", deepseek);
  training_expect(0, "", "score --model deepseek --tokens 3,4,5,6,7,8 --out before.st");
  set_bias(at("deepseek/model.safetensors"));
  training_expect(0, "", "score --model deepseek --tokens 3,4,5,6,7,8 --out after.st");
  assert_false(training_same("before.st", "after.st"));
  whole_run("deepseek");
  check_bias("deepseek-out/model.safetensors");
  training_expect(0, "",
                  "train run.yaml model_name_or_path=deepseek output_dir=deepseek-bf16 dtype=bf16 "
                  "gradient_checkpointing=true max_steps=2");
  check_bias("deepseek-bf16/model.safetensors");
}

/* An option of the model is part of what a prior belongs to, and of what a run is. */
static void test_model_options(void **state) {
  (void)state;
#define EPS "latent_norm_eps=config"
  initialise("latent", deepseek);
  training_expect(0, "", "score --model latent --tokens 3,4,5,6 --out usual.st");
  training_expect(
      0, "",
      "score --model latent --tokens 3,4,5,6 --model-options latent_norm_eps=transformers --out same.st");
  training_expect(0, "", "score --model latent --tokens 3,4,5,6 --model-options " EPS " --out other.st");
  assert_true(training_same("usual.st", "same.st"));
  assert_false(training_same("usual.st", "other.st"));
  training_expect(0, "", "prior --model latent --data train.jsonl --max-length 160 --out usual.prior");
  training_expect(0, "",
                  "prior --model latent --data train.jsonl --max-length 160 --model-options " EPS
                  " --out latent.prior");
#define TRAIN                                                                                                \
  "train run.yaml model_name_or_path=latent output_dir=latent-out max_steps=2 router.intervention=rpb "
  training_expect(2, "other weights or model_options", TRAIN "router.prior=usual.prior model_options=" EPS);
  training_expect(2, "other weights or model_options", TRAIN "router.prior=latent.prior");
  training_expect(0, "", TRAIN "router.prior=latent.prior model_options=" EPS);
  training_expect(2, "key \"model_options\"",
                  TRAIN "router.prior=usual.prior overwrite_output_dir=true resume_from_checkpoint=true");
  char *kept = test_read(at("latent-out/checkpoint-2/kedge_config.yaml"), &(size_t){0});
  assert_non_null(strstr(kept, EPS));
  free(kept);
  training_expect(0, "", "plan --model latent --model-options " EPS);
  training_expect(0, "", "probe --base latent --post latent-out --data train.jsonl --model-options " EPS);
  training_expect(2, "implementations of granitemoe do not differ in it",
                  "generate --model granite --tokens 3 --model-options " EPS);
  test_run info = training_kedge("info latent");
  assert_non_null(strstr(info.out, "--model-options " EPS "\n"));
  test_run_free(&info);
}

/* The base beside a run is opened as the run's model is: before the first update they are one. */
static void test_base_options(void **state) {
  (void)state;
  char config[2048];
  const char *rest = strstr(deepseek, "deepseek_v3") + strlen("deepseek_v3");
  snprintf(config, sizeof config, "{\"topk_method\": \"greedy\", \"model_type\": \"deepseek_v2%s", rest);
  initialise("remote", config);
  training_expect(
      0, "",
      "train run.yaml model_name_or_path=remote output_dir=remote-out max_steps=1 logging_steps=1 "
      "router.intervention=kl_token model_options=norm_topk_prob=remote");
  const double apart = training_metric("remote-out", 1, "router/anchor");
  if (!(fabs(apart) < 1e-6)) fail_msg("base and model are %g apart before the first update", apart);
}

static int setup(void **state) {
  (void)state;
  training_prepare(24);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_granite), cmocka_unit_test(test_qwen2),
                                     cmocka_unit_test(test_deepseek), cmocka_unit_test(test_model_options),
                                     cmocka_unit_test(test_base_options)};
  return cmocka_run_group_tests(tests, setup, NULL);
}
