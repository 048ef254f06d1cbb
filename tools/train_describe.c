/* SPDX-License-Identifier: Apache-2.0
 * What a run will do, before it does it (train.h). */
#include "tools/train.h"

#include "core/device.h"
#include "models/routing/feed.h"
#include "models/training/trainer.h"
#include "tools/cli.h"
#include "tools/inputs.h"
#include "tools/plan.h"

#include <stdio.h>

static void print_interventions(const kedge_setup *s) {
  if (!s->router.count) fprintf(stderr, "router: no intervention and no balance loss\n");
  for (uint32_t i = 0; i < s->router.count; i++) {
    char *line = kedge_interventions_describe(s, i);
    if (line) fprintf(stderr, "router: %s\n", line);
    kedge_free(line);
  }
}

void train_describe(const kedge_setup *s) {
  char *resolved = kedge_config_yaml(s->config);
  if (resolved) fputs(resolved, stdout);
  fflush(stdout);
  kedge_free(resolved);
  const kedge_dataset *train = kedge_setup_train(s);
  const kedge_params *p = &s->model->params;
  fprintf(stderr, "device: %s, storage %s\n", kedge_device_description(s->device),
          kedge_dtype_name(s->model->dtype));
  char count[32], tokens[32], supervised[32];
  fprintf(stderr, "model: %s, %s parameters in %u layers (%u with experts), %u experts, top %u\n",
          s->model->config.model_type, cli_count(p->total, count), s->model->config.num_hidden_layers,
          p->moe_layers, s->model->config.num_experts, s->model->config.num_experts_per_tok);
  fprintf(stderr,
          "data: %u samples, %s tokens, %s of them trained on; %llu cut at max_length, %llu left out\n",
          train->count, cli_count(train->offsets[train->count], tokens),
          cli_count(train->stats.supervised, supervised), (unsigned long long)train->stats.truncated,
          (unsigned long long)train->stats.excluded);
  if (s->config->packing)
    fprintf(stderr, "packing: rows of at most %lld tokens, best fit; samples never see each other\n",
            (long long)s->config->max_length);
  if (s->eval) fprintf(stderr, "evaluation: %u samples\n", s->eval->count);
  print_interventions(s);
}

/* ---- Without training
 * ----------------------------------------------------------------------------------------------- */

static void print_trained(const kedge_setup *s) {
  const kedge_params *p = &s->model->params;
  uint64_t router = 0;
  char text[32];
  for (uint32_t i = 0; i < p->count; i++)
    if (p->items[i].role == KEDGE_ROLE_ROUTER) router += kedge_param_count(&p->items[i]);
  if (s->config->freeze_moe_router)
    fprintf(stderr, "trained: %s parameters, all but the router", cli_count(p->total - router, text));
  else
    fprintf(stderr, "trained: all parameters, the router's %s among them", cli_count(router, text));
  if (p->fixed)
    fprintf(stderr, "; %s values of its selection bias are no parameters", cli_count(p->fixed, text));
  fputc('\n', stderr);
}

/* Walks the run's batches, which are the ones that training would see. */
static kedge_status print_updates(const kedge_setup *s, uint32_t *longest) {
  kedge_batches *batches = NULL;
  kedge_schedule schedule;
  uint64_t tokens = 0, supervised = 0, micro_batches = 0;
  char a[32], b[32], c[32];
  KEDGE_TRY(kedge_train_batches(s, &batches, &schedule));
  kedge_status status = KEDGE_OK;
  *longest = 0;
  for (kedge_update u = {0}; status == KEDGE_OK;) {
    status = kedge_batches_next(batches, &u);
    if (status != KEDGE_OK || !u.micro_batches) break;
    tokens += u.tokens;
    supervised += u.supervised;
    micro_batches += u.micro_batches;
    if (u.longest_stream > *longest) *longest = u.longest_stream;
  }
  kedge_batches_free(batches);
  if (status == KEDGE_OK)
    fprintf(stderr,
            "updates: %llu of %llu rows, %s micro-batches, %s tokens, %s of them trained on; warm-up %llu%s, "
            "learning rate %g\n",
            (unsigned long long)schedule.updates, (unsigned long long)schedule.batch,
            cli_count(micro_batches, a), cli_count(tokens, b), cli_count(supervised, c),
            (unsigned long long)schedule.warmup,
            kedge_schedule_only_warms(&schedule) ? " (all there are)" : "", schedule.peak);
  return status;
}

/* What interventions read of a micro-batch; true if the frozen base is run for them. */
static bool describe_feeds(const kedge_setup *s, kedge_decoder_spec *spec) {
  kedge_feeds feeds;
  bool base = false;
  kedge_feeds_init(&feeds, &s->model->params, s->router.items, s->router.sources, s->router.count);
  *spec = (kedge_decoder_spec){
      .recompute = s->config->gradient_checkpointing,
      .loads = true,
      .counts = true,
      .interventions = s->router.items,
      .intervention_count = s->router.count,
      .prior_rows = kedge_feeds_rows(&feeds, (uint32_t)s->config->per_device_train_batch_size)};
  for (uint32_t i = 0; i < s->router.count; i++) base = base || kedge_feeds_needs_base(&feeds, i);
  kedge_feeds_destroy(&feeds);
  return base;
}

/* The plan of the largest micro-batch, on a device that computes nothing. */
static kedge_status print_memory(const kedge_setup *s, uint32_t tokens) {
  kedge_hf_config config;
  kedge_device *device = NULL;
  kedge_model *model = NULL;
  plan_report report = {0};
  plan_row rows[PLAN_ROWS];
  kedge_decoder_spec spec;
  char text[24];
  const bool base = describe_feeds(s, &spec);
  KEDGE_TRY(input_config(s->config->model_name_or_path, &config));
  kedge_status status = kedge_device_open("null", NULL, &device);
  if (status == KEDGE_OK)
    status = kedge_model_describe(device, &config, s->model->dtype, &model);
  else
    kedge_hf_config_destroy(&config);
  if (status == KEDGE_OK) status = plan_measure(model, tokens, &spec, &report);
  if (status == KEDGE_OK) {
    fprintf(stderr, "memory: about %s with micro-batches of up to %u tokens\n",
            cli_bytes(plan_rows(&report, rows), text), report.size);
    for (int i = 0; i < PLAN_ROWS; i++)
      if (rows[i].bytes) fprintf(stderr, "  %-28s %12s\n", rows[i].label, cli_bytes(rows[i].bytes, text));
    if (base) fprintf(stderr, "  the frozen base runs too, its weights mapped from their files\n");
  }
  kedge_model_free(model);
  kedge_device_close(device);
  return status;
}

kedge_status train_dry_run(const kedge_config *config, kedge_note note, void *context) {
  kedge_setup setup;
  uint32_t longest = 0;
  KEDGE_TRY(kedge_train_check(config));
  KEDGE_TRY(kedge_setup_init(&setup, config, note, context));
  train_describe(&setup);
  print_trained(&setup);
  kedge_status status = print_updates(&setup, &longest);
  if (status == KEDGE_OK) status = print_memory(&setup, longest);
  kedge_setup_destroy(&setup);
  if (status == KEDGE_OK) fprintf(stderr, "dry run: nothing was written\n");
  return status;
}
