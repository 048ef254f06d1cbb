/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints of a run: `<output_dir>/checkpoint-<step>/` with the model in its input's layout,
 * optimizer.safetensors (master weights and moments), trainer_state.json (transformers' keys), kedge_run.json
 * (what a resumed run must agree with) and kedge_config.yaml. A checkpoint appears whole or not at all.
 *
 * Of several ranks each writes its own states (run_states.h) into the one folder, which must be the same for
 * all, and rank 0 everything else. Saving, exporting and loading are called by all ranks and give all of them
 * one status. */
#ifndef KEDGE_MODELS_TRAINING_RUN_CHECKPOINT_H
#define KEDGE_MODELS_TRAINING_RUN_CHECKPOINT_H

#include "models/parallel/ranges.h"
#include "models/training/config.h"
#include "models/training/metrics.h"
#include "models/training/optimizer.h"

/* What a checkpoint says about its run. A resumed run must have equal data and settings; another device is
 * only noted. Strings are borrowed on saving and owned by the record after loading. */
typedef struct kedge_run_record {
  char base[33];           /* hash of the base model; "" in checkpoints of before it was kept */
  char routing[33];        /* of priors and trace; "" where the run reads none, or it was not kept yet */
  char data[33], eval[33]; /* hashes of the training and evaluation samples; eval "" for none */
  char *settings;          /* JSON object of the settings that decide the weights (kedge_run_settings) */
  char *device;            /* description of the device, with its instruction set */
  kedge_layout layout;     /* of the run that wrote it */
  uint64_t step, updates;  /* updates done, and of the whole run */
  double loss_sum;         /* of the updates since the last log line */
  uint64_t loss_count;
  double best_loss; /* NaN: none */
} kedge_run_record;

void kedge_run_record_destroy(kedge_run_record *record);

/* The part of a configuration that decides a run's weights, as JSON text; new memory, NULL without memory.
 * Ranks count as a larger micro-batch: per_device_train_batch_size is that of all of them. */
char *kedge_run_settings(const kedge_config *config, uint32_t ranks);

/* Writes checkpoint-<record.step> below `output_dir` and then removes the oldest ones beyond `keep` (0: keeps
 * all). */
kedge_status kedge_run_save(const char *output_dir, const kedge_optimizer *optimizer,
                            const kedge_run_record *record, const kedge_trainer_state *state,
                            const char *config_yaml, uint32_t keep, kedge_notes *notes);

/* Newest complete checkpoint below output_dir; *path is new memory, NULL if there is none. Incomplete ones
 * are skipped, each with a note. */
kedge_status kedge_run_find(const char *output_dir, char **path, kedge_notes *notes);

/* Reads a checkpoint into the optimizer (weights, masters, moments, step) and gives record and state. `want`
 * holds what this run has; ERR_MISMATCH names what differs. */
kedge_status kedge_run_load(const char *checkpoint, kedge_optimizer *optimizer, const kedge_run_record *want,
                            kedge_run_record *record, kedge_trainer_state **state, kedge_notes *notes);

/* ERR_IO unless what a save writes, a checkpoint or else the final model alone, has room in output_dir. Says
 * both numbers of bytes. kedge_run_save and kedge_run_export ask themselves; a run asks before it trains. */
kedge_status kedge_run_require_disk(const char *output_dir, const kedge_optimizer *optimizer,
                                    bool checkpoints);

/* The final model: HF files directly in output_dir, beside the checkpoints. config.json comes last, so that a
 * half-written model is never taken for a whole one. */
kedge_status kedge_run_export(const char *output_dir, const kedge_optimizer *optimizer, kedge_notes *notes);

#endif
