/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * The files of docs/recipes: each loads without a word of complaint, holds the paper's training protocol and
 * has the one intervention that its name promises, and the table of the README lists them all. */
#include "models/training/config.h"
#include "models/training/schedule.h"
#include "tests/support/files.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct recipe {
  const char *name, *intervention; /* NULL: none */
  double coef, beta;               /* beta NaN: has none */
  const char *shuffle;
  bool prior;
} recipe;

static const recipe recipes[] = {
    {"sft", NULL, 0, NAN, "none", false},
    {"lbl", "lbl", 1e-3, NAN, "none", false},
    {"lbl-1e-4", "lbl", 1e-4, NAN, "none", false},
    {"rpb", "rpb", 0, 1, "none", true},
    {"rpb-hard", "rpb_hard", 0, NAN, "none", true},
    {"within-soft", "rpb", 0, 1, "within", true},
    {"within-hard", "rpb_hard", 0, NAN, "within", true},
    {"global-soft", "rpb", 0, 1, "global", true},
    {"global-hard", "rpb_hard", 0, NAN, "global", true},
    {"router-l2", "router_l2", 1e4, NAN, "none", false},
    {"kl", "kl", 0.1, NAN, "none", true},
    {"logit-l2", "logit_l2", 1e-3, NAN, "none", true},
    {"kl-token", "kl_token", 0.1, NAN, "none", false},
    {"z-loss", "z_loss", 1e-3, NAN, "none", false},
    {"freeze", "freeze", 0, NAN, "none", false},
    {"loss-free", "loss_free", 1e-3, NAN, "none", false},
    {"replay", "replay", 0, NAN, "none", false},
};
enum { RECIPES = sizeof recipes / sizeof *recipes };

static const char *folder(void) {
  static char path[4096];
  const char *source = getenv("KEDGE_SOURCE");
  snprintf(path, sizeof path, "%s/docs/recipes", source ? source : ".");
  return path;
}

static kedge_config load(const char *name) {
  char path[4200];
  kedge_config config;
  snprintf(path, sizeof path, "%s/%s.yaml", folder(), name);
  if (kedge_config_load(&config, path, NULL, 0)) fail_msg("%s", kedge_message());
  return config;
}

static void is(const recipe *r, const char *key, double got, double want) {
  if (!(got == want)) fail_msg("%s: %s is %.17g, expected %.17g", r->name, key, got, want);
}

static void is_text(const recipe *r, const char *key, const char *got, const char *want) {
  if (strcmp(got, want)) fail_msg("%s: %s is %s, expected %s", r->name, key, got, want);
}

static void test_protocol(void **state) {
  (void)state;
  for (const recipe *r = recipes; r < recipes + RECIPES; r++) {
    kedge_config c = load(r->name);
    /* A note would say that a key has no effect. */
    if (c.notes.count) fail_msg("%s: %s", r->name, c.notes.items[0]);
    if (kedge_config_require(&c, "model_name_or_path,dataset,output_dir")) fail_msg("%s", kedge_message());
    is(r, "adam_beta1", c.adam_beta1, 0.9);
    is(r, "adam_beta2", c.adam_beta2, 0.95);
    is(r, "adam_epsilon", c.adam_epsilon, 1e-8);
    is(r, "weight_decay", c.weight_decay, 0.1);
    is(r, "max_grad_norm", c.max_grad_norm, 1);
    is(r, "learning_rate", c.learning_rate, 1e-5);
    is(r, "min_learning_rate", c.min_learning_rate, 1e-6);
    is_text(r, "lr_scheduler_type", kedge_config_value_name("lr_scheduler_type", c.lr_scheduler_type),
            "cosine");
    is(r, "warmup_steps", c.warmup_steps, 40);
    is(r, "num_train_epochs", c.num_train_epochs, 5);
    is(r, "max_steps", (double)c.max_steps, -1);
    is(r, "per_device_train_batch_size", (double)c.per_device_train_batch_size, 1);
    is(r, "gradient_accumulation_steps", (double)c.gradient_accumulation_steps, 128);
    is(r, "max_length", (double)c.max_length, 8192);
    is(r, "packing", c.packing, false);
    is(r, "shuffle_dataset", c.shuffle_dataset, true);
    is_text(r, "dtype", kedge_config_value_name("dtype", c.dtype), "bf16");
    is(r, "seed", (double)c.seed, 42);
    is(r, "data_seed", (double)c.data_seed, 42); /* it follows the seed in a sweep */
    is(r, "logging_steps", c.logging_steps, 1);
    kedge_config_destroy(&c);
  }
}

/* 20,000 samples are 782 updates; the rate climbs for 40 of them and falls to a tenth. */
static void test_schedule(void **state) {
  (void)state;
  kedge_schedule s;
  kedge_config c = load("sft");
  assert_int_equal(kedge_schedule_init(&s, &c, 20000, 1), KEDGE_OK);
  assert_int_equal(s.updates, 782);
  assert_int_equal(s.batch, 128);
  assert_int_equal(s.warmup, 40);
  assert_true(fabs(kedge_schedule_rate(&s, 40) - 1e-5) < 1e-18);
  assert_true(fabs(kedge_schedule_rate(&s, 782) - 1e-6) < 1e-18);
  kedge_config_destroy(&c);
}

static void test_intervention(void **state) {
  (void)state;
  for (const recipe *r = recipes; r < recipes + RECIPES; r++) {
    kedge_config c = load(r->name);
    is(r, "router entries", (double)c.router.count, r->intervention ? 1 : 0);
    is(r, "freeze_moe_router", c.freeze_moe_router, r->intervention && !strcmp(r->intervention, "freeze"));
    bool balances = r->intervention && !strcmp(r->intervention, "lbl");
    is(r, "router_aux_loss_coef", c.router_aux_loss_coef, balances ? r->coef : 0);
    for (size_t i = 0; i < c.router.count; i++) {
      const kedge_config_router *it = &c.router.items[i];
      is_text(r, "intervention", kedge_config_value_name("router.intervention", it->intervention),
              r->intervention);
      is(r, "coef", it->coef, r->coef);
      if (!isnan(r->beta)) is(r, "beta", it->beta, r->beta);
      is_text(r, "shuffle", kedge_config_value_name("router.shuffle", it->shuffle), r->shuffle);
      is(r, "shuffle_seed", (double)it->shuffle_seed, 0);
      is(r, "a prior", it->prior != NULL, r->prior);
      is(r, "communities", it->communities != NULL, !strcmp(r->shuffle, "within"));
      is(r, "eps", it->eps, 0.05);
      is(r, "clip", it->clip, 5);
      is(r, "layers", (double)it->layers.count, 0); /* all */
      is_text(r, "gate_source", kedge_config_value_name("router.gate_source", it->gate_source), "biased");
      is_text(r, "span", kedge_config_value_name("router.span", it->span), "qa");
      is_text(r, "mask", kedge_config_value_name("router.mask", it->mask), "nonpad");
    }
    is_text(r, "router_lb_scope", kedge_config_value_name("router_lb_scope", c.router_lb_scope), "micro");
    is_text(r, "lb_convention", kedge_config_value_name("lb_convention", c.lb_convention), "switch");
    is_text(r, "lb_counts", kedge_config_value_name("lb_counts", c.lb_counts), "scores");
    is(r, "aux_detach_hidden", c.aux_detach_hidden, false);
    is_text(r, "lb_layers", kedge_config_value_name("lb_layers", c.lb_layers), "sum");
    kedge_config_destroy(&c);
  }
}

/* No file is without a row here and in the table of the README. */
static void test_complete(void **state) {
  (void)state;
  size_t bytes, files = 0;
  char *readme = test_read(test_path(folder(), "README.md"), &bytes);
  DIR *list = opendir(folder());
  assert_non_null(list);
  for (struct dirent *e; (e = readdir(list));) {
    size_t length = strlen(e->d_name), i = 0;
    char row[300];
    if (length < 6 || strcmp(e->d_name + length - 5, ".yaml")) continue;
    files++;
    while (i < RECIPES &&
           !(strlen(recipes[i].name) == length - 5 && !memcmp(recipes[i].name, e->d_name, length - 5)))
      i++;
    if (i == RECIPES) fail_msg("%s is not tested", e->d_name);
    snprintf(row, sizeof row, "| [%s](%s) |", e->d_name, e->d_name);
    if (!strstr(readme, row)) fail_msg("README.md has no row of %s", e->d_name);
  }
  closedir(list);
  free(readme);
  assert_int_equal(files, RECIPES);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_protocol), cmocka_unit_test(test_schedule),
                                     cmocka_unit_test(test_intervention), cmocka_unit_test(test_complete)};
  return cmocka_run_group_tests_name("recipes", tests, NULL, NULL);
}
