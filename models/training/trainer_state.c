/* SPDX-License-Identifier: Apache-2.0
 * trainer_state.json of a checkpoint (metrics.h). Unknown keys of a file that another tool wrote are kept. */
#include "models/checkpoint/atomic.h"
#include "models/training/metrics.h"
#include "models/training/number.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kedge_trainer_state {
  json_t *root; /* an object with an array log_history */
};

static kedge_status no_memory(void) {
  return kedge_fail(KEDGE_ERR_MEMORY, "trainer state: out of memory");
}

static json_t *number(double value) {
  if (!isfinite(value)) return json_null();
  if (value == floor(value) && fabs(value) < 1e15) return json_integer((json_int_t)value);
  return json_real(value);
}

kedge_status kedge_trainer_state_new(kedge_trainer_state **state) {
  *state = NULL;
  kedge_trainer_state *made = kedge_alloc(1, sizeof *made);
  if (!made) return KEDGE_ERR_MEMORY;
  made->root = json_pack(
      "{s:n, s:n, s:n, s:i, s:i, s:i, s:b, s:b, s:b, s:[], s:i, s:i, s:i, s:i, s:i, s:{}, s:i, s:i, s:n, "
      "s:n}",
      "best_global_step", "best_metric", "best_model_checkpoint", "epoch", 0, "eval_steps", 0, "global_step",
      0, "is_hyper_param_search", 0, "is_local_process_zero", 1, "is_world_process_zero", 1, "log_history",
      "logging_steps", 0, "max_steps", 0, "num_input_tokens_seen", 0, "num_train_epochs", 0, "save_steps", 0,
      "stateful_callbacks", "total_flos", 0, "train_batch_size", 0, "trial_name", "trial_params");
  if (!made->root) {
    kedge_free(made);
    return no_memory();
  }
  *state = made;
  return KEDGE_OK;
}

void kedge_trainer_state_free(kedge_trainer_state *state) {
  if (!state) return;
  json_decref(state->root);
  kedge_free(state);
}

kedge_status kedge_trainer_state_set(kedge_trainer_state *state, const char *key, double value) {
  return json_object_set_new(state->root, key, number(value)) ? no_memory() : KEDGE_OK;
}

kedge_status kedge_trainer_state_get(const kedge_trainer_state *state, const char *key, double *value) {
  json_t *found = json_object_get(state->root, key);
  if (!json_is_number(found)) return kedge_fail(KEDGE_ERR_FORMAT, "trainer state: \"%s\" is no number", key);
  *value = json_number_value(found);
  return KEDGE_OK;
}

/* Updates between two events that come by steps, else not a number. */
static double every(const kedge_schedule *schedule, int strategy, double steps, int64_t per_epoch) {
  uint64_t updates = kedge_schedule_every(schedule, steps);
  if (strategy != KEDGE_CONFIG_STRATEGY_STEPS || per_epoch || !updates) return (double)NAN;
  return (double)updates;
}

kedge_status kedge_trainer_state_set_run(kedge_trainer_state *state, const kedge_config *config,
                                         const kedge_schedule *schedule) {
  double epochs =
      config->max_steps > 0 ? kedge_schedule_epoch(schedule, schedule->updates) : config->num_train_epochs;
  const kedge_metric items[] = {
      {"max_steps", (double)schedule->updates},
      {"num_train_epochs", ceil(epochs)},
      {"logging_steps", every(schedule, KEDGE_CONFIG_STRATEGY_STEPS, config->logging_steps, 0)},
      {"save_steps", every(schedule, config->save_strategy, config->save_steps, config->saves_per_epoch)},
      {"eval_steps", every(schedule, config->eval_strategy, config->eval_steps, config->evals_per_epoch)},
      {"train_batch_size", (double)config->per_device_train_batch_size}};
  for (size_t i = 0; i < sizeof items / sizeof *items; i++)
    KEDGE_TRY(kedge_trainer_state_set(state, items[i].key, items[i].value));
  return KEDGE_OK;
}

kedge_status kedge_trainer_state_set_best(kedge_trainer_state *state, const char *checkpoint) {
  json_t *value = checkpoint ? json_string(checkpoint) : json_null();
  return json_object_set_new(state->root, "best_model_checkpoint", value) ? no_memory() : KEDGE_OK;
}

kedge_status kedge_trainer_state_log(kedge_trainer_state *state, uint64_t step, double epoch,
                                     const kedge_metric *items, size_t count) {
  json_t *entry = json_object();
  int failed = json_object_set_new(entry, "epoch", number(epoch));
  for (size_t i = 0; i < count; i++)
    failed |= json_object_set_new(entry, items[i].key, number(items[i].value));
  failed |= json_object_set_new(entry, "step", json_integer((json_int_t)step));
  failed |= json_array_append(json_object_get(state->root, "log_history"), entry);
  json_decref(entry);
  return failed ? no_memory() : KEDGE_OK;
}

size_t kedge_trainer_state_logs(const kedge_trainer_state *state) {
  return json_array_size(json_object_get(state->root, "log_history"));
}

/* ---- Writing
 * ------------------------------------------------------------------------------------------------------ */

/* As Python's json.dumps(indent=2) writes it, reals in their shortest form. Depth is bounded by jansson's own
 * limit. */
static void put(FILE *out, json_t *value, int indent) {
  char text[KEDGE_REAL_TEXT];
  if (json_is_real(value)) {
    fputs(kedge__real_text(json_real_value(value), text), out);
  } else if (json_is_object(value) && json_object_size(value)) {
    const char *key, *before = "{\n";
    json_t *item;
    json_object_foreach(value, key, item) {
      json_t *name = json_string(key);
      fprintf(out, "%s%*s", before, indent + 2, "");
      if (!name || json_dumpf(name, out, JSON_ENCODE_ANY)) fputs("null", out);
      json_decref(name);
      fputs(": ", out);
      put(out, item, indent + 2);
      before = ",\n";
    }
    fprintf(out, "\n%*s}", indent, "");
  } else if (json_is_array(value) && json_array_size(value)) {
    for (size_t i = 0; i < json_array_size(value); i++) {
      fprintf(out, "%s%*s", i ? ",\n" : "[\n", indent + 2, "");
      put(out, json_array_get(value, i), indent + 2);
    }
    fprintf(out, "\n%*s]", indent, "");
  } else {
    json_dumpf(value, out, JSON_ENCODE_ANY);
  }
}

kedge_status kedge_trainer_state_save(const kedge_trainer_state *state, const char *path) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (!out) return no_memory();
  put(out, state->root, 0);
  fputc('\n', out);
  bool whole = !ferror(out);
  whole = fclose(out) == 0 && whole;
  kedge_status status = whole ? kedge_file_write(path, text, size) : no_memory();
  free(text);
  return status;
}

/* ---- Reading
 * ------------------------------------------------------------------------------------------------------ */

static kedge_status check_loaded(const char *path, json_t *root) {
  json_t *logs = json_object_get(root, "log_history"), *step = json_object_get(root, "global_step");
  if (!json_is_integer(step) || json_integer_value(step) < 0)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: \"global_step\" is no whole number", path);
  if (!json_is_array(logs)) return kedge_fail(KEDGE_ERR_FORMAT, "%s: \"log_history\" is no list", path);
  for (size_t i = json_array_size(logs); i-- > 0;) {
    json_t *at = json_object_get(json_array_get(logs, i), "step");
    if (!json_is_integer(at))
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: entry %zu of \"log_history\" has no step", path, i);
    if (json_integer_value(at) > json_integer_value(step)) json_array_remove(logs, i);
  }
  return KEDGE_OK;
}

kedge_status kedge_trainer_state_load(const char *path, kedge_trainer_state **state) {
  *state = NULL;
  json_error_t error;
  FILE *file = fopen(path, "rb");
  if (!file) return kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
  json_t *root = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
  fclose(file);
  if (!root) return kedge_fail(KEDGE_ERR_FORMAT, "%s:%d: %s", path, error.line, error.text);
  kedge_status status = check_loaded(path, root);
  kedge_trainer_state *made = status == KEDGE_OK ? kedge_alloc(1, sizeof *made) : NULL;
  if (!made) {
    json_decref(root);
    return status == KEDGE_OK ? KEDGE_ERR_MEMORY : status;
  }
  made->root = root;
  *state = made;
  return KEDGE_OK;
}
