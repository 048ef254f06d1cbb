/* SPDX-License-Identifier: Apache-2.0
 *
 * Shuffles of a prior: controls that permute its experts, inside each community of the base or over all of
 * them. One permutation sigma a MoE layer, the same for all samples and both spans (docs/mathematics.md).
 * prior.h applies one to the rows that it reads; prior_rewrite.c writes a permuted file.
 */
#ifndef KEDGE_MODELS_ROUTING_SHUFFLE_H
#define KEDGE_MODELS_ROUTING_SHUFFLE_H

#include "models/retention/communities.h"

typedef enum kedge_shuffle_mode { KEDGE_SHUFFLE_WITHIN, KEDGE_SHUFFLE_GLOBAL } kedge_shuffle_mode;

typedef struct kedge_shuffle {
  kedge_shuffle_mode mode;
  uint64_t seed;
  uint32_t layers, experts;
  uint32_t *sigma;      /* [L,E]: the shuffled pi'[e] is pi[sigma[e]] */
  char communities[33]; /* hash of the partitions, whatever their labels; "" for global */
} kedge_shuffle;

/* "within", "global". */
const char *kedge_shuffle_mode_name(kedge_shuffle_mode mode);
bool kedge_shuffle_mode_find(const char *name, kedge_shuffle_mode *mode);

/* Draws the permutations. Those of MoE layer l come from the random stream (seed, l) alone: global, one
 * Fisher-Yates of all experts; within, one of the ascending members of each community, communities in the
 * order of their smallest members, one stream for all of them; a single member draws nothing. `communities`
 * is for within, else NULL. ERR_ARGUMENT for bad sizes or none where they are needed; ERR_MISMATCH if they
 * are of another size. */
kedge_status kedge_shuffle_init(kedge_shuffle *shuffle, kedge_shuffle_mode mode, uint64_t seed,
                                const kedge_communities *communities, uint32_t layers, uint32_t experts);
void kedge_shuffle_destroy(kedge_shuffle *shuffle);

#endif
