/* SPDX-License-Identifier: Apache-2.0
 * Parts of parameters by rank (ranges.h). */
#include "models/parallel/ranges.h"

kedge_layout kedge_layout_of(const kedge_comm *comm) {
  return (kedge_layout){kedge_comm_size(comm, KEDGE_RANKS_ALL), kedge_comm_size(comm, KEDGE_RANKS_EXPERTS)};
}

uint64_t kedge_range_total(const kedge_model *m, uint32_t item) {
  return kedge_param_total(&m->params.items[item]);
}

kedge_share kedge_range_kept(const kedge_model *m, uint32_t item, kedge_layout layout, uint32_t rank) {
  const uint64_t total = kedge_range_total(m, item);
  if (!kedge_role_is_expert(m->params.items[item].role) || layout.experts <= 1)
    return kedge_comm_share(total, layout.ranks, rank);
  const uint64_t each = total / layout.experts;
  kedge_share share = kedge_comm_share(each, layout.ranks / layout.experts, rank / layout.experts);
  share.start += each * (rank % layout.experts);
  return share;
}

kedge_share kedge_range_common(kedge_share a, kedge_share b) {
  const uint64_t start = a.start > b.start ? a.start : b.start;
  const uint64_t a_end = a.start + a.count, b_end = b.start + b.count, end = a_end < b_end ? a_end : b_end;
  return (kedge_share){start, end > start ? end - start : 0};
}
