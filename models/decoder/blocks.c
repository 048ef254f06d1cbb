/* SPDX-License-Identifier: Apache-2.0
 *
 * The blocks of a layer: attention, plain or latent, dense MLP, mixture of experts. Written once for every
 * family; what differs comes from kedge_family_options and the config. Shape suffixes as in decoder.h.
 */
#include "core/args.h"
#include "core/comm.h"
#include "models/decoder/cache.h"
#include "models/decoder/decoder.h"
#include "models/decoder/rope.h"

static kedge_value norm(kedge_build *b, kedge_role role, uint32_t layer, kedge_value x) {
  return kedge_rms_norm(b->g, x, kedge__weight(b, role, layer), b->model->config.rms_norm_eps);
}

/* Norm of queries or keys [T,heads*d]: over each head, with weights that the heads share, or over the row. */
static kedge_value qk_norm(kedge_build *b, kedge_role role, uint32_t layer, kedge_value x, uint32_t heads) {
  const uint32_t T = b->spec->tokens, d = b->model->config.head_dim;
  const kedge_qk_norm kind = b->model->params.options.qk_norm;
  if (kind == KEDGE_QK_NORM_NONE) return x;
  if (kind == KEDGE_QK_NORM_FULL) return norm(b, role, layer, x);
  kedge_value x_THd = kedge_reshape(b->g, x, 3, (uint32_t[]){T, heads, d});
  return kedge_reshape(b->g, norm(b, role, layer, x_THd), 2, (uint32_t[]){T, heads * d});
}

static kedge_value rope(kedge_build *b, kedge_value x, uint32_t heads) {
  const kedge_rope_options options = {.heads = heads,
                                      .interleaved = b->model->params.options.rope_interleaved,
                                      .factor = kedge_rope_magnitude(&b->model->config.rope)};
  return kedge_rope(b->g, x, b->inv_freq, b->d->positions_T, &options);
}

/* A [rows,cols] of ones in the storage dtype: its products spread a bias over rows or a factor over columns,
 * and their gradients are sums. */
static kedge_value ones(kedge_build *b, uint32_t rows, uint32_t cols) {
  const kedge_dtype dtype = b->model->dtype == KEDGE_BF16 ? KEDGE_BF16 : KEDGE_F32;
  return kedge_fill(b->g, dtype, 2, (uint32_t[]){rows, cols}, 1);
}

static kedge_value linear(kedge_build *b, kedge_role role, uint32_t layer, kedge_value x) {
  return kedge_linear(b->g, x, kedge__weight(b, role, layer));
}

/* x W^T, plus a bias a column where the model has one. */
static kedge_value linear_biased(kedge_build *b, kedge_role role, kedge_role bias_role, uint32_t layer,
                                 kedge_value x) {
  kedge_value y_TN = linear(b, role, layer, x), bias_N = kedge__weight(b, bias_role, layer);
  if (!bias_N || !y_TN) return y_TN;
  kedge_value bias_1N = kedge_reshape(b->g, bias_N, 2, (uint32_t[]){1, kedge_value_dim(b->g, bias_N, 0)});
  kedge_value rows_TN =
      kedge_matmul(b->g, ones(b, b->spec->tokens, 1), bias_1N, false, false, kedge_value_dtype(b->g, y_TN));
  return kedge_add(b->g, y_TN, rows_TN);
}

static kedge_value attend(kedge_build *b, uint32_t layer, kedge_value q, kedge_value k, kedge_value v) {
  const kedge_hf_config *c = &b->model->config;
  const kedge_attention_options options = {c->num_attention_heads, c->num_key_value_heads,
                                           b->model->params.options.attention_scale};
  if (!b->spec->cache) return kedge_attention(b->g, q, k, v, b->d->segments_T, &options, NULL);
  kedge_value k_cache, v_cache;
  kedge_cache_values(b->spec->cache, b->g, layer, &k_cache, &v_cache);
  kedge_scatter_rows(b->g, k_cache, k, b->d->rows_T);
  kedge_scatter_rows(b->g, v_cache, v, b->d->rows_T);
  return kedge_attention_cached(b->g, q, k_cache, v_cache, b->d->base_T, b->d->length_T, &options);
}

static kedge_value clip(kedge_build *b, kedge_value x) {
  const double limit = b->model->params.options.clip_qkv;
  return limit > 0 ? kedge_clamp(b->g, x, limit) : x;
}

static kedge_value attention_block(kedge_build *b, uint32_t layer, kedge_value x_TD) {
  const kedge_hf_config *c = &b->model->config;
  const uint32_t H = c->num_attention_heads, Hkv = c->num_key_value_heads;
  kedge_value q = linear_biased(b, KEDGE_ROLE_Q, KEDGE_ROLE_Q_BIAS, layer, x_TD);
  kedge_value k = linear_biased(b, KEDGE_ROLE_K, KEDGE_ROLE_K_BIAS, layer, x_TD);
  kedge_value v = linear_biased(b, KEDGE_ROLE_V, KEDGE_ROLE_V_BIAS, layer, x_TD);
  q = clip(b, qk_norm(b, KEDGE_ROLE_Q_NORM, layer, q, H));
  k = clip(b, qk_norm(b, KEDGE_ROLE_K_NORM, layer, k, Hkv));
  kedge_value o = attend(b, layer, rope(b, q, H), rope(b, k, Hkv), clip(b, v));
  return linear(b, KEDGE_ROLE_O, layer, o);
}

static kedge_value latent_norm(kedge_build *b, kedge_role role, uint32_t layer, kedge_value x) {
  return kedge_rms_norm(b->g, x, kedge__weight(b, role, layer), b->model->params.options.latent_norm_eps);
}

static kedge_value heads3(kedge_build *b, kedge_value x, uint32_t width) {
  return kedge_reshape(b->g, x, 3,
                       (uint32_t[]){b->spec->tokens, b->model->config.num_attention_heads, width});
}

static kedge_value rows2(kedge_build *b, kedge_value x, uint32_t width) {
  return kedge_reshape(b->g, x, 2,
                       (uint32_t[]){b->spec->tokens, b->model->config.num_attention_heads * width});
}

/* Multi-head latent attention in its expanded form. Of each head's query and key, dn columns know no position
 * and dr are rotated; the rotated key is one for all heads. */
static kedge_value latent_attention_block(kedge_build *b, uint32_t layer, kedge_value x_TD) {
  kedge_graph *g = b->g;
  const kedge_hf_config *c = &b->model->config;
  const uint32_t H = c->num_attention_heads, rank = c->kv_lora_rank, dn = c->qk_nope_head_dim,
                 dr = c->qk_rope_head_dim, dv = c->v_head_dim;
  kedge_value q;
  if (c->q_lora_rank) {
    kedge_value latent_TQ =
        latent_norm(b, KEDGE_ROLE_Q_A_NORM, layer, linear(b, KEDGE_ROLE_Q_A, layer, x_TD));
    q = linear(b, KEDGE_ROLE_Q_B, layer, latent_TQ);
  } else {
    q = linear(b, KEDGE_ROLE_Q, layer, x_TD);
  }
  kedge_value q_THd = heads3(b, q, dn + dr);
  kedge_value q_rope = rope(b, rows2(b, kedge_window(g, q_THd, dn, dr), dr), H);
  q = rows2(b, kedge_concat(g, kedge_window(g, q_THd, 0, dn), heads3(b, q_rope, dr)), dn + dr);
  kedge_value down = linear(b, KEDGE_ROLE_KV_A, layer, x_TD);
  kedge_value k_rope = rope(b, kedge_window(g, down, rank, dr), 1);
  kedge_value latent_TC = latent_norm(b, KEDGE_ROLE_KV_A_NORM, layer, kedge_window(g, down, 0, rank));
  kedge_value kv_THd = heads3(b, linear(b, KEDGE_ROLE_KV_B, layer, latent_TC), dn + dv);
  kedge_value k_THd =
      kedge_concat(g, kedge_window(g, kv_THd, 0, dn), heads3(b, kedge_repeat(g, k_rope, H), dr));
  kedge_value v = rows2(b, kedge_window(g, kv_THd, dn, dv), dv);
  return linear(b, KEDGE_ROLE_O, layer, attend(b, layer, q, rows2(b, k_THd, dn + dr), v));
}

/* An MLP whose three weights are gate, gate + 1 (up) and gate + 2 (down). */
static kedge_value mlp_block(kedge_build *b, kedge_role gate, uint32_t layer, kedge_value x_TD) {
  const kedge_role up = gate + 1, down = gate + 2;
  kedge_value act_TF = kedge_swiglu(b->g, linear(b, gate, layer, x_TD), linear(b, up, layer, x_TD));
  return linear(b, down, layer, act_TF);
}

/* The expert that every token goes to, weighed by a sigmoid where the model has one for it. */
static kedge_value shared_block(kedge_build *b, uint32_t layer, kedge_value x_TD) {
  kedge_graph *g = b->g;
  kedge_value y_TD = mlp_block(b, KEDGE_ROLE_SHARED_GATE, layer, x_TD);
  if (!b->model->params.options.shared_gated || !y_TD) return y_TD;
  kedge_value z_T1 = kedge_cast(g, linear(b, KEDGE_ROLE_SHARED_ROUTER, layer, x_TD), KEDGE_F32);
  const kedge_dtype dtype = kedge_value_dtype(g, y_TD);
  kedge_value s_T1 = kedge_cast(g, kedge_scores(g, z_T1, KEDGE_SCORE_SIGMOID), dtype);
  kedge_value s_TD = kedge_matmul(g, s_T1, ones(b, 1, b->model->config.hidden_size), false, false, dtype);
  return kedge_mul(g, y_TD, s_TD);
}

/* The router in f32, whatever the storage dtype: two logits that bf16 could not tell apart still choose
 * rightly. */
static kedge_router_values router(kedge_build *b, uint32_t layer, kedge_value x_TD) {
  const bool cast = kedge_value_dtype(b->g, x_TD) == KEDGE_BF16;
  const kedge_family_options *o = &b->model->params.options;
  const kedge_decoder_spec *s = b->spec;
  const kedge_router_site site = {
      .graph = b->g,
      .layer = layer,
      .moe_layer = kedge_params_moe_index(&b->model->params, layer),
      .experts = b->model->config.num_experts,
      .groups = s->prior_rows / 2,
      .ranks = kedge_comm_size(kedge_device_comm(b->model->device), KEDGE_RANKS_ALL),
      .score_kind = o->score_kind,
      .choice = {b->model->config.num_experts_per_tok, o->groups, o->topk_groups, o->group_kind},
      .gate = {o->score_kind, o->gate_normalise, o->gate_alpha, o->gate_epsilon},
      .x_TD = cast ? kedge_cast(b->g, x_TD, KEDGE_F32) : x_TD,
      .weight_ED = kedge__weight(b, KEDGE_ROLE_ROUTER, layer),
      .segments_T = b->d->segments_T,
      .correction_E = kedge__weight(b, KEDGE_ROLE_ROUTER_CORRECTION, layer),
      .interventions = s->interventions,
      .feeds = b->d->feeds,
      .intervention_count = s->intervention_count,
  };
  return kedge_router_build(&site);
}

/* Keeps what the caller may want to see of a router. */
static void tap(kedge_build *b, uint32_t index, const kedge_router_values *v) {
  kedge_decoder *d = b->d;
  d->bad_1[index] = v->bad_1;
  if (v->bad_1) kedge_output(b->g, v->bad_1, "router.bad");
  for (uint32_t i = 0; i < b->spec->intervention_count; i++)
    if (v->terms[i])
      d->terms_1[i] = d->terms_1[i] ? kedge_add(b->g, d->terms_1[i], v->terms[i]) : v->terms[i];
  if (b->spec->counts && v->counts_GE)
    kedge_output(b->g, d->counts_GE[index] = v->counts_GE, "router.counts");
  if (!b->spec->taps) return;
  kedge_output(b->g, d->router_TE[index] = v->logits_TE, "router.logits");
  d->scores_TE[index] = v->scores_TE;
  if (v->scores_TE != v->logits_TE) kedge_output(b->g, v->scores_TE, "router.scores");
  kedge_output(b->g, d->ids_TK[index] = v->ids_TK, "router.ids");
  kedge_output(b->g, d->gates_TK[index] = v->weights_TK, "router.gates");
}

/* g_te FFN_e(x) of each row, by expert. */
static kedge_value experts(kedge_build *b, uint32_t layer, kedge_value x_RD, kedge_value weights_TK,
                           const kedge_routes *routes) {
  kedge_graph *g = b->g;
  kedge_value gate_RI =
      kedge_grouped_matmul(g, x_RD, kedge__weight(b, KEDGE_ROLE_EXPERT_GATE, layer), routes, true);
  kedge_value up_RI =
      kedge_grouped_matmul(g, x_RD, kedge__weight(b, KEDGE_ROLE_EXPERT_UP, layer), routes, true);
  kedge_value act_RI = kedge_swiglu_gated(g, gate_RI, up_RI, weights_TK, routes);
  return kedge_grouped_matmul(g, act_RI, kedge__weight(b, KEDGE_ROLE_EXPERT_DOWN, layer), routes, true);
}

/* The same by experts on other ranks: rows and their gate weights go there and the products come back. */
static kedge_value shared_experts(kedge_build *b, uint32_t layer, kedge_value x_RD, kedge_value weights_TK,
                                  const kedge_routes *routes) {
  kedge_graph *g = b->g;
  if (!x_RD) return KEDGE_NONE;
  const uint32_t R = kedge_value_dim(g, x_RD, 0),
                 C = b->spec->expert_rows ? b->spec->expert_rows
                                          : kedge_decoder_expert_rows(b->model, b->spec->tokens);
  kedge_routes flat = *routes; /* of slots in the place of tokens */
  flat.topk = 1;
  flat.rows_TK = kedge_reshape(g, routes->rows_TK, 2, (uint32_t[]){R, 1});
  kedge_value weights_R1 = kedge_gather_rows(g, kedge_reshape(g, weights_TK, 2, (uint32_t[]){R, 1}), &flat);
  const kedge_exchange e = kedge_exchange_counts(g, routes, b->model->params.members, C);
  kedge_value x_CD = kedge_send_rows(g, x_RD, &e), weights_C1 = kedge_send_rows(g, weights_R1, &e);
  return kedge_return_rows(g, experts(b, layer, x_CD, weights_C1, &e.routes), &e, R);
}

/* y_t = sum over chosen experts of g_te FFN_e(x_t), plus the shared expert. Rows are gathered while the
 * grouped matmul loads; the gate weight goes in before the down projection, so its gradient needs no expert
 * output. */
static kedge_value moe_block(kedge_build *b, uint32_t layer, kedge_value x_TD) {
  kedge_graph *g = b->g;
  kedge_router_values v = router(b, layer, x_TD);
  tap(b, kedge_params_moe_index(&b->model->params, layer), &v);
  kedge_routes routes = kedge_dispatch(g, v.ids_TK, b->model->config.num_experts);
  if (b->spec->loads) {
    const uint32_t index = kedge_params_moe_index(&b->model->params, layer);
    kedge_output(g, b->d->offsets_E1[index] = routes.offsets_E1, "router.offsets");
  }
  kedge_value x_RD = kedge_gather_rows(g, x_TD, &routes);
  kedge_value y_RD = b->model->params.members > 1 ? shared_experts(b, layer, x_RD, v.weights_TK, &routes)
                                                  : experts(b, layer, x_RD, v.weights_TK, &routes);
  kedge_value y_TD = kedge_combine_rows(g, y_RD, &routes);
  if (!b->model->params.options.shared_width) return y_TD;
  return kedge_add(g, y_TD, shared_block(b, layer, x_TD));
}

/* x + multiplier * y */
static kedge_value add_branch(kedge_build *b, kedge_value x_TD, kedge_value y_TD) {
  return kedge_add(b->g, x_TD, kedge__multiplied(b, y_TD, b->model->config.residual_multiplier));
}

kedge_value kedge__layer(kedge_build *b, uint32_t layer, kedge_value x_TD) {
  const kedge_params *params = &b->model->params;
  if (b->spec->recompute) kedge_region_begin(b->g, "layer");
  kedge_value n_TD = norm(b, KEDGE_ROLE_INPUT_NORM, layer, x_TD);
  kedge_value y_TD =
      params->config.kv_lora_rank ? latent_attention_block(b, layer, n_TD) : attention_block(b, layer, n_TD);
  kedge_value h_TD = add_branch(b, x_TD, y_TD);
  n_TD = norm(b, KEDGE_ROLE_POST_NORM, layer, h_TD);
  y_TD = kedge_params_is_moe(params, layer) ? moe_block(b, layer, n_TD)
                                            : mlp_block(b, KEDGE_ROLE_MLP_GATE, layer, n_TD);
  h_TD = add_branch(b, h_TD, y_TD);
  if (b->spec->recompute) kedge_region_end(b->g);
  return h_TD;
}
