/* SPDX-License-Identifier: Apache-2.0
 * Differences between runs, explained (explain.h). */
#include "tests/support/explain.h"

#include "models/trace/near_ties.h"
#include "tests/support/files.h"
#include "tests/support/training.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct routed {
  kedge_device *device;
  kedge_tokenizer *tokenizer;
  kedge_dataset *data;
} routed;

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static void routed_open(routed *r) {
  const char *file = test_path(test_folder(), "train.jsonl");
  ok(kedge_device_open("cpu", &(kedge_open_options){.threads = 1}, &r->device));
  ok(kedge_tokenizer_open(test_path(test_folder(), "base"), NULL, &r->tokenizer));
  const kedge_dataset_options options = {
      .tokenizer = r->tokenizer, .max_length = 160, .loss_on_all = true, .messages_on_all = true, .eos = -1};
  ok(kedge_dataset_read(&file, NULL, 1, &options, &r->data));
}

static void routed_close(routed *r) {
  kedge_dataset_free(r->data);
  kedge_tokenizer_free(r->tokenizer);
  kedge_device_close(r->device);
}

/* The choices of a run after so many updates. */
static void route(const routed *r, const char *run, unsigned updates, kedge_trace *trace) {
  char folder[96];
  kedge_model *model;
  const kedge_model_how how = {.dtype = KEDGE_F32, .map = true};
  const kedge_trace_options options = {.with_gaps = true};
  snprintf(folder, sizeof folder, "%s/checkpoint-%u", run, updates);
  ok(kedge_model_open(r->device, test_path(test_folder(), updates ? folder : "base"), &how, &model));
  ok(kedge_trace_collect(model, r->data, &options, trace));
  kedge_model_free(model);
}

static double difference(const char *a, const char *b, unsigned step) {
  static const char *const keys[] = {"train/loss", "train/grad_norm", "router/grad_norm"};
  double worst = 0;
  for (int k = 0; k < 3; k++) {
    const double one = training_metric(a, step, keys[k]), other = training_metric(b, step, keys[k]),
                 d = fabs(other - one) / one;
    if (!(d <= worst)) worst = d; /* also what is no number */
  }
  return worst;
}

void explain_runs(const char *a, const char *b, unsigned steps, double limit, double tolerance,
                  explain_report *report) {
  routed r;
  *report = (explain_report){0};
  routed_open(&r);
  for (unsigned step = 1; step <= steps; step++) {
    kedge_trace one, other;
    kedge_flips flips;
    uint64_t counts[8];
    route(&r, a, step - 1, &one);
    route(&r, b, step - 1, &other);
    assert_true(one.layers <= 8);
    report->near_ties += kedge_near_ties_count(&one, tolerance, counts);
    for (uint32_t l = 0; l < one.layers; l++) report->layers[l] += counts[l];
    ok(kedge_flips_find(&one, &other, tolerance, &flips));
    report->choices += flips.rows;
    /* A choice that flipped at an earlier update has changed all that follows. */
    if (!report->flipped) report->strange += flips.unexplained;
    report->flipped += flips.flipped;
    const double d = difference(a, b, step);
    if (!(d <= report->worst)) report->worst = d;
    if (!(d <= limit) && !report->near_ties && !report->late) report->late = step;
    kedge_trace_destroy(&one);
    kedge_trace_destroy(&other);
  }
  routed_close(&r);
}

bool explain_holds(const char *what, const explain_report *r, double limit) {
  char by[128] = "";
  for (int l = 0, n = 0; l < 8 && n < 100; l++)
    if (r->layers[l])
      n += snprintf(by + n, sizeof by - (size_t)n, " %d:%llu", l, (unsigned long long)r->layers[l]);
  printf(
      "%s: largest difference %.2g; near ties %llu of %llu choices%s%s, %llu flipped, %llu without one%s\n",
      what, r->worst, (unsigned long long)r->near_ties, (unsigned long long)r->choices,
      *by ? ", by layer" : "", by, (unsigned long long)r->flipped, (unsigned long long)r->strange,
      r->late                ? "; too much before any near tie"
      : !(r->worst <= limit) ? "; explained"
                             : "");
  return !r->late && !r->strange;
}
