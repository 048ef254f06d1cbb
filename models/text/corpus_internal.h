/* SPDX-License-Identifier: Apache-2.0
 *
 * A row of a generated corpus while it is written, and what the domains' files share.
 */
#ifndef KEDGE_MODELS_TEXT_CORPUS_INTERNAL_H
#define KEDGE_MODELS_TEXT_CORPUS_INTERNAL_H

#include "models/text/corpus.h"
#include "models/text/random.h"

enum { KEDGE__TEXT_SIZE = 1024, KEDGE__MAX_CHOICES = 8, KEDGE__PEOPLE = 12, KEDGE__MAX_PICK = 16 };

/* Every domain stays well below the size. */
typedef struct kedge__text {
  char bytes[KEDGE__TEXT_SIZE];
  size_t length;
} kedge__text;

typedef struct kedge__row {
  kedge_random random;
  bool shifted;
  kedge__text prompt, completion, answer;
  /* What makes the question another one, where that is not the prompt: rows of one key are on one side. */
  kedge__text key;
  kedge__text choices[KEDGE__MAX_CHOICES];
  uint32_t choice_count; /* 0: an open question */
  kedge_status status;   /* of the writing */
} kedge__row;

void kedge__say(kedge__text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The answer, and as the end of the completion "#### answer", on a line of its own. */
void kedge__answer(kedge__row *row, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Puts the choices in random order, the right one being the first that was added, and writes them before the
 * prompt, which ends where the right one goes on. The completion is that and its letter: " Ada.\nAnswer: B".
 */
void kedge__choose(kedge__row *row);
/* Adds a choice, the right one first. */
kedge__text *kedge__choice(kedge__row *row);

int kedge__between(kedge__row *row, int low, int high); /* both may come */
bool kedge__maybe(kedge__row *row, int percent);
#define KEDGE__COUNT(list)     ((int)(sizeof(list) / sizeof *(list)))
#define KEDGE__PICK(row, list) ((list)[kedge__between((row), 0, KEDGE__COUNT(list) - 1)])

extern const char *const kedge__people[KEDGE__PEOPLE];
/* `count` different ones of `from`, [available] at most KEDGE__MAX_PICK. */
void kedge__pick_some(kedge__row *row, const char *const *from, int available, const char **chosen,
                      int count);

/* A pronounceable word of `least` to `most` syllables in lower case; `word` has 2 * most + 2 bytes. */
void kedge__make_word(kedge_random *random, int least, int most, char *word);
char kedge__upper(char c);

/* The domains. Each fills prompt, completion and answer of a row that is empty but for `random` and
 * `shifted`. */
void kedge__corpus_arithmetic(kedge__row *row);
void kedge__corpus_programs(kedge__row *row);
void kedge__corpus_facts(kedge__row *row);
void kedge__corpus_logic(kedge__row *row);
void kedge__corpus_strings(kedge__row *row);

#endif
