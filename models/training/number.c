/* SPDX-License-Identifier: Apache-2.0
 * Reals as text (number.h). */
#include "models/training/number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *kedge__real_text(double value, char text[KEDGE_REAL_TEXT]) {
  if (!isfinite(value)) return strcpy(text, "null");
  if (value == floor(value) && fabs(value) < 1e15) {
    snprintf(text, KEDGE_REAL_TEXT, "%lld", (long long)value);
    return text;
  }
  for (int digits = 1; digits <= 17; digits++) {
    snprintf(text, KEDGE_REAL_TEXT, "%.*g", digits, value);
    if (strtod(text, NULL) == value) break;
  }
  return text;
}
