/* SPDX-License-Identifier: Apache-2.0
 *
 * Reals as text, for the configuration's print and for metrics. */
#ifndef KEDGE_MODELS_TRAINING_NUMBER_H
#define KEDGE_MODELS_TRAINING_NUMBER_H

enum { KEDGE_REAL_TEXT = 40 };

/* The shortest decimal that reads back to the same bits; "null" for what is not finite (JSON and YAML have no
 * NaN). Whole numbers have no fraction. Returns `text`. */
const char *kedge__real_text(double value, char text[KEDGE_REAL_TEXT]);

#endif
