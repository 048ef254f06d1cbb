/* SPDX-License-Identifier: Apache-2.0
 *
 * Vectors of one router that another program computed - gates, losses, gradients - against what the builders
 * of routers.def give (docs/file-formats.md has the JSON). Reading is in gradcheck_vectors_file.c, comparing
 * in gradcheck_vectors.c. Random problems of our own are in gradcheck.h.
 *
 * Legend: T tokens, E experts, K experts a token, D width, S rows of the prior.
 */
#ifndef KEDGE_MODELS_ROUTING_GRADCHECK_VECTORS_H
#define KEDGE_MODELS_ROUTING_GRADCHECK_VECTORS_H

#include "models/routing/router.h"

/* Limits on the largest error, relative to the largest expected entry, or to 1 for a loss and 1/T for a
 * gradient where that is more. */
#define KEDGE_VECTORS_F64 1e-10
#define KEDGE_VECTORS_F32 1e-5

enum { KEDGE_VECTOR_CASES = 12 };

/* What a case may hold. */
typedef enum kedge_vector_quantity {
  KEDGE_VECTOR_CHOICE, /* [T,E] logits that the choice reads */
  KEDGE_VECTOR_TOPK,   /* [T,K] whole numbers, best first */
  KEDGE_VECTOR_GATES,  /* [T,E], 0 where not chosen */
  KEDGE_VECTOR_LOSS,   /* [] */
  KEDGE_VECTOR_F,      /* [E] shares of the choices */
  KEDGE_VECTOR_P,      /* [E] mean scores */
  KEDGE_VECTOR_DZ,     /* [T,E] gradient of the logits */
  KEDGE_VECTOR_DW,     /* [E,D] gradient of the router's weights */
  KEDGE_VECTOR_QUANTITIES
} kedge_vector_quantity;

/* What is fixed of a case. */
typedef struct kedge_vector_case {
  const char *name;
  kedge_router_id id;
  uint32_t score_kind; /* KEDGE_SCORE_* */
  bool normalise;
  double factor;                              /* of a loss */
  const char *names[KEDGE_VECTOR_QUANTITIES]; /* in the file; NULL: it has none such */
} kedge_vector_case;
extern const kedge_vector_case kedge_vector_cases[KEDGE_VECTOR_CASES];

/* A file. Arrays are dense, owned by the struct; optional ones may be NULL. */
typedef struct kedge_vectors {
  char *path;
  uint32_t T, E, K, D, S;
  double *x_TD, *w_ED, *base_w_ED, *correction_E, *cotangent_TE; /* cotangent: of the gates */
  double *pi_SE, *bias_SE, *base_logits_TE;                      /* base_logits: optional */
  int32_t *span_T;                                               /* row of the prior, -1: none */
  double eps, clip, beta, alpha, log_floor;
  bool present[KEDGE_VECTOR_CASES];
  double *expected[KEDGE_VECTOR_CASES][KEDGE_VECTOR_QUANTITIES]; /* NULL: the case has no such */
} kedge_vectors;

/* Number of entries of a quantity. */
uint64_t kedge_vectors_count(const kedge_vectors *vectors, kedge_vector_quantity quantity);

/* Reads and checks a file. Errors: ERR_IO; ERR_FORMAT naming the key, what was expected and what came;
 * ERR_UNSUPPORTED for a floor of the prior below the one that is built in, where it would matter. Owned by
 * the caller. */
kedge_status kedge_vectors_load(const char *path, kedge_vectors **vectors);
void kedge_vectors_free(kedge_vectors *vectors);

/* One quantity compared. */
typedef struct kedge_vector_result {
  bool compared;
  double error;         /* largest, relative; infinite where a number is not finite or an expert differs */
  uint64_t at;          /* the entry where it is */
  double expected, got; /* there */
  double limit;
} kedge_vector_result;

typedef struct kedge_vectors_report {
  kedge_vector_result bias, base_logits; /* of the inputs: b made of pi (f32), X W0^T */
  kedge_vector_result results[KEDGE_VECTOR_CASES][KEDGE_VECTOR_QUANTITIES];
  uint32_t compared, failed;
} kedge_vectors_report;

/* Builds and runs each case on a device, in f32 or in double (reference backend alone), and compares. A
 * number that differs is no error: `failed` counts. */
kedge_status kedge_vectors_check(const kedge_vectors *vectors, kedge_device *device, bool all_double,
                                 kedge_vectors_report *report);

/* "case kl, dz[3][5]: expected 0.25, got 0.5" for the first result that failed, in new memory; NULL without
 * one or without memory. */
char *kedge_vectors_describe(const kedge_vectors *vectors, const kedge_vectors_report *report);

#endif
