/* SPDX-License-Identifier: Apache-2.0
 * `kedge train`: post-trains a model as a configuration says (models/training/trainer.h). What it tells of a
 * run, and --dry-run, are in train_describe.c. */
#include "tools/train.h"

#include "models/training/metrics.h"
#include "models/training/trainer.h"
#include "tools/cli.h"
#include "tools/interrupt.h"
#include "tools/progress.h"
#include "tools/ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct view {
  progress bar;
  bool started;
  uint64_t tokens;
} view;

static void note(void *context, const char *line) {
  view *v = context;
  if (v->started) progress_clear(&v->bar);
  fprintf(stderr, "note: %s\n", line);
}

static void started(void *context, const kedge_setup *s, uint64_t updates, uint64_t done) {
  view *v = context;
  train_describe(s);
  fprintf(stderr, "updates: %llu of %llu to do\n", (unsigned long long)(updates - done),
          (unsigned long long)updates);
  progress_init(&v->bar, stderr, "train", "updates", done, updates);
  v->started = true;
}

static void advanced(void *context, const kedge_train_progress *p) {
  view *v = context;
  char text[96];
  v->tokens += p->tokens;
  snprintf(text, sizeof text, "loss %.4f  grad %.3g", p->loss, p->grad_norm);
  progress_update(&v->bar, p->step, v->tokens, text);
}

static void logged(void *context, const kedge_train_log *log) {
  view *v = context;
  progress_clear(&v->bar);
  fprintf(stderr, "step %llu  epoch %.3f", (unsigned long long)log->step, log->epoch);
  for (size_t i = 0; i < log->count; i++) {
    const char *slash = strrchr(log->items[i].key, '/');
    bool router = !strncmp(log->items[i].key, "router/", 7);
    if (router && log->items[i].value == 0) continue;
    fprintf(stderr, "  %s %.6g",
            router || !slash || !strncmp(log->items[i].key, "eval/", 5) ? log->items[i].key : slash + 1,
            log->items[i].value);
  }
  fputc('\n', stderr);
}

static void saved(void *context, const char *path, uint64_t step) {
  view *v = context;
  progress_clear(&v->bar);
  fprintf(stderr, "saved %s/checkpoint-%llu\n", path, (unsigned long long)step);
}

static bool stop(void *context) {
  (void)context;
  return interrupt_requested();
}

/* Where the time went, by op. */
static void print_times(const kedge_train_result *result) {
  double total = 0;
  for (uint32_t i = 0; i < result->op_count; i++) total += result->ops[i].seconds;
  if (total > 0) fprintf(stderr, "%-22s %10s %10s %8s\n", "op", "calls", "seconds", "share");
  for (uint32_t i = 0; total > 0 && i < result->op_count; i++)
    fprintf(stderr, "%-22s %10llu %10.3f %7.1f%%\n", result->ops[i].op,
            (unsigned long long)result->ops[i].calls, result->ops[i].seconds,
            100 * result->ops[i].seconds / total);
}

static kedge_status run(kedge_comm *comm, const char *yaml, const cli_list *overrides, bool dry) {
  kedge_config config;
  view v = {.started = false};
  const bool leads = kedge_comm_rank(comm, KEDGE_RANKS_ALL) == 0;
  const kedge_status own = kedge_config_load_for(&config, kedge_comm_size(comm, KEDGE_RANKS_ALL), yaml,
                                                 overrides->items, overrides->count),
                     all = kedge_comm_agree(comm, own);
  if (own == KEDGE_OK && all != KEDGE_OK) kedge_config_destroy(&config);
  KEDGE_TRY(all);
  for (size_t i = 0; leads && i < config.notes.count; i++) note(&v, config.notes.items[i]);
  if (dry && kedge_comm_size(comm, KEDGE_RANKS_ALL) > 1) {
    kedge_config_destroy(&config);
    return kedge_comm_agree(
        comm, kedge_fail(KEDGE_ERR_ARGUMENT,
                         "--dry-run is for one process; `kedge plan --world` tells what ranks need"));
  }
  if (dry) {
    kedge_status checked = train_dry_run(&config, note, &v);
    kedge_config_destroy(&config);
    return checked;
  }
  interrupt_listen();
  const kedge_train_hooks hooks = {.note = note,
                                   .started = started,
                                   .progress = advanced,
                                   .logged = logged,
                                   .saved = saved,
                                   .comm = comm,
                                   .stop = stop,
                                   .context = &v};
  kedge_train_result result;
  kedge_status status = kedge_train(&config, &hooks, &result);
  if (v.started && status == KEDGE_OK) {
    char a[24], b[24];
    progress_end(&v.bar, NULL);
    fprintf(stderr, "trained model in %s; workspace %s, gradients and optimizer %s\n", config.output_dir,
            cli_bytes(result.workspace_bytes, a), cli_bytes(result.optimizer_bytes, b));
    print_times(&result);
  } else if (v.started) {
    progress_clear(&v.bar);
  }
  kedge_config_destroy(&config);
  return status;
}

int command_train(int argc, char **argv) {
  bool dry = false;
  const cli_option options[] = {{"--dry-run", CLI_FLAG, &dry, NULL,
                                 "read everything, tell what would be trained and how much memory it takes",
                                 false, 0, 0}};
  const cli_spec spec = {
      .command = "train",
      .synopsis = "CONFIG.yaml [KEY=VALUE ...]",
      .summary =
          "Post-trains a Hugging Face mixture-of-experts model, holding its routing as `router` says.\n"
          "Prints the resolved configuration, then writes checkpoint-N/ folders, metrics.jsonl,\n"
          "trainer_state.json and the trained model into output_dir. SIGINT or SIGTERM saves a\n"
          "checkpoint and stops; resume_from_checkpoint=true goes on exactly there.",
      .options = options,
      .option_count = sizeof options / sizeof *options,
      .least = 1,
      .most = CLI_MAX_ARGUMENTS,
      .examples =
          "kedge train run.yaml\n"
          "kedge train run.yaml router.intervention=rpb router.beta=1 router.prior=prior.safetensors\n"
          "kedge train run.yaml resume_from_checkpoint=true\n"
          "kedge train run.yaml --dry-run",
      .more = kedge_config_help};
  cli_list arguments;
  int code;
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  const char *yaml = cli_is_setting(arguments.items[0]) ? NULL : arguments.items[0];
  cli_list overrides = {.count = 0};
  for (size_t i = yaml ? 1 : 0; i < arguments.count; i++)
    overrides.items[overrides.count++] = arguments.items[i];
  kedge_comm *comm = NULL;
  kedge_status status = ranks_open("train", false, &comm);
  if (status == KEDGE_OK) status = run(comm, yaml, &overrides, dry);
  return ranks_finish("train", comm, status);
}
