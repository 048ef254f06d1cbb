/* SPDX-License-Identifier: Apache-2.0
 *
 * What tells a backend's module from one of another version (module.c): the sizes of all that passes between,
 * in one number, so that a member more in an op's arguments or in the contract is noticed without anybody's
 * counting versions. What changes its meaning and no size needs another KEDGE_MODULE_VERSION (device.h).
 */
#ifndef KEDGE_MODULE_H
#define KEDGE_MODULE_H

#include "core/device.h"

/* `args`: the sum of an op's place, counted from 1, times the bytes of its arguments with float reals. */
#define KEDGE_MODULE_CONTRACT(args)                                                                          \
  ((uint32_t)(KEDGE_MODULE_VERSION +                                                                         \
              61 * ((uint64_t)(args) +                                                                       \
                    61 * (sizeof(kedge_open_options) +                                                       \
                          61 * (sizeof(kedge_device) +                                                       \
                                61 * (sizeof(kedge_backend) +                                                \
                                      61 * (sizeof(kedge_limits) + 61 * sizeof(struct kedge_buffer))))))))

/* The same sum where reals are floats, as they are in modules. */
#define KEDGE_OP(name, ...) +(KEDGE_OP_##name + 1) * (int)sizeof(kedge_args_##name)
enum {
  KEDGE_MODULE_ARGS = 0
#include "core/ops.def"
};
#undef KEDGE_OP

#endif
