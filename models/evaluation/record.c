/* SPDX-License-Identifier: Apache-2.0
 * Samples of an evaluation, their file and their sums (record.h). */
#include "models/evaluation/record.h"

#include "models/checkpoint/atomic.h"
#include "models/checkpoint/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { ROW_CAP = 64 << 20 };

static const char *const paths[KEDGE_PATHS] = {"told", "continued", "decoded", "likelihood"};

const char *kedge_eval_path_name(kedge_eval_path path) {
  return paths[path];
}

/* ---- Sums
 * -------------------------------------------------------------------------------------------------------- */

void kedge_eval_summary_destroy(kedge_eval_summary *s) {
  for (uint32_t i = 0; i < s->group_count; i++) {
    kedge_free(s->groups[i].domain);
    kedge_free(s->groups[i].split);
  }
  kedge_free(s->groups);
  *s = (kedge_eval_summary){0};
}

static kedge_status find_group(kedge_eval_summary *s, const char *domain, const char *split,
                               kedge_eval_group **group) {
  for (uint32_t i = s->group_count; i-- > 0;)
    if (!strcmp(s->groups[i].domain, domain) && !strcmp(s->groups[i].split, split)) {
      *group = &s->groups[i];
      return KEDGE_OK;
    }
  kedge_eval_group *grown = kedge_realloc(s->groups, s->group_count + 1, sizeof *grown);
  if (!grown) return KEDGE_ERR_MEMORY;
  s->groups = grown;
  *group = &grown[s->group_count];
  **group = (kedge_eval_group){.domain = kedge_strdup(domain), .split = kedge_strdup(split)};
  if (!(*group)->domain || !(*group)->split) {
    kedge_free((*group)->domain);
    kedge_free((*group)->split);
    return KEDGE_ERR_MEMORY;
  }
  s->group_count++;
  return KEDGE_OK;
}

static bool flag(const json_t *row, const char *key) {
  return json_is_true(json_object_get(row, key));
}

static uint64_t number(const json_t *row, const char *key) {
  const json_int_t value = json_integer_value(json_object_get(row, key));
  return value > 0 ? (uint64_t)value : 0;
}

kedge_status kedge_eval_count(kedge_eval_summary *s, const json_t *row) {
  const char *domain = json_string_value(json_object_get(row, "domain"));
  const char *split = json_string_value(json_object_get(row, "split"));
  const char *path = json_string_value(json_object_get(row, "path"));
  const json_t *nll = json_object_get(row, "nll"), *likelihood = json_object_get(row, "likelihood_right");
  const json_t *letter = json_object_get(row, "letter_right");
  kedge_eval_group *g;
  if (!domain || !split || !path || !json_is_boolean(json_object_get(row, "right")))
    return kedge_fail(KEDGE_ERR_FORMAT, "is no row of an evaluation");
  KEDGE_TRY(find_group(s, domain, split, &g));
  g->items += number(row, "repeat") == 0;
  g->samples++;
  g->right += flag(row, "right");
  if (likelihood) {
    g->choices++;
    g->likelihood += flag(row, "likelihood_right");
    g->normalised += flag(row, "normalised_right");
  }
  if (letter) {
    g->letters++;
    g->lettered += flag(row, "letter_right");
  }
  if (json_is_number(nll)) {
    g->nll += json_number_value(nll);
    g->nll_tokens += number(row, "nll_tokens");
  }
  for (int i = 0; i < KEDGE_PATHS; i++) s->paths[i] += !strcmp(path, paths[i]);
  s->samples++;
  s->tokens += number(row, "tokens");
  s->cut_prompts += flag(row, "prompt_cut");
  s->unstopped += flag(row, "unstopped");
  return KEDGE_OK;
}

void kedge_eval_share(const kedge_eval_group *group, double right, uint64_t samples, double *share,
                      double *low, double *high) {
  *share = samples ? right / (double)samples : 0;
  const double n = group->samples ? (double)samples * (double)group->items / (double)group->samples : 0;
  kedge_wilson(*share * n, n, low, high);
}

static kedge_status put(json_t *object, const char *key, json_t *value) {
  return json_object_set_new(object, key, value) ? KEDGE_ERR_MEMORY : KEDGE_OK;
}

static kedge_status put_share(json_t *object, const char *key, const kedge_eval_group *g, double right,
                              uint64_t samples) {
  double share, low, high;
  if (!samples) return KEDGE_OK;
  kedge_eval_share(g, right, samples, &share, &low, &high);
  return put(object, key,
             json_pack("{s:f, s:f, s:f, s:f}", "share", share, "low", low, "high", high, "right", right));
}

static kedge_status group_json(const kedge_eval_group *g, json_t *to) {
  KEDGE_TRY(put(to, "domain", json_string(g->domain)));
  KEDGE_TRY(put(to, "split", json_string(g->split)));
  KEDGE_TRY(put(to, "items", json_integer((json_int_t)g->items)));
  KEDGE_TRY(put(to, "samples", json_integer((json_int_t)g->samples)));
  KEDGE_TRY(put_share(to, "accuracy", g, g->right, g->samples));
  KEDGE_TRY(put_share(to, "by_likelihood", g, g->likelihood, g->choices));
  KEDGE_TRY(put_share(to, "by_normalised_likelihood", g, g->normalised, g->choices));
  KEDGE_TRY(put_share(to, "by_letter", g, g->lettered, g->letters));
  KEDGE_TRY(put(to, "nll_tokens", json_integer((json_int_t)g->nll_tokens)));
  return put(to, "nll_per_token", g->nll_tokens ? json_real(g->nll / (double)g->nll_tokens) : json_null());
}

static void add_group(kedge_eval_group *all, const kedge_eval_group *g) {
  all->items += g->items, all->samples += g->samples, all->right += g->right;
  all->choices += g->choices, all->likelihood += g->likelihood, all->normalised += g->normalised;
  all->letters += g->letters, all->lettered += g->lettered;
  all->nll += g->nll, all->nll_tokens += g->nll_tokens;
}

static kedge_status summary_json(const kedge_eval_summary *s, json_t *root) {
  kedge_eval_group all = {.domain = (char *)(uintptr_t) "all", .split = (char *)(uintptr_t) ""};
  double mean = 0;
  KEDGE_TRY(put(root, "kedge_eval", json_integer(1)));
  KEDGE_TRY(put(root, "version", json_string(kedge_version())));
  KEDGE_TRY(put(root, "settings", json_string(s->settings)));
  KEDGE_TRY(put(root, "repeats", json_integer((json_int_t)s->repeats)));
  json_t *groups = json_array(), *ways = json_object();
  KEDGE_TRY(put(root, "groups", groups));
  KEDGE_TRY(put(root, "paths", ways));
  for (uint32_t i = 0; i < s->group_count; i++) {
    json_t *one = json_object();
    if (json_array_append_new(groups, one)) return KEDGE_ERR_MEMORY;
    KEDGE_TRY(group_json(&s->groups[i], one));
    add_group(&all, &s->groups[i]);
    mean += s->groups[i].right / (double)s->groups[i].samples / s->group_count;
  }
  for (int i = 0; i < KEDGE_PATHS; i++) KEDGE_TRY(put(ways, paths[i], json_integer((json_int_t)s->paths[i])));
  json_t *total = json_object();
  KEDGE_TRY(put(root, "all", total));
  KEDGE_TRY(group_json(&all, total));
  KEDGE_TRY(put(total, "mean_of_groups", json_real(mean)));
  KEDGE_TRY(put(root, "new_tokens", json_integer((json_int_t)s->tokens)));
  KEDGE_TRY(put(root, "cut_prompts", json_integer((json_int_t)s->cut_prompts)));
  return put(root, "unstopped", json_integer((json_int_t)s->unstopped));
}

json_t *kedge_eval_summary_json(const kedge_eval_summary *s) {
  json_t *root = json_object();
  if (root && summary_json(s, root) == KEDGE_OK) return root;
  json_decref(root);
  return NULL;
}

/* ---- File
 * -------------------------------------------------------------------------------------------------------- */

static kedge_status read_row(const kedge_eval_record *r, const char *line, size_t length, uint64_t place,
                             const json_t *settings, kedge_eval_summary *summary) {
  json_t *row;
  char *name = kedge_format("%s:%llu", r->path, (unsigned long long)place + 1);
  if (!name) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge__json_parse(line, length, name, &row);
  kedge_free(name);
  KEDGE_TRY(status);
  if (!place && !json_equal(row, settings))
    status =
        kedge_fail(KEDGE_ERR_ARGUMENT,
                   "%s: is of other settings, another model or other data; give another folder", r->path);
  if (place && status == KEDGE_OK) {
    status = kedge_eval_count(summary, row);
    if (status == KEDGE_OK && number(row, "row") != place - 1)
      status = kedge_fail(KEDGE_ERR_FORMAT, "expected row %llu", (unsigned long long)place - 1);
    if (status == KEDGE_ERR_FORMAT) kedge_fail_in(status, "%s:%llu", r->path, (unsigned long long)place + 1);
  }
  json_decref(row);
  return status;
}

/* Reads what is there; leaves the file at the end of its last whole line. */
static kedge_status read_rows(kedge_eval_record *r, const json_t *settings, kedge_eval_summary *summary) {
  char *line = NULL;
  size_t capacity = 0;
  long long good = 0;
  uint64_t place = 0;
  kedge_status status = KEDGE_OK;
  for (ssize_t got; status == KEDGE_OK && (got = getline(&line, &capacity, r->file)) > 0;) {
    if (line[got - 1] != '\n') break;
    if (got > ROW_CAP)
      status = kedge_fail(KEDGE_ERR_FORMAT, "%s:%llu: a row of %zd bytes", r->path,
                          (unsigned long long)place + 1, got);
    if (status == KEDGE_OK) status = read_row(r, line, (size_t)got, place++, settings, summary);
    good += got;
  }
  free(line);
  KEDGE_TRY(status);
  r->rows = place ? place - 1 : 0;
  if (fflush(r->file) || ftruncate(fileno(r->file), good) || fseeko(r->file, good, SEEK_SET))
    return kedge_fail(KEDGE_ERR_IO, "%s: %s", r->path, strerror(errno));
  return place ? KEDGE_OK : kedge_eval_record_add(r, settings);
}

kedge_status kedge_eval_record_open(kedge_eval_record *r, const char *folder, const json_t *settings,
                                    kedge_eval_summary *summary) {
  *r = (kedge_eval_record){0};
  if (!folder) return KEDGE_OK;
  KEDGE_TRY(kedge_folder_make(folder));
  r->path = kedge_path_join(folder, "items.jsonl");
  if (!r->path) return KEDGE_ERR_MEMORY;
  r->file = fopen(r->path, "a+e");
  if (!r->file) return kedge_fail(KEDGE_ERR_IO, "%s: %s", r->path, strerror(errno));
  if (flock(fileno(r->file), LOCK_EX | LOCK_NB))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: another process writes it", r->path);
  rewind(r->file);
  KEDGE_TRY(read_rows(r, settings, summary));
  summary->resumed = r->rows;
  return kedge_eval_record_flush(r);
}

kedge_status kedge_eval_record_add(kedge_eval_record *r, const json_t *row) {
  if (!r->file) return KEDGE_OK;
  char *text = json_dumps(row, JSON_COMPACT | JSON_REAL_PRECISION(17));
  if (!text) return kedge_fail(KEDGE_ERR_MEMORY, "out of memory for a row");
  const bool good = fputs(text, r->file) >= 0 && fputc('\n', r->file) >= 0;
  free(text);
  return good ? KEDGE_OK : kedge_fail(KEDGE_ERR_IO, "%s: %s", r->path, strerror(errno));
}

kedge_status kedge_eval_record_flush(kedge_eval_record *r) {
  if (r->file && fflush(r->file)) return kedge_fail(KEDGE_ERR_IO, "%s: %s", r->path, strerror(errno));
  return KEDGE_OK;
}

void kedge_eval_record_close(kedge_eval_record *r) {
  if (r->file) fclose(r->file);
  kedge_free(r->path);
  *r = (kedge_eval_record){0};
}
