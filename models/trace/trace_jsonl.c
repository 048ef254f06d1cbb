/* SPDX-License-Identifier: Apache-2.0
 * Routing traces as JSON Lines (trace_import.h). Keys of a line:
 *
 *   ids (also expert_ids, topk_ids, routed_experts; meta_info.routed_experts)
 *        [layers][k] of one token; [tokens][layers][k] of a sample; or text: base64 of little-endian int32
 *   weights [as ids], logits [as ids, experts in place of k]     optional
 *   sample   name or number; consecutive token lines with the same one are a sample
 *   span     "question" or 0, "answer" or 1, null or -1; a list for a sample
 *   prompt_tokens (also meta_info.prompt_tokens)   so many tokens are question, the rest answer
 *   num_experts, layers (list of numbers), top_k, shape [tokens, layers, k]    in any line, or in a first one
 *        without ids
 */
#include "models/trace/trace_import.h"

#include <math.h>
#include <string.h>

typedef struct builder {
  const char *path;
  const kedge_trace_import_options *options;
  uint32_t layers, topk, experts; /* 0: not known yet */
  bool weights, logits, numbered;
  kedge_trace trace; /* arrays grow; tokens are counted here */
  size_t capacity;
  const json_t *record;
  json_t *last; /* sample of the last token line */
  bool open;    /* the last line was a token's */
  int32_t samples;
  uint64_t line;
} builder;

static kedge_status wrong(const builder *b, const char *what, const char *want) {
  return kedge_fail(KEDGE_ERR_FORMAT, "%s:%llu: %s: expected %s", b->path, (unsigned long long)b->line, what,
                    want);
}

/* ---- Growing
 * ------------------------------------------------------------------------------------------------------ */

static bool grow(void **array, size_t count, size_t size) {
  void *grown = kedge_realloc(*array, count, size);
  if (grown) *array = grown;
  return grown != NULL;
}
#define GROW(array, count, width)                                                                            \
  do {                                                                                                       \
    void *memory_ = (array);                                                                                 \
    bool grown_ = grow(&memory_, (count), (width) * sizeof *(array));                                        \
    (array) = memory_;                                                                                       \
    if (!grown_) return KEDGE_ERR_MEMORY;                                                                    \
  } while (0)

static kedge_status reserve(builder *b, size_t more) {
  kedge_trace *t = &b->trace;
  size_t need = t->tokens + more, rows;
  if (need > INT32_MAX) return wrong(b, "ids", "at most 2147483647 tokens in all");
  if (need <= b->capacity) return KEDGE_OK;
  size_t capacity = need > 2 * b->capacity ? need : 2 * b->capacity;
  rows = capacity * b->layers;
  GROW(t->ids, rows, b->topk);
  if (b->weights) GROW(t->weights, rows, b->topk);
  if (b->logits) GROW(t->logits, rows, b->experts);
  GROW(t->samples, capacity, 1);
  GROW(t->spans, capacity, 1);
  b->capacity = capacity;
  return KEDGE_OK;
}

/* ---- Sizes
 * -------------------------------------------------------------------------------------------------------- */

/* An integer in [least, most]; numbers come from the reader as reals. */
static bool whole(const json_t *item, double least, double most, int64_t *value) {
  double x = json_is_number(item) ? json_number_value(item) : NAN;
  if (!(x >= least && x <= most) || x != floor(x)) return false;
  *value = (int64_t)x;
  return true;
}

static kedge_status agree(const builder *b, const char *what, uint32_t *have, uint64_t got) {
  if (!*have) *have = (uint32_t)got;
  if (*have == got) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_FORMAT, "%s:%llu: %s: expected %u as before, got %llu", b->path,
                    (unsigned long long)b->line, what, *have, (unsigned long long)got);
}

static kedge_status take_number(builder *b, const char *key, uint32_t *have) {
  const json_t *item = json_object_get(b->record, key);
  int64_t value = 0;
  if (!item) return KEDGE_OK;
  if (!whole(item, 1, 65536, &value)) return wrong(b, key, "1 to 65536");
  return agree(b, key, have, (uint64_t)value);
}

/* The list of layer numbers, once. */
static kedge_status take_layers(builder *b) {
  const json_t *list = json_object_get(b->record, "layers"), *item;
  size_t count = json_array_size(list), l;
  if (!list) return KEDGE_OK;
  if (!count || count > 65536) return wrong(b, "layers", "a list of numbers");
  KEDGE_TRY(agree(b, "layers", &b->layers, count));
  if (!b->trace.layer_numbers) b->trace.layer_numbers = kedge_alloc(count, sizeof *b->trace.layer_numbers);
  if (!b->trace.layer_numbers) return KEDGE_ERR_MEMORY;
  json_array_foreach(list, l, item) {
    int64_t value = 0;
    if (!whole(item, 0, 65535, &value)) return wrong(b, "layers", "numbers from 0 to 65535");
    if (b->numbered && b->trace.layer_numbers[l] != value) return wrong(b, "layers", "the numbers of before");
    b->trace.layer_numbers[l] = (int32_t)value;
  }
  b->numbered = true;
  return KEDGE_OK;
}

/* ---- Values
 * ------------------------------------------------------------------------------------------------------- */

static kedge_status take_ids(builder *b, const json_t *list, int32_t *ids) {
  const json_t *item;
  size_t k;
  KEDGE_TRY(agree(b, "experts of a row", &b->topk, json_array_size(list)));
  json_array_foreach(list, k, item) {
    int64_t value = 0;
    if (!whole(item, -1, (double)b->experts - 1, &value))
      return kedge_fail(KEDGE_ERR_FORMAT, "%s:%llu: ids: expected experts from 0 to %u, or -1", b->path,
                        (unsigned long long)b->line, b->experts - 1);
    ids[k] = (int32_t)value;
  }
  return KEDGE_OK;
}

static kedge_status take_floats(builder *b, const char *what, const json_t *list, uint32_t width,
                                float *floats) {
  const json_t *item;
  size_t i;
  if (!json_is_array(list) || json_array_size(list) != width)
    return wrong(b, what, "as many numbers in each layer as there are ids, or experts");
  json_array_foreach(list, i, item) {
    if (!json_is_number(item) || !isfinite((float)json_number_value(item)))
      return wrong(b, what, "finite numbers");
    floats[i] = (float)json_number_value(item);
  }
  return KEDGE_OK;
}

/* One token: ids [layers][k], and what comes with them. */
static kedge_status take_token(builder *b, const json_t *ids, const json_t *weights, const json_t *logits) {
  kedge_trace *t = &b->trace;
  if (!json_is_array(ids)) return wrong(b, "ids", "a list of layers for each token");
  KEDGE_TRY(agree(b, "layers of a token", &b->layers, json_array_size(ids)));
  if ((weights && json_array_size(weights) != b->layers) || (logits && json_array_size(logits) != b->layers))
    return wrong(b, "weights and logits", "as many layers as ids has");
  for (uint32_t l = 0; l < b->layers; l++) {
    const json_t *row = json_array_get(ids, l);
    const size_t at = (size_t)t->tokens * b->layers + l;
    if (!json_is_array(row) || !json_array_size(row))
      return wrong(b, "ids", "lists of layers that are lists of experts");
    KEDGE_TRY(take_ids(b, row, t->ids + at * b->topk));
    if (b->weights)
      KEDGE_TRY(take_floats(b, "weights", json_array_get(weights, l), b->topk, t->weights + at * b->topk));
    if (b->logits)
      KEDGE_TRY(take_floats(b, "logits", json_array_get(logits, l), b->experts, t->logits + at * b->experts));
  }
  return KEDGE_OK;
}

static kedge_status take_span(const builder *b, const json_t *item, int32_t *span) {
  static const struct {
    const char *name;
    int32_t span;
  } spans[] = {{"question", KEDGE_SPAN_Q}, {"q", KEDGE_SPAN_Q},         {"Q", KEDGE_SPAN_Q},
               {"prompt", KEDGE_SPAN_Q},   {"answer", KEDGE_SPAN_A},    {"a", KEDGE_SPAN_A},
               {"A", KEDGE_SPAN_A},        {"completion", KEDGE_SPAN_A}};
  int64_t value = -1;
  *span = KEDGE_SPAN_NONE;
  if (!item || json_is_null(item)) return KEDGE_OK;
  for (size_t i = 0; json_is_string(item) && i < sizeof spans / sizeof *spans; i++)
    if (!strcmp(json_string_value(item), spans[i].name)) {
      *span = spans[i].span;
      return KEDGE_OK;
    }
  if (!whole(item, -1, 1, &value)) return wrong(b, "span", "\"question\", \"answer\", 0, 1, -1 or null");
  *span = (int32_t)value;
  return KEDGE_OK;
}

/* ---- Records
 * ------------------------------------------------------------------------------------------------------ */

static const json_t *meta(const builder *b, const char *key) {
  const json_t *item = json_object_get(b->record, key);
  return item ? item : json_object_get(json_object_get(b->record, "meta_info"), key);
}

static const json_t *find_ids(const builder *b) {
  static const char *const keys[] = {"ids", "expert_ids", "topk_ids"};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    const json_t *item = json_object_get(b->record, keys[i]);
    if (item) return item;
  }
  return meta(b, "routed_experts");
}

/* Which sample a record's tokens belong to. */
static int32_t open_sample(builder *b, bool token) {
  json_t *name = json_object_get(b->record, "sample");
  bool same = token && b->open && (name ? b->last && json_equal(name, b->last) : !b->last);
  if (!same) b->samples++;
  b->open = token;
  json_decref(b->last);
  b->last = token ? json_incref(name) : NULL;
  return b->samples - 1;
}

/* Samples and spans of the `count` tokens that a record has just added. */
static kedge_status close_record(builder *b, uint32_t first, uint32_t count, bool token) {
  const json_t *span = json_object_get(b->record, token ? "span" : "spans"),
               *prompt = meta(b, "prompt_tokens");
  int64_t questions = -1;
  if (!token && !span) span = json_object_get(b->record, "span");
  if (prompt && !whole(prompt, 0, INT32_MAX, &questions))
    return wrong(b, "prompt_tokens", "a number of tokens");
  if (json_is_array(span) && (token || json_array_size(span) != count))
    return wrong(b, "spans", "one entry a token");
  int32_t sample = open_sample(b, token);
  for (uint32_t i = 0; i < count; i++) {
    b->trace.samples[first + i] = sample;
    KEDGE_TRY(take_span(b, json_is_array(span) ? json_array_get(span, i) : span, &b->trace.spans[first + i]));
    if (!span && questions >= 0) b->trace.spans[first + i] = i < questions ? KEDGE_SPAN_Q : KEDGE_SPAN_A;
  }
  return KEDGE_OK;
}

/* The extras of a list: present in every record or in none. */
static kedge_status note_extra(builder *b, const char *key, bool *have, uint32_t width) {
  bool has = json_is_array(json_object_get(b->record, key));
  if (b->trace.tokens == 0) *have = has && width;
  return has == *have ? KEDGE_OK : wrong(b, key, "them in every line, or in none");
}

static kedge_status take_lists(builder *b, const json_t *ids) {
  const json_t *weights = json_object_get(b->record, "weights");
  const json_t *logits = json_object_get(b->record, "logits"), *row = json_array_get(ids, 0);
  const bool token = !json_is_array(json_array_get(row, 0));
  const json_t *at = token ? row : json_array_get(row, 0);
  const size_t count = token ? 1 : json_array_size(ids);
  const uint32_t first = b->trace.tokens;
  KEDGE_TRY(agree(b, "layers of a token", &b->layers, token ? json_array_size(ids) : json_array_size(row)));
  KEDGE_TRY(agree(b, "experts of a row", &b->topk, json_array_size(at)));
  if (!b->layers || b->layers > 65536 || !b->topk || b->topk > b->experts)
    return kedge_fail(KEDGE_ERR_FORMAT,
                      "%s:%llu: ids: expected [layers][k] or [tokens][layers][k] with k at most %u, as many "
                      "as there are experts",
                      b->path, (unsigned long long)b->line, b->experts);
  KEDGE_TRY(note_extra(b, "weights", &b->weights, b->topk));
  KEDGE_TRY(note_extra(b, "logits", &b->logits, b->experts));
  if (!token &&
      ((weights && json_array_size(weights) != count) || (logits && json_array_size(logits) != count)))
    return wrong(b, "weights and logits", "as many tokens as ids has");
  for (size_t i = 0; i < count; i++) {
    KEDGE_TRY(reserve(b, 1));
    KEDGE_TRY(
        token ? take_token(b, ids, weights, logits)
              : take_token(b, json_array_get(ids, i), json_array_get(weights, i), json_array_get(logits, i)));
    b->trace.tokens++;
  }
  return close_record(b, first, (uint32_t)count, token);
}

/* ---- Base64
 * ------------------------------------------------------------------------------------------------------- */

/* Four characters to three bytes, in place; -1 unless it is whole base64. Padding may be left out. */
static int64_t decode(const char *text, size_t length, unsigned char *bytes) {
  uint32_t group = 0;
  size_t used = 0, at = 0;
  while (length && text[length - 1] == '=' && at++ < 2) length--;
  if (length % 4 == 1) return -1;
  at = 0;
  for (size_t i = 0; i < length; i++) {
    char c = text[i];
    int value = c >= 'A' && c <= 'Z'   ? c - 'A'
                : c >= 'a' && c <= 'z' ? c - 'a' + 26
                : c >= '0' && c <= '9' ? c - '0' + 52
                : c == '+' || c == '-' ? 62
                : c == '/' || c == '_' ? 63
                                       : -1;
    if (value < 0) return -1;
    group = group << 6 | (uint32_t)value;
    if (++at % 4 == 1) continue;
    bytes[used++] = (unsigned char)(group >> (2 * (3 - (at - 1) % 4)));
  }
  return (int64_t)used;
}

/* The shape of ids in base64, from the record or the options; tokens follow from the length. */
static kedge_status take_shape(builder *b, uint64_t numbers, uint32_t *tokens) {
  const json_t *shape = meta(b, "shape");
  int64_t sizes[3] = {0, b->layers, b->topk};
  for (size_t i = 0; shape && i < 3; i++)
    if (json_array_size(shape) != 3 || !whole(json_array_get(shape, i), 1, INT32_MAX, &sizes[i]))
      return wrong(b, "shape", "[tokens, layers, k]");
  if (!sizes[1]) sizes[1] = b->options->file_layers;
  if (!sizes[2]) sizes[2] = b->options->topk;
  if (!sizes[1] || !sizes[2])
    return wrong(b, "routed_experts", "a shape for ids in base64; give the layers of the file and the top k");
  if (sizes[1] > 65536 || sizes[2] > (int64_t)b->experts)
    return wrong(b, "shape", "at most 65536 layers and all experts a token");
  KEDGE_TRY(agree(b, "layers of a token", &b->layers, (uint64_t)sizes[1]));
  KEDGE_TRY(agree(b, "experts of a row", &b->topk, (uint64_t)sizes[2]));
  uint64_t row = (uint64_t)sizes[1] * (uint64_t)sizes[2];
  if (!numbers || numbers % row || (shape && numbers / row != (uint64_t)sizes[0]))
    return kedge_fail(
        KEDGE_ERR_FORMAT,
        "%s:%llu: routed_experts: %llu numbers are not whole tokens of %u layers and %u experts", b->path,
        (unsigned long long)b->line, (unsigned long long)numbers, b->layers, b->topk);
  *tokens = (uint32_t)(numbers / row);
  return KEDGE_OK;
}

static kedge_status take_base64(builder *b, const json_t *text) {
  const size_t length = json_string_length(text);
  const uint32_t first = b->trace.tokens;
  uint32_t tokens = 0;
  unsigned char *bytes = kedge_alloc(length / 4 * 3 + 3, 1);
  kedge_status status = KEDGE_OK;
  if (!bytes) return KEDGE_ERR_MEMORY;
  int64_t size = decode(json_string_value(text), length, bytes);
  if (size < 0 || size % 4) KEDGE_GOTO(wrong(b, "routed_experts", "base64 of int32 numbers"), status, done);
  KEDGE_GOTO(take_shape(b, (uint64_t)size / 4, &tokens), status, done);
  KEDGE_GOTO(note_extra(b, "weights", &b->weights, b->topk), status, done);
  if (b->weights || b->logits)
    KEDGE_GOTO(wrong(b, "weights and logits", "them beside ids in lists only"), status, done);
  KEDGE_GOTO(reserve(b, tokens), status, done);
  for (int64_t i = 0; i < size / 4; i++) {
    const unsigned char *at = bytes + 4 * i;
    int64_t id = (int64_t)at[0] | (int64_t)at[1] << 8 | (int64_t)at[2] << 16 | (int64_t)at[3] << 24;
    if (id > INT32_MAX) id -= INT64_C(1) << 32;
    if (id < -1 || id >= (int64_t)b->experts)
      KEDGE_GOTO(kedge_fail(KEDGE_ERR_FORMAT, "%s:%llu: ids: expected experts from 0 to %u, or -1; got %lld",
                            b->path, (unsigned long long)b->line, b->experts - 1, (long long)id),
                 status, done);
    b->trace.ids[(size_t)first * b->layers * b->topk + (size_t)i] = (int32_t)id;
  }
  b->trace.tokens += tokens;
  status = close_record(b, first, tokens, false);
done:
  kedge_free(bytes);
  return status;
}

/* ---- The file
 * ----------------------------------------------------------------------------------------------------- */

static kedge_status take_record(builder *b) {
  const json_t *ids = find_ids(b);
  KEDGE_TRY(take_number(b, "num_experts", &b->experts));
  KEDGE_TRY(take_number(b, "top_k", &b->topk));
  KEDGE_TRY(take_layers(b));
  if (!ids && (json_object_get(b->record, "num_experts") || json_object_get(b->record, "top_k") ||
               json_object_get(b->record, "layers")))
    return KEDGE_OK;
  if (!b->experts) return wrong(b, "num_experts", "it in the first line; or give the number of experts");
  if (json_is_string(ids)) return take_base64(b, ids);
  if (json_is_array(ids) && json_array_size(ids)) return take_lists(b, ids);
  return wrong(b, "ids", "lists of experts, or base64 text");
}

static kedge_status read_records(builder *b, kedge_jsonl *reader) {
  for (;;) {
    json_t *record;
    KEDGE_TRY(kedge_jsonl_next(reader, &record, &b->line));
    if (!record) break;
    b->record = record;
    kedge_status status = take_record(b);
    json_decref(record);
    KEDGE_TRY(status);
  }
  if (!b->trace.tokens) return kedge_fail(KEDGE_ERR_FORMAT, "%s: expected a token, got none", b->path);
  return KEDGE_OK;
}

kedge_status kedge__trace_read_jsonl(const char *path, const kedge_trace_import_options *options,
                                     kedge_trace *trace, bool *numbered) {
  builder b = {.path = path, .options = options, .experts = options->experts};
  kedge_jsonl *reader = NULL;
  kedge_status status;
  KEDGE_GOTO(kedge_jsonl_open(path, false, NULL, NULL, &reader), status, done);
  KEDGE_GOTO(read_records(&b, reader), status, done);
  kedge_trace *t = &b.trace;
  t->layers = b.layers, t->topk = b.topk, t->experts = b.experts;
  if (!t->layer_numbers) {
    t->layer_numbers = kedge_alloc(t->layers, sizeof *t->layer_numbers);
    if (!t->layer_numbers) KEDGE_GOTO(KEDGE_ERR_MEMORY, status, done);
    for (uint32_t l = 0; l < t->layers; l++) t->layer_numbers[l] = (int32_t)l;
  }
  *numbered = b.numbered;
done:
  json_decref(b.last);
  kedge_jsonl_close(reader);
  *trace = b.trace;
  return status;
}
