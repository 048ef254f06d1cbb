/* SPDX-License-Identifier: Apache-2.0
 * kedge_run.json: what a checkpoint says about its run, and whether a resumed run is the same run. */
#include "models/training/run_record.h"

#include "models/checkpoint/atomic.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RECORD_CAP = 1 << 20, MOST_RANKS = 1 << 16 };

/* Settings that may change between a run and its resumption: they decide where and when things are written,
 * not what. */
static const char *const free_settings[] = {"output_dir",
                                            "overwrite_output_dir",
                                            "save_strategy",
                                            "save_steps",
                                            "saves_per_epoch",
                                            "save_total_limit",
                                            "logging_steps",
                                            "eval_strategy",
                                            "eval_steps",
                                            "evals_per_epoch",
                                            "report_to",
                                            "resume_from_checkpoint",
                                            "backend",
                                            "expert_parallel",
                                            "threads",
                                            "strict",
                                            "skip_bad_lines",
                                            "model_name_or_path",
                                            "dataset",
                                            "eval_dataset",
                                            "per_device_eval_batch_size",
                                            "profile",
                                            "overlap_grad_reduce",
                                            "router_probe_steps",
                                            "gradient_checkpointing"};

/* Where an intervention's files lie; what they hold is in routing_hash. */
static const char *const router_paths[] = {"prior", "communities", "trace"};

void kedge_run_record_destroy(kedge_run_record *record) {
  kedge_free(record->settings);
  kedge_free(record->device);
  *record = (kedge_run_record){0};
}

char *kedge_run_settings(const kedge_config *config, uint32_t ranks) {
  char *all = kedge_config_json(config), *text = NULL, *copy = NULL;
  json_t *object = all ? json_loads(all, 0, NULL) : NULL;
  for (size_t i = 0; object && i < sizeof free_settings / sizeof *free_settings; i++)
    json_object_del(object, free_settings[i]);
  if (object && json_object_set_new(object, "per_device_train_batch_size",
                                    json_integer(config->per_device_train_batch_size * ranks))) {
    json_decref(object);
    object = NULL;
  }
  const json_t *routers = json_object_get(object, "router");
  for (size_t i = 0; i < json_array_size(routers); i++)
    for (size_t j = 0; j < sizeof router_paths / sizeof *router_paths; j++)
      json_object_del(json_array_get(routers, i), router_paths[j]);
  if (object) text = json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS);
  if (text) copy = kedge_strdup(text);
  free(text);
  json_decref(object);
  kedge_free(all);
  return copy;
}

char *kedge__run_record_json(const kedge_run_record *r) {
  json_t *settings = json_loads(r->settings, 0, NULL);
  json_t *o = json_pack(
      "{s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:f, s:I, s:o?, s:o?, s:I, s:I}", "kedge_run", 1,
      "version", kedge_version(), "base_hash", r->base, "routing_hash", r->routing, "data_hash", r->data,
      "eval_hash", r->eval, "device", r->device, "step", (json_int_t)r->step, "updates",
      (json_int_t)r->updates, "log_loss_sum", r->loss_sum, "log_loss_count", (json_int_t)r->loss_count,
      "best_loss", isnan(r->best_loss) ? json_null() : json_real(r->best_loss), "settings", settings, "ranks",
      (json_int_t)r->layout.ranks, "expert_parallel", (json_int_t)r->layout.experts);
  char *text = o ? json_dumps(o, JSON_INDENT(2)) : NULL, *copy = text ? kedge_format("%s\n", text) : NULL;
  free(text);
  json_decref(o);
  return copy;
}

static kedge_status parse(const json_t *o, kedge_run_record *r) {
  const char *data, *eval, *device, *base = "", *routing = "";
  json_int_t step, updates, count, ranks = 1, experts = 1;
  const json_t *best, *settings;
  json_error_t error;
  if (json_unpack_ex((json_t *)(uintptr_t)o, &error, 0,
                     "{s?s, s?s, s:s, s:s, s:s, s:I, s:I, s:F, s:I, s:o, s:o, s?I, s?I}", "base_hash", &base,
                     "routing_hash", &routing, "data_hash", &data, "eval_hash", &eval, "device", &device,
                     "step", &step, "updates", &updates, "log_loss_sum", &r->loss_sum, "log_loss_count",
                     &count, "best_loss", &best, "settings", &settings, "ranks", &ranks, "expert_parallel",
                     &experts) ||
      strlen(base) > 32 || strlen(routing) > 32 || strlen(data) > 32 || strlen(eval) > 32 || step < 0 ||
      updates < step || count < 0 || ranks < 1 || ranks > MOST_RANKS || experts < 1 || ranks % experts ||
      !json_is_object(settings))
    return kedge_fail(KEDGE_ERR_FORMAT, "not a run record: %s", error.text);
  memcpy(r->base, base, strlen(base) + 1);
  memcpy(r->routing, routing, strlen(routing) + 1);
  memcpy(r->data, data, strlen(data) + 1);
  memcpy(r->eval, eval, strlen(eval) + 1);
  r->step = (uint64_t)step;
  r->updates = (uint64_t)updates;
  r->layout = (kedge_layout){(uint32_t)ranks, (uint32_t)experts};
  r->loss_count = (uint64_t)count;
  r->best_loss = json_is_number(best) ? json_number_value(best) : (double)NAN;
  char *text = json_dumps(settings, JSON_COMPACT | JSON_SORT_KEYS);
  r->settings = text ? kedge_strdup(text) : NULL;
  r->device = kedge_strdup(device);
  free(text);
  return r->settings && r->device ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

kedge_status kedge__run_record_read(const char *checkpoint, kedge_run_record *r) {
  char *path = kedge_path_join(checkpoint, KEDGE_RUN_RECORD), *text = NULL;
  size_t bytes = 0;
  json_error_t error;
  *r = (kedge_run_record){0};
  kedge_status status = path ? kedge_file_read(path, RECORD_CAP, &text, &bytes) : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) {
    json_t *o = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    status = o ? parse(o, r) : kedge_fail(KEDGE_ERR_FORMAT, "%s", error.text);
    if (status != KEDGE_OK) status = kedge_fail_in(status, "%s", path);
    json_decref(o);
  }
  if (status != KEDGE_OK) kedge_run_record_destroy(r);
  kedge_free(text);
  kedge_free(path);
  return status;
}

/* A run of constant rate that is bounded by max_steps does the same updates whatever that bound: it may go on
 * beyond it. */
static bool may_extend(json_t *had, json_t *has) {
  const char *schedule = json_string_value(json_object_get(had, "lr_scheduler_type"));
  if (!schedule || strncmp(schedule, "constant", 8)) return false;
  if (json_integer_value(json_object_get(had, "max_steps")) <= 0 ||
      json_integer_value(json_object_get(has, "max_steps")) <= 0)
    return false;
  json_object_del(had, "max_steps");
  json_object_del(has, "max_steps");
  return true;
}

/* Names the first setting that differs. */
static kedge_status match_settings(const char *checkpoint, json_t *had, json_t *has) {
  const char *key;
  json_t *value;
  if (json_equal(had, has)) return KEDGE_OK;
  json_object_foreach(had, key, value) {
    json_t *other = json_object_get(has, key);
    if (other && json_equal(value, other)) continue;
    char *x = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT),
         *y = other ? json_dumps(other, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    if (!strcmp(key, "per_device_train_batch_size")) /* recorded of all ranks together */
      kedge_fail(KEDGE_ERR_MISMATCH,
                 "key \"%s\": the checkpoint %s was made with %s rows on all ranks together, this run has %s",
                 key, checkpoint, x ? x : "?", y ? y : "none");
    else
      kedge_fail(KEDGE_ERR_MISMATCH, "key \"%s\": the checkpoint %s was made with %s, this run has %s", key,
                 checkpoint, x ? x : "?", y ? y : "nothing");
    free(x);
    free(y);
    return KEDGE_ERR_MISMATCH;
  }
  return kedge_fail(KEDGE_ERR_MISMATCH, "%s was made with other settings than this run's", checkpoint);
}

kedge_status kedge__run_record_match(const char *checkpoint, const kedge_run_record *r,
                                     const kedge_run_record *want) {
  if (strcmp(r->data, want->data))
    return kedge_fail(KEDGE_ERR_MISMATCH, "%s was trained on other samples (data hash %s, this run has %s)",
                      checkpoint, r->data, want->data);
  json_t *had = json_loads(r->settings, 0, NULL), *has = json_loads(want->settings, 0, NULL);
  bool extends = had && has && may_extend(had, has);
  kedge_status status = had && has ? match_settings(checkpoint, had, has) : KEDGE_ERR_MEMORY;
  json_decref(had);
  json_decref(has);
  KEDGE_TRY(status);
  /* After the settings: model_options are part of the hash, and their key says more. */
  if (*r->base && strcmp(r->base, want->base))
    return kedge_fail(KEDGE_ERR_MISMATCH,
                      "%s was trained from another base model (hash %s, model_name_or_path has %s)",
                      checkpoint, r->base, want->base);
  if (*r->routing && strcmp(r->routing, want->routing))
    return kedge_fail(
        KEDGE_ERR_MISMATCH,
        "%s was trained with other contents of prior, communities or trace (hash %s, this run's have %s)",
        checkpoint, r->routing, want->routing);
  if (r->updates != want->updates && !(extends && r->step <= want->updates))
    return kedge_fail(KEDGE_ERR_MISMATCH, "%s belongs to a run of %llu updates, this run has %llu",
                      checkpoint, (unsigned long long)r->updates, (unsigned long long)want->updates);
  return KEDGE_OK;
}
