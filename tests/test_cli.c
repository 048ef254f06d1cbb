/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * The command line: the program's own answers (through KEDGE_BIN), and the option table and progress line by
 * themselves: their two files are part of the program, not of the library, and are compiled in here. */
#include "tests/support/files.h"
#include "tests/support/run.h"
#include "tools/cli.c"
#include "tools/progress.c"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static char *read_text(const char *name) {
  size_t bytes;
  return test_read(name, &bytes);
}

/* ---- The program
 * -------------------------------------------------------------------------------------------------- */

static test_run kedge(const char *arguments) {
  char command[1024];
  const char *program = getenv("KEDGE_BIN");
  snprintf(command, sizeof command, "'%s' %s", program ? program : "kedge", arguments);
  return test_run_shell(command);
}

/* Runs; checks the exit status; `out` and `err` must occur in what was printed, "" means that nothing was. */
static void expect(const char *arguments, int code, const char *out, const char *err) {
  test_run run = kedge(arguments);
  if (run.exit_code != code)
    fail_msg("kedge %s: exit %d, want %d: %s", arguments, run.exit_code, code, run.err);
  if (*out ? !strstr(run.out, out) : *run.out) fail_msg("kedge %s: printed \"%s\"", arguments, run.out);
  if (*err ? !strstr(run.err, err) : *run.err) fail_msg("kedge %s: said \"%s\"", arguments, run.err);
  /* An error is one line. */
  if (*err && code == 2 && *arguments && strchr(run.err, '\n') != run.err + strlen(run.err) - 1)
    fail_msg("kedge %s: said more than a line: \"%s\"", arguments, run.err);
  test_run_free(&run);
}

static void test_program(void **state) {
  (void)state;
  expect("--help", 0, "Usage: kedge COMMAND", "");
  expect("-h", 0, "Usage: kedge COMMAND", "");
  expect("help", 0, "Usage: kedge COMMAND", "");
  expect("--version", 0, "kedge 0.", "");
  expect("", 2, "", "Usage: kedge COMMAND");
  expect("devcies", 2, "", "unknown command \"devcies\"; nearest is \"devices\"");
  expect("help devcies", 2, "", "nearest is \"devices\"");
  expect("zzzzzzzzzzzz", 2, "", "unknown command \"zzzzzzzzzzzz\"; see `kedge --help`");
  expect("--verbose", 2, "", "unknown option \"--verbose\"");
  expect("devices", 0, "ref", "");
  expect("devices --json", 0, "\"backend\": \"cpu\"", "");
  expect("devices --jsno", 2, "", "unknown option --jsno; nearest is --json");
  expect("ops --json", 0, "\"op\": \"rms_norm\"", "");
  expect("ops", 0, "rms_norm", "");
}

/* Every command: `--help` and `kedge help` agree, name their options and show an example that begins with
 * `kedge`. */
static void test_every_help(void **state) {
  (void)state;
  static const char *const names[] = {
#define KEDGE_COMMAND(name, function, summary) name,
#include "tools/commands.def"
#undef KEDGE_COMMAND
  };
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char arguments[64], usage[64], example[64];
    snprintf(usage, sizeof usage, "Usage: kedge %s", names[i]);
    snprintf(example, sizeof example, "Examples:\n  kedge ");
    snprintf(arguments, sizeof arguments, "%s --help", names[i]);
    expect(arguments, 0, usage, "");
    expect(arguments, 0, example, "");
    test_run direct = kedge(arguments);
    snprintf(arguments, sizeof arguments, "help %s", names[i]);
    test_run helped = kedge(arguments);
    assert_string_equal(direct.out, helped.out);
    test_run_free(&direct);
    test_run_free(&helped);
    snprintf(arguments, sizeof arguments, "%s --no-such-option", names[i]);
    expect(arguments, 2, "", "unknown option --no-such-option");
  }
}

static void test_full_output(void **state) {
  (void)state;
  if (access("/dev/full", W_OK)) {
    print_message("1 skipped: no /dev/full here\n");
    skip();
  }
  test_run run = kedge("ops >/dev/full");
  assert_int_equal(run.exit_code, 2);
  assert_non_null(strstr(run.err, "standard output"));
  test_run_free(&run);
}

/* ---- The option table
 * ----------------------------------------------------------------------------------------------- */

typedef struct values {
  const char *model;
  int64_t steps;
  double beta;
  bool dry;
  cli_list data, arguments;
  int code;
  bool runs;
  char *err;
} values;

/* Parses `count` words with a table that has one option of each kind; keeps what went to standard error. */
static values parse(const char *const *words, int count) {
  values v = {.steps = 7, .beta = 1, .code = -1};
  const cli_option options[] = {{"--model", CLI_TEXT, &v.model, "DIR", "the model", true, 0, 0},
                                {"--steps", CLI_INT, &v.steps, "N", "updates (7)", false, 1, 100},
                                {"--beta", CLI_REAL, &v.beta, "X", "strength (1)", false, 0, 0},
                                {"--data", CLI_TEXTS, &v.data, "FILE", "data", false, 0, 0},
                                {"--dry-run", CLI_FLAG, &v.dry, NULL, "do nothing", false, 0, 0}};
  const cli_spec spec = {.command = "try",
                         .synopsis = "FILE",
                         .summary = "Tries.",
                         .options = options,
                         .option_count = 5,
                         .least = 1,
                         .most = 2,
                         .examples = "kedge try x"};
  char *argv[32] = {(char[]){"try"}};
  for (int i = 0; i < count; i++) argv[i + 1] = (char *)(uintptr_t)words[i];
  const char *path = test_path(test_folder(), "err");
  fflush(stderr);
  int saved = dup(2), file = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
  dup2(file, 2);
  close(file);
  v.runs = cli_parse(&spec, count + 1, argv, &v.arguments, &v.code);
  fflush(stderr);
  dup2(saved, 2);
  close(saved);
  v.err = read_text(path);
  return v;
}
#define PARSE(...)                                                                                           \
  parse((const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

static void refused(values v, const char *message) {
  if (v.runs || v.code != 2 || !strstr(v.err, message)) fail_msg("want \"%s\", got \"%s\"", message, v.err);
  assert_ptr_equal(strchr(v.err, '\n'), v.err + strlen(v.err) - 1);
  free(v.err);
}

static void test_options(void **state) {
  (void)state;
  values v = PARSE("--model", "m", "in.txt", "--steps=12", "--beta", "-1.5e2", "--data", "a", "--data=b=c",
                   "--dry-run");
  assert_true(v.runs);
  assert_string_equal(v.model, "m");
  assert_int_equal(v.steps, 12);
  assert_true(v.beta == -150);
  assert_int_equal(v.data.count, 2);
  assert_string_equal(v.data.items[1], "b=c");
  assert_true(v.dry);
  assert_int_equal(v.arguments.count, 1);
  assert_string_equal(v.arguments.items[0], "in.txt");
  free(v.err);
  v = PARSE("--model=", "--", "--steps", "-");
  assert_true(v.runs);
  assert_string_equal(v.model, "");
  assert_int_equal(v.steps, 7); /* the default stays */
  assert_int_equal(v.arguments.count, 2);
  free(v.err);
}

static void test_option_errors(void **state) {
  (void)state;
  refused(PARSE("x"), "kedge try: --model is needed");
  refused(PARSE("--model", "m"), "missing argument: FILE");
  refused(PARSE("--model", "m", "a", "b", "c"), "too many arguments: \"c\"");
  refused(PARSE("--model", "m", "--model", "m", "x"), "--model is given twice");
  refused(PARSE("x", "--model"), "--model needs a value DIR");
  refused(PARSE("x", "--model", "--dry-run"), "--model needs a value DIR");
  refused(PARSE("x", "--modle", "m"), "unknown option --modle; nearest is --model");
  refused(PARSE("x", "--dry_run"), "nearest is --dry-run");
  refused(PARSE("x", "-q"), "unknown option -q");
  refused(PARSE("x", "--dry-run=1"), "--dry-run takes no value");
  refused(PARSE("x", "--model=m", "--steps", "3.5"), "--steps: expected a whole number, came \"3.5\"");
  refused(PARSE("x", "--model=m", "--steps", "1e1"), "expected a whole number");
  refused(PARSE("x", "--model=m", "--steps", ""), "expected a whole number");
  refused(PARSE("x", "--model=m", "--steps", "99999999999999999999"), "expected a whole number");
  refused(PARSE("x", "--model=m", "--steps", "101"), "expected a number from 1 to 100, came \"101\"");
  refused(PARSE("x", "--model=m", "--beta", "nan"), "--beta: expected a number, came \"nan\"");
  refused(PARSE("x", "--model=m", "--beta", "1e999"), "expected a number");
  refused(PARSE("x", "--model=m", "--beta", "0x10"), "expected a number");
  refused(PARSE("x", "--model=m", "--beta", "1 "), "expected a number");
}

static void test_finish(void **state) {
  (void)state;
  int saved = dup(2), null = open("/dev/null", O_WRONLY);
  dup2(null, 2);
  int codes[KEDGE_STATUS_COUNT];
  for (int i = 0; i < KEDGE_STATUS_COUNT; i++) codes[i] = cli_finish("try", (kedge_status)i);
  fflush(stderr);
  dup2(saved, 2);
  close(saved);
  close(null);
  assert_int_equal(codes[KEDGE_OK], 0);
  assert_int_equal(codes[KEDGE_ERR_MEMORY], 1);
  assert_int_equal(codes[KEDGE_ERR_DEVICE], 1);
  assert_int_equal(codes[KEDGE_ERR_NUMERIC], 1);
  assert_int_equal(codes[KEDGE_ERR_INTERRUPTED], 130);
  assert_int_equal(codes[KEDGE_ERR_ARGUMENT], 2);
  assert_int_equal(codes[KEDGE_ERR_IO], 2);
  assert_int_equal(codes[KEDGE_ERR_FORMAT], 2);
}

/* ---- Numbers and progress
 * ---------------------------------------------------------------------------------------------- */

static void test_units(void **state) {
  (void)state;
  char text[24];
  assert_string_equal(cli_bytes(0, text), "0 B");
  assert_string_equal(cli_bytes(1023, text), "1023 B");
  assert_string_equal(cli_bytes(1536, text), "1.5 KiB");
  assert_string_equal(cli_bytes((uint64_t)1 << 30, text), "1.0 GiB");
  assert_string_equal(cli_bytes(UINT64_MAX, text), "16.0 EiB");
  assert_string_equal(cli_duration(12.4, text), "12s");
  assert_string_equal(cli_duration(59.6, text), "1m 00s");
  assert_string_equal(cli_duration(184, text), "3m 04s");
  assert_string_equal(cli_duration(3720, text), "1h 02m");
  assert_string_equal(cli_duration(183600, text), "2d 03h");
  assert_string_equal(cli_duration(-1, text), "?");
}

/* The text that a progress with made-up times prints into a file. */
static char *drawn(bool terminal, bool colour) {
  const char *path = test_path(test_folder(), "out");
  FILE *out = fopen(path, "w");
  progress p;
  progress_init(&p, out, "train", "updates", 10, 100);
  assert_false(p.terminal); /* a file is none */
  p.terminal = terminal;
  p.colour = colour;
  progress_update(&p, 11, 50, NULL); /* at once: too soon for a line */
  p.start -= 20;
  p.shown -= 20;
  progress_update(&p, 20, 68000, "loss 1.25");
  progress_clear(&p);
  p.start = now() - 60;
  progress_end(&p, NULL);
  fclose(out);
  char *text = read_text(path);
  return text;
}

static void test_progress(void **state) {
  (void)state;
  char *text = drawn(false, false);
  assert_string_equal(text, "train: 20/100 updates, 20.0%, 3400 tokens/s, 20s, 2m 40s left, loss 1.25\n"
                            "train: 20/100 updates, 20.0%, 1133 tokens/s, 1m 00s\n");
  free(text);
  text = drawn(true, true);
  assert_string_equal(
      text, "\r\033[1mtrain\033[0m: 20/100 updates, 20.0%, 3400 tokens/s, 20s, 2m 40s left, loss 1.25\033[K"
            "\r\033[K\r\033[1mtrain\033[0m: 20/100 updates, 20.0%, 1133 tokens/s, 1m 00s\033[K\n");
  free(text);
  text = drawn(true, false);
  assert_null(strstr(text, "\033[1m"));
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_program),       cmocka_unit_test(test_every_help),
                                     cmocka_unit_test(test_full_output),   cmocka_unit_test(test_options),
                                     cmocka_unit_test(test_option_errors), cmocka_unit_test(test_finish),
                                     cmocka_unit_test(test_units),         cmocka_unit_test(test_progress)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
