/* SPDX-License-Identifier: Apache-2.0
 *
 * Translates the regular expressions of tokenizer files (Oniguruma's dialect, and the class intersections of
 * Rust's) into PCRE2. What has the same meaning is copied, what is spelled differently is rewritten,
 * everything else is refused: a pattern that compiles and means something else would give wrong ids without a
 * word. Siblings: tokenizer_regex.{h,c}.
 */
#include "models/text/tokenizer_regex.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 64, MAX_OPERANDS = 8 };

/* Everything that is not White_Space, as the inside of a class. */
#define NOT_SPACE                                                                                            \
  "\\x{0}-\\x{8}\\x{E}-\\x{1F}\\x{21}-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}\\x{200B}-"  \
  "\\x{2027}"                                                                                                \
  "\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}\\x{3001}-\\x{10FFFF}"
/* The reference engine counts superscripts and fractions of Latin-1 as letters of words. */
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"

typedef struct reader {
  const char *pattern;
  size_t length, at;
  kedge__bytes *out;
  int depth;                    /* of groups */
  bool caseless[MAX_DEPTH + 1]; /* at each depth */
  uint32_t last;                /* the literal right before, 0 if there is none */
} reader;

/* An operand of a class intersection: the inside of a class, and whether it is negated. */
typedef struct operand {
  kedge__bytes items;
  bool negated;
} operand;

static kedge_status refuse(const reader *r, const char *what) {
  return kedge_fail(KEDGE_ERR_UNSUPPORTED, "pattern '%.*s': %s (before byte %zu) is not translated",
                    (int)(r->length < 200 ? r->length : 200), r->pattern, what, r->at);
}

static int peek(const reader *r, size_t ahead) {
  return ahead < r->length - r->at ? (unsigned char)r->pattern[r->at + ahead] : -1;
}

static bool take(reader *r, const char *text) {
  size_t size = strlen(text);
  if (r->length - r->at < size || memcmp(r->pattern + r->at, text, size)) return false;
  r->at += size;
  return true;
}

/* Literal characters are written as numbers, so that none has a second meaning. */
static kedge_status emit_code(kedge__bytes *out, uint32_t code) {
  char text[16];
  snprintf(text, sizeof text, "\\x{%X}", code);
  return kedge__bytes_text(out, text);
}

/* Without case, the reference engine lets one character stand for two (U+00DF for "ss"), PCRE2 does not:
 * literals that can meet such a pair are refused. */
static kedge_status emit_literal(reader *r, uint32_t code) {
  static const char pairs[][3] = {"ss", "ff", "fi", "fl", "st"};
  if (r->caseless[r->depth]) {
    if (code > 0x7F) return refuse(r, "a caseless character beyond ASCII");
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
      if ((r->last | 0x20) == (uint32_t)pairs[i][0] && (code | 0x20) == (uint32_t)pairs[i][1])
        return refuse(r, "a caseless pair that is also one character");
  }
  r->last = code;
  return emit_code(r->out, code);
}

static kedge_status emit_member(const reader *r, kedge__bytes *items, uint32_t code) {
  if (code > 0x7F && r->caseless[r->depth]) return refuse(r, "a caseless character beyond ASCII");
  return emit_code(items, code);
}

/* \p{...} and \P{...}: general categories, and scripts by their name. PCRE2 takes a bare script name for
 * script extensions; the files mean the script property. */
static kedge_status translate_property(reader *r, bool complement, kedge__bytes *out) {
  static const char *const categories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me",
                                           "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi",
                                           "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl",
                                           "Zp", "C",  "Cc", "Cf", "Co", "Cs", "Cn"};
  static const char *const names[][2] = {{"Letter", "L"}, {"Mark", "M"},        {"Number", "N"},
                                         {"Symbol", "S"}, {"Punctuation", "P"}, {"Separator", "Z"}};
  static const char *const scripts[] = {
      "Han",      "Hiragana", "Katakana", "Hangul",  "Latin",      "Greek",   "Cyrillic", "Arabic",
      "Hebrew",   "Thai",     "Lao",      "Khmer",   "Devanagari", "Bengali", "Tamil",    "Telugu",
      "Armenian", "Georgian", "Ethiopic", "Tibetan", "Mongolian",  "Myanmar", "Bopomofo"};
  char name[32];
  size_t size = 0;
  if (!take(r, "{")) return refuse(r, "a property without braces");
  while (peek(r, 0) >= 0 && peek(r, 0) != '}' && size + 1 < sizeof name) name[size++] = r->pattern[r->at++];
  name[size] = 0;
  if (!take(r, "}")) return refuse(r, "this property");
  char text[48] = "";
  for (size_t i = 0; i < sizeof categories / sizeof *categories; i++)
    if (!strcmp(name, categories[i])) snprintf(text, sizeof text, "\\%c{%s}", complement ? 'P' : 'p', name);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(name, names[i][0]))
      snprintf(text, sizeof text, "\\%c{%s}", complement ? 'P' : 'p', names[i][1]);
  for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++)
    if (!strcmp(name, scripts[i])) snprintf(text, sizeof text, "\\%c{sc:%s}", complement ? 'P' : 'p', name);
  if (!*text) return refuse(r, "this property");
  return kedge__bytes_text(out, text);
}

/* \xHH, \x{H...} and \uHHHH after the letter. */
static kedge_status read_hex(reader *r, int letter, uint32_t *code) {
  bool braces = letter == 'x' && take(r, "{");
  int limit = braces ? 6 : letter == 'x' ? 2 : 4, digits = 0;
  *code = 0;
  for (; digits < limit && isxdigit(peek(r, 0)); digits++, r->at++) {
    int c = tolower(peek(r, 0));
    *code = *code * 16 + (uint32_t)(isdigit(c) ? c - '0' : c - 'a' + 10);
  }
  if (!digits || (letter == 'u' && digits != 4) || (braces && !take(r, "}"))) return refuse(r, "this number");
  if (*code > 0x10FFFF || (*code >= 0xD800 && *code < 0xE000) || (letter == 'x' && !braces && *code > 0x7F))
    return refuse(r, "a number that is no character");
  return KEDGE_OK;
}

/* An escape after the backslash. A single character gives *is_code and its number; a set is written to `out`,
 * as the inside of a class (`bare`) or as a whole item. */
static kedge_status translate_escape(reader *r, bool in_class, kedge__bytes *out, bool *is_code,
                                     uint32_t *code) {
  *is_code = false;
  int c = peek(r, 0);
  if (c < 0) return refuse(r, "a backslash at the end");
  if (c >= 0x80 || (c > 0x20 && c < 0x7F && !isalnum(c)) || c == ' ') {
    r->at += kedge__utf8_decode(r->pattern + r->at, code);
    *is_code = true;
    return KEDGE_OK;
  }
  r->at++;
  static const char letters[] = "rntfvae";
  static const uint8_t codes[] = {13, 10, 9, 12, 11, 7, 27};
  const char *found = strchr(letters, c);
  if (c && found) {
    *code = codes[found - letters];
    *is_code = true;
    return KEDGE_OK;
  }
  const char *before = in_class ? "" : "[", *after = in_class ? "" : "]", *items = NULL;
  switch (c) {
  case 'p':
    return translate_property(r, false, out);
  case 'P':
    return translate_property(r, true, out);
  case 'x':
  case 'u':
    *is_code = true;
    return read_hex(r, c, code);
  case 's':
    items = KEDGE__SPACE;
    break;
  case 'S':
    items = NOT_SPACE;
    break;
  case 'd':
    items = "\\p{Nd}";
    break;
  case 'D':
    items = "\\P{Nd}";
    break;
  case 'w':
    items = WORD;
    break;
  case 'h':
    items = "0-9a-fA-F";
    break;
  case 'W':
    if (in_class) return refuse(r, "\\W in a class");
    before = "[^";
    items = WORD;
    break;
  case 'A':
  case 'z':
  case 'Z':
    if (in_class) return refuse(r, "this escape in a class");
    before = "\\";
    items = c == 'A' ? "A" : c == 'z' ? "z" : "Z";
    after = "";
    break;
  default:
    return refuse(r, "this escape");
  }
  KEDGE_TRY(kedge__bytes_text(out, before));
  KEDGE_TRY(kedge__bytes_text(out, items));
  return kedge__bytes_text(out, after);
}

static kedge_status read_class(reader *r, kedge__bytes *out, bool as_items, bool *negated, int depth);

/* One member of a class: a character, a range, a set, or a nested class whose members join this one's. */
static kedge_status read_member(reader *r, kedge__bytes *items, int depth) {
  if (peek(r, 0) == '[') {
    if (peek(r, 1) == ':') return refuse(r, "a POSIX bracket");
    bool negated = false;
    r->at++;
    KEDGE_TRY(read_class(r, items, true, &negated, depth + 1));
    return negated ? refuse(r, "a negated class in a class") : KEDGE_OK;
  }
  bool is_code = true;
  uint32_t first, last;
  if (take(r, "\\"))
    KEDGE_TRY(translate_escape(r, true, items, &is_code, &first));
  else
    r->at += kedge__utf8_decode(r->pattern + r->at, &first);
  bool dash = peek(r, 0) == '-' && peek(r, 1) != ']';
  if (!is_code) return dash ? refuse(r, "a range that starts with a set") : KEDGE_OK;
  KEDGE_TRY(emit_member(r, items, first));
  if (!dash) return KEDGE_OK;
  r->at++;
  if (peek(r, 0) < 0 || peek(r, 0) == '[' || (peek(r, 0) == '&' && peek(r, 1) == '&'))
    return refuse(r, "this range");
  if (take(r, "\\")) {
    KEDGE_TRY(translate_escape(r, true, items, &is_code, &last));
    if (!is_code) return refuse(r, "a range that ends with a set");
  } else {
    r->at += kedge__utf8_decode(r->pattern + r->at, &last);
  }
  if (last < first) return refuse(r, "a range that runs backwards");
  KEDGE_TRY(kedge__bytes_text(items, "-"));
  return emit_member(r, items, last);
}

/* The members up to `&&` or the closing bracket. A lone nested class is taken with its own negation. */
static kedge_status read_operand(reader *r, operand *part, int depth) {
  size_t start = r->at;
  if (peek(r, 0) == '[' && peek(r, 1) != ':') {
    r->at++;
    KEDGE_TRY(read_class(r, &part->items, true, &part->negated, depth + 1));
    if (peek(r, 0) == ']' || (peek(r, 0) == '&' && peek(r, 1) == '&')) return KEDGE_OK;
    if (part->negated) return refuse(r, "a negated class in a class");
  }
  while (peek(r, 0) != ']' || r->at == start) {
    if (peek(r, 0) < 0) return refuse(r, "a class without an end");
    if (peek(r, 0) == ']') return refuse(r, "an empty class");
    if (peek(r, 0) == '&' && peek(r, 1) == '&') break;
    KEDGE_TRY(read_member(r, &part->items, depth));
  }
  return part->items.length ? KEDGE_OK : refuse(r, "an empty class");
}

static kedge_status emit_operand(kedge__bytes *out, const char *before, const operand *part,
                                 const char *after) {
  KEDGE_TRY(kedge__bytes_text(out, before));
  KEDGE_TRY(kedge__bytes_text(out, part->negated ? "[^" : "["));
  KEDGE_TRY(kedge__bytes_append(out, part->items.data, part->items.length));
  KEDGE_TRY(kedge__bytes_text(out, "]"));
  return kedge__bytes_text(out, after);
}

/* A class after its opening bracket, as an item of the pattern or (`as_items`) as the inside of a class. An
 * intersection a&&b&&c becomes lookaheads before the first operand: (?:(?=[b])(?=[c])[a]). */
static kedge_status read_class(reader *r, kedge__bytes *out, bool as_items, bool *negated, int depth) {
  if (depth > MAX_OPERANDS) return refuse(r, "a class nested so deeply");
  operand operands[MAX_OPERANDS] = {0};
  size_t count = 0;
  kedge_status status = KEDGE_OK;
  *negated = take(r, "^");
  do {
    if (count == MAX_OPERANDS) {
      status = refuse(r, "an intersection of so many classes");
      goto end;
    }
    KEDGE_GOTO(read_operand(r, &operands[count++], depth), status, end);
  } while (take(r, "&&"));
  r->at++; /* the closing bracket */
  if (count > 1 && (*negated || as_items || r->caseless[r->depth])) {
    status = refuse(r, "an intersection in a negated, nested or caseless class");
    goto end;
  }
  if (as_items) {
    *negated ^= operands[0].negated;
    status = kedge__bytes_append(out, operands[0].items.data, operands[0].items.length);
    goto end;
  }
  operands[0].negated ^= *negated;
  if (count > 1) KEDGE_GOTO(kedge__bytes_text(out, "(?:"), status, end);
  for (size_t i = 1; i < count; i++) KEDGE_GOTO(emit_operand(out, "(?=", &operands[i], ")"), status, end);
  status = emit_operand(out, "", &operands[0], count > 1 ? ")" : "");
end:
  for (size_t i = 0; i < count; i++) kedge__bytes_free(&operands[i].items);
  return status;
}

/* A group's opening. Captures are never used, so that they become plain groups. */
static kedge_status translate_group(reader *r) {
  static const char *const openings[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
  if (++r->depth > MAX_DEPTH) return refuse(r, "a group nested so deeply");
  r->caseless[r->depth] = r->caseless[r->depth - 1];
  for (size_t i = 0; i < sizeof openings / sizeof *openings; i++)
    if (take(r, openings[i])) {
      if (i >= 6) r->caseless[r->depth] = i == 6;
      return kedge__bytes_text(r->out, openings[i]);
    }
  /* An option without its own group has different reaches in the two dialects except at the very start. */
  if (r->at == 0 && take(r, "(?i)")) {
    r->caseless[--r->depth] = true;
    return kedge__bytes_text(r->out, "(?i)");
  }
  if (peek(r, 1) == '?' || peek(r, 1) == '*') return refuse(r, "this kind of group");
  r->at++;
  return kedge__bytes_text(r->out, "(?:");
}

/* {n}, {n,} and {n,m}. A plus sign after it is possessive in PCRE2 only, a question mark after {n} is lazy in
 * PCRE2 only. */
static kedge_status translate_interval(reader *r) {
  size_t start = r->at++, digits = 0;
  bool exact = true;
  for (; isdigit(peek(r, 0)); r->at++) digits++;
  if (!digits || digits > 4) return refuse(r, "this interval");
  if (take(r, ",")) {
    exact = false;
    for (digits = 0; isdigit(peek(r, 0)); r->at++) digits++;
    if (digits > 4) return refuse(r, "this interval");
  }
  if (!take(r, "}")) return refuse(r, "a brace that is no interval");
  if (peek(r, 0) == '+' || (exact && peek(r, 0) == '?')) return refuse(r, "what follows this interval");
  return kedge__bytes_append(r->out, r->pattern + start, r->at - start);
}

static kedge_status translate_item(reader *r) {
  int c = peek(r, 0);
  bool is_code = false, negated;
  uint32_t code = 0;
  switch (c) {
  case '(':
    return translate_group(r);
  case '{':
    return translate_interval(r);
  case '[':
    r->at++;
    r->last = 0;
    return read_class(r, r->out, false, &negated, 0);
  case '\\':
    r->at++;
    KEDGE_TRY(translate_escape(r, false, r->out, &is_code, &code));
    if (is_code) return emit_literal(r, code);
    r->last = 0;
    return KEDGE_OK;
  case ')':
    if (--r->depth < 0) return refuse(r, "a closing parenthesis without its group");
    r->at++;
    return kedge__bytes_text(r->out, ")");
  case '|':
  case '.':
  case '^':
  case '$':
    r->last = 0;
    /* fall through */
  case '*':
  case '+':
  case '?':
    r->at++;
    return kedge__bytes_append(r->out, r->pattern + r->at - 1, 1);
  default:
    r->at += kedge__utf8_decode(r->pattern + r->at, &code);
    return emit_literal(r, code);
  }
}

kedge_status kedge__pattern_translate(const char *pattern, size_t length, kedge__bytes *out) {
  reader r = {.pattern = pattern, .length = length, .out = out};
  if (kedge__utf8_valid(pattern, length) != length) return refuse(&r, "invalid UTF-8");
  while (r.at < length) KEDGE_TRY(translate_item(&r));
  return r.depth ? refuse(&r, "a group without an end") : KEDGE_OK;
}
