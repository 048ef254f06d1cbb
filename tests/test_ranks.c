/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * One run on 1, 2 and 4 ranks: the same global batch gives the same losses and, of every intervention, the
 * same gradient of the routers, also where a rank has no tokens; a run repeats bit for bit; a checkpoint goes
 * from any number of ranks to any other without a changed bit; ranks that do not belong together are refused.
 */
#include "models/training/run_checkpoint.h"
#include "tests/support/explain.h"
#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"
#include "tests/support/runs.h"
#include "tests/support/training.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* 6 rows as micro-batches of 4 and 2: of 4 ranks two have none of the second. */
enum { ROWS = 6, BATCH = 4, NUMBERS = 4 };

/* ---- Workers
 * ------------------------------------------------------------------------------------------------------ */

static void ok(kedge_status status) {
  if (status == KEDGE_OK) return;
  fprintf(stderr, "%s: %s\n", kedge_status_name(status), kedge_message());
  exit(3);
}

/* The summed gradients, whole, from the shares of all ranks. */
static double *whole_gradient(const runs_session *s, kedge_comm *comm, bool routers, uint64_t *count) {
  const kedge_optimizer *o = &s->stepper.optimizer;
  const kedge_model *m = s->setup.model;
  uint64_t total = 0;
  for (uint32_t i = 0; i < m->params.count; i++) total += kedge_range_total(m, i);
  double *all = calloc(total, sizeof *all);
  *count = 0;
  for (uint32_t i = 0; i < m->params.count; i++) {
    if (!o->trained[i] || (routers && !kedge_param_is_router(&m->params.items[i]))) continue;
    const kedge_share kept =
        kedge_range_kept(m, i, kedge_layout_of(comm), kedge_comm_rank(comm, KEDGE_RANKS_ALL));
    float *own = malloc((kept.count + 1) * sizeof *own);
    ok(kedge_buffer_read(o->grad[i], o->shares[i].start * sizeof *own, own, kept.count * sizeof *own));
    for (uint64_t j = 0; j < kept.count; j++) all[*count + kept.start + j] = (double)own[j];
    free(own);
    *count += kedge_range_total(m, i);
  }
  ok(kedge_comm_sum(comm, all, *count));
  return all;
}

/* One update of every condition: loss, added losses, both norms, and the gradients. */
static void work_gradients(kedge_comm *comm, const char *path, const char *more) {
  const bool leads = kedge_comm_rank(comm, KEDGE_RANKS_ALL) == 0;
  FILE *out = leads ? fopen(path, "wb") : NULL;
  for (const runs_condition *c = runs_conditions; c->name; c++)
    for (int sigmoid = 0; sigmoid < 2; sigmoid++) {
      runs_session s;
      kedge_step_result step;
      uint64_t count;
      if (!sigmoid && c->sigmoid) continue;
      runs_open_on(&s, comm, sigmoid ? "sigmoid" : "base", c,
                   "shuffle_dataset=false num_train_epochs=1 per_device_train_batch_size=%d "
                   "gradient_accumulation_steps=2 %s",
                   BATCH / (int)kedge_comm_size(comm, KEDGE_RANKS_ALL), more);
      runs_perturb(&s);
      if (!runs_update(&s, 0, &step)) exit(4);
      double *gradient = whole_gradient(&s, comm, s.setup.router.trained == NULL, &count);
      const double numbers[NUMBERS] = {step.loss, step.aux, step.norms.all, step.norms.router};
      if (leads) {
        fwrite(&count, sizeof count, 1, out);
        fwrite(numbers, sizeof *numbers, NUMBERS, out);
        fwrite(gradient, sizeof *gradient, count, out);
      }
      free(gradient);
      runs_close(&s);
    }
  if (out) fclose(out);
}

/* Reads a checkpoint and writes it again. */
static void work_reshard(kedge_comm *comm, const char *from, const char *to, const char *more) {
  runs_session s;
  kedge_run_record record, want = {0};
  kedge_trainer_state *state;
  runs_open_on(&s, comm, "base", &runs_conditions[0], "max_steps=4 per_device_train_batch_size=%d %s",
               BATCH / (int)kedge_comm_size(comm, KEDGE_RANKS_ALL), more);
  ok(kedge_model_hash(s.setup.model, want.base));
  snprintf(want.data, sizeof want.data, "%s", kedge_setup_train(&s.setup)->hash);
  want.settings = kedge_run_settings(&s.config, kedge_comm_size(comm, KEDGE_RANKS_ALL));
  want.device = kedge_strdup(kedge_device_description(s.setup.device));
  want.updates = 4;
  ok(kedge_run_load(from, &s.stepper.optimizer, &want, &record, &state, NULL));
  ok(kedge_run_save(to, &s.stepper.optimizer, &record, state, "", 0, NULL));
  kedge_trainer_state_free(state);
  kedge_run_record_destroy(&record);
  kedge_run_record_destroy(&want);
  runs_close(&s);
}

/* What the ranks really take, for an update of equal micro-batches: the larger of all, as rank 0 plans. */
static void work_memory(kedge_comm *comm, const char *path, const char *more) {
  runs_session s;
  kedge_step_result step;
  runs_open_on(&s, comm, "base", &runs_conditions[0], "shuffle_dataset=false max_steps=1 %s", more);
  if (!runs_update(&s, 0, &step)) exit(4);
  FILE *out = kedge_comm_rank(comm, KEDGE_RANKS_ALL) ? NULL : fopen(path, "w");
  if (out) {
    fprintf(out, "%llu %llu %u\n", (unsigned long long)kedge_workspace_bytes(s.stepper.workspace),
            (unsigned long long)kedge_optimizer_bytes(&s.stepper.optimizer),
            s.stepper.train.items[0]->tokens);
    fclose(out);
  }
  runs_close(&s);
}

static int worker(int argc, char **argv) {
  kedge_comm *comm;
  ok(kedge_comm_open(&comm));
  if (argc > 3 && !strcmp(argv[2], "gradients")) work_gradients(comm, argv[3], argc > 4 ? argv[4] : "");
  if (argc > 3 && !strcmp(argv[2], "memory")) work_memory(comm, argv[3], argc > 4 ? argv[4] : "");
  if (argc > 4 && !strcmp(argv[2], "reshard")) work_reshard(comm, argv[3], argv[4], argc > 5 ? argv[5] : "");
  kedge_comm_close(comm);
  return 0;
}

/* ---- Tests
 * -------------------------------------------------------------------------------------------------------- */

static int prepare(void **state) {
  (void)state;
  runs_prepare(ROWS);
  return 0;
}

/* The largest difference of two workers' files, each array relative to its largest entry. */
static double compare(const char *a, const char *b, double *exact) {
  size_t size, other;
  double most = 0;
  char *x = test_read(a, &size), *y = test_read(b, &other);
  assert_int_equal(size, other);
  assert_true(size > 10000);
  for (size_t at = 0; at < size;) {
    uint64_t count, again;
    memcpy(&count, x + at, sizeof count);
    memcpy(&again, y + at, sizeof again);
    assert_int_equal(count, again);
    at += sizeof count;
    double scale = 0, gap = 0;
    for (uint64_t i = 0; i < count + NUMBERS; i++, at += sizeof(double)) {
      double p, q;
      memcpy(&p, x + at, sizeof p);
      memcpy(&q, y + at, sizeof q);
      if (i < NUMBERS) {
        most = fmax(most, fabs(p - q) / fmax(fabs(q), 1e-3));
        *exact += memcmp(&p, &q, sizeof p) != 0;
        assert_true(isfinite(p) && isfinite(q));
        continue;
      }
      const double d = fabs(p - q);
      gap = d <= gap ? gap : d;
      scale = fmax(scale, fabs(q));
    }
    assert_true(scale > 0);
    most = fmax(most, gap / scale);
  }
  free(x), free(y);
  return most;
}

static void test_every_intervention(void **state) {
  (void)state;
  double exact = 0;
  ranks_worker(1, "gradients g1");
  ranks_worker(2, "gradients g2");
  ranks_worker(4, "gradients g4");
  const double two = compare("g2", "g1", &exact), four = compare("g4", "g1", &exact);
  print_message("largest difference from one rank: %.2g on 2, %.2g on 4\n", two, four);
  assert_true(two <= 1e-5);
  assert_true(four <= 1e-5);
}

/* Experts shared by 2 of 2, 2 of 4 and 4 of 4 ranks. */
static void test_every_intervention_with_shared_experts(void **state) {
  (void)state;
  double exact = 0;
  ranks_worker(1, "gradients g1");
  ranks_worker(2, "gradients e2 expert_parallel=2");
  ranks_worker(4, "gradients e42 expert_parallel=2");
  ranks_worker(4, "gradients e4 expert_parallel=4");
  ranks_worker(4, "gradients e4b expert_parallel=4");
  const double two = compare("e2", "g1", &exact), half = compare("e42", "g1", &exact),
               four = compare("e4", "g1", &exact);
  print_message("largest difference from one rank: %.2g on 2, %.2g on 2 x 2, %.2g on 4\n", two, half, four);
  assert_true(two <= 1e-5);
  assert_true(half <= 1e-5);
  assert_true(four <= 1e-5);
  assert_true(test_same_file("e4", "e4b"));
}

static void test_losses_and_repetition(void **state) {
  (void)state;
  static const int ranks[] = {1, 2, 4, 4, 4, 4}, experts[] = {1, 1, 1, 1, 2, 4};
  training_prepare(40);
  for (int i = 0; i < 6; i++)
    ranks_expect(
        ranks[i], 0, "trained model",
        "train run.yaml output_dir=r%d max_steps=20 gradient_accumulation_steps=2 threads=1 save_steps=1 "
        "per_device_train_batch_size=%d eval_split=0.2 eval_strategy=steps eval_steps=5 "
        "per_device_eval_batch_size=3 router_probe_steps=10 expert_parallel=%d",
        i, 8 / ranks[i], experts[i]);
  for (int i = 1; i < 6; i++) {
    explain_report report;
    char run[8], what[64];
    snprintf(run, sizeof run, "r%d", i);
    snprintf(what, sizeof what, "20 updates on 1 rank and on %d, experts on %d", ranks[i], experts[i]);
    explain_runs("r0", run, 20, 1e-5, 1e-5, &report);
    assert_true(explain_holds(what, &report, 1e-5));
    assert_true(report.worst > 0);
  }
  assert_true(training_same("r2/model.safetensors", "r3/model.safetensors"));
  assert_true(training_same("r2/metrics.jsonl", "r3/metrics.jsonl"));
  for (int rank = 0; rank < 4; rank++) {
    char a[96], b[96];
    snprintf(a, sizeof a, "r2/checkpoint-20/optimizer-%05d-of-00004.safetensors", rank);
    snprintf(b, sizeof b, "r3/checkpoint-20/optimizer-%05d-of-00004.safetensors", rank);
    assert_true(training_same(a, b));
  }
}

/* From any number of ranks and any sharing of experts to any other: what comes back is what went, states and
 * weights. */
static void test_reshard(void **state) {
  (void)state;
  static const struct {
    int ranks, experts;
  } ways[] = {{4, 1}, {2, 1}, {2, 2}, {1, 1}, {4, 4}, {4, 2}, {1, 1}};
  enum { WAYS = sizeof ways / sizeof *ways };
  training_prepare(ROWS);
  for (int bf16 = 0; bf16 < 2; bf16++) {
    const char *dtype = bf16 ? "dtype=bf16" : "dtype=f32";
    char path[64];
    ranks_expect(1, 0, "trained model",
                 "train run.yaml output_dir=s0 max_steps=4 threads=1 per_device_train_batch_size=%d %s",
                 BATCH, dtype);
    for (int i = 0; i < WAYS; i++) {
      ranks_worker(ways[i].ranks, "reshard s%d/checkpoint-4 s%d '%s expert_parallel=%d'", i, i + 1, dtype,
                   ways[i].experts);
      snprintf(path, sizeof path, "s%d/checkpoint-4/model.safetensors", i + 1);
      assert_true(training_same("s0/checkpoint-4/model.safetensors", path));
      if (ways[i].ranks > 1) continue;
      snprintf(path, sizeof path, "s%d/checkpoint-4/optimizer.safetensors", i + 1);
      assert_true(training_same("s0/checkpoint-4/optimizer.safetensors", path));
    }
    assert_true(test_exists("s1/checkpoint-4/optimizer-00003-of-00004.safetensors"));
    for (int i = 0; i <= WAYS; i++) {
      snprintf(path, sizeof path, "s%d", i);
      test_remove(path);
    }
  }
}

/* A run that stops on 4 ranks and goes on on 2 and on 1 gives the losses of one that never stopped. */
static void test_resume_elsewhere(void **state) {
  (void)state;
  static const char common[] = "gradient_accumulation_steps=2 threads=1 lr_scheduler_type=constant";
  training_prepare(40);
  ranks_expect(1, 0, "", "train run.yaml output_dir=whole max_steps=9 per_device_train_batch_size=8 %s",
               common);
  ranks_expect(4, 0, "", "train run.yaml output_dir=parts max_steps=3 per_device_train_batch_size=2 %s",
               common);
  ranks_expect(2, 0, "",
               "train run.yaml output_dir=parts max_steps=6 per_device_train_batch_size=4 "
               "resume_from_checkpoint=true %s",
               common);
  ranks_expect(1, 0, "",
               "train run.yaml output_dir=parts max_steps=9 per_device_train_batch_size=8 "
               "resume_from_checkpoint=true %s",
               common);
  for (unsigned step = 1; step <= 9; step++)
    assert_true(fabs(training_metric("parts", step, "train/loss") -
                     training_metric("whole", step, "train/loss")) <= 1e-5);
  /* Another global batch is another run. */
  ranks_expect(2, 2, "rows on all ranks together, this run has 16",
               "train run.yaml output_dir=parts max_steps=12 per_device_train_batch_size=8 "
               "resume_from_checkpoint=true %s",
               common);
}

/* `kedge plan --world` says what a rank takes. */
static void test_memory_as_planned(void **state) {
  (void)state;
  static const int ways[][2] = {{1, 1}, {2, 1}, {4, 1}, {4, 2}, {4, 4}};
  training_prepare(ROWS);
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    unsigned long long workspace, states;
    unsigned tokens;
    char options[160];
    size_t bytes;
    ranks_worker(ways[i][0], "memory m 'per_device_train_batch_size=1 expert_parallel=%d'", ways[i][1]);
    char *text = test_read("m", &bytes);
    assert_int_equal(sscanf(text, "%llu %llu %u", &workspace, &states, &tokens), 3);
    free(text);
    snprintf(options, sizeof options, "plan --model base --world %d --ep %d --tokens %u --json", ways[i][0],
             ways[i][1], tokens);
    setenv("OMP_NUM_THREADS", "1", 1); /* the kernels' scratch grows with the threads */
    json_t *p = test_kedge_json(options);
    unsetenv("OMP_NUM_THREADS");
    const double planned =
        (double)(test_json_int(p, "bytes.activations") + test_json_int(p, "bytes.scratch"));
    print_message("%d ranks, %d share experts: states %llu B, workspace %llu B, planned %.0f B\n", ways[i][0],
                  ways[i][1], states, workspace, planned);
    assert_true(test_json_int(p, "bytes.gradients") + test_json_int(p, "bytes.optimizer") +
                    test_json_int(p, "bytes.master") ==
                (json_int_t)states);
    /* With shared experts a pass that had to make room again takes more. */
    if (ways[i][1] == 1) assert_true(fabs((double)workspace - planned) <= 0.02 * planned);
    json_decref(p);
  }
}

/* Priors and traces made by several ranks are the files that one makes, bit for bit. */
static void test_prior_and_trace(void **state) {
  (void)state;
  static const int ranks[] = {1, 2, 4};
  training_prepare(23);
  for (int i = 0; i < 3; i++) {
    ranks_expect(ranks[i], 0, "",
                 "prior --model base --data train.jsonl --out p%d --batch-size 3 --threads 1", i);
    ranks_expect(
        ranks[i], 0, "",
        "trace --model base --data train.jsonl --out t%d --batch-size 3 --weights --logits --max-tokens 500 "
        "--threads 1 --near-ties n%d --near-tolerance 0.01",
        i, i);
  }
  for (int i = 1; i < 3; i++) {
    char p[8], t[8], n[8];
    snprintf(p, sizeof p, "p%d", i);
    snprintf(t, sizeof t, "t%d", i);
    snprintf(n, sizeof n, "n%d", i);
    assert_true(training_same("p0", p));
    assert_true(training_same("t0", t));
    assert_true(training_same("n0", n));
  }
  ranks_expect(2, 2, "kedge prior: nowhere", "prior --model nowhere --data train.jsonl --out p9");
}

static void test_refusals(void **state) {
  (void)state;
  /* A key, a data file and a base that differ on the second rank. */
  static const char launch[] =
      "mpirun --allow-run-as-root --oversubscribe --bind-to none -n 1 '%s' train run.yaml output_dir=no : "
      "-n 1 '%s' train run.yaml output_dir=no %s";
  static const struct {
    const char *more, *err;
  } cases[] = {{"learning_rate=1e-4", "key \"learning_rate\" is 0.0001 on rank 1, 0.003 on rank 0"},
               {"dataset=[other.jsonl]", "key \"dataset\""}};
  training_prepare(ROWS);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char command[4096], folder[5000];
    snprintf(command, sizeof command, launch, getenv("KEDGE_BIN"), getenv("KEDGE_BIN"), cases[i].more);
    snprintf(folder, sizeof folder, "cd '%s' && timeout 100 %s", test_folder(), command);
    test_run run = test_run_shell(folder);
    const char *first = strstr(run.err, "kedge train:");
    if (run.exit_code == 0 || !first || strstr(first + 1, "kedge train:") || !strstr(run.err, cases[i].err))
      fail_msg("%s: exit %d, said \"%s\"", cases[i].more, run.exit_code, run.err);
    test_run_free(&run);
  }
  ranks_expect(2, 2, "expert_parallel", "train run.yaml output_dir=no expert_parallel=3");
  ranks_expect(1, 2, "expert_parallel", "train run.yaml output_dir=no expert_parallel=2");
  ranks_expect(2, 2, "global_batch_size", "train run.yaml output_dir=no global_batch_size=7");
  ranks_expect(2, 2, "this command is for one", "generate --model base --prompt a");
  assert_false(test_exists(test_path(test_folder(), "no")));
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_intervention),
      cmocka_unit_test(test_every_intervention_with_shared_experts),
      cmocka_unit_test(test_losses_and_repetition),
      cmocka_unit_test(test_reshard),
      cmocka_unit_test(test_resume_elsewhere),
      cmocka_unit_test(test_memory_as_planned),
      cmocka_unit_test(test_prior_and_trace),
      cmocka_unit_test(test_refusals),
  };
  if (argc > 2 && !strcmp(argv[1], "worker")) return worker(argc, argv);
  if (!ranks_possible()) return 77;
  return cmocka_run_group_tests_name("ranks", tests, prepare, NULL);
}
