/* SPDX-License-Identifier: Apache-2.0
 *
 * How alike two partitions of the same nodes are (partition.c):
 *
 *   NMI = 2 I / (H + H')                                    natural logs, arithmetic mean, in [0, 1]
 *   AMI = (I - E[I]) / ((H + H') / 2 - E[I])                E[I] exact, for random partitions of these sizes
 *   ARI = (index - expected) / (largest - expected)         over pairs of nodes
 *
 * NMI is not adjusted for chance: singletons against three pairs have NMI 0.76, but AMI and ARI 0. Equal
 * partitions have exactly 1 in all three, two single blocks too; one block against several has 0. Over no
 * node at all, every score is NaN.
 */
#ifndef KEDGE_MODELS_ROUTING_PARTITION_H
#define KEDGE_MODELS_ROUTING_PARTITION_H

#include "core/kedge.h"

typedef struct kedge_partition_scores {
  uint32_t nodes; /* compared */
  double nmi, ami, ari;
} kedge_partition_scores;

/* Compares labels a [a_count] and b [b_count], any numbers; only equality of labels matters. `use` [a_count]
 * may be NULL; else only nodes with a non-zero entry are compared. ERR_MISMATCH naming both sizes where they
 * differ; ERR_MEMORY. */
kedge_status kedge_partition_compare(const uint32_t *a, uint32_t a_count, const uint32_t *b, uint32_t b_count,
                                     const uint8_t *use, kedge_partition_scores *scores);
/* NMI alone, in time proportional to the nodes. */
kedge_status kedge_partition_nmi(const uint32_t *a, uint32_t a_count, const uint32_t *b, uint32_t b_count,
                                 double *nmi);

#endif
