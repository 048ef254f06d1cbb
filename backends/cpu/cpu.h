/* SPDX-License-Identifier: Apache-2.0
 *
 * What the program may ask the CPU backend beyond the device contract: its instruction set, and how fast the
 * machine multiplies at best. cpu.c is the backend, peak.c measures. */
#ifndef KEDGE_CPU_CPU_H
#define KEDGE_CPU_CPU_H

#include "core/device.h"

/* "avx512" of an open `cpu` device. Static. */
const char *kedge__cpu_isa(const kedge_device *device);

/* Floating-point operations a second of the multiply-add instruction that products of this storage dtype use
 * on the device, register to register, on all of its threads together: the best of a few short loops. */
double kedge__cpu_peak(const kedge_device *device, kedge_dtype dtype);

#endif
