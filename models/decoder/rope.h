/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary frequencies of a model, plain or stretched by YaRN (arXiv 2309.00071). */
#ifndef KEDGE_MODELS_DECODER_ROPE_H
#define KEDGE_MODELS_DECODER_ROPE_H

#include "models/checkpoint/hf_config.h"

/* frequencies [width/2] of a rotated width (even): radians a position. */
void kedge_rope_frequencies(const kedge_rope_config *rope, uint32_t width, double *frequencies);

/* Width of a head that is rotated: all of it, or qk_rope_head_dim with latent attention. */
uint32_t kedge_rope_width(const kedge_hf_config *config);

/* What YaRN multiplies cos and sin by; 1 without YaRN. */
double kedge_rope_magnitude(const kedge_rope_config *rope);

/* What YaRN with mscale_all_dim multiplies the scale of q.k by in latent attention, of which only a part is
 * rotated; else 1. */
double kedge_rope_score_scale(const kedge_rope_config *rope);

#endif
