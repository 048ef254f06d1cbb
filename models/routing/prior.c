/* SPDX-License-Identifier: Apache-2.0
 * The prior's file; prior_compute.c makes it, prior_fill.c makes tables of it. */
#include "models/routing/prior_internal.h"

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

static kedge_status hash_of(const kedge_prior *p, const char *key, char hash[33]) {
  const char *text = kedge_st_metadata(p->file, key);
  if (!text || strlen(text) != 32)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: metadata %s: expected 32 hex digits, got %s",
                      kedge_st_path(p->file), key, text ? text : "nothing");
  memcpy(hash, text, 33);
  return KEDGE_OK;
}

static kedge_status length_of(kedge_prior *p) {
  const char *text = kedge_st_metadata(p->file, "max_length");
  size_t digits = text ? strspn(text, "0123456789") : 0;
  unsigned long long value = digits && digits < 11 && !text[digits] ? strtoull(text, NULL, 10) : 0;
  if (!value || value > UINT32_MAX)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: metadata max_length: expected a number of tokens, got %.40s",
                      kedge_st_path(p->file), text ? text : "nothing");
  p->identity.max_length = (uint32_t)value;
  return KEDGE_OK;
}

static kedge_status read_header(kedge_prior *p) {
  const char *version = kedge_st_metadata(p->file, "kedge_prior");
  const kedge_st_tensor *stored = kedge_st_find(p->file, "prior_qa");
  const bool half = stored && stored->dtype == KEDGE_ST_F16;
  KEDGE_TRY(find(p, "prior_qa", half ? KEDGE_ST_F16 : KEDGE_ST_F32, 4, &p->prior));
  KEDGE_TRY(find(p, "counts", KEDGE_ST_I32, 2, &p->counts));
  KEDGE_TRY(find(p, "sample_ids", KEDGE_ST_I64, 1, &p->ids));
  KEDGE_TRY(find(p, "layers", KEDGE_ST_I32, 1, &p->layers));
  if (!version || strcmp(version, "1"))
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: metadata kedge_prior: expected version 1, got %.40s",
                      kedge_st_path(p->file), version ? version : "nothing");
  const uint64_t *s = p->prior->shape;
  if (s[0] > INT32_MAX || s[1] != 2 || s[2] > 65536 || s[3] > 65536 || p->counts->shape[0] != s[0] ||
      p->counts->shape[1] != 2 || p->ids->shape[0] != s[0] || p->layers->shape[0] != s[2])
    return kedge_fail(KEDGE_ERR_FORMAT,
                      "%s: the shapes of prior_qa, counts, sample_ids and layers do not fit together",
                      kedge_st_path(p->file));
  p->samples = (uint32_t)s[0];
  p->moe_layers = (uint32_t)s[2];
  p->experts = (uint32_t)s[3];
  KEDGE_TRY(hash_of(p, "base_hash", p->identity.base));
  KEDGE_TRY(hash_of(p, "tokenizer_hash", p->identity.tokenizer));
  KEDGE_TRY(hash_of(p, "data_hash", p->identity.data));
  return length_of(p);
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
bool kedge_prior_is_exact(const kedge_prior *p) {
  return p->prior->dtype == KEDGE_ST_F32;
}
kedge_prior_identity kedge_prior_get_identity(const kedge_prior *p) {
  return p->identity;
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
  uint64_t at = (((uint64_t)row * 2 + span) * p->moe_layers + layer) * p->experts;
  double sum = 0;
  KEDGE_TRY(kedge_convert_floats(pi, KEDGE_ST_F32, p->prior->data + at * kedge_st_dtype_size(p->prior->dtype),
                                 p->prior->dtype, p->experts));
  bool finite = true;
  for (uint32_t e = 0; e < p->experts; e++) {
    finite &= isfinite(pi[e]) && pi[e] >= 0;
    sum += (double)pi[e];
  }
  if (finite && fabs(sum - 1) <= 1e-3) return KEDGE_OK;
  return kedge_fail(
      KEDGE_ERR_FORMAT,
      "%s: prior_qa row (sample %u, span %u, layer %u): expected probabilities that sum to 1, got sum %g",
      kedge_st_path(p->file), row, span, layer, sum);
}

/* ---- Does a prior belong to a run
 * ----------------------------------------------------------------------------------- */

static kedge_status check_identity(const kedge_prior *p, const kedge_prior_identity *id,
                                   const kedge_params *params) {
  const char *path = kedge_st_path(p->file);
  if (p->moe_layers != params->moe_layers || p->experts != params->config.num_experts)
    return kedge_fail(KEDGE_ERR_MISMATCH,
                      "%s: prior of %u MoE layers with %u experts, the model has %u with %u", path,
                      p->moe_layers, p->experts, params->moe_layers, params->config.num_experts);
  if (strcmp(p->identity.base, id->base))
    return kedge_fail(KEDGE_ERR_MISMATCH, "%s: prior of another base model (hash %s, this model has %s)",
                      path, p->identity.base, id->base);
  if (strcmp(p->identity.tokenizer, id->tokenizer))
    return kedge_fail(KEDGE_ERR_MISMATCH,
                      "%s: prior made with another tokenizer (hash %s, this model has %s)", path,
                      p->identity.tokenizer, id->tokenizer);
  if (!strcmp(p->identity.data, id->data)) return KEDGE_OK;
  if (p->identity.max_length != id->max_length)
    return kedge_fail(
        KEDGE_ERR_MISMATCH,
        "%s: prior made with max_length %u, this run has %u, and some samples are cut otherwise; "
        "`kedge prior --config RUN.yaml` takes the run's own",
        path, p->identity.max_length, id->max_length);
  return kedge_fail(
      KEDGE_ERR_MISMATCH,
      "%s: prior of other data (hash %s, this run's samples have %s): other files, order or template", path,
      p->identity.data, id->data);
}

static kedge_status check_layers(const kedge_prior *p, const kedge_params *params) {
  for (uint32_t l = 0; l < p->moe_layers; l++) {
    int32_t layer;
    memcpy(&layer, p->layers->data + 4ull * l, sizeof layer);
    if (layer < 0 || (uint32_t)layer != kedge_params_moe_layer(params, l))
      return kedge_fail(KEDGE_ERR_MISMATCH, "%s: layers[%u] is %d, MoE layer %u of the model is layer %u",
                        kedge_st_path(p->file), l, layer, l, kedge_params_moe_layer(params, l));
  }
  return KEDGE_OK;
}

static kedge_status check_sample(const kedge_prior *p, const kedge_dataset *d, uint32_t i, float *pi) {
  int32_t counts[2], want[2] = {0, 0};
  int64_t id;
  memcpy(&id, p->ids->data + 8ull * i, sizeof id);
  memcpy(counts, p->counts->data + 8ull * i, sizeof counts);
  for (uint64_t t = d->offsets[i]; t < d->offsets[i + 1]; t++) want[d->spans[t] != 0]++;
  if (id != (int64_t)d->sample_ids[i] || counts[0] != want[0] || counts[1] != want[1])
    return kedge_fail(KEDGE_ERR_MISMATCH,
                      "%s: row %u is sample %lld with %d prompt and %d answer tokens, the data has sample "
                      "%llu with %d and %d",
                      kedge_st_path(p->file), i, (long long)id, counts[0], counts[1],
                      (unsigned long long)d->sample_ids[i], want[0], want[1]);
  for (uint32_t span = 0; span < 2; span++)
    for (uint32_t l = 0; counts[span] && l < p->moe_layers; l++)
      KEDGE_TRY(kedge__prior_read_row(p, i, span, l, pi));
  return KEDGE_OK;
}

kedge_status kedge_prior_check(const kedge_prior *p, const kedge_prior_identity *id,
                               const kedge_params *params, const kedge_dataset *dataset) {
  KEDGE_TRY(check_identity(p, id, params));
  KEDGE_TRY(check_layers(p, params));
  if (p->samples != dataset->count)
    return kedge_fail(KEDGE_ERR_MISMATCH, "%s: prior of %u samples, the data has %u", kedge_st_path(p->file),
                      p->samples, dataset->count);
  float *pi = kedge_alloc(p->experts, sizeof *pi);
  if (!pi) return KEDGE_ERR_MEMORY;
  kedge_status status = KEDGE_OK;
  for (uint32_t i = 0; i < p->samples && status == KEDGE_OK; i++) status = check_sample(p, dataset, i, pi);
  kedge_free(pi);
  return status;
}
