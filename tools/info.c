/* SPDX-License-Identifier: Apache-2.0
 * `kedge info`: what a model directory or a file is, and what is odd about it. info_model.c and info_file.c
 * find out; here it is printed, as text or JSON. */
#include "tools/info.h"
#include "tools/cli.h"
#include "tools/inputs.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A JSON string; bytes outside ASCII become "?" where the text is not UTF-8. */
static json_t *make_string(const char *text) {
  json_t *string = json_string(text);
  if (string) return string;
  char *copy = kedge_strdup(text);
  for (char *c = copy; c && *c; c++)
    if ((unsigned char)*c > 126) *c = '?';
  string = copy ? json_string(copy) : NULL;
  kedge_free(copy);
  return string;
}

void info_say(json_t *list, const char *format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  json_t *string = make_string(line), *item;
  size_t i;
  bool known = false; /* one file that two readers refuse */
  json_array_foreach(list, i, item) known |= json_equal(item, string);
  if (!known) json_array_append(list, string);
  json_decref(string);
}

void info_text(json_t *object, const char *key, const char *value) {
  if (value) json_object_set_new(object, key, make_string(value));
}

void info_number(json_t *object, const char *key, uint64_t value) {
  json_object_set_new(object, key, json_integer((json_int_t)value));
}

/* ---- Text
 * ----------------------------------------------------------------------------------------------------------
 */

/* A string with control characters shown escaped: names come from files. */
static void print_string(const char *text) {
  for (const char *c = text; *c; c++)
    if ((unsigned char)*c < 32 || *c == 127)
      printf("\\x%02x", (unsigned char)*c);
    else
      putchar(*c);
}

static void print_scalar(const char *key, const json_t *value) {
  char text[24];
  if (json_is_string(value))
    print_string(json_string_value(value));
  else if (json_is_boolean(value))
    fputs(json_is_true(value) ? "yes" : "no", stdout);
  else if (!strcmp(key, "bytes"))
    printf("%s (%" JSON_INTEGER_FORMAT " B)", cli_bytes((uint64_t)json_integer_value(value), text),
           json_integer_value(value));
  else
    printf("%" JSON_INTEGER_FORMAT, json_integer_value(value));
}

/* The members of an object on a line. */
static void print_row(json_t *object) {
  const char *key;
  json_t *value;
  bool first = true;
  json_object_foreach(object, key, value) {
    printf("%s", first ? "  " : ", ");
    first = false;
    bool plain =
        !strcmp(key, "name") || !strcmp(key, "dtype") || !strcmp(key, "shape") || !strcmp(key, "format");
    if (!plain && strcmp(key, "bytes")) printf("%s ", key);
    print_scalar(key, value);
  }
  putchar('\n');
}

static void print_array(const char *key, const json_t *list) {
  size_t i;
  json_t *item;
  if (!json_array_size(list)) return;
  printf("%s:", key);
  const bool inline_list =
      !json_is_object(json_array_get(list, 0)) && strcmp(key, "notes") && strcmp(key, "problems");
  if (!inline_list) putchar('\n');
  json_array_foreach(list, i, item) {
    if (json_is_object(item)) {
      print_row(item);
    } else {
      fputs(inline_list ? " " : "  ", stdout);
      print_scalar(key, item);
      if (!inline_list) putchar('\n');
    }
  }
  if (inline_list) putchar('\n');
}

static void print_text(json_t *root) {
  const char *key, *inner;
  json_t *value, *part;
  json_object_foreach(root, key, value) {
    if (json_is_array(value)) {
      print_array(key, value);
    } else if (json_is_object(value)) {
      json_object_foreach(value, inner, part) {
        printf("%s ", key);
        print_string(inner);
        printf(": ");
        print_scalar(inner, part);
        putchar('\n');
      }
    } else {
      printf("%s: ", key);
      print_scalar(key, value);
      putchar('\n');
    }
  }
}

/* ---- Command
 * ------------------------------------------------------------------------------------------------------- */

static kedge_status run(const char *path, bool json, bool hash) {
  info_report r = {json_object(), json_array(), json_array(), hash};
  info_text(r.root, "path", path);
  kedge_status status = input_is_folder(path) ? info_directory(&r, path) : info_file(&r, path);
  if (status == KEDGE_OK) {
    json_object_set(r.root, "notes", r.notes);
    json_object_set(r.root, "problems", r.problems);
    if (json)
      json_dumpf(r.root, stdout, JSON_INDENT(2));
    else
      print_text(r.root);
    if (json) putchar('\n');
  }
  json_decref(r.root);
  json_decref(r.notes);
  json_decref(r.problems);
  return status;
}

int command_info(int argc, char **argv) {
  bool json = false, hash = false;
  const cli_option options[] = {{"--json", CLI_FLAG, &json, NULL, "print JSON", false, 0, 0},
                                {"--hash", CLI_FLAG, &hash, NULL,
                                 "the content hash of the weights, too: reads every byte", false, 0, 0}};
  const cli_spec spec = {
      .command = "info",
      .synopsis = "PATH",
      .summary = "Describes a model directory (family, sizes, parameters, tensors, tokenizer) or a file\n"
                 "(safetensors, router prior, scores, config, tokenizer, data), and lists all that is odd\n"
                 "about it: notes do no harm, problems keep it from being used.",
      .options = options,
      .option_count = sizeof options / sizeof *options,
      .least = 1,
      .most = 1,
      .examples = "kedge info model\nkedge info model --json --hash\nkedge info prior.safetensors"};
  cli_list arguments;
  int code;
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  return cli_finish("info", run(arguments.items[0], json, hash));
}
