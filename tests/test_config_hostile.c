/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Configurations that mean harm: bombs, mutations, and memory that runs out. */
#include "models/training/config_yaml.h"
#include "tests/support/configs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Repeats `unit` into new text that begins with `head`. */
static char *repeated(const char *head, const char *unit, size_t times, const char *tail) {
  size_t length = strlen(unit);
  char *text = malloc(strlen(head) + times * length + strlen(tail) + 1), *at = stpcpy(text, head);
  for (size_t i = 0; i < times; i++) at = stpcpy(at, unit);
  strcpy(at, tail);
  return text;
}

static void refuse_new(char *text, const char *message) {
  test_config_refuse(text, message);
  free(text);
}

static void test_bombs(void **state) {
  (void)state;
  char bomb[4096] = "a: &a [x,x,x,x,x,x,x,x,x,x]\n";
  for (char c = 'b'; c < 'z'; c++) {
    char line[80];
    snprintf(line, sizeof line, "%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", c, c, c - 1, c - 1, c - 1,
             c - 1, c - 1, c - 1, c - 1, c - 1, c - 1);
    strcat(bomb, line);
  }
  test_config_refuse(bomb, "25 keys are not known: a (line 1), b (line 2)");
  test_config_refuse("dataset: [&a [x, x], &b [*a, *a], [*b, *b]]", "expected a path, came a list");
  refuse_new(repeated("dataset: ", "[", 100000, ""), "deeper than 16");
  refuse_new(repeated("", "- ", 100000, "x"), "deeper than 16");
  refuse_new(repeated("dataset: ", "{a: ", 1000, ""), "deeper than 16");
  refuse_new(repeated("dataset: [", "x,", 100000, "x]"), "more than 65536 values");
  refuse_new(repeated("dataset: [", "x,", 5000, "x]"), "more than 4096 files");
  refuse_new(repeated("output_dir: ", "xxxxxxxx", 1000, ""), "at most 4096");
  refuse_new(repeated("dataset: [&a [", "x,", 4000, "x], *a]"), "came a list");
  char *text = repeated("", "k000: 1\n", 600, ""), *anchors = repeated("dataset: [", "&a000 x, ", 300, "x]");
  for (int i = 0; i < 600; i++)
    memcpy(text + 8 * i + 1, (char[]){(char)('0' + i / 100), (char)('0' + i / 10 % 10), (char)('0' + i % 10)},
           3);
  for (int i = 0; i < 300; i++)
    memcpy(anchors + 10 + 9 * i + 2,
           (char[]){(char)('0' + i / 100), (char)('0' + i / 10 % 10), (char)('0' + i % 10)}, 3);
  refuse_new(text, "more than 512 keys");
  refuse_new(anchors, "more than 256 anchors");
  test_config_refuse("seed: 1\n\xff\xfe", "no YAML");
  test_config_refuse("\x01", "no YAML");
}

/* Mutations of a file that uses everything: never a crash; what loads prints to what loads. */
static void test_mutations(void **state) {
  (void)state;
  static const char seed[] = "base_model: &m /models/x # note\ndatasets:\n  - {path: \"a b\", type: t}\n  - "
                             "*m\nlr: 1e-5\nwarmup_ratio: .1\n"
                             "model_config: {router_aux_loss_coef: 0.5}\nlr_scheduler: "
                             "cosine\nlr_scheduler_kwargs:\n  min_lr: 1.5e-6\nbf16: true\n"
                             "train_on_inputs: false\nsave_steps: 0.25\nmax_steps: "
                             "10\nresume_from_checkpoint: yes\nval_set_size: 12\nrouter:\n"
                             "  - intervention: rpb\n    beta: 0.5\n    prior: 'p q'\n    layers: [0-3, 7]\n "
                             " - {intervention: kl, coef: 0.1}\n";
  static const char letters[] = "aelnprtu0123456789.-:,#*&!|>'\"%@`{}[]?~ \n\t\\\xc3\xa9\xff";
  uint64_t random = 20240917;
  size_t loaded = 0;
  for (int round = 0; round < 4000; round++) {
    char text[sizeof seed + 64];
    size_t length = sizeof seed - 1;
    memcpy(text, seed, sizeof seed);
    random = random * 6364136223846793005u + 1442695040888963407u;
    for (uint64_t edits = 1 + (random >> 33) % 3; edits--;) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      size_t at = (random >> 33) % length;
      char letter = letters[(random >> 20) % (sizeof letters - 1)];
      switch ((random >> 60) % 4) {
      case 0:
        text[at] = letter;
        break;
      case 1:
        memmove(text + at, text + at + 1, length-- - at);
        break;
      case 2:
        memmove(text + at + 1, text + at, ++length - at);
        text[at] = letter;
        break;
      default:
        text[at] = (char)(text[at] ^ (1 << (random >> 40) % 8));
        break;
      }
    }
    kedge_config config;
    if (kedge_config_parse(&config, "m", text, length, NULL, 0) == KEDGE_OK) {
      loaded++;
      test_config_round_trip(&config);
      kedge_config_destroy(&config);
    } else if (!*kedge_message()) {
      fail_msg("refused without a word");
    }
  }
  assert_true(loaded > 100 && loaded < 3500);
}

/* Every allocation of ours fails once. */
static void test_memory(void **state) {
  (void)state;
  static const char text[] =
      "base_model: m\ndatasets: [{path: a, type: t}]\nrouter: [{intervention: rpb, layers: 0-3}, lbl]\n"
      "warmup_ratio: 0.1\nwarmup_steps: 3\nlr_scheduler_kwargs: {min_lr: 0}\nmin_lr_ratio:\n";
  static const char *const overrides[] = {"router[1].coef=2", "seed=3", "dataset=[b]"};
  for (uint64_t nth = 1;; nth++) {
    kedge_config config;
    kedge_alloc_fail_nth(nth);
    kedge_status status = kedge_config_parse(&config, "m", text, sizeof text - 1, overrides, 3);
    kedge_alloc_fail_nth(0);
    if (status == KEDGE_OK) {
      assert_true(nth > 50);
      kedge_config_destroy(&config);
      break;
    }
    if (status != KEDGE_ERR_MEMORY) fail_msg("allocation %d: %s", (int)nth, kedge_message());
  }
}

/* The same while problems are collected: the end is their message. */
static void test_memory_of_problems(void **state) {
  (void)state;
  static const char text[] = "bogus: 1\nflash_attention: true\nfsdp: [a]\nmax_length: x\nother: 2\n"
                             "datasets: [{path: json, data_files: [a, b], field: x, c: d}]\n";
  for (uint64_t nth = 1;; nth++) {
    kedge_config config;
    kedge_alloc_fail_nth(nth);
    kedge_status status = kedge_config_parse(&config, "m", text, sizeof text - 1, NULL, 0);
    kedge_alloc_fail_nth(0);
    if (status == KEDGE_ERR_ARGUMENT) {
      assert_true(nth > 20);
      assert_non_null(strstr(kedge_message(),
                             "m: 2 keys are not known: bogus (line 1), other (line 5); 2 keys "
                             "are not supported: fsdp (line 3: "));
      assert_non_null(strstr(kedge_message(), "; 2 keys have wrong values: max_length (line 4: "));
      break;
    }
    if (status != KEDGE_ERR_MEMORY) fail_msg("allocation %d: %s", (int)nth, kedge_message());
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_bombs), cmocka_unit_test(test_mutations),
                                     cmocka_unit_test(test_memory),
                                     cmocka_unit_test(test_memory_of_problems)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
