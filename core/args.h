/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of the ops, one struct a row of ops.def, shared by C, CUDA, HIP and GLSL. Dimensions are u32 and
 * come first, an even number of them; reals (kedge_real) follow. The graph keeps the double version; a step
 * gets the version of its kernel's kedge_real (core/run.c narrows). No other member types, no padding.
 */
#ifndef KEDGE_ARGS_H
#define KEDGE_ARGS_H

#ifndef KEDGE_GLSL
#include <stdint.h>
#ifndef KEDGE_REAL
#define KEDGE_REAL double
#endif
typedef KEDGE_REAL kedge_real;
#define KEDGE_ARGS(name)                                                                                     \
  typedef struct kedge_args_##name kedge_args_##name;                                                        \
  struct kedge_args_##name
typedef uint32_t kedge_u32;
#endif

/* Kinds of router score. */
#define KEDGE_SCORE_SOFTMAX 0u
#define KEDGE_SCORE_SIGMOID 1u
/* What a group of experts is ranked by: its best score, or the sum of its two best. */
#define KEDGE_GROUP_MAX 0u
#define KEDGE_GROUP_TWO 1u

/* One row a struct. */
/* clang-format off */
KEDGE_ARGS(copy) { kedge_u32 rows, cols; };
KEDGE_ARGS(fill) { kedge_u32 n, pad; kedge_real value; };
KEDGE_ARGS(spread) { kedge_u32 n, pad; };
KEDGE_ARGS(add) { kedge_u32 n, pad; };
KEDGE_ARGS(mul) { kedge_u32 n, pad; };
KEDGE_ARGS(scale) { kedge_u32 n, pad; kedge_real factor; };
KEDGE_ARGS(clamp) { kedge_u32 n, pad; kedge_real limit; };
KEDGE_ARGS(clamp_grad) { kedge_u32 n, pad; kedge_real limit; };
KEDGE_ARGS(detach) { kedge_u32 n, pad; };

KEDGE_ARGS(swiglu) { kedge_u32 n, pad; };
KEDGE_ARGS(swiglu_grad) { kedge_u32 n, pad; };
KEDGE_ARGS(swiglu_gated) { kedge_u32 rows, cols, experts, pad; }; /* slots of weights: as many as rows */
KEDGE_ARGS(swiglu_gated_grad) { kedge_u32 rows, cols, experts, pad; };

KEDGE_ARGS(matmul) { kedge_u32 m, n, k, trans_a, trans_b, pad; };          /* A [m,k] or [k,m], B [k,n] or [n,k], C [m,n] */
KEDGE_ARGS(grouped_matmul) {
  kedge_u32 rows, n, k, experts, topk, gather, trans_w, pad; /* W [E,k,n], or [E,n,k] if trans_w */
};
KEDGE_ARGS(grouped_wgrad) {
  kedge_u32 rows, n, k, experts, topk, gather_dy, gather_x, pad; /* dY [.,n], X [.,k], dW [E,n,k] */
};

KEDGE_ARGS(rms_norm) { kedge_u32 rows, cols; kedge_real eps; };
KEDGE_ARGS(rms_norm_grad) { kedge_u32 rows, cols; };

KEDGE_ARGS(head_loss) { kedge_u32 tokens, dim, vocab, pad; };
KEDGE_ARGS(head_loss_grad) { kedge_u32 tokens, dim, vocab, pad; };

KEDGE_ARGS(rope) { kedge_u32 tokens, heads, dim, interleaved, inverse, pad; kedge_real factor; }; /* factor: of cos, sin */
KEDGE_ARGS(attention) { kedge_u32 tokens, heads, kv_heads, dim_qk, dim_v, pad; kedge_real scale; };
KEDGE_ARGS(attention_grad) { kedge_u32 tokens, heads, kv_heads, dim_qk, dim_v, pad; kedge_real scale; };
KEDGE_ARGS(attention_cached) { kedge_u32 queries, heads, kv_heads, dim_qk, dim_v, capacity; kedge_real scale; };

KEDGE_ARGS(repeat) { kedge_u32 rows, cols, times, pad; };
KEDGE_ARGS(fold) { kedge_u32 rows, cols, times, pad; };

KEDGE_ARGS(gather_rows) { kedge_u32 rows, cols, experts, topk; };
KEDGE_ARGS(combine_rows) { kedge_u32 tokens, cols, topk, pad; };
KEDGE_ARGS(embed) { kedge_u32 tokens, cols, vocab, pad; };
KEDGE_ARGS(embed_grad) { kedge_u32 tokens, cols, vocab, pad; };
KEDGE_ARGS(scatter_rows) { kedge_u32 rows, cols, capacity, pad; };
KEDGE_ARGS(slice) { kedge_u32 rows, cols, offset, total; };
KEDGE_ARGS(place) { kedge_u32 rows, cols, offset, total; };
KEDGE_ARGS(concat) { kedge_u32 rows, cols_a, cols_b, pad; };
KEDGE_ARGS(row_bias) { kedge_u32 tokens, experts, spans, pad; kedge_real factor; };
KEDGE_ARGS(sum) { kedge_u32 n, pad; };
KEDGE_ARGS(sum_squares) { kedge_u32 n, pad; };

KEDGE_ARGS(scores) { kedge_u32 tokens, experts, kind, pad; };
KEDGE_ARGS(scores_grad) { kedge_u32 tokens, experts, kind, pad; };
KEDGE_ARGS(topk) { kedge_u32 tokens, experts, k, groups, topk_groups, group_kind; }; /* groups of experts / groups each */
KEDGE_ARGS(dispatch) { kedge_u32 tokens, k, experts, pad; };
KEDGE_ARGS(gates) { kedge_u32 tokens, experts, k, kind, normalise, pad; kedge_real alpha, epsilon; };
KEDGE_ARGS(gates_grad) { kedge_u32 tokens, experts, k, kind, normalise, pad; kedge_real alpha, epsilon; };

KEDGE_ARGS(expert_counts) { kedge_u32 tokens, k, groups, experts; };
KEDGE_ARGS(choose_rows) { kedge_u32 tokens, k, rows, pad; };

KEDGE_ARGS(anchor_kl) { kedge_u32 tokens, experts, rows, pad; }; /* rows: of the table */
KEDGE_ARGS(anchor_kl_grad) { kedge_u32 tokens, experts, rows, pad; };
KEDGE_ARGS(anchor_l2) { kedge_u32 tokens, experts, rows, pad; kedge_real floor; };
KEDGE_ARGS(anchor_l2_grad) { kedge_u32 tokens, experts, rows, pad; kedge_real floor; };
KEDGE_ARGS(logsumexp) { kedge_u32 rows, cols; };
KEDGE_ARGS(logsumexp_grad) { kedge_u32 rows, cols; };

KEDGE_ARGS(balance) { kedge_u32 tokens, experts, rows, kind; };
KEDGE_ARGS(balance_grad) { kedge_u32 tokens, experts, rows, kind; };

KEDGE_ARGS(clip_scale) { kedge_u32 pad0, pad1; kedge_real max_norm; }; /* max_norm <= 0: never clips */
KEDGE_ARGS(adamw) { kedge_u32 n, pad; kedge_real beta1, beta2, rest1, rest2, eps, decay; }; /* rest: 1 - beta */
KEDGE_ARGS(accumulate) { kedge_u32 n, pad; };

KEDGE_ARGS(all_reduce) { kedge_u32 n, group; };
KEDGE_ARGS(reduce_scatter) { kedge_u32 n, group; };
KEDGE_ARGS(all_gather) { kedge_u32 n, group; };
KEDGE_ARGS(exchange_counts) { kedge_u32 members, experts, capacity, pad; }; /* capacity: rows that this rank has room for */
KEDGE_ARGS(all_to_all_rows) { kedge_u32 members, experts, rows_in, rows_out, cols, back; };
  /* clang-format on */

#endif
