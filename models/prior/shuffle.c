/* SPDX-License-Identifier: Apache-2.0
 * Permutations of experts, inside communities or over all (shuffle.h). */
#include "models/prior/shuffle.h"

#include "models/checkpoint/hash.h"
#include "models/text/random.h"

#include <string.h>

enum { MOST = 65536 };

/* Labels are canonical, so that the hash does not depend on how communities were numbered. */
static kedge_status hash_communities(const kedge_communities *c, char text[33]) {
  kedge_hash *hash = kedge_hash_new();
  if (!hash) return KEDGE_ERR_MEMORY;
  kedge_hash_add_u64(hash, c->layers);
  kedge_hash_add_u64(hash, c->experts);
  for (size_t i = 0; i < (size_t)c->layers * c->experts; i++) kedge_hash_add_u64(hash, c->labels[i]);
  kedge_hash_text(hash, text);
  kedge_hash_free(hash);
  return KEDGE_OK;
}

static const char *const mode_names[] = {"within", "global"};

const char *kedge_shuffle_mode_name(kedge_shuffle_mode mode) {
  return mode_names[mode];
}

bool kedge_shuffle_mode_find(const char *name, kedge_shuffle_mode *mode) {
  for (unsigned i = 0; i < sizeof mode_names / sizeof *mode_names; i++)
    if (!strcmp(name, mode_names[i])) {
      *mode = (kedge_shuffle_mode)i;
      return true;
    }
  return false;
}

/* Canonical labels number the communities by their smallest members, so that 0, 1, ... is the order. members
 * and order are room for E numbers each. */
static void draw_within(kedge_random *random, const uint32_t *labels, uint32_t experts, uint32_t *members,
                        uint32_t *order, uint32_t *sigma) {
  uint32_t count = 1;
  for (uint32_t label = 0; count; label++) {
    count = 0;
    for (uint32_t e = 0; e < experts; e++)
      if (labels[e] == label) members[count++] = e;
    memcpy(order, members, count * sizeof *order);
    kedge_random_shuffle(random, order, count);
    for (uint32_t i = 0; i < count; i++) sigma[members[i]] = order[i];
  }
}

static kedge_status draw(kedge_shuffle *s, const kedge_communities *communities) {
  uint32_t *room = kedge_alloc(2 * (size_t)s->experts, sizeof *room);
  s->sigma = kedge_alloc((size_t)s->layers * s->experts, sizeof *s->sigma);
  kedge_status status = room && s->sigma ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (communities && status == KEDGE_OK) status = hash_communities(communities, s->communities);
  for (uint32_t l = 0; status == KEDGE_OK && l < s->layers; l++) {
    uint32_t *sigma = s->sigma + (size_t)l * s->experts;
    kedge_random random = kedge_random_start(s->seed, l);
    for (uint32_t e = 0; e < s->experts; e++) sigma[e] = e;
    if (communities)
      draw_within(&random, communities->labels + (size_t)l * s->experts, s->experts, room, room + s->experts,
                  sigma);
    else
      kedge_random_shuffle(&random, sigma, s->experts);
  }
  kedge_free(room);
  if (status != KEDGE_OK) kedge_shuffle_destroy(s);
  return status;
}

kedge_status kedge_shuffle_init(kedge_shuffle *s, kedge_shuffle_mode mode, uint64_t seed,
                                const kedge_communities *communities, uint32_t layers, uint32_t experts) {
  const bool within = mode == KEDGE_SHUFFLE_WITHIN;
  *s = (kedge_shuffle){.mode = mode, .seed = seed, .layers = layers, .experts = experts};
  if (!layers || !experts || layers > MOST || experts > MOST)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "shuffle of %u layers with %u experts", layers, experts);
  if (within && !communities)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "shuffle within: needs the communities of the base");
  if (!within && communities)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "shuffle global: communities have no part in it");
  if (within && (communities->layers != layers || communities->experts != experts))
    return kedge_fail(KEDGE_ERR_MISMATCH,
                      "communities of %u layers with %u experts, the prior has %u with %u",
                      communities->layers, communities->experts, layers, experts);
  return draw(s, communities);
}

void kedge_shuffle_destroy(kedge_shuffle *s) {
  kedge_free(s->sigma);
  s->sigma = NULL;
}
