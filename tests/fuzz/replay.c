/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a fuzz target without libFuzzer: every file of a corpus, then mutations of them until the time is up.
 * usage: replay_<name> CORPUS [SECONDS [SEED]]. Input i depends on corpus, seed and i alone; where the
 * program dies it leaves the input in the file finding-<name> in the current folder. */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { MAX_SEEDS = 256, INPUT_LIMIT = 1 << 18, SPARE = 4096 };

typedef struct input {
  uint8_t *data;
  size_t size;
} input;

static input seeds[MAX_SEEDS];
static int seed_count;
static const uint8_t *running;
static size_t running_size;

/* Present under the address sanitizer, which ends the program without a signal. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void keep_finding(void) {
  int file = open("finding-" KEDGE_FUZZ_NAME, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file < 0 || write(file, running, running_size) < 0) return;
  close(file);
}

static void on_signal(int number) {
  keep_finding();
  signal(number, SIG_DFL);
  raise(number);
}

static void run(const uint8_t *data, size_t size) {
  /* A block of its own, so that a read past the input's end is seen. */
  uint8_t *copy = malloc(size + !size);
  if (!copy) exit(1);
  memcpy(copy, data, size);
  running = data;
  running_size = size;
  LLVMFuzzerTestOneInput(copy, size);
  free(copy);
}

static void read_seed(const char *folder, const char *name) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "rb");
  uint8_t *data = malloc(INPUT_LIMIT);
  if (!file || !data) {
    perror(path);
    exit(1);
  }
  size_t size = fread(data, 1, INPUT_LIMIT, file);
  fclose(file);
  seeds[seed_count++] = (input){data, size};
}

static int no_dots(const struct dirent *entry) {
  return entry->d_name[0] != '.';
}

static uint64_t next(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

/* Changes a few places of data[size], which has SPARE more bytes: a byte, a stretch that goes or comes twice,
 * a character of the languages at hand, a number, a stretch of another seed. Returns the new size. */
static size_t mutate(uint8_t *data, size_t size, uint64_t *state) {
  static const char marks[] = "\"\\[]{}(),:&|?+*^$-.0123456789eE \n#'!<>";
  static const char *const numbers[] = {"-1",    "0",    "4294967295", "4294967296", "9223372036854775807",
                                        "1e999", "null", "1e-9"};
  for (uint64_t changes = 1 + next(state) % 4; changes; changes--) {
    size_t at = size ? next(state) % size : 0, part = 1 + next(state) % 64;
    if (part > size - at) part = size - at;
    const char *number = numbers[next(state) % (sizeof numbers / sizeof *numbers)];
    const input *other = &seeds[next(state) % (uint64_t)seed_count];
    size_t from = other->size ? next(state) % other->size : 0, taken = 1 + next(state) % 256;
    if (taken > other->size - from) taken = other->size - from;
    switch (size ? next(state) % 6 : 5) {
    case 0:
      data[at] = (uint8_t)next(state);
      break;
    case 1:
      data[at] = (uint8_t)marks[next(state) % (sizeof marks - 1)];
      break;
    case 2:
      memmove(data + at, data + at + part, size - at - part);
      size -= part;
      break;
    case 3:
      memmove(data + at + part, data + at, size - at);
      size += part;
      break;
    case 4:
      memmove(data + at + strlen(number), data + at + part, size - at - part);
      memcpy(data + at, number, strlen(number));
      size = size - part + strlen(number);
      break;
    default:
      memmove(data + at + taken, data + at, size - at);
      memcpy(data + at, other->data + from, taken);
      size += taken;
      break;
    }
  }
  return size;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
  struct dirent **list;
  int found = argc > 1 ? scandir(argv[1], &list, no_dots, alphasort) : -1;
  if (found < 1) {
    fprintf(stderr, "usage: %s CORPUS [SECONDS [SEED]]; the corpus is a folder with files\n", argv[0]);
    return 2;
  }
  double seconds = argc > 2 ? strtod(argv[2], NULL) : 0.0, until = now() + seconds;
  uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1, inputs = 0;
  for (int i = 0; i < found; i++) {
    if (seed_count < MAX_SEEDS) read_seed(argv[1], list[i]->d_name);
    free(list[i]);
  }
  free(list);
  if (__sanitizer_set_death_callback)
    __sanitizer_set_death_callback(keep_finding);
  else
    signal(SIGSEGV, on_signal);
  signal(SIGABRT, on_signal);
  for (int i = 0; i < seed_count; i++) run(seeds[i].data, seeds[i].size);
  uint8_t *data = malloc(INPUT_LIMIT + SPARE);
  if (!data) return 1;
  for (; now() < until; inputs++) {
    uint64_t state = seed * 0x9E3779B97F4A7C15u + inputs;
    for (int i = 0; i < 4; i++) next(&state);
    const input *chosen = &seeds[next(&state) % (uint64_t)seed_count];
    memcpy(data, chosen->data, chosen->size);
    run(data, mutate(data, chosen->size, &state));
  }
  printf("%s: %d seeds, %llu mutations\n", KEDGE_FUZZ_NAME, seed_count, (unsigned long long)inputs);
  free(data);
  for (int i = 0; i < seed_count; i++) free(seeds[i].data);
  return 0;
}
