/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line of every sub-command: a table of options, checked and explained in one way. A sub-command
 * is tools/<name>.c with one function and a row in commands.def; its progress line is progress.h. */
#ifndef KEDGE_TOOLS_CLI_H
#define KEDGE_TOOLS_CLI_H

#include "core/kedge.h"

typedef enum cli_kind {
  CLI_FLAG,  /* bool: set by its presence */
  CLI_TEXT,  /* const char *: borrowed from argv */
  CLI_TEXTS, /* cli_list: may be given several times */
  CLI_INT,   /* int64_t */
  CLI_REAL   /* double, finite */
} cli_kind;

enum { CLI_MAX_ARGUMENTS = 256 };

/* Texts borrowed from argv, in order. */
typedef struct cli_list {
  const char *items[CLI_MAX_ARGUMENTS];
  size_t count;
} cli_list;

/* One option. `target` holds the default before and the value after parsing; an optional text without default
 * is NULL. */
typedef struct cli_option {
  const char *name; /* "--model" */
  cli_kind kind;
  void *target;
  const char *argument; /* "DIR", NULL for a flag */
  const char *help;     /* a line, with the default where there is one */
  bool required;
  double min, max; /* of a number; both 0: any */
} cli_option;

typedef struct cli_spec {
  const char *command;  /* "train" */
  const char *synopsis; /* "RUN.yaml [KEY=VALUE ...]", without options */
  const char *summary;  /* what it does, a sentence or a few */
  const cli_option *options;
  size_t option_count;
  size_t least, most;   /* positional arguments */
  const char *examples; /* at least one line, each beginning with "kedge " */
  char *(*more)(void);  /* NULL, or new text for the end of the help, freed by kedge_free */
} cli_spec;

/* Reads argv[1..argc). False means that the sub-command is over and *exit_code is its result: --help (0, on
 * standard output) or a mistake (2, one line on standard error). `arguments` gets the positional ones; "--"
 * ends the options. */
bool cli_parse(const cli_spec *spec, int argc, char **argv, cli_list *arguments, int *exit_code);

/* Whether an argument is KEY=VALUE, not the path of a file: no key has a slash in it. */
bool cli_is_setting(const char *argument);

/* The end of a sub-command: prints "kedge <command>: <message>" for a failure and returns the exit status: 0;
 * 1 for memory, device and numeric failures; 130 for an interruption; 2 for everything that the user can put
 * right. */
int cli_finish(const char *command, kedge_status status);
int cli_status(kedge_status status); /* that exit status alone */

/* "1.5 GiB". Returns `text`. */
const char *cli_bytes(uint64_t bytes, char text[24]);
/* "30,532,122,624". Returns `text`. */
const char *cli_count(uint64_t count, char text[32]);
/* "12s", "3m 04s", "1h 02m", "2d 03h". Returns `text`. */
const char *cli_duration(double seconds, char text[24]);

/* The sub-commands; argv[0] is the command's name. */
#define KEDGE_COMMAND(name, function, summary) int function(int argc, char **argv);
#include "tools/commands.def"
#undef KEDGE_COMMAND

#endif
