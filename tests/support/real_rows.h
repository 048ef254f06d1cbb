/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of real text that the tokenizers' goldens are made of (make_tokenizer.py: `sources`). */
#ifndef KEDGE_TESTS_REAL_ROWS_H
#define KEDGE_TESTS_REAL_ROWS_H

#include <stddef.h>

/* Calls `row` with each text (0-closed); returns how many there were, 0 with a printed line where the shared
 * folder is absent. */
size_t test_real_rows(void (*row)(const char *text, size_t length, void *context), void *context);

#endif
