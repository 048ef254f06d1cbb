/* SPDX-License-Identifier: Apache-2.0
 *
 * A file in memory for readers that want a path. Sibling: fuzz.h. */
#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

const char *fuzz_file(const void *data, size_t size) {
  static int file = -1;
  static char path[64];
  if (file < 0) {
    file = memfd_create("fuzz", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  }
  if (file < 0 || ftruncate(file, 0) || pwrite(file, data, size, 0) != (ssize_t)size) {
    perror("fuzz_file");
    exit(1);
  }
  return path;
}
