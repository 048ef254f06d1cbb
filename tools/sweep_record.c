/* SPDX-License-Identifier: Apache-2.0
 * What is known of a sweep's runs from their folders (sweep.h): kedge_sweep.json says which settings a folder
 * belongs to and whether its run is finished. */
#include "models/checkpoint/atomic.h"
#include "tools/sweep.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RECORD "kedge_sweep.json"
enum { RECORD_CAP = 1 << 20 };

kedge_status sweep_record(const sweep *s, const sweep_run *run, bool finished) {
  json_t *point = json_object(), *settings = json_loads(run->settings, 0, NULL);
  for (size_t i = 0; i < s->grid_count; i++)
    json_object_set_new(point, s->grids[i].key, json_string(sweep_value(s, run->point, i)));
  json_t *o = json_pack("{s:i, s:s, s:b, s:f, s:s, s:o?, s:I, s:o?}", "kedge_sweep", 1, "version",
                        kedge_version(), "finished", finished, "seconds", run->seconds, "hash", run->hash,
                        "point", point, "seed", (json_int_t)run->seed, "settings", settings);
  char *text = o ? json_dumps(o, JSON_INDENT(2)) : NULL, *path = kedge_path_join(run->folder, RECORD);
  kedge_status status = text && path ? kedge_file_write(path, text, strlen(text)) : KEDGE_ERR_MEMORY;
  free(text);
  json_decref(o);
  kedge_free(path);
  return status;
}

/* Names the first setting in which a folder's run differs. */
static kedge_status differs(const sweep_run *run, const json_t *had) {
  json_t *has = json_loads(run->settings, 0, NULL), *value;
  const char *key;
  kedge_status status = KEDGE_ERR_MISMATCH;
  char *x = NULL, *y = NULL;
  json_object_foreach(has, key, value) {
    const json_t *other = json_object_get(had, key);
    if (json_equal(value, other)) continue;
    x = other ? json_dumps(other, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    y = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
    break;
  }
  kedge_fail(
      status,
      "%s holds a run of other settings (%s was %.200s, is %.200s); remove it, or choose another --out",
      run->folder, key ? key : "a key", x ? x : "absent", y ? y : "absent");
  free(x);
  free(y);
  json_decref(has);
  return status;
}

static kedge_status use(sweep_run *run, const char *path, const json_t *o) {
  const json_t *hash = json_object_get(o, "hash"), *seconds = json_object_get(o, "seconds");
  if (!json_is_string(hash) || !json_is_boolean(json_object_get(o, "finished")))
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: not the record of a sweep's run", path);
  if (strcmp(json_string_value(hash), run->hash)) return differs(run, json_object_get(o, "settings"));
  run->found = true;
  run->seconds = json_is_number(seconds) ? json_number_value(seconds) : 0;
  if (json_is_true(json_object_get(o, "finished"))) run->state = SWEEP_FINISHED;
  return KEDGE_OK;
}

static kedge_status find_one(sweep_run *run) {
  char *path = kedge_path_join(run->folder, RECORD), *text = NULL;
  size_t bytes = 0;
  json_error_t error;
  if (!path) return KEDGE_ERR_MEMORY;
  kedge_status status = KEDGE_OK;
  if (access(path, F_OK) == 0) {
    status = kedge_file_read(path, RECORD_CAP, &text, &bytes);
    json_t *o = status == KEDGE_OK ? json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error) : NULL;
    if (status == KEDGE_OK)
      status = o ? use(run, path, o) : kedge_fail(KEDGE_ERR_FORMAT, "%s: %s", path, error.text);
    json_decref(o);
  }
  kedge_free(text);
  kedge_free(path);
  return status;
}

kedge_status sweep_find(sweep *s) {
  for (size_t i = 0; i < s->run_count; i++) KEDGE_TRY(find_one(&s->runs[i]));
  return KEDGE_OK;
}
