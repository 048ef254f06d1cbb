/* SPDX-License-Identifier: Apache-2.0
 * The prior's file; prior_compute.c makes it, prior_fill.c makes tables of it,
 * prior_check.c compares it with a run. */
#include "models/prior/prior_internal.h"

#include "models/checkpoint/convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static kedge_status find(kedge_prior *p, const char *name, kedge_st_dtype dtype, uint32_t rank,
                         const kedge_st_tensor **tensor) {
  *tensor = kedge_st_find(p->file, name);
  if (*tensor && (*tensor)->dtype == dtype && (*tensor)->rank == rank) return KEDGE_OK;
  if (!*tensor)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: no tensor %s: not a file that `kedge prior` wrote",
                      kedge_st_path(p->file), name);
  return kedge_fail(KEDGE_ERR_FORMAT, "%s: tensor %s: expected %s with %u dimensions, got %s with %u",
                    kedge_st_path(p->file), name, kedge_st_dtype_name(dtype), rank,
                    kedge_st_dtype_name((*tensor)->dtype), (*tensor)->rank);
}

/* A hash of the metadata; files of version 1 lack those of `late`. */
static kedge_status hash_of(const kedge_prior *p, const char *key, bool late, char hash[33]) {
  const char *text = kedge_st_metadata(p->file, key);
  if (late && !text && p->version == 1) return KEDGE_OK;
  if (!text || strlen(text) != 32 || strspn(text, "0123456789abcdef") != 32)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: metadata %s: expected 32 hex digits, got %.40s",
                      kedge_st_path(p->file), key, text ? text : "nothing");
  memcpy(hash, text, 33);
  return KEDGE_OK;
}

/* A number of 1 or more; `absent` where the key may be missing. */
static kedge_status number_of(const kedge_prior *p, const char *key, const char *what, bool absent,
                              uint32_t *number) {
  const char *text = kedge_st_metadata(p->file, key);
  size_t digits = text ? strspn(text, "0123456789") : 0;
  unsigned long long value = digits && digits < 11 && !text[digits] ? strtoull(text, NULL, 10) : 0;
  if (!text && absent) return KEDGE_OK;
  if (!value || value > UINT32_MAX)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: metadata %s: expected %s, got %.40s", kedge_st_path(p->file),
                      key, what, text ? text : "nothing");
  *number = (uint32_t)value;
  return KEDGE_OK;
}

static kedge_status read_identity(kedge_prior *p) {
  kedge_prior_identity *id = &p->identity;
  KEDGE_TRY(hash_of(p, "base_hash", false, id->base));
  KEDGE_TRY(hash_of(p, "config_hash", true, id->config));
  KEDGE_TRY(hash_of(p, "tensor_table_hash", true, id->tensors));
  KEDGE_TRY(hash_of(p, "router_hash", true, id->router));
  KEDGE_TRY(hash_of(p, "tokenizer_hash", false, id->tokenizer));
  KEDGE_TRY(hash_of(p, "data_hash", false, id->data));
  KEDGE_TRY(number_of(p, "max_length", "a number of tokens", false, &id->max_length));
  KEDGE_TRY(number_of(p, "top_k", "a number of experts", true, &p->top_k));
  const char *text = kedge_st_metadata(p->file, "template");
  if (p->version == 1) return KEDGE_OK;
  if (!text || strlen(text) >= sizeof id->templates)
    return kedge_fail(KEDGE_ERR_FORMAT,
                      "%s: metadata template: expected a text of at most %zu bytes, got %.40s",
                      kedge_st_path(p->file), sizeof id->templates - 1, text ? text : "nothing");
  memcpy(id->templates, text, strlen(text) + 1);
  return KEDGE_OK;
}

static kedge_status read_shuffle(kedge_prior *p) {
  const char *mode = kedge_st_metadata(p->file, "shuffle"),
             *seed = kedge_st_metadata(p->file, "shuffle_seed"),
             *communities = kedge_st_metadata(p->file, "communities_hash");
  p->shuffled = !mode ? kedge_strdup("")
                      : kedge_format("%.40s, seed %.40s%s%.40s", mode, seed ? seed : "unknown",
                                     communities ? ", communities " : "", communities ? communities : "");
  return p->shuffled ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

static kedge_status read_header(kedge_prior *p) {
  const char *version = kedge_st_metadata(p->file, "kedge_prior");
  const kedge_st_tensor *stored = kedge_st_find(p->file, "prior_qa");
  const bool half = stored && stored->dtype == KEDGE_ST_F16;
  KEDGE_TRY(find(p, "prior_qa", half ? KEDGE_ST_F16 : KEDGE_ST_F32, 4, &p->prior));
  KEDGE_TRY(find(p, "counts", KEDGE_ST_I32, 2, &p->counts));
  KEDGE_TRY(find(p, "sample_ids", KEDGE_ST_I64, 1, &p->ids));
  KEDGE_TRY(find(p, "layers", KEDGE_ST_I32, 1, &p->layers));
  if (!version || (strcmp(version, "1") && strcmp(version, "2")))
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: metadata kedge_prior: expected version 1 or 2, got %.40s",
                      kedge_st_path(p->file), version ? version : "nothing");
  p->version = (uint32_t)(*version - '0');
  const uint64_t *s = p->prior->shape;
  if (s[0] > INT32_MAX || s[1] != 2 || !s[2] || s[2] > 65536 || !s[3] || s[3] > 65536 ||
      p->counts->shape[0] != s[0] || p->counts->shape[1] != 2 || p->ids->shape[0] != s[0] ||
      p->layers->shape[0] != s[2])
    return kedge_fail(KEDGE_ERR_FORMAT,
                      "%s: the shapes of prior_qa, counts, sample_ids and layers do not fit together",
                      kedge_st_path(p->file));
  p->samples = (uint32_t)s[0];
  p->moe_layers = (uint32_t)s[2];
  p->experts = (uint32_t)s[3];
  KEDGE_TRY(read_identity(p));
  return read_shuffle(p);
}

kedge_status kedge_prior_open(const char *path, kedge_prior **out) {
  kedge_prior *p = *out = kedge_alloc(1, sizeof *p);
  if (!p) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge_st_open(path, &p->file);
  if (status == KEDGE_OK) status = read_header(p);
  if (status != KEDGE_OK) {
    kedge_prior_free(p);
    *out = NULL;
  }
  return status;
}

void kedge_prior_free(kedge_prior *p) {
  if (!p) return;
  kedge_st_close(p->file);
  kedge_free(p->shuffled);
  kedge_free(p->sigma);
  kedge_free(p);
}

uint32_t kedge_prior_samples(const kedge_prior *p) {
  return p->samples;
}
uint32_t kedge_prior_layers(const kedge_prior *p) {
  return p->moe_layers;
}
uint32_t kedge_prior_experts(const kedge_prior *p) {
  return p->experts;
}
int32_t kedge_prior_layer(const kedge_prior *p, uint32_t index) {
  int32_t layer;
  memcpy(&layer, p->layers->data + 4ull * index, sizeof layer);
  return layer;
}
bool kedge_prior_is_exact(const kedge_prior *p) {
  return p->prior->dtype == KEDGE_ST_F32;
}
kedge_status kedge_prior_require_exact(const kedge_prior *p) {
  if (kedge_prior_is_exact(p)) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_MISMATCH,
                    "%s: holds f16, which loses probabilities below the clip: kl and logit_l2 need one of "
                    "`kedge prior --store f32`",
                    kedge_st_path(p->file));
}
kedge_prior_identity kedge_prior_get_identity(const kedge_prior *p) {
  return p->identity;
}

uint32_t kedge_prior_version(const kedge_prior *p) {
  return p->version;
}
uint32_t kedge_prior_top_k(const kedge_prior *p) {
  return p->top_k;
}
const char *kedge_prior_shuffled(const kedge_prior *p) {
  return p->shuffled;
}

kedge_status kedge_prior_set_shuffle(kedge_prior *p, const kedge_shuffle *shuffle) {
  const size_t count = (size_t)p->moe_layers * p->experts;
  if (shuffle->layers != p->moe_layers || shuffle->experts != p->experts)
    return kedge_fail(KEDGE_ERR_MISMATCH,
                      "%s: prior of %u MoE layers with %u experts, the shuffle has %u with %u",
                      kedge_st_path(p->file), p->moe_layers, p->experts, shuffle->layers, shuffle->experts);
  if (*p->shuffled)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: is shuffled already (%s)", kedge_st_path(p->file),
                      p->shuffled);
  uint32_t *sigma = kedge_alloc(count, sizeof *sigma);
  if (!sigma) return KEDGE_ERR_MEMORY;
  memcpy(sigma, shuffle->sigma, count * sizeof *sigma);
  kedge_free(p->sigma);
  p->sigma = sigma;
  return KEDGE_OK;
}

static kedge_status check_communities(const kedge_prior *p, const kedge_communities *c) {
  for (uint32_t l = 0; c->layer_numbers && c->layers == p->moe_layers && l < c->layers; l++) {
    const int32_t layer = kedge_prior_layer(p, l);
    if (layer != c->layer_numbers[l])
      return kedge_fail(KEDGE_ERR_MISMATCH, "layer_numbers[%u] is %d, MoE layer %u of the prior is layer %d",
                        l, c->layer_numbers[l], l, layer);
  }
  return KEDGE_OK;
}

kedge_status kedge_prior_draw_shuffle(const kedge_prior *p, kedge_shuffle_mode mode, uint64_t seed,
                                      const char *communities, kedge_shuffle *shuffle) {
  kedge_communities c = {.layers = 0};
  *shuffle = (kedge_shuffle){.mode = mode};
  if (communities) {
    KEDGE_TRY(kedge_communities_load(communities, &c));
    kedge_status status = check_communities(p, &c);
    if (status == KEDGE_OK) status = kedge_shuffle_init(shuffle, mode, seed, &c, p->moe_layers, p->experts);
    kedge_communities_destroy(&c);
    return status == KEDGE_ERR_MISMATCH ? kedge_fail_in(status, "%s", communities) : status;
  }
  return kedge_shuffle_init(shuffle, mode, seed, NULL, p->moe_layers, p->experts);
}

uint32_t kedge__prior_row_of(const kedge_prior *p, uint64_t id) {
  uint32_t low = 0, high = p->samples;
  while (low < high) {
    uint32_t mid = low + (high - low) / 2;
    int64_t at;
    memcpy(&at, p->ids->data + 8ull * mid, 8);
    if (at == (int64_t)id) return mid;
    if (at < (int64_t)id)
      low = mid + 1;
    else
      high = mid;
  }
  return UINT32_MAX;
}

void kedge__prior_counts(const kedge_prior *p, uint32_t row, int32_t counts[2]) {
  memcpy(counts, p->counts->data + 8ull * row, 8);
}

kedge_status kedge__prior_read_row(const kedge_prior *p, uint32_t row, uint32_t span, uint32_t layer,
                                   float *pi) {
  const uint64_t at = (((uint64_t)row * 2 + span) * p->moe_layers + layer) * p->experts;
  const kedge_st_dtype dtype = p->prior->dtype;
  const uint32_t size = kedge_st_dtype_size(dtype);
  const uint8_t *from = p->prior->data + at * size;
  const uint32_t *sigma = p->sigma ? p->sigma + (size_t)layer * p->experts : NULL;
  double sum = 0;
  bool valid = true;
  if (!sigma) KEDGE_TRY(kedge_convert_floats(pi, KEDGE_ST_F32, from, dtype, p->experts));
  for (uint32_t e = 0; e < p->experts; e++) {
    if (sigma)
      KEDGE_TRY(kedge_convert_floats(&pi[e], KEDGE_ST_F32, from + (size_t)sigma[e] * size, dtype, 1));
    valid &= isfinite(pi[e]) && pi[e] >= 0;
    sum += (double)pi[e];
  }
  if (valid && fabs(sum - 1) <= 1e-3) return KEDGE_OK;
  return kedge_fail(
      KEDGE_ERR_FORMAT,
      "%s: prior_qa row (sample %u, span %u, layer %u): expected probabilities that sum to 1, got sum %g",
      kedge_st_path(p->file), row, span, layer, sum);
}
