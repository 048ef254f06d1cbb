/* SPDX-License-Identifier: Apache-2.0
 *
 * What the fuzz targets share. A target is one file fuzz_<name>.c with LLVMFuzzerTestOneInput: linked with
 * libFuzzer (-DKEDGE_FUZZ=ON, run.sh), or with replay.c for the tests. Its seeds lie in corpus/<name>/. */
#ifndef KEDGE_TESTS_FUZZ_H
#define KEDGE_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/kedge.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Puts bytes into a file in memory, always the same one, and returns its path. */
const char *fuzz_file(const void *data, size_t size);

/* What must hold whatever the input: ends the program where it does not. */
#define FUZZ_CHECK(condition)                                                                                \
  do {                                                                                                       \
    if (!(condition)) {                                                                                      \
      fprintf(stderr, "%s:%d: %s does not hold; last message: %s\n", __FILE__, __LINE__, #condition,         \
              kedge_message());                                                                              \
      abort();                                                                                               \
    }                                                                                                        \
  } while (0)
/* An error leaves one line that says something. */
#define FUZZ_REFUSED(status)                                                                                 \
  FUZZ_CHECK((status) != KEDGE_OK && kedge_message()[0] && !strchr(kedge_message(), '\n'))

#endif
