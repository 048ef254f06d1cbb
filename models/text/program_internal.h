/* SPDX-License-Identifier: Apache-2.0
 *
 * A program as a tree: what program_parse.c makes and program.c runs.
 */
#ifndef KEDGE_MODELS_TEXT_PROGRAM_INTERNAL_H
#define KEDGE_MODELS_TEXT_PROGRAM_INTERNAL_H

#include "models/text/program.h"

enum { KEDGE__NAME_SIZE = 16 };

typedef enum kedge__program_kind {
  KEDGE__P_NUMBER, /* number; truth: True or False */
  KEDGE__P_NAME,   /* a: variable */
  KEDGE__P_NEGATE, /* of a, as the next two */
  KEDGE__P_PLUS,
  KEDGE__P_NOT,
  KEDGE__P_ADD, /* of a and b, as all to KEDGE__P_AND */
  KEDGE__P_SUBTRACT,
  KEDGE__P_MULTIPLY,
  KEDGE__P_DIVIDE,
  KEDGE__P_REST,
  KEDGE__P_LESS,
  KEDGE__P_AT_MOST,
  KEDGE__P_MORE,
  KEDGE__P_AT_LEAST,
  KEDGE__P_EQUAL,
  KEDGE__P_UNEQUAL,
  KEDGE__P_OR,
  KEDGE__P_AND,
  KEDGE__P_ABS, /* of the list a, as the next two */
  KEDGE__P_MIN,
  KEDGE__P_MAX,
  KEDGE__P_ASSIGN, /* variable a gets b */
  KEDGE__P_PRINT,  /* the list a */
  KEDGE__P_PASS,
  KEDGE__P_BREAK,
  KEDGE__P_CONTINUE,
  KEDGE__P_IF,    /* if a: block b, else: block c; truth: an elif, alone in the c of another one */
  KEDGE__P_WHILE, /* while a: block b */
  KEDGE__P_FOR    /* variable a over the range of the list b: block c */
} kedge__program_kind;

/* Nodes are numbers into one array; 0 is none. `next` links the statements of a block and the items of a
 * list.
 */
typedef struct kedge__program_node {
  uint8_t kind;
  bool truth;
  uint16_t depth; /* of an expression, itself included */
  uint32_t line;
  uint32_t a, b, c, next;
  int64_t number;
} kedge__program_node;

typedef struct kedge__program {
  kedge__program_node *nodes;
  uint32_t count, capacity;
  char names[KEDGE_PROGRAM_MAX_NAMES][KEDGE__NAME_SIZE];
  uint32_t name_count;
  uint32_t first; /* statement */
} kedge__program;

/* Reads a program. False: `line` and `why` tell where it is none. `program->nodes` has room for twice
 * the source's length + 8 nodes: two bytes make three nodes at most (a comparison in a chain). */
bool kedge__program_parse(const char *source, size_t length, kedge__program *program, uint32_t *line,
                          const char **why);

#endif
