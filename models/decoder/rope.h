/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary frequencies of a model, plain or stretched by YaRN (arXiv 2309.00071). */
#ifndef KEDGE_MODELS_DECODER_ROPE_H
#define KEDGE_MODELS_DECODER_ROPE_H

#include "models/checkpoint/hf_config.h"

/* frequencies [width/2] of a rotated width (even): radians a position. */
void kedge_rope_frequencies(const kedge_rope_config *rope, uint32_t width, double *frequencies);

/* What YaRN multiplies rotated queries and keys by, each; 1 without YaRN. Where the whole head is rotated,
 * scores grow by its square. */
double kedge_rope_magnitude(const kedge_rope_config *rope);

#endif
