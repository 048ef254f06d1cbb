/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * What anchors must not do: a bias of strength 0 is plain training to the bit; no intervention reaches the
 * evaluation or the saved weights; replay from a trace is replay from the base; a distance to the base begins
 * at 0. What may stand together does, the rest is refused with the reason. */
#include "models/checkpoint/safetensors.h"
#include "models/trace/trace.h"
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

enum { STEPS = 3 };
static const char *const bases[] = {"base", "sigmoid"};

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static int prepare(void **state) {
  (void)state;
  runs_prepare(24);
  test_write_text(
      "eval.jsonl",
      "{\"prompt\": \"Eve has 5 pears and eats 2 of them. How many are left?\", \"completion\": "
      "\" 5 - 2 = 3\"}\n{\"prompt\": \"Four and four?\", \"completion\": \" 4 + 4 = 8, so eight\"}\n");
  return 0;
}

/* ---- Strength 0
 * ---------------------------------------------------------------------------------------------------- */

static void test_beta_zero(void **state) {
  (void)state;
  for (int b = 0; b < 2; b++) {
    char none[64], zero[64], one[64];
    snprintf(none, sizeof none, "none-%s", bases[b]);
    snprintf(zero, sizeof zero, "zero-%s", bases[b]);
    snprintf(one, sizeof one, "one-%s", bases[b]);
    char run[256];
    snprintf(run, sizeof run,
             "train run.yaml model_name_or_path=%s max_steps=%d eval_dataset=eval.jsonl eval_strategy=steps "
             "eval_steps=1",
             bases[b], STEPS);
    training_expect(0, "", "%s output_dir=%s", run, none);
    training_expect(0, "rpb with beta 0",
                    "%s output_dir=%s router.intervention=rpb router.beta=0 router.prior=%s.prior", run, zero,
                    bases[b]);
    training_same_run(zero, none, STEPS); /* weights, optimizer, losses, metrics */
    training_expect(0, "", "%s output_dir=%s router.intervention=rpb router.prior=%s.prior", run, one,
                    bases[b]);
    assert_true(training_metric(one, 1, "train/loss") != training_metric(none, 1, "train/loss"));
  }
}

/* ---- Evaluation and saved weights
 * ---------------------------------------------------------------------------------- */

/* Mean of -logprob over the tokens that `kedge score` counts. */
static double scored(const char *model) {
  kedge_st_file *file;
  double sum = 0;
  uint64_t counted = 0;
  training_expect(0, "", "score --model %s --data eval.jsonl --max-length 160 --out scores.st", model);
  ok(kedge_st_open("scores.st", &file));
  const kedge_st_tensor *logprobs = kedge_st_find(file, "logprobs"), *mask = kedge_st_find(file, "mask");
  assert_true(logprobs && mask && logprobs->dtype == KEDGE_ST_F32 && mask->bytes * 4 == logprobs->bytes);
  for (uint64_t i = 0; i < mask->bytes; i++) {
    float value;
    memcpy(&value, logprobs->data + 4 * i, sizeof value);
    if (!mask->data[i]) continue;
    sum -= (double)value;
    counted++;
  }
  kedge_st_close(file);
  assert_true(counted > 10);
  return sum / (double)counted;
}

/* The evaluation of a run under an intervention is the score of the model that it exports. */
static void test_evaluation_is_without_bias(void **state) {
  (void)state;
  static const char *const ways[] = {"rpb", "rpb_hard"};
  for (int b = 0; b < 2; b++)
    for (int w = 0; w < 2; w++) {
      char out[64];
      snprintf(out, sizeof out, "eval-%s-%s", ways[w], bases[b]);
      training_expect(
          0, "",
          "train run.yaml model_name_or_path=%s output_dir=%s max_steps=%d eval_dataset=eval.jsonl "
          "completion_only_loss=false router.intervention=%s router.prior=%s.prior "
          "save_strategy=no",
          bases[b], out, STEPS, ways[w], bases[b]);
      const double eval = training_metric(out, STEPS, "eval/loss"), score = scored(out);
      if (!(fabs(eval - score) <= 2e-6 * score)) fail_msg("%s: eval/loss %.9g, score %.9g", out, eval, score);
      /* the same samples in training, under the intervention, have another loss */
      training_expect(0, "", "prior --model %s --data eval.jsonl --max-length 160 --out eval.prior", out);
      training_expect(0, "",
                      "train run.yaml model_name_or_path=%s dataset=eval.jsonl output_dir=%s-again "
                      "max_steps=1 completion_only_loss=false per_device_train_batch_size=2 "
                      "gradient_accumulation_steps=1 router.intervention=%s router.prior=eval.prior "
                      "save_strategy=no",
                      out, out, ways[w]);
      char again[80];
      snprintf(again, sizeof again, "%s-again", out);
      assert_true(fabs(training_metric(again, 1, "train/loss") - score) > 1e-4 * score);
    }
}

/* Without a learning rate every intervention saves the base: weights and headers, bit for bit. */
static void test_saved_weights_are_the_models(void **state) {
  (void)state;
  for (int b = 0; b < 2; b++)
    for (const runs_condition *c = runs_conditions; c->name; c++) {
      runs_session s;
      kedge_step_result step;
      if (c->sigmoid) continue; /* moves the selection bias */
      runs_open(&s, bases[b], c, "max_steps=2 per_device_train_batch_size=2 gradient_accumulation_steps=1");
      while (runs_update(&s, 0, &step)) continue;
      test_remove("still");
      test_make_folder("still");
      ok(kedge_model_save(s.setup.model, s.stepper.optimizer.master, "still", NULL));
      if (!test_same_file("still/model.safetensors", test_path(bases[b], "model.safetensors")))
        fail_msg("%s, %s: the saved weights are not the base's", bases[b], c->name);
      runs_close(&s);
    }
}

/* ---- Distance to the base
 * ------------------------------------------------------------------------------------------ */

/* KL to the base's own distribution of each token: 0 while nothing has moved, then above. */
static void test_kl_token_begins_at_zero(void **state) {
  (void)state;
  static const char *const dtypes[] = {"f32", "bf16"};
  for (int b = 0; b < 2; b++)
    for (int d = 0; d < 2; d++) {
      char out[64];
      snprintf(out, sizeof out, "kl-%s-%s", bases[b], dtypes[d]);
      training_expect(0, "",
                      "train run.yaml model_name_or_path=%s output_dir=%s dtype=%s max_steps=4 "
                      "warmup_steps=0 router.intervention=kl_token save_strategy=no",
                      bases[b], out, dtypes[d]);
      double before = 0;
      for (unsigned step = 1; step <= 4; step++) {
        const double kl = training_metric(out, step, "router/kl_token");
        print_message("%s, %s, update %u: %.3g\n", bases[b], dtypes[d], step, kl);
        if (step == 1) assert_true(fabs(kl) < 1e-7); /* logarithms of one softmax round twice */
        if (step > 1) assert_true(kl > before + 1e-6);
        before = fabs(kl);
      }
    }
}

/* ---- Replay
 * -------------------------------------------------------------------------------------------------------- */

static void test_replay_from_trace(void **state) {
  (void)state;
  for (int b = 0; b < 2; b++) {
    static const char *const ways[] = {"", "packing=true", "eval_split=6", "gradient_checkpointing=true"};
    training_expect(0, "", "trace --model %s --data train.jsonl --max-length 160 --out %s.trace", bases[b],
                    bases[b]);
    for (int w = 0; w < 4; w++) {
      char run[256], x[64], y[64], z[64];
      snprintf(run, sizeof run, "train run.yaml model_name_or_path=%s max_steps=%d %s", bases[b], STEPS,
               ways[w]);
      snprintf(x, sizeof x, "replay-%s-%d", bases[b], w);
      snprintf(y, sizeof y, "traced-%s-%d", bases[b], w);
      snprintf(z, sizeof z, "sft-%s-%d", bases[b], w);
      training_expect(0, "replay of the base's own choices", "%s output_dir=%s router.intervention=replay",
                      run, x);
      training_expect(0, "replay of the trace",
                      "%s output_dir=%s router.intervention=replay router.trace=%s.trace", run, y, bases[b]);
      training_same_run(y, x, STEPS);
      training_expect(0, "", "%s output_dir=%s", run, z);
      assert_true(training_metric(x, 1, "train/loss") == training_metric(z, 1, "train/loss"));
      assert_true(training_metric(x, STEPS, "train/loss") != training_metric(z, STEPS, "train/loss"));
    }
  }
}

/* The choices in use are the base's for every token, whatever the router has become. */
static void test_replay_forces_the_choice(void **state) {
  (void)state;
  static const runs_condition replay = {"replay", "router.intervention=replay", false};
  runs_session s;
  kedge_step_result step;
  kedge_trace base;
  uint64_t loads[2 * 8] = {0};
  runs_open(&s, "base", &replay, "max_steps=1 per_device_train_batch_size=24 gradient_accumulation_steps=1");
  ok(kedge_trace_collect(s.setup.model, s.setup.data, NULL, &base));
  for (uint32_t t = 0; t < base.tokens; t++)
    for (int l = 0; l < 2; l++)
      for (int k = 0; k < 2; k++) loads[8 * l + base.ids[(2 * t + (uint32_t)l) * 2 + (uint32_t)k]]++;
  runs_perturb(&s);
  assert_true(runs_update(&s, 0, &step));
  assert_memory_equal(s.stepper.loads, loads, sizeof loads);
  kedge_trace_destroy(&base);
  runs_close(&s);
}

static void refuse_trace(const char *file, const char *why) {
  training_expect(2, why,
                  "train run.yaml output_dir=refused max_steps=1 router.intervention=replay router.trace=%s",
                  file);
}

static void test_replay_refuses(void **state) {
  (void)state;
  size_t bytes;
  training_expect(0, "", "trace --model base --data train.jsonl --max-length 160 --out right.trace");
  training_expect(0, "", "trace --model none-base --data train.jsonl --max-length 160 --out model.trace");
  training_expect(0, "", "trace --model base --data eval.jsonl --max-length 160 --out data.trace");
  training_expect(0, "", "trace --model base --data train.jsonl --max-length 40 --out short.trace");
  training_expect(0, "",
                  "trace --model base --data train.jsonl --max-length 160 --max-tokens 99 --out part.trace");
  training_expect(0, "", "trace --model sigmoid --data train.jsonl --max-length 160 --out layers.trace");
  char *right = test_read("right.trace", &bytes);
  test_write("cut.trace", right, bytes - 1000);
  free(right);
  refuse_trace("model.trace", "trace of another model");
  refuse_trace("layers.trace", "trace of another model");
  refuse_trace("data.trace", "trace of other data");
  refuse_trace("short.trace", "trace of other data");
  refuse_trace("part.trace", "trace of other data");
  refuse_trace("cut.trace", "cut.trace");
  refuse_trace("train.jsonl", "train.jsonl");
  refuse_trace("nowhere.trace", "nowhere.trace");
}

/* A trace whose layers are others, or with a token that went nowhere: replay would force nothing on it. */
static void test_replay_refuses_parts(void **state) {
  (void)state;
  kedge_trace t;
  training_expect(0, "", "trace --model base --data train.jsonl --max-length 160 --out right.trace");
  ok(kedge_trace_load("right.trace", &t));
  t.layer_numbers[1] = 2;
  ok(kedge_trace_save(&t, "layers.trace"));
  t.layer_numbers[1] = 1;
  kedge_free(t.ties);
  kedge_free(t.tied);
  t.ties = t.tied = NULL;
  for (int k = 0; k < 2; k++) t.ids[(7 * 2 + 1) * 2 + k] = -1;
  ok(kedge_trace_save(&t, "hole.trace"));
  kedge_trace_destroy(&t);
  refuse_trace("layers.trace", "layers.trace: layers[1] is 2, MoE layer 1 of the model is layer 1");
  refuse_trace("hole.trace", "hole.trace: token 7 is not routed in layer 1");
}

/* A run goes on with what its files held when it began, whatever lies under their names now. */
static void test_resume_needs_the_same_files(void **state) {
  (void)state;
  static const char *const train = "train run.yaml output_dir=held max_steps=4 save_steps=2 "
                                   "router.intervention=rpb router.prior=moving.prior";
  size_t bytes;
  char *right = test_read("base.prior", &bytes);
  test_write("moving.prior", right, bytes);
  training_expect(0, "", "%s", train);
  test_remove("held/checkpoint-4");
  training_expect(0, "", "prior-shuffle --prior base.prior --mode global --seed 1 --out moving.prior");
  training_expect(2, "held/checkpoint-2 was trained with other contents of prior, communities or trace",
                  "%s resume_from_checkpoint=true", train);
  test_write("moving.prior", right, bytes);
  free(right);
  training_expect(0, "", "%s resume_from_checkpoint=true", train);
}

/* ---- Together
 * ------------------------------------------------------------------------------------------------------ */

#define PRIOR(i)    "router[" #i "].prior=base.prior "
#define IS(i, name) "router[" #i "].intervention=" #name " "

static void test_allowed_together(void **state) {
  (void)state;
  static const char *const allowed[] = {IS(0, rpb) PRIOR(0) IS(1, lbl) IS(2, z_loss) IS(3, router_l2)
                                            IS(4, kl) PRIOR(4) IS(5, logit_l2) PRIOR(5)
                                                IS(6, kl_token) "router_lb_scope=global",
                                        IS(0, rpb_hard) PRIOR(0) IS(1, lbl) IS(2, kl_token),
                                        IS(0, replay) IS(1, z_loss) IS(2, kl_token) IS(3, logit_l2) PRIOR(3),
                                        IS(0, none) IS(1, lbl) IS(2, router_l2),
                                        IS(0, freeze) IS(1, rpb) PRIOR(1),
                                        IS(0, freeze) IS(1, rpb_hard) PRIOR(1),
                                        IS(0, freeze) IS(1, replay)};
  for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
    training_expect(0, "", "train run.yaml output_dir=allowed-%zu max_steps=1 save_strategy=no %s", i,
                    allowed[i]);
  training_expect(0, "",
                  "train run.yaml model_name_or_path=sigmoid output_dir=allowed max_steps=1 "
                  "save_strategy=no router[0].intervention=loss_free router[1].intervention=rpb "
                  "router[1].prior=sigmoid.prior router[2].intervention=lbl");
  /* each is in the log, and together they make up the loss */
  static const char *const terms[] = {"lb_loss", "z_loss", "router_l2", "kl", "logit_l2", "kl_token"};
  double sum = 0;
  for (int i = 0; i < 6; i++) {
    char term[64], coef[64];
    snprintf(term, sizeof term, "router/%s", terms[i]);
    snprintf(coef, sizeof coef, "router/%s_coef", terms[i]);
    const double value = training_metric("allowed-0", 1, term), by = training_metric("allowed-0", 1, coef);
    assert_true(by > 0);
    assert_true(i == 2 ? value == 0 : value > 0); /* weights at the base; its choices are not in use */
    sum += value * by;
  }
  const double anchor = training_metric("allowed-0", 1, "router/anchor");
  assert_true(fabs(anchor - sum) <= 1e-6 * sum);
}

static void test_refused_together(void **state) {
  (void)state;
  static const char *const refused[][2] = {
      {IS(0, rpb) PRIOR(0) IS(1, rpb_hard) PRIOR(1), "only one can choose the experts"},
      {IS(0, rpb) PRIOR(0) IS(1, replay), "only one can choose the experts"},
      {IS(0, replay) IS(1, rpb_hard) PRIOR(1), "only one can choose the experts"},
      {IS(0, freeze) IS(1, lbl), "would go nowhere"},
      {IS(0, freeze) IS(1, z_loss), "would go nowhere"},
      {IS(0, freeze) IS(1, router_l2), "would go nowhere"},
      {IS(0, freeze) IS(1, kl) PRIOR(1), "would go nowhere"},
      {IS(0, logit_l2) PRIOR(0) IS(1, freeze), "would go nowhere"},
      {IS(0, kl_token) "freeze_moe_router=true", "would go nowhere"},
      {IS(0, freeze) IS(1, loss_free), "a frozen router's bias does not move"},
      {IS(0, lbl) IS(1, lbl), "the same twice"},
      {IS(0, kl) PRIOR(0) IS(1, kl) PRIOR(1), "the same twice"},
      {IS(0, loss_free), "loss_free moves a selection bias"}};
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
    training_expect(2, refused[i][1], "train run.yaml output_dir=refused max_steps=1 %s", refused[i][0]);
}

/* ---- Never silently on or off
 * ---------------------------------------------------------------------------------------- */

/* A coefficient over 0 is in the loss, however it was given. */
static void test_case_7_coefficient_is_in_the_loss(void **state) {
  (void)state;
  static const char *const ways[] = {"router_aux_loss_coef=0.01", "router.intervention=lbl router.coef=0.01",
                                     "moe_aux_loss_coef=0.01",
                                     "router_aux_loss_coef=0.01 output_router_logits=true"};
  const double plain = training_metric("none-base", 1, "train/loss");
  for (int i = 0; i < 4; i++) {
    char out[32];
    snprintf(out, sizeof out, "seven-%d", i);
    training_expect(0, "router: lbl with coef 0.01, scope micro, convention switch (1 when balanced)",
                    "train run.yaml output_dir=%s max_steps=%d save_strategy=no %s", out, STEPS, ways[i]);
    const double lb = training_metric(out, 1, "router/lb_loss"), loss = training_metric(out, 1, "train/loss");
    assert_true(lb > 1 && training_metric(out, 1, "router/lb_loss_coef") == 0.01);
    assert_true(fabs(loss - plain - 0.01 * lb) < 2e-6 * loss);
  }
  training_expect(2, "true needs router_aux_loss_coef too",
                  "train run.yaml output_dir=seven max_steps=1 output_router_logits=true");
  training_expect(0, "lbl has coef 0 and is left out",
                  "train run.yaml output_dir=seven max_steps=1 router.intervention=lbl router.coef=0");
}

/* The convention of transformers is k times the other and named; the sum over layers twice their mean. */
static void test_cases_2_6_conventions(void **state) {
  (void)state;
  training_expect(0, "scope micro, convention hf (2 when balanced), counting scores, sum over layers",
                  "train run.yaml output_dir=six-hf max_steps=1 router_aux_loss_coef=0.01 lb_convention=hf");
  training_expect(0, "convention switch (1 when balanced), counting scores, mean over layers",
                  "train run.yaml output_dir=six-mean max_steps=1 router_aux_loss_coef=0.01 lb_layers=mean");
  const double sum = training_metric("seven-0", 1, "router/lb_loss");
  assert_true(fabs(training_metric("six-hf", 1, "router/lb_loss") - 2 * sum) < 1e-5);
  assert_true(fabs(training_metric("six-mean", 1, "router/lb_loss") - sum / 2) < 1e-5);
}

/* The model's own coefficient is named, and not taken over. */
static void test_case_8_model_config(void **state) {
  (void)state;
  size_t bytes;
  char *config = test_read("config.json", &bytes);
  char *text = malloc(bytes + 64);
  assert_true(config && text && *config == '{');
  snprintf(text, bytes + 64, "{\"router_aux_loss_coef\": 0.001, %s", config + 1);
  test_write_text("eight.json", text);
  free(text), free(config);
  training_expect(0, "", "init --config eight.json --tokenizer '%s' --out eight --seed 5",
                  test_golden("tokenizer/tiny"));
  test_run run = training_kedge(
      "train run.yaml model_name_or_path=eight output_dir=eight-out max_steps=%d eval_dataset=eval.jsonl "
      "eval_strategy=steps eval_steps=1",
      STEPS);
  assert_int_equal(run.exit_code, 0);
  assert_non_null(strstr(run.err, "router_aux_loss_coef is 0 in this run; the model config's 0.001 is not"));
  assert_non_null(strstr(run.err, "router: no intervention and no balance loss"));
  assert_non_null(strstr(run.out, "router_aux_loss_coef: 0"));
  test_run_free(&run);
  char *record = test_read(test_path("eight-out/checkpoint-3", "kedge_run.json"), &bytes);
  assert_non_null(strstr(record, "\"router_aux_loss_coef\": 0"));
  assert_null(strstr(record, "\"router_aux_loss_coef\": 0.001"));
  free(record);
  assert_true(isnan(training_metric("eight-out", 1, "router/lb_loss")));
  assert_true(training_same("eight-out/model.safetensors", "none-base/model.safetensors"));
}

/* What is captured of a router is its raw logits. */
static void test_case_1_captured_logits_are_raw(void **state) {
  (void)state;
  runs_session s;
  kedge_trace trace;
  const kedge_trace_options options = {.with_logits = true};
  runs_open(&s, "base", NULL, "max_steps=1");
  ok(kedge_trace_collect(s.setup.model, s.setup.data, &options, &trace));
  double most = 0;
  for (uint32_t row = 0; row < trace.tokens * trace.layers; row++) {
    double sum = 0;
    for (uint32_t e = 0; e < trace.experts; e++) sum += exp((double)trace.logits[row * trace.experts + e]);
    most = fmax(most, fabs(sum - 1));
  }
  assert_true(most > 1);
  kedge_trace_destroy(&trace);
  runs_close(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_beta_zero),
      cmocka_unit_test(test_evaluation_is_without_bias),
      cmocka_unit_test(test_saved_weights_are_the_models),
      cmocka_unit_test(test_kl_token_begins_at_zero),
      cmocka_unit_test(test_replay_from_trace),
      cmocka_unit_test(test_replay_forces_the_choice),
      cmocka_unit_test(test_replay_refuses),
      cmocka_unit_test(test_replay_refuses_parts),
      cmocka_unit_test(test_resume_needs_the_same_files),
      cmocka_unit_test(test_allowed_together),
      cmocka_unit_test(test_refused_together),
      cmocka_unit_test(test_case_7_coefficient_is_in_the_loss),
      cmocka_unit_test(test_cases_2_6_conventions),
      cmocka_unit_test(test_case_8_model_config),
      cmocka_unit_test(test_case_1_captured_logits_are_raw),
  };
  return cmocka_run_group_tests_name("runs: anchors", tests, prepare, NULL);
}
