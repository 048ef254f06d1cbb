#version 450
/* SPDX-License-Identifier: Apache-2.0
 * Routing, one subgroup a token or an expert; core/ops/route.c, gate_math.h, topk_groups.h and choice.c have the
 * meaning. */
#extension GL_GOOGLE_include_directive : require
#include "shaders/kedge.glsl"
#include "shaders/reduce.glsl"

#if defined(KEDGE_OP_scores)
void row(uint t) {
  uint first = t * ARGS.experts;
  bool sigmoid = ARGS.kind == KEDGE_SCORE_SIGMOID;
  vec2 stats = vec2(0.0, 1.0);
  if (!sigmoid) stats = softmax_stats(IN(0), first, ARGS.experts);
  LANES(e, ARGS.experts) {
    float z = load_f(IN(0), first + e);
    store_f(OUT(0), first + e, sigmoid ? kedge_sigmoid(z) : kedge_exp(z - stats.x) / stats.y);
  }
}
#elif defined(KEDGE_OP_scores_grad)
void row(uint t) {
  uint first = t * ARGS.experts;
  float mean = 0.0;
  LANES(e, ARGS.experts) mean += load_f(IN(0), first + e) * load_f(IN(1), first + e);
  mean = subgroupAdd(mean);
  LANES(e, ARGS.experts) {
    float s = load_f(IN(0), first + e), ds = load_f(IN(1), first + e);
    store_f(OUT(0), first + e, ARGS.kind == KEDGE_SCORE_SIGMOID ? ds * s * (1.0 - s) : s * (ds - mean));
  }
}
#elif defined(KEDGE_OP_gates) || defined(KEDGE_OP_gates_grad)
bool over_chosen() {
  return ARGS.kind == KEDGE_SCORE_SOFTMAX && ARGS.normalise != 0 && ARGS.epsilon == 0.0;
}
float score(vec2 stats, float z) {
  return ARGS.kind == KEDGE_SCORE_SIGMOID ? kedge_sigmoid(z) : kedge_exp(z - stats.x) / stats.y;
}
/* Largest, sum and divisor of a token's row. */
vec3 gate_row(uint z, uint ids) {
  vec2 stats = vec2(0.0, 1.0);
  float divisor = 1.0;
  if (over_chosen()) {
    float most = -INFINITY, sum = 0.0;
    LANES(k, ARGS.k) {
      int id = load_i(IN(1), ids + k);
      if (id >= 0) most = max(most, load_f(IN(0), z + uint(id)));
    }
    most = subgroupMax(most);
    LANES(k, ARGS.k) {
      int id = load_i(IN(1), ids + k);
      if (id >= 0) sum += kedge_exp(load_f(IN(0), z + uint(id)) - most);
    }
    return vec3(most, subgroupAdd(sum), 1.0);
  }
  if (ARGS.kind == KEDGE_SCORE_SOFTMAX) stats = softmax_stats(IN(0), z, ARGS.experts);
  if (ARGS.normalise != 0) {
    divisor = 0.0;
    LANES(k, ARGS.k) {
      int id = load_i(IN(1), ids + k);
      if (id >= 0) divisor += score(stats, load_f(IN(0), z + uint(id)));
    }
    divisor = subgroupAdd(divisor) + ARGS.epsilon;
    if (divisor == 0.0) divisor = 1.0;
  }
  return vec3(stats, divisor);
}
float gate(vec3 r, uint z, int id) {
  return id < 0 ? 0.0 : ARGS.alpha * score(r.xy, load_f(IN(0), z + uint(max(id, 0)))) / r.z;
}
#if defined(KEDGE_OP_gates)
void row(uint t) {
  uint z = t * ARGS.experts, ids = t * ARGS.k;
  vec3 r = gate_row(z, ids);
  LANES(k, ARGS.k) store_f(OUT(0), ids + k, gate(r, z, load_i(IN(1), ids + k)));
}
#else
void row(uint t) {
  uint z = t * ARGS.experts, ids = t * ARGS.k;
  vec3 r = gate_row(z, ids);
  float total = 0.0, mean = 0.0;
  LANES(k, ARGS.k) total += load_f(IN(2), ids + k) * gate(r, z, load_i(IN(1), ids + k));
  total = subgroupAdd(total);
  if (ARGS.normalise == 0 || over_chosen()) total = 0.0;
  LANES(k, ARGS.k) {
    int id = load_i(IN(1), ids + k);
    if (id >= 0)
      mean += score(r.xy, load_f(IN(0), z + uint(id))) * (ARGS.alpha * load_f(IN(2), ids + k) - total) / r.z;
  }
  mean = subgroupAdd(mean);
  bool sigmoid = ARGS.kind == KEDGE_SCORE_SIGMOID, everyone = !sigmoid && !over_chosen();
  LANES(e, ARGS.experts) {
    float s = score(r.xy, load_f(IN(0), z + e)), dz = everyone ? -s * mean : 0.0;
    for (uint k = 0; k < ARGS.k; k++) {
      if (load_i(IN(1), ids + k) != int(e)) continue;
      float u = (ARGS.alpha * load_f(IN(2), ids + k) - total) / r.z;
      dz += sigmoid ? s * (1.0 - s) * u : s * (everyone ? u : u - mean);
    }
    store_f(OUT(0), z + e, dz);
  }
}
#endif
#elif defined(KEDGE_OP_topk) || defined(KEDGE_OP_topk_groups)
/* Scratch: a flag a token (bad row), then a flag a token and group (kept). */
float value(uint t, uint e) {
  float v = load_f(IN(0), t * ARGS.experts + e);
  return IN(1) != 0ul ? v + load_f(IN(1), e) : v;
}
#if defined(KEDGE_OP_topk_groups)
float group_value(uint t, uint group) {
  uint each = ARGS.experts / ARGS.groups;
  float first = -INFINITY, second = -INFINITY;
  for (uint e = group * each; e < (group + 1u) * each; e++) {
    float v = value(t, e);
    if (v > first) {
      second = first;
      first = v;
    } else if (v > second) {
      second = v;
    }
  }
  return ARGS.group_kind == KEDGE_GROUP_TWO ? first + second : first;
}
void row(uint t) {
  LANES(g, ARGS.groups) {
    float own = group_value(t, g);
    uint before = 0;
    for (uint other = 0; other < ARGS.groups; other++) {
      float v = group_value(t, other);
      if (v > own || (v == own && other < g)) before++;
    }
    store_i(SCRATCH, ARGS.tokens + t * ARGS.groups + g, before < ARGS.topk_groups ? 1 : 0);
  }
}
#else
bool is_open(uint t, uint e) {
  if (ARGS.topk_groups == ARGS.groups) return true;
  return load_i(SCRATCH, ARGS.tokens + t * ARGS.groups + e / (ARGS.experts / ARGS.groups)) != 0;
}
void row(uint t) {
  uint candidates = 0, broken = 0;
  bool placed = load_i(IN(2), t) >= 0;
  LANES(e, ARGS.experts) {
    uint bits = floatBitsToUint(value(t, e));
    if ((bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u) broken = 1u;
    if (bits != 0xff800000u && is_open(t, e)) candidates++;
  }
  bool good = subgroupAdd(candidates) >= ARGS.k && subgroupMax(broken) == 0u;
  if (LANE == 0) store_i(SCRATCH, t, placed && !good ? 1 : 0);
  good = good && placed;
  float last = INFINITY;
  int last_id = -1;
  for (uint k = 0; k < ARGS.k; k++) {
    float best = -INFINITY;
    uint id = 0xffffffffu;
    if (good) LANES(e, ARGS.experts) {
      float v = value(t, e);
      if (v > best && (v < last || (v == last && int(e) > last_id)) && is_open(t, e)) {
        best = v;
        id = e;
      }
    }
    float most = subgroupMax(best);
    id = subgroupMin(best == most ? id : 0xffffffffu);
    last = most;
    last_id = int(id);
    if (LANE == 0) store_i(OUT(0), t * ARGS.k + k, good ? last_id : -1);
  }
}
#endif
#elif defined(KEDGE_OP_topk_bad)
void row(uint t) {
  int bad = 0;
  LANES(i, ARGS.tokens) bad += load_i(SCRATCH, i);
  bad = subgroupAdd(bad);
  if (LANE == 0) store_i(OUT(1), 0, bad);
}
#elif defined(KEDGE_OP_dispatch_count)
/* One subgroup an expert: how many slots chose it, into scratch. */
void row(uint e) {
  int count = 0;
  LANES(i, ARGS.tokens * ARGS.k) count += load_i(IN(0), i) == int(e) ? 1 : 0;
  count = subgroupAdd(count);
  if (LANE == 0) store_i(SCRATCH, e, count);
}
#elif defined(KEDGE_OP_dispatch_clear)
void row(uint block) {
  uint end = min((block + 1u) * 1024u, ARGS.tokens * ARGS.k);
  for (uint i = block * 1024u + LANE; i < end; i += LOCAL) {
    store_i(OUT(0), i, -1);
    if (load_i(IN(0), i) < 0) store_i(OUT(2), i, -1);
  }
}
#elif defined(KEDGE_OP_dispatch)
/* One subgroup an expert: its first row is the sum of the earlier counts; its slots follow in order. */
void row(uint e) {
  int first = 0;
  for (uint i = LANE; i < e; i += LOCAL) first += load_i(SCRATCH, i);
  first = subgroupAdd(first);
  if (LANE == 0) store_i(OUT(1), e, first);
  int next = first;
  uint count = ARGS.tokens * ARGS.k;
  for (uint base = 0; base < count; base += LOCAL) {
    uint i = base + LANE;
    bool mine = false;
    if (i < count) mine = load_i(IN(0), i) == int(e);
    uvec4 all = subgroupBallot(mine);
    if (mine) {
      int at = next + int(subgroupBallotExclusiveBitCount(all));
      store_i(OUT(2), i, at);
      store_i(OUT(0), uint(at), int(i));
    }
    next += int(subgroupBallotBitCount(all));
  }
  if (LANE == 0 && e == ARGS.experts - 1u) store_i(OUT(1), ARGS.experts, next);
}
#elif defined(KEDGE_OP_counts_clear)
void row(uint block) {
  uint end = min((block + 1u) * 1024u, ARGS.groups * ARGS.experts);
  for (uint i = block * 1024u + LANE; i < end; i += LOCAL) store_i(SCRATCH, i, 0);
}
#elif defined(KEDGE_OP_counts_add)
/* Whole numbers: any order gives the same. */
void row(uint block) {
  uint end = min((block + 1u) * 1024u, ARGS.tokens * ARGS.k);
  for (uint i = block * 1024u + LANE; i < end; i += LOCAL) {
    int group = load_i(IN(1), i / ARGS.k), id = load_i(IN(0), i);
    if (group >= 0 && id >= 0) atomicAdd(I32(SCRATCH).v[uint(group) * ARGS.experts + uint(id)], 1);
  }
}
#elif defined(KEDGE_OP_expert_counts)
void row(uint block) {
  uint end = min((block + 1u) * 1024u, ARGS.groups * ARGS.experts);
  for (uint i = block * 1024u + LANE; i < end; i += LOCAL) store_f(OUT(0), i, float(load_i(SCRATCH, i)));
}
#endif

ROWS_MAIN
