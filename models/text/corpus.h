/* SPDX-License-Identifier: Apache-2.0
 *
 * Small training corpora, generated: what a demonstration or a test can train on without any download.
 * Domains differ in words and in what must be learnt, so that their routing can be told apart.
 */
#ifndef KEDGE_MODELS_TEXT_CORPUS_H
#define KEDGE_MODELS_TEXT_CORPUS_H

#include <stdio.h>

#include "core/kedge.h"

/* Domains in a fixed order: "arithmetic", "strings", "facts", "logic"; NULL past the end. `about` may be
 * NULL. */
const char *kedge_corpus_domain(uint32_t index, const char **about);

/* Writes `count` lines {"prompt": ..., "completion": ...} of printable ASCII (line breaks escaped) to `file`,
 * borrowed. Row i depends on domain, seed and i alone, so that a longer corpus begins with a shorter one; the
 * world of "facts" is the same for every seed. Errors: ERR_ARGUMENT for an unknown domain, ERR_IO. */
kedge_status kedge_corpus_generate(const char *domain, uint64_t seed, uint64_t count, FILE *file);

#endif
