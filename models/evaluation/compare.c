/* SPDX-License-Identifier: Apache-2.0
 * Answers against references, and the interval of a share of right ones (extract.h). */
#include "models/evaluation/extract.h"

#include <math.h>
#include <string.h>
#include <strings.h>

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
static bool is_blank(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

/* ---- Numbers
 * ----------------------------------------------------------------------------------------------------- */

/* Writes the number that text[0..length) is in one way for each value: "-0.5", "1200"; false if it is none.
 * `to` has room for length + 3. */
static bool canonical(const char *text, size_t length, char *to) {
  const kedge_extract e = kedge_extract_number(text, length);
  if (!e.start || e.start != text || e.length != length) return false;
  const char *at = e.start, *end = at + e.length;
  const bool minus = !is_digit(*at) && *at != '.';
  while (at < end && !is_digit(*at) && *at != '.') at++;
  char *out = to;
  *out++ = '-';
  while (at < end && (*at == '0' || *at == ',')) at++;
  if (at == end || *at == '.') *out++ = '0';
  for (; at < end && *at != '.'; at++)
    if (*at != ',') *out++ = *at;
  if (at < end) {
    while (end > at && end[-1] == '0') end--;
    if (end - at > 1) {
      memcpy(out, at, (size_t)(end - at));
      out += end - at;
    }
  }
  *out = 0;
  if (!minus || !strcmp(to, "-0")) memmove(to, to + 1, strlen(to));
  return true;
}

bool kedge_answer_is_number(const char *text) {
  size_t length = strlen(text);
  while (length && is_blank(*text)) text++, length--;
  while (length && is_blank(text[length - 1])) length--;
  const kedge_extract e = kedge_extract_number(text, length);
  return e.start && e.start == text && e.length == length;
}

/* ---- Looks
 * ------------------------------------------------------------------------------------------------------- */

/* Commands that change how a formula looks, not what it says, and what stands for them. */
static const char *const looks[][2] = {{"\\left", ""},        {"\\right", ""}, {"\\!", ""},
                                       {"\\,", ""},           {"\\;", ""},     {"\\ ", ""},
                                       {"\\$", ""},           {"\\%", ""},     {"\\dfrac", "\\frac"},
                                       {"\\tfrac", "\\frac"}, {"^\\circ", ""}, {"^{\\circ}", ""}};

static bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Drops \text{...} and its like with what is in them (units); the text is changed in place. */
static void drop_units(char *text) {
  static const char *const words[] = {"\\text{", "\\mathrm{", "\\mbox{"};
  for (size_t w = 0; w < sizeof words / sizeof *words; w++)
    for (char *at; (at = strstr(text, words[w])) && at > text;) {
      char *close = strchr(at, '}');
      if (!close) return;
      memmove(at, close + 1, strlen(close + 1) + 1);
    }
}

static void apply_looks(char *text) {
  for (size_t i = 0; i < sizeof looks / sizeof *looks; i++) {
    const size_t from = strlen(looks[i][0]), to = strlen(looks[i][1]);
    char *out = text;
    for (const char *at = text; *at;) {
      const bool word = is_letter(looks[i][0][from - 1]);
      if (!strncmp(at, looks[i][0], from) && !(word && is_letter(at[from]))) {
        memcpy(out, looks[i][1], to);
        out += to;
        at += from;
      } else {
        *out++ = *at++;
      }
    }
    *out = 0;
  }
}

/* White space single, or none in a formula; outer dollars, a full stop at the end and quotes around dropped.
 */
static void tidy(char *text) {
  const bool formula = strchr(text, '\\') != NULL;
  if (formula) {
    apply_looks(text);
    drop_units(text);
  }
  char *out = text;
  for (const char *at = text; *at; at++) {
    if (!is_blank(*at))
      *out++ = *at;
    else if (!formula && out > text && !is_blank(out[-1]))
      *out++ = ' ';
  }
  while (out > text && (is_blank(out[-1]) || out[-1] == '.')) out--;
  *out = 0;
  const size_t length = strlen(text);
  if (length > 2 && (*text == '$' || *text == '"' || *text == '\'') && text[length - 1] == *text) {
    memmove(text, text + 1, length - 2);
    text[length - 2] = 0;
  }
}

/* Of a number with a currency or a unit, the number: into its own place. */
static void bare_number(char *text) {
  char *out = text;
  for (const char *at = text; *at; at++)
    if (*at != '$' && *at != '%' && !is_blank(*at)) *out++ = *at;
  *out = 0;
}

static kedge_status same_number(const char *got, const char *want, bool *equal) {
  const kedge_extract g = kedge_extract_number(got, strlen(got)),
                      w = kedge_extract_number(want, strlen(want));
  if (!g.start || !w.start) return KEDGE_OK;
  char *a = kedge_alloc(g.length + 3, 1), *b = kedge_alloc(w.length + 3, 1);
  if (a && b) *equal = canonical(g.start, g.length, a) && canonical(w.start, w.length, b) && !strcmp(a, b);
  const kedge_status status = a && b ? KEDGE_OK : KEDGE_ERR_MEMORY;
  kedge_free(a);
  kedge_free(b);
  return status;
}

kedge_status kedge_answer_equal(kedge_answer_kind kind, bool fold, const char *got, const char *want,
                                bool *equal) {
  *equal = false;
  if (!got) return KEDGE_OK;
  if (kind == KEDGE_ANSWER_EXACT || kind == KEDGE_ANSWER_LETTER) {
    *equal = !strcmp(got, want);
    return KEDGE_OK;
  }
  char *a = kedge_strdup(got), *b = kedge_strdup(want);
  kedge_status status = a && b ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) {
    tidy(a);
    tidy(b);
    *equal = !(fold ? strcasecmp(a, b) : strcmp(a, b));
    if (!*equal && kind == KEDGE_ANSWER_NUMBER) {
      bare_number(a);
      bare_number(b);
      status = same_number(a, b, equal);
    } else if (!*equal && kedge_answer_is_number(a) && kedge_answer_is_number(b)) {
      status = same_number(a, b, equal);
    }
  }
  kedge_free(a);
  kedge_free(b);
  return status;
}

/* ---- Interval
 * ---------------------------------------------------------------------------------------------------- */

void kedge_wilson(double good, double n, double *low, double *high) {
  const double z = 1.959963984540054; /* 97.5 % of the normal distribution lie below */
  *low = 0;
  *high = 1;
  if (!(n > 0)) return;
  const double p = good / n, zz = z * z / n, middle = (p + zz / 2) / (1 + zz);
  const double half = z / (1 + zz) * sqrt(p * (1 - p) / n + zz / (4 * n));
  *low = middle - half > 0 ? middle - half : 0;
  *high = middle + half < 1 ? middle + half : 1;
  if (good <= 0) *low = 0;
  if (good >= n) *high = 1;
}
