/* SPDX-License-Identifier: Apache-2.0
 *
 * What is said when a forward pass meets numbers that are not finite: where, and which weight they came from.
 */
#ifndef KEDGE_MODELS_DECODER_FINITE_H
#define KEDGE_MODELS_DECODER_FINITE_H

#include "models/decoder/pass.h"

/* Records what was not finite and the first weight, in order of layers, that holds a NaN or an infinity, with
 * the element; where none does, the largest weight. Always ERR_NUMERIC. */
kedge_status kedge_not_finite(const kedge_model *model, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* After a pass has run: ERR_NUMERIC if a router's logits were not finite, naming the layer and the weight. */
kedge_status kedge_pass_check_routers(const kedge_pass *pass, const kedge_model *model);
/* The same of one MoE layer (its index among the MoE layers). */
kedge_status kedge_pass_check_router(const kedge_pass *pass, const kedge_model *model, uint32_t moe_layer);

#endif
