/* SPDX-License-Identifier: Apache-2.0
 * Which transport a process has: that of the launcher which started it, by what launchers leave in the
 * environment. The module for MPI lies beside the program or the library, or where the system finds
 * libraries, so that one installation also runs where there is no MPI. */
#include "core/comm.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODULE "libkedge-mpi.so"

/* Number of processes by a launcher's variables, 0: no launcher. Slurm's own are trusted for srun alone: a
 * batch script has them too, and what it starts directly is one process. */
static unsigned long count_launched(void) {
  static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE",
                                      "MPI_LOCALNRANKS"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const char *text = getenv(names[i]);
    if (text) return strtoul(text, NULL, 10);
  }
  const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
  return tasks && getenv("SLURM_PROCID") && (getenv("PMIX_RANK") || getenv("PMI_RANK"))
             ? strtoul(tasks, NULL, 10)
             : 0;
}

uint32_t kedge_comm_launched(void) {
  const unsigned long count = count_launched();
  return count < UINT32_MAX ? (uint32_t)count : UINT32_MAX;
}

/* "<folder of a file>/<module>", loaded; NULL: not there. Symbols of MPI must be global: its plug-ins look
 * them up. */
static void *load_beside(const char *file) {
  const char *slash = file ? strrchr(file, '/') : NULL;
  char *path = slash ? kedge_format("%.*s/%s", (int)(slash - file), file, MODULE) : NULL;
  void *module = path && !access(path, R_OK) ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
  kedge_free(path);
  return module;
}

static void *load(void) {
  Dl_info info;
  char program[4096];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  void *module =
      dladdr((void *)(uintptr_t)&kedge__transport_alone, &info) ? load_beside(info.dli_fname) : NULL;
  if (!module && length > 0) {
    program[length] = 0;
    module = load_beside(program);
  }
  return module ? module : dlopen(MODULE, RTLD_NOW | RTLD_GLOBAL);
}

kedge_status kedge__transport_find(const kedge_transport **transport, void **module) {
  const uint32_t ranks = kedge_comm_launched();
  *transport = &kedge__transport_alone;
  *module = NULL;
  if (ranks <= 1) return KEDGE_OK;
  *module = load();
  const kedge_transport *found = *module ? dlsym(*module, "kedge_transport_mpi") : NULL;
  if (!found) {
    const char *why = dlerror();
    return kedge_fail(KEDGE_ERR_DEVICE,
                      "%u processes were launched, but " MODULE
                      " cannot be loaded (%s): was Kedge built where MPI is "
                      "installed?",
                      ranks, why ? why : "not found");
  }
  *transport = found;
  return KEDGE_OK;
}
