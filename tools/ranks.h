/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands that several ranks share (mpirun kedge train, prior, trace): how they join, watch each other, and
 * end. docs/clusters.md. */
#ifndef KEDGE_TOOLS_RANKS_H
#define KEDGE_TOOLS_RANKS_H

#include "core/comm.h"

/* Joins the ranks that a launcher started, or makes a comm of one, and begins to watch the others. `quiet`:
 * ranks but the first say nothing, on either stream. */
kedge_status ranks_open(const char *command, bool quiet, kedge_comm **comm);

/* The end of the command, with its exit status. What all ranks know rank 0 tells; a failure that one rank
 * alone met ends the others. Closes the comm, which may be NULL. */
int ranks_finish(const char *command, kedge_comm *comm, kedge_status status);

#endif
