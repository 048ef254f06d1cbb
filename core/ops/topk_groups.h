/* SPDX-License-Identifier: Apache-2.0
 *
 * Which experts the reference of top-k (route.c) may choose: those of the best groups. Included after
 * kernel.h, in each of its builds. */
#ifndef KEDGE_OPS_TOPK_GROUPS_H
#define KEDGE_OPS_TOPK_GROUPS_H

#include "core/ops/kernel.h"

/* One token's choice: score + bias of each expert. */
typedef struct kedge_choice {
  const kedge_args_topk *a;
  const kedge_real *score, *bias;
} kedge_choice;

static inline kedge_real kedge__choice_value(const kedge_choice *c, uint32_t expert) {
  return c->score[expert] + (c->bias ? c->bias[expert] : 0);
}

/* What a group is ranked by. */
static inline kedge_real kedge__group_value(const kedge_choice *c, uint32_t group) {
  const uint32_t each = c->a->experts / c->a->groups;
  kedge_real first = -INFINITY, second = -INFINITY;
  for (uint32_t e = group * each; e < (group + 1) * each; e++) {
    kedge_real v = kedge__choice_value(c, e);
    if (v > first) {
      second = first;
      first = v;
    } else if (v > second) {
      second = v;
    }
  }
  return c->a->group_kind == KEDGE_GROUP_TWO ? first + second : first;
}

/* Whether a group is among the best: fewer than topk_groups come before it, equal ones by their index. */
static inline bool kedge__group_is_kept(const kedge_choice *c, uint32_t group) {
  if (c->a->topk_groups == c->a->groups) return true;
  const kedge_real own = kedge__group_value(c, group);
  uint32_t before = 0;
  for (uint32_t other = 0; other < c->a->groups; other++) {
    kedge_real v = kedge__group_value(c, other);
    before += v > own || (v == own && other < group);
  }
  return before < c->a->topk_groups;
}

static inline bool kedge__choice_is_open(const kedge_choice *c, uint32_t expert) {
  return kedge__group_is_kept(c, expert / (c->a->experts / c->a->groups));
}

#endif
