/* SPDX-License-Identifier: Apache-2.0
 * Option tables: parsing, help, the end of a sub-command (cli.h). */
#include "tools/cli.h"
#include "models/training/nearest.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Help
 * ---------------------------------------------------------------------------------------------------------
 */

static void print_option(const cli_option *option) {
  char head[64];
  snprintf(head, sizeof head, "%s%s%s", option->name, option->argument ? " " : "",
           option->argument ? option->argument : "");
  printf("  %-24s %s%s\n", head, option->help, option->required ? " (needed)" : "");
}

static void print_help(const cli_spec *spec) {
  printf("Usage: kedge %s%s%s", spec->command, *spec->synopsis ? " " : "", spec->synopsis);
  for (size_t i = 0; i < spec->option_count; i++)
    if (spec->options[i].required) printf(" %s %s", spec->options[i].name, spec->options[i].argument);
  printf(" [OPTIONS]\n\n%s\n\nOptions:\n", spec->summary);
  for (size_t i = 0; i < spec->option_count; i++) print_option(&spec->options[i]);
  printf("  %-24s %s\n\nExamples:\n", "-h, --help", "print this text");
  for (const char *line = spec->examples; *line;) {
    size_t length = strcspn(line, "\n");
    printf("  %.*s\n", (int)length, line);
    line += length + (line[length] == '\n');
  }
  char *more = spec->more ? spec->more() : NULL;
  if (more) printf("\n%s", more);
  kedge_free(more);
}

/* ---- Parsing
 * ------------------------------------------------------------------------------------------------------ */

static bool wrong(const cli_spec *spec, const char *text, const char *what) {
  fprintf(stderr, "kedge %s: %s%s; see `kedge %s --help`\n", spec->command, what, text, spec->command);
  return false;
}

static bool unknown_option(const cli_spec *spec, const char *name, size_t length) {
  char word[80];
  snprintf(word, sizeof word, "%.*s", (int)(length > 64 ? 64 : length), name);
  kedge_nearest nearest = {.word = word};
  for (size_t i = 0; i < spec->option_count; i++)
    kedge__nearest_offer(&nearest, spec->options[i].name, strlen(spec->options[i].name));
  kedge__nearest_offer(&nearest, "--help", 6);
  if (!nearest.best) return wrong(spec, word, "unknown option ");
  fprintf(stderr, "kedge %s: unknown option %s; nearest is %.*s\n", spec->command, word, (int)nearest.length,
          nearest.best);
  return false;
}

static bool bad_value(const cli_spec *spec, const cli_option *option, const char *expected,
                      const char *value) {
  fprintf(stderr, "kedge %s: %s: expected %s, came \"%.80s\"\n", spec->command, option->name, expected,
          value);
  return false;
}

static bool number(const cli_spec *spec, const cli_option *option, const char *text) {
  char *end;
  errno = 0;
  double real = strtod(text, &end);
  bool decimal = *text && strspn(text, "0123456789+-.eE") == strlen(text) && !*end && isfinite(real);
  if (option->kind == CLI_INT) {
    errno = 0;
    *(int64_t *)option->target = strtoll(text, &end, 10);
    if (!decimal || *end || errno) return bad_value(spec, option, "a whole number", text);
  } else {
    if (!decimal) return bad_value(spec, option, "a number", text);
    *(double *)option->target = real;
  }
  bool any = option->min == 0 && option->max == 0;
  if (any || (real >= option->min && real <= option->max)) return true;
  char expected[80];
  snprintf(expected, sizeof expected, "a number from %.16g to %.16g", option->min, option->max);
  return bad_value(spec, option, expected, text);
}

static bool add_text(const cli_spec *spec, cli_list *list, const char *text) {
  if (list->count == CLI_MAX_ARGUMENTS) return wrong(spec, "", "more than 256 arguments");
  list->items[list->count++] = text;
  return true;
}

static bool store(const cli_spec *spec, const cli_option *option, const char *value) {
  switch (option->kind) {
  case CLI_FLAG:
    *(bool *)option->target = true;
    return true;
  case CLI_TEXT:
    *(const char **)option->target = value;
    return true;
  case CLI_TEXTS:
    return add_text(spec, option->target, value);
  default:
    return number(spec, option, value);
  }
}

/* One option at argv[*at]; moves *at past a value that is an argument of its own. */
static bool take_option(const cli_spec *spec, int argc, char **argv, int *at, uint64_t *given) {
  const char *word = argv[*at];
  size_t length = strcspn(word, "=");
  for (size_t i = 0; i < spec->option_count; i++) {
    const cli_option *option = &spec->options[i];
    if (strlen(option->name) != length || strncmp(option->name, word, length)) continue;
    if (option->kind != CLI_TEXTS && *given >> i & 1) return wrong(spec, " is given twice", option->name);
    *given |= (uint64_t)1 << i;
    const char *value = word[length] ? word + length + 1 : NULL;
    if (option->kind == CLI_FLAG && value) return wrong(spec, " takes no value", option->name);
    if (option->kind != CLI_FLAG && !value) {
      if (*at + 1 >= argc || !strncmp(argv[*at + 1], "--", 2)) {
        fprintf(stderr, "kedge %s: %s needs a value %s\n", spec->command, option->name, option->argument);
        return false;
      }
      value = argv[++*at];
    }
    return store(spec, option, value);
  }
  return unknown_option(spec, word, length);
}

static bool check_counts(const cli_spec *spec, const cli_list *arguments, uint64_t given) {
  for (size_t i = 0; i < spec->option_count; i++)
    if (spec->options[i].required && !(given >> i & 1))
      return wrong(spec, " is needed", spec->options[i].name);
  if (arguments->count > spec->most) {
    char word[100];
    snprintf(word, sizeof word, "\"%.80s\"", arguments->items[spec->most]);
    return wrong(spec, word, "too many arguments: ");
  }
  if (arguments->count < spec->least) return wrong(spec, spec->synopsis, "missing argument: ");
  return true;
}

bool cli_parse(const cli_spec *spec, int argc, char **argv, cli_list *arguments, int *exit_code) {
  uint64_t given = 0;
  bool options = true;
  arguments->count = 0;
  for (int i = 1; i < argc; i++) {
    bool help = !strcmp(argv[i], "--help") || !strcmp(argv[i], "-h");
    if (!strcmp(argv[i], "--")) break;
    if (!help) continue;
    print_help(spec);
    *exit_code = 0;
    return false;
  }
  *exit_code = 2;
  for (int i = 1; i < argc; i++) {
    bool is_option = options && argv[i][0] == '-' && argv[i][1];
    if (options && !strcmp(argv[i], "--"))
      options = false;
    else if (is_option ? !take_option(spec, argc, argv, &i, &given) : !add_text(spec, arguments, argv[i]))
      return false;
  }
  return check_counts(spec, arguments, given);
}

bool cli_is_setting(const char *argument) {
  const char *equals = strchr(argument, '=');
  return equals && !memchr(argument, '/', (size_t)(equals - argument));
}

/* ---- The end
 * ------------------------------------------------------------------------------------------------------ */

int cli_finish(const char *command, kedge_status status) {
  if (status == KEDGE_OK) return 0;
  const char *message = *kedge_message() ? kedge_message() : kedge_status_text(status);
  fprintf(stderr, "kedge %s: %s\n", command, message);
  return cli_status(status);
}

int cli_status(kedge_status status) {
  switch (status) {
  case KEDGE_OK:
    return 0;
  case KEDGE_ERR_MEMORY:
  case KEDGE_ERR_DEVICE:
  case KEDGE_ERR_NUMERIC:
    return 1;
  case KEDGE_ERR_INTERRUPTED:
    return 130;
  default:
    return 2;
  }
}

const char *cli_count(uint64_t count, char text[32]) {
  char digits[24];
  int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)count), at = 0;
  for (int i = 0; i < length; i++) {
    if (i && (length - i) % 3 == 0) text[at++] = ',';
    text[at++] = digits[i];
  }
  text[at] = 0;
  return text;
}

const char *cli_bytes(uint64_t bytes, char text[24]) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = (double)bytes;
  size_t unit = 0;
  for (; value >= 1023.95 && unit + 1 < sizeof units / sizeof *units; unit++) value /= 1024;
  snprintf(text, 24, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
  return text;
}

const char *cli_duration(double seconds, char text[24]) {
  if (!(seconds >= 0) || seconds > 1e9) return strcpy(text, "?");
  unsigned long whole = (unsigned long)(seconds + 0.5);
  if (whole < 60)
    snprintf(text, 24, "%lus", whole);
  else if (whole < 3600)
    snprintf(text, 24, "%lum %02lus", whole / 60, whole % 60);
  else if (whole < 86400)
    snprintf(text, 24, "%luh %02lum", whole / 3600, whole / 60 % 60);
  else
    snprintf(text, 24, "%lud %02luh", whole / 86400, whole / 3600 % 24);
  return text;
}
