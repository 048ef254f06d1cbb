/* SPDX-License-Identifier: Apache-2.0
 * The program `kedge`: finds the sub-command of commands.def and runs it. */
#include "core/comm.h"
#include "models/training/nearest.h"
#include "tools/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct command {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *summary;
} command;

static const command commands[] = {
#define KEDGE_COMMAND(name, function, summary) {name, function, summary},
#include "tools/commands.def"
#undef KEDGE_COMMAND
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_usage(FILE *out) {
  fprintf(
      out,
      "Usage: kedge COMMAND [OPTIONS]\n\n"
      "Post-trains mixture-of-experts language models while softly anchoring the router, and measures what\n"
      "was kept.\n\nCommands:\n");
  for (size_t i = 0; i < COMMANDS; i++) fprintf(out, "  %-14s %s\n", commands[i].name, commands[i].summary);
  fprintf(out, "  %-14s %s\n\n", "help", "Explain a command: kedge help COMMAND");
  fprintf(out,
          "Options:\n  -h, --help     print this text\n  --version      print the version\n\nExamples:\n");
  fprintf(out, "  kedge %s\n  kedge help %s\n", commands[0].name, commands[0].name);
}

static const command *find(const char *name) {
  for (size_t i = 0; i < COMMANDS; i++)
    if (!strcmp(commands[i].name, name)) return &commands[i];
  return NULL;
}

static int unknown(const char *name) {
  kedge_nearest nearest = {.word = name};
  for (size_t i = 0; i < COMMANDS; i++)
    kedge__nearest_offer(&nearest, commands[i].name, strlen(commands[i].name));
  kedge__nearest_offer(&nearest, "help", 4);
  const char *kind = *name == '-' ? "option" : "command";
  if (nearest.best)
    fprintf(stderr, "kedge: unknown %s \"%.80s\"; nearest is \"%.*s\"\n", kind, name, (int)nearest.length,
            nearest.best);
  else
    fprintf(stderr, "kedge: unknown %s \"%.80s\"; see `kedge --help`\n", kind, name);
  return 2;
}

/* Commands that several ranks share, and those that write nothing. */
static bool shares_ranks(const char *name) {
  static const char *const names[] = {"train", "prior", "trace", "probe",   "audit",
                                      "eval",  "plan",  "info",  "devices", "ops"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(names[i], name)) return true;
  return false;
}

static int dispatch(int argc, char **argv) {
  if (argc < 2) {
    print_usage(stderr);
    return 2;
  }
  const char *name = argv[1];
  bool help = !strcmp(name, "help");
  if (!strcmp(name, "--version")) {
    printf("kedge %s\n", kedge_version());
    return 0;
  }
  if (!strcmp(name, "--help") || !strcmp(name, "-h") || (help && argc == 2)) {
    print_usage(stdout);
    return 0;
  }
  if (help) name = argv[2];
  const command *chosen = find(name);
  if (help && !chosen && (!strcmp(name, "--help") || !strcmp(name, "help"))) {
    print_usage(stdout);
    return 0;
  }
  if (!chosen) return unknown(name);
  if (!help && !shares_ranks(name) && kedge_comm_launched() > 1) {
    fprintf(stderr,
            "kedge %s: %u processes were launched, but this command is for one; train, prior, trace, probe, "
            "audit and eval share ranks\n",
            name, kedge_comm_launched());
    return 2;
  }
  char *explain[] = {argv[help ? 2 : 1], (char[]){"--help"}, NULL};
  return help ? chosen->run(2, explain) : chosen->run(argc - 1, argv + 1);
}

/* OpenMP's threads spin for milliseconds between loops unless told otherwise, which on a busy machine costs
 * ten times the work itself. The OpenMP library reads its settings once, before main(), so the program asks
 * for passive waiting and starts itself again; a user's own settings stand. */
static void settle_openmp(char **argv) {
  if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
  char path[4096]; /* by its own name, which tools like top show */
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length <= 0 || setenv("OMP_WAIT_POLICY", "passive", 1)) return;
  path[length] = 0;
  execv(path, argv);
}

/* With a standard stream closed, the next file opened would take its number, and messages would land in it.
 * Each is held by a device in the direction that fails, so that reading and writing still report an error. */
static void hold_standard_streams(void) {
  for (int fd = 0; fd < 3; fd++)
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) != fd) return;
}

int main(int argc, char **argv) {
  hold_standard_streams();
  signal(SIGXFSZ,
         SIG_IGN); /* a limit on file sizes is then an error of the write, which cleans up behind it */
  settle_openmp(argv);
  int code = dispatch(argc, argv);
  /* A full disk or a closed pipe must not look like success. */
  errno = 0;
  if ((fflush(stdout) || ferror(stdout)) && code == 0) {
    fprintf(stderr, "kedge: standard output: %s\n", errno ? strerror(errno) : "writing failed");
    return 2;
  }
  return code;
}
