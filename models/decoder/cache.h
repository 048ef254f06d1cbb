/* SPDX-License-Identifier: Apache-2.0
 * Key/value cache of a generation: per layer keys [rows, Hkv*dqk] and values [rows, Hkv*dv] on the model's
 * device. */
#ifndef KEDGE_MODELS_DECODER_CACHE_H
#define KEDGE_MODELS_DECODER_CACHE_H

#include "models/decoder/decoder.h"

/* `rows` cache rows for every layer, shared by all sequences of a batch (each has a range of rows). Owned by
 * the caller. */
kedge_status kedge_cache_new(const kedge_model *model, uint32_t rows, kedge_cache **cache);
void kedge_cache_free(kedge_cache *cache);
uint64_t kedge_cache_bytes(const kedge_cache *cache);
/* The cache of a layer as parameters of a graph. */
void kedge_cache_values(const kedge_cache *cache, kedge_graph *graph, uint32_t layer, kedge_value *keys,
                        kedge_value *values);

#endif
