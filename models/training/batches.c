/* SPDX-License-Identifier: Apache-2.0
 *
 * Order, windows and flat streams of a run's batches. Siblings: models/text/samples.h (the data),
 * models/text/packing.h (rows and bucket sizes), models/text/random.h (permutations).
 */
#include "models/training/batches.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "models/text/random.h"

enum { NO_EPOCH = -1 };

struct kedge_batches {
  const kedge_dataset *dataset;
  kedge_batches_options options;
  kedge_bins bins;
  uint64_t total_rows, updates; /* of the run */
  uint64_t cursor;              /* next update */
  int64_t order_epoch;          /* epoch whose order is in `order`, NO_EPOCH: none */
  uint32_t *order;              /* [bins.count] */
  kedge_update update;          /* loaded */
  uint32_t *window;             /* [window_capacity] rows of the loaded update */
  uint32_t window_capacity;
  uint32_t max_size; /* no stream is larger */
  uint32_t capacity, sample_capacity;
  int32_t *ids, *positions, *segments, *labels, *spans; /* [capacity] */
  float *weights;
  uint32_t *samples; /* [sample_capacity] */
};

void kedge_batches_free(kedge_batches *b) {
  if (!b) return;
  kedge_bins_destroy(&b->bins);
  kedge_free(b->order);
  kedge_free(b->window);
  kedge_free(b->ids);
  kedge_free(b->positions);
  kedge_free(b->segments);
  kedge_free(b->labels);
  kedge_free(b->spans);
  kedge_free(b->weights);
  kedge_free(b->samples);
  kedge_free(b);
}

static uint32_t sample_tokens(const kedge_dataset *d, uint32_t sample) {
  return (uint32_t)(d->offsets[sample + 1] - d->offsets[sample]);
}

static kedge_status make_rows(kedge_batches *b) {
  const kedge_dataset *d = b->dataset;
  if (!b->options.packing) return kedge_bins_init_single(&b->bins, d->count);
  if (!b->options.max_length) return kedge_fail(KEDGE_ERR_ARGUMENT, "packing needs max_length");
  uint32_t *lengths = kedge_alloc(d->count, sizeof *lengths);
  if (!lengths) return KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; i < d->count; i++) lengths[i] = sample_tokens(d, i);
  kedge_status status = kedge_bins_init(&b->bins, lengths, d->count, b->options.max_length);
  kedge_free(lengths);
  return status;
}

static uint64_t row_tokens(const kedge_batches *b, uint32_t row) {
  uint64_t tokens = 0;
  for (uint32_t i = b->bins.offsets[row]; i < b->bins.offsets[row + 1]; i++)
    tokens += sample_tokens(b->dataset, b->bins.samples[i]);
  return tokens;
}

/* How many rows and updates the run has. */
static kedge_status measure(kedge_batches *b) {
  const kedge_batches_options *o = &b->options;
  uint64_t per_update = (uint64_t)o->batch_size * o->ranks * o->accumulation, longest = 0;
  if (o->max_updates) {
    b->updates = o->max_updates;
    if (__builtin_mul_overflow(o->max_updates, per_update, &b->total_rows))
      return kedge_fail(KEDGE_ERR_ARGUMENT, "a run of %" PRIu64 " updates is too long", o->max_updates);
  } else {
    double rows = ceil(o->epochs * b->bins.count - 1e-6); /* 0.1 * 30 is a little over 3 */
    if (!(o->epochs > 0) || !(rows < 9e15))
      return kedge_fail(KEDGE_ERR_ARGUMENT, "epochs: expected over 0, got %g", o->epochs);
    b->total_rows = rows < 1 ? 1 : (uint64_t)rows;
    b->updates = (b->total_rows + per_update - 1) / per_update;
  }
  uint64_t window = per_update < b->total_rows ? per_update : b->total_rows;
  if (window > INT32_MAX)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "an update of %" PRIu64 " rows is too large", window);
  b->window_capacity = (uint32_t)window;
  for (uint32_t r = 0; r < b->bins.count; r++) {
    uint64_t tokens = row_tokens(b, r);
    if (tokens > longest) longest = tokens;
  }
  uint64_t most = longest * (o->batch_size < window ? o->batch_size : window);
  if (most > UINT32_C(7) << 28) /* its bucket must be below 2^31 too */
    return kedge_fail(KEDGE_ERR_ARGUMENT, "a batch of %u rows of up to %" PRIu64 " tokens is too large",
                      o->batch_size, longest);
  b->max_size = kedge_bucket((uint32_t)most);
  return KEDGE_OK;
}

kedge_status kedge_batches_new(const kedge_dataset *dataset, const kedge_batches_options *options,
                               kedge_batches **batches) {
  *batches = NULL;
  if (!options->batch_size || !options->accumulation)
    return kedge_fail(KEDGE_ERR_ARGUMENT,
                      "batch size and gradient accumulation: expected at least 1, got %u and %u",
                      options->batch_size, options->accumulation);
  if (!dataset->count) return kedge_fail(KEDGE_ERR_ARGUMENT, "a dataset without samples");
  kedge_batches *b = kedge_alloc(1, sizeof *b);
  if (!b) return KEDGE_ERR_MEMORY;
  *b = (kedge_batches){.dataset = dataset, .options = *options, .order_epoch = NO_EPOCH};
  if (!b->options.ranks) b->options.ranks = 1;
  kedge_status status = make_rows(b);
  if (status == KEDGE_OK) status = measure(b);
  if (status == KEDGE_OK) {
    b->order = kedge_alloc(b->bins.count, sizeof *b->order);
    b->window = kedge_alloc(b->window_capacity, sizeof *b->window);
    if (!b->order || !b->window) status = KEDGE_ERR_MEMORY;
  }
  if (status != KEDGE_OK) {
    kedge_batches_free(b);
    return status;
  }
  *batches = b;
  return KEDGE_OK;
}

kedge_status kedge_batches_new_eval(const kedge_dataset *dataset, uint32_t batch_size,
                                    kedge_batches **batches) {
  kedge_batches_options options = {.batch_size = batch_size, .accumulation = 1, .epochs = 1};
  return kedge_batches_new(dataset, &options, batches);
}

uint64_t kedge_batches_updates(const kedge_batches *b) {
  return b->updates;
}
uint32_t kedge_batches_rows(const kedge_batches *b) {
  return b->bins.count;
}
uint32_t kedge_batches_max_size(const kedge_batches *b) {
  return b->max_size;
}
uint64_t kedge_batches_cursor(const kedge_batches *b) {
  return b->cursor;
}

kedge_status kedge_batches_seek(kedge_batches *b, uint64_t update) {
  if (update > b->updates)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "update %" PRIu64 " is past the end of a run of %" PRIu64, update,
                      b->updates);
  b->cursor = update;
  return KEDGE_OK;
}

/* The row at a place of the endless stream. An epoch's order depends on seed and epoch alone. */
static uint32_t row_at(kedge_batches *b, uint64_t place) {
  uint32_t rows = b->bins.count;
  if (!b->options.shuffle) return (uint32_t)(place % rows);
  int64_t epoch = (int64_t)(place / rows);
  if (epoch != b->order_epoch) {
    for (uint32_t i = 0; i < rows; i++) b->order[i] = i;
    kedge_random random = kedge_random_start(b->options.seed, (uint64_t)epoch);
    kedge_random_shuffle(&random, b->order, rows);
    b->order_epoch = epoch;
  }
  return b->order[place % rows];
}

/* Adds one sample to the sums of the loaded update. */
static void count_sample(const kedge_dataset *d, uint32_t sample, kedge_update *u) {
  const uint64_t answer = u->answer;
  for (uint64_t t = d->offsets[sample]; t < d->offsets[sample + 1]; t++) {
    u->supervised += d->trained[t];
    u->answer += d->spans[t] == KEDGE_SPAN_A;
  }
  u->tokens += sample_tokens(d, sample);
  u->samples++;
  u->answered += u->answer > answer;
}

/* Rows [*first, *last) of the window that are a rank's part of a micro-batch. */
static void micro_rows(const kedge_batches *b, uint32_t index, uint32_t rank, uint64_t *first,
                       uint64_t *last) {
  const uint64_t ranks = b->options.ranks, whole = b->options.batch_size * ranks, start = index * whole;
  const uint64_t rows = b->update.rows - start < whole ? b->update.rows - start : whole;
  *first = start + rows * rank / ranks;
  *last = start + rows * (rank + 1) / ranks;
}

kedge_status kedge_batches_next(kedge_batches *b, kedge_update *update) {
  const uint64_t whole = (uint64_t)b->options.batch_size * b->options.ranks;
  uint64_t per_update = whole * b->options.accumulation;
  uint64_t start = b->cursor * per_update, end = start + per_update;
  b->update = *update = (kedge_update){
      .index = b->cursor, .ranks = b->options.ranks, .epoch = (double)b->total_rows / b->bins.count};
  if (b->cursor >= b->updates) return KEDGE_OK;
  if (end > b->total_rows) end = b->total_rows;
  kedge_update *u = &b->update;
  u->rows = end - start;
  u->micro_batches = (uint32_t)((u->rows + whole - 1) / whole);
  u->epoch = (double)end / b->bins.count;
  for (uint64_t i = 0; i < u->rows; i++) {
    uint32_t row = b->window[i] = row_at(b, start + i);
    for (uint32_t s = b->bins.offsets[row]; s < b->bins.offsets[row + 1]; s++)
      count_sample(b->dataset, b->bins.samples[s], u);
  }
  for (uint64_t part = 0; part < (uint64_t)u->micro_batches * u->ranks; part++) {
    uint64_t first, last, tokens = 0;
    micro_rows(b, (uint32_t)(part / u->ranks), (uint32_t)(part % u->ranks), &first, &last);
    for (uint64_t i = first; i < last; i++) tokens += row_tokens(b, b->window[i]);
    uint32_t size = kedge_bucket((uint32_t)tokens);
    if (size > u->longest_stream) u->longest_stream = size;
  }
  b->cursor++;
  *update = *u;
  return KEDGE_OK;
}

static kedge_status reserve(kedge_batches *b, uint32_t size, uint32_t samples) {
  if (samples > b->sample_capacity) {
    uint32_t *grown = kedge_realloc(b->samples, samples, sizeof *grown);
    if (!grown) return KEDGE_ERR_MEMORY;
    b->samples = grown;
    b->sample_capacity = samples;
  }
  if (size <= b->capacity) return KEDGE_OK;
  int32_t **arrays[] = {&b->ids, &b->positions, &b->segments, &b->labels, &b->spans};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
    int32_t *grown = kedge_realloc(*arrays[i], size, sizeof *grown);
    if (!grown) return KEDGE_ERR_MEMORY;
    *arrays[i] = grown;
  }
  float *weights = kedge_realloc(b->weights, size, sizeof *weights);
  if (!weights) return KEDGE_ERR_MEMORY;
  b->weights = weights;
  b->capacity = size;
  return KEDGE_OK;
}

/* Writes one sample's tokens at `at`, as local sample `local`. */
static void put_sample(kedge_batches *b, uint32_t sample, uint32_t at, uint32_t local,
                       kedge_micro_batch *micro) {
  const kedge_dataset *d = b->dataset;
  uint64_t start = d->offsets[sample];
  uint32_t count = sample_tokens(d, sample);
  float weight = b->update.supervised ? (float)(1.0 / (double)b->update.supervised) : 0;
  for (uint32_t i = 0; i < count; i++) {
    uint64_t t = start + i;
    bool labelled = i + 1 < count && d->trained[t + 1];
    b->ids[at + i] = d->ids[t];
    b->positions[at + i] = (int32_t)i;
    b->segments[at + i] = (int32_t)at;
    b->labels[at + i] = labelled ? d->ids[t + 1] : -1;
    b->spans[at + i] = (int32_t)(2 * local) + d->spans[t];
    b->weights[at + i] = labelled ? weight : 0;
    micro->supervised += labelled;
    micro->answer += d->spans[t] == KEDGE_SPAN_A;
  }
}

kedge_status kedge_batches_micro(kedge_batches *b, uint32_t index, kedge_micro_batch *micro) {
  *micro = (kedge_micro_batch){0};
  if (index >= b->update.micro_batches)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "micro-batch %u of an update with %u", index,
                      b->update.micro_batches);
  uint64_t first, last, tokens = 0, samples = 0;
  micro_rows(b, index, b->options.rank, &first, &last);
  for (uint64_t i = first; i < last; i++) {
    tokens += row_tokens(b, b->window[i]);
    samples += b->bins.offsets[b->window[i] + 1] - b->bins.offsets[b->window[i]];
  }
  kedge_micro_batch m = {.size = kedge_bucket((uint32_t)tokens), .tokens = (uint32_t)tokens};
  KEDGE_TRY(reserve(b, m.size, (uint32_t)samples));
  uint32_t at = 0;
  for (uint64_t i = first; i < last; i++) {
    for (uint32_t s = b->bins.offsets[b->window[i]]; s < b->bins.offsets[b->window[i] + 1]; s++) {
      uint32_t sample = b->bins.samples[s];
      put_sample(b, sample, at, m.samples, &m);
      b->samples[m.samples++] = sample;
      at += sample_tokens(b->dataset, sample);
    }
  }
  for (; at < m.size; at++) {
    b->ids[at] = b->positions[at] = 0;
    b->segments[at] = b->labels[at] = b->spans[at] = -1;
    b->weights[at] = 0;
  }
  m.ids_T = b->ids;
  m.positions_T = b->positions;
  m.segments_T = b->segments;
  m.labels_T = b->labels;
  m.spans_T = b->spans;
  m.weights_T = b->weights;
  m.samples_S = b->samples;
  *micro = m;
  return KEDGE_OK;
}
