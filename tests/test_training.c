/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * Whole runs of `kedge train`: the same bits at any number of threads, after resuming and with beta 0;
 * accumulation by the global token count; packing; recompute; bf16; evaluation; priors that do not belong.
 */
#include "tests/support/files.h"
#include "tests/support/training.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SAMPLES = 66, EPOCH = 6, STEPS = 11 }; /* 66 samples, 12 an update: 5.5 updates an epoch, 11 in all */

static int prepare(void **state) {
  (void)state;
  training_prepare(SAMPLES);
  training_expect(0, "", "train run.yaml output_dir=whole");
  return 0;
}

static void near(const char *what, double a, double b, double tolerance) {
  if (!(fabs(a - b) <= tolerance * fabs(b))) fail_msg("%s: %.9g against %.9g", what, a, b);
}

static void test_it_learns(void **state) {
  (void)state;
  double first = training_metric("whole", 1, "train/loss"),
         last = training_metric("whole", STEPS, "train/loss");
  assert_true(first > 5 && last < first - 1);
  assert_true(training_metric("whole", 1, "router/grad_norm") > 0);
  assert_true(training_metric("whole", 1, "train/learning_rate") ==
              0); /* warm-up from 0, as in transformers */
  near("peak", training_metric("whole", 3, "train/learning_rate"), 3e-3, 1e-12);
  assert_false(training_same("base/model.safetensors", "whole/model.safetensors"));
  assert_true(training_same("base/tokenizer.json", "whole/tokenizer.json"));
}

static void test_threads(void **state) {
  (void)state;
  training_expect(0, "grouped_wgrad", "train run.yaml output_dir=one threads=1 profile=true");
  training_same_run("one", "whole", STEPS);
}

/* Stops a run by killing it, as a crash would, once it has written a checkpoint; then resumes. */
static void resume_after(const char *name, unsigned step) {
  training_expect(0, "", "train run.yaml output_dir=%s save_steps=%u", name, step);
  char checkpoint[128], folder[128];
  for (unsigned s = step + 1; s <= STEPS; s++) { /* what came after the stop never happened */
    snprintf(folder, sizeof folder, "%s/checkpoint-%u", name, s);
    test_remove(test_path(test_folder(), folder));
  }
  snprintf(folder, sizeof folder, "%s/model.safetensors", name);
  test_remove(test_path(test_folder(), folder));
  snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint-%u", name, step);
  assert_true(test_exists(test_path(test_folder(), checkpoint)));
  training_expect(0, "", "train run.yaml output_dir=%s resume_from_checkpoint=true", name);
  training_same_run(name, "whole", STEPS);
}

static void test_resume(void **state) {
  (void)state;
  resume_after("at5", 5);
  resume_after("at_epoch", EPOCH);
  /* also by naming the checkpoint, and with a log interval that a checkpoint cuts */
  training_expect(0, "", "train run.yaml output_dir=l1 logging_steps=4 save_steps=6");
  training_expect(0, "",
                  "train run.yaml output_dir=l2 logging_steps=4 resume_from_checkpoint=l1/checkpoint-6");
  assert_true(training_same("l1/model.safetensors", "l2/model.safetensors"));
  near("log", training_metric("l2", 8, "train/loss"), training_metric("l1", 8, "train/loss"), 0);
}

/* A run of constant rate may be made longer: stopped at 5, resumed to 10, it is the run of 10. */
static void test_extend(void **state) {
  (void)state;
  const char *run = "train run.yaml lr_scheduler_type=constant warmup_steps=0";
  training_expect(0, "", "%s output_dir=ten max_steps=10 router_probe_steps=5", run);
  training_expect(0, "", "%s output_dir=five max_steps=5 router_probe_steps=5", run);
  training_expect(0, "", "%s output_dir=five max_steps=10 router_probe_steps=5 resume_from_checkpoint=true",
                  run);
  assert_true(training_same("ten/model.safetensors", "five/model.safetensors"));
  assert_true(training_same("ten/metrics.jsonl", "five/metrics.jsonl"));
  /* Killed before its first checkpoint. */
  test_make_folder(test_path(test_folder(), "log"));
  test_write_text(test_path(test_folder(), "log/metrics.jsonl"), "{\"step\": 1, \"train/loss\": 4.0}\n");
  training_expect(0, "starting from the beginning",
                  "%s output_dir=log max_steps=10 router_probe_steps=5 resume_from_checkpoint=true", run);
  assert_true(training_same("ten/metrics.jsonl", "log/metrics.jsonl"));
  test_remove(test_path(test_folder(), "log/checkpoint-10"));
  training_expect(2, "no checkpoint to resume from; set overwrite_output_dir=true",
                  "%s output_dir=log max_steps=10 router_probe_steps=5 resume_from_checkpoint=true", run);
  training_expect(2, "key \"max_steps\"",
                  "train run.yaml output_dir=whole max_steps=12 resume_from_checkpoint=true");
}

static void test_resume_refuses(void **state) {
  (void)state;
  training_expect(2, "holds another run", "train run.yaml output_dir=whole");
  training_expect(2, "key \"learning_rate\"",
                  "train run.yaml output_dir=whole resume_from_checkpoint=true learning_rate=1e-4");
  training_expect(
      2, "rows on all ranks together, this run has 3",
      "train run.yaml output_dir=whole resume_from_checkpoint=true per_device_train_batch_size=3");
  training_expect(2, "key \"seed\"",
                  "train run.yaml output_dir=whole resume_from_checkpoint=true seed=7 data_seed=42");
  training_expect(2, "was trained from another base model",
                  "train run.yaml output_dir=whole resume_from_checkpoint=true model_name_or_path=at5");
  training_expect(2, "nowhere", "train run.yaml output_dir=w3 resume_from_checkpoint=nowhere");
  training_expect(0, "starting from the beginning",
                  "train run.yaml output_dir=w4 resume_from_checkpoint=true max_steps=1");
}

static void test_beta_zero(void **state) {
  (void)state;
  training_expect(0, "", "prior --model base --data train.jsonl --max-length 160 --out prior.safetensors");
  training_expect(0, "", "prior --config run.yaml --batch-size 3 --out again.safetensors");
  training_expect(
      0, "",
      "train run.yaml output_dir=zero router.intervention=rpb router.beta=0 router.prior=prior.safetensors");
  assert_true(training_same("zero/model.safetensors", "whole/model.safetensors"));
  training_expect(0, "",
                  "train run.yaml output_dir=rpb router.intervention=rpb router.prior=prior.safetensors");
  assert_false(training_same("rpb/model.safetensors", "whole/model.safetensors"));
  training_expect(
      0, "",
      "train run.yaml output_dir=rpb1 router.intervention=rpb router.prior=prior.safetensors threads=1");
  training_same_run("rpb1", "rpb", STEPS);
}

static void test_prior_refuses(void **state) {
  (void)state;
  const char rpb[] = "router.intervention=rpb router.prior=prior.safetensors";
  training_expect(2, "max_length 160, this run has 40", "train run.yaml output_dir=p1 %s max_length=40", rpb);
  training_expect(2, "prior of other data", "train run.yaml output_dir=p2 %s prompt_template='Q: {prompt}'",
                  rpb);
  training_expect(0, "", "init --config config.json --tokenizer '%s' --out other --seed 6",
                  test_golden("tokenizer/tiny"));
  training_expect(2, "prior of another base model",
                  "train run.yaml output_dir=p3 %s model_name_or_path=other", rpb);
  training_expect(2, "router.prior", "train run.yaml output_dir=p4 router.intervention=rpb");
  training_expect(2, "prior_qa",
                  "train run.yaml output_dir=p5 router.intervention=rpb router.prior=base/model.safetensors");
}

/* The same 12 rows as 1 x 12, 3 x 4 and 12 x 1: loss and gradients agree, however many tokens each part has.
 */
static void test_accumulation(void **state) {
  (void)state;
  training_expect(0, "",
                  "train run.yaml output_dir=a1 max_steps=1 per_device_train_batch_size=12 "
                  "gradient_accumulation_steps=1");
  training_expect(0, "",
                  "train run.yaml output_dir=a12 max_steps=1 per_device_train_batch_size=1 "
                  "gradient_accumulation_steps=12");
  for (int i = 0; i < 3; i++) {
    static const char *const keys[] = {"train/loss", "train/grad_norm", "router/grad_norm"};
    near(keys[i], training_metric("a1", 1, keys[i]), training_metric("whole", 1, keys[i]), 2e-6);
    near(keys[i], training_metric("a12", 1, keys[i]), training_metric("whole", 1, keys[i]), 2e-6);
  }
}

static void test_packing(void **state) {
  (void)state;
  /* one update over all samples: the same loss and gradient, packed or not */
  training_expect(0, "",
                  "train run.yaml output_dir=k1 num_train_epochs=1 per_device_train_batch_size=66 "
                  "gradient_accumulation_steps=1");
  training_expect(0, "",
                  "train run.yaml output_dir=k2 num_train_epochs=1 per_device_train_batch_size=66 "
                  "gradient_accumulation_steps=1 "
                  "packing=true");
  near("loss", training_metric("k2", 1, "train/loss"), training_metric("k1", 1, "train/loss"), 2e-6);
  near("grad", training_metric("k2", 1, "train/grad_norm"), training_metric("k1", 1, "train/grad_norm"),
       2e-6);
  training_expect(2, "packing_strategy",
                  "train run.yaml output_dir=k3 packing=true packing_strategy=wrapped");
}

static void test_recompute(void **state) {
  (void)state;
  training_expect(0, "", "train run.yaml output_dir=again gradient_checkpointing=true");
  training_same_run("again", "whole", STEPS);
}

static void test_bf16(void **state) {
  (void)state;
  training_expect(0, "", "train run.yaml output_dir=b1 dtype=bf16");
  training_expect(0, "", "train run.yaml output_dir=b2 dtype=bf16 threads=1 save_steps=5");
  training_same_run("b1", "b2", STEPS);
  near("bf16 loss", training_metric("b1", STEPS, "train/loss"), training_metric("whole", STEPS, "train/loss"),
       0.02);
  test_remove(test_path(test_folder(), "b2/checkpoint-11"));
  test_remove(test_path(test_folder(), "b2/checkpoint-10"));
  training_expect(0, "", "train run.yaml output_dir=b2 dtype=bf16 resume_from_checkpoint=true");
  training_same_run("b1", "b2", STEPS);
}

static void test_evaluation_and_limits(void **state) {
  (void)state;
  training_expect(0, "",
                  "train run.yaml output_dir=e eval_split=10 eval_strategy=steps eval_steps=4 save_steps=2 "
                  "save_total_limit=2");
  assert_true(training_metric("e", 4, "eval/loss") > 0 && training_metric("e", 8, "eval/loss") > 0);
  assert_false(test_exists(test_path(test_folder(), "e/checkpoint-4")));
  assert_true(test_exists(test_path(test_folder(), "e/checkpoint-8")));
  assert_true(isnan(training_metric("whole", 4, "eval/loss")));
  training_expect(2, "loss_free moves a selection bias",
                  "train run.yaml output_dir=l router.intervention=loss_free");
  training_expect(2, "nearest is \"learning_rate\"", "train run.yaml lerning_rate=1");
  training_expect(2, "gradient_accumulation_steps",
                  "train run.yaml output_dir=l gradient_accumulation_steps=0");
}

/* Conversations: the assistant's turns, or on request all; no checkpoint where none is wanted. */
static void test_conversations(void **state) {
  (void)state;
  const char *row = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi there\"}, "
                    "{\"role\": \"assistant\", \"content\": \"hello\"}]}\n";
  test_write_text(test_path(test_folder(), "chat.jsonl"), row);
  const char *run =
      "train run.yaml dataset=chat.jsonl max_steps=1 save_strategy=no overwrite_output_dir=true output_dir=c";
  training_expect(0, "23 tokens, 5 of them", "%s", run);
  training_expect(0, "23 tokens, 22 of them", "%s assistant_only_loss=false", run);
  assert_true(test_exists(test_path(test_folder(), "c/model.safetensors")));
  size_t bytes;
  char *state_text = test_read(test_path(test_folder(), "c/trainer_state.json"), &bytes);
  assert_non_null(strstr(state_text, "\n  \"epoch\": 12,\n")); /* of one sample */
  free(state_text);
  assert_false(test_exists(test_path(test_folder(), "c/checkpoint-1")));
}

static void test_nothing_to_learn(void **state) {
  (void)state;
  training_expect(2, "folder of the base model",
                  "train run.yaml output_dir=./base overwrite_output_dir=true");
  training_expect(2, "no supervised token", "train run.yaml output_dir=n max_length=4");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_it_learns),
      cmocka_unit_test(test_threads),
      cmocka_unit_test(test_resume),
      cmocka_unit_test(test_resume_refuses),
      cmocka_unit_test(test_extend),
      cmocka_unit_test(test_beta_zero),
      cmocka_unit_test(test_prior_refuses),
      cmocka_unit_test(test_accumulation),
      cmocka_unit_test(test_packing),
      cmocka_unit_test(test_recompute),
      cmocka_unit_test(test_bf16),
      cmocka_unit_test(test_evaluation_and_limits),
      cmocka_unit_test(test_nothing_to_learn),
      cmocka_unit_test(test_conversations),
  };
  return cmocka_run_group_tests(tests, prepare, NULL);
}
