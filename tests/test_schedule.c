/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Updates, learning rates and events of a run. Rates are held to the values of transformers 5.23's
 * get_scheduler. */
#include "models/training/schedule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* A schedule from overrides, which must load. */
static kedge_schedule make(const char *const *overrides, size_t count, uint64_t samples, uint32_t ranks) {
  kedge_config config;
  kedge_schedule schedule;
  if (kedge_config_load(&config, NULL, overrides, count)) fail_msg("%s", kedge_message());
  if (kedge_schedule_init(&schedule, &config, samples, ranks)) fail_msg("%s", kedge_message());
  kedge_config_destroy(&config);
  return schedule;
}
#define MAKE(samples, ranks, ...)                                                                            \
  make((const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *),      \
       samples, ranks)

static void near(double got, double want) {
  if (!(fabs(got - want) <= 1e-15 * fabs(want))) fail_msg("got %.17g, want %.17g", got, want);
}

static void rates(const kedge_schedule *schedule, const double *want, size_t count) {
  for (size_t i = 0; i < count; i++) near(kedge_schedule_rate(schedule, i), want[i]);
}

static void test_rates(void **state) {
  (void)state;
  kedge_schedule s = MAKE(1, 1, "max_steps=7", "warmup_steps=2");
  rates(&s,
        (double[]){0, 1e-05, 2e-05, 1.6000000000000003e-05, 1.2e-05, 8.000000000000001e-06,
                   4.000000000000001e-06},
        7);
  s = MAKE(1, 1, "max_steps=7", "warmup_steps=2", "lr_scheduler_type=cosine");
  rates(&s,
        (double[]){0, 1e-05, 2e-05, 1.8090169943749477e-05, 1.3090169943749475e-05, 6.909830056250527e-06,
                   1.9098300562505266e-06},
        7);
  s = MAKE(1, 1, "max_steps=5", "warmup_steps=3", "lr=1e-4", "lr_scheduler_type=constant_with_warmup");
  rates(&s, (double[]){0, 3.3333333333333335e-05, 6.666666666666667e-05, 0.0001, 0.0001}, 5);
  s = MAKE(1, 1, "max_steps=4", "lr=1e-3");
  rates(&s, (double[]){0.001, 0.00075, 0.0005, 0.00025}, 4);
  s = MAKE(1, 1, "max_steps=3", "lr=5e-5", "lr_scheduler=constant");
  rates(&s, (double[]){5e-5, 5e-5, 5e-5}, 3);
  s = MAKE(1, 1, "max_steps=3", "lr=1e-3", "warmup_steps=5"); /* warm-up longer than the run */
  rates(&s, (double[]){0, 0.0002, 0.0004}, 3);
  assert_true(kedge_schedule_only_warms(&s));
  s = MAKE(1, 1, "max_steps=3", "warmup_steps=2"); /* the third update has the highest rate */
  assert_false(kedge_schedule_only_warms(&s));
  s = MAKE(1, 1, "max_steps=3", "lr_scheduler=constant");
  assert_false(kedge_schedule_only_warms(&s));
}

static void test_cosine_with_floor(void **state) {
  (void)state;
  static const struct {
    uint64_t step;
    double rate;
  } want[] = {{0, 0},
              {1, 2.5000000000000004e-07},
              {39, 9.75e-06},
              {40, 1e-05},
              {41, 9.999959665766872e-06},
              {200, 9.006330954484251e-06},
              {411, 5.500000000000001e-06},
              {780, 1.0001613362094745e-06},
              {781, 1.0000403342331299e-06}};
  kedge_schedule s =
      MAKE(20000, 1, "num_epochs=5", "micro_batch_size=1", "gradient_accumulation_steps=128", "lr=1e-5",
           "lr_scheduler_type=cosine_with_min_lr", "lr_scheduler_kwargs.min_lr=1e-6", "warmup_steps=40");
  assert_int_equal(s.updates, 782);
  for (size_t i = 0; i < sizeof want / sizeof *want; i++)
    near(kedge_schedule_rate(&s, want[i].step), want[i].rate);
  kedge_schedule r =
      MAKE(20000, 1, "num_epochs=5", "micro_batch_size=1", "gradient_accumulation_steps=128", "lr=1e-5",
           "lr_scheduler_type=cosine", "cosine_min_lr_ratio=0.1", "warmup_steps=40");
  for (uint64_t step = 0; step < 782; step++)
    near(kedge_schedule_rate(&r, step), kedge_schedule_rate(&s, step));
}

static void test_warmup_forms(void **state) {
  (void)state;
  assert_int_equal(MAKE(1, 1, "max_steps=101", "warmup_ratio=0.1").warmup, 11); /* rounded up */
  assert_int_equal(MAKE(1, 1, "max_steps=100", "warmup_ratio=0.07").warmup, 8); /* ceil(7.000000000000001) */
  assert_int_equal(MAKE(1, 1, "max_steps=101", "warmup_steps=0.1").warmup, 11);
  assert_int_equal(MAKE(1, 1, "max_steps=101", "warmup_steps=1").warmup, 1);
  assert_int_equal(MAKE(1, 1, "max_steps=101", "warmup_steps=7", "warmup_ratio=0.5").warmup,
                   7); /* steps win */
}

static void test_updates(void **state) {
  (void)state;
  /* 4 micro-batches of 1, accumulation 3: 2 updates, the last of one sample. */
  kedge_schedule s = MAKE(4, 1, "epochs=1", "micro_batch_size=1", "gradient_accumulation_steps=3");
  assert_int_equal(s.updates, 2);
  assert_int_equal(kedge_schedule_samples(&s, 0), 3);
  assert_int_equal(kedge_schedule_samples(&s, 1), 1);
  assert_int_equal(kedge_schedule_samples(&s, 2), 0);
  /* Accumulation over the number of batches. */
  s = MAKE(4, 1, "epochs=1", "micro_batch_size=1", "gradient_accumulation_steps=100");
  assert_int_equal(s.updates, 1);
  assert_int_equal(kedge_schedule_samples(&s, 0), 4);
  /* Windows run on across the epoch's end: 3 epochs of 5 in fours are 15/4, not 3 * 2. */
  s = MAKE(5, 1, "epochs=3", "micro_batch_size=4");
  assert_int_equal(s.updates, 4);
  assert_int_equal(kedge_schedule_samples(&s, 1), 4);
  assert_int_equal(kedge_schedule_samples(&s, 3), 3);
  near(kedge_schedule_epoch(&s, 1), 0.8);
  near(kedge_schedule_epoch(&s, 4), 3);
  assert_int_equal(MAKE(10, 1, "epochs=1.1", "micro_batch_size=1").updates, 11);
  assert_int_equal(MAKE(10, 1, "epochs=0.25", "micro_batch_size=1").updates, 3);
  assert_int_equal(MAKE(16, 4, "epochs=1", "micro_batch_size=2").updates, 2);
  assert_int_equal(MAKE(10, 1, "max_steps=3", "epochs=100").updates, 3);
}

static void refuse(uint64_t samples, uint32_t ranks, const char *override, const char *message) {
  kedge_config config;
  kedge_schedule schedule;
  assert_int_equal(kedge_config_load(&config, NULL, &override, 1), KEDGE_OK);
  assert_int_equal(kedge_schedule_init(&schedule, &config, samples, ranks), KEDGE_ERR_ARGUMENT);
  if (!strstr(kedge_message(), message)) fail_msg("\"%s\" does not say \"%s\"", kedge_message(), message);
  kedge_config_destroy(&config);
}

static void test_refused(void **state) {
  (void)state;
  refuse(0, 1, "seed=1", "no samples");
  refuse(1, 0, "seed=1", "at least 1 rank");
  refuse(2147483647, 1, "num_train_epochs=1e6", "more than 2147483647 updates");
  refuse(1, 4000000000u, "micro_batch_size=65536", "samples in one update");
}

static void test_events(void **state) {
  (void)state;
  kedge_schedule s = MAKE(10, 1, "epochs=2", "micro_batch_size=3"); /* 20 samples, 7 updates */
  assert_int_equal(s.updates, 7);
  assert_int_equal(kedge_schedule_every(&s, 0), 0);
  assert_int_equal(kedge_schedule_every(&s, 5), 5);
  assert_int_equal(kedge_schedule_every(&s, 0.25), 2);
  static const bool by_2[] = {0, 1, 0, 1, 0, 1, 0}, by_epoch[] = {0, 0, 0, 1, 0, 0, 1},
                    halves[] = {0, 1, 0, 1, 1, 0, 1};
  for (uint64_t done = 1; done <= 7; done++) {
    assert_false(kedge_schedule_due(&s, KEDGE_CONFIG_STRATEGY_NO, 1, 0, done));
    assert_int_equal(kedge_schedule_due(&s, KEDGE_CONFIG_STRATEGY_STEPS, 2, 0, done), by_2[done - 1]);
    assert_int_equal(kedge_schedule_due(&s, KEDGE_CONFIG_STRATEGY_EPOCH, 0, 0, done), by_epoch[done - 1]);
    assert_int_equal(kedge_schedule_due(&s, KEDGE_CONFIG_STRATEGY_STEPS, 0, 2, done), halves[done - 1]);
  }
  assert_false(kedge_schedule_due(&s, KEDGE_CONFIG_STRATEGY_STEPS, 2, 0, 0));
  assert_false(kedge_schedule_due(&s, KEDGE_CONFIG_STRATEGY_STEPS, 2, 0, 8));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rates),        cmocka_unit_test(test_cosine_with_floor),
      cmocka_unit_test(test_warmup_forms), cmocka_unit_test(test_updates),
      cmocka_unit_test(test_refused),      cmocka_unit_test(test_events)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
