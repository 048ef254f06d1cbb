/* SPDX-License-Identifier: Apache-2.0
 *
 * The few functions of cuBLASLt and hipBLASLt that blas.c calls, and the numbers that differ, so that neither
 * needs a header to build against. Names of functions follow the vendor's prefix; a descriptor is a pointer,
 * an enumerator an int, success 0. tests/blas_double.c is a library with these functions on the host.
 */
#ifndef KEDGE_GPU_BLAS_VENDORS_H
#define KEDGE_GPU_BLAS_VENDORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BLAS_FUNCTIONS(X)                                                                                    \
  X(Create)                                                                                                  \
  X(Destroy)                                                                                                 \
  X(Matmul)                                                                                                  \
  X(MatmulDescCreate)                                                                                        \
  X(MatmulDescDestroy)                                                                                       \
  X(MatmulDescSetAttribute)                                                                                  \
  X(MatrixLayoutCreate)                                                                                      \
  X(MatrixLayoutDestroy)                                                                                     \
  X(MatmulPreferenceCreate)                                                                                  \
  X(MatmulPreferenceDestroy)                                                                                 \
  X(MatmulPreferenceSetAttribute)                                                                            \
  X(MatmulAlgoGetHeuristic)

/* What the heuristic fills: the algorithm, then the bytes of workspace that it takes, then a status. cuBLASLt
 * fills 96 bytes, hipBLASLt 56; the rest is for versions with more. */
typedef struct blas_choice {
  _Alignas(16) unsigned char bytes[256];
} blas_choice;

typedef struct blas_functions {
  int (*Create)(void **handle);
  int (*Destroy)(void *handle);
  int (*Matmul)(void *handle, void *product, const void *alpha, const void *a, void *layout_a, const void *b,
                void *layout_b, const void *beta, const void *c, void *layout_c, void *d, void *layout_d,
                const void *algorithm, void *workspace, size_t workspace_bytes, void *stream);
  int (*MatmulDescCreate)(void **product, int compute, int scale);
  int (*MatmulDescDestroy)(void *product);
  int (*MatmulDescSetAttribute)(void *product, int name, const void *value, size_t bytes);
  int (*MatrixLayoutCreate)(void **layout, int type, uint64_t rows, uint64_t cols, int64_t pitch);
  int (*MatrixLayoutDestroy)(void *layout);
  int (*MatmulPreferenceCreate)(void **wish);
  int (*MatmulPreferenceDestroy)(void *wish);
  int (*MatmulPreferenceSetAttribute)(void *wish, int name, const void *value, size_t bytes);
  int (*MatmulAlgoGetHeuristic)(void *handle, void *product, void *layout_a, void *layout_b, void *layout_c,
                                void *layout_d, void *wish, int wanted, void *choices, int *count);
} blas_functions;

enum { BLAS_FILES = 3 };
typedef struct blas_vendor {
  const char *name, *prefix, *files[BLAS_FILES];
  int op_n, op_t, type_f32, type_bf16, compute_f32, desc_transa, desc_transb;
  int wish_workspace, wish_alignment; /* the latter of A; B, C and D follow; 0: there are none */
  size_t choice_state;                /* byte of the choice's status */
} blas_vendor;

enum { BLAS_CUBLASLT, BLAS_HIPBLASLT, BLAS_VENDORS };
static const blas_vendor blas_vendors[BLAS_VENDORS] = {
    [BLAS_CUBLASLT] = {.name = "cuBLASLt",
                       .prefix = "cublasLt",
                       .files = {"libcublasLt.so.13", "libcublasLt.so.12"},
                       .op_n = 0,
                       .op_t = 1,
                       .type_f32 = 0,
                       .type_bf16 = 14,
                       .compute_f32 = 68,
                       .desc_transa = 3,
                       .desc_transb = 4,
                       .wish_workspace = 1,
                       .wish_alignment = 5,
                       .choice_state = 72},
    [BLAS_HIPBLASLT] = {.name = "hipBLASLt",
                        .prefix = "hipblasLt",
                        .files = {"libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so"},
                        .op_n = 111,
                        .op_t = 112,
                        .type_f32 = 0,
                        .type_bf16 = 14,
                        .compute_f32 = 2,
                        .desc_transa = 0,
                        .desc_transb = 1,
                        .wish_workspace = 1,
                        .wish_alignment = 0,
                        .choice_state = 32}};

static inline bool blas_choice_good(const blas_vendor *v, const blas_choice *choice) {
  int state;
  memcpy(&state, choice->bytes + v->choice_state, sizeof state);
  return state == 0;
}

#endif
