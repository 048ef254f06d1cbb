/* SPDX-License-Identifier: Apache-2.0
 *
 * Products by groups of four waves on the simulated card (sim.h): what a thread has issued and not waited
 * for, whether all threads of a group issue the same, and whether operands were published before a barrier.
 */
#include "backends/gpu/sim/sim.h"

#include <string.h>

enum { MEMBERS = 128, GROUPS = SIM_MAX_THREADS / MEMBERS, REMEMBERED = 16, PENDING = 8 };

static struct {
  uint64_t a[REMEMBERED], b[REMEMBERED], issued; /* the last products, by whoever came first */
} groups[GROUPS];
static struct {
  uint64_t issued;
  uint32_t pending, taken;
  bool unpublished; /* it wrote operands since it last published */
  sim_group_product product[PENDING];
} members[SIM_MAX_THREADS];
static bool unpublished; /* some thread came to a barrier so */

void sim__groups_begin(void) {
  sim__set(groups, 0, sizeof groups);
  for (uint32_t i = 0; i < sim_now.threads; i++) {
    members[i].issued = 0;
    members[i].pending = members[i].taken = 0;
    members[i].unpublished = false;
  }
  unpublished = false;
}

bool sim__groups_end(const char *kernel) {
  for (uint32_t i = 0; i < sim_now.threads; i++) {
    const uint64_t want = groups[i / MEMBERS].issued;
    if (members[i].issued != want || members[i].pending) {
      sim_fail("%s, block %u: thread %u issued %u products of its group's %u, %u not waited for", kernel,
               sim_now.block, i, (unsigned)members[i].issued, (unsigned)want, members[i].pending);
      return false;
    }
  }
  return true;
}

void sim__groups_wrote(void) {
  members[sim_now.thread].unpublished = true;
}
void sim__groups_barrier(void) {
  unpublished |= members[sim_now.thread].unpublished;
}
void sim_group_publish(void) {
  members[sim_now.thread].unpublished = false;
}

bool sim_group_issue(const sim_group_product *p) {
  const uint32_t self = sim_now.thread, which = self / MEMBERS;
  const uint64_t turn = members[self].issued++, place = turn % REMEMBERED;
  if (sim_now.wave != 32 || sim_now.threads % MEMBERS)
    sim_fail("block %u: a product by a group of %u threads in waves of %u", sim_now.block, sim_now.threads,
             sim_now.wave);
  if (unpublished)
    sim_fail("block %u, thread %u: operands of a group were not published", sim_now.block, self);
  if (turn == groups[which].issued) {
    groups[which].a[place] = p->a;
    groups[which].b[place] = p->b;
    groups[which].issued++;
  } else if (groups[which].issued - turn <= REMEMBERED &&
             (groups[which].a[place] != p->a || groups[which].b[place] != p->b)) {
    sim_fail("block %u, thread %u: another product than its group's", sim_now.block, self);
  }
  if (sim_now.early) return true;
  if (members[self].pending == PENDING)
    sim_fail("block %u, thread %u: more than %d products in flight", sim_now.block, self, PENDING);
  members[self].product[members[self].pending++] = *p;
  return false;
}

bool sim_group_next(sim_group_product *p) {
  const uint32_t self = sim_now.thread;
  if (members[self].taken == members[self].pending) {
    members[self].taken = members[self].pending = 0;
    return false;
  }
  *p = members[self].product[members[self].taken++];
  return true;
}
