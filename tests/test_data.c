/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading records, building datasets from ids, splitting and packing; no tokenizer needed. Siblings:
 * test_data_text.c (records to ids with a tokenizer), test_batches.c, test_corpus.c. ctest: quick
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "models/text/jsonl.h"
#include "models/text/packing.h"
#include "models/text/random.h"
#include "models/text/samples.h"

#define assert_ok(expr)                                                                                      \
  do {                                                                                                       \
    kedge_status status_ = (expr);                                                                           \
    if (status_ != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status_), kedge_message());                \
  } while (0)
#define assert_message(text)                                                                                 \
  do {                                                                                                       \
    if (!strstr(kedge_message(), text)) fail_msg("message \"%s\" lacks \"%s\"", kedge_message(), text);      \
  } while (0)

/* ---- JSONL
 * ------------------------------------------------------------------------------------------------------- */

typedef struct notices {
  int count;
  char last[512];
} notices;

static void on_notice(void *context, const char *line) {
  notices *n = context;
  n->count++;
  snprintf(n->last, sizeof n->last, "%s", line);
  assert_null(strchr(line, '\n'));
}

/* Reads all of a text; the records' "a" values are joined by commas with their lines: "1@1,2@3". */
static kedge_status read_all(const char *text, size_t length, bool skip, char *out, size_t size,
                             uint64_t *skipped, notices *n) {
  kedge_jsonl *reader;
  assert_ok(kedge_jsonl_open_memory("f", text, length, skip, n ? on_notice : NULL, n, &reader));
  out[0] = 0;
  kedge_status status;
  for (;;) {
    json_t *record;
    uint64_t line;
    status = kedge_jsonl_next(reader, &record, &line);
    if (status != KEDGE_OK || !record) break;
    const char *a = json_string_value(json_object_get(record, "a"));
    size_t used = strlen(out);
    snprintf(out + used, size - used, "%s%s@%d", used ? "," : "", a ? a : "?", (int)line);
    json_decref(record);
  }
  if (skipped) *skipped = kedge_jsonl_skipped(reader);
  kedge_jsonl_close(reader);
  return status;
}

static void check_reads(const char *text, const char *expected) {
  char out[256];
  assert_ok(read_all(text, strlen(text), false, out, sizeof out, NULL, NULL));
  assert_string_equal(out, expected);
}

static void check_refuses(const char *text, size_t length, const char *message) {
  char out[256];
  assert_int_equal(read_all(text, length, false, out, sizeof out, NULL, NULL), KEDGE_ERR_FORMAT);
  assert_message(message);
}
#define REFUSES(text, message) check_refuses(text, sizeof text - 1, message)

static void reads_lines(void **state) {
  (void)state;
  check_reads("{\"a\":\"1\"}\n{\"a\":\"2\"}\n", "1@1,2@2");
  check_reads("{\"a\":\"1\"}\n\n  \t\r\n{\"a\":\"2\"}", "1@1,2@4"); /* blanks, last line without an end */
  check_reads("{\"a\":\"1\"}\r\n{\"a\":\"2\"}\r\n", "1@1,2@2");
  check_reads("\xef\xbb\xbf{\"a\":\"1\"}\n", "1@1");
  check_reads("\xef\xbb\xbf\n\n[{\"a\":\"1\"}]", "1@3");
  check_reads("\n\n{\"a\":\"1\"}\n", "1@3");
  check_reads("", "");
  check_reads("\n \r\n", "");
  check_reads("\xef\xbb\xbf", "");
  check_reads("{\"a\":\"1\",\"n\":123456789012345678901234567890}", "1@1"); /* a number nobody reads */
}

static void reads_arrays(void **state) {
  (void)state;
  check_reads("[]", "");
  check_reads(" [ ] \n", "");
  check_reads("[{\"a\":\"1\"},{\"a\":\"2\"}]", "1@1,2@1");
  check_reads(
      "[\n  {\n    \"a\": \"1\"\n  },\n  {\n    \"a\": \"2\", \"b\": [1, {\"c\": \"]}\\\"],\"}]\n  }\n]\n",
      "1@2,2@5");
  REFUSES("[{\"a\":\"1\"}", "f:1: the JSON array is not closed");
  REFUSES("[", "f:1: the JSON array is not closed");
  REFUSES("[{\"a\":\"1\"},]", "f:1: an element of the JSON array is missing");
  REFUSES("[,]", "f:1: an element");
  REFUSES("[{\"a\":\"1\"}]\n\nx", "f:3: text after the end");
  REFUSES("[{\"a\":\"1\"},\n\"x\"]", "f:2: expected a JSON object");
  REFUSES("[{\"a\":\"1\"},\n\n{\"a\" \"b\"}]", "f:3: not valid JSON");
}

static void names_bad_lines(void **state) {
  (void)state;
  REFUSES("{\"a\":\"1\"}\n{\"a\":\n", "f:2: not valid JSON");
  REFUSES("{\"a\":\"1\"}\n\n{\"a\":\"\xff\"}\n", "f:3: not valid JSON");
  REFUSES("{\"a\":\"1\"}\n3\n", "f:2: expected a JSON object");
  REFUSES("{\"a\":\"1\"} {\"a\":\"2\"}\n", "f:1: not valid JSON");
  REFUSES("{\"a\":\"1\",\"a\":\"2\"}\n", "f:1: not valid JSON: duplicate");
  REFUSES("{\"a\":\"1\"}\n{\"a\":\"\0\"}", "f:2: not valid JSON");
  REFUSES("{\"a\":\"\\ud800\"}", "f:1: not valid JSON");
  REFUSES("\xef\xbc\x88", "f:1: not valid JSON"); /* begins like a byte order mark */
  REFUSES("\xff\xfe{\0", "f:1: not valid JSON");
  char deep[8192];
  memset(deep, '[', sizeof deep);
  memcpy(deep, "{\"a\":", 5);
  check_refuses(deep, sizeof deep, "f:1: not valid JSON");
  kedge_jsonl *reader;
  json_t *record;
  uint64_t line;
  assert_ok(kedge_jsonl_open_memory("f", "\x1f\x8b\x08", 3, true, NULL, NULL, &reader));
  assert_int_equal(kedge_jsonl_next(reader, &record, &line), KEDGE_ERR_UNSUPPORTED);
  assert_message("compressed");
  kedge_jsonl_close(reader);
  assert_int_equal(kedge_jsonl_open("/nonexistent/x.jsonl", false, NULL, NULL, &reader), KEDGE_ERR_IO);
  assert_message("/nonexistent/x.jsonl: ");
  assert_ok(kedge_jsonl_open("/", false, NULL, NULL, &reader));
  assert_int_equal(kedge_jsonl_next(reader, &record, &line), KEDGE_ERR_IO);
  kedge_jsonl_close(reader);
}

static void skips_bad_lines(void **state) {
  (void)state;
  char out[256];
  notices n = {0};
  uint64_t skipped;
  const char text[] = "{\"a\":\"1\"}\nnonsense\n\n{\"a\":\"\xc3\"}\n{\"a\":\"2\"}\n[1]\n";
  assert_ok(read_all(text, sizeof text - 1, true, out, sizeof out, &skipped, &n));
  assert_string_equal(out, "1@1,2@5");
  assert_int_equal(skipped, 3);
  assert_int_equal(n.count, 3);
  assert_string_equal(n.last, "skipped: f:6: expected a JSON object in braces");
  const char array[] = "[{\"a\":\"1\"}, 7, {\"a\" 1}, {\"a\":\"2\"}]";
  assert_ok(read_all(array, sizeof array - 1, true, out, sizeof out, &skipped, &n));
  assert_string_equal(out, "1@1,2@1");
  assert_int_equal(skipped, 2);
  char many[4096] = "";
  for (int i = 0; i < 100; i++) strcat(many, "x\n");
  n.count = 0;
  assert_ok(read_all(many, strlen(many), true, out, sizeof out, &skipped, &n));
  assert_int_equal(skipped, 100);
  assert_int_equal(n.count, 10);
}

/* A line over the cap is refused (or skipped) without being kept in memory beyond the cap. */
static void caps_lines(void **state) {
  (void)state;
  size_t length = (size_t)KEDGE_JSONL_MAX_RECORD + 64;
  char *text = malloc(length), out[64];
  assert_non_null(text);
  memset(text, 'x', length);
  memcpy(text + length - 11, "\n{\"a\":\"1\"}\n", 11);
  uint64_t skipped;
  assert_int_equal(read_all(text, length, false, out, sizeof out, NULL, NULL), KEDGE_ERR_FORMAT);
  assert_message("f:1: a line of over 64 MiB");
  assert_ok(read_all(text, length, true, out, sizeof out, &skipped, NULL));
  assert_string_equal(out, "1@2");
  assert_int_equal(skipped, 1);
  text[0] = '[';
  assert_int_equal(read_all(text, length, true, out, sizeof out, NULL, NULL), KEDGE_ERR_FORMAT);
  free(text);
}

static void survives_mutations(void **state) {
  (void)state;
  static const char seed_text[] = "{\"a\":\"1\", \"b\": [1, 2.5e3, null, {\"c\": \"\\u00e9\\n\"}]}\r\n\n"
                                  "{\"a\":\"\xc3\xa9\", \"t\": true}\n{\"a\":\"3\"}";
  static const char tokens[] = "{}[]\",:\\\n\r \xff\xc3u0";
  kedge_random random = kedge_random_start(7, 0);
  int ok = 0, refused = 0;
  for (int i = 0; i < 6000; i++) {
    char text[256], out[256];
    size_t length = sizeof seed_text - 1;
    memcpy(text + 1, seed_text, length);
    text[0] = i % 2 ? '[' : ' ';
    length++;
    for (uint64_t edits = 1 + kedge_random_below(&random, 4); edits; edits--) {
      size_t at = kedge_random_below(&random, length);
      switch (kedge_random_below(&random, 4)) {
      case 0:
        text[at] = (char)kedge_random_below(&random, 256);
        break;
      case 1:
        text[at] = tokens[kedge_random_below(&random, sizeof tokens - 1)];
        break;
      case 2:
        length = at + 1;
        break;
      default:
        memmove(text + at + 1, text + at, length - at);
        length++;
        text[at] = tokens[kedge_random_below(&random, sizeof tokens - 1)];
      }
    }
    kedge_status status = read_all(text, length, i % 3 == 0, out, sizeof out, NULL, NULL);
    assert_true(status == KEDGE_OK || status == KEDGE_ERR_FORMAT || status == KEDGE_ERR_UNSUPPORTED);
    ok += status == KEDGE_OK;
    refused += status != KEDGE_OK;
  }
  assert_true(ok > 500 && refused > 500);
}

/* ---- Datasets from ids
 * -------------------------------------------------------------------------------------------- */

/* Adds a sample of `q` question and `a` answer tokens, ids counting from `first`. */
static kedge_status add_pair(kedge_dataset_builder *b, int32_t first, int q, int a, bool *kept) {
  int32_t ids[64];
  int8_t spans[64];
  uint8_t trained[64];
  for (int i = 0; i < q + a; i++) {
    ids[i] = first + i;
    spans[i] = i >= q;
    trained[i] = i >= q;
  }
  return kedge_dataset_builder_add(b, ids, spans, trained, (size_t)(q + a), (uint64_t)first, kept);
}

/* A dataset of samples i = 0..count-1 with (2 + i % 3) question and (1 + i % 5) answer tokens, ids from 100
 * i. */
static kedge_status make(int count, kedge_dataset **dataset) {
  kedge_dataset_builder *b;
  *dataset = NULL;
  KEDGE_TRY(kedge_dataset_builder_new(0, &b));
  kedge_status status = kedge_dataset_builder_file(b, "f");
  bool kept;
  for (int i = 0; i < count && status == KEDGE_OK; i++)
    status = add_pair(b, 100 * i, 2 + i % 3, 1 + i % 5, &kept);
  if (status == KEDGE_OK) status = kedge_dataset_builder_finish(b, dataset);
  kedge_dataset_builder_free(b);
  return status;
}

static void truncates_at_every_length(void **state) {
  (void)state;
  for (uint32_t max = 1; max <= 10; max++) {
    kedge_dataset_builder *b;
    kedge_dataset *d = NULL;
    bool kept;
    assert_ok(kedge_dataset_builder_new(max, &b));
    assert_ok(kedge_dataset_builder_file(b, "f"));
    assert_ok(add_pair(b, 10, 4, 3, &kept));
    assert_int_equal(kept, max > 4);
    kedge_status status = kedge_dataset_builder_finish(b, &d);
    if (max <= 4) {
      assert_int_equal(status, KEDGE_ERR_FORMAT);
      assert_message("not one of 1 samples has a supervised token (1 were cut at max_length");
    } else {
      uint32_t expected = max < 7 ? max : 7;
      assert_ok(status);
      assert_int_equal(d->offsets[1], expected);
      assert_int_equal(d->stats.supervised, expected - 4);
      assert_int_equal(d->stats.answer, expected - 4);
      assert_int_equal(d->stats.truncated, max < 7);
      for (uint32_t t = 0; t < expected; t++) {
        assert_int_equal(d->ids[t], 10 + t);
        assert_int_equal(d->spans[t], t >= 4);
      }
    }
    kedge_dataset_free(d);
    kedge_dataset_builder_free(b);
  }
}

static void counts_excluded(void **state) {
  (void)state;
  kedge_dataset_builder *b;
  kedge_dataset *d;
  bool kept[5];
  assert_ok(kedge_dataset_builder_new(6, &b));
  assert_ok(kedge_dataset_builder_file(b, "f"));
  assert_ok(add_pair(b, 0, 2, 2, &kept[0]));
  assert_ok(add_pair(b, 100, 6, 2, &kept[1])); /* the answer is cut away */
  assert_ok(add_pair(b, 200, 3, 0, &kept[2])); /* there is none */
  assert_ok(add_pair(b, 300, 0, 1, &kept[3])); /* one token, that nothing predicts */
  assert_ok(add_pair(b, 400, 0, 3, &kept[4])); /* no question */
  assert_true(kept[0] && !kept[1] && !kept[2] && !kept[3] && kept[4]);
  assert_ok(kedge_dataset_builder_finish(b, &d));
  assert_int_equal(d->count, 2);
  assert_int_equal(d->stats.records, 5);
  assert_int_equal(d->stats.excluded, 3);
  assert_int_equal(d->stats.truncated, 1);
  assert_int_equal(d->stats.longest, 4);
  assert_int_equal(d->sample_ids[0], 0);
  assert_int_equal(d->sample_ids[1], 4); /* stable: excluded samples keep their numbers */
  assert_int_equal(d->lines[1], 400);
  assert_int_equal(d->stats.supervised, 4); /* 2 + 2: a first token is no target */
  assert_int_equal(d->trained[d->offsets[1]], 0);
  kedge_dataset_free(d);
  kedge_dataset_builder_free(b);
}

static void hash_depends_on_ids_spans_order(void **state) {
  (void)state;
  char hashes[6][33];
  for (int variant = 0; variant < 6; variant++) {
    kedge_dataset_builder *b;
    kedge_dataset *d;
    bool kept;
    assert_ok(kedge_dataset_builder_new(0, &b));
    assert_ok(kedge_dataset_builder_file(b, variant == 5 ? "g" : "f"));
    int first = variant == 1 ? 11 : 10;
    if (variant == 3) assert_ok(add_pair(b, 20, 2, 3, &kept));
    assert_ok(add_pair(b, first, variant == 2 ? 3 : 2, variant == 2 ? 2 : 3, &kept));
    if (variant != 3) assert_ok(add_pair(b, 20, 2, 3, &kept));
    if (variant == 4) assert_ok(add_pair(b, 30, 3, 0, &kept)); /* excluded */
    assert_ok(kedge_dataset_builder_finish(b, &d));
    assert_int_equal(strlen(d->hash), 32);
    memcpy(hashes[variant], d->hash, 33);
    kedge_dataset_free(d);
    kedge_dataset_builder_free(b);
  }
  for (int variant = 1; variant < 4; variant++) assert_string_not_equal(hashes[0], hashes[variant]);
  assert_string_equal(hashes[0], hashes[4]);
  assert_string_equal(hashes[0], hashes[5]);
}

static void check_split(const kedge_dataset *d, double held_out, bool shuffle, uint64_t seed,
                        uint32_t expected, uint64_t *mask) {
  kedge_dataset *train, *eval;
  assert_ok(kedge_dataset_split(d, held_out, shuffle, seed, &train, &eval));
  assert_int_equal(eval->count, expected);
  assert_int_equal(train->count, d->count - expected);
  uint64_t seen = 0;
  const kedge_dataset *parts[] = {train, eval};
  for (int p = 0; p < 2; p++) {
    for (uint32_t i = 0; i < parts[p]->count; i++) {
      uint64_t id = parts[p]->sample_ids[i], from = parts[p]->offsets[i], source = d->offsets[id];
      assert_true(!i || parts[p]->sample_ids[i - 1] < id);
      assert_false(seen >> id & 1);
      seen |= UINT64_C(1) << id;
      if (p) *mask |= UINT64_C(1) << id;
      assert_int_equal(parts[p]->offsets[i + 1] - from, d->offsets[id + 1] - source);
      for (uint64_t t = 0; from + t < parts[p]->offsets[i + 1]; t++) {
        assert_int_equal(parts[p]->ids[from + t], d->ids[source + t]);
        assert_int_equal(parts[p]->spans[from + t], d->spans[source + t]);
        assert_int_equal(parts[p]->trained[from + t], d->trained[source + t]);
      }
      assert_string_equal(parts[p]->file_names[parts[p]->files[i]], "f");
    }
  }
  assert_int_equal(seen, (UINT64_C(1) << d->count) - 1);
  kedge_dataset_free(train);
  kedge_dataset_free(eval);
}

static void splits(void **state) {
  (void)state;
  kedge_dataset *d, *train, *eval;
  uint64_t last = 0, first = 0, again = 0, other = 0, part = 0;
  assert_ok(make(20, &d));
  check_split(d, 0.25, false, 0, 5, &last);
  assert_int_equal(last, UINT64_C(0x1f) << 15);
  check_split(d, 0.1, false, 0, 2, &part);
  check_split(d, 0.01, false, 0, 1, &part);
  check_split(d, 4, true, 1, 4, &first);
  check_split(d, 4, true, 1, 4, &again);
  check_split(d, 4, true, 2, 4, &other);
  assert_int_equal(first, again);
  assert_int_not_equal(first, other);
  const double bad[] = {0, -1, 20, 21, 2.5, 0.0 / 1e300, 0.999};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    assert_int_equal(kedge_dataset_split(d, bad[i], false, 0, &train, &eval), KEDGE_ERR_ARGUMENT);
  kedge_dataset_free(d);
}

static void survives_failed_allocations(void **state) {
  (void)state;
  int failures = 0;
  for (uint64_t nth = 1;; nth++) {
    kedge_dataset *d = NULL, *train = NULL, *eval = NULL;
    kedge_alloc_fail_nth(nth);
    kedge_status status = make(40, &d);
    if (status == KEDGE_OK) status = kedge_dataset_split(d, 0.25, true, 1, &train, &eval);
    kedge_bins bins = {0};
    const uint32_t lengths[] = {3, 5, 2, 7};
    if (status == KEDGE_OK) status = kedge_bins_init(&bins, lengths, 4, 8);
    kedge_alloc_fail_nth(0);
    kedge_bins_destroy(&bins);
    kedge_dataset_free(d);
    kedge_dataset_free(train);
    kedge_dataset_free(eval);
    if (status == KEDGE_OK) break;
    assert_int_equal(status, KEDGE_ERR_MEMORY);
    failures++;
  }
  assert_true(failures > 20);
  failures = 0;
  for (uint64_t nth = 1;; nth++) {
    kedge_jsonl *reader;
    json_t *record = NULL;
    uint64_t line;
    kedge_alloc_fail_nth(nth);
    kedge_status status =
        kedge_jsonl_open_memory("f", "x\n{\"a\":1}", 9, true, on_notice, &(notices){0}, &reader);
    if (status == KEDGE_OK) status = kedge_jsonl_next(reader, &record, &line);
    kedge_alloc_fail_nth(0);
    json_decref(record);
    kedge_jsonl_close(reader);
    if (status == KEDGE_OK) break;
    assert_int_equal(status, KEDGE_ERR_MEMORY);
    failures++;
  }
  assert_int_equal(failures, 4);
}

/* ---- Packing
 * ----------------------------------------------------------------------------------------------------- */

static void packs_best_fit_decreasing(void **state) {
  (void)state;
  const uint32_t lengths[] = {4, 8, 1, 4, 2, 1};
  kedge_bins bins;
  assert_ok(kedge_bins_init(&bins, lengths, 6, 10));
  assert_int_equal(bins.count, 2);
  const uint32_t expected[] = {1, 2, 5, 0, 3, 4}; /* 8+1+1 | 4+4+2 */
  assert_memory_equal(bins.samples, expected, sizeof expected);
  assert_int_equal(bins.offsets[1], 3);
  kedge_bins_destroy(&bins);
  const uint32_t bad[] = {4, 11}, empty[] = {4, 0};
  assert_int_equal(kedge_bins_init(&bins, bad, 2, 10), KEDGE_ERR_ARGUMENT);
  assert_int_equal(kedge_bins_init(&bins, empty, 2, 10), KEDGE_ERR_ARGUMENT);
}

/* Every sample once, no bin over its capacity, no two bins that one could have held, best fit as a slow
 * search finds it. */
static void packs_every_sample_once(void **state) {
  (void)state;
  kedge_random random = kedge_random_start(3, 0);
  for (int round = 0; round < 200; round++) {
    enum { MOST = 120 };
    uint32_t capacity = 1 + (uint32_t)kedge_random_below(&random, 200),
             count = (uint32_t)kedge_random_below(&random, MOST);
    uint32_t lengths[MOST], seen[MOST] = {0}, sums[MOST] = {0};
    for (uint32_t i = 0; i < count; i++) lengths[i] = 1 + (uint32_t)kedge_random_below(&random, capacity);
    kedge_bins bins;
    assert_ok(kedge_bins_init(&bins, lengths, count, capacity));
    assert_int_equal(bins.offsets[bins.count], count);
    for (uint32_t b = 0; b < bins.count; b++) {
      assert_true(bins.offsets[b + 1] > bins.offsets[b]);
      for (uint32_t i = bins.offsets[b]; i < bins.offsets[b + 1]; i++) {
        seen[bins.samples[i]]++;
        sums[b] += lengths[bins.samples[i]];
      }
      assert_true(sums[b] <= capacity);
    }
    for (uint32_t i = 0; i < count; i++) assert_int_equal(seen[i], 1);
    for (uint32_t a = 0; a < bins.count; a++)
      for (uint32_t b = a + 1; b < bins.count; b++) assert_true(sums[a] + sums[b] > capacity);
    uint32_t room[MOST], slow = 0; /* the same algorithm by search */
    for (uint32_t length = capacity; length; length--)
      for (uint32_t i = 0; i < count; i++) {
        if (lengths[i] != length) continue;
        uint32_t best = slow;
        for (uint32_t b = 0; b < slow; b++)
          if (room[b] >= length && (best == slow || room[b] < room[best])) best = b;
        if (best == slow) room[slow++] = capacity;
        room[best] -= length;
      }
    assert_int_equal(bins.count, slow);
    kedge_bins_destroy(&bins);
  }
}

static void buckets(void **state) {
  (void)state;
  assert_int_equal(kedge_bucket(0), 16);
  assert_int_equal(kedge_bucket(16), 16);
  assert_int_equal(kedge_bucket(17), 18);
  assert_int_equal(kedge_bucket(33), 36);
  assert_int_equal(kedge_bucket(8192), 8192);
  assert_int_equal(kedge_bucket(8193), 9216);
  assert_int_equal(kedge_bucket(UINT32_C(1) << 31), UINT32_C(1) << 31);
  uint32_t distinct = 0, last = 0;
  for (uint32_t t = 17; t <= 65536; t++) {
    uint32_t size = kedge_bucket(t);
    assert_true(size >= t && 8 * (uint64_t)(size - t) <= t && size >= last);
    assert_int_equal(kedge_bucket(size), size);
    distinct += size != last;
    last = size;
  }
  assert_int_equal(distinct, 8 * 12);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reads_lines),
      cmocka_unit_test(reads_arrays),
      cmocka_unit_test(names_bad_lines),
      cmocka_unit_test(skips_bad_lines),
      cmocka_unit_test(caps_lines),
      cmocka_unit_test(survives_mutations),
      cmocka_unit_test(truncates_at_every_length),
      cmocka_unit_test(counts_excluded),
      cmocka_unit_test(hash_depends_on_ids_spans_order),
      cmocka_unit_test(splits),
      cmocka_unit_test(survives_failed_allocations),
      cmocka_unit_test(packs_best_fit_decreasing),
      cmocka_unit_test(packs_every_sample_once),
      cmocka_unit_test(buckets),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
