/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * Files that lie, outputs that would destroy inputs, streams that are closed, two runs in one folder: one
 * clear line, the right exit status, and nothing lost. Damage to checkpoints is in test_training_faults.c.
 */
#include "models/checkpoint/convert.h"
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

enum { SAMPLES = 12, LAYERS = 2, EXPERTS = 8 };

static const char *in(const char *path) {
  return test_path(test_folder(), path);
}

static int prepare(void **state) {
  (void)state;
  training_prepare(SAMPLES);
  training_expect(0, "", "prior --config run.yaml --out prior.st");
  return 0;
}

/* A shell line in the test folder; its exit status. */
static int shell(const char *line) {
  char command[2048];
  snprintf(command, sizeof command, "cd '%s' && (%s)", test_folder(), line);
  test_run run = test_run_shell(command);
  int code = run.exit_code;
  test_run_free(&run);
  return code;
}

/* Where a tensor's data begins in a safetensors file's bytes. */
static char *tensor_at(char *file, const char *name) {
  uint64_t header = 0;
  unsigned long long begin = 0;
  char key[64];
  memcpy(&header, file, 8);
  snprintf(key, sizeof key, "\"%s\":", name);
  const char *info = strstr(file + 8, key);
  assert_non_null(info);
  assert_int_equal(sscanf(strstr(info, "data_offsets"), "data_offsets\":[%llu", &begin), 1);
  return file + 8 + header + begin;
}

/* `to` is `from` with `bytes` of value put at `offset` of a tensor. */
static void poke(const char *from, const char *to, const char *tensor, size_t offset, const void *value,
                 size_t bytes) {
  size_t size;
  char *file = test_read(in(from), &size);
  memcpy(tensor_at(file, tensor) + offset, value, bytes);
  test_write(in(to), file, size);
  free(file);
}

/* A prior's every number is checked before the first update. */
static void test_prior_contents(void **state) {
  (void)state;
  static const float numbers[] = {NAN, INFINITY, -1, 2};
  const size_t last = 4 * ((size_t)SAMPLES * 2 * LAYERS * EXPERTS - 1);
  const char *run = "train run.yaml output_dir=p router.intervention=rpb router.prior=bad.st";
  for (size_t i = 0; i < 4; i++) {
    poke("prior.st", "bad.st", "prior_qa", last, &numbers[i], 4);
    training_expect(2, "train: bad.st: prior_qa row (sample 11, span 1, layer 1): expected probabilities",
                    "%s", run);
  }
  const int32_t spans[] = {0, -5, INT32_MAX}, layers[] = {-1, 1};
  for (size_t i = 0; i < 3; i++) {
    poke("prior.st", "bad.st", "counts", 8, &spans[i], 4);
    training_expect(2, "bad.st: row 1 is sample 1 with", "%s router.span=sample", run);
  }
  for (size_t i = 0; i < 2; i++) {
    poke("prior.st", "bad.st", "layers", 0, &layers[i], 4);
    training_expect(2, "bad.st: layers[0] is", "%s", run);
  }
  const int64_t id = 3;
  poke("prior.st", "bad.st", "sample_ids", 16, &id, 8);
  training_expect(2, "bad.st: row 2 is sample 3", "%s", run);
  assert_int_equal(shell("sed 's/\"max_length\":\"160\"/\"max_length\":\"16x\"/' prior.st > bad.st"), 0);
  training_expect(2, "bad.st: metadata max_length", "%s", run);
  assert_int_equal(shell("sed 's/\"kedge_prior\":\"2\"/\"kedge_prior\":\"3\"/' prior.st > bad.st"), 0);
  training_expect(2, "bad.st: metadata kedge_prior: expected version 1 or 2, got 3", "%s", run);
  assert_false(test_exists(in("p")));
}

/* Ids that the model has no row for are an error for every reader of data. */
static void test_foreign_ids(void **state) {
  (void)state;
  assert_int_equal(
      shell(
          "rm -rf small && cp -r base small && sed -i 's/<|endoftext|>/<|endoftexx|>/' small/tokenizer.json"),
      0);
  static const char *const commands[] = {"prior --model small --data train.jsonl --out x.st",
                                         "score --model small --data train.jsonl --out x.st",
                                         "probe --base small --post small --data train.jsonl",
                                         "train run.yaml model_name_or_path=small output_dir=s",
                                         "train run.yaml model_name_or_path=small output_dir=s "
                                         "dataset=text.jsonl eval_dataset=train.jsonl"};
  test_write_text(in("text.jsonl"), "{\"text\": \"one two three\"}\n");
  for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
    training_expect(2, "512", "%s", commands[i]);
  assert_false(test_exists(in("x.st")));
}

/* A weight that is no number is named when the model is loaded for training, whether or not it is used. */
static void test_bad_weights(void **state) {
  (void)state;
  static const float numbers[] = {NAN, INFINITY, -INFINITY};
  static const char *const tensors[] = {"lm_head.weight", "model.embed_tokens.weight",
                                        "model.layers.1.mlp.experts.7.down_proj.weight"};
  assert_int_equal(shell("rm -rf nan && cp -r base nan"), 0);
  for (size_t i = 0; i < 3; i++) {
    char want[128];
    poke("base/model.safetensors", "nan/model.safetensors", tensors[i], 4 * 300, &numbers[i], 4);
    snprintf(want, sizeof want, "nan: tensor %s: element 300 is not a finite f32 number", tensors[i]);
    training_expect(1, want, "train run.yaml model_name_or_path=nan output_dir=n");
    assert_false(test_exists(in("n")));
  }
  const uint16_t narrow[] = {0x3F80, 0x7F80, 0x7C00, 0xFC01};
  assert_int_equal(kedge_floats_not_finite(narrow, KEDGE_ST_BF16, 4), 1);
  assert_int_equal(kedge_floats_not_finite(narrow + 2, KEDGE_ST_BF16, 2), 2);
  assert_int_equal(kedge_floats_not_finite(narrow + 2, KEDGE_ST_F16, 2), 0);
  assert_int_equal(kedge_floats_not_finite(narrow, KEDGE_ST_BF16, 1), 1);
}

/* A config whose sizes the files do not have takes no memory for them. */
static void test_large_config(void **state) {
  (void)state;
  assert_int_equal(
      shell("rm -rf big && cp -r base big && sed -i 's/\"num_experts\": 8/\"num_experts\": 65536/; "
            "s/\"num_hidden_layers\": 2/\"num_hidden_layers\": 512/' big/config.json"),
      0);
  training_expect(2, "a model of more than 1048576 tensors", "score --model big --tokens 1 --out x.st");
  assert_int_equal(
      shell("cp base/config.json big/ && sed -i 's/\"hidden_size\": 32/\"hidden_size\": 131072/; "
            "s/\"intermediate_size\": 48/\"intermediate_size\": 16000/' big/config.json"),
      0);
  training_expect(2, "tensor model.embed_tokens.weight: expected shape [512,131072]",
                  "score --model big --tokens 1 --out x.st");
#ifndef __SANITIZE_ADDRESS__ /* it needs terabytes of addresses itself */
  assert_int_equal(
      shell("(ulimit -v 4000000; \"$KEDGE_BIN\" score --model big --tokens 1 --out x.st 2> err); "
            "[ $? = 2 ] && grep -q 'expected shape' err"),
      0);
#endif
}

/* Outputs in the place of inputs. */
static void test_spared_inputs(void **state) {
  (void)state;
  assert_int_equal(shell("rm -rf mine && cp -r base mine && cp train.jsonl mine.jsonl && ln -sf mine link"),
                   0);
  training_expect(2, "would replace the data", "prior --model mine --data mine.jsonl --out mine.jsonl");
  training_expect(2, "would replace the data", "score --model mine --data mine.jsonl --out ./mine.jsonl");
  training_expect(2, "would replace a file of the model",
                  "score --model mine --tokens 1 --out link/model.safetensors");
  training_expect(2, "would replace a file of the model",
                  "prior --model mine --data mine.jsonl --out mine/tokenizer.json");
  assert_int_equal(shell("diff -r mine base && cmp mine.jsonl train.jsonl"), 0);
  training_expect(0, "", "prior --model mine --data mine.jsonl --out mine/prior.st");
}

/* A prior's template and paths reach it as they are given. */
static void test_quoting(void **state) {
  (void)state;
  test_write_text(in("quoted.yaml"), "model_name_or_path: base\ndataset: train.jsonl\noutput_dir: quoted\n"
                                     "max_length: 160\nmax_steps: 1\nprompt_template: \"'Q' {prompt}\\nA:\"\n"
                                     "router: {intervention: rpb, prior: quoted.st}\n");
  training_expect(0, "",
                  "prior --model base --data train.jsonl --max-length 160 --out quoted.st "
                  "--prompt-template \"$(printf \"'Q' {prompt}\\nA:\")\"");
  training_expect(0, "", "train quoted.yaml");
  assert_int_equal(shell("rm -rf '[x]' && cp -r base '[x]'"), 0);
  training_expect(0, "", "prior --model '[x]' --data train.jsonl --out x.st");
  training_expect(2, "not valid UTF-8", "prior --model base --data \"$(printf '\\377')\" --out y.st");
  training_expect(0, "", "train run.yaml max_steps=1 output_dir=q1 'prompt_template={prompt} A:'");
  training_expect(0, "", "train run.yaml max_steps=1 'output_dir=\"q 2\"'");
  assert_true(test_exists(in("q 2/config.json")));
}

/* The balance loss is what the run says, never what the model's config says, and the difference is told. */
static void test_effective_coefficient(void **state) {
  (void)state;
  assert_int_equal(shell("rm -rf aux && cp -r base aux && sed -i 's/\"num_experts\": 8/\"num_experts\": 8, "
                         "\"router_aux_loss_coef\": 0.25/' aux/config.json"),
                   0);
  training_expect(0, "router_aux_loss_coef is 0 in this run; the model config's 0.25 is not taken over",
                  "train run.yaml max_steps=2 model_name_or_path=aux output_dir=aux1");
  training_expect(0, "", "train run.yaml max_steps=2 output_dir=aux2");
  assert_true(training_same("aux1/model.safetensors", "aux2/model.safetensors"));
}

/* Keys that would have no effect. */
static void test_without_effect(void **state) {
  (void)state;
  training_expect(2, "beta is given and no intervention", "train run.yaml output_dir=w router.beta=1");
  training_expect(2, "prior is given and no intervention",
                  "train run.yaml output_dir=w router.prior=prior.st");
  training_expect(0, "", "train run.yaml output_dir=w max_steps=1 router.intervention=none router.beta=1");
  training_expect(2, "chat template \"x\"", "train run.yaml output_dir=w2 chat_template=x");
  training_expect(2, "null computes nothing", "train run.yaml output_dir=w2 'backend=\"null\"'");
  assert_false(test_exists(in("w2")));
}

/* Closed standard streams do not let messages into files. */
static void test_closed_streams(void **state) {
  (void)state;
  training_expect(0, "", "train run.yaml max_steps=2 output_dir=open");
  assert_int_equal(
      shell("{ \"$KEDGE_BIN\" train run.yaml max_steps=2 output_dir=closed 2>&- <&- > closed.out; } && "
            "cmp open/metrics.jsonl closed/metrics.jsonl && cmp open/model.safetensors "
            "closed/model.safetensors"),
      0);
  assert_int_equal(shell("\"$KEDGE_BIN\" train run.yaml max_steps=2 output_dir=closed2 >&- 2>&-; [ $? = 2 ]"),
                   0);
  assert_int_equal(shell("cmp open/metrics.jsonl closed2/metrics.jsonl"), 0);
  assert_int_equal(shell("\"$KEDGE_BIN\" generate --model base --prompt a > /dev/full 2> err; [ $? = 2 ]"),
                   0);
}

/* Two runs in one folder: the second is told. A run that failed at once leaves a folder that can be used. */
static void test_one_folder(void **state) {
  (void)state;
  assert_int_equal(
      shell("\"$KEDGE_BIN\" train run.yaml output_dir=two num_train_epochs=1000 save_steps=2 > out 2> err & "
            "p=$!; "
            "while ! ls -d two/checkpoint-* > ls.out 2>&1; do kill -0 $p || exit 9; sleep 0.05; done; "
            "\"$KEDGE_BIN\" train run.yaml output_dir=two resume_from_checkpoint=true > run2.out 2> second; "
            "a=$?; "
            "\"$KEDGE_BIN\" train run.yaml output_dir=two overwrite_output_dir=true > run2.out 2>> second; "
            "b=$?; "
            "kill -INT $p; wait $p; echo $?; [ $a = 2 ] && [ $b = 2 ] && [ $(grep -c 'another run' second) = "
            "2 ]"),
      0);
  const float large = 3e38f;
  assert_int_equal(shell("rm -rf nan && cp -r base nan"), 0);
  poke("base/model.safetensors", "nan/model.safetensors", "model.layers.0.mlp.gate.weight", 0, &large, 4);
  training_expect(1, "the largest is 3e+38 in model.layers.0.mlp.gate.weight",
                  "train run.yaml model_name_or_path=nan output_dir=again");
  training_expect(0, "", "train run.yaml max_steps=1 output_dir=again");
}

/* A process that may not have the memory says so; it neither waits nor crashes. */
static void test_address_space(void **state) {
  (void)state;
#ifdef __SANITIZE_ADDRESS__ /* it needs terabytes of addresses itself */
  skip();
#endif
  assert_int_equal(shell("(ulimit -v 800000; timeout -s KILL 20 \"$KEDGE_BIN\" train run.yaml threads=32 "
                         "output_dir=a 2> err); "
                         "[ $? = 1 ] && grep -q 'no room for 32 threads' err && ! [ -e a ]"),
                   0);
}

/* Data without an end, and a line that has none. */
static void test_endless_data(void **state) {
  (void)state;
  training_expect(2, "/dev/zero:1: a line of over 64 MiB", "train run.yaml dataset=/dev/zero output_dir=z");
  training_expect(2, "no samples", "train run.yaml dataset=/dev/null output_dir=z");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_prior_contents),        cmocka_unit_test(test_foreign_ids),
      cmocka_unit_test(test_bad_weights),           cmocka_unit_test(test_large_config),
      cmocka_unit_test(test_spared_inputs),         cmocka_unit_test(test_quoting),
      cmocka_unit_test(test_effective_coefficient), cmocka_unit_test(test_without_effect),
      cmocka_unit_test(test_closed_streams),        cmocka_unit_test(test_one_folder),
      cmocka_unit_test(test_endless_data),          cmocka_unit_test(test_address_space)};
  return cmocka_run_group_tests(tests, prepare, NULL);
}
