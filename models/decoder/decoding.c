/* SPDX-License-Identifier: Apache-2.0
 * Batched decoding (decoding.h). A pass is a flat stream of one token of each sequence that decodes and of
 * whole prompts of those that begin. */
#include "models/decoder/decoding.h"

#include "models/decoder/cache.h"
#include "models/decoder/finite.h"
#include "models/decoder/head.h"

#include <math.h>
#include <string.h>

enum {
  PASS_TOKENS = 2048,      /* no further prompt begins in a pass beyond this */
  LOGITS_BYTES = 16 << 20, /* of the head's rows at a time */
  LEAST_ROWS = 16,
  MOST_ROWS = 64,
  SEQUENCES = 32
};
static const uint64_t CACHE_BYTES = (uint64_t)1 << 30;

/* A place in the cache and the sequence in it. */
typedef struct slot {
  uint32_t job;    /* UINT32_MAX: none */
  uint32_t after;  /* job that goes on with the prompt that is here; UINT32_MAX: none */
  uint32_t filled; /* rows in use: tokens whose keys and values are there */
  int32_t next;    /* token of the next pass */
  bool begins;     /* this pass holds its prompt */
  bool decided;    /* the token after the reference's told part is known */
} slot;

/* A hidden row whose logits are wanted: of slot `slot`, predicting its new token `index`. */
typedef struct wanted {
  uint32_t token, slot, index;
} wanted;

struct kedge_decoding {
  const kedge_model *model;
  kedge_decoding_options options;
  kedge_workspace *workspace;
  kedge_head *head;
  uint32_t head_rows;
  size_t width; /* bytes of a hidden row */
  unsigned char *head_hidden;
  float *logits, *log_sums; /* [head_rows, V], [head_rows] */
  kedge_decoding_counts counts;
  /* the cache and what is planned with it */
  kedge_cache *cache;
  kedge_passes passes;
  uint32_t slot_count, slot_rows;
  slot *slots;
  /* a pass */
  uint32_t capacity;                                          /* tokens */
  int32_t *ids, *positions, *segments, *rows, *base, *length; /* [capacity] */
  uint32_t *job_of;                                           /* [capacity] job of each token */
  unsigned char *hidden;                                      /* [capacity, D] */
  wanted *wants;                                              /* [capacity] */
  uint32_t tokens, want_count;
  /* a run */
  const kedge_decoding_job *jobs;
  kedge_decoding_result *results;
  uint32_t job_count, next_job, done;
};

/* ---- Memory
 * ----------------------------------------------------------------------------------------------------------
 */

static void drop_cache(kedge_decoding *d) {
  kedge_passes_destroy(&d->passes);
  kedge_cache_free(d->cache);
  kedge_free(d->slots);
  d->cache = NULL;
  d->slots = NULL;
  d->slot_count = d->slot_rows = 0;
}

static void drop_pass(kedge_decoding *d) {
  kedge_free(d->ids);
  kedge_free(d->positions);
  kedge_free(d->segments);
  kedge_free(d->rows);
  kedge_free(d->base);
  kedge_free(d->length);
  kedge_free(d->job_of);
  kedge_free(d->hidden);
  kedge_free(d->wants);
  d->ids = d->positions = d->segments = d->rows = d->base = d->length = NULL;
  d->job_of = NULL;
  d->hidden = NULL;
  d->wants = NULL;
  d->capacity = 0;
}

void kedge_decoding_free(kedge_decoding *d) {
  if (!d) return;
  drop_cache(d);
  drop_pass(d);
  kedge_head_free(d->head);
  kedge_workspace_free(d->workspace);
  kedge_free(d->head_hidden);
  kedge_free(d->logits);
  kedge_free(d->log_sums);
  kedge_free(d);
}

kedge_status kedge_decoding_new(const kedge_model *model, const kedge_decoding_options *options,
                                kedge_decoding **out) {
  kedge_decoding *d = *out = kedge_alloc(1, sizeof *d);
  if (!d) return KEDGE_ERR_MEMORY;
  const uint32_t vocabulary = model->config.vocab_size;
  uint32_t rows = LOGITS_BYTES / 4 / (vocabulary ? vocabulary : 1);
  rows = rows > MOST_ROWS ? MOST_ROWS : rows < LEAST_ROWS ? LEAST_ROWS : rows;
  d->model = model;
  d->options = *options;
  if (!d->options.sequences) d->options.sequences = SEQUENCES;
  if (!d->options.cache_bytes) d->options.cache_bytes = CACHE_BYTES;
  d->head_rows = rows;
  d->width = (size_t)model->config.hidden_size * kedge_dtype_size(model->dtype);
  d->head_hidden = kedge_alloc(rows, d->width);
  d->logits = kedge_alloc(rows, vocabulary * sizeof *d->logits);
  d->log_sums = kedge_alloc(rows, sizeof *d->log_sums);
  kedge_status status = d->head_hidden && d->logits && d->log_sums ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = kedge_workspace_new(model->device, &d->workspace);
  if (status == KEDGE_OK) status = kedge_head_new(model, rows, d->workspace, &d->head);
  if (status != KEDGE_OK) {
    kedge_decoding_free(d);
    *out = NULL;
  }
  return status;
}

kedge_decoding_counts kedge_decoding_count(const kedge_decoding *d) {
  return d->counts;
}

void kedge_decoding_result_destroy(kedge_decoding_result *result) {
  kedge_free(result->ids);
  kedge_free(result->endings);
  *result = (kedge_decoding_result){0};
}

static uint64_t row_bytes(const kedge_model *m) {
  const kedge_hf_config *c = &m->config;
  const uint64_t width =
      (uint64_t)c->num_key_value_heads * c->head_dim + (uint64_t)c->num_key_value_heads * c->v_head_dim;
  return width * c->num_hidden_layers * kedge_dtype_size(m->dtype);
}

/* A cache with room for sequences of `rows` tokens; one that is large enough stays. */
static kedge_status reserve_cache(kedge_decoding *d, uint32_t rows) {
  if (rows <= d->slot_rows) return KEDGE_OK;
  drop_cache(d);
  rows = (rows + 63) / 64 * 64;
  uint64_t most = d->options.cache_bytes / (row_bytes(d->model) * rows);
  const uint64_t addressable = INT32_MAX / rows;
  if (most > addressable) most = addressable;
  const uint32_t count = most < 1 ? 1 : most < d->options.sequences ? (uint32_t)most : d->options.sequences;
  d->slots = kedge_alloc(count, sizeof *d->slots);
  if (!d->slots) return KEDGE_ERR_MEMORY;
  KEDGE_TRY(kedge_cache_new(d->model, count * rows, &d->cache));
  const kedge_decoding_steer *steer = d->options.steer;
  const kedge_decoder_spec spec = {.hidden = true,
                                   .cache = d->cache,
                                   .interventions = steer ? steer->intervention : NULL,
                                   .intervention_count = steer != NULL};
  kedge_passes_init(&d->passes, d->model, &spec, d->workspace, NULL, NULL);
  d->slot_count = count;
  d->slot_rows = rows;
  if (kedge_cache_bytes(d->cache) > d->counts.cache_bytes)
    d->counts.cache_bytes = kedge_cache_bytes(d->cache);
  return KEDGE_OK;
}

/* Sizes of passes: powers of two and three steps between each two, so that few plans serve all. */
static uint32_t pass_size(uint32_t tokens) {
  uint32_t size = 16;
  while (2 * size < tokens) size *= 2;
  for (uint32_t quarter = 0; quarter < 4; quarter++)
    if (size + quarter * (size / 4) >= tokens) return size + quarter * (size / 4);
  return 2 * size;
}

static kedge_status reserve_pass(kedge_decoding *d, uint32_t tokens) {
  const uint32_t size = pass_size(tokens);
  if (size <= d->capacity) return KEDGE_OK;
  drop_pass(d);
  d->ids = kedge_alloc(size, sizeof *d->ids);
  d->positions = kedge_alloc(size, sizeof *d->positions);
  d->segments = kedge_alloc(size, sizeof *d->segments);
  d->rows = kedge_alloc(size, sizeof *d->rows);
  d->base = kedge_alloc(size, sizeof *d->base);
  d->length = kedge_alloc(size, sizeof *d->length);
  d->job_of = kedge_alloc(size, sizeof *d->job_of);
  d->hidden = kedge_alloc(size, d->width);
  d->wants = kedge_alloc(size, sizeof *d->wants);
  if (!d->ids || !d->positions || !d->segments || !d->rows || !d->base || !d->length || !d->job_of ||
      !d->hidden || !d->wants)
    return KEDGE_ERR_MEMORY;
  d->capacity = size;
  return KEDGE_OK;
}

/* ---- Jobs
 * ------------------------------------------------------------------------------------------------------------
 */

static kedge_status check_ids(const kedge_decoding *d, uint32_t job, const int32_t *ids, uint32_t count) {
  for (uint32_t i = 0; i < count; i++)
    if (ids[i] < 0 || (uint32_t)ids[i] >= d->model->config.vocab_size)
      return kedge_fail(KEDGE_ERR_ARGUMENT,
                        "sequence %u, token %u: id %d is outside the model's vocabulary of %u", job, i,
                        ids[i], d->model->config.vocab_size);
  return KEDGE_OK;
}

static uint64_t job_rows(const kedge_decoding_job *j) {
  return (uint64_t)j->prompt_count + (j->reference_count > j->max_new ? j->reference_count : j->max_new);
}

static kedge_status check_jobs(kedge_decoding *d, uint32_t *rows, uint32_t *largest) {
  *rows = *largest = 1;
  for (uint32_t i = 0; i < d->job_count; i++) {
    const kedge_decoding_job *j = &d->jobs[i];
    if (!j->prompt_count) return kedge_fail(KEDGE_ERR_ARGUMENT, "sequence %u: the prompt has no token", i);
    if (job_rows(j) > INT32_MAX / 4)
      return kedge_fail(KEDGE_ERR_ARGUMENT, "sequence %u: %llu tokens are too many", i,
                        (unsigned long long)job_rows(j));
    KEDGE_TRY(check_ids(d, i, j->prompt, j->prompt_count));
    KEDGE_TRY(check_ids(d, i, j->reference, j->reference_count));
    KEDGE_TRY(check_ids(d, i, j->endings, j->ending_count));
    const kedge_decoding_job *before = j->same_prompt && i ? j - 1 : NULL;
    if (j->same_prompt && (!before || before->prompt_count != j->prompt_count ||
                           memcmp(before->prompt, j->prompt, j->prompt_count * sizeof *j->prompt)))
      return kedge_fail(KEDGE_ERR_ARGUMENT, "sequence %u: its prompt is not that of the one before", i);
    if (job_rows(j) > *rows) *rows = (uint32_t)job_rows(j);
    if (j->prompt_count + j->reference_count > *largest) *largest = j->prompt_count + j->reference_count;
  }
  return KEDGE_OK;
}

static kedge_status open_result(const kedge_decoding_job *j, kedge_decoding_result *r) {
  if (j->max_new && !(r->ids = kedge_alloc(j->max_new, sizeof *r->ids))) return KEDGE_ERR_MEMORY;
  if (j->ending_count && !(r->endings = kedge_alloc(j->ending_count, sizeof *r->endings)))
    return KEDGE_ERR_MEMORY;
  return KEDGE_OK;
}

/* ---- Passes
 * ----------------------------------------------------------------------------------------------------------
 */

static void add_token(kedge_decoding *d, uint32_t s, uint32_t place, int32_t id, uint32_t segment) {
  const uint32_t t = d->tokens++, first = s * d->slot_rows;
  d->ids[t] = id;
  d->positions[t] = (int32_t)place;
  d->segments[t] = (int32_t)segment;
  d->rows[t] = (int32_t)(first + place);
  d->base[t] = (int32_t)first;
  d->length[t] = (int32_t)place + 1;
  d->job_of[t] = d->slots[s].job;
}

static void want(kedge_decoding *d, uint32_t slot_index, uint32_t index) {
  d->wants[d->want_count++] = (wanted){d->tokens - 1, slot_index, index};
}

/* The prompt and its reference. The logits after the last prompt token choose the first new one: where the
 * rest of the prompt is in the cache, this token runs again. */
static void add_beginning(kedge_decoding *d, uint32_t s) {
  const kedge_decoding_job *j = &d->jobs[d->slots[s].job];
  const uint32_t segment = d->tokens;
  for (uint32_t i = j->same_prompt ? j->prompt_count - 1 : 0; i < j->prompt_count; i++)
    add_token(d, s, i, j->prompt[i], segment);
  want(d, s, 0);
  for (uint32_t i = 0; i < j->reference_count; i++) {
    add_token(d, s, j->prompt_count + i, j->reference[i], segment);
    want(d, s, i + 1);
  }
}

/* Gives a free slot its next job, if there is one and it has room in the pass. The first one always has. */
static bool begin(kedge_decoding *d, uint32_t s, bool first) {
  slot *at = &d->slots[s];
  if (at->job != UINT32_MAX) return false;
  const uint32_t job = at->after != UINT32_MAX ? at->after : d->next_job;
  if (job >= d->job_count) return false;
  const kedge_decoding_job *j = &d->jobs[job];
  const uint32_t tokens = (j->same_prompt ? 1 : j->prompt_count) + j->reference_count;
  if (!first && d->tokens + tokens > PASS_TOKENS) return false;
  if (at->after == UINT32_MAX) {
    d->next_job++;
    while (d->next_job < d->job_count && d->jobs[d->next_job].same_prompt) d->next_job++;
  }
  *at = (slot){.job = job, .after = UINT32_MAX, .begins = true};
  add_beginning(d, s);
  return true;
}

static void lay_out(kedge_decoding *d) {
  d->tokens = d->want_count = 0;
  uint32_t active = 0;
  for (uint32_t s = 0; s < d->slot_count; s++) {
    slot *at = &d->slots[s];
    if (at->job == UINT32_MAX) continue;
    add_token(d, s, at->filled++, at->next, d->tokens);
    want(d, s, d->results[at->job].count);
    active++;
  }
  bool first = true;
  for (uint32_t s = 0; s < d->slot_count; s++) {
    const bool began = begin(d, s, first);
    first = first && !began;
    active += began;
  }
  if (active > d->counts.most) d->counts.most = active;
}

static kedge_status run_pass(kedge_decoding *d) {
  const uint32_t size = pass_size(d->tokens);
  const uint64_t bytes = (uint64_t)size * sizeof(int32_t);
  const kedge_decoding_steer *steer = d->options.steer;
  kedge_pass *pass;
  for (uint32_t t = d->tokens; t < size; t++) {
    d->ids[t] = d->positions[t] = d->base[t] = d->length[t] = 0;
    d->segments[t] = d->rows[t] = -1;
  }
  kedge_feed_data feed = {0};
  KEDGE_TRY(kedge_passes_get(&d->passes, size, steer ? steer->prior_rows : 0, &pass));
  if (steer) {
    const kedge_decoding_pass laid = {.tokens = d->tokens,
                                      .size = size,
                                      .ids = d->ids,
                                      .positions = d->positions,
                                      .segments = d->segments,
                                      .rows = d->rows,
                                      .base = d->base,
                                      .length = d->length,
                                      .jobs = d->job_of,
                                      .cache_rows = d->slot_count * d->slot_rows};
    KEDGE_TRY(steer->feed(steer->context, &laid, &feed));
  }
  KEDGE_TRY(kedge_exec_write(pass->exec, pass->decoder.rows_T, d->rows, bytes));
  KEDGE_TRY(kedge_exec_write(pass->exec, pass->decoder.base_T, d->base, bytes));
  KEDGE_TRY(kedge_exec_write(pass->exec, pass->decoder.length_T, d->length, bytes));
  const kedge_tokens tokens = {
      .ids = d->ids, .positions = d->positions, .segments = d->segments, .feeds = steer ? &feed : NULL};
  KEDGE_TRY(kedge_pass_run(pass, &tokens));
  KEDGE_TRY(kedge_pass_check_routers(pass, d->model));
  KEDGE_TRY(kedge_exec_read(pass->exec, pass->decoder.hidden_TD, d->hidden, size * d->width));
  d->counts.passes++;
  d->counts.tokens += d->tokens;
  return KEDGE_OK;
}

/* ---- Choices
 * ---------------------------------------------------------------------------------------------------------
 */

/* A wanted row's logits [V], the sum of their exponentials as its logarithm, and the most likely id. */
typedef struct choice {
  const float *logits;
  double log_sum;
  int32_t most;
} choice;

/* The reference's token `index`: its likelihood, and whether greedy decoding chooses it. */
static kedge_status score(const kedge_decoding_job *j, kedge_decoding_result *r, uint32_t index,
                          const choice *c) {
  if (index + 1 == j->reference_count)
    for (uint32_t e = 0; e < j->ending_count; e++)
      r->endings[e] = (double)c->logits[j->endings[e]] - c->log_sum - r->nll;
  r->nll += c->log_sum - (double)c->logits[j->reference[index]];
  if (!isfinite(r->nll)) return kedge_fail(KEDGE_ERR_NUMERIC, "reference token %u has no likelihood", index);
  r->matched += r->matched == index && c->most == j->reference[index];
  return KEDGE_OK;
}

static bool stops_at(const kedge_decoding *d, int32_t id) {
  for (uint32_t i = 0; i < d->options.stop_count; i++)
    if (d->options.stops[i] == id) return true;
  return false;
}

/* Chooses new token `index` of a slot; *over tells whether it was the last. */
static kedge_status choose(const kedge_decoding *d, slot *at, uint32_t index, const choice *c, bool *over) {
  const kedge_decoding_job *j = &d->jobs[at->job];
  kedge_decoding_result *r = &d->results[at->job];
  int32_t id = c->most;
  if (j->sampling.temperature > 0)
    KEDGE_TRY(kedge_sample(c->logits, d->model->config.vocab_size, &j->sampling, index, &id));
  r->ids[r->count++] = id;
  r->stopped = stops_at(d, id);
  const bool fast = at->begins && !j->from_prompt && j->sampling.temperature <= 0;
  const bool told = fast && index < j->reference_count && id == j->reference[index];
  r->told += told;
  *over = r->stopped || r->count == j->max_new;
  if (!*over && !told && d->options.go_on && !d->options.go_on(d->options.context, at->job, r->ids, r->count))
    *over = r->cut = true;
  at->decided = *over || !told;
  at->filled = j->prompt_count + index;
  at->next = id;
  return KEDGE_OK;
}

/* Takes the logits of a wanted row. */
static kedge_status take(kedge_decoding *d, const wanted *w, choice *c) {
  static const kedge_sampling greedy;
  slot *at = &d->slots[w->slot];
  const uint32_t job = at->job;
  const kedge_decoding_job *j = &d->jobs[job];
  kedge_decoding_result *r = &d->results[job];
  kedge_status status = kedge_sample(c->logits, d->model->config.vocab_size, &greedy, w->index, &c->most);
  bool over = false;
  if (status == KEDGE_OK && at->begins && w->index < j->reference_count) status = score(j, r, w->index, c);
  if (status == KEDGE_OK && j->max_new && !(at->begins && at->decided))
    status = choose(d, at, w->index, c, &over);
  if (status != KEDGE_OK) return kedge_fail_in(status, "sequence %u, new token %u", job, w->index);
  const bool last = !at->begins || w->index == j->reference_count;
  if (over && at->begins) at->next = -1; /* remembered until the reference is scored */
  if (last && (over || !j->max_new || (at->begins && at->next < 0))) {
    const bool more = job + 1 < d->job_count && d->jobs[job + 1].same_prompt;
    *at = (slot){.job = UINT32_MAX, .after = more ? job + 1 : UINT32_MAX};
    d->done++;
  }
  if (last) at->begins = false;
  return KEDGE_OK;
}

static kedge_status take_all(kedge_decoding *d) {
  for (uint32_t first = 0; first < d->want_count; first += d->head_rows) {
    const uint32_t left = d->want_count - first, rows = left < d->head_rows ? left : d->head_rows;
    for (uint32_t i = 0; i < rows; i++)
      memcpy(d->head_hidden + i * d->width, d->hidden + d->wants[first + i].token * d->width, d->width);
    memset(d->head_hidden + rows * d->width, 0, (d->head_rows - rows) * d->width);
    KEDGE_TRY(kedge_head_run(d->head, d->head_hidden, d->logits, d->log_sums));
    for (uint32_t i = 0; i < rows; i++) {
      choice c = {.logits = d->logits + (size_t)i * d->model->config.vocab_size,
                  .log_sum = (double)d->log_sums[i]};
      KEDGE_TRY(take(d, &d->wants[first + i], &c));
    }
  }
  return KEDGE_OK;
}

/* ---- Run
 * ---------------------------------------------------------------------------------------------------------
 */

kedge_status kedge_decoding_run(kedge_decoding *d, const kedge_decoding_job *jobs, uint32_t count,
                                kedge_decoding_result *results) {
  uint32_t rows, largest;
  memset(results, 0, count * sizeof *results);
  d->jobs = jobs;
  d->results = results;
  d->job_count = count;
  d->next_job = d->done = 0;
  KEDGE_TRY(check_jobs(d, &rows, &largest));
  for (uint32_t i = 0; i < count; i++) KEDGE_TRY(open_result(&jobs[i], &results[i]));
  KEDGE_TRY(reserve_cache(d, rows));
  for (uint32_t s = 0; s < d->slot_count; s++) d->slots[s] = (slot){.job = UINT32_MAX, .after = UINT32_MAX};
  KEDGE_TRY(reserve_pass(d, (largest > PASS_TOKENS ? largest : PASS_TOKENS) + d->slot_count));
  while (d->done < count) {
    lay_out(d);
    KEDGE_TRY(run_pass(d));
    KEDGE_TRY(take_all(d));
    if (d->options.progress && !d->options.progress(d->options.context, d->done, d->counts.tokens))
      return kedge_fail(KEDGE_ERR_INTERRUPTED, "stopped after %u of %u sequences", d->done, count);
  }
  return KEDGE_OK;
}
