/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradient check of a whole mixture-of-experts decoder with an intervention on: on the reference backend in
 * all-double against central differences, on any other backend in f32 against those double gradients.
 * gradcheck_rig.h holds the model and data that it runs on.
 */
#ifndef KEDGE_MODELS_ROUTING_GRADCHECK_H
#define KEDGE_MODELS_ROUTING_GRADCHECK_H

#include "models/decoder/model.h"
#include "models/routing/router.h"

/* Limits on the largest error, relative to the largest entry of the parameter's gradient. */
#define KEDGE_GRADCHECK_F64 1e-7
#define KEDGE_GRADCHECK_F32 1e-4

/* One kind of parameter (a role, over all layers). */
typedef struct kedge_gradcheck_row {
  const char *kind; /* "router"; NULL: the model has none of this role */
  uint64_t checked; /* entries compared */
  uint64_t nonzero; /* of these, entries whose gradient is not 0 */
  double error;     /* largest, infinite where the gradient is all 0, missing or not finite */
  double planted;   /* smallest over the parameters, with the gradient 1 % too large */
} kedge_gradcheck_row;

typedef struct kedge_gradcheck {
  kedge_gradcheck_row rows[KEDGE_ROLE_COUNT]; /* by role */
  uint64_t checked;
  double error, planted, limit;
  bool passed;    /* error <= limit */
  bool sensitive; /* planted > limit: the fault is rejected for every parameter */
  uint64_t seed;  /* the first from the given one on whose routing is clear */
  double gap; /* smallest distance, over tokens and layers, of the last chosen to the first left-out score */
  double loss;
} kedge_gradcheck;

/* The intervention that a check of a row uses: a strength that is neither 0 nor 1. */
kedge_intervention kedge_gradcheck_intervention(kedge_router_id id);

/* Checks one intervention. `backend` NULL or "ref": all-double. The routing must be the same at every
 * difference, or ERR_NUMERIC. Errors: those of the device (ERR_UNSUPPORTED for "null", which computes
 * nothing), ERR_NUMERIC if no seed of 200 has clear routing. A gradient that is wrong is no error: `passed`
 * tells. */
kedge_status kedge_gradcheck_run(const kedge_intervention *intervention, const char *backend, uint64_t seed,
                                 kedge_gradcheck *result);

#endif
