/* SPDX-License-Identifier: Apache-2.0
 * Rotary frequencies (rope.h); the rotation itself is core/ops/attention.c. */
#include "models/decoder/rope.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

/* The index, counted in elements of the width, whose pair turns `rotations` times over the original context.
 */
static double turning_index(const kedge_rope_config *rope, uint32_t width, double rotations) {
  return width * log(rope->original_max_position_embeddings / (rotations * 2 * pi)) / (2 * log(rope->theta));
}

void kedge_rope_frequencies(const kedge_rope_config *rope, uint32_t width, double *frequencies) {
  for (uint32_t i = 0; i < width / 2; i++) frequencies[i] = pow(rope->theta, -2.0 * i / (double)width);
  if (rope->type != KEDGE_ROPE_YARN) return;
  double low = turning_index(rope, width, rope->beta_fast),
         high = turning_index(rope, width, rope->beta_slow);
  if (rope->truncate) {
    low = floor(low);
    high = ceil(high);
  }
  low = fmax(low, 0);
  high = fmin(high, (double)width - 1);
  if (!(high != low)) high = low + 1e-3;
  /* Pairs that turn often keep their frequency, those that never turn once are slowed down by the factor. */
  for (uint32_t i = 0; i < width / 2; i++) {
    double slowed = fmin(fmax((i - low) / (high - low), 0), 1);
    frequencies[i] *= slowed / rope->factor + (1 - slowed);
  }
}

uint32_t kedge_rope_width(const kedge_hf_config *config) {
  return config->kv_lora_rank ? config->qk_rope_head_dim : config->head_dim;
}

static double magnitude(double factor, double scale) {
  return factor > 1 ? 0.1 * scale * log(factor) + 1 : 1;
}

double kedge_rope_magnitude(const kedge_rope_config *rope) {
  if (rope->type != KEDGE_ROPE_YARN) return 1;
  if (rope->attention_factor > 0) return rope->attention_factor;
  if (rope->mscale > 0 && rope->mscale_all_dim > 0)
    return magnitude(rope->factor, rope->mscale) / magnitude(rope->factor, rope->mscale_all_dim);
  return magnitude(rope->factor, 1);
}

double kedge_rope_score_scale(const kedge_rope_config *rope) {
  if (rope->type != KEDGE_ROPE_YARN || !(rope->mscale_all_dim > 0)) return 1;
  const double m = magnitude(rope->factor, rope->mscale_all_dim);
  return m * m;
}
