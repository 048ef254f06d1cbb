/* SPDX-License-Identifier: Apache-2.0
 *
 * Random numbers as a function of (seed, stream, counter): no hidden state, the same on every machine, and
 * any place of a stream is reached directly. The mixing function is splitmix64's.
 */
#ifndef KEDGE_MODELS_TEXT_RANDOM_H
#define KEDGE_MODELS_TEXT_RANDOM_H

#include <stdint.h>

typedef struct kedge_random {
  uint64_t key, counter;
} kedge_random;

static inline uint64_t kedge__random_mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/* The start of a stream; streams of one seed (an epoch, a row) are independent. */
static inline kedge_random kedge_random_start(uint64_t seed, uint64_t stream) {
  uint64_t inner = kedge__random_mix(seed + 0x9e3779b97f4a7c15u);
  return (kedge_random){.key = kedge__random_mix(inner ^ (stream + 1) * 0xd1342543de82ef95u), .counter = 0};
}

static inline uint64_t kedge_random_next(kedge_random *random) {
  random->counter++;
  return kedge__random_mix(random->key + random->counter * 0x9e3779b97f4a7c15u);
}

/* Uniform in [0, n), n >= 1, without bias: draws from the incomplete last interval are repeated. */
static inline uint64_t kedge_random_below(kedge_random *random, uint64_t n) {
  uint64_t limit = UINT64_MAX - (UINT64_MAX % n + 1) % n, draw;
  do draw = kedge_random_next(random);
  while (draw > limit);
  return draw % n;
}

/* A uniform permutation of order[0..count) in place (Fisher-Yates). */
static inline void kedge_random_shuffle(kedge_random *random, uint32_t *order, uint32_t count) {
  for (uint32_t i = count; i > 1; i--) {
    uint32_t j = (uint32_t)kedge_random_below(random, i), kept = order[i - 1];
    order[i - 1] = order[j];
    order[j] = kept;
  }
}

#endif
