/* SPDX-License-Identifier: Apache-2.0
 * What collective ops do on a card beside moving bytes (carrier.c): sums in the order of the ranks, and rows in
 * the order of experts or of ranks. The meaning is backends/comm/site.c and rows.c. */
#include "backends/gpu/kernel.h"

extern "C" void kedge_gpu_add_parts(const gpu_step *s, const kedge_addition *a) {
  const float *parts = (const float *)a->parts;
  float *out = (float *)a->out;
  const uint32_t size = a->size;
  const uint64_t apart = a->apart;
  gpu_each(
      s, a->count, GPU_LAMBDA(uint64_t i) {
        double sum = 0;
        for (uint32_t r = 0; r < size; r++) sum += (double)parts[r * apart + i];
        out[i] = (float)sum;
      });
}

/* Where each placed row lies among the packed ones. One thread an expert and member. */
static void find_places(const gpu_step *s, const kedge_repacking *p) {
  const int32_t *counts = p->counts;
  int32_t *places = p->places;
  const uint32_t members = p->members, experts = p->experts, each = experts / members,
                 first = p->rank * each;
  gpu_each(
      s, (uint64_t)each * members, GPU_LAMBDA(uint64_t i) {
        const uint32_t e = (uint32_t)i / members, m = (uint32_t)i % members;
        uint32_t at = 0, from = 0;
        for (uint32_t x = 0; x < each; x++)
          for (uint32_t y = 0; y < members; y++) {
            const uint32_t n = (uint32_t)counts[y * (size_t)experts + first + x];
            at += x < e || (x == e && y < m) ? n : 0;
            from += y < m || (y == m && x < e) ? n : 0;
          }
        const uint32_t n = (uint32_t)counts[m * (size_t)experts + first + e];
        for (uint32_t r = 0; r < n; r++) places[at + r] = (int32_t)(from + r);
      });
}

struct alignas(16) piece_16 {
  uint32_t words[4];
};

template <class V> static void move_rows(const gpu_step *s, const kedge_repacking *p) {
  const uint32_t cols = (uint32_t)(p->row_bytes / sizeof(V));
  V *placed = (V *)p->placed, *packed = (V *)p->packed;
  const int32_t *places = p->places;
  const bool pack = p->pack;
  gpu_each(
      s, p->rows * cols, GPU_LAMBDA(uint64_t i) {
        const uint64_t other = (uint64_t)places[i / cols] * cols + i % cols;
        if (pack)
          packed[other] = placed[i];
        else
          placed[i] = packed[other];
      });
}

extern "C" void kedge_gpu_repack(const gpu_step *s, const kedge_repacking *p) {
  const bool aligned = ((uintptr_t)p->placed | (uintptr_t)p->packed) % 16 == 0;
  find_places(s, p);
  if (aligned && p->row_bytes % 16 == 0)
    move_rows<piece_16>(s, p);
  else if (p->row_bytes % 4 == 0)
    move_rows<uint32_t>(s, p);
  else
    move_rows<uint16_t>(s, p);
}
