/* SPDX-License-Identifier: Apache-2.0
 *
 * Rank replacement: another model's expert in one place of a token's choice. Users: the steered evaluation
 * (models/evaluation/steer.h) and models/retention/selection.h.
 */
#ifndef KEDGE_MODELS_ROUTING_REPLACE_H
#define KEDGE_MODELS_ROUTING_REPLACE_H

#include "core/kedge.h"

/* Puts other[rank - 1] in the place rank - 1 of own [k], both best first, rank from 1 to k. Where own has
 * that expert already, the two places are exchanged: the token's experts stay the same, none stands twice,
 * and all ranks replaced one after another give `other`. Rows of -1 (padding) stay. */
void kedge_rank_replace(int32_t *own, const int32_t *other, uint32_t k, uint32_t rank);

#endif
