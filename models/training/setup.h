/* SPDX-License-Identifier: Apache-2.0
 *
 * From a configuration to the things of a run: device, tokenizer, data, model, interventions, prior. Used by
 * the trainer; `kedge prior` uses the data part, so that both see the same samples.
 */
#ifndef KEDGE_MODELS_TRAINING_SETUP_H
#define KEDGE_MODELS_TRAINING_SETUP_H

#include "core/comm.h"
#include "models/training/config.h"
#include "models/training/interventions.h"

/* Where notes go ("warmup_ratio is not used..."); may be NULL. */
typedef void (*kedge_note)(void *context, const char *line);

typedef struct kedge_setup {
  const kedge_config *config;
  kedge_comm *comm; /* borrowed; NULL: the run has one rank */
  kedge_device *device;
  kedge_tokenizer *tokenizer;
  kedge_dataset *data;         /* all samples of `dataset` */
  kedge_dataset *train, *eval; /* parts of it, or NULL: train is data; eval also from eval_dataset */
  kedge_model *model;
  kedge_interventions router;
} kedge_setup;

/* Opens everything that `kedge train` needs, in an order that finds cheap mistakes first. Errors name key and
 * file. On failure nothing is left open. */
kedge_status kedge_setup_init(kedge_setup *setup, const kedge_config *config, kedge_note note, void *context);
/* The same on one of several ranks: the device joins the comm, which is arranged for the configuration.
 * Called by all of them; each gets its own status. */
kedge_status kedge_setup_init_on(kedge_setup *setup, const kedge_config *config, kedge_comm *comm,
                                 kedge_note note, void *context);
void kedge_setup_destroy(kedge_setup *setup);

/* The data part alone: tokenizer of the model directory and the samples of `files`. Both owned by the caller.
 */
kedge_status kedge_setup_data(const kedge_config *config, const kedge_config_files *files, kedge_note note,
                              void *context, kedge_tokenizer **tokenizer, kedge_dataset **data);

/* Storage dtype that the config names, or for `auto` the model's own; kedge_setup_init takes f32 for `auto`
 * where the device is slower in bf16. */
kedge_status kedge_setup_dtype(const kedge_config *config, kedge_dtype *dtype);

/* The samples that are trained on. */
const kedge_dataset *kedge_setup_train(const kedge_setup *setup);

#endif
