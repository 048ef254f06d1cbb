/* SPDX-License-Identifier: Apache-2.0
 * ctest: long
 *
 * What an intervention adds to an update, by the times of the ops: a model of laptop size (4 layers of width
 * 256, 16 experts of width 128 of which 4 are used, vocabulary 4,096), 8 rows of 256 tokens. At most 2 %, but
 * for what runs the base or the batch once more. Updates with and without take turns, and medians are taken,
 * so that another load on the machine hits both. Prints a table. */
#include "tests/support/files.h"
#include "tests/support/runs.h"
#include "tests/support/training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { REPEATS = 5, ROWS = 8 };

static const char config_json[] =
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 4096, \"hidden_size\": 256, \"intermediate_size\": 512, "
    "\"moe_intermediate_size\": 128, \"num_hidden_layers\": 4, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"head_dim\": 64, \"num_experts\": 16, \"num_experts_per_tok\": 4, "
    "\"norm_topk_prob\": true, \"tie_word_embeddings\": false, \"rms_norm_eps\": 1e-6, \"rope_theta\": "
    "10000.0, \"max_position_embeddings\": 512, \"hidden_act\": \"silu\", \"initializer_range\": 0.02, "
    "\"torch_dtype\": \"float32\", \"bos_token_id\": 0, \"eos_token_id\": 0}";

/* Rows of at least 256 tokens, cut there. */
static void write_rows(void) {
  FILE *file = fopen("cost.jsonl", "w");
  assert_non_null(file);
  for (int row = 0; row < ROWS; row++) {
    fprintf(file, "{\"prompt\": \"");
    for (int i = 0; i < 9; i++) fprintf(file, "%d apples, ", row * 37 + i * 11);
    fprintf(file, "\", \"completion\": \"");
    for (int i = 0; i < 100; i++) fprintf(file, " and %d", row * 53 + i * 7);
    fprintf(file, "\"}\n");
  }
  assert_int_equal(fclose(file), 0);
}

static int prepare(void **state) {
  (void)state;
  runs_prepare(8);
  write_rows();
  test_write_text("cost.json", config_json);
  training_expect(0, "", "init --config cost.json --tokenizer '%s' --out cost --seed 5",
                  test_golden("tokenizer/tiny"));
  training_expect(0, "", "prior --model cost --data cost.jsonl --max-length 256 --out cost.prior");
  return 0;
}

static void open_session(runs_session *s, const runs_condition *c) {
  runs_open(s, "cost", c,
            "dataset=cost.jsonl max_length=256 per_device_train_batch_size=%d gradient_accumulation_steps=1 "
            "max_steps=%d profile=true",
            ROWS, 64 * REPEATS);
  kedge_step_result step; /* the first update plans */
  assert_true(runs_update(s, 1e-5, &step));
}

/* Times of one update: by op, and of the processor. */
typedef struct timing {
  kedge_op_time ops[KEDGE_STEP_OPS];
  uint32_t count;
  double processor;
} timing;

static kedge_op_time *find_op(timing *t, const char *op) {
  for (uint32_t i = 0; i < t->count; i++)
    if (!strcmp(t->ops[i].op, op)) return &t->ops[i];
  return NULL;
}

static timing timed(runs_session *s) {
  struct timespec a, b;
  kedge_step_result step;
  timing before = {0}, after = {0};
  before.count = kedge_stepper_times(&s->stepper, before.ops, KEDGE_STEP_OPS);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
  assert_true(runs_update(s, 1e-5, &step));
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
  after.count = kedge_stepper_times(&s->stepper, after.ops, KEDGE_STEP_OPS);
  for (uint32_t i = 0; i < after.count; i++) {
    const kedge_op_time *had = find_op(&before, after.ops[i].op);
    if (!had) continue;
    after.ops[i].calls -= had->calls;
    after.ops[i].seconds -= had->seconds;
  }
  after.processor = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
  return after;
}

/* Seconds that `with` has more, as a part of all of `without`. Ops that were called as often did the same
 * work: their difference is the machine's. */
static double more(timing *with, timing *without) {
  double all = 0, added = 0;
  for (uint32_t i = 0; i < without->count; i++) {
    const kedge_op_time *other = find_op(with, without->ops[i].op);
    all += without->ops[i].seconds;
    assert_non_null(other);
    if (other->calls != without->ops[i].calls) added += other->seconds - without->ops[i].seconds;
  }
  for (uint32_t i = 0; i < with->count; i++)
    if (!find_op(without, with->ops[i].op)) added += with->ops[i].seconds;
  return added / all;
}

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static double median(double *values) {
  qsort(values, REPEATS, sizeof *values, ascending);
  return values[REPEATS / 2];
}

/* What is added, as a part of an update without it. */
static double added(const runs_condition *c, runs_session *without, double *processor) {
  runs_session with;
  double ops[REPEATS], all[REPEATS];
  open_session(&with, c);
  for (int i = 0; i < REPEATS; i++) {
    timing a = {0}, b;
    if (i % 2) a = timed(&with);
    b = timed(without);
    if (i % 2 == 0) a = timed(&with);
    ops[i] = more(&a, &b);
    all[i] = a.processor / b.processor - 1;
  }
  runs_close(&with);
  *processor = median(all);
  return median(ops);
}

/* The base's own forward, and a forward that counts, are costs of another kind. Detaching adds a product,
 * which other products hide. */
static bool is_other(const char *name) {
  return strstr(name, "kl_token") || strstr(name, "replay") || !strcmp(name, "lbl global") ||
         strstr(name, "detached") || !strcmp(name, "freeze");
}

static void test_cost(void **state) {
  (void)state;
  runs_session without;
  open_session(&without, NULL);
  print_message("added to an update            ops  processor\n");
  for (const runs_condition *c = runs_conditions; c->name; c++) {
    double processor;
    if (c->sigmoid || !*c->overrides) continue;
    const double ops = added(c, &without, &processor);
    print_message("%-26s %6.2f %% %6.1f %%\n", c->name, 100 * ops, 100 * processor);
    if (!is_other(c->name) && !(ops <= 0.02)) fail_msg("%s adds %.2f %%", c->name, 100 * ops);
  }
  runs_close(&without);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_cost)};
  return cmocka_run_group_tests_name("runs: cost", tests, prepare, NULL);
}
