/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of an evaluation on their way to rank 0, where ranks share the items (internal). A rank's rows are
 * lines of its window; those of all ranks, one after another, are in the order of the items. Siblings:
 * window.h makes rows, record.h keeps them. */
#ifndef KEDGE_MODELS_EVALUATION_ROWS_H
#define KEDGE_MODELS_EVALUATION_ROWS_H

#include "core/comm.h"
#include "models/evaluation/record.h"

/* Lines of JSON, each with its end. */
typedef struct kedge__rows {
  char *text;
  uint64_t bytes, capacity;
} kedge__rows;
void kedge__rows_free(kedge__rows *rows);

/* Adds a row; ERR_MEMORY. */
kedge_status kedge__rows_add(kedge__rows *rows, const json_t *row);

/* Called by all ranks: rank 0 counts the rows of all into the summary and writes them to the record, in the
 * order of the ranks. The rows are then gone. All ranks have one status. */
kedge_status kedge__rows_collect(kedge__rows *rows, kedge_comm *comm, kedge_eval_record *record,
                                 kedge_eval_summary *summary);

#endif
