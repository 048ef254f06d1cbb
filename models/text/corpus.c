/* SPDX-License-Identifier: Apache-2.0
 *
 * Generated corpora: domains and splits, the mixture, rows as JSON, and what the domains' files share.
 * Siblings: corpus.h, corpus_internal.h, corpus_<domain>.c.
 */
#include "models/text/corpus.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <xxhash.h>

#include "models/text/corpus_internal.h"

/* ---- Tables
 * ------------------------------------------------------------------------------------------------------ */

static const struct {
  kedge_corpus_domain domain;
  void (*write)(kedge__row *);
} domains[KEDGE_CORPUS_DOMAINS] = {
    {{"arithmetic", "arithS", "word problems, worked step by step", 0.05, 0.04}, kedge__corpus_arithmetic},
    {{"programs", "programS", "what a short program prints, with the values on the way", 0.07, 0.03},
     kedge__corpus_programs},
    {{"facts", "factsS", "people and towns of an invented world; shifted: over several of its facts", 0.02,
      0.03},
     kedge__corpus_facts},
    {{"logic", "logicS", "multiple choice: the odd one, lines, exchanges, links", 0.25, 0.20},
     kedge__corpus_logic},
    {{"strings", "stringS", "rows of letters; shifted: in other words, some changed twice", 0.10, 0.01},
     kedge__corpus_strings},
};

static const char *const splits[KEDGE_CORPUS_SPLITS] = {"train", "test", "shift-train", "shift-test"};

const kedge_corpus_domain *kedge_corpus_domain_at(uint32_t index) {
  return index < KEDGE_CORPUS_DOMAINS ? &domains[index].domain : NULL;
}

kedge_status kedge_corpus_domain_find(const char *name, uint32_t *index) {
  for (*index = 0; *index < KEDGE_CORPUS_DOMAINS; ++*index)
    if (!strcmp(name, domains[*index].domain.name)) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_ARGUMENT,
                    "domain \"%.40s\": expected arithmetic, programs, facts, logic or strings", name);
}

const char *kedge_corpus_split_name(kedge_corpus_split split) {
  return (unsigned)split < KEDGE_CORPUS_SPLITS ? splits[split] : NULL;
}

kedge_status kedge_corpus_split_find(const char *name, kedge_corpus_split *split) {
  for (int i = 0; i < KEDGE_CORPUS_SPLITS; i++) {
    *split = (kedge_corpus_split)i;
    if (!strcmp(name, splits[i])) return KEDGE_OK;
  }
  return kedge_fail(KEDGE_ERR_ARGUMENT, "split \"%.40s\": expected train, test, shift-train or shift-test",
                    name);
}

/* ---- For the domains
 * --------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 0))) static void say_list(kedge__text *t, const char *format, va_list list) {
  int written = vsnprintf(t->bytes + t->length, KEDGE__TEXT_SIZE - t->length, format, list);
  size_t room = KEDGE__TEXT_SIZE - t->length - 1;
  t->length += written < 0 ? 0 : (size_t)written < room ? (size_t)written : room;
}

void kedge__say(kedge__text *text, const char *format, ...) {
  va_list list;
  va_start(list, format);
  say_list(text, format, list);
  va_end(list);
}

void kedge__answer(kedge__row *row, const char *format, ...) {
  va_list list;
  va_start(list, format);
  say_list(&row->answer, format, list);
  va_end(list);
  kedge__say(&row->completion, "%s#### %s", row->completion.length ? "\n" : "", row->answer.bytes);
}

kedge__text *kedge__choice(kedge__row *row) {
  return &row->choices[row->choice_count++];
}

void kedge__choose(kedge__row *row) {
  uint32_t order[KEDGE__MAX_CHOICES] = {0, 1, 2, 3, 4, 5, 6, 7};
  kedge__text sorted[KEDGE__MAX_CHOICES], story = row->prompt;
  kedge__say(&row->completion, " %s.\nAnswer: ", row->choices[0].bytes);
  kedge_random_shuffle(&row->random, order, row->choice_count);
  row->prompt = (kedge__text){0};
  for (uint32_t i = 0; i < row->choice_count; i++) {
    sorted[i] = row->choices[order[i]];
    kedge__say(&row->prompt, "%s%c) %s", i ? " " : "", 'A' + (char)i, sorted[i].bytes);
    if (!order[i]) kedge__say(&row->answer, "%c", 'A' + (char)i);
  }
  memcpy(row->choices, sorted, row->choice_count * sizeof *sorted);
  kedge__say(&row->prompt, ". %s", story.bytes);
  kedge__say(&row->completion, "%s", row->answer.bytes);
}

int kedge__between(kedge__row *row, int low, int high) {
  return low + (int)kedge_random_below(&row->random, (uint64_t)(high - low + 1));
}

bool kedge__maybe(kedge__row *row, int percent) {
  return kedge__between(row, 1, 100) <= percent;
}

const char *const kedge__people[KEDGE__PEOPLE] = {"Ada",  "Ben",  "Cleo", "Dan",  "Emma", "Finn",
                                                  "Gina", "Hugo", "Iris", "Jack", "Kira", "Liam"};

void kedge__pick_some(kedge__row *row, const char *const *from, int available, const char **chosen,
                      int count) {
  uint32_t order[KEDGE__MAX_PICK];
  for (int i = 0; i < available; i++) order[i] = (uint32_t)i;
  kedge_random_shuffle(&row->random, order, (uint32_t)available);
  for (int i = 0; i < count; i++) chosen[i] = from[order[i]];
}

void kedge__make_word(kedge_random *random, int least, int most, char *word) {
  static const char consonants[] = "bcdfghjklmnprstvwz", vowels[] = "aeiou", ends[] = "lmnrstdk";
  int count = least + (int)kedge_random_below(random, (uint64_t)(most - least + 1)), n = 0;
  for (int i = 0; i < count; i++) {
    word[n++] = consonants[kedge_random_below(random, sizeof consonants - 1)];
    word[n++] = vowels[kedge_random_below(random, sizeof vowels - 1)];
  }
  if (kedge_random_below(random, 2)) word[n++] = ends[kedge_random_below(random, sizeof ends - 1)];
  word[n] = 0;
}

char kedge__upper(char c) {
  return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
}

/* ---- Rows
 * -------------------------------------------------------------------------------------------------------- */

static void write_json(FILE *file, const kedge__text *t) {
  putc('"', file);
  for (size_t i = 0; i < t->length; i++) {
    char c = t->bytes[i];
    if (c == '"' || c == '\\' || c == '\n') putc('\\', file);
    putc(c == '\n' ? 'n' : c, file);
  }
  putc('"', file);
}

/* An eighth of all questions are for testing; of those that share their key a quarter, since there are few.
 */
static bool is_for_testing(const kedge__row *row) {
  const kedge__text *key = row->key.length ? &row->key : &row->prompt;
  return XXH3_64bits(key->bytes, key->length) % (row->key.length ? 4 : 8) == 0;
}

static kedge_status make_row(uint32_t domain, kedge_corpus_split split, uint64_t seed, uint64_t index,
                             kedge__row *row) {
  bool test = split == KEDGE_CORPUS_TEST || split == KEDGE_CORPUS_SHIFT_TEST;
  kedge_random random =
      kedge_random_start(seed + ((uint64_t)(domain * KEDGE_CORPUS_SPLITS + split) << 56), index);
  do {
    *row = (kedge__row){.random = random, .shifted = split >= KEDGE_CORPUS_SHIFT_TRAIN};
    domains[domain].write(row);
    random = row->random;
  } while (row->status == KEDGE_OK && is_for_testing(row) != test);
  return row->status;
}

static void write_row(uint32_t domain, kedge_corpus_split split, const kedge__row *row, FILE *file) {
  fputs("{\"prompt\": ", file);
  write_json(file, &row->prompt);
  fputs(", \"completion\": ", file);
  write_json(file, &row->completion);
  fputs(", \"answer\": ", file);
  write_json(file, &row->answer);
  for (uint32_t i = 0; i < row->choice_count; i++) {
    fputs(i ? ", " : ", \"choices\": [", file);
    write_json(file, &row->choices[i]);
  }
  fprintf(file, "%s, \"domain\": \"%s\", \"split\": \"%s\"}\n", row->choice_count ? "]" : "",
          domains[domain].domain.name, splits[split]);
}

static kedge_status finish(FILE *file) {
  if (fflush(file) || ferror(file))
    return kedge_fail(KEDGE_ERR_IO, "writing the corpus: %s", strerror(errno));
  return KEDGE_OK;
}

kedge_status kedge_corpus_generate(uint32_t domain, kedge_corpus_split split, uint64_t seed, uint64_t count,
                                   FILE *file) {
  if (domain >= KEDGE_CORPUS_DOMAINS || (unsigned)split >= KEDGE_CORPUS_SPLITS)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "there is no domain %u with a split %d", domain, (int)split);
  for (uint64_t i = 0; i < count && !ferror(file); i++) {
    kedge__row row;
    KEDGE_TRY(make_row(domain, split, seed, i, &row));
    write_row(domain, split, &row, file);
  }
  return finish(file);
}

kedge_status kedge_corpus_mixture(uint64_t seed, uint64_t count, FILE *file,
                                  uint64_t counts[KEDGE_CORPUS_DOMAINS][KEDGE_CORPUS_SPLITS]) {
  enum { EACH = 100, BLOCK = EACH * KEDGE_CORPUS_DOMAINS };
  uint32_t order[BLOCK];
  if (counts) memset(counts, 0, KEDGE_CORPUS_DOMAINS * sizeof *counts);
  for (uint64_t i = 0; i < count && !ferror(file); i++) {
    uint64_t block = i / BLOCK;
    if (i % BLOCK == 0) {
      kedge_random random = kedge_random_start(seed + (UINT64_C(255) << 56), block);
      for (uint32_t k = 0; k < BLOCK; k++) order[k] = k;
      kedge_random_shuffle(&random, order, BLOCK);
    }
    uint32_t slot = order[i % BLOCK], domain = slot % KEDGE_CORPUS_DOMAINS,
             place = slot / KEDGE_CORPUS_DOMAINS;
    kedge_corpus_split split = place ? KEDGE_CORPUS_TRAIN : KEDGE_CORPUS_SHIFT_TRAIN;
    kedge__row row;
    KEDGE_TRY(make_row(domain, split, seed, place ? block * (EACH - 1) + place - 1 : block, &row));
    write_row(domain, split, &row, file);
    if (counts) counts[domain][split]++;
  }
  return finish(file);
}
