/* SPDX-License-Identifier: Apache-2.0
 * Scores of samples (score.h): passes over consecutive samples, whose logits are handed to the file's writer
 * as it asks for them. */
#include "models/decoder/score.h"

#include "models/checkpoint/atomic.h"
#include "models/checkpoint/writer.h"
#include "models/decoder/finite.h"
#include "models/decoder/head.h"
#include "models/text/packing.h"

#include <math.h>
#include <string.h>

enum {
  PASS_TOKENS = 8192,      /* a pass takes no further sample beyond this */
  LOGITS_BYTES = 16 << 20, /* of the head's rows at a time */
  LOGITS_ROWS = 64
};

typedef struct scoring {
  const kedge_model *model;
  const kedge_score_samples *samples;
  const kedge_score_options *options;
  kedge_score_result *result;
  kedge_workspace *workspace;
  kedge_passes passes;
  kedge_head *head;
  /* the pass that was run last */
  uint32_t next;                                /* first sample of the next one */
  uint32_t tokens, handed;                      /* tokens of it; rows of logits made of it */
  int32_t *ids, *positions, *segments, *labels; /* [largest] */
  float *weights, *nll;                         /* [largest] */
  unsigned char *hidden;                        /* [largest + head_rows, D] */
  uint32_t head_rows, logits_left;              /* rows of `logits` that are made */
  uint64_t row_at;                              /* bytes of them already written */
  float *logits;                                /* [head_rows, V] */
  /* results, [tokens of all samples] */
  float *logprobs;
  uint8_t *mask;
} scoring;

static uint64_t total_tokens(const scoring *s) {
  return s->samples->offsets[s->samples->count];
}

/* First sample after the pass that begins with sample `first`. */
static uint32_t pass_end(const scoring *s, uint32_t first) {
  const uint64_t *offsets = s->samples->offsets;
  const uint32_t most = s->options->batch_size ? s->options->batch_size : 8;
  uint32_t end = first + 1;
  while (end < s->samples->count && end - first < most && offsets[end + 1] - offsets[first] <= PASS_TOKENS)
    end++;
  return end;
}

static kedge_status check_samples(const scoring *s) {
  const uint64_t tokens = total_tokens(s);
  if (!s->samples->count || !tokens) return kedge_fail(KEDGE_ERR_ARGUMENT, "there is no token to score");
  if (tokens > INT32_MAX / 2)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "%llu tokens are more than a score file holds (%d)",
                      (unsigned long long)tokens, INT32_MAX / 2);
  for (uint64_t t = 0; t < tokens; t++)
    if (s->samples->ids[t] < 0 || (uint32_t)s->samples->ids[t] >= s->model->config.vocab_size)
      return kedge_fail(KEDGE_ERR_ARGUMENT, "token %llu: id %d is outside the model's vocabulary of %u",
                        (unsigned long long)t, s->samples->ids[t], s->model->config.vocab_size);
  return KEDGE_OK;
}

static kedge_status allocate(scoring *s) {
  const kedge_hf_config *c = &s->model->config;
  const size_t width = (size_t)c->hidden_size * kedge_dtype_size(s->model->dtype);
  uint64_t most = 0;
  for (uint32_t i = 0, end; i < s->samples->count; i = end) {
    end = pass_end(s, i);
    uint64_t tokens = s->samples->offsets[end] - s->samples->offsets[i];
    if (tokens > most) most = tokens;
  }
  const size_t largest = kedge_bucket((uint32_t)most);
  s->ids = kedge_alloc(largest, sizeof *s->ids);
  s->positions = kedge_alloc(largest, sizeof *s->positions);
  s->segments = kedge_alloc(largest, sizeof *s->segments);
  s->labels = kedge_alloc(largest, sizeof *s->labels);
  s->weights = kedge_alloc(largest, sizeof *s->weights);
  s->nll = kedge_alloc(largest, sizeof *s->nll);
  s->logprobs = kedge_alloc(total_tokens(s), sizeof *s->logprobs);
  s->mask = kedge_alloc(total_tokens(s), sizeof *s->mask);
  if (!s->ids || !s->positions || !s->segments || !s->labels || !s->weights || !s->nll || !s->logprobs ||
      !s->mask)
    return KEDGE_ERR_MEMORY;
  if (!s->options->logits) return KEDGE_OK;
  s->head_rows = LOGITS_BYTES / 4 / c->vocab_size;
  s->head_rows = s->head_rows > LOGITS_ROWS ? LOGITS_ROWS : s->head_rows ? s->head_rows : 1;
  s->hidden = kedge_alloc(largest + s->head_rows, width);
  s->logits = kedge_alloc(s->head_rows, c->vocab_size * sizeof *s->logits);
  if (!s->hidden || !s->logits) return KEDGE_ERR_MEMORY;
  return kedge_head_new(s->model, s->head_rows, s->workspace, &s->head);
}

static void release(scoring *s) {
  kedge_head_free(s->head);
  kedge_passes_destroy(&s->passes);
  kedge_workspace_free(s->workspace);
  kedge_free(s->ids);
  kedge_free(s->positions);
  kedge_free(s->segments);
  kedge_free(s->labels);
  kedge_free(s->weights);
  kedge_free(s->nll);
  kedge_free(s->hidden);
  kedge_free(s->logits);
  kedge_free(s->logprobs);
  kedge_free(s->mask);
}

/* ---- Passes
 * ------------------------------------------------------------------------------------------------------ */

/* Samples [first, end) as a flat stream; the tail of the bucket is outside any. */
static void lay_out(scoring *s, uint32_t first, uint32_t end, uint32_t size) {
  uint32_t t = 0;
  for (uint32_t i = first; i < end; i++) {
    const uint32_t start = t, length = (uint32_t)(s->samples->offsets[i + 1] - s->samples->offsets[i]);
    const int32_t *ids = s->samples->ids + s->samples->offsets[i];
    for (uint32_t j = 0; j < length; j++, t++) {
      s->ids[t] = ids[j];
      s->positions[t] = (int32_t)j;
      s->segments[t] = (int32_t)start;
      s->labels[t] = j + 1 < length ? ids[j + 1] : -1;
      s->weights[t] = 1;
    }
  }
  for (; t < size; t++) {
    s->ids[t] = s->positions[t] = 0;
    s->segments[t] = s->labels[t] = -1;
    s->weights[t] = 0;
  }
}

/* The nll of token t is that of token t + 1: moves it there. */
static kedge_status keep_scores(scoring *s, uint32_t first, uint32_t end) {
  const uint64_t from = s->samples->offsets[first], count = s->samples->offsets[end] - from;
  for (uint64_t t = 0; t < count; t++) {
    if (s->labels[t] < 0) continue;
    const double nll = (double)s->nll[t];
    if (!isfinite(nll))
      return kedge_not_finite(s->model, "the log-probability of token %llu is not finite",
                              (unsigned long long)(from + t + 1));
    s->logprobs[from + t + 1] = -s->nll[t];
    s->mask[from + t + 1] = 1;
    s->result->scored++;
    s->result->nll += nll;
    if (!s->samples->spans || s->samples->spans[from + t + 1] != 1) continue;
    s->result->answer++;
    s->result->answer_nll += nll;
  }
  return KEDGE_OK;
}

/* Runs the pass that begins with sample s->next. */
static kedge_status run_pass(scoring *s) {
  const uint32_t first = s->next, end = pass_end(s, first);
  s->tokens = (uint32_t)(s->samples->offsets[end] - s->samples->offsets[first]);
  const uint32_t size = kedge_bucket(s->tokens);
  kedge_pass *pass;
  lay_out(s, first, end, size);
  KEDGE_TRY(kedge_passes_get(&s->passes, size, 0, &pass));
  const kedge_tokens tokens = {.ids = s->ids,
                               .positions = s->positions,
                               .segments = s->segments,
                               .labels = s->labels,
                               .weights = s->weights};
  KEDGE_TRY(kedge_pass_run(pass, &tokens));
  KEDGE_TRY(kedge_pass_check_routers(pass, s->model));
  KEDGE_TRY(kedge_exec_read(pass->exec, pass->decoder.nll_T, s->nll, (uint64_t)size * sizeof *s->nll));
  if (s->options->logits)
    KEDGE_TRY(kedge_exec_read(pass->exec, pass->decoder.hidden_TD, s->hidden,
                              kedge_value_bytes(pass->decoder.graph, pass->decoder.hidden_TD)));
  KEDGE_TRY(keep_scores(s, first, end));
  s->next = end;
  s->handed = 0;
  s->result->tokens += s->tokens;
  if (s->options->progress &&
      !s->options->progress(s->options->context, end, s->samples->count, s->result->tokens))
    return kedge_fail(KEDGE_ERR_INTERRUPTED, "stopped after %u of %u samples", end, s->samples->count);
  return KEDGE_OK;
}

/* ---- File
 * -------------------------------------------------------------------------------------------------------- */

/* Makes the next rows of logits, running the next pass where one is used up. */
static kedge_status more_logits(scoring *s) {
  if (s->handed == s->tokens) KEDGE_TRY(run_pass(s));
  const size_t width = (size_t)s->model->config.hidden_size * kedge_dtype_size(s->model->dtype);
  const uint32_t left = s->tokens - s->handed;
  KEDGE_TRY(kedge_head_run(s->head, s->hidden + s->handed * width, s->logits, NULL));
  s->logits_left = left < s->head_rows ? left : s->head_rows;
  s->handed += s->logits_left;
  s->row_at = 0;
  return KEDGE_OK;
}

static kedge_status fill_logits(scoring *s, unsigned char *to, uint64_t bytes) {
  const uint64_t row = (uint64_t)s->model->config.vocab_size * sizeof(float);
  while (bytes) {
    if (s->row_at == s->logits_left * row) KEDGE_TRY(more_logits(s));
    uint64_t left = s->logits_left * row - s->row_at, count = left < bytes ? left : bytes;
    memcpy(to, (const unsigned char *)s->logits + s->row_at, count);
    s->row_at += count;
    to += count;
    bytes -= count;
  }
  return KEDGE_OK;
}

typedef enum kind { LOGITS, LOGPROBS, TOKENS, CU_SEQLENS, SPANS, MASK } kind;

typedef struct file_writing {
  scoring *s;
  kedge_st_spec specs[6];
  kind kinds[6];
  uint32_t count;
} file_writing;

static kedge_status fill(void *context, uint32_t index, uint64_t offset, void *buffer, uint64_t bytes) {
  const file_writing *w = context;
  const scoring *s = w->s;
  const uint64_t at = offset / 4, count = bytes / 4;
  int32_t *words = buffer;
  switch (w->kinds[index]) {
  case LOGITS:
    return fill_logits(w->s, buffer, bytes);
  case LOGPROBS:
    memcpy(buffer, s->logprobs + at, bytes);
    break;
  case TOKENS:
    memcpy(buffer, s->samples->ids + at, bytes);
    break;
  case CU_SEQLENS:
    for (uint64_t i = 0; i < count; i++) words[i] = (int32_t)s->samples->offsets[at + i];
    break;
  case SPANS:
    for (uint64_t i = 0; i < count; i++) words[i] = s->samples->spans[at + i];
    break;
  case MASK:
    memcpy(buffer, s->mask + offset, bytes);
    break;
  }
  return KEDGE_OK;
}

static void declare(file_writing *w, kind what, const char *name, kedge_st_dtype dtype, uint64_t rows,
                    uint64_t cols) {
  w->specs[w->count] = (kedge_st_spec){name, dtype, cols ? 2 : 1, {rows, cols}};
  w->kinds[w->count++] = what;
}

static kedge_status write_file(scoring *s, const char *path) {
  file_writing w = {.s = s};
  const uint64_t tokens = total_tokens(s);
  /* Logits come first: writing them runs the passes, which give everything else. */
  if (s->options->logits) declare(&w, LOGITS, "logits", KEDGE_ST_F32, tokens, s->model->config.vocab_size);
  declare(&w, LOGPROBS, "logprobs", KEDGE_ST_F32, tokens, 0);
  declare(&w, TOKENS, "tokens", KEDGE_ST_I32, tokens, 0);
  declare(&w, CU_SEQLENS, "cu_seqlens", KEDGE_ST_I32, (uint64_t)s->samples->count + 1, 0);
  if (s->samples->spans) declare(&w, SPANS, "spans", KEDGE_ST_I32, tokens, 0);
  declare(&w, MASK, "mask", KEDGE_ST_U8, tokens, 0);
  uint64_t total = 4096;
  for (uint32_t i = 0; i < w.count; i++) {
    uint64_t bytes;
    if (!kedge_st_spec_bytes(&w.specs[i], &bytes))
      return kedge_fail(KEDGE_ERR_ARGUMENT, "%s is too large", path);
    total += bytes;
  }
  KEDGE_TRY(kedge_disk_require(path, total));
  while (!s->options->logits && s->next < s->samples->count) KEDGE_TRY(run_pass(s));
  const kedge_st_pair extra[] = {{"kedge_score", "1"}, {"kedge_version", kedge_version()}};
  return kedge_st_write(path, w.specs, w.count, extra, sizeof extra / sizeof *extra, fill, &w);
}

kedge_status kedge_score(const kedge_model *model, const kedge_score_samples *samples,
                         const kedge_score_options *options, const char *path, kedge_score_result *result) {
  static const kedge_score_options defaults;
  scoring s = {
      .model = model, .samples = samples, .options = options ? options : &defaults, .result = result};
  const kedge_decoder_spec spec = {.loss = true, .hidden = s.options->logits};
  *result = (kedge_score_result){0};
  kedge_status status = check_samples(&s);
  if (status == KEDGE_OK) status = kedge_workspace_new(model->device, &s.workspace);
  kedge_passes_init(&s.passes, model, &spec, s.workspace, NULL, NULL);
  if (status == KEDGE_OK) status = allocate(&s);
  if (status == KEDGE_OK) status = write_file(&s, path);
  release(&s);
  return status;
}
