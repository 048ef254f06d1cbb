/* SPDX-License-Identifier: Apache-2.0
 *
 * What `kedge audit` prints (audit_table.c). */
#ifndef KEDGE_TOOLS_AUDIT_H
#define KEDGE_TOOLS_AUDIT_H

#include "models/retention/audit.h"

/* Tables, verdicts and warnings on standard output. `model` may be NULL. */
void audit_print(const kedge_audit *audit, const char *model);

#endif
