/* SPDX-License-Identifier: Apache-2.0
 * config.json of every family: published values, both spellings, defaults, and what must be refused.
 * ctest: quick */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "models/checkpoint/hf_config.h"
#include "tests/support/files.h"

static kedge_hf_config parse(const char *text) {
  kedge_hf_config config;
  if (kedge_hf_config_parse(text, strlen(text), "config.json", &config) != KEDGE_OK)
    fail_msg("%s: %s", text, kedge_message());
  return config;
}

static void refuses(kedge_status expected, const char *text, const char *says) {
  kedge_hf_config config;
  kedge_status status = kedge_hf_config_parse(text, strlen(text), "config.json", &config);
  if (status != expected || !strstr(kedge_message(), says) || strncmp(kedge_message(), "config.json", 11))
    fail_msg("%s: expected %s \"%s\", got %s: %s", text, kedge_status_name(expected), says,
             kedge_status_name(status), kedge_message());
}

static bool noted(const kedge_hf_config *config, const char *key) {
  char quoted[100];
  snprintf(quoted, sizeof quoted, "\"%s\"", key);
  for (uint32_t i = 0; i < config->notes.count; i++)
    if (strstr(config->notes.items[i], quoted)) return true;
  return false;
}

static bool equal(double a, double b) {
  return a >= b && a <= b;
}

/* ---- Published models
 * ---------------------------------------------------------------------------------------------- */

static void qwen3_moe(void **state) {
  (void)state;
  kedge_hf_config c = parse(
      "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,\"bos_"
      "token_id\":151643,"
      "\"decoder_sparse_step\":1,\"eos_token_id\":151645,\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_"
      "size\":2048,"
      "\"initializer_range\":0.02,\"intermediate_size\":6144,\"max_position_embeddings\":40960,\"max_window_"
      "layers\":48,"
      "\"mlp_only_layers\":[],\"model_type\":\"qwen3_moe\",\"moe_intermediate_size\":768,\"norm_topk_prob\":"
      "true,"
      "\"num_attention_heads\":32,\"num_experts\":128,\"num_experts_per_tok\":8,\"num_hidden_layers\":48,"
      "\"num_key_value_heads\":4,\"output_router_logits\":false,\"rms_norm_eps\":1e-06,\"rope_scaling\":null,"
      "\"rope_theta\":1000000.0,\"router_aux_loss_coef\":0.001,\"sliding_window\":null,\"tie_word_"
      "embeddings\":false,"
      "\"torch_dtype\":\"bfloat16\",\"transformers_version\":\"4.51.0\",\"use_cache\":true,\"use_sliding_"
      "window\":false,"
      "\"vocab_size\":151936}");
  assert_string_equal(c.model_type, "qwen3_moe");
  assert_string_equal(c.architecture, "Qwen3MoeForCausalLM");
  assert_string_equal(c.dtype, "bfloat16");
  assert_int_equal(c.hidden_size, 2048);
  assert_int_equal(c.head_dim, 128);
  assert_true(c.has_head_dim && c.norm_topk_prob && !c.tie_word_embeddings && c.has_router_aux_loss_coef);
  assert_int_equal(c.num_experts, 128);
  assert_int_equal(c.num_experts_per_tok, 8);
  assert_int_equal(c.moe_intermediate_size, 768);
  assert_int_equal(c.n_group, 1);
  assert_int_equal(kedge_hf_sparse_layers(&c), 48);
  assert_true(equal(c.rope.theta, 1e6) && c.rope.type == KEDGE_ROPE_DEFAULT && equal(c.rms_norm_eps, 1e-6));
  assert_int_equal(c.bos_token_id, 151643);
  assert_int_equal(c.pad_token_id, -1);
  assert_int_equal(c.eos.count, 1);
  assert_int_equal(c.eos.ids[0], 151645);
  assert_string_equal(c.scoring_func, "softmax");
  assert_int_equal(c.notes.count, 0);
  kedge_hf_config_destroy(&c);
}

static void moonlight_and_v2_lite(void **state) {
  (void)state;
  kedge_hf_config c =
      parse("{\"model_type\":\"deepseek_v3\",\"hidden_size\":2048,\"num_hidden_layers\":27,\"intermediate_"
            "size\":11264,"
            "\"first_k_dense_replace\":1,\"moe_intermediate_size\":1408,\"moe_layer_freq\":1,\"n_routed_"
            "experts\":64,"
            "\"n_shared_experts\":2,\"num_experts_per_tok\":6,\"n_group\":1,\"topk_group\":1,\"scoring_"
            "func\":\"sigmoid\","
            "\"topk_method\":\"noaux_tc\",\"norm_topk_prob\":true,\"routed_scaling_factor\":2.446,\"num_"
            "attention_heads\":16,"
            "\"num_key_value_heads\":16,\"q_lora_rank\":null,\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,"
            "\"qk_rope_head_dim\":64,\"v_head_dim\":128,\"attention_bias\":false,\"attention_dropout\":0.0,"
            "\"rope_theta\":50000.0,"
            "\"max_position_embeddings\":8192,\"rms_norm_eps\":1e-5,\"vocab_size\":163840,\"tie_word_"
            "embeddings\":false,"
            "\"bos_token_id\":163584,\"eos_token_id\":163585,\"aux_loss_alpha\":0.001,\"seq_aux\":true,"
            "\"num_nextn_predict_layers\":0,\"ep_size\":1,\"pretraining_tp\":1,\"hidden_act\":\"silu\","
            "\"initializer_range\":0.02,"
            "\"torch_dtype\":\"bfloat16\",\"auto_map\":{\"AutoConfig\":\"configuration_deepseek."
            "DeepseekV3Config\"}}");
  assert_int_equal(c.q_lora_rank, 0);
  assert_int_equal(c.kv_lora_rank, 512);
  assert_int_equal(c.head_dim, 192);
  assert_false(c.has_head_dim);
  assert_int_equal(c.n_shared_experts, 2);
  assert_true(equal(c.routed_scaling_factor, 2.446) && c.norm_topk_prob && c.seq_aux && c.has_aux_loss_alpha);
  assert_string_equal(c.scoring_func, "sigmoid");
  assert_string_equal(c.topk_method, "noaux_tc");
  assert_true(c.rope_interleave && noted(&c, "rope_interleave"));
  assert_int_equal(c.notes.count, 1);
  assert_int_equal(kedge_hf_sparse_layers(&c), 26);
  assert_false(kedge_hf_layer_is_sparse(&c, 0));
  kedge_hf_config_destroy(&c);
  c = parse(
      "{\"model_type\":\"deepseek_v2\",\"hidden_size\":2048,\"num_hidden_layers\":27,\"intermediate_size\":"
      "10944,"
      "\"first_k_dense_replace\":1,\"moe_intermediate_size\":1408,\"n_routed_experts\":64,\"n_shared_"
      "experts\":2,"
      "\"num_experts_per_tok\":6,\"n_group\":1,\"topk_group\":1,\"topk_method\":\"greedy\",\"scoring_func\":"
      "\"softmax\","
      "\"norm_topk_prob\":false,\"num_attention_heads\":16,\"num_key_value_heads\":16,\"q_lora_rank\":null,"
      "\"vocab_size\":102400,\"max_position_embeddings\":163840,\"rope_theta\":10000,\"rope_scaling\":{"
      "\"type\":\"yarn\","
      "\"factor\":40,\"original_max_position_embeddings\":4096,\"beta_fast\":32,\"beta_slow\":1,\"mscale\":0."
      "707,"
      "\"mscale_all_dim\":0.707}}");
  assert_int_equal(c.rope.type, KEDGE_ROPE_YARN);
  assert_true(equal(c.rope.theta, 10000) && equal(c.rope.factor, 40) && equal(c.rope.mscale, 0.707) &&
              equal(c.rope.mscale_all_dim, 0.707) && equal(c.rope.beta_fast, 32) &&
              equal(c.rope.attention_factor, 0));
  assert_true(c.rope.truncate && !c.norm_topk_prob);
  assert_int_equal(c.rope.original_max_position_embeddings, 4096);
  assert_int_equal(c.kv_lora_rank, 512);
  assert_true(noted(&c, "kv_lora_rank") && noted(&c, "rms_norm_eps"));
  kedge_hf_config_destroy(&c);
}

static void other_families(void **state) {
  (void)state;
  kedge_hf_config c = parse(
      "{\"model_type\":\"olmoe\",\"hidden_size\":2048,\"num_hidden_layers\":16,\"num_attention_heads\":16,"
      "\"num_key_value_heads\":16,\"intermediate_size\":1024,\"num_experts\":64,\"vocab_size\":50304,"
      "\"num_experts_per_tok\":8,\"clip_qkv\":null,\"rope_scaling\":null}");
  assert_int_equal(c.moe_intermediate_size, 1024);
  assert_false(c.has_clip_qkv || c.norm_topk_prob);
  assert_true(equal(c.rms_norm_eps, 1e-5));
  assert_int_equal(c.eos.ids[0], 50279);
  assert_int_equal(c.pad_token_id, 1);
  kedge_hf_config_destroy(&c);
  c = parse(
      "{\"model_type\":\"mixtral\",\"hidden_size\":4096,\"num_hidden_layers\":32,\"num_attention_heads\":32,"
      "\"num_key_value_heads\":8,\"intermediate_size\":14336,\"num_local_experts\":8,\"num_experts_per_tok\":"
      "2,"
      "\"vocab_size\":32000,\"sliding_window\":null,\"router_aux_loss_coef\":0.02,\"router_jitter_noise\":0."
      "0}");
  assert_int_equal(c.num_experts, 8);
  assert_int_equal(c.head_dim, 128);
  assert_true(c.norm_topk_prob && !noted(&c, "norm_topk_prob") && equal(c.rope.theta, 1e6));
  assert_int_equal(c.moe_intermediate_size, 14336);
  kedge_hf_config_destroy(&c);
  c = parse("{\"model_type\":\"granitemoe\",\"hidden_size\":1024,\"num_hidden_layers\":24,\"num_attention_"
            "heads\":16,"
            "\"num_key_value_heads\":8,\"intermediate_size\":512,\"num_local_experts\":32,\"num_experts_per_"
            "tok\":8,"
            "\"vocab_size\":49155,\"tie_word_embeddings\":true,\"attention_multiplier\":0.015625,\"embedding_"
            "multiplier\":12,"
            "\"residual_multiplier\":0.22,\"logits_scaling\":6.0}");
  assert_true(c.tie_word_embeddings && equal(c.embedding_multiplier, 12) &&
              equal(c.attention_multiplier, 0.015625) && equal(c.logits_scaling, 6) &&
              equal(c.residual_multiplier, 0.22));
  kedge_hf_config_destroy(&c);
  c = parse("{\"model_type\":\"qwen2_moe\",\"hidden_size\":2048,\"num_hidden_layers\":24,\"num_attention_"
            "heads\":16,"
            "\"vocab_size\":151936,\"sliding_window\":32768,\"layer_types\":[\"full_attention\"]}");
  assert_true(c.qkv_bias && noted(&c, "qkv_bias"));
  assert_int_equal(c.shared_expert_intermediate_size, 5632);
  kedge_hf_config_destroy(&c);
  /* An unknown family is told before anything else about its keys. */
  static const char llama[] = "{\"model_type\":\"llama\",\"hidden_act\":\"relu\"}";
  assert_int_equal(kedge_hf_config_parse(llama, sizeof llama - 1, "config.json", &c), KEDGE_ERR_UNSUPPORTED);
  assert_non_null(strstr(kedge_message(), "\"llama\" is not a family"));
  /* Python writes integers of any size: a tokenizer's "no limit". */
  static const char big[] =
      "{\"model_type\":\"qwen3_moe\",\"hidden_size\":64,\"num_hidden_layers\":4,"
      "\"num_attention_heads\":4,\"vocab_size\":100,\"limit\":1000000000000000019884624838656}";
  c = parse(big);
  assert_int_equal(c.vocab_size, 100);
  kedge_hf_config_destroy(&c);
}

/* ---- Spellings and defaults
 * ---------------------------------------------------------------------------------------------- */

#define BASE                                                                                                 \
  "\"model_type\":\"qwen3_moe\",\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":4,"       \
  "\"vocab_size\":100"
#define WITH(more) "{" BASE "," more "}"

static void spellings(void **state) {
  (void)state;
  kedge_hf_config c =
      parse(WITH("\"dtype\":\"float32\",\"num_local_experts\":16,\"eos_token_id\":[3,4,5],\"head_dim\":null,"
                 "\"rope_parameters\":{\"rope_theta\":5e5,\"rope_type\":\"yarn\",\"factor\":4.0,"
                 "\"truncate\":false,\"attention_factor\":1.5},\"num_key_value_heads\":null"));
  assert_string_equal(c.dtype, "float32");
  assert_int_equal(c.num_experts, 16);
  assert_int_equal(c.eos.count, 3);
  assert_int_equal(c.eos.ids[2], 5);
  assert_int_equal(c.head_dim, 16);
  assert_int_equal(c.num_key_value_heads, 4);
  assert_true(equal(c.rope.theta, 5e5) && equal(c.rope.factor, 4) && equal(c.rope.attention_factor, 1.5) &&
              !c.rope.truncate && equal(c.rope.beta_fast, 32));
  assert_int_equal(c.rope.original_max_position_embeddings, 32768);
  kedge_hf_config_destroy(&c);
  c = parse(WITH("\"dtype\":null,\"torch_dtype\":\"float16\",\"num_experts\":16,\"n_routed_experts\":null"));
  assert_string_equal(c.dtype, "float16");
  assert_int_equal(c.num_experts, 16);
  kedge_hf_config_destroy(&c);
  c = parse(WITH("\"rope_parameters\":{\"rope_theta\":7e4,\"rope_type\":\"default\"},\"rope_theta\":1e4"));
  assert_true(equal(c.rope.theta, 7e4));
  assert_false(c.norm_topk_prob); /* the class default, and said so */
  assert_true(noted(&c, "norm_topk_prob") && noted(&c, "num_experts") && !noted(&c, "rope_theta"));
  assert_false(c.has_router_aux_loss_coef);
  assert_true(equal(c.router_aux_loss_coef, 0.001));
  assert_int_equal(c.eos.count, 0);
  kedge_hf_config_destroy(&c);
  c = parse(
      WITH("\"sliding_window\":4096,\"use_sliding_window\":false,\"num_experts\":8,\"n_routed_experts\":8"));
  assert_true(noted(&c, "rope_theta"));
  kedge_hf_config_destroy(&c);
}

static void sparse_layers(void **state) {
  (void)state;
  kedge_hf_config c = parse(WITH("\"decoder_sparse_step\":2,\"mlp_only_layers\":[1]"));
  static const bool expected[4] = {false, false, false, true};
  for (uint32_t i = 0; i < 4; i++) assert_int_equal(kedge_hf_layer_is_sparse(&c, i), expected[i]);
  assert_int_equal(kedge_hf_sparse_layers(&c), 1);
  kedge_hf_config_destroy(&c);
}

static void goldens(void **state) {
  (void)state;
  kedge_hf_config c;
  if (kedge_hf_config_load(test_golden("qwen3_moe_mixed"), &c) != KEDGE_OK) fail_msg("%s", kedge_message());
  assert_int_equal(c.num_hidden_layers, 3);
  assert_int_equal(c.num_experts, 8);
  assert_int_equal(c.num_experts_per_tok, 3);
  assert_int_equal(c.num_attention_heads, 5);
  assert_int_equal(c.num_key_value_heads, 1);
  assert_false(kedge_hf_layer_is_sparse(&c, 1));
  assert_true(kedge_hf_layer_is_sparse(&c, 2));
  assert_true(c.norm_topk_prob);
  kedge_hf_config_destroy(&c);
  if (kedge_hf_config_load(test_golden("qwen3_moe_top8of16"), &c) != KEDGE_OK)
    fail_msg("%s", kedge_message());
  assert_true(c.tie_word_embeddings && !c.norm_topk_prob);
  kedge_hf_config_destroy(&c);
}

static void generation_config(void **state) {
  (void)state;
  const char *folder = test_folder();
  kedge_hf_config c;
  assert_int_equal(kedge_hf_config_load(folder, &c), KEDGE_ERR_IO);
  test_write_text(test_path(folder, "config.json"), WITH("\"eos_token_id\":7"));
  assert_int_equal(kedge_hf_config_load(folder, &c), KEDGE_OK);
  assert_int_equal(c.generation_eos.count, 0);
  kedge_hf_config_destroy(&c);
  test_write_text(test_path(folder, "generation_config.json"), "{\"eos_token_id\":[7,9]}");
  assert_int_equal(kedge_hf_config_load(folder, &c), KEDGE_OK);
  assert_int_equal(c.eos.count, 1);
  assert_int_equal(c.generation_eos.count, 2);
  assert_int_equal(c.generation_eos.ids[1], 9);
  kedge_hf_config_destroy(&c);
  static const char *const bad[] = {"[]", "{", "{\"eos_token_id\":\"x\"}", "{\"eos_token_id\":[1.5]}"};
  for (size_t i = 0; i < 4; i++) {
    test_write_text(test_path(folder, "generation_config.json"), bad[i]);
    assert_int_equal(kedge_hf_config_load(folder, &c), KEDGE_ERR_FORMAT);
    assert_non_null(strstr(kedge_message(), "generation_config.json"));
  }
}

/* ---- Refusals
 * -------------------------------------------------------------------------------------------------------------------
 */

static void not_allowed(void **state) {
  (void)state;
  static const struct {
    const char *text, *says;
  } format[] = {
      {"", "not valid JSON"},
      {"[]", "expected an object"},
      {"{}", "\"model_type\""},
      {"{\"model_type\":7}", "key \"model_type\": expected a short string, got 7"},
      {"{\"model_type\":\"qwen3_moe\"}", "key \"hidden_size\": expected a value, got nothing"},
      {"{" BASE ",\"hidden_size\":64}", "uplicate"},
      {WITH("\"num_experts\":0"), "key \"num_experts\": expected an integer from 1 to 65536, got 0"},
      {WITH("\"num_experts\":-3"), "got -3"},
      {WITH("\"num_experts\":4.0"), "got 4.0"},
      {WITH("\"num_experts\":\"4\""), "got \"4\""},
      {WITH("\"num_experts\":4,\"num_local_experts\":5"), "contradict"},
      {WITH("\"num_experts\":4"), "key \"num_experts_per_tok\": expected 1 to the 4 experts, got 8"},
      {WITH("\"intermediate_size\":100000000"), "key \"intermediate_size\""},
      {WITH("\"max_position_embeddings\":2147483648"), "from 1 to 2147483647, got 2147483648"},
      {WITH("\"intermediate_size\":9223372036854775807"), "got 9223372036854775807"},
      {WITH("\"num_key_value_heads\":3"), "key \"num_key_value_heads\": expected a divisor"},
      {WITH("\"head_dim\":15"), "key \"head_dim\": expected an even number, got 15"},
      {WITH("\"rms_norm_eps\":0"), "key \"rms_norm_eps\""},
      {WITH("\"rms_norm_eps\":-1e-6"), "key \"rms_norm_eps\""},
      {WITH("\"rms_norm_eps\":1e999"), "not valid JSON"},
      {WITH("\"rms_norm_eps\":NaN"), "not valid JSON"},
      {WITH("\"norm_topk_prob\":1"), "key \"norm_topk_prob\": expected true or false, got 1"},
      {WITH("\"norm_topk_prob\":null"), "got null"},
      {WITH("\"tie_word_embeddings\":\"yes\""), "key \"tie_word_embeddings\""},
      {WITH("\"mlp_only_layers\":[4]"), "key \"mlp_only_layers\": expected an integer from 0 to 3, got 4"},
      {WITH("\"mlp_only_layers\":3"), "a list of layers"},
      {WITH("\"decoder_sparse_step\":0"), "key \"decoder_sparse_step\""},
      {WITH("\"rope_theta\":\"big\""), "key \"rope_theta\""},
      {WITH("\"rope_theta\":-1"), "key \"rope_theta\""},
      {WITH("\"rope_scaling\":[1]"), "key \"rope_scaling\": expected an object"},
      {WITH("\"rope_scaling\":{\"type\":\"yarn\"}"), "key \"factor\""},
      {WITH("\"rope_scaling\":{\"type\":\"yarn\",\"factor\":0.5}"), "key \"factor\""},
      {WITH("\"rope_scaling\":{\"factor\":2}"), "key \"rope_type\""},
      {WITH("\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2},\"rope_parameters\":{\"rope_type\":"
            "\"default\"}"),
       "contradict"},
      {WITH("\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]"), "at most 16"},
      {WITH("\"eos_token_id\":-1"), "key \"eos_token_id\""},
      {WITH("\"bos_token_id\":[1]"), "key \"bos_token_id\""},
      {WITH("\"architectures\":\"x\""), "key \"architectures\""},
      {WITH("\"n_group\":3"), "key \"n_group\": expected a divisor"},
      {WITH("\"n_group\":2,\"topk_group\":3"), "key \"topk_group\""},
      {WITH("\"n_group\":32,\"topk_group\":1"), "of topk_group groups"},
      {"{\"model_type\":\"qwen3_moe\",\"hidden_size\":65,\"num_hidden_layers\":1,\"num_attention_heads\":4,"
       "\"vocab_size\":9}",
       "key \"head_dim\": expected a value"},
      {"{\"model_type\":\"deepseek_v2\",\"hidden_size\":64,\"num_hidden_layers\":1,\"num_attention_heads\":4,"
       "\"vocab_size\":9,\"num_experts_per_tok\":1,\"qk_rope_head_dim\":7}",
       "key \"qk_rope_head_dim\": expected an even number"},
  };
  for (size_t i = 0; i < sizeof format / sizeof *format; i++)
    refuses(KEDGE_ERR_FORMAT, format[i].text, format[i].says);
}

static void not_supported(void **state) {
  (void)state;
  static const struct {
    const char *text, *says;
  } rows[] = {
      {WITH("\"hidden_act\":\"gelu\""), "key \"hidden_act\": expected \"silu\", got \"gelu\""},
      {WITH("\"attention_bias\":true"), "key \"attention_bias\": expected false, got true"},
      {WITH("\"attention_dropout\":0.1"), "key \"attention_dropout\""},
      {WITH("\"use_sliding_window\":true"), "key \"use_sliding_window\""},
      {WITH("\"use_sliding_window\":true,\"sliding_window\":128"), "key \"use_sliding_window\""},
      {WITH("\"layer_types\":[\"full_attention\",\"sliding_attention\"]"), "key \"layer_types\""},
      {WITH("\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}"),
       "key \"rope_type\": expected \"default\" or \"yarn\", got \"dynamic\""},
      {WITH("\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":2}"), "got \"llama3\""},
      {WITH("\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e4}}"), "one set of rope parameters"},
      {WITH("\"partial_rotary_factor\":0.5"), "key \"partial_rotary_factor\""},
      {WITH("\"quantization_config\":{\"quant_method\":\"fp8\"}"), "key \"quantization_config\""},
      {WITH("\"scoring_func\":\"sigmoid\""), "key \"scoring_func\": expected \"softmax\", got \"sigmoid\""},
      {"{\"model_type\":\"mixtral\",\"hidden_size\":64,\"num_hidden_layers\":1,\"num_attention_heads\":8,"
       "\"vocab_size\":9,"
       "\"sliding_window\":4096}",
       "key \"sliding_window\": expected none, got 4096"},
      {"{\"model_type\":\"mixtral\",\"hidden_size\":64,\"num_hidden_layers\":1,\"num_attention_heads\":8,"
       "\"vocab_size\":9,"
       "\"router_jitter_noise\":0.1}",
       "key \"router_jitter_noise\""},
      {"{\"model_type\":\"mixtral\",\"hidden_size\":64,\"num_hidden_layers\":1,\"num_attention_heads\":8,"
       "\"vocab_size\":9,"
       "\"norm_topk_prob\":false}",
       "key \"norm_topk_prob\": expected true"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    refuses(KEDGE_ERR_UNSUPPORTED, rows[i].text, rows[i].says);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(qwen3_moe),         cmocka_unit_test(moonlight_and_v2_lite),
      cmocka_unit_test(other_families),    cmocka_unit_test(spellings),
      cmocka_unit_test(sparse_layers),     cmocka_unit_test(goldens),
      cmocka_unit_test(generation_config), cmocka_unit_test(not_allowed),
      cmocka_unit_test(not_supported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
