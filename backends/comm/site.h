/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a collective op works (kedge_site of core/collect.h): in host memory over the transport, or in a
 * device's own memory over what carries it. The ops are written once, over these few functions, so that both
 * ways give the same bits. For collectives.c and rows.c. */
#ifndef KEDGE_COMM_SITE_H
#define KEDGE_COMM_SITE_H

#include "core/collect.h"

/* One member's part of a step: for each member a parcel to send and one to receive. */
typedef struct traffic {
  kedge_parcel *to, *from;
  uint32_t size, rank;
} traffic;

kedge_status kedge__traffic_init(traffic *traffic, const kedge_site *site, kedge_ranks group);
void kedge__traffic_destroy(traffic *traffic);

/* Nobody to exchange anything with. */
bool kedge__site_alone(const kedge_site *site, kedge_ranks group);
kedge_status kedge__site_exchange(const kedge_site *site, kedge_ranks group, const kedge_parcel *to,
                                  const kedge_parcel *from);
kedge_status kedge__site_copy(const kedge_site *site, void *to, const void *from, uint64_t bytes);
kedge_status kedge__site_clear(const kedge_site *site, void *at, uint64_t bytes);
kedge_status kedge__site_add(const kedge_site *site, const kedge_addition *addition);

/* Bytes that all_to_all_rows needs beside its tensors (rows.c). */
uint64_t kedge__rows_scratch(const kedge_call *call);

#endif
