/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands that several ranks share (mpirun kedge train, prior, trace, probe, audit, eval): how they join,
 * watch each other, and end. docs/clusters.md. */
#ifndef KEDGE_TOOLS_RANKS_H
#define KEDGE_TOOLS_RANKS_H

#include "core/comm.h"

/* Joins the ranks that a launcher started, or makes a comm of one, and begins to watch the others. `quiet`:
 * ranks but the first say nothing, on either stream. */
kedge_status ranks_open(const char *command, bool quiet, kedge_comm **comm);

/* ERR_MISMATCH on all ranks, naming the first one that differs, unless all were started with the same
 * arguments. */
kedge_status ranks_same_arguments(kedge_comm *comm, int argc, char **argv);

/* Whether this is the first rank, which speaks and writes, or the only one. */
bool ranks_leads(const kedge_comm *comm);

/* Opens this rank's device, as input_device_open does, and joins the ranks on it: of the cards of a machine
 * each rank has its own, and without `threads` its part of the processors. Each rank has its own status. */
kedge_status ranks_device(kedge_comm *comm, const char *backend, const kedge_open_options *options,
                          kedge_device **device);

/* The end of the command, with its exit status. What all ranks know rank 0 tells; a failure that one rank
 * alone met ends the others. Closes the comm, which may be NULL. */
int ranks_finish(const char *command, kedge_comm *comm, kedge_status status);

#endif
