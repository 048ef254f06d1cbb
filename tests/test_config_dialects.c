/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Configuration files of other tools: all that is wrong said at once, keys without use here, keys that ask
 * for what Kedge does anyway, batch sizes of a whole update, data files of axolotl. */
#include "tests/support/configs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Everything that a file has to change stands in one line; one problem alone keeps its own message. */
static void test_all_at_once(void **state) {
  (void)state;
  test_config_refuse("bogus: 1\nseed: 2\nlerning_rate: 1\nother: {a: 1}\n",
                     "run.yaml: 3 keys are not known: bogus (line 1), lerning_rate (line 3; nearest "
                     "learning_rate), other (line 4)");
  assert_int_equal(strlen(strrchr(kedge_message(), ')')), 1);
  test_config_refuse(
      "bogus: 1\nload_in_4bit: true\nfp16: true\nmax_length: 1.5\nadapter: lora\n",
      "run.yaml: 1 key is not known: bogus (line 1); 3 keys are not supported: load_in_4bit (line "
      "2: Kedge trains in f32 or bf16, see dtype), fp16 (line 3: Kedge trains in f32 or bf16, see "
      "dtype), adapter (line 5: Kedge trains the weights themselves, without adapters); 1 key has "
      "a wrong value: max_length (line 4: expected a whole number, came \"1.5\")");
  test_config_refuse(
      "router: [{intervention: rpb, betta: 1, priorr: 2}]\nlr_scheduler_kwargs: {a: 1, b: 2}\n",
      "4 keys are not known: router[0].betta (line 1; nearest beta), router[0].priorr (line 1; "
      "nearest prior), lr_scheduler_kwargs.a (line 2), lr_scheduler_kwargs.b (line 2)");
  kedge_config config;
  static const char refused[] = "fsdp: full_shard\npush_to_hub: true\n";
  assert_int_equal(kedge_config_parse(&config, "a b: c", refused, sizeof refused - 1, NULL, 0),
                   KEDGE_ERR_UNSUPPORTED);
  assert_non_null(strstr(kedge_message(), "a b: c: 2 keys are not supported: fsdp (line 1: "));
  char many[16384] = "";
  for (int i = 0; i < 400; i++) sprintf(many + strlen(many), "a_key_that_is_unknown_%d: 1\n", i);
  test_config_refuse(many, "run.yaml: 400 keys are not known: a_key_that_is_unknown_0 (line 1), ");
  assert_non_null(strstr(kedge_message(), " more"));
  test_config_refuse_override("", "bogus=1", "override \"bogus=1\": key \"bogus\": unknown");
}

/* Keys of other tools that mean nothing here, or that ask for what Kedge does anyway. */
static void test_others(void **state) {
  (void)state;
  kedge_config config;
  test_config_load(
      &config,
      "load_in_8bit: false\nload_in_4bit: no\nadapter:\nwandb_project:\nwandb_name: ''\ntf32: false\n"
      "push_to_hub: off\nuse_peft: False\ndeepspeed: null\nfsdp: []\nfsdp_config: {}\nneftune_noise_alpha: "
      "0.0\nstage: sft\nfinetuning_type: Full\ndataset_text_field: text\ntensor_model_parallel_size: 1\n"
      "logging_strategy: steps\nspecial_tokens:\ngroup_by_length: false\nmetric_for_best_model: eval_loss\n"
      "optim_args: ~\nstrict: true\nreport_to: []\n");
  assert_int_equal(config.notes.count, 0);
  test_config_round_trip(&config);
  kedge_config_destroy(&config);
  test_config_load(
      &config, "dataloader_num_workers: 4\nwandb_project: p\nhub_model_id: a/b\nflash_attention: true\n"
               "gradient_checkpointing_kwargs: {use_reentrant: false}\nlora_r: 16\nuse_peft: false\n"
               "model_init_kwargs: {torch_dtype: bfloat16, attn_implementation: sdpa}\nddp_timeout: 180\n");
  assert_int_equal(config.notes.count, 8);
  assert_string_equal(config.notes.items[0],
                      "dataloader_num_workers: no use here: data files are read once, by the program itself");
  assert_string_equal(config.notes.items[6],
                      "model_init_kwargs.attn_implementation: no use here: attention is always blockwise");
  assert_int_equal(config.dtype, KEDGE_CONFIG_DTYPE_BF16);
  test_config_round_trip(&config);
  kedge_config_destroy(&config);
  static const char *const refused[] = {"stage: dpo",
                                        "finetuning_type: lora",
                                        "dataset_text_field: content",
                                        "tensor_model_parallel_size: 2",
                                        "logging_strategy: epoch",
                                        "logging_strategy: no",
                                        "group_by_length: true",
                                        "use_peft: true",
                                        "load_best_model_at_end: true",
                                        "fsdp: [full_shard]",
                                        "dataloader_drop_last: true",
                                        "do_train: false",
                                        "deepspeed: {a: 1}",
                                        "dataset_text_field: [text, [a]]",
                                        "optim_args: a=b"};
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
    test_config_refuse(refused[i], "not supported: ");
  test_config_refuse("model_init_kwargs: {num_hidden_layers: 2}", "unknown");
  test_config_refuse(
      "model_init_kwargs: {output_router_logits: true}",
      "run.yaml:1: key \"model_init_kwargs.output_router_logits\": true needs router_aux_loss");
  test_config_load(&config, "output_router_logits: true\nmodel_init_kwargs: {router_aux_loss_coef: 0.1}");
  assert_true(config.router_aux_loss_coef == 0.1);
  kedge_config_destroy(&config);
  static const char *const loss[] = {"", "assistant_only_loss: false", "assistant_only_loss: true"};
  for (int i = 0; i < 3; i++) {
    test_config_load(&config, loss[i]);
    assert_int_equal(
        config.assistant_only_loss,
        ((const int[]){KEDGE_CONFIG_CHOICE_AUTO, KEDGE_CONFIG_CHOICE_FALSE, KEDGE_CONFIG_CHOICE_TRUE})[i]);
    test_config_round_trip(&config);
    kedge_config_destroy(&config);
  }
}

static void test_global_batch(void **state) {
  (void)state;
  static const struct {
    const char *text;
    int micro, steps;
  } good[] = {{"global_batch_size: 32\nmicro_batch_size: 2\n", 2, 16},
              {"gradient_accumulation_steps: 4\nglobal_batch_size: 12\n", 3, 4},
              {"global_batch_size: 64\n", 8, 8},
              {"global_batch_size: 6\nmicro_batch_size: 2\ngradient_accumulation_steps: 3\n", 2, 3},
              {"global_batch_size:\nmicro_batch_size: 5\n", 5, 1}};
  kedge_config config;
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    test_config_load(&config, good[i].text);
    assert_int_equal(config.per_device_train_batch_size, good[i].micro);
    assert_int_equal(config.gradient_accumulation_steps, good[i].steps);
    test_config_round_trip(&config);
    kedge_config_destroy(&config);
  }
  test_config_refuse(
      "micro_batch_size: 3\nglobal_batch_size: 8\n",
      "run.yaml:2: key \"global_batch_size\": 8 is no multiple of per_device_train_batch_size 3");
  test_config_refuse("micro_batch_size: 3\nglobal_batch_size: 8\ngradient_accumulation_steps: 2\n",
                     "8 is not per_device_train_batch_size 3 x gradient_accumulation_steps 2");
  test_config_refuse("global_batch_size: many", "expected a number");
  test_config_refuse("global_batch_size: 0", "outside");
}

/* Data files as axolotl writes them. */
static void test_data_files(void **state) {
  (void)state;
  kedge_config config;
  test_config_load(&config,
                   "datasets:\n"
                   "  - {path: json, data_files: x.jsonl, ds_type: json, split: train, type: alpaca}\n"
                   "  - {path: json, data_files: [y.jsonl, z.jsonl], type: chat_template, "
                   "field_messages: messages, roles_to_train: [assistant], name: null}\n"
                   "  - {path: w.jsonl, data_files: , shards: 1, field: text, "
                   "message_property_mappings: {role: from, content: value}}\n");
  assert_int_equal(config.dataset.count, 4);
  static const char *const paths[] = {"x.jsonl", "y.jsonl", "z.jsonl", "w.jsonl"};
  static const char *const types[] = {"alpaca", "messages", "messages", NULL};
  for (size_t i = 0; i < 4; i++) {
    assert_string_equal(config.dataset.items[i].path, paths[i]);
    if (types[i]) assert_string_equal(config.dataset.items[i].type, types[i]);
  }
  test_config_round_trip(&config);
  kedge_config_destroy(&config);
  test_config_refuse("dataset: [{path: a, field: body}]", "field can only be text: ");
  test_config_refuse("dataset: [{path: a, field_instruction: q}]", "field_instruction is not supported");
  test_config_refuse("dataset: [{path: a, roles_to_train: [assistant, user]}]", "roles_to_train can only be");
  test_config_refuse("dataset: [{path: a, message_property_mappings: {role: speaker}}]",
                     "can only name role");
  test_config_refuse("dataset: [{path: a, message_property_mappings: {tool: a}}]", "can only name role");
  test_config_refuse("dataset: [{path: a, message_property_mappings: role}]", "can only name role");
  test_config_refuse("dataset: [{path: a, data_files: b}]", "path and data_files are both given");
  test_config_refuse("dataset: [{path: json, data_files: [a, [b]]}]", "expected a path, came a list");
  test_config_refuse("dataset: [{path: json, data_files: {a: b}}]", "expected a path, came a mapping");
  test_config_refuse("dataset: [{path: }]", "a data file has no path");
}

/* Keys that change nothing as they stand are told of, once: the resolved print has them no more. */
static void test_router_idle(void **state) {
  (void)state;
  static const struct {
    const char *text, *note;
  } idle[] = {
      {"router: {intervention: rpb, shuffle_seed: 3}",
       "router: rpb does not use shuffle_seed without shuffle"},
      {"router: {intervention: kl, communities: c.json}",
       "router: kl does not use communities, which are for shuffle within"},
      {"router: {intervention: rpb_hard, shuffle: global, communities: c.json}",
       "router: rpb_hard does not use communities, which are for shuffle within"},
      {"router_lb_scope: global", "router_lb_scope is not used: there is no load-balancing loss"},
      {"router: z_loss\nlb_convention: hf", "lb_convention is not used: there is no load-balancing loss"},
      {"lb_layers: mean", "lb_layers is not used: there is no load-balancing loss"},
      {"lb_counts: dispatched", "lb_counts is not used: there is no load-balancing loss"}};
  static const char *const quiet[] = {
      "router: {intervention: rpb, shuffle: global, shuffle_seed: 3}",
      "router: {intervention: kl, shuffle: within, communities: c.json, shuffle_seed: 3}",
      "router: lbl\nrouter_lb_scope: global\nlb_convention: hf\nlb_layers: mean\nlb_counts: dispatched",
      "router_aux_loss_coef: 0.1\nrouter_lb_scope: sequence", "router_lb_scope: micro\nlb_counts: scores"};
  kedge_config config;
  for (size_t i = 0; i < sizeof idle / sizeof *idle; i++) {
    test_config_load(&config, idle[i].text);
    assert_int_equal(config.notes.count, 1);
    assert_string_equal(config.notes.items[0], idle[i].note);
    test_config_round_trip(&config);
    kedge_config_destroy(&config);
  }
  for (size_t i = 0; i < sizeof quiet / sizeof *quiet; i++) {
    test_config_load(&config, quiet[i]);
    assert_int_equal(config.notes.count, 0);
    kedge_config_destroy(&config);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_router_idle), cmocka_unit_test(test_all_at_once),
                                     cmocka_unit_test(test_others), cmocka_unit_test(test_global_batch),
                                     cmocka_unit_test(test_data_files)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
