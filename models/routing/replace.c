/* SPDX-License-Identifier: Apache-2.0
 * Rank replacement (replace.h). */
#include "models/routing/replace.h"

void kedge_rank_replace(int32_t *own, const int32_t *other, uint32_t k, uint32_t rank) {
  const int32_t expert = other[rank - 1], before = own[rank - 1];
  if (expert < 0 || before < 0) return;
  for (uint32_t i = 0; i < k; i++)
    if (own[i] == expert) own[i] = before;
  own[rank - 1] = expert;
}
