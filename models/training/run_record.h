/* SPDX-License-Identifier: Apache-2.0
 * kedge_run.json of a checkpoint, for run_checkpoint.c. */
#ifndef KEDGE_MODELS_TRAINING_RUN_RECORD_H
#define KEDGE_MODELS_TRAINING_RUN_RECORD_H

#include "models/training/run_checkpoint.h"

#define KEDGE_RUN_RECORD "kedge_run.json"

/* The record as JSON text; new memory, NULL without memory. */
char *kedge__run_record_json(const kedge_run_record *record);
/* Reads `<checkpoint>/kedge_run.json`. ERR_IO, ERR_FORMAT. */
kedge_status kedge__run_record_read(const char *checkpoint, kedge_run_record *record);
/* ERR_MISMATCH naming the first difference in data, updates or settings. */
kedge_status kedge__run_record_match(const char *checkpoint, const kedge_run_record *record,
                                     const kedge_run_record *want);

#endif
