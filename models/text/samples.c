/* SPDX-License-Identifier: Apache-2.0
 *
 * Datasets in memory: building from ids, hash, split. Siblings: samples_read.c (files to ids),
 * samples_format.c (records).
 */
#include "models/text/samples.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <xxhash.h>

#include "models/text/random.h"
#include "models/text/samples_internal.h"

struct kedge_dataset_builder {
  kedge_dataset *dataset;
  uint32_t max_length;
  size_t token_capacity, sample_capacity, file_capacity;
};

void kedge_dataset_free(kedge_dataset *dataset) {
  if (!dataset) return;
  for (uint32_t i = 0; i < dataset->file_count; i++) kedge_free(dataset->file_names[i]);
  kedge_free(dataset->file_names);
  kedge_free(dataset->offsets);
  kedge_free(dataset->ids);
  kedge_free(dataset->spans);
  kedge_free(dataset->trained);
  kedge_free(dataset->sample_ids);
  kedge_free(dataset->lines);
  kedge_free(dataset->files);
  kedge_free(dataset);
}

kedge_status kedge_dataset_builder_new(uint32_t max_length, kedge_dataset_builder **builder) {
  *builder = NULL;
  kedge_dataset_builder *b = kedge_alloc(1, sizeof *b);
  if (!b) return KEDGE_ERR_MEMORY;
  b->max_length = max_length;
  b->dataset = kedge_alloc(1, sizeof *b->dataset);
  if (b->dataset) b->dataset->offsets = kedge_alloc(1, sizeof *b->dataset->offsets);
  if (!b->dataset || !b->dataset->offsets) {
    kedge_dataset_builder_free(b);
    return KEDGE_ERR_MEMORY;
  }
  *builder = b;
  return KEDGE_OK;
}

void kedge_dataset_builder_free(kedge_dataset_builder *builder) {
  if (!builder) return;
  kedge_dataset_free(builder->dataset);
  kedge_free(builder);
}

/* Makes room for `needed` entries in one array, which keeps its memory on failure. */
static kedge_status resize(void **array, size_t needed, size_t size) {
  void *grown = kedge_realloc(*array, needed, size);
  if (!grown) return KEDGE_ERR_MEMORY;
  *array = grown;
  return KEDGE_OK;
}
#define RESIZE(array, needed)                                                                                \
  do {                                                                                                       \
    void *memory_ = (array);                                                                                 \
    kedge_status resized_ = resize(&memory_, (needed), sizeof *(array));                                     \
    (array) = memory_;                                                                                       \
    if (resized_ != KEDGE_OK) return resized_;                                                               \
  } while (0)

static kedge_status reserve_tokens(kedge_dataset_builder *b, size_t needed) {
  if (needed <= b->token_capacity) return KEDGE_OK;
  kedge_dataset *d = b->dataset;
  size_t capacity = needed + needed / 2 + 1024;
  RESIZE(d->ids, capacity);
  RESIZE(d->spans, capacity);
  RESIZE(d->trained, capacity);
  b->token_capacity = capacity;
  return KEDGE_OK;
}

static kedge_status reserve_samples(kedge_dataset_builder *b, size_t needed) {
  if (needed <= b->sample_capacity) return KEDGE_OK;
  kedge_dataset *d = b->dataset;
  size_t capacity = needed + needed / 2 + 64;
  RESIZE(d->offsets, capacity + 1);
  RESIZE(d->sample_ids, capacity);
  RESIZE(d->lines, capacity);
  RESIZE(d->files, capacity);
  b->sample_capacity = capacity;
  return KEDGE_OK;
}

kedge_status kedge_dataset_builder_file(kedge_dataset_builder *b, const char *name) {
  kedge_dataset *d = b->dataset;
  if (d->file_count == b->file_capacity) {
    size_t capacity = b->file_capacity * 2 + 4;
    RESIZE(d->file_names, capacity);
    b->file_capacity = capacity;
  }
  char *copy = kedge_strdup(name);
  if (!copy) return KEDGE_ERR_MEMORY;
  d->file_names[d->file_count++] = copy;
  return KEDGE_OK;
}

kedge_status kedge_dataset_builder_add(kedge_dataset_builder *b, const int32_t *ids, const int8_t *spans,
                                       const uint8_t *trained, size_t count, uint64_t line, bool *kept) {
  kedge_dataset *d = b->dataset;
  *kept = false;
  bool cut = b->max_length && count > b->max_length;
  if (cut) count = b->max_length;
  if (count > INT32_MAX) return kedge_fail(KEDGE_ERR_FORMAT, "a sample of %zu tokens; set max_length", count);
  uint64_t supervised = 0, answer = 0;
  for (size_t t = 0; t < count; t++) {
    supervised += t && trained[t];
    answer += spans[t] == KEDGE_SPAN_A;
  }
  if (supervised) {
    if (d->count == INT32_MAX)
      return kedge_fail(KEDGE_ERR_UNSUPPORTED, "over %d samples in one dataset", INT32_MAX);
    size_t start = (size_t)d->offsets[d->count];
    KEDGE_TRY(reserve_tokens(b, start + count));
    KEDGE_TRY(reserve_samples(b, (size_t)d->count + 1));
    memcpy(d->ids + start, ids, count * sizeof *ids);
    memcpy(d->spans + start, spans, count * sizeof *spans);
    memcpy(d->trained + start, trained, count * sizeof *trained);
    d->trained[start] = 0;
    d->sample_ids[d->count] = d->stats.records;
    d->lines[d->count] = line;
    d->files[d->count] = d->file_count ? d->file_count - 1 : 0;
    d->offsets[++d->count] = start + count;
    d->stats.supervised += supervised;
    d->stats.answer += answer;
    if (count > d->stats.longest) d->stats.longest = count;
  }
  d->stats.records++;
  d->stats.truncated += cut;
  d->stats.excluded += !supervised;
  *kept = supervised > 0;
  return KEDGE_OK;
}

/* The hash is over three digests, so that it needs no copy: of offsets, ids and spans. */
static void set_hash(kedge_dataset *d) {
  XXH128_canonical_t parts[3], all;
  size_t tokens = (size_t)d->offsets[d->count];
  XXH128_canonicalFromHash(&parts[0], XXH3_128bits(d->offsets, ((size_t)d->count + 1) * sizeof *d->offsets));
  XXH128_canonicalFromHash(&parts[1], XXH3_128bits(d->ids, tokens * sizeof *d->ids));
  XXH128_canonicalFromHash(&parts[2], XXH3_128bits(d->spans, tokens * sizeof *d->spans));
  XXH128_canonicalFromHash(&all, XXH3_128bits(parts, sizeof parts));
  static const char digits[] = "0123456789abcdef";
  for (size_t i = 0; i < sizeof all.digest; i++) {
    d->hash[2 * i] = digits[all.digest[i] >> 4];
    d->hash[2 * i + 1] = digits[all.digest[i] & 15];
  }
  d->hash[32] = 0;
}

void kedge__dataset_builder_skipped(kedge_dataset_builder *b, uint64_t skipped) {
  b->dataset->stats.skipped += skipped;
}
const kedge_dataset *kedge__dataset_builder_view(const kedge_dataset_builder *b) {
  return b->dataset;
}

kedge_status kedge_dataset_builder_finish(kedge_dataset_builder *b, kedge_dataset **dataset) {
  kedge_dataset *d = b->dataset;
  *dataset = NULL;
  const char *name = d->file_count ? d->file_names[0] : "dataset";
  if (!d->stats.records)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: no samples%s", name,
                      d->stats.skipped ? "; every line was bad and skipped" : "");
  if (!d->count)
    return kedge_fail(KEDGE_ERR_FORMAT,
                      "%s: not one of %" PRIu64 " samples has a supervised token (%" PRIu64
                      " were cut at max_length %u)",
                      name, d->stats.records, d->stats.truncated, b->max_length);
  set_hash(d);
  *dataset = d;
  b->dataset = NULL;
  return KEDGE_OK;
}

/* ---- Split
 * ------------------------------------------------------------------------------------------------------ */

/* A new dataset of the samples i with held[i] == which. */
static kedge_status subset(const kedge_dataset *d, const uint8_t *held, uint8_t which, kedge_dataset **part) {
  kedge_dataset_builder *b;
  kedge_status status = kedge_dataset_builder_new(0, &b);
  if (status != KEDGE_OK) return status;
  for (uint32_t f = 0; f < d->file_count; f++)
    KEDGE_GOTO(kedge_dataset_builder_file(b, d->file_names[f]), status, done);
  for (uint32_t i = 0; i < d->count; i++) {
    if (held[i] != which) continue;
    size_t at = (size_t)d->offsets[i], count = (size_t)(d->offsets[i + 1] - d->offsets[i]);
    bool kept;
    KEDGE_GOTO(
        kedge_dataset_builder_add(b, d->ids + at, d->spans + at, d->trained + at, count, d->lines[i], &kept),
        status, done);
    uint32_t last = b->dataset->count - 1;
    b->dataset->sample_ids[last] = d->sample_ids[i];
    b->dataset->files[last] = d->files[i];
  }
  status = kedge_dataset_builder_finish(b, part);
done:
  kedge_dataset_builder_free(b);
  return status;
}

kedge_status kedge_dataset_split(const kedge_dataset *dataset, double held_out, bool shuffle, uint64_t seed,
                                 kedge_dataset **train, kedge_dataset **eval) {
  *train = *eval = NULL;
  uint32_t count = dataset->count;
  double wanted = held_out < 1 ? ceil(held_out * count - 1e-9) : held_out;
  if (!(held_out > 0) || !(wanted < count) || (held_out >= 1 && wanted != floor(wanted)))
    return kedge_fail(
        KEDGE_ERR_ARGUMENT,
        "eval split of %g: expected a part below 1 or a whole number that leaves some of the %u samples",
        held_out, count);
  uint32_t rows = wanted < 1 ? 1 : (uint32_t)wanted;
  if (rows >= count)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "eval split of %g leaves none of %u samples", held_out, count);
  kedge_status status = KEDGE_ERR_MEMORY;
  uint8_t *held = kedge_alloc(count, 1);
  uint32_t *order = kedge_alloc(count, sizeof *order);
  if (!held || !order) goto done;
  for (uint32_t i = 0; i < count; i++) order[i] = i;
  kedge_random random = kedge_random_start(seed, UINT64_MAX - 1); /* a stream that no epoch uses */
  if (shuffle) kedge_random_shuffle(&random, order, count);
  for (uint32_t i = count - rows; i < count; i++) held[order[i]] = 1;
  KEDGE_GOTO(subset(dataset, held, 0, train), status, done);
  status = subset(dataset, held, 1, eval);
  if (status != KEDGE_OK) {
    kedge_dataset_free(*train);
    *train = NULL;
  }
done:
  kedge_free(held);
  kedge_free(order);
  return status;
}

kedge_status kedge_dataset_check_ids(const kedge_dataset *dataset, uint32_t vocabulary) {
  for (uint32_t i = 0; i < dataset->count; i++)
    for (uint64_t t = dataset->offsets[i]; t < dataset->offsets[i + 1]; t++)
      if ((uint32_t)dataset->ids[t] >= vocabulary)
        return kedge_fail(KEDGE_ERR_MISMATCH,
                          "sample %" PRIu64 ": token id %d is not below the model's vocab_size %u",
                          dataset->sample_ids[i], dataset->ids[t], vocabulary);
  return KEDGE_OK;
}
