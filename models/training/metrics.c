/* SPDX-License-Identifier: Apache-2.0
 * metrics.jsonl (metrics.h). The trainer state is in trainer_state.c; replacing a file at once is in
 * replace.c. */
#include "models/training/metrics.h"
#include "models/checkpoint/atomic.h"
#include "models/training/number.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kedge_metrics {
  FILE *file;
  char *path;
};

/* Whether a complete line is kept: 1 yes, 0 its step is too large, -1 it is no JSON object. */
static int keeps(const char *line, size_t length, uint64_t resume_step) {
  json_t *object = json_loadb(line, length, JSON_REJECT_DUPLICATES, NULL);
  int kept = json_is_object(object) ? 1 : -1;
  json_t *step = json_object_get(object, "step");
  if (json_is_number(step) && json_number_value(step) > (double)resume_step) kept = 0;
  json_decref(object);
  return kept;
}

/* Copies the lines to keep. A line is complete if it ends in a newline; the last one may be cut off anywhere.
 */
static kedge_status copy_lines(const char *path, FILE *from, kedge_outfile *to, uint64_t resume_step) {
  char *line = NULL;
  size_t capacity = 0;
  kedge_status status = KEDGE_OK;
  for (uint64_t number = 1; status == KEDGE_OK; number++) {
    errno = 0;
    ssize_t length = getline(&line, &capacity, from);
    if (length < 0) {
      if (ferror(from) || errno == ENOMEM) status = kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
      break;
    }
    if (line[length - 1] != '\n') break;
    if (strspn(line, " \t\r\n") == (size_t)length) continue;
    int kept = keeps(line, (size_t)length, resume_step);
    int next = kept < 0 ? fgetc(from) : 0;
    if (kept < 0 && next == EOF) break; /* a newline can reach the disk before what stands in front of it */
    if (kept < 0)
      status =
          kedge_fail(KEDGE_ERR_FORMAT, "%s:%llu: expected a JSON object", path, (unsigned long long)number);
    else if (kept)
      status = kedge_outfile_write(to, line, (uint64_t)length);
  }
  free(line);
  return status;
}

static kedge_status keep_until(const char *path, uint64_t resume_step) {
  FILE *from = fopen(path, "rb");
  if (!from && errno == ENOENT) return KEDGE_OK;
  if (!from) return kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
  kedge_outfile *to;
  kedge_status status = kedge_outfile_open(path, &to);
  if (status == KEDGE_OK) {
    status = copy_lines(path, from, to, resume_step);
    if (status == KEDGE_OK)
      status = kedge_outfile_commit(to);
    else
      kedge_outfile_discard(to);
  }
  fclose(from);
  return status;
}

kedge_status kedge_metrics_open(const char *path, uint64_t resume_step, kedge_metrics **metrics) {
  *metrics = NULL;
  if (resume_step) KEDGE_TRY(keep_until(path, resume_step));
  kedge_metrics *made = kedge_alloc(1, sizeof *made);
  if (!made) return KEDGE_ERR_MEMORY;
  made->path = kedge_strdup(path);
  if (!made->path) {
    kedge_free(made);
    return KEDGE_ERR_MEMORY;
  }
  made->file = fopen(path, resume_step ? "ab" : "wb");
  if (!made->file) {
    kedge_status status = kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
    kedge_metrics_close(made);
    return status;
  }
  *metrics = made;
  return KEDGE_OK;
}

kedge_status kedge_metrics_write(kedge_metrics *metrics, uint64_t step, double epoch,
                                 const kedge_metric *items, size_t count) {
  char number[KEDGE_REAL_TEXT];
  FILE *file = metrics->file;
  fprintf(file, "{\"step\": %llu, \"epoch\": %s", (unsigned long long)step, kedge__real_text(epoch, number));
  for (size_t i = 0; i < count; i++)
    fprintf(file, ", \"%s\": %s", items[i].key, kedge__real_text(items[i].value, number));
  fputs("}\n", file);
  if (fflush(file) || ferror(file)) return kedge_fail(KEDGE_ERR_IO, "%s: %s", metrics->path, strerror(errno));
  return KEDGE_OK;
}

kedge_status kedge_metrics_close(kedge_metrics *metrics) {
  if (!metrics) return KEDGE_OK;
  kedge_status status = KEDGE_OK;
  if (metrics->file && fclose(metrics->file))
    status = kedge_fail(KEDGE_ERR_IO, "%s: %s", metrics->path, strerror(errno));
  kedge_free(metrics->path);
  kedge_free(metrics);
  return status;
}
