/* SPDX-License-Identifier: Apache-2.0
 * The runs of a sweep: grids times seeds, the configuration and the folder of each (sweep.h). */
#include "models/checkpoint/atomic.h"
#include "models/checkpoint/hash.h"
#include "models/training/config.h"
#include "tools/sweep.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Settings that decide when things are saved and how fast a run is, and no number of it. */
static const char *const free_settings[] = {
    "output_dir", "overwrite_output_dir",   "resume_from_checkpoint", "save_strategy",
    "save_steps", "saves_per_epoch",        "save_total_limit",       "threads",
    "profile",    "gradient_checkpointing", "overlap_grad_reduce"};

/* ---- Grids and seeds
 * ------------------------------------------------------------------------------------------------ */

/* The end of the value at `text`: a comma outside brackets and quotes, or the end. */
static const char *value_end(const char *text) {
  int depth = 0;
  char quote = 0;
  for (; *text; text++) {
    if (quote) {
      if (*text == quote) quote = 0;
    } else if (*text == '"' || *text == '\'') {
      quote = *text;
    } else if (*text == '[' || *text == '{') {
      depth++;
    } else if ((*text == ']' || *text == '}') && depth) {
      depth--;
    } else if (*text == ',' && !depth) {
      break;
    }
  }
  return text;
}

static kedge_status add_value(sweep_grid *grid, const char *text, const char *value, size_t length) {
  if (!length) return kedge_fail(KEDGE_ERR_ARGUMENT, "--grid %.120s: a value is empty", text);
  char *copy = kedge_format("%.*s", (int)length, value);
  char **values = kedge_realloc(grid->values, grid->count + 1, sizeof *values);
  if (values) grid->values = values;
  if (!copy || !values) {
    kedge_free(copy);
    return KEDGE_ERR_MEMORY;
  }
  values[grid->count++] = copy;
  for (size_t i = 0; i + 1 < grid->count; i++)
    if (!strcmp(values[i], copy))
      return kedge_fail(KEDGE_ERR_ARGUMENT, "--grid %.120s: the value %.80s is given twice", text, copy);
  return KEDGE_OK;
}

kedge_status sweep_add_grid(sweep *s, const char *text) {
  const char *equals = strchr(text, '=');
  if (!equals || equals == text || strlen(text) > 65536)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--grid \"%.120s\": expected KEY=VALUE,VALUE,...", text);
  if (s->grid_count == SWEEP_MAX_GRIDS)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--grid %.120s: at most %d grids", text, SWEEP_MAX_GRIDS);
  sweep_grid *grid = &s->grids[s->grid_count];
  grid->key = kedge_format("%.*s", (int)(equals - text), text);
  if (!grid->key) return KEDGE_ERR_MEMORY;
  s->grid_count++;
  for (const char *at = equals + 1;;) {
    const char *end = value_end(at);
    KEDGE_TRY(add_value(grid, text, at, (size_t)(end - at)));
    if (!*end) return KEDGE_OK;
    at = end + 1;
  }
}

kedge_status sweep_set_seeds(sweep *s, const char *text) {
  for (const char *at = text;;) {
    char *end;
    errno = 0;
    long long seed = strtoll(at, &end, 10);
    if (*at < '0' || *at > '9' || errno || (*end && *end != ','))
      return kedge_fail(KEDGE_ERR_ARGUMENT, "--seeds \"%.80s\": expected whole numbers, as 42,43,44", text);
    for (size_t i = 0; i < s->seed_count; i++)
      if (s->seeds[i] == seed)
        return kedge_fail(KEDGE_ERR_ARGUMENT, "--seeds \"%.80s\": %lld is given twice", text, seed);
    int64_t *seeds = kedge_realloc(s->seeds, s->seed_count + 1, sizeof *seeds);
    if (!seeds) return KEDGE_ERR_MEMORY;
    s->seeds = seeds;
    seeds[s->seed_count++] = seed;
    if (!*end) return KEDGE_OK;
    at = end + 1;
  }
}

const char *sweep_value(const sweep *s, size_t point, size_t grid) {
  for (size_t i = s->grid_count; i-- > grid + 1;) point /= s->grids[i].count;
  return s->grids[grid].values[point % s->grids[grid].count];
}

/* ---- Names
 * ---------------------------------------------------------------------------------------------------------
 */

enum { NAME_SIZE = 128, NAME_ROOM = 100 };

typedef struct name_text {
  char text[NAME_SIZE];
  size_t length;
  bool lossy;
} name_text;

/* Letters, digits and a few signs stand as they are; brackets are left out of keys; all else becomes '-'. */
static void put(name_text *name, const char *text, bool is_key) {
  static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-";
  for (; *text; text++) {
    if (is_key && (*text == '[' || *text == ']')) continue;
    bool keeps = strchr(safe, *text) != NULL;
    if (name->length == NAME_ROOM) {
      name->lossy = true;
      return;
    }
    name->lossy = name->lossy || !keeps;
    name->text[name->length++] = keeps ? *text : '-';
  }
}

static kedge_status hash_text(const char *text, char hash[KEDGE_HASH_TEXT]) {
  kedge_hash *h = kedge_hash_new();
  if (!h) return KEDGE_ERR_MEMORY;
  kedge_hash_add(h, text, strlen(text));
  kedge_hash_text(h, hash);
  kedge_hash_free(h);
  return KEDGE_OK;
}

/* The grids in the order of their keys. */
static void sort_grids(const sweep *s, size_t order[SWEEP_MAX_GRIDS]) {
  for (size_t i = 0; i < s->grid_count; i++) {
    size_t at = i;
    for (; at && strcmp(s->grids[order[at - 1]].key, s->grids[i].key) > 0; at--) order[at] = order[at - 1];
    order[at] = i;
  }
}

/* "router.beta-0.5_seed-42", its keys in the order of the alphabet, so that the order of the options does
 * not matter. What a name cannot hold as it is, it gets as eight digits of a hash. */
static kedge_status name_run(const sweep *s, sweep_run *run, bool hashed) {
  name_text name = {.length = 0};
  size_t order[SWEEP_MAX_GRIDS] = {0};
  char hash[KEDGE_HASH_TEXT], *exact = kedge_strdup("");
  sort_grids(s, order);
  for (size_t i = 0; exact && i < s->grid_count; i++) {
    const char *key = s->grids[order[i]].key, *value = sweep_value(s, run->point, order[i]);
    char *longer = kedge_format("%s%s=%s\n", exact, key, value);
    kedge_free(exact);
    exact = longer;
    put(&name, key, true);
    put(&name, "-", false);
    put(&name, value, false);
    put(&name, "_", false);
  }
  kedge_status status = exact ? hash_text(exact, hash) : KEDGE_ERR_MEMORY;
  kedge_free(exact);
  KEDGE_TRY(status);
  kedge_free(run->name);
  if (name.lossy || hashed)
    run->name =
        kedge_format("%.*s_%.8s_seed-%lld", (int)name.length - 1, name.text, hash, (long long)run->seed);
  else
    run->name = kedge_format("%.*sseed-%lld", (int)name.length, name.text, (long long)run->seed);
  return run->name ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

static int by_name(const void *a, const void *b) {
  return strcmp((*(sweep_run *const *)a)->name, (*(sweep_run *const *)b)->name);
}

/* Different values may read the same in a name: those get the hash too. */
static kedge_status settle_names(sweep *s) {
  sweep_run **sorted = kedge_alloc(s->run_count, sizeof *sorted);
  bool *same = kedge_alloc(s->run_count, sizeof *same);
  kedge_status status = sorted && same ? KEDGE_OK : KEDGE_ERR_MEMORY;
  for (size_t i = 0; status == KEDGE_OK && i < s->run_count; i++) sorted[i] = &s->runs[i];
  if (status == KEDGE_OK) qsort(sorted, s->run_count, sizeof *sorted, by_name);
  for (size_t i = 1; status == KEDGE_OK && i < s->run_count; i++)
    if (!strcmp(sorted[i - 1]->name, sorted[i]->name)) same[i - 1] = same[i] = true;
  for (size_t i = 0; status == KEDGE_OK && i < s->run_count; i++) {
    if (same[i]) status = name_run(s, sorted[i], true);
  }
  kedge_free(sorted);
  kedge_free(same);
  return status;
}

/* ---- Runs
 * ----------------------------------------------------------------------------------------------------------
 */

/* Loads the configuration of a point: KEY=VALUE for all, then the grids, then the seed. */
static kedge_status load(const sweep *s, size_t point, const int64_t *seed, kedge_config *config) {
  const size_t most = s->overrides->count + SWEEP_MAX_GRIDS + 1;
  const char **all = kedge_alloc(most, sizeof *all);
  char *made[SWEEP_MAX_GRIDS + 1] = {NULL};
  size_t count = 0, own = 0;
  if (!all) return KEDGE_ERR_MEMORY;
  for (size_t i = 0; i < s->overrides->count; i++) all[count++] = s->overrides->items[i];
  for (size_t i = 0; i < s->grid_count; i++)
    made[own++] = kedge_format("%s=%s", s->grids[i].key, sweep_value(s, point, i));
  if (seed) made[own++] = kedge_format("seed=%lld", (long long)*seed);
  kedge_status status = KEDGE_OK;
  for (size_t i = 0; i < own; i++) {
    if (!made[i]) status = KEDGE_ERR_MEMORY;
    all[count++] = made[i];
  }
  if (status == KEDGE_OK) status = kedge_config_load(config, s->config, all, count);
  for (size_t i = 0; i < own; i++) kedge_free(made[i]);
  kedge_free(all);
  return status;
}

/* What a sweep needs of a configuration. `output_dir` is the first run's. */
static kedge_status check(const kedge_config *config, const char *output_dir) {
  KEDGE_TRY(kedge_config_require(config, "model_name_or_path,dataset"));
  if (config->report_to == KEDGE_CONFIG_REPORT_NONE)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "key \"report_to\": none leaves no metrics to make the table of");
  if (config->resume_from_checkpoint && strcmp(config->resume_from_checkpoint, "true"))
    return kedge_fail(
        KEDGE_ERR_ARGUMENT,
        "key \"resume_from_checkpoint\": a sweep goes on with its own runs alone; remove the key");
  bool same = !config->output_dir == !output_dir && (!output_dir || !strcmp(config->output_dir, output_dir));
  if (!same)
    return kedge_fail(
        KEDGE_ERR_ARGUMENT,
        "key \"output_dir\": each run has a folder of its own below one; take it out of the grid");
  return KEDGE_OK;
}

static char *settings_of(const kedge_config *config) {
  char *all = kedge_config_json(config), *text = NULL, *copy = NULL;
  json_t *object = all ? json_loads(all, 0, NULL) : NULL;
  for (size_t i = 0; object && i < sizeof free_settings / sizeof *free_settings; i++)
    json_object_del(object, free_settings[i]);
  if (object) text = json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS);
  if (text) copy = kedge_strdup(text);
  free(text);
  json_decref(object);
  kedge_free(all);
  return copy;
}

/* Checks and names a run; its folder waits for the names of all. */
static kedge_status plan_run(sweep *s, sweep_run *run, const int64_t *seed, char **output_dir) {
  kedge_config config;
  KEDGE_TRY(load(s, run->point, seed, &config));
  kedge_status status = KEDGE_OK;
  if (run == s->runs && config.output_dir && !(*output_dir = kedge_strdup(config.output_dir)))
    status = KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = check(&config, *output_dir);
  if (status == KEDGE_OK) {
    run->seed = config.seed;
    run->threads = config.threads;
  }
  if (status == KEDGE_OK) status = name_run(s, run, false);
  kedge_config_destroy(&config);
  return status;
}

/* Gives a run its folder, and keeps its configuration with that folder in it: a file that is edited while the
 * sweep goes on changes nothing. */
static kedge_status place_run(const sweep *s, sweep_run *run) {
  kedge_config config;
  run->folder = kedge_format("%s/%s", s->out, run->name);
  run->log = run->folder ? kedge_format("%s/log.txt", run->folder) : NULL;
  if (!run->log) return KEDGE_ERR_MEMORY;
  KEDGE_TRY(load(s, run->point, s->seed_count ? &run->seed : NULL, &config));
  kedge_free(config.output_dir);
  kedge_free(config.resume_from_checkpoint);
  config.resume_from_checkpoint = NULL;
  config.overwrite_output_dir = false;
  config.output_dir = kedge_strdup(run->folder);
  run->yaml = config.output_dir ? kedge_config_yaml(&config) : NULL;
  run->settings = settings_of(&config);
  kedge_config_destroy(&config);
  return run->yaml && run->settings ? hash_text(run->settings, run->hash) : KEDGE_ERR_MEMORY;
}

static kedge_status count_runs(sweep *s) {
  const size_t seeds = s->seed_count ? s->seed_count : 1;
  s->point_count = 1;
  for (size_t i = 0; i < s->grid_count; i++) {
    s->point_count *= s->grids[i].count; /* a grid has at most 32768 values, a product so far 4096 */
    if (s->point_count * seeds > SWEEP_MAX_RUNS)
      return kedge_fail(KEDGE_ERR_ARGUMENT, "more than %d runs", SWEEP_MAX_RUNS);
  }
  s->run_count = s->point_count * seeds;
  if (s->run_count > SWEEP_MAX_RUNS)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "more than %d runs", SWEEP_MAX_RUNS);
  return KEDGE_OK;
}

kedge_status sweep_plan(sweep *s) {
  const size_t seeds = s->seed_count ? s->seed_count : 1;
  char *output_dir = NULL;
  KEDGE_TRY(count_runs(s));
  s->runs = kedge_alloc(s->run_count, sizeof *s->runs);
  if (!s->runs) return KEDGE_ERR_MEMORY;
  kedge_status status = KEDGE_OK;
  for (size_t i = 0; status == KEDGE_OK && i < s->run_count; i++) {
    s->runs[i].point = i / seeds;
    status = plan_run(s, &s->runs[i], s->seed_count ? &s->seeds[i % seeds] : NULL, &output_dir);
  }
  if (status == KEDGE_OK && !s->out && !output_dir)
    status = kedge_fail(KEDGE_ERR_ARGUMENT, "--out is needed where the configuration has no output_dir");
  if (status == KEDGE_OK && !s->out) {
    s->out = output_dir;
    output_dir = NULL;
  }
  if (status == KEDGE_OK) status = settle_names(s);
  for (size_t i = 0; status == KEDGE_OK && i < s->run_count; i++) status = place_run(s, &s->runs[i]);
  kedge_free(output_dir);
  return status;
}

void sweep_destroy(sweep *s) {
  for (size_t i = 0; s->runs && i < s->run_count; i++) {
    kedge_free(s->runs[i].name);
    kedge_free(s->runs[i].folder);
    kedge_free(s->runs[i].log);
    kedge_free(s->runs[i].yaml);
    kedge_free(s->runs[i].settings);
  }
  for (size_t i = 0; i < s->grid_count; i++) {
    for (size_t j = 0; j < s->grids[i].count; j++) kedge_free(s->grids[i].values[j]);
    kedge_free(s->grids[i].values);
    kedge_free(s->grids[i].key);
  }
  kedge_free(s->runs);
  kedge_free(s->seeds);
  kedge_free(s->out);
}
