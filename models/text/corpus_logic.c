/* SPDX-License-Identifier: Apache-2.0
 *
 * Multiple choice: the largest, the odd one, who stands where, who has what after exchanges, what a chain of
 * links leads to. Four choices; shifted: other words, five choices, longer chains. Sibling: corpus.c.
 */
#include "models/text/corpus_internal.h"

enum { MOST = 6 };

#define PEOPLE(r, who, count) kedge__pick_some((r), kedge__people, KEDGE__PEOPLE, (who), (count))

/* ---- Queues
 * ------------------------------------------------------------------------------------------------------ */

/* Who is next to whom in a line. */
static void queue(kedge__row *r) {
  const char *who[MOST]; /* from the front */
  const int count = 4, of = kedge__between(r, 0, count - 2);
  const bool after = kedge__maybe(r, 60);
  PEOPLE(r, who, count);
  kedge__say(&r->prompt, "In line:");
  for (int i = 0; i < count; i++) kedge__say(&r->prompt, " %s", who[i]);
  kedge__say(&r->prompt, after ? ". Right after %s" : ". Right before %s", who[after ? of : of + 1]);
  for (int i = 0; i < count; i++)
    kedge__say(kedge__choice(r), "%s", who[((after ? of + 1 : of) + i) % count]);
}

/* Told by neighbours, in random order: who is at an end, or two places away. */
static void seats(kedge__row *r) {
  const char *who[MOST]; /* from the left */
  const int count = 5, kind = kedge__between(r, 0, 3);
  int right = kind ? count - 1 : 0;
  uint32_t turn[MOST] = {0, 1, 2, 3, 4, 5};
  PEOPLE(r, who, count);
  kedge_random_shuffle(&r->random, turn, (uint32_t)count - 1);
  for (int i = 0; i + 1 < count; i++) {
    const uint32_t p = turn[i];
    if (kedge__maybe(r, 50))
      kedge__say(&r->prompt, "Left of %s sits %s. ", who[p + 1], who[p]);
    else
      kedge__say(&r->prompt, "Right of %s sits %s. ", who[p], who[p + 1]);
  }
  if (kind < 2) {
    kedge__say(&r->prompt, "The seat on the %s belongs to", kind ? "far right" : "far left");
  } else {
    const int of = kedge__between(r, 0, count - 3);
    kedge__say(&r->prompt, kind == 2 ? "Two seats right of %s is" : "Two seats left of %s is",
               who[kind == 2 ? of : of + 2]);
    right = kind == 2 ? of + 2 : of;
  }
  for (int i = 0; i < count; i++) kedge__say(kedge__choice(r), "%s", who[(right + i) % count]);
}

/* ---- Exchanges
 * --------------------------------------------------------------------------------------------------- */

static const char *const colours[] = {"red", "blue", "green", "white", "black", "pink"};
static const char *const books[] = {"atlas", "diary", "novel", "score", "ledger", "primer"};

static void exchange(kedge__row *r) {
  const char *who[MOST], *has[MOST];
  int count = r->shifted ? 5 : 4, swaps = r->shifted ? 2 : 1, last = 0;
  PEOPLE(r, who, count);
  kedge__pick_some(r, r->shifted ? books : colours, MOST, has, count);
  for (int i = 0; i < count; i++)
    kedge__say(&r->prompt, r->shifted ? "%s%s borrows the %s" : "%s%s %s", i ? ", " : "", who[i], has[i]);
  kedge__say(&r->prompt, ".");
  for (int s = 0; s < swaps; s++) {
    int a = kedge__between(r, 0, count - 1), b = (a + kedge__between(r, 1, count - 1)) % count;
    const char *kept = has[a];
    has[a] = has[b];
    has[b] = kept;
    last = b;
    kedge__say(&r->prompt, r->shifted ? " Then %s trades with %s." : " %s and %s swap.", who[a], who[b]);
  }
  int of = kedge__between(r, 0, count - 1);
  if (!r->shifted && kedge__maybe(r, 30)) of = last;
  kedge__say(&r->prompt, r->shifted ? " In the end %s holds the" : " Now %s", who[of]);
  for (int i = 0; i < count; i++) kedge__say(kedge__choice(r), "%s", has[(of + i) % count]);
}

/* ---- Conclusions
 * ------------------------------------------------------------------------------------------------- */

static const char *const nouns[] = {"blin", "dorp", "fex",  "gump", "hass", "jock", "kern", "lodd",
                                    "mish", "nump", "pell", "rusk", "sorl", "tarn", "vand", "wick"};

/* Two chains of kinds in one another. What follows is that the first of a chain is also the last; the other
 * choices are of the other chain. */
static void conclusion(kedge__row *r) {
  enum { LONGEST = 4 };
  const char *kinds[2 * LONGEST];
  int length = r->shifted ? LONGEST : 3, statements = 2 * (length - 1);
  uint32_t turn[2 * LONGEST] = {0, 1, 2, 3, 4, 5, 6, 7};
  kedge__pick_some(r, nouns, KEDGE__COUNT(nouns), kinds, 2 * length);
  kedge_random_shuffle(&r->random, turn, (uint32_t)statements);
  if (!r->shifted) kedge__say(&r->prompt, "Links:");
  for (int i = 0; i < statements; i++) {
    int at = (int)turn[i] + ((int)turn[i] >= length - 1);
    if (r->shifted)
      kedge__say(&r->prompt, "Each %s counts as a %s. ", kinds[at], kinds[at + 1]);
    else
      kedge__say(&r->prompt, "%s %s %s", i ? "," : "", kinds[at], kinds[at + 1]);
  }
  if (r->shifted)
    kedge__say(&r->prompt, "In the end each %s counts as a", kinds[0]);
  else if (kedge__maybe(r, 50))
    kedge__say(&r->prompt, ". In a row: %s %s", kinds[0], kinds[1]);
  else
    kedge__say(&r->prompt, ". Two links from %s", kinds[0]);
  kedge__say(kedge__choice(r), "%s", kinds[length - 1]);
  for (int i = 0; i < length; i++) kedge__say(kedge__choice(r), "%s", kinds[length + i]);
}

/* ---- Choices by themselves
 * -------------------------------------------------------------------------------------------- */

/* The largest or the smallest number. */
static void extreme(kedge__row *r) {
  int numbers[MOST], count = r->shifted ? 5 : 4;
  const bool most = kedge__maybe(r, 50);
  for (int i = 0; i < count; i++) {
    bool fresh;
    do {
      numbers[i] = kedge__between(r, 1, r->shifted ? 30 : 9);
      fresh = true;
      for (int k = 0; k < i; k++) fresh = fresh && numbers[k] != numbers[i];
    } while (!fresh);
    if (most ? numbers[i] > numbers[0] : numbers[i] < numbers[0]) {
      const int kept = numbers[0];
      numbers[0] = numbers[i];
      numbers[i] = kept;
    }
  }
  kedge__say(&r->prompt, r->shifted ? "Pick the %s number:" : "The %s is",
             r->shifted ? (most ? "greatest" : "least") : (most ? "largest" : "smallest"));
  for (int i = 0; i < count; i++) kedge__say(kedge__choice(r), "%d", numbers[i]);
}

static const char *const animals[] = {"goat", "crow", "mule", "hare", "swan", "toad"};
static const char *const foods[] = {"bread", "soup", "rice", "cake", "plum", "bean"};

/* The one of another kind. */
static void odd_one(kedge__row *r) {
  static const char *const *const kinds[] = {colours, books, animals, foods};
  const char *same[MOST], *other[1];
  const int count = r->shifted ? 5 : 4, a = kedge__between(r, 0, 3), b = (a + kedge__between(r, 1, 3)) % 4;
  kedge__pick_some(r, kinds[a], MOST, same, count - 1);
  kedge__pick_some(r, kinds[b], MOST, other, 1);
  kedge__say(&r->prompt, r->shifted ? "Pick the stranger among them:" : "The odd one is");
  kedge__say(kedge__choice(r), "%s", other[0]);
  for (int i = 0; i + 1 < count; i++) kedge__say(kedge__choice(r), "%s", same[i]);
}

void kedge__corpus_logic(kedge__row *r) {
  static void (*const kinds[])(
      kedge__row *) = {extreme, extreme, odd_one, odd_one, odd_one, queue, exchange, conclusion},
                 (*const shifted[])(kedge__row *) = {extreme, odd_one, seats, exchange, conclusion};
  (r->shifted ? KEDGE__PICK(r, shifted) : KEDGE__PICK(r, kinds))(r);
  kedge__choose(r);
}
