/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradient check of a whole mixture-of-experts decoder with interventions on: on the reference backend in
 * all-double against central differences, on any other backend in f32 against those double gradients.
 * gradcheck_problems.c lists the models, gradcheck_variants.c the interventions with their settings;
 * gradcheck_rig.h holds the data. Vectors of one router from elsewhere are checked by gradcheck_vectors.h.
 */
#ifndef KEDGE_MODELS_ROUTING_GRADCHECK_H
#define KEDGE_MODELS_ROUTING_GRADCHECK_H

#include "models/decoder/model.h"
#include "models/routing/router.h"

/* Limits on the largest error, relative to the largest entry of the parameter's gradient. */
#define KEDGE_GRADCHECK_F64 1e-7
#define KEDGE_GRADCHECK_F32 1e-4

/* A model to check on: two layers with experts. */
typedef struct kedge_gradcheck_problem {
  const char *name, *doc;
  const char *config; /* text of its config.json */
} kedge_gradcheck_problem;

extern const kedge_gradcheck_problem kedge_gradcheck_problems[];
extern const uint32_t kedge_gradcheck_problem_count;
/* NULL if there is none of that name. */
const kedge_gradcheck_problem *kedge_gradcheck_find_problem(const char *name);

/* Interventions to check together. */
typedef struct kedge_gradcheck_variant {
  const char *name; /* of the row of routers.def, then what differs from its defaults */
  uint32_t count;
  kedge_intervention list[5];
  bool last_layer; /* they act on the last layer alone */
} kedge_gradcheck_variant;

extern const kedge_gradcheck_variant kedge_gradcheck_variants[];
extern const uint32_t kedge_gradcheck_variant_count;
const kedge_gradcheck_variant *kedge_gradcheck_find_variant(const char *name);

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
  /* Faults in what the interventions alone add to the gradients of the routers that they act on, smallest
   * error over these routers: 1 % too much of it, none of it. Infinite where they add nothing. */
  double own_scaled, own_dropped;
  bool passed; /* error <= limit */
  /* planted > limit: the fault is rejected for every parameter; own_dropped likewise and, in double,
   * own_scaled
   */
  bool sensitive;
  uint64_t seed; /* the first from the given one on whose routing is clear */
  double gap; /* smallest distance, over tokens and layers, of the last chosen to the first left-out score */
  double loss;
} kedge_gradcheck;

typedef struct kedge_gradcheck_options {
  const char *backend; /* NULL or "ref": all-double */
  uint64_t seed;
  uint32_t entries; /* tried of a parameter that is no router, at most 16; 0: 16. Routers are checked whole */
  /* A planted fault: the gradient of this one is compared with the differences of the other. Selection and
   * data are then those of the checked one. NULL: none */
  const kedge_gradcheck_variant *fault;
} kedge_gradcheck_options;

/* Checks interventions on a problem. Where a loss is detached from the layers below, differences are taken of
 * the loss without it for the parameters of those layers, and of the same loss on one layer alone for its
 * router: there the input of the router doesn't depend on it. The routing must be the same at every
 * difference, or ERR_NUMERIC. Errors: those of the device (ERR_UNSUPPORTED for "null", which computes
 * nothing), ERR_NUMERIC if no seed of 400 has clear routing. A gradient that is wrong is no error: `passed`
 * tells. */
kedge_status kedge_gradcheck_run(const kedge_gradcheck_problem *problem,
                                 const kedge_gradcheck_variant *variant,
                                 const kedge_gradcheck_options *options, kedge_gradcheck *result);

/* Checks every variant on every problem: results [variants, problems], the caller's memory, all written
 * unless it fails. Runs on the threads of OpenMP, each check on one of them. */
kedge_status kedge_gradcheck_all(const kedge_gradcheck_options *options, kedge_gradcheck *results);

#endif
