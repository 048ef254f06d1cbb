/* SPDX-License-Identifier: Apache-2.0
 *
 * Independent jobs in child processes, for libraries that are not safe in threads (workers.c, internal). */
#ifndef KEDGE_MODELS_ROUTING_WORKERS_H
#define KEDGE_MODELS_ROUTING_WORKERS_H

#include "core/kedge.h"

/* Does job `index` and fills its result, plain bytes without pointers. A function of the context and the
 * index alone. */
typedef kedge_status (*kedge__job)(void *context, uint32_t index, void *result);

typedef struct kedge__jobs {
  const char *name; /* of a job in messages, as "layer" */
  uint32_t count;
  size_t result_bytes;
  kedge__job job;
  void *context;
  uint32_t workers;                                               /* 0: one a core; 1: all in this process */
  bool (*progress)(void *context, uint32_t done, uint32_t count); /* may be NULL */
  void *progress_context;
} kedge__jobs;

/* Runs all jobs; results [count, result_bytes] are zero where a job wrote nothing. Children inherit this
 * process as it is and are gone when this returns; the caller has no OpenMP region open. Errors: the first
 * failed job's, with its message; ERR_IO naming the job whose process died and how; ERR_INTERRUPTED;
 * ERR_MEMORY. */
kedge_status kedge__jobs_run(const kedge__jobs *jobs, void *results);

#endif
