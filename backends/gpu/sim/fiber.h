/* SPDX-License-Identifier: Apache-2.0
 * Stacks that take turns on one thread of the system (fiber.c), for the scheduler in sim.c. */
#ifndef KEDGE_GPU_FIBER_H
#define KEDGE_GPU_FIBER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct fiber fiber;

/* A fiber that runs main() when it is first switched to; main must never return. NULL without memory. */
fiber *fiber_new(void (*main)(void));
void fiber_free(fiber *f);
/* Forgets where the fiber was: it will begin at main() again. */
void fiber_reset(fiber *f);
/* From the running fiber, or NULL for the thread's own stack, to another. */
void fiber_switch(fiber *from, fiber *to);

/* Whether the thread sanitizer is there. It sees each fiber as a thread of its own, whose accesses are
 * unordered but for what the running one says here: what came before fiber_publish(x) is before what comes
 * after a later fiber_observe(x). Without it these do nothing. */
bool fiber_watched(void);
void fiber_publish(const void *object);
void fiber_observe(const void *object);
/* Tells it of a copy that the running fiber makes in code that it does not see. */
void fiber_copies(void *to, const void *from, size_t bytes);

#endif
