/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays of floats between F32, BF16 and F16, as they lie in a file. */
#ifndef KEDGE_MODELS_CHECKPOINT_CONVERT_H
#define KEDGE_MODELS_CHECKPOINT_CONVERT_H

#include "models/checkpoint/safetensors.h"

/* Converts `count` elements. Narrowing rounds to nearest even; what is too large becomes infinity, NaN stays
 * NaN, and denormals are kept. Neither array need be aligned; they may be the same memory only where the
 * dtypes are equal. ERR_UNSUPPORTED for other dtypes. */
kedge_status kedge_convert_floats(void *to, kedge_st_dtype to_dtype, const void *from,
                                  kedge_st_dtype from_dtype, uint64_t count);

/* The first of `count` elements that is infinite or not a number; `count` if there is none. */
uint64_t kedge_floats_not_finite(const void *data, kedge_st_dtype dtype, uint64_t count);

float kedge_f16_to_f32(uint16_t bits);
uint16_t kedge_f32_to_f16(float value);

#endif
