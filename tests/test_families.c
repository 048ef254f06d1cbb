/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Model families from their configs alone: parameters and tensors of the published models, rotary frequencies
 * and scales, options, and what is refused. Parity of what they compute is test_models.c.
 */
#include "core/args.h"
#include "models/decoder/parameters.h"
#include "models/decoder/rope.h"
#include "tests/support/files.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

/* A config of tests/golden/configs with one text put in another's place (NULL: as it is). */
static kedge_status parse(const char *name, const char *from, const char *to, kedge_hf_config *config) {
  char path[128];
  size_t bytes;
  snprintf(path, sizeof path, "configs/%s.json", name);
  char *text = test_read(test_golden(path), &bytes);
  char *edited = malloc(bytes + 4096), *at = from ? strstr(text, from) : text;
  assert_non_null(at);
  snprintf(edited, bytes + 4096, "%.*s%s%s", (int)(at - text), text, from ? to : "",
           at + (from ? strlen(from) : 0));
  kedge_status status = kedge_hf_config_parse(edited, strlen(edited), "config.json", config);
  free(edited), free(text);
  return status;
}

typedef struct published {
  const char *config;
  uint64_t parameters, tensors, fixed, experts_rest; /* rest: without embedding and head */
} published;

/* Moonlight's files have 27 stale tensors besides these 5317. Active parameters leave the embedding out. */
static const published models[] = {
    {"moonlight_16b_a3b", 15960108544, 5317, 1664, 15289019904},
    {"deepseek_v2_lite", 15706484224, 5291, 0, 15287053824},
    {"qwen3_30b_a3b", 30532122624, 18867, 0, 29909792768},
    {"olmoe_1b_7b", 6919161856, 3 + 16 * (8 + 1 + 3 * 64), 0, 6713116672},
    {"mixtral_8x7b", 46702792704, 3 + 32 * (6 + 1 + 3 * 8), 0, 46440648704},
    {"granite_3_0_1b_a400m", 1334628352, 2 + 24 * (6 + 1 + 2), 0, 1284293632},
    {"granite_3_0_3b_a800m", 3298793472, 2 + 32 * (6 + 1 + 2), 0, 3223291392},
};

static void test_counts(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    const published *m = &models[i];
    kedge_hf_config config;
    kedge_params p;
    check(parse(m->config, NULL, NULL, &config));
    check(kedge_params_init(&p, &config));
    const uint64_t table = (uint64_t)config.vocab_size * config.hidden_size;
    print_message("%s: %llu parameters in %llu tensors\n", m->config, (unsigned long long)p.total,
                  (unsigned long long)p.tensors);
    assert_true(p.total == m->parameters);
    assert_true(p.tensors == m->tensors && p.name_count == m->tensors + config.tie_word_embeddings);
    assert_true(p.fixed == m->fixed);
    assert_true(p.total - table * (config.tie_word_embeddings ? 1 : 2) == m->experts_rest);
    kedge_params_destroy(&p);
    kedge_hf_config_destroy(&config);
  }
}

static void near(const char *what, double got, double want) {
  if (!(fabs(got - want) <= 1e-8 * fabs(want) + 1e-300)) fail_msg("%s: %.12g, want %.12g", what, got, want);
}

typedef struct frequency {
  uint32_t index;
  double value;
} frequency;

static void frequencies(const char *name, uint32_t width, const frequency *want, size_t count, double scale) {
  kedge_hf_config config;
  kedge_family_options options;
  const kedge_family *family;
  double got[64];
  check(parse(name, NULL, NULL, &config));
  assert_int_equal(kedge_rope_width(&config), width);
  kedge_rope_frequencies(&config.rope, width, got);
  for (size_t i = 0; i < count; i++) near(name, got[want[i].index], want[i].value);
  check(kedge_family_find(&config, &family));
  check(family->options(&config, &options));
  near("scale of q.k", options.attention_scale, scale);
  near("factor of cos and sin", kedge_rope_magnitude(&config.rope), 1);
  kedge_hf_config_destroy(&config);
}

static void test_rope(void **state) {
  (void)state;
  static const frequency moonlight[] = {{0, 1}, {1, 0.7131110850}, {16, 0.00447213595}, {31, 2.804612133e-5}};
  static const frequency qwen3[] = {{0, 1}, {1, 0.8058421878}, {32, 0.001}, {63, 1.240937761e-6}};
  static const frequency lite[] = {{0, 1},
                                   {9, 0.07498942093},
                                   {10, 0.05623413252},
                                   {11, 0.03900692656},
                                   {16, 0.0055},
                                   {20, 7.905694150e-4},
                                   {22, 1.778279410e-4},
                                   {23, 3.333803580e-5},
                                   {31, 3.333803580e-6}};
  frequencies("moonlight_16b_a3b", 64, moonlight, 4, 0.07216878365);
  frequencies("qwen3_30b_a3b", 128, qwen3, 4, 1 / sqrt(128.0));
  frequencies("deepseek_v2_lite", 64, lite, 9, 0.11472138683);
  frequencies("granite_3_0_1b_a400m", 64, (frequency[]){{0, 1}}, 1, 0.015625);
}

static void options_of(const char *name, kedge_family_options *options) {
  kedge_hf_config config;
  const kedge_family *family;
  check(parse(name, NULL, NULL, &config));
  check(kedge_family_find(&config, &family));
  check(family->options(&config, options));
  kedge_hf_config_destroy(&config);
}

static void test_options(void **state) {
  (void)state;
  kedge_family_options o;
  options_of("moonlight_16b_a3b", &o);
  assert_true(o.score_kind == KEDGE_SCORE_SIGMOID && o.correction && o.gate_normalise && o.rope_interleaved);
  assert_true(o.shared_width == 2816 && !o.shared_gated && o.groups == 1);
  near("scaling factor", o.gate_alpha, 2.446);
  near("epsilon of the gates", o.gate_epsilon, 1e-20);
  near("epsilon of the latent norm", o.latent_norm_eps, 1e-6);
  options_of("deepseek_v2_lite", &o);
  assert_true(o.score_kind == KEDGE_SCORE_SOFTMAX && !o.correction && !o.gate_normalise && o.groups == 1);
  near("scaling factor", o.gate_alpha, 1);
  options_of("olmoe_1b_7b", &o);
  assert_true(o.qk_norm == KEDGE_QK_NORM_FULL && !o.gate_normalise && !o.rope_interleaved);
  options_of("mixtral_8x7b", &o);
  assert_true(o.qk_norm == KEDGE_QK_NORM_NONE && o.gate_normalise && !o.shared_width);
  options_of("granite_3_0_3b_a800m", &o);
  assert_true(o.gate_normalise && !o.shared_width);
}

/* The config or the list of its parameters is refused, and the message has `text`. */
static void refuse(const char *name, const char *from, const char *to, const char *text) {
  kedge_hf_config config;
  kedge_params params;
  kedge_status status = parse(name, from, to, &config);
  if (status == KEDGE_OK) {
    status = kedge_params_init(&params, &config);
    kedge_hf_config_destroy(&config);
  }
  if (status != KEDGE_ERR_UNSUPPORTED || !strstr(kedge_message(), text))
    fail_msg("want \"%s\", got \"%s\"", text, kedge_message());
}

static void test_refusals(void **state) {
  (void)state;
  refuse("deepseek_v2_lite", "\"greedy\"", "\"noaux_tc\"", "group_limited_greedy");
  refuse("moonlight_16b_a3b", "\"num_key_value_heads\": 16", "\"num_key_value_heads\": 8",
         "expected num_attention_heads 16, got 8");
  refuse("moonlight_16b_a3b", "\"kv_lora_rank\": 512", "\"kv_lora_rank\": null", "kv_lora_rank");
  refuse("mixtral_8x7b", "\"mixtral\"", "\"mixtral2\"", "mixtral2");
  refuse("mixtral_8x7b", "\"hidden_act\"", "\"decoder_sparse_step\": 2, \"hidden_act\"",
         "layer 0 needs weights that mixtral models do not have");
  refuse("olmoe_1b_7b", "\"hidden_act\"",
         "\"kv_lora_rank\": 4, \"qk_nope_head_dim\": 4, \"qk_rope_head_dim\": 4, \"v_head_dim\": 4, "
         "\"hidden_act\"",
         "olmoe models do not have");
  refuse("moonlight_16b_a3b", "\"moe_intermediate_size\": 1408", "\"moe_intermediate_size\": 16777216",
         "more than 2147483647 elements");
  refuse("moonlight_16b_a3b", "\"qk_nope_head_dim\": 128,\n  \"qk_rope_head_dim\": 64",
         "\"qk_nope_head_dim\": 65536,\n  \"qk_rope_head_dim\": 65536", "elements");
  refuse("moonlight_16b_a3b", "\"num_attention_heads\": 16", "\"num_attention_heads\": 65536, \"x\": 16",
         "num_attention_heads 65536");
  refuse("qwen3_30b_a3b", "\"head_dim\": 128,\n  \"hidden_act\": \"silu\",\n  \"hidden_size\": 2048",
         "\"head_dim\": 65536,\n  \"n_shared_experts\": 65536, \"hidden_act\": \"silu\",\n  \"hidden_size\": "
         "2048",
         "more than 2147483647");
}

/* Layers behind the stack are known and left out; others are not. */
static void test_ignored(void **state) {
  (void)state;
  kedge_hf_config config;
  kedge_params p;
  check(parse("moonlight_16b_a3b", "\"num_nextn_predict_layers\": 0", "\"num_nextn_predict_layers\": 1",
              &config));
  check(kedge_params_init(&p, &config));
  assert_true(kedge_params_ignores(&p, "model.layers.26.self_attn.rotary_emb.inv_freq"));
  assert_true(kedge_params_ignores(&p, "model.layers.27.eh_proj.weight"));
  assert_false(kedge_params_ignores(&p, "model.layers.28.eh_proj.weight"));
  assert_false(kedge_params_ignores(&p, "model.layers.26.eh_proj.weight"));
  assert_false(kedge_params_ignores(&p, "model.layers.x.eh_proj.weight"));
  kedge_params_destroy(&p);
  kedge_hf_config_destroy(&config);
}

/* config.json as transformers 4 and 5 spell it means the same model. */
static void test_spellings(void **state) {
  (void)state;
  static const char *const variants[] = {"olmoe_plain", "qwen2_moe_plain", "deepseek_v2_greedy",
                                         "deepseek_v3_moonlight"};
  for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
    kedge_hf_config config[2];
    kedge_params p[2];
    double frequencies_[2][64];
    for (int i = 0; i < 2; i++) {
      char path[128];
      size_t bytes;
      snprintf(path, sizeof path, "%s/config%s.json", variants[v], i ? ".v4" : "");
      char *text = test_read(test_golden(path), &bytes);
      check(kedge_hf_config_parse(text, bytes, path, &config[i]));
      check(kedge_params_init(&p[i], &config[i]));
      kedge_rope_frequencies(&config[i].rope, kedge_rope_width(&config[i]), frequencies_[i]);
      free(text);
    }
    assert_true(p[0].total == p[1].total && p[0].tensors == p[1].tensors && p[0].fixed == p[1].fixed);
    assert_true(p[0].options.rope_interleaved == p[1].options.rope_interleaved);
    assert_true(p[0].options.gate_normalise == p[1].options.gate_normalise);
    near("scale of q.k", p[1].options.attention_scale, p[0].options.attention_scale);
    near("scaling factor", p[1].options.gate_alpha, p[0].options.gate_alpha);
    assert_memory_equal(frequencies_[0], frequencies_[1],
                        kedge_rope_width(&config[0]) / 2 * sizeof **frequencies_);
    for (int i = 0; i < 2; i++) {
      kedge_params_destroy(&p[i]);
      kedge_hf_config_destroy(&config[i]);
    }
  }
}

static void test_other_options(void **state) {
  (void)state;
  kedge_hf_config config;
  kedge_params p;
  char text[KEDGE_MODEL_OPTIONS_TEXT];
  check(parse("deepseek_v2_lite", "\"norm_topk_prob\": false", "\"norm_topk_prob\": true", &config));
  assert_int_equal(kedge_model_options_open(&config), KEDGE_OPTION_NORM_TOPK_PROB);
  check(kedge_model_options_set(&config, "norm_topk_prob=remote, latent_norm_eps=config"));
  assert_string_equal(kedge_model_options_text(config.options, text),
                      "latent_norm_eps=config,norm_topk_prob=remote");
  check(kedge_params_init(&p, &config));
  assert_true(p.options.gate_normalise);
  kedge_params_destroy(&p);
  check(kedge_model_options_set(&config, "norm_topk_prob=transformers"));
  assert_string_equal(kedge_model_options_text(config.options, text), "latent_norm_eps=config");
  check(kedge_model_options_set(&config, ""));
  static const struct {
    const char *text, *message;
  } bad[] = {
      {"norm_topk_prob", "expected transformers or remote"},
      {"norm_topk_prob=true", "expected transformers or remote, got \"norm_topk_prob=true\""},
      {"norm=remote", "expected some of latent_norm_eps=config, norm_topk_prob=remote, got \"norm=remote\""},
      {"latent_norm_eps=config,", "got \"\""}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_int_equal(kedge_model_options_set(&config, bad[i].text), KEDGE_ERR_ARGUMENT);
    if (!strstr(kedge_message(), bad[i].message)) fail_msg("%s: %s", bad[i].text, kedge_message());
  }
  kedge_hf_config_destroy(&config);
  /* One expert a token: DeepSeek's code leaves its weight alone, transformers divides it by itself. */
  check(parse("moonlight_16b_a3b", "\"num_experts_per_tok\": 6", "\"num_experts_per_tok\": 1", &config));
  assert_int_equal(kedge_model_options_open(&config),
                   KEDGE_OPTION_NORM_TOPK_PROB | KEDGE_OPTION_LATENT_NORM_EPS);
  check(kedge_model_options_set(&config, "norm_topk_prob=remote"));
  check(kedge_params_init(&p, &config));
  assert_false(p.options.gate_normalise);
  kedge_params_destroy(&p);
  kedge_hf_config_destroy(&config);
  check(parse("olmoe_1b_7b", NULL, NULL, &config));
  assert_int_equal(kedge_model_options_open(&config), 0);
  assert_int_equal(kedge_model_options_set(&config, "norm_topk_prob=remote"), KEDGE_ERR_UNSUPPORTED);
  kedge_hf_config_destroy(&config);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_counts),       cmocka_unit_test(test_rope),
                                     cmocka_unit_test(test_options),      cmocka_unit_test(test_refusals),
                                     cmocka_unit_test(test_ignored),      cmocka_unit_test(test_spellings),
                                     cmocka_unit_test(test_other_options)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
