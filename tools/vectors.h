/* SPDX-License-Identifier: Apache-2.0
 * `kedge gradcheck --vectors`: tools/vectors.c. */
#ifndef KEDGE_TOOLS_VECTORS_H
#define KEDGE_TOOLS_VECTORS_H

#include "core/kedge.h"

/* Checks a file in double and in f32 and prints a table; ERR_NUMERIC if a number differs. */
kedge_status vectors_run(const char *path);

#endif
