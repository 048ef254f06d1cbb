/* SPDX-License-Identifier: Apache-2.0
 * Key/value cache. */
#include "models/decoder/cache.h"

struct kedge_cache {
  kedge_dtype dtype;
  uint32_t rows, layers;
  uint32_t widths[2];     /* of a row of keys and of values */
  kedge_buffer **buffers; /* keys of layer l at 2l, values at 2l + 1 */
};

kedge_status kedge_cache_new(const kedge_model *model, uint32_t rows, kedge_cache **out) {
  const kedge_hf_config *c = &model->config;
  kedge_cache *cache = *out = kedge_alloc(1, sizeof *cache);
  if (!cache) return KEDGE_ERR_MEMORY;
  *cache =
      (kedge_cache){.dtype = model->dtype,
                    .rows = rows,
                    .layers = c->num_hidden_layers,
                    .widths = {c->num_key_value_heads * c->head_dim, c->num_key_value_heads * c->v_head_dim}};
  cache->buffers = kedge_alloc((size_t)cache->layers * 2, sizeof *cache->buffers);
  kedge_status status = cache->buffers ? KEDGE_OK : KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; status == KEDGE_OK && i < cache->layers * 2; i++)
    status = kedge_buffer_new(model->device,
                              (uint64_t)rows * cache->widths[i % 2] * kedge_dtype_size(cache->dtype),
                              &cache->buffers[i]);
  if (status != KEDGE_OK) {
    kedge_cache_free(cache);
    *out = NULL;
  }
  return status;
}

void kedge_cache_free(kedge_cache *cache) {
  if (!cache) return;
  for (uint32_t i = 0; cache->buffers && i < cache->layers * 2; i++) kedge_buffer_free(cache->buffers[i]);
  kedge_free(cache->buffers);
  kedge_free(cache);
}

uint64_t kedge_cache_bytes(const kedge_cache *cache) {
  const uint64_t width = (uint64_t)cache->widths[0] + cache->widths[1];
  return width * cache->layers * cache->rows * kedge_dtype_size(cache->dtype);
}

void kedge_cache_values(const kedge_cache *cache, kedge_graph *graph, uint32_t layer, kedge_value *keys,
                        kedge_value *values) {
  const uint32_t k_dims[] = {cache->rows, cache->widths[0]}, v_dims[] = {cache->rows, cache->widths[1]};
  *keys = kedge_parameter(graph, "cache.keys", cache->dtype, 2, k_dims, cache->buffers[2 * layer], 0);
  *values = kedge_parameter(graph, "cache.values", cache->dtype, 2, v_dims, cache->buffers[2 * layer + 1], 0);
}
