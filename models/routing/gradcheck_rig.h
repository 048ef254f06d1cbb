/* SPDX-License-Identifier: Apache-2.0
 *
 * A tiny random mixture-of-experts decoder with a batch, spans and a prior, all in host memory, and an
 * execution of it on a device (internal; for gradcheck.c and the tests of interventions).
 *
 * Sizes are odd where they may be: two sequences and three tokens outside any of T = 15; D = 10, 3 query
 * heads on 1 key head of 6, 2 MoE layers, 8 experts of width 7, top-3; 37 words.
 */
#ifndef KEDGE_MODELS_ROUTING_GRADCHECK_RIG_H
#define KEDGE_MODELS_ROUTING_GRADCHECK_RIG_H

#include "models/decoder/decoder.h"

enum {
  KEDGE_RIG_TOKENS = 15,
  KEDGE_RIG_ROWS = 4, /* 2 samples, 2 spans */
  KEDGE_RIG_LAYERS = 2,
  KEDGE_RIG_EXPERTS = 8,
  KEDGE_RIG_TOPK = 3
};

/* What to compute with. Fields may be changed between init and kedge__rig_open. */
typedef struct kedge_rig_problem {
  kedge_hf_config config;
  kedge_params params;
  double **weights; /* one a parameter, values that f32 holds exactly */
  int32_t ids[KEDGE_RIG_TOKENS], positions[KEDGE_RIG_TOKENS], segments[KEDGE_RIG_TOKENS],
      labels[KEDGE_RIG_TOKENS], spans[KEDGE_RIG_TOKENS];
  double loss_weights[KEDGE_RIG_TOKENS]; /* random, of both signs: a random cotangent */
  float prior[KEDGE_RIG_LAYERS][KEDGE_RIG_ROWS][KEDGE_RIG_EXPERTS];
  double bias[KEDGE_RIG_LAYERS][KEDGE_RIG_ROWS][KEDGE_RIG_EXPERTS];
  int32_t prior_ids[KEDGE_RIG_LAYERS][KEDGE_RIG_ROWS][KEDGE_RIG_TOPK];
  double base_logits[KEDGE_RIG_LAYERS][KEDGE_RIG_TOKENS]
                    [KEDGE_RIG_EXPERTS];                                /* of the frozen base, at random */
  int32_t base_ids[KEDGE_RIG_LAYERS][KEDGE_RIG_TOKENS][KEDGE_RIG_TOPK]; /* its choices; -1 in padding */
  double counts[KEDGE_RIG_LAYERS][KEDGE_RIG_EXPERTS];                   /* choices counted elsewhere */
} kedge_rig_problem;

/* Everything is a function of the seed. */
kedge_status kedge__rig_problem_init(kedge_rig_problem *problem, uint64_t seed);
void kedge__rig_problem_destroy(kedge_rig_problem *problem);
/* (Re)computes bias and ids of the prior, as kedge_prior_fill_bias and its siblings do. */
void kedge__rig_problem_bias(kedge_rig_problem *problem, double eps, double clip);

typedef struct kedge_rig {
  const kedge_rig_problem *problem;
  kedge_device *device;
  kedge_model *model;
  kedge_intervention interventions[KEDGE_MAX_INTERVENTIONS];
  uint32_t intervention_count;
  kedge_buffer *base; /* router weights of the base, at random */
  kedge_decoder decoder;
  kedge_value *gradients; /* one a parameter */
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
/* Chosen experts of all MoE layers. */
kedge_status kedge__rig_ids(kedge_rig *rig, int32_t ids[KEDGE_RIG_LAYERS][KEDGE_RIG_TOKENS][KEDGE_RIG_TOPK]);

#endif
