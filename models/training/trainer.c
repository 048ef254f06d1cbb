/* SPDX-License-Identifier: Apache-2.0
 * The training loop: updates, logging, evaluation, checkpoints, resuming, the final model. */
#include "models/training/trainer.h"

#include "models/checkpoint/atomic.h"
#include "models/training/metrics.h"
#include "models/training/ranks.h"
#include "models/training/run_checkpoint.h"
#include "models/training/schedule.h"
#include "models/training/step.h"
#include "models/training/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct run {
  const kedge_config *config;
  const kedge_train_hooks *hooks;
  kedge_setup setup;
  kedge_stepper stepper;
  kedge_watch watch; /* empty with router_probe_steps 0 */
  kedge_schedule schedule;
  kedge_batches *batches;
  kedge_metrics *metrics; /* NULL: report_to none */
  kedge_trainer_state *state;
  kedge_run_record record;
  kedge_notes notes;
  uint32_t notes_shown;
  char *yaml;
  int lock; /* descriptor of output_dir, -1: none */
  kedge_train_result result;
  uint64_t saved;     /* step of the newest checkpoint of this process */
  uint64_t best_step; /* of the best evaluation in this process; 0: none */
} run;

/* Rank 0 writes and speaks for all. */
static bool leads(const run *r) {
  return kedge_comm_rank(r->hooks->comm, KEDGE_RANKS_ALL) == 0;
}

static void say(run *r, const char *line) {
  if (r->hooks->note && leads(r)) r->hooks->note(r->hooks->context, line);
}

static void show_notes(run *r) {
  for (; r->notes_shown < r->notes.count; r->notes_shown++) say(r, r->notes.items[r->notes_shown]);
}

/* ---- Start
 * ------------------------------------------------------------------------------------------------------------
 */

/* An empty file counts for nothing: a run that failed in its first update leaves one. */
static bool exists(const char *folder, const char *name) {
  struct stat info;
  char *path = kedge_path_join(folder, name);
  bool found = path && !stat(path, &info) && info.st_size > 0;
  kedge_free(path);
  return found;
}

/* Whether two paths are one folder. */
static bool same_folder(const char *a, const char *b) {
  struct stat x, y;
  return a && b && !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Whether the run shall go on from the last checkpoint, if there is one. */
static bool wants_last(const kedge_config *config) {
  return config->resume_from_checkpoint && !strcmp(config->resume_from_checkpoint, "true");
}

/* A folder with another run's results is not written into by accident, the base model's never. A run that was
 * killed before its first checkpoint has left its log alone; told to go on, it begins anew. */
static kedge_status check_output(const kedge_config *config, const char *checkpoint) {
  const char *out = config->output_dir;
  char *found = NULL;
  if (same_folder(out, config->model_name_or_path))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "output_dir %s is the folder of the base model; choose another",
                      out);
  if (checkpoint || config->overwrite_output_dir) return KEDGE_OK;
  KEDGE_TRY(kedge_run_find(out, &found, NULL));
  kedge_status status = KEDGE_OK;
  const bool ended = exists(out, "config.json");
  if (ended && wants_last(config))
    status = kedge_fail(KEDGE_ERR_ARGUMENT,
                        "output_dir %s holds a model and no checkpoint to resume from; set "
                        "overwrite_output_dir=true or choose another",
                        out);
  else if (found || ended || (exists(out, "metrics.jsonl") && !wants_last(config)))
    status =
        kedge_fail(KEDGE_ERR_ARGUMENT,
                   "output_dir %s holds another run; set resume_from_checkpoint=true to go on with it, or "
                   "overwrite_output_dir=true",
                   out);
  kedge_free(found);
  return status;
}

/* Makes output_dir and holds it against a second run until this process lets go. A file system without locks
 * is no reason to refuse. */
static kedge_status lock_output(run *r) {
  const char *out = r->config->output_dir;
  KEDGE_TRY(kedge_folder_make(out));
  r->lock = open(out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (r->lock < 0) return kedge_fail(KEDGE_ERR_IO, "output_dir %s: %s", out, strerror(errno));
  if (flock(r->lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "output_dir %s: another run is at work there", out);
  return KEDGE_OK;
}

/* The checkpoint to resume from; *path is new memory, NULL for a fresh start. `notes` may be NULL. */
static kedge_status find_checkpoint(const kedge_config *config, char **path, kedge_notes *notes) {
  const char *wanted = config->resume_from_checkpoint;
  *path = NULL;
  if (!wanted || !strcmp(wanted, "false")) return KEDGE_OK;
  if (wants_last(config)) return kedge_run_find(config->output_dir, path, notes);
  *path = kedge_strdup(wanted);
  return *path ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

static kedge_status choose_checkpoint(run *r, char **path) {
  KEDGE_TRY(find_checkpoint(r->config, path, &r->notes));
  show_notes(r);
  if (!*path && wants_last(r->config))
    say(r, "no checkpoint to resume from in output_dir: starting from the beginning");
  return KEDGE_OK;
}

kedge_status kedge_train_check(const kedge_config *config) {
  char *checkpoint;
  KEDGE_TRY(kedge_config_require(config, "output_dir"));
  KEDGE_TRY(find_checkpoint(config, &checkpoint, NULL));
  const kedge_status status = check_output(config, checkpoint);
  kedge_free(checkpoint);
  return status;
}

kedge_status kedge_train_batches(const kedge_setup *setup, kedge_batches **batches,
                                 kedge_schedule *schedule) {
  const kedge_config *c = setup->config;
  const kedge_batches_options options = {
      .batch_size = (uint32_t)c->per_device_train_batch_size,
      .accumulation = (uint32_t)c->gradient_accumulation_steps,
      .ranks = kedge_comm_size(setup->comm, KEDGE_RANKS_ALL),
      .rank = kedge_comm_rank(setup->comm, KEDGE_RANKS_ALL),
      .packing = c->packing,
      .max_length = (uint32_t)c->max_length,
      .shuffle = c->shuffle_dataset,
      .seed = (uint64_t)c->data_seed,
      .epochs = c->num_train_epochs,
      .max_updates = c->max_steps > 0 ? (uint64_t)c->max_steps : 0,
  };
  *batches = NULL;
  if (c->packing && c->packing_strategy != KEDGE_CONFIG_PACKING_BFD)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED,
                      "key \"packing_strategy\": expected bfd, which never cuts a sample");
  KEDGE_TRY(kedge_batches_new(kedge_setup_train(setup), &options, batches));
  kedge_status status = kedge_schedule_init(schedule, c, kedge_batches_rows(*batches), options.ranks);
  if (status == KEDGE_OK && schedule->updates != kedge_batches_updates(*batches))
    status = kedge_fail(KEDGE_ERR_MISMATCH, "the schedule has %llu updates, the data %llu",
                        (unsigned long long)schedule->updates,
                        (unsigned long long)kedge_batches_updates(*batches));
  if (status == KEDGE_OK) return KEDGE_OK;
  kedge_batches_free(*batches);
  *batches = NULL;
  return status;
}

/* What this run is, for its checkpoints. */
static kedge_status describe(run *r) {
  kedge_run_record *record = &r->record;
  *record = (kedge_run_record){.updates = r->schedule.updates, .best_loss = (double)NAN};
  KEDGE_TRY(kedge_model_hash(r->setup.model, record->base));
  KEDGE_TRY(kedge_interventions_hash(&r->setup.router, record->routing));
  snprintf(record->data, sizeof record->data, "%s", kedge_setup_train(&r->setup)->hash);
  if (r->setup.eval) snprintf(record->eval, sizeof record->eval, "%s", r->setup.eval->hash);
  record->settings = kedge_run_settings(r->config, kedge_comm_size(r->hooks->comm, KEDGE_RANKS_ALL));
  record->device = kedge_strdup(kedge_device_description(r->setup.device));
  r->yaml = kedge_config_yaml(r->config);
  return record->settings && record->device && r->yaml ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

static kedge_status resume(run *r, const char *checkpoint) {
  kedge_run_record had;
  KEDGE_TRY(kedge_run_load(checkpoint, &r->stepper.optimizer, &r->record, &had, &r->state, &r->notes));
  show_notes(r);
  r->record.step = r->saved = had.step;
  r->record.loss_sum = had.loss_sum;
  r->record.loss_count = had.loss_count;
  r->record.best_loss = had.best_loss;
  kedge_run_record_destroy(&had);
  return kedge_batches_seek(r->batches, r->record.step);
}

static kedge_status start_state(run *r) {
  if (!r->state) KEDGE_TRY(kedge_trainer_state_new(&r->state));
  KEDGE_TRY(kedge_trainer_state_set_run(r->state, r->config, &r->schedule));
  if (r->config->report_to == KEDGE_CONFIG_REPORT_NONE || !leads(r)) return KEDGE_OK;
  char *path = kedge_path_join(r->config->output_dir, "metrics.jsonl");
  kedge_status status = path ? kedge_metrics_open(path, r->record.step, &r->metrics) : KEDGE_ERR_MEMORY;
  kedge_free(path);
  return status;
}

/* Where rank 0 resumes from, for all: *checkpoint is new memory, NULL for a fresh start. */
static kedge_status share_checkpoint(run *r, char **checkpoint) {
  char path[4096] = "";
  kedge_status status = KEDGE_OK;
  if (leads(r)) {
    status = choose_checkpoint(r, checkpoint);
    if (status == KEDGE_OK) status = check_output(r->config, *checkpoint);
    if (status == KEDGE_OK && *checkpoint &&
        snprintf(path, sizeof path, "%s", *checkpoint) >= (int)sizeof path)
      status = kedge_fail(KEDGE_ERR_ARGUMENT, "%.80s...: a longer path than 4095 bytes", *checkpoint);
  }
  KEDGE_TRY(kedge_comm_agree(r->hooks->comm, status));
  KEDGE_TRY(kedge_comm_broadcast(r->hooks->comm, 0, path, sizeof path));
  if (leads(r) || !*path) return KEDGE_OK;
  *checkpoint = kedge_strdup(path);
  return *checkpoint ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

/* The output folder, held by rank 0; once more a look at what is there: nobody else writes now. */
static kedge_status take_output(run *r, const char *checkpoint) {
  if (!leads(r)) return KEDGE_OK;
  KEDGE_TRY(lock_output(r));
  return check_output(r->config, checkpoint);
}

/* What this rank trains with. */
static kedge_status open_run(run *r) {
  KEDGE_TRY(kedge_train_batches(&r->setup, &r->batches, &r->schedule));
  KEDGE_TRY(kedge_stepper_init(&r->stepper, &r->setup));
  if (kedge_schedule_only_warms(&r->schedule))
    say(r, "warm-up takes all updates of this run: the learning rate never reaches its highest");
  return describe(r);
}

/* The run's fixed batch. It runs the model, together with the other ranks. */
static kedge_status open_watch(run *r) {
  if (r->config->router_probe_steps <= 0 || !r->setup.model->params.moe_layers) return KEDGE_OK;
  return kedge_watch_init(&r->watch, &r->setup, r->stepper.workspace, r->stepper.base);
}

static void tell_rank(void *context, const char *line) {
  say(context, line);
}

static kedge_status start(run *r) {
  kedge_comm *comm = r->hooks->comm;
  char *checkpoint = NULL;
  kedge_status status = kedge_comm_agree(comm, kedge_config_require(r->config, "output_dir"));
  if (status == KEDGE_OK) status = kedge_ranks_check(comm, r->config);
  if (status == KEDGE_OK) status = share_checkpoint(r, &checkpoint);
  if (status == KEDGE_OK)
    status =
        kedge_setup_init_on(&r->setup, r->config, comm, leads(r) ? r->hooks->note : NULL, r->hooks->context);
  if (!comm || !comm->agreed) status = kedge_comm_agree(comm, status);
  if (status == KEDGE_OK) status = kedge_comm_agree(comm, take_output(r, checkpoint));
  if (status == KEDGE_OK) status = kedge_ranks_see(comm, r->config->output_dir);
  if (status == KEDGE_OK) status = kedge_comm_agree(comm, open_run(r));
  if (status == KEDGE_OK) status = kedge_ranks_check_contents(comm, &r->record);
  if (status == KEDGE_OK) status = kedge_ranks_tell(comm, r->setup.device, tell_rank, r);
  if (status == KEDGE_OK) status = kedge_comm_agree(comm, open_watch(r));
  if (status == KEDGE_OK && checkpoint) status = resume(r, checkpoint);
  if (status == KEDGE_OK) /* rather now than after hours of training that could not be kept */
    status = kedge_run_require_disk(r->config->output_dir, &r->stepper.optimizer,
                                    r->config->save_strategy != KEDGE_CONFIG_STRATEGY_NO);
  if (status == KEDGE_OK) status = kedge_comm_agree(comm, start_state(r));
  kedge_free(checkpoint);
  if (status == KEDGE_OK && r->hooks->started && leads(r))
    r->hooks->started(r->hooks->context, &r->setup, r->schedule.updates, r->record.step);
  return status;
}

/* ---- Logging, evaluation, saving
 * ---------------------------------------------------------------------------------------- */

/* One line of metrics under our names; where they have any, one log entry under transformers' names. */
static kedge_status log_line(run *r, double epoch, const kedge_metric *ours, const kedge_metric *theirs,
                             size_t count, size_t their_count) {
  const uint64_t step = r->record.step;
  if (r->metrics) KEDGE_TRY(kedge_metrics_write(r->metrics, step, epoch, ours, count));
  if (their_count) KEDGE_TRY(kedge_trainer_state_log(r->state, step, epoch, theirs, their_count));
  const kedge_train_log log = {step, epoch, ours, count};
  if (r->hooks->logged && leads(r)) r->hooks->logged(r->hooks->context, &log);
  return KEDGE_OK;
}

enum { MAX_METRICS = 16 + 2 * KEDGE_MAX_INTERVENTIONS };

/* What the router's interventions did in an update: every added loss before its coefficient, and that. */
static size_t router_metrics(const run *r, const kedge_step_result *step, kedge_metric *items) {
  const kedge_interventions *router = &r->setup.router;
  static const struct {
    const char *term, *coef;
  } keys[KEDGE_ROUTER_COUNT] = {
      [KEDGE_ROUTER_lbl] = {"router/lb_loss", "router/lb_loss_coef"},
      [KEDGE_ROUTER_z_loss] = {"router/z_loss", "router/z_loss_coef"},
      [KEDGE_ROUTER_router_l2] = {"router/router_l2", "router/router_l2_coef"},
      [KEDGE_ROUTER_kl] = {"router/kl", "router/kl_coef"},
      [KEDGE_ROUTER_kl_token] = {"router/kl_token", "router/kl_token_coef"},
      [KEDGE_ROUTER_logit_l2] = {"router/logit_l2", "router/logit_l2_coef"},
  };
  const double cells = (double)step->clipped.cells;
  const bool norm = step->norms.all > 0;
  size_t n = 0;
  items[n++] = (kedge_metric){"router/grad_norm", step->norms.router};
  items[n++] = (kedge_metric){"router/grad_share", norm ? pow(step->norms.router / step->norms.all, 2) : 0};
  items[n++] = (kedge_metric){"router/anchor", step->aux};
  items[n++] = (kedge_metric){"router/load_max_mean", step->load_max};
  items[n++] = (kedge_metric){"router/dead_experts", step->dead_experts};
  if (step->clipped.cells) {
    items[n++] = (kedge_metric){"router/prior_clipped_low", (double)step->clipped.low / cells};
    items[n++] = (kedge_metric){"router/prior_clipped_high", (double)step->clipped.high / cells};
  }
  for (uint32_t i = 0; i < router->count; i++) {
    const kedge_intervention *it = &router->items[i];
    if (!keys[it->id].term) continue;
    items[n++] = (kedge_metric){keys[it->id].term, step->terms[i]};
    items[n++] = (kedge_metric){keys[it->id].coef, it->coef};
  }
  return n;
}

static kedge_status log_training(run *r, double epoch, double rate, const kedge_step_result *step) {
  double loss = r->record.loss_sum / (double)r->record.loss_count;
  kedge_metric ours[MAX_METRICS] = {
      {"train/loss", loss}, {"train/learning_rate", rate}, {"train/grad_norm", step->norms.all}};
  const size_t count = 3 + router_metrics(r, step, ours + 3);
  const kedge_metric theirs[] = {{"loss", loss}, {"grad_norm", step->norms.all}, {"learning_rate", rate}};
  r->record.loss_sum = 0;
  r->record.loss_count = 0;
  r->result.loss = loss;
  return log_line(r, epoch, ours, theirs, count, sizeof theirs / sizeof *theirs);
}

/* The routing kept on a fixed batch. */
static kedge_status watch(run *r, double epoch) {
  kedge_retention kept;
  KEDGE_TRY(kedge_watch_measure(&r->watch, &kept));
  const kedge_metric ours[] = {{"router/topk_overlap_mean", kept.mean.overlap},
                               {"router/tvd_mean", kept.mean.tvd},
                               {"router/jsd_nats_mean", kept.mean.jsd_nats}};
  kedge_status status = log_line(r, epoch, ours, NULL, sizeof ours / sizeof *ours, 0);
  kedge_retention_destroy(&kept);
  return status;
}

static kedge_status evaluate(run *r, double epoch) {
  double loss;
  KEDGE_TRY(kedge_stepper_evaluate(&r->stepper, &loss));
  r->result.eval_loss = loss;
  if (!(loss >= r->record.best_loss)) {
    r->record.best_loss = loss;
    r->best_step = r->record.step;
    KEDGE_TRY(kedge_trainer_state_set(r->state, "best_metric", loss));
    KEDGE_TRY(kedge_trainer_state_set(r->state, "best_global_step", (double)r->best_step));
  }
  const kedge_metric ours = {"eval/loss", loss}, theirs = {"eval_loss", loss};
  return log_line(r, epoch, &ours, &theirs, 1, 1);
}

static kedge_status save(run *r) {
  if (r->saved == r->record.step) return KEDGE_OK;
  KEDGE_TRY(kedge_trainer_state_set(r->state, "global_step", (double)r->record.step));
  if (r->best_step && r->best_step == r->record.step) {
    char *best = kedge_format("%s/checkpoint-%llu", r->config->output_dir, (unsigned long long)r->best_step);
    kedge_status status = best ? kedge_trainer_state_set_best(r->state, best) : KEDGE_ERR_MEMORY;
    kedge_free(best);
    KEDGE_TRY(status);
  }
  KEDGE_TRY(kedge_run_save(r->config->output_dir, &r->stepper.optimizer, &r->record, r->state, r->yaml,
                           (uint32_t)r->config->save_total_limit, r->saved ? NULL : &r->notes));
  show_notes(r);
  r->saved = r->record.step;
  if (r->hooks->saved && leads(r)) r->hooks->saved(r->hooks->context, r->config->output_dir, r->record.step);
  return KEDGE_OK;
}

/* ---- The loop
 * ------------------------------------------------------------------------------------------------------------
 */

/* What is due after an update. */
static kedge_status after_update(run *r, const kedge_update *update, double rate,
                                 const kedge_step_result *step) {
  const kedge_config *c = r->config;
  const uint64_t done = r->record.step;
  const bool last = done == r->schedule.updates;
  const uint64_t every = kedge_schedule_every(&r->schedule, c->logging_steps);
  if (every && (done % every == 0 || last)) KEDGE_TRY(log_training(r, update->epoch, rate, step));
  const uint64_t probes = kedge_schedule_every(&r->schedule, c->router_probe_steps);
  if (r->watch.reader && (last || (probes && done % probes == 0))) KEDGE_TRY(watch(r, update->epoch));
  bool due = kedge_schedule_due(&r->schedule, c->eval_strategy, c->eval_steps, c->evals_per_epoch, done);
  if (r->setup.eval && (due || last)) KEDGE_TRY(evaluate(r, update->epoch));
  const bool saves = c->save_strategy != KEDGE_CONFIG_STRATEGY_NO;
  if ((last && saves) ||
      kedge_schedule_due(&r->schedule, c->save_strategy, c->save_steps, c->saves_per_epoch, done))
    return save(r);
  return KEDGE_OK;
}

static kedge_status one_update(run *r, const kedge_update *update) {
  kedge_step_result step;
  const double rate = kedge_schedule_rate(&r->schedule, update->index);
  kedge_status status = kedge_stepper_update(&r->stepper, r->batches, update, rate, &step);
  if (status != KEDGE_OK) return kedge_fail_in(status, "update %llu", (unsigned long long)update->index + 1);
  r->record.step = update->index + 1;
  r->record.loss_sum += step.loss;
  r->record.loss_count++;
  KEDGE_TRY(kedge_trainer_state_set(r->state, "epoch", update->epoch));
  const kedge_train_progress progress = {
      .step = r->record.step,
      .updates = r->schedule.updates,
      .tokens = update->tokens,
      .supervised = update->supervised,
      .epoch = update->epoch,
      .loss = step.loss,
      .learning_rate = rate,
      .grad_norm = step.norms.all,
      .router_grad_norm = step.norms.router,
  };
  if (r->hooks->progress && leads(r)) r->hooks->progress(r->hooks->context, &progress);
  return after_update(r, update, rate, &step);
}

static kedge_status loop(run *r) {
  for (;;) {
    kedge_update update;
    KEDGE_TRY(kedge_batches_next(r->batches, &update));
    if (!update.micro_batches) return KEDGE_OK;
    KEDGE_TRY(one_update(r, &update));
    bool stop = r->record.step < r->schedule.updates && r->hooks->stop && r->hooks->stop(r->hooks->context);
    KEDGE_TRY(kedge_comm_any(r->hooks->comm, &stop));
    if (stop) {
      KEDGE_TRY(save(r));
      return kedge_fail(
          KEDGE_ERR_INTERRUPTED,
          "stopped after update %llu; checkpoint-%llu is saved, go on with resume_from_checkpoint=true",
          (unsigned long long)r->record.step, (unsigned long long)r->record.step);
    }
  }
}

/* The final model and the state of the whole run, in output_dir itself. */
static kedge_status finish(run *r) {
  KEDGE_TRY(kedge_trainer_state_set(r->state, "global_step", (double)r->record.step));
  KEDGE_TRY(kedge_run_export(r->config->output_dir, &r->stepper.optimizer, NULL));
  if (!leads(r)) return kedge_comm_agree(r->hooks->comm, KEDGE_OK);
  char *path = kedge_path_join(r->config->output_dir, "trainer_state.json");
  kedge_status status = path ? kedge_trainer_state_save(r->state, path) : KEDGE_ERR_MEMORY;
  kedge_free(path);
  return kedge_comm_agree(r->hooks->comm, status);
}

kedge_status kedge_train(const kedge_config *config, const kedge_train_hooks *hooks,
                         kedge_train_result *result) {
  run r = {.config = config,
           .hooks = hooks,
           .lock = -1,
           .result = {.loss = (double)NAN, .eval_loss = (double)NAN}};
  kedge_status status = start(&r);
  if (status == KEDGE_OK) status = loop(&r);
  if (status == KEDGE_OK) status = finish(&r);
  if (r.stepper.workspace) {
    r.result.workspace_bytes = kedge_workspace_bytes(r.stepper.workspace);
    r.result.optimizer_bytes = kedge_optimizer_bytes(&r.stepper.optimizer);
    r.result.op_count =
        kedge_stepper_times(&r.stepper, r.result.ops, sizeof r.result.ops / sizeof *r.result.ops);
  }
  r.result.steps = r.record.step;
  kedge_status closed = kedge_metrics_close(r.metrics);
  if (status == KEDGE_OK) status = closed;
  kedge_trainer_state_free(r.state);
  kedge_watch_destroy(&r.watch);
  kedge_stepper_destroy(&r.stepper);
  kedge_batches_free(r.batches);
  kedge_setup_destroy(&r.setup);
  kedge_run_record_destroy(&r.record);
  kedge_notes_destroy(&r.notes);
  kedge_free(r.yaml);
  if (r.lock >= 0) close(r.lock);
  if (result) *result = r.result;
  return status;
}
