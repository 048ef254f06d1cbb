/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * Experts that are shared by ranks, and a router that sends every token to those of one rank: the micro-batch
 * is run in parts, memory stays what was planned, no token is dropped, and losses, norms and gradients are
 * those of one rank, whatever counts the tokens of all.
 */
#include "tests/support/files.h"
#include "tests/support/ranks.h"
#include "tests/support/runs.h"

#include "models/parallel/ranges.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* 7 rows as micro-batches of 4 and 3: of 4 ranks one has none of the second. */
enum { ROWS = 7, BATCH = 4, NUMBERS = 5 };

static const char *const names[] = {"none",   "lbl micro", "lbl sequence", "lbl global", "lbl global_running",
                                    "z_loss", "router_l2", "kl",           "kl_token"};
enum { NAMES = sizeof names / sizeof *names };

/* ---- Worker */

static void ok(kedge_status status) {
  if (status == KEDGE_OK) return;
  fprintf(stderr, "%s: %s\n", kedge_status_name(status), kedge_message());
  exit(3);
}

static const runs_condition *condition(const char *name) {
  const runs_condition *c = runs_conditions;
  while (c->name && strcmp(c->name, name)) c++;
  if (!c->name) exit(6);
  return c;
}

/* Selection biases that let experts 0 and 1 win every token. */
static void skew(const runs_session *s) {
  const kedge_model *m = s->setup.model;
  for (uint32_t i = 0; i < m->params.count; i++) {
    if (m->params.items[i].role != KEDGE_ROLE_ROUTER_CORRECTION) continue;
    float bias[2] = {50, 50};
    ok(kedge_buffer_write(m->weights[i], 0, bias, sizeof bias));
  }
}

/* The router gradients, whole, from the shares of all ranks. */
static double *gradient(const runs_session *s, kedge_comm *comm, uint64_t *count) {
  const kedge_optimizer *o = &s->stepper.optimizer;
  const kedge_model *m = s->setup.model;
  double *all = calloc(m->params.total, sizeof *all);
  *count = 0;
  for (uint32_t i = 0; i < m->params.count; i++) {
    if (!o->trained[i]) continue;
    const kedge_share kept =
        kedge_range_kept(m, i, kedge_layout_of(comm), kedge_comm_rank(comm, KEDGE_RANKS_ALL));
    if (m->params.items[i].role != KEDGE_ROLE_ROUTER && m->params.items[i].role != KEDGE_ROLE_EMBED) continue;
    float *own = malloc((kept.count + 1) * sizeof *own);
    ok(kedge_buffer_read(o->grad[i], o->shares[i].start * sizeof *own, own, kept.count * sizeof *own));
    for (uint64_t j = 0; j < kept.count; j++) all[*count + kept.start + j] = (double)own[j];
    free(own);
    *count += kedge_range_total(m, i);
  }
  ok(kedge_comm_sum(comm, all, *count));
  return all;
}

/* No pass has room for more rows than was planned for the longest stream, and some were run in parts. */
static void check_rooms(const runs_session *s, bool shared, bool skewed) {
  const kedge_passes *passes = &s->stepper.train;
  const uint32_t most = kedge_decoder_expert_rows(s->setup.model, kedge_batches_max_size(s->batches));
  for (uint32_t i = 0; shared && i < passes->count; i++)
    if (passes->items[i]->expert_rows > most) exit(7);
  if (shared && skewed && !passes->splits) exit(8);
  if (!shared && passes->splits) exit(9);
}

/* One update of every condition, and an evaluation: numbers, then gradients. */
static void work(kedge_comm *comm, const char *path, bool skewed, const char *more) {
  const bool leads = kedge_comm_rank(comm, KEDGE_RANKS_ALL) == 0,
             shared = kedge_comm_size(comm, KEDGE_RANKS_ALL) > 1;
  FILE *out = leads ? fopen(path, "wb") : NULL;
  for (int n = 0; n < NAMES; n++) {
    runs_session s;
    kedge_step_result step;
    uint64_t count;
    double eval;
    runs_open_on(
        &s, comm, "sigmoid", condition(names[n]),
        "shuffle_dataset=false num_train_epochs=1 per_device_train_batch_size=%d eval_dataset=train.jsonl "
        "gradient_accumulation_steps=2 per_device_eval_batch_size=1 %s",
        BATCH / (int)kedge_comm_size(comm, KEDGE_RANKS_ALL), more);
    runs_perturb(&s);
    if (skewed) skew(&s);
    ok(kedge_stepper_evaluate(&s.stepper, &eval));
    if (!runs_update(&s, 0, &step)) exit(4);
    check_rooms(&s, shared, skewed);
    double *g = gradient(&s, comm, &count);
    const double numbers[NUMBERS] = {step.loss, step.aux, step.norms.all, step.norms.router, eval};
    if (out) {
      fwrite(&count, sizeof count, 1, out);
      fwrite(numbers, sizeof *numbers, NUMBERS, out);
      fwrite(g, sizeof *g, count, out);
    }
    free(g);
    runs_close(&s);
  }
  if (out) fclose(out);
}

static int worker(int argc, char **argv) {
  kedge_comm *comm;
  ok(kedge_comm_open(&comm));
  work(comm, argv[2], !strcmp(argv[3], "skewed"), argc > 4 ? argv[4] : "");
  kedge_comm_close(comm);
  return 0;
}

/* ---- Tests */

static int prepare(void **state) {
  (void)state;
  runs_prepare(ROWS);
  return 0;
}

/* The largest difference of two files, numbers and each gradient relative to their largest entry. */
static double compare(const char *a, const char *b) {
  size_t size, other;
  double most = 0;
  char *x = test_read(a, &size), *y = test_read(b, &other);
  assert_int_equal(size, other);
  for (size_t at = 0; at < size;) {
    uint64_t count, again;
    memcpy(&count, x + at, sizeof count);
    memcpy(&again, y + at, sizeof again);
    assert_int_equal(count, again);
    assert_true(count > 100);
    at += sizeof count;
    double scale = 0, gap = 0;
    for (uint64_t i = 0; i < count + NUMBERS; i++, at += sizeof(double)) {
      double p, q;
      memcpy(&p, x + at, sizeof p);
      memcpy(&q, y + at, sizeof q);
      assert_true(isfinite(p) && isfinite(q));
      if (i < NUMBERS) most = fmax(most, fabs(p - q) / fmax(fabs(q), 1e-3));
      if (i < NUMBERS) continue;
      gap = fmax(gap, fabs(p - q));
      scale = fmax(scale, fabs(q));
    }
    assert_true(scale > 0);
    most = fmax(most, gap / scale);
  }
  free(x), free(y);
  return most;
}

static void test_all_tokens_to_one_rank(void **state) {
  (void)state;
  ranks_worker(1, "one skewed");
  ranks_worker(2, "two skewed expert_parallel=2");
  ranks_worker(4, "half skewed expert_parallel=2");
  ranks_worker(4, "four skewed expert_parallel=4");
  ranks_worker(4, "again skewed expert_parallel=4");
  const double two = compare("two", "one"), half = compare("half", "one"), four = compare("four", "one");
  print_message("largest difference from one rank: %.2g on 2, %.2g on 2 x 2, %.2g on 4\n", two, half, four);
  assert_true(two <= 1e-5);
  assert_true(half <= 1e-5);
  assert_true(four <= 1e-5);
  assert_true(test_same_file("four", "again"));
}

/* The comparison can fail: without the biases the numbers are others. */
static void test_the_skew_matters(void **state) {
  (void)state;
  ranks_worker(1, "even even");
  ranks_worker(1, "one skewed");
  size_t size;
  free(test_read("even", &size));
  assert_false(test_same_file("even", "one"));
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_tokens_to_one_rank),
                                     cmocka_unit_test(test_the_skew_matters)};
  if (argc > 3 && !strcmp(argv[1], "worker")) return worker(argc, argv);
  if (!ranks_possible()) return 77;
  return cmocka_run_group_tests_name("rounds", tests, prepare, NULL);
}
