/* SPDX-License-Identifier: Apache-2.0
 * Commands on several ranks (ranks.h). */
#include "tools/ranks.h"

#include "tools/cli.h"
#include "tools/inputs.h"

#include <stdio.h>
#include <unistd.h>

enum { SILENCE = 15 }; /* seconds without a heartbeat after which a rank is lost */

static const char *name; /* of the command */
static int loud = -1;    /* standard error of a quiet rank, for its last words */

static void speak(void) {
  if (loud < 0) return;
  fflush(stderr);
  dup2(loud, STDERR_FILENO);
}

/* A rank beside this one has gone, or hangs, or a link broke: one line, and the end of all. */
static void lost(void *context, uint32_t rank, double seconds) {
  kedge_comm *comm = context;
  speak();
  fprintf(stderr, "kedge %s: rank %u: nothing heard of rank %u for %.0f seconds; stopping all ranks\n", name,
          comm->rank[KEDGE_RANKS_ALL], rank, seconds);
  kedge_comm_abort(comm, 1);
}

static void be_quiet(void) {
  loud = dup(STDERR_FILENO);
  if (loud < 0) return;
  if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) speak();
}

kedge_status ranks_open(const char *command, bool quiet, kedge_comm **comm) {
  bool on = false;
  name = command;
  KEDGE_TRY(kedge_comm_open(comm));
  if (kedge_comm_size(*comm, KEDGE_RANKS_ALL) == 1) return KEDGE_OK;
  const bool leads = kedge_comm_rank(*comm, KEDGE_RANKS_ALL) == 0;
  KEDGE_TRY(kedge_comm_watch(*comm, SILENCE, lost, *comm, &on));
  KEDGE_TRY(kedge_comm_same(*comm, "the version of Kedge", kedge_version()));
  if (!on && leads)
    fprintf(stderr,
            "note: this MPI allows no threads: MPI alone notices a rank that hangs, or a broken link\n");
  if (quiet && !leads) be_quiet();
  return KEDGE_OK;
}

kedge_status ranks_same_arguments(kedge_comm *comm, int argc, char **argv) {
  char what[32];
  snprintf(what, sizeof what, "%d", argc - 1);
  KEDGE_TRY(kedge_comm_same(comm, "the number of arguments", what));
  for (int i = 1; i < argc; i++) {
    snprintf(what, sizeof what, "argument %d", i);
    KEDGE_TRY(kedge_comm_same(comm, what, argv[i]));
  }
  return KEDGE_OK;
}

bool ranks_leads(const kedge_comm *comm) {
  return kedge_comm_rank(comm, KEDGE_RANKS_ALL) == 0;
}

kedge_status ranks_device(kedge_comm *comm, const char *backend, const kedge_open_options *options,
                          kedge_device **device) {
  kedge_open_options own = *options;
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  own.ordinal = comm->local_rank;
  if (!own.threads && comm->local_size > 1 && cores > 0) {
    own.threads = (uint32_t)cores / comm->local_size;
    if (!own.threads) own.threads = 1;
  }
  KEDGE_TRY(input_device_open(backend, &own, device));
  kedge_device_join(*device, comm);
  return KEDGE_OK;
}

int ranks_finish(const char *command, kedge_comm *comm, kedge_status status) {
  const uint32_t rank = kedge_comm_rank(comm, KEDGE_RANKS_ALL);
  if (kedge_comm_size(comm, KEDGE_RANKS_ALL) > 1 && status != KEDGE_OK && (!comm->agreed || comm->broken)) {
    speak();
    kedge_fail_in(status, "rank %u", rank);
    kedge_comm_abort(comm, cli_finish(command, status));
  }
  const int code = rank ? cli_status(status) : cli_finish(command, status);
  kedge_comm_close(comm);
  return code;
}
