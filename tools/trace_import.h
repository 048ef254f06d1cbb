/* SPDX-License-Identifier: Apache-2.0
 * Between trace.c and trace_import.c. */
#ifndef KEDGE_TOOLS_TRACE_IMPORT_H
#define KEDGE_TOOLS_TRACE_IMPORT_H

#include "models/trace/trace.h"

/* `kedge trace import`; argv[0] is "import". */
int trace_import(int argc, char **argv);
/* Prints one line about a trace that has been written. */
void trace_tell(const char *path, const kedge_trace *trace);

#endif
