/* SPDX-License-Identifier: Apache-2.0
 * Kernels with planted mistakes (sim_faults.cu), for test_sim_faults.c. */
#ifndef KEDGE_TESTS_SIM_FAULTS_H
#define KEDGE_TESTS_SIM_FAULTS_H

#include "backends/gpu/sim/sim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum sim_order_kernel {
  SIM_MISSING_BARRIER,
  SIM_MISSING_SECOND_BARRIER,
  SIM_LANES_OF_32,
  SIM_BLOCK_RACE,
  SIM_MISSING_WAIT,
  SIM_MISSING_GROUP_WAIT,
  SIM_ORDER_KERNELS
} sim_order_kernel;
/* x [128], y [256], both buffers of the simulated card; `good` runs it without the mistake. */
void sim_order_fault(sim_order_kernel which, const sim_settings *settings, const float *x, float *y,
                     bool good);

typedef enum sim_error_kernel {
  SIM_DIVERGING,
  SIM_LEAVING,
  SIM_HALF_WAVE,
  SIM_SHARED_OVERRUN,
  SIM_SHARED_TOO_LARGE,
  SIM_OUTSIDE,
  SIM_GROUP_UNPUBLISHED,
  SIM_GROUP_APART,
  SIM_GROUP_LEAVING
} sim_error_kernel;
/* `at`: the element that is written where none should be. */
void sim_error_fault(sim_error_kernel which, const sim_settings *settings, float *y, int64_t at);

#ifdef __cplusplus
}
#endif
#endif
