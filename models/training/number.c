/* SPDX-License-Identifier: Apache-2.0
 * Reals as text (number.h). */
#include "models/training/number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *kedge__real_text(double value, char text[KEDGE_REAL_TEXT]) {
  char found[KEDGE_REAL_TEXT] = "null";
  if (isfinite(value) && value == floor(value) && fabs(value) < 1e15) {
    snprintf(found, sizeof found, "%lld", (long long)value);
  } else if (isfinite(value)) {
    for (int digits = 1; digits <= 17; digits++) {
      snprintf(found, sizeof found, "%.*g", digits, value);
      if (strtod(found, NULL) == value) break;
    }
  }
  return memcpy(text, found, sizeof found);
}
