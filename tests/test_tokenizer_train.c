/* SPDX-License-Identifier: Apache-2.0
 * Training a tokenizer: against the reference library's file, against a trainer that counts everything anew
 * before each merge, and with texts and files that are meant to hurt. ctest: quick */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "models/text/bpe_train.h"
#include "models/text/random.h"
#include "models/text/tokenizer.h"
#include "models/text/tokenizer_train.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

#define assert_ok(expr)                                                                                      \
  do {                                                                                                       \
    kedge_status status_ = (expr);                                                                           \
    if (status_ != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status_), kedge_message());                \
  } while (0)
#define assert_refused(expr, status, text)                                                                   \
  do {                                                                                                       \
    assert_int_equal((expr), (status));                                                                      \
    if (!strstr(kedge_message(), text)) fail_msg("message \"%s\" lacks \"%s\"", kedge_message(), text);      \
  } while (0)

static const char *const specials[] = {"<|endoftext|>", "<|pad|>"};

static const char *at(const char *name) {
  return test_path(test_folder(), name);
}

static void gives_the_reference_librarys_file(void **state) {
  (void)state;
  kedge_tokenizer_trainer *trainer;
  uint32_t made;
  assert_ok(kedge_tokenizer_trainer_new(&trainer));
  assert_ok(kedge_tokenizer_trainer_read(trainer, test_golden("tokenizer_train/texts.jsonl"), NULL));
  assert_ok(kedge_tokenizer_trainer_save(trainer, 320, specials, 2, at("golden"), &made));
  assert_int_equal(made, 320);
  assert_true(test_same_file(at("golden/tokenizer.json"), test_golden("tokenizer_train/tokenizer.json")));
  assert_int_equal(kedge_tokenizer_trainer_counted(trainer).records, 40);
  kedge_tokenizer_trainer_free(trainer);
}

/* ---- Against a plain trainer
 * ------------------------------------------------------------------------------------- */

enum { PIECES = 60, PIECE = 24, SIZE = 420 };

typedef struct plain_piece {
  uint32_t ids[PIECE], count, weight;
} plain_piece;

/* The most frequent pair of neighbours, the lowest of equals. */
static bool plain_best(const plain_piece *pieces, uint32_t size, uint32_t *left, uint32_t *right) {
  uint32_t *counts = calloc((size_t)size * size, sizeof *counts), best = 0;
  for (int p = 0; p < PIECES; p++)
    for (uint32_t i = 0; i + 1 < pieces[p].count; i++)
      counts[(size_t)pieces[p].ids[i] * size + pieces[p].ids[i + 1]] += pieces[p].weight;
  for (uint32_t i = 0; i < size * size; i++) {
    if (counts[i] <= best) continue;
    best = counts[i];
    *left = i / size;
    *right = i % size;
  }
  free(counts);
  return best > 0;
}

static void plain_merge(plain_piece *pieces, kedge__merge m) {
  for (int p = 0; p < PIECES; p++) {
    uint32_t to = 0;
    for (uint32_t i = 0; i < pieces[p].count; i++) {
      bool here = pieces[p].ids[i] == m.left && i + 1 < pieces[p].count && pieces[p].ids[i + 1] == m.right;
      pieces[p].ids[to++] = here ? m.id : pieces[p].ids[i];
      i += here;
    }
    pieces[p].count = to;
  }
}

/* Vocabulary of the bytes alone. */
static void add_bytes(kedge__vocab *vocab) {
  for (uint32_t code = 0; code < KEDGE__ALPHABET_END; code++) {
    char text[4];
    if (kedge__char_byte(code) >= 0)
      assert_ok(kedge__vocab_add(vocab, text, kedge__utf8_encode(code, text), vocab->size));
  }
}

static void merges_are_those_of_a_plain_trainer(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 12; seed++) {
    kedge_random random = kedge_random_start(99, seed);
    kedge__piece_counts text = {.counts = calloc(PIECES, sizeof(uint64_t))};
    kedge__vocab vocab = {0};
    plain_piece pieces[PIECES] = {0};
    add_bytes(&vocab);
    uint32_t letters = 1 + (uint32_t)kedge_random_below(&random, 4);
    for (uint32_t p = 0; p < PIECES;) {
      char word[PIECE];
      uint32_t length = 1 + (uint32_t)kedge_random_below(&random, PIECE);
      for (uint32_t i = 0; i < length; i++) word[i] = (char)('a' + kedge_random_below(&random, letters));
      if (letters == 1) word[0] = (char)('A' + p % 26), word[length / 2] = (char)('b' + p % 3);
      if (kedge__vocab_find(&text.pieces, word, length) >= 0) continue;
      assert_ok(kedge__vocab_add(&text.pieces, word, length, p));
      pieces[p].count = length;
      pieces[p].weight = 1 + (uint32_t)kedge_random_below(&random, 5);
      text.counts[p] = pieces[p].weight;
      text.bytes += length;
      for (uint32_t i = 0; i < length; i++)
        pieces[p].ids[i] = (uint32_t)kedge__vocab_find(&vocab, &word[i], 1);
      p++;
    }
    kedge__merge *merges;
    size_t count;
    assert_ok(kedge__bpe_learn(&text, SIZE, &vocab, &merges, &count));
    assert_true(count > 20);
    for (size_t m = 0; m < count; m++) {
      uint32_t left = 0, right = 0;
      assert_true(plain_best(pieces, SIZE, &left, &right));
      assert_int_equal(merges[m].left, left);
      assert_int_equal(merges[m].right, right);
      assert_int_equal(merges[m].rank, m);
      plain_merge(pieces, merges[m]);
    }
    uint32_t left, right;
    assert_true(vocab.size == SIZE || !plain_best(pieces, SIZE, &left, &right));
    kedge_free(merges);
    kedge__vocab_free(&vocab);
    kedge__vocab_free(&text.pieces);
    free(text.counts);
  }
}

/* ---- Use
 * ---------------------------------------------------------------------------------------------------------
 */

static void round_trips(void **state) {
  (void)state;
  static const char *const texts[] = {"Ada has 1234 apples.", "anchor anchors\n\n  x",
                                      "\xc3\xbc\xf0\x9f\x99\x82 7", "never seen before: \x01\x7f"};
  kedge_tokenizer *t;
  assert_ok(kedge_tokenizer_open(test_golden("tokenizer_train"), NULL, &t));
  kedge_tokenizer_free(t);
  test_kedge_expect("corpus --domain arithmetic --count 300 --seed 1 --out data.jsonl", 0, "");
  test_kedge_expect("tokenizer train --data data.jsonl --vocab-size 400 --out a", 0, "");
  test_kedge_expect("tokenizer train --data data.jsonl --vocab-size 400 --out b", 0, "");
  assert_true(test_same_file(at("a/tokenizer.json"), at("b/tokenizer.json")));
  assert_ok(kedge_tokenizer_open(at("a"), NULL, &t));
  assert_int_equal(kedge_tokenizer_size(t), 400);
  assert_int_equal(kedge_tokenizer_eos(t), 0);
  assert_true(kedge_tokenizer_is_special(t, 0) && !kedge_tokenizer_adds_bos(t));
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    int32_t *ids;
    size_t count, length;
    char *text;
    assert_ok(kedge_tokenizer_encode(t, texts[i], strlen(texts[i]), 0, &ids, &count));
    assert_ok(kedge_tokenizer_decode(t, ids, count, false, &text, &length));
    assert_string_equal(text, texts[i]);
    for (size_t k = 0; k < count; k++) {
      const char *token = kedge_tokenizer_content(t, ids[k]);
      assert_true(strlen(token) == 1 || strcspn(token, "0123456789") == strlen(token));
    }
    kedge_free(ids);
    kedge_free(text);
  }
  kedge_tokenizer_free(t);
}

static void takes_the_texts_of_every_format(void **state) {
  (void)state;
  static const char *const lines[] = {
      "{\"text\": \"qq\"}",
      "{\"prompt\": \"q\", \"completion\": \"q\", \"answer\": \"zz\"}",
      "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": "
      "\"q\"}]}",
      "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": \"gpt\", \"value\": \"q\"}]}",
      "{\"instruction\": \"q\", \"input\": \"\", \"output\": \"q\"}",
      "{\"question\": \"q\", \"answer\": \"q\"}"};
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
    kedge_tokenizer_trainer *trainer;
    assert_ok(kedge_tokenizer_trainer_new(&trainer));
    test_write_text(at("one.jsonl"), lines[i]);
    assert_ok(kedge_tokenizer_trainer_read(trainer, at("one.jsonl"), NULL));
    assert_int_equal(kedge_tokenizer_trainer_counted(trainer).bytes, 2);
    kedge_tokenizer_trainer_free(trainer);
  }
}

static void refuses(void **state) {
  (void)state;
  kedge_tokenizer_trainer *t;
  uint32_t made;
  assert_ok(kedge_tokenizer_trainer_new(&t));
  assert_refused(kedge_tokenizer_trainer_save(t, 300, specials, 1, at("no"), &made), KEDGE_ERR_FORMAT,
                 "no text");
  assert_refused(kedge_tokenizer_trainer_add(t, "ab\xff", 3), KEDGE_ERR_FORMAT, "byte 2");
  assert_ok(kedge_tokenizer_trainer_add(t, "abab abab", 9));
  assert_refused(kedge_tokenizer_trainer_save(t, 256, specials, 1, at("no"), &made), KEDGE_ERR_ARGUMENT,
                 "257");
  assert_refused(kedge_tokenizer_trainer_save(t, 1u << 21, specials, 1, at("no"), &made), KEDGE_ERR_ARGUMENT,
                 "1048576");
  assert_refused(kedge_tokenizer_trainer_save(t, 300, specials, 0, at("no"), &made), KEDGE_ERR_ARGUMENT,
                 "1 to 64");
  const char *const twice[] = {"x|", "x|"}, *const empty[] = {""}, *const byte[] = {"a"};
  assert_refused(kedge_tokenizer_trainer_save(t, 300, twice, 2, at("no"), &made), KEDGE_ERR_ARGUMENT,
                 "twice");
  assert_refused(kedge_tokenizer_trainer_save(t, 300, empty, 1, at("no"), &made), KEDGE_ERR_ARGUMENT,
                 "empty");
  assert_refused(kedge_tokenizer_trainer_save(t, 300, byte, 1, at("no"), &made), KEDGE_ERR_ARGUMENT, "byte");
  assert_false(test_exists(at("no")));
  assert_ok(kedge_tokenizer_trainer_save(t, 300, specials, 1, at("few"), &made));
  assert_int_equal(made, 257 + 3);
  kedge_tokenizer_trainer_free(t);
  test_write_text(at("bad.jsonl"), "{\"text\": \"ok ok\"}\n{\"texts\": 3}\n{\n");
  test_kedge_expect("tokenizer train --data bad.jsonl --out x", 2, "bad.jsonl:2");
  test_kedge_expect("tokenizer train --data bad.jsonl --out x --skip-bad-lines", 0, "");
  test_kedge_expect("tokenizer tune --data bad.jsonl --out x", 2, "tokenizer train");
  test_kedge_expect("tokenizer train --data bad.jsonl --out x --vocab-size 99", 2, "--vocab-size");
  test_kedge_expect("tokenizer train --data none.jsonl --out x", 2, "none.jsonl");
}

/* One word of a few million letters, and one that the merges can shorten by a single letter a time. */
static void long_words_take_no_longer(void **state) {
  (void)state;
  enum { LONG = 2000000 };
  char *text = malloc(LONG);
  for (int shape = 0; shape < 2; shape++) {
    kedge_tokenizer_trainer *trainer;
    uint32_t made;
    kedge_random random = kedge_random_start(3, (uint64_t)shape);
    for (int i = 0; i < LONG; i++) text[i] = shape ? (char)('a' + kedge_random_below(&random, 26)) : 'a';
    assert_ok(kedge_tokenizer_trainer_new(&trainer));
    assert_ok(kedge_tokenizer_trainer_add(trainer, text, LONG));
    assert_ok(kedge_tokenizer_trainer_save(trainer, 4096, specials, 1, at("long"), &made));
    assert_true(shape ? made == 4096 : made > 257 + 20 && made < 257 + 40);
    kedge_tokenizer_trainer_free(trainer);
  }
  free(text);
}

static kedge_status use_all(void) {
  kedge_tokenizer_trainer *trainer;
  uint32_t made;
  kedge_status status = kedge_tokenizer_trainer_new(&trainer);
  if (status == KEDGE_OK) status = kedge_tokenizer_trainer_add(trainer, "abab cdcd 12 abab", 17);
  if (status == KEDGE_OK) status = kedge_tokenizer_trainer_save(trainer, 262, specials, 2, at("f"), &made);
  kedge_tokenizer_trainer_free(trainer);
  return status;
}

static void survives_every_failed_allocation(void **state) {
  (void)state;
  uint64_t failures = 0;
  kedge_alloc_fail_nth(0);
  assert_ok(use_all());
  uint64_t made = kedge_alloc_fail_nth(0);
  for (uint64_t nth = 1; nth <= made; nth++) {
    kedge_alloc_fail_nth(nth);
    kedge_status status = use_all();
    kedge_alloc_fail_nth(0);
    /* PCRE2 does without its compiled form. */
    assert_true(status == KEDGE_ERR_MEMORY || status == KEDGE_OK);
    failures += status != KEDGE_OK;
  }
  assert_true(failures > 30);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(gives_the_reference_librarys_file),
                                     cmocka_unit_test(merges_are_those_of_a_plain_trainer),
                                     cmocka_unit_test(round_trips),
                                     cmocka_unit_test(takes_the_texts_of_every_format),
                                     cmocka_unit_test(refuses),
                                     cmocka_unit_test(long_words_take_no_longer),
                                     cmocka_unit_test(survives_every_failed_allocation)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
