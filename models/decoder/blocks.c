/* SPDX-License-Identifier: Apache-2.0
 *
 * The blocks of a layer: attention, dense MLP, mixture of experts. Written once for every family; what
 * differs comes from kedge_family_options and the config. Shape suffixes as in decoder.h.
 */
#include "models/decoder/cache.h"
#include "models/decoder/decoder.h"

static kedge_value norm(kedge_build *b, kedge_role role, uint32_t layer, kedge_value x) {
  return kedge_rms_norm(b->g, x, kedge__weight(b, role, layer), b->model->config.rms_norm_eps);
}

/* One RMS norm over each head's d columns; weights are shared by all heads. */
static kedge_value head_norm(kedge_build *b, kedge_role role, uint32_t layer, kedge_value x, uint32_t heads) {
  const uint32_t T = b->spec->tokens, d = b->model->config.head_dim;
  kedge_value x_THd = kedge_reshape(b->g, x, 3, (uint32_t[]){T, heads, d});
  return kedge_reshape(b->g, norm(b, role, layer, x_THd), 2, (uint32_t[]){T, heads * d});
}

static kedge_value rope(kedge_build *b, kedge_value x, uint32_t heads) {
  const kedge_rope_options options = {
      .heads = heads, .interleaved = b->model->params.options.rope_interleaved, .factor = 1.0};
  return kedge_rope(b->g, x, b->inv_freq, b->d->positions_T, &options);
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

static kedge_value attention_block(kedge_build *b, uint32_t layer, kedge_value x_TD) {
  kedge_graph *g = b->g;
  const kedge_hf_config *c = &b->model->config;
  const uint32_t H = c->num_attention_heads, Hkv = c->num_key_value_heads;
  kedge_value q = kedge_linear(g, x_TD, kedge__weight(b, KEDGE_ROLE_Q, layer));
  kedge_value k = kedge_linear(g, x_TD, kedge__weight(b, KEDGE_ROLE_K, layer));
  kedge_value v = kedge_linear(g, x_TD, kedge__weight(b, KEDGE_ROLE_V, layer));
  if (b->model->params.options.qk_norm) {
    q = head_norm(b, KEDGE_ROLE_Q_NORM, layer, q, H);
    k = head_norm(b, KEDGE_ROLE_K_NORM, layer, k, Hkv);
  }
  kedge_value o = attend(b, layer, rope(b, q, H), rope(b, k, Hkv), v);
  return kedge_linear(g, o, kedge__weight(b, KEDGE_ROLE_O, layer));
}

static kedge_value mlp_block(kedge_build *b, uint32_t layer, kedge_value x_TD) {
  kedge_value gate_TF = kedge_linear(b->g, x_TD, kedge__weight(b, KEDGE_ROLE_MLP_GATE, layer));
  kedge_value up_TF = kedge_linear(b->g, x_TD, kedge__weight(b, KEDGE_ROLE_MLP_UP, layer));
  return kedge_linear(b->g, kedge_swiglu(b->g, gate_TF, up_TF), kedge__weight(b, KEDGE_ROLE_MLP_DOWN, layer));
}

/* The router in f32, whatever the storage dtype: two logits that bf16 could not tell apart still choose
 * rightly. */
static kedge_router_values router(kedge_build *b, uint32_t layer, kedge_value x_TD) {
  const kedge_family_options *o = &b->model->params.options;
  const kedge_decoder_spec *s = b->spec;
  const kedge_router_site site = {
      .graph = b->g,
      .layer = layer,
      .moe_layer = kedge_params_moe_index(&b->model->params, layer),
      .experts = b->model->config.num_experts,
      .topk = b->model->config.num_experts_per_tok,
      .score_kind = o->score_kind,
      .gate = {o->score_kind, o->gate_normalise, o->gate_alpha, o->gate_epsilon},
      .segments_T = b->d->segments_T,
      .spans_T = b->d->spans_T,
      .bias_LSE = b->d->bias_LSE,
      .interventions = s->interventions,
      .intervention_count = s->intervention_count,
  };
  kedge_value x32_TD = kedge_cast(b->g, x_TD, KEDGE_F32);
  kedge_value w32_ED = kedge_cast(b->g, kedge__weight(b, KEDGE_ROLE_ROUTER, layer), KEDGE_F32);
  return kedge_router_build(&site, kedge_linear(b->g, x32_TD, w32_ED));
}

/* Keeps what the caller may want to see of a router. */
static void tap(kedge_build *b, uint32_t index, const kedge_router_values *v) {
  kedge_decoder *d = b->d;
  d->bad_1[index] = v->bad_1;
  if (v->bad_1) kedge_output(b->g, v->bad_1, "router.bad");
  if (v->loss_1) d->aux_1 = d->aux_1 ? kedge_add(b->g, d->aux_1, v->loss_1) : v->loss_1;
  if (!b->spec->taps) return;
  kedge_output(b->g, d->router_TE[index] = v->logits_TE, "router.logits");
  kedge_output(b->g, d->ids_TK[index] = v->ids_TK, "router.ids");
  kedge_output(b->g, d->gates_TK[index] = v->weights_TK, "router.gates");
}

/* y_t = sum over chosen experts of g_te FFN_e(x_t). Rows are gathered while the grouped matmul loads; the
 * gate weight goes in before the down projection, so its gradient needs no expert output. */
static kedge_value moe_block(kedge_build *b, uint32_t layer, kedge_value x_TD) {
  kedge_graph *g = b->g;
  kedge_router_values v = router(b, layer, x_TD);
  tap(b, kedge_params_moe_index(&b->model->params, layer), &v);
  kedge_routes routes = kedge_dispatch(g, v.ids_TK, b->model->config.num_experts);
  kedge_value x_RD = kedge_gather_rows(g, x_TD, &routes);
  kedge_value gate_RI =
      kedge_grouped_matmul(g, x_RD, kedge__weight(b, KEDGE_ROLE_EXPERT_GATE, layer), &routes, true);
  kedge_value up_RI =
      kedge_grouped_matmul(g, x_RD, kedge__weight(b, KEDGE_ROLE_EXPERT_UP, layer), &routes, true);
  kedge_value act_RI = kedge_swiglu_gated(g, gate_RI, up_RI, v.weights_TK, &routes);
  kedge_value y_RD =
      kedge_grouped_matmul(g, act_RI, kedge__weight(b, KEDGE_ROLE_EXPERT_DOWN, layer), &routes, true);
  return kedge_combine_rows(g, y_RD, &routes);
}

kedge_value kedge__layer(kedge_build *b, uint32_t layer, kedge_value x_TD) {
  kedge_graph *g = b->g;
  if (b->spec->recompute) kedge_region_begin(g, "layer");
  kedge_value h_TD =
      kedge_add(g, x_TD, attention_block(b, layer, norm(b, KEDGE_ROLE_INPUT_NORM, layer, x_TD)));
  kedge_value n_TD = norm(b, KEDGE_ROLE_POST_NORM, layer, h_TD);
  kedge_value y_TD =
      kedge_params_is_moe(&b->model->params, layer) ? moe_block(b, layer, n_TD) : mlp_block(b, layer, n_TD);
  h_TD = kedge_add(g, h_TD, y_TD);
  if (b->spec->recompute) kedge_region_end(g);
  return h_TD;
}
