/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * A frozen router keeps its bits through a hundred updates with weight decay, counts in no norm and is named
 * in the log tensor by tensor; everything whose name is like its own still trains. */
#include "models/checkpoint/checkpoint.h"
#include "tests/support/files.h"
#include "tests/support/runs.h"
#include "tests/support/training.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { UPDATES = 100 };

/* A shared expert with a gate of its own: mlp.gate, mlp.shared_expert_gate, mlp.experts.0.gate_proj. */
static const char gated_json[] =
    "{\"model_type\": \"qwen2_moe\", \"vocab_size\": 512, \"hidden_size\": 32, \"num_attention_heads\": 4, "
    "\"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"initializer_range\": 0.2, "
    "\"max_position_embeddings\": 512, \"bos_token_id\": 0, \"eos_token_id\": 0, \"torch_dtype\": "
    "\"bfloat16\", \"num_hidden_layers\": 2, \"num_key_value_heads\": 2, \"intermediate_size\": 48, "
    "\"moe_intermediate_size\": 12, \"shared_expert_intermediate_size\": 20, \"num_experts\": 8, "
    "\"num_experts_per_tok\": 2, \"norm_topk_prob\": false, \"tie_word_embeddings\": false}";

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static int prepare(void **state) {
  (void)state;
  runs_prepare(12);
  test_write_text("gated.json", gated_json);
  training_expect(0, "", "init --config gated.json --tokenizer '%s' --out gated --seed 3",
                  test_golden("tokenizer/tiny"));
  return 0;
}

static bool is_router(const kedge_param *p) {
  return p->role == KEDGE_ROLE_ROUTER || p->role == KEDGE_ROLE_ROUTER_CORRECTION;
}

/* A parameter's bytes on the device, to be freed by free(). */
static void *bytes_of(const runs_session *s, uint32_t item, uint64_t *bytes) {
  const kedge_buffer *buffer = s->setup.model->weights[item];
  *bytes = kedge_buffer_size(buffer);
  void *data = malloc(*bytes);
  ok(kedge_buffer_read(buffer, 0, data, *bytes));
  return data;
}

/* The norm over the accumulators of everything that trains. */
static double norm_by_hand(const runs_session *s) {
  uint64_t count;
  double sum = 0;
  float *gradients = runs_read(s, RUNS_GRADIENT, false, &count);
  for (uint64_t i = 0; i < count; i++) sum += (double)gradients[i] * (double)gradients[i];
  free(gradients);
  return sqrt(sum);
}

/* Whether layer l of a session is frozen: all are but where `only` names one. */
static bool frozen(const kedge_param *p, int only) {
  return is_router(p) && (only < 0 || p->layer == (uint32_t)only);
}

static void hundred_updates(const char *base, const char *how, int only) {
  static const runs_condition freeze = {"freeze", "router.intervention=freeze", false};
  runs_session s;
  runs_open(&s, base, &freeze,
            "max_steps=%d per_device_train_batch_size=1 gradient_accumulation_steps=1 max_length=64 %s",
            UPDATES, how);
  assert_true(s.config.weight_decay == 0.1);
  const kedge_params *p = &s.setup.model->params;
  void **before = calloc(p->count, sizeof *before);
  uint64_t bytes, routers = 0, checked = 0;
  for (uint32_t i = 0; i < p->count; i++) before[i] = bytes_of(&s, i, &bytes);
  for (int i = 0; i < UPDATES; i++) {
    kedge_step_result step;
    assert_true(runs_update(&s, 1e-3, &step));
    const double want = norm_by_hand(&s);
    if (only < 0) assert_true(step.norms.router == 0);
    assert_true(fabs(step.norms.all - want) <= 1e-5 * want);
  }
  for (uint32_t i = 0; i < p->count; i++) {
    char name[KEDGE_NAME_SIZE];
    void *after = bytes_of(&s, i, &bytes);
    const bool same = !memcmp(before[i], after, bytes), kept = frozen(&p->items[i], only);
    kedge_param_name(&p->items[i], 0, name);
    if (kept && !same) fail_msg("%s: %s moved", base, name);
    if (kept && s.stepper.optimizer.grad[i]) fail_msg("%s: %s has a gradient", base, name);
    if (!kept && !p->items[i].fixed && same) fail_msg("%s: %s stood still", base, name);
    routers += kept;
    checked += !kept && !p->items[i].fixed;
    free(before[i]), free(after);
  }
  assert_true(routers > 0 && checked > routers);
  free(before);
  runs_close(&s);
}

static void test_cases_35_36_37_hundred_updates(void **state) {
  (void)state;
  hundred_updates("base", "", -1);
  hundred_updates("gated", "", -1);
  hundred_updates("sigmoid", "", -1);
  hundred_updates("gated", "router.layers=[1]", 1);
  hundred_updates("sigmoid", "router.layers=[2] dtype=bf16", 2);
}

/* In files too, by name. */
static void same_tensors(const char *base, const char *out, const char *only) {
  kedge_checkpoint *a, *b;
  ok(kedge_checkpoint_open(base, &a));
  ok(kedge_checkpoint_open(out, &b));
  for (uint32_t i = 0; i < kedge_checkpoint_count(a); i++) {
    const kedge_st_tensor *x = kedge_checkpoint_by_name(a, i), *y = kedge_checkpoint_by_name(b, i);
    assert_string_equal(x->name, y->name);
    assert_int_equal(x->bytes, y->bytes);
    const bool router = strstr(x->name, ".mlp.gate.") && (!only || strstr(x->name, only));
    const bool fixed = strstr(x->name, "e_score_correction_bias") != NULL;
    const bool same = x->dtype == y->dtype && !memcmp(x->data, y->data, x->bytes);
    if (router != same && !fixed) fail_msg("%s: %s %s", out, x->name, same ? "stood still" : "moved");
    if (fixed) assert_true(same);
  }
  kedge_checkpoint_close(a);
  kedge_checkpoint_close(b);
}

static void test_case_37_names(void **state) {
  (void)state;
  static const char run[] = "train run.yaml max_steps=30 learning_rate=1e-3 per_device_train_batch_size=2 "
                            "gradient_accumulation_steps=1 save_strategy=no";
  training_expect(0,
                  "router: freeze keeps the bits of model.layers.0.mlp.gate.weight, "
                  "model.layers.1.mlp.gate.weight\n",
                  "%s model_name_or_path=gated output_dir=f1 router.intervention=freeze", run);
  same_tensors("gated", "f1", NULL);
  training_expect(0, "router: freeze keeps the bits of model.layers.1.mlp.gate.weight\n",
                  "%s model_name_or_path=gated output_dir=f2 router.intervention=freeze router.layers=[1]",
                  run);
  same_tensors("gated", "f2", "layers.1.");
  training_expect(0,
                  "router: freeze keeps the bits of model.layers.1.mlp.gate.weight, "
                  "model.layers.1.mlp.gate.e_score_correction_bias, model.layers.2.mlp.gate.weight, "
                  "model.layers.2.mlp.gate.e_score_correction_bias\n",
                  "%s model_name_or_path=sigmoid output_dir=f3 freeze_moe_router=true", run);
  same_tensors("sigmoid", "f3", NULL);
  training_expect(2, "layer 0 is not an MoE layer",
                  "%s model_name_or_path=sigmoid output_dir=f4 router.intervention=freeze router.layers=[0]",
                  run);
}

/* Of many tensors the first and the last are told. */
static void test_many_names(void **state) {
  (void)state;
  char deep[sizeof gated_json];
  memcpy(deep, gated_json, sizeof deep);
  *(strstr(deep, "_layers\": 2") + strlen("_layers\": ")) = '9';
  test_write_text("deep.json", deep);
  training_expect(0, "", "init --config deep.json --tokenizer '%s' --out deep --seed 3",
                  test_golden("tokenizer/tiny"));
  training_expect(0,
                  "router: freeze keeps the bits of 9 tensors: model.layers.0.mlp.gate.weight to "
                  "model.layers.8.mlp.gate.weight\n",
                  "train run.yaml model_name_or_path=deep output_dir=deep-out router.intervention=freeze "
                  "--dry-run");
}

/* Plain training gives the router a gradient in every update, and moves it. */
static void test_case_39_gradient(void **state) {
  (void)state;
  static const char *const bases[] = {"base", "gated", "sigmoid"};
  for (int b = 0; b < 3; b++) {
    training_expect(0, "no intervention",
                    "train run.yaml model_name_or_path=%s output_dir=plain-%s max_steps=3 save_strategy=no",
                    bases[b], bases[b]);
    training_expect(0, "",
                    "train run.yaml model_name_or_path=%s output_dir=frozen-%s max_steps=3 save_strategy=no "
                    "freeze_moe_router=true",
                    bases[b], bases[b]);
    for (unsigned step = 1; step <= 3; step++) {
      char run[64];
      snprintf(run, sizeof run, "plain-%s", bases[b]);
      assert_true(training_metric(run, step, "router/grad_norm") > 0);
      assert_true(training_metric(run, step, "router/grad_share") > 0);
      snprintf(run, sizeof run, "frozen-%s", bases[b]);
      assert_true(training_metric(run, step, "router/grad_norm") == 0);
      assert_true(training_metric(run, step, "router/grad_share") == 0);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_cases_35_36_37_hundred_updates),
      cmocka_unit_test(test_case_37_names),
      cmocka_unit_test(test_many_names),
      cmocka_unit_test(test_case_39_gradient),
  };
  return cmocka_run_group_tests_name("runs: freeze", tests, prepare, NULL);
}
