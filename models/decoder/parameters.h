/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of a model's parameters: shapes, roles, names in files. Needs only a config; no weights. Siblings:
 * model.h holds the weights on a device, decoder.h builds graphs on them.
 */
#ifndef KEDGE_MODELS_DECODER_PARAMETERS_H
#define KEDGE_MODELS_DECODER_PARAMETERS_H

#include "models/checkpoint/checkpoint.h"
#include "models/decoder/family.h"

enum { KEDGE_NAME_SIZE = 160 };

/* A parameter: one tensor on the device. A stack of experts has a file tensor an expert, or all of them in
 * one tensor, where gate and up may lie together: of each expert first gate's rows, then up's. */
typedef struct kedge_param {
  kedge_role role;
  uint32_t layer; /* 0 for global roles */
  uint32_t rank, dims[KEDGE_MAX_RANK];
  uint32_t parts;      /* file tensors: 1, or the number of experts */
  uint32_t experts;    /* of a stack: all of them, of which dims[0] lie on this device; else 0 */
  uint32_t first;      /* the first of these */
  bool paired;         /* its file tensor has the gate and up of each expert */
  bool second;         /* and this is the up of it; listed once, under gate */
  const char *pattern; /* name in files */
  bool decay;          /* weight decay applies: matrices yes, norms and biases no */
  bool wide;           /* f32 on the device whatever the model's dtype: all of a router */
  bool fixed;          /* never trained by a gradient */
} kedge_param;

typedef struct kedge_params {
  kedge_hf_config config; /* borrowed contents */
  const kedge_family *family;
  kedge_family_options options;
  kedge_param *items;
  uint32_t count;
  uint32_t *index; /* [layers + 1][KEDGE_ROLE_COUNT] -> item + 1, 0: absent; row 0 holds the global roles */
  uint32_t members, member; /* ranks that share the experts, and which of them this is; 1, 0: all are here */
  bool other_layout;        /* files have the family's other names */
  uint32_t moe_layers;      /* number of MoE layers */
  uint64_t total;           /* parameters */
  uint64_t wide;            /* of these, elements of wide ones */
  uint64_t fixed;           /* elements of fixed ones, which `total` leaves out */
  uint64_t tensors;         /* tensors in files */
  uint64_t active;          /* parameters that one token uses: its K experts, the head, no embedding table */
  struct kedge_file_name *names; /* sorted; see kedge_params_lookup */
  uint32_t name_count;
} kedge_params;

/* Lists a model's parameters in file order of layers. `config` must outlive the list. */
kedge_status kedge_params_init(kedge_params *params, const kedge_hf_config *config);
/* The same where `members` ranks share the experts, and this is the one with part `member` of them.
 * ERR_ARGUMENT unless they divide the experts. Numbers of parameters are those of the whole model. */
kedge_status kedge_params_init_part(kedge_params *params, const kedge_hf_config *config, uint32_t members,
                                    uint32_t member);
void kedge_params_destroy(kedge_params *params);
/* Takes the family's other names where the files have them. */
kedge_status kedge_params_fit(kedge_params *params, const kedge_checkpoint *files);

/* Item of a role in a layer (0 for global roles), UINT32_MAX if absent. */
uint32_t kedge_params_find(const kedge_params *params, kedge_role role, uint32_t layer);
bool kedge_params_is_moe(const kedge_params *params, uint32_t layer);
/* Index of a layer among the MoE layers, and the layer of such an index. */
uint32_t kedge_params_moe_index(const kedge_params *params, uint32_t layer);
uint32_t kedge_params_moe_layer(const kedge_params *params, uint32_t index);

uint64_t
kedge_param_count(const kedge_param *param); /* elements here; of a stack those of its experts here */
uint64_t kedge_param_total(const kedge_param *param); /* with all experts */
/* Of the parameter on the device: the model's, f32 for a wide one (f64 in an f64 model). */
kedge_dtype kedge_param_dtype(const kedge_param *param, kedge_dtype model);
/* Name of the file tensor of a part; with part == param->parts the parameter's own name ("experts.*"), which
 * no other parameter has. */
void kedge_param_name(const kedge_param *param, uint32_t part, char name[KEDGE_NAME_SIZE]);
/* The parameter and part that a file tensor's name stands for; false if the model has none of that name. A
 * tied head's name stands for the embedding, with *tied set. */
bool kedge_params_lookup(const kedge_params *params, const char *name, uint32_t *item, uint32_t *part,
                         bool *tied);
/* True for file tensors that are known to be no part of the model (rotary tables, layers that predict further
 * tokens) and are left out with a note. */
bool kedge_params_ignores(const kedge_params *params, const char *name);
/* Where a run of a file tensor's elements lies. */
typedef struct kedge_run {
  uint32_t item; /* parameter */
  uint64_t
      start; /* element of it, numbered over all experts: on the device first * elements an expert earlier */
  uint64_t count; /* elements, contiguous on both sides */
} kedge_run;
/* The run that begins at element `at` of the file tensor (item, part). */
kedge_run kedge_params_run(const kedge_params *params, uint32_t item, uint32_t part, uint64_t at);
/* Shape of one file tensor; returns its rank. */
uint32_t kedge_param_part_shape(const kedge_param *param, uint64_t shape[KEDGE_MAX_RANK]);
/* True for a router weight: what `freeze` and Router-L2 act on. */
bool kedge_param_is_router(const kedge_param *param);

#endif
