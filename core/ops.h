/* SPDX-License-Identifier: Apache-2.0
 * Builders, one an op. */
#ifndef KEDGE_OPS_H
#define KEDGE_OPS_H
#endif
