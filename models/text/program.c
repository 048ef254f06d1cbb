/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a program of the tiny language: walks its tree, counting every step. Siblings: program.h says what the
 * language is, program_parse.c makes the tree.
 */
#include "models/text/program.h"

#include <inttypes.h>
#include <stdio.h>

#include "models/text/program_internal.h"

typedef struct value {
  int64_t number;
  bool truth; /* is printed as True or False */
} value;

typedef struct machine {
  const kedge__program *program;
  kedge_program_result *result;
  uint64_t limit;
  kedge_program_watch watch;
  void *context;
  value values[KEDGE_PROGRAM_MAX_NAMES];
  bool known[KEDGE_PROGRAM_MAX_NAMES];
} machine;

/* How a block was left. */
typedef enum leaving { RAN, BROKE, CONTINUED, OVER } leaving;

static bool end(machine *m, kedge_program_end how, uint32_t at, const char *why) {
  m->result->end = how;
  m->result->line = m->program->nodes[at].line;
  m->result->why = why;
  return false;
}

static bool step(machine *m, uint32_t at) {
  if (m->result->steps >= m->limit) return end(m, KEDGE_PROGRAM_STOPPED, at, "too many steps");
  m->result->steps++;
  return true;
}

/* ---- Expressions
 * ------------------------------------------------------------------------------------------------- */

static bool overflow(machine *m, uint32_t at) {
  return end(m, KEDGE_PROGRAM_FAILED, at, "a number of more than 64 bits");
}

/* Rounded down, and the rest that goes with it, which has the divisor's sign. */
static bool divide(machine *m, uint32_t at, int64_t a, int64_t b, value *out) {
  if (!b) return end(m, KEDGE_PROGRAM_FAILED, at, "division by zero");
  bool quotient = m->program->nodes[at].kind == KEDGE__P_DIVIDE;
  if (b == -1) {
    out->number = 0;
    return !quotient || !__builtin_sub_overflow((int64_t)0, a, &out->number) || overflow(m, at);
  }
  int64_t rest = a % b, turn = rest && (rest < 0) != (b < 0);
  out->number = quotient ? a / b - turn : rest + turn * b;
  return true;
}

static bool combine(machine *m, uint32_t at, int64_t a, int64_t b, value *out) {
  *out = (value){0, true};
  switch ((kedge__program_kind)m->program->nodes[at].kind) {
  case KEDGE__P_LESS:
    out->number = a < b;
    return true;
  case KEDGE__P_AT_MOST:
    out->number = a <= b;
    return true;
  case KEDGE__P_MORE:
    out->number = a > b;
    return true;
  case KEDGE__P_AT_LEAST:
    out->number = a >= b;
    return true;
  case KEDGE__P_EQUAL:
    out->number = a == b;
    return true;
  case KEDGE__P_UNEQUAL:
    out->number = a != b;
    return true;
  default:
    out->truth = false;
  }
  switch ((kedge__program_kind)m->program->nodes[at].kind) {
  case KEDGE__P_ADD:
    return !__builtin_add_overflow(a, b, &out->number) || overflow(m, at);
  case KEDGE__P_SUBTRACT:
    return !__builtin_sub_overflow(a, b, &out->number) || overflow(m, at);
  case KEDGE__P_MULTIPLY:
    return !__builtin_mul_overflow(a, b, &out->number) || overflow(m, at);
  default:
    return divide(m, at, a, b, out);
  }
}

static bool evaluate(machine *m, uint32_t at, value *out);

/* abs, min and max; of equal ones the first. */
static bool call(machine *m, uint32_t at, value *out) {
  const kedge__program_node *n = &m->program->nodes[at];
  if (!evaluate(m, n->a, out)) return false;
  if (n->kind == KEDGE__P_ABS) {
    out->truth = false;
    return out->number >= 0 || !__builtin_sub_overflow((int64_t)0, out->number, &out->number) ||
           overflow(m, at);
  }
  for (uint32_t item = m->program->nodes[n->a].next; item; item = m->program->nodes[item].next) {
    value other;
    if (!evaluate(m, item, &other)) return false;
    if (n->kind == KEDGE__P_MIN ? other.number < out->number : other.number > out->number) *out = other;
  }
  return true;
}

/* Bounded in depth, as the tree is. */
static bool evaluate(machine *m, uint32_t at, value *out) {
  const kedge__program_node *n = &m->program->nodes[at];
  *out = (value){n->number, n->truth};
  if (!step(m, at)) return false;
  if (n->kind == KEDGE__P_NUMBER) return true;
  if (n->kind == KEDGE__P_NAME) {
    *out = m->values[n->a];
    return m->known[n->a] || end(m, KEDGE_PROGRAM_FAILED, at, "a name without a value");
  }
  if (n->kind >= KEDGE__P_ABS) return call(m, at, out);
  if (!evaluate(m, n->a, out)) return false;
  switch ((kedge__program_kind)n->kind) {
  case KEDGE__P_NEGATE:
    out->truth = false;
    return !__builtin_sub_overflow((int64_t)0, out->number, &out->number) || overflow(m, at);
  case KEDGE__P_PLUS:
    out->truth = false;
    return true;
  case KEDGE__P_NOT:
    *out = (value){!out->number, true};
    return true;
  case KEDGE__P_OR:
    return out->number || evaluate(m, n->b, out);
  case KEDGE__P_AND:
    return !out->number || evaluate(m, n->b, out);
  default:
    break;
  }
  value right;
  return evaluate(m, n->b, &right) && combine(m, at, out->number, right.number, out);
}

/* ---- Statements
 * -------------------------------------------------------------------------------------------------- */

static bool put(machine *m, uint32_t at, const char *text) {
  for (; *text; text++) {
    if (m->result->length == KEDGE_PROGRAM_MAX_OUTPUT)
      return end(m, KEDGE_PROGRAM_STOPPED, at, "too much output");
    m->result->output[m->result->length++] = *text;
  }
  return true;
}

static bool print(machine *m, uint32_t at) {
  const kedge__program_node *nodes = m->program->nodes;
  /* All is evaluated before anything is printed. */
  value values[16];
  uint32_t count = 0;
  for (uint32_t item = nodes[at].a; item; item = nodes[item].next)
    if (!evaluate(m, item, &values[count++])) return false;
  for (uint32_t i = 0; i < count; i++) {
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, values[i].number);
    if (i && !put(m, at, " ")) return false;
    if (!put(m, at, values[i].truth ? values[i].number ? "True" : "False" : text)) return false;
  }
  return put(m, at, "\n");
}

static void assign(machine *m, uint32_t name, value v) {
  m->values[name] = v;
  m->known[name] = true;
  if (m->watch) m->watch(m->context, m->program->names[name], v.number);
}

static leaving run_block(machine *m, uint32_t at);

static leaving run_if(machine *m, uint32_t at) {
  const kedge__program_node *nodes = m->program->nodes;
  for (;;) {
    value v;
    if (!evaluate(m, nodes[at].a, &v)) return OVER;
    if (v.number) return run_block(m, nodes[at].b);
    uint32_t other = nodes[at].c;
    if (!other || !nodes[other].truth || nodes[other].kind != KEDGE__P_IF) return run_block(m, other);
    at = other;
  }
}

static leaving run_while(machine *m, uint32_t at) {
  const kedge__program_node *n = &m->program->nodes[at];
  for (;;) {
    value v;
    if (!evaluate(m, n->a, &v)) return OVER;
    if (!v.number) return RAN;
    leaving how = run_block(m, n->b);
    if (how == OVER) return OVER;
    if (how == BROKE) return RAN;
  }
}

/* The bounds are evaluated once, and the loop's variable is the program's to change. */
static leaving run_for(machine *m, uint32_t at) {
  const kedge__program_node *nodes = m->program->nodes, *n = &nodes[at];
  value bounds[3] = {0};
  int count = 0;
  for (uint32_t item = n->b; item; item = nodes[item].next)
    if (!evaluate(m, item, &bounds[count++])) return OVER;
  int64_t by = count == 3 ? bounds[2].number : 1, to = bounds[count > 1].number,
          now = count > 1 ? bounds[0].number : 0;
  if (!by) {
    end(m, KEDGE_PROGRAM_FAILED, at, "a range with step 0");
    return OVER;
  }
  while (by > 0 ? now < to : now > to) {
    if (!step(m, at)) return OVER;
    assign(m, n->a, (value){now, false});
    leaving how = run_block(m, n->c);
    if (how == OVER) return OVER;
    if (how == BROKE || __builtin_add_overflow(now, by, &now)) return RAN;
  }
  return RAN;
}

static leaving run_statement(machine *m, uint32_t at) {
  const kedge__program_node *n = &m->program->nodes[at];
  value v;
  if (!step(m, at)) return OVER;
  switch ((kedge__program_kind)n->kind) {
  case KEDGE__P_ASSIGN:
    if (!evaluate(m, n->b, &v)) return OVER;
    assign(m, n->a, v);
    return RAN;
  case KEDGE__P_PRINT:
    return print(m, at) ? RAN : OVER;
  case KEDGE__P_BREAK:
    return BROKE;
  case KEDGE__P_CONTINUE:
    return CONTINUED;
  case KEDGE__P_IF:
    return run_if(m, at);
  case KEDGE__P_WHILE:
    return run_while(m, at);
  case KEDGE__P_FOR:
    return run_for(m, at);
  default:
    return RAN;
  }
}

static leaving run_block(machine *m, uint32_t at) {
  for (; at; at = m->program->nodes[at].next) {
    leaving how = run_statement(m, at);
    if (how != RAN) return how;
  }
  return RAN;
}

kedge_status kedge_program_run(const char *source, size_t length, uint64_t steps, kedge_program_watch watch,
                               void *context, kedge_program_result *result) {
  *result = (kedge_program_result){.end = KEDGE_PROGRAM_REFUSED, .line = 1, .why = "too long"};
  if (length > KEDGE_PROGRAM_MAX_SOURCE) return KEDGE_OK;
  kedge__program program = {.capacity = (uint32_t)length * 2 + 8};
  program.nodes = kedge_alloc(program.capacity, sizeof *program.nodes);
  if (!program.nodes) return KEDGE_ERR_MEMORY;
  if (kedge__program_parse(source, length, &program, &result->line, &result->why)) {
    result->end = KEDGE_PROGRAM_ENDED;
    result->line = 0;
    result->why = "";
    machine m = {.program = &program, .result = result, .limit = steps, .watch = watch, .context = context};
    run_block(&m, program.first);
  }
  result->output[result->length] = 0;
  kedge_free(program.nodes);
  return KEDGE_OK;
}
