/* SPDX-License-Identifier: Apache-2.0
 * Does a prior belong to a run? (prior.h) */
#include "models/prior/prior_internal.h"

#include "models/text/random.h"

#include <string.h>

/* Rows that are looked at before a run; each maps the pages around it too, which go after some rows. */
enum { SAMPLED = 1000, DROP_EVERY = 64 };

static kedge_status check_data(const kedge_prior *p, const kedge_prior_identity *id) {
  const kedge_prior_identity *own = &p->identity;
  const char *path = kedge_st_path(p->file);
  if (!strcmp(own->data, id->data)) return KEDGE_OK;
  if (*own->templates && *id->templates && strcmp(own->templates, id->templates))
    return kedge_fail(
        KEDGE_ERR_MISMATCH,
        "%s: prior of other data: made with the template \"%s\", this run has \"%s\" (data hash "
        "%s, here %s)",
        path, own->templates, id->templates, own->data, id->data);
  if (own->max_length != id->max_length)
    return kedge_fail(
        KEDGE_ERR_MISMATCH,
        "%s: prior made with max_length %u, this run has %u, and some samples are cut otherwise; "
        "`kedge prior --config RUN.yaml` takes the run's own",
        path, own->max_length, id->max_length);
  return kedge_fail(KEDGE_ERR_MISMATCH,
                    "%s: prior of other data (hash %s, this run's samples have %s): other files or order",
                    path, own->data, id->data);
}

static kedge_status check_identity(const kedge_prior *p, const kedge_prior_identity *id,
                                   const kedge_params *params) {
  const kedge_prior_identity *own = &p->identity;
  const struct {
    const char *part, *own, *here;
  } parts[] = {
      {"base model: other tensors in its files", own->tensors, id->tensors},
      {"base model: other router weights", own->router, id->router},
      {"base model: other weights or model_options", own->base, id->base},
      {"base model: another config.json", own->config, id->config},
      {"tokenizer", own->tokenizer, id->tokenizer},
  };
  if (p->moe_layers != params->moe_layers || p->experts != params->config.num_experts)
    return kedge_fail(
        KEDGE_ERR_MISMATCH, "%s: prior of %u MoE layers with %u experts, the model has %u with %u",
        kedge_st_path(p->file), p->moe_layers, p->experts, params->moe_layers, params->config.num_experts);
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    if (*parts[i].own && *parts[i].here && strcmp(parts[i].own, parts[i].here))
      return kedge_fail(KEDGE_ERR_MISMATCH, "%s: prior of another %s (hash %s, here %s)",
                        kedge_st_path(p->file), parts[i].part, parts[i].own, parts[i].here);
  return check_data(p, id);
}

static kedge_status check_layers(const kedge_prior *p, const kedge_params *params) {
  for (uint32_t l = 0; l < p->moe_layers; l++) {
    const int32_t layer = kedge_prior_layer(p, l);
    if (layer < 0 || (uint32_t)layer != kedge_params_moe_layer(params, l))
      return kedge_fail(KEDGE_ERR_MISMATCH, "%s: layers[%u] is %d, MoE layer %u of the model is layer %u",
                        kedge_st_path(p->file), l, layer, l, kedge_params_moe_layer(params, l));
  }
  return KEDGE_OK;
}

static kedge_status check_sample(const kedge_prior *p, const kedge_dataset *d, uint32_t i) {
  int32_t counts[2], want[2] = {0, 0};
  int64_t id;
  memcpy(&id, p->ids->data + 8ull * i, sizeof id);
  kedge__prior_counts(p, i, counts);
  for (uint64_t t = d->offsets[i]; t < d->offsets[i + 1]; t++) want[d->spans[t] != 0]++;
  if (id == (int64_t)d->sample_ids[i] && counts[0] == want[0] && counts[1] == want[1]) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_MISMATCH,
                    "%s: row %u is sample %lld with %d prompt and %d answer tokens, the data has sample "
                    "%llu with %d and %d",
                    kedge_st_path(p->file), i, (long long)id, counts[0], counts[1],
                    (unsigned long long)d->sample_ids[i], want[0], want[1]);
}

/* One row at a random place of each of SAMPLED equal parts of the file, and the first and the last; added to
 * `hash`, if there is one, as an intervention reads them. */
static kedge_status check_rows(const kedge_prior *p, kedge_hash *hash) {
  const uint64_t rows = (uint64_t)p->samples * 2 * p->moe_layers,
                 parts = rows < SAMPLED ? rows : (uint64_t)SAMPLED;
  kedge_random random = kedge_random_start(0, 0);
  float *pi = kedge_alloc(p->experts, sizeof *pi);
  if (!pi) return KEDGE_ERR_MEMORY;
  kedge_status status = KEDGE_OK;
  for (uint64_t i = 0; i < parts && status == KEDGE_OK; i++) {
    const uint64_t begin = rows * i / parts, end = rows * (i + 1) / parts;
    uint64_t row = begin + kedge_random_below(&random, end - begin);
    if (!i) row = 0;
    if (i + 1 == parts) row = rows - 1;
    const uint32_t sample = (uint32_t)(row / p->moe_layers / 2), span = (uint32_t)(row / p->moe_layers % 2);
    int32_t counts[2];
    kedge__prior_counts(p, sample, counts);
    if (counts[span]) status = kedge__prior_read_row(p, sample, span, (uint32_t)(row % p->moe_layers), pi);
    if (hash && counts[span] && status == KEDGE_OK) kedge_hash_add(hash, pi, p->experts * sizeof *pi);
    if (i % DROP_EVERY == DROP_EVERY - 1) kedge_st_drop(p->prior);
  }
  kedge_free(pi);
  kedge_st_drop(p->prior);
  return status;
}

kedge_status kedge_prior_check(const kedge_prior *p, const kedge_prior_identity *id,
                               const kedge_params *params, const kedge_dataset *dataset) {
  KEDGE_TRY(check_identity(p, id, params));
  KEDGE_TRY(check_layers(p, params));
  if (p->samples != dataset->count)
    return kedge_fail(KEDGE_ERR_MISMATCH, "%s: prior of %u samples, the data has %u", kedge_st_path(p->file),
                      p->samples, dataset->count);
  for (uint32_t i = 0; i < p->samples; i++) KEDGE_TRY(check_sample(p, dataset, i));
  return check_rows(p, NULL);
}

kedge_status kedge_prior_hash(const kedge_prior *p, kedge_hash *hash) {
  kedge_hash_add_u64(hash, p->samples);
  kedge_hash_add_u64(hash, p->moe_layers);
  kedge_hash_add_u64(hash, p->experts);
  kedge_hash_add_u64(hash, p->prior->dtype);
  kedge_hash_add_text(hash, p->shuffled);
  return check_rows(p, hash);
}
