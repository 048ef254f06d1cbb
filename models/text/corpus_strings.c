/* SPDX-License-Identifier: Apache-2.0
 *
 * Letters and words. A change is one function from a text to another; a plain question asks for one, a
 * shifted one for one or two, one after the other, in other words and partly of longer rows. Sibling:
 * corpus.c.
 */
#include <string.h>

#include "models/text/corpus_internal.h"

enum { SIZE = 64 };

/* ---- Changes
 * ----------------------------------------------------------------------------------------------------- */

static void reverse(const char *word, char *out) {
  size_t n = strlen(word);
  for (size_t i = 0; i < n; i++) out[i] = word[n - 1 - i];
  out[n] = 0;
}

static void capitals(const char *word, char *out) {
  size_t n = 0;
  for (; word[n]; n++) out[n] = kedge__upper(word[n]);
  out[n] = 0;
}

static void sort(const char *word, char *out) {
  size_t n = strlen(word);
  strcpy(out, word);
  for (size_t i = 1; i < n; i++)
    for (size_t k = i; k > 0 && out[k - 1] > out[k]; k--) {
      char kept = out[k];
      out[k] = out[k - 1];
      out[k - 1] = kept;
    }
}

static bool is_vowel(char c) {
  return c && strchr("aeiouAEIOU", c);
}

static void drop_vowels(const char *word, char *out) {
  for (; *word; word++)
    if (!is_vowel(*word)) *out++ = *word;
  *out = 0;
}

static void rotate(const char *word, char *out) {
  size_t n = strlen(word);
  memcpy(out, word + 1, n - 1);
  out[n - 1] = word[0];
  out[n] = 0;
}

static void drop_first(const char *word, char *out) {
  strcpy(out, word + 1);
}

static void drop_last(const char *word, char *out) {
  strcpy(out, word);
  out[strlen(word) - 1] = 0;
}

static void twice(const char *word, char *out) {
  strcpy(out, word);
  strcat(out, word);
}

/* Each with its name in plain and in shifted questions. Shifted ones have the first SHIFTED of them, and of
 * these the first SECOND may come second. Whatever the changes and their order, a letter is left. */
enum { SHIFTED = 5, SECOND = 3 };
static const struct {
  const char *name, *other;
  void (*change)(const char *word, char *out);
} changes[] = {
    {"Write in capitals", "Say it in capitals", capitals},
    {"Drop the first", "Leave out its head", drop_first},
    {"Drop the last", "Leave out its tail", drop_last},
    {"Drop the vowels", "Keep its consonants", drop_vowels},
    {"Move the first to the end", "Put its head behind its tail", rotate},
    {"Reverse", NULL, reverse},
    {"Write two times", NULL, twice},
    {"Sort the letters", NULL, sort},
};

/* ---- Questions
 * --------------------------------------------------------------------------------------------------- */

/* "k o l". Returns `out`. */
static const char *spread(const char *word, char out[2 * SIZE]) {
  size_t n = 0;
  for (; *word; word++) {
    if (n) out[n++] = ' ';
    out[n++] = *word;
  }
  out[n] = 0;
  return out;
}

static void one_change(kedge__row *r) {
  char word[SIZE], changed[SIZE], text[2 * SIZE];
  int kind = kedge__between(r, 0, KEDGE__COUNT(changes)), found = 0;
  kedge__make_word(&r->random, 2, 2, word);
  kedge__say(&r->prompt, "Letters: %s.", spread(word, text));
  if (kind == KEDGE__COUNT(changes)) {
    char letter = word[kedge__between(r, 0, (int)strlen(word) - 1)];
    for (int i = 0; word[i]; i++) found += word[i] == letter;
    kedge__say(&r->prompt, " Count each %c.", letter);
    kedge__answer(r, "%d", found);
    return;
  }
  changes[kind].change(word, changed);
  kedge__say(&r->prompt, " %s.", changes[kind].name);
  kedge__answer(r, "%s", spread(changed, text));
}

/* One in other words, now and then of a longer row, or two with both rows asked for. */
static void harder(kedge__row *r) {
  char word[SIZE], first[SIZE], second[SIZE], text[2 * SIZE];
  const bool both = kedge__maybe(r, 10);
  const int a = kedge__between(r, 0, SHIFTED - 1), b = kedge__between(r, 0, SECOND - 1);
  kedge__make_word(&r->random, 2, kedge__maybe(r, 10) ? 3 : 2, word);
  changes[a].change(word, first);
  kedge__say(&r->prompt, "Letters: %s. %s.", spread(word, text), changes[a].other);
  if (!both) {
    kedge__answer(r, "%s", spread(first, text));
    return;
  }
  changes[b].change(first, second);
  kedge__say(&r->prompt, " Then: %s.", changes[b].other);
  kedge__say(&r->completion, "#### %s", spread(first, text));
  kedge__answer(r, "%s", spread(second, text));
}

void kedge__corpus_strings(kedge__row *r) {
  if (r->shifted)
    harder(r);
  else
    one_change(r);
}
