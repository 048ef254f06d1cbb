/* SPDX-License-Identifier: Apache-2.0
 *
 * Word problems. A problem is one function that says what is asked and does the sums; the worked answer is
 * the list of them. Shifted: other words, larger numbers, now and then a third sum. Sibling: corpus.c.
 */
#include "models/text/corpus_internal.h"

static const char *const things[] = {"apples", "stamps", "marbles", "pencils", "coins",  "shells", "cards",
                                     "books",  "beads",  "plums",   "buttons", "photos", "stones", "tickets"};
static const char *const boxes[] = {"bags", "boxes", "jars", "packs", "baskets", "trays"};

/* Works out and writes "a + b = c. ". Divisions have no rest. */
static int work(kedge__row *r, int a, char op, int b) {
  int c = op == '+' ? a + b : op == '-' ? a - b : op == '*' ? a * b : a / b;
  kedge__say(&r->completion, "%s%d %c %d = %d.", r->completion.length ? " " : "", a, op, b, c);
  return c;
}

#define PEOPLE(r, who, count) kedge__pick_some((r), kedge__people, KEDGE__PEOPLE, (who), (count))

/* ---- Two sums
 * ---------------------------------------------------------------------------------------------------- */

static int buy_packs(kedge__row *r) {
  const char *who[1], *thing = KEDGE__PICK(r, things), *box = KEDGE__PICK(r, boxes);
  PEOPLE(r, who, 1);
  int packs = kedge__between(r, 2, 5), each = kedge__between(r, 2, 9), has = kedge__between(r, 1, 9);
  kedge__say(&r->prompt, "%s buys %d %s with %d %s in each and has %d already. How many %s are there now?",
             who[0], packs, box, each, thing, has, thing);
  return work(r, work(r, packs, '*', each), '+', has);
}

static int give_away(kedge__row *r) {
  const char *who[2], *thing = KEDGE__PICK(r, things);
  PEOPLE(r, who, 2);
  int given = kedge__between(r, 1, 9), lost = kedge__between(r, 1, 9), left = kedge__between(r, 1, 15),
      has = given + lost + left;
  kedge__say(&r->prompt, "%s had %d %s. %s gave %d of them to %s and lost %d. How many %s are left?", who[0],
             has, thing, who[0], given, who[1], lost, thing);
  return work(r, work(r, has, '-', given), '-', lost);
}

static int share_out(kedge__row *r) {
  const char *who[2], *thing = KEDGE__PICK(r, things);
  PEOPLE(r, who, 2);
  int friends = kedge__between(r, 2, 5), each = kedge__between(r, 2, 9), hers = kedge__between(r, 1, 3),
      mine = friends * each - hers;
  kedge__say(
      &r->prompt,
      "%s has %d %s and %s has %d. They share all of them equally among %d friends. How many %s does each "
      "friend get?",
      who[0], mine, thing, who[1], hers, friends, thing);
  return work(r, work(r, mine, '+', hers), '/', friends);
}

static int price(kedge__row *r) {
  const char *who[1], *thing = KEDGE__PICK(r, things);
  PEOPLE(r, who, 1);
  int number = kedge__between(r, 2, 5), cost = kedge__between(r, 2, 9), off = kedge__between(r, 1, 3);
  kedge__say(&r->prompt,
             "%s buys %d %s for %d dollars each, with %d dollars off in all. How much does %s pay?", who[0],
             number, thing, cost, off, who[0]);
  return work(r, work(r, number, '*', cost), '-', off);
}

static int compare_amounts(kedge__row *r) {
  const char *who[3], *thing = KEDGE__PICK(r, things);
  PEOPLE(r, who, 3);
  int first = kedge__between(r, 2, 9), times = kedge__between(r, 2, 5), more = kedge__between(r, 1, 9);
  kedge__say(
      &r->prompt,
      "%s has %d %s. %s has %d times as many as %s, and %s has %d more than %s. How many %s does %s have?",
      who[0], first, thing, who[1], times, who[0], who[2], more, who[1], thing, who[2]);
  return work(r, work(r, first, '*', times), '+', more);
}

static int journey(kedge__row *r) {
  const char *who[1];
  PEOPLE(r, who, 1);
  int hours = kedge__between(r, 2, 5), speed = kedge__between(r, 2, 9), rest = kedge__between(r, 1, 9);
  kedge__say(&r->prompt,
             "%s travels for %d hours at %d miles an hour and then %d miles more. How far is the journey?",
             who[0], hours, speed, rest);
  return work(r, work(r, hours, '*', speed), '+', rest);
}

/* ---- Shifted: other words, larger numbers, now and then a third sum
 * ------------------------------------------------------------------------------------------------- */

static const char *const goods[] = {"melons", "onions", "leeks", "carrots",
                                    "bricks", "tiles",  "lamps", "chairs"};
static const char *const crates[] = {"crates", "sacks", "barrels", "carts"};

/* Whether there is a third sum. */
static bool goes_on(kedge__row *r) {
  return kedge__maybe(r, 30);
}

static int crates_of(kedge__row *r) {
  const char *who[1], *thing = KEDGE__PICK(r, goods), *crate = KEDGE__PICK(r, crates);
  PEOPLE(r, who, 1);
  int packs = kedge__between(r, 2, 6), each = kedge__between(r, 2, 9), has = kedge__between(r, 1, 12),
      sold = kedge__between(r, 1, 4);
  bool third = goes_on(r);
  kedge__say(&r->prompt, "%s orders %d %s with %d %s in each and owns %d already.", who[0], packs, crate,
             each, thing, has);
  if (third) kedge__say(&r->prompt, " Then %d are sold.", sold);
  kedge__say(&r->prompt, " Count the %s.", thing);
  int all = work(r, work(r, packs, '*', each), '+', has);
  return third ? work(r, all, '-', sold) : all;
}

static int handed_over(kedge__row *r) {
  const char *who[2], *thing = KEDGE__PICK(r, goods);
  PEOPLE(r, who, 2);
  int given = kedge__between(r, 1, 9), broken = kedge__between(r, 1, 9), left = kedge__between(r, 1, 25),
      found = kedge__between(r, 1, 9), has = given + broken + left;
  bool third = goes_on(r);
  kedge__say(&r->prompt, "%s stored %d %s. %s sold %d of them to %s and broke %d.", who[0], has, thing,
             who[0], given, who[1], broken);
  if (third) kedge__say(&r->prompt, " Then %d are found.", found);
  kedge__say(&r->prompt, " Count the %s.", thing);
  int all = work(r, work(r, has, '-', given), '-', broken);
  return third ? work(r, all, '+', found) : all;
}

static int bill(kedge__row *r) {
  const char *who[1], *thing = KEDGE__PICK(r, goods);
  PEOPLE(r, who, 1);
  int number = kedge__between(r, 2, 6), cost = kedge__between(r, 3, 9), off = kedge__between(r, 1, 5),
      tip = kedge__between(r, 1, 5);
  bool third = goes_on(r);
  kedge__say(&r->prompt, "%s orders %d %s for %d euros each, with %d euros less in all.", who[0], number,
             thing, cost, off);
  if (third) kedge__say(&r->prompt, " Then %d are added.", tip);
  kedge__say(&r->prompt, " State the bill.");
  int all = work(r, work(r, number, '*', cost), '-', off);
  return third ? work(r, all, '+', tip) : all;
}

static int hike(kedge__row *r) {
  const char *who[1];
  PEOPLE(r, who, 1);
  int days = kedge__between(r, 2, 6), each = kedge__between(r, 2, 9), rest = kedge__between(r, 1, 12);
  kedge__say(&r->prompt, "%s hikes for %d days at %d miles a day and then %d miles more. State the distance.",
             who[0], days, each, rest);
  return work(r, work(r, days, '*', each), '+', rest);
}

void kedge__corpus_arithmetic(kedge__row *r) {
  static int (*const plain[])(kedge__row *) = {buy_packs, give_away,       share_out,
                                               price,     compare_amounts, journey};
  static int (*const hard[])(kedge__row *) = {crates_of, handed_over, bill, hike};
  int result = r->shifted ? KEDGE__PICK(r, hard)(r) : KEDGE__PICK(r, plain)(r);
  kedge__answer(r, "%d", result);
}
