/* SPDX-License-Identifier: Apache-2.0
 * Collective ops: how an execution runs them between a backend's steps. */
#ifndef KEDGE_COLLECT_H
#define KEDGE_COLLECT_H

#include "core/comm.h"
#include "core/exec.h"

/* Where a collective op works. */
typedef struct kedge_site {
  kedge_comm *comm;      /* NULL: alone */
  kedge_device *device;  /* whose memory holds the tensors, and whose carrier moves them; NULL: the host's */
  const int32_t *counts; /* all_to_all_rows on a device: the exchanged counts, on the host */
} kedge_site;

/* Does one collective op. */
typedef kedge_status (*kedge_collective)(const kedge_site *site, const kedge_call *call);

#define KEDGE_KERNEL_NONE(name)
#define KEDGE_COLLECTIVE_DECLARE(name)                                                                       \
  kedge_status kedge__collective_##name(const kedge_site *site, const kedge_call *call);
#define KERNEL                            KEDGE_KERNEL_NONE
#define COLLECTIVE                        KEDGE_COLLECTIVE_DECLARE
#define KEDGE_OP(name, family, kind, ...) kind(name)
#include "core/ops.def"
#undef KEDGE_OP
#undef KERNEL
#undef COLLECTIVE

/* Does the first of `most` steps at once that may go together; *done: how many, 0 where there are not two. */
kedge_status kedge__collective_together(const kedge_site *site, const kedge_step *steps, uint32_t most,
                                        uint32_t *done);
/* Bytes of scratch that the first of `most` collective steps needs, alone or with those that go with it. */
uint64_t kedge__collective_scratch(const kedge_comm *comm, const kedge_step *steps, uint32_t most);

/* Runs a step of kind COLLECTIVE. A device whose memory the host cannot address lends its tensors for it. */
kedge_status kedge__collective_run(kedge_exec *exec, const kedge_step *step);
/* Runs steps [from, to): stretches of kernels on the backend, collective ops in between. Waits for the end.
 */
kedge_status kedge__steps_run(kedge_exec *exec, uint32_t from, uint32_t to);

#endif
