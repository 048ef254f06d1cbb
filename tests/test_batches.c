/* SPDX-License-Identifier: Apache-2.0
 *
 * Order, windows and flat streams of batches. Sibling: test_data.c. ctest: quick
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "models/training/batches.h"

#define assert_ok(expr)                                                                                      \
  do {                                                                                                       \
    kedge_status status_ = (expr);                                                                           \
    if (status_ != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status_), kedge_message());                \
  } while (0)

enum { MOST = 64 };

/* Sample i: ids 100 i, 100 i + 1, ..; questions[i] question and answers[i] answer tokens. */
static kedge_status make(const int *questions, const int *answers, int count, kedge_dataset **dataset) {
  kedge_dataset_builder *b;
  *dataset = NULL;
  KEDGE_TRY(kedge_dataset_builder_new(0, &b));
  kedge_status status = kedge_dataset_builder_file(b, "f");
  for (int i = 0; i < count && status == KEDGE_OK; i++) {
    int32_t ids[MOST];
    int8_t spans[MOST];
    uint8_t trained[MOST];
    bool kept;
    int length = questions[i] + answers[i];
    for (int t = 0; t < length; t++) {
      ids[t] = 100 * i + t;
      spans[t] = t >= questions[i];
      trained[t] = t >= questions[i];
    }
    status = kedge_dataset_builder_add(b, ids, spans, trained, (size_t)length, (uint64_t)i + 1, &kept);
  }
  if (status == KEDGE_OK) status = kedge_dataset_builder_finish(b, dataset);
  kedge_dataset_builder_free(b);
  return status;
}

/* `count` samples with 1 + i % 4 question and 1 + i % 3 answer tokens. */
static kedge_dataset *make_count(int count) {
  int questions[MOST], answers[MOST];
  for (int i = 0; i < count; i++) {
    questions[i] = 1 + i % 4;
    answers[i] = 1 + i % 3;
  }
  kedge_dataset *d;
  assert_ok(make(questions, answers, count, &d));
  return d;
}

static kedge_batches *open_batches(const kedge_dataset *d, kedge_batches_options o) {
  kedge_batches *b;
  if (!o.batch_size) o.batch_size = 1;
  if (!o.accumulation) o.accumulation = 1;
  if (o.epochs == 0) o.epochs = 1;
  assert_ok(kedge_batches_new(d, &o, &b));
  return b;
}

/* Checks every array of a micro-batch against the dataset. */
static void check_micro(const kedge_dataset *d, const kedge_micro_batch *m, const kedge_update *u) {
  uint32_t at = 0, supervised = 0, answer = 0;
  for (uint32_t s = 0; s < m->samples; s++) {
    uint64_t from = d->offsets[m->samples_S[s]], count = d->offsets[m->samples_S[s] + 1] - from;
    uint32_t start = at;
    for (uint64_t t = 0; t < count; t++, at++) {
      assert_true(at < m->size);
      assert_int_equal(m->ids_T[at], d->ids[from + t]);
      assert_int_equal(m->positions_T[at], t);
      assert_int_equal(m->segments_T[at], start);
      assert_int_equal(m->spans_T[at], (int32_t)(2 * s) + d->spans[from + t]);
      bool labelled = t + 1 < count && d->trained[from + t + 1];
      assert_int_equal(m->labels_T[at], labelled ? d->ids[from + t + 1] : -1);
      assert_true(m->weights_T[at] == (labelled ? (float)(1.0 / (double)u->supervised) : 0.0f));
      supervised += labelled;
      answer += d->spans[from + t] == KEDGE_SPAN_A;
    }
  }
  assert_int_equal(at, m->tokens);
  assert_int_equal(m->size, kedge_bucket(at));
  assert_int_equal(supervised, m->supervised);
  assert_int_equal(answer, m->answer);
  for (; at < m->size; at++) {
    assert_int_equal(m->ids_T[at], 0);
    assert_int_equal(m->positions_T[at], 0);
    assert_int_equal(m->segments_T[at], -1);
    assert_int_equal(m->labels_T[at], -1);
    assert_int_equal(m->spans_T[at], -1);
    assert_true(m->weights_T[at] == 0.0f);
  }
}

/* Walks from the present update to the end, checks every micro-batch and each update's sums, and writes the
 * samples in order (UINT32_MAX ends a micro-batch, UINT32_MAX - 1 an update). Returns how many numbers were
 * written. */
static size_t walk(const kedge_dataset *d, kedge_batches *b, uint32_t *out, size_t capacity) {
  size_t n = 0;
  kedge_update u;
  for (;;) {
    uint64_t cursor = kedge_batches_cursor(b);
    assert_ok(kedge_batches_next(b, &u));
    assert_int_equal(u.index, cursor);
    if (!u.micro_batches) return n;
    uint64_t tokens = 0, supervised = 0, samples = 0, answer = 0;
    uint32_t longest = 0;
    double weight = 0;
    for (uint32_t i = 0; i < u.micro_batches; i++) {
      kedge_micro_batch m;
      assert_ok(kedge_batches_micro(b, i, &m));
      check_micro(d, &m, &u);
      assert_true(m.samples > 0 && m.size <= kedge_batches_max_size(b));
      tokens += m.tokens;
      supervised += m.supervised;
      answer += m.answer;
      samples += m.samples;
      if (m.size > longest) longest = m.size;
      for (uint32_t t = 0; t < m.size; t++) weight += (double)m.weights_T[t];
      for (uint32_t s = 0; s < m.samples; s++, n++)
        if (n < capacity) out[n] = m.samples_S[s];
      if (n < capacity) out[n] = UINT32_MAX;
      n++;
    }
    assert_true(weight > 1 - 1e-5 && weight < 1 + 1e-5); /* the weights of an update sum to 1 */
    assert_int_equal(tokens, u.tokens);
    assert_int_equal(supervised, u.supervised);
    assert_int_equal(answer, u.answer);
    assert_int_equal(samples, u.samples);
    assert_int_equal(longest, u.longest_stream);
    if (n < capacity) out[n] = UINT32_MAX - 1;
    n++;
    assert_true(n < capacity);
  }
}

static void file_order(void **state) {
  (void)state;
  kedge_dataset *d = make_count(5);
  kedge_batches *b = open_batches(d, (kedge_batches_options){.batch_size = 2, .accumulation = 2});
  uint32_t out[64];
  const uint32_t M = UINT32_MAX, U = UINT32_MAX - 1, expected[] = {0, 1, M, 2, 3, M, U, 4, M, U};
  assert_int_equal(walk(d, b, out, 64), 10);
  assert_memory_equal(out, expected, sizeof expected);
  assert_int_equal(kedge_batches_updates(b), 2);
  kedge_batches_free(b);
  kedge_dataset_free(d);
}

/* Windows: 4 batches with accumulation 3 are 2 updates, the last of 1; accumulation over the number of
 * batches; 0 refused. */
static void windows(void **state) {
  (void)state;
  static const struct {
    int samples;
    uint32_t batch, accumulation;
    double epochs;
    uint64_t max_updates;
    uint64_t updates;
    uint32_t last; /* micro-batches of the last update */
  } cases[] = {{4, 1, 3, 1, 0, 2, 1},      {8, 2, 3, 1, 0, 2, 1},    {4, 1, 9, 1, 0, 1, 4},
               {4, 1, 3, 3, 0, 4, 3},      {10, 4, 1, 1, 0, 3, 1},   {10, 4, 1, 2, 0, 5, 1},
               {10, 1, 1, 0.5, 0, 5, 1},   {10, 1, 2, 0.3, 0, 2, 1}, {30, 1, 1, 0.1, 0, 3, 1},
               {4, 1, 3, 1, 7, 7, 3},      {4, 1, 3, 100, 2, 2, 3},  {4, 8, 1, 3, 0, 2, 1},
               {3, 1, 1, 0.0001, 0, 1, 1}, {5, 2, 2, 1.5, 0, 2, 2}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    kedge_dataset *d = make_count(cases[c].samples);
    kedge_batches *b = open_batches(d, (kedge_batches_options){.batch_size = cases[c].batch,
                                                               .accumulation = cases[c].accumulation,
                                                               .epochs = cases[c].epochs,
                                                               .max_updates = cases[c].max_updates,
                                                               .shuffle = c % 2});
    assert_int_equal(kedge_batches_updates(b), cases[c].updates);
    kedge_update u;
    for (uint64_t i = 0; i < cases[c].updates; i++) {
      assert_ok(kedge_batches_next(b, &u));
      assert_int_equal(u.micro_batches, i + 1 < cases[c].updates ? cases[c].accumulation : cases[c].last);
    }
    assert_ok(kedge_batches_next(b, &u));
    assert_int_equal(u.micro_batches, 0);
    kedge_batches_free(b);
    kedge_dataset_free(d);
  }
  kedge_dataset *d = make_count(4);
  kedge_batches *b;
  const kedge_batches_options bad[] = {
      {.batch_size = 1, .epochs = 1},
      {.accumulation = 1, .epochs = 1},
      {.batch_size = 1, .accumulation = 1},
      {.batch_size = 1, .accumulation = 1, .epochs = -1},
      {.batch_size = 1, .accumulation = 1, .epochs = 1, .packing = true},
      {.batch_size = 1, .accumulation = 1, .epochs = 1, .packing = true, .max_length = 2},
      {.batch_size = UINT32_MAX, .accumulation = UINT32_MAX, .epochs = 1e12},
      {.batch_size = 1000, .accumulation = 1, .max_updates = UINT64_MAX}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    assert_int_equal(kedge_batches_new(d, &bad[i], &b), KEDGE_ERR_ARGUMENT);
  kedge_dataset_free(d);
}

/* A run as long as the published one: 20000 samples, 5 epochs, 128 an update. */
static void counts_a_long_run(void **state) {
  (void)state;
  kedge_dataset_builder *builder;
  kedge_dataset *d;
  bool kept;
  assert_ok(kedge_dataset_builder_new(0, &builder));
  for (int i = 0; i < 20000; i++)
    assert_ok(kedge_dataset_builder_add(builder, (int32_t[]){1, 2}, (int8_t[]){0, 1}, (uint8_t[]){0, 1}, 2, 1,
                                        &kept));
  assert_ok(kedge_dataset_builder_finish(builder, &d));
  kedge_dataset_builder_free(builder);
  kedge_batches *b =
      open_batches(d, (kedge_batches_options){.accumulation = 128, .epochs = 5, .shuffle = true});
  assert_int_equal(kedge_batches_updates(b), 782);
  kedge_update u;
  assert_ok(kedge_batches_seek(b, 781));
  assert_ok(kedge_batches_next(b, &u));
  assert_int_equal(u.micro_batches, 32);
  assert_true(u.epoch == 5.0);
  kedge_batches_free(b);
  kedge_dataset_free(d);
}

/* The task loss of an update is a mean over tokens: losses [4] and [1,1,1] in two micro-batches give 1.75,
 * and a last window of one micro-batch is scaled by its own count. */
static void weights_make_a_mean_over_tokens(void **state) {
  (void)state;
  kedge_dataset *d;
  assert_ok(make((int[]){2, 2, 3}, (int[]){1, 3, 2}, 3, &d));
  kedge_batches *b = open_batches(d, (kedge_batches_options){.accumulation = 2});
  const double losses[] = {4, 1, 7}; /* a token, by sample */
  const double expected[] = {1.75, 7};
  for (int i = 0; i < 2; i++) {
    kedge_update u;
    double loss = 0;
    assert_ok(kedge_batches_next(b, &u));
    for (uint32_t m = 0; m < u.micro_batches; m++) {
      kedge_micro_batch micro;
      assert_ok(kedge_batches_micro(b, m, &micro));
      for (uint32_t t = 0; t < micro.size; t++)
        loss += (double)micro.weights_T[t] * losses[micro.samples_S[0]];
    }
    assert_true(loss > expected[i] - 1e-6 && loss < expected[i] + 1e-6);
  }
  kedge_batches_free(b);
  kedge_dataset_free(d);
}

static void shuffles(void **state) {
  (void)state;
  enum { N = 40, EPOCHS = 6 };
  kedge_dataset *d = make_count(N);
  uint32_t orders[3][2 * N * EPOCHS * 2];
  for (int run = 0; run < 3; run++) {
    kedge_batches *b = open_batches(
        d, (kedge_batches_options){.epochs = EPOCHS, .shuffle = true, .seed = run == 2 ? 43 : 42});
    assert_int_equal(walk(d, b, orders[run], sizeof orders[run] / sizeof **orders), 3 * N * EPOCHS);
    kedge_batches_free(b);
  }
  assert_memory_equal(orders[0], orders[1], 3 * N * EPOCHS * sizeof(uint32_t));
  assert_true(memcmp(orders[0], orders[2], 3 * N * sizeof(uint32_t)) != 0);
  for (int e = 0; e < EPOCHS; e++) {
    uint32_t seen[N] = {0}, in_place = 0;
    for (int i = 0; i < N; i++) {
      uint32_t sample = orders[0][3 * (e * N + i)];
      seen[sample]++;
      in_place += sample == (uint32_t)i;
    }
    for (int i = 0; i < N; i++) assert_int_equal(seen[i], 1); /* each sample once an epoch */
    assert_true(in_place < N / 4);
    for (int f = 0; f < e; f++)
      assert_true(memcmp(orders[0] + 3 * e * N, orders[0] + 3 * f * N, 3 * N * sizeof(uint32_t)) != 0);
  }
  kedge_dataset_free(d);
}

/* The order is part of the format of a run: a checkpoint of today must resume the same tomorrow. */
static void order_is_fixed(void **state) {
  (void)state;
  kedge_dataset *d = make_count(8);
  kedge_batches *b =
      open_batches(d, (kedge_batches_options){.batch_size = 8, .epochs = 2, .shuffle = true, .seed = 42});
  static const uint32_t expected[2][8] = {{3, 1, 2, 7, 5, 0, 4, 6}, {1, 4, 0, 6, 2, 7, 5, 3}};
  for (int e = 0; e < 2; e++) {
    kedge_update u;
    kedge_micro_batch m;
    assert_ok(kedge_batches_next(b, &u));
    assert_ok(kedge_batches_micro(b, 0, &m));
    assert_memory_equal(m.samples_S, expected[e], sizeof expected[e]);
  }
  kedge_batches_free(b);
  kedge_dataset_free(d);
}

/* Starting at any update equals walking there, across epoch ends, packed or not. */
static void seeks(void **state) {
  (void)state;
  enum { SIZE = 2048 };
  kedge_dataset *d = make_count(11);
  for (int variant = 0; variant < 4; variant++) {
    kedge_batches_options o = {
        .batch_size = 2, .accumulation = 2, .epochs = 7, .seed = 5, .shuffle = variant & 1};
    o.packing = variant & 2;
    o.max_length = 16;
    kedge_batches *whole = open_batches(d, o), *jump = open_batches(d, o);
    uint32_t expected[SIZE], got[SIZE];
    size_t length = walk(d, whole, expected, SIZE), at = 0;
    for (uint64_t u = 0; u <= kedge_batches_updates(whole); u++) {
      assert_ok(kedge_batches_seek(jump, u));
      assert_int_equal(kedge_batches_cursor(jump), u);
      size_t rest = walk(d, jump, got, SIZE);
      assert_int_equal(rest, length - at);
      if (rest) assert_memory_equal(got, expected + at, rest * sizeof *got);
      while (at < length && expected[at] != UINT32_MAX - 1) at++;
      at += at < length;
    }
    assert_int_equal(kedge_batches_seek(jump, kedge_batches_updates(whole) + 1), KEDGE_ERR_ARGUMENT);
    kedge_batches_free(whole);
    kedge_batches_free(jump);
  }
  kedge_dataset_free(d);
}

/* Sample B has the same ids, positions, labels and spans (and its segment starts with it) alone and packed
 * behind A. */
static void packed_equals_alone(void **state) {
  (void)state;
  kedge_dataset *d;
  assert_ok(make((int[]){5, 3}, (int[]){4, 2}, 2, &d));
  kedge_batches *packed = open_batches(d, (kedge_batches_options){.packing = true, .max_length = 14});
  kedge_batches *alone = open_batches(d, (kedge_batches_options){0});
  assert_int_equal(kedge_batches_rows(packed), 1);
  assert_int_equal(kedge_batches_rows(alone), 2);
  kedge_update u;
  kedge_micro_batch p, a;
  assert_ok(kedge_batches_next(packed, &u));
  assert_ok(kedge_batches_micro(packed, 0, &p));
  assert_ok(kedge_batches_seek(alone, 1));
  assert_ok(kedge_batches_next(alone, &u));
  assert_ok(kedge_batches_micro(alone, 0, &a));
  assert_int_equal(p.samples, 2);
  assert_int_equal(p.samples_S[1], 1);
  assert_int_equal(a.samples_S[0], 1);
  for (int t = 0; t < 5; t++) {
    assert_int_equal(p.ids_T[9 + t], a.ids_T[t]);
    assert_int_equal(p.positions_T[9 + t], a.positions_T[t]);
    assert_int_equal(p.labels_T[9 + t], a.labels_T[t]);
    assert_int_equal(p.segments_T[9 + t], 9 + a.segments_T[t]);
    assert_int_equal(p.spans_T[9 + t], 2 + a.spans_T[t]);
  }
  assert_int_equal(p.labels_T[8], -1); /* A's last token does not predict B's first */
  kedge_batches_free(packed);
  kedge_batches_free(alone);
  kedge_dataset_free(d);
}

static void packs_each_epoch_whole(void **state) {
  (void)state;
  enum { N = 50, SIZE = 4096 };
  kedge_dataset *d = make_count(N);
  kedge_batches *b = open_batches(
      d, (kedge_batches_options){.packing = true, .max_length = 16, .epochs = 3, .shuffle = true, .seed = 9});
  assert_true(kedge_batches_rows(b) < N / 2);
  uint32_t out[SIZE], seen[N] = {0};
  size_t length = walk(d, b, out, SIZE);
  for (size_t i = 0; i < length; i++)
    if (out[i] < N) seen[out[i]]++;
  for (int i = 0; i < N; i++) assert_int_equal(seen[i], 3);
  kedge_batches_free(b);
  kedge_dataset_free(d);
}

static void evaluates_in_file_order(void **state) {
  (void)state;
  kedge_dataset *d = make_count(7);
  kedge_batches *b;
  uint32_t out[64], next = 0;
  assert_ok(kedge_batches_new_eval(d, 3, &b));
  assert_int_equal(kedge_batches_updates(b), 3);
  size_t length = walk(d, b, out, 64);
  for (size_t i = 0; i < length; i++)
    if (out[i] < 7) assert_int_equal(out[i], next++);
  assert_int_equal(next, 7);
  kedge_micro_batch m;
  kedge_update u;
  assert_ok(kedge_batches_next(b, &u));
  assert_int_equal(kedge_batches_micro(b, 0, &m), KEDGE_ERR_ARGUMENT);
  kedge_batches_free(b);
  kedge_dataset_free(d);
}

static void survives_failed_allocations(void **state) {
  (void)state;
  kedge_dataset *d = make_count(9);
  int failures = 0;
  for (uint64_t nth = 1;; nth++) {
    kedge_batches_options o = {
        .batch_size = 4, .accumulation = 1, .epochs = 2, .packing = true, .max_length = 12};
    kedge_batches *b;
    kedge_update u;
    kedge_micro_batch m;
    kedge_alloc_fail_nth(nth);
    kedge_status status = kedge_batches_new(d, &o, &b);
    if (status == KEDGE_OK) status = kedge_batches_next(b, &u);
    if (status == KEDGE_OK) status = kedge_batches_micro(b, 0, &m);
    kedge_alloc_fail_nth(0);
    kedge_batches_free(b);
    if (status == KEDGE_OK) break;
    assert_int_equal(status, KEDGE_ERR_MEMORY);
    failures++;
  }
  assert_true(failures > 10);
  kedge_dataset_free(d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(file_order),
      cmocka_unit_test(windows),
      cmocka_unit_test(counts_a_long_run),
      cmocka_unit_test(weights_make_a_mean_over_tokens),
      cmocka_unit_test(shuffles),
      cmocka_unit_test(order_is_fixed),
      cmocka_unit_test(seeks),
      cmocka_unit_test(packed_equals_alone),
      cmocka_unit_test(packs_each_epoch_whole),
      cmocka_unit_test(evaluates_in_file_order),
      cmocka_unit_test(survives_failed_allocations),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
