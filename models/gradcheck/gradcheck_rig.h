/* SPDX-License-Identifier: Apache-2.0
 *
 * A tiny random mixture-of-experts decoder with a batch, spans and a prior, all in host memory
 * (gradcheck_data.c), and an execution of it on a device (gradcheck_rig.c). Internal; for gradcheck.c and the
 * tests of interventions.
 *
 * Two sequences and three tokens outside any of T = 15. L layers with experts, E experts, K a token.
 */
#ifndef KEDGE_MODELS_ROUTING_GRADCHECK_RIG_H
#define KEDGE_MODELS_ROUTING_GRADCHECK_RIG_H

#include "models/decoder/decoder.h"
#include "models/gradcheck/gradcheck.h"

enum {
  KEDGE_RIG_TOKENS = 15,
  KEDGE_RIG_ROWS = 4,   /* S: 2 samples, 2 spans */
  KEDGE_RIG_LAYERS = 2, /* L of every problem */
  KEDGE_RIG_EXPERTS = 16,
  KEDGE_RIG_TOPK = 4 /* at most */
};

/* A prior and what is made of it: by span, or of the whole sample in both its rows. */
typedef struct kedge_rig_prior {
  float *pi_LSE;
  double *bias_LSE;
  int32_t *ids_LSK;
} kedge_rig_prior;

/* What to compute with. Numbers may be changed between init and kedge__rig_open. */
typedef struct kedge_rig_problem {
  const kedge_gradcheck_problem *source;
  kedge_hf_config config;
  kedge_params params;
  uint32_t layers, experts, topk; /* L, E, K */
  double **weights;               /* one a parameter, values that f32 holds exactly */
  int32_t ids[KEDGE_RIG_TOKENS], positions[KEDGE_RIG_TOKENS], segments[KEDGE_RIG_TOKENS],
      labels[KEDGE_RIG_TOKENS], spans[KEDGE_RIG_TOKENS];
  double loss_weights[KEDGE_RIG_TOKENS]; /* random, of both signs: a random cotangent */
  kedge_rig_prior priors[2];             /* by span, by sample */
  double *base_logits_LTE;               /* of the frozen base, at random */
  int32_t *base_ids_LTK;                 /* its choices; -1 in padding */
  double *counts_LE;                     /* choices counted elsewhere */
} kedge_rig_problem;

/* Everything is a function of the seed. */
kedge_status kedge__rig_problem_init(kedge_rig_problem *problem, const kedge_gradcheck_problem *source,
                                     uint64_t seed);
void kedge__rig_problem_destroy(kedge_rig_problem *problem);
/* (Re)computes from the prior by span that of whole samples, and bias and ids of both, as kedge_prior_fill_*
 * do. */
void kedge__rig_problem_bias(kedge_rig_problem *problem, double eps, double clip);

typedef struct kedge_rig {
  const kedge_rig_problem *problem;
  kedge_device *device;
  kedge_model *model;
  kedge_intervention interventions[KEDGE_MAX_INTERVENTIONS];
  uint32_t intervention_count;
  kedge_buffer *base; /* router weights of the base, near the model's own */
  kedge_decoder decoder;
  kedge_value *gradients; /* one a parameter; KEDGE_NONE for those that are never trained */
  uint32_t forward_nodes;
  kedge_exec *exec;
} kedge_rig;

/* Builds loss and gradients of the problem on a device, writes all inputs and runs once. `all_double` needs
 * the reference backend; else weights are f32. The problem is borrowed and must outlive the rig. The rig is
 * the caller's to close, also after a failure. */
kedge_status kedge__rig_open(kedge_rig *rig, const kedge_rig_problem *problem, kedge_device *device,
                             bool all_double, const kedge_intervention *interventions, uint32_t count);
void kedge__rig_close(kedge_rig *rig);

/* Runs again: the loss alone, from what the weight buffers hold now. Gradients are gone afterwards. */
kedge_status kedge__rig_forward(kedge_rig *rig, double *loss);
/* Writes `count` entries of a parameter from `first` on into its buffer. */
kedge_status kedge__rig_write(kedge_rig *rig, uint32_t param, uint64_t first, const double *values,
                              uint64_t count);
/* Reads a float value as doubles; `count` must be its number of elements. */
kedge_status kedge__rig_read(kedge_rig *rig, kedge_value value, double *numbers, uint64_t count);
/* Chosen experts of all layers that have some [L,T,K]. */
kedge_status kedge__rig_ids(kedge_rig *rig, int32_t *ids_LTK);
enum { KEDGE_RIG_IDS = KEDGE_RIG_LAYERS * KEDGE_RIG_TOKENS * KEDGE_RIG_TOPK }; /* at most */

/* The smallest distance of a chosen score to one left out, over tokens and layers, of every choice that the
 * rig's loss depends on, in units of a logit. ERR_MISMATCH if the rig chose other experts than this host code
 * does. */
kedge_status kedge__rig_gap(kedge_rig *rig, double *gap);

#endif
