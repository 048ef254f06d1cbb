/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a program of the tiny language: recursive descent, bounded in depth. Siblings: program.h has the
 * grammar, program.c runs the tree.
 */
#include <string.h>

#include "models/text/program_internal.h"

typedef struct parser {
  const char *text;
  size_t length, at;
  uint32_t line;
  const char *why; /* NULL while all is well */
  uint32_t depth;  /* of blocks */
  uint32_t inside; /* of parentheses and signs */
  uint32_t loops;
  kedge__program *program;
} parser;

static uint32_t refuse(parser *p, const char *why) {
  if (!p->why) p->why = why;
  return 0;
}

static char peek(const parser *p) {
  return p->at < p->length ? p->text[p->at] : 0;
}

static bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

static void skip_spaces(parser *p) {
  while (p->at < p->length &&
         (peek(p) == ' ' || (peek(p) == '\r' && p->at + 1 < p->length && p->text[p->at + 1] == '\n')))
    p->at++;
  if (peek(p) == '#')
    while (p->at < p->length && peek(p) != '\n') p->at++;
}

static bool line_ends(parser *p) {
  skip_spaces(p);
  return p->at >= p->length || peek(p) == '\n';
}

/* Takes the sign if it is next and not the beginning of a longer one. */
static bool take(parser *p, const char *sign) {
  skip_spaces(p);
  size_t n = strlen(sign);
  if (n > p->length - p->at || memcmp(p->text + p->at, sign, n)) return false;
  char after = p->at + n < p->length ? p->text[p->at + n] : 0, last = sign[n - 1];
  if (after == '=' && strchr("<>=!+-*/%", last)) return false;
  if ((last == '*' || last == '/') && after == last) return false;
  p->at += n;
  return true;
}

static void need(parser *p, const char *sign, const char *why) {
  if (!p->why && !take(p, sign)) refuse(p, why);
}

/* The length of the word that is next, 0 if none is. */
static size_t word_length(parser *p) {
  skip_spaces(p);
  size_t n = 0;
  if (!is_letter(peek(p))) return 0;
  while (p->at + n < p->length && (is_letter(p->text[p->at + n]) || is_digit(p->text[p->at + n]))) n++;
  return n;
}

static bool take_word(parser *p, const char *word) {
  size_t n = word_length(p);
  if (n != strlen(word) || memcmp(p->text + p->at, word, n)) return false;
  p->at += n;
  return true;
}

static uint32_t node(parser *p, kedge__program_kind kind, uint32_t a, uint32_t b) {
  kedge__program *g = p->program;
  if (p->why) return 0;
  if (g->count >= g->capacity) return refuse(p, "too long");
  uint16_t depth = 1;
  if (kind >= KEDGE__P_NEGATE && kind <= KEDGE__P_AND) {
    if (g->nodes[a].depth >= depth) depth = (uint16_t)(g->nodes[a].depth + 1);
    if (b && g->nodes[b].depth >= depth) depth = (uint16_t)(g->nodes[b].depth + 1);
  }
  for (uint32_t item = kind >= KEDGE__P_ABS && kind <= KEDGE__P_MAX ? a : 0; item; item = g->nodes[item].next)
    if (g->nodes[item].depth >= depth) depth = (uint16_t)(g->nodes[item].depth + 1);
  if (depth > KEDGE_PROGRAM_MAX_DEPTH) return refuse(p, "too deep an expression");
  g->nodes[g->count] =
      (kedge__program_node){.kind = (uint8_t)kind, .depth = depth, .line = p->line, .a = a, .b = b};
  return g->count++;
}

/* The number of the variable whose name is next. */
static uint32_t variable(parser *p) {
  static const char *const taken[] = {
      "and",     "or",    "not",    "if",    "elif",  "else",     "while",  "for",    "in",    "range",
      "print",   "True",  "False",  "None",  "pass",  "break",    "def",    "return", "is",    "with",
      "as",      "try",   "del",    "class", "from",  "import",   "lambda", "global", "raise", "except",
      "finally", "yield", "assert", "async", "await", "nonlocal", "abs",    "min",    "max",   "continue"};
  size_t n = word_length(p);
  const char *word = p->text + p->at;
  kedge__program *g = p->program;
  if (!n) return refuse(p, "a name was expected");
  if (n >= KEDGE__NAME_SIZE) return refuse(p, "too long a name");
  for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
    if (strlen(taken[i]) == n && !memcmp(taken[i], word, n))
      return refuse(p, "a word of the language for a name");
  p->at += n;
  for (uint32_t i = 0; i < g->name_count; i++)
    if (strlen(g->names[i]) == n && !memcmp(g->names[i], word, n)) return i;
  if (g->name_count == KEDGE_PROGRAM_MAX_NAMES) return refuse(p, "too many names");
  memcpy(g->names[g->name_count], word, n);
  g->names[g->name_count][n] = 0;
  return g->name_count++;
}

/* ---- Expressions
 * ------------------------------------------------------------------------------------------------- */

static uint32_t expression(parser *p);

static uint32_t number(parser *p) {
  int64_t value = 0;
  size_t start = p->at;
  for (; is_digit(peek(p)); p->at++)
    if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, peek(p) - '0', &value))
      return refuse(p, "too large a number");
  if (p->text[start] == '0' && p->at > start + 1 && value) return refuse(p, "a number that begins with 0");
  if (is_letter(peek(p)) || peek(p) == '.') return refuse(p, "only whole numbers are there");
  uint32_t made = node(p, KEDGE__P_NUMBER, 0, 0);
  p->program->nodes[made].number = value;
  return made;
}

/* "(", expressions with commas between, ")": `least` to `most` of them. Returns the first. */
static uint32_t list(parser *p, uint32_t least, uint32_t most) {
  uint32_t first = 0, last = 0, count = 0;
  need(p, "(", "( was expected");
  while (!p->why && !take(p, ")")) {
    if (count) need(p, ",", ", or ) was expected");
    uint32_t item = expression(p);
    if (p->why) return 0;
    if (last)
      p->program->nodes[last].next = item;
    else
      first = item;
    last = item;
    count++;
  }
  if (!p->why && (count < least || count > most))
    return refuse(p, "another number of arguments was expected");
  return first;
}

static uint32_t atom(parser *p) {
  static const struct {
    const char *name;
    kedge__program_kind kind;
    uint32_t least, most;
  } calls[] = {{"abs", KEDGE__P_ABS, 1, 1}, {"min", KEDGE__P_MIN, 2, 16}, {"max", KEDGE__P_MAX, 2, 16}};
  skip_spaces(p);
  if (is_digit(peek(p))) return number(p);
  if (take(p, "(")) {
    uint32_t inner = expression(p);
    need(p, ")", ") was expected");
    return inner;
  }
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    if (!take_word(p, calls[i].name)) continue;
    uint32_t items = list(p, calls[i].least, calls[i].most);
    return node(p, calls[i].kind, items, 0);
  }
  bool yes = take_word(p, "True");
  if (yes || take_word(p, "False")) {
    uint32_t made = node(p, KEDGE__P_NUMBER, 0, 0);
    p->program->nodes[made].number = yes;
    p->program->nodes[made].truth = true;
    return made;
  }
  if (!word_length(p)) return refuse(p, "a number, a name or ( was expected");
  uint32_t name = variable(p);
  return node(p, KEDGE__P_NAME, name, 0);
}

static uint32_t signed_atom(parser *p) {
  bool minus = take(p, "-");
  if (!minus && !take(p, "+")) return atom(p);
  if (p->inside >= KEDGE_PROGRAM_MAX_DEPTH) return refuse(p, "too deep an expression");
  p->inside++;
  uint32_t of = signed_atom(p);
  p->inside--;
  return node(p, minus ? KEDGE__P_NEGATE : KEDGE__P_PLUS, of, 0);
}

typedef struct sign {
  const char *text;
  kedge__program_kind kind;
} sign;

/* The kind of the sign that is taken, 0 if it is none of them. */
static kedge__program_kind take_one(parser *p, const sign *signs, size_t count) {
  for (size_t i = 0; i < count && !p->why; i++)
    if (take(p, signs[i].text)) return signs[i].kind;
  return 0;
}

static uint32_t product(parser *p) {
  static const sign signs[] = {{"*", KEDGE__P_MULTIPLY}, {"//", KEDGE__P_DIVIDE}, {"%", KEDGE__P_REST}};
  uint32_t left = signed_atom(p);
  for (kedge__program_kind kind; (kind = take_one(p, signs, 3));) {
    uint32_t right = signed_atom(p);
    left = node(p, kind, left, right);
  }
  return left;
}

static uint32_t sum(parser *p) {
  static const sign signs[] = {{"+", KEDGE__P_ADD}, {"-", KEDGE__P_SUBTRACT}};
  uint32_t left = product(p);
  for (kedge__program_kind kind; (kind = take_one(p, signs, 2));) {
    uint32_t right = product(p);
    left = node(p, kind, left, right);
  }
  return left;
}

/* a < b < c is a < b and b < c: nothing in an expression has an effect, so that b may be evaluated twice. */
static uint32_t comparison(parser *p) {
  static const sign signs[] = {{"<=", KEDGE__P_AT_MOST}, {">=", KEDGE__P_AT_LEAST}, {"==", KEDGE__P_EQUAL},
                               {"!=", KEDGE__P_UNEQUAL}, {"<", KEDGE__P_LESS},      {">", KEDGE__P_MORE}};
  uint32_t left = sum(p), all = 0;
  for (kedge__program_kind kind; (kind = take_one(p, signs, 6));) {
    uint32_t right = sum(p), one = node(p, kind, left, right);
    all = all ? node(p, KEDGE__P_AND, all, one) : one;
    left = right;
  }
  return all ? all : left;
}

static uint32_t negation(parser *p) {
  if (!take_word(p, "not")) return comparison(p);
  if (p->inside >= KEDGE_PROGRAM_MAX_DEPTH) return refuse(p, "too deep an expression");
  p->inside++;
  uint32_t of = negation(p);
  p->inside--;
  return node(p, KEDGE__P_NOT, of, 0);
}

static uint32_t conjunction(parser *p) {
  uint32_t left = negation(p);
  while (!p->why && take_word(p, "and")) {
    uint32_t right = negation(p);
    left = node(p, KEDGE__P_AND, left, right);
  }
  return left;
}

static uint32_t expression(parser *p) {
  if (p->why) return 0;
  if (p->inside >= KEDGE_PROGRAM_MAX_DEPTH) return refuse(p, "too deep an expression");
  p->inside++;
  uint32_t left = conjunction(p);
  while (!p->why && take_word(p, "or")) {
    uint32_t right = conjunction(p);
    left = node(p, KEDGE__P_OR, left, right);
  }
  p->inside--;
  return left;
}

/* ---- Statements
 * -------------------------------------------------------------------------------------------------- */

static uint32_t block(parser *p, size_t least);

static uint32_t assignment(parser *p) {
  static const sign signs[] = {{"+=", KEDGE__P_ADD},
                               {"-=", KEDGE__P_SUBTRACT},
                               {"*=", KEDGE__P_MULTIPLY},
                               {"//=", KEDGE__P_DIVIDE},
                               {"%=", KEDGE__P_REST}};
  uint32_t target = variable(p);
  if (p->why) return 0;
  kedge__program_kind kind = take_one(p, signs, 5);
  if (!kind && !take(p, "=")) return refuse(p, "an assignment was expected");
  uint32_t before = kind ? node(p, KEDGE__P_NAME, target, 0) : 0, value = expression(p);
  if (kind) value = node(p, kind, before, value);
  return node(p, KEDGE__P_ASSIGN, target, value);
}

static uint32_t simple(parser *p) {
  if (take_word(p, "print")) {
    uint32_t items = list(p, 0, 16);
    return node(p, KEDGE__P_PRINT, items, 0);
  }
  if (take_word(p, "pass")) return node(p, KEDGE__P_PASS, 0, 0);
  bool leaves = take_word(p, "break");
  if (!leaves && !take_word(p, "continue")) return assignment(p);
  if (!p->loops) return refuse(p, "not inside a loop");
  return node(p, leaves ? KEDGE__P_BREAK : KEDGE__P_CONTINUE, 0, 0);
}

static bool end_line(parser *p) {
  if (p->why) return false;
  if (!line_ends(p)) {
    refuse(p, "the end of the line was expected");
    return false;
  }
  if (p->at < p->length) p->at++, p->line++;
  return true;
}

/* ":" and what belongs to a statement indented by `indent`. */
static uint32_t body(parser *p, size_t indent) {
  need(p, ":", ": was expected");
  if (p->why) return 0;
  if (!line_ends(p)) {
    uint32_t one = simple(p);
    return end_line(p) ? one : 0;
  }
  end_line(p);
  return block(p, indent + 1);
}

/* Whether the next line with something in it is indented by `indent` and opens with `word`; if so, takes it.
 */
static bool take_branch(parser *p, size_t indent, const char *word) {
  parser ahead = *p;
  size_t start = p->at;
  while (!ahead.why && line_ends(&ahead) && ahead.at < ahead.length) end_line(&ahead), start = ahead.at;
  if (ahead.at - start != indent || !take_word(&ahead, word)) return false;
  *p = ahead;
  return true;
}

static uint32_t condition(parser *p, size_t indent) {
  uint32_t of = expression(p), made = node(p, KEDGE__P_IF, of, 0), inside = body(p, indent);
  p->program->nodes[made].b = inside;
  return made;
}

static uint32_t conditional(parser *p, size_t indent) {
  uint32_t first = condition(p, indent), last = first;
  while (!p->why && take_branch(p, indent, "elif")) {
    uint32_t branch = condition(p, indent);
    p->program->nodes[last].c = branch;
    p->program->nodes[branch].truth = true;
    last = branch;
  }
  if (!p->why && take_branch(p, indent, "else")) {
    uint32_t inside = body(p, indent);
    p->program->nodes[last].c = inside;
  }
  return first;
}

static uint32_t loop(parser *p, size_t indent, bool counted) {
  uint32_t target = 0, of;
  if (counted) {
    target = variable(p);
    if (!p->why && (!take_word(p, "in") || !take_word(p, "range")))
      return refuse(p, "in range( was expected");
    of = list(p, 1, 3);
  } else {
    of = expression(p);
  }
  uint32_t made = counted ? node(p, KEDGE__P_FOR, target, of) : node(p, KEDGE__P_WHILE, of, 0);
  p->loops++;
  uint32_t inside = body(p, indent);
  p->loops--;
  if (counted)
    p->program->nodes[made].c = inside;
  else
    p->program->nodes[made].b = inside;
  return made;
}

static uint32_t statement(parser *p, size_t indent) {
  if (take_word(p, "if")) return conditional(p, indent);
  if (take_word(p, "while")) return loop(p, indent, false);
  if (take_word(p, "for")) return loop(p, indent, true);
  uint32_t made = simple(p);
  return end_line(p) ? made : 0;
}

/* Goes to the next line with something in it; its indentation, SIZE_MAX at the end. */
static size_t next_line(parser *p) {
  for (;;) {
    size_t start = p->at;
    while (peek(p) == ' ') p->at++;
    size_t indent = p->at - start;
    if (!line_ends(p)) {
      p->at = start;
      return indent;
    }
    if (p->at >= p->length) return SIZE_MAX;
    end_line(p);
  }
}

/* Statements indented alike, by `least` or more. */
static uint32_t block(parser *p, size_t least) {
  uint32_t first = 0, last = 0;
  if (p->depth >= KEDGE_PROGRAM_MAX_DEPTH) return refuse(p, "too many blocks in blocks");
  size_t indent = next_line(p);
  if (indent == SIZE_MAX || indent < least) return refuse(p, "an indented line was expected");
  p->depth++;
  for (size_t found = indent; !p->why && found != SIZE_MAX && found >= least; found = next_line(p)) {
    if (found != indent) return refuse(p, "lines of a block are not indented alike");
    p->at += indent;
    uint32_t made = statement(p, indent);
    if (p->why) return 0;
    if (last)
      p->program->nodes[last].next = made;
    else
      first = made;
    last = made;
  }
  p->depth--;
  return first;
}

bool kedge__program_parse(const char *source, size_t length, kedge__program *program, uint32_t *line,
                          const char **why) {
  parser p = {.text = source, .length = length, .line = 1, .program = program};
  program->count = 1;
  program->name_count = 0;
  size_t indent = next_line(&p);
  program->first = 0;
  if (indent && indent != SIZE_MAX) refuse(&p, "the first line is indented");
  if (!indent) program->first = block(&p, 0);
  *line = p.line;
  *why = p.why;
  return !p.why;
}
