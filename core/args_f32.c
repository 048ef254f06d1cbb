/* SPDX-License-Identifier: Apache-2.0
 * Sizes of the argument structs as kernels with float reals see them; op.c has the double ones. */
#undef KEDGE_REAL
#define KEDGE_REAL float
#include "core/args.h"

#include <stddef.h>

extern const size_t kedge__args_size_f32[];
const size_t kedge__args_size_f32[] = {
#define KEDGE_OP(name, ...) sizeof(kedge_args_##name),
#include "core/ops.def"
#undef KEDGE_OP
};

/* An odd number of u32 would put a hole before the doubles of the other version. */
#define KEDGE_OP(name, ...) _Static_assert(sizeof(kedge_args_##name) % 4 == 0, "args of " #name);
#include "core/ops.def"
#undef KEDGE_OP
