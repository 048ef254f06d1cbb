/* SPDX-License-Identifier: Apache-2.0
 * SIGINT, SIGTERM and SIGHUP for long commands: the first asks the command to stop at its next safe point, a
 * second ends it at once. */
#ifndef KEDGE_TOOLS_INTERRUPT_H
#define KEDGE_TOOLS_INTERRUPT_H

#include <stdbool.h>

/* Begins to listen. */
void interrupt_listen(void);
/* Whether the command should stop. */
bool interrupt_requested(void);

#endif
