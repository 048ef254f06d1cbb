/* SPDX-License-Identifier: Apache-2.0
 * Answers in texts (extract.h): finding them. How they compare is in compare.c. */
#include "models/evaluation/extract.h"

#include <string.h>
#include <strings.h>

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
static bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
static bool is_blank(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

static kedge_extract trim(kedge_extract e) {
  while (e.length && is_blank(*e.start)) e.start++, e.length--;
  while (e.length && is_blank(e.start[e.length - 1])) e.length--;
  return e;
}

/* From `start` to the end of its line, without white space around it. */
static kedge_extract rest_of_line(const char *start, const char *end) {
  const char *line = memchr(start, '\n', (size_t)(end - start));
  return trim((kedge_extract){start, (size_t)((line ? line : end) - start)});
}

static bool starts(const char *at, const char *end, const char *word) {
  const size_t length = strlen(word);
  return (size_t)(end - at) >= length && !memcmp(at, word, length);
}

/* The brace that closes the one at `open`, NULL if none does. */
static const char *closing(const char *open, const char *end) {
  uint64_t depth = 0;
  for (const char *at = open; at < end; at++) {
    if (*at == '\\') {
      at++;
      continue;
    }
    if (*at == '{') depth++;
    if (*at == '}' && !--depth) return at;
  }
  return NULL;
}

kedge_extract kedge_extract_boxed(const char *text, size_t length) {
  static const char word[] = "\\boxed";
  const char *end = text + length;
  /* From behind, so that the last is found at once; a text of nothing but openings is not scanned again for
   * each: past the first that no brace closes, an earlier one can only close before it. */
  const char *limit = end;
  for (const char *at = end; at-- > text;) {
    if (*at != '\\' || !starts(at, end, word)) continue;
    const char *open = at + sizeof word - 1;
    while (open < end && is_blank(*open)) open++;
    if (open >= end || *open != '{') continue;
    const char *close = closing(open, limit);
    if (close) return trim((kedge_extract){open + 1, (size_t)(close - open - 1)});
    limit = at;
  }
  return (kedge_extract){0};
}

kedge_extract kedge_extract_hashes(const char *text, size_t length) {
  const char *end = text + length;
  for (const char *at = end; at-- > text;)
    if (starts(at, end, "####")) return rest_of_line(at + 4, end);
  return (kedge_extract){0};
}

/* Length of the sign before a number at `at`: 0 for none, or for a minus between two things. */
static size_t sign_before(const char *text, const char *at) {
  size_t size = 0;
  if (at > text && at[-1] == '-') size = 1;
  if (at - text >= 3 && !memcmp(at - 3, "\xe2\x88\x92", 3)) size = 3; /* the minus sign of Unicode */
  if (!size) return 0;
  if (at - size == text) return size;
  const char before = at[-(ptrdiff_t)size - 1];
  return is_digit(before) || is_letter(before) || before == ')' || before == ']' || before == '}' ? 0 : size;
}

/* End of the number whose first digit, or point, is at `at`. */
static const char *number_end(const char *at, const char *end) {
  const char *first = at;
  while (at < end && is_digit(*at)) at++;
  if (at - first <= 3 && at > first)
    while (end - at >= 4 && *at == ',' && is_digit(at[1]) && is_digit(at[2]) && is_digit(at[3]) &&
           (end - at == 4 || !is_digit(at[4])))
      at += 4;
  if (end - at >= 2 && *at == '.' && is_digit(at[1]))
    for (at++; at < end && is_digit(*at);) at++;
  return at;
}

kedge_extract kedge_extract_number(const char *text, size_t length) {
  kedge_extract found = {0};
  const char *end = text + length;
  for (const char *at = text; at < end;) {
    const bool point = *at == '.' && end - at >= 2 && is_digit(at[1]);
    if (!is_digit(*at) && !point) {
      at++;
      continue;
    }
    const size_t sign = sign_before(text, at);
    const char *stop = number_end(at, end);
    found = (kedge_extract){at - sign, (size_t)(stop - at) + sign};
    at = stop;
  }
  return found;
}

kedge_extract kedge_extract_stated(const char *text, size_t length) {
  static const char word[] = "answer";
  const char *end = text + length;
  for (const char *at = end; at-- > text;) {
    if ((size_t)(end - at) < sizeof word - 1 || strncasecmp(at, word, sizeof word - 1)) continue;
    const char *next = at + sizeof word - 1;
    while (next < end && (*next == ' ' || *next == '*')) next++;
    if (next < end && *next == ':')
      next++;
    else if (end - next >= 2 && !strncasecmp(next, "is", 2) && (end - next == 2 || !is_letter(next[2])))
      next += 2 + (end - next > 2 && next[2] == ':');
    else
      continue;
    while (next < end && (*next == ' ' || *next == '*')) next++;
    kedge_extract rest = rest_of_line(next, end);
    while (rest.length && rest.start[rest.length - 1] == '*') rest.length--;
    if (rest.length) return rest;
  }
  return (kedge_extract){0};
}

kedge_extract kedge_extract_code(const char *text, size_t length) {
  const char *end = text + length, *open = memmem(text, length, "```", 3);
  if (!open) return (kedge_extract){text, length};
  const char *line = memchr(open, '\n', (size_t)(end - open));
  if (!line) return (kedge_extract){end, 0};
  const char *close = memmem(line + 1, (size_t)(end - line - 1), "```", 3);
  return (kedge_extract){line + 1, (size_t)((close ? close : end) - line - 1)};
}

static kedge_extract last_line(kedge_extract e) {
  e = trim(e);
  for (size_t i = e.length; i > 0; i--)
    if (e.start[i - 1] == '\n') return trim((kedge_extract){e.start + i, e.length - i});
  return e;
}

/* ---- Letters
 * ----------------------------------------------------------------------------------------------------- */

/* The letter at the head of a text, past what may stand around it; `whole`: nothing may follow it. */
static char letter_of(kedge_extract e, uint32_t choices, bool whole) {
  static const char *const around[] = {"(",       "[",         "*",         "{",      "$",
                                       "\\text{", "\\textbf{", "\\mathrm{", "option "};
  const char *end = e.start + e.length;
  for (bool more = true; more;) {
    more = false;
    for (size_t i = 0; i < sizeof around / sizeof *around; i++)
      if (starts(e.start, end, around[i])) e.start += strlen(around[i]), more = true;
  }
  if (e.start >= end || !is_letter(*e.start)) return 0;
  const char *next = e.start + 1;
  const char upper = (char)(*e.start & ~0x20);
  const bool small = *e.start != upper;
  if ((uint32_t)(upper - 'A') >= choices) return 0;
  if (next < end && (is_letter(*next) || is_digit(*next) || *next == '\'')) return 0;
  /* "A" may be a word: past a space it is the answer only where that is all. */
  const bool marked = next < end && strchr(")].:*},;$", *next) != NULL;
  while (next < end && (is_blank(*next) || strchr(")].*}$", *next))) next++;
  if (next < end && (whole || small || !marked)) return 0;
  return upper;
}

char kedge_extract_letter(const char *text, size_t length, uint32_t choices) {
  const kedge_extract all = trim((kedge_extract){text, length});
  kedge_extract e = kedge_extract_boxed(text, length);
  char letter = e.start ? letter_of(e, choices, false) : 0;
  if (letter) return letter;
  e = kedge_extract_hashes(text, length);
  if (e.start && (letter = letter_of(e, choices, false))) return letter;
  e = kedge_extract_stated(text, length);
  if (e.start && (letter = letter_of(e, choices, false))) return letter;
  /* After "answer" a letter may stand alone before more words. */
  if (e.start && e.length > 1 && e.start[1] == ' ' && *e.start >= 'A' && (uint32_t)(*e.start - 'A') < choices)
    return *e.start;
  if ((letter = letter_of(all, choices, false))) return letter;
  return letter_of(last_line(all), choices, false);
}

/* ---- Any kind
 * ---------------------------------------------------------------------------------------------------- */

kedge_status kedge_extract_answer(kedge_answer_kind kind, const char *text, size_t length, uint32_t choices,
                                  char **answer) {
  kedge_extract e = {0};
  char letter;
  *answer = NULL;
  switch (kind) {
  case KEDGE_ANSWER_EXACT:
    e = trim((kedge_extract){text, length});
    break;
  case KEDGE_ANSWER_PYTHON:
  case KEDGE_ANSWER_PROGRAM:
    e = kedge_extract_code(text, length);
    break;
  case KEDGE_ANSWER_LETTER:
    letter = kedge_extract_letter(text, length, choices);
    if (!letter) return KEDGE_OK;
    *answer = kedge_format("%c", letter);
    return *answer ? KEDGE_OK : KEDGE_ERR_MEMORY;
  case KEDGE_ANSWER_TEXT:
  case KEDGE_ANSWER_NUMBER:
    e = kedge_extract_boxed(text, length);
    if (!e.start) e = kedge_extract_hashes(text, length);
    if (!e.start && kind == KEDGE_ANSWER_NUMBER) e = kedge_extract_number(text, length);
    if (!e.start && kind == KEDGE_ANSWER_TEXT) e = kedge_extract_stated(text, length);
    if (!e.start && kind == KEDGE_ANSWER_TEXT) e = last_line((kedge_extract){text, length});
    break;
  }
  if (!e.start) return KEDGE_OK;
  *answer = kedge_alloc(e.length + 1, 1);
  if (!*answer) return KEDGE_ERR_MEMORY;
  memcpy(*answer, e.start, e.length);
  return KEDGE_OK;
}
