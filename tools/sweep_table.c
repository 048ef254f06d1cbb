/* SPDX-License-Identifier: Apache-2.0
 * The table of a sweep (sweep.h): the last value of each metric in a run's metrics.jsonl, and over the seeds
 * of a point its mean and sample standard deviation. Numbers of unfinished runs count for nothing. */
#include "models/checkpoint/atomic.h"
#include "models/training/number.h"
#include "tools/sweep.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 8, CELL = 80 }; /* metrics in the printed table; the files hold all */

typedef struct table {
  const sweep *s;
  json_t **last;      /* of each run: its metrics, number or null; NULL: not finished */
  json_t *all, *kept; /* names of metrics in the order of their first appearance; those that were asked for */
  const char *shown[SHOWN];
  size_t shown_count, left_out;
} table;

typedef struct statistic {
  double mean, sd; /* sd: NaN below two values */
  size_t count;
} statistic;

/* ---- Reading
 * -------------------------------------------------------------------------------------------------------- */

/* False if the line is no object. */
static bool take_line(json_t *last, json_t *all, const char *line, size_t length) {
  json_t *o = json_loadb(line, length, 0, NULL), *value;
  const bool whole = json_is_object(o);
  const char *key;
  json_object_foreach(o, key, value) {
    if (!strcmp(key, "step") || !strcmp(key, "epoch")) continue;
    if (!json_is_number(value) && !json_is_null(value)) continue;
    json_object_set(last, key, value);
    json_object_set(all, key, json_true());
  }
  json_decref(o);
  return whole;
}

static kedge_status read_run(table *t, size_t index) {
  const sweep_run *run = &t->s->runs[index];
  char *path = kedge_path_join(run->folder, "metrics.jsonl"), *line = NULL;
  FILE *file = path ? fopen(path, "rb") : NULL;
  size_t capacity = 0;
  kedge_status status = !path   ? KEDGE_ERR_MEMORY
                        : !file ? kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno))
                                : KEDGE_OK;
  t->last[index] = json_object();
  size_t number = 0, spoilt = 0;
  for (ssize_t length; file && (length = getline(&line, &capacity, file)) > 0;) {
    number++;
    if (!take_line(t->last[index], t->all, line, (size_t)length) && !spoilt) spoilt = number;
  }
  if (spoilt) fprintf(stderr, "note: %s:%zu: not a line of metrics, left out of the table\n", path, spoilt);
  if (file && ferror(file)) status = kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
  if (file) fclose(file);
  free(line);
  kedge_free(path);
  return status;
}

/* A name, or a beginning of names that ends in '*'. */
static bool matches(const char *pattern, const char *name) {
  size_t length = strlen(pattern);
  if (length && pattern[length - 1] == '*') return !strncmp(pattern, name, length - 1);
  return !strcmp(pattern, name);
}

/* The usual ones are shown, those that there are; the files hold everything, or what --metric names. */
static void choose(table *t) {
  static const char *const usual[] = {
      "train/loss",           "eval/loss",           "router/topk_overlap_mean", "router/tvd_mean",
      "router/load_max_mean", "router/dead_experts", "router/grad_norm"};
  const cli_list *asked = t->s->metrics;
  const size_t patterns = asked->count ? asked->count : sizeof usual / sizeof *usual;
  const char *name;
  json_t *value;
  for (size_t i = 0; i < patterns; i++) {
    const char *pattern = asked->count ? asked->items[i] : usual[i];
    size_t hits = 0;
    json_object_foreach(t->all, name, value) {
      if (!matches(pattern, name)) continue;
      hits++;
      if (json_object_get(t->kept, name)) continue;
      json_object_set(t->kept, name, json_true());
      if (t->shown_count < SHOWN) t->shown[t->shown_count++] = name;
    }
    if (asked->count && !hits && json_object_size(t->all))
      fprintf(stderr, "note: no finished run has a metric %s\n", pattern);
  }
  if (!asked->count) json_object_update_missing(t->kept, t->all);
  t->left_out = json_object_size(t->kept) - t->shown_count;
}

/* ---- Statistics
 * ----------------------------------------------------------------------------------------------------- */

static size_t finished(const sweep *s, size_t point) {
  size_t n = 0;
  for (size_t i = 0; i < s->run_count; i++)
    n += s->runs[i].point == point && s->runs[i].state == SWEEP_FINISHED;
  return n;
}

/* False if run `index` is not of the point or has no such metric. null in a log is no number: NaN. */
static bool value_of(const table *t, size_t index, size_t point, const char *metric, double *value) {
  const json_t *number = json_object_get(t->last[index], metric);
  if (t->s->runs[index].point != point || !number) return false;
  *value = json_is_number(number) ? json_number_value(number) : (double)NAN;
  return true;
}

static statistic measure(const table *t, size_t point, const char *metric) {
  statistic r = {.sd = (double)NAN};
  double value, sum = 0, squares = 0;
  for (size_t i = 0; i < t->s->run_count; i++)
    if (value_of(t, i, point, metric, &value)) {
      sum += value;
      r.count++;
    }
  r.mean = r.count ? sum / (double)r.count : (double)NAN;
  for (size_t i = 0; i < t->s->run_count; i++)
    if (value_of(t, i, point, metric, &value)) squares += (value - r.mean) * (value - r.mean);
  if (r.count > 1) r.sd = sqrt(squares / (double)(r.count - 1));
  return r;
}

/* ---- Printing
 * ------------------------------------------------------------------------------------------------------- */

static void write_cell(const table *t, size_t point, const char *metric, char text[CELL]) {
  const statistic r = measure(t, point, metric);
  char tail[32] = "";
  if (r.count && r.count < finished(t->s, point)) snprintf(tail, sizeof tail, " (n=%zu)", r.count);
  if (!r.count)
    snprintf(text, CELL, "-");
  else if (r.count == 1)
    snprintf(text, CELL, "%.5g%s", r.mean, tail);
  else
    snprintf(text, CELL, "%.5g +- %.2g%s", r.mean, r.sd, tail);
}

static void write_runs(const table *t, size_t point, char text[CELL]) {
  size_t all = 0;
  for (size_t i = 0; i < t->s->run_count; i++) all += t->s->runs[i].point == point;
  snprintf(text, CELL, "%zu/%zu", finished(t->s, point), all);
}

static void widen(int *width, const char *text) {
  int length = (int)strlen(text);
  if (length > *width) *width = length;
}

/* Cell of a row (the head is row -1) and column: grids, runs, metrics. */
static const char *cell(const table *t, long row, size_t column, char text[CELL]) {
  const sweep *s = t->s;
  const size_t point = (size_t)row;
  if (column < s->grid_count) return row < 0 ? s->grids[column].key : sweep_value(s, point, column);
  if (column == s->grid_count) {
    if (row < 0) return "runs";
    write_runs(t, point, text);
    return text;
  }
  const char *metric = t->shown[column - s->grid_count - 1];
  if (row < 0) return metric;
  write_cell(t, point, metric, text);
  return text;
}

static void print(const table *t) {
  const sweep *s = t->s;
  int widths[SWEEP_MAX_GRIDS + 1 + SHOWN] = {0};
  const size_t columns = s->grid_count + 1 + t->shown_count;
  char text[CELL];
  for (long row = -1; row < (long)s->point_count; row++)
    for (size_t c = 0; c < columns; c++) widen(&widths[c], cell(t, row, c, text));
  for (long row = -1; row < (long)s->point_count; row++)
    for (size_t c = 0; c < columns; c++)
      printf("%s%*s%s", c ? "  " : "", widths[c], cell(t, row, c, text), c + 1 < columns ? "" : "\n");
  if (t->left_out) printf("%zu more metrics are in %s/sweep.csv; --metric chooses\n", t->left_out, s->out);
}

/* ---- Files
 * ----------------------------------------------------------------------------------------------------------
 */

/* Quoted where CSV needs it. */
static void put_field(FILE *out, const char *text) {
  if (!strpbrk(text, ",\"\n\r")) {
    fputs(text, out);
    return;
  }
  fputc('"', out);
  for (; *text; text++) fprintf(out, *text == '"' ? "\"\"" : "%c", *text);
  fputc('"', out);
}

static void put_number(FILE *out, double value) {
  char text[KEDGE_REAL_TEXT];
  if (isfinite(value)) fputs(kedge__real_text(value, text), out);
}

static void put_csv(const table *t, FILE *out) {
  const char *name;
  json_t *value;
  for (size_t g = 0; g < t->s->grid_count; g++) {
    put_field(out, t->s->grids[g].key);
    fputc(',', out);
  }
  fputs("runs", out);
  json_object_foreach(t->kept, name, value) fprintf(out, ",%s,%s sd,%s n", name, name, name);
  fputc('\n', out);
  for (size_t point = 0; point < t->s->point_count; point++) {
    for (size_t g = 0; g < t->s->grid_count; g++) {
      put_field(out, sweep_value(t->s, point, g));
      fputc(',', out);
    }
    fprintf(out, "%zu", finished(t->s, point));
    json_object_foreach(t->kept, name, value) {
      const statistic r = measure(t, point, name);
      fputc(',', out);
      put_number(out, r.mean);
      fputc(',', out);
      put_number(out, r.sd);
      fprintf(out, ",%zu", r.count);
    }
    fputc('\n', out);
  }
}

static json_t *real(double value) {
  return isfinite(value) ? json_real(value) : json_null();
}

static json_t *row_json(const table *t, size_t point) {
  json_t *at = json_object(), *metrics = json_object(), *value;
  const char *name;
  for (size_t g = 0; g < t->s->grid_count; g++)
    json_object_set_new(at, t->s->grids[g].key, json_string(sweep_value(t->s, point, g)));
  json_object_foreach(t->kept, name, value) {
    const statistic r = measure(t, point, name);
    json_object_set_new(
        metrics, name,
        json_pack("{s:o, s:o, s:I}", "mean", real(r.mean), "sd", real(r.sd), "n", (json_int_t)r.count));
  }
  return json_pack("{s:o, s:I, s:o}", "point", at, "runs", (json_int_t)finished(t->s, point), "metrics",
                   metrics);
}

static json_t *run_json(const table *t, size_t index) {
  const sweep_run *run = &t->s->runs[index];
  json_t *metrics = json_object(), *value;
  const char *name;
  json_object_foreach(t->kept, name, value) {
    json_t *number = json_object_get(t->last[index], name);
    if (number) json_object_set(metrics, name, number);
  }
  return json_pack("{s:s, s:I, s:I, s:b, s:o, s:o}", "folder", run->name, "row", (json_int_t)run->point,
                   "seed", (json_int_t)run->seed, "finished", run->state == SWEEP_FINISHED, "seconds",
                   run->state == SWEEP_FINISHED ? real(run->seconds) : json_null(), "metrics", metrics);
}

static kedge_status write_json(const table *t, const char *path) {
  json_t *rows = json_array(), *runs = json_array();
  for (size_t i = 0; i < t->s->point_count; i++) json_array_append_new(rows, row_json(t, i));
  for (size_t i = 0; i < t->s->run_count; i++) json_array_append_new(runs, run_json(t, i));
  json_t *o = json_pack("{s:i, s:s, s:o, s:o}", "kedge_sweep", 1, "version", kedge_version(), "rows", rows,
                        "runs", runs);
  char *text = o ? json_dumps(o, JSON_INDENT(2)) : NULL;
  kedge_status status = text ? kedge_file_write(path, text, strlen(text)) : KEDGE_ERR_MEMORY;
  free(text);
  json_decref(o);
  return status;
}

static kedge_status write_csv(const table *t, const char *path) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (!out) return KEDGE_ERR_MEMORY;
  put_csv(t, out);
  kedge_status status = fclose(out) ? KEDGE_ERR_MEMORY : kedge_file_write(path, text, size);
  free(text);
  return status;
}

kedge_status sweep_table(const sweep *s) {
  table t = {.s = s, .all = json_object(), .kept = json_object()};
  char *csv = kedge_path_join(s->out, "sweep.csv"), *json = kedge_path_join(s->out, "sweep.json");
  t.last = kedge_alloc(s->run_count, sizeof *t.last);
  kedge_status status = t.last && t.all && t.kept && csv && json ? KEDGE_OK : KEDGE_ERR_MEMORY;
  for (size_t i = 0; status == KEDGE_OK && i < s->run_count; i++)
    if (s->runs[i].state == SWEEP_FINISHED) status = read_run(&t, i);
  if (status == KEDGE_OK) choose(&t);
  if (status == KEDGE_OK) print(&t);
  if (status == KEDGE_OK) status = kedge_folder_make(s->out);
  if (status == KEDGE_OK) status = write_csv(&t, csv);
  if (status == KEDGE_OK) status = write_json(&t, json);
  for (size_t i = 0; t.last && i < s->run_count; i++) json_decref(t.last[i]);
  json_decref(t.all);
  json_decref(t.kept);
  kedge_free(t.last);
  kedge_free(csv);
  kedge_free(json);
  return status;
}
