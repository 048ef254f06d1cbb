/* SPDX-License-Identifier: Apache-2.0
 *
 * Facts of an invented world: where its people live, what they do, and what its towns are known for. A plain
 * question asks for one fact, in one of several wordings; a test question is a wording of a fact whose other
 * wordings are in the training split. Shifted: over two or three facts; there a test question is a chain that
 * the training split does not have in any wording. The world is the same for every seed. Sibling: corpus.c.
 */
#include <string.h>

#include "models/text/corpus_internal.h"

enum { PERSONS = 64, TOWNS = 32, WORLD_SEED = 20260 };
enum { HOME, FRIEND, JOB, PET, RIVER, LAND, GOOD };

static const char *const jobs[] = {"baker",   "smith",   "weaver", "miller",  "tailor", "potter",
                                   "fisher",  "cooper",  "mason",  "glazier", "carter", "brewer",
                                   "saddler", "printer", "barber", "tanner"};
static const char *const pets[] = {"dog",  "cat",  "goat", "crow", "hen",  "mule", "hare", "owl",
                                   "swan", "toad", "fox",  "pig",  "duck", "lamb", "newt", "mole"};
static const char *const rivers[] = {"Alder",  "Birk",   "Corran", "Dunmere", "Eskil", "Farrow",
                                     "Glass",  "Hollin", "Ister",  "Jorund",  "Kelm",  "Lune",
                                     "Morrow", "Naver",  "Ouse",   "Prill"};
static const char *const lands[] = {"Norveth", "Ostrana",  "Pelmar", "Quindor", "Ravosk", "Sulmira",
                                    "Tavren",  "Umbria",   "Valdis", "Wessany", "Yarrow", "Zemlin",
                                    "Arkona",  "Belgarth", "Carvia", "Dorset"};
static const char *const goods[] = {"salt", "silk",  "copper", "honey", "glass", "wool", "amber", "paper",
                                    "tea",  "bells", "cheese", "tin",   "rope",  "wine", "soap",  "lace"};

/* ---- World
 * ------------------------------------------------------------------------------------------------------- */

typedef struct person {
  char name[12], home_name[12], friend_name[12];
  int home, friend; /* a town, another person */
  const char *job, *pet;
} person;

typedef struct town {
  char name[12];
  const char *river, *land, *good;
} town;

/* A name that no other index has: its end spells the index. */
static void make_name(uint64_t seed, int index, const char *vowels, char name[12]) {
  static const char ends[] = "bdgklmnr";
  kedge_random random = kedge_random_start(seed, (uint64_t)index);
  kedge__make_word(&random, 1, 1, name);
  name[0] = kedge__upper(name[0]);
  size_t n = 2;
  name[n++] = ends[index % 8];
  name[n++] = vowels[index / 8 % 4];
  if (index >= 32) name[n++] = 's';
  name[n] = 0;
}

static void name_town(int index, char name[12]) {
  static const char *const ends[] = {"ham", "ford", "wick", "stead"};
  make_name(WORLD_SEED, index, "aeou", name);
  strcat(name, ends[index % KEDGE__COUNT(ends)]);
}

/* Place of `index` in a random order of `count`, one for each relation: values are given out in turn, so that
 * each is as common as any other. `behind` is the index at the next place. */
static int place_of(int relation, int index, int count, int *behind) {
  uint32_t order[PERSONS];
  int place = 0;
  kedge_random random = kedge_random_start(WORLD_SEED + 1, (uint64_t)relation);
  for (int i = 0; i < count; i++) order[i] = (uint32_t)i;
  kedge_random_shuffle(&random, order, (uint32_t)count);
  while (order[place] != (uint32_t)index) place++;
  if (behind) *behind = (int)order[(place + 1) % count];
  return place;
}

static person make_person(int index) {
  person p;
  make_name(WORLD_SEED + 2, index, "aeio", p.name);
  p.home = place_of(HOME, index, PERSONS, NULL) % TOWNS;
  place_of(FRIEND, index, PERSONS, &p.friend);
  p.job = jobs[place_of(JOB, index, PERSONS, NULL) % KEDGE__COUNT(jobs)];
  p.pet = pets[place_of(PET, index, PERSONS, NULL) % KEDGE__COUNT(pets)];
  name_town(p.home, p.home_name);
  make_name(WORLD_SEED + 2, p.friend, "aeio", p.friend_name);
  return p;
}

static town make_town(int index) {
  town t;
  name_town(index, t.name);
  t.river = rivers[place_of(RIVER, index, TOWNS, NULL) % KEDGE__COUNT(rivers)];
  t.land = lands[place_of(LAND, index, TOWNS, NULL) % KEDGE__COUNT(lands)];
  t.good = goods[place_of(GOOD, index, TOWNS, NULL) % KEDGE__COUNT(goods)];
  return t;
}

/* ---- Relations
 * --------------------------------------------------------------------------------------------------- */

/* Writes the fact as a sentence and returns its object. */
static const char *state_person(kedge__text *t, const person *p, int relation) {
  switch (relation) {
  case HOME:
    kedge__say(t, "%s lives in %s.", p->name, p->home_name);
    return p->home_name;
  case FRIEND:
    kedge__say(t, "%s is a friend of %s.", p->name, p->friend_name);
    return p->friend_name;
  case JOB:
    kedge__say(t, "%s is a %s.", p->name, p->job);
    return p->job;
  default:
    kedge__say(t, "%s keeps a %s.", p->name, p->pet);
    return p->pet;
  }
}

static const char *state_town(kedge__text *t, const town *w, int relation) {
  switch (relation) {
  case RIVER:
    kedge__say(t, "%s lies on the %s.", w->name, w->river);
    return w->river;
  case LAND:
    kedge__say(t, "%s is in %s.", w->name, w->land);
    return w->land;
  default:
    kedge__say(t, "%s sells %s.", w->name, w->good);
    return w->good;
  }
}

static const char *const wordings[7][5] = {
    {"Where does %s live?", "In which town is %s at home?", "Name the home of %s.", "%s lives in which town?",
     "What is the home town of %s?"},
    {"Who is a friend of %s?", "Name the friend of %s.", "%s has which friend?", "With whom is %s friends?",
     "Whose friend is %s?"},
    {"What does %s do for a living?", "Name the trade of %s.", "What is the job of %s?", "%s works as what?",
     "Which trade has %s?"},
    {"Which animal does %s keep?", "Name the animal of %s.", "What pet has %s?", "%s keeps which animal?",
     "Which pet lives with %s?"},
    {"On which river does %s lie?", "Name the river of %s.", "Which river flows through %s?",
     "%s lies on which river?", "What is the river at %s?"},
    {"In which land is %s?", "Name the land of %s.", "To which land does %s belong?", "%s is in which land?",
     "What land has the town %s?"},
    {"What does %s sell?", "Name the goods of %s.", "For which goods is %s known?", "%s is known for what?",
     "What do traders buy in %s?"},
};

static void ask(kedge__row *r, const char *of, const char *question) {
  char text[160];
  snprintf(text, sizeof text, question, of);
  if (kedge__maybe(r, 80))
    kedge__say(&r->prompt, "%s asks: %s", KEDGE__PICK(r, kedge__people), text);
  else
    kedge__say(&r->prompt, "%s", text);
}

static void one_fact(kedge__row *r) {
  int relation = kedge__between(r, HOME, GOOD), wording = kedge__between(r, 0, 4);
  if (relation < RIVER) {
    const person p = make_person(kedge__between(r, 0, PERSONS - 1));
    ask(r, p.name, wordings[relation][wording]);
    kedge__answer(r, "%s", state_person(&r->completion, &p, relation));
  } else {
    const town t = make_town(kedge__between(r, 0, TOWNS - 1));
    ask(r, t.name, wordings[relation][wording]);
    kedge__answer(r, "%s", state_town(&r->completion, &t, relation));
  }
}

/* Of the home town of a person, or of that of a friend; or what the friend does, or the friend's friend. */
static void several_facts(kedge__row *r) {
  static const char *const home[3][2] = {
      {"Which river flows where %s lives?", "By the home of %s there runs a river; which one?"},
      {"In which land does %s live?", "Which land is the home of %s part of?"},
      {"What is sold where %s lives?", "Which goods could %s buy without leaving town?"}};
  static const char *const other[4][2] = {
      {"Where does the friend of %s live?", "To which town must %s go for a visit to the friend?"},
      {"", ""},
      {"What does the friend of %s do for a living?", "By which trade does the friend of %s earn money?"},
      {"Which animal does the friend of %s keep?", "What pet would %s meet at the friend's house?"}};
  static const char *const other_home[3][2] = {
      {"Which river flows where the friend of %s lives?",
       "By the home of the friend of %s runs which river?"},
      {"In which land does the friend of %s live?",
       "Which land must %s travel to for a visit to the friend?"},
      {"What is sold where the friend of %s lives?",
       "Which goods could %s bring home from a visit to the friend?"}};
  static const char *const far[4][2] = {
      {"Where does the friend of the friend of %s live?", "The friend of %s has a friend; at home where?"},
      {"", ""},
      {"What is the trade of the friend of the friend of %s?",
       "The friend of %s has a friend; of which trade?"},
      {"Which animal keeps the friend of the friend of %s?",
       "The friend of %s has a friend; with which pet?"}};
  int number = kedge__between(r, 0, PERSONS - 1), wording = kedge__between(r, 0, 1),
      kind = kedge__between(r, 0, 3);
  bool of_person = kind == 1 || kind == 3;
  int relation =
      of_person ? (int[]){HOME, JOB, PET}[kedge__between(r, 0, 2)] : kedge__between(r, RIVER, GOOD);
  person p = make_person(number);
  kedge__say(&r->key, "%d %d %d", number, kind, relation);
  if (of_person)
    ask(r, p.name, kind == 1 ? other[relation][wording] : far[relation][wording]);
  else
    ask(r, p.name, kind ? other_home[relation - RIVER][wording] : home[relation - RIVER][wording]);
  for (int step = kind == 3 ? 2 : kind ? 1 : 0; step; step--) {
    state_person(&r->completion, &p, FRIEND);
    kedge__say(&r->completion, " ");
    p = make_person(p.friend);
  }
  if (of_person) {
    kedge__answer(r, "%s", state_person(&r->completion, &p, relation));
    return;
  }
  const town t = make_town(p.home);
  state_person(&r->completion, &p, HOME);
  kedge__say(&r->completion, " ");
  kedge__answer(r, "%s", state_town(&r->completion, &t, relation));
}

void kedge__corpus_facts(kedge__row *r) {
  if (r->shifted)
    several_facts(r);
  else
    one_fact(r);
}
