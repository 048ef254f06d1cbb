/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * The configuration: every key and alias, every kind of mistake, other dialects, overrides, router forms, the
 * print that loads to itself, and files that mean harm. */
#include "models/routing/router.h"
#include "models/training/config_internal.h"
#include "tests/support/configs.h"
#include "tests/support/files.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool has_line(const kedge_config *config, const char *line) {
  char *yaml = kedge_config_yaml(config);
  bool found = strstr(yaml, line) != NULL;
  if (!found) print_message("no \"%s\" in\n%s", line, yaml);
  kedge_free(yaml);
  return found;
}

/* ---- Keys
 * ------------------------------------------------------------------------------------------------------------
 */

/* A value other than the default that the key takes by itself, and what else the file then needs. */
static const char *sample_of(const kedge_config_key *key, const char **more) {
  static char text[64];
  *more = "";
  if (!strcmp(key->name, "eval_split")) return "0.25";
  if (!strcmp(key->name, "min_learning_rate")) *more = "lr_scheduler_type: cosine\n";
  if (!strcmp(key->name, "min_learning_rate")) return "1e-7";
  if (!strcmp(key->name, "min_lr_ratio")) *more = "lr_scheduler_type: cosine\n";
  if (!strcmp(key->name, "eval_strategy")) *more = "eval_split: 0.1\n";
  if (!strcmp(key->name, "eval_steps")) *more = "eval_split: 0.1\n";
  if (!strncmp(key->name, "lb_", 3) || !strcmp(key->name, "router_lb_scope")) *more = "router: lbl\n";
  if (!strncmp(key->name, "evals_per", 9)) *more = "eval_split: 0.1\neval_strategy: steps\n";
  switch (key->kind) {
  case KEDGE_KIND_INT:
    return "3";
  case KEDGE_KIND_REAL:
    return "0.125";
  case KEDGE_KIND_STEPS:
    return "33";
  case KEDGE_KIND_BOOL:
    return !strcmp(key->def, "true") ? "false" : "true";
  case KEDGE_KIND_ENUM:
    snprintf(text, sizeof text, "%s", key->choices[key->choice_count > 1 ? 1 : 0].value);
    if (key->choice_count > 1 && !strcmp(text, key->def))
      snprintf(text, sizeof text, "%s", key->choices[0].value);
    if (!strcmp(key->name, "eval_strategy")) return "epoch";
    return text;
  case KEDGE_KIND_ROUTER:
    return "{intervention: rpb, prior: p}";
  default:
    return "some/where";
  }
}

/* Loads "<name>: <value>" with dots as nesting and returns the print. */
static char *print_of(const char *name, const char *value, const char *more) {
  char text[512];
  const char *dot = strchr(name, '.');
  if (dot)
    snprintf(text, sizeof text, "%s%.*s:\n  %s: %s\n", more, (int)(dot - name), name, dot + 1, value);
  else
    snprintf(text, sizeof text, "%s%s: %s\n", more, name, value);
  kedge_config config;
  test_config_load(&config, text);
  test_config_round_trip(&config);
  char *yaml = kedge_config_yaml(&config);
  kedge_config_destroy(&config);
  return yaml;
}

/* Every alias of every key does what the key does, which is not what the default does. */
static void test_aliases(void **state) {
  (void)state;
  size_t aliases = 0, keys = 0;
  for (size_t i = 0; i < kedge__config_key_count; i++) {
    const kedge_config_key *key = &kedge__config_keys[i];
    if (key->kind == KEDGE_KIND_GROUP || key->kind >= KEDGE_KIND_SPECIAL) continue;
    const char *more, *value = sample_of(key, &more);
    char *own = print_of(key->name, value, more),
         *plain = print_of("seed", "42", strncmp(more, "router", 6) ? "" : more);
    bool only_default = !strcmp(key->name, "optim") || !strcmp(key->name, "packing_strategy");
    if (!only_default && !strcmp(own, plain)) fail_msg("%s: %s changes nothing", key->name, value);
    keys++;
    for (const char *at = key->aliases; *at;) {
      char alias[64];
      size_t length = strcspn(at, ",");
      snprintf(alias, sizeof alias, "%.*s", (int)length, at);
      char *other = print_of(alias, value, more);
      if (strcmp(own, other)) fail_msg("%s is not %s", alias, key->name);
      kedge_free(other);
      aliases++;
      at += length + (at[length] == ',');
    }
    kedge_free(own);
    kedge_free(plain);
  }
  assert_true(keys > 45);
  assert_true(aliases > 40);
}

/* The table itself: a meaning for every key, no name twice, defaults inside their ranges (loading nothing
 * proves it). */
static void test_table(void **state) {
  (void)state;
  char all[16384] = ",";
  for (size_t i = 0; i < kedge__config_key_count; i++) {
    const kedge_config_key *key = &kedge__config_keys[i];
    if (key->kind == KEDGE_KIND_GROUP) continue;
    assert_true(strlen(key->doc) > 8);
    char names[512];
    snprintf(names, sizeof names, "%s%s%s", key->name, *key->aliases ? "," : "", key->aliases);
    for (char *name = strtok(names, ","); name; name = strtok(NULL, ",")) {
      char entry[80];
      snprintf(entry, sizeof entry, ",%s,", name);
      if (strstr(all, entry)) fail_msg("%s is there twice", name);
      strcat(strcat(all, name), ",");
    }
  }
  kedge_config config;
  test_config_load(&config, "");
  assert_true(config.learning_rate == 2e-5 && config.num_train_epochs == 3 && config.max_grad_norm == 1);
  assert_int_equal(config.per_device_train_batch_size, 8);
  assert_int_equal(config.max_length, 1024);
  assert_int_equal(config.lr_scheduler_type, KEDGE_CONFIG_SCHEDULE_LINEAR);
  assert_true(config.adam_beta2 == 0.999 && config.adam_epsilon == 1e-8 && config.shuffle_dataset);
  assert_int_equal(config.data_seed, 42);
  assert_int_equal(config.router.count, 0);
  test_config_round_trip(&config);
  kedge_config_destroy(&config);
  char *help = kedge_config_help();
  for (size_t i = 0; i < kedge__config_key_count; i++)
    if (!strstr(help, kedge__config_keys[i].name))
      fail_msg("help does not name %s", kedge__config_keys[i].name);
  for (int i = 0; i < (int)KEDGE_ROUTER_COUNT; i++)
    assert_non_null(strstr(help, kedge_router_doc((kedge_router_id)i)));
  assert_non_null(strstr(help, "for lbl"));
  kedge_free(help);
}

static void test_errors(void **state) {
  (void)state;
  test_config_refuse("a: 1\n", "run.yaml:1: key \"a\": unknown");
  test_config_refuse("seed: 1\n\nlerning_rate: 1e-5\n",
                     "run.yaml:3: key \"lerning_rate\": unknown; nearest is \"learning_rate\"");
  test_config_refuse("micro_batchsize: 1", "nearest is \"micro_batch_size\"");
  test_config_refuse("lr_scheduler_kwargs: {min_lrr: 1}", "nearest is \"lr_scheduler_kwargs.min_lr\"");
  test_config_refuse("lr_scheduler_kwargs: 3", "key \"lr_scheduler_kwargs\": expected a mapping");
  test_config_refuse("max_length: 3.5",
                     "run.yaml:1: key \"max_length\": expected a whole number, came \"3.5\"");
  test_config_refuse("max_length: 1e3", "expected a whole number");
  test_config_refuse("max_length: many", "expected a number, came \"many\"");
  test_config_refuse("max_length: 99999999999999999999", "key \"max_length\": ");
  test_config_refuse("max_length: 1", "1 is outside [2, 1048576]");
  test_config_refuse("max_length: [1]", "expected a whole number, came a list");
  test_config_refuse("max_length: {a: 1}", "expected a whole number, came a mapping");
  test_config_refuse("gradient_accumulation_steps: 0", "0 is outside [1, ");
  test_config_refuse("learning_rate: fast", "expected a number, came \"fast\"");
  test_config_refuse("learning_rate: .nan", "expected a finite number");
  test_config_refuse("learning_rate: NaN", "expected a finite number");
  test_config_refuse("learning_rate: .inf", "expected a finite number");
  test_config_refuse("learning_rate: -Infinity", "expected a finite number");
  test_config_refuse("learning_rate: 1e999", "too large");
  test_config_refuse("learning_rate: 0x10", "expected a number");
  test_config_refuse("learning_rate: -1e-5", "outside");
  test_config_refuse("adam_beta1: 1", "1 is outside [0, 1)");
  test_config_refuse("num_train_epochs: 0", "0 is outside (0, ");
  test_config_refuse("packing: maybe", "expected true or false, came \"maybe\"");
  test_config_refuse("packing: 2", "expected true or false");
  test_config_refuse("save_steps: 2.5", "whole number of updates");
  test_config_refuse("save_steps: -1", "outside");
  test_config_refuse("lr_scheduler_type: cosin", "nearest is \"cosine\"");
  test_config_refuse("report_to: tensorboard", "not one of jsonl, none (where metrics go: lines of JSON in "
                                               "output_dir/metrics.jsonl");
  test_config_refuse("report_to: [wandb, tensorboard]", "\"wandb\" is not one of jsonl, none (where");
  test_config_refuse("report_to: [jsonl, none]", "expected a word, came a list");
  test_config_refuse("optim: adamw_bnb_8bit", "not one of adamw");
  test_config_refuse("packing_strategy: wrapped", "\"wrapped\" is not one of bfd");
  test_config_refuse("global_batch: 3", "nearest is \"global_batch_size\"");
  test_config_refuse("max_seq_len: 3", "nearest is \"max_seq_length\"");
  test_config_refuse("batch_size: 3", "nearest is \"per_device_train_batch_size\"");
  test_config_refuse("whole_batch_size: 3", "key \"whole_batch_size\": unknown");
  if (strstr(kedge_message(), "nearest")) fail_msg("%s", kedge_message());
  test_config_refuse("dtype: fp16", "not one of auto, f32, bf16");
  test_config_refuse("output_dir: [a, b]", "expected a path, came a list");
  test_config_refuse("dataset: {type: alpaca}", "a data file has no path");
  test_config_refuse("dataset: [{path: a, typ: b}]", "\"typ\" is unknown");
  test_config_refuse("dataset: [{path: a, split: test}]", "split can only be train");
  test_config_refuse("dataset: [[a]]", "expected a path, came a list");
  test_config_refuse("load_in_4bit: true", "not supported: Kedge trains in f32 or bf16");
  test_config_refuse("- a\n", "run.yaml:1: expected keys with values, came a list");
  test_config_refuse("word", "expected keys with values, came a word");
  test_config_refuse("seed: 1\nseed: 2\n", "run.yaml:2: key \"seed\" is given twice, first in line 1");
  test_config_refuse("learning_rate: 1e-5\nlr: 1e-5\n",
                     "run.yaml:2: key \"lr\": given twice: \"learning_rate\" is the same key");
  test_config_refuse("a: [1", "run.yaml:");
  test_config_refuse("a: b: c", "run.yaml:1: no YAML: ");
  test_config_refuse("<<: {seed: 1}", "merge keys");
  test_config_refuse("seed: !secret 1", "tag \"!secret\" is not known");
  test_config_refuse("seed: 1\n---\nseed: 2\n", "a second document");
  test_config_refuse("output_dir: \"a\\0b\"", "zero byte");
  test_config_refuse("? [a]\n: 1", "a key must be a plain word");
  test_config_refuse("seed: *x", "names no anchor");
  test_config_refuse("dataset: &x [*x]", "an alias names the collection that it is in");
  kedge_config config;
  assert_int_equal(kedge_config_load(&config, "/nowhere/run.yaml", NULL, 0), KEDGE_ERR_IO);
  assert_non_null(strstr(kedge_message(), "/nowhere/run.yaml: "));
  assert_int_equal(kedge_config_load(&config, "/", NULL, 0), KEDGE_ERR_IO);
}

static void test_values(void **state) {
  (void)state;
  kedge_config config;
  test_config_load(
      &config, "learning_rate: \"1e-5\"\nmax_length: +77\npacking: YES\nsave_total_limit: ~\nmin_lr:\n"
               "output_dir: \"\\u00e9 \\\"x\\\" \\t\\x1f\"\nreport_to: [none]\nlr_scheduler_type: Cosine\n"
               "resume_from_checkpoint: True\nadam_epsilon: .5\nweight_decay: -0\ndtype: float32\n");
  assert_true(config.learning_rate == 1e-5 && config.max_length == 77 && config.packing);
  assert_string_equal(config.output_dir, "\xc3\xa9 \"x\" \t\x1f");
  assert_string_equal(config.resume_from_checkpoint, "true");
  assert_int_equal(config.report_to, KEDGE_CONFIG_REPORT_NONE);
  assert_int_equal(config.lr_scheduler_type, KEDGE_CONFIG_SCHEDULE_COSINE);
  assert_int_equal(config.dtype, KEDGE_CONFIG_DTYPE_F32);
  assert_true(config.adam_epsilon == 0.5 && !signbit(config.weight_decay));
  test_config_round_trip(&config);
  kedge_config_destroy(&config);
  test_config_load(&config, "resume_from_checkpoint: false\nmodel_name_or_path: null\n");
  assert_null(config.resume_from_checkpoint);
  assert_int_equal(kedge_config_require(&config, "model_name_or_path"), KEDGE_ERR_ARGUMENT);
  assert_non_null(strstr(kedge_message(), "key \"model_name_or_path\" is needed"));
  kedge_config_destroy(&config);
  test_config_load(&config, "# nothing but a comment\n");
  kedge_config_destroy(&config);
  test_config_load(
      &config,
      "output_dir: &dir runs/a\nmodel: *dir\ndataset: [*dir, {path: *dir}]\neval_dataset: x.jsonl\n");
  assert_string_equal(config.model_name_or_path, "runs/a");
  assert_int_equal(config.dataset.count, 2);
  assert_string_equal(config.dataset.items[1].path, "runs/a");
  assert_int_equal(kedge_config_require(&config, "model_name_or_path,dataset,output_dir"), KEDGE_OK);
  test_config_round_trip(&config);
  kedge_config_destroy(&config);
}

/* ---- What follows and what contradicts
 * ------------------------------------------------------------------------------- */

static void test_dialects(void **state) {
  (void)state;
  kedge_config config;
  test_config_load(
      &config,
      "base_model: b\ndatasets:\n  - path: a.jsonl\n    type: alpaca\n    ds_type: json\n  - c.jsonl\n"
      "sequence_len: 512\nmicro_batch_size: 2\nnum_epochs: 4\nlr_scheduler: cosine\ncosine_min_lr_ratio: "
      "0.1\n"
      "train_on_inputs: true\nbf16: auto\nfp16: false\nuse_tensorboard: false\nsample_packing: true\n"
      "val_set_size: 0.05\nsaves_per_epoch: 2\nmodel_config: {router_aux_loss_coef: 0.001}\nstrict: false\n");
  assert_string_equal(config.dataset.items[0].type, "alpaca");
  assert_null(config.dataset.items[1].type);
  assert_int_equal(config.completion_only_loss, KEDGE_CONFIG_CHOICE_FALSE);
  assert_int_equal(config.eval_strategy, KEDGE_CONFIG_STRATEGY_EPOCH);
  assert_true(fabs(config.min_learning_rate - 2e-6) < 1e-20);
  assert_true(config.save_steps == 0 && config.saves_per_epoch == 2);
  assert_int_equal(config.router.count, 1);
  assert_int_equal(config.notes.count, 1);
  test_config_round_trip(&config);
  kedge_config_destroy(&config);
  test_config_load(
      &config,
      "datasets: [{path: a, type: chat_template}, {path: b, type: completion}, {path: c, type: auto}]");
  assert_string_equal(config.dataset.items[0].type, "messages");
  assert_string_equal(config.dataset.items[1].type, "text");
  assert_null(config.dataset.items[2].type);
  kedge_config_destroy(&config);
  test_config_load(&config, "bf16: true");
  assert_int_equal(config.dtype, KEDGE_CONFIG_DTYPE_BF16);
  kedge_config_destroy(&config);
  test_config_load(&config,
                   "bf16: false\nfp32: true\nauto_resume_from_checkpoints: true\ntrain_on_inputs: false\n");
  assert_int_equal(config.dtype, KEDGE_CONFIG_DTYPE_F32);
  assert_int_equal(config.completion_only_loss, KEDGE_CONFIG_CHOICE_TRUE);
  assert_string_equal(config.resume_from_checkpoint, "true");
  kedge_config_destroy(&config);
  test_config_refuse("fp16: true", "not supported: Kedge trains in f32 or bf16");
  test_config_refuse("use_tensorboard: true", "metrics.jsonl");
  test_config_refuse("bf16: full", "expected true, auto or false");
  test_config_refuse("train_on_inputs: true\ncompletion_only_loss: true\n",
                     "run.yaml:2: key \"completion_only_loss\": given twice");
  test_config_refuse("bf16: true\ndtype: f32\n", "given twice");
}

static void test_contradictions(void **state) {
  (void)state;
  kedge_config config;
  test_config_load(&config, "warmup_ratio: 0.1\nwarmup_steps: 40\n");
  assert_true(config.warmup_steps == 40 && config.warmup_ratio == 0);
  assert_int_equal(config.notes.count, 1);
  assert_non_null(strstr(config.notes.items[0], "warmup_ratio is not used"));
  test_config_round_trip(&config);
  kedge_config_destroy(&config);
  test_config_load(&config, "eval_dataset: e\neval_steps: 50\n");
  assert_int_equal(config.eval_strategy, KEDGE_CONFIG_STRATEGY_STEPS);
  test_config_round_trip(&config);
  kedge_config_destroy(&config);
  test_config_load(&config, "eval_dataset: e\neval_strategy: steps\nlogging_steps: 7\nmax_steps: 0\n");
  assert_true(config.eval_steps == 7 && config.max_steps == -1);
  assert_true(has_line(&config, "\neval_steps: 7\n"));
  test_config_round_trip(&config);
  kedge_config_destroy(&config);
  test_config_refuse("seed: 1\nlr_scheduler_type: cosine_with_min_lr\n",
                     "run.yaml:2: key \"lr_scheduler_type\": ");
  test_config_refuse("lr_scheduler: cosine\nmin_lr: 1e-6\nmin_lr_ratio: 0.1\n", "one of them is enough");
  test_config_refuse("min_lr: 1e-6", "only a cosine");
  test_config_refuse("min_lr_ratio: 0.5", "key \"min_lr_ratio\": only a cosine");
  test_config_refuse("lr_scheduler: cosine\nmin_lr: 1", "over learning_rate");
  test_config_refuse("warmup_steps: 1.5", "expected whole updates");
  test_config_refuse("eval_strategy: steps", "no evaluation data");
  test_config_refuse("eval_dataset: a\neval_split: 0.1", "one of them is enough");
  test_config_refuse("eval_split: 1.5", "expected a number of samples");
  test_config_refuse("eval_split: 9\neval_strategy: steps\neval_steps: 0", "over 0");
  test_config_refuse("saves_per_epoch: 2\nsave_steps: 10", "one of them is enough");
  test_config_refuse("saves_per_epoch: 2\nsave_strategy: epoch", "works with save_strategy steps");
  test_config_refuse("evals_per_epoch: 2\neval_steps: 10\neval_split: 0.1", "one of them is enough");
  test_config_refuse("evals_per_epoch: 2", "evaluation data");
  test_config_refuse("assistant_only_loss: true\ntrain_on_inputs: true", "loss cannot be on all tokens");
}

/* ---- Router
 * -------------------------------------------------------------------------------------------------------------
 */

static void test_router_forms(void **state) {
  (void)state;
  kedge_config config;
  test_config_load(&config, "router: rpb\n");
  assert_int_equal(config.router.count, 1);
  assert_int_equal(config.router.items[0].intervention, KEDGE_CONFIG_ROUTER_RPB);
  assert_true(config.router.items[0].beta == 1 && config.router.items[0].eps == 0.05 &&
              config.router.items[0].clip == 5);
  kedge_config_destroy(&config);
  test_config_load(
      &config,
      "router:\n  - intervention: rpb\n    beta: 0.5\n    prior: p.prior\n    eps: 0.1\n    clip: 4\n"
      "    gate_source: raw\n    shuffle: within\n    shuffle_seed: 2\n    layers: [7, 0-2]\n    span: "
      "sample\n"
      "  - {intervention: kl, mask: completion, prior: q}\n");
  const kedge_config_router *rpb = &config.router.items[0], *kl = &config.router.items[1];
  assert_true(rpb->beta == 0.5 && rpb->eps == 0.1 && rpb->clip == 4 && rpb->shuffle_seed == 2);
  assert_int_equal(rpb->gate_source, KEDGE_CONFIG_GATE_RAW);
  assert_int_equal(rpb->shuffle, KEDGE_CONFIG_SHUFFLE_WITHIN);
  assert_int_equal(rpb->span, KEDGE_CONFIG_SPAN_SAMPLE);
  assert_int_equal(rpb->layers.count, 4);
  assert_memory_equal(rpb->layers.items, ((const uint32_t[]){0, 1, 2, 7}), 16);
  assert_true(kl->coef == 0.1);
  assert_int_equal(kl->mask, KEDGE_CONFIG_MASK_COMPLETION);
  assert_string_equal(kedge_config_value_name("router.mask", kl->mask), "completion");
  test_config_round_trip(&config);
  kedge_config_destroy(&config);
  static const char *const nothing[] = {
      "router: none",   "router: {intervention: none, beta: 2}", "router: []", "router:", "router: {}",
      "router: [none]", "router: {intervention: lbl, coef: 0}"};
  for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++) {
    test_config_load(&config, nothing[i]);
    assert_int_equal(config.router.count, 0);
    test_config_round_trip(&config);
    kedge_config_destroy(&config);
  }
  test_config_load(&config, "router: {intervention: rpb, coef: 3}");
  assert_int_equal(config.notes.count, 1);
  assert_string_equal(config.notes.items[0], "router: rpb does not use coef");
  kedge_config_destroy(&config);
}

static void test_router_errors(void **state) {
  (void)state;
  test_config_refuse("router:\n  intervention: rpb\n  betta: 1\n",
                     "run.yaml:3: key \"router[0].betta\": unknown; nearest is \"beta\"");
  test_config_refuse("router: {intervention: rbp}", "nearest is \"rpb\"");
  test_config_refuse("router: [[rpb]]", "expected a mapping, came a list");
  test_config_refuse("router: {beta: -1}", "key \"router[0].beta\": -1 is outside");
  test_config_refuse("router: {beta: .nan}", "finite");
  test_config_refuse("router: {eps: 0}", "outside (0, 1]");
  test_config_refuse("router: {layers: []}", "empty list");
  test_config_refuse("router: {layers: 3-1}", "no layers");
  test_config_refuse("router: {layers: 0-99999999}", "no layers");
  test_config_refuse("router: {layers: 99999999999999999999}", "no layers");
  test_config_refuse("router: {layers: [1, 1]}", "layer 1 is named twice");
  test_config_refuse("router: {layers: a}", "expected layers as");
  test_config_refuse("router: {layers: \"1,\"}", "expected layers as");
  test_config_refuse("router: {layers: -1}", "expected layers as");
  test_config_refuse("router: {layers: [all]}", "layer numbers");
  test_config_refuse("router: [rpb, rpb_hard]", "only one can choose the experts");
  test_config_refuse("router: [lbl, lbl]", "the same twice");
  test_config_refuse("router: [freeze, kl]", "the gradient of the added loss would go nowhere");
  test_config_refuse("freeze_moe_router: true\nrouter_aux_loss_coef: 0.1", "would go nowhere");
  test_config_refuse("router: [freeze, loss_free]", "does not move");
  test_config_refuse("freeze_moe_router: false\nrouter: freeze", "contradicts");
  test_config_refuse("seed: 1\nrouter_aux_loss_coef: 0.1\nrouter: {intervention: lbl, coef: 0.2}",
                     "run.yaml:2: key \"router_aux_loss_coef\": 0.1 contradicts");
  test_config_refuse("router: [a,b,c,d,e]", "not one of none, lbl");
  test_config_refuse(
      "router: [none,none,none,none,none,none,none,none,none,none,none,none,none,none,none,none,none]",
      "more than 16");
}

/* The coefficient keys of other tools and the interventions are one thing, printed as what is in effect. */
static void test_coefficients(void **state) {
  (void)state;
  kedge_config config;
  test_config_load(&config, "");
  assert_true(has_line(&config, "\nrouter_aux_loss_coef: 0\n"));
  assert_true(has_line(&config, "\neval_steps: null\n"));
  kedge_config_destroy(&config);
  static const char *const same[] = {"router_aux_loss_coef: 0.02", "moe_aux_loss_coeff: 0.02",
                                     "router: {intervention: lbl, coef: 0.02}",
                                     "router: lbl\nrouter_aux_loss_coef: 0.02",
                                     "router: {intervention: lbl, coef: 0.02}\nrouter_aux_loss_coef: 2e-2"};
  for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
    test_config_load(&config, same[i]);
    assert_int_equal(config.router.count, 1);
    assert_int_equal(config.router.items[0].intervention, KEDGE_CONFIG_ROUTER_LBL);
    assert_true(config.router.items[0].coef == 0.02 && config.router_aux_loss_coef == 0.02);
    assert_true(has_line(&config, "\nrouter_aux_loss_coef: 0.02\n"));
    test_config_round_trip(&config);
    kedge_config_destroy(&config);
  }
  test_config_load(&config, "router: [lbl, z_loss]");
  assert_true(config.router_aux_loss_coef == 1e-3 && config.router_z_loss_coef == 1e-3);
  kedge_config_destroy(&config);
  test_config_load(&config, "freeze_moe_router: true");
  assert_int_equal(config.router.items[0].intervention, KEDGE_CONFIG_ROUTER_FREEZE);
  test_config_round_trip(&config);
  kedge_config_destroy(&config);
  test_config_load(&config, "router: freeze");
  assert_true(config.freeze_moe_router);
  kedge_config_destroy(&config);
}

/* ---- Overrides
 * ----------------------------------------------------------------------------------------------------------
 */

static void test_overrides(void **state) {
  (void)state;
  kedge_config config;
  static const char *const some[] = {"lr=1e-4",
                                     "output_dir=a=b: #c",
                                     "dataset=[x, {path: y, type: t}]",
                                     "max_steps=",
                                     "router.beta=0.25",
                                     "router[0].layers=0-1",
                                     "router[1].intervention=lbl",
                                     "router[1].coef=0.5",
                                     "lr_scheduler_kwargs.min_lr=1e-6",
                                     "lr_scheduler=cosine"};
  test_config_load_with(
      &config, "learning_rate: 1\nmax_steps: 9\nrouter: {intervention: rpb, beta: 3, prior: p}\n", some, 10);
  assert_true(config.learning_rate == 1e-4 && config.max_steps == -1 && config.min_learning_rate == 1e-6);
  assert_string_equal(config.output_dir, "a=b: #c");
  assert_string_equal(config.dataset.items[1].type, "t");
  assert_int_equal(config.router.count, 2);
  assert_true(config.router.items[0].beta == 0.25 && config.router.items[1].coef == 0.5);
  assert_string_equal(config.router.items[0].prior, "p");
  assert_int_equal(config.router.items[0].layers.count, 2);
  test_config_round_trip(&config);
  kedge_config_destroy(&config);
  static const char *const fresh[] = {"router.intervention=rpb", "router.prior=q"};
  test_config_load_with(&config, "", fresh, 2);
  assert_string_equal(config.router.items[0].prior, "q");
  kedge_config_destroy(&config);
  static const char *const off[] = {"router=none", "router_aux_loss_coef=0"};
  test_config_load_with(&config, "router: [rpb, kl]\nrouter_aux_loss_coef: 1\n", off, 2);
  assert_int_equal(config.router.count, 0);
  kedge_config_destroy(&config);
  test_config_refuse_override("", "lr", "override \"lr\": expected key=value");
  test_config_refuse_override("", "=1", "expected key=value");
  test_config_refuse_override("", "lerning_rate=1",
                              "override \"lerning_rate=1\": key \"lerning_rate\": unknown; nearest is");
  test_config_refuse_override("", "dataset=[a", "override \"dataset=[a\": value:");
  test_config_refuse_override("", "output_dir=\xff", "not UTF-8");
  test_config_refuse_override("", "router[1].beta=1", "there are 0 router entries");
  test_config_refuse_override("", "router[x].beta=1", "expected router[NUMBER].KEY");
  test_config_refuse_override("", "router[0]beta=1", "expected router[NUMBER].KEY");
  test_config_refuse_override("", "router[99999999999999999999].beta=1", "there are 0 router entries");
  test_config_refuse_override("", "router.=1", "unknown");
  test_config_refuse_override("router: [rpb, kl]", "router.beta=1", "write router[0].beta");
  test_config_refuse_override("", "max_length=3.5", "expected a whole number");
  static const char *const twice[] = {"lr=1", "learning_rate=1"}, *const field[] = {"router.beta=1",
                                                                                    "router.beta=2"};
  test_config_message("twice", kedge_config_parse(&config, "f", "", 0, twice, 2), "given twice");
  test_config_message("twice", kedge_config_parse(&config, "f", "", 0, field, 2), "given twice");
}

/* Strings that look like something else come back as they were. */
static void test_strings(void **state) {
  (void)state;
  static const char *const odd[] = {"null",
                                    "~",
                                    "true",
                                    "no",
                                    "1e5",
                                    "0x1",
                                    "-",
                                    "- a",
                                    "a: b",
                                    "#x",
                                    "a #b",
                                    "'",
                                    "\"",
                                    "{",
                                    "[x",
                                    "*a",
                                    "&a",
                                    "!a",
                                    "%a",
                                    "@a",
                                    "`a",
                                    " a ",
                                    "a\nb",
                                    "\\n",
                                    "\xe2\x80\xa8",
                                    "\xef\xbb\xbf",
                                    "\xc2\x85",
                                    "\xf0\x9f\x9a\xa2",
                                    "\xef\xbf\xbf",
                                    "\x7f"};
  for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
    kedge_config config, again;
    test_config_load(&config, "output_dir: x\nprompt_template: y\ndataset: [{path: z, type: t}]\n");
    char **fields[] = {&config.output_dir, &config.prompt_template, &config.dataset.items[0].path,
                       &config.dataset.items[0].type};
    for (size_t j = 0; j < 4; j++) {
      kedge_free(*fields[j]);
      *fields[j] = kedge_strdup(odd[i]);
    }
    char *yaml = kedge_config_yaml(&config);
    test_config_load(&again, yaml);
    if (!again.output_dir || !again.dataset.items[0].path) fail_msg("%s is lost in\n%s", odd[i], yaml);
    assert_string_equal(again.output_dir, odd[i]);
    assert_string_equal(again.prompt_template, odd[i]);
    assert_string_equal(again.dataset.items[0].path, odd[i]);
    assert_string_equal(again.dataset.items[0].type, odd[i]);
    test_config_round_trip(&config);
    kedge_free(yaml);
    kedge_config_destroy(&config);
    kedge_config_destroy(&again);
  }
}

static void test_file(void **state) {
  (void)state;
  const char *path = test_path(test_folder(), "run.yaml");
  static const char text[] = "# a run\r\nseed: 7\r\noutput_dir: ./x\r\n";
  test_write(path, text, sizeof text - 1);
  kedge_config config;
  assert_int_equal(kedge_config_load(&config, path, NULL, 0), KEDGE_OK);
  assert_int_equal(config.seed, 7);
  assert_string_equal(config.output_dir, "./x");
  kedge_config_destroy(&config);
  size_t size = KEDGE_YAML_MAX_BYTES + 1;
  char *big = malloc(size);
  memset(big, '#', size);
  test_write(path, big, size);
  assert_int_not_equal(kedge_config_load(&config, path, NULL, 0), KEDGE_OK);
  assert_non_null(strstr(kedge_message(), "at most 1048576"));
  free(big);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_table),        cmocka_unit_test(test_aliases),
      cmocka_unit_test(test_errors),       cmocka_unit_test(test_values),
      cmocka_unit_test(test_dialects),     cmocka_unit_test(test_contradictions),
      cmocka_unit_test(test_router_forms), cmocka_unit_test(test_router_errors),
      cmocka_unit_test(test_coefficients), cmocka_unit_test(test_overrides),
      cmocka_unit_test(test_file),         cmocka_unit_test(test_strings),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
