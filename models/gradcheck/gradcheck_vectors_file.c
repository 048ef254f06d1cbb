/* SPDX-License-Identifier: Apache-2.0
 * Reads a file of router vectors (gradcheck_vectors.h). */
#include "models/gradcheck/gradcheck_vectors.h"

#include "core/args.h"
#include "models/checkpoint/json.h"

#include <math.h>
#include <string.h>

/* Bytes of a file, tokens or widths, at most. */
enum { FILE_CAP = 128 << 20, SIZE_CAP = 1 << 20 };
/* The floor that Logit-L2 is built with (anchors.c). */
#define BUILT_FLOOR 1e-8

#define GATES_RPB                                                                                            \
  { "biased_logits", "topk", "gates", NULL, NULL, NULL, "dL_dz", "dL_dW" }
#define GATES_HARD                                                                                           \
  { NULL, "topk", "gates", NULL, NULL, NULL, "dL_dz", "dL_dW" }
#define LOSS                                                                                                 \
  { NULL, NULL, NULL, "loss", NULL, NULL, "dz", "dW" }
#define BALANCE                                                                                              \
  { NULL, NULL, NULL, "loss", "f", "P", "dz", "dW" }

const kedge_vector_case kedge_vector_cases[KEDGE_VECTOR_CASES] = {
    {"rpb_sigmoid_norm", KEDGE_ROUTER_rpb, KEDGE_SCORE_SIGMOID, true, 1, GATES_RPB},
    {"rpb_softmax", KEDGE_ROUTER_rpb, KEDGE_SCORE_SOFTMAX, false, 1, GATES_RPB},
    {"rpb_softmax_norm", KEDGE_ROUTER_rpb, KEDGE_SCORE_SOFTMAX, true, 1, GATES_RPB},
    {"hard_sigmoid_norm", KEDGE_ROUTER_rpb_hard, KEDGE_SCORE_SIGMOID, true, 1, GATES_HARD},
    {"hard_softmax", KEDGE_ROUTER_rpb_hard, KEDGE_SCORE_SOFTMAX, false, 1, GATES_HARD},
    {"hard_softmax_norm", KEDGE_ROUTER_rpb_hard, KEDGE_SCORE_SOFTMAX, true, 1, GATES_HARD},
    {"lbl_softmax", KEDGE_ROUTER_lbl, KEDGE_SCORE_SOFTMAX, false, 1, BALANCE},
    {"lbl_sigmoid", KEDGE_ROUTER_lbl, KEDGE_SCORE_SIGMOID, false, 1, BALANCE},
    {"zloss", KEDGE_ROUTER_z_loss, KEDGE_SCORE_SOFTMAX, false, 1, LOSS},
    {"kl", KEDGE_ROUTER_kl, KEDGE_SCORE_SOFTMAX, false, 1, LOSS},
    {"logit_l2", KEDGE_ROUTER_logit_l2, KEDGE_SCORE_SOFTMAX, false, 1, LOSS},
    {"router_l2_lambda1e4_2layers_this_layer",
     KEDGE_ROUTER_router_l2,
     KEDGE_SCORE_SOFTMAX,
     false,
     1e4 / 2,
     {NULL, NULL, NULL, "loss_term", NULL, NULL, NULL, "dW"}},
};

/* Shape of a quantity; returns its rank. */
static uint32_t shape_of(const kedge_vectors *v, kedge_vector_quantity q, uint32_t dims[2]) {
  switch (q) {
  case KEDGE_VECTOR_CHOICE:
  case KEDGE_VECTOR_GATES:
  case KEDGE_VECTOR_DZ:
    dims[0] = v->T, dims[1] = v->E;
    return 2;
  case KEDGE_VECTOR_TOPK:
    dims[0] = v->T, dims[1] = v->K;
    return 2;
  case KEDGE_VECTOR_DW:
    dims[0] = v->E, dims[1] = v->D;
    return 2;
  case KEDGE_VECTOR_F:
  case KEDGE_VECTOR_P:
    dims[0] = v->E;
    return 1;
  case KEDGE_VECTOR_LOSS:
  case KEDGE_VECTOR_QUANTITIES:
    break;
  }
  return 0;
}

uint64_t kedge_vectors_count(const kedge_vectors *v, kedge_vector_quantity q) {
  uint32_t dims[2] = {1, 1};
  shape_of(v, q, dims);
  return (uint64_t)dims[0] * dims[1];
}

/* ---- Numbers
 * ------------------------------------------------------------------------------------------------------ */

/* Where a value stands, for messages. */
typedef struct place {
  const kedge_vectors *v;
  const char *parent, *key; /* parent: "" or a case's name */
} place;

static kedge_status bad(const place *p, const char *what, const json_t *value) {
  return kedge_fail(KEDGE_ERR_FORMAT, "%s: %s%s%s: expected %s, came %s", p->v->path, p->parent,
                    *p->parent ? "." : "", p->key, what, kedge__json_type(value));
}

static kedge_status bad_length(const place *p, uint64_t want, const json_t *value) {
  if (!json_is_array(value)) return bad(p, "an array", value);
  return kedge_fail(KEDGE_ERR_FORMAT, "%s: %s%s%s: expected %llu entries, came %zu", p->v->path, p->parent,
                    *p->parent ? "." : "", p->key, (unsigned long long)want, json_array_size(value));
}

static kedge_status number(const place *p, const json_t *value, double *out) {
  if (!json_is_number(value)) return bad(p, "a number", value);
  *out = json_number_value(value);
  return isfinite(*out) ? KEDGE_OK : bad(p, "a finite number", value);
}

/* Numbers of nested arrays of that shape, in new memory; every length is looked at before. */
static kedge_status numbers(const place *p, const json_t *value, uint32_t rank, const uint32_t *dims,
                            double **out) {
  const uint64_t rows = rank ? dims[0] : 1, cols = rank > 1 ? dims[1] : 1;
  if (rank && (!json_is_array(value) || json_array_size(value) != rows)) return bad_length(p, rows, value);
  for (uint64_t r = 0; rank > 1 && r < rows; r++) {
    const json_t *row = json_array_get(value, r);
    if (!json_is_array(row) || json_array_size(row) != cols) return bad_length(p, cols, row);
  }
  if (!(*out = kedge_alloc(rows * cols, sizeof **out))) return KEDGE_ERR_MEMORY;
  for (uint64_t r = 0; r < rows; r++) {
    const json_t *row = rank ? json_array_get(value, r) : value;
    for (uint64_t c = 0; c < cols; c++)
      KEDGE_TRY(number(p, rank > 1 ? json_array_get(row, c) : row, &(*out)[r * cols + c]));
  }
  return KEDGE_OK;
}

/* ---- The parts of the file
 * ---------------------------------------------------------------------------------------- */

static kedge_status whole(const place *p, const json_t *value, int64_t least, int64_t most, int64_t *out) {
  if (!json_is_integer(value)) return bad(p, "a whole number", value);
  *out = json_integer_value(value);
  if (*out >= least && *out <= most) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_FORMAT, "%s: %s%s%s: expected %lld to %lld, came %lld", p->v->path, p->parent,
                    *p->parent ? "." : "", p->key, (long long)least, (long long)most, (long long)*out);
}

static kedge_status read_dims(kedge_vectors *v, const json_t *root) {
  const json_t *dims = json_object_get(root, "dims");
  const struct {
    const char *key;
    uint32_t *to;
  } list[] = {{"T", &v->T}, {"E", &v->E}, {"K", &v->K}, {"d", &v->D}};
  if (!json_is_object(dims)) return bad(&(place){v, "", "dims"}, "an object", dims);
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    int64_t n = 0;
    KEDGE_TRY(whole(&(place){v, "dims", list[i].key}, json_object_get(dims, list[i].key), 1, SIZE_CAP, &n));
    *list[i].to = (uint32_t)n;
  }
  if (v->K <= v->E) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_FORMAT, "%s: dims.K: expected at most the %u experts, came %u", v->path, v->E,
                    v->K);
}

static kedge_status read_reals(kedge_vectors *v, const json_t *root) {
  const struct {
    const char *key;
    double *to, least;
  } list[] = {{"eps", &v->eps, 1e-30},
              {"C", &v->clip, 1e-30},
              {"beta", &v->beta, 0},
              {"alpha", &v->alpha, 1e-30},
              {"log_floor", &v->log_floor, 1e-300}};
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    const json_t *value = json_object_get(root, list[i].key);
    KEDGE_TRY(number(&(place){v, "", list[i].key}, value, list[i].to));
    if (!(*list[i].to >= list[i].least && *list[i].to <= 1e30))
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: %s: expected %g to 1e30, came %g", v->path, list[i].key,
                        list[i].least, *list[i].to);
  }
  if (v->eps <= v->clip) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_FORMAT, "%s: eps: expected at most C = %g, came %g", v->path, v->clip, v->eps);
}

static kedge_status read_spans(kedge_vectors *v, const json_t *root) {
  const place p = {v, "", "span"};
  const json_t *span = json_object_get(root, "span");
  if (!json_is_array(span) || json_array_size(span) != v->T) return bad_length(&p, v->T, span);
  if (!(v->span_T = kedge_alloc(v->T, sizeof *v->span_T))) return KEDGE_ERR_MEMORY;
  for (uint32_t t = 0; t < v->T; t++) {
    int64_t n = 0;
    KEDGE_TRY(whole(&p, json_array_get(span, t), -1, (int64_t)v->S - 1, &n));
    v->span_T[t] = (int32_t)n;
  }
  return KEDGE_OK;
}

/* Rows of probabilities; a row that is none is an error, not repaired. */
static kedge_status check_prior(const kedge_vectors *v) {
  for (uint32_t s = 0; s < v->S; s++) {
    double sum = 0, least = 1;
    for (uint32_t e = 0; e < v->E; e++) {
      sum += v->pi_SE[s * v->E + e];
      least = fmin(least, v->pi_SE[s * v->E + e]);
    }
    if (least < 0 || fabs(sum - 1) > 1e-3)
      return kedge_fail(KEDGE_ERR_FORMAT,
                        "%s: pi, row %u: expected probabilities that sum to 1, came a least of %g and a sum "
                        "of %g",
                        v->path, s, least, sum);
    if (least < BUILT_FLOOR && v->log_floor < BUILT_FLOOR)
      return kedge_fail(KEDGE_ERR_UNSUPPORTED,
                        "%s: log_floor: %g is below the floor %g that is built in, and pi holds less",
                        v->path, v->log_floor, BUILT_FLOOR);
  }
  return KEDGE_OK;
}

static kedge_status read_inputs(kedge_vectors *v, const json_t *root) {
  const json_t *pi = json_object_get(root, "pi");
  KEDGE_TRY(read_dims(v, root));
  KEDGE_TRY(read_reals(v, root));
  if (!json_is_array(pi) || !json_array_size(pi) || json_array_size(pi) > SIZE_CAP)
    return bad(&(place){v, "", "pi"}, "an array of rows", pi);
  v->S = (uint32_t)json_array_size(pi);
  const struct {
    const char *key;
    double **to;
    uint32_t rank, dims[2];
    bool optional;
  } list[] = {{"X", &v->x_TD, 2, {v->T, v->D}, false},
              {"W", &v->w_ED, 2, {v->E, v->D}, false},
              {"W0", &v->base_w_ED, 2, {v->E, v->D}, false},
              {"e_score_correction_bias", &v->correction_E, 1, {v->E, 1}, false},
              {"dL_dgate", &v->cotangent_TE, 2, {v->T, v->E}, false},
              {"pi", &v->pi_SE, 2, {v->S, v->E}, false},
              {"bias", &v->bias_SE, 2, {v->S, v->E}, false},
              {"base_logits", &v->base_logits_TE, 2, {v->T, v->E}, true}};
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    const json_t *value = json_object_get(root, list[i].key);
    if (!value && list[i].optional) continue;
    KEDGE_TRY(numbers(&(place){v, "", list[i].key}, value, list[i].rank, list[i].dims, list[i].to));
  }
  KEDGE_TRY(read_spans(v, root));
  return check_prior(v);
}

/* Whole, in range, and each expert once a token. */
static kedge_status check_topk(const kedge_vectors *v, const kedge_vector_case *c, const double *ids) {
  for (uint64_t i = 0; i < (uint64_t)v->T * v->K; i++) {
    bool fine = ids[i] >= 0 && ids[i] < v->E && ids[i] == floor(ids[i]);
    for (uint64_t k = i - i % v->K; k < i; k++) fine = fine && ids[k] != ids[i];
    if (!fine)
      return kedge_fail(KEDGE_ERR_FORMAT,
                        "%s: %s.topk, token %llu: expected %u different experts of %u, came %g", v->path,
                        c->name, (unsigned long long)(i / v->K), v->K, v->E, ids[i]);
  }
  return KEDGE_OK;
}

/* The first key of a case that is none of its quantities; NULL if there is none. */
static const char *unknown_key(const kedge_vector_case *c, const json_t *object) {
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)object, key, value) {
    bool known = false;
    for (uint32_t q = 0; q < KEDGE_VECTOR_QUANTITIES; q++)
      known = known || (c->names[q] && !strcmp(c->names[q], key));
    if (!known) return key;
  }
  return NULL;
}

static kedge_status read_case(kedge_vectors *v, uint32_t at, const json_t *object) {
  const kedge_vector_case *c = &kedge_vector_cases[at];
  if (!json_is_object(object)) return bad(&(place){v, "cases", c->name}, "an object", object);
  size_t known = 0;
  for (uint32_t q = 0; q < KEDGE_VECTOR_QUANTITIES; q++) {
    const json_t *value = c->names[q] ? json_object_get(object, c->names[q]) : NULL;
    const place p = {v, c->name, c->names[q]};
    uint32_t dims[2];
    if (!value) continue;
    const uint32_t rank = shape_of(v, (kedge_vector_quantity)q, dims);
    KEDGE_TRY(numbers(&p, value, rank, dims, &v->expected[at][q]));
    known++;
  }
  const char *unknown = unknown_key(c, object);
  if (unknown)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: case %s: unknown key \"%.80s\"", v->path, c->name, unknown);
  if (!known) return kedge_fail(KEDGE_ERR_FORMAT, "%s: case %s: nothing to compare", v->path, c->name);
  const double *topk = v->expected[at][KEDGE_VECTOR_TOPK];
  if (c->names[KEDGE_VECTOR_TOPK] && !topk) return bad(&(place){v, c->name, "topk"}, "an array", NULL);
  v->present[at] = true;
  return topk ? check_topk(v, c, topk) : KEDGE_OK;
}

static kedge_status read_cases(kedge_vectors *v, json_t *root) {
  json_t *cases = json_object_get(root, "cases"), *object;
  const char *name;
  if (!json_is_object(cases)) return bad(&(place){v, "", "cases"}, "an object", cases);
  if (!json_object_size(cases))
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: cases: expected at least one case, came none", v->path);
  json_object_foreach(cases, name, object) {
    uint32_t at = 0;
    while (at < KEDGE_VECTOR_CASES && strcmp(kedge_vector_cases[at].name, name) != 0) at++;
    if (at == KEDGE_VECTOR_CASES)
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: cases: no case is named \"%.80s\"", v->path, name);
    KEDGE_TRY(read_case(v, at, object));
  }
  return KEDGE_OK;
}

kedge_status kedge_vectors_load(const char *path, kedge_vectors **out) {
  json_t *root = NULL;
  kedge_vectors *v = *out = kedge_alloc(1, sizeof *v);
  if (!v) return KEDGE_ERR_MEMORY;
  kedge_status status;
  KEDGE_GOTO((v->path = kedge_strdup(path)) ? KEDGE_OK : KEDGE_ERR_MEMORY, status, done);
  KEDGE_GOTO(kedge__json_load(path, FILE_CAP, &root), status, done);
  if (!json_is_object(root))
    KEDGE_GOTO(kedge_fail(KEDGE_ERR_FORMAT, "%s: expected an object, came %s", path, kedge__json_type(root)),
               status, done);
  KEDGE_GOTO(read_inputs(v, root), status, done);
  status = read_cases(v, root);
done:
  json_decref(root);
  if (status == KEDGE_OK) return KEDGE_OK;
  kedge_vectors_free(v);
  *out = NULL;
  return status;
}

void kedge_vectors_free(kedge_vectors *v) {
  if (!v) return;
  double *const arrays[] = {v->x_TD,         v->w_ED,  v->base_w_ED, v->correction_E,
                            v->cotangent_TE, v->pi_SE, v->bias_SE,   v->base_logits_TE};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) kedge_free(arrays[i]);
  for (uint32_t c = 0; c < KEDGE_VECTOR_CASES; c++)
    for (uint32_t q = 0; q < KEDGE_VECTOR_QUANTITIES; q++) kedge_free(v->expected[c][q]);
  kedge_free(v->span_T);
  kedge_free(v->path);
  kedge_free(v);
}
