/* SPDX-License-Identifier: Apache-2.0
 *
 * Builders, one an op of ops.def; included by core/kedge.h. Each checks shapes and dtypes, appends a node and
 * returns its first output (further outputs through pointers, which may be NULL). Failures are sticky (see
 * kedge_graph_status).
 *
 * Legend: T tokens, D width, H heads, V vocabulary, E experts, K experts a token, R = T*K routed rows, I
 * expert width. "storage" is f32 or bf16; f32 reads f64 in an all-double graph.
 */
#ifndef KEDGE_OPS_H
#define KEDGE_OPS_H

#include "core/kedge.h"

#ifdef __cplusplus
extern "C" {
#endif

/* elementwise: any shape, both inputs alike */
kedge_value kedge_copy(kedge_graph *g, kedge_value x,
                       kedge_dtype dtype); /* converts f32 <-> bf16; packs a window */
kedge_value kedge_cast(kedge_graph *g, kedge_value x,
                       kedge_dtype dtype); /* x itself if it has that dtype, else a copy */
kedge_value kedge_fill(kedge_graph *g, kedge_dtype dtype, uint32_t rank, const uint32_t *dims, double value);
kedge_value kedge_spread(kedge_graph *g, kedge_value x, uint32_t rank,
                         const uint32_t *dims); /* x f32 [1], everywhere */
kedge_value kedge_add(kedge_graph *g, kedge_value a, kedge_value b);
kedge_value kedge_mul(kedge_graph *g, kedge_value a, kedge_value b);
kedge_value kedge_scale(kedge_graph *g, kedge_value x, double factor);
kedge_value kedge_clamp(kedge_graph *g, kedge_value x, double limit); /* to [-limit, limit] */
kedge_value kedge_detach(kedge_graph *g, kedge_value x);              /* x, a constant for gradients */

/* swiglu */
kedge_value kedge_swiglu(kedge_graph *g, kedge_value gate, kedge_value up); /* silu(gate) * up */

/* A token-to-expert plan: ids of kedge_topk sorted by expert (kedge_dispatch). */
typedef struct kedge_routes {
  kedge_value ids_TK;     /* i32 [T,K] chosen experts, -1: none */
  kedge_value slots_R;    /* i32 [R] slot t*K+k of each row, by expert, then slot; -1 past the last */
  kedge_value offsets_E1; /* i32 [E+1] first row of each expert; the last is the number of valid rows */
  kedge_value rows_TK;    /* i32 [T,K] row of each slot, -1: none */
  uint32_t experts, topk;
} kedge_routes;

/* gate, up storage [R,I], weights f32 [T,K] -> storage [R,I]: silu(gate) up w. The weight goes in before the
 * down projection, so that its gradient needs no expert output (the idea of SonicMoE, arXiv 2512.14080). */
kedge_value kedge_swiglu_gated(kedge_graph *g, kedge_value gate, kedge_value up, kedge_value weights,
                               const kedge_routes *routes);

/* matmul */
/* C [m,n] = op(A) op(B); A storage [m,k] ([k,m] if trans_a), B storage [k,n] ([n,k] if trans_b); C of
 * `dtype`. */
kedge_value kedge_matmul(kedge_graph *g, kedge_value a, kedge_value b, bool trans_a, bool trans_b,
                         kedge_dtype dtype);
/* y [T,N] = x [T,D] W^T with W [N,D] as Hugging Face stores Linear weights; y has x's dtype. */
kedge_value kedge_linear(kedge_graph *g, kedge_value x, kedge_value weight);
/* x storage [R,k] -> [R,n]; W [E,n,k] if trans_w (a Linear per expert), else [E,k,n]. If x comes from
 * kedge_gather_rows its rows are gathered while loading and the gathered copy is never made. */
kedge_value kedge_grouped_matmul(kedge_graph *g, kedge_value x, kedge_value weight,
                                 const kedge_routes *routes, bool trans_w);
/* dY [R,n], X [R,k] (either may come from kedge_gather_rows) -> f32 [E,n,k]. */
kedge_value kedge_grouped_wgrad(kedge_graph *g, kedge_value dy, kedge_value x, const kedge_routes *routes);

/* norm: x storage [...,D], weight storage [D]; rms over the last dimension */
kedge_value kedge_rms_norm(kedge_graph *g, kedge_value x, kedge_value weight, double eps);

/* softmax: h storage [T,D], weight storage [V,D], labels i32 [T] (-1: none) -> nll f32 [T]; *lse f32 [T]. A
 * token without a label costs nothing: its nll and lse are 0. */
kedge_value kedge_head_loss(kedge_graph *g, kedge_value h, kedge_value weight, kedge_value labels,
                            kedge_value *lse);

/* attention */
/* x storage [T,H*d], inv_freq f32 [d/2], positions i32 [T]. Half: pair (i, i+d/2); interleaved: (2i, 2i+1),
 * order kept. */
typedef struct kedge_rope_options {
  uint32_t heads;
  bool interleaved, inverse;
  double factor; /* multiplies cos and sin; 1 unless YaRN asks */
} kedge_rope_options;
kedge_value kedge_rope(kedge_graph *g, kedge_value x, kedge_value inv_freq, kedge_value positions,
                       const kedge_rope_options *options);

typedef struct kedge_attention_options {
  uint32_t heads, kv_heads; /* query head h reads kv head h / (heads / kv_heads) */
  double scale;
} kedge_attention_options;
/* q storage [T,H*dqk], k [T,Hkv*dqk], v [T,Hkv*dv], segments i32 [T]: the index of the first token of the
 * token's sequence, or -1 for a token outside any (its output is 0). -> storage [T,H*dv]; *lse f32 [T,H]. */
kedge_value kedge_attention(kedge_graph *g, kedge_value q, kedge_value k, kedge_value v, kedge_value segments,
                            const kedge_attention_options *options, kedge_value *lse);
/* q storage [Q,H*dqk], caches [C,Hkv*dqk] and [C,Hkv*dv]; query i attends to cache rows [base[i],
 * base[i]+length[i]). */
kedge_value kedge_attention_cached(kedge_graph *g, kedge_value q, kedge_value k_cache, kedge_value v_cache,
                                   kedge_value base, kedge_value length,
                                   const kedge_attention_options *options);

/* heads: x [...,D] <-> [...,times*D] */
kedge_value kedge_repeat(kedge_graph *g, kedge_value x, uint32_t times);
kedge_value kedge_fold(kedge_graph *g, kedge_value x, uint32_t times); /* its transpose: a sum */

/* rows */
kedge_value kedge_gather_rows(kedge_graph *g, kedge_value x, const kedge_routes *routes); /* [T,D] -> [R,D] */
kedge_value kedge_combine_rows(kedge_graph *g, kedge_value x,
                               const kedge_routes *routes);                   /* [R,D] -> [T,D] */
kedge_value kedge_embed(kedge_graph *g, kedge_value weight, kedge_value ids); /* [V,D], i32 [T] -> [T,D] */
/* dst [C,D] (a parameter), x [T,D], index i32 [T] with entries < C, none twice; entries < 0 are skipped. */
void kedge_scatter_rows(kedge_graph *g, kedge_value dst, kedge_value x, kedge_value index);
kedge_value kedge_slice(kedge_graph *g, kedge_value x, uint32_t offset,
                        uint32_t cols); /* last dimension, a copy */
kedge_value kedge_place(kedge_graph *g, kedge_value x, uint32_t offset, uint32_t total); /* its transpose */
kedge_value kedge_concat(kedge_graph *g, kedge_value a, kedge_value b);                  /* last dimension */
/* x f32 [T,E] + factor * table f32 [S,E] [span[t]]; span i32 [T], -1: no bias. No gradient for the table. */
kedge_value kedge_row_bias(kedge_graph *g, kedge_value x, kedge_value table, kedge_value spans,
                           double factor);
kedge_value kedge_sum(kedge_graph *g, kedge_value x);         /* -> f32 [1] */
kedge_value kedge_sum_squares(kedge_graph *g, kedge_value x); /* -> f32 [1] */

/* route */
kedge_value kedge_scores(kedge_graph *g, kedge_value logits, uint32_t kind); /* f32 [T,E], KEDGE_SCORE_* */
/* How experts are chosen. With groups > 1 the experts stand in equal groups, and only those of the best
 * topk_groups groups can be chosen; groups 0 and 1: no groups. */
typedef struct kedge_topk_options {
  uint32_t k, groups, topk_groups;
  uint32_t group_kind; /* KEDGE_GROUP_*, of score + bias */
} kedge_topk_options;
/* scores f32 [T,E], bias f32 [E] or KEDGE_NONE, segments i32 [T] -> ids i32 [T,K]; *bad i32 [1]: rows not
 * finite */
kedge_value kedge_topk(kedge_graph *g, kedge_value scores, kedge_value bias, kedge_value segments,
                       const kedge_topk_options *options, kedge_value *bad);
kedge_routes kedge_dispatch(kedge_graph *g, kedge_value ids, uint32_t experts);
typedef struct kedge_gate_options {
  uint32_t kind;  /* KEDGE_SCORE_* */
  bool normalise; /* divide by the sum over the chosen, plus epsilon */
  double alpha;   /* routed scaling factor */
  double epsilon; /* 1e-20 in the DeepSeek family, 0 in the softmax families */
} kedge_gate_options;
kedge_value kedge_gates(kedge_graph *g, kedge_value logits, kedge_value ids,
                        const kedge_gate_options *options); /* [T,K] */

/* choice */
/* ids i32 [T,K], index i32 [T] with entries < groups -> f32 [groups,experts]: how many of the ids of a
 * group's tokens are each expert. Tokens with index < 0 and ids < 0 are not counted. */
kedge_value kedge_expert_counts(kedge_graph *g, kedge_value ids, kedge_value index, uint32_t groups,
                                uint32_t experts);
/* ids i32 [T,K], table i32 [S,K], index i32 [T] -> i32 [T,K]: table[index[t]], or ids[t] where index < 0. */
kedge_value kedge_choose_rows(kedge_graph *g, kedge_value ids, kedge_value table, kedge_value index);

/* anchor and balance: a loss f32 [T], a row of router logits z f32 [T,E] against row index[t] of a table f32
 * [S,E]; index i32 [T], -1: the loss is 0. No gradient for the table. */
/* Table of probabilities pi: sum over e of pi_e (log pi_e - log softmax(z_t)_e), where pi_e = 0 counts 0. */
kedge_value kedge_anchor_kl(kedge_graph *g, kedge_value z, kedge_value table, kedge_value index);
/* Sum over e of (center(z_t) - center(log max(pi, floor)))_e^2, center(v) = v - mean(v); floor > 0. */
kedge_value kedge_anchor_l2(kedge_graph *g, kedge_value z, kedge_value table, kedge_value index,
                            double floor);
/* Table of counts c: E sum over e of f_e q_e with f = c / sum(c) and q = softmax(z_t), or for
 * KEDGE_SCORE_SIGMOID sigmoid(z_t) divided by its sum, without underflow. 0 where all counts are 0. */
kedge_value kedge_balance(kedge_graph *g, kedge_value z, kedge_value counts, kedge_value index,
                          uint32_t kind);
kedge_value kedge_logsumexp(kedge_graph *g, kedge_value x); /* f32 [...,E] -> f32 [...] */

/* optim (nodes that change parameters; they run in the order in which they were built) */
/* sum of squares f32 [1] -> scale f32 [1]; *norm f32 [1] */
kedge_value kedge_clip_scale(kedge_graph *g, kedge_value sum_squares, double max_norm, kedge_value *norm);
typedef struct kedge_adamw_options {
  double beta1, beta2, eps, decay;
} kedge_adamw_options;
/* master, m, v f32 and `storage` (bf16 copy of the weight, or KEDGE_NONE) are parameters of one shape; grad
 * f32; scale f32 [1]; hyper f32 [4] = learning rate, 1 - beta1^t, 1 - beta2^t, 0. As torch.optim.AdamW. */
void kedge_adamw(kedge_graph *g, kedge_value master, kedge_value m, kedge_value v, kedge_value storage,
                 kedge_value grad, kedge_value scale, kedge_value hyper, const kedge_adamw_options *options);
void kedge_accumulate(kedge_graph *g, kedge_value accumulator, kedge_value x); /* accumulator f32 parameter */

/* collective: over the ranks of a group (KEDGE_RANKS_ of core/comm.h) that the graph's device has joined;
 * alone without. All ranks run the same ones in the same order. */
kedge_value kedge_all_reduce(kedge_graph *g, kedge_value x,
                             uint32_t group);                             /* f32 -> f32, the sum over ranks */
void kedge_reduce_scatter(kedge_graph *g, kedge_value x, uint32_t group); /* x f32 parameter */
void kedge_all_gather(kedge_graph *g, kedge_value x, uint32_t group);     /* x parameter, f32 or bf16 */
/* Rows for the experts that `members` ranks share: what each sends, and the plan of what comes here, at most
 * `capacity` rows. More than that on any rank of the run makes the run of the graph fail on all, with
 * kedge_comm.overflow set. */
typedef struct kedge_exchange {
  kedge_value counts_PE;
  kedge_routes routes; /* of this rank's experts: rows as they come, one slot each */
  uint32_t members, capacity;
} kedge_exchange;
kedge_exchange kedge_exchange_counts(kedge_graph *g, const kedge_routes *routes, uint32_t members,
                                     uint32_t capacity);
/* x storage [R,D] by expert -> [capacity,D] of the rows for this rank's experts, by expert, then rank. */
kedge_value kedge_send_rows(kedge_graph *g, kedge_value x, const kedge_exchange *exchange);
/* And back: [capacity,D] -> [rows,D]. */
kedge_value kedge_return_rows(kedge_graph *g, kedge_value x, const kedge_exchange *exchange, uint32_t rows);

#ifdef __cplusplus
}
#endif

#endif
