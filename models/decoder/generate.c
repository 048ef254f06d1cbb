/* SPDX-License-Identifier: Apache-2.0
 * Generation with a key/value cache (generate.h). */
#include "models/decoder/generate.h"

#include "models/decoder/cache.h"
#include "models/decoder/finite.h"
#include "models/decoder/head.h"
#include "models/text/packing.h"
#include "models/text/random.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Choice
 * -------------------------------------------------------------------------------------------------------- */

typedef struct candidate {
  double value; /* logit, then probability */
  int32_t id;
} candidate;

static int by_likelihood(const void *a, const void *b) {
  const candidate *x = a, *y = b;
  if (x->value < y->value) return 1;
  if (x->value > y->value) return -1;
  return x->id < y->id ? -1 : x->id > y->id;
}

/* The largest logit and its first place. */
static kedge_status find_most(const float *logits, uint32_t vocabulary, int32_t *id) {
  float most = -INFINITY;
  int bad = 0;
  *id = 0;
#pragma omp simd reduction(max : most) reduction(| : bad)
  for (uint32_t v = 0; v < vocabulary; v++) {
    bad |= !(logits[v] <= FLT_MAX);
    most = logits[v] > most ? logits[v] : most;
  }
  for (uint32_t v = 0; bad && v < vocabulary; v++)
    if (!(logits[v] <= FLT_MAX))
      return kedge_fail(KEDGE_ERR_NUMERIC, "the logit of token %u is not finite", v);
  if (isinf(most)) return kedge_fail(KEDGE_ERR_NUMERIC, "no logit is finite");
  while (logits[*id] < most) ++*id;
  return KEDGE_OK;
}

/* How many of the candidates, in order, are kept by top_k and top_p. Values are unnormalised probabilities.
 */
static uint32_t cut(const candidate *items, uint32_t count, const kedge_sampling *s) {
  if (s->top_k && s->top_k < count) count = s->top_k;
  if (!(s->top_p < 1)) return count;
  double total = 0, sum = 0;
  for (uint32_t i = 0; i < count; i++) total += items[i].value;
  for (uint32_t i = 0; i < count; i++) {
    sum += items[i].value;
    if (sum >= s->top_p * total) return i + 1;
  }
  return count;
}

static int32_t draw(const candidate *items, uint32_t count, const kedge_sampling *s, uint64_t step) {
  kedge_random random = kedge_random_start(s->seed, step);
  double total = 0, sum = 0;
  for (uint32_t i = 0; i < count; i++) total += items[i].value;
  double mark = (double)(kedge_random_next(&random) >> 11) * 0x1p-53 * total;
  for (uint32_t i = 0; i < count; i++) {
    sum += items[i].value;
    if (mark < sum) return items[i].id;
  }
  return items[0].id; /* rounding at the very end */
}

kedge_status kedge_sample(const float *logits, uint32_t vocabulary, const kedge_sampling *s, uint64_t step,
                          int32_t *id) {
  int32_t most;
  if (!(s->temperature >= 0))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "temperature %g is below 0", s->temperature);
  if (s->temperature > 0 && !(s->top_p >= 0 && s->top_p <= 1))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "top_p %g is not from 0 to 1", s->top_p);
  KEDGE_TRY(find_most(logits, vocabulary, &most));
  *id = most;
  if (s->temperature <= 0) return KEDGE_OK;
  candidate *items = kedge_alloc(vocabulary, sizeof *items);
  if (!items) return KEDGE_ERR_MEMORY;
  for (uint32_t v = 0; v < vocabulary; v++) {
    double distance = (double)logits[v] - (double)logits[most];
    items[v] = (candidate){exp(distance / s->temperature), (int32_t)v};
  }
  uint32_t count = vocabulary;
  if ((s->top_k && s->top_k < vocabulary) || s->top_p < 1) {
    qsort(items, vocabulary, sizeof *items, by_likelihood);
    count = cut(items, vocabulary, s);
  }
  *id = draw(items, count, s, step);
  kedge_free(items);
  return KEDGE_OK;
}

/* ---- Passes
 * ------------------------------------------------------------------------------------------------------ */

typedef struct generation {
  const kedge_model *model;
  kedge_cache *cache;
  kedge_workspace *workspace;
  kedge_passes passes;
  kedge_head *head;
  uint32_t filled;                     /* rows of the cache in use: tokens seen so far */
  int32_t *ids, *positions, *segments; /* [largest pass] */
  int32_t *rows, *base, *length;       /* [largest pass] */
  unsigned char *hidden;               /* [largest pass, D] */
  float *logits;                       /* [V], of the last token */
} generation;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static kedge_status prepare(generation *s, uint32_t prompt, uint32_t rows) {
  const kedge_hf_config *c = &s->model->config;
  const size_t largest = kedge_bucket(prompt),
               width = (size_t)c->hidden_size * kedge_dtype_size(s->model->dtype);
  s->ids = kedge_alloc(largest, sizeof *s->ids);
  s->positions = kedge_alloc(largest, sizeof *s->positions);
  s->segments = kedge_alloc(largest, sizeof *s->segments);
  s->rows = kedge_alloc(largest, sizeof *s->rows);
  s->base = kedge_alloc(largest, sizeof *s->base);
  s->length = kedge_alloc(largest, sizeof *s->length);
  s->hidden = kedge_alloc(largest, width);
  s->logits = kedge_alloc(c->vocab_size, sizeof *s->logits);
  if (!s->ids || !s->positions || !s->segments || !s->rows || !s->base || !s->length || !s->hidden ||
      !s->logits)
    return KEDGE_ERR_MEMORY;
  KEDGE_TRY(kedge_workspace_new(s->model->device, &s->workspace));
  KEDGE_TRY(kedge_cache_new(s->model, rows, &s->cache));
  const kedge_decoder_spec spec = {.hidden = true, .cache = s->cache};
  kedge_passes_init(&s->passes, s->model, &spec, s->workspace, NULL, NULL);
  return kedge_head_new(s->model, 1, s->workspace, &s->head);
}

static void release(generation *s) {
  kedge_head_free(s->head);
  kedge_passes_destroy(&s->passes);
  kedge_cache_free(s->cache);
  kedge_workspace_free(s->workspace);
  kedge_free(s->ids);
  kedge_free(s->positions);
  kedge_free(s->segments);
  kedge_free(s->rows);
  kedge_free(s->base);
  kedge_free(s->length);
  kedge_free(s->hidden);
  kedge_free(s->logits);
}

static kedge_status write_inputs(generation *s, kedge_pass *pass) {
  const kedge_decoder *d = &pass->decoder;
  const uint64_t bytes = (uint64_t)pass->tokens * sizeof(int32_t);
  KEDGE_TRY(kedge_exec_write(pass->exec, d->rows_T, s->rows, bytes));
  KEDGE_TRY(kedge_exec_write(pass->exec, d->base_T, s->base, bytes));
  return kedge_exec_write(pass->exec, d->length_T, s->length, bytes);
}

/* Runs ids[0..count) after what the cache holds, in a pass of `size` tokens; leaves the last one's logits. */
static kedge_status extend(generation *s, const int32_t *ids, uint32_t count, uint32_t size) {
  const size_t width = (size_t)s->model->config.hidden_size * kedge_dtype_size(s->model->dtype);
  kedge_pass *pass;
  for (uint32_t t = 0; t < size; t++) {
    const bool in = t < count;
    const int32_t place = (int32_t)(s->filled + t);
    s->ids[t] = in ? ids[t] : 0;
    s->positions[t] = in ? place : 0;
    s->segments[t] = in ? 0 : -1;
    s->rows[t] = in ? place : -1;
    s->base[t] = 0;
    s->length[t] = in ? place + 1 : 0;
  }
  KEDGE_TRY(kedge_passes_get(&s->passes, size, 0, &pass));
  KEDGE_TRY(write_inputs(s, pass));
  const kedge_tokens tokens = {.ids = s->ids, .positions = s->positions, .segments = s->segments};
  KEDGE_TRY(kedge_pass_run(pass, &tokens));
  KEDGE_TRY(kedge_pass_check_routers(pass, s->model));
  KEDGE_TRY(kedge_exec_read(pass->exec, pass->decoder.hidden_TD, s->hidden, size * width));
  s->filled += count;
  return kedge_head_run(s->head, s->hidden + (count - 1) * width, s->logits, NULL);
}

/* ---- Loop
 * ----------------------------------------------------------------------------------------------------------
 */

static kedge_status check_prompt(const kedge_model *model, const int32_t *prompt, uint32_t count,
                                 uint32_t max_new) {
  if (!count) return kedge_fail(KEDGE_ERR_ARGUMENT, "the prompt has no token");
  if (count > INT32_MAX / 2 || max_new > INT32_MAX / 2)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "%u tokens and %u more are too many", count, max_new);
  for (uint32_t i = 0; i < count; i++)
    if (prompt[i] < 0 || (uint32_t)prompt[i] >= model->config.vocab_size)
      return kedge_fail(KEDGE_ERR_ARGUMENT,
                        "token %u of the prompt: id %d is outside the model's vocabulary of %u", i, prompt[i],
                        model->config.vocab_size);
  return KEDGE_OK;
}

static bool stops_at(const kedge_generate_options *o, int32_t id) {
  for (uint32_t i = 0; i < o->stop_count; i++)
    if (o->stops[i] == id) return true;
  return false;
}

static kedge_status decode(generation *s, const kedge_generate_options *o, kedge_generate_result *r) {
  while (r->tokens < o->max_new_tokens) {
    int32_t id;
    kedge_status status = kedge_sample(s->logits, s->model->config.vocab_size, &o->sampling, r->tokens, &id);
    if (status != KEDGE_OK) return kedge_fail_in(status, "new token %u", r->tokens);
    r->tokens++;
    if (o->token && !o->token(o->context, id, s->logits))
      return kedge_fail(KEDGE_ERR_INTERRUPTED, "stopped after %u tokens", r->tokens);
    r->stopped = stops_at(o, id);
    if (r->stopped || r->tokens == o->max_new_tokens) break;
    KEDGE_TRY(extend(s, &id, 1, 1));
  }
  return KEDGE_OK;
}

kedge_status kedge_generate(const kedge_model *model, const int32_t *prompt, uint32_t count,
                            const kedge_generate_options *options, kedge_generate_result *result) {
  generation s = {.model = model};
  *result = (kedge_generate_result){0};
  KEDGE_TRY(check_prompt(model, prompt, count, options->max_new_tokens));
  const double start = now();
  kedge_status status = prepare(&s, count, count + options->max_new_tokens);
  if (status == KEDGE_OK) result->cache_bytes = kedge_cache_bytes(s.cache);
  if (status == KEDGE_OK) status = extend(&s, prompt, count, kedge_bucket(count));
  const double middle = now();
  if (status == KEDGE_OK) status = decode(&s, options, result);
  result->prompt_seconds = middle - start;
  result->decode_seconds = now() - middle;
  release(&s);
  return status;
}
