/* SPDX-License-Identifier: Apache-2.0
 * For ops whose elements know nothing of each other: a workgroup has S0 elements a lane, lanes side by side. A shader
 * defines COUNT and element(). */
#define ELEMENTS_MAIN                            \
  void main() {                                  \
    uint group = GROUP;                          \
    if (group >= push.end) return;               \
    load_call();                                 \
    uint count = COUNT;                          \
    for (uint k = 0; k < S0; k++) {              \
      uint i = (group * S0 + k) * LOCAL + LANE;  \
      if (i < count) element(i);                 \
    }                                            \
  }
