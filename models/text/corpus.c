/* SPDX-License-Identifier: Apache-2.0
 *
 * Generated corpora: word problems, string transformations, facts of an invented world, and comparisons. A
 * domain is a row of the table at the end and one function that writes a prompt and its completion.
 */
#include "models/text/corpus.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "models/text/random.h"

enum { TEXT_SIZE = 1024, MAX_PEOPLE = 5 };

/* Prompt or completion while it is written. Every domain stays well below the size. */
typedef struct text {
  char bytes[TEXT_SIZE];
  size_t length;
} text;

typedef struct row {
  kedge_random random;
  text prompt, completion;
} row;

__attribute__((format(printf, 2, 3))) static void say(text *t, const char *format, ...) {
  va_list list;
  va_start(list, format);
  int written = vsnprintf(t->bytes + t->length, TEXT_SIZE - t->length, format, list);
  va_end(list);
  size_t room = TEXT_SIZE - t->length - 1;
  t->length += written < 0 ? 0 : (size_t)written < room ? (size_t)written : room;
}

static int between(row *r, int low, int high) {
  return low + (int)kedge_random_below(&r->random, (uint64_t)(high - low + 1));
}
#define COUNT(list)   ((int)(sizeof(list) / sizeof *(list)))
#define PICK(r, list) ((list)[between((r), 0, COUNT(list) - 1)])

static const char *const people[] = {"Ada",  "Ben",   "Cleo",  "Dan",  "Emma",  "Finn", "Gina",  "Hugo",
                                     "Iris", "Jack",  "Kira",  "Liam", "Mona",  "Nils", "Olga",  "Paul",
                                     "Rosa", "Sam",   "Tara",  "Uma",  "Vera",  "Will", "Yusuf", "Zoe",
                                     "Arlo", "Bella", "Cyrus", "Dora", "Elias", "Freya"};

/* Different random people. */
static void pick_people(row *r, const char **chosen, int count) {
  uint32_t order[COUNT(people)];
  for (uint32_t i = 0; i < COUNT(people); i++) order[i] = i;
  kedge_random_shuffle(&r->random, order, COUNT(people));
  for (int i = 0; i < count; i++) chosen[i] = people[order[i]];
}

/* ---- Arithmetic
 * ------------------------------------------------------------------------------------------------- */

static const char *const things[] = {"apples", "stamps", "marbles", "pencils", "coins",  "shells", "cards",
                                     "books",  "beads",  "plums",   "buttons", "photos", "stones", "tickets"};
static const char *const boxes[] = {"bags", "boxes", "jars", "packs", "baskets", "trays"};

static void buy_packs(row *r) {
  const char *who[1], *thing = PICK(r, things), *box = PICK(r, boxes);
  pick_people(r, who, 1);
  int has = between(r, 2, 60), packs = between(r, 2, 9), each = between(r, 2, 12);
  say(&r->prompt, "%s has %d %s and buys %d %s with %d %s in each. How many %s does %s have now?", who[0],
      has, thing, packs, box, each, thing, thing, who[0]);
  say(&r->completion, "%d * %d = %d. %d + %d = %d. The answer is %d.", packs, each, packs * each, has,
      packs * each, has + packs * each, has + packs * each);
}

static void give_away(row *r) {
  const char *who[2], *thing = PICK(r, things);
  pick_people(r, who, 2);
  int given = between(r, 2, 40), lost = between(r, 1, 20), left = between(r, 1, 50),
      has = given + lost + left;
  say(&r->prompt, "%s had %d %s. %s gave %d of them to %s and lost %d. How many %s are left?", who[0], has,
      thing, who[0], given, who[1], lost, thing);
  say(&r->completion, "%d - %d = %d. %d - %d = %d. The answer is %d.", has, given, has - given, has - given,
      lost, left, left);
}

static void share_out(row *r) {
  const char *who[2], *thing = PICK(r, things);
  pick_people(r, who, 2);
  int friends = between(r, 2, 9), each = between(r, 2, 20), mine = between(r, 1, 30),
      hers = friends * each - mine;
  if (hers < 1) {
    mine = 1;
    hers = friends * each - 1;
  }
  say(&r->prompt,
      "%s has %d %s and %s has %d. They share all of them equally among %d friends. How many %s does each "
      "friend get?",
      who[0], mine, thing, who[1], hers, friends, thing);
  say(&r->completion, "%d + %d = %d. %d / %d = %d. The answer is %d.", mine, hers, mine + hers, mine + hers,
      friends, each, each);
}

static void price(row *r) {
  const char *who[1], *thing = PICK(r, things);
  pick_people(r, who, 1);
  int cost = between(r, 2, 15), number = between(r, 2, 9), total = cost * number, change = between(r, 1, 40);
  say(&r->prompt, "%s buys %d %s for %d dollars each and pays with %d dollars. How much change does %s get?",
      who[0], number, thing, cost, total + change, who[0]);
  say(&r->completion, "%d * %d = %d. %d - %d = %d. The answer is %d.", number, cost, total, total + change,
      total, change, change);
}

static void compare_amounts(row *r) {
  const char *who[3], *thing = PICK(r, things);
  pick_people(r, who, 3);
  int first = between(r, 3, 40), times = between(r, 2, 5), more = between(r, 1, 15);
  int second = first * times, third = second + more;
  say(&r->prompt,
      "%s has %d %s. %s has %d times as many as %s, and %s has %d more than %s. How many %s does %s have?",
      who[0], first, thing, who[1], times, who[0], who[2], more, who[1], thing, who[2]);
  say(&r->completion, "%d * %d = %d. %d + %d = %d. The answer is %d.", first, times, second, second, more,
      third, third);
}

static void journey(row *r) {
  const char *who[1];
  pick_people(r, who, 1);
  int speed = between(r, 3, 90), hours = between(r, 2, 8), rest = between(r, 5, 60);
  say(&r->prompt,
      "%s travels for %d hours at %d miles an hour and then %d miles more. How far is the journey?", who[0],
      hours, speed, rest);
  say(&r->completion, "%d * %d = %d. %d + %d = %d. The answer is %d.", hours, speed, hours * speed,
      hours * speed, rest, hours * speed + rest, hours * speed + rest);
}

static void arithmetic(row *r) {
  static void (*const problems[])(row *) = {buy_packs, give_away, share_out, price, compare_amounts, journey};
  PICK(r, problems)(r);
}

/* ---- Strings
 * ----------------------------------------------------------------------------------------------------- */

/* A pronounceable word of 2 to `syllables` syllables, in lower case. */
static void make_word(kedge_random *random, int syllables, char *word) {
  static const char consonants[] = "bcdfghjklmnprstvwz", vowels[] = "aeiou", ends[] = "lmnrstdk";
  int count = 2 + (int)kedge_random_below(random, (uint64_t)(syllables - 1)), n = 0;
  for (int i = 0; i < count; i++) {
    word[n++] = consonants[kedge_random_below(random, sizeof consonants - 1)];
    word[n++] = vowels[kedge_random_below(random, sizeof vowels - 1)];
  }
  if (kedge_random_below(random, 2)) word[n++] = ends[kedge_random_below(random, sizeof ends - 1)];
  word[n] = 0;
}

static char upper(char c) {
  return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
}

static void sort_letters(char *word, int length) {
  for (int i = 1; i < length; i++)
    for (int j = i; j > 0 && word[j - 1] > word[j]; j--) {
      char kept = word[j];
      word[j] = word[j - 1];
      word[j - 1] = kept;
    }
}

static void strings(row *r) {
  char word[16], other[16];
  make_word(&r->random, 4, word);
  make_word(&r->random, 3, other);
  int length = (int)strlen(word), found = 0;
  switch (between(r, 0, 6)) {
  case 0:
    say(&r->prompt, "Reverse the word \"%s\".", word);
    for (int i = length; i > 0; i--) say(&r->completion, "%c", word[i - 1]);
    break;
  case 1:
    say(&r->prompt, "Write \"%s %s\" in capital letters.", word, other);
    for (int i = 0; i < length; i++) say(&r->completion, "%c", upper(word[i]));
    say(&r->completion, " ");
    for (int i = 0; other[i]; i++) say(&r->completion, "%c", upper(other[i]));
    break;
  case 2:
    say(&r->prompt, "Sort the letters of \"%s\".", word);
    sort_letters(word, length);
    say(&r->completion, "%s", word);
    break;
  case 3: {
    char letter = word[between(r, 0, length - 1)];
    for (int i = 0; i < length; i++) found += word[i] == letter;
    say(&r->prompt, "How often does the letter \"%c\" occur in \"%s\"?", letter, word);
    say(&r->completion, "%d", found);
    break;
  }
  case 4:
    say(&r->prompt, "Spell \"%s\" with dashes between the letters.", word);
    for (int i = 0; i < length; i++) say(&r->completion, i ? "-%c" : "%c", word[i]);
    break;
  case 5:
    say(&r->prompt, "Swap the two words \"%s %s\".", word, other);
    say(&r->completion, "%s %s", other, word);
    break;
  default:
    say(&r->prompt, "Drop the vowels of \"%s\".", word);
    for (int i = 0; i < length; i++)
      if (!strchr("aeiou", word[i])) say(&r->completion, "%c", word[i]);
  }
}

/* ---- Facts
 * ------------------------------------------------------------------------------------------------------- */

enum { TOWNS = 48, WORLD_SEED = 20260 };
static const char *const lands[] = {"Norveth", "Ostrana", "Pelmar", "Quindor",
                                    "Ravosk",  "Sulmira", "Tavren", "Umbria Vale"};
static const char *const rivers[] = {"Alder", "Birk",   "Corran", "Dunmere", "Eskil", "Farrow",
                                     "Glass", "Hollin", "Ister",  "Jorund",  "Kelm",  "Lune"};
static const char *const goods[] = {"salt", "silk",  "copper", "honey", "glass",
                                    "wool", "amber", "paper",  "tea",   "bells"};
static const char *const winds[] = {"north", "east", "south", "west"};

typedef struct town {
  char name[20];
  const char *land, *river, *good, *wind, *founder;
  int year;
} town;

/* Town number `index` of the one world. The index is written into the name's last syllable, so that names
 * differ. */
static town make_town(int index) {
  static const char ends[] = "bdgklmnr", vowels[] = "aeiouy";
  kedge_random random = kedge_random_start(WORLD_SEED, (uint64_t)index);
  town t;
  make_word(&random, 2, t.name);
  size_t n = strlen(t.name);
  if (n > 4) n = 4;
  t.name[0] = upper(t.name[0]);
  t.name[n++] = ends[index % 8];
  t.name[n++] = vowels[index / 8];
  t.name[n] = 0;
  t.land = lands[kedge_random_below(&random, COUNT(lands))];
  t.river = rivers[kedge_random_below(&random, COUNT(rivers))];
  t.good = goods[kedge_random_below(&random, COUNT(goods))];
  t.wind = winds[kedge_random_below(&random, COUNT(winds))];
  t.founder = people[kedge_random_below(&random, COUNT(people))];
  t.year = 900 + (int)kedge_random_below(&random, 900);
  return t;
}

static void facts(row *r) {
  int first = between(r, 0, TOWNS - 1), second = (first + between(r, 1, TOWNS - 1)) % TOWNS;
  town a = make_town(first), b = make_town(second);
  switch (between(r, 0, 8)) {
  case 0:
    say(&r->prompt, "In which land does the town of %s lie?", a.name);
    say(&r->completion, "%s lies in %s.", a.name, a.land);
    break;
  case 1:
    say(&r->prompt, "Which river flows through %s?", a.name);
    say(&r->completion, "The river %s flows through %s.", a.river, a.name);
    break;
  case 2:
    say(&r->prompt, "What is %s known for?", a.name);
    say(&r->completion, "%s is known for its %s.", a.name, a.good);
    break;
  case 3:
    say(&r->prompt, "Who founded %s, and when?", a.name);
    say(&r->completion, "%s founded %s in the year %d.", a.founder, a.name, a.year);
    break;
  case 4:
    say(&r->prompt, "Which town is older, %s or %s?", a.name, b.name);
    if (a.year == b.year)
      say(&r->completion, "Neither: both were founded in %d.", a.year);
    else
      say(&r->completion, "%s, founded in %d; %s was founded in %d.", a.year < b.year ? a.name : b.name,
          a.year < b.year ? a.year : b.year, a.year < b.year ? b.name : a.name,
          a.year < b.year ? b.year : a.year);
    break;
  case 5:
    say(&r->prompt, "Do %s and %s lie in the same land?", a.name, b.name);
    if (a.land == b.land)
      say(&r->completion, "Yes, both lie in %s.", a.land);
    else
      say(&r->completion, "No. %s lies in %s, %s in %s.", a.name, a.land, b.name, b.land);
    break;
  case 6:
    say(&r->prompt, "A trader brings goods from %s to %s. What does he carry, and to which land?", a.name,
        b.name);
    say(&r->completion, "He carries %s to %s.", a.good, b.land);
    break;
  case 7:
    say(&r->prompt, "From where does the wind blow in %s?", a.name);
    say(&r->completion, "In %s the wind blows from the %s.", a.name, a.wind);
    break;
  default:
    say(&r->prompt, "Describe the town of %s.", a.name);
    say(&r->completion, "%s is a town in %s on the river %s, founded in %d and known for its %s.", a.name,
        a.land, a.river, a.year, a.good);
  }
}

/* ---- Logic
 * ------------------------------------------------------------------------------------------------------- */

/* more, less, most, least */
static const char *const scales[][4] = {{"taller", "shorter", "tallest", "shortest"},
                                        {"older", "younger", "oldest", "youngest"},
                                        {"faster", "slower", "fastest", "slowest"},
                                        {"richer", "poorer", "richest", "poorest"},
                                        {"stronger", "weaker", "strongest", "weakest"}};

static void logic(row *r) {
  const char *who[MAX_PEOPLE]; /* from the most to the least */
  const char *const *scale = PICK(r, scales);
  int count = between(r, 3, MAX_PEOPLE);
  pick_people(r, who, count);
  uint32_t order[MAX_PEOPLE] = {0, 1, 2, 3, 4};
  kedge_random_shuffle(&r->random, order, (uint32_t)(count - 1));
  for (int i = 0; i + 1 < count; i++) {
    uint32_t p = order[i];
    bool turned = between(r, 0, 1);
    say(&r->prompt, "%s is %s than %s. ", turned ? who[p + 1] : who[p], turned ? scale[1] : scale[0],
        turned ? who[p] : who[p + 1]);
  }
  int kind = between(r, 0, 2);
  if (kind < 2) {
    say(&r->prompt, "Who is the %s?", scale[2 + kind]);
    for (int i = 0; i < count; i++) say(&r->completion, i ? " > %s" : "%s", who[i]);
    say(&r->completion, ". The %s is %s.", scale[2 + kind], kind ? who[count - 1] : who[0]);
    return;
  }
  int a = between(r, 0, count - 1), b = (a + between(r, 1, count - 1)) % count;
  say(&r->prompt, "Is %s %s than %s?", who[a], scale[0], who[b]);
  int low = a < b ? a : b, high = a < b ? b : a;
  for (int i = low; i <= high; i++) say(&r->completion, i > low ? " > %s" : "%s", who[i]);
  say(&r->completion, a < b ? ". Yes, %s is %s." : ". No, %s is %s.", who[a], a < b ? scale[0] : scale[1]);
}

/* ---- Table
 * ------------------------------------------------------------------------------------------------------- */

static const struct {
  const char *name, *about;
  void (*write)(row *);
} domains[] = {
    {"arithmetic", "word problems with worked answers", arithmetic},
    {"strings", "reverse, sort, spell and count the letters of words", strings},
    {"facts", "questions about an invented world", facts},
    {"logic", "who is the tallest: chains of comparisons", logic},
};

const char *kedge_corpus_domain(uint32_t index, const char **about) {
  if (index >= COUNT(domains)) return NULL;
  if (about) *about = domains[index].about;
  return domains[index].name;
}

static void write_json(FILE *file, const text *t) {
  putc('"', file);
  for (size_t i = 0; i < t->length; i++) {
    if (t->bytes[i] == '"' || t->bytes[i] == '\\') putc('\\', file);
    putc(t->bytes[i], file);
  }
  putc('"', file);
}

kedge_status kedge_corpus_generate(const char *domain, uint64_t seed, uint64_t count, FILE *file) {
  uint64_t d = 0;
  while (d < COUNT(domains) && strcmp(domain, domains[d].name)) d++;
  if (d == COUNT(domains))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "domain \"%s\": expected arithmetic, strings, facts or logic",
                      domain);
  for (uint64_t i = 0; i < count && !ferror(file); i++) {
    row r = {.random = kedge_random_start(seed + (d << 56), i)};
    domains[d].write(&r);
    fputs("{\"prompt\": ", file);
    write_json(file, &r.prompt);
    fputs(", \"completion\": ", file);
    write_json(file, &r.completion);
    fputs("}\n", file);
  }
  if (fflush(file) || ferror(file))
    return kedge_fail(KEDGE_ERR_IO, "writing the corpus: %s", strerror(errno));
  return KEDGE_OK;
}
